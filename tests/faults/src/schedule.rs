//! Plans the faults and their times. The seed decides everything, so that a run can be repeated.
//!
//! The plan keeps within the assumptions that the promise rests on. In particular, a purchase is
//! never delayed for longer than the settling delay, unless the provider itself detects duplicates.

use crate::deck::{Card, deck};
use crate::fault::{Planned, Target, Terms, in_millis};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The minimum pause between two faults of the same target.
const RESPITE: Duration = Duration::from_secs(2);

/// Plans the faults of a run, sorted by their beginning.
pub fn schedule(terms: &Terms) -> Vec<Planned> {
    let mut rng = StdRng::seed_from_u64(terms.seed);
    let mut busy: BTreeMap<Target, Duration> = BTreeMap::new();
    let mut cards: Vec<Card> = Vec::new();
    let mut planned = Vec::new();
    let mut at = terms.every / 2;
    while at < terms.length {
        if cards.is_empty() {
            cards = deck(terms);
            cards.shuffle(&mut rng);
        }
        let free = |target: &&Target| busy.get(*target).is_none_or(|until| *until <= at);
        let drawn = (0..cards.len()).rev().find_map(|index| {
            let targets: Vec<Target> = cards[index].targets.iter().filter(free).copied().collect();
            (!targets.is_empty()).then_some((index, targets))
        });
        if let Some((index, targets)) = drawn {
            let card = cards.remove(index);
            let target = targets[rng.random_range(0..targets.len())];
            let mut within =
                |range: Option<RangeInclusive<Duration>>| range.map(|range| draw(&range, &mut rng));
            let fault = (card.fault)(within(card.strength).unwrap_or_default());
            let fault = Planned {
                at,
                target,
                fault,
                lasts: within(card.lasts).unwrap_or_default(),
            };
            busy.insert(target, fault.end() + RESPITE);
            planned.push(fault);
        }
        at += terms.every.mul_f64(rng.random_range(0.5..=1.5));
    }
    planned
}

/// A length within a range, in milliseconds; the start of a range that ends before it.
fn draw(range: &RangeInclusive<Duration>, rng: &mut StdRng) -> Duration {
    let low = in_millis(*range.start());
    let high = in_millis(*range.end());
    Duration::from_millis(rng.random_range(low..=high.max(low)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;
    use std::collections::BTreeSet;

    fn terms(seed: u64, detects_duplicates: bool) -> Terms {
        Terms {
            seed,
            length: Duration::from_mins(30),
            every: Duration::from_secs(7),
            settle: Duration::from_secs(20),
            detects_duplicates,
            is_cluster: false,
            is_asynchronous: false,
            is_fenced: true,
            loses_packets: false,
            provider: "sandbox",
            sends_events: true,
            provider_latency: Duration::ZERO,
            only: Vec::new(),
        }
    }

    #[test]
    fn only_the_faults_that_are_asked_for_are_planned() {
        let terms = Terms {
            only: vec!["NATS".into(), "ingress stalled".into()],
            ..terms(7, true)
        };
        let kinds: BTreeSet<String> = schedule(&terms).iter().map(Planned::kind).collect();
        let expected = [
            "NATS killed",
            "NATS killed and wiped",
            "NATS repeating jobs",
            "NATS stalled",
            "ingress stalled",
        ];
        assert_eq!(kinds, BTreeSet::from(expected.map(str::to_owned)));
        let none = Terms {
            only: vec!["nothing".into()],
            ..terms
        };
        assert_eq!(schedule(&none), Vec::new());
    }

    #[test]
    fn a_cluster_has_further_kinds() {
        let terms = Terms {
            is_cluster: true,
            ..terms(7, true)
        };
        let planned = schedule(&terms);
        let kinds: BTreeSet<String> = planned.iter().map(Planned::kind).collect();
        assert_eq!(kinds.len(), 51, "{kinds:?}");
    }

    #[test]
    fn packets_are_lost_only_where_the_run_has_a_network_of_its_own() {
        let lost = |loses_packets| {
            let terms = Terms {
                loses_packets,
                ..terms(7, true)
            };
            let kinds: BTreeSet<String> = schedule(&terms).iter().map(Planned::kind).collect();
            let is_lost = |kind: &String| kind.contains("vanished") || kind.contains("packets");
            kinds.into_iter().filter(is_lost).collect::<Vec<_>>()
        };
        assert_eq!(lost(false), [""; 0]);
        let expected = [
            "NATS vanished",
            "PostgreSQL vanished",
            "network losing packets",
            "provider vanished",
        ];
        assert_eq!(lost(true), expected);
    }

    #[test]
    fn half_an_hour_has_more_than_two_hundred_faults_of_every_kind_and_one_at_a_time() {
        for seed in 0..50 {
            let planned = schedule(&terms(seed, seed % 2 == 0));
            let kinds: BTreeSet<String> = planned.iter().map(Planned::kind).collect();
            assert!(planned.len() >= 220, "seed {seed}: {}", planned.len());
            assert_eq!(kinds.len(), 41, "seed {seed}: {kinds:?}");
            let mut until: BTreeMap<Target, Duration> = BTreeMap::new();
            for fault in planned {
                let last = until.insert(fault.target, fault.end()).unwrap_or_default();
                assert!(fault.at >= last, "seed {seed}: {fault:?}");
            }
        }
    }

    #[test]
    fn no_stall_exceeds_the_settling_delay_where_nothing_else_helps() {
        let longest = |detects| {
            let stalls = (0..50).flat_map(|seed| schedule(&terms(seed, detects)));
            stalls
                .filter(|one| one.fault == Fault::Stalled)
                .map(|one| one.lasts)
                .max()
                .unwrap()
        };
        assert!(longest(false) < terms(0, false).settle);
        assert!(longest(true) > terms(0, true).settle);
    }
}
