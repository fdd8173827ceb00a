//! Partners' endpoints: blocked for a while when they fail, paused by operators, moved to a new URL.
//!
//! Guarantee: a delivery to a blocked endpoint waits and uses up no attempt. When a block ends, one
//! delivery is sent as a probe (its claim says so); the block ends for good when anything is
//! acknowledged, and each failed probe doubles it.
//!
//! The record of attempts counts failures here, operators and partners change the rest.

use std::{collections::BTreeMap, time::Duration};

use domain::PartnerId;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Result, age, count, seconds, signed};

/// Work that is due later than this waits for a retry; if it is due earlier, it may be leased.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(30);
/// The most partners whose oldest delivery is looked at.
const MOST_PARTNERS: i32 = 1000;

/// When and how long an endpoint is blocked. Waiting deliveries lose no attempt.
#[derive(Clone, Copy, Debug)]
pub struct BlockPolicy {
    /// Consecutive failures that block an endpoint; 0 disables blocks.
    pub failures: u32,
    /// Duration of the first block; it doubles after each failed probe.
    pub first: Duration,
    /// Upper limit of the duration.
    pub longest: Duration,
}

/// Forgets the failures of endpoints that acknowledged something, and ends their blocks. A pause stays.
pub(super) async fn forget_failures(connection: &mut PgConnection, partners: &[Uuid]) -> Result<()> {
    let statement = sqlx::query!(
        "WITH failing AS MATERIALIZED (
             SELECT partner_id FROM endpoints
             WHERE partner_id = ANY ($1) AND (failures > 0 OR blocked_until IS NOT NULL)
               AND blocked_until IS DISTINCT FROM 'infinity'
             -- In one order, so that two notifiers wait for each other instead of deadlocking.
             ORDER BY partner_id
             FOR UPDATE
         )
         UPDATE endpoints SET failures = 0, blocks = 0, blocked_until = NULL, probe = NULL
         WHERE partner_id = ANY (ARRAY (SELECT partner_id FROM failing))",
        partners,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Failed attempts in the shape of the statement.
#[derive(Default)]
pub(super) struct FailedAttempts {
    partners: Vec<Uuid>,
    /// The number of failed attempts of each of these partners.
    counts: Vec<i32>,
    /// All deliveries that were attempted.
    deliveries: Vec<Uuid>,
}

impl FailedAttempts {
    /// From the deliveries of each partner.
    pub(super) fn of(failed: &BTreeMap<Uuid, Vec<Uuid>>) -> Self {
        let mut columns = Self::default();
        for (partner, deliveries) in failed {
            columns.partners.push(*partner);
            columns.counts.push(signed(deliveries.len()));
            columns.deliveries.extend(deliveries);
        }
        columns
    }
}

/// Counts failed attempts, and blocks an endpoint after enough of them. While an endpoint is blocked,
/// only the failure of its probe counts: it begins the next block, which is twice as long.
pub(super) async fn count_failures(
    connection: &mut PgConnection,
    failed: &FailedAttempts,
    policy: &BlockPolicy,
) -> Result<()> {
    let statement = sqlx::query!(
        "INSERT INTO endpoints AS e (partner_id, failures, blocks, blocked_until, probe)
         SELECT new.partner_id, new.failures, (new.failures >= $4)::int,
                CASE WHEN new.failures >= $4 THEN now() + make_interval(secs => $5) END,
                -- Only for the conflict below: the endpoint's probe, if it is among the failed attempts.
                (SELECT known.probe FROM endpoints known
                 WHERE known.partner_id = new.partner_id AND known.probe = ANY ($3))
         FROM unnest($1::uuid[], $2::int[]) AS new (partner_id, failures)
         ORDER BY new.partner_id
         ON CONFLICT (partner_id) DO UPDATE
         SET failures = e.failures + excluded.failures,
             blocks = e.blocks + (e.probe IS NOT NULL OR e.failures + excluded.failures >= $4)::int,
             blocked_until = CASE
                 WHEN e.probe IS NOT NULL OR e.failures + excluded.failures >= $4
                 -- The exponent is bounded, because 2 to the power of 1024 is no number.
                 THEN now() + make_interval(secs => least($6::float8, $5::float8 * 2::float8 ^ least(e.blocks, 30)))
             END,
             probe = NULL
         WHERE e.blocked_until IS NULL OR (e.blocked_until < 'infinity' AND e.probe = excluded.probe)",
        &failed.partners,
        &failed.counts,
        &failed.deliveries,
        signed(policy.failures),
        seconds(policy.first),
        seconds(policy.longest),
    );
    statement.execute(connection).await?;
    Ok(())
}

/// An endpoint, as operators see it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Endpoint {
    pub partner_id: Uuid,
    pub name: String,
    pub webhook_url: Option<String>,
    /// `open`, `blocked` (after failures), `probing` (one delivery tests it), `paused`, or `no_url`.
    pub state: String,
    #[serde(with = "time::serde::rfc3339::option")]
    pub blocked_until: Option<OffsetDateTime>,
    pub failures: i32,
    /// Deliveries with work; those within their first lease do not count.
    pub pending: i64,
    /// Deliveries in state `exhausted`; an operator can replay them.
    pub exhausted: i64,
}

/// Lists every partner's endpoint, or one partner's.
pub async fn list(connection: &mut PgConnection, partner_id: Option<PartnerId>) -> Result<Vec<Endpoint>> {
    let endpoints = sqlx::query_as!(
        Endpoint,
        r#"SELECT p.partner_id, p.name, p.webhook_url,
                  CASE WHEN e.blocked_until = 'infinity' THEN 'paused'
                       WHEN p.webhook_url IS NULL THEN 'no_url'
                       WHEN e.probe IS NOT NULL OR e.blocked_until <= now() THEN 'probing'
                       WHEN e.blocked_until IS NOT NULL THEN 'blocked'
                       ELSE 'open' END AS "state!",
                  nullif(e.blocked_until, 'infinity') AS blocked_until,
                  coalesce(e.failures, 0) AS "failures!",
                  (SELECT count(*) FROM work w
                   WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = ''
                     AND w.partner_id = p.partner_id) AS "pending!",
                  (SELECT count(*) FROM held h
                   WHERE h.partner_id = p.partner_id AND h.state = 'exhausted') AS "exhausted!"
           FROM partners p LEFT JOIN endpoints e ON e.partner_id = p.partner_id
           WHERE $1::uuid IS NULL OR p.partner_id = $1
           ORDER BY p.created_at, p.partner_id"#,
        partner_id.map(PartnerId::uuid),
    );
    Ok(endpoints.fetch_all(connection).await?)
}

/// Holds a partner's deliveries until [`resume`]. Attempts in flight continue.
pub async fn pause(connection: &mut PgConnection, partner_id: PartnerId) -> Result<()> {
    let statement = sqlx::query!(
        "INSERT INTO endpoints (partner_id, blocked_until) VALUES ($1, 'infinity')
         ON CONFLICT (partner_id) DO UPDATE SET blocked_until = 'infinity', probe = NULL",
        partner_id.uuid(),
    );
    statement.execute(connection).await?;
    Ok(())
}

/// The effect of a new webhook URL on the block of an endpoint. A pause stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// The block ends, and the failures are forgotten: an operator has set the URL.
    End,
    /// The next probe is due now: the partner has set the URL. A partner that changes it back and forth
    /// gets one probe for each change, which its rate limit bounds; the length of the next block still
    /// doubles with each failed probe.
    ProbeNow,
}

/// Notes that waiting deliveries must go to a new URL; [`move_waiting`] makes them due.
pub(crate) async fn begin_move(connection: &mut PgConnection, partner_id: PartnerId, block: Block) -> Result<()> {
    // Two statements, because ingress may not change the counts.
    let statement = match block {
        Block::End => sqlx::query!(
            "INSERT INTO endpoints AS e (partner_id, moving_since) VALUES ($1, now())
             ON CONFLICT (partner_id) DO UPDATE
             SET moving_since = excluded.moving_since, failures = 0, blocks = 0, probe = NULL,
                 blocked_until = CASE WHEN e.blocked_until = 'infinity' THEN e.blocked_until END",
            partner_id.uuid(),
        ),
        Block::ProbeNow => sqlx::query!(
            "INSERT INTO endpoints AS e (partner_id, moving_since) VALUES ($1, now())
             ON CONFLICT (partner_id) DO UPDATE
             SET moving_since = excluded.moving_since,
                 blocked_until = CASE
                     WHEN e.blocked_until < 'infinity' THEN least(e.blocked_until, now())
                     ELSE e.blocked_until
                 END",
            partner_id.uuid(),
        ),
    };
    statement.execute(connection).await?;
    Ok(())
}

/// Notes that there is no URL to move to.
pub(crate) async fn end_move(connection: &mut PgConnection, partner_id: PartnerId) -> Result<()> {
    let statement = sqlx::query!(
        "UPDATE endpoints SET moving_since = NULL WHERE partner_id = $1 AND moving_since IS NOT NULL",
        partner_id.uuid(),
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Partners with a new webhook URL whose waiting deliveries are not all due yet; at most 100.
pub async fn moving(connection: &mut PgConnection) -> Result<Vec<PartnerId>> {
    let query = sqlx::query_scalar!(
        "SELECT partner_id FROM endpoints WHERE moving_since IS NOT NULL ORDER BY partner_id LIMIT 100"
    );
    Ok(query.fetch_all(connection).await?.into_iter().map(PartnerId::from).collect())
}

/// The result of one batch of [`move_waiting`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Deliveries that became due.
    pub due: u64,
    /// More may be left.
    pub more: bool,
}

/// Makes deliveries due that waited for a URL or a retry when this partner's URL changed, about `limit`
/// of each kind. Several processes can do this at once.
pub async fn move_waiting(connection: &mut PgConnection, partner_id: PartnerId, limit: u32) -> Result<Moved> {
    let query = sqlx::query_scalar!("SELECT moving_since FROM endpoints WHERE partner_id = $1", partner_id.uuid());
    let Some(since) = query.fetch_optional(&mut *connection).await?.flatten() else {
        return Ok(Moved::default());
    };
    let without_url = release_held(connection, partner_id, limit).await?;
    let retries = make_retries_due(connection, partner_id, since, limit).await?;
    let full = without_url.max(retries) >= u64::from(limit);
    let ended = if full {
        0
    } else {
        let statement = sqlx::query!(
            "UPDATE endpoints SET moving_since = NULL
             WHERE partner_id = $1 AND moving_since = $2
               AND NOT EXISTS (SELECT FROM held WHERE partner_id = $1 AND state = 'no_endpoint')",
            partner_id.uuid(),
            since,
        );
        statement.execute(connection).await?.rows_affected()
    };
    Ok(Moved { due: without_url + retries, more: ended == 0 })
}

/// Makes deliveries due that are held because there was no URL. Returns their number.
async fn release_held(connection: &mut PgConnection, partner_id: PartnerId, limit: u32) -> Result<u64> {
    let query = sqlx::query_scalar!(
        r#"WITH released AS (
               DELETE FROM held WHERE id = ANY (ARRAY (
                   SELECT id FROM held WHERE partner_id = $1 AND state = 'no_endpoint'
                   LIMIT $2 FOR UPDATE SKIP LOCKED))
               RETURNING id, partner_id
           ), due AS (
               INSERT INTO work (id, kind, provider, lane, partner_id, at)
               SELECT id, 'deliver', '', '', partner_id, now() FROM released
               ON CONFLICT (id) DO UPDATE SET at = excluded.at
           ), pending AS (
               UPDATE deliveries d SET state = 'pending' FROM released
               WHERE d.delivery_id = released.id AND d.state = 'no_endpoint'
           )
           SELECT count(*) AS "count!" FROM released"#,
        partner_id.uuid(),
        i64::from(limit),
    );
    Ok(count(query.fetch_one(connection).await?))
}

/// Makes deliveries due that wait for a retry since before the move. One that failed at the new URL
/// keeps its retry. Returns their number.
async fn make_retries_due(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    since: OffsetDateTime,
    limit: u32,
) -> Result<u64> {
    let statement = sqlx::query!(
        "UPDATE work SET at = now() WHERE id = ANY (ARRAY (
             SELECT w.id FROM work w
             JOIN deliveries d ON d.delivery_id = w.id
             WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = '' AND w.partner_id = $1
               AND w.at > now() + make_interval(secs => $2) AND d.attempted_at < $3
             ORDER BY w.at
             LIMIT $4
             FOR UPDATE OF w SKIP LOCKED))",
        partner_id.uuid(),
        seconds(LONGEST_LEASE),
        since,
        i64::from(limit),
    );
    Ok(statement.execute(connection).await?.rows_affected())
}

/// Ends an endpoint's pause or block, and makes its retries due. Returns the number of due deliveries.
pub async fn resume(connection: &mut PgConnection, partner_id: PartnerId) -> Result<u64> {
    let mut transaction = sqlx::Connection::begin(connection).await?;
    let statement = sqlx::query!(
        "UPDATE endpoints SET failures = 0, blocks = 0, blocked_until = NULL, probe = NULL WHERE partner_id = $1",
        partner_id.uuid()
    );
    statement.execute(&mut *transaction).await?;
    let statement = sqlx::query!(
        "UPDATE work SET at = now()
         WHERE kind = 'deliver' AND provider = '' AND lane = '' AND partner_id = $1
           AND at > now() + make_interval(secs => $2)",
        partner_id.uuid(),
        seconds(LONGEST_LEASE),
    );
    statement.execute(&mut *transaction).await?;
    let query = sqlx::query_scalar!(
        r#"SELECT count(*) AS "due!" FROM work
           WHERE kind = 'deliver' AND provider = '' AND lane = '' AND partner_id = $1 AND at <= now()"#,
        partner_id.uuid(),
    );
    let due = query.fetch_one(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(count(due))
}

/// The state of all deliveries and endpoints, for metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backlog {
    /// How long the oldest due delivery to a live partner has been overdue; deliveries of blocked or paused
    /// endpoints do not count.
    pub overdue_live: Duration,
    /// The same for sandbox partners.
    pub overdue_sandbox: Duration,
    /// Deliveries that are due now, without those of blocked endpoints; counted among 100,000 due ones.
    pub due: u64,
    /// Endpoints that are blocked after failures.
    pub blocked: u64,
    /// Endpoints that an operator paused.
    pub paused: u64,
    /// Exhausted deliveries, which an operator can replay; counted up to 100,000.
    pub exhausted: u64,
}

/// Reads [`Backlog`]. The statement looks at each partner's first due delivery and at exhausted deliveries.
pub async fn backlog(connection: &mut PgConnection) -> Result<Backlog> {
    let query = sqlx::query!(
        r#"-- Walks from one partner to the next by the index `work_lane`.
           WITH RECURSIVE partner (partner_id, nth) AS (
               (SELECT partner_id, 1 FROM work
                WHERE kind = 'deliver' AND provider = '' AND lane = ''
                ORDER BY partner_id LIMIT 1)
               UNION ALL
               SELECT next.partner_id, partner.nth + 1
               FROM partner
               CROSS JOIN LATERAL (
                   SELECT w.partner_id FROM work w
                   WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = ''
                     AND w.partner_id > partner.partner_id
                   ORDER BY w.partner_id LIMIT 1
               ) next
               WHERE partner.nth < $1
           ), first AS (
               -- The oldest due delivery of each partner whose endpoint is not blocked.
               SELECT p.environment, due.at
               FROM partner
               JOIN partners p ON p.partner_id = partner.partner_id
               CROSS JOIN LATERAL (
                   SELECT at FROM work w
                   -- A test is due at -infinity, which says nothing of how long it has waited.
                   WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = ''
                     AND w.partner_id = partner.partner_id AND w.at > '-infinity' AND w.at <= now()
                   ORDER BY w.at LIMIT 1
               ) due
               WHERE (SELECT blocked_until FROM endpoints e WHERE e.partner_id = partner.partner_id) IS NULL
           ), due AS (
               SELECT partner_id FROM work
               WHERE kind = 'deliver' AND provider = '' AND at <= now() LIMIT 100000
           )
           SELECT (SELECT extract(epoch FROM now() - min(at))::float8 FROM first
                   WHERE environment = 'live') AS overdue_live,
                  (SELECT extract(epoch FROM now() - min(at))::float8 FROM first
                   WHERE environment = 'sandbox') AS overdue_sandbox,
                  (SELECT count(*) FROM endpoints WHERE blocked_until < 'infinity') AS "blocked!",
                  (SELECT count(*) FROM endpoints WHERE blocked_until = 'infinity') AS "paused!",
                  (SELECT count(*) FROM due
                   WHERE (SELECT blocked_until FROM endpoints e WHERE e.partner_id = due.partner_id) IS NULL)
                      AS "due!",
                  (SELECT count(*) FROM (SELECT FROM held WHERE state = 'exhausted' LIMIT 100000) exhausted)
                      AS "exhausted!""#,
        MOST_PARTNERS,
    );
    let row = query.fetch_one(connection).await?;
    Ok(Backlog {
        overdue_live: age(row.overdue_live.unwrap_or_default()),
        overdue_sandbox: age(row.overdue_sandbox.unwrap_or_default()),
        due: count(row.due),
        blocked: count(row.blocked),
        paused: count(row.paused),
        exhausted: count(row.exhausted),
    })
}
