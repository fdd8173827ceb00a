//! The state machine of a change to a delivered eSIM at its provider: the eSIM that nobody has
//! installed is given back, or more data is added to one. Both are calls that must be carried out
//! at most once each and whose responses may be lost.
//!
//! ```text
//! state      event                       next state
//! asked      begin                       sending, with the number of the next attempt
//! asked      refuse                      refused
//! sending    refused, of this attempt    refused
//! sending    not sent, of this attempt   asked
//! sending    not done, twice             asked, if the second look was after the settling delay
//! sending    claimed, of this attempt    claimed; only a give-back, from asked, too
//! sending    park                        parked
//! claimed    denied                      refused
//! claimed    resolve                     done or refused, as the operator decides
//! refused    ask                         asked; only a give-back, an extension is asked for anew
//! parked     resolve                     done or refused, as the operator decides
//! any but    done                        done
//! done
//! ```
//!
//! `refused` tells the partner that the eSIM is as it was, and `done` that it has changed, and that
//! its price comes back or is to be paid. Both must be true at the provider, now and later. So
//! three rules hold:
//!
//! - The attempt is recorded before the call. While it is `sending`, the call may still be carried
//!   out, so a look that finds the eSIM as it was does not refuse the change.
//! - Only a look after the settling delay shows that the call is no longer carried out, and it
//!   must be the second one that says so. No look of a provider that only shows a difference says
//!   so: then the change waits, and is parked.
//! - An eSIM that is installed cannot be given back, so a give-back that is still on its way has no
//!   effect on it, and its attempt counts as refused. That is the provider's rule, and the only
//!   thing that we take from it.
//!
//! The statements of `libs/store` read the row, call [`EsimChange::after`] and write the row in one
//! transaction. The model checker in `tests/model` runs the same function.

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr};

use crate::states::UnknownName;

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = unknown)]
pub enum EsimChangeState {
    /// The eSIM has certainly not changed, and nothing is on its way to the provider.
    Asked,
    /// An attempt is recorded, and its outcome is not known yet.
    Sending,
    /// The provider has taken the give-back as a claim, which people there decide. It is looked at
    /// by the polls, and neither repeated nor parked. No other change becomes this.
    Claimed,
    /// The provider has the eSIM back, or has added to it. The name is that of a give-back; the
    /// store has another one for extensions.
    #[serde(rename = "returned")]
    #[strum(serialize = "returned")]
    Done,
    /// The eSIM stays as it is.
    Refused,
    /// The outcome stayed unknown, so the change waits for an operator.
    Parked,
}

fn unknown(name: &str) -> UnknownName {
    UnknownName(name.to_owned(), "state of a give-back or an extension")
}

impl EsimChangeState {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether it is final: nothing more happens to it by itself.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Refused | Self::Parked)
    }

    /// Whether there is nothing to wait for now: it is final, or people decide, which takes days.
    pub fn is_answered(self) -> bool {
        self.is_over() || self == Self::Claimed
    }
}

/// Why an eSIM is given back. Providers that let people decide want to know it.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    EnumString,
    IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum GiveBackCause {
    /// None of the following, or none was named.
    #[default]
    Other,
    /// It cannot be installed.
    InstallationFailure,
    /// It finds no network.
    NoCoverage,
    /// The traveller does not need it any more.
    ChangeOfPlan,
    /// Another one was meant.
    WrongPurchase,
}

impl GiveBackCause {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The changes that partners ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EsimChangeKind {
    GiveBack,
    Extension,
}

impl EsimChangeKind {
    /// One of this kind.
    pub fn word(self) -> &'static str {
        match self {
            Self::GiveBack => "give-back",
            Self::Extension => "extension",
        }
    }

    /// Several of this kind.
    pub fn words(self) -> &'static str {
        match self {
            Self::GiveBack => "give-backs",
            Self::Extension => "extensions",
        }
    }

    /// One of this kind with its article.
    pub fn with_article(self) -> &'static str {
        match self {
            Self::GiveBack => "a give-back",
            Self::Extension => "an extension",
        }
    }
}

/// The columns of the row that the transitions depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EsimChange {
    pub state: EsimChangeState,
    /// The number of the last recorded attempt; 0 before the first.
    pub attempt: u32,
    /// A look since the last attempt has found that the eSIM has not changed.
    pub not_done: bool,
}

/// Something that happens to a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EsimChangeEvent {
    /// The partner asks again after a refusal.
    Ask,
    /// A provisioner begins the next attempt, because the provider says that it would carry it out.
    Begin,
    /// It cannot be done, and no attempt is open: the provider would not carry it out.
    Refuse,
    /// The provider has carried it out. Its response, a look or an operator said so.
    Done,
    /// The provider refused this attempt, or has not carried it out and never will.
    Refused(u32),
    /// The provider certainly never received this attempt, or did not carry it out.
    NotSent(u32),
    /// A look after this attempt proves that the eSIM has not changed.
    NotDone {
        attempt: u32,
        /// The look began after the settling delay, so the call can no longer be carried out.
        after_settling_delay: bool,
    },
    /// The provider has this attempt as a claim. Its response or a look said so.
    Claimed(u32),
    /// The provider has decided against the claim.
    Denied,
    /// The outcome of this attempt stayed unknown for too long.
    Park(u32),
    /// An operator has found out that the provider has not carried it out, or has denied the claim.
    FoundNotDone,
}

/// The event came late or does not apply in this state, so nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EsimChangeEventIgnored;

impl EsimChange {
    /// A change as the partner asks for it.
    pub const NEW: Self = Self {
        state: EsimChangeState::Asked,
        attempt: 0,
        not_done: false,
    };

    /// Returns the change after `event`, or [`EsimChangeEventIgnored`] if the event changes
    /// nothing.
    pub fn after(self, event: EsimChangeEvent) -> Result<Self, EsimChangeEventIgnored> {
        use EsimChangeState::{Asked, Claimed, Done, Parked, Refused, Sending};
        let to = |state| Ok(Self { state, ..self });
        let current = |attempt| attempt == self.attempt;
        match (self.state, event) {
            // The attempts are counted on, so that a late event of an attempt before the refusal is
            // still recognised.
            (Refused, EsimChangeEvent::Ask) => Ok(Self {
                state: Asked,
                not_done: false,
                ..self
            }),
            (Asked, EsimChangeEvent::Begin) => Ok(Self {
                state: Sending,
                attempt: self.attempt + 1,
                not_done: false,
            }),
            (Asked, EsimChangeEvent::Refuse)
            | (Claimed, EsimChangeEvent::Denied)
            | (Parked | Claimed, EsimChangeEvent::FoundNotDone) => to(Refused),
            (Asked | Sending | Claimed | Refused | Parked, EsimChangeEvent::Done) => to(Done),
            // Somebody may have claimed it in the provider's portal before anything was sent.
            (Asked | Sending, EsimChangeEvent::Claimed(attempt)) if current(attempt) => to(Claimed),
            (Sending, EsimChangeEvent::Refused(attempt)) if current(attempt) => to(Refused),
            (Sending, EsimChangeEvent::NotSent(attempt)) if current(attempt) => to(Asked),
            (
                Sending,
                EsimChangeEvent::NotDone {
                    attempt,
                    after_settling_delay,
                },
            ) if current(attempt) => {
                if self.not_done && after_settling_delay {
                    to(Asked)
                } else if self.not_done {
                    Err(EsimChangeEventIgnored)
                } else {
                    Ok(Self {
                        not_done: true,
                        ..self
                    })
                }
            }
            (Sending, EsimChangeEvent::Park(attempt)) if current(attempt) => to(Parked),
            _ => Err(EsimChangeEventIgnored),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDING: EsimChange = EsimChange {
        state: EsimChangeState::Sending,
        attempt: 2,
        not_done: false,
    };

    #[test]
    fn names_round_trip() {
        for state in [
            EsimChangeState::Asked,
            EsimChangeState::Sending,
            EsimChangeState::Claimed,
            EsimChangeState::Done,
            EsimChangeState::Refused,
            EsimChangeState::Parked,
        ] {
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        assert!("gone".parse::<EsimChangeState>().is_err());
    }

    #[test]
    fn what_may_be_on_its_way_is_not_refused_because_of_a_look() {
        assert_eq!(
            SENDING.after(EsimChangeEvent::Refuse),
            Err(EsimChangeEventIgnored)
        );
        let look = |after_settling_delay| EsimChangeEvent::NotDone {
            attempt: 2,
            after_settling_delay,
        };
        let once = SENDING.after(look(true)).unwrap();
        assert_eq!((once.state, once.not_done), (SENDING.state, true));
        assert_eq!(once.after(look(false)), Err(EsimChangeEventIgnored));
        assert_eq!(
            once.after(look(true)).unwrap().state,
            EsimChangeState::Asked
        );
    }

    #[test]
    fn an_event_of_an_earlier_attempt_changes_nothing() {
        for event in [
            EsimChangeEvent::Refused(1),
            EsimChangeEvent::NotSent(1),
            EsimChangeEvent::Claimed(1),
            EsimChangeEvent::Park(1),
            EsimChangeEvent::NotDone {
                attempt: 1,
                after_settling_delay: true,
            },
        ] {
            assert_eq!(
                SENDING.after(event),
                Err(EsimChangeEventIgnored),
                "{event:?}"
            );
        }
    }

    #[test]
    fn what_is_done_stays_done() {
        let done = SENDING.after(EsimChangeEvent::Done).unwrap();
        assert_eq!(done.state, EsimChangeState::Done);
        for event in [
            EsimChangeEvent::Ask,
            EsimChangeEvent::Begin,
            EsimChangeEvent::Refuse,
            EsimChangeEvent::Refused(2),
            EsimChangeEvent::NotSent(2),
            EsimChangeEvent::Claimed(2),
            EsimChangeEvent::Denied,
            EsimChangeEvent::Park(2),
            EsimChangeEvent::FoundNotDone,
            EsimChangeEvent::Done,
        ] {
            assert_eq!(done.after(event), Err(EsimChangeEventIgnored), "{event:?}");
        }
    }

    #[test]
    fn a_claim_is_ended_by_a_verdict_only() {
        let claimed = SENDING.after(EsimChangeEvent::Claimed(2)).unwrap();
        assert!(claimed.state.is_answered() && !claimed.state.is_over());
        for event in [
            EsimChangeEvent::Ask,
            EsimChangeEvent::Begin,
            EsimChangeEvent::Refuse,
            EsimChangeEvent::Refused(2),
            EsimChangeEvent::NotSent(2),
            EsimChangeEvent::Claimed(2),
            EsimChangeEvent::Park(2),
            EsimChangeEvent::NotDone {
                attempt: 2,
                after_settling_delay: true,
            },
        ] {
            assert_eq!(
                claimed.after(event),
                Err(EsimChangeEventIgnored),
                "{event:?}"
            );
        }
        for (event, state) in [
            (EsimChangeEvent::Done, EsimChangeState::Done),
            (EsimChangeEvent::Denied, EsimChangeState::Refused),
            (EsimChangeEvent::FoundNotDone, EsimChangeState::Refused),
        ] {
            assert_eq!(claimed.after(event).unwrap().state, state, "{event:?}");
        }
    }

    #[test]
    fn attempts_are_counted_on_after_a_refusal() {
        let refused = SENDING.after(EsimChangeEvent::Refused(2)).unwrap();
        let again = refused
            .after(EsimChangeEvent::Ask)
            .unwrap()
            .after(EsimChangeEvent::Begin)
            .unwrap();
        assert_eq!((again.state, again.attempt), (EsimChangeState::Sending, 3));
    }
}
