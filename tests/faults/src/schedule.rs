//! The faults and their times. Pure: the seed decides everything.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Processes of each of ingress, provisioner and notifier.
pub const REPLICAS: usize = 2;
/// The pause between two faults of one target.
const RESPITE: Duration = Duration::from_secs(2);

/// A stage that has replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    Ingress,
    Provisioner,
    Notifier,
}

/// The target of a fault; it has one fault at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    Replica(Service, usize),
    Sandbox,
    Postgres,
    Nats,
}

/// A way to fail.
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

/// A fault with its place in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Since the first order.
    pub at: Duration,
    pub target: Target,
    pub fault: Fault,
    pub lasts: Duration,
}

/// The parameters of a schedule.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Terms {
    pub seed: u64,
    /// The time in which new faults begin.
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
            Target::Replica(Service::Ingress, _) => "ingress",
            Target::Replica(Service::Provisioner, _) => "provisioner",
            Target::Replica(Service::Notifier, _) => "notifier",
            Target::Sandbox => "provider",
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
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        match self {
            Self::Down => Some(json!({"down": true})),
            Self::Slow(latency) => Some(json!({"latency_ms": millis(latency)})),
            Self::Erring => Some(json!({"error_rate": 0.5, "error_buys": 0.5})),
            Self::Silent => Some(json!({"silent_rate": 0.5})),
            Self::Lagging(lag) => {
                Some(json!({"not_found_lag_ms": millis(lag), "silent_rate": 0.3, "error_rate": 0.2}))
            }
            _ => None,
        }
    }
}

/// A kind of fault before its time, replica and length are drawn.
#[derive(Clone, Copy)]
enum Card {
    Killed(Service),
    Restarted(Service),
    ShortStall(Service),
    LongStall(Service),
    SandboxKilled,
    SandboxStalled,
    PostgresStopped,
    ConnectionsCut,
    NatsKilled,
    NatsWiped,
    NatsStalled,
    Down,
    Slow,
    Erring,
    Silent,
    Lagging,
}

/// Every kind comes once before any comes again.
fn deck() -> Vec<Card> {
    let of_service = |service| {
        [
            Card::Killed(service),
            Card::Restarted(service),
            Card::ShortStall(service),
            Card::LongStall(service),
        ]
    };
    let services = [Service::Ingress, Service::Provisioner, Service::Notifier].map(of_service);
    let others = [
        Card::SandboxKilled,
        Card::SandboxStalled,
        Card::PostgresStopped,
        Card::ConnectionsCut,
        Card::NatsKilled,
        Card::NatsWiped,
        Card::NatsStalled,
        Card::Down,
        Card::Slow,
        Card::Erring,
        Card::Silent,
        Card::Lagging,
    ];
    services.into_iter().flatten().chain(others).collect()
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
            cards = deck();
            cards.shuffle(&mut rng);
        }
        let free = |target: &Target| busy.get(target).is_none_or(|until| *until <= at);
        let drawn = (0..cards.len()).rev().find_map(|index| {
            let target = targets(cards[index]).into_iter().filter(free).collect::<Vec<_>>();
            (!target.is_empty()).then_some((index, target))
        });
        if let Some((index, targets)) = drawn {
            let card = cards.remove(index);
            let target = targets[rng.random_range(0..targets.len())];
            let (fault, lasts) = draw(card, terms, &mut rng);
            let fault = Planned {
                at,
                target,
                fault,
                lasts,
            };
            busy.insert(target, fault.end() + RESPITE);
            planned.push(fault);
        }
        at += terms.every.mul_f64(rng.random_range(0.5..=1.5));
    }
    planned
}

fn targets(card: Card) -> Vec<Target> {
    match card {
        Card::Killed(service)
        | Card::Restarted(service)
        | Card::ShortStall(service)
        | Card::LongStall(service) => (0..REPLICAS)
            .map(|replica| Target::Replica(service, replica))
            .collect(),
        Card::PostgresStopped | Card::ConnectionsCut => vec![Target::Postgres],
        Card::NatsKilled | Card::NatsWiped | Card::NatsStalled => vec![Target::Nats],
        Card::SandboxKilled
        | Card::SandboxStalled
        | Card::Down
        | Card::Slow
        | Card::Erring
        | Card::Silent
        | Card::Lagging => vec![Target::Sandbox],
    }
}

/// Draws replica and length for a kind of fault.
fn draw(card: Card, terms: &Terms, rng: &mut StdRng) -> (Fault, Duration) {
    let mut within = |range: RangeInclusive<Duration>| {
        let millis = |duration: &Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let low = millis(range.start());
        Duration::from_millis(rng.random_range(low..=millis(range.end()).max(low)))
    };
    let seconds = Duration::from_secs;
    let soon = Duration::from_millis(200)..=seconds(4);
    // Longest delay at the provider before a purchase is visible. Stalls, latency and lag happen one at a time and
    // stay well below the settling delay.
    let provider = terms.settle / 4;
    match card {
        Card::Killed(_) | Card::SandboxKilled | Card::NatsKilled => (Fault::Killed, within(soon)),
        Card::Restarted(_) => (Fault::Restarted, Duration::ZERO),
        Card::ShortStall(_) => (Fault::Stalled, within(Duration::from_millis(100)..=seconds(2))),
        Card::LongStall(Service::Provisioner) => {
            // Below and above the lease; beyond the settling delay only if the provider itself rejects a
            // second purchase.
            let longest = if terms.detects_duplicates {
                terms.settle.mul_f64(1.5)
            } else {
                terms.settle.mul_f64(0.8)
            };
            (Fault::Stalled, within(seconds(2)..=longest))
        }
        Card::LongStall(_) => (Fault::Stalled, within(seconds(4)..=seconds(12))),
        Card::SandboxStalled => (Fault::Stalled, within(Duration::from_millis(300)..=provider)),
        Card::PostgresStopped => (Fault::StoppedImmediately, within(soon)),
        Card::ConnectionsCut => (Fault::ConnectionsCut, Duration::ZERO),
        Card::NatsWiped => (Fault::Wiped, within(soon)),
        Card::NatsStalled => (Fault::Stalled, within(Duration::from_millis(300)..=seconds(5))),
        Card::Down => (Fault::Down, within(seconds(1)..=seconds(8))),
        Card::Slow => {
            let latency = within(Duration::from_millis(300)..=provider);
            (Fault::Slow(latency), within(seconds(2)..=seconds(8)))
        }
        Card::Erring => (Fault::Erring, within(seconds(2)..=seconds(8))),
        Card::Silent => (Fault::Silent, within(seconds(2)..=seconds(8))),
        Card::Lagging => {
            // Longer than the wait for the first look-up, so that some look-ups miss a purchase.
            let lag = within(provider..=terms.settle / 2);
            (Fault::Lagging(lag), within(seconds(3)..=seconds(8)))
        }
    }
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
            let stalls = stalls.filter(|one| one.fault == Fault::Stalled);
            stalls.map(|one| one.lasts).max().unwrap()
        };
        assert!(longest(false) < terms(0, false).settle);
        assert!(longest(true) > terms(0, true).settle);
    }
}
