//! An exhaustive model of the protocol between the stages. The checker explores every interleaving
//! of ingress, two provisioners, a notifier and a provider, with lost, repeated and reordered
//! messages, and with crashes and stalls at any step. It checks each [`Promise`] in every state.
//!
//! What the model has in common with the code: a placement moves by
//! [`domain::placement::Placement::after`], and the statements of the crate `store` are tested
//! against the same function. The rest of the protocol is described again in the module `steps`, as
//! the services do it. So if you change the order of steps in a service, change it there, too.
//!
//! The model also shows that nothing in the protocol is superfluous: without any one [`Safeguard`]
//! the checker finds a counterexample. Without an [`Assumption`] even the complete protocol breaks,
//! so these are the conditions that the promise rests on.
//!
//! Smaller models stand beside it: [`routes`] of a purchase that arrives after its placement went
//! to another provider, [`webhooks`] of what happens between a ready eSIM and the acknowledgements
//! of its endpoints, [`resend`] of many webhooks that are sent again beside their retries,
//! [`esim_change`] of what happens after a delivery, [`crash`] of what a crash of PostgreSQL may
//! lose, [`repeats`] of three POSTs with one id and the purchases of their orders, and [`money`] of
//! a prepaid account. And [`history`] compares what happened in a fault run with the model.
//!
//! Time is logical. One tick is half of the settling delay, see [`State`]. A row is either due or
//! not, and a due row may be claimed at any moment. The model does not know leases, because nothing
//! may depend on them.

mod actions;
pub mod crash;
pub mod esim_change;
pub mod explore;
pub mod history;
pub mod money;
mod protocol;
pub mod repeats;
pub mod resend;
pub mod routes;
mod rules;
mod settings;
mod state;
mod steps;
pub mod webhooks;

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
};

use domain::placement::{Placement, PlacementEvent};
use stateright::{Checker, HasDiscoveries, Model};

pub use crate::{
    actions::Action,
    rules::Protocol,
    settings::{Assumption, Promise, Safeguard, Settings},
    state::State,
};

/// A broken promise, and the steps that lead to the state in which it is broken.
#[derive(Clone, Debug)]
pub struct Counterexample {
    pub promise: Promise,
    pub steps: Vec<String>,
}

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Report {
    /// The number of distinct states that were visited. If no promise was broken, these are all
    /// states.
    pub states: usize,
    /// The number of steps to the deepest state that was visited.
    pub depth: usize,
    /// The shortest counterexample that was found.
    pub counterexample: Option<Counterexample>,
    /// The states that the protocol should reach but never did. There must be none, because
    /// otherwise the model is too small to prove anything.
    pub unreached: Vec<&'static str>,
    /// Every pair of placement and event that occurred.
    pub visited: HashSet<(Placement, PlacementEvent)>,
}

/// Explores every state, or stops as soon as it finds a broken promise.
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
        // The provisioners are sorted after each step, so their numbers mean nothing. The work that
        // they have afterwards shows which one a step means.
        let step = |pair: &[(State, Option<Action>)]| {
            Some(format!(
                "{:?}; then provisioners: {:?}",
                pair[0].1?, pair[1].0.provisioners
            ))
        };
        let steps = path.windows(2).filter_map(step).collect();
        Some(Counterexample { promise, steps })
    });
    let unreached = protocol::ENDS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !discoveries.contains_key(name))
        .collect();
    let visited = visited
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    Report {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        counterexample,
        unreached,
        visited,
    }
}
