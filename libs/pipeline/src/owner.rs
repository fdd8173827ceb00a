//! Who shares permits.

use domain::{EndpointId, PartnerId};

/// Whose rows share a part of the permits: a partner, or, for webhooks, one of its endpoints, so
/// that a slow endpoint takes nothing from the other endpoints of its partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    Partner(PartnerId),
    Endpoint(EndpointId),
}

impl From<PartnerId> for Owner {
    fn from(id: PartnerId) -> Self {
        Self::Partner(id)
    }
}

impl From<EndpointId> for Owner {
    fn from(id: EndpointId) -> Self {
        Self::Endpoint(id)
    }
}
