//! An exhaustive model of the pipeline's protocol: every interleaving of ingress, two provisioners, a
//! notifier, a provider, and lost, repeated and reordered messages, with crashes and stalls at any step.
//!
//! A placement moves by [`domain::placement::Placement::after`]; the statements of crate `store` are tested
//! against the same state machine. The module `steps` describes the rest as the services do it. After each
//! [`Action`] a process may die or stall.
//!
//! Without any one [`Safeguard`] the checker finds a counterexample. Without an [`Assumption`] even the
//! complete protocol breaks.
//!
//! Time is logical. One tick is half of the settling delay, see [`State`]. Due times are only "now" or "not
//! now", and a due row may be claimed at any moment: a lease is not a safeguard.

mod actions;
mod protocol;
mod state;
mod steps;

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use clap::{Args, ValueEnum};
use domain::placement::{Event, Placement};
use stateright::{Checker, HasDiscoveries, Model};

pub use crate::{actions::Action, protocol::Protocol, state::State};

/// A rule of the protocol without which the promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Safeguard {
    /// An attempt is recorded before the provider is called
    RecordedAttempt,
    /// Only an `accepted` placement can be claimed to buy it: a conditional update
    IdempotentClaim,
    /// An attempt with an unknown outcome is looked up before anything is bought again
    LookUp,
    /// "No such purchase" allows another attempt only once SETTLE has passed
    Settle,
    /// A process abandons an attempt that it would send more than SETTLE/2 after its claim
    Abandon,
    /// Lateness counts from before the claim is sent, not from its response
    EarlyClock,
    /// Due rows are claimed without a message
    DueWork,
    /// Rows that did not finish within their first lease get a due row
    Sweep,
    /// The sweep passes a time only after every transaction that began before it has ended
    SweepFence,
    /// A 422 is sent only if one transaction found every placement accepted or failed and refused it,
    /// whatever the verdicts said
    RefusalTransaction,
    /// That transaction refuses nothing after `answer_by`
    RefusalInTime,
    /// A second POST is answered "already taken" only after the order can no longer be refused
    Undecided,
    /// Readiness of an order that is still being answered goes to its ingress, not to the stream
    AnsweredFirst,
    /// Ingress publishes such readiness only once the answer has left
    HeldReadiness,
    /// A placement whose answer waits for no verdict isn't due before `answer_by`: its first lease is longer
    FirstLease,
    /// A delivery isn't due before `answer_by`, and ingress doesn't answer after it
    AnswerBy,
    /// A delivery counts as delivered only after the endpoint has acknowledged it
    RecordedDelivery,
}

/// A condition outside the protocol without which the promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Assumption {
    /// A purchase arrives, and look-ups show it, within SETTLE/2 of its sender's check for lateness
    PromptArrival,
    /// The provider never says "no such purchase" for one that look-ups have shown; without this assumption,
    /// each such response is one of the faults
    HonestLookUp,
}

/// The settings of a check.
#[derive(Clone, Debug, Args)]
pub struct Settings {
    /// Switch off a safeguard; repeatable
    #[arg(long, value_name = "SAFEGUARD")]
    pub without: Vec<Safeguard>,
    /// Drop an assumption; repeatable
    #[arg(long = "break", value_name = "ASSUMPTION")]
    pub broken: Vec<Assumption>,
    /// Number of placements of the one order
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub placements: u8,
    /// Maximum number of crashes and failing endpoints, together
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=4))]
    pub faults: u8,
    /// Maximum number of attempts before a placement is parked
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=4))]
    pub attempts: u32,
    /// The provider recognises a second purchase under the same key
    #[arg(long)]
    pub detects_duplicates: bool,
    /// One "no such purchase" allows another attempt, once SETTLE has passed
    #[arg(long)]
    pub one_look: bool,
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
    /// In every final state, every unit is delivered, failed or parked, and every bought unit is delivered or
    /// parked.
    NothingLost,
}

impl Promise {
    pub const ALL: [Self; 5] =
        [Self::BoughtOnce, Self::NothingForRefused, Self::TakenStands, Self::AnswerFirst, Self::NothingLost];

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

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Counterexample {
    pub promise: Promise,
    pub steps: Vec<String>,
}

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Report {
    /// Distinct visited states; all states, if no promise was broken.
    pub states: usize,
    /// The depth of the deepest visited state.
    pub depth: usize,
    /// The shortest counterexample that was found.
    pub counterexample: Option<Counterexample>,
    /// Final states that the protocol should reach but never did.
    pub unreached: Vec<&'static str>,
    /// Every pair of placement and event that occurred.
    pub visited: HashSet<(Placement, Event)>,
}

/// Explores every state, or stops at a broken promise.
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
        // Provisioners are sorted after each step, so their work says which one is meant.
        let step = |pair: &[(State, Option<Action>)]| {
            Some(format!("{:?}; then provisioners: {:?}", pair[0].1?, pair[1].0.provisioners))
        };
        let steps = path.windows(2).filter_map(step).collect();
        Some(Counterexample { promise, steps })
    });
    let unreached =
        protocol::ENDS.iter().map(|(name, _)| *name).filter(|name| !discoveries.contains_key(name)).collect();
    let visited = visited.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Report { states: checker.unique_state_count(), depth: checker.max_depth(), counterexample, unreached, visited }
}
