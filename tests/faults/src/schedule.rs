//! Plans the faults and their times. The seed decides everything, so that a run can be repeated.
//!
//! The plan keeps within the assumptions that the promise rests on. In particular, a purchase is
//! never delayed for longer than the settling delay, unless the provider itself detects duplicates.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;
use testkit::stack::Stage;

/// The number of processes of each stage.
pub const REPLICAS: usize = 2;
/// The minimum pause between two faults of the same target.
const RESPITE: Duration = Duration::from_secs(2);

/// What a fault concerns. A target has one fault at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A process, with the number of the replica.
    Process(Stage, usize),
    Postgres,
    Nats,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It is killed (SIGKILL), and started again when the fault ends.
    Killed,
    /// It is stopped (SIGTERM), and started again when it has ended, as in a rolling restart.
    Restarted,
    /// It is stalled (SIGSTOP), and goes on when the fault ends (SIGCONT).
    Stalled,
    /// `PostgreSQL` only: it stops as by `pg_ctl stop -m immediate`, and is started again when the
    /// fault ends.
    StoppedImmediately,
    /// `PostgreSQL` only: every connection is ended by `pg_terminate_backend`.
    ConnectionsCut,
    /// The primary is killed, and its standby is promoted.
    PrimaryKilled,
    /// The primary freezes, is replaced by its standby, and then goes on with its old connections.
    PrimaryFrozen,
    /// The primary is shut down, and its standby is promoted at once.
    SwitchedOver,
    /// The standby is killed, and started again when the fault ends. Commits wait for it.
    StandbyLost,
    /// `PostgreSQL` only: nothing passes between the primary and the processes of this stage, or of
    /// all stages.
    Cut(Option<Stage>),
    /// NATS only: all servers but the leader are killed, and started again when the fault ends.
    MajorityLost,
    /// NATS only: all servers are killed, their storage is deleted, and they are started again when
    /// the fault ends.
    Wiped,
    /// Sandbox only: the connection of every call is closed.
    Down,
    /// Sandbox only: calls are carried out, but their responses come late.
    Slow(Duration),
    /// Sandbox only: half of all calls get a 500, and half of these are carried out nevertheless.
    Erring,
    /// Sandbox only: half of all orders are bought, but get no response.
    Silent,
    /// Sandbox only: look-ups do not see a purchase until it has this age.
    Lagging(Duration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The beginning of the fault, since the first order.
    pub at: Duration,
    pub target: Target,
    pub fault: Fault,
    pub lasts: Duration,
}

#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each one is a setting that any other may go with"
)]
pub struct Terms {
    pub seed: u64,
    /// The time in which orders are placed and faults begin.
    pub length: Duration,
    /// The mean time between the beginnings of two faults.
    pub every: Duration,
    /// The settling delay of the provisioners, which limits stalls and lags.
    pub settle: Duration,
    /// Whether the provider refuses to sell a placement twice. If it does not, no stall is longer
    /// than `settle`.
    pub detects_duplicates: bool,
    /// Whether `PostgreSQL` has a standby and NATS three servers.
    pub is_cluster: bool,
    /// Whether commits do not wait for the standby, so that a promotion loses some.
    pub is_asynchronous: bool,
    /// Whether the stages can stop the buying when commits were lost.
    pub is_fenced: bool,
    /// The provider that the sandbox plays.
    pub provider: &'static str,
    /// Only faults are planned whose kind has one of these texts in its name; any if there is none.
    pub only: Vec<String>,
}

impl Planned {
    /// The name of the kind for the report, such as "ingress killed".
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
            Fault::PrimaryKilled => "primary killed, standby promoted",
            Fault::PrimaryFrozen => "primary frozen, replaced, resumed",
            Fault::SwitchedOver => "switched over",
            Fault::StandbyLost => "standby lost",
            Fault::Cut(None) => "cut off from all stages",
            Fault::Cut(Some(Stage::Ingress)) => "cut off from ingress",
            Fault::Cut(Some(Stage::Provisioner)) => "cut off from provisioners",
            Fault::Cut(Some(_)) => "cut off from notifiers",
            Fault::MajorityLost => "majority lost",
            Fault::Wiped => "killed and wiped",
            Fault::Down => "down",
            Fault::Slow(_) => "slow",
            Fault::Erring => "erring",
            Fault::Silent => "buying silently",
            Fault::Lagging(_) => "lagging",
        };
        format!("{target} {fault}")
    }

    /// Whether a provisioner or the provider stands still, so that a purchase may be late.
    pub fn stalls_purchases(&self) -> bool {
        let buys = [Stage::Provisioner, Stage::Sandbox];
        let Target::Process(stage, _) = self.target else {
            return false;
        };
        self.fault == Fault::Stalled && buys.contains(&stage)
    }

    /// Whether what the database has not flushed may be lost.
    pub fn crashes_database(&self) -> bool {
        self.fault == Fault::StoppedImmediately
    }

    fn end(&self) -> Duration {
        self.at + self.lasts
    }
}

impl Fault {
    /// Whether a standby becomes the primary.
    pub fn promotes(self) -> bool {
        matches!(
            self,
            Self::PrimaryKilled | Self::PrimaryFrozen | Self::SwitchedOver
        )
    }

    /// The body of `PUT /faults` for the faults that the sandbox plays itself. It is `None` for
    /// others.
    pub fn of_provider(self) -> Option<Value> {
        match self {
            Self::Down => Some(json!({"down": true})),
            Self::Slow(latency) => Some(json!({"latency_ms": in_millis(latency)})),
            Self::Erring => Some(json!({"error_rate": 0.5, "error_buys": 0.5})),
            Self::Silent => Some(json!({"silent_rate": 0.5})),
            Self::Lagging(lag) => Some(
                json!({"not_found_lag_ms": in_millis(lag), "silent_rate": 0.3, "error_rate": 0.2}),
            ),
            _ => None,
        }
    }
}

/// A kind of fault, before its target and its lengths are drawn at random.
struct Card {
    targets: Vec<Target>,
    /// Makes the fault of a drawn latency or lag; other faults ignore it.
    fault: fn(Duration) -> Fault,
    strength: Option<RangeInclusive<Duration>>,
    lasts: Option<RangeInclusive<Duration>>,
}

impl Card {
    /// Whether its kind has this text in its name.
    fn is(&self, text: &str) -> bool {
        let planned = Planned {
            at: Duration::ZERO,
            target: self.targets[0],
            fault: (self.fault)(Duration::ZERO),
            lasts: Duration::ZERO,
        };
        planned.kind().contains(text)
    }
}

/// Makes a card whose fault has no strength.
fn card(
    targets: &[Target],
    fault: fn(Duration) -> Fault,
    lasts: Option<RangeInclusive<Duration>>,
) -> Card {
    Card {
        targets: targets.to_vec(),
        fault,
        strength: None,
        lasts,
    }
}

/// All kinds of faults. Each card is played once before a new deck is shuffled, so that even a
/// short run sees most kinds.
fn deck(terms: &Terms) -> Vec<Card> {
    let seconds = Duration::from_secs;
    let millis = Duration::from_millis;
    let soon = Some(millis(200)..=seconds(4));
    // Long stalls of a provisioner. They exceed the settling delay only if the provider itself
    // refuses a second purchase, because otherwise a stalled process could send an attempt after
    // two look-ups have found nothing. That is the gap that remains, as the model shows.
    let longest = if terms.detects_duplicates { 1.5 } else { 0.8 };
    let longest = terms.settle.mul_f64(longest);
    let of_stage = |stage: Stage| {
        let replicas: Vec<Target> = (0..REPLICAS)
            .map(|one| Target::Process(stage, one))
            .collect();
        let long = if stage == Stage::Provisioner {
            seconds(2)..=longest
        } else {
            seconds(4)..=seconds(12)
        };
        [
            card(&replicas, |_| Fault::Killed, soon.clone()),
            card(&replicas, |_| Fault::Restarted, None),
            card(
                &replicas,
                |_| Fault::Stalled,
                Some(millis(100)..=seconds(2)),
            ),
            card(&replicas, |_| Fault::Stalled, Some(long)),
        ]
    };
    // The longest time for which a fault of the provider may delay a purchase. A target has one
    // fault at a time, so stalls, latency and lag do not add up, and all stay well below the
    // settling delay.
    let provider = terms.settle / 4;
    let sandbox = [Target::Process(Stage::Sandbox, 0)];
    let postgres = [Target::Postgres];
    let nats = [Target::Nats];
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
        Card {
            strength: Some(millis(300)..=provider),
            ..card(&sandbox, Fault::Slow, short.clone())
        },
        card(&sandbox, |_| Fault::Erring, short.clone()),
        card(&sandbox, |_| Fault::Silent, short),
        Card {
            // Long enough that some look-ups do not see a purchase that exists.
            strength: Some(provider..=terms.settle / 2),
            ..card(&sandbox, Fault::Lagging, Some(seconds(3)..=seconds(8)))
        },
    ];
    let cut = Some(seconds(1)..=seconds(8));
    let of_cluster = [
        card(&postgres, |_| Fault::PrimaryKilled, None),
        // Longer than `DATABASE_TIMEOUT` and the 2 s after it, when a connection is given up.
        card(
            &postgres,
            |_| Fault::PrimaryFrozen,
            Some(seconds(6)..=seconds(10)),
        ),
        card(&postgres, |_| Fault::SwitchedOver, None),
        card(
            &postgres,
            |_| Fault::StandbyLost,
            Some(seconds(1)..=seconds(8)),
        ),
        card(&postgres, |_| Fault::Cut(None), cut.clone()),
        card(&postgres, |_| Fault::Cut(Some(Stage::Ingress)), cut.clone()),
        card(
            &postgres,
            |_| Fault::Cut(Some(Stage::Provisioner)),
            cut.clone(),
        ),
        card(&postgres, |_| Fault::Cut(Some(Stage::Notifier)), cut),
        card(
            &nats,
            |_| Fault::MajorityLost,
            Some(seconds(3)..=seconds(10)),
        ),
    ];
    Stage::OURS
        .map(of_stage)
        .into_iter()
        .flatten()
        .chain(others)
        .chain(of_cluster.into_iter().filter(|_| terms.is_cluster))
        .filter(|card| terms.only.is_empty() || terms.only.iter().any(|text| card.is(text)))
        .collect()
}

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
            is_cluster: false,
            is_asynchronous: false,
            is_fenced: true,
            provider: "sandbox",
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
        assert_eq!(kinds.len(), 30, "{kinds:?}");
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
