//! The faults and their times. Pure: the seed decides everything.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;
use testkit::stack::Stage;

/// Processes of each of ingress, provisioner and notifier.
pub const REPLICAS: usize = 2;
/// The pause between two faults of one target.
const RESPITE: Duration = Duration::from_secs(2);

/// The target of a fault; it has one fault at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// With the number of the replica.
    Process(Stage, usize),
    Postgres,
    Nats,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// SIGKILL; started again when the fault ends.
    Killed,
    /// SIGTERM; started again after it ended, as in a rolling restart.
    Restarted,
    /// SIGSTOP; SIGCONT when the fault ends.
    Stalled,
    /// `PostgreSQL` only: `pg_ctl stop -m immediate`; started again when the fault ends.
    StoppedImmediately,
    /// `PostgreSQL` only: `pg_terminate_backend` of every connection.
    ConnectionsCut,
    /// NATS only: SIGKILL, its storage deleted, started again when the fault ends.
    Wiped,
    /// Sandbox only: every call's connection is closed.
    Down,
    /// Sandbox only: calls run and get a late response.
    Slow(Duration),
    /// Sandbox only: half of all calls get a 500, half of those after they ran.
    Erring,
    /// Sandbox only: half of all orders are bought without a response.
    Silent,
    /// Sandbox only: look-ups don't see young purchases.
    Lagging(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Since the first order.
    pub at: Duration,
    pub target: Target,
    pub fault: Fault,
    pub lasts: Duration,
}

#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub seed: u64,
    /// The time in which orders are placed and faults begin.
    pub length: Duration,
    /// Mean time between the starts of two faults.
    pub every: Duration,
    /// The provisioners' settling delay, which limits stalls and lags.
    pub settle: Duration,
    /// Whether the provider refuses a second purchase; if not, no stall exceeds `settle`.
    pub detects_duplicates: bool,
}

impl Planned {
    /// For the table: "ingress killed".
    pub fn kind(&self) -> String {
        let target = match self.target {
            Target::Process(Stage::Sandbox, _) => "provider",
            Target::Process(stage, _) => stage.name(),
            Target::Postgres => "PostgreSQL",
            Target::Nats => "NATS",
        };
        let fault = match self.fault {
            Fault::Killed => "killed",
            Fault::Restarted => "restarted",
            Fault::Stalled => "stalled",
            Fault::StoppedImmediately => "stopped at once",
            Fault::ConnectionsCut => "connections cut",
            Fault::Wiped => "killed and wiped",
            Fault::Down => "down",
            Fault::Slow(_) => "slow",
            Fault::Erring => "erring",
            Fault::Silent => "buying silently",
            Fault::Lagging(_) => "lagging",
        };
        format!("{target} {fault}")
    }

    fn end(&self) -> Duration {
        self.at + self.lasts
    }
}

impl Fault {
    /// The body of `PUT /faults`, for faults that the sandbox plays.
    pub fn of_provider(self) -> Option<Value> {
        match self {
            Self::Down => Some(json!({"down": true})),
            Self::Slow(latency) => Some(json!({"latency_ms": in_millis(latency)})),
            Self::Erring => Some(json!({"error_rate": 0.5, "error_buys": 0.5})),
            Self::Silent => Some(json!({"silent_rate": 0.5})),
            Self::Lagging(lag) => {
                Some(json!({"not_found_lag_ms": in_millis(lag), "silent_rate": 0.3, "error_rate": 0.2}))
            }
            _ => None,
        }
    }
}

/// A kind of fault before its target and its lengths are drawn.
struct Card {
    targets: Vec<Target>,
    /// Makes the fault of a drawn latency or lag; other faults ignore it.
    fault: fn(Duration) -> Fault,
    strength: Option<RangeInclusive<Duration>>,
    lasts: Option<RangeInclusive<Duration>>,
}

/// A card without strength.
fn card(targets: &[Target], fault: fn(Duration) -> Fault, lasts: Option<RangeInclusive<Duration>>) -> Card {
    Card { targets: targets.to_vec(), fault, strength: None, lasts }
}

/// Every kind comes once before any comes again.
fn deck(terms: &Terms) -> Vec<Card> {
    let (seconds, millis) = (Duration::from_secs, Duration::from_millis);
    let soon = Some(millis(200)..=seconds(4));
    // Below and above the lease; beyond the settling delay only if the provider itself rejects a second purchase.
    let longest = if terms.detects_duplicates { 1.5 } else { 0.8 };
    let longest = terms.settle.mul_f64(longest);
    let of_stage = |stage: Stage| {
        let replicas: Vec<Target> = (0..REPLICAS).map(|one| Target::Process(stage, one)).collect();
        let long = if stage == Stage::Provisioner { seconds(2)..=longest } else { seconds(4)..=seconds(12) };
        [
            card(&replicas, |_| Fault::Killed, soon.clone()),
            card(&replicas, |_| Fault::Restarted, None),
            card(&replicas, |_| Fault::Stalled, Some(millis(100)..=seconds(2))),
            card(&replicas, |_| Fault::Stalled, Some(long)),
        ]
    };
    // Longest delay at the provider before a purchase is visible. Stalls, latency and lag happen one at a time and
    // stay well below the settling delay.
    let provider = terms.settle / 4;
    let sandbox = [Target::Process(Stage::Sandbox, 0)];
    let (postgres, nats) = ([Target::Postgres], [Target::Nats]);
    let short = Some(seconds(2)..=seconds(8));
    let others = [
        card(&sandbox, |_| Fault::Killed, soon.clone()),
        card(&sandbox, |_| Fault::Stalled, Some(millis(300)..=provider)),
        card(&postgres, |_| Fault::StoppedImmediately, soon.clone()),
        card(&postgres, |_| Fault::ConnectionsCut, None),
        card(&nats, |_| Fault::Killed, soon.clone()),
        card(&nats, |_| Fault::Wiped, soon.clone()),
        card(&nats, |_| Fault::Stalled, Some(millis(300)..=seconds(5))),
        card(&sandbox, |_| Fault::Down, Some(seconds(1)..=seconds(8))),
        Card { strength: Some(millis(300)..=provider), ..card(&sandbox, Fault::Slow, short.clone()) },
        card(&sandbox, |_| Fault::Erring, short.clone()),
        card(&sandbox, |_| Fault::Silent, short),
        Card {
            // Longer than the wait for the first look-up, so that some look-ups miss a purchase.
            strength: Some(provider..=terms.settle / 2),
            ..card(&sandbox, Fault::Lagging, Some(seconds(3)..=seconds(8)))
        },
    ];
    Stage::OURS.map(of_stage).into_iter().flatten().chain(others).collect()
}

/// The faults of a run, by start time.
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
            let mut within = |range: Option<RangeInclusive<Duration>>| range.map(|range| draw(&range, &mut rng));
            let fault = (card.fault)(within(card.strength).unwrap_or_default());
            let fault = Planned { at, target, fault, lasts: within(card.lasts).unwrap_or_default() };
            busy.insert(target, fault.end() + RESPITE);
            planned.push(fault);
        }
        at += terms.every.mul_f64(rng.random_range(0.5..=1.5));
    }
    planned
}

/// A length within a range, in milliseconds; the start of a range that ends before it.
fn draw(range: &RangeInclusive<Duration>, rng: &mut StdRng) -> Duration {
    let (low, high) = (in_millis(*range.start()), in_millis(*range.end()));
    Duration::from_millis(rng.random_range(low..=high.max(low)))
}

fn in_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn terms(seed: u64, detects_duplicates: bool) -> Terms {
        Terms {
            seed,
            length: Duration::from_mins(30),
            every: Duration::from_secs(7),
            settle: Duration::from_secs(20),
            detects_duplicates,
        }
    }

    #[test]
    fn half_an_hour_has_more_than_two_hundred_faults_of_every_kind_and_one_at_a_time() {
        for seed in 0..50 {
            let planned = schedule(&terms(seed, seed % 2 == 0));
            let kinds: BTreeSet<String> = planned.iter().map(Planned::kind).collect();
            assert!(planned.len() >= 220, "seed {seed}: {}", planned.len());
            assert_eq!(kinds.len(), 21, "seed {seed}: {kinds:?}");
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
            stalls.filter(|one| one.fault == Fault::Stalled).map(|one| one.lasts).max().unwrap()
        };
        assert!(longest(false) < terms(0, false).settle);
        assert!(longest(true) > terms(0, true).settle);
    }
}
