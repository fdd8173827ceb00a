//! The sweep: finds the rows that have no outcome at the end of their first lease.
//!
//! A new placement or delivery belongs for a short time, its first lease, to the message that
//! announces it, and has no row in `work`. If that message is lost, or its reader dies, nobody else
//! would know of the row. So once a second each stage reads the rows whose first lease has just
//! ended, and inserts due work for each unfinished one. All others cost this one read and no write.
//! It asks first whether there are any ([`may_sweep`]), because a sweep writes even if it finds
//! nothing. To leave out a sweep is always safe: the next one reads a longer range.
//!
//! Guarantee: no row is missed, even if the transaction that created it commits very late.
//! [`SweptRange`] explains how. [`crate::placements::sweep`] and [`crate::deliveries::sweep`] use
//! it with the statement of their stage.

use std::time::Duration;

use pg::{Result, Transaction, seconds};
use time::OffsetDateTime;

/// The longest time range of one sweep, in seconds. It bounds the cost of the statement, even if
/// the stage has been stopped for long and has much to catch up.
const STRETCH: f64 = 10.0;

/// The longest range without rows that no sweep has passed, in seconds. A sweep that finds nothing
/// still writes, and so costs a flush, which an idle system need not pay each second.
pub(crate) const UNSWEPT: f64 = 5.0;

/// Whether a sweep of this table may find a row that is older than its first lease, or has to note
/// how far it has come because of [`UNSWEPT`]. The row of a table in `walks` has the table's name.
macro_rules! may_sweep {
    ($connection:expr, $lag:expr, $table:literal) => {{
        let query = sqlx::query_scalar!(
            r#"SELECT up_to < now() - make_interval(secs => $1::float8 + $2)
                      OR (SELECT true FROM "# + $table + r#" r
                          WHERE r.created_at > up_to AND r.created_at <= now() - make_interval(secs => $1)
                          LIMIT 1) IS NOT NULL AS "may!"
               FROM walks WHERE name = '"# + $table + r#"'"#,
            pg::seconds($lag),
            crate::sweep::UNSWEPT,
        );
        query.fetch_optional($connection).await?.unwrap_or(false)
    }};
}
pub(crate) use may_sweep;

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepResult {
    /// The number of rows that got due work.
    pub late: u64,
    /// More rows wait whose first lease has ended, so the caller should sweep again at once.
    pub more: bool,
}

/// The time range of one sweep. Its transaction holds the lock of the stage's row in `walks`, so
/// one process sweeps at a time.
///
/// The difficulty is that rows do not appear in the order of `created_at`, which is the start of
/// their transaction. A transaction that takes long may insert a row whose time the sweep has
/// already passed. Therefore the start of the range only moves to a time T once no row from before
/// T can appear any more.
///
/// This is how the sweep knows. When it has read everything until T, which is at least one first
/// lease ago, it notes T together with the next transaction id. That is the fence. Later sweeps
/// read the range from the old start again, and rows that already have work are left alone. Once
/// all transactions with smaller ids that write placements or deliveries have ended, the fence is
/// passed: the sweep that notices this finds the last late rows, and moves the start to T. Those
/// that write `topup_changes` are waited for, too, because the walk of a partner over its changes
/// ends where the sweeps have come to (`desk::self_service::changes`).
///
/// Only these are waited for, because a backup, another table's migration or another database of
/// the server may keep a transaction open for hours, and meanwhile nothing would find a lost job.
/// Whoever writes a table holds a lock on it until its transaction ends, so `oldest_writer`, a
/// function of the database, finds them in `pg_locks`.
///
/// ```text
///  from               fence_at = T          until = now - first lease
///   |---------------------|-----------------------|-------------------> time
///   read again by each sweep until the fence is passed; then the start moves to T
/// ```
///
/// One gap remains: a transaction gets its id and its locks only when it first writes, so one that
/// began before T might have none yet when the fence is looked at. That cannot happen, because T is
/// at least one first lease ago, no statement may take that long (`LONGEST_STATEMENT` in
/// `libs/pg/src/config.rs`), and whatever creates placements, or deliveries without due work,
/// writes one of the two tables with its first statement.
pub(crate) struct SweptRange {
    table: &'static str,
    /// The start of the range, exclusive.
    pub(crate) from: OffsetDateTime,
    /// The end of the range, inclusive.
    pub(crate) until: OffsetDateTime,
    /// The start of the next range.
    next: OffsetDateTime,
    /// Whether to set a new fence, because the old one was passed or is unusable. Otherwise the old
    /// fence stays: one that moved with each sweep would never be passed while a long
    /// transaction runs.
    renew: bool,
    more: bool,
}

impl SweptRange {
    /// Takes the range of `table` for rows that are older than their first lease of `lag`. Returns
    /// `None` if another process sweeps now, or if no row is old enough.
    pub(crate) async fn take(
        transaction: &mut Transaction<'_>,
        table: &'static str,
        lag: Duration,
    ) -> Result<Option<Self>> {
        // Reads the range and locks it (SKIP LOCKED, so a second process does not wait).
        //
        // - `fence` says whether all transactions with smaller ids that write the tables have
        //   ended, as `oldest_writer` sees it. The next statement, which reads the range, sees the
        //   rows of those. A fence beyond the snapshot is unusable, and is set anew: it comes with
        //   a restored dump, or another process has just set it.
        // - `range` computes the end of the longest allowed range, from the new start if the fence
        //   is passed.
        // - `until` is the end of the range: the longest allowed one, but never within the first
        //   lease.
        let query = sqlx::query!(
            r#"SELECT up_to, fence_at, unusable AS "unusable!", all_ended AS "all_ended!",
                      least(now() - make_interval(secs => $2), stretch) AS "until!",
                      stretch < now() - make_interval(secs => $2) AS "more!"
               FROM walks
               CROSS JOIN LATERAL (
                   SELECT coalesce(fence_xid > pg_snapshot_xmax(pg_current_snapshot()), true) AS unusable,
                          coalesce(oldest_writer() >= fence_xid, true) AS all_ended
               ) fence
               CROSS JOIN LATERAL (
                   SELECT CASE WHEN all_ended AND NOT unusable THEN fence_at ELSE up_to END + make_interval(secs => $3) AS stretch
               ) range
               WHERE name = $1 AND up_to < now() - make_interval(secs => $2)
               FOR UPDATE OF walks SKIP LOCKED"#,
            table,
            seconds(lag),
            STRETCH,
        );
        let row = query.fetch_optional(&mut **transaction).await?;
        Ok(row.map(|row| {
            let passed = row.fence_at.filter(|_| row.all_ended && !row.unusable);
            let renew = row.all_ended || row.unusable;
            Self {
                table,
                from: row.up_to,
                until: row.until,
                next: passed.map_or(row.up_to, |at| at.min(row.until)),
                renew,
                more: row.more && renew,
            }
        }))
    }

    /// Ends the sweep: moves the start of the next range, and sets a new fence if needed.
    /// `late` is the number of rows that got work.
    pub(crate) async fn done(
        self,
        transaction: &mut Transaction<'_>,
        late: u64,
    ) -> Result<SweepResult> {
        let statement = sqlx::query!(
            "UPDATE walks
             SET up_to = $2,
                 fence_at = CASE WHEN $4 THEN $3 ELSE fence_at END,
                 fence_xid = CASE WHEN $4 THEN pg_snapshot_xmax(pg_current_snapshot()) ELSE fence_xid END
             WHERE name = $1",
            self.table,
            self.next,
            self.until,
            self.renew,
        );
        statement.execute(&mut **transaction).await?;
        Ok(SweepResult {
            late,
            more: self.more,
        })
    }
}
