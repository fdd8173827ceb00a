//! The sweep finds rows without an outcome after their first lease. Others cost one read and no due row.

use std::time::Duration;

use sqlx::{Connection, PgConnection, Postgres, Transaction};
use time::OffsetDateTime;

use crate::{Result, seconds};

/// The longest range of one sweep, in seconds. It bounds one statement even after the stage has been stopped for long.
const STRETCH: f64 = 10.0;

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// The number of rows that became due.
    pub late: u64,
    /// Older rows are left: sweep again at once.
    pub more: bool,
}

/// The time range of one sweep; one process holds it at a time.
///
/// A fence is a transaction id noted together with a time that is at least one first lease ago. It is passed once all
/// transactions with earlier ids have ended; then no row older than that time can still appear. Only then that time
/// becomes the start of the next range, so a slow commit is not missed.
///
/// A transaction gets its id when it first writes. One that began before that time has its id when the fence is noted,
/// because no statement may take as long as a first lease (`DATABASE_TIMEOUT`).
pub(crate) struct Fence<'a> {
    pub(crate) transaction: Transaction<'a, Postgres>,
    stage: &'static str,
    /// The start of the range, exclusive.
    pub(crate) from: OffsetDateTime,
    /// The end of the range, inclusive.
    pub(crate) until: OffsetDateTime,
    /// The start of the next range.
    next: OffsetDateTime,
    /// Whether to set a new fence: the old one was passed, or there is none yet. A fence that moved with each sweep
    /// would never be passed during a long transaction.
    renew: bool,
    more: bool,
}

impl<'a> Fence<'a> {
    /// Returns `None` if another process sweeps now or nothing is old enough.
    pub(crate) async fn take(
        connection: &'a mut PgConnection,
        stage: &'static str,
        lag: Duration,
    ) -> Result<Option<Self>> {
        let mut transaction = connection.begin().await?;
        let query = sqlx::query!(
            r#"SELECT up_to, fence_at, passed AS "passed!", least(now() - make_interval(secs => $2), stretch) AS "until!",
                      stretch < now() - make_interval(secs => $2) AS "more!"
               FROM sweeps
               CROSS JOIN LATERAL (
                   -- A restored dump carries the fence of another cluster, whose transactions have all ended.
                   SELECT coalesce(fence_xid <= pg_snapshot_xmin(pg_current_snapshot())
                                   OR fence_xid > pg_snapshot_xmax(pg_current_snapshot()), false) AS passed
               ) fence
               CROSS JOIN LATERAL (
                   SELECT CASE WHEN passed THEN fence_at ELSE up_to END + make_interval(secs => $3) AS stretch
               ) range
               WHERE stage = $1 AND up_to < now() - make_interval(secs => $2)
               FOR UPDATE OF sweeps SKIP LOCKED"#,
            stage,
            seconds(lag),
            STRETCH,
        );
        let row = query.fetch_optional(&mut *transaction).await?;
        Ok(row.map(|row| {
            let passed = row.fence_at.filter(|_| row.passed);
            let renew = passed.is_some() || row.fence_at.is_none();
            Self {
                transaction,
                stage,
                from: row.up_to,
                until: row.until,
                next: passed.map_or(row.up_to, |at| at.min(row.until)),
                renew,
                more: row.more && renew,
            }
        }))
    }

    /// Moves the start of the next range, sets the fence and commits.
    pub(crate) async fn done(mut self, late: u64) -> Result<Swept> {
        let statement = sqlx::query!(
            "UPDATE sweeps
             SET up_to = $2,
                 fence_at = CASE WHEN $4 THEN $3 ELSE fence_at END,
                 fence_xid = CASE WHEN $4 THEN pg_snapshot_xmax(pg_current_snapshot()) ELSE fence_xid END
             WHERE stage = $1",
            self.stage,
            self.next,
            self.until,
            self.renew,
        );
        statement.execute(&mut *self.transaction).await?;
        self.transaction.commit().await?;
        Ok(Swept { late, more: self.more })
    }
}
