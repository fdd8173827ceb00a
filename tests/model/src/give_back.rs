//! A model of the give-back of one delivered eSIM: two provisioners, a provider, and a customer who
//! may install the eSIM at any moment, with crashes and stalls at any step and calls that arrive
//! late or never.
//!
//! What the model has in common with the code is [`domain::esim_change::EsimChange::after`]. The steps
//! around it are those of the provisioner's module `after_delivery`. Time is logical, as in the
//! model of a purchase: one tick is half of the settling delay, and a call arrives within one tick
//! after its sender checked that it is not late.

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
/// The maximum number of attempts; afterwards the give-back is refused, as it is after
/// `PARK_AFTER`.
const ATTEMPTS: u32 = 2;

/// A rule of a give-back, without which a promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Safeguard {
    /// An attempt is recorded before the provider is called
    GiveBackRecorded,
    /// What an eSIM shows after an unknown outcome is believed only once SETTLE has passed
    GiveBackSettled,
    /// An unknown outcome is looked at, and not taken for a refusal
    GiveBackLooked,
    /// A process no longer sends an attempt once SETTLE/2 has passed since its claim
    GiveBackAbandon,
}

/// What must be true in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// A give-back that is called refused has not happened, and will not.
    RefusedStays,
    /// A give-back that is called done has happened.
    ReturnedIsTrue,
    /// In every final state the give-back is done, refused or parked.
    Ends,
}

/// What a look at the eSIM shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Saw {
    Returned,
    Installed,
    Returnable,
    /// The provider would not take it, although a call that is on its way may still succeed.
    Kept,
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
        returned: bool,
    },
}

/// A call on its way to the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Request {
    attempt: u32,
    old: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    row: EsimChange,
    /// The age of the attempt, in ticks.
    age: u8,
    /// The rows that the provisioners have read with their looks.
    read: [EsimChange; 2],
    provisioners: [Work; 2],
    requests: Vec<Request>,
    installed: bool,
    /// The provider has the eSIM back.
    returned: bool,
    /// How often the partner may still ask again, and how many processes may still die.
    asks: u8,
    faults: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The customer installs the eSIM.
    Install,
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

/// The give-back with these safeguards switched off.
pub struct Protocol {
    pub without: Vec<Safeguard>,
}

impl SmallModel for Protocol {
    type Safeguard = Safeguard;
    type Promise = Promise;
    const PROMISES: &'static [Promised<Self>] = &[
        Promised {
            promise: Promise::RefusedStays,
            name: "what is refused is not given back",
            is_kept: |_, state| !(state.row.state == EsimChangeState::Refused && state.returned),
        },
        Promised {
            promise: Promise::ReturnedIsTrue,
            name: "what is called given back is",
            is_kept: |_, state| state.row.state != EsimChangeState::Done || state.returned,
        },
        Promised {
            promise: Promise::Ends,
            name: "every give-back ends",
            is_kept: |protocol, state| state.row.state.is_over() || protocol.goes_on(state),
        },
    ];
    const ENDS: &'static [(&'static str, Condition<Self>)] = &[
        ("an eSIM is given back", |_, state| {
            state.row.state == EsimChangeState::Done
        }),
        ("a second attempt gives it back", |_, state| {
            state.row.state == EsimChangeState::Done && state.row.attempt == 2
        }),
        ("an installed eSIM is refused", |_, state| {
            state.row.state == EsimChangeState::Refused && state.installed
        }),
        ("an attempt is refused after it was sent", |_, state| {
            state.row.state == EsimChangeState::Refused && state.row.attempt > 0
        }),
        ("a give-back is parked", |_, state| {
            state.row.state == EsimChangeState::Parked
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
            let chance = matches!(action, Action::Install | Action::Ask | Action::Crash(_));
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
            (_, Saw::Returned) => EsimChangeEvent::Done,
            (EsimChangeState::Asked, Saw::Installed | Saw::Kept) => EsimChangeEvent::Refuse,
            (EsimChangeState::Asked, Saw::Returnable) if attempt >= ATTEMPTS => {
                EsimChangeEvent::Refuse
            }
            (EsimChangeState::Asked, Saw::Returnable) => {
                if !self.has(Safeguard::GiveBackRecorded) {
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
            (_, Saw::Unknown) if read.state == EsimChangeState::Sending && state.age >= OVERDUE => {
                EsimChangeEvent::Park(attempt)
            }
            (_, Saw::Unknown) => return,
            (_, Saw::Installed) => EsimChangeEvent::Refused(attempt),
            (_, Saw::Kept | Saw::Returnable) => EsimChangeEvent::NotDone {
                attempt,
                after_settling_delay: settled || !self.has(Safeguard::GiveBackSettled),
            },
        };
        Self::record(state, event);
    }

    fn record(state: &mut State, event: EsimChangeEvent) {
        if let Ok(after) = state.row.after(event) {
            state.row = after;
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            row: EsimChange::NEW,
            age: 0,
            read: [EsimChange::NEW; 2],
            provisioners: [Work::Idle; 2],
            requests: Vec::new(),
            installed: false,
            returned: false,
            asks: 1,
            faults: 1,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if !state.installed && !state.returned {
            actions.push(Action::Install);
        }
        if state.row.state == EsimChangeState::Refused && state.asks > 0 {
            actions.push(Action::Ask);
        }
        for by in 0..state.provisioners.len() {
            match state.provisioners[by] {
                Work::Idle if !state.row.state.is_over() => {
                    let certain = if state.returned {
                        vec![Saw::Returned]
                    } else if state.installed {
                        vec![Saw::Installed]
                    } else {
                        vec![Saw::Returnable, Saw::Kept]
                    };
                    let all = certain.into_iter().chain([Saw::Unknown]);
                    actions.extend(all.map(|saw| Action::Look(by, saw)));
                }
                Work::Idle => {}
                Work::Looked { .. } => actions.push(Action::Act(by)),
                Work::Fresh { late, .. } => {
                    if !late || !self.has(Safeguard::GiveBackAbandon) {
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
            Action::Arrive { request, answered } => {
                let arrived = state.requests.remove(request);
                let was_returned = state.returned;
                state.returned |= !state.installed;
                // "It was given back before" is no definite response.
                if answered && !was_returned {
                    let sender = Work::Sent(arrived.attempt);
                    let returned = state.returned;
                    if let Some(work) = state.provisioners.iter_mut().find(|work| **work == sender)
                    {
                        *work = Work::Answered {
                            attempt: arrived.attempt,
                            returned,
                        };
                    }
                }
            }
            Action::Vanish(request) => drop(state.requests.remove(request)),
            Action::TimeOut(by) => {
                if let Work::Sent(attempt) = state.provisioners[by] {
                    state.provisioners[by] = Work::Idle;
                    if !self.has(Safeguard::GiveBackLooked) {
                        Self::record(&mut state, EsimChangeEvent::Refused(attempt));
                    }
                }
            }
            Action::Record(by) => {
                if let Work::Answered { attempt, returned } = state.provisioners[by] {
                    state.provisioners[by] = Work::Idle;
                    let refused = EsimChangeEvent::Refused(attempt);
                    Self::record(
                        &mut state,
                        if returned {
                            EsimChangeEvent::Done
                        } else {
                            refused
                        },
                    );
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
