//! The nightly comparison of accounts with what was ordered ([`balances::check`]), and what the
//! last one has found. Findings, metrics and `esimctl` read it, so they cannot contradict each
//! other.
//!
//! A notifier makes it ([`check_tonight`]); `esimctl account check` and `doctor` make it at once.
//! It reads everything, for minutes if there are many millions of entries, so it writes nothing
//! before its end: an open transaction that has written keeps the sweeps waiting.

use pg::{Result, Transaction, TransactionEnd, transaction};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use time::OffsetDateTime;

use super::balances::{self, CheckedAccounts, Disagreement};

/// Held while a process makes the comparison of the night. The number stands for nothing else.
const LOCK: i64 = 0x626f_6f6b;
/// The hour, in UTC, from which on the comparison of a day is due.
const NIGHT: i32 = 2;
/// How many disagreements are kept. `esimctl account check` lists all.
const KEPT: usize = 10;

/// What the last comparison has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastCheck {
    pub at: OffsetDateTime,
    /// The first comparison that has found that something disagrees, unless one has found nothing
    /// since.
    pub since: Option<OffsetDateTime>,
    /// How many disagreements there are, at most a thousand, and the first of them.
    pub found: u64,
    pub first: Vec<Disagreement>,
}

/// A result as the walk `accounts` keeps it.
#[derive(Serialize, Deserialize)]
struct KeptResult {
    accounts: i64,
    entries: i64,
    units: i64,
    found: u64,
    first: Vec<Disagreement>,
}

/// A comparison that was made at once.
#[derive(Debug)]
pub struct CheckedNow {
    pub checked: CheckedAccounts,
    /// Whether it was kept. A server that takes no writes can be read all the same.
    pub kept: Result<()>,
}

/// Compares at once, and keeps what is found.
pub async fn check_now(connection: &mut PgConnection) -> Result<CheckedNow> {
    let clock = sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#);
    let began = clock.fetch_one(&mut *connection).await?;
    let checked = balances::check(&mut *connection).await?;
    let kept = transaction!(connection, "books::keep", |transaction| {
        keep(transaction, began, &checked).await?;
        Ok(TransactionEnd::Commit(()))
    });
    Ok(CheckedNow { checked, kept })
}

/// Makes the comparison of the last night, if no process has made it or makes it now, and if there
/// are accounts.
pub async fn check_tonight(connection: &mut PgConnection) -> Result<Option<CheckedAccounts>> {
    transaction!(connection, "books::check_tonight", |transaction| {
        let lock =
            sqlx::query_scalar!(r#"SELECT pg_try_advisory_xact_lock($1) AS "locked!""#, LOCK);
        if !lock.fetch_one(&mut **transaction).await? || !is_due(&mut *transaction).await? {
            return Ok(TransactionEnd::Rollback(None));
        }
        let clock = sqlx::query_scalar!(r#"SELECT now() AS "now!""#);
        let began = clock.fetch_one(&mut **transaction).await?;
        let checked = balances::compare(&mut *transaction).await?;
        keep(transaction, began, &checked).await?;
        Ok(TransactionEnd::Commit(Some(checked)))
    })
}

/// Whether the comparison of the last night was not made yet.
pub async fn is_due(connection: &mut PgConnection) -> Result<bool> {
    let due = sqlx::query_scalar!(
        r#"SELECT up_to < date_trunc('day', now() - make_interval(hours => $1), 'UTC') + make_interval(hours => $1)
                  AND EXISTS (SELECT FROM accounts) AS "is_due!"
           FROM walks WHERE name = 'accounts'"#,
        NIGHT,
    );
    Ok(due.fetch_optional(connection).await?.unwrap_or_default())
}

/// Keeps the result of a comparison that began at this time, unless one that began later has kept
/// one. It waits for no standby, because a comparison that is lost is made again.
async fn keep(
    transaction: &mut Transaction<'_>,
    began: OffsetDateTime,
    checked: &CheckedAccounts,
) -> Result<()> {
    let local = sqlx::query!("SELECT set_config('synchronous_commit', 'local', true) AS local");
    local.fetch_one(&mut **transaction).await?;
    let found = checked.disagreements.len();
    let kept = KeptResult {
        accounts: checked.accounts,
        entries: checked.entries,
        units: checked.units,
        found: u64::try_from(found).unwrap_or(u64::MAX),
        first: checked.disagreements.iter().take(KEPT).cloned().collect(),
    };
    let statement = sqlx::query!(
        "UPDATE walks
         SET up_to = $2, began_at = CASE WHEN (result->>'found')::bigint > 0 THEN began_at ELSE $2 END, result = $1::text::jsonb
         WHERE name = 'accounts' AND up_to < $2",
        serde_json::to_string(&kept).unwrap_or_default(),
        began,
    );
    statement.execute(&mut **transaction).await?;
    Ok(())
}

/// What the last comparison has found; `None` if there was none.
pub async fn last(connection: &mut PgConnection) -> Result<Option<LastCheck>> {
    let query = sqlx::query!(
        r#"SELECT up_to, began_at, result::text AS "result!" FROM walks WHERE name = 'accounts' AND result IS NOT NULL"#,
    );
    let Some(row) = query.fetch_optional(connection).await? else {
        return Ok(None);
    };
    // One that this version cannot read was kept by another version, and is made anew by night.
    let kept: Option<KeptResult> = serde_json::from_str(&row.result).ok();
    Ok(kept.map(|kept| LastCheck {
        at: row.up_to,
        since: (kept.found > 0).then_some(row.began_at),
        found: kept.found,
        first: kept.first,
    }))
}
