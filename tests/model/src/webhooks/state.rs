//! The state of the modelled deliveries: the rows of PostgreSQL, and what each notifier remembers.

use std::time::Duration;

use domain::{
    DeliveryId,
    endpoint::{BlockPolicy, EndpointEvent, EndpointGate, Health},
};
use time::{OffsetDateTime, macros::datetime};

/// The attempts of a schedule.
pub(super) const SCHEDULE: u8 = 2;
pub(super) const NOW: OffsetDateTime = datetime!(2026-01-01 00:00 UTC);
pub(super) const POLICY: BlockPolicy = BlockPolicy {
    failures: 1,
    first: Duration::from_secs(5),
    longest: Duration::from_secs(5),
};
/// The delivery of the first topup to the first endpoint, from which the one to the second is made.
pub(super) const FIRST: usize = 0;
/// The delivery of the first topup to the second endpoint.
pub(super) const FURTHER: usize = 1;
/// The endpoint of each delivery.
pub(super) const ENDPOINTS: [usize; 3] = [0, 1, 0];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum DeliveryState {
    /// The fan-out has not made it.
    Unborn,
    Pending,
    Delivered,
    Exhausted,
    /// The endpoint has no URL, so the delivery is held.
    NoEndpoint,
}

/// The row of a delivery in `work`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Work {
    None,
    Due,
    Leased,
}

/// A delivery: its row and its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Row {
    pub(super) state: DeliveryState,
    /// The number of ended attempts, and how many of them were before the current schedule.
    pub(super) attempt: u8,
    pub(super) schedule_start: u8,
    pub(super) work: Work,
    /// Its first lease has not ended, so the sweep has not seen it.
    pub(super) young: bool,
    /// The readiness event in the stream.
    pub(super) event: bool,
    /// How often the endpoint has failed in what was recorded since the delivery was created or
    /// last asked for, and whether it has acknowledged an attempt of the schedule that began then.
    pub(super) failed: u8,
    pub(super) acknowledged: bool,
}

/// The part of an endpoint's health that its webhooks depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Endpoint {
    pub(super) block: Block,
    pub(super) failures: u32,
    pub(super) blocks: u32,
    /// The delivery that is its probe.
    pub(super) probe: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Block {
    None,
    Lasts,
    /// Its time has passed, so the next webhook is a probe.
    Over,
}

/// An attempt of a notifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Attempt {
    pub(super) row: usize,
    /// The number of ended attempts before it, as the claim read it.
    pub(super) number: u8,
    pub(super) schedule_start: u8,
}

/// What a notifier is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Notifier {
    Idle,
    /// It has found due work. `over`: the block of the endpoint was over.
    Found {
        row: usize,
        over: bool,
    },
    /// It has claimed the first delivery of a topup, which it fans out before the attempt.
    Fans(Option<Attempt>),
    /// It will send the webhook.
    Claimed(Attempt),
    /// It knows whether the endpoint has acknowledged.
    Sent(Attempt, bool),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) rows: [Row; 3],
    pub(super) endpoints: [Endpoint; 2],
    pub(super) notifiers: [Notifier; 2],
    /// A webhook that was not its probe went to a blocked endpoint.
    pub(super) overrun: bool,
    /// How many faults may still happen, and how often the partner may still ask.
    pub(super) faults: u8,
    pub(super) asks: u8,
}

impl Endpoint {
    pub(super) fn after(self, event: EndpointEvent) -> Self {
        let id = |row: usize| DeliveryId::from(uuid::Uuid::from_u128(row as u128));
        let health = Health {
            gate: match self.block {
                Block::None => EndpointGate::Open,
                Block::Lasts => EndpointGate::BlockedUntil(NOW + POLICY.first),
                Block::Over => EndpointGate::BlockedUntil(NOW),
            },
            failures: self.failures,
            blocks: self.blocks,
            probe: self.probe.map(id),
            ..Health::default()
        };
        let (next, _) = health.after(event, NOW, POLICY);
        Self {
            block: match next.gate {
                EndpointGate::Open => Block::None,
                EndpointGate::BlockedUntil(until) if until <= NOW => Block::Over,
                EndpointGate::BlockedUntil(_) | EndpointGate::Paused { .. } => Block::Lasts,
            },
            // Higher counts change nothing, and would make more states.
            failures: next.failures.min(POLICY.failures),
            blocks: next.blocks.min(1),
            probe: next
                .probe
                .and_then(|probe| (0..ENDPOINTS.len()).find(|row| id(*row) == probe)),
        }
    }
}

impl State {
    pub(super) fn attempt(&self, row: usize) -> Attempt {
        Attempt {
            row,
            number: self.rows[row].attempt,
            schedule_start: self.rows[row].schedule_start,
        }
    }

    pub(super) fn endpoint(&mut self, row: usize) -> &mut Endpoint {
        &mut self.endpoints[ENDPOINTS[row]]
    }

    pub(super) fn fan_out(&mut self) {
        let further = &mut self.rows[FURTHER];
        if further.state == DeliveryState::Unborn {
            further.state = DeliveryState::Pending;
            further.work = Work::Due;
        }
    }

    /// What a notifier does with a delivery that it has read.
    pub(super) fn goes_on_with(&mut self, by: usize, row: usize) {
        let blocked = self.endpoints[ENDPOINTS[row]].block == Block::Lasts
            && self.endpoints[ENDPOINTS[row]].probe != Some(row);
        self.overrun |= blocked;
        let attempt = self.attempt(row);
        self.notifiers[by] = if row == FIRST {
            Notifier::Fans(Some(attempt))
        } else {
            Notifier::Claimed(attempt)
        };
    }

    /// A delivery of a blocked endpoint waits as due work. A first endpoint that is blocked must
    /// not stop the others, so its topup is fanned out in any case.
    pub(super) fn puts_back(&mut self, by: usize, row: usize) {
        self.rows[row].work = Work::Due;
        self.notifiers[by] = if row == FIRST {
            Notifier::Fans(None)
        } else {
            Notifier::Idle
        };
    }
}
