//! The check of a small model: [`crate::routes`], [`crate::webhooks`], [`crate::resend`],
//! [`crate::esim_change`], [`crate::crash`], [`crate::money`] and [`crate::repeats`]. Each of them
//! says what it promises and where it must get to, and [`check`] explores it.

use std::{collections::BTreeMap, fmt::Debug, hash::Hash};

use stateright::{Checker, HasDiscoveries, Model, Property};

/// A protocol that is small enough to have a model of its own.
pub trait SmallModel:
    Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Clone + Debug + PartialEq>
    + Send
    + Sync
    + Sized
    + 'static
{
    /// Its rules, each of which can be switched off.
    type Safeguard: Clone;
    type Promise: Copy + 'static;
    /// What must be true in every state. If several are broken, the first one is reported.
    const PROMISES: &'static [Promised<Self>];
    /// The ends, with their names. Each must be reached, because otherwise the model is too small
    /// to prove anything.
    const ENDS: &'static [(&'static str, Condition<Self>)];

    /// The protocol with these safeguards switched off.
    fn without(safeguards: Vec<Self::Safeguard>) -> Self;
}

/// What is asked of a state.
pub type Condition<Protocol> = fn(&Protocol, &<Protocol as Model>::State) -> bool;

/// A promise of a small model.
pub struct Promised<Protocol: SmallModel> {
    pub promise: Protocol::Promise,
    /// The promise in words, for whoever reads a counterexample.
    pub name: &'static str,
    /// Whether the promise is kept in a state.
    pub is_kept: Condition<Protocol>,
}

/// The result of a check.
#[derive(Debug)]
pub struct Report<Promise> {
    pub states: usize,
    pub counterexample: Option<Counterexample<Promise>>,
    /// The ends that were never reached. There must be none.
    pub unreached: Vec<&'static str>,
}

/// A broken promise, and the steps that lead to the state in which it is broken.
#[derive(Debug)]
pub struct Counterexample<Promise> {
    pub promise: Promise,
    /// The promise in words.
    pub name: &'static str,
    pub steps: Vec<String>,
}

/// The promises and the ends of a model in the form in which the checker asks for them.
pub(crate) fn properties<Protocol: SmallModel>() -> Vec<Property<Protocol>> {
    let promises = Protocol::PROMISES.iter();
    let promises = promises.map(|promised| Property::always(promised.name, promised.is_kept));
    let ends = Protocol::ENDS.iter();
    let ends = ends.map(|(name, end)| Property::sometimes(name, *end));
    promises.chain(ends).collect()
}

/// Explores every state of the protocol without these safeguards, or stops as soon as it finds a
/// broken promise.
pub fn check<Protocol: SmallModel>(without: &[Protocol::Safeguard]) -> Report<Protocol::Promise> {
    let checker = Protocol::without(without.to_vec())
        .checker()
        .threads(std::thread::available_parallelism().map_or(1, usize::from))
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let mut discoveries: BTreeMap<_, _> = checker.discoveries().into_iter().collect();
    let counterexample = Protocol::PROMISES.iter().find_map(|promised| {
        let path = discoveries.remove(promised.name)?.into_vec();
        let steps = path
            .iter()
            .filter_map(|(_, action)| action.as_ref().map(|action| format!("{action:?}")));
        Some(Counterexample {
            promise: promised.promise,
            name: promised.name,
            steps: steps.collect(),
        })
    });
    let ends = Protocol::ENDS.iter().map(|(name, _)| *name);
    Report {
        states: checker.unique_state_count(),
        counterexample,
        unreached: ends
            .filter(|name| !discoveries.contains_key(name))
            .collect(),
    }
}
