//! Partners' endpoints: blocked for a while when they fail, paused by operators.

use std::time::Duration;

use domain::PartnerId;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Result, age, count, seconds};

/// A due time later than this is a retry; an earlier one may be a lease.
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
    /// Deliveries with a due row; those within their first lease do not count.
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
                  (SELECT count(*) FROM delivery_due d WHERE d.partner_id = p.partner_id) AS "pending!",
                  (SELECT count(*) FROM delivery_held h
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
#[derive(Clone, Copy, Debug)]
pub enum Block {
    /// The block ends, and the failures are forgotten.
    End,
    /// The next probe is due at once, or this long after the last change that hastened one if that is later; never
    /// later than the end of the block. So changing the URL back and forth does not speed up probes.
    Hasten(Duration),
}

/// Notes that waiting deliveries must go to a new URL; [`move_waiting`] makes them due.
pub(crate) async fn begin_move(connection: &mut PgConnection, partner_id: PartnerId, block: Block) -> Result<()> {
    match block {
        Block::End => {
            let statement = sqlx::query!(
                "INSERT INTO endpoints AS e (partner_id, moving_since) VALUES ($1, now())
                 ON CONFLICT (partner_id) DO UPDATE
                 SET moving_since = excluded.moving_since, failures = 0, blocks = 0, probe = NULL,
                     blocked_until = CASE WHEN e.blocked_until = 'infinity' THEN e.blocked_until END",
                partner_id.uuid(),
            );
            statement.execute(connection).await?;
        }
        Block::Hasten(interval) => {
            let statement = sqlx::query!(
                "INSERT INTO endpoints AS e (partner_id, moving_since, hastened_at) VALUES ($1, now(), now())
                 ON CONFLICT (partner_id) DO UPDATE
                 SET moving_since = excluded.moving_since,
                     blocked_until = CASE
                         WHEN e.blocked_until < 'infinity'
                         THEN least(e.blocked_until, greatest(now(), e.hastened_at + make_interval(secs => $2)))
                         ELSE e.blocked_until END,
                     hastened_at = CASE
                         WHEN e.hastened_at + make_interval(secs => $2) > now() THEN e.hastened_at
                         ELSE now() END",
                partner_id.uuid(),
                seconds(interval),
            );
            statement.execute(connection).await?;
        }
    }
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

/// Makes deliveries due that waited for a URL or a retry when this partner's URL changed, about `limit` of each kind.
/// Several processes can do this at once.
pub async fn move_waiting(connection: &mut PgConnection, partner_id: PartnerId, limit: u32) -> Result<Moved> {
    let since = sqlx::query_scalar!("SELECT moving_since FROM endpoints WHERE partner_id = $1", partner_id.uuid())
        .fetch_optional(&mut *connection)
        .await?;
    let Some(since) = since.flatten() else {
        return Ok(Moved::default());
    };
    let query = sqlx::query_scalar!(
        r#"WITH held AS (
               DELETE FROM delivery_held WHERE topup_id = ANY (ARRAY (
                   SELECT topup_id FROM delivery_held WHERE partner_id = $1 AND state = 'no_endpoint'
                   LIMIT $2 FOR UPDATE SKIP LOCKED))
               RETURNING topup_id, partner_id
           ), due AS (
               INSERT INTO delivery_due (topup_id, partner_id, at) SELECT topup_id, partner_id, now() FROM held
               ON CONFLICT (topup_id) DO UPDATE SET at = excluded.at
           ), esims AS (
               UPDATE deliveries d SET state = 'pending' FROM held
               WHERE d.topup_id = held.topup_id AND d.state = 'no_endpoint'
           ), other AS (
               UPDATE events v SET state = 'pending' FROM held
               WHERE v.event_id = held.topup_id AND v.state = 'no_endpoint'
           )
           SELECT count(*) AS "count!" FROM held"#,
        partner_id.uuid(),
        i64::from(limit),
    );
    let without_url = query.fetch_one(&mut *connection).await?;
    // A due time closer than this may be a lease. A delivery that failed at the new URL keeps its retry.
    let statement = sqlx::query!(
        "UPDATE delivery_due SET at = now() WHERE topup_id = ANY (ARRAY (
             SELECT due.topup_id FROM delivery_due due
             LEFT JOIN deliveries d ON d.topup_id = due.topup_id
             LEFT JOIN events v ON v.event_id = due.topup_id
             WHERE due.partner_id = $1 AND due.at > now() + make_interval(secs => $2)
               AND coalesce(d.attempted_at, v.attempted_at) < $3
             ORDER BY due.at LIMIT $4 FOR UPDATE OF due SKIP LOCKED))",
        partner_id.uuid(),
        seconds(LONGEST_LEASE),
        since,
        i64::from(limit),
    );
    let retries = statement.execute(&mut *connection).await?.rows_affected();
    let without_url = count(without_url);
    let full = without_url.max(retries) >= u64::from(limit);
    let ended = if full {
        0
    } else {
        let statement = sqlx::query!(
            "UPDATE endpoints SET moving_since = NULL
             WHERE partner_id = $1 AND moving_since = $2
               AND NOT EXISTS (SELECT FROM delivery_held WHERE partner_id = $1 AND state = 'no_endpoint')",
            partner_id.uuid(),
            since,
        );
        statement.execute(connection).await?.rows_affected()
    };
    Ok(Moved { due: without_url + retries, more: ended == 0 })
}

/// Ends an endpoint's pause or block, and makes its retries due. Returns the number of due deliveries.
pub async fn resume(connection: &mut PgConnection, partner_id: PartnerId) -> Result<u64> {
    let mut transaction = sqlx::Connection::begin(connection).await?;
    let statement = sqlx::query!(
        "UPDATE endpoints SET failures = 0, blocks = 0, blocked_until = NULL, probe = NULL WHERE partner_id = $1",
        partner_id.uuid()
    );
    statement.execute(&mut *transaction).await?;
    // A due time closer than this may be a lease.
    let statement = sqlx::query!(
        "UPDATE delivery_due SET at = now()
         WHERE partner_id = $1 AND at > now() + make_interval(secs => $2)",
        partner_id.uuid(),
        seconds(LONGEST_LEASE),
    );
    statement.execute(&mut *transaction).await?;
    let query = sqlx::query_scalar!(
        r#"SELECT count(*) AS "due!" FROM delivery_due WHERE partner_id = $1 AND at <= now()"#,
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
    /// Deliveries that are due now, without those of blocked endpoints; counted among 100,000 due rows.
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
        r#"WITH RECURSIVE partner (partner_id, nth) AS (
               (SELECT partner_id, 1 FROM delivery_due ORDER BY partner_id LIMIT 1)
               UNION ALL SELECT next.partner_id, partner.nth + 1
               FROM partner CROSS JOIN LATERAL (
                   SELECT d.partner_id FROM delivery_due d WHERE d.partner_id > partner.partner_id
                   ORDER BY d.partner_id LIMIT 1
               ) next WHERE partner.nth < $1
           ), first AS (
               SELECT p.environment, due.at
               FROM partner
               JOIN partners p ON p.partner_id = partner.partner_id
               CROSS JOIN LATERAL (
                   SELECT at FROM delivery_due d
                   -- A test is due at -infinity.
                   WHERE d.partner_id = partner.partner_id AND d.at > '-infinity' AND d.at <= now()
                   ORDER BY d.at LIMIT 1
               ) due
               WHERE (SELECT blocked_until FROM endpoints e WHERE e.partner_id = partner.partner_id) IS NULL
           )
           SELECT (SELECT extract(epoch FROM now() - min(at))::float8 FROM first
                   WHERE environment = 'live') AS overdue_live,
                  (SELECT extract(epoch FROM now() - min(at))::float8 FROM first
                   WHERE environment = 'sandbox') AS overdue_sandbox,
                  (SELECT count(*) FROM endpoints WHERE blocked_until < 'infinity') AS "blocked!",
                  (SELECT count(*) FROM endpoints WHERE blocked_until = 'infinity') AS "paused!",
                  (SELECT count(*) FROM (SELECT partner_id FROM delivery_due WHERE at <= now() LIMIT 100000) due
                   WHERE (SELECT blocked_until FROM endpoints e WHERE e.partner_id = due.partner_id) IS NULL) AS "due!",
                  (SELECT count(*) FROM (SELECT FROM delivery_held WHERE state = 'exhausted' LIMIT 100000) held)
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
