//! Placements: claimed by provisioners, settled in batches.
//!
//! Every statement moves a placement along a transition of [`domain::placement`], on a condition on
//! its state and attempt, so repeating a statement changes nothing.

mod claim;
mod settle;

use std::time::Duration;

pub use claim::{Claim, Claimed, ClaimedTopup, claim};
use domain::{OrderId, PlacementId};
pub use settle::{KnownColumns, Outcome, Progress, Settled, Settlement, Unit, settle};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    Error, Result, retry_conflicts,
    sweep::{Fence, Swept},
    work::{self, Found, Kind, Page},
};

/// Looks for due purchases of a provider, or else for due look-ups and collects. Changes nothing.
pub async fn due(
    connection: &mut PgConnection,
    provider: &str,
    purchases: bool,
    page: &Page<'_>,
) -> Result<Found<PlacementId>> {
    let kinds = if purchases { &Kind::PURCHASES } else { &Kind::LOOKUPS };
    work::due(connection, kinds, provider, page).await
}

/// A placement that was deferred, with the ingress process that may still answer its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferred {
    pub placement_id: PlacementId,
    pub order_id: OrderId,
    pub answering: Option<Uuid>,
}

/// Makes placements due now whose tickets found no room, unless a process has claimed them or they
/// have a due row already. Returns those that this call deferred.
pub async fn defer(connection: &mut PgConnection, placements: &[PlacementId]) -> Result<Vec<Deferred>> {
    let ids: Vec<Uuid> = placements.iter().map(|placement| placement.uuid()).collect();
    retry_conflicts!(async {
        let query = sqlx::query!(
            r#"WITH deferred AS (
                   INSERT INTO work (id, kind, provider, lane, partner_id, at)
                   SELECT placement_id, CASE WHEN attempt = 0 THEN 'buy' ELSE 'buy_again' END,
                          provider, lane, partner_id, now()
                   FROM placements
                   WHERE placement_id = ANY ($1) AND state = 'accepted'
                   ORDER BY placement_id
                   ON CONFLICT DO NOTHING
                   RETURNING id
               )
               SELECT p.placement_id, p.order_id,
                      CASE WHEN o.answer_by > now() THEN o.answering END AS answering
               FROM placements p
               JOIN orders o ON o.order_id = p.order_id
               WHERE p.placement_id = ANY (ARRAY (SELECT id FROM deferred))"#,
            &ids,
        );
        let rows = query.fetch_all(&mut *connection).await?;
        let deferred = rows.into_iter().map(|row| Deferred {
            placement_id: row.placement_id.into(),
            order_id: row.order_id.into(),
            answering: row.answering,
        });
        Ok::<_, Error>(deferred.collect())
    })
}

/// Gives due work to each placement that has no outcome after its first lease of `lag`.
pub async fn sweep(connection: &mut PgConnection, lag: Duration) -> Result<Swept> {
    let Some(mut fence) = Fence::take(connection, "placements", lag).await? else {
        return Ok(Swept::default());
    };
    let statement = sqlx::query!(
        "INSERT INTO work (id, kind, provider, lane, partner_id, at)
         SELECT placement_id,
                CASE WHEN state = 'placing' THEN 'find' WHEN attempt = 0 THEN 'buy' ELSE 'buy_again' END,
                provider, lane, partner_id, now()
         FROM placements
         WHERE created_at > $1 AND created_at <= $2 AND state IN ('accepted', 'placing')
         ON CONFLICT DO NOTHING",
        fence.from,
        fence.until,
    );
    let late = statement.execute(&mut *fence.transaction).await?.rows_affected();
    fence.done(late).await
}
