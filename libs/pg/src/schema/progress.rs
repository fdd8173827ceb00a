//! What a migrator is doing while it builds an index, for the operator who watches it.
//!
//! `CREATE INDEX CONCURRENTLY` waits three times until all transactions that began before have
//! ended, and without a limit of its own. One forgotten session can hold it up for hours. The
//! session that builds is busy meanwhile, so another one reads the progress here.

use std::fmt;

use sqlx::{PgConnection, Row};

use crate::{
    Result,
    sessions::{self, BlockingSession},
};

/// A build of an index that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexBuild {
    pub index: String,
    /// The phase as PostgreSQL names it, such as `waiting for old snapshots`.
    pub phase: String,
    /// The number of blocks that this phase has read.
    pub blocks_done: i64,
    /// The number of blocks that this phase reads; 0 in a phase that reads none.
    pub blocks_total: i64,
    /// The session whose transaction the build waits for.
    pub waits_for: Option<BlockingSession>,
}

impl fmt::Display for IndexBuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "index {}: {}", self.index, self.phase)?;
        if self.blocks_total > 0 {
            let done = self.blocks_done;
            write!(f, ", {done} of {} blocks", self.blocks_total)?;
        }
        match &self.waits_for {
            Some(session) => write!(f, "; waits for {session}"),
            None => Ok(()),
        }
    }
}

/// The index that the session `pid` is building, read by another session. `None` while it builds
/// none.
pub async fn index_build(observer: &mut PgConnection, pid: i32) -> Result<Option<IndexBuild>> {
    let progress = sqlx::query(
        "SELECT coalesce(nullif(index_relid, 0)::regclass::text, '(new)') AS index, phase, blocks_done, blocks_total
         FROM pg_stat_progress_create_index WHERE pid = $1",
    )
    .bind(pid)
    .fetch_optional(&mut *observer)
    .await?;
    let Some(row) = progress else {
        return Ok(None);
    };
    Ok(Some(IndexBuild {
        index: row.try_get("index")?,
        phase: row.try_get("phase")?,
        blocks_done: row.try_get("blocks_done")?,
        blocks_total: row.try_get("blocks_total")?,
        waits_for: sessions::holding_up(observer, pid).await?,
    }))
}

/// The process id of a connection at the server, by which another session finds it.
pub async fn pid(connection: &mut PgConnection) -> Result<i32> {
    let query = sqlx::query_scalar("SELECT pg_backend_pid()");
    Ok(query.fetch_one(connection).await?)
}
