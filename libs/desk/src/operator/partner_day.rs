//! What a partner did in the last day: its orders by the hour, how soon its eSIMs were ready, and
//! what was refused. Nothing counts that beforehand, so a bounded number of its newest rows is
//! read.

use std::collections::HashMap;

use accounts::refused;
use domain::PartnerId;
use pg::{Result, count};
use sqlx::PgConnection;
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::self_service::first_id;

/// The maximum number of orders that are counted.
pub const MOST_ORDERS: i64 = 10_000;
/// The newest orders whose times are read.
const TIMED: i64 = 500;
/// The id of an order is made shortly before PostgreSQL sets its time by another clock.
const SKEW: Duration = Duration::minutes(5);

/// The last 24 hours of a partner.
#[derive(Clone, Debug)]
pub struct PartnerDay {
    /// Its orders by the hour of their acceptance, the oldest first; hours without any are left
    /// out.
    pub hours: Vec<(OffsetDateTime, u64)>,
    /// Within how many seconds half of its newest eSIMs, and 95 % of them, were ready after their
    /// orders.
    pub half: Option<f64>,
    pub most: Option<f64>,
    /// How many of its requests were refused, and are still stored.
    pub refused: u64,
}

impl PartnerDay {
    pub fn orders(&self) -> u64 {
        self.hours.iter().map(|(_, orders)| orders).sum()
    }

    /// Whether there may be more orders than were counted.
    pub fn is_part(&self) -> bool {
        self.orders() >= count(MOST_ORDERS)
    }
}

/// Reads the last 24 hours of a partner.
pub async fn read(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    now: OffsetDateTime,
) -> Result<PartnerDay> {
    let since = now - Duration::hours(24);
    let first = first_id(since - SKEW);
    let query = sqlx::query!(
        r#"SELECT date_trunc('hour', created_at, 'UTC') AS "hour!", count(*) AS "orders!"
           FROM (SELECT created_at FROM orders
                 WHERE partner_id = $1 AND (partner_id, order_id) >= ($1, $2)
                 ORDER BY order_id DESC LIMIT $3) o
           WHERE created_at >= $4
           GROUP BY 1 ORDER BY 1"#,
        partner_id.uuid(),
        first,
        MOST_ORDERS,
        since,
    );
    let hours = query.fetch_all(&mut *connection).await?.into_iter();
    let hours = hours.map(|row| (row.hour, count(row.orders))).collect();
    let query = sqlx::query!(
        r#"SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY took) AS half,
                  percentile_disc(0.95) WITHIN GROUP (ORDER BY took) AS most
           FROM (SELECT extract(epoch FROM e.ready_at - o.created_at)::float8 AS took
                 FROM (SELECT order_id, created_at FROM orders
                       WHERE partner_id = $1 AND (partner_id, order_id) >= ($1, $2)
                       ORDER BY order_id DESC LIMIT $3) o
                 JOIN placements p ON p.order_id = o.order_id
                 JOIN topups t ON t.placement_id = p.placement_id
                 JOIN esims e ON e.topup_id = t.topup_id
                 WHERE e.ready_at IS NOT NULL AND o.created_at >= $4) times"#,
        partner_id.uuid(),
        first,
        TIMED,
        since,
    );
    let times = query.fetch_one(&mut *connection).await?;
    Ok(PartnerDay {
        hours,
        half: times.half,
        most: times.most,
        refused: refused::since(connection, partner_id, since).await?,
    })
}

/// The newest webhooks of a partner that are looked at for the last answers of its endpoints.
const ANSWERS: i64 = 500;

/// When an endpoint took a webhook last, and when it did not.
#[derive(Clone, Debug, Default)]
pub struct LastAnswers {
    pub taken_at: Option<OffsetDateTime>,
    pub failed_at: Option<OffsetDateTime>,
    /// What the last failure was.
    pub failure: Option<String>,
}

/// The last answers of each endpoint of a partner, among its newest webhooks, by endpoint. A
/// webhook whose try failed and whose next one was taken counts as taken only.
pub async fn last_answers(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<HashMap<Uuid, LastAnswers>> {
    let query = sqlx::query!(
        r#"SELECT coalesce(endpoint_id, partner_id) AS "endpoint_id!", max(delivered_at) AS taken_at,
                  max(attempted_at) FILTER (WHERE state <> 'delivered') AS failed_at,
                  (array_agg(error ORDER BY attempted_at DESC)
                       FILTER (WHERE state <> 'delivered' AND attempted_at IS NOT NULL))[1] AS failure
           FROM (SELECT endpoint_id, partner_id, state, delivered_at, attempted_at, error FROM deliveries
                 WHERE partner_id = $1 ORDER BY created_at DESC LIMIT $2) newest
           GROUP BY 1"#,
        partner_id.uuid(),
        ANSWERS,
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    let found = rows.map(|row| {
        let answers = LastAnswers {
            taken_at: row.taken_at,
            failed_at: row.failed_at,
            failure: row.failure,
        };
        (row.endpoint_id, answers)
    });
    Ok(found.collect())
}
