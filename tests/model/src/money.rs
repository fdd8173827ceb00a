//! A model of a prepaid account: two processes store orders of one partner that has money for one
//! of them, and settlements, repeats, failures, crashes and give-backs come in any order.
//!
//! What the model has in common with the code is [`domain::money::PricedUnit::due`], which says
//! what entries a unit lacks. Around it are the steps of `store::orders::insert_limited`, which
//! holds, and of the SQL function `account_for`, which books. Each unit costs one.

use clap::ValueEnum;
use domain::money::{EntryKind, PricedUnit};
use stateright::{Model, Property};

use crate::explore::{Condition, Promised, SmallModel, properties};

/// What the partner has at first.
const FUNDS: i8 = 1;

/// A rule of an account, without which a promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Safeguard {
    /// What is available is read under the lock under which it is held
    Locked,
    /// The price of an order is held with the order
    Held,
    /// An outcome is booked in the commit that records it
    Together,
    /// A unit is charged or released once
    ChargedOnce,
    /// A unit that fails is released
    Released,
    /// A unit is refunded once
    RefundedOnce,
}

/// What must be true in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// Nobody spends what is not there, unless a unit is ready after it has failed.
    NeverBelowZero,
    /// The books say what has become of the units.
    AddsUp,
}

/// An order of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Order {
    New,
    /// Its process has read what is available, and has not stored it yet.
    Read(i8),
    Refused,
    Stored(PricedUnit),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    posted: i8,
    held: i8,
    orders: [Order; 2],
    /// The outcome of an order that is recorded and not booked, by a process that may still book
    /// it.
    unbooked: [bool; 2],
    /// How many settlements and give-backs may still be repeated.
    repeats: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A process reads what is available for this order.
    Read(usize),
    /// It stores the order, or refuses it.
    Store(usize),
    /// The unit becomes ready, fails, or is given back.
    Ready(usize),
    Fail(usize),
    GiveBack(usize),
    /// The process that has recorded an outcome books it, or dies before that.
    Book(usize),
    Die(usize),
    /// An outcome is recorded once more.
    Repeat(usize),
}

/// The account with these safeguards switched off.
pub struct Protocol {
    pub without: Vec<Safeguard>,
}

impl SmallModel for Protocol {
    type Safeguard = Safeguard;
    type Promise = Promise;
    const PROMISES: &'static [Promised<Self>] = &[
        Promised {
            promise: Promise::NeverBelowZero,
            name: "a prepaid account is not below zero",
            is_kept: |_, state| state.posted - state.held >= -state.late(),
        },
        Promised {
            promise: Promise::AddsUp,
            name: "the books say what has become of the units",
            is_kept: |_, state| state.is_under_way() || state.adds_up(),
        },
    ];
    const ENDS: &'static [(&'static str, Condition<Self>)] = &[
        ("an order is refused for want of money", |_, state| {
            state.orders.contains(&Order::Refused)
        }),
        ("both orders are charged", |_, state| {
            state
                .units()
                .filter(|unit| unit.charged && unit.is_ready)
                .count()
                == 2
        }),
        ("a unit is charged after it has failed", |_, state| {
            state.late() > 0
        }),
        ("a unit is refunded", |_, state| {
            state.units().any(|unit| unit.refunded)
        }),
        ("a unit is released", |_, state| {
            state
                .units()
                .any(|unit| unit.released && !unit.charged_late)
        }),
    ];

    fn without(without: Vec<Safeguard>) -> Self {
        Self { without }
    }
}

impl State {
    fn units(&self) -> impl Iterator<Item = PricedUnit> {
        let units = self.orders.into_iter();
        units.filter_map(|order| match order {
            Order::Stored(unit) => Some(unit),
            _ => None,
        })
    }

    /// How many units were charged after their hold had ended.
    fn late(&self) -> i8 {
        self.sum(|unit| i8::from(unit.charged_late && !unit.refunded))
    }

    fn sum(&self, of: impl Fn(PricedUnit) -> i8) -> i8 {
        self.units().map(of).sum()
    }

    fn is_under_way(&self) -> bool {
        self.unbooked.contains(&true)
    }

    /// What units are and what they should have cost, whatever their entries say.
    fn adds_up(&self) -> bool {
        let spent = self.sum(|unit| i8::from(unit.is_ready) - i8::from(unit.is_returned));
        let open = self.sum(|unit| {
            let has_ended = unit.is_ready || unit.has_failed || unit.released;
            i8::from(!has_ended)
        });
        self.posted == FUNDS - spent && self.held == open
    }
}

impl Protocol {
    fn has(&self, safeguard: Safeguard) -> bool {
        !self.without.contains(&safeguard)
    }

    /// Books what a unit lacks.
    fn book(&self, state: &mut State, index: usize) {
        state.unbooked[index] = false;
        let Order::Stored(mut unit) = state.orders[index] else {
            return;
        };
        for entry in unit.due() {
            if entry == EntryKind::Release && !self.has(Safeguard::Released) {
                continue;
            }
            Self::apply(state, entry);
            unit = unit.with(entry);
        }
        state.orders[index] = Order::Stored(unit);
    }

    fn apply(state: &mut State, entry: EntryKind) {
        match entry {
            EntryKind::Charge => {
                state.posted -= 1;
                state.held -= 1;
            }
            EntryKind::Release => state.held -= 1,
            EntryKind::LateCharge => state.posted -= 1,
            EntryKind::Refund => state.posted += 1,
            EntryKind::Deposit | EntryKind::Adjustment => {}
        }
    }

    /// Records an outcome, and books it with it.
    fn record(&self, state: &mut State, index: usize, unit: PricedUnit) {
        state.orders[index] = Order::Stored(unit);
        state.unbooked[index] = true;
        if self.has(Safeguard::Together) {
            self.book(state, index);
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            posted: FUNDS,
            held: 0,
            orders: [Order::New; 2],
            unbooked: [false; 2],
            repeats: 2,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (index, order) in state.orders.iter().enumerate() {
            match order {
                Order::New | Order::Refused => actions.push(Action::Read(index)),
                Order::Read(_) => actions.push(Action::Store(index)),
                Order::Stored(_) if state.unbooked[index] => {
                    actions.extend([Action::Book(index), Action::Die(index)]);
                }
                Order::Stored(unit) => {
                    if !unit.is_ready {
                        actions.push(Action::Ready(index));
                    }
                    if !unit.is_ready && !unit.has_failed {
                        actions.push(Action::Fail(index));
                    }
                    if unit.is_ready && !unit.is_returned {
                        actions.push(Action::GiveBack(index));
                    }
                    if state.repeats > 0 {
                        actions.push(Action::Repeat(index));
                    }
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Read(index) => {
                let available = state.posted - state.held;
                state.orders[index] = Order::Read(available);
                // Under the lock nothing happens between the two.
                if self.has(Safeguard::Locked) {
                    self.store(&mut state, index);
                }
            }
            Action::Store(index) => self.store(&mut state, index),
            Action::Ready(index) | Action::Fail(index) | Action::GiveBack(index) => {
                let Order::Stored(mut unit) = state.orders[index] else {
                    return None;
                };
                match action {
                    Action::Ready(_) => unit.is_ready = true,
                    Action::Fail(_) => unit.has_failed = true,
                    _ => unit.is_returned = true,
                }
                self.record(&mut state, index, unit);
            }
            Action::Book(index) => self.book(&mut state, index),
            Action::Die(index) => state.unbooked[index] = false,
            Action::Repeat(index) => {
                let Order::Stored(mut unit) = state.orders[index] else {
                    return None;
                };
                state.repeats -= 1;
                if !self.has(Safeguard::ChargedOnce) {
                    (unit.charged, unit.released) = (false, false);
                }
                if !self.has(Safeguard::RefundedOnce) {
                    unit.refunded = false;
                }
                // Only what was booked before can be booked again.
                if unit.is_ready || unit.has_failed {
                    self.record(&mut state, index, unit);
                }
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}

impl Protocol {
    fn store(&self, state: &mut State, index: usize) {
        let Order::Read(available) = state.orders[index] else {
            return;
        };
        if available < 1 {
            state.orders[index] = Order::Refused;
            return;
        }
        state.orders[index] = Order::Stored(PricedUnit::default());
        if self.has(Safeguard::Held) {
            state.held += 1;
        }
    }
}
