//! Deliveries and their attempts as operators see them, and replays.

use domain::{PartnerId, TopupId};
use sqlx::{Connection, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use super::actions::{self, Mode};
use crate::{Error, endpoints::LONGEST_LEASE, seconds};

/// A delivery, as operators see it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct DeliveryView {
    /// The topup that the webhook reports.
    pub topup_id: String,
    /// The order of the topup.
    pub order_id: Uuid,
    /// The partner's own order id.
    pub external_order_id: String,
    /// The partner that receives the webhook.
    pub partner_id: Uuid,
    /// `pending`, `delivered`, `exhausted` or `no_endpoint`.
    pub state: String,
    /// The number of ended attempts.
    pub attempts: i32,
    /// When the last attempt began.
    #[serde(with = "time::serde::rfc3339::option")]
    pub attempted_at: Option<OffsetDateTime>,
    /// The HTTP status of the last response.
    pub status: Option<i32>,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// When the next attempt is due.
    #[serde(with = "time::serde::rfc3339::option")]
    pub due_at: Option<OffsetDateTime>,
    /// When the endpoint acknowledged the webhook.
    #[serde(with = "time::serde::rfc3339::option")]
    pub delivered_at: Option<OffsetDateTime>,
    /// When the topup became ready.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When its profile was erased: the webhook can't be sent again.
    #[serde(with = "time::serde::rfc3339::option")]
    pub erased_at: Option<OffsetDateTime>,
}

/// One attempt of a delivery.
#[derive(Clone, Debug, serde::Serialize)]
pub struct AttemptView {
    /// The number of attempts that ended before this one.
    pub attempt: i32,
    /// When the attempt began.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The duration in milliseconds.
    pub duration_ms: i32,
    /// The HTTP status of the response, if one arrived.
    pub status: Option<i32>,
    /// The result class: `delivered`, `status_5xx`, `timeout`, …
    pub class: String,
    /// The start of the response body, sealed for [`Purpose::Answer`](crate::vault::Purpose::Answer).
    #[serde(skip)]
    pub answer: Option<Vec<u8>>,
}

/// Conditions on deliveries; `None` matches all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter<'a> {
    /// The topup of the delivery.
    pub topup_id: Option<&'a TopupId>,
    /// The partner of the delivery.
    pub partner_id: Option<PartnerId>,
    /// The state of the delivery.
    pub state: Option<&'a str>,
    /// The earliest start of the last attempt; without an attempt, of the readiness.
    pub since: Option<OffsetDateTime>,
    /// The end of that range, exclusive.
    pub until: Option<OffsetDateTime>,
}

/// Lists the newest deliveries that match a filter, by topup id.
pub async fn list(
    connection: &mut PgConnection,
    filter: &Filter<'_>,
    limit: u32,
) -> Result<Vec<DeliveryView>, Error> {
    let deliveries = sqlx::query_as!(
        DeliveryView,
        r#"SELECT d.topup_id, o.order_id, o.external_order_id, d.partner_id, d.state, d.attempt AS attempts,
                  d.attempted_at, d.status, d.error, due.at AS "due_at?", d.delivered_at, d.created_at,
                  e.erased_at AS "erased_at?"
           FROM deliveries d
           JOIN topups t ON t.topup_id = d.topup_id
           JOIN placements p ON p.placement_id = t.placement_id
           JOIN orders o ON o.order_id = p.order_id
           LEFT JOIN delivery_due due ON due.topup_id = d.topup_id
           LEFT JOIN esims e ON e.topup_id = d.topup_id
           WHERE ($1::text IS NULL OR d.topup_id = $1) AND ($2::uuid IS NULL OR d.partner_id = $2)
             AND ($3::text IS NULL OR d.state = $3)
             AND ($4::timestamptz IS NULL OR greatest(d.attempted_at, d.created_at) >= $4)
             AND ($5::timestamptz IS NULL OR greatest(d.attempted_at, d.created_at) < $5)
           ORDER BY d.topup_id DESC LIMIT $6"#,
        filter.topup_id.map(TopupId::as_str),
        filter.partner_id.map(PartnerId::uuid),
        filter.state,
        filter.since,
        filter.until,
        i64::from(limit),
    )
    .fetch_all(connection)
    .await?;
    Ok(deliveries)
}

/// Lists the attempts of a delivery, in order.
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

/// The deliveries that a replay makes due.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Replayed {
    /// The number of all of them; each sends one webhook.
    pub replayed: i64,
    /// The number that was `delivered`.
    pub delivered: i64,
    /// The number that was `exhausted`.
    pub exhausted: i64,
    /// The number that was waiting for a retry.
    pub pending: i64,
    /// The start of the earliest last attempt; without an attempt, the time of readiness.
    #[serde(with = "time::serde::rfc3339::option")]
    pub oldest: Option<OffsetDateTime>,
    /// The start of the latest last attempt, by the same rule.
    #[serde(with = "time::serde::rfc3339::option")]
    pub newest: Option<OffsetDateTime>,
}

/// Makes the oldest deliveries that match a filter pending and due, at the start of the schedule; their
/// attempts stay. Pending deliveries match if they wait for a retry, not if they wait for a URL. Deliveries whose profile
/// was erased don't match.
pub async fn replay(
    connection: &mut PgConnection,
    filter: &Filter<'_>,
    limit: u32,
    mode: Mode<'_>,
) -> Result<Replayed, Error> {
    let mut transaction = connection.begin().await?;
    // A delivery that is due within 30 s may be leased, or is due soon enough.
    let replayed = sqlx::query_as!(
        Replayed,
        r#"WITH chosen AS MATERIALIZED (
             SELECT topup_id, partner_id, attempt, state, attempted_at, duration_ms, status, created_at
             FROM deliveries d
             WHERE ($1::text IS NULL OR topup_id = $1) AND ($2::uuid IS NULL OR partner_id = $2)
               AND ($3::text IS NULL OR state = $3)
               AND ($4::timestamptz IS NULL OR greatest(attempted_at, created_at) >= $4)
               AND ($5::timestamptz IS NULL OR greatest(attempted_at, created_at) < $5)
               AND (state IN ('delivered', 'exhausted')
                    OR (state = 'pending' AND attempt > 0
                        AND (SELECT at FROM delivery_due due WHERE due.topup_id = d.topup_id)
                            > now() + make_interval(secs => $6)))
               AND NOT EXISTS (SELECT FROM esims e WHERE e.topup_id = d.topup_id AND e.erased_at IS NOT NULL)
             ORDER BY topup_id LIMIT $7
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
         ), made_due AS (
             UPDATE deliveries d
             SET state = 'pending', schedule_start = d.attempt, delivered_at = NULL
             FROM chosen WHERE d.topup_id = chosen.topup_id
         )
         SELECT count(*) AS "replayed!",
                count(*) FILTER (WHERE state = 'delivered') AS "delivered!",
                count(*) FILTER (WHERE state = 'exhausted') AS "exhausted!",
                count(*) FILTER (WHERE state = 'pending') AS "pending!",
                min(greatest(attempted_at, created_at)) AS oldest, max(greatest(attempted_at, created_at)) AS newest
         FROM chosen"#,
        filter.topup_id.map(TopupId::as_str),
        filter.partner_id.map(PartnerId::uuid),
        filter.state,
        filter.since,
        filter.until,
        seconds(LONGEST_LEASE),
        i64::from(limit),
    )
    .fetch_one(&mut *transaction)
    .await?;
    actions::finish(transaction, mode, replayed.replayed).await?;
    Ok(replayed)
}
