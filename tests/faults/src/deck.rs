//! The kinds of faults, with their targets, their strengths and their lengths.

use crate::fault::{Fault, Planned, REPLICAS, Target, Terms};
use std::ops::RangeInclusive;
use std::time::Duration;
use testkit::names::Failing;
use testkit::stack::Stage;

/// How far a clock is stepped, in seconds.
const STEP: i64 = 600;

/// A kind of fault, before its target and its lengths are drawn at random.
pub struct Card {
    pub targets: Vec<Target>,
    /// Makes the fault of a drawn latency or lag; other faults ignore it.
    pub fault: fn(Duration) -> Fault,
    pub strength: Option<RangeInclusive<Duration>>,
    pub lasts: Option<RangeInclusive<Duration>>,
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

/// The clocks of provisioners, which they compare with that of nobody. Ingress and the notifier
/// compare theirs with that of partners, so what they do with a wrong one is another promise.
fn of_clocks() -> [Card; 2] {
    let provisioners: Vec<Target> = (0..REPLICAS)
        .map(|one| Target::Process(Stage::Provisioner, one))
        .collect();
    let lasts = Some(Duration::from_secs(2)..=Duration::from_secs(8));
    [
        card(&provisioners, |_| Fault::ClockStepped(STEP), lasts.clone()),
        card(&provisioners, |_| Fault::ClockStepped(-STEP), lasts),
    ]
}

/// What partners may do to their endpoints.
fn of_endpoints() -> [Card; 3] {
    let lasts = Some(Duration::from_secs(2)..=Duration::from_secs(8));
    let names = |fault: fn(Duration) -> Fault| card(&[Target::Names], fault, lasts.clone());
    [
        names(|_| Fault::NamesFailing(Failing::Openly)),
        names(|_| Fault::NamesFailing(Failing::Silently)),
        card(
            &[Target::Endpoint],
            |_| Fault::CertificateExpired,
            lasts.clone(),
        ),
    ]
}

/// What may become of the provider's events.
fn of_events() -> [Card; 4] {
    let seconds = Duration::from_secs;
    let events = |fault: fn(Duration) -> Fault| {
        card(&[Target::Events], fault, Some(seconds(4)..=seconds(10)))
    };
    [
        Card {
            // Some arrive when their eSIMs have been delivered.
            strength: Some(seconds(1)..=seconds(8)),
            ..events(Fault::EventsLate)
        },
        events(|_| Fault::EventsRepeated),
        events(|_| Fault::EventsLost),
        events(|_| Fault::EventsForged),
    ]
}

/// What a disk may do to the database.
fn of_disk() -> [Card; 4] {
    let seconds = Duration::from_secs;
    let database =
        |fault: fn(Duration) -> Fault, lasts| card(&[Target::Postgres], fault, Some(lasts));
    [
        Card {
            // Below `DATABASE_TIMEOUT`, after which a statement is given up.
            strength: Some(Duration::from_millis(200)..=seconds(7)),
            ..database(Fault::FlushingSlowly, seconds(4)..=seconds(10))
        },
        database(|_| Fault::DiskHanging, seconds(3)..=seconds(12)),
        database(|_| Fault::DiskFull, seconds(2)..=seconds(6)),
        // Longer than the first lease of a placement and the two sweeps that pass it.
        database(|_| Fault::CommitHeld, seconds(13)..=seconds(16)),
    ]
}

/// What happens to packets.
fn of_network() -> [Card; 4] {
    let targets = [
        Target::Process(Stage::Sandbox, 0),
        Target::Nats,
        Target::Postgres,
    ];
    let lasts = Some(Duration::from_secs(2)..=Duration::from_secs(8));
    let [provider, nats, database] =
        targets.map(|target| card(&[target], |_| Fault::Vanished, lasts.clone()));
    let lost = card(&[Target::Network], |_| Fault::PacketsLost, lasts.clone());
    [lost, provider, nats, database]
}

/// What happens to a primary, its standby and a cluster of NATS.
fn of_cluster() -> [Card; 10] {
    let seconds = Duration::from_secs;
    let millis = Duration::from_millis;
    let postgres = [Target::Postgres];
    let nats = [Target::Nats];
    let cut = Some(seconds(1)..=seconds(8));
    [
        Card {
            strength: Some(millis(300)..=millis(1_500)),
            ..card(
                &postgres,
                Fault::AnsweringLate,
                Some(seconds(4)..=seconds(10)),
            )
        },
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
    ]
}

/// All kinds of faults. Each card is played once before a new deck is shuffled, so that even a
/// short run sees most kinds.
pub fn deck(terms: &Terms) -> Vec<Card> {
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
            card(
                &replicas,
                |_| Fault::FilesExhausted,
                Some(seconds(1)..=seconds(6)),
            ),
            card(&replicas, |_| Fault::MemoryExhausted, soon.clone()),
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
        Card {
            strength: Some(millis(100)..=seconds(4)),
            ..card(&nats, Fault::JobsRepeated, Some(seconds(4)..=seconds(10)))
        },
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
    Stage::OURS
        .map(of_stage)
        .into_iter()
        .flatten()
        .chain(others)
        .chain(of_clocks())
        .chain(of_endpoints())
        .chain(of_disk())
        .chain(of_events().into_iter().filter(|_| terms.sends_events))
        .chain(
            of_network()
                .into_iter()
                .filter(|_| terms.loses_packets && !terms.is_cluster),
        )
        .chain(of_cluster().into_iter().filter(|_| terms.is_cluster))
        .filter(|card| terms.only.is_empty() || terms.only.iter().any(|text| card.is(text)))
        .collect()
}
