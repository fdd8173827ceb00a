//! Deliveries and their attempts as operators see them, and replays.

use domain::{PartnerId, TopupId, WebhookId};
use sqlx::{Connection, PgConnection};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use super::actions::{self, Mode};
use crate::{Result, endpoints::LONGEST_LEASE, seconds};

#[derive(Clone, Debug, serde::Serialize)]
pub struct DeliveryView {
    pub topup_id: String,
    pub order_id: Uuid,
    pub external_order_id: String,
    pub partner_id: Uuid,
    /// `pending`, `delivered`, `exhausted` or `no_endpoint`.
    pub state: String,
    /// The number of ended attempts.
    pub attempts: i32,
    /// When the last attempt began.
    #[serde(with = "time::serde::rfc3339::option")]
    pub attempted_at: Option<OffsetDateTime>,
    pub status: Option<i32>,
    /// Why the last attempt failed.
    pub error: Option<String>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub due_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub delivered_at: Option<OffsetDateTime>,
    /// When the topup became ready.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When its profile was erased: the webhook can't be sent again.
    #[serde(with = "time::serde::rfc3339::option")]
    pub erased_at: Option<OffsetDateTime>,
}

#[derive(Clone, Debug, serde::Serialize)]
pub struct AttemptView {
    /// The number of attempts that ended before this one.
    pub attempt: i32,
    /// When the attempt began.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
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
    pub topup_id: Option<&'a TopupId>,
    pub partner_id: Option<PartnerId>,
    pub state: Option<&'a str>,
    /// The earliest start of the last attempt; without an attempt, of the readiness.
    pub since: Option<OffsetDateTime>,
    /// The end of that range, exclusive.
    pub until: Option<OffsetDateTime>,
}

/// Lists the newest deliveries that match a filter: exhausted ones and those without an endpoint by topup id, a
/// partner's by the time of readiness, all others by topup id.
pub async fn list(connection: &mut PgConnection, filter: &Filter<'_>, limit: u32) -> Result<Vec<DeliveryView>> {
    let chosen = find(connection, filter, Order::NewestFirst, limit).await?;
    let views = sqlx::query_as!(
        DeliveryView,
        r#"SELECT d.topup_id, o.order_id, o.external_order_id, d.partner_id, d.state, d.attempt AS attempts,
                  d.attempted_at, d.status, d.error, (SELECT at FROM delivery_due due WHERE due.topup_id = d.topup_id) AS "due_at?", d.delivered_at, d.created_at,
                  e.erased_at AS "erased_at?"
           FROM deliveries d
           JOIN topups t ON t.topup_id = d.topup_id
           JOIN placements p ON p.placement_id = t.placement_id
           JOIN orders o ON o.order_id = p.order_id
           LEFT JOIN esims e ON e.topup_id = d.topup_id
           WHERE d.topup_id = ANY ($1)
           ORDER BY array_position($1, d.topup_id)"#,
        &chosen,
    );
    Ok(views.fetch_all(connection).await?)
}

/// The rows of one look at the history, which bounds its cost.
const LOOK: i64 = 5_000;
/// A range of attempts also covers deliveries that were ready this long before it.
const REACH: Duration = Duration::days(7);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    NewestFirst,
    OldestFirst,
}

/// The values that a filter compares.
struct Seen {
    topup_id: String,
    state: String,
    attempted_at: Option<OffsetDateTime>,
    created_at: OffsetDateTime,
}

impl Filter<'_> {
    fn matches(&self, seen: &Seen) -> bool {
        let at = seen.attempted_at.map_or(seen.created_at, |at| at.max(seen.created_at));
        self.state.is_none_or(|state| state == seen.state)
            && self.since.is_none_or(|since| at >= since)
            && self.until.is_none_or(|until| at < until)
    }

    /// The earliest readiness of a delivery that can match.
    fn reach(&self) -> OffsetDateTime {
        self.since.map_or(OffsetDateTime::UNIX_EPOCH, |since| since - REACH)
    }
}

/// The first `limit` topups that match, found by an index in bounded looks.
async fn find(connection: &mut PgConnection, filter: &Filter<'_>, order: Order, limit: u32) -> Result<Vec<String>> {
    if let Some(topup_id) = filter.topup_id {
        return Ok(vec![topup_id.to_string()]);
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if let Some(state @ ("exhausted" | "no_endpoint")) = filter.state {
        let mut held = held(connection, filter.partner_id, state).await?;
        held.retain(|seen| filter.matches(seen));
        if order == Order::OldestFirst {
            held.reverse();
        }
        return Ok(held.into_iter().take(limit).map(|seen| seen.topup_id).collect());
    }
    let mut found = Vec::new();
    let mut last: Option<Seen> = None;
    while found.len() < limit {
        let rows = match filter.partner_id {
            Some(partner) => of_partner(connection, partner, filter, order, last.as_ref()).await?,
            None => all(connection, filter, last.as_ref()).await?,
        };
        let full = i64::try_from(rows.len()) == Ok(LOOK);
        for seen in rows {
            if filter.matches(&seen) && found.len() < limit {
                found.push(seen.topup_id.clone());
            }
            last = Some(seen);
        }
        if !full {
            break;
        }
    }
    Ok(found)
}

/// Deliveries that wait for an operator or a URL, newest topups first; at most 100,000 of a partner, 10,000 of all.
async fn held(connection: &mut PgConnection, partner_id: Option<PartnerId>, state: &str) -> Result<Vec<Seen>> {
    let held = match partner_id {
        Some(partner_id) => {
            sqlx::query_scalar!(
                "SELECT topup_id FROM delivery_held WHERE partner_id = $1 AND state = $2 LIMIT 100000",
                partner_id.uuid(),
                state,
            )
            .fetch_all(&mut *connection)
            .await?
        }
        None => {
            sqlx::query_scalar!(
                "SELECT topup_id FROM delivery_held WHERE state = $1 ORDER BY at DESC LIMIT 10000",
                state,
            )
            .fetch_all(&mut *connection)
            .await?
        }
    };
    let mut seen = Vec::with_capacity(held.len());
    for part in held.chunks(1_000) {
        let rows = sqlx::query_as!(
            Seen,
            "SELECT topup_id, state, attempted_at, created_at FROM deliveries WHERE topup_id = ANY ($1)",
            part,
        );
        seen.extend(rows.fetch_all(&mut *connection).await?);
    }
    seen.sort_unstable_by(|one, other| other.topup_id.cmp(&one.topup_id));
    Ok(seen)
}

/// A partner's deliveries in the order of their readiness, after `last`.
async fn of_partner(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    filter: &Filter<'_>,
    order: Order,
    last: Option<&Seen>,
) -> Result<Vec<Seen>> {
    let last_id = last.map_or("", |seen| seen.topup_id.as_str());
    let last_at = last.map(|seen| seen.created_at);
    Ok(match order {
        Order::NewestFirst => {
            sqlx::query_as!(
                Seen,
                "SELECT topup_id, state, attempted_at, created_at FROM deliveries
                 WHERE partner_id = $1 AND created_at >= $2 AND created_at <= coalesce($3, 'infinity'::timestamptz)
                   AND (created_at < coalesce($3, 'infinity'::timestamptz) OR topup_id < $4)
                 ORDER BY created_at DESC, topup_id DESC LIMIT $5",
                partner_id.uuid(),
                filter.reach(),
                last_at,
                last_id,
                LOOK,
            )
            .fetch_all(connection)
            .await?
        }
        Order::OldestFirst => {
            sqlx::query_as!(
                Seen,
                "SELECT topup_id, state, attempted_at, created_at FROM deliveries
                 WHERE partner_id = $1 AND created_at >= $2 AND created_at < coalesce($3, 'infinity'::timestamptz)
                   AND (created_at > $2 OR topup_id > $4)
                 ORDER BY created_at, topup_id LIMIT $5",
                partner_id.uuid(),
                last_at.unwrap_or_else(|| filter.reach()),
                filter.until,
                last_id,
                LOOK,
            )
            .fetch_all(connection)
            .await?
        }
    })
}

/// The newest topups of all partners: a topup id begins with the time of its order.
async fn all(connection: &mut PgConnection, filter: &Filter<'_>, last: Option<&Seen>) -> Result<Vec<Seen>> {
    let rows = sqlx::query_as!(
        Seen,
        "SELECT topup_id, state, attempted_at, created_at FROM deliveries
         WHERE topup_id < $1 AND topup_id >= to_char($2::timestamptz AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISS')
         ORDER BY topup_id DESC LIMIT $3",
        last.map_or("A", |seen| seen.topup_id.as_str()),
        filter.reach(),
        LOOK,
    );
    Ok(rows.fetch_all(connection).await?)
}

/// The newest attempts of a delivery, at most `most`, in order.
pub async fn attempts(connection: &mut PgConnection, id: &WebhookId, most: i64) -> Result<Vec<AttemptView>> {
    let attempts = sqlx::query_as!(
        AttemptView,
        r#"SELECT attempt AS "attempt!", at AS "at!", duration_ms AS "duration_ms!", status, class AS "class!", answer
           FROM (
               SELECT attempt, at, duration_ms, status, class, answer FROM delivery_attempts WHERE topup_id = $1
               UNION ALL SELECT attempt - 1, attempted_at, coalesce(duration_ms, 0), status, 'delivered', NULL
               FROM deliveries WHERE topup_id = $1 AND state = 'delivered' AND attempted_at IS NOT NULL
           ) attempts ORDER BY 1 DESC, 2 DESC LIMIT $2"#,
        id.as_str(),
        most,
    );
    let mut attempts = attempts.fetch_all(connection).await?;
    attempts.reverse();
    Ok(attempts)
}

/// The numbers of deliveries that a replay makes due.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Replayed {
    /// All of them; each sends one webhook.
    pub replayed: i64,
    pub delivered: i64,
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
) -> Result<Replayed> {
    let mut transaction = connection.begin().await?;
    let topups = find(&mut transaction, filter, Order::OldestFirst, limit).await?;
    // A delivery that is due within 30 s may be leased, or is due soon enough.
    let query = sqlx::query_as!(
        Replayed,
        r#"WITH chosen AS MATERIALIZED (
             SELECT topup_id, partner_id, attempt, state, attempted_at, duration_ms, status, created_at
             FROM deliveries d
             WHERE topup_id = ANY ($1) AND ($2::text IS NULL OR state = $2)
               AND ($4::uuid IS NULL OR partner_id = $4)
               AND ($5::timestamptz IS NULL OR greatest(attempted_at, created_at) >= $5)
               AND ($6::timestamptz IS NULL OR greatest(attempted_at, created_at) < $6)
               AND (state IN ('delivered', 'exhausted')
                    OR (state = 'pending' AND attempt > 0
                        AND (SELECT at FROM delivery_due due WHERE due.topup_id = d.topup_id)
                            > now() + make_interval(secs => $3)))
               AND NOT EXISTS (SELECT FROM esims e WHERE e.topup_id = d.topup_id AND e.erased_at IS NOT NULL)
             ORDER BY topup_id FOR UPDATE
         ), kept AS (
             INSERT INTO delivery_attempts (topup_id, attempt, at, duration_ms, status, class)
             SELECT topup_id, attempt - 1, attempted_at, coalesce(duration_ms, 0), status, 'delivered'
             FROM chosen WHERE state = 'delivered' AND attempted_at IS NOT NULL ON CONFLICT DO NOTHING
         ), due AS (
             INSERT INTO delivery_due AS due (topup_id, partner_id, at) SELECT topup_id, partner_id, now() FROM chosen
             ON CONFLICT (topup_id) DO UPDATE SET at = excluded.at
         ), free AS (
             DELETE FROM delivery_held WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM chosen))
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
        &topups,
        filter.state,
        seconds(LONGEST_LEASE),
        filter.partner_id.map(PartnerId::uuid),
        filter.since,
        filter.until,
    );
    let replayed = query.fetch_one(&mut *transaction).await?;
    actions::finish(transaction, mode, replayed.replayed).await?;
    Ok(replayed)
}
