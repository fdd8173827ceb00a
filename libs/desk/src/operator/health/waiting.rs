//! What is stored and not finished: the backlog of each provider and of each endpoint, the age of
//! its oldest row, and an estimate of when it is worked off.
//!
//! Two kinds of rows wait. Those that are *due* have a row in `work`. Those that are *young* were
//! stored after the point up to which the sweep of their stage has come: the message that announced
//! them may be under way, or nobody may ever act on it. So the work of a stage that is dead counts
//! from the first second, although only that stage's own sweep would make it due.
//!
//! All numbers are read by indexes and are bounded: counts end at [`MOST`], the first 2,000 rows
//! after the sweep are looked at, and at most [`MOST_ENDPOINTS`](super::webhooks::MOST_ENDPOINTS)
//! endpoints. Nothing here counts orders.

use std::{collections::BTreeMap, time::Duration};

use pg::{Result, age, count};
use serde::Serialize;
use sqlx::PgConnection;
use store::providers;
use time::OffsetDateTime;
use uuid::Uuid;

use super::webhooks;

/// Where counts of due rows end.
pub const MOST: u64 = 100_000;

/// Whose work waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub enum WaitingQueue {
    /// Purchases, look-ups and requests about eSIMs at a provider.
    Provider { name: String },
    /// Webhooks to an endpoint.
    Endpoint { endpoint_id: Uuid, partner_id: Uuid },
}

/// The backlog of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct QueueBacklog {
    /// Rows that are due, counted up to [`MOST`].
    pub due: u64,
    /// Unfinished rows that no sweep has passed yet, among the first 2,000 rows.
    pub young: u64,
    /// How long the oldest due row has been due, in seconds.
    pub oldest_overdue: f64,
    /// How long the oldest of all has been due or stored, in seconds.
    pub oldest: f64,
    /// Whether it is work of a live partner or of a real provider.
    #[serde(skip)]
    pub is_live: bool,
    /// Whether nothing is sent, because the endpoint is blocked or paused.
    #[serde(skip)]
    pub is_stopped: bool,
    /// Whether it is stopped only until its next webhook may be sent.
    #[serde(skip)]
    pub is_paced: bool,
}

impl QueueBacklog {
    /// All that waits.
    pub fn waiting(&self) -> u64 {
        self.due.saturating_add(self.young)
    }

    fn add_young(&mut self, young: u64, oldest: Duration) {
        self.young = self.young.saturating_add(young);
        self.oldest = self.oldest.max(oldest.as_secs_f64());
    }
}

/// All backlogs at a moment.
#[derive(Clone, Debug)]
pub struct WaitingWork {
    /// The time of the database.
    pub at: OffsetDateTime,
    pub queues: BTreeMap<WaitingQueue, QueueBacklog>,
}

/// When a backlog is worked off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "drain", rename_all = "snake_case")]
pub enum Drain {
    /// Nothing waits.
    Empty,
    /// At the pace of the time between two looks.
    Seconds { seconds: u64 },
    /// It does not become less.
    Never,
    /// The looks are too close to each other, or the backlog is larger than is counted.
    Unknown,
}

impl WaitingWork {
    /// When the backlog of a queue is worked off, at the net pace since an earlier look: what was
    /// done minus what came. Young rows do not count, because a healthy system always has some.
    pub fn drain(&self, queue: &WaitingQueue, earlier: &Self) -> Drain {
        let now = self.queues.get(queue).copied().unwrap_or_default();
        let before = earlier.queues.get(queue).copied().unwrap_or_default();
        let elapsed = Duration::try_from(self.at - earlier.at).unwrap_or_default();
        if now.due == 0 {
            return if now.young == 0 {
                Drain::Empty
            } else {
                Drain::Unknown
            };
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

    /// All that waits for providers, or all webhooks to endpoints that are neither blocked nor
    /// paused: their number, and the age of the oldest one in seconds. An endpoint that is only
    /// paced counts, because its webhooks wait for a notifier, too.
    pub fn sum(&self, of_providers: bool) -> (u64, f64) {
        let mine = self.queues.iter().filter(|(queue, backlog)| {
            matches!(queue, WaitingQueue::Provider { .. }) == of_providers
                && (!backlog.is_stopped || backlog.is_paced)
        });
        mine.fold((0, 0.0), |(waiting, oldest), (_, backlog)| {
            let waiting = backlog.waiting().saturating_add(waiting);
            (waiting, f64::max(oldest, backlog.oldest))
        })
    }
}

/// Reads the backlogs of providers, of which `due` are those that are due already, and of
/// endpoints.
pub async fn read(
    connection: &mut PgConnection,
    due: &[providers::ProviderBacklog],
) -> Result<WaitingWork> {
    let mut queues = BTreeMap::new();
    for one in due {
        let overdue = one.oldest_overdue.as_secs_f64();
        let backlog = QueueBacklog {
            due: one.due,
            oldest_overdue: overdue,
            oldest: overdue,
            is_live: one.provider != SANDBOX,
            ..QueueBacklog::default()
        };
        let name = one.provider.clone();
        queues.insert(WaitingQueue::Provider { name }, backlog);
    }
    for (name, young, oldest) in young(connection).await? {
        let is_live = name != SANDBOX;
        let backlog = queues
            .entry(WaitingQueue::Provider { name })
            .or_insert(QueueBacklog {
                is_live,
                ..QueueBacklog::default()
            });
        backlog.add_young(young, oldest);
    }
    for (name, requests, oldest) in requests(connection).await? {
        let backlog = queues.entry(WaitingQueue::Provider { name }).or_default();
        backlog.due = backlog.due.saturating_add(requests);
        backlog.oldest_overdue = backlog.oldest_overdue.max(oldest.as_secs_f64());
        backlog.oldest = backlog.oldest.max(oldest.as_secs_f64());
    }
    let most = i64::try_from(MOST).unwrap_or(i64::MAX);
    let due = webhooks::due(connection, most).await?;
    let young = webhooks::young(connection).await?;
    let all = due.iter().map(|one| (one, true));
    for (one, is_due) in all.chain(young.iter().map(|one| (one, false))) {
        let queue = WaitingQueue::Endpoint {
            endpoint_id: one.endpoint_id,
            partner_id: one.partner_id,
        };
        let backlog: &mut QueueBacklog = queues.entry(queue).or_default();
        backlog.is_live = one.is_live;
        backlog.is_stopped = one.is_stopped;
        backlog.is_paced = one.is_paced;
        if is_due {
            backlog.due = one.count;
            backlog.oldest_overdue = one.oldest.as_secs_f64();
            backlog.oldest = backlog.oldest_overdue;
        } else {
            backlog.add_young(one.count, one.oldest);
        }
    }
    let at = sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "at!""#);
    Ok(WaitingWork {
        at: at.fetch_one(connection).await?,
        queues,
    })
}

/// The provider that sells to sandbox partners only. Nobody has to get up for it.
pub const SANDBOX: &str = "sandbox";

/// The unfinished purchases of each provider that no sweep has passed yet and that have no work,
/// with the age of the oldest one.
async fn young(connection: &mut PgConnection) -> Result<Vec<(String, u64, Duration)>> {
    let query = sqlx::query!(
        r#"SELECT provider, count(*) AS "count!", extract(epoch FROM now() - min(created_at))::float8 AS "oldest!"
           FROM (SELECT placement_id, provider, state, created_at FROM placements
                 WHERE created_at > (SELECT up_to FROM walks WHERE name = 'placements')
                 ORDER BY created_at LIMIT 2000) p
           WHERE state IN ('accepted', 'placing') AND (SELECT w.at FROM work w WHERE w.id = p.placement_id) IS NULL
           GROUP BY provider"#
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    let young = rows.map(|row| (row.provider, count(row.count), age(row.oldest)));
    Ok(young.collect())
}

/// The due requests about delivered eSIMs, which the provisioners ask the providers.
async fn requests(connection: &mut PgConnection) -> Result<Vec<(String, u64, Duration)>> {
    let query = sqlx::query!(
        r#"SELECT name AS provider, due.count AS "count!", due.oldest AS "oldest!"
           FROM providers
           CROSS JOIN LATERAL (
               SELECT count(*) AS count, extract(epoch FROM now() - min(at))::float8 AS oldest
               FROM unnest('{usage,give_back,extend,suspend}'::text[]) AS wanted (kind)
               CROSS JOIN LATERAL (
                   SELECT w.at FROM work w WHERE w.kind = wanted.kind AND w.provider = name AND w.at <= now()
                   ORDER BY w.at LIMIT 10000
               ) rows
           ) due
           WHERE due.count > 0"#,
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    let requests = rows.map(|row| (row.provider, count(row.count), age(row.oldest)));
    Ok(requests.collect())
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn waiting(seconds: i64, due: u64) -> (WaitingQueue, WaitingWork) {
        let queue = WaitingQueue::Provider {
            name: "sandbox".into(),
        };
        let backlog = QueueBacklog {
            due,
            oldest_overdue: 1.0,
            ..QueueBacklog::default()
        };
        let at = datetime!(2025-01-29 12:00 UTC) + time::Duration::seconds(seconds);
        let waiting = WaitingWork {
            at,
            queues: [(queue.clone(), backlog)].into(),
        };
        (queue, waiting)
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
            let (_, earlier) = waiting(0, before);
            let (queue, later) = waiting(10, now);
            assert_eq!(later.drain(&queue, &earlier), drain, "{before} {now}");
        }
        let (queue, one) = waiting(0, 10);
        assert_eq!(one.drain(&queue, &one), Drain::Unknown);
    }
}
