//! The state machine of a give-back: a delivered eSIM that nobody has installed goes back to its
//! provider.
//!
//! ```text
//! state      event                       next state
//! asked      begin                       sending, with the number of the next attempt
//! asked      refuse                      refused
//! sending    refused, of this attempt    refused
//! sending    installed                   refused
//! sending    not sent, of this attempt   asked
//! sending    not returned, twice         asked, if the second look was after the settling delay
//! sending    park                        parked
//! refused    ask                         asked
//! parked     resolve                     returned or refused, as the operator decides
//! any but    returned                    returned
//! returned
//! ```
//!
//! `refused` tells the partner that the eSIM is still good, and `returned` that nobody can use it
//! and that its price comes back. Both must be true at the provider, now and later. So three rules
//! hold:
//!
//! - The attempt is recorded before the call. While it is `sending`, the call may still be carried
//!   out, so a look that finds the eSIM in its place does not refuse the give-back.
//! - Only a look after the settling delay shows that the call is no longer carried out, and it
//!   must be the second one that says so.
//! - An eSIM that is installed cannot be given back, so a call that is still on its way has no
//!   effect on it. That is the provider's rule, and the only thing that we take from it.
//!
//! The statements of `libs/store` read the row, call [`GiveBack::after`] and write the row in one
//! transaction. The model checker in `tests/model` runs the same function.

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr};

use crate::states::UnknownName;

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = unknown)]
pub enum GiveBackState {
    /// The eSIM is certainly not given back, and nothing is on its way to the provider.
    Asked,
    /// An attempt is recorded, and its outcome is not known yet.
    Sending,
    /// The provider has the eSIM back.
    Returned,
    /// The eSIM is not given back and stays with the partner.
    Refused,
    /// The outcome stayed unknown, so the give-back waits for an operator.
    Parked,
}

fn unknown(name: &str) -> UnknownName {
    UnknownName(name.to_owned(), "state of a give-back")
}

impl GiveBackState {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether it is final: nothing more happens to it by itself.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Returned | Self::Refused | Self::Parked)
    }
}

/// The columns of the row that the transitions depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GiveBack {
    pub state: GiveBackState,
    /// The number of the last recorded attempt; 0 before the first.
    pub attempt: u32,
    /// A look since the last attempt has found that the eSIM is not given back.
    pub not_returned: bool,
}

/// Something that happens to a give-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GiveBackEvent {
    /// The partner asks again after a refusal.
    Ask,
    /// A provisioner begins the next attempt, because the provider says that it would take the
    /// eSIM.
    Begin,
    /// It cannot be given back, and no attempt is open: the provider would not take the eSIM.
    Refuse,
    /// The provider has the eSIM back. Its response, a look or an operator said so.
    Returned,
    /// The provider refused this attempt.
    Refused(u32),
    /// A look after this attempt shows that the eSIM is installed.
    Installed(u32),
    /// The provider certainly never received this attempt, or did not carry it out.
    NotSent(u32),
    /// A look after this attempt shows that the eSIM is not given back.
    NotReturned {
        attempt: u32,
        /// The look began after the settling delay, so the call can no longer be carried out.
        after_settling_delay: bool,
    },
    /// The outcome of this attempt stayed unknown for too long.
    Park(u32),
    /// An operator has found out that the provider does not have the eSIM back.
    NotGivenBack,
}

/// The event came late or does not apply in this state, so nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GiveBackEventIgnored;

impl GiveBack {
    /// A give-back as the partner asks for it.
    pub const NEW: Self = Self {
        state: GiveBackState::Asked,
        attempt: 0,
        not_returned: false,
    };

    /// Returns the give-back after `event`, or [`GiveBackEventIgnored`] if the event changes
    /// nothing.
    pub fn after(self, event: GiveBackEvent) -> Result<Self, GiveBackEventIgnored> {
        use GiveBackState::{Asked, Parked, Refused, Returned, Sending};
        let to = |state| Ok(Self { state, ..self });
        let current = |attempt| attempt == self.attempt;
        match (self.state, event) {
            // The attempts are counted on, so that a late event of an attempt before the refusal is
            // still recognised.
            (Refused, GiveBackEvent::Ask) => Ok(Self {
                state: Asked,
                not_returned: false,
                ..self
            }),
            (Asked, GiveBackEvent::Begin) => Ok(Self {
                state: Sending,
                attempt: self.attempt + 1,
                not_returned: false,
            }),
            (Asked, GiveBackEvent::Refuse) | (Parked, GiveBackEvent::NotGivenBack) => to(Refused),
            (Asked | Sending | Refused | Parked, GiveBackEvent::Returned) => to(Returned),
            (Sending, GiveBackEvent::Refused(attempt) | GiveBackEvent::Installed(attempt))
                if current(attempt) =>
            {
                to(Refused)
            }
            (Sending, GiveBackEvent::NotSent(attempt)) if current(attempt) => to(Asked),
            (
                Sending,
                GiveBackEvent::NotReturned {
                    attempt,
                    after_settling_delay,
                },
            ) if current(attempt) => {
                if self.not_returned && after_settling_delay {
                    to(Asked)
                } else if self.not_returned {
                    Err(GiveBackEventIgnored)
                } else {
                    Ok(Self {
                        not_returned: true,
                        ..self
                    })
                }
            }
            (Sending, GiveBackEvent::Park(attempt)) if current(attempt) => to(Parked),
            _ => Err(GiveBackEventIgnored),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDING: GiveBack = GiveBack {
        state: GiveBackState::Sending,
        attempt: 2,
        not_returned: false,
    };

    #[test]
    fn names_round_trip() {
        for state in [
            GiveBackState::Asked,
            GiveBackState::Sending,
            GiveBackState::Returned,
            GiveBackState::Refused,
            GiveBackState::Parked,
        ] {
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        assert!("gone".parse::<GiveBackState>().is_err());
    }

    #[test]
    fn what_may_be_on_its_way_is_not_refused_because_of_a_look() {
        assert_eq!(
            SENDING.after(GiveBackEvent::Refuse),
            Err(GiveBackEventIgnored)
        );
        let look = |after_settling_delay| GiveBackEvent::NotReturned {
            attempt: 2,
            after_settling_delay,
        };
        let once = SENDING.after(look(true)).unwrap();
        assert_eq!((once.state, once.not_returned), (SENDING.state, true));
        assert_eq!(once.after(look(false)), Err(GiveBackEventIgnored));
        assert_eq!(once.after(look(true)).unwrap().state, GiveBackState::Asked);
    }

    #[test]
    fn an_event_of_an_earlier_attempt_changes_nothing() {
        for event in [
            GiveBackEvent::Refused(1),
            GiveBackEvent::Installed(1),
            GiveBackEvent::NotSent(1),
            GiveBackEvent::Park(1),
            GiveBackEvent::NotReturned {
                attempt: 1,
                after_settling_delay: true,
            },
        ] {
            assert_eq!(SENDING.after(event), Err(GiveBackEventIgnored), "{event:?}");
        }
    }

    #[test]
    fn what_is_returned_stays_returned() {
        let returned = SENDING.after(GiveBackEvent::Returned).unwrap();
        assert_eq!(returned.state, GiveBackState::Returned);
        for event in [
            GiveBackEvent::Ask,
            GiveBackEvent::Begin,
            GiveBackEvent::Refuse,
            GiveBackEvent::Refused(2),
            GiveBackEvent::NotSent(2),
            GiveBackEvent::Park(2),
            GiveBackEvent::NotGivenBack,
            GiveBackEvent::Returned,
        ] {
            assert_eq!(
                returned.after(event),
                Err(GiveBackEventIgnored),
                "{event:?}"
            );
        }
    }

    #[test]
    fn attempts_are_counted_on_after_a_refusal() {
        let refused = SENDING.after(GiveBackEvent::Refused(2)).unwrap();
        let again = refused
            .after(GiveBackEvent::Ask)
            .unwrap()
            .after(GiveBackEvent::Begin)
            .unwrap();
        assert_eq!((again.state, again.attempt), (GiveBackState::Sending, 3));
    }
}
