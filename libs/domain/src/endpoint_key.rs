//! The name of an endpoint, and how deliveries to it name it.

use uuid::Uuid;

use crate::{EndpointId, PartnerId};

/// Names an endpoint together with its partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndpointKey {
    pub partner_id: PartnerId,
    pub id: EndpointId,
}

impl EndpointKey {
    /// The first endpoint of a partner.
    pub fn first(partner_id: PartnerId) -> Self {
        Self {
            partner_id,
            id: partner_id.first_endpoint(),
        }
    }

    /// The endpoint of a delivery, as the row of the delivery names it.
    pub fn stored(partner_id: Uuid, endpoint_id: Option<Uuid>) -> Self {
        Self {
            partner_id: partner_id.into(),
            id: endpoint_id.unwrap_or(partner_id).into(),
        }
    }

    /// The endpoint of a delivery, as the row of its work names it. A lane that is no id does not
    /// occur; it counts as that of the first endpoint.
    pub fn of_work(partner_id: PartnerId, lane: &str) -> Self {
        let further = lane.parse().ok();
        Self {
            partner_id,
            id: further.unwrap_or(partner_id.first_endpoint()),
        }
    }

    pub fn is_first(self) -> bool {
        self.id == self.partner_id.first_endpoint()
    }

    /// The column `endpoint_id` of its deliveries.
    pub fn column(self) -> Option<Uuid> {
        (!self.is_first()).then_some(self.id.uuid())
    }

    /// What the column `lane` of `work` and `held` says for its deliveries: which endpoint of the
    /// partner it is. The lane that permits are counted by is the host instead.
    pub fn work_lane(self) -> String {
        let id = (!self.is_first()).then(|| self.id.to_string());
        id.unwrap_or_default()
    }
}
