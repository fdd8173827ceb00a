//! The sessions of PostgreSQL that hold up another one, as errors and progress lines name them.
//!
//! Several commands of `esimctl` may have to wait for the lock or for the end of a transaction of
//! another program. The operator can only do something about it with the session's process id and
//! the name of its program, so each such wait names them.

use std::fmt;

use sqlx::{PgConnection, Row, postgres::PgRow};

/// A session of the server. Roles without `pg_read_all_stats` do not see the state and the
/// transaction of other roles' sessions, so these may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockingSession {
    /// The process id at the server, which `pg_terminate_backend` takes.
    pub pid: i32,
    /// Its `application_name`, or `unnamed`.
    pub application: String,
    /// The database role, or `-` for a process of the server itself.
    pub role: String,
    /// What PostgreSQL says that it does, such as `idle in transaction`. It is only shown.
    pub doing: Option<String>,
    /// When its transaction began, in UTC, such as `2025-01-29 12:34:56`.
    pub since: Option<String>,
    /// The age of its transaction in seconds.
    pub open_for: Option<i64>,
}

impl fmt::Display for BlockingSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pid,
            application,
            role,
            ..
        } = self;
        write!(f, "{application} (pid {pid}, role {role}")?;
        if let Some(doing) = &self.doing {
            write!(f, ", {doing}")?;
        }
        f.write_str(")")?;
        match (self.open_for, &self.since) {
            (Some(seconds), Some(since)) => write!(f, ", open for {seconds} s, since {since} UTC"),
            _ => {
                f.write_str(", open for an unknown time, because this role lacks pg_read_all_stats")
            }
        }
    }
}

/// The columns of a [`BlockingSession`] from `pg_stat_activity`.
const COLUMNS: &str =
    "SELECT pid, coalesce(nullif(application_name, ''), 'unnamed') AS application,
    coalesce(usename::text, '-') AS role, state,
    to_char(xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') AS since,
    extract(epoch FROM clock_timestamp() - xact_start)::bigint AS open_for
    FROM pg_stat_activity";

fn session(row: &PgRow) -> Result<BlockingSession, sqlx::Error> {
    Ok(BlockingSession {
        pid: row.try_get("pid")?,
        application: row.try_get("application")?,
        role: row.try_get("role")?,
        doing: row.try_get("state")?,
        since: row.try_get("since")?,
        open_for: row.try_get("open_for")?,
    })
}

/// The session of this database with the oldest open transaction, except for the caller's.
pub(crate) async fn oldest_transaction(
    connection: &mut PgConnection,
) -> Result<Option<BlockingSession>, sqlx::Error> {
    let sql = format!(
        "{COLUMNS} WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
         ORDER BY xact_start LIMIT 1"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .fetch_optional(connection)
        .await?;
    row.as_ref().map(session).transpose()
}

/// The session with the oldest transaction among those that hold up the session `pid`.
pub(crate) async fn holding_up(
    connection: &mut PgConnection,
    pid: i32,
) -> Result<Option<BlockingSession>, sqlx::Error> {
    let sql =
        format!("{COLUMNS} WHERE pid = ANY (pg_blocking_pids($1)) ORDER BY xact_start LIMIT 1");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(pid)
        .fetch_optional(connection)
        .await?;
    row.as_ref().map(session).transpose()
}

/// The session with the oldest transaction among those that have written this table, or have locked
/// it in another mode that conflicts with `SHARE ROW EXCLUSIVE`.
pub async fn writer_of(
    connection: &mut PgConnection,
    table: &str,
) -> Result<Option<BlockingSession>, sqlx::Error> {
    let sql = format!(
        "{COLUMNS} WHERE pid <> pg_backend_pid() AND pid IN (
             SELECT pid FROM pg_locks
             WHERE locktype = 'relation' AND granted AND relation = $1::regclass
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
               AND mode NOT IN ('AccessShareLock', 'RowShareLock'))
         ORDER BY xact_start LIMIT 1"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(table)
        .fetch_optional(connection)
        .await?;
    row.as_ref().map(session).transpose()
}
