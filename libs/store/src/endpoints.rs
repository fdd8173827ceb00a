//! Partners' endpoints: blocked for a while when they fail, paused by operators.

use std::time::Duration;

use domain::PartnerId;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Error, age, seconds};

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
    /// The partner that owns the endpoint.
    pub partner_id: Uuid,
    /// The partner's name.
    pub name: String,
    /// The URL that receives the webhooks.
    pub webhook_url: Option<String>,
    /// `open`, `blocked` (after failures), `probing` (one delivery tests it), `paused`, or `no_url`.
    pub state: String,
    /// The end of the block.
    #[serde(with = "time::serde::rfc3339::option")]
    pub blocked_until: Option<OffsetDateTime>,
    /// Consecutive failed attempts.
    pub failures: i32,
    /// Deliveries with a due row; those within their first lease do not count.
    pub pending: i64,
    /// Deliveries in state `exhausted`; an operator can replay them.
    pub exhausted: i64,
}

/// Lists every partner's endpoint, or one partner's.
pub async fn list(
    connection: &mut PgConnection,
    partner_id: Option<PartnerId>,
) -> Result<Vec<Endpoint>, Error> {
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
    )
    .fetch_all(connection)
    .await?;
    Ok(endpoints)
}

/// Holds a partner's deliveries until [`resume`]. Attempts in flight continue.
pub async fn pause(connection: &mut PgConnection, partner_id: PartnerId) -> Result<(), Error> {
    sqlx::query!(
        "INSERT INTO endpoints (partner_id, blocked_until) VALUES ($1, 'infinity')
         ON CONFLICT (partner_id) DO UPDATE SET blocked_until = 'infinity', probe = NULL",
        partner_id.uuid(),
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Ends a pause or block of a partner's endpoint, and makes deliveries that wait for a retry due. Returns the
/// number of due deliveries.
pub async fn resume(connection: &mut PgConnection, partner_id: PartnerId) -> Result<u64, Error> {
    let mut transaction = sqlx::Connection::begin(connection).await?;
    sqlx::query!("DELETE FROM endpoints WHERE partner_id = $1", partner_id.uuid())
        .execute(&mut *transaction)
        .await?;
    retry_now(&mut transaction, partner_id).await?;
    let due = sqlx::query_scalar!(
        r#"SELECT count(*) AS "due!" FROM delivery_due WHERE partner_id = $1 AND at <= now()"#,
        partner_id.uuid(),
    )
    .fetch_one(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(u64::try_from(due).unwrap_or_default())
}

/// Clears the state of a partner's endpoint after a URL change: a block ends, and deliveries that wait for a
/// retry become due. A pause stays. Returns the number of deliveries that became due.
pub(crate) async fn forget(connection: &mut PgConnection, partner_id: PartnerId) -> Result<u64, Error> {
    sqlx::query!(
        "DELETE FROM endpoints WHERE partner_id = $1 AND coalesce(blocked_until, '-infinity') < 'infinity'",
        partner_id.uuid()
    )
    .execute(&mut *connection)
    .await?;
    retry_now(connection, partner_id).await
}

/// Makes deliveries that wait for a retry due; returns their number.
async fn retry_now(connection: &mut PgConnection, partner_id: PartnerId) -> Result<u64, Error> {
    // A due time closer than this may be a lease.
    let made_due = sqlx::query!(
        "UPDATE delivery_due SET at = now()
         WHERE partner_id = $1 AND at > now() + make_interval(secs => $2)",
        partner_id.uuid(),
        seconds(LONGEST_LEASE),
    )
    .execute(connection)
    .await?;
    Ok(made_due.rows_affected())
}

/// The state of all deliveries and endpoints, for metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
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

/// Reads [`Standing`]. The statement looks at each partner's first due delivery and at exhausted deliveries.
pub async fn standing(connection: &mut PgConnection) -> Result<Standing, Error> {
    let row = sqlx::query!(
        r#"WITH RECURSIVE partner (partner_id, nth) AS (
               (SELECT partner_id, 1 FROM delivery_due ORDER BY partner_id LIMIT 1)
               UNION ALL
               SELECT next.partner_id, partner.nth + 1
               FROM partner CROSS JOIN LATERAL (
                   SELECT d.partner_id FROM delivery_due d WHERE d.partner_id > partner.partner_id
                   ORDER BY d.partner_id LIMIT 1
               ) next
               WHERE partner.nth < $1
           )
, first AS (
               SELECT p.environment, due.at
               FROM partner
               JOIN partners p ON p.partner_id = partner.partner_id
               CROSS JOIN LATERAL (
                   SELECT at FROM delivery_due d
                   WHERE d.partner_id = partner.partner_id AND d.at <= now()
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
                  (SELECT count(*) FROM (SELECT partner_id FROM delivery_due WHERE at <= now() ORDER BY at LIMIT 100000) due
                   WHERE (SELECT blocked_until FROM endpoints e WHERE e.partner_id = due.partner_id) IS NULL) AS "due!",
                  (SELECT count(*) FROM (SELECT FROM delivery_held WHERE state = 'exhausted' LIMIT 100000) held)
                      AS "exhausted!""#,
        MOST_PARTNERS,
    )
    .fetch_one(connection)
    .await?;
    let count = |count: i64| u64::try_from(count).unwrap_or_default();
    Ok(Standing {
        overdue_live: age(row.overdue_live.unwrap_or_default()),
        overdue_sandbox: age(row.overdue_sandbox.unwrap_or_default()),
        due: count(row.due),
        blocked: count(row.blocked),
        paused: count(row.paused),
        exhausted: count(row.exhausted),
    })
}
