//! Why an order that was refused bought nothing, for the text of its 422.

use domain::{Reason, reason::ReasonCode};

/// Why a placement of a refused order bought nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementRefusal {
    /// The provider rejected it.
    Rejected { status: String, message: String },
    /// The request certainly never reached the provider.
    NotSent,
    /// The provider was reached and carried nothing out, because it was too busy or denied us
    /// access.
    NotCarriedOut,
}

impl PlacementRefusal {
    /// Of a placement, whose columns these are.
    pub(super) fn read(
        status: Option<String>,
        message: Option<String>,
        reason: Option<&str>,
    ) -> Self {
        if let (Some(status), Some(message)) = (status, message) {
            return Self::Rejected { status, message };
        }
        match reason.map(|reason| Reason::read(reason).code) {
            Some(ReasonCode::ProviderBusy | ReasonCode::AccessDenied) => Self::NotCarriedOut,
            _ => Self::NotSent,
        }
    }
}
