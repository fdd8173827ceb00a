//! Partners' endpoints: blocked for a while when they don't answer, paused by operators.

use std::time::Duration;

use domain::PartnerId;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Error, age, seconds};

/// What is due later than this waits for a retry; what is due sooner may be leased.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(30);
/// The most partners whose oldest delivery is looked at.
const MOST_PARTNERS: i32 = 1000;

/// When an endpoint is blocked, and for how long. What waits meanwhile loses no attempt.
#[derive(Clone, Copy, Debug)]
pub struct BlockPolicy {
    /// Consecutive failures after which it is blocked; 0 means never.
    pub failures: u32,
    /// How long it stays blocked at first; doubles each time its probe fails.
    pub first: Duration,
    /// The longest block.
    pub longest: Duration,
}

/// An endpoint, as operators see it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Endpoint {
    /// Whose it is.
    pub partner_id: Uuid,
    /// The partner's name.
    pub name: String,
    /// Where webhooks go.
    pub webhook_url: Option<String>,
    /// `open`, `blocked` (it did not answer), `probing` (it is tried with one delivery), `paused`, or
    /// `no_url`.
    pub state: String,
    /// Until when it is blocked.
    #[serde(with = "time::serde::rfc3339::option")]
    pub blocked_until: Option<OffsetDateTime>,
    /// Attempts that failed in a row, as far as they were counted.
    pub failures: i32,
    /// Deliveries that still have to go out.
    pub pending: i64,
    /// Deliveries that were given up, and can be replayed.
    pub exhausted: i64,
}

/// Every partner's endpoint, or one partner's.
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

/// Keeps a partner's deliveries waiting until [`resume`]. What is under way is finished.
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

/// Lets a partner's deliveries go out again, whether they were paused or blocked, and makes those due
/// that wait for another attempt. Returns how many deliveries are due now.
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

/// What is known of a partner's endpoint says nothing of its new URL: it is no longer blocked, and what
/// waits for another attempt is due. A pause stays. Returns how many deliveries became due.
pub(crate) async fn forget(connection: &mut PgConnection, partner_id: PartnerId) -> Result<u64, Error> {
    sqlx::query!(
        "DELETE FROM endpoints WHERE partner_id = $1 AND coalesce(blocked_until, '-infinity') < 'infinity'",
        partner_id.uuid()
    )
    .execute(&mut *connection)
    .await?;
    retry_now(connection, partner_id).await
}

/// Makes those deliveries due that wait for another attempt; returns how many.
async fn retry_now(connection: &mut PgConnection, partner_id: PartnerId) -> Result<u64, Error> {
    // What is due sooner than this may be somebody's lease.
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

/// How deliveries stand, all together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// For how long the delivery that is overdue longest has been so; those that wait for a blocked or
    /// paused endpoint don't count.
    pub overdue: Duration,
    /// Deliveries that are due now, those of blocked endpoints included.
    pub due: u64,
    /// Endpoints that are blocked because they did not answer.
    pub blocked: u64,
    /// Endpoints that an operator has paused.
    pub paused: u64,
    /// Deliveries that were given up, and can be replayed.
    pub exhausted: u64,
}

/// How deliveries stand. Looks at each partner's first due delivery and at what is exhausted.
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
           SELECT (SELECT extract(epoch FROM now() - min(first.at))::float8
                   FROM partner
                   LEFT JOIN endpoints e ON e.partner_id = partner.partner_id
                   CROSS JOIN LATERAL (
                       SELECT at FROM delivery_due d
                       WHERE d.partner_id = partner.partner_id AND d.at <= now()
                       ORDER BY d.at LIMIT 1
                   ) first
                   WHERE e.blocked_until IS NULL) AS overdue,
                  (SELECT count(*) FROM endpoints WHERE blocked_until < 'infinity') AS "blocked!",
                  (SELECT count(*) FROM endpoints WHERE blocked_until = 'infinity') AS "paused!",
                  (SELECT count(*) FROM delivery_due WHERE at <= now()) AS "due!",
                  (SELECT count(*) FROM delivery_held WHERE state = 'exhausted') AS "exhausted!""#,
        MOST_PARTNERS,
    )
    .fetch_one(connection)
    .await?;
    let count = |count: i64| u64::try_from(count).unwrap_or_default();
    Ok(Standing {
        overdue: age(row.overdue.unwrap_or_default()),
        due: count(row.due),
        blocked: count(row.blocked),
        paused: count(row.paused),
        exhausted: count(row.exhausted),
    })
}
