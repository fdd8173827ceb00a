//! A model of a resend: a partner has all webhooks of a time sent again that it has missed, while
//! new attempts of some of them go on by their own retries. Three deliveries: two whose retries
//! have ended, and one that waits for its last retry. The walk makes them due one after the other,
//! at the pace of the endpoint, which may fail each of them again.
//!
//! The steps are those of `store::deliveries::resends`. Each is one transaction under the lock of
//! the resend's row, so it does not matter which process makes it, nor when one dies. Time is
//! logical: a clock that counts what is recorded.

use clap::ValueEnum;
use stateright::{Model, Property};

use crate::explore::{Condition, Promised, SmallModel, properties};

/// How many deliveries of the endpoint a resend lets be due at a time (`most_due`).
const MOST_DUE: usize = 1;
/// How often the endpoint may fail.
const FAULTS: u8 = 3;
/// The time at which the resend was asked for.
const ASKED: u8 = 3;

/// A rule of a resend, without which a promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Safeguard {
    /// What was attempted since the resend was asked for is no part of it
    RedeliveryEnd,
    /// No more deliveries of an endpoint are made due than it has room for
    RedeliveryPace,
    /// The walk goes on from the place that the last step has recorded, until it has come to its
    /// end
    RedeliverySurvives,
}

/// What must be true in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// A resend makes no delivery due twice.
    EachOnce,
    /// Once it has ended, each delivery that it was asked for was attempted since then.
    NoneMissed,
    /// It makes nothing due while the endpoint has no room.
    Pace,
    /// It ends.
    Ends,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Standing {
    /// It waits for a retry that is far away.
    Waits,
    /// It is due, or in flight.
    Due,
    Delivered,
    /// Its retries ended at this time, which is its place in the walk.
    Exhausted(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Delivery {
    standing: Standing,
    /// When its last attempt was.
    attempted_at: u8,
    /// How many attempts of its schedule are left.
    left: u8,
    /// How often the resend has made it due.
    resent: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// It makes due what is exhausted, in the order in which the retries ended, after this time.
    Exhausted(u8),
    /// It makes due what waits for a retry.
    Pending,
    /// Everything is due, and some of it waits for its attempt.
    Sending,
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    deliveries: [Delivery; 3],
    phase: Phase,
    now: u8,
    overrun: bool,
    faults: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Some notifier makes the next step of the resend.
    Step,
    /// A delivery that waits for its own retry becomes due.
    Retry(usize),
    /// A notifier sends a due delivery and records the result.
    Attempt { delivery: usize, acknowledged: bool },
}

/// The resend with these safeguards switched off.
pub struct Protocol {
    pub without: Vec<Safeguard>,
}

impl SmallModel for Protocol {
    type Safeguard = Safeguard;
    type Promise = Promise;
    const PROMISES: &'static [Promised<Self>] = &[
        Promised {
            promise: Promise::EachOnce,
            name: "a resend sends nothing twice",
            is_kept: |_, state| state.deliveries.iter().all(|one| one.resent <= 1),
        },
        Promised {
            promise: Promise::NoneMissed,
            name: "a resend that has ended has missed nothing",
            is_kept: |_, state| {
                let missed = |one: &Delivery| one.attempted_at < ASKED;
                state.phase != Phase::Ended || !state.deliveries.iter().any(missed)
            },
        },
        Promised {
            promise: Promise::Pace,
            name: "a resend keeps to the pace of its endpoint",
            is_kept: |_, state| !state.overrun,
        },
        Promised {
            promise: Promise::Ends,
            name: "every resend ends",
            is_kept: |protocol, state| state.phase == Phase::Ended || protocol.goes_on(state),
        },
    ];
    const ENDS: &'static [(&'static str, Condition<Self>)] = &[
        ("everything is delivered", |_, state| {
            let delivered = |one: &Delivery| one.standing == Standing::Delivered;
            state.phase == Phase::Ended && state.deliveries.iter().all(delivered)
        }),
        ("the retries of a resent one end again", |_, state| {
            let again = |one: &Delivery| {
                one.resent == 1 && matches!(one.standing, Standing::Exhausted(at) if at > ASKED)
            };
            state.phase == Phase::Ended && state.deliveries.iter().any(again)
        }),
        ("a retry of its own comes before the resend", |_, state| {
            state.phase == Phase::Ended && state.deliveries[2].resent == 0
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
        let goes_on = |action| self.next_state(state, action).is_some();
        actions.into_iter().any(goes_on)
    }

    fn matches(&self, one: Delivery) -> bool {
        one.attempted_at < ASKED || !self.has(Safeguard::RedeliveryEnd)
    }

    /// One transaction: it makes the next delivery due and moves the place of the walk.
    fn walk(&self, state: &mut State) {
        let due = |one: &&Delivery| one.standing == Standing::Due;
        let has_room = state.deliveries.iter().filter(due).count() < MOST_DUE;
        let walks = matches!(state.phase, Phase::Exhausted(_) | Phase::Pending);
        if walks && !has_room && self.has(Safeguard::RedeliveryPace) {
            return;
        }
        let (found, next) = match state.phase {
            Phase::Exhausted(after) => {
                let place = |one: &Delivery| match one.standing {
                    Standing::Exhausted(at) if at > after => Some(at),
                    _ => None,
                };
                let places = state.deliveries.iter().enumerate();
                let first = places.filter_map(|(index, one)| Some((place(one)?, index)));
                match first.min() {
                    Some((at, index)) => (Some(index), Phase::Exhausted(at)),
                    None => (None, Phase::Pending),
                }
            }
            Phase::Pending => {
                let waits = |one: &Delivery| one.standing == Standing::Waits && self.matches(*one);
                match state.deliveries.iter().position(waits) {
                    Some(index) => (Some(index), Phase::Pending),
                    None => (None, Phase::Sending),
                }
            }
            Phase::Sending => {
                // It ends as soon as nothing that was due then waits for its attempt.
                if has_room {
                    state.phase = Phase::Ended;
                }
                return;
            }
            Phase::Ended => return,
        };
        state.phase = if self.has(Safeguard::RedeliverySurvives) || found.is_none() {
            next
        } else {
            Phase::Sending
        };
        let Some(found) = found else { return };
        if !self.matches(state.deliveries[found]) {
            return;
        }
        state.overrun |= !has_room;
        let one = &mut state.deliveries[found];
        one.standing = Standing::Due;
        one.left = 2;
        one.resent += 1;
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let ended = |at| Delivery {
            standing: Standing::Exhausted(at),
            attempted_at: at,
            left: 0,
            resent: 0,
        };
        let waits = Delivery {
            standing: Standing::Waits,
            left: 1,
            ..ended(0)
        };
        vec![State {
            deliveries: [ended(1), ended(2), waits],
            phase: Phase::Exhausted(0),
            now: ASKED,
            overrun: false,
            faults: FAULTS,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Step);
        for (index, one) in state.deliveries.iter().enumerate() {
            match one.standing {
                Standing::Waits => actions.push(Action::Retry(index)),
                Standing::Due => {
                    let attempt = |acknowledged| Action::Attempt {
                        delivery: index,
                        acknowledged,
                    };
                    actions.push(attempt(true));
                    if state.faults > 0 {
                        actions.push(attempt(false));
                    }
                }
                Standing::Delivered | Standing::Exhausted(_) => {}
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Step => self.walk(&mut state),
            Action::Retry(index) => state.deliveries[index].standing = Standing::Due,
            Action::Attempt {
                delivery,
                acknowledged,
            } => {
                state.now += 1;
                state.faults -= u8::from(!acknowledged);
                let one = &mut state.deliveries[delivery];
                one.attempted_at = state.now;
                one.left = one.left.saturating_sub(1);
                one.standing = match (acknowledged, one.left) {
                    (true, _) => Standing::Delivered,
                    (false, 0) => Standing::Exhausted(state.now),
                    (false, _) => Standing::Waits,
                };
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}
