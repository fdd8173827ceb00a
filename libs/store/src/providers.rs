//! Providers: their breakers, what their callbacks hint at, and how far behind their queues are.

use std::time::Duration;

use serde::Serialize;
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::{Error, age, seconds, signed};

/// Whether a provider's queue is worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// It is.
    Closed,
    /// It isn't, until the time of [`Breaker::open_until`].
    Open,
    /// It isn't, but one placement may be tried.
    HalfOpen,
}

impl BreakerState {
    /// The name that the operator sees.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// A provider's breaker, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Breaker {
    /// The provider.
    pub name: String,
    /// By the database's clock, when it was read.
    pub state: BreakerState,
    /// Until then it is open.
    #[serde(with = "time::serde::rfc3339::option")]
    pub open_until: Option<OffsetDateTime>,
    /// Why it opened, or what failed last.
    pub reason: Option<String>,
    /// Calls that failed in a row.
    pub failures: i32,
    /// How often it has opened in a row.
    pub openings: i32,
    /// Names the time between two changes.
    #[serde(skip)]
    pub version: i64,
    /// When it last opened, closed or let a probe through.
    #[serde(with = "time::serde::rfc3339")]
    pub changed_at: OffsetDateTime,
}

struct Row {
    name: String,
    is_open: bool,
    open_until: Option<OffsetDateTime>,
    reason: Option<String>,
    failures: i32,
    openings: i32,
    version: i64,
    changed_at: OffsetDateTime,
}

impl From<Row> for Breaker {
    fn from(row: Row) -> Self {
        Self {
            name: row.name,
            state: match row.open_until {
                None => BreakerState::Closed,
                Some(_) if row.is_open => BreakerState::Open,
                Some(_) => BreakerState::HalfOpen,
            },
            open_until: row.open_until,
            reason: row.reason,
            failures: row.failures,
            openings: row.openings,
            version: row.version,
            changed_at: row.changed_at,
        }
    }
}

/// When a breaker opens by itself, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct BreakerLimits {
    /// Consecutive failed calls after which the breaker opens.
    pub failures: u32,
    /// How long it stays open at first; doubles each time.
    pub open: Duration,
    /// The longest time for which it opens by itself.
    pub open_most: Duration,
}

/// Makes sure that there is a row for each of these providers.
pub async fn register(connection: &mut PgConnection, names: &[String]) -> Result<(), Error> {
    sqlx::query!(
        "INSERT INTO providers (name) SELECT * FROM unnest($1::text[]) ORDER BY 1 ON CONFLICT DO NOTHING",
        names,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Every provider that was ever configured, by name.
pub async fn list(connection: &mut PgConnection) -> Result<Vec<Breaker>, Error> {
    let rows = sqlx::query_as!(
        Row,
        r#"SELECT name, open_until > now() IS TRUE AS "is_open!", open_until, reason, failures, openings, version,
                  changed_at
           FROM providers ORDER BY name"#
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(Breaker::from).collect())
}

/// Counts a failed call that began at this version, and opens the breaker if that was one too many, it
/// was a probe, or `at_once` says so. `None`: the version is another by now.
pub async fn failed(
    connection: &mut PgConnection,
    name: &str,
    version: i64,
    at_once: bool,
    limits: &BreakerLimits,
    reason: &str,
) -> Result<Option<Breaker>, Error> {
    let row = sqlx::query_as!(
        Row,
        r#"WITH counted AS (
               SELECT name, $3 OR open_until IS NOT NULL OR failures + 1 >= $4 AS opens
               FROM providers WHERE name = $1 AND version = $2
               FOR UPDATE
           )
           UPDATE providers p
           SET failures = failures + 1, reason = $7,
               open_until = CASE WHEN opens
                   THEN now() + make_interval(secs => least($6::float8, $5::float8 * 2 ^ least(openings, 20))) END,
               openings = openings + opens::int, version = version + opens::int,
               changed_at = CASE WHEN opens THEN now() ELSE changed_at END
           FROM counted WHERE p.name = counted.name
           RETURNING p.name, open_until > now() IS TRUE AS "is_open!", open_until, reason, failures, openings, version,
                     changed_at"#,
        name,
        version,
        at_once,
        signed(limits.failures),
        seconds(limits.open),
        seconds(limits.open_most),
        reason,
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.map(Breaker::from))
}

/// Closes the breaker, or forgets the failures it counted, after a call that began at this version and
/// that the provider answered. `None`: the version is another by now.
pub async fn answered(
    connection: &mut PgConnection,
    name: &str,
    version: i64,
) -> Result<Option<Breaker>, Error> {
    let row = sqlx::query_as!(
        Row,
        r#"UPDATE providers p
           SET failures = 0, openings = 0, open_until = NULL, reason = NULL,
               version = version + (open_until IS NOT NULL)::int,
               changed_at = CASE WHEN open_until IS NULL THEN changed_at ELSE now() END
           WHERE name = $1 AND version = $2
           RETURNING name, false AS "is_open!", open_until, reason, failures, openings, version, changed_at"#,
        name,
        version,
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.map(Breaker::from))
}

/// Lets one probe through a breaker that has been open for long enough, if something is due to be tried
/// with; for `lease` nobody else gets one. The probe's calls begin at the version that this answers.
pub async fn probe(
    connection: &mut PgConnection,
    name: &str,
    lease: Duration,
) -> Result<Option<Breaker>, Error> {
    let row = sqlx::query_as!(
        Row,
        r#"UPDATE providers
           SET open_until = now() + make_interval(secs => $2), version = version + 1, changed_at = now()
           WHERE name = $1 AND open_until <= now()
             AND EXISTS (SELECT FROM placement_due WHERE provider = $1 AND at <= now())
           RETURNING name, true AS "is_open!", open_until, reason, failures, openings, version, changed_at"#,
        name,
        seconds(lease),
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.map(Breaker::from))
}

/// Opens a provider's breaker on an operator's word. `None`: there is no such provider.
pub async fn open(
    connection: &mut PgConnection,
    name: &str,
    duration: Duration,
    reason: &str,
) -> Result<Option<Breaker>, Error> {
    let row = sqlx::query_as!(
        Row,
        r#"UPDATE providers
           SET open_until = now() + make_interval(secs => $2), reason = $3, version = version + 1, changed_at = now()
           WHERE name = $1
           RETURNING name, true AS "is_open!", open_until, reason, failures, openings, version, changed_at"#,
        name,
        seconds(duration),
        reason,
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.map(Breaker::from))
}

/// Closes a provider's breaker on an operator's word. `None`: there is no such provider.
pub async fn close(connection: &mut PgConnection, name: &str) -> Result<Option<Breaker>, Error> {
    let row = sqlx::query_as!(
        Row,
        r#"UPDATE providers
           SET open_until = NULL, reason = NULL, failures = 0, openings = 0, version = version + 1, changed_at = now()
           WHERE name = $1
           RETURNING name, false AS "is_open!", open_until, reason, failures, openings, version, changed_at"#,
        name,
    )
    .fetch_optional(connection)
    .await?;
    Ok(row.map(Breaker::from))
}

/// A callback spoke of this unit: its placement, if it waits for profiles, is looked at now, or one
/// second after the look that the callback before it caused. Says whether anything moved.
pub async fn hint(connection: &mut PgConnection, provider: &str, unit_id: &str) -> Result<bool, Error> {
    let moved = sqlx::query!(
        "WITH hinted AS (
             UPDATE placements p SET hinted_at = greatest(now(), p.hinted_at + interval '1 second')
             FROM esims e JOIN topups t ON t.topup_id = e.topup_id
             JOIN placement_due d ON d.placement_id = t.placement_id
             WHERE e.provider = $1 AND e.provider_unit_id = $2 AND e.ready_at IS NULL AND t.state = 'pending'
               AND p.placement_id = t.placement_id AND p.state = 'placed'
               AND d.at > greatest(now(), p.hinted_at + interval '1 second')
             RETURNING p.placement_id, p.hinted_at
         )
         UPDATE placement_due d SET at = hinted.hinted_at FROM hinted WHERE d.placement_id = hinted.placement_id",
        provider,
        unit_id,
    )
    .execute(connection)
    .await?
    .rows_affected();
    Ok(moved > 0)
}

/// How far behind a provider's queue is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Whose queue.
    pub provider: String,
    /// How many placements wait for an operator.
    pub parked: i64,
    /// How many placements are due now.
    pub due: i64,
    /// How long the oldest due placement has been due; zero if none is.
    pub oldest_overdue: Duration,
}

/// Looks at the queues, by index: of `served` providers, and of all that the catalogue names, so that
/// work for one that nobody serves is seen.
pub async fn backlogs(connection: &mut PgConnection, served: &[String]) -> Result<Vec<Backlog>, Error> {
    let rows = sqlx::query!(
        r#"SELECT provider AS "provider!",
                  (SELECT count(*) FROM placement_parked p WHERE p.provider = known.provider) AS "parked!",
                  (SELECT count(*) FROM placement_due d
                   WHERE d.provider = known.provider AND d.at <= now()) AS "due!",
                  extract(epoch FROM now() - (SELECT min(at) FROM placement_due d
                                              WHERE d.provider = known.provider))::float8 AS overdue
           FROM (SELECT provider FROM options UNION SELECT unnest($1::text[])) known (provider)"#,
        served,
    )
    .fetch_all(connection)
    .await?;
    let backlogs = rows.into_iter().map(|row| Backlog {
        provider: row.provider,
        parked: row.parked,
        due: row.due,
        oldest_overdue: age(row.overdue.unwrap_or_default()),
    });
    Ok(backlogs.collect())
}
