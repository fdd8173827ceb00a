//! Deliveries and their attempts as operators see them, and replays.

use domain::{PartnerId, TopupId};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Error, endpoints::LONGEST_LEASE, seconds};

/// A delivery, as operators see it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct DeliveryView {
    /// What it tells of.
    pub topup_id: String,
    /// The order.
    pub order_id: Uuid,
    /// The partner's own order id.
    pub external_order_id: String,
    /// Whom it tells.
    pub partner_id: Uuid,
    /// `pending`, `delivered`, `exhausted` or `no_endpoint`.
    pub state: String,
    /// How many attempts have ended.
    pub attempts: i32,
    /// When the last of them began.
    #[serde(with = "time::serde::rfc3339::option")]
    pub attempted_at: Option<OffsetDateTime>,
    /// The status of its answer.
    pub status: Option<i32>,
    /// What kept it from counting.
    pub error: Option<String>,
    /// When it is taken up (again).
    #[serde(with = "time::serde::rfc3339::option")]
    pub due_at: Option<OffsetDateTime>,
    /// When it arrived.
    #[serde(with = "time::serde::rfc3339::option")]
    pub delivered_at: Option<OffsetDateTime>,
    /// When there was something to tell.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// One attempt of a delivery.
#[derive(Clone, Debug, serde::Serialize)]
pub struct AttemptView {
    /// How many attempts had ended before it.
    pub attempt: i32,
    /// When it began.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// How long it took.
    pub duration_ms: i32,
    /// The answer's status, if there was an answer.
    pub status: Option<i32>,
    /// What it came to, in a word.
    pub class: String,
    /// The beginning of the answer, sealed; for [`Purpose::Answer`](crate::vault::Purpose::Answer).
    #[serde(skip)]
    pub answer: Option<Vec<u8>>,
}

/// Which deliveries are meant; what isn't set, isn't asked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter<'a> {
    /// Only this one.
    pub topup_id: Option<&'a TopupId>,
    /// Only this partner's.
    pub partner_id: Option<PartnerId>,
    /// Only those in this state.
    pub state: Option<&'a str>,
    /// Only those whose last attempt began since then, or that became ready since then.
    pub since: Option<OffsetDateTime>,
}

/// The newest deliveries, by their topup ids, at most so many.
pub async fn list(
    connection: &mut PgConnection,
    filter: &Filter<'_>,
    limit: u32,
) -> Result<Vec<DeliveryView>, Error> {
    let deliveries = sqlx::query_as!(
        DeliveryView,
        r#"SELECT d.topup_id, o.order_id, o.external_order_id, d.partner_id, d.state, d.attempt AS attempts,
                  d.attempted_at, d.status, d.error, due.at AS "due_at?", d.delivered_at, d.created_at
           FROM deliveries d
           JOIN topups t ON t.topup_id = d.topup_id
           JOIN placements p ON p.placement_id = t.placement_id
           JOIN orders o ON o.order_id = p.order_id
           LEFT JOIN delivery_due due ON due.topup_id = d.topup_id
           WHERE ($1::text IS NULL OR d.topup_id = $1) AND ($2::uuid IS NULL OR d.partner_id = $2)
             AND ($3::text IS NULL OR d.state = $3)
             AND ($4::timestamptz IS NULL OR greatest(d.attempted_at, d.created_at) >= $4)
           ORDER BY d.topup_id DESC LIMIT $5"#,
        filter.topup_id.map(TopupId::as_str),
        filter.partner_id.map(PartnerId::uuid),
        filter.state,
        filter.since,
        i64::from(limit),
    )
    .fetch_all(connection)
    .await?;
    Ok(deliveries)
}

/// The attempts of a delivery, in their order.
pub async fn attempts(connection: &mut PgConnection, topup_id: &TopupId) -> Result<Vec<AttemptView>, Error> {
    let attempts = sqlx::query_as!(
        AttemptView,
        r#"SELECT attempt AS "attempt!", at AS "at!", duration_ms AS "duration_ms!", status, class AS "class!", answer
           FROM (
               SELECT attempt, at, duration_ms, status, class, answer FROM delivery_attempts WHERE topup_id = $1
               UNION ALL
               SELECT attempt - 1, attempted_at, coalesce(duration_ms, 0), status, 'delivered', NULL
               FROM deliveries WHERE topup_id = $1 AND state = 'delivered' AND attempted_at IS NOT NULL
           ) attempts
           ORDER BY 1, 2"#,
        topup_id.as_str(),
    )
    .fetch_all(connection)
    .await?;
    Ok(attempts)
}

/// Makes deliveries pending and due, at the beginning of the schedule; their attempts stay. Of pending
/// ones, those that wait for another attempt are meant; one without an endpoint waits for its URL.
/// Returns how many there were.
pub async fn replay(connection: &mut PgConnection, filter: &Filter<'_>) -> Result<u64, Error> {
    // What is due sooner than in 30 s may be somebody's lease, or is due anyway.
    let replayed = sqlx::query!(
        "WITH chosen AS MATERIALIZED (
             SELECT topup_id, partner_id, attempt, state, attempted_at, duration_ms, status FROM deliveries d
             WHERE ($1::text IS NULL OR topup_id = $1) AND ($2::uuid IS NULL OR partner_id = $2)
               AND ($3::text IS NULL OR state = $3)
               AND ($4::timestamptz IS NULL OR greatest(attempted_at, created_at) >= $4)
               AND (state IN ('delivered', 'exhausted')
                    OR (state = 'pending' AND attempt > 0
                        AND (SELECT at FROM delivery_due due WHERE due.topup_id = d.topup_id)
                            > now() + make_interval(secs => $5)))
             ORDER BY topup_id
             FOR UPDATE
         ), kept AS (
             INSERT INTO delivery_attempts (topup_id, attempt, at, duration_ms, status, class)
             SELECT topup_id, attempt - 1, attempted_at, coalesce(duration_ms, 0), status, 'delivered'
             FROM chosen WHERE state = 'delivered' AND attempted_at IS NOT NULL
             ON CONFLICT DO NOTHING
         ), due AS (
             INSERT INTO delivery_due AS due (topup_id, partner_id, at) SELECT topup_id, partner_id, now() FROM chosen
             ON CONFLICT (topup_id) DO UPDATE SET at = excluded.at
         ), free AS (
             DELETE FROM delivery_held held USING chosen WHERE held.topup_id = chosen.topup_id
         )
         UPDATE deliveries d
         SET state = 'pending', schedule_start = d.attempt, delivered_at = NULL
         FROM chosen WHERE d.topup_id = chosen.topup_id",
        filter.topup_id.map(TopupId::as_str),
        filter.partner_id.map(PartnerId::uuid),
        filter.state,
        filter.since,
        seconds(LONGEST_LEASE),
    )
    .execute(connection)
    .await?;
    Ok(replayed.rows_affected())
}
