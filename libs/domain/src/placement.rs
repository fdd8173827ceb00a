//! The state machine of a placement, which is what prevents a second purchase.
//!
//! ```text
//! state      event              next state
//! accepted   claim              placing, with the number of the next attempt
//! accepted   refuse             refused
//! placing    bought             placed
//! placing    rejected           accepted, at the provider of the next pair; failed if there is none.
//!                               Nothing, once the attempt is in doubt
//! placing    not bought         accepted. Nothing, once the attempt is in doubt
//! placing    unknown            placing, and no other provider is asked any more
//! placing    not found, twice   accepted, if the second look-up was after the settling delay
//! placing    park, dispute      parked
//! placed     dispute            parked, and disputed
//! parked     bought             placed, unless it is disputed
//! parked     resolve            placed, failed or accepted, as the operator decides
//! failed     refuse             refused
//! any        bought, although   parked, and disputed
//!            nobody expects it
//! ```
//!
//! [`Placement::after`] is the specification. In production the statements of `libs/store` move the
//! rows; its test `machine` compares each statement with this function in every state. The model
//! checker in `tests/model` runs this function itself. The statements add one transition: a
//! purchase whose profiles have been missing for too long is recorded as placed and parked at once.
//!
//! Five rules prevent anything from being bought twice:
//!
//! - Only the process that recorded an attempt may send its purchase, and only after the record is
//!   committed. Where a proof shows that an identical request is the same purchase, another process
//!   may repeat it once the attempt is in doubt, which is a record, too: of an unknown outcome, or
//!   of a look-up that found nothing.
//! - Once it is in doubt, its first process is no longer believed that it bought nothing, because a
//!   repeat may buy it meanwhile. A look-up, the repeat or an operator decides.
//! - An attempt with an unknown outcome stays `placing` until a look-up decides. Only an attempt
//!   that certainly bought nothing goes back to `accepted`, where the next attempt can be recorded.
//! - A purchase that nobody expected any more is parked, because money was spent. An operator
//!   resolves it.
//! - Only a rejection leads to the next pair, which is another provider. Once the outcome of any
//!   attempt was unknown, no pair follows any more: the provider that may have the purchase is the
//!   only one that is asked for it.

use std::time::Duration;

use crate::PlacementState::{self, Accepted, Failed, Parked, Placed, Placing, Refused};

/// The columns of the row that the transitions depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    pub state: PlacementState,
    /// The number of the last recorded attempt; 0 before the first.
    pub attempt: u32,
    /// Something was recorded of this attempt that leaves it in doubt: an unknown outcome, or a
    /// look-up that found nothing. Another process may have sent it again since. It is false in
    /// every state but `placing`.
    pub doubted: bool,
    /// A look-up since the last attempt found no purchase. A second one may allow the next attempt.
    pub not_found: bool,
    /// The placement is parked although something is bought. Only an operator moves it; late and
    /// repeated outcomes do not.
    pub disputed: bool,
    /// How many pairs of provider and option may still follow the present one. It is 0 once
    /// something is bought, and after an outcome that left the purchase in doubt.
    pub alternatives: u32,
}

/// Something that happens to a placement. Events that concern an attempt carry its number, so that
/// a late event of an earlier attempt is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlacementEvent {
    /// A provisioner claims the placement to buy it, which records the next attempt.
    Claim,
    /// The provider has the purchase of this attempt. Its response or a look-up said so.
    Bought(u32),
    /// The provider rejected this attempt. It bought nothing, and a further attempt would be
    /// rejected, too. So the next pair follows, if there is one. It comes too late once the attempt
    /// is in doubt.
    Rejected(u32),
    /// This attempt certainly bought nothing, for example because the connection was refused. A
    /// further attempt may succeed. It comes too late once the attempt is in doubt.
    NotBought(u32),
    /// The outcome of this attempt is unknown, so only its provider may have the purchase.
    Unknown(u32),
    /// A look-up found no purchase.
    NotFound {
        /// The attempt that was looked up.
        attempt: u32,
        /// The look-up began after the settling delay, so the purchase can no longer arrive.
        after_settling_delay: bool,
    },
    /// Ingress answers the order with 422, or the order is cancelled. Only a placement that
    /// certainly bought nothing can be refused.
    Refuse,
    /// The outcome of this attempt stayed unknown for too long, so the placement waits for an
    /// operator.
    Park(u32),
    /// The provider's response contradicts what is stored, or the response or the row of this
    /// attempt cannot be read or stored. A retry would not help, so the placement waits for an
    /// operator.
    Dispute(u32),
    /// An operator resolves a parked placement.
    Resolve(Resolution),
}

/// How an operator resolves a parked placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// The provider has the purchase, so its profiles are collected.
    Bought,
    /// The provider does not have the purchase, or has refunded it, so its units fail.
    NotBought,
    /// The provider does not have the purchase, so a new attempt buys it.
    Retry,
}

/// The event came late or does not apply in this state, so nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacementEventIgnored;

impl Placement {
    /// A placement as ingress stores it.
    pub const NEW: Self = Self {
        state: Accepted,
        attempt: 0,
        doubted: false,
        not_found: false,
        disputed: false,
        alternatives: 0,
    };

    /// Returns the placement after `event`, or [`PlacementEventIgnored`] if the event changes
    /// nothing.
    pub fn after(self, event: PlacementEvent) -> Result<Self, PlacementEventIgnored> {
        let next = self.moved(event)?;
        Ok(Self {
            doubted: next.doubted && next.state == Placing,
            ..next
        })
    }

    /// As [`Self::after`], apart from a doubt that ends with the attempt.
    fn moved(self, event: PlacementEvent) -> Result<Self, PlacementEventIgnored> {
        let to = |state| Ok(Self { state, ..self });
        let current = |attempt| attempt == self.attempt;
        match (self.state, event) {
            (Accepted, PlacementEvent::Claim) => Ok(Self {
                state: Placing,
                attempt: self.attempt + 1,
                not_found: false,
                disputed: false,
                ..self
            }),
            (_, PlacementEvent::Bought(_)) if self.disputed => Err(PlacementEventIgnored),
            (Placing | Parked, PlacementEvent::Bought(attempt)) if current(attempt) => Ok(Self {
                state: Placed,
                alternatives: 0,
                ..self
            }),
            (Placed, PlacementEvent::Bought(attempt)) if current(attempt) => {
                Err(PlacementEventIgnored)
            }
            // A purchase that nobody expects in this state, or of another attempt. A later attempt
            // than the recorded one exists only if the database has lost the commit that recorded
            // it. Money was spent, so an operator must see it.
            (_, PlacementEvent::Bought(_)) => Ok(Self {
                state: Parked,
                disputed: true,
                alternatives: 0,
                ..self
            }),
            (Placing, PlacementEvent::Rejected(attempt)) if current(attempt) && !self.doubted => {
                match self.alternatives.checked_sub(1) {
                    Some(alternatives) => Ok(Self {
                        state: Accepted,
                        alternatives,
                        ..self
                    }),
                    None => to(Failed),
                }
            }
            (Placing, PlacementEvent::NotBought(attempt)) if current(attempt) && !self.doubted => {
                to(Accepted)
            }
            (Placing, PlacementEvent::Unknown(attempt)) if current(attempt) => Ok(Self {
                doubted: true,
                alternatives: 0,
                ..self
            }),
            (
                Placing,
                PlacementEvent::NotFound {
                    attempt,
                    after_settling_delay,
                },
            ) if current(attempt) => {
                let state = if after_settling_delay && self.not_found {
                    Accepted
                } else {
                    Placing
                };
                Ok(Self {
                    state,
                    doubted: true,
                    not_found: true,
                    alternatives: 0,
                    ..self
                })
            }
            (Accepted | Failed, PlacementEvent::Refuse) => to(Refused),
            // Only from `placing`. If the placement is `placed`, another look-up found the purchase
            // while this one gave up, and its result counts.
            (Placing, PlacementEvent::Park(attempt)) if current(attempt) => Ok(Self {
                state: Parked,
                alternatives: 0,
                ..self
            }),
            // `disputed` is only set if something is known to be bought. From `placing` nothing is
            // known to be bought, so a later response may still move the placement to `placed`.
            (Placing | Placed, PlacementEvent::Dispute(attempt)) if current(attempt) => Ok(Self {
                state: Parked,
                disputed: self.state == Placed,
                alternatives: 0,
                ..self
            }),
            (Parked, PlacementEvent::Resolve(resolution)) => {
                let state = match resolution {
                    Resolution::Bought => Placed,
                    Resolution::NotBought => Failed,
                    Resolution::Retry => Accepted,
                };
                Ok(Self {
                    state,
                    not_found: false,
                    disputed: false,
                    alternatives: 0,
                    ..self
                })
            }
            _ => Err(PlacementEventIgnored),
        }
    }
}

/// The delay before the profiles of a purchase are asked for again. It is half of the purchase's
/// age, between 1 s and 1 min, because a profile that has been missing for long will rarely come
/// within the next second. From the age `overdue` on it is `2 * overdue`, because the placement is
/// parked then and waits for an operator.
pub fn next_collect(age: Duration, overdue: Duration) -> Duration {
    if age >= overdue {
        return overdue * 2;
    }
    half_of(age, 1, 60)
}

/// The delay before the next look-up of an unknown outcome. It is half of the attempt's age,
/// between 2 s and 1 min.
pub fn next_look(age: Duration) -> Duration {
    half_of(age, 2, 60)
}

/// The delay before the next search of a list for an attempt that was not found there, so long
/// after it was recorded. It grows longer than that of [`next_look`], because a search costs
/// several calls, and a purchase that has arrived is nearly always found by the first ones.
pub fn next_search(age: Duration) -> Duration {
    half_of(age, 2, 300)
}

/// Half of an age, between these numbers of seconds.
fn half_of(age: Duration, least: u64, most: u64) -> Duration {
    (age / 2).clamp(Duration::from_secs(least), Duration::from_secs(most))
}

/// The delay before the next attempt, after an attempt that certainly bought nothing. It is 2 s
/// after the first attempt and doubles each time, up to 2 min.
pub fn next_attempt(attempt: u32) -> Duration {
    Duration::from_secs(1 << attempt.clamp(1, 8)).min(Duration::from_mins(2))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn placing(attempt: u32) -> Placement {
        Placement {
            state: Placing,
            attempt,
            ..Placement::NEW
        }
    }

    #[test]
    fn only_the_second_not_found_after_the_settling_delay_allows_another_attempt() {
        let [early, late] = [false, true].map(|after_settling_delay| PlacementEvent::NotFound {
            attempt: 1,
            after_settling_delay,
        });
        let once = placing(1).after(late).unwrap();
        assert_eq!(once.state, Placing);
        assert_eq!(once.after(early).unwrap().state, Placing);
        assert_eq!(once.after(late).unwrap().state, Accepted);
    }

    /// Another process may have sent the attempt again by then, and the provider may have sold it.
    #[test]
    fn of_an_attempt_in_doubt_nobody_is_believed_that_it_bought_nothing() {
        let unknown = placing(1).after(PlacementEvent::Unknown(1)).unwrap();
        let not_found = PlacementEvent::NotFound {
            attempt: 1,
            after_settling_delay: false,
        };
        let not_found = placing(1).after(not_found).unwrap();
        for doubted in [unknown, not_found] {
            for late in [PlacementEvent::Rejected(1), PlacementEvent::NotBought(1)] {
                assert_eq!(doubted.after(late), Err(PlacementEventIgnored));
            }
            let bought = doubted.after(PlacementEvent::Bought(1)).unwrap();
            assert_eq!((bought.state, bought.disputed), (Placed, false));
        }
    }

    #[test]
    fn a_refusal_and_an_attempt_exclude_each_other() {
        for attempt in [1, 2] {
            assert_eq!(
                placing(attempt).after(PlacementEvent::Refuse),
                Err(PlacementEventIgnored)
            );
        }
        let rejected = placing(1).after(PlacementEvent::Rejected(1)).unwrap();
        let not_sent = placing(1).after(PlacementEvent::NotBought(1)).unwrap();
        for certain in [Placement::NEW, rejected, not_sent] {
            let refused = certain.after(PlacementEvent::Refuse).unwrap();
            assert_eq!(refused.state, Refused);
            assert_eq!(
                refused.after(PlacementEvent::NotBought(1)),
                Err(PlacementEventIgnored)
            );
            assert_eq!(
                refused.after(PlacementEvent::Claim),
                Err(PlacementEventIgnored)
            );
        }
    }

    #[test]
    fn an_unexpected_purchase_is_parked_never_dropped() {
        for state in [Placing, Placed, Parked, Refused, Failed, Accepted] {
            let placement = Placement {
                state,
                ..placing(2)
            };
            let parked = placement.after(PlacementEvent::Bought(1)).unwrap();
            assert_eq!((parked.state, parked.disputed), (Parked, true), "{state:?}");
            let lost_attempt = placement.after(PlacementEvent::Bought(3)).unwrap();
            assert_eq!(lost_attempt, parked, "{state:?}");
            for repeated in [1, 2, 3] {
                assert_eq!(
                    parked.after(PlacementEvent::Bought(repeated)),
                    Err(PlacementEventIgnored),
                    "{state:?}"
                );
            }
        }
    }

    #[test]
    fn what_was_parked_for_want_of_an_answer_is_placed_by_the_answer() {
        let parked = placing(1).after(PlacementEvent::Park(1)).unwrap();
        assert_eq!(
            parked.after(PlacementEvent::Bought(1)).unwrap().state,
            Placed
        );
    }

    #[test]
    fn a_look_that_gives_up_late_does_not_hide_what_another_found() {
        let placed = placing(1).after(PlacementEvent::Bought(1)).unwrap();
        assert_eq!(
            placed.after(PlacementEvent::Park(1)),
            Err(PlacementEventIgnored)
        );
        let disputed = placed.after(PlacementEvent::Dispute(1)).unwrap();
        assert_eq!((disputed.state, disputed.disputed), (Parked, true));
    }

    #[test]
    fn only_what_is_parked_is_settled_by_an_operator() {
        for state in PlacementState::ALL {
            for disputed in [false, state == Parked] {
                let placement = Placement {
                    state,
                    disputed,
                    not_found: true,
                    ..placing(2)
                };
                for (resolution, state) in [
                    (Resolution::Bought, Placed),
                    (Resolution::NotBought, Failed),
                    (Resolution::Retry, Accepted),
                ] {
                    let settled = Placement {
                        state,
                        ..placing(2)
                    };
                    let expected = (placement.state == Parked).then_some(settled);
                    assert_eq!(
                        placement.after(PlacementEvent::Resolve(resolution)).ok(),
                        expected
                    );
                }
            }
        }
    }

    #[test]
    fn what_an_operator_lets_retry_is_a_new_attempt_and_its_old_one_stays_visible() {
        let parked = placing(2).after(PlacementEvent::Park(2)).unwrap();
        let retried = parked
            .after(PlacementEvent::Resolve(Resolution::Retry))
            .unwrap();
        assert_eq!(retried.after(PlacementEvent::Claim).unwrap().attempt, 3);
        let late = retried.after(PlacementEvent::Bought(2)).unwrap();
        assert_eq!((late.state, late.disputed), (Parked, true));
    }

    fn event() -> impl Strategy<Value = PlacementEvent> {
        let attempt = 0..4_u32;
        prop_oneof![
            Just(PlacementEvent::Claim),
            attempt.clone().prop_map(PlacementEvent::Bought),
            attempt.clone().prop_map(PlacementEvent::Rejected),
            attempt.clone().prop_map(PlacementEvent::NotBought),
            (attempt.clone(), any::<bool>()).prop_map(|(attempt, after_settling_delay)| {
                PlacementEvent::NotFound {
                    attempt,
                    after_settling_delay,
                }
            }),
            attempt.clone().prop_map(PlacementEvent::Unknown),
            attempt.clone().prop_map(PlacementEvent::Park),
            attempt.clone().prop_map(PlacementEvent::Dispute),
            Just(PlacementEvent::Refuse),
        ]
    }

    proptest! {
        /// Whatever events come in whatever order, a purchase is sent only from `accepted` and with
        /// a new attempt number, and a placement with a purchase at the provider stays `placed` or
        /// `parked`.
        #[test]
        fn nothing_bought_is_bought_again(events in proptest::collection::vec(event(), 1..40)) {
            let mut placement = Placement::NEW;
            for event in events {
                let Ok(next) = placement.after(event) else { continue };
                prop_assert!(next.attempt >= placement.attempt);
                if next.attempt > placement.attempt {
                    prop_assert_eq!((placement.state, event), (Accepted, PlacementEvent::Claim));
                }
                if matches!(placement.state, Placed | Parked) {
                    prop_assert!(matches!(next.state, Placed | Parked));
                }
                prop_assert!(!placement.disputed || next == placement);
                prop_assert!(!next.doubted || next.state == Placing);
                placement = next;
            }
        }
    }
}
