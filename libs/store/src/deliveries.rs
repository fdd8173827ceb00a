//! Deliveries: found when due, leased, read by notifiers, recorded in batches.
//!
//! A delivery is the specified webhook of a topup or another [event](crate::events). Both kinds share the due rows, the
//! leases, the blocks of endpoints and the attempts, under the id of the delivery (columns named `topup_id`).

mod read;

use std::time::Duration;

use domain::{PartnerId, WebhookId};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

pub use self::read::{Content, Delivery, Esim, Read, read};
use crate::{
    Error, Result,
    endpoints::BlockPolicy,
    retry_conflicts, seconds, signed,
    sweep::{Fence, Swept},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueDelivery {
    pub id: WebhookId,
    pub partner_id: PartnerId,
}

/// The start and the size of a look at due deliveries. Its work is bounded by `limit`, not by the number of stored rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeliveryPage {
    /// The most deliveries to return, and the most partners to look at.
    pub limit: usize,
    /// The most deliveries of one partner.
    pub per_partner: usize,
    /// The look begins after this partner.
    pub after: Option<PartnerId>,
}

/// The result of a look at due deliveries.
#[derive(Clone, Debug, Default)]
pub struct FoundDeliveries {
    /// The oldest due deliveries of each partner, by turns. Nothing is claimed yet.
    pub due: Vec<DueDelivery>,
    /// The start of the next look; `None` after the last partner.
    pub after: Option<PartnerId>,
}

/// Looks for due deliveries. Deliveries of a blocked endpoint are skipped, except tests, which are due at `-infinity`;
/// after a block ends, one due delivery is found as a probe. Changes nothing.
pub async fn due(connection: &mut PgConnection, page: &DeliveryPage) -> Result<FoundDeliveries> {
    let limit = signed(page.limit);
    // Walks from partner to partner by index: a partner without due rows costs nothing.
    let query = sqlx::query!(
        r#"WITH RECURSIVE partner (partner_id, nth) AS (
               (SELECT partner_id, 1 FROM delivery_due WHERE partner_id > $1 ORDER BY partner_id LIMIT 1)
               UNION ALL SELECT next.partner_id, partner.nth + 1
               FROM partner CROSS JOIN LATERAL (
                   SELECT d.partner_id FROM delivery_due d WHERE d.partner_id > partner.partner_id
                   ORDER BY d.partner_id LIMIT 1
               ) next WHERE partner.nth < $2
           )
           SELECT partner.partner_id AS "partner_id!", partner.nth AS "nth!", late.topup_id AS "topup_id?"
           FROM partner
           LEFT JOIN endpoints e ON e.partner_id = partner.partner_id
           LEFT JOIN LATERAL (
               SELECT d.topup_id, row_number() OVER (ORDER BY d.at) AS turn
               FROM (SELECT topup_id, at FROM delivery_due d
                     WHERE d.partner_id = partner.partner_id
                       AND d.at <= CASE WHEN e.blocked_until > now() THEN '-infinity' ELSE now() END
                     ORDER BY d.at LIMIT CASE WHEN e.blocked_until IS NULL THEN $3::bigint ELSE 1 END) d
           ) late ON true
           ORDER BY late.turn, partner.nth"#,
        page.after.map_or_else(Uuid::nil, PartnerId::uuid),
        limit,
        i64::try_from(page.per_partner).unwrap_or(i64::MAX),
    );
    let rows = query.fetch_all(connection).await?;
    let after = rows.iter().find(|row| row.nth >= limit).map(|row| row.partner_id.into());
    let due = rows
        .into_iter()
        .filter_map(|row| Some(DueDelivery { id: row.topup_id?.try_into().ok()?, partner_id: row.partner_id.into() }))
        .take(page.limit)
        .collect();
    Ok(FoundDeliveries { due, after })
}

/// Leases due deliveries: no other process claims them until `lease` has passed. A delivery of an endpoint whose block
/// has ended becomes its probe. Returns those that this process leased.
pub async fn lease(connection: &mut PgConnection, ids: &[WebhookId], lease: Duration) -> Result<Vec<WebhookId>> {
    let ids: Vec<&str> = ids.iter().map(WebhookId::as_str).collect();
    let query = sqlx::query_scalar!(
        "WITH mine AS MATERIALIZED (
             SELECT topup_id, partner_id FROM delivery_due
             WHERE topup_id = ANY ($1) AND at <= now() FOR UPDATE SKIP LOCKED
         ), probing AS (
             UPDATE endpoints e
             SET blocked_until = now() + make_interval(secs => $2),
                 probe = (SELECT min(topup_id) FROM mine WHERE mine.partner_id = e.partner_id)
             WHERE e.partner_id = ANY (ARRAY (SELECT partner_id FROM mine)) AND e.blocked_until <= now()
         )
         UPDATE delivery_due SET at = now() + make_interval(secs => $2)
         WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM mine)) RETURNING topup_id",
        &ids as &[&str],
        seconds(lease),
    );
    query.fetch_all(connection).await?.into_iter().map(|id| Ok(id.try_into()?)).collect()
}

/// Inserts a due row, due now, for each of these pending deliveries. One that has a due row keeps it.
pub async fn defer(connection: &mut PgConnection, ids: &[WebhookId]) -> Result<()> {
    let ids: Vec<&str> = ids.iter().map(WebhookId::as_str).collect();
    retry_conflicts!(async {
        let statement = sqlx::query!(
            "INSERT INTO delivery_due (topup_id, partner_id, at)
             SELECT topup_id, partner_id, now() FROM deliveries
             WHERE topup_id = ANY ($1) AND state = 'pending' ORDER BY topup_id ON CONFLICT DO NOTHING",
            &ids as &[&str],
        );
        statement.execute(&mut *connection).await?;
        Ok::<_, Error>(())
    })
}

/// Ends leases of this process: the deliveries are due now.
pub async fn give_back(connection: &mut PgConnection, ids: &[WebhookId]) -> Result<()> {
    let ids: Vec<&str> = ids.iter().map(WebhookId::as_str).collect();
    retry_conflicts!(async {
        sqlx::query!(
            "UPDATE delivery_due d
             SET at = CASE WHEN EXISTS (SELECT FROM events e WHERE e.event_id = d.topup_id AND e.kind = 'webhook.test')
                           THEN '-infinity'::timestamptz ELSE now() END
             WHERE d.topup_id = ANY ($1) AND d.at > now()",
            &ids as &[&str]
        )
        .execute(&mut *connection)
        .await?;
        Ok::<_, Error>(())
    })
}

/// Inserts a due row for each delivery without an outcome after its first lease of `lag`.
pub async fn sweep(connection: &mut PgConnection, lag: Duration) -> Result<Swept> {
    let Some(mut fence) = Fence::take(connection, "deliveries", lag).await? else {
        return Ok(Swept::default());
    };
    let statement = sqlx::query!(
        "INSERT INTO delivery_due (topup_id, partner_id, at)
         SELECT topup_id, partner_id, now() FROM deliveries
         WHERE created_at > $1 AND created_at <= $2 AND state = 'pending' ON CONFLICT DO NOTHING",
        fence.from,
        fence.until,
    );
    let late = statement.execute(&mut *fence.transaction).await?.rows_affected();
    fence.done(late).await
}

/// One ended attempt.
#[derive(Clone, Debug)]
pub struct Attempted {
    pub id: WebhookId,
    pub partner_id: PartnerId,
    /// The number of attempts that ended before this one.
    pub attempt: u32,
    /// When the attempt began.
    pub at: OffsetDateTime,
    pub duration: Duration,
    /// The HTTP status of the response, if one arrived.
    pub status: Option<u16>,
    /// The result class, one word.
    pub class: &'static str,
    /// The start of the response body, sealed; only if the endpoint did not acknowledge.
    pub answer: Option<Vec<u8>>,
    pub result: AttemptResult,
}

#[derive(Clone, Debug)]
pub enum AttemptResult {
    Delivered,
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
pub async fn record(connection: &mut PgConnection, attempts: &[Attempted], policy: &BlockPolicy) -> Result<Vec<()>> {
    let batch = Batch::of(attempts);
    retry_conflicts!(record_once(&mut *connection, &batch, policy))?;
    Ok(vec![(); attempts.len()])
}

async fn record_once(connection: &mut PgConnection, batch: &Batch, policy: &BlockPolicy) -> Result<()> {
    // Endpoints are locked in one order, so that two notifiers wait for each other instead of deadlocking.
    let statement = sqlx::query!(
        "WITH new AS MATERIALIZED (
             SELECT * FROM unnest($1::text[], $2::uuid[], $3::int[], $4::timestamptz[], $5::int[], $6::int[],
                                  $7::text[], $8::bytea[], $9::text[], $10::text[], $11::float8[], $12::bool[])
                 AS new (topup_id, partner_id, attempt, at, duration_ms, status, class, answer, state, error,
                         retry_in, endpoint)
         ), moved_esim AS (
             UPDATE deliveries d
             SET state = new.state, attempt = d.attempt + 1, attempted_at = new.at, duration_ms = new.duration_ms,
                 status = new.status, error = new.error,
                 delivered_at = CASE WHEN new.state = 'delivered' THEN now() END
             FROM new
             WHERE d.topup_id = new.topup_id
               AND ((d.state = 'pending' AND d.attempt = new.attempt)
                    OR (new.state = 'delivered' AND d.state <> 'delivered'))
             RETURNING d.topup_id, d.partner_id, new.state, new.retry_in
         ), moved_event AS (
             -- Not executed in a batch without events.
             UPDATE events v
             SET state = new.state, attempt = v.attempt + 1, attempted_at = new.at, duration_ms = new.duration_ms,
                 status = new.status, error = new.error,
                 delivered_at = CASE WHEN new.state = 'delivered' THEN now() END
             FROM new
             WHERE $16 AND v.event_id = new.topup_id
               AND ((v.state = 'pending' AND v.attempt = new.attempt)
                    OR (new.state = 'delivered' AND v.state <> 'delivered'))
             RETURNING v.event_id, v.partner_id, new.state, new.retry_in
         ), moved AS (
             SELECT topup_id, partner_id, state, retry_in FROM moved_esim UNION ALL SELECT * FROM moved_event
         ), done AS (
             DELETE FROM delivery_due
             WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM moved WHERE state <> 'pending'))
         ), later AS (
             INSERT INTO delivery_due AS due (topup_id, partner_id, at)
             SELECT topup_id, partner_id, now() + make_interval(secs => retry_in) FROM moved WHERE state = 'pending'
             ON CONFLICT (topup_id) DO UPDATE SET at = excluded.at
         ), held AS (
             INSERT INTO delivery_held AS held (topup_id, partner_id, state)
             SELECT topup_id, partner_id, state FROM moved_esim WHERE state = 'exhausted'
             ON CONFLICT (topup_id) DO UPDATE SET state = excluded.state, at = excluded.at
         ), released AS (
             DELETE FROM delivery_held
             WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM moved WHERE state = 'delivered'))
         ), kept AS (
             INSERT INTO delivery_attempts (topup_id, attempt, at, duration_ms, status, class, answer)
             SELECT topup_id, attempt, at, duration_ms, status, class, answer FROM new
             WHERE state <> 'delivered' OR ($16 AND topup_id LIKE 'evt%') ON CONFLICT DO NOTHING
         ), heard AS MATERIALIZED (
             SELECT partner_id, bool_or(state = 'delivered') AS answers, array_agg(topup_id) AS topups,
                    count(*) FILTER (WHERE endpoint)::int AS failed
             FROM new GROUP BY partner_id
         ), known AS MATERIALIZED (
             SELECT partner_id FROM endpoints WHERE partner_id = ANY (ARRAY (SELECT partner_id FROM heard))
             ORDER BY partner_id FOR UPDATE
         ), closed AS (
             UPDATE endpoints e SET failures = 0, blocks = 0, blocked_until = NULL, probe = NULL
             FROM heard
             WHERE heard.answers AND e.partner_id = heard.partner_id
               AND e.partner_id = ANY (ARRAY (SELECT partner_id FROM known))
               AND (e.failures > 0 OR e.blocked_until IS NOT NULL)
               AND e.blocked_until IS DISTINCT FROM 'infinity'
         )
         INSERT INTO endpoints AS e (partner_id, failures, blocks, blocked_until, probe)
         SELECT partner_id, failed, (failed >= $13)::int,
                CASE WHEN failed >= $13 THEN now() + make_interval(secs => $14::float8) END,
                (SELECT probe FROM endpoints e WHERE e.partner_id = heard.partner_id AND e.probe = ANY (heard.topups))
         FROM heard WHERE NOT answers AND failed > 0 AND $13::int > 0 AND (SELECT count(*) FROM known) >= 0
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
        batch.events,
    );
    statement.execute(connection).await?;
    Ok(())
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
    /// At least one attempt belongs to an event.
    events: bool,
}

impl Batch {
    fn of(attempts: &[Attempted]) -> Self {
        let mut batch = Self::default();
        for attempted in attempts {
            let (state, error, retry_in, endpoint) = match &attempted.result {
                AttemptResult::Delivered => ("delivered", None, None, false),
                AttemptResult::Failed { error, retry_in, endpoint } => {
                    let state = retry_in.map_or("exhausted", |_| "pending");
                    (state, Some(error.clone()), *retry_in, *endpoint)
                }
            };
            batch.events |= matches!(attempted.id, WebhookId::Event(_));
            batch.topups.push(attempted.id.to_string());
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
pub async fn set_no_endpoint(connection: &mut PgConnection, ids: &[WebhookId]) -> Result<u64> {
    let ids: Vec<&str> = ids.iter().map(WebhookId::as_str).collect();
    let held = sqlx::query!(
        "WITH without AS MATERIALIZED (
             SELECT partner_id FROM partners
             WHERE webhook_url IS NULL
               AND partner_id = ANY (ARRAY (
                   SELECT partner_id FROM deliveries WHERE topup_id = ANY ($1)
                   UNION ALL SELECT partner_id FROM events WHERE event_id = ANY ($1)))
             ORDER BY partner_id
             FOR SHARE
         ), moved_esim AS (
             UPDATE deliveries SET state = 'no_endpoint'
             WHERE topup_id = ANY ($1) AND state = 'pending' AND partner_id IN (SELECT partner_id FROM without)
             RETURNING topup_id, partner_id
         ), moved_event AS (
             UPDATE events SET state = 'no_endpoint'
             WHERE event_id = ANY ($1) AND state = 'pending' AND partner_id IN (SELECT partner_id FROM without)
             RETURNING event_id, partner_id
         ), moved AS (
             SELECT topup_id, partner_id FROM moved_esim UNION ALL SELECT * FROM moved_event
         ), done AS (
             DELETE FROM delivery_due WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM moved))
         )
         INSERT INTO delivery_held AS held (topup_id, partner_id, state)
         SELECT topup_id, partner_id, 'no_endpoint' FROM moved
         ON CONFLICT (topup_id) DO UPDATE SET state = excluded.state, at = excluded.at",
        &ids as &[&str],
    );
    Ok(held.execute(connection).await?.rows_affected())
}
