//! Deliveries: claimed by notifiers, recorded in batches.

use std::time::Duration;

use domain::{OptionId, OrderId, PartnerId, TopupId};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Error, age, endpoints::BlockPolicy, seconds, signed, unsigned};

/// The deliveries that a notifier claims. Deliveries of a blocked endpoint are skipped; after a block ends,
/// one due delivery is claimed as a probe.
#[derive(Clone, Copy, Debug)]
pub enum Take<'a> {
    /// First attempts of the deliveries that readiness events name. This claim writes nothing: a delivery has
    /// a lease from its creation. A delivery is skipped if a whole attempt does not fit into the rest of its
    /// lease.
    First(&'a [TopupId]),
    /// Due deliveries of any attempt, by turns: the partner with the fewest deliveries in flight comes first.
    Due(&'a Room),
}

/// How many due deliveries a notifier may claim.
#[derive(Clone, Debug, Default)]
pub struct Room {
    /// The limit over all partners.
    pub all: usize,
    /// The limit per partner, including deliveries in flight.
    pub per_partner: usize,
    /// The limit of requests in flight per host. One claim gives each partner, and all partners of a host
    /// together, at most half of the host's free slots.
    pub per_host: usize,
    /// Partners with deliveries in flight, and the number of those deliveries.
    pub partners: Vec<(PartnerId, usize)>,
    /// Hosts with requests in flight, and the number of those requests.
    pub hosts: Vec<(String, usize)>,
}

/// A claimed delivery.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The topup that is ready; also the webhook's id, the same in every attempt.
    pub topup_id: TopupId,
    pub order_id: OrderId,
    /// The partner that receives the webhook.
    pub partner_id: PartnerId,
    /// The partner's own order id.
    pub external_order_id: String,
    /// The ordered option.
    pub option_id: OptionId,
    /// The ICCID of the eSIM.
    pub iccid: String,
    /// The sealed profile.
    pub profile: Vec<u8>,
    /// The partner's webhook URL, if one is set.
    pub webhook_url: Option<String>,
    /// The host of that URL.
    pub webhook_host: Option<String>,
    /// The partner's sealed webhook-signing key.
    pub webhook_secret: Vec<u8>,
    /// The previous key, during the overlap of a rotation.
    pub old_webhook_secret: Option<Vec<u8>>,
    /// The number of ended attempts.
    pub attempt: u32,
    /// The number of attempts before the current schedule; a replay starts a new schedule.
    pub schedule_start: u32,
    /// The time since the order was stored.
    pub age: Duration,
    /// W3C trace context of the order's POST.
    pub traceparent: Option<String>,
}

struct Row {
    topup_id: String,
    order_id: Uuid,
    partner_id: Uuid,
    external_order_id: String,
    option_id: Uuid,
    iccid: Option<String>,
    profile: Option<Vec<u8>>,
    webhook_url: Option<String>,
    webhook_host: Option<String>,
    webhook_secret: Vec<u8>,
    old_webhook_secret: Option<Vec<u8>>,
    attempt: i32,
    schedule_start: i32,
    age: f64,
    traceparent: Option<String>,
}

impl TryFrom<Row> for Delivery {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self, Error> {
        Ok(Self {
            topup_id: row.topup_id.try_into()?,
            order_id: row.order_id.into(),
            partner_id: row.partner_id.into(),
            external_order_id: row.external_order_id,
            option_id: row.option_id.into(),
            // Never null where a delivery exists. If one is null, opening its profile fails, and only this
            // delivery is affected.
            iccid: row.iccid.unwrap_or_default(),
            profile: row.profile.unwrap_or_default(),
            webhook_url: row.webhook_url,
            webhook_host: row.webhook_host,
            webhook_secret: row.webhook_secret,
            old_webhook_secret: row.old_webhook_secret,
            attempt: unsigned(row.attempt),
            schedule_start: unsigned(row.schedule_start),
            age: age(row.age),
            traceparent: row.traceparent,
        })
    }
}

/// Claims deliveries in one statement. Other notifiers skip claimed due deliveries until `lease` has passed.
/// An unreadable row is logged and skipped.
pub async fn take(
    connection: &mut PgConnection,
    which: Take<'_>,
    lease: Duration,
) -> Result<Vec<Delivery>, Error> {
    let rows = match which {
        Take::First(topups) => take_first(connection, topups, lease).await?,
        Take::Due(room) => take_due(connection, room, lease).await?,
    };
    let readable = |row: Row| {
        let topup_id = row.topup_id.clone();
        Delivery::try_from(row)
            .inspect_err(|error| tracing::error!(topup.id = topup_id, %error, "a delivery cannot be read"))
            .ok()
    };
    Ok(rows.into_iter().filter_map(readable).collect())
}

async fn take_first(
    connection: &mut PgConnection,
    topups: &[TopupId],
    lease: Duration,
) -> Result<Vec<Row>, Error> {
    let topups: Vec<String> = topups.iter().map(TopupId::to_string).collect();
    let rows = sqlx::query_as!(
        Row,
        r#"SELECT d.topup_id, o.order_id, d.partner_id, o.external_order_id, t.option_id, t.iccid, t.profile,
                  p.webhook_url, p.webhook_host, p.webhook_secret,
                  CASE WHEN p.old_webhook_secret_until > now() THEN p.old_webhook_secret END AS old_webhook_secret,
                  d.attempt, d.schedule_start,
                  extract(epoch FROM now() - o.created_at)::float8 AS "age!", o.traceparent
           FROM deliveries d
           JOIN topups t ON t.topup_id = d.topup_id
           JOIN orders o ON o.order_id = t.order_id
           JOIN partners p ON p.partner_id = d.partner_id
           WHERE d.topup_id = ANY($1) AND d.state = 'pending' AND d.attempt = 0
             AND d.redrive_at > now() + make_interval(secs => $2)
             AND NOT EXISTS (
                 SELECT FROM endpoints e WHERE e.partner_id = d.partner_id AND e.blocked_until IS NOT NULL)"#,
        &topups,
        seconds(lease),
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

async fn take_due(connection: &mut PgConnection, room: &Room, lease: Duration) -> Result<Vec<Row>, Error> {
    let partners: Vec<Uuid> = room.partners.iter().map(|(partner, _)| partner.uuid()).collect();
    let partner_counts: Vec<i32> = room.partners.iter().map(|(_, count)| signed(*count)).collect();
    let hosts: Vec<String> = room.hosts.iter().map(|(host, _)| host.clone()).collect();
    let host_counts: Vec<i32> = room.hosts.iter().map(|(_, count)| signed(*count)).collect();
    // The turns are computed without locks: otherwise the query would lock a partner's whole backlog for a
    // few claimed rows. Rows that another notifier has locked since then are skipped.
    let rows = sqlx::query_as!(
        Row,
        r#"WITH turn AS (
               SELECT late.topup_id, coalesce(p.webhook_host, p.partner_id::text) AS host, host.free,
                      coalesce(busy.count, 0) + row_number() OVER (PARTITION BY p.partner_id ORDER BY late.redrive_at)
                          AS turn
               FROM partners p
               LEFT JOIN endpoints e ON e.partner_id = p.partner_id
               LEFT JOIN unnest($1::uuid[], $2::int[]) AS busy(partner_id, count) ON busy.partner_id = p.partner_id
               LEFT JOIN unnest($3::text[], $4::int[]) AS crowd(host, count) ON crowd.host = p.webhook_host
               CROSS JOIN LATERAL (SELECT $5::bigint - coalesce(crowd.count, 0) AS free) host
               CROSS JOIN LATERAL (
                   SELECT topup_id, redrive_at FROM deliveries d
                   WHERE d.partner_id = p.partner_id AND d.redrive_at <= now()
                   ORDER BY d.redrive_at
                   LIMIT CASE WHEN e.blocked_until IS NULL
                              THEN least($7::bigint, greatest(0, least($6::bigint, greatest(1, host.free / 2))
                                                                 - coalesce(busy.count, 0)))
                              ELSE 1 END
               ) late
               WHERE host.free > 0 AND (e.blocked_until IS NULL OR e.blocked_until <= now())
           ), host_turn AS (
               SELECT topup_id, turn, free, row_number() OVER (PARTITION BY host ORDER BY turn) AS host_turn FROM turn
           ), fair AS MATERIALIZED (
               SELECT topup_id FROM host_turn WHERE host_turn <= greatest(1, free / 2)
               ORDER BY turn, host_turn LIMIT $7::bigint
           ), due AS MATERIALIZED (
               SELECT d.topup_id, d.partner_id FROM fair JOIN deliveries d ON d.topup_id = fair.topup_id
               WHERE d.redrive_at <= now()
               FOR UPDATE OF d SKIP LOCKED
           ), claimed AS (
               UPDATE deliveries d SET redrive_at = now() + make_interval(secs => $8)
               FROM due WHERE d.topup_id = due.topup_id
           ), probing AS (
               UPDATE endpoints e SET blocked_until = now() + make_interval(secs => $8), probe = due.topup_id
               FROM due WHERE e.partner_id = due.partner_id AND e.blocked_until <= now()
           )
           SELECT d.topup_id, o.order_id, d.partner_id, o.external_order_id, t.option_id, t.iccid, t.profile,
                  p.webhook_url, p.webhook_host, p.webhook_secret,
                  CASE WHEN p.old_webhook_secret_until > now() THEN p.old_webhook_secret END AS old_webhook_secret,
                  d.attempt, d.schedule_start,
                  extract(epoch FROM now() - o.created_at)::float8 AS "age!", o.traceparent
           FROM due
           JOIN deliveries d ON d.topup_id = due.topup_id
           JOIN topups t ON t.topup_id = due.topup_id
           JOIN orders o ON o.order_id = t.order_id
           JOIN partners p ON p.partner_id = d.partner_id"#,
        &partners,
        &partner_counts,
        &hosts,
        &host_counts,
        i64::try_from(room.per_host).unwrap_or(i64::MAX),
        i64::try_from(room.per_partner).unwrap_or(i64::MAX),
        i64::try_from(room.all).unwrap_or(i64::MAX),
        seconds(lease),
    )
    .fetch_all(connection)
    .await?;
    Ok(rows)
}

/// One ended attempt.
#[derive(Clone, Debug)]
pub struct Attempted {
    /// The topup of the delivery.
    pub topup_id: TopupId,
    /// The partner that owns the delivery.
    pub partner_id: PartnerId,
    /// The number of attempts that ended before this one.
    pub attempt: u32,
    /// When the attempt began.
    pub at: OffsetDateTime,
    /// The duration of the attempt.
    pub duration: Duration,
    /// The HTTP status of the response, if one arrived.
    pub status: Option<u16>,
    /// The result class, one word.
    pub class: &'static str,
    /// The start of the response body, sealed; only if the endpoint did not acknowledge.
    pub answer: Option<Vec<u8>>,
    /// The result of the attempt.
    pub result: AttemptResult,
}

/// The result of one attempt.
#[derive(Clone, Debug)]
pub enum AttemptResult {
    /// The endpoint acknowledged the webhook.
    Delivered,
    /// The attempt failed.
    Failed {
        /// The cause, without the URL and without response text.
        error: String,
        /// The delay until the next attempt; `None` after the end of the schedule.
        retry_in: Option<Duration>,
        /// Whether the endpoint failed; false if the webhook could not be built.
        endpoint: bool,
    },
}

/// Records a batch of attempts and their effect on the endpoints. If another process recorded a result first,
/// this result changes nothing, except that an acknowledged delivery becomes delivered. Recording the same
/// batch again changes only the failure count that may block an endpoint.
pub async fn record(
    connection: &mut PgConnection,
    attempts: &[Attempted],
    policy: &BlockPolicy,
) -> Result<Vec<()>, Error> {
    let batch = Batch::of(attempts);
    sqlx::query!(
        "WITH new AS MATERIALIZED (
             SELECT * FROM unnest($1::text[], $2::uuid[], $3::int[], $4::timestamptz[], $5::int[], $6::int[],
                                  $7::text[], $8::bytea[], $9::text[], $10::text[], $11::float8[], $12::bool[])
                 AS new(topup_id, partner_id, attempt, at, duration_ms, status, class, answer, state, error,
                        retry_in, endpoint)
         ), moved AS (
             UPDATE deliveries d
             SET state = new.state, attempt = d.attempt + 1, attempted_at = new.at, duration_ms = new.duration_ms,
                 status = new.status, error = new.error, redrive_at = now() + make_interval(secs => new.retry_in),
                 delivered_at = CASE WHEN new.state = 'delivered' THEN now() END
             FROM new
             WHERE d.topup_id = new.topup_id
               AND ((d.state = 'pending' AND d.attempt = new.attempt)
                    OR (new.state = 'delivered' AND d.state <> 'delivered'))
         ), kept AS (
             INSERT INTO delivery_attempts (topup_id, attempt, at, duration_ms, status, class, answer)
             SELECT topup_id, attempt, at, duration_ms, status, class, answer FROM new WHERE state <> 'delivered'
             ON CONFLICT DO NOTHING
         ), heard AS MATERIALIZED (
             SELECT partner_id, bool_or(state = 'delivered') AS answers, array_agg(topup_id) AS topups,
                    count(*) FILTER (WHERE endpoint)::int AS failed
             FROM new GROUP BY partner_id
         ), closed AS (
             UPDATE endpoints e SET failures = 0, blocks = 0, blocked_until = NULL, probe = NULL
             FROM heard
             WHERE heard.answers AND e.partner_id = heard.partner_id
               AND (e.failures > 0 OR e.blocked_until IS NOT NULL)
               AND e.blocked_until IS DISTINCT FROM 'infinity'
         )
         INSERT INTO endpoints AS e (partner_id, failures, blocks, blocked_until, probe)
         SELECT partner_id, failed, (failed >= $13)::int,
                CASE WHEN failed >= $13 THEN now() + make_interval(secs => $14::float8) END,
                (SELECT probe FROM endpoints e WHERE e.partner_id = heard.partner_id AND e.probe = ANY(heard.topups))
         FROM heard WHERE NOT answers AND failed > 0 AND $13::int > 0
         ORDER BY partner_id
         ON CONFLICT (partner_id) DO UPDATE
         SET failures = e.failures + excluded.failures,
             blocks = e.blocks + (e.probe IS NOT NULL OR e.failures + excluded.failures >= $13)::int,
             blocked_until = CASE WHEN e.probe IS NOT NULL OR e.failures + excluded.failures >= $13
                                  THEN now() + make_interval(secs => least($15::float8, $14::float8 * 2::float8 ^ least(e.blocks, 30))) END,
             probe = NULL
         WHERE e.blocked_until IS NULL OR (e.blocked_until < 'infinity' AND e.probe = excluded.probe)",
        &batch.topups,
        &batch.partners,
        &batch.attempts,
        &batch.at,
        &batch.durations,
        &batch.statuses as &[Option<i32>],
        &batch.classes as &[&str],
        &batch.answers as &[Option<Vec<u8>>],
        &batch.states as &[&str],
        &batch.errors as &[Option<String>],
        &batch.retries as &[Option<f64>],
        &batch.endpoints,
        signed(policy.failures),
        seconds(policy.first),
        seconds(policy.longest),
    )
    .execute(connection)
    .await?;
    Ok(vec![(); attempts.len()])
}

/// Attempts in the shape of the statement: one vector per column.
#[derive(Default)]
struct Batch {
    topups: Vec<String>,
    partners: Vec<Uuid>,
    attempts: Vec<i32>,
    at: Vec<OffsetDateTime>,
    durations: Vec<i32>,
    statuses: Vec<Option<i32>>,
    classes: Vec<&'static str>,
    answers: Vec<Option<Vec<u8>>>,
    states: Vec<&'static str>,
    errors: Vec<Option<String>>,
    retries: Vec<Option<f64>>,
    endpoints: Vec<bool>,
}

impl Batch {
    fn of(attempts: &[Attempted]) -> Self {
        let mut batch = Self::default();
        for attempted in attempts {
            let (state, error, retry_in, endpoint) = match &attempted.result {
                AttemptResult::Delivered => ("delivered", None, None, false),
                AttemptResult::Failed {
                    error,
                    retry_in,
                    endpoint,
                } => {
                    let state = if retry_in.is_some() {
                        "pending"
                    } else {
                        "exhausted"
                    };
                    (state, Some(error.clone()), *retry_in, *endpoint)
                }
            };
            batch.topups.push(attempted.topup_id.to_string());
            batch.partners.push(attempted.partner_id.uuid());
            batch.attempts.push(signed(attempted.attempt));
            batch.at.push(attempted.at);
            batch.durations.push(signed(attempted.duration.as_millis()));
            batch.statuses.push(attempted.status.map(i32::from));
            batch.classes.push(attempted.class);
            batch.answers.push(attempted.answer.clone());
            batch.states.push(state);
            batch.errors.push(error);
            batch.retries.push(retry_in.map(seconds));
            batch.endpoints.push(endpoint);
        }
        batch
    }
}

/// Moves deliveries of partners without a URL to `no_endpoint`. The statement locks and reads the partners'
/// rows: either this statement or [`crate::partners::set_webhook`] sees a URL that is set at the same time.
pub async fn set_no_endpoint(connection: &mut PgConnection, topups: &[TopupId]) -> Result<u64, Error> {
    let topups: Vec<String> = topups.iter().map(TopupId::to_string).collect();
    let done = sqlx::query!(
        "WITH without AS (
             SELECT partner_id FROM partners
             WHERE webhook_url IS NULL
               AND partner_id IN (SELECT partner_id FROM deliveries WHERE topup_id = ANY($1))
             FOR SHARE
         )
         UPDATE deliveries d SET state = 'no_endpoint', redrive_at = NULL
         FROM without
         WHERE d.partner_id = without.partner_id AND d.topup_id = ANY($1) AND d.state = 'pending'",
        &topups,
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
