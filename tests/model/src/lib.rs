//! The pipeline's protocol as a model that is checked exhaustively: every interleaving of ingress, two
//! provisioners, a notifier, a provider and messages that get lost, repeated and
//! reordered, with crashes and stalls at any step.
//!
//! A placement moves by [`domain::placement::Placement::after`], the state machine that the statements
//! of crate `store` are tested against; everything around it is written down in `steps` as the services
//! do it, one [`Action`] for each step after which a process may die or stand still.
//!
//! Without one [`Safeguard`] the checker finds a counterexample. Without an [`Assumption`] even the
//! complete protocol breaks.
//!
//! Time is logical. Half of the settling delay is one tick, see [`State`]; due times are only "now" or
//! "not now", and a due row may be claimed at any moment: a lease is no safeguard.

mod actions;
mod narrative;
mod protocol;
mod state;
mod steps;

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use clap::ValueEnum;
use domain::placement::{Event, Placement};
use stateright::{Checker, HasDiscoveries, Model};

pub use crate::{actions::Action, protocol::Protocol, state::State};

/// A rule of the protocol without which the promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Safeguard {
    /// An attempt is recorded before the provider is called
    RecordedAttempt,
    /// Only a placement that is `accepted` can be claimed to be bought: a conditional update
    IdempotentClaim,
    /// An attempt with an unknown outcome is looked up before anything is bought again
    LookUp,
    /// "No such purchase" allows another attempt only once SETTLE has passed
    Settle,
    /// A process abandons an attempt that it would send more than SETTLE/2 after its claim
    Abandon,
    /// Lateness counts from before the claim is sent, not from the claim's answer
    EarlyClock,
    /// Due rows are claimed without a message
    Redrive,
    /// Rows that did not finish within their first lease get a due row
    Sweep,
    /// The sweep passes a time only once every transaction that began before it has ended
    SweepFence,
    /// A 422 is answered only if one transaction found every placement accepted or failed and refused it,
    /// whatever the verdicts said
    RefusalTransaction,
    /// That transaction refuses nothing after `answer_by`
    RefusalInTime,
    /// A second POST is answered "already taken" only once the order can't be refused any more
    Undecided,
    /// Readiness is published only when ingress has released the order
    AnsweredFirst,
    /// A delivery isn't due before `answer_by`, and ingress doesn't answer after it
    AnswerBy,
    /// A delivery counts as delivered only after the endpoint has acknowledged it
    RecordedDelivery,
}

/// A condition outside the protocol without which the promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Assumption {
    /// A purchase arrives, and shows up in look-ups, within SETTLE/2 of the moment when its sender
    /// found that it isn't late
    PromptArrival,
    /// The provider never answers "no such purchase" for one that has shown up; without it, each such
    /// answer is one of the faults
    HonestLookUp,
}

/// What is checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many placements the one order has.
    pub placements: usize,
    /// How often a process may crash or an endpoint may fail.
    pub faults: u8,
    /// How often a placement may be attempted before it is parked.
    pub attempts: u32,
    /// Whether the provider recognises a second purchase under the same key.
    pub detects_duplicates: bool,
    /// Whether a single "no such purchase" allows another attempt, once SETTLE has passed.
    pub one_look: bool,
    /// Safeguards that are left out.
    pub without: Vec<Safeguard>,
    /// Assumptions that don't hold.
    pub broken: Vec<Assumption>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            placements: 1,
            faults: 2,
            attempts: 2,
            detects_duplicates: false,
            one_look: false,
            without: Vec::new(),
            broken: Vec::new(),
        }
    }
}

/// A property of every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// No placement is bought twice.
    BoughtOnce,
    /// Nothing is bought for an order that was answered with 422.
    NothingForRefused,
    /// An order that was called "already taken" is never refused.
    TakenStands,
    /// No webhook is sent before the order's 201.
    AnswerFirst,
    /// Where nothing more can happen, all is delivered, failed or parked, and what was bought is
    /// delivered or parked.
    NothingLost,
}

impl Promise {
    /// Every promise.
    pub const ALL: [Self; 5] = [
        Self::BoughtOnce,
        Self::NothingForRefused,
        Self::TakenStands,
        Self::AnswerFirst,
        Self::NothingLost,
    ];

    /// The promise as a sentence.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BoughtOnce => "nothing is bought twice",
            Self::NothingForRefused => "nothing is bought for an order answered with 422",
            Self::TakenStands => "what is already taken is never refused",
            Self::AnswerFirst => "no webhook precedes the answer",
            Self::NothingLost => "everything accepted ends delivered, failed or parked",
        }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a promise is broken.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// The promise.
    pub promise: Promise,
    /// What happens, step by step, in words.
    pub steps: Vec<String>,
}

/// What a check found.
#[derive(Clone, Debug)]
pub struct Report {
    /// Distinct states that were looked at; all there are if no promise was broken.
    pub states: usize,
    /// The longest way to a state that was looked at.
    pub depth: usize,
    /// The shortest way to break a promise that was found.
    pub counterexample: Option<Counterexample>,
    /// Final states that the protocol should reach but never did.
    pub unreached: Vec<&'static str>,
    /// Every pair of placement and event that occurred.
    pub visited: HashSet<(Placement, Event)>,
}

/// Explores every state, or as many as it takes to find a broken promise.
pub fn check(settings: &Settings) -> Report {
    let visited = Arc::new(Mutex::new(HashSet::new()));
    let protocol = Protocol::new(settings.clone(), Arc::clone(&visited));
    let checker = protocol
        .checker()
        .threads(std::thread::available_parallelism().map_or(1, usize::from))
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let mut discoveries: BTreeMap<_, _> = checker.discoveries().into_iter().collect();
    let counterexample = Promise::ALL.into_iter().find_map(|promise| {
        let path = discoveries.remove(promise.name())?.into_vec();
        let steps = narrative::tell(&path);
        Some(Counterexample { promise, steps })
    });
    let unreached = protocol::ENDS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !discoveries.contains_key(name))
        .collect();
    let visited = visited.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Report {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        counterexample,
        unreached,
        visited,
    }
}
