//! The claim of fresh deliveries.

use std::time::Duration;

use domain::DeliveryId;
use pg::PgConnection;
use store::deliveries::{self, ClaimResult, DeliveryClaim};

use super::Deliver;

impl Deliver {
    /// Claims fresh deliveries: those to endpoints that this process knows by the lean statement,
    /// and the others by the one that also reads their endpoints.
    pub(super) async fn claim_fresh(
        &self,
        connection: &mut PgConnection,
        ids: &[DeliveryId],
        younger_than: Duration,
    ) -> Result<ClaimResult, pg::Error> {
        let mut lean = Vec::new();
        if let Some(version) = self.endpoints.configuration_version() {
            let known = |id, now| self.endpoints.known(id, version, now);
            lean = deliveries::claim_known(connection, ids, younger_than, version, known).await?;
        }
        let is_left = |id: &&DeliveryId| lean.iter().all(|delivery| delivery.id != **id);
        let left: Vec<DeliveryId> = ids.iter().filter(is_left).copied().collect();
        let mut claimed = ClaimResult::default();
        if !left.is_empty() {
            claimed =
                deliveries::claim(connection, &left, DeliveryClaim::Fresh { younger_than }).await?;
        }
        claimed.deliveries.append(&mut lean);
        Ok(claimed)
    }
}
