//! The protocol in the form that the checker needs, and the properties that it checks: the
//! promises, which hold in every state, and the states that must be reached at all.

use domain::PlacementState;
use stateright::{Model, Property};

use crate::{
    Promise,
    actions::Action,
    rules::Protocol,
    state::{Answer, Delivery, Ingress, Row, Second, State, Third, Turn},
};

/// A predicate over states.
type Condition = fn(&Protocol, &State) -> bool;

/// States that the protocol must reach. A model that never gets there would keep every promise
/// without proving anything.
pub const ENDS: [(&str, Condition); 11] = [
    ("an order is answered with 201 and delivered", |_, state| {
        state.answer == Some(Answer::Created)
            && state
                .rows
                .iter()
                .all(|row| row.delivery == Delivery::Delivered)
    }),
    (
        "an order is delivered that was never answered",
        |_, state| {
            state.answer.is_none()
                && matches!(state.ingress, Ingress::Crashed)
                && state
                    .rows
                    .iter()
                    .all(|row| row.delivery == Delivery::Delivered)
        },
    ),
    ("an order is answered with 422", |_, state| {
        state.answer == Some(Answer::Refused)
    }),
    ("a placement fails after the 201", |_, state| {
        state.answer == Some(Answer::Created) && state.any(PlacementState::Failed)
    }),
    ("a placement is parked", |_, state| {
        state.any(PlacementState::Parked)
    }),
    ("a second attempt is placed", |_, state| {
        let second =
            |row: &Row| row.placement.state == PlacementState::Placed && row.placement.attempt == 2;
        state.rows.iter().any(second)
    }),
    ("a webhook is sent before it is recorded", |_, state| {
        state
            .rows
            .iter()
            .any(|row| row.told && matches!(row.delivery, Delivery::Pending(_)))
    }),
    (
        "a placement that failed is refused after all",
        |_, state| {
            let rejected = |row: &Row| {
                row.placement.state == PlacementState::Refused && row.placement.attempt > 0
            };
            state.answer == Some(Answer::Refused) && state.rows.iter().all(rejected)
        },
    ),
    (
        "the id of a refused order is taken by another order",
        |_, state| state.second == Second::TakenByThird,
    ),
    ("ingress holds a readiness event", |_, state| {
        state.rows.iter().any(|row| row.held)
    }),
    (
        "ingress publishes a readiness event after the answer",
        |_, state| {
            let published = |row: &Row| row.event && row.delivery == Delivery::Pending(Turn::Young);
            state.answering
                && state.answer == Some(Answer::Created)
                && state.rows.iter().any(published)
        },
    ),
];

impl State {
    fn any(&self, state: PlacementState) -> bool {
        self.rows.iter().any(|row| row.placement.state == state)
    }
}

impl Protocol {
    /// Whether anything except a fault can still happen.
    pub(crate) fn goes_on(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        actions.into_iter().any(|action| {
            let lost = matches!(
                action,
                Action::LoseJob(_) | Action::LoseReport(_) | Action::LoseEvent(_)
            );
            !lost && self.next_state(state, action).is_some()
        })
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(
            self.settings.placements,
            self.settings.providers,
            self.settings.faults,
        )]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.offers(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.step(&mut state, action);
        self.tidy(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let promise: [Condition; 5] = [
            |_, state| state.rows.iter().all(|row| row.bought <= 1),
            |_, state| {
                state.answer != Some(Answer::Refused)
                    || state.rows.iter().all(|row| row.bought == 0)
            },
            |_, state| match state.second {
                Second::Asks | Second::FoundNone => true,
                Second::Taken => !state.is_refused(),
                Second::TakenByThird => state.third != Third::Refused,
            },
            |_, state| !state.overtaken,
            |protocol, state| state.rows.iter().all(Row::is_settled) || protocol.goes_on(state),
        ];
        let promises = Promise::ALL.into_iter().zip(promise);
        let promises = promises.map(|(promise, holds)| Property::always(promise.name(), holds));
        let ends = ENDS
            .into_iter()
            .map(|(name, end)| Property::sometimes(name, end));
        promises.chain(ends).collect()
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.requests.len() <= 3
    }
}
