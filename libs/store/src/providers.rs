//! Providers: their breakers, their callbacks' hints, and the backlog of their queues.

use std::time::Duration;

use serde::Serialize;
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::{Result, age, count, seconds, signed};

/// The state of a provider's breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::EnumString, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum BreakerState {
    /// The provider's placements are claimed.
    Closed,
    /// No placement is claimed until [`ProviderBreaker::open_until`].
    Open,
    /// One placement may be claimed as a probe.
    HalfOpen,
}

impl BreakerState {
    /// The name that operators see.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl From<String> for BreakerState {
    fn from(name: String) -> Self {
        name.parse().unwrap_or(Self::HalfOpen)
    }
}

/// A provider's breaker as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProviderBreaker {
    pub name: String,
    /// The state at the time of the read, by the database's clock.
    pub state: BreakerState,
    /// When it stops being open.
    #[serde(with = "time::serde::rfc3339::option")]
    pub open_until: Option<OffsetDateTime>,
    /// Why it opened, or the last failure.
    pub reason: Option<String>,
    /// Consecutive failed calls.
    pub failures: i32,
    pub openings: i32,
    /// Changes whenever the breaker opens, closes or lets a probe through.
    #[serde(skip)]
    pub version: i64,
    /// When it last opened, closed or let a probe through.
    #[serde(with = "time::serde::rfc3339")]
    pub changed_at: OffsetDateTime,
}

/// A statement that returns breakers: its text before and after the columns.
macro_rules! breakers {
    ($before:literal, $after:literal $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            ProviderBreaker,
            $before
                + r#" name, CASE WHEN open_until IS NULL THEN 'closed' WHEN open_until > now() THEN 'open'
                            ELSE 'half_open' END AS "state!",
                      open_until, reason, failures, openings, version, changed_at "#
                + $after
            $(, $argument)*
        )
    };
}

/// The limits at which a breaker opens by itself, and the time for which it stays open.
#[derive(Clone, Copy, Debug)]
pub struct BreakerLimits {
    /// Consecutive failures that open it.
    pub failures: u32,
    /// How long it stays open at first; doubles with each failed probe.
    pub open: Duration,
    /// Upper limit of that time.
    pub open_most: Duration,
}

/// Inserts missing rows for these providers.
pub async fn register(connection: &mut PgConnection, names: &[String]) -> Result<()> {
    let statement = sqlx::query!(
        "INSERT INTO providers (name) SELECT * FROM unnest($1::text[]) ORDER BY 1 ON CONFLICT DO NOTHING",
        names,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Every provider that was ever configured, by name.
pub async fn list(connection: &mut PgConnection) -> Result<Vec<ProviderBreaker>> {
    Ok(breakers!("SELECT", "FROM providers ORDER BY name").fetch_all(connection).await?)
}

/// Counts a failed call that began at this version. Opens the breaker if the limit is reached, if the call
/// was a probe, or if `at_once` is set. Returns `None` if the version has changed.
pub async fn failed(
    connection: &mut PgConnection,
    name: &str,
    version: i64,
    at_once: bool,
    limits: &BreakerLimits,
    reason: &str,
) -> Result<Option<ProviderBreaker>> {
    let counted = breakers!(
        "WITH counted AS (
             SELECT name AS counted, $3 OR open_until IS NOT NULL OR failures + 1 >= $4 AS opens
             FROM providers WHERE name = $1 AND version = $2 FOR UPDATE
         )
         UPDATE providers
         SET failures = failures + 1, reason = $7,
             open_until = CASE WHEN opens
                 THEN now() + make_interval(secs => least($6::float8, $5::float8 * 2 ^ least(openings, 20))) END,
             openings = openings + opens::int, version = version + opens::int,
             changed_at = CASE WHEN opens THEN now() ELSE changed_at END
         FROM counted WHERE name = counted
         RETURNING",
        "",
        name,
        version,
        at_once,
        signed(limits.failures),
        seconds(limits.open),
        seconds(limits.open_most),
        reason
    );
    Ok(counted.fetch_optional(connection).await?)
}

/// Closes the breaker, or clears its failures, after a call that began at this version and got a response.
/// Returns `None` if the version has changed.
pub async fn answered(connection: &mut PgConnection, name: &str, version: i64) -> Result<Option<ProviderBreaker>> {
    let closed = breakers!(
        "UPDATE providers
         SET failures = 0, openings = 0, open_until = NULL, reason = NULL,
             version = version + (open_until IS NOT NULL)::int,
             changed_at = CASE WHEN open_until IS NULL THEN changed_at ELSE now() END
         WHERE name = $1 AND version = $2
         RETURNING",
        "",
        name,
        version
    );
    Ok(closed.fetch_optional(connection).await?)
}

/// Lets one probe through a breaker whose open time has passed, if a placement is due. No other process gets
/// a probe during `lease`. The probe's calls begin at the returned version.
pub async fn probe(connection: &mut PgConnection, name: &str, lease: Duration) -> Result<Option<ProviderBreaker>> {
    let probing = breakers!(
        "UPDATE providers
         SET open_until = now() + make_interval(secs => $2), version = version + 1, changed_at = now()
         WHERE name = $1 AND open_until <= now()
           AND (SELECT at FROM placement_due WHERE provider = $1 ORDER BY at LIMIT 1) <= now()
         RETURNING",
        "",
        name,
        seconds(lease)
    );
    Ok(probing.fetch_optional(connection).await?)
}

/// Opens a provider's breaker on an operator's command. Returns `None` if there is no such provider.
pub async fn open(
    connection: &mut PgConnection,
    name: &str,
    duration: Duration,
    reason: &str,
) -> Result<Option<ProviderBreaker>> {
    let opened = breakers!(
        "UPDATE providers
         SET open_until = now() + make_interval(secs => $2), reason = $3, version = version + 1, changed_at = now()
         WHERE name = $1
         RETURNING",
        "",
        name,
        seconds(duration),
        reason
    );
    Ok(opened.fetch_optional(connection).await?)
}

/// Closes a provider's breaker on an operator's command. Returns `None` if there is no such provider.
pub async fn close(connection: &mut PgConnection, name: &str) -> Result<Option<ProviderBreaker>> {
    let closed = breakers!(
        "UPDATE providers
         SET open_until = NULL, reason = NULL, failures = 0, openings = 0, version = version + 1, changed_at = now()
         WHERE name = $1
         RETURNING",
        "",
        name
    );
    Ok(closed.fetch_optional(connection).await?)
}

/// Handles a callback for this unit: if its placement waits for profiles, it becomes due now, or one second
/// after the collect that the previous callback caused. Returns whether anything moved.
pub async fn hint(connection: &mut PgConnection, provider: &str, unit_id: &str) -> Result<bool> {
    let statement = sqlx::query!(
        "WITH late AS (
             SELECT p.placement_id, greatest(now(), p.hinted_at + interval '1 second') AS at
             FROM esims e JOIN topups t ON t.topup_id = e.topup_id
             JOIN placements p ON p.placement_id = t.placement_id
             JOIN placement_due d ON d.placement_id = t.placement_id
             WHERE e.provider = $1 AND e.provider_unit_id = $2 AND e.ready_at IS NULL AND t.state = 'pending'
               AND p.state = 'placed' AND d.at > greatest(now(), p.hinted_at + interval '1 second')
             FOR UPDATE OF p, d
         ), hinted AS (
             UPDATE placements p SET hinted_at = late.at FROM late WHERE p.placement_id = late.placement_id
         )
         UPDATE placement_due d SET at = late.at FROM late
         WHERE d.placement_id = late.placement_id AND d.placement_id = ANY (ARRAY (SELECT placement_id FROM late))",
        provider,
        unit_id,
    );
    Ok(statement.execute(connection).await?.rows_affected() > 0)
}

/// The lease of a replica's share of a rate limit.
const SHARE: Duration = Duration::from_secs(3);

/// Leases this replica's share of a provider's rate limit; the caller renews it each second. `wanted` and the
/// result are calls per second. The sum of all leased shares is at most `limit`.
pub async fn allowance(
    connection: &mut PgConnection,
    provider: &str,
    instance: &str,
    limit: f64,
    wanted: f64,
) -> Result<f64> {
    let mut transaction = sqlx::Connection::begin(connection).await?;
    // One replica after the other.
    sqlx::query!("SELECT FROM providers WHERE name = $1 FOR NO KEY UPDATE", provider)
        .fetch_optional(&mut *transaction)
        .await?;
    let query = sqlx::query!(
        "SELECT wanted, share FROM provider_replicas WHERE provider = $1 AND instance <> $2 AND until > now()",
        provider,
        instance,
    );
    let others = query.fetch_all(&mut *transaction).await?;
    let others: Vec<(f64, f64)> = others.into_iter().map(|row| (row.wanted, row.share)).collect();
    let share = share(limit, wanted, &others);
    let statement = sqlx::query!(
        "WITH ended AS (
             DELETE FROM provider_replicas WHERE provider = $1 AND instance <> $2 AND until <= now()
         )
         INSERT INTO provider_replicas (provider, instance, wanted, share, until)
         VALUES ($1, $2, $3, $4, now() + make_interval(secs => $5))
         ON CONFLICT (provider, instance) DO UPDATE
         SET wanted = excluded.wanted, share = excluded.share, until = excluded.until",
        provider,
        instance,
        wanted,
        share,
        seconds(SHARE),
    );
    statement.execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(share)
}

/// The share of a replica beside `others`, each with its wanted and its leased rate. A replica gets the rate that it
/// wants, but at most an equal part of the rate that replicas with smaller wishes leave. The unwanted rest is split
/// equally.
fn share(limit: f64, wanted: f64, others: &[(f64, f64)]) -> f64 {
    let count = |length: usize| u32::try_from(length).map_or(f64::MAX, f64::from);
    let replicas = count(others.len() + 1);
    // Room to grow, so that a replica without work can begin at once.
    let room = |wanted: f64| wanted * 1.2 + limit / replicas / 10.0;
    let mut rooms: Vec<f64> = others.iter().map(|(wanted, _)| room(*wanted)).collect();
    rooms.push(room(wanted));
    rooms.sort_unstable_by(f64::total_cmp);
    let mut left = limit;
    let mut level = f64::MAX;
    for (index, room) in rooms.iter().enumerate() {
        let equal = left / count(rooms.len() - index);
        if *room > equal {
            level = equal;
            left = 0.0;
            break;
        }
        left -= room;
    }
    let fair = room(wanted).min(level) + left / replicas;
    let leased: f64 = others.iter().map(|(_, share)| share).sum();
    fair.min(limit - leased).max(0.0)
}

/// The backlog of a provider's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    pub provider: String,
    pub parked: u64,
    pub due: u64,
    /// How long the oldest due placement has been overdue; zero if none is due.
    pub oldest_overdue: Duration,
}

/// Reads the backlogs, by index, of `served` providers and of all in the catalogue, served or not.
pub async fn backlogs(connection: &mut PgConnection, served: &[String]) -> Result<Vec<Backlog>> {
    let query = sqlx::query!(
        r#"SELECT provider AS "provider!",
                  (SELECT count(*) FROM (SELECT FROM placement_parked p
                                          WHERE p.provider = known.provider LIMIT 100000) parked) AS "parked!",
                  (SELECT count(*) FROM (SELECT FROM placement_due d
                                          WHERE d.provider = known.provider AND d.at <= now() LIMIT 100000) due) AS "due!",
                  extract(epoch FROM now() - (SELECT at FROM placement_due d
                                              WHERE d.provider = known.provider ORDER BY at LIMIT 1))::float8 AS overdue
           FROM (SELECT provider FROM options UNION SELECT unnest($1::text[])) known (provider)"#,
        served,
    );
    let backlogs = query.fetch_all(connection).await?.into_iter().map(|row| Backlog {
        provider: row.provider,
        parked: count(row.parked),
        due: count(row.due),
        oldest_overdue: age(row.overdue.unwrap_or_default()),
    });
    Ok(backlogs.collect())
}

#[cfg(test)]
mod tests {
    use super::share;

    /// The shares of replicas that renew one after the other, round after round.
    fn settled(limit: f64, wanted: &[f64], rounds: usize) -> Vec<f64> {
        let mut shares = vec![0.0; wanted.len()];
        for _ in 0..rounds {
            for replica in 0..wanted.len() {
                let others = (0..wanted.len()).filter(|other| *other != replica);
                let others: Vec<_> = others.map(|other| (wanted[other], shares[other])).collect();
                shares[replica] = share(limit, wanted[replica], &others);
                assert!(shares.iter().sum::<f64>() <= limit + 1e-9, "{shares:?}");
            }
        }
        shares
    }

    fn close(shares: &[f64], expected: &[f64]) -> bool {
        shares.iter().zip(expected).all(|(share, expected)| (share - expected).abs() < 0.01)
    }

    #[test]
    fn replicas_share_the_limit_by_what_they_want() {
        assert!(close(&settled(100.0, &[500.0], 1), &[100.0]));
        assert!(close(&settled(100.0, &[500.0, 500.0], 3), &[50.0, 50.0]));
        // 10 wanted, a fifth more and a twentieth of the limit to grow.
        assert!(close(&settled(100.0, &[500.0, 10.0], 3), &[83.0, 17.0]));
        assert!(close(&settled(100.0, &[0.0, 0.0], 3), &[50.0, 50.0]));
        assert!(close(&settled(100.0, &[500.0; 10], 3), &[10.0; 10]));
    }

    #[test]
    fn a_replica_that_comes_later_has_its_share_after_the_others_have_renewed() {
        let first = share(100.0, 500.0, &[]);
        let second = share(100.0, 500.0, &[(500.0, first)]);
        assert!(second < 0.01, "all is leased: {second}");
        let first = share(100.0, 500.0, &[(500.0, second)]);
        let second = share(100.0, 500.0, &[(500.0, first)]);
        assert!(close(&[first, second], &[50.0, 50.0]), "{first} {second}");
    }
}
