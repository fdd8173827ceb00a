//! The gauges of deliveries and endpoints, which the notifier reads for its metrics.

use std::time::Duration;

use sqlx::PgConnection;

use crate::{Result, age, count};

/// The maximum number of endpoints whose oldest delivery [`backlog`] reads.
const MOST_ENDPOINTS: i32 = 1000;

/// The state of all deliveries and endpoints, for metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backlog {
    /// How long the oldest due delivery to a live partner has been due. Deliveries of blocked or
    /// paused endpoints do not count, because nobody should be alarmed about those.
    pub overdue_live: Duration,
    /// The same for sandbox partners.
    pub overdue_sandbox: Duration,
    /// The number of deliveries that are due now, without those of blocked endpoints. At most
    /// 100,000 due deliveries are looked at.
    pub due: u64,
    /// The number of endpoints that are blocked after failures.
    pub blocked: u64,
    /// The number of endpoints that an operator or their partner has paused.
    pub paused: u64,
    /// The number of exhausted deliveries, which an operator can replay; counted up to 100,000.
    pub exhausted: u64,
}

/// Reads [`Backlog`]. The cost is bounded: the statement reads the first due delivery of each of
/// the first 1,000 endpoints with work, and counts up to 100,000 rows of due work and of held ones.
pub async fn backlog(connection: &mut PgConnection) -> Result<Backlog> {
    let query = sqlx::query!(
        r#"-- Walks from one endpoint to the next by the index `work_lane`.
           WITH RECURSIVE endpoint (lane, partner_id, nth) AS (
               (SELECT lane, partner_id, 1 FROM work
                WHERE kind = 'deliver' AND provider = ''
                ORDER BY lane, partner_id LIMIT 1)
               UNION ALL
               SELECT next.lane, next.partner_id, endpoint.nth + 1
               FROM endpoint
               CROSS JOIN LATERAL (
                   SELECT w.lane, w.partner_id FROM work w
                   WHERE w.kind = 'deliver' AND w.provider = ''
                     AND (w.lane, w.partner_id) > (endpoint.lane, endpoint.partner_id)
                   ORDER BY w.lane, w.partner_id LIMIT 1
               ) next
               WHERE endpoint.nth < $1
           ), first AS (
               -- The oldest due delivery of each endpoint that is not blocked.
               SELECT p.environment, due.at
               FROM endpoint
               JOIN partners p ON p.partner_id = endpoint.partner_id
               CROSS JOIN LATERAL (
                   SELECT at FROM work w
                   -- A test is due at -infinity, which says nothing of how long it has waited.
                   WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = endpoint.lane
                     AND w.partner_id = endpoint.partner_id AND w.at > '-infinity' AND w.at <= now()
                   ORDER BY w.at LIMIT 1
               ) due
               WHERE (SELECT blocked_until FROM endpoints e
                      WHERE e.partner_id = coalesce(nullif(endpoint.lane, '')::uuid, endpoint.partner_id)) IS NULL
           ), due AS (
               SELECT coalesce(nullif(lane, '')::uuid, partner_id) AS endpoint_id FROM work
               WHERE kind = 'deliver' AND provider = '' AND at <= now() LIMIT 100000
           )
           SELECT (SELECT extract(epoch FROM now() - min(at))::float8 FROM first
                   WHERE environment = 'live') AS overdue_live,
                  (SELECT extract(epoch FROM now() - min(at))::float8 FROM first
                   WHERE environment = 'sandbox') AS overdue_sandbox,
                  (SELECT count(*) FROM endpoints WHERE blocked_until < 'infinity') AS "blocked!",
                  (SELECT count(*) FROM endpoints WHERE blocked_until = 'infinity') AS "paused!",
                  (SELECT count(*) FROM due
                   WHERE (SELECT blocked_until FROM endpoints e WHERE e.partner_id = due.endpoint_id) IS NULL)
                      AS "due!",
                  (SELECT count(*) FROM (SELECT FROM held WHERE state = 'exhausted' LIMIT 100000) exhausted)
                      AS "exhausted!""#,
        MOST_ENDPOINTS,
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
