//! Why a placement or a unit left the normal path, as a code with an optional detail.
//!
//! A reason is stored as its code, and behind `: ` the detail, which is text from outside: what a
//! provider responded, or the name of a field. Programs decide by the code only. People read
//! sentences that are made from it where they are shown, by an exhaustive `match`, so a new code
//! does not compile before somebody has said what partner, support and operator read.
//!
//! After a rollback there may be codes of the newer version. Any text that is none of ours is read
//! as [`ReasonCode::Unknown`], with the text as its detail.

use std::fmt;

use serde::{Serialize, Serializer};
use strum::{EnumString, IntoStaticStr};

/// The codes. Their names are stored.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    EnumString,
    IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum ReasonCode {
    /// The last attempt certainly never reached the provider. Another one follows.
    NotSent,
    /// The provider had too much to do for the last attempt, and has carried nothing out. Another
    /// one follows.
    ProviderBusy,
    /// The provider denied us access, so it has not carried the last attempt out. Another one
    /// follows.
    AccessDenied,
    /// The provider rejected the purchase: its code and message.
    Rejected,
    /// Nobody knows yet whether the last attempt has bought anything.
    OutcomeUnknown,
    /// The provider lists no such purchase, but its list does not prove that there is none.
    SearchProvesNothing,
    /// It is bought, and the provider has not sent the profiles for too long.
    ProfilesLate,
    /// It is bought, and the provider does not answer the request for the profiles as it should.
    ProfilesUncollectable,
    /// It is bought, and a profile has arrived of which a field cannot be read: the field.
    ProfileUnreadable,
    /// It is bought, and the profile cannot be installed without a confirmation code, which no
    /// webhook carries.
    ConfirmationCodeNeeded,
    /// The provider had confirmed the purchase, and no longer knows it.
    PurchaseVanished,
    /// It was bought although a purchase was no longer expected.
    BoughtUnexpectedly,
    /// It is bought, and the provider has sold the same eSIM before: which id shows that.
    SoldTwice,
    /// It is bought, and the response cannot be stored.
    ResponseUnstorable,
    /// A stored row cannot be read.
    RowUnreadable,
    /// The provider says that the unit will never have a profile: its word for that.
    UnitFailed,
    /// An operator has found out that it is not bought, or was refunded.
    GivenUp,
    /// Its order was refused before it was sent.
    OrderRefused,
    /// Its order was cancelled before it was sent.
    OrderCancelled,
    /// A code that this version does not know, because a newer one has stored it.
    Unknown,
}

impl ReasonCode {
    /// Whether something is certainly bought, although the unit is not ready.
    pub fn is_bought(self) -> bool {
        match self {
            Self::ProfilesLate
            | Self::ProfilesUncollectable
            | Self::ProfileUnreadable
            | Self::ConfirmationCodeNeeded
            | Self::PurchaseVanished
            | Self::SoldTwice
            | Self::ResponseUnstorable => true,
            // What was bought unexpectedly may be another attempt than the one of the order.
            Self::BoughtUnexpectedly
            | Self::NotSent
            | Self::ProviderBusy
            | Self::AccessDenied
            | Self::Rejected
            | Self::OutcomeUnknown
            | Self::SearchProvesNothing
            | Self::RowUnreadable
            | Self::UnitFailed
            | Self::GivenUp
            | Self::OrderRefused
            | Self::OrderCancelled
            | Self::Unknown => false,
        }
    }
}

/// A reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    pub code: ReasonCode,
    /// Text from outside: one short line. Nothing decides by it.
    pub detail: Option<String>,
}

impl Reason {
    pub fn with(code: ReasonCode, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self {
            code,
            detail: Some(detail).filter(|detail| !detail.is_empty()),
        }
    }

    /// Reads a stored reason.
    pub fn read(stored: &str) -> Self {
        let (code, detail) = match stored.split_once(": ") {
            Some((code, detail)) => (code, Some(detail)),
            None => (stored, None),
        };
        match code.parse() {
            Ok(code) => Self {
                code,
                detail: detail.map(str::to_owned),
            },
            Err(_) => Self::with(ReasonCode::Unknown, stored),
        }
    }

    /// The reason in words, for operators.
    pub fn told(&self) -> String {
        let what = match self.code {
            ReasonCode::NotSent => "the last attempt did not reach the provider",
            ReasonCode::ProviderBusy => "the provider was too busy for the last attempt",
            ReasonCode::AccessDenied => "the provider denied us access for the last attempt",
            ReasonCode::Rejected => "the provider rejected it",
            ReasonCode::OutcomeUnknown => "it is not known whether the last attempt has bought it",
            ReasonCode::SearchProvesNothing => {
                "the provider lists no such purchase, but its list does not prove that there is none"
            }
            ReasonCode::ProfilesLate => "it is bought, but its profiles do not come",
            ReasonCode::ProfilesUncollectable => {
                "it is bought, but its profiles cannot be collected"
            }
            ReasonCode::ProfileUnreadable => {
                "it is bought, but this field of a profile cannot be read"
            }
            ReasonCode::ConfirmationCodeNeeded => {
                "it is bought, but the eSIM needs a confirmation code, which no webhook carries"
            }
            ReasonCode::PurchaseVanished => {
                "it is bought, but the provider no longer knows the purchase"
            }
            ReasonCode::BoughtUnexpectedly => {
                "it was bought although nobody expected that any more"
            }
            ReasonCode::SoldTwice => {
                "it is bought, but the provider has sold the same eSIM before, as this id shows"
            }
            ReasonCode::ResponseUnstorable => "it is bought, but the response cannot be stored",
            ReasonCode::RowUnreadable => "its row cannot be read",
            ReasonCode::UnitFailed => "the provider will not supply it",
            ReasonCode::GivenUp => "an operator settled it as not bought",
            ReasonCode::OrderRefused => "its order was refused",
            ReasonCode::OrderCancelled => "its order was cancelled",
            ReasonCode::Unknown => return self.detail.clone().unwrap_or_default(),
        };
        match &self.detail {
            Some(detail) => format!("{what}: {detail}"),
            None => what.to_owned(),
        }
    }
}

/// The reason of a row, if it has one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct StoredReason(pub Option<Reason>);

impl StoredReason {
    pub fn code(&self) -> Option<ReasonCode> {
        self.0.as_ref().map(|reason| reason.code)
    }

    /// The reason in words, for operators.
    pub fn told(&self) -> Option<String> {
        self.0.as_ref().map(Reason::told)
    }
}

/// As it is stored.
impl From<Option<String>> for StoredReason {
    fn from(stored: Option<String>) -> Self {
        Self(stored.as_deref().map(Reason::read))
    }
}

impl From<ReasonCode> for Reason {
    fn from(code: ReasonCode) -> Self {
        Self { code, detail: None }
    }
}

/// As it is stored.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code: &str = self.code.into();
        match &self.detail {
            Some(detail) => write!(f, "{code}: {detail}"),
            None => f.write_str(code),
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use strum::VariantArray;

    use super::*;

    #[test]
    fn each_code_is_read_as_it_was_stored_and_is_told() {
        for code in ReasonCode::VARIANTS {
            for reason in [Reason::from(*code), Reason::with(*code, "HTTP 500: a: b")] {
                assert_eq!(Reason::read(&reason.to_string()), reason);
                let is_told = *code == ReasonCode::Unknown || !reason.told().is_empty();
                assert!(is_told, "{code:?}");
            }
        }
    }

    #[test]
    fn what_a_newer_version_has_stored_is_kept() {
        for stored in ["newer_code", "newer_code: HTTP 500", ""] {
            let read = Reason::read(stored);
            assert_eq!(read.code, ReasonCode::Unknown);
            assert_eq!(read.told(), stored);
        }
    }

    proptest! {
        #[test]
        fn any_detail_comes_back(index in 0..ReasonCode::VARIANTS.len(), detail in "\\PC{1,40}") {
            let reason = Reason::with(ReasonCode::VARIANTS[index], detail);
            prop_assert_eq!(Reason::read(&reason.to_string()), reason);
        }

        #[test]
        fn any_text_is_told(text in "\\PC{0,60}") {
            prop_assert!(!Reason::read(&text).told().is_empty() || text.is_empty());
        }
    }
}
