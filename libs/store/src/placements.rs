//! Placements: claimed by provisioners, settled in batches.

mod claim;
mod settle;

use std::time::Duration;

pub use claim::{Claim, Claimed, ClaimedTopup, DuePlacement, Found, Page, claim, due, give_back, lease};
use domain::{OrderId, PlacementId};
pub use settle::{Outcome, Progress, Settled, Settlement, Unit, settle};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    Error, Result, retry_conflicts,
    sweep::{Fence, Swept},
};

/// A placement that [`defer`] made due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferred {
    pub placement_id: PlacementId,
    pub order_id: OrderId,
    /// The ingress process that may still answer the order's request; see [`Claimed::answering`].
    pub answering: Option<Uuid>,
}

/// Inserts a due row, due now, for each of these placements that no process has claimed yet.
pub async fn defer(connection: &mut PgConnection, placements: &[PlacementId]) -> Result<Vec<Deferred>> {
    let ids: Vec<Uuid> = placements.iter().map(|placement| placement.uuid()).collect();
    retry_conflicts!(async {
        let statement = sqlx::query!(
            "INSERT INTO placement_due (placement_id, provider, lane, partner_id, buys, at)
             SELECT p.placement_id, p.provider, coalesce(p.lane, ''), o.partner_id, true, now()
             FROM placements p JOIN orders o ON o.order_id = p.order_id
             WHERE p.placement_id = ANY ($1) AND p.state = 'accepted' ORDER BY p.placement_id
             ON CONFLICT DO NOTHING",
            &ids,
        );
        statement.execute(&mut *connection).await?;
        Ok::<_, Error>(Vec::new())
    })
}

/// Inserts a due row for each placement without an outcome after its first lease of `lag`.
pub async fn sweep(connection: &mut PgConnection, lag: Duration) -> Result<Swept> {
    let Some(mut fence) = Fence::take(connection, "placements", lag).await? else {
        return Ok(Swept::default());
    };
    let statement = sqlx::query!(
        "INSERT INTO placement_due (placement_id, provider, lane, partner_id, buys, at)
         SELECT p.placement_id, p.provider, coalesce(p.lane, ''), o.partner_id, p.state = 'accepted', now()
         FROM placements p JOIN orders o ON o.order_id = p.order_id
         WHERE p.created_at > $1 AND p.created_at <= $2 AND p.state IN ('accepted', 'placing')
         ON CONFLICT DO NOTHING",
        fence.from,
        fence.until,
    );
    let late = statement.execute(&mut *fence.transaction).await?.rows_affected();
    fence.done(late).await
}
