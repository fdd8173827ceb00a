//! A model of the webhooks of two topups: one that is ready now goes to two endpoints, of which the
//! first may have no URL, and an older one that is due goes to the first only. Two notifiers claim,
//! send and record them, with endpoints that fail, a block that begins and ends, a partner who has
//! a webhook sent again at any moment, messages that are lost or come twice, and crashes and stalls
//! at any step.
//!
//! What the model has in common with the code is [`domain::endpoint::Health::after`]. The steps
//! around it are those of `store::deliveries`: `claim`, `fan_out`, `record`, and the redelivery of
//! `desk::self_service`. Time is logical: a lease or a block may end at any moment, because nothing
//! may depend on how long they are.

mod state;

use clap::ValueEnum;
use domain::endpoint::EndpointEvent;
use stateright::{Model, Property};

pub use self::state::State;
use self::state::{
    Attempt, Block, DeliveryState, ENDPOINTS, Endpoint, FIRST, FURTHER, NOW, Notifier, POLICY, Row,
    SCHEDULE, Work,
};
use crate::explore::{Condition, Promised, SmallModel, properties};

/// A rule of the deliveries, without which a promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Safeguard {
    /// The sweep fans a topup out, too, so that a first endpoint without a URL stops no other one
    FanOutSweep,
    /// A pending delivery without work gets work when its first lease ends
    SweepDeliveries,
    /// Only the first result of an attempt counts
    DeliveryOnce,
    /// An acknowledgement counts although another result of the attempt was recorded first
    LateAcknowledgement,
    /// An acknowledgement of an attempt before the current schedule counts no more
    CurrentAcknowledgement,
    /// The attempt that is in flight while its schedule begins anew is the first of the new one
    RestartedSchedule,
    /// A claim reads the block again after it has taken the lease
    EndpointBlock,
    /// A block ends although its probe brought no result
    ProbeEnds,
}

/// What must be true in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// In every final state each endpoint has a delivery of what it wants, and each is delivered or
    /// exhausted.
    NothingForgotten,
    /// A delivery is exhausted only after a whole schedule of failures since it was last asked for.
    WholeSchedule,
    /// In every final state, what an endpoint has acknowledged since then is delivered.
    AcknowledgedCounts,
    /// What is called delivered was acknowledged since it was last asked for.
    DeliveredIsTrue,
    /// A blocked endpoint gets no webhook but its probe.
    OneProbe,
}

/// One step. Notifiers and deliveries are named by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A notifier gets a readiness event and reads the delivery.
    TakeEvent(usize, usize),
    LoseEvent(usize),
    /// A notifier finds due work of an endpoint that is not blocked.
    Find(usize, usize),
    /// It takes the lease, and reads the delivery.
    Lease(usize),
    /// It makes the deliveries to further endpoints.
    FanOut(usize),
    /// It sends the webhook.
    Send {
        by: usize,
        acknowledged: bool,
    },
    /// It records the result. `repeats`: the answer of the database is lost, so it does so again.
    Record {
        by: usize,
        repeats: bool,
    },
    /// The first lease of a delivery ends, and the sweep finds it.
    Sweep(usize),
    /// The lease of due work ends.
    LeaseEnds(usize),
    /// The time of a block ends.
    BlockEnds(usize),
    /// The partner has the webhook sent again.
    Ask(usize),
    Crash(usize),
}

/// The deliveries with these safeguards switched off.
pub struct Protocol {
    pub without: Vec<Safeguard>,
}

impl SmallModel for Protocol {
    type Safeguard = Safeguard;
    type Promise = Promise;
    const PROMISES: &'static [Promised<Self>] = &[
        Promised {
            promise: Promise::NothingForgotten,
            name: "each endpoint gets what it wants, or its retries end",
            is_kept: |protocol, state| {
                let waits =
                    |row: &Row| matches!(row.state, DeliveryState::Unborn | DeliveryState::Pending);
                !state.rows.iter().any(waits) || protocol.goes_on(state)
            },
        },
        Promised {
            promise: Promise::WholeSchedule,
            name: "retries end only after a whole schedule",
            is_kept: |_, state| {
                let early =
                    |row: &Row| row.state == DeliveryState::Exhausted && row.failed < SCHEDULE;
                !state.rows.iter().any(early)
            },
        },
        Promised {
            promise: Promise::AcknowledgedCounts,
            name: "what is acknowledged is delivered",
            is_kept: |protocol, state| {
                let lost = |row: &Row| row.acknowledged && row.state == DeliveryState::Exhausted;
                !state.rows.iter().any(lost) || protocol.goes_on(state)
            },
        },
        Promised {
            promise: Promise::DeliveredIsTrue,
            name: "what is called delivered was acknowledged",
            is_kept: |_, state| {
                let false_one =
                    |row: &Row| row.state == DeliveryState::Delivered && !row.acknowledged;
                !state.rows.iter().any(false_one)
            },
        },
        Promised {
            promise: Promise::OneProbe,
            name: "a blocked endpoint gets nothing but its probe",
            is_kept: |_, state| !state.overrun,
        },
    ];
    const ENDS: &'static [(&'static str, Condition<Self>)] = &[
        ("everything is delivered", |_, state| {
            let delivered = |row: &Row| row.state == DeliveryState::Delivered;
            state.rows.iter().all(delivered)
        }),
        ("retries end", |_, state| {
            let exhausted = |row: &Row| row.state == DeliveryState::Exhausted;
            state.rows.iter().any(exhausted)
        }),
        ("a probe ends a block", |_, state| {
            // Failures are forgotten only by an acknowledgement.
            let first = &state.endpoints[0];
            first.block == Block::None && first.failures == 0 && state.rows[FIRST].attempt > 2
        }),
        (
            "the second endpoint is served while the first is blocked",
            |_, state| {
                state.endpoints[0].block != Block::None
                    && state.rows[FURTHER].state == DeliveryState::Delivered
            },
        ),
        ("what was sent again is delivered", |_, state| {
            let again = |row: &Row| row.state == DeliveryState::Delivered && row.schedule_start > 0;
            state.rows.iter().any(again)
        }),
    ];

    fn without(without: Vec<Safeguard>) -> Self {
        Self { without }
    }
}

impl Protocol {
    fn has(&self, safeguard: Safeguard) -> bool {
        !self.without.contains(&safeguard)
    }

    fn goes_on(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        actions.into_iter().any(|action| {
            let chance = matches!(
                action,
                Action::Ask(_)
                    | Action::Crash(_)
                    | Action::LoseEvent(_)
                    | Action::Send {
                        acknowledged: false,
                        ..
                    }
                    | Action::Record { repeats: true, .. }
            );
            !chance && self.next_state(state, action).is_some()
        })
    }

    fn lease(&self, state: &mut State, by: usize) {
        let Notifier::Found { row, over } = state.notifiers[by] else {
            return;
        };
        if state.rows[row].work != Work::Due {
            state.notifiers[by] = Notifier::Idle;
            return;
        }
        if over {
            // Of two claims at the same moment only one chooses the probe, because this event does
            // not apply to a block that lasts.
            let probe = EndpointEvent::Probe {
                delivery: uuid::Uuid::from_u128(row as u128).into(),
                until: NOW + POLICY.first,
            };
            let endpoint = state.endpoint(row);
            *endpoint = endpoint.after(probe);
        }
        if state.rows[row].state != DeliveryState::Pending {
            state.rows[row].work = Work::None;
            state.notifiers[by] = Notifier::Idle;
            return;
        }
        state.rows[row].work = Work::Leased;
        let endpoint = state.endpoint(row);
        let blocked = endpoint.block == Block::Lasts && endpoint.probe != Some(row);
        if blocked && self.has(Safeguard::EndpointBlock) {
            state.puts_back(by, row);
        } else {
            state.goes_on_with(by, row);
        }
    }

    fn record(&self, state: &mut State, sent: Attempt, acknowledged: bool) {
        let row = &mut state.rows[sent.row];
        let is_same = row.attempt == sent.number || !self.has(Safeguard::DeliveryOnce);
        let is_first = row.state == DeliveryState::Pending && is_same;
        let is_late = acknowledged
            && row.state != DeliveryState::Delivered
            && (sent.number >= row.schedule_start || !self.has(Safeguard::CurrentAcknowledgement))
            && self.has(Safeguard::LateAcknowledgement);
        if is_first || is_late {
            let restarted =
                row.schedule_start > sent.schedule_start && self.has(Safeguard::RestartedSchedule);
            let start = if restarted {
                row.schedule_start
            } else {
                sent.schedule_start
            };
            row.attempt += 1;
            row.state = if acknowledged {
                DeliveryState::Delivered
            } else if row.attempt.saturating_sub(start) >= SCHEDULE {
                DeliveryState::Exhausted
            } else {
                DeliveryState::Pending
            };
            row.work = if row.state == DeliveryState::Pending {
                Work::Due
            } else {
                Work::None
            };
        }
        let endpoint = state.endpoint(sent.row);
        *endpoint = endpoint.after(if acknowledged {
            EndpointEvent::Acknowledged
        } else {
            EndpointEvent::Failed {
                attempts: 1,
                probe: endpoint.probe == Some(sent.row),
            }
        });
    }

    /// The next steps of a notifier.
    fn notifies(state: &State, by: usize, actions: &mut Vec<Action>) {
        match state.notifiers[by] {
            // Two idle notifiers would do the same.
            Notifier::Idle if by == 1 && state.notifiers[0] == Notifier::Idle => return,
            Notifier::Idle => {
                for (index, row) in state.rows.iter().enumerate() {
                    if row.event && row.state == DeliveryState::Pending && row.attempt == 0 {
                        actions.push(Action::TakeEvent(by, index));
                    }
                    let blocked = state.endpoints[ENDPOINTS[index]].block == Block::Lasts;
                    if row.work == Work::Due && !blocked {
                        actions.push(Action::Find(by, index));
                    }
                }
                return;
            }
            Notifier::Found { .. } => actions.push(Action::Lease(by)),
            Notifier::Fans(_) => actions.push(Action::FanOut(by)),
            Notifier::Claimed(_) => {
                actions.push(Action::Send {
                    by,
                    acknowledged: true,
                });
                if state.faults > 0 {
                    actions.push(Action::Send {
                        by,
                        acknowledged: false,
                    });
                }
            }
            Notifier::Sent(..) => {
                actions.push(Action::Record { by, repeats: false });
                if state.faults > 0 {
                    actions.push(Action::Record { by, repeats: true });
                }
            }
        }
        if state.faults > 0 {
            actions.push(Action::Crash(by));
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let ready = Row {
            state: DeliveryState::Pending,
            attempt: 0,
            schedule_start: 0,
            work: Work::None,
            young: true,
            event: true,
            failed: 0,
            acknowledged: false,
        };
        let held = Row {
            state: DeliveryState::NoEndpoint,
            event: false,
            ..ready
        };
        let further = Row {
            state: DeliveryState::Unborn,
            young: false,
            ..held
        };
        let older = Row {
            work: Work::Due,
            young: false,
            event: false,
            ..ready
        };
        let healthy = Endpoint {
            block: Block::None,
            failures: 0,
            blocks: 0,
            probe: None,
        };
        let with = |first| State {
            rows: [first, further, older],
            endpoints: [healthy; 2],
            notifiers: [Notifier::Idle; 2],
            overrun: false,
            faults: FAULTS,
            asks: 1,
        };
        vec![with(ready), with(held)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for by in 0..state.notifiers.len() {
            Self::notifies(state, by, actions);
        }
        for (index, row) in state.rows.iter().enumerate() {
            if row.event {
                actions.push(Action::LoseEvent(index));
            }
            if row.young {
                actions.push(Action::Sweep(index));
            }
            if row.work == Work::Leased {
                actions.push(Action::LeaseEnds(index));
            }
            let has_begun = row.attempt > row.schedule_start;
            if state.asks > 0 && has_begun {
                actions.push(Action::Ask(index));
            }
        }
        for (index, endpoint) in state.endpoints.iter().enumerate() {
            let probed = endpoint.probe.is_some();
            if endpoint.block == Block::Lasts && (!probed || self.has(Safeguard::ProbeEnds)) {
                actions.push(Action::BlockEnds(index));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::TakeEvent(by, row) => {
                if state.endpoints[ENDPOINTS[row]].block == Block::Lasts {
                    state.puts_back(by, row);
                } else {
                    state.goes_on_with(by, row);
                }
            }
            Action::LoseEvent(row) => state.rows[row].event = false,
            Action::Find(by, row) => {
                let over = state.endpoints[ENDPOINTS[row]].block == Block::Over;
                state.notifiers[by] = Notifier::Found { row, over };
            }
            Action::Lease(by) => self.lease(&mut state, by),
            Action::FanOut(by) => {
                if let Notifier::Fans(next) = state.notifiers[by] {
                    state.fan_out();
                    state.notifiers[by] = next.map_or(Notifier::Idle, Notifier::Claimed);
                }
            }
            Action::Send { by, acknowledged } => {
                if let Notifier::Claimed(attempt) = state.notifiers[by] {
                    state.notifiers[by] = Notifier::Sent(attempt, acknowledged);
                    state.faults -= u8::from(!acknowledged);
                    let row = &mut state.rows[attempt.row];
                    row.acknowledged |= acknowledged && attempt.number >= row.schedule_start;
                    row.failed = (row.failed + u8::from(!acknowledged)).min(SCHEDULE);
                }
            }
            Action::Record { by, repeats } => {
                if let Notifier::Sent(attempt, acknowledged) = state.notifiers[by] {
                    self.record(&mut state, attempt, acknowledged);
                    if repeats {
                        state.faults -= 1;
                    } else {
                        state.notifiers[by] = Notifier::Idle;
                    }
                }
            }
            Action::Sweep(row) => {
                state.rows[row].young = false;
                let is_idle = state.rows[row].state == DeliveryState::Pending
                    && state.rows[row].work == Work::None;
                if is_idle && self.has(Safeguard::SweepDeliveries) {
                    state.rows[row].work = Work::Due;
                }
                if row == FIRST && self.has(Safeguard::FanOutSweep) {
                    state.fan_out();
                }
            }
            Action::LeaseEnds(row) => state.rows[row].work = Work::Due,
            Action::BlockEnds(endpoint) => state.endpoints[endpoint].block = Block::Over,
            Action::Ask(index) => {
                state.asks -= 1;
                // What is not recorded yet counts for the new schedule.
                let in_flight = state.attempt(index);
                let sent = |acknowledged| {
                    let results = state.notifiers.iter().filter(move |notifier| {
                        matches!(notifier, Notifier::Sent(attempt, result)
                            if attempt.row == index && attempt.number >= in_flight.number && *result == acknowledged)
                    });
                    u8::try_from(results.count()).unwrap_or(SCHEDULE)
                };
                let failed = sent(false);
                let acknowledged = sent(true) > 0;
                let row = &mut state.rows[index];
                row.schedule_start = row.attempt;
                row.failed = failed;
                row.acknowledged = acknowledged;
                if row.state != DeliveryState::Pending {
                    row.state = DeliveryState::Pending;
                    row.work = Work::Due;
                }
            }
            Action::Crash(by) => {
                state.faults -= 1;
                let crashed = std::mem::replace(&mut state.notifiers[by], Notifier::Idle);
                // Perhaps only this notifier knew of the acknowledgement.
                if let Notifier::Sent(attempt, true) = crashed
                    && state.rows[attempt.row].state != DeliveryState::Delivered
                {
                    let row = state.rows[attempt.row];
                    let knows = |other: &Notifier| matches!(other, Notifier::Sent(one, true) if one.row == attempt.row && one.number >= row.schedule_start);
                    state.rows[attempt.row].acknowledged = state.notifiers.iter().any(knows);
                }
            }
        }
        state.notifiers.sort_unstable();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}

/// The maximum number of faults of one history: crashes, failures of an endpoint, and lost answers
/// of the database.
const FAULTS: u8 = 2;
