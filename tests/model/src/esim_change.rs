//! A model of a change to one delivered eSIM: it is given back, claimed back at a provider whose
//! people decide and that shows only that the money has come, or extended at a provider that knows
//! extensions by our id, or at one that only shows a difference, which may come late. There
//! are two provisioners, a provider, and a customer who may install the eSIM at any moment, with
//! crashes and stalls at any step and calls that arrive late or never. An extension is added as
//! often as its call arrives.
//!
//! What the model has in common with the code is [`domain::esim_change::EsimChange::after`]. The
//! steps around it are those of the provisioner's modules `after_delivery` and `extensions`. Time
//! is logical, as in the model of a purchase: one tick is half of the settling delay, and a call
//! arrives within one tick after its sender checked that it is not late. That an eSIM has at most
//! one open extension is a rule of the database, so it is not part of the model.

use clap::ValueEnum;
use domain::{
    EsimChangeState,
    esim_change::{EsimChange, EsimChangeEvent},
};
use stateright::{Model, Property};

use crate::explore::{Condition, Promised, SmallModel, properties};

/// The age of an attempt when its settling delay is over, in ticks.
const SETTLED: u8 = 2;
/// The age at which an attempt is parked whose looks keep failing.
const OVERDUE: u8 = 3;
/// The maximum number of attempts; afterwards the change is refused, as it is after `PARK_AFTER`.
const ATTEMPTS: u32 = 2;

/// What is to happen to the eSIM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    GiveBack,
    /// People at the provider decide. No look shows whether there is a claim.
    Claim,
    /// The provider knows extensions by our id, and shows at once what it has carried out.
    ExactExtension,
    /// The provider shows what it has carried out some time later.
    ExtensionByDifference,
}

/// A rule of a change, without which a promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Safeguard {
    /// An attempt is recorded before the provider is called
    Recorded,
    /// What an eSIM shows after an unknown outcome is believed only once SETTLE has passed
    Settled,
    /// An unknown outcome is looked at, and not taken for a refusal
    Looked,
    /// A process no longer sends an attempt once SETTLE/2 has passed since its claim
    Abandon,
    /// That an extension is not shown is believed only of a provider that knows extensions by our
    /// id
    Absence,
    /// That a claim is not shown is not taken for a claim that was not made
    Unshown,
}

/// What must be true in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// A change that is called refused has not happened, and will not.
    RefusedStays,
    /// A change that is called done has happened.
    DoneIsTrue,
    /// An extension is added once, and a claim is made once.
    Once,
    /// In every final state the change is done, refused or parked.
    Ends,
}

/// What a look at the eSIM shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Saw {
    Done,
    Installed,
    /// It has not changed, and the provider would carry the change out.
    Possible,
    /// The provider would not carry it out, although a call that is on its way may still succeed.
    Kept,
    /// The claim is denied.
    Denied,
    Unknown,
}

/// What a provisioner is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Work {
    Idle,
    /// It has claimed the row and looked. `settled`: the look began after the settling delay.
    Looked {
        saw: Saw,
        settled: bool,
    },
    /// It may send this attempt.
    Fresh {
        attempt: u32,
        late: bool,
    },
    /// It waits for the response.
    Sent(u32),
    /// It has the response.
    Answered {
        attempt: u32,
        done: bool,
    },
}

/// A call on its way to the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Request {
    attempt: u32,
    old: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct State {
    change: Change,
    row: EsimChange,
    /// The age of the attempt, in ticks.
    age: u8,
    /// The rows that the provisioners have read with their looks.
    read: [EsimChange; 2],
    provisioners: [Work; 2],
    requests: Vec<Request>,
    installed: bool,
    /// How often the provider has carried the change out.
    effects: u8,
    /// How often it has got a claim, and whether it has decided against it.
    claims: u8,
    denied: bool,
    /// Whether its answer was lost.
    claim_lost: bool,
    /// Whether a look shows that it has.
    shown: bool,
    /// How often the partner may still ask again, and how many processes may still die.
    asks: u8,
    faults: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The customer installs the eSIM.
    Install,
    /// The provider shows what it has carried out.
    Show,
    /// People at the provider decide on the claim.
    Decide {
        credited: bool,
    },
    /// The partner asks again after a refusal.
    Ask,
    /// A provisioner claims the row and looks at the eSIM.
    Look(usize, Saw),
    /// It does what follows from its look.
    Act(usize),
    Send(usize),
    Abandon(usize),
    /// A call arrives. The response may be lost.
    Arrive {
        request: usize,
        answered: bool,
    },
    /// A call never arrives.
    Vanish(usize),
    TimeOut(usize),
    /// A provisioner records the response.
    Record(usize),
    Crash(usize),
    Tick,
}

/// The change with these safeguards switched off.
pub struct Protocol {
    pub without: Vec<Safeguard>,
}

impl SmallModel for Protocol {
    type Safeguard = Safeguard;
    type Promise = Promise;
    const PROMISES: &'static [Promised<Self>] = &[
        Promised {
            promise: Promise::RefusedStays,
            name: "what is refused does not happen",
            is_kept: |_, state| !(state.row.state == EsimChangeState::Refused && state.effects > 0),
        },
        Promised {
            promise: Promise::DoneIsTrue,
            name: "what is called done has happened",
            is_kept: |_, state| state.row.state != EsimChangeState::Done || state.effects > 0,
        },
        Promised {
            promise: Promise::Once,
            name: "nothing is added or claimed twice",
            is_kept: |_, state| state.effects <= 1 && state.claims <= 1,
        },
        Promised {
            promise: Promise::Ends,
            name: "every change ends",
            is_kept: |protocol, state| state.row.state.is_over() || protocol.goes_on(state),
        },
    ];
    const ENDS: &'static [(&'static str, Condition<Self>)] = &[
        ("an eSIM is given back", |_, state| {
            state.row.state == EsimChangeState::Done && state.change == Change::GiveBack
        }),
        ("a second attempt gives it back", |_, state| {
            state.row.state == EsimChangeState::Done
                && state.row.attempt == 2
                && state.change == Change::GiveBack
        }),
        ("a second attempt extends it", |_, state| {
            state.row.state == EsimChangeState::Done
                && state.row.attempt == 2
                && state.change == Change::ExactExtension
        }),
        ("an extension is found by a difference", |_, state| {
            state.row.state == EsimChangeState::Done
                && state.change == Change::ExtensionByDifference
        }),
        ("an installed eSIM is refused", |_, state| {
            state.row.state == EsimChangeState::Refused && state.installed
        }),
        ("an attempt is refused after it was sent", |_, state| {
            state.row.state == EsimChangeState::Refused && state.row.attempt > 0
        }),
        ("a give-back is parked", |_, state| {
            state.row.state == EsimChangeState::Parked && state.change == Change::GiveBack
        }),
        ("a claim is credited", |_, state| {
            state.row.state == EsimChangeState::Done && state.change == Change::Claim
        }),
        ("a claim is denied", |_, state| {
            state.row.state == EsimChangeState::Refused
                && state.change == Change::Claim
                && state.denied
        }),
        ("a claim whose answer is lost is parked", |_, state| {
            state.row.state == EsimChangeState::Parked
                && state.change == Change::Claim
                && state.claims == 1
        }),
        (
            "a claim whose answer is lost is found by its credit",
            |_, state| {
                state.row.state == EsimChangeState::Done
                    && state.change == Change::Claim
                    && state.claim_lost
            },
        ),
        ("an extension that is not shown is parked", |_, state| {
            state.row.state == EsimChangeState::Parked
                && state.change == Change::ExtensionByDifference
                && state.effects == 1
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
                Action::Install
                    | Action::Show
                    | Action::Ask
                    | Action::Crash(_)
                    | Action::Decide { .. }
            );
            !chance && self.next_state(state, action).is_some()
        })
    }

    /// What a provisioner does after its look.
    fn act(&self, state: &mut State, by: usize) {
        let Work::Looked { saw, settled } = state.provisioners[by] else {
            return;
        };
        let read = state.read[by];
        state.provisioners[by] = Work::Idle;
        let attempt = read.attempt;
        let event = match (read.state, saw) {
            (_, Saw::Done) => EsimChangeEvent::Done,
            (EsimChangeState::Claimed, Saw::Denied) => EsimChangeEvent::Denied,
            (EsimChangeState::Claimed, _) => return,
            (EsimChangeState::Sending, Saw::Kept | Saw::Possible | Saw::Denied)
                if state.change == Change::Claim && self.has(Safeguard::Unshown) =>
            {
                if state.age < OVERDUE {
                    return;
                }
                EsimChangeEvent::Park(attempt)
            }
            (EsimChangeState::Asked, Saw::Installed | Saw::Kept | Saw::Denied) => {
                EsimChangeEvent::Refuse
            }
            (EsimChangeState::Asked, Saw::Possible) if attempt >= ATTEMPTS => {
                EsimChangeEvent::Refuse
            }
            (EsimChangeState::Asked, Saw::Possible) => {
                if !self.has(Safeguard::Recorded) {
                    state.provisioners[by] = Work::Fresh {
                        attempt,
                        late: false,
                    };
                } else if state.row == read
                    && let Ok(begun) = read.after(EsimChangeEvent::Begin)
                {
                    state.row = begun;
                    state.age = 0;
                    state.provisioners[by] = Work::Fresh {
                        attempt: begun.attempt,
                        late: false,
                    };
                }
                return;
            }
            (EsimChangeState::Sending, Saw::Kept | Saw::Possible)
                if state.change == Change::ExtensionByDifference
                    && self.has(Safeguard::Absence) =>
            {
                if state.age < OVERDUE {
                    return;
                }
                EsimChangeEvent::Park(attempt)
            }
            (_, Saw::Unknown) if read.state == EsimChangeState::Sending && state.age >= OVERDUE => {
                EsimChangeEvent::Park(attempt)
            }
            (_, Saw::Unknown) => return,
            (_, Saw::Installed) => EsimChangeEvent::Refused(attempt),
            (_, Saw::Kept | Saw::Possible | Saw::Denied) => EsimChangeEvent::NotDone {
                attempt,
                after_settling_delay: settled || !self.has(Safeguard::Settled),
            },
        };
        Self::record(state, event);
    }

    fn record(state: &mut State, event: EsimChangeEvent) {
        if let Ok(after) = state.row.after(event) {
            state.row = after;
        }
    }

    /// A call arrives at the provider. The response may be lost.
    fn arrive(state: &mut State, request: usize, answered: bool) {
        let arrived = state.requests.remove(request);
        let was_given_back = state.change == Change::GiveBack && state.effects > 0;
        if state.change == Change::Claim {
            state.claims += 1;
            state.claim_lost |= !answered;
        } else if !state.installed && !was_given_back {
            state.effects += 1;
            state.shown |= state.change != Change::ExtensionByDifference;
        }
        // "It was given back before" is no definite response.
        if answered && !was_given_back {
            let sender = Work::Sent(arrived.attempt);
            let done = state.effects > 0;
            if let Some(work) = state.provisioners.iter_mut().find(|work| **work == sender) {
                *work = Work::Answered {
                    attempt: arrived.attempt,
                    done,
                };
            }
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let begin = |change, asks| State {
            change,
            row: EsimChange::NEW,
            age: 0,
            read: [EsimChange::NEW; 2],
            provisioners: [Work::Idle; 2],
            requests: Vec::new(),
            installed: false,
            effects: 0,
            claims: 0,
            denied: false,
            claim_lost: false,
            shown: false,
            asks,
            faults: 1,
        };
        vec![
            begin(Change::GiveBack, 1),
            begin(Change::Claim, 0),
            begin(Change::ExactExtension, 0),
            begin(Change::ExtensionByDifference, 0),
        ]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let is_given_back = state.change == Change::GiveBack;
        if is_given_back && !state.installed && state.effects == 0 {
            actions.push(Action::Install);
        }
        if state.claims > 0 && state.effects == 0 && !state.denied {
            actions.push(Action::Decide { credited: true });
            actions.push(Action::Decide { credited: false });
        }
        if state.effects > 0 && !state.shown {
            actions.push(Action::Show);
        }
        if state.row.state == EsimChangeState::Refused && state.asks > 0 {
            actions.push(Action::Ask);
        }
        for by in 0..state.provisioners.len() {
            match state.provisioners[by] {
                Work::Idle if !state.row.state.is_over() => {
                    // Before an attempt of an extension nobody looks for an earlier one.
                    let is_looked_for = is_given_back
                        || state.change == Change::Claim
                        || state.row.state == EsimChangeState::Sending;
                    let certain = if state.shown && is_looked_for {
                        vec![Saw::Done]
                    } else if state.denied {
                        // Not every provider shows it.
                        vec![Saw::Denied, Saw::Possible]
                    } else if state.installed {
                        vec![Saw::Installed]
                    } else {
                        vec![Saw::Possible, Saw::Kept]
                    };
                    let all = certain.into_iter().chain([Saw::Unknown]);
                    actions.extend(all.map(|saw| Action::Look(by, saw)));
                }
                Work::Idle => {}
                Work::Looked { .. } => actions.push(Action::Act(by)),
                Work::Fresh { late, .. } => {
                    if !late || !self.has(Safeguard::Abandon) {
                        actions.push(Action::Send(by));
                    }
                    if late {
                        actions.push(Action::Abandon(by));
                    }
                }
                Work::Sent(_) => actions.push(Action::TimeOut(by)),
                Work::Answered { .. } => actions.push(Action::Record(by)),
            }
            if state.faults > 0 && state.provisioners[by] != Work::Idle {
                actions.push(Action::Crash(by));
            }
        }
        for request in 0..state.requests.len() {
            actions.push(Action::Vanish(request));
            for answered in [true, false] {
                actions.push(Action::Arrive { request, answered });
            }
        }
        actions.push(Action::Tick);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Install => state.installed = true,
            Action::Show => state.shown = true,
            Action::Decide { credited } => {
                state.effects += u8::from(credited);
                state.denied = !credited;
            }
            Action::Ask => {
                state.asks -= 1;
                Self::record(&mut state, EsimChangeEvent::Ask);
            }
            Action::Look(by, saw) => {
                state.read[by] = state.row;
                state.provisioners[by] = Work::Looked {
                    saw,
                    settled: state.age >= SETTLED,
                };
            }
            Action::Act(by) => self.act(&mut state, by),
            Action::Send(by) => {
                if let Work::Fresh { attempt, .. } = state.provisioners[by] {
                    state.provisioners[by] = Work::Sent(attempt);
                    state.requests.push(Request {
                        attempt,
                        old: false,
                    });
                }
            }
            Action::Abandon(by) => {
                if let Work::Fresh { attempt, .. } = state.provisioners[by] {
                    state.provisioners[by] = Work::Idle;
                    Self::record(&mut state, EsimChangeEvent::NotSent(attempt));
                }
            }
            Action::Arrive { request, answered } => Self::arrive(&mut state, request, answered),
            Action::Vanish(request) => drop(state.requests.remove(request)),
            Action::TimeOut(by) => {
                if let Work::Sent(attempt) = state.provisioners[by] {
                    state.provisioners[by] = Work::Idle;
                    if !self.has(Safeguard::Looked) {
                        Self::record(&mut state, EsimChangeEvent::Refused(attempt));
                    }
                }
            }
            Action::Record(by) => {
                if let Work::Answered { attempt, done } = state.provisioners[by] {
                    state.provisioners[by] = Work::Idle;
                    let event = if state.change == Change::Claim {
                        EsimChangeEvent::Claimed(attempt)
                    } else if done {
                        EsimChangeEvent::Done
                    } else {
                        EsimChangeEvent::Refused(attempt)
                    };
                    Self::record(&mut state, event);
                }
            }
            Action::Crash(by) => {
                state.faults -= 1;
                state.provisioners[by] = Work::Idle;
            }
            Action::Tick => {
                if state.requests.iter().any(|request| request.old) {
                    return None;
                }
                if state.row.state == EsimChangeState::Sending {
                    state.age = (state.age + 1).min(OVERDUE);
                }
                for request in &mut state.requests {
                    request.old = true;
                }
                for work in &mut state.provisioners {
                    if let Work::Fresh { late, .. } = work {
                        *late = true;
                    }
                }
            }
        }
        if state.row.state != EsimChangeState::Sending {
            state.age = 0;
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}
