//! A model of an option that two providers sell, where the first one sells what it has rejected:
//! the purchase arrives after the placement went to the second one. No rule can prevent that second
//! purchase, because a rejection is believed. But whenever a process hears of the first one, by a
//! response or a look-up that was late, an operator must be told, and nothing more is bought.
//!
//! What the model has in common with the code is [`domain::placement::Placement::after`]. The steps
//! around it are those of the provisioner's module `purchases` and of `store::placements::settle`.
//! A process may stall for as long as it likes, so what it has heard may be recorded at any later
//! moment.

use clap::ValueEnum;
use domain::{
    PlacementState,
    placement::{Placement, PlacementEvent},
};
use stateright::{Model, Property};

use crate::explore::{Condition, Promised, SmallModel, properties};

/// The attempts of a placement. After the last one nothing is bought any more.
const ATTEMPTS: u32 = 3;

/// A rule of the routing, without which a promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Safeguard {
    /// A purchase that nobody expects any more parks its placement, whatever its state
    UnexpectedPurchase,
    /// A purchase is that of the attempt whose number it has, and not of the one recorded last
    FreshAttemptNumber,
    /// A placement that is parked although something is bought is left to an operator, whatever is
    /// heard later
    Disputed,
}

/// What must be true in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// What was recorded as heard is the purchase of a placed unit, or an operator is told of it.
    HeardIsKept,
    /// Nothing is claimed to be bought once a purchase was recorded.
    BuysNoMore,
    /// In every final state the placement is placed, failed or parked.
    Ends,
}

/// What a provisioner is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Work {
    Idle,
    /// It buys this attempt.
    Buys(Job),
    /// It looks this attempt up.
    Looks(Job),
    /// It has heard this, and has not recorded it.
    Knows(Job, Heard),
}

/// An attempt, and the provider that it is made at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Job {
    attempt: u32,
    provider: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Heard {
    Bought,
    Rejected,
    NotBought,
    /// A look-up after the settling delay found nothing.
    NotFound,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    row: Placement,
    /// The provider that the row names, from 0.
    provider: usize,
    provisioners: [Work; 2],
    /// Whether each provider has sold it, and whether it still will although it has rejected it.
    sold: [bool; 2],
    will_sell: [bool; 2],
    /// The purchases that were recorded as heard, by provider, and that of the unit.
    heard: [bool; 2],
    unit: Option<usize>,
    /// An attempt was claimed after a purchase was recorded.
    bought_on: bool,
    /// How many processes may still die.
    faults: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A provisioner records an attempt of the placement.
    Claim(usize),
    /// The provider answers the attempt.
    Answer(usize, Heard),
    /// It rejects the attempt, and sells it later all the same.
    RejectFalsely(usize),
    /// The answer never comes. `sells`: the provider has sold the placement.
    Silence {
        by: usize,
        sells: bool,
    },
    /// A provider sells what it has rejected.
    SellLate(usize),
    /// A provisioner claims an attempt that is open to look it up.
    LookUp(usize),
    /// The look-up shows what the provider has.
    See(usize),
    Record(usize),
    Crash(usize),
}

/// The routing with these safeguards switched off.
pub struct Protocol {
    pub without: Vec<Safeguard>,
}

impl SmallModel for Protocol {
    type Safeguard = Safeguard;
    type Promise = Promise;
    const PROMISES: &'static [Promised<Self>] = &[
        Promised {
            promise: Promise::HeardIsKept,
            name: "a purchase that was heard of is delivered or parked",
            is_kept: |_, state| {
                let kept = |provider: usize| {
                    !state.heard[provider]
                        || state.row.state == PlacementState::Parked
                        || (state.row.state == PlacementState::Placed
                            && state.unit == Some(provider))
                };
                kept(0) && kept(1)
            },
        },
        Promised {
            promise: Promise::BuysNoMore,
            name: "nothing is bought once a purchase was recorded",
            is_kept: |_, state| !state.bought_on,
        },
        Promised {
            promise: Promise::Ends,
            name: "every placement ends",
            is_kept: |protocol, state| {
                let is_over = match state.row.state {
                    PlacementState::Accepted => state.row.attempt >= ATTEMPTS,
                    PlacementState::Placing => false,
                    _ => true,
                };
                is_over || protocol.goes_on(state)
            },
        },
    ];
    const ENDS: &'static [(&'static str, Condition<Self>)] = &[
        ("the second provider sells it", |_, state| {
            state.row.state == PlacementState::Placed && state.unit == Some(1)
        }),
        ("both reject it", |_, state| {
            state.row.state == PlacementState::Failed
        }),
        (
            "a purchase at the first provider stops the second one",
            |_, state| state.row.disputed && state.sold == [true, false],
        ),
        ("both have sold it, and an operator is told", |_, state| {
            state.row.disputed && state.heard == [true, true]
        }),
        (
            "both have sold it, and nobody hears of the first",
            |_, state| state.row.state == PlacementState::Placed && state.sold == [true, true],
        ),
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
            let chance = matches!(action, Action::Crash(_) | Action::SellLate(_));
            !chance && self.next_state(state, action).is_some()
        })
    }

    /// Records a purchase. The statement for the common case has a condition on state and attempt,
    /// and a second one parks what it has not moved.
    fn record_purchase(&self, state: &mut State, job: Job) {
        state.heard[job.provider] = true;
        let mut row = state.row;
        if !self.has(Safeguard::Disputed) {
            row.disputed = false;
        }
        let attempt = if self.has(Safeguard::FreshAttemptNumber) {
            job.attempt
        } else {
            row.attempt
        };
        let Ok(after) = row.after(PlacementEvent::Bought(attempt)) else {
            return;
        };
        if after.state == PlacementState::Parked && !self.has(Safeguard::UnexpectedPurchase) {
            return;
        }
        state.row = after;
        if after.state == PlacementState::Placed {
            // A unit stays with its topup for ever.
            state.unit.get_or_insert(job.provider);
        }
    }

    fn record(&self, state: &mut State, job: Job, heard: Heard) {
        let attempt = job.attempt;
        let event = match heard {
            Heard::Bought => return self.record_purchase(state, job),
            Heard::Rejected => PlacementEvent::Rejected(attempt),
            Heard::NotBought => PlacementEvent::NotBought(attempt),
            Heard::NotFound if attempt >= ATTEMPTS => PlacementEvent::Park(attempt),
            Heard::NotFound => PlacementEvent::NotFound {
                attempt,
                after_settling_delay: true,
            },
            Heard::Unknown => PlacementEvent::Unknown(attempt),
        };
        if let Ok(after) = state.row.after(event) {
            if heard == Heard::Rejected && after.state == PlacementState::Accepted {
                state.provider += 1;
            }
            state.row = after;
        }
    }

    fn works(state: &State, by: usize, actions: &mut Vec<Action>) {
        match state.provisioners[by] {
            // Two idle ones would do the same.
            Work::Idle if by == 1 && state.provisioners[0] == Work::Idle => return,
            Work::Idle => {
                match state.row.state {
                    PlacementState::Accepted => actions.push(Action::Claim(by)),
                    PlacementState::Placing => actions.push(Action::LookUp(by)),
                    _ => {}
                }
                return;
            }
            Work::Buys(_) => {
                let answers = [Heard::Bought, Heard::Rejected, Heard::NotBought];
                actions.extend(answers.map(|heard| Action::Answer(by, heard)));
                actions.push(Action::RejectFalsely(by));
                let silence = |sells| Action::Silence { by, sells };
                actions.extend([true, false].map(silence));
            }
            Work::Looks(_) => actions.push(Action::See(by)),
            Work::Knows(..) => actions.push(Action::Record(by)),
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
        vec![State {
            row: Placement {
                alternatives: 1,
                ..Placement::NEW
            },
            provider: 0,
            provisioners: [Work::Idle; 2],
            sold: [false; 2],
            will_sell: [false; 2],
            heard: [false; 2],
            unit: None,
            bought_on: false,
            faults: 1,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for by in 0..state.provisioners.len() {
            Self::works(state, by, actions);
        }
        for provider in 0..state.will_sell.len() {
            if state.will_sell[provider] {
                actions.push(Action::SellLate(provider));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Claim(by) => {
                if state.row.attempt >= ATTEMPTS {
                    return None;
                }
                state.row = state.row.after(PlacementEvent::Claim).ok()?;
                state.bought_on |= state.heard.contains(&true);
                state.provisioners[by] = Work::Buys(Job {
                    attempt: state.row.attempt,
                    provider: state.provider,
                });
            }
            Action::Answer(by, heard) => {
                let Work::Buys(job) = state.provisioners[by] else {
                    return None;
                };
                // Whoever has sold it says so: a second purchase of the same placement at the same
                // provider is what the large model is about.
                let has_sold = state.sold[job.provider];
                let heard = if has_sold { Heard::Bought } else { heard };
                state.sold[job.provider] = heard == Heard::Bought;
                state.provisioners[by] = Work::Knows(job, heard);
            }
            Action::RejectFalsely(by) => {
                let Work::Buys(job) = state.provisioners[by] else {
                    return None;
                };
                if state.sold[job.provider] || state.faults == 0 {
                    return None;
                }
                state.faults -= 1;
                state.will_sell[job.provider] = true;
                state.provisioners[by] = Work::Knows(job, Heard::Rejected);
            }
            Action::Silence { by, sells } => {
                let Work::Buys(job) = state.provisioners[by] else {
                    return None;
                };
                state.sold[job.provider] |= sells;
                state.provisioners[by] = Work::Knows(job, Heard::Unknown);
            }
            Action::SellLate(provider) => {
                state.will_sell[provider] = false;
                state.sold[provider] = true;
            }
            Action::LookUp(by) => {
                state.provisioners[by] = Work::Looks(Job {
                    attempt: state.row.attempt,
                    provider: state.provider,
                });
            }
            Action::See(by) => {
                let Work::Looks(job) = state.provisioners[by] else {
                    return None;
                };
                let sold = state.sold[job.provider];
                let heard = if sold { Heard::Bought } else { Heard::NotFound };
                state.provisioners[by] = Work::Knows(job, heard);
            }
            Action::Record(by) => {
                let Work::Knows(job, heard) = state.provisioners[by] else {
                    return None;
                };
                state.provisioners[by] = Work::Idle;
                self.record(&mut state, job, heard);
            }
            Action::Crash(by) => {
                state.faults -= 1;
                state.provisioners[by] = Work::Idle;
            }
        }
        state.provisioners.sort_unstable();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}
