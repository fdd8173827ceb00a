//! The sweep finds rows whose first lease ended without an outcome. A row that finishes in time costs it
//! one read, and never has a due row.

use std::time::Duration;

use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::{Error, seconds};

/// The longest stretch of time that one sweep looks at: what was created in it must fit into one
/// statement, also after a long stop of the stage.
const STRETCH: f64 = 10.0;

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Rows that are due now.
    pub late: u64,
    /// Older rows are left to look at: sweep again at once.
    pub more: bool,
}

/// The stretch of one sweep, held by one process at a time. Its end becomes the next beginning only once
/// every transaction that may have created rows in it has ended: a slow commit is not passed by.
pub(crate) struct Fence {
    stage: &'static str,
    /// Rows created after this time are looked at.
    pub(crate) from: OffsetDateTime,
    /// Rows created up to this time are looked at.
    pub(crate) until: OffsetDateTime,
    /// Where the next sweep begins.
    next: OffsetDateTime,
    /// The fence was passed, or there is none yet. Otherwise it stays: moved on each time, it would
    /// never be passed beside a long transaction.
    renew: bool,
    more: bool,
}

impl Fence {
    /// `None`: another process sweeps now, or nothing is old enough.
    pub(crate) async fn take(
        connection: &mut PgConnection,
        stage: &'static str,
        lag: Duration,
    ) -> Result<Option<Self>, Error> {
        let row = sqlx::query!(
            r#"SELECT up_to, least(now() - make_interval(secs => $2), up_to + make_interval(secs => $3)) AS "until!",
                      fence_at, coalesce(fence_xid <= pg_snapshot_xmin(pg_current_snapshot()), false) AS "passed!",
                      up_to + make_interval(secs => $3) < now() - make_interval(secs => $2) AS "more!"
               FROM sweeps WHERE stage = $1 AND up_to < now() - make_interval(secs => $2)
               FOR UPDATE SKIP LOCKED"#,
            stage,
            seconds(lag),
            STRETCH,
        )
        .fetch_optional(connection)
        .await?;
        Ok(row.map(|row| {
            let passed = row.fence_at.filter(|_| row.passed);
            let renew = passed.is_some() || row.fence_at.is_none();
            Self {
                stage,
                from: row.up_to,
                until: row.until,
                next: passed.map_or(row.up_to, |at| at.min(row.until)),
                renew,
                more: row.more && renew,
            }
        }))
    }

    /// Moves the beginning of the next sweep, and sets the fence for the one after it.
    pub(crate) async fn done(self, connection: &mut PgConnection, late: u64) -> Result<Swept, Error> {
        sqlx::query!(
            "UPDATE sweeps
             SET up_to = $2,
                 fence_at = CASE WHEN $4 THEN $3 ELSE fence_at END,
                 fence_xid = CASE WHEN $4 THEN pg_snapshot_xmax(pg_current_snapshot()) ELSE fence_xid END
             WHERE stage = $1",
            self.stage,
            self.next,
            self.until,
            self.renew,
        )
        .execute(connection)
        .await?;
        Ok(Swept {
            late,
            more: self.more,
        })
    }
}
