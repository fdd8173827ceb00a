//! What waits for endpoints: the queue of each one for people, and the sums for the notifier's
//! metrics. Both walk the same way, so they count alike.

use std::time::Duration;

use pg::{Result, age, count};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// The maximum number of endpoints that are looked at.
pub const MOST_ENDPOINTS: i32 = 1_000;

/// The webhooks that wait for one endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointQueue {
    /// That of the partner's first endpoint is the partner's id.
    pub endpoint_id: Uuid,
    pub partner_id: Uuid,
    /// Whether its partner is a live one.
    pub is_live: bool,
    /// Whether nothing is sent to it, because it is blocked or paused.
    pub is_stopped: bool,
    /// Whether it is stopped only until its next webhook may be sent: its partner has not proven
    /// that it wants them, so it gets them slowly.
    pub is_paced: bool,
    pub count: u64,
    /// How long the oldest has been due, or has been stored.
    pub oldest: Duration,
}

/// The due webhooks of each endpoint, each counted up to `most`. A test of an endpoint is not
/// counted: it is due at `-infinity`, which says nothing of how long it has waited.
pub async fn due(connection: &mut PgConnection, most: i64) -> Result<Vec<EndpointQueue>> {
    let query = sqlx::query!(
        r#"-- Walks from one endpoint to the next by the index `work_lane`.
           WITH RECURSIVE endpoint (lane, partner_id, nth) AS (
               (SELECT lane, partner_id, 1 FROM work
                WHERE kind = 'deliver' AND provider = '' ORDER BY lane, partner_id LIMIT 1)
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
           )
           SELECT coalesce(nullif(endpoint.lane, '')::uuid, endpoint.partner_id) AS "endpoint_id!",
                  endpoint.partner_id AS "partner_id!", p.environment = 'live' AS "is_live!",
                  EXISTS (SELECT FROM partner_endpoints e
                          WHERE e.endpoint_id = coalesce(nullif(endpoint.lane, '')::uuid, endpoint.partner_id)
                            AND e.blocked_until IS NOT NULL) AS "is_stopped!",
                  EXISTS (SELECT FROM partner_endpoints e
                          WHERE e.endpoint_id = coalesce(nullif(endpoint.lane, '')::uuid, endpoint.partner_id)
                            AND e.unproven_since IS NOT NULL AND e.failures = 0 AND e.blocked_until < 'infinity') AS "is_paced!",
                  due.due AS "due!", due.overdue
           FROM endpoint
           JOIN partners p ON p.partner_id = endpoint.partner_id
           CROSS JOIN LATERAL (
               SELECT count(*) AS due, extract(epoch FROM now() - min(at))::float8 AS overdue
               FROM (SELECT at FROM work w
                     WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = endpoint.lane
                       AND w.partner_id = endpoint.partner_id AND w.at > '-infinity' AND w.at <= now()
                     ORDER BY w.at LIMIT $2) rows
           ) due"#,
        MOST_ENDPOINTS,
        most,
    );
    let rows = query.fetch_all(connection).await?;
    let queues = rows.into_iter().map(|row| EndpointQueue {
        endpoint_id: row.endpoint_id,
        partner_id: row.partner_id,
        is_live: row.is_live,
        is_stopped: row.is_stopped,
        is_paced: row.is_paced,
        count: count(row.due),
        oldest: age(row.overdue.unwrap_or_default()),
    });
    Ok(queues.collect())
}

/// The unfinished webhooks that no sweep has passed yet and that have no work, by endpoint, among
/// the first 2,000 rows: a dead notifier leaves all of them unfinished, and a living one few. They
/// belong to the message that announced them, or, if no notifier runs, to nobody.
pub async fn young(connection: &mut PgConnection) -> Result<Vec<EndpointQueue>> {
    let query = sqlx::query!(
        r#"SELECT young.endpoint_id AS "endpoint_id!", young.partner_id AS "partner_id!",
                  -- One look-up for each group, because a join could compare each row with each partner.
                  coalesce((SELECT p.environment = 'live' FROM partners p WHERE p.partner_id = young.partner_id), false)
                      AS "is_live!",
                  EXISTS (SELECT FROM partner_endpoints e
                          WHERE e.endpoint_id = young.endpoint_id AND e.blocked_until IS NOT NULL) AS "is_stopped!",
                  EXISTS (SELECT FROM partner_endpoints e
                          WHERE e.endpoint_id = young.endpoint_id AND e.unproven_since IS NOT NULL AND e.failures = 0
                            AND e.blocked_until < 'infinity') AS "is_paced!",
                  young.count AS "count!", extract(epoch FROM now() - young.oldest)::float8 AS "oldest!"
           FROM (SELECT d.endpoint_id, d.partner_id, count(*) AS count, min(d.created_at) AS oldest
                 FROM (SELECT delivery_id, coalesce(endpoint_id, partner_id) AS endpoint_id, partner_id, state, created_at
                       FROM deliveries
                       WHERE created_at > (SELECT up_to FROM walks WHERE name = 'deliveries')
                       ORDER BY created_at LIMIT 2000) d
                 WHERE d.state = 'pending' AND (SELECT w.at FROM work w WHERE w.id = d.delivery_id) IS NULL
                 GROUP BY 1, 2) young"#
    );
    let rows = query.fetch_all(connection).await?;
    let queues = rows.into_iter().map(|row| EndpointQueue {
        endpoint_id: row.endpoint_id,
        partner_id: row.partner_id,
        is_live: row.is_live,
        is_stopped: row.is_stopped,
        is_paced: row.is_paced,
        count: count(row.count),
        oldest: age(row.oldest),
    });
    Ok(queues.collect())
}

/// A partner whose webhooks wait, because their endpoint has no address.
#[derive(Clone, Debug)]
pub struct WithoutAddress {
    pub partner_id: Uuid,
    pub name: String,
    pub webhooks: u64,
    pub since: OffsetDateTime,
}

/// The partners with webhooks that wait for an address, among the first 10,000 such webhooks.
pub async fn without_address(connection: &mut PgConnection) -> Result<Vec<WithoutAddress>> {
    let query = sqlx::query!(
        r#"SELECT waiting.partner_id AS "partner_id!", p.name, waiting.webhooks AS "webhooks!", waiting.since AS "since!"
           FROM (SELECT partner_id, count(*) AS webhooks, min(at) AS since
                 FROM (SELECT partner_id, at FROM held
                       WHERE state = 'no_endpoint' ORDER BY provider, at LIMIT 10000) rows
                 GROUP BY partner_id) waiting
           JOIN partners p ON p.partner_id = waiting.partner_id
           ORDER BY waiting.since LIMIT 100"#,
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    let partners = rows.map(|row| WithoutAddress {
        partner_id: row.partner_id,
        name: row.name,
        webhooks: count(row.webhooks),
        since: row.since,
    });
    Ok(partners.collect())
}

/// The state of all webhooks and endpoints, for metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WebhookBacklog {
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
    /// The number of exhausted deliveries, which an operator can resend; counted up to 100,000.
    pub exhausted: u64,
}

/// Reads [`WebhookBacklog`]. The cost is bounded: it reads the first due delivery of each of the
/// first 1,000 endpoints with work, and counts up to 100,000 rows of due work and of held ones.
pub async fn backlog(connection: &mut PgConnection) -> Result<WebhookBacklog> {
    let queues = due(connection, 1).await?;
    let oldest = |is_live: bool| {
        let mine = queues
            .iter()
            .filter(|queue| queue.is_live == is_live && !queue.is_stopped);
        mine.map(|queue| queue.oldest).max().unwrap_or_default()
    };
    let query = sqlx::query!(
        r#"SELECT (SELECT count(*) FROM partner_endpoints
                   WHERE blocked_until < 'infinity' AND (unproven_since IS NULL OR failures > 0)) AS "blocked!",
                  (SELECT count(*) FROM partner_endpoints WHERE blocked_until = 'infinity') AS "paused!",
                  (SELECT count(*)
                   FROM (SELECT coalesce(nullif(lane, '')::uuid, partner_id) AS endpoint_id FROM work
                         WHERE kind = 'deliver' AND provider = '' AND at <= now() LIMIT 100000) due
                   WHERE (SELECT blocked_until FROM partner_endpoints e WHERE e.endpoint_id = due.endpoint_id) IS NULL)
                      AS "due!",
                  (SELECT count(*) FROM (SELECT FROM held WHERE state = 'exhausted' LIMIT 100000) exhausted)
                      AS "exhausted!""#,
    );
    let row = query.fetch_one(connection).await?;
    Ok(WebhookBacklog {
        overdue_live: oldest(true),
        overdue_sandbox: oldest(false),
        due: count(row.due),
        blocked: count(row.blocked),
        paused: count(row.paused),
        exhausted: count(row.exhausted),
    })
}
