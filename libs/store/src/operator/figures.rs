//! What waits, and for how long it will: the backlog of each provider and of each endpoint, the age
//! of its oldest row, and an estimate of when it is worked off.
//!
//! All numbers are read by indexes and are bounded: counts end at [`MOST`], and only the endpoints
//! with work are looked at, at most [`MOST_ENDPOINTS`] of them. Nothing here counts orders.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{Result, age, count, providers};

/// Where counts end.
pub const MOST: u64 = 100_000;
/// The most endpoints that are looked at.
pub const MOST_ENDPOINTS: i32 = 1_000;

/// Whose work waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub enum Queue {
    /// Purchases and look-ups at a provider.
    Provider { name: String },
    /// Webhooks to an endpoint.
    Endpoint { endpoint_id: Uuid, partner_id: Uuid },
}

/// The backlog of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Backlog {
    /// Rows that are due, counted up to [`MOST`].
    pub due: u64,
    /// How long the oldest of them has been due, in seconds.
    pub oldest_overdue: f64,
}

/// All backlogs at a moment.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The time of the database.
    pub at: OffsetDateTime,
    pub queues: BTreeMap<Queue, Backlog>,
}

/// When a backlog is worked off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "drain", rename_all = "snake_case")]
pub enum Drain {
    /// Nothing is due.
    Empty,
    /// At the pace of the time between two looks.
    Seconds { seconds: u64 },
    /// It does not become less.
    Never,
    /// The looks are too close to each other, or the backlog is larger than is counted.
    Unknown,
}

impl Figures {
    /// When the backlog of a queue is worked off, at the net pace since an earlier look: what was
    /// done minus what came.
    pub fn drain(&self, queue: &Queue, earlier: &Self) -> Drain {
        let now = self.queues.get(queue).copied().unwrap_or_default();
        let before = earlier.queues.get(queue).copied().unwrap_or_default();
        let elapsed = Duration::try_from(self.at - earlier.at).unwrap_or_default();
        if now.due == 0 {
            return Drain::Empty;
        }
        if elapsed < Duration::from_secs(1) || now.due >= MOST || before.due >= MOST {
            return Drain::Unknown;
        }
        let Some(less) = before.due.checked_sub(now.due).filter(|less| *less > 0) else {
            return Drain::Never;
        };
        // At most 10^5 rows and some days in milliseconds, so nothing overflows.
        let elapsed = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let seconds = now.due.saturating_mul(elapsed) / less / 1_000;
        Drain::Seconds {
            seconds: seconds.max(1),
        }
    }
}

/// Reads the backlogs.
pub async fn read(connection: &mut PgConnection) -> Result<Figures> {
    let mut queues = BTreeMap::new();
    for one in providers::backlogs(connection, &[]).await? {
        let backlog = Backlog {
            due: one.due,
            oldest_overdue: one.oldest_overdue.as_secs_f64(),
        };
        queues.insert(Queue::Provider { name: one.provider }, backlog);
    }
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
           SELECT endpoint.partner_id AS "partner_id!", endpoint.lane AS "lane!", due.due AS "due!", due.overdue
           FROM endpoint
           CROSS JOIN LATERAL (
               SELECT count(*) AS due, extract(epoch FROM now() - min(at))::float8 AS overdue
               FROM (SELECT at FROM work w
                     WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = endpoint.lane
                       AND w.partner_id = endpoint.partner_id AND w.at > '-infinity' AND w.at <= now()
                     ORDER BY w.at LIMIT 100000) rows
           ) due"#,
        MOST_ENDPOINTS,
    );
    for row in query.fetch_all(&mut *connection).await? {
        let endpoint_id = row.lane.parse().unwrap_or(row.partner_id);
        let queue = Queue::Endpoint {
            endpoint_id,
            partner_id: row.partner_id,
        };
        let oldest_overdue = age(row.overdue.unwrap_or_default()).as_secs_f64();
        queues.insert(
            queue,
            Backlog {
                due: count(row.due),
                oldest_overdue,
            },
        );
    }
    let at = sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "at!""#);
    Ok(Figures {
        at: at.fetch_one(connection).await?,
        queues,
    })
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn figures(seconds: i64, due: u64) -> (Queue, Figures) {
        let queue = Queue::Provider {
            name: "sandbox".into(),
        };
        let backlog = Backlog {
            due,
            oldest_overdue: 1.0,
        };
        let at = datetime!(2025-01-29 12:00 UTC) + time::Duration::seconds(seconds);
        let figures = Figures {
            at,
            queues: [(queue.clone(), backlog)].into(),
        };
        (queue, figures)
    }

    #[test]
    fn a_backlog_drains_at_the_net_pace_between_two_looks() {
        for (before, now, drain) in [
            (100, 90, Drain::Seconds { seconds: 90 }),
            (100, 99, Drain::Seconds { seconds: 990 }),
            (100, 0, Drain::Empty),
            (100, 100, Drain::Never),
            (100, 200, Drain::Never),
            (MOST, 99_000, Drain::Unknown),
        ] {
            let (_, earlier) = figures(0, before);
            let (queue, later) = figures(10, now);
            assert_eq!(later.drain(&queue, &earlier), drain, "{before} {now}");
        }
        let (queue, one) = figures(0, 10);
        assert_eq!(one.drain(&queue, &one), Drain::Unknown);
    }
}
