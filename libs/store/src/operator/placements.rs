//! What operators do with placements: list them, and settle those that are parked.

use domain::{
    OrderId, PartnerId, PlacementId, PlacementState,
    placement::{Event, Placement, Resolution},
};
use serde::Serialize;
use sqlx::{Connection, PgConnection};
use time::OffsetDateTime;

use crate::{Error, unsigned};

/// A placement, for a list.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// Its id, which is the order id at the provider.
    pub placement_id: PlacementId,
    /// Its order.
    pub order_id: OrderId,
    /// Whose order that is.
    pub partner_id: PartnerId,
    /// The partner's id of the order.
    pub external_order_id: String,
    /// The provider.
    pub provider: String,
    /// Its state.
    pub state: String,
    /// The last recorded attempt.
    pub attempt: i32,
    /// Why it is in that state.
    pub reason: Option<String>,
    /// Whether the provider is known to have it.
    pub bought: bool,
    /// Its units.
    pub units: i64,
    /// Those that have no profile and haven't failed.
    pub pending: i64,
    /// When its order was stored.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it is taken up again by itself.
    #[serde(with = "time::serde::rfc3339::option")]
    pub redrive_at: Option<OffsetDateTime>,
}

/// Placements in this state (any if none) and of this provider (any if none): what is parked oldest
/// first, the others newest first.
pub async fn list(
    connection: &mut PgConnection,
    state: Option<PlacementState>,
    provider: Option<&str>,
    limit: i64,
) -> Result<Vec<Listed>, Error> {
    // Two statements, since only what is parked has an index of its own.
    if state == Some(PlacementState::Parked) {
        let rows = sqlx::query_as!(
            Listed,
            r#"SELECT p.placement_id, p.order_id, o.partner_id, o.external_order_id, p.provider, p.state, p.attempt,
                      p.reason, p.placed_at IS NOT NULL AS "bought!", p.created_at, d.at AS "redrive_at?",
                      count(t.topup_id) AS "units!", count(t.topup_id) FILTER (WHERE t.state = 'pending' AND e.ready_at IS NULL) AS "pending!"
               FROM (SELECT placement_id, at FROM placement_parked
                     WHERE $1::text IS NULL OR provider = $1
                     ORDER BY at LIMIT $2) k
               JOIN placements p ON p.placement_id = k.placement_id
               LEFT JOIN placement_due d ON d.placement_id = k.placement_id
               JOIN orders o ON o.order_id = p.order_id
               JOIN topups t ON t.placement_id = p.placement_id
               LEFT JOIN esims e ON e.topup_id = t.topup_id
               GROUP BY p.placement_id, p.order_id, o.order_id, p.provider, p.state, p.attempt, p.reason, p.placed_at,
                        p.created_at, d.at
               ORDER BY p.created_at"#,
            provider,
            limit,
        )
        .fetch_all(connection)
        .await?;
        return Ok(rows);
    }
    let rows = sqlx::query_as!(
        Listed,
        r#"SELECT p.placement_id, p.order_id, o.partner_id, o.external_order_id, p.provider, p.state, p.attempt,
                  p.reason, p.placed_at IS NOT NULL AS "bought!", p.created_at, d.at AS "redrive_at?",
                  count(t.topup_id) AS "units!", count(t.topup_id) FILTER (WHERE t.state = 'pending' AND e.ready_at IS NULL) AS "pending!"
           FROM (SELECT * FROM placements
                 WHERE ($1::text IS NULL OR state = $1) AND ($2::text IS NULL OR provider = $2)
                 ORDER BY placement_id DESC LIMIT $3) p
           LEFT JOIN placement_due d ON d.placement_id = p.placement_id
           JOIN orders o ON o.order_id = p.order_id
           JOIN topups t ON t.placement_id = p.placement_id
           LEFT JOIN esims e ON e.topup_id = t.topup_id
           GROUP BY p.placement_id, p.order_id, o.order_id, p.provider, p.state, p.attempt, p.reason, p.placed_at,
                    p.created_at, d.at
           ORDER BY p.placement_id DESC"#,
        state.map(PlacementState::as_str),
        provider,
        limit,
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

/// What an operator's word changed.
#[derive(Clone, Debug, Serialize)]
pub struct Resolved {
    /// The placement.
    pub placement_id: PlacementId,
    /// Its order.
    pub order_id: OrderId,
    /// The provider.
    pub provider: String,
    /// The state it is in now.
    pub state: PlacementState,
    /// Its last recorded attempt.
    pub attempt: u32,
    /// Units that wait for a profile now.
    pub pending: i64,
    /// Units that are failed now.
    pub failed: i64,
    /// Units that have their profile.
    pub ready: i64,
}

/// Why an operator's word changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum NotResolved {
    /// There is none with this id.
    #[error("there is no such placement")]
    Unknown,
    /// Only parked placements wait for an operator.
    #[error("it is {}, and only what is parked waits for an operator", .0.as_str())]
    NotParked(PlacementState),
    /// Its partner was told that nothing would be bought.
    #[error(
        "its order was answered with 422, so nothing may be delivered for it: have the purchase cancelled at the \
         provider, then settle it as not bought"
    )]
    Refused,
    /// Buying again would buy twice.
    #[error("the provider has named units for it, so it is bought: buying it again would buy it twice")]
    HasUnits,
    /// The database didn't do it.
    #[error(transparent)]
    Store(#[from] Error),
}

impl From<sqlx::Error> for NotResolved {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Settles a parked placement on an operator's word, along [`Event::Resolve`], in one transaction.
/// Units that failed before their provider named them wait again if it is bought or retried.
pub async fn resolve(
    connection: &mut PgConnection,
    placement_id: PlacementId,
    resolution: Resolution,
) -> Result<Resolved, NotResolved> {
    let mut transaction = connection.begin().await?;
    let row = sqlx::query!(
        r#"SELECT p.order_id, p.provider, p.state, p.attempt, o.refused,
                  EXISTS (SELECT FROM topups t JOIN esims e ON e.topup_id = t.topup_id
                          WHERE t.placement_id = p.placement_id) AS "has_units!"
           FROM placements p JOIN orders o ON o.order_id = p.order_id
           WHERE p.placement_id = $1 FOR UPDATE OF p"#,
        placement_id.uuid(),
    )
    .fetch_optional(&mut *transaction)
    .await?
    .ok_or(NotResolved::Unknown)?;
    let parked = Placement {
        state: row.state.parse().map_err(Error::from)?,
        attempt: unsigned(row.attempt),
        ..Placement::NEW
    };
    let settled = parked
        .after(Event::Resolve(resolution))
        .map_err(|_| NotResolved::NotParked(parked.state))?;
    if row.refused && resolution != Resolution::NotBought {
        return Err(NotResolved::Refused);
    }
    if row.has_units && resolution == Resolution::Retry {
        return Err(NotResolved::HasUnits);
    }
    let due = settled.state != PlacementState::Failed;
    let placed = settled.state == PlacementState::Placed;
    sqlx::query!(
        "WITH settled AS (
             UPDATE placements p
             SET state = $2, not_found_at = NULL, unknowns = 0, disputed = false,
                 placed_at = CASE WHEN $3 THEN now() END,
                 reason = CASE WHEN $4 THEN NULL ELSE 'settled by an operator as not bought' END
             FROM orders o WHERE p.placement_id = $1 AND o.order_id = p.order_id
             RETURNING p.placement_id, p.provider, p.lane, o.partner_id
         ), due AS (
             INSERT INTO placement_due AS d (placement_id, provider, lane, partner_id, buys, at)
             SELECT placement_id, provider, coalesce(lane, ''), partner_id, NOT $3, now() FROM settled WHERE $4
             ON CONFLICT (placement_id) DO UPDATE SET buys = excluded.buys, at = excluded.at
         ), done AS (
             DELETE FROM placement_due d USING settled WHERE d.placement_id = settled.placement_id AND NOT $4
         )
         DELETE FROM placement_parked k USING settled WHERE k.placement_id = settled.placement_id",
        placement_id.uuid(),
        settled.state.as_str(),
        placed,
        due,
    )
    .execute(&mut *transaction)
    .await?;
    sqlx::query!(
        "UPDATE topups t
         SET state = CASE WHEN $2 THEN 'pending' ELSE 'failed' END,
             reason = CASE WHEN $2 THEN NULL ELSE 'settled by an operator as not bought' END
         WHERE placement_id = $1
           AND CASE WHEN $2 THEN state = 'failed' AND NOT EXISTS (SELECT FROM esims e WHERE e.topup_id = t.topup_id)
                    ELSE state = 'pending' AND NOT EXISTS (
                        SELECT FROM esims e WHERE e.topup_id = t.topup_id AND e.ready_at IS NOT NULL) END",
        placement_id.uuid(),
        due,
    )
    .execute(&mut *transaction)
    .await?;
    let units = sqlx::query!(
        r#"SELECT count(*) FILTER (WHERE state = 'pending' AND e.ready_at IS NULL) AS "pending!",
                  count(*) FILTER (WHERE state = 'failed') AS "failed!",
                  count(e.ready_at) AS "ready!"
           FROM topups LEFT JOIN esims e USING (topup_id) WHERE placement_id = $1"#,
        placement_id.uuid(),
    )
    .fetch_one(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(Resolved {
        placement_id,
        order_id: row.order_id.into(),
        provider: row.provider,
        state: settled.state,
        attempt: settled.attempt,
        pending: units.pending,
        failed: units.failed,
        ready: units.ready,
    })
}
