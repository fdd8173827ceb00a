//! A model of PostgreSQL's log around one order of one unit that waits for a verdict. Some of its
//! commits return before the log is on disk: the order itself, the settlement, and the record of
//! the webhook. PostgreSQL may crash at any moment. It keeps a prefix of the commits that contains
//! every flushed one, while the processes go on with what they remember.
//!
//! The other models ask what happens between two processes and take each commit as lasting. This
//! one asks which commits must last before something leaves that rests on them.

use clap::ValueEnum;
use stateright::{Model, Property};

use crate::explore::{Condition, Promised, SmallModel, properties};

/// The crashes of PostgreSQL, and the times that a provisioner dies, in one run.
const FAULTS: u8 = 2;
/// The maximum number of attempts of the purchase.
const ATTEMPTS: u8 = 2;

/// A rule without which a promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Safeguard {
    /// A crash keeps the commits in the order of the log, so what is flushed covers what came
    /// before
    LogOrder,
    /// The claim is flushed before the purchase is sent
    FlushClaim,
    /// An answer without the verdict "placed" flushes the log first
    FlushAnswer,
    /// An order that is gone at that moment gets no 201
    LostOrder,
    /// A settlement without a flush is only for providers whose look-up proves a purchase
    FlushSettlement,
    /// It is only for purchases of which a look-up brings the same units again
    SameUnits,
}

/// What must be true in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// An order that was answered with 201 is stored.
    AnswerStands,
    /// An order that the partner was shown is stored.
    ShownStands,
    /// What was bought belongs to a stored order.
    BoughtIsKnown,
    /// Nothing is bought twice.
    BoughtOnce,
    /// Each webhook of the unit says the same.
    ToldTheSame,
    /// In every final state a stored order is delivered.
    NothingLost,
}

/// A commit in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Commit {
    Order,
    /// An attempt of the purchase.
    Claim,
    /// The unit got this eSIM of the provider.
    Settlement(u8),
    /// The webhook was acknowledged.
    Delivered,
    /// Nothing is known of an attempt whose look-up finds nothing; an operator has to look.
    Parked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ingress {
    Checking,
    Waiting,
    Answered,
    /// It has answered 500.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provisioner {
    Idle,
    /// Has recorded an attempt that it has not sent.
    Claimed,
    /// The provider named this eSIM.
    Bought(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// What a reader sees, and whether it is on disk.
    pub log: Vec<(Commit, bool)>,
    pub ingress: Ingress,
    /// The verdict "placed" is on its way to ingress.
    pub placed: bool,
    pub provisioner: Provisioner,
    /// The number of purchases at the provider.
    pub bought: u8,
    /// The partner was shown the order.
    pub shown: bool,
    /// The eSIMs of the webhooks that the partner got.
    pub told: Vec<u8>,
    pub faults: u8,
}

impl State {
    fn has(&self, commit: Commit) -> bool {
        self.log.iter().any(|(one, _)| *one == commit)
    }

    fn esim(&self) -> Option<u8> {
        self.log.iter().find_map(|(commit, _)| match commit {
            Commit::Settlement(esim) => Some(*esim),
            _ => None,
        })
    }

    fn attempts(&self) -> usize {
        let claims = self.log.iter().filter(|(one, _)| *one == Commit::Claim);
        claims.count()
    }

    fn flush(&mut self) {
        for (_, flushed) in &mut self.log {
            *flushed = true;
        }
    }

    /// The number of commits that a crash keeps in any case.
    fn kept(&self) -> usize {
        let last = self.log.iter().rposition(|(_, flushed)| *flushed);
        last.map_or(0, |last| last + 1)
    }

    /// What is left to do for the purchase of a stored order.
    fn is_open(&self) -> bool {
        self.has(Commit::Order) && self.esim().is_none() && !self.has(Commit::Parked)
    }
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Store,
    /// The server flushes by itself, or for another commit.
    Flush,
    /// Ingress answers 201 because of the verdict.
    AnswerPlaced,
    /// The wait for the verdict ends without it.
    AnswerLate,
    /// The partner looks the order up.
    Show,
    Claim,
    Buy,
    Settle,
    /// A look-up of an attempt whose outcome is not recorded finds this eSIM, or nothing.
    LookUp(Option<u8>),
    /// The notifier sends the webhook.
    Tell,
    RecordDelivery,
    CrashProvisioner,
    /// PostgreSQL crashes and keeps that many commits.
    Crash {
        kept: usize,
    },
    /// It loses this commit and keeps later ones. Only possible without the order of the log.
    Lose(usize),
}

/// The protocol with these safeguards switched off.
pub struct Protocol {
    without: Vec<Safeguard>,
}

impl SmallModel for Protocol {
    type Safeguard = Safeguard;
    type Promise = Promise;
    const PROMISES: &'static [Promised<Self>] = &[
        Promised {
            promise: Promise::BoughtIsKnown,
            name: "what was bought belongs to a stored order",
            is_kept: |_, state| {
                state.bought == 0 || (state.has(Commit::Order) && state.attempts() > 0)
            },
        },
        Promised {
            promise: Promise::BoughtOnce,
            name: "nothing is bought twice",
            is_kept: |_, state| state.bought <= 1,
        },
        Promised {
            promise: Promise::AnswerStands,
            name: "an order that was answered with 201 is stored",
            is_kept: |_, state| state.ingress != Ingress::Answered || state.has(Commit::Order),
        },
        Promised {
            promise: Promise::ShownStands,
            name: "an order that was shown is stored",
            is_kept: |_, state| !state.shown || state.has(Commit::Order),
        },
        Promised {
            promise: Promise::ToldTheSame,
            name: "each webhook of a unit says the same",
            is_kept: |_, state| state.told.windows(2).all(|pair| pair[0] == pair[1]),
        },
        Promised {
            promise: Promise::NothingLost,
            name: "a stored order is delivered",
            is_kept: |protocol, state| {
                let is_delivered = state.has(Commit::Delivered);
                // An operator looks at what is parked, but what the partner was told must come
                // true.
                let is_parked = state.has(Commit::Parked) && state.told.is_empty();
                let is_gone = !state.has(Commit::Order);
                is_delivered || is_parked || is_gone || protocol.goes_on(state)
            },
        },
    ];
    const ENDS: &'static [(&'static str, Condition<Self>)] = &[
        ("an order is lost that nobody was told of", |_, state| {
            state.ingress == Ingress::Failed && state.log.is_empty()
        }),
        ("an order is answered and delivered", |_, state| {
            state.ingress == Ingress::Answered && state.has(Commit::Delivered)
        }),
        (
            "a settlement is lost after the webhook, and repeated",
            |_, state| state.told.len() == 2 && state.has(Commit::Delivered),
        ),
        ("an order is answered late and flushed", |_, state| {
            state.ingress == Ingress::Answered
                && !state.placed
                && state.log == [(Commit::Order, true)]
        }),
        ("a second attempt is made", |_, state| state.attempts() == 2),
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
            let is_fault = matches!(
                action,
                Action::Crash { .. } | Action::Lose(_) | Action::CrashProvisioner
            );
            !is_fault && self.next_state(state, action).is_some()
        })
    }

    /// What a provisioner may do for a row that it finds: first by the message, later as due work.
    fn claims(&self, state: &State, actions: &mut Vec<Action>) {
        if state.attempts() == 0 {
            actions.push(Action::Claim);
            return;
        }
        if state.bought > 0 {
            actions.push(Action::LookUp(Some(0)));
            if !self.has(Safeguard::SameUnits) {
                actions.push(Action::LookUp(Some(1)));
            }
            if !self.has(Safeguard::FlushSettlement) {
                actions.push(Action::LookUp(None));
            }
        } else if state.attempts() < ATTEMPTS.into() {
            // Two look-ups have found nothing.
            actions.push(Action::Claim);
        } else {
            actions.push(Action::LookUp(None));
        }
    }

    fn crash(state: &mut State, action: Action) {
        state.faults -= 1;
        match action {
            Action::Crash { kept } => state.log.truncate(kept),
            Action::Lose(index) => drop(state.log.remove(index)),
            _ => {}
        }
        state.flush();
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            log: Vec::new(),
            ingress: Ingress::Checking,
            placed: false,
            provisioner: Provisioner::Idle,
            bought: 0,
            shown: false,
            told: Vec::new(),
            faults: FAULTS,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        match state.ingress {
            Ingress::Checking => actions.push(Action::Store),
            Ingress::Waiting => {
                if state.placed {
                    actions.push(Action::AnswerPlaced);
                }
                actions.push(Action::AnswerLate);
            }
            Ingress::Answered | Ingress::Failed => {}
        }
        if state.kept() < state.log.len() {
            actions.push(Action::Flush);
        }
        if state.has(Commit::Order) && !state.shown {
            actions.push(Action::Show);
        }
        match state.provisioner {
            Provisioner::Idle if state.is_open() => self.claims(state, actions),
            Provisioner::Idle => {}
            Provisioner::Claimed => actions.push(Action::Buy),
            Provisioner::Bought(_) => actions.push(Action::Settle),
        }
        if state.esim().is_some() && !state.has(Commit::Delivered) {
            actions.push(Action::Tell);
            if !state.told.is_empty() {
                actions.push(Action::RecordDelivery);
            }
        }
        if state.faults > 0 {
            if state.provisioner != Provisioner::Idle {
                actions.push(Action::CrashProvisioner);
            }
            for kept in state.kept()..state.log.len() {
                actions.push(Action::Crash { kept });
            }
            for (index, (_, flushed)) in state.log.iter().enumerate() {
                if !flushed && !self.has(Safeguard::LogOrder) {
                    actions.push(Action::Lose(index));
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Store => {
                state.log.push((Commit::Order, false));
                state.ingress = Ingress::Waiting;
            }
            Action::Flush => state.flush(),
            Action::AnswerPlaced => state.ingress = Ingress::Answered,
            Action::AnswerLate => {
                let stored = state.has(Commit::Order) || !self.has(Safeguard::LostOrder);
                if self.has(Safeguard::FlushAnswer) {
                    state.flush();
                }
                state.ingress = if stored {
                    Ingress::Answered
                } else {
                    Ingress::Failed
                };
            }
            Action::Show => {
                // What is read is told after a flush: `store::Unflushed` leaves no other way.
                state.flush();
                state.shown = true;
            }
            Action::Claim => {
                state
                    .log
                    .push((Commit::Claim, self.has(Safeguard::FlushClaim)));
                if self.has(Safeguard::FlushClaim) && self.has(Safeguard::LogOrder) {
                    state.flush();
                }
                state.provisioner = Provisioner::Claimed;
            }
            Action::Buy => {
                state.provisioner = Provisioner::Bought(state.bought);
                state.bought += 1;
                state.placed = true;
            }
            Action::Settle => {
                let Provisioner::Bought(esim) = state.provisioner else {
                    return None;
                };
                state.provisioner = Provisioner::Idle;
                // Only the attempt that is recorded can be settled.
                if state.is_open() && state.has(Commit::Claim) {
                    state.log.push((Commit::Settlement(esim), false));
                }
            }
            Action::LookUp(Some(esim)) => state.provisioner = Provisioner::Bought(esim),
            Action::LookUp(None) => {
                state.log.push((Commit::Parked, false));
                state.flush();
            }
            Action::Tell => {
                // A third webhook would show nothing that two do not.
                if state.told.len() == 2 {
                    return None;
                }
                state.told.extend(state.esim());
            }
            Action::RecordDelivery => state.log.push((Commit::Delivered, false)),
            Action::CrashProvisioner => {
                state.faults -= 1;
                state.provisioner = Provisioner::Idle;
            }
            Action::Crash { .. } | Action::Lose(_) => Self::crash(&mut state, action),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}
