//! Deliveries: taken up by notifiers, recorded in batches.

use std::time::Duration;

use domain::{OptionId, OrderId, PartnerId, TopupId};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Error, age, endpoints::Breaker, seconds, signed, unsigned};

/// Which deliveries a notifier takes up. None of an endpoint that is blocked; of one whose block has
/// just ended, one that is due, as a probe.
#[derive(Clone, Copy, Debug)]
pub enum Take<'a> {
    /// First attempts of those that readiness events name. Costs no write: a delivery is born with a
    /// lease, and is skipped unless a whole attempt fits into what is left of it.
    First(&'a [TopupId]),
    /// Those that are due, whatever their attempt, by turns: who has the fewest under way comes first.
    Due(&'a Room),
}

/// How many deliveries may be taken up as due.
#[derive(Clone, Debug, Default)]
pub struct Room {
    /// Altogether.
    pub all: usize,
    /// The most of one partner, those under way included.
    pub per_partner: usize,
    /// How many requests may run to one host. None of its partners gets more than half of what is free
    /// there, nor all of them together in one go.
    pub per_host: usize,
    /// Partners that have deliveries under way, and how many.
    pub partners: Vec<(PartnerId, usize)>,
    /// Hosts that have requests under way, and how many.
    pub hosts: Vec<(String, usize)>,
}

/// A delivery to be attempted now.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// What it tells of; also the webhook's id, the same in every attempt.
    pub topup_id: TopupId,
    /// The order.
    pub order_id: OrderId,
    /// Whom it tells.
    pub partner_id: PartnerId,
    /// The partner's own order id.
    pub external_order_id: String,
    /// What was ordered.
    pub option_id: OptionId,
    /// The eSIM's number.
    pub iccid: String,
    /// The sealed profile.
    pub profile: Vec<u8>,
    /// Where to, if the partner has said so.
    pub webhook_url: Option<String>,
    /// The host of that URL.
    pub webhook_host: Option<String>,
    /// The partner's sealed webhook-signing key.
    pub webhook_secret: Vec<u8>,
    /// The one before it, while the overlap of a rotation lasts.
    pub old_webhook_secret: Option<Vec<u8>>,
    /// How many attempts have ended.
    pub attempt: u32,
    /// How many of them belong to earlier rounds: a replay begins the schedule again.
    pub schedule_start: u32,
    /// How long ago it was ordered.
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
            // Never null where a delivery exists. If one is, that is found when its profile is opened,
            // and concerns this delivery alone.
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

/// Takes deliveries up in one statement. What was taken as due is left alone by other notifiers until
/// `lease` has passed. A row that can't be read is logged and left out.
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
    // Turns are given without locks, or a partner's backlog would be locked for the few that get a
    // turn. What another notifier has taken meanwhile is skipped when the turn is theirs to be locked.
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

/// One attempt that has ended.
#[derive(Clone, Debug)]
pub struct Attempted {
    /// The delivery.
    pub topup_id: TopupId,
    /// Whose it is.
    pub partner_id: PartnerId,
    /// How many attempts had ended before this one.
    pub attempt: u32,
    /// When it began.
    pub at: OffsetDateTime,
    /// How long it took.
    pub duration: Duration,
    /// The answer's status, if there was an answer.
    pub status: Option<u16>,
    /// What kind of end that is, in a word.
    pub class: &'static str,
    /// The beginning of the answer, sealed; only of one that did not acknowledge.
    pub answer: Option<Vec<u8>>,
    /// What became of it.
    pub result: AttemptResult,
}

/// What became of one attempt.
#[derive(Clone, Debug)]
pub enum AttemptResult {
    /// The endpoint acknowledged it.
    Delivered,
    /// It failed.
    Failed {
        /// Why, without the URL and without anything of the answer.
        error: String,
        /// When to try again; `None` when the schedule has ended.
        retry_in: Option<Duration>,
        /// Whether the endpoint is what failed; it isn't where we could not make the webhook.
        endpoint: bool,
    },
}

/// Records a batch of attempts, and what they say of the endpoints. A result that somebody else has
/// recorded meanwhile changes nothing, except that a delivery which arrived is delivered. Recording the
/// same batch again changes nothing but the count of failures that may block an endpoint.
pub async fn record(
    connection: &mut PgConnection,
    attempts: &[Attempted],
    breaker: &Breaker,
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
        signed(breaker.failures),
        seconds(breaker.first),
        seconds(breaker.longest),
    )
    .execute(connection)
    .await?;
    Ok(vec![(); attempts.len()])
}

/// Attempts as the statement takes them: a column each.
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

/// Gives up, until a URL is set, on deliveries of partners that have none. The partners' rows are
/// locked and read here, so that a URL that is just being set is seen either here or by
/// [`crate::partners::set_webhook`].
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
