//! Partners' endpoints: they are blocked for a while when they fail, paused by operators and
//! partners, and moved to a new URL.
//!
//! A partner has a first endpoint from the beginning, and may have [further
//! ones](accounts::partners::endpoints) and a channel for [notices](super::notices). Here all of
//! them are equal. Each has its own failures and blocks, so that no endpoint stops another one of
//! the same partner.
//!
//! Guarantee: a delivery to a blocked endpoint waits and uses up no attempt. When a block ends, one
//! delivery is sent as a probe (its claim decides that). If anything is acknowledged, the block
//! ends for good; each failed probe doubles it.
//!
//! An endpoint whose host has not proved that it wants webhooks is always blocked in this sense,
//! from each webhook to a second later ([`PACE`]), so that a free account cannot flood a stranger.
//! A proof ends that ([`prove`]).
//!
//! Without blocks, a dead endpoint would hold permits for requests that fail, and its deliveries
//! would use up their retries. The record of attempts counts failures here. Operators pause and
//! resume endpoints, and partners and operators change URLs.

mod list;
mod proof;

use std::{collections::BTreeMap, time::Duration};

use accounts::partners::endpoints::PACE;
use domain::{EndpointId, EndpointKey, endpoint::BlockPolicy, event::NoticeKind};
use pg::{Result, count, seconds, signed};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

pub use self::list::{ListedEndpoint, list, noted};
pub(super) use self::proof::prove;
use super::notices::{HealthChange, NoticeContent};

/// The longest lease of a delivery. Work that is due later than this is not leased but waits for a
/// retry, so it may be made due without disturbing an attempt in flight.
pub const LONGEST_LEASE: Duration = Duration::from_secs(30);

/// Forgets the failures of endpoints that have acknowledged something, and ends their blocks. A
/// pause stays, because only who has set it, or an operator, ends it. Endpoints without failures
/// are not written. An endpoint that is not proven gets its next webhook after [`PACE`]. Returns
/// the recoveries of those whose partners were told that they fail.
pub(super) async fn forget_failures(
    connection: &mut PgConnection,
    endpoints: &[Uuid],
) -> Result<Vec<HealthChange>> {
    let query = sqlx::query!(
        r#"WITH failing AS MATERIALIZED (
               SELECT endpoint_id, told, failing_since FROM partner_endpoints
               WHERE endpoint_id = ANY ($1) AND (failures > 0 OR blocked_until IS NOT NULL OR told IS NOT NULL)
                 AND blocked_until IS DISTINCT FROM 'infinity'
               -- In one order, so that two notifiers wait for each other instead of deadlocking.
               ORDER BY endpoint_id
               FOR UPDATE
           )
           UPDATE partner_endpoints e
           SET failures = 0, blocks = 0, probe = NULL, failing_since = NULL, told = NULL,
               blocked_until = CASE WHEN e.unproven_since IS NOT NULL THEN now() + make_interval(secs => $2) END,
               told_at = CASE WHEN failing.told IS NULL THEN e.told_at ELSE now() END,
               exhausted_told_at = CASE WHEN failing.told IS NULL THEN e.exhausted_told_at END
           FROM failing
           WHERE e.endpoint_id = failing.endpoint_id
             AND e.endpoint_id = ANY (ARRAY (SELECT endpoint_id FROM failing))
           RETURNING e.endpoint_id, failing.told IS NOT NULL AS "told!", failing.failing_since"#,
        endpoints,
        seconds(PACE),
    );
    let forgotten = query.fetch_all(connection).await?.into_iter();
    let recovered = forgotten.filter(|row| row.told).map(|row| HealthChange {
        endpoint: row.endpoint_id,
        kind: NoticeKind::EndpointRecovered,
        notice: NoticeContent {
            since: row.failing_since,
            ..NoticeContent::default()
        },
    });
    Ok(recovered.collect())
}

/// The failed attempts of one endpoint in a batch.
#[derive(Clone, Debug, Default)]
pub(super) struct FailedAttempts {
    pub deliveries: Vec<Uuid>,
    /// The class and the status of the last one.
    pub class: &'static str,
    pub status: Option<i32>,
}

/// Counts failed attempts of endpoints, and blocks an endpoint once enough of them failed in a row.
/// While an endpoint is blocked, only the failure of its probe counts: it begins the next block,
/// which is twice as long. Returns what the partners are to be told: that half of the failures that
/// block have happened, or that the endpoint is blocked.
///
/// `failing` locks the endpoints in one order, so that two notifiers wait for each other instead of
/// deadlocking. The failures are added, and the endpoint is blocked if its probe failed or the sum
/// reaches the limit. The condition at the end leaves a row alone while the endpoint is blocked,
/// unless its probe is among the failed attempts, and always while it is paused.
///
/// `told` is what the partner is told, and `told_at` changes only together with it. So a row that
/// has the time of this transaction there tells a change. An endpoint stays `blocked` in this sense
/// when an operator ends its block, until it acknowledges something.
pub(super) async fn count_failures(
    connection: &mut PgConnection,
    failed: &BTreeMap<Uuid, FailedAttempts>,
    policy: &BlockPolicy,
) -> Result<Vec<HealthChange>> {
    let endpoints: Vec<Uuid> = failed.keys().copied().collect();
    let counts = failed
        .values()
        .map(|failed| signed(failed.deliveries.len()));
    let counts: Vec<i32> = counts.collect();
    let deliveries = failed.values().flat_map(|failed| &failed.deliveries);
    let deliveries: Vec<Uuid> = deliveries.copied().collect();
    let query = sqlx::query!(
        r#"WITH failing AS MATERIALIZED (
               SELECT endpoint_id FROM partner_endpoints WHERE endpoint_id = ANY ($1) ORDER BY endpoint_id FOR UPDATE
           )
           UPDATE partner_endpoints e
           SET failures = e.failures + new.failures,
               blocks = e.blocks + (e.probe IS NOT NULL OR e.failures + new.failures >= $4)::int,
               blocked_until = CASE
                   WHEN e.probe IS NOT NULL OR e.failures + new.failures >= $4
                   -- The exponent is bounded, because 2 to the power of 1024 is no number.
                   THEN now() + make_interval(secs => least($6::float8, $5::float8 * 2::float8 ^ least(e.blocks, 30)))
               END,
               probe = NULL,
               failing_since = CASE
                   WHEN e.failures = 0 AND e.blocked_until IS NULL AND e.told IS NULL THEN now()
                   ELSE coalesce(e.failing_since, now())
               END,
               told = CASE
                   WHEN e.probe IS NOT NULL OR e.failures + new.failures >= $4 THEN 'blocked'
                   WHEN (e.failures + new.failures) * 2 >= $4 THEN coalesce(e.told, 'failing')
                   ELSE e.told
               END,
               told_at = CASE
                   WHEN e.told = 'blocked' THEN e.told_at
                   WHEN e.probe IS NOT NULL OR e.failures + new.failures >= $4 THEN now()
                   WHEN e.told IS NULL AND (e.failures + new.failures) * 2 >= $4 THEN now()
                   ELSE e.told_at
               END
           FROM unnest($1::uuid[], $2::int[]) AS new (endpoint_id, failures)
           WHERE e.endpoint_id = new.endpoint_id AND e.endpoint_id = ANY (ARRAY (SELECT endpoint_id FROM failing))
             AND (e.blocked_until IS NULL OR (e.blocked_until < 'infinity' AND e.probe = ANY ($3)))
           RETURNING e.endpoint_id, e.failures, e.told, e.failing_since,
                     (e.told_at = now()) IS TRUE AS "changed!""#,
        &endpoints,
        &counts,
        &deliveries,
        signed(policy.failures),
        seconds(policy.first),
        seconds(policy.longest),
    );
    let counted = query.fetch_all(connection).await?.into_iter();
    let changes = counted.filter(|row| row.changed).filter_map(|row| {
        let last = failed.get(&row.endpoint_id)?;
        let kind = match row.told?.as_str() {
            "blocked" => NoticeKind::EndpointBlocked,
            _ => NoticeKind::EndpointFailing,
        };
        let notice = NoticeContent {
            since: row.failing_since,
            failures: Some(row.failures),
            outcome: Some(last.class.to_owned()),
            status: last.status,
            ..NoticeContent::default()
        };
        Some(HealthChange {
            endpoint: row.endpoint_id,
            kind,
            notice,
        })
    });
    Ok(changes.collect())
}

/// Notes that the partners of these endpoints are told of a webhook whose retries have ended.
/// Returns the endpoints whose partners were not told of another one before, since the endpoint
/// recovered last or within a day.
pub(super) async fn note_exhausted(
    connection: &mut PgConnection,
    endpoints: &[Uuid],
) -> Result<Vec<Uuid>> {
    let query = sqlx::query_scalar!(
        "WITH exhausted AS MATERIALIZED (
             SELECT endpoint_id FROM partner_endpoints WHERE endpoint_id = ANY ($1) ORDER BY endpoint_id FOR UPDATE
         )
         UPDATE partner_endpoints e SET exhausted_told_at = now()
         WHERE endpoint_id = ANY (ARRAY (SELECT endpoint_id FROM exhausted))
           AND (exhausted_told_at IS NULL OR exhausted_told_at < now() - interval '1 day')
         RETURNING endpoint_id",
        endpoints,
    );
    Ok(query.fetch_all(connection).await?)
}

/// The key of an endpoint, given its id only; `None` if there is no such endpoint.
pub async fn key(connection: &mut PgConnection, id: EndpointId) -> Result<Option<EndpointKey>> {
    let query = sqlx::query_scalar!(
        "SELECT partner_id FROM partner_endpoints WHERE endpoint_id = $1",
        id.uuid(),
    );
    let partner_id = query.fetch_optional(connection).await?;
    Ok(partner_id.map(|partner_id| EndpointKey {
        partner_id: partner_id.into(),
        id,
    }))
}

/// Pauses the deliveries to an endpoint, as an operator, until [`resume`]. Attempts in flight
/// continue. A pause that the partner has set becomes one that only an operator ends.
pub async fn pause(connection: &mut PgConnection, id: EndpointId) -> Result<()> {
    let statement = sqlx::query!(
        "UPDATE partner_endpoints SET blocked_until = 'infinity', probe = NULL, paused_by_partner = false
         WHERE endpoint_id = $1",
        id.uuid(),
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Pauses the deliveries to an endpoint, as its partner, until [`resume_by_partner`] or [`resume`].
/// A pause that an operator has set stays as it is. Returns whether anything changed.
pub async fn pause_by_partner(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
) -> Result<bool> {
    let statement = sqlx::query!(
        "UPDATE partner_endpoints SET blocked_until = 'infinity', probe = NULL, paused_by_partner = true
         WHERE endpoint_id = $1 AND blocked_until IS DISTINCT FROM 'infinity'",
        endpoint.id.uuid(),
    );
    Ok(statement.execute(connection).await?.rows_affected() > 0)
}

/// What became of a request to end a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeResult {
    Now,
    NotPaused,
    /// An operator has paused the endpoint, so only an operator ends that.
    ByOperator,
}

/// Ends a pause that the partner has set. A notifier then makes the retries due, as after a new
/// URL.
pub async fn resume_by_partner(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
) -> Result<ResumeResult> {
    let statement = sqlx::query!(
        "UPDATE partner_endpoints
         SET blocked_until = CASE WHEN unproven_since IS NOT NULL THEN now() + make_interval(secs => $2) END,
             paused_by_partner = false, moving_since = CASE WHEN url IS NOT NULL THEN now() END
         WHERE endpoint_id = $1 AND blocked_until = 'infinity' AND paused_by_partner",
        endpoint.id.uuid(),
        seconds(PACE),
    );
    if statement.execute(&mut *connection).await?.rows_affected() > 0 {
        return Ok(ResumeResult::Now);
    }
    let query = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM partner_endpoints WHERE endpoint_id = $1 AND blocked_until = 'infinity') AS "paused!""#,
        endpoint.id.uuid(),
    );
    Ok(if query.fetch_one(connection).await? {
        ResumeResult::ByOperator
    } else {
        ResumeResult::NotPaused
    })
}

/// The result of one batch of [`move_waiting`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveBatch {
    /// The number of deliveries that became due.
    pub due: u64,
    /// Whether more deliveries may be left.
    pub more: bool,
}

/// Makes deliveries due that waited for a URL, or for a retry, when the URL of this endpoint
/// changed: about `limit` of each kind. Several processes can do this at once, because each skips
/// the rows that another one has locked. The move ends when a batch was not full and no delivery is
/// held for a URL any more.
pub async fn move_waiting(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
    limit: u32,
) -> Result<MoveBatch> {
    let query = sqlx::query_scalar!(
        "SELECT moving_since FROM partner_endpoints WHERE endpoint_id = $1",
        endpoint.id.uuid()
    );
    let Some(since) = query.fetch_optional(&mut *connection).await?.flatten() else {
        return Ok(MoveBatch::default());
    };
    let without_url = release_held(connection, endpoint, limit).await?;
    let retries = make_retries_due(connection, endpoint, since, limit).await?;
    let full = without_url.max(retries) >= u64::from(limit);
    let ended = if full {
        0
    } else {
        let statement = sqlx::query!(
            "UPDATE partner_endpoints e SET moving_since = NULL
             WHERE endpoint_id = $1 AND moving_since = $2
               AND NOT EXISTS (SELECT FROM held h
                               WHERE h.partner_id = e.partner_id AND h.state = 'no_endpoint' AND h.lane = e.lane)",
            endpoint.id.uuid(),
            since,
        );
        statement.execute(connection).await?.rows_affected()
    };
    Ok(MoveBatch {
        due: without_url + retries,
        more: ended == 0,
    })
}

/// Makes deliveries due that are held because there was no URL. Returns their number. `released`
/// takes them out of `held`, `due` gives them work, and `pending` changes their state.
async fn release_held(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
    limit: u32,
) -> Result<u64> {
    let query = sqlx::query_scalar!(
        r#"WITH released AS (
               DELETE FROM held WHERE id = ANY (ARRAY (
                   SELECT id FROM held WHERE partner_id = $1 AND state = 'no_endpoint' AND lane = $3
                   LIMIT $2 FOR UPDATE SKIP LOCKED))
               RETURNING id, partner_id, lane
           ), due AS (
               INSERT INTO work (id, kind, provider, lane, partner_id, at)
               SELECT id, 'deliver', '', lane, partner_id, now() FROM released
               ON CONFLICT (id) DO UPDATE SET at = excluded.at
           ), pending AS (
               UPDATE deliveries d SET state = 'pending' FROM released
               WHERE d.delivery_id = released.id AND d.state = 'no_endpoint'
           )
           SELECT count(*) AS "count!" FROM released"#,
        endpoint.partner_id.uuid(),
        i64::from(limit),
        endpoint.work_lane(),
    );
    Ok(count(query.fetch_one(connection).await?))
}

/// Makes deliveries due that have waited for a retry since before the move. One that already failed
/// at the new URL keeps its time. Returns the number of deliveries.
async fn make_retries_due(
    connection: &mut PgConnection,
    endpoint: EndpointKey,
    since: OffsetDateTime,
    limit: u32,
) -> Result<u64> {
    let statement = sqlx::query!(
        "UPDATE work SET at = now() WHERE id = ANY (ARRAY (
             SELECT w.id FROM work w
             JOIN deliveries d ON d.delivery_id = w.id
             WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = $5 AND w.partner_id = $1
               AND w.at > now() + make_interval(secs => $2) AND d.attempted_at < $3
             ORDER BY w.at
             LIMIT $4
             FOR UPDATE OF w SKIP LOCKED))",
        endpoint.partner_id.uuid(),
        seconds(LONGEST_LEASE),
        since,
        i64::from(limit),
        endpoint.work_lane(),
    );
    Ok(statement.execute(connection).await?.rows_affected())
}

/// Ends the pause or block of an endpoint, as an operator. A notifier then makes the retries due,
/// as after a new URL.
pub async fn resume(connection: &mut PgConnection, endpoint: EndpointKey) -> Result<()> {
    let statement = sqlx::query!(
        "UPDATE partner_endpoints
         SET failures = 0, blocks = 0, probe = NULL, paused_by_partner = false,
             blocked_until = CASE WHEN unproven_since IS NOT NULL THEN now() END,
             moving_since = CASE WHEN url IS NOT NULL THEN now() END
         WHERE endpoint_id = $1",
        endpoint.id.uuid()
    );
    statement.execute(connection).await?;
    Ok(())
}
