//! Why a call to a provider got no definite response, and a delivered eSIM as it is named in calls.

use std::{fmt::Display, time::Duration};

use domain::{Iccid, Reason, reason::ReasonCode};

use super::text::ProviderId;

/// Why a call got no definite response. The reason is one short line without control and format
/// characters, because it is stored, logged and shown to operators.
///
/// What each means for a purchase, whose claim has recorded an attempt:
///
/// | | may have bought | counts for the breaker as | what follows |
/// |---|---|---|---|
/// | `Denied` | no | a denial, which opens it | the next attempt, once the breaker is closed |
/// | `Busy` | no | a response | the next attempt, after the wait that is asked for |
/// | `Waiting` | no | nothing | the next attempt, after the wait |
/// | `RefusedHere` | no | nothing | none: the placement is rejected |
/// | `NotSent` | no | a failure | the next attempt; the verdict *not sent* allows a 422 |
/// | `Unknown` | yes | see [`Heard`] | a look-up |
///
/// A next attempt has the next number. `may_be_carried_out`, [`crate::calls`] and
/// `settle_without_purchase` of [`crate::purchases`] decide so.
#[derive(Clone, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Trouble {
    /// The provider denies access. Nothing was carried out, and an operator must act, for example
    /// because our key has expired.
    Denied(String),
    /// The provider has too much to do. Nothing was carried out.
    Busy {
        /// The wait that the provider asks for.
        after: Option<Duration>,
        reason: String,
    },
    /// The adapter waits by itself before it asks the provider again, for example because a token
    /// was asked for a moment ago.
    Waiting { after: Duration, reason: String },
    /// The adapter refuses a purchase for good before it sends it, for example because the price
    /// has risen. The order ends as with `PurchaseResponse::Rejected`.
    RefusedHere(String),
    /// The provider certainly never received the request.
    NotSent(String),
    /// The outcome is unknown: the request may have been carried out.
    Unknown { heard: Heard, reason: String },
}

/// What was heard of the provider whose outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
pub enum Heard {
    /// No whole response came. It counts for the breaker as a failure.
    #[strum(serialize = "no_response")]
    Nothing,
    /// A response that nobody understands, or that says no more than that something failed. It
    /// counts as a failure, but not of a search, because a provider that responds to that with an
    /// error sells all the same.
    #[strum(serialize = "unknown")]
    NotUnderstood,
    /// A response to a look-up in the form of the protocol, which proves nothing about the
    /// purchase. A provider that responds so does not fail.
    #[strum(serialize = "proves_nothing")]
    ProvesNothing,
}

impl Trouble {
    /// See [`Heard::Nothing`].
    pub fn no_response(reason: impl Into<String>) -> Self {
        let heard = Heard::Nothing;
        let reason = reason.into();
        Self::Unknown { heard, reason }
    }

    /// See [`Heard::NotUnderstood`].
    pub fn not_understood(reason: impl Into<String>) -> Self {
        let heard = Heard::NotUnderstood;
        let reason = reason.into();
        Self::Unknown { heard, reason }
    }

    /// A response that cannot be read, with what is wrong with it.
    pub(super) fn unreadable(what: impl Display) -> Self {
        Self::not_understood(format!("the response is unreadable: {what}"))
    }

    /// What was heard of the provider, if the outcome is unknown.
    pub fn heard(&self) -> Option<Heard> {
        match self {
            Self::Unknown { heard, .. } => Some(*heard),
            _ => None,
        }
    }

    pub fn reason(&self) -> &str {
        match self {
            Self::Denied(reason)
            | Self::Busy { reason, .. }
            | Self::Waiting { reason, .. }
            | Self::RefusedHere(reason)
            | Self::NotSent(reason)
            | Self::Unknown { reason, .. } => reason,
        }
    }

    /// Whether the provider may have carried the request out.
    pub fn may_be_carried_out(&self) -> bool {
        self.heard().is_some()
    }

    /// Whether the adapter has decided before it asked the provider. Nothing was sent, so it says
    /// nothing about the provider or a lane.
    pub fn is_of_adapter(&self) -> bool {
        matches!(self, Self::Waiting { .. } | Self::RefusedHere(_))
    }

    /// What is stored about a purchase that got no definite response.
    pub fn reason_of_purchase(&self) -> Reason {
        let code = match self {
            Self::Denied(_) => ReasonCode::AccessDenied,
            Self::Busy { .. } => ReasonCode::ProviderBusy,
            Self::NotSent(_) | Self::Waiting { .. } | Self::RefusedHere(_) => ReasonCode::NotSent,
            Self::Unknown { .. } => ReasonCode::OutcomeUnknown,
        };
        Reason::with(code, self.reason())
    }

    /// The class, as metrics name it.
    pub fn class(&self) -> &'static str {
        self.heard().map_or_else(|| self.into(), Into::into)
    }

    /// The wait that the provider asks for, or the adapter, at most `most`; zero if none.
    pub fn asked_wait(&self, most: Duration) -> Duration {
        match self {
            Self::Busy {
                after: Some(after), ..
            }
            | Self::Waiting { after, .. } => (*after).min(most),
            _ => Duration::ZERO,
        }
    }
}

/// A delivered eSIM, as its provider names it.
#[derive(Clone, Debug)]
pub struct DeliveredEsim {
    /// The provider's id of the unit.
    pub unit_id: ProviderId,
    pub iccid: Iccid,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_honoured_within_a_bound() {
        let busy = |after| Trouble::Busy {
            after,
            reason: String::new(),
        };
        let most = Duration::from_mins(10);
        assert_eq!(busy(None).asked_wait(most), Duration::ZERO);
        assert_eq!(
            busy(Some(Duration::from_secs(7))).asked_wait(most),
            Duration::from_secs(7)
        );
        assert_eq!(busy(Some(Duration::MAX)).asked_wait(most), most);
        assert_eq!(Trouble::not_understood("").asked_wait(most), Duration::ZERO);
    }
}
