//! What did not go straight, as it is remembered.

use serde::Serialize;
use strum::{EnumString, IntoStaticStr};

use crate::states::UnknownName;

/// What happened to a placement, to a unit of it, to a provider, or to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, EnumString, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", parse_err_ty = UnknownName, parse_err_fn = unknown)]
pub enum HistoryKind {
    /// An attempt certainly bought nothing, and a further one may follow: it was not sent, or the
    /// provider was too busy or denied us access. The reason says which.
    NotBought,
    /// The outcome of a call is unknown.
    Unknown,
    /// The provider rejected the purchase for good.
    Rejected,
    /// The purchase went to the next provider.
    Rerouted,
    /// A look-up found no purchase.
    NotFound,
    /// The placement waits for an operator.
    Parked,
    /// What the provider has contradicts what is stored, or cannot be stored.
    Disputed,
    /// A late response of the provider ended the wait for an operator.
    Cleared,
    /// A unit will never have a profile.
    UnitFailed,
    /// An operator has resolved the placement.
    Resolved,
    /// A breaker opened, by itself or by an operator.
    BreakerOpened,
    /// A breaker closed, by itself or by an operator.
    BreakerClosed,
    /// An endpoint failed so often that its webhooks wait.
    Blocked,
    /// The block of an endpoint ended.
    Unblocked,
    /// A provider reported something of a delivered eSIM, or of our account. Nobody believes it: a
    /// call confirms it.
    Reported,
}

fn unknown(name: &str) -> UnknownName {
    UnknownName(name.to_owned(), "kind of history")
}

impl HistoryKind {
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
