//! What a partner got in the last day: its orders by the hour, those that were taken and those that
//! were not, how soon its eSIMs were ready, and what was refused. Nothing counts its orders
//! beforehand, so a bounded number of its newest rows is read.

use std::collections::{BTreeMap, HashMap};

use accounts::refused;
use domain::PartnerId;
use pg::{Result, count};
use sqlx::PgConnection;
use store::figures::{self, Measure};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::self_service::first_id;

/// The maximum number of orders that are counted.
pub const MOST_ORDERS: i64 = 10_000;
/// The newest orders whose times are read.
const TIMED: i64 = 500;
/// The id of an order is made shortly before PostgreSQL sets its time by another clock.
const SKEW: Duration = Duration::minutes(5);
const HOURS: i32 = 24;

/// What a partner got in an hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartnerHour {
    /// Its orders that were stored.
    pub orders: u64,
    /// Those of them that were not refused.
    pub taken: u64,
    /// Its requests for orders that were answered with an error.
    pub failed: u64,
}

/// The last 24 hours of a partner.
#[derive(Clone, Debug, Default)]
pub struct PartnerDay {
    /// The hours in which a request for an order came.
    pub hours: BTreeMap<OffsetDateTime, PartnerHour>,
    /// How many of its requests were above its limits, and had no valid key or signature.
    pub limited: u64,
    pub denied: u64,
    /// The providers of its newest eSIMs.
    pub providers: Vec<String>,
    /// Within how many seconds half of its newest eSIMs, and 95 % of them, were ready after their
    /// orders.
    pub half: Option<f64>,
    pub most: Option<f64>,
    /// How many of its requests were refused, and are still stored.
    pub refused: u64,
}

impl PartnerDay {
    pub fn orders(&self) -> u64 {
        self.hours.values().map(|hour| hour.orders).sum()
    }

    /// Its orders that were taken, and all that it sent.
    pub fn taken(&self) -> (u64, u64) {
        let hours = self.hours.values();
        hours.fold((0, 0), |(taken, all), hour| {
            (taken + hour.taken, all + hour.taken + hour.failed)
        })
    }

    /// The newest hour in which it sent an order.
    pub fn newest(&self) -> Option<(OffsetDateTime, PartnerHour)> {
        let mut hours = self.hours.iter().rev();
        let (at, hour) = hours.find(|(_, hour)| hour.taken + hour.failed > 0)?;
        Some((*at, *hour))
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
        r#"SELECT date_trunc('hour', created_at, 'UTC') AS "hour!", count(*) AS "orders!",
                  count(*) FILTER (WHERE refused_at IS NULL) AS "taken!"
           FROM (SELECT created_at, refused_at FROM orders
                 WHERE partner_id = $1 AND (partner_id, order_id) >= ($1, $2)
                 ORDER BY order_id DESC LIMIT $3) o
           WHERE created_at >= $4
           GROUP BY 1 ORDER BY 1"#,
        partner_id.uuid(),
        first,
        MOST_ORDERS,
        since,
    );
    let mut day = PartnerDay::default();
    for row in query.fetch_all(&mut *connection).await? {
        let hour = day.hours.entry(row.hour).or_default();
        hour.orders = count(row.orders);
        hour.taken = count(row.taken);
    }
    let counted_since = if day.is_part() {
        day.hours.keys().next().copied()
    } else {
        None
    };
    for one in figures::outcomes_of(&mut *connection, partner_id.uuid(), HOURS).await? {
        match one.measure {
            Measure::Denied => day.denied += one.n,
            Measure::Errors | Measure::Refused | Measure::Invalid | Measure::Limited => {
                if one.measure == Measure::Limited {
                    day.limited += one.n;
                }
                // Before the orders that were counted, the failures would stand alone.
                if counted_since.is_none_or(|since| one.at >= since) {
                    day.hours.entry(one.at).or_default().failed += one.n;
                }
            }
            _ => {}
        }
    }
    let query = sqlx::query!(
        r#"SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY took) AS half,
                  percentile_disc(0.95) WITHIN GROUP (ORDER BY took) AS most,
                  array_agg(DISTINCT provider) AS providers
           FROM (SELECT extract(epoch FROM e.ready_at - o.created_at)::float8 AS took, p.provider
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
    day.half = times.half;
    day.most = times.most;
    day.providers = times.providers.unwrap_or_default();
    day.refused = refused::since(connection, partner_id, since).await?;
    Ok(day)
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
