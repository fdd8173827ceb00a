//! The check of a small model, and its properties: [`crate::routes`], [`crate::webhooks`],
//! [`crate::resend`], [`crate::give_back`], [`crate::crash`] and [`crate::cut`].

use std::{collections::BTreeMap, fmt::Debug, hash::Hash};

use stateright::{Checker, HasDiscoveries, Model, Property};

/// The result of a check.
#[derive(Debug)]
pub struct Report<Promise> {
    pub states: usize,
    /// The broken promise and the steps to it.
    pub counterexample: Option<(Promise, Vec<String>)>,
    /// The ends that were never reached. There must be none.
    pub unreached: Vec<&'static str>,
}

/// What is asked of a state.
pub(crate) type Condition<Protocol> = fn(&Protocol, &<Protocol as Model>::State) -> bool;

/// The promises, which hold in every state, and the ends, of which each is reached.
pub(crate) fn properties<Protocol: Model>(
    promises: impl IntoIterator<Item = (&'static str, Condition<Protocol>)>,
    ends: impl IntoIterator<Item = (&'static str, Condition<Protocol>)>,
) -> Vec<Property<Protocol>> {
    let always = |(name, holds)| Property::always(name, holds);
    let sometimes = |(name, end)| Property::sometimes(name, end);
    let promises = promises.into_iter().map(always);
    promises.chain(ends.into_iter().map(sometimes)).collect()
}

/// Explores every state, or stops as soon as it finds a broken promise. Promises and ends are given
/// with the names of their properties.
pub(crate) fn explore<Protocol, Promise>(
    protocol: Protocol,
    promises: impl IntoIterator<Item = (Promise, &'static str)>,
    ends: impl IntoIterator<Item = &'static str>,
) -> Report<Promise>
where
    Protocol: Model<
            State: Clone + Debug + Hash + PartialEq + Send + Sync,
            Action: Clone + Debug + PartialEq,
        > + Send
        + Sync
        + 'static,
{
    let checker = protocol
        .checker()
        .threads(std::thread::available_parallelism().map_or(1, usize::from))
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let mut discoveries: BTreeMap<_, _> = checker.discoveries().into_iter().collect();
    let counterexample = promises.into_iter().find_map(|(promise, name)| {
        let path = discoveries.remove(name)?.into_vec();
        let steps = path
            .iter()
            .filter_map(|(_, action)| action.as_ref().map(|action| format!("{action:?}")));
        Some((promise, steps.collect()))
    });
    Report {
        states: checker.unique_state_count(),
        counterexample,
        unreached: ends
            .into_iter()
            .filter(|name| !discoveries.contains_key(name))
            .collect(),
    }
}
