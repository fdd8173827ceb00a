//! The search for a way of the protocol through a history.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use clap::ValueEnum;
use domain::PlacementState;
use stateright::Model;

use super::facts::{History, Row, Seen};
use crate::{
    Action, Protocol, Safeguard, Settings, State,
    actions::Does,
    state::{Answer, Delivery, SETTLED, Settlement, Work},
};

/// Crashes that a history may have.
const FAULTS: u8 = 2;
/// A history that is not decided after so many states is reported as undecided.
const MOST_STATES: usize = 1_000_000;

/// The safeguards without any one of which the history is possible.
pub fn missing(history: &History) -> Vec<String> {
    let without = Safeguard::value_variants()
        .iter()
        .filter(|safeguard| Search::of(history, Some(**safeguard)).decide() == Some(true));
    let name = |safeguard: &Safeguard| Some(safeguard.to_possible_value()?.get_name().to_owned());
    without.filter_map(name).collect()
}

pub struct Search<'a> {
    history: &'a History,
    protocol: Protocol,
}

/// A state, and the facts that have happened on the way to it.
type Place = (State, u32);

/// How a place follows another one.
#[derive(Clone, Copy)]
enum Step {
    Action(Action),
    /// Something was seen that changes nothing in the model.
    Seen(Seen),
}

impl<'a> Search<'a> {
    pub fn of(history: &'a History, without: Option<Safeguard>) -> Self {
        let settings = Settings {
            // One more than there were, because the model parks a placement after its last one.
            attempts: history.end.attempt + 1,
            faults: FAULTS + u8::from(history.seen.contains(&Seen::Posted)),
            providers: history.providers,
            detects_duplicates: history.detects_duplicates,
            without: without.into_iter().collect(),
            broken: if history.detects_duplicates {
                vec![crate::Assumption::PromptArrival]
            } else {
                Vec::new()
            },
            ..Settings::default()
        };
        let protocol = Protocol::new(settings, Arc::default());
        Self { history, protocol }
    }

    fn begin(&self) -> Place {
        (self.protocol.init_states().remove(0), 0)
    }

    /// Whether there is a way; `None` if the search was given up.
    pub fn decide(&self) -> Option<bool> {
        let mut open = vec![self.begin()];
        let mut known = HashSet::new();
        let mut next = Vec::new();
        while let Some(place) = open.pop() {
            if self.is_end(&place) {
                return Some(true);
            }
            if known.len() > MOST_STATES {
                return None;
            }
            self.next(&place, |_, place| next.push(place));
            // What leads to a fact is tried first.
            next.sort_by_key(|place: &Place| place.1.count_ones());
            open.extend(
                next.drain(..)
                    .filter(|place| known.insert(fingerprint(place))),
            );
        }
        Some(false)
    }

    /// The shortest way to as many facts as possible, and these facts.
    pub fn furthest(&self) -> (Vec<String>, u32) {
        let begin = self.begin();
        let mut known = HashSet::from([fingerprint(&begin)]);
        // How each place was reached.
        let mut ways: Vec<(usize, String)> = vec![(0, String::new())];
        let mut open = VecDeque::from([(0, begin)]);
        let mut best = (0, 0_u32);
        while let Some((way, place)) = open.pop_front() {
            if place.1.count_ones() > best.1.count_ones() {
                best = (way, place.1);
            }
            self.next(&place, |step, next| {
                if known.insert(fingerprint(&next)) {
                    let step = match step {
                        Step::Action(action) => format!("{action:?}"),
                        Step::Seen(seen) => seen.to_string(),
                    };
                    ways.push((way, step));
                    open.push_back((ways.len() - 1, next));
                }
            });
        }
        let (mut way, seen) = best;
        let mut steps = Vec::new();
        while way != 0 {
            let (from, step) = &ways[way];
            steps.push(step.clone());
            way = *from;
        }
        steps.reverse();
        (steps, seen)
    }

    /// Visits each place that follows.
    fn next(&self, (state, seen): &Place, mut visit: impl FnMut(Step, Place)) {
        // These change nothing in the model, so they are no steps of their own.
        for (observed, holds) in [
            (Seen::Taken, self.is_taken(state)),
            (Seen::Unsent, is_unsent(state)),
        ] {
            if holds && let Some(after) = self.history.happens(observed, *seen) {
                visit(Step::Seen(observed), (state.clone(), after));
            }
        }
        let mut actions = Vec::new();
        self.protocol.actions(state, &mut actions);
        for action in actions {
            if self.is_rejected_by_the_last(state, action) {
                continue;
            }
            let Some(next) = self.protocol.next_state(state, action) else {
                continue;
            };
            if next.rows[0].placement.attempt > self.history.end.attempt
                || !self.protocol.within_boundary(&next)
            {
                continue;
            }
            let step = Step::Action(action);
            match fact(state, action, &next) {
                None => visit(step, (next, *seen)),
                Some(fact) => {
                    if let Some(after) = self.history.happens(fact, *seen) {
                        visit(step, (next, after));
                    } else if self.history.is_hidden(fact, *seen) {
                        visit(step, (next, *seen));
                    }
                }
            }
        }
    }

    /// Whether the last of several providers rejects the option, which it never does.
    fn is_rejected_by_the_last(&self, state: &State, action: Action) -> bool {
        let last = self.history.providers - 1;
        let Action::Arrive { request, does, .. } = action else {
            return false;
        };
        does == Does::Reject && last > 0 && state.requests[request].provider == last
    }

    /// Whether a repeated POST may be told "already taken": once the order cannot be refused any
    /// more.
    fn is_taken(&self, state: &State) -> bool {
        let undecided = state.answering && !state.is_decided();
        state.is_stored()
            && !state.is_refused()
            && (!undecided || !self.protocol.has(Safeguard::Undecided))
    }

    fn is_end(&self, (state, seen): &Place) -> bool {
        let row = &state.rows[0];
        let end = self.history.end;
        let is_at_rest = row.is_settled()
            || (end.without_profile && row.placement.state == PlacementState::Placed)
            || !self.protocol.goes_on(state);
        *seen == self.history.all()
            && row.placement.state == end.placement
            && row.placement.attempt == end.attempt
            && (row.delivery == Delivery::Delivered) == end.delivered
            && is_at_rest
    }
}

/// Stands for a place among those that are known: millions of whole ones would need gigabytes.
fn fingerprint(place: &Place) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(place)
}

/// Whether SETTLE/2 has passed since the last attempt was recorded, and its purchase is not sent.
fn is_unsent(state: &State) -> bool {
    let attempt = state.rows[0].placement.attempt;
    let is =
        |work: &Work| matches!(work, Work::Fresh { job, late: true } if job.attempt == attempt);
    state.provisioners.iter().any(is)
}

/// The fact that an action is, if it is one.
fn fact(before: &State, action: Action, after: &State) -> Option<Seen> {
    let (old, new) = (&before.rows[0], &after.rows[0]);
    match action {
        Action::Store { waits } => return Some(Seen::Accepted { waits }),
        Action::AnswerBy => return Some(Seen::AnswerBy),
        Action::Answer => {
            return Some(match after.answer {
                Some(Answer::Refused) => Seen::Refused,
                _ => Seen::Created,
            });
        }
        Action::Arrive {
            does: Does::Buy { .. },
            request,
            ..
        } if new.bought > old.bought => {
            let provider = before.requests[request].provider;
            return Some(Seen::Bought { provider });
        }
        Action::Post { acknowledged: true } => return Some(Seen::Acknowledged),
        Action::Post { .. } => return Some(Seen::Posted),
        _ => {}
    }
    if new.delivery == Delivery::Delivered && old.delivery != Delivery::Delivered {
        return Some(Seen::Delivered);
    }
    let row = row(new);
    let is_by_look_up = |by: usize| {
        let work = before.provisioners[by];
        matches!(work, Work::Settling(_, Settlement::NotFound { .. }))
    };
    let early = matches!(action, Action::Record { by, .. } if is_by_look_up(by))
        && row.state == PlacementState::Accepted
        && old.age < SETTLED;
    (row != self::row(old)).then_some(Seen::Row(Row { early, ..row }))
}

fn row(row: &crate::state::Row) -> Row {
    Row {
        state: row.placement.state,
        attempt: row.placement.attempt,
        provider: row.provider,
        missing: row.placement.not_found && row.placement.state == PlacementState::Placing,
        early: false,
    }
}
