//! A model of three POSTs with one external id, each with an order and a purchase of its own. The
//! first order may be refused, which frees the id; a further POST is stored then and bought, while
//! another one still asks what became of the order that it found.
//!
//! The protocol of one order is that of the main model, without losses and crashes of provisioners:
//! a placement moves by [`domain::placement`], a job may come again at any time, and ingress
//! decides at any moment and either way. An ingress that dies answers nothing, and its order stands
//! from `answer_by` on.

use clap::ValueEnum;
use domain::PlacementState;
use domain::placement::{Placement, PlacementEvent};
use stateright::{Model, Property};

use crate::explore::{Condition, Promised, SmallModel, properties};

const POSTS: usize = 3;

/// A rule, without which a promise breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Safeguard {
    /// While an order stands, no other one with its external id is stored
    ExternalIdOnce,
    /// A POST is answered "already taken" only after the order can no longer be refused
    Undecided,
    /// It sees in one statement whether an order stands and whether it is decided
    OneStatement,
    /// An order is refused only if nothing of it is bought or being bought
    RefusalTransaction,
    /// An order is not refused after `answer_by`
    RefusalInTime,
    /// A job claims no placement of a refused order
    IdempotentClaim,
}

/// What must be true in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    NothingForRefused,
    /// Of all the orders with the id, at most one is bought, and once.
    IdOnce,
    TakenStands,
    /// In every final state each POST has its answer or never gets one, and whatever order stands
    /// is bought or has failed.
    Served,
}

/// How far a POST is. Orders have the numbers of their POSTs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Post {
    /// Its order is to be stored.
    Sent,
    /// An order with its id was in the way; it asks about that.
    Asks,
    /// The first of two statements found no order that stands. This is only possible without the
    /// safeguard that makes them one.
    FoundNone,
    /// Its order is stored, and ingress waits for verdicts.
    Waits,
    /// Ingress has decided on 201.
    Stands,
    /// The order is refused.
    Refusing,
    Created,
    Refused,
    /// It was told "already taken" because of this order.
    Taken(usize),
    /// It gets no answer.
    Gone,
}

/// What a provisioner has in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    Idle,
    Claimed,
    Bought,
    Rejected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Order {
    pub placement: Placement,
    pub refused: bool,
    /// `answer_by` has passed.
    pub late: bool,
    pub work: Work,
    pub bought: u8,
}

impl Order {
    /// Whether it can no longer be refused, as another POST finds.
    fn is_decided(&self) -> bool {
        use PlacementState::{Parked, Placed};
        self.late || matches!(self.placement.state, Placed | Parked)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub posts: [Post; POSTS],
    pub orders: [Option<Order>; POSTS],
}

impl State {
    /// The order that stands with the id.
    fn standing(&self) -> Option<(usize, Order)> {
        let orders = self.orders.iter().enumerate();
        let mut standing = orders.filter_map(|(number, order)| Some((number, (*order)?)));
        standing.find(|(_, order)| !order.refused)
    }

    fn is_bought(&self, number: usize) -> bool {
        self.orders[number].is_some_and(|order| order.bought > 0)
    }

    fn is_served(&self) -> bool {
        use PlacementState::{Failed, Parked, Placed};
        use Post::{Created, Gone, Refused, Taken};
        let mut posts = self.posts.iter();
        let mut orders = self.orders.iter().flatten();
        posts.all(|post| matches!(post, Created | Refused | Taken(_) | Gone))
            && orders.all(|order| {
                order.refused || matches!(order.placement.state, Placed | Failed | Parked)
            })
    }
}

/// One step of the POST, or the order, with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Store(usize),
    /// An order with the id is in its way.
    Conflict(usize),
    /// No order stands any more, so it is to be stored after all.
    Again(usize),
    FindNone(usize),
    Tell(usize),
    Decide {
        of: usize,
        refuses: bool,
    },
    Answer(usize),
    GiveUp(usize),
    AnswerBy(usize),
    Claim(usize),
    Buy(usize),
    Reject(usize),
    Record(usize),
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
            promise: Promise::NothingForRefused,
            name: "nothing is bought for an order answered with 422",
            is_kept: |_, state| {
                let mut posts = state.posts.iter().enumerate();
                posts.all(|(number, post)| *post != Post::Refused || !state.is_bought(number))
            },
        },
        Promised {
            promise: Promise::IdOnce,
            name: "an external id is bought once",
            is_kept: |_, state| {
                let bought = state.orders.iter().flatten().map(|order| order.bought);
                bought.sum::<u8>() <= 1
            },
        },
        Promised {
            promise: Promise::TakenStands,
            name: "what is already taken is never refused",
            is_kept: |_, state| {
                state.posts.iter().all(|post| match post {
                    Post::Taken(of) => state.orders[*of].is_some_and(|order| !order.refused),
                    _ => true,
                })
            },
        },
        Promised {
            promise: Promise::Served,
            name: "an order that stands is bought or fails",
            is_kept: |protocol, state| state.is_served() || protocol.goes_on(state),
        },
    ];
    const ENDS: &'static [(&'static str, Condition<Self>)] = &[
        (
            "the first order is refused, the third one is bought, and the second POST is told of it",
            |_, state| {
                state.posts == [Post::Refused, Post::Taken(2), Post::Created] && state.is_bought(2)
            },
        ),
        (
            "two orders are refused, and the one between them is bought",
            |_, state| {
                state.posts == [Post::Refused, Post::Created, Post::Refused] && state.is_bought(1)
            },
        ),
        (
            "an order that ingress gave up is bought, and the others are told of it",
            |_, state| {
                state.posts == [Post::Gone, Post::Taken(0), Post::Taken(0)] && state.is_bought(0)
            },
        ),
        ("an order fails after its 201", |_, state| {
            let has_failed = |order: Order| order.placement.state == PlacementState::Failed;
            state.posts[0] == Post::Created && state.orders[0].is_some_and(has_failed)
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

    /// What a POST, or the ingress that has it, can do.
    fn asks(&self, state: &State, number: usize, actions: &mut Vec<Action>) {
        let standing = state.standing();
        match state.posts[number] {
            // POSTs that were not sent yet are all alike.
            Post::Sent if number > 0 && state.posts[number - 1] == Post::Sent => {}
            Post::Sent => {
                if standing.is_some() {
                    actions.push(Action::Conflict(number));
                }
                if standing.is_none() || !self.has(Safeguard::ExternalIdOnce) {
                    actions.push(Action::Store(number));
                }
            }
            Post::Asks => match standing {
                Some((_, order)) if order.is_decided() || !self.has(Safeguard::Undecided) => {
                    actions.push(Action::Tell(number));
                }
                Some(_) => {}
                None => {
                    actions.push(Action::Again(number));
                    if !self.has(Safeguard::OneStatement) {
                        actions.push(Action::FindNone(number));
                    }
                }
            },
            // The second of two statements only asks whether any order has the id.
            Post::FoundNone if standing.is_some() => actions.push(Action::Tell(number)),
            Post::FoundNone => actions.push(Action::Again(number)),
            Post::Waits => {
                let decide = |refuses| Action::Decide {
                    of: number,
                    refuses,
                };
                actions.extend([true, false].map(decide));
                actions.push(Action::GiveUp(number));
            }
            Post::Stands => {
                if state.orders[number].is_some_and(|order| !order.late) {
                    actions.push(Action::Answer(number));
                }
                actions.push(Action::GiveUp(number));
            }
            Post::Refusing => actions.extend([Action::Answer(number), Action::GiveUp(number)]),
            Post::Created | Post::Refused | Post::Taken(_) | Post::Gone => {}
        }
    }

    /// What a provisioner and the clock can do with an order.
    fn buys(&self, order: Order, number: usize, actions: &mut Vec<Action>) {
        let is_accepted = order.placement.state == PlacementState::Accepted;
        match order.work {
            Work::Idle if order.placement.attempt > 0 => {}
            Work::Idle if is_accepted || !self.has(Safeguard::IdempotentClaim) => {
                actions.push(Action::Claim(number));
            }
            Work::Idle => {}
            Work::Claimed => actions.extend([Action::Buy(number), Action::Reject(number)]),
            Work::Bought | Work::Rejected => actions.push(Action::Record(number)),
        }
        if !order.late {
            actions.push(Action::AnswerBy(number));
        }
    }

    fn move_order(&self, order: &mut Order, action: Action) {
        let after = |placement: Placement, event| placement.after(event).unwrap_or(placement);
        match action {
            Action::AnswerBy(_) => order.late = true,
            Action::Claim(_) => {
                if !self.has(Safeguard::IdempotentClaim) {
                    order.placement.state = PlacementState::Accepted;
                }
                order.placement = after(order.placement, PlacementEvent::Claim);
                order.work = Work::Claimed;
            }
            Action::Buy(_) => {
                order.bought += 1;
                order.work = Work::Bought;
            }
            Action::Reject(_) => order.work = Work::Rejected,
            _ => {
                let attempt = order.placement.attempt;
                let event = if order.work == Work::Bought {
                    PlacementEvent::Bought(attempt)
                } else {
                    PlacementEvent::Rejected(attempt)
                };
                order.placement = after(order.placement, event);
                order.work = Work::Idle;
            }
        }
    }

    /// Refuses the order if that is allowed, and says whether it did.
    fn refuses(&self, order: &mut Order) -> bool {
        if order.late && self.has(Safeguard::RefusalInTime) {
            return false;
        }
        match order.placement.after(PlacementEvent::Refuse) {
            Ok(placement) => order.placement = placement,
            Err(_) if self.has(Safeguard::RefusalTransaction) => return false,
            Err(_) => {}
        }
        order.refused = true;
        true
    }

    fn goes_on(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        actions
            .into_iter()
            .any(|action| self.next_state(state, action).is_some())
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            posts: [Post::Sent; POSTS],
            orders: [None; POSTS],
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for number in 0..POSTS {
            self.asks(state, number, actions);
            if let Some(order) = state.orders[number] {
                self.buys(order, number, actions);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Store(number) => {
                state.posts[number] = Post::Waits;
                state.orders[number] = Some(Order {
                    placement: Placement::NEW,
                    refused: false,
                    late: false,
                    work: Work::Idle,
                    bought: 0,
                });
            }
            Action::Conflict(number) => state.posts[number] = Post::Asks,
            Action::Again(number) => state.posts[number] = Post::Sent,
            Action::FindNone(number) => state.posts[number] = Post::FoundNone,
            Action::Tell(number) => state.posts[number] = Post::Taken(state.standing()?.0),
            Action::Decide { of, refuses } => {
                let is_refused = refuses && self.refuses(state.orders[of].as_mut()?);
                state.posts[of] = if is_refused {
                    Post::Refusing
                } else {
                    Post::Stands
                };
            }
            Action::Answer(number) => {
                state.posts[number] = if state.posts[number] == Post::Refusing {
                    Post::Refused
                } else {
                    Post::Created
                };
            }
            Action::GiveUp(number) => state.posts[number] = Post::Gone,
            Action::AnswerBy(number)
            | Action::Claim(number)
            | Action::Buy(number)
            | Action::Reject(number)
            | Action::Record(number) => self.move_order(state.orders[number].as_mut()?, action),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties()
    }
}
