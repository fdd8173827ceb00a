//! Providers: their breakers, the hints of their callbacks, their rate limits, and the backlog of
//! their work.
//!
//! A breaker is a row that all replicas share (`docs/decisions/0011-breakers.md`). Each provisioner
//! decides from its own calls when a provider fails, and calls [`failed`] and [`answered`].
//! Operators call [`open`] and [`close`].
//!
//! Guarantee: while the breaker is not closed, nothing of the provider is claimed except one probe
//! at a time, because the claim itself checks the row. Every change of a breaker increments its
//! version, and a call counts only if the version has not changed since the call began. So calls
//! from before a change cannot undo it, and no response overrides an operator. Times are those of
//! the database, so the clocks of the replicas do not matter.

use std::time::Duration;

use domain::PlacementId;
use pg::{Result, TransactionEnd, age, count, seconds, transaction};
use serde::Serialize;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::work::WorkKind;

/// The state of a provider's breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::EnumString, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum BreakerState {
    /// The placements of the provider are claimed.
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

/// The breaker of a provider as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProviderBreaker {
    pub name: String,
    /// The state at the time of the read, by the database's clock.
    pub state: BreakerState,
    /// When it stops being open.
    #[serde(with = "time::serde::rfc3339::option")]
    pub open_until: Option<OffsetDateTime>,
    /// Why it opened, or what failed last.
    pub reason: Option<String>,
    /// How often failed calls have opened it since the last response. Each time it stays open for
    /// longer. The failed calls themselves are counted by each process, not here.
    pub openings: i32,
    /// Changes whenever the breaker opens, closes or lets a probe through.
    #[serde(skip)]
    pub version: i64,
    /// When it last opened, closed or let a probe through.
    #[serde(with = "time::serde::rfc3339")]
    pub changed_at: OffsetDateTime,
    /// Since when it has not been closed, however often it has let a probe through meanwhile.
    #[serde(with = "time::serde::rfc3339::option")]
    pub failing_since: Option<OffsetDateTime>,
    /// Whether the provider has denied our account, so that only a person can mend it.
    pub denied: bool,
    /// What is left in our account there, as the provider told last: an amount and its currency.
    pub balance: Option<String>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub balance_at: Option<OffsetDateTime>,
}

impl ProviderBreaker {
    /// Whether it is open because commits were lost. Then it stays open until an operator closes
    /// it, after `esimctl recover`.
    pub fn lost_commits(&self) -> bool {
        self.open_until.is_some_and(|until| until.year() == 9999)
    }

    /// Whether an operator has opened it, and no failed call has since.
    pub fn opened_by_operator(&self) -> bool {
        self.open_until.is_some() && self.openings == 0 && !self.lost_commits()
    }
}

/// A statement that returns breakers. `$before` and `$after` are its text before and after the
/// columns.
macro_rules! breakers {
    ($before:literal, $after:literal $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            ProviderBreaker,
            $before
                + r#" name, CASE WHEN open_until IS NULL THEN 'closed' WHEN open_until > now() THEN 'open'
                            ELSE 'half_open' END AS "state!",
                      open_until, reason, openings, version, changed_at, failing_since, denied, balance, balance_at "#
                + $after
            $(, $argument)*
        )
    };
}

/// The limits at which a breaker opens by itself, and the time for which it stays open.
#[derive(Clone, Copy, Debug)]
pub struct BreakerLimits {
    /// How many calls of one process must fail in a row before that process opens the breaker.
    pub failures: u32,
    /// How long it stays open at first. The time doubles with each failed probe.
    pub open: Duration,
    /// Upper limit of that time.
    pub open_most: Duration,
}

/// Inserts the rows of these providers that are missing.
pub async fn register(connection: &mut PgConnection, names: &[String]) -> Result<()> {
    let statement = sqlx::query!(
        "INSERT INTO providers (name) SELECT * FROM unnest($1::text[]) ORDER BY 1 ON CONFLICT DO NOTHING",
        names,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// What a provider does for delivered eSIMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfterDelivery {
    /// It shows how much of an eSIM's data is used.
    pub usage: bool,
    /// It takes eSIMs back, by itself or by a claim that people decide.
    pub give_back: bool,
    /// It suspends and resumes eSIMs.
    pub suspend: bool,
}

/// Stores what a provider does for delivered eSIMs, so that nobody is offered what it does not do.
pub async fn note_after_delivery(
    connection: &mut PgConnection,
    name: &str,
    can: AfterDelivery,
) -> Result<()> {
    let statement = sqlx::query!(
        "UPDATE providers SET shows_usage = $2, takes_back = $3, suspends = $4
         WHERE name = $1 AND (shows_usage, takes_back, suspends) IS DISTINCT FROM ($2, $3, $4)",
        name,
        can.usage,
        can.give_back,
        can.suspend,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// What a provider does for delivered eSIMs; `None` if no provisioner has said it yet.
pub async fn after_delivery(
    connection: &mut PgConnection,
    name: &str,
) -> Result<Option<AfterDelivery>> {
    let query = sqlx::query!(
        "SELECT shows_usage, takes_back, coalesce(suspends, false) AS \"suspends!\" FROM providers WHERE name = $1",
        name
    );
    let row = query.fetch_optional(connection).await?;
    Ok(row.and_then(|row| {
        Some(AfterDelivery {
            usage: row.shows_usage?,
            give_back: row.takes_back?,
            suspend: row.suspends,
        })
    }))
}

/// The breakers of all providers that were ever configured, by name.
pub async fn list(connection: &mut PgConnection) -> Result<Vec<ProviderBreaker>> {
    Ok(breakers!("SELECT", "FROM providers ORDER BY name")
        .fetch_all(connection)
        .await?)
}

/// Opens the breaker because calls failed that began at this version. Each time in a row it stays
/// open for twice as long, up to a limit. The caller counts the calls and decides when the provider
/// as a whole fails, and says whether it has denied our account. Returns `None` if the version has
/// changed; then the failed calls say nothing about the current state.
pub async fn failed(
    connection: &mut PgConnection,
    name: &str,
    version: i64,
    limits: &BreakerLimits,
    (reason, denied): (&str, bool),
) -> Result<Option<ProviderBreaker>> {
    // The exponent is bounded, so that the time does not overflow however often the breaker has
    // opened.
    let opened = breakers!(
        "WITH changed AS (UPDATE providers
         SET reason = $5, denied = $6,
             open_until = now() + make_interval(secs => least($4::float8, $3::float8 * 2 ^ least(openings, 20))),
             openings = openings + 1, version = version + 1, changed_at = now(),
             failing_since = CASE WHEN open_until IS NULL THEN now() ELSE coalesce(failing_since, now()) END
         WHERE name = $1 AND version = $2 AND open_until IS DISTINCT FROM '9999-12-31 00:00:00+00'
         RETURNING *
         ), noted AS (
             INSERT INTO history (provider, kind, detail) SELECT name, 'breaker_opened', reason FROM changed
         )
         SELECT",
        "FROM changed",
        name,
        version,
        seconds(limits.open),
        seconds(limits.open_most),
        reason,
        denied
    );
    Ok(opened.fetch_optional(connection).await?)
}

/// Notes what is left in our account, as the provider told.
pub async fn note_balance(connection: &mut PgConnection, name: &str, balance: &str) -> Result<()> {
    let statement = sqlx::query!(
        "UPDATE providers SET balance = $2, balance_at = now() WHERE name = $1",
        name,
        balance,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Closes the breaker, or forgets its openings if it is closed, after a call that began at this
/// version and got a response. Returns `None` if the version has changed.
pub async fn responded(
    connection: &mut PgConnection,
    name: &str,
    version: i64,
) -> Result<Option<ProviderBreaker>> {
    let closed = breakers!(
        "WITH changed AS (UPDATE providers
         SET openings = 0, open_until = NULL, reason = NULL, denied = false, failing_since = NULL,
             version = version + (open_until IS NOT NULL)::int,
             changed_at = CASE WHEN open_until IS NULL THEN changed_at ELSE now() END
         WHERE name = $1 AND version = $2 AND open_until IS DISTINCT FROM '9999-12-31 00:00:00+00'
         RETURNING *
         ), noted AS (
             -- The version of a breaker that was closed before stays as it is.
             INSERT INTO history (provider, kind) SELECT name, 'breaker_closed' FROM changed WHERE version <> $2
         )
         SELECT",
        "FROM changed",
        name,
        version
    );
    Ok(closed.fetch_optional(connection).await?)
}

/// Lets one probe through a breaker whose open time has passed, if a placement of the provider, or
/// a request about a delivered eSIM, is due. The breaker is then open for `lease`, so no other
/// process gets a probe during that time. The calls of the probe begin at the returned version.
pub async fn probe(
    connection: &mut PgConnection,
    name: &str,
    lease: Duration,
) -> Result<Option<ProviderBreaker>> {
    let kinds = WorkKind::names(&[
        &WorkKind::PURCHASES,
        &WorkKind::LOOKUPS,
        &WorkKind::REQUESTS,
    ]);
    // The condition reads the oldest row of each kind of work by the index. Without due work there
    // would be nothing to probe with, and the lease would be wasted.
    let probing = breakers!(
        "UPDATE providers
         SET open_until = now() + make_interval(secs => $2), version = version + 1, changed_at = now()
         WHERE name = $1 AND open_until <= now()
           AND (EXISTS (
               SELECT FROM unnest($3::text[]) AS wanted (kind)
               CROSS JOIN LATERAL (
                   SELECT at FROM work w WHERE w.kind = wanted.kind AND w.provider = $1 ORDER BY at LIMIT 1
               ) oldest
               WHERE oldest.at <= now()))
         RETURNING",
        "",
        name,
        seconds(lease),
        &kinds as &[&str]
    );
    Ok(probing.fetch_optional(connection).await?)
}

/// Opens a provider's breaker on an operator's command. Returns `None` if there is no such
/// provider. A breaker that is open because commits were lost stays as it is: it must not become
/// half open when the operator's time is over.
pub async fn open(
    connection: &mut PgConnection,
    name: &str,
    duration: Duration,
    reason: &str,
) -> Result<Option<ProviderBreaker>> {
    let opened = breakers!(
        "WITH changed AS (UPDATE providers
         SET open_until = CASE WHEN open_until = '9999-12-31 00:00:00+00' THEN open_until
                               ELSE now() + make_interval(secs => $2) END,
             reason = CASE WHEN open_until = '9999-12-31 00:00:00+00' THEN reason ELSE $3 END,
             denied = false, version = version + 1, changed_at = now(),
             failing_since = CASE WHEN open_until IS NULL THEN now() ELSE coalesce(failing_since, now()) END
         WHERE name = $1
         RETURNING *
         ), noted AS (
             INSERT INTO history (provider, kind, detail) SELECT name, 'breaker_opened', reason FROM changed
         )
         SELECT",
        "FROM changed",
        name,
        seconds(duration),
        reason
    );
    Ok(opened.fetch_optional(connection).await?)
}

/// Closes a provider's breaker on an operator's command. Returns `None` if there is no such
/// provider.
pub async fn close(connection: &mut PgConnection, name: &str) -> Result<Option<ProviderBreaker>> {
    let closed = breakers!(
        "WITH changed AS (UPDATE providers
         SET open_until = NULL, reason = NULL, denied = false, openings = 0, failing_since = NULL, version = version + 1,
             changed_at = now()
         WHERE name = $1
         RETURNING *
         ), noted AS (
             INSERT INTO history (provider, kind) SELECT name, 'breaker_closed' FROM changed
         )
         SELECT",
        "FROM changed",
        name
    );
    Ok(closed.fetch_optional(connection).await?)
}

/// What a callback about a purchase names.
#[derive(Clone, Copy, Debug)]
pub enum Hinted<'a> {
    /// A unit, by the provider's id.
    Unit(&'a str),
    /// The purchase itself, by our id.
    Placement(PlacementId),
}

/// Handles a callback of the provider about a purchase: if its placement waits for profiles, the
/// next collect becomes due now, or one second after the collect that the previous callback caused.
/// Returns whether anything changed.
///
/// A callback is not trusted. It only brings forward a collect that would happen anyway, and at
/// most one per second, so that forged or repeated callbacks cause few calls. `late` finds the
/// placement, if its collect is due later than that, and `hinted` notes the new time.
pub async fn hint(
    connection: &mut PgConnection,
    provider: &str,
    hinted: Hinted<'_>,
) -> Result<bool> {
    let (unit_id, placement_id) = match hinted {
        Hinted::Unit(unit_id) => (Some(unit_id), None),
        Hinted::Placement(placement_id) => (None, Some(placement_id.uuid())),
    };
    let statement = sqlx::query!(
        "WITH late AS (
             SELECT p.placement_id, greatest(now(), p.hinted_at + interval '1 second') AS at
             FROM placements p
             JOIN work w ON w.id = p.placement_id
             WHERE p.placement_id = coalesce($3, (
                       SELECT t.placement_id FROM esims e JOIN topups t ON t.topup_id = e.topup_id
                       WHERE e.provider = $1 AND e.provider_unit_id = $2 AND e.ready_at IS NULL AND t.state = 'pending'))
               AND p.provider = $1 AND p.state = 'placed' AND w.at > greatest(now(), p.hinted_at + interval '1 second')
             FOR UPDATE OF p, w
         ), hinted AS (
             UPDATE placements p SET hinted_at = late.at FROM late WHERE p.placement_id = late.placement_id
         )
         UPDATE work w SET at = late.at FROM late
         WHERE w.id = late.placement_id AND w.id = ANY (ARRAY (SELECT placement_id FROM late))",
        provider,
        unit_id as Option<&str>,
        placement_id as Option<Uuid>,
    );
    Ok(statement.execute(connection).await?.rows_affected() > 0)
}

/// What a provider reports after the sale. It names an eSIM by its own id of the unit or by the
/// ICCID, or neither if it is about our account.
#[derive(Clone, Copy, Debug)]
pub struct StoredReport<'a> {
    pub unit_id: Option<&'a str>,
    pub iccid: Option<&'a str>,
    /// By which a repeat is recognised.
    pub key: &'a str,
    /// One short line.
    pub words: &'a str,
}

/// Keeps a report, and makes a question about the use of its eSIM due, whose answer confirms it.
/// Returns false if the report is not kept, because as many of its eSIM are as may be, or was kept
/// before, and `None` if it is about no delivered eSIM of ours.
pub async fn report(
    connection: &mut PgConnection,
    provider: &str,
    report: &StoredReport<'_>,
) -> Result<Option<bool>> {
    let query = sqlx::query_scalar!(
        "SELECT report_of_esim($1, $2, $3, $4, $5)",
        provider,
        report.unit_id as Option<&str>,
        report.iccid as Option<&str>,
        report.key,
        report.words,
    );
    Ok(query.fetch_one(connection).await?)
}

/// How long a replica holds its share of a rate limit without renewing it. If a replica dies, the
/// others get its share after this time.
const SHARE: Duration = Duration::from_secs(3);

/// Renews this replica's share of a provider's rate limit for the next seconds; the caller does so
/// once a second. The share and the limit are calls per second. In the end all replicas have equal
/// shares. A replica that has just joined gets at first only what the others have already given up,
/// so the sum of all shares never exceeds the limit.
pub async fn share_of_rate(
    connection: &mut PgConnection,
    provider: &str,
    instance: &str,
    limit: f64,
) -> Result<f64> {
    transaction!(connection, "providers::share_of_rate", |transaction| {
        // The lock of the row lets one replica after the other compute its share. Otherwise two
        // replicas could both take the same free part.
        sqlx::query!(
            "SELECT FROM providers WHERE name = $1 FOR NO KEY UPDATE",
            provider
        )
        .fetch_optional(&mut **transaction)
        .await?;
        // `others` counts the other replicas and adds up their shares. `ended` deletes replicas
        // that have not renewed theirs. The new share is an equal part of the limit, but never more
        // than what the others leave.
        let query = sqlx::query_scalar!(
            r#"WITH others AS (
               SELECT count(*) AS replicas, coalesce(sum(share), 0) AS leased FROM provider_replicas
               WHERE provider = $1 AND instance <> $2 AND until > now()
           ), ended AS (
               DELETE FROM provider_replicas WHERE provider = $1 AND instance <> $2 AND until <= now()
           )
           INSERT INTO provider_replicas (provider, instance, share, until)
           SELECT $1, $2, greatest(0, least($3::float8 / (replicas + 1), $3 - leased)),
                  now() + make_interval(secs => $4)
           FROM others
           ON CONFLICT (provider, instance) DO UPDATE SET share = excluded.share, until = excluded.until
           RETURNING share"#,
            provider,
            instance,
            limit,
            seconds(SHARE),
        );
        let share = query.fetch_one(&mut **transaction).await?;
        Ok(TransactionEnd::Commit(share))
    })
}

/// The maximum number of attempts of a lane that [`unsettled`] counts.
const MOST_COUNTED: i64 = 100;

/// How many attempts of each lane of a provider wait for a look-up, because their outcome is
/// unknown. At most 100 are counted for each lane, which bounds the cost; provisioners hold a lane
/// back at a smaller number.
pub async fn unsettled(
    connection: &mut PgConnection,
    provider: &str,
) -> Result<Vec<(String, u64)>> {
    let query = sqlx::query!(
        r#"-- Walks from lane to lane by the index.
           WITH RECURSIVE known (lane) AS (
               (SELECT lane FROM work WHERE kind = $3 AND provider = $1 ORDER BY lane LIMIT 1)
               UNION ALL
               SELECT (SELECT w.lane FROM work w WHERE w.kind = $3 AND w.provider = $1 AND w.lane > known.lane
                       ORDER BY w.lane LIMIT 1)
               FROM known WHERE known.lane IS NOT NULL
           )
           SELECT lane AS "lane!",
                  (SELECT count(*) FROM (SELECT FROM work w WHERE w.kind = $3 AND w.provider = $1
                                         AND w.lane = known.lane LIMIT $2) counted) AS "unsettled!"
           FROM known WHERE lane IS NOT NULL"#,
        provider,
        MOST_COUNTED,
        WorkKind::LookUp.as_str(),
    );
    let rows = query.fetch_all(connection).await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.lane, count(row.unsettled)))
        .collect())
}

/// The backlog of a provider's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderBacklog {
    pub provider: String,
    pub parked: u64,
    /// Parked give-backs.
    pub give_backs_parked: u64,
    /// Parked extensions.
    pub extensions_parked: u64,
    /// Whether an enabled option names it, also as an alternative.
    pub on_sale: bool,
    pub due: u64,
    /// How long the oldest due placement has been due; zero if none is due.
    pub oldest_overdue: Duration,
}

/// Reads the backlogs of the `served` providers, of all that were ever served, and of all in the
/// catalogue, also as alternatives, so that work of a provider that no provisioner serves is
/// visible, too. All counts are made by an index and bounded.
pub async fn backlogs(
    connection: &mut PgConnection,
    served: &[String],
) -> Result<Vec<ProviderBacklog>> {
    let kinds = WorkKind::names(&[&WorkKind::PURCHASES, &WorkKind::LOOKUPS]);
    let query = sqlx::query!(
        r#"SELECT known.provider AS "provider!",
                  (SELECT count(*) FROM (SELECT FROM held h
                                         WHERE h.state = 'parked' AND h.provider = known.provider
                                         LIMIT 100000) parked) AS "parked!",
                  (SELECT count(*) FROM (SELECT FROM esim_requests r
                                         WHERE r.give_back = 'parked' AND r.provider = known.provider
                                         LIMIT 100000) parked) AS "give_backs_parked!",
                  (SELECT count(*) FROM (SELECT FROM extensions x
                                         WHERE x.state = 'parked' AND x.provider = known.provider
                                         LIMIT 100000) parked) AS "extensions_parked!",
                  known.on_sale AS "on_sale!", due.due AS "due!", due.overdue
           FROM (SELECT provider, bool_or(on_sale) AS on_sale
                 FROM (SELECT provider, enabled FROM options
                       UNION SELECT pair->>'provider', enabled FROM options, jsonb_array_elements(alternatives) pair
                       UNION SELECT name, false FROM providers
                       UNION SELECT unnest($1::text[]), false) named (provider, on_sale)
                 GROUP BY provider) known
           CROSS JOIN LATERAL (
               -- By index, and bounded for each kind of work.
               SELECT coalesce(sum(of_kind.due), 0)::int8 AS due, max(of_kind.overdue)::float8 AS overdue
               FROM unnest($2::text[]) AS wanted (kind)
               CROSS JOIN LATERAL (
                   SELECT (SELECT count(*) FROM (SELECT FROM work w
                                                 WHERE w.kind = wanted.kind AND w.provider = known.provider
                                                   AND w.at <= now() LIMIT 100000) rows) AS due,
                          extract(epoch FROM now() - (SELECT w.at FROM work w
                                                      WHERE w.kind = wanted.kind AND w.provider = known.provider
                                                      ORDER BY w.at LIMIT 1)) AS overdue
               ) of_kind
           ) due"#,
        served,
        &kinds as &[&str],
    );
    let backlogs = query
        .fetch_all(connection)
        .await?
        .into_iter()
        .map(|row| ProviderBacklog {
            provider: row.provider,
            parked: count(row.parked),
            give_backs_parked: count(row.give_backs_parked),
            extensions_parked: count(row.extensions_parked),
            on_sale: row.on_sale,
            due: count(row.due),
            oldest_overdue: age(row.overdue.unwrap_or_default()),
        });
    Ok(backlogs.collect())
}
