//! The state of the PostgreSQL server, which the provisioner reports as metrics: its size, and what
//! may stop it soon (transaction ids, WAL archiving, replication, long transactions). It reads
//! views of the server and touches no table of ours.

use std::time::Duration;

use sqlx::PgConnection;

use crate::{Result, age, count};

/// The state of the server. Without the role `pg_read_all_stats` the sessions of other roles are
/// invisible, so `longest_transaction` only covers our own.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerState {
    /// The size of this database, in bytes.
    pub size: u64,
    /// The age in transactions of the oldest row that is not frozen, in any database of the server.
    /// PostgreSQL stops all writes near 2 billion.
    pub xid_age: u64,
    /// The age of the oldest open transaction.
    pub longest_transaction: Duration,
    /// Its process id, role and database.
    pub longest_of: String,
    /// How long WAL segments have not been archived, because archiving fails; 0 if it works.
    pub unarchived: Duration,
    /// The number of standbys that stream.
    pub standbys: u64,
    /// The largest replay lag of the standbys that stream.
    pub standby_lag: Duration,
}

/// Finds out whether the disk has room, by a temporary file of some kilobytes: the rows do not fit
/// into so little memory. The error is that of an order that finds no room.
pub async fn find_room(connection: &mut PgConnection) -> Result<()> {
    let query = sqlx::query_scalar!(
        r#"SELECT count(*) AS "rows!" FROM generate_series(1, 2000 + 0 * length(set_config('work_mem', '64kB', true)))"#
    );
    query.fetch_one(connection).await?;
    Ok(())
}

/// Reads the state of the server.
pub async fn server(connection: &mut PgConnection) -> Result<ServerState> {
    let query = sqlx::query!(
        r#"SELECT pg_database_size(current_database()) AS "size!",
                  (SELECT max(age(datfrozenxid))::bigint FROM pg_database) AS "xid_age!",
                  coalesce(extract(epoch FROM clock_timestamp() - longest.xact_start), 0)::float8 AS "longest_transaction!",
                  coalesce(format('pid %s, role %s, database %s', longest.pid, longest.usename, longest.datname), '')
                      AS "longest_of!",
                  (SELECT CASE WHEN last_failed_time > coalesce(last_archived_time, '-infinity')
                               THEN extract(epoch FROM now() - coalesce(last_archived_time, last_failed_time)) ELSE 0 END
                   FROM pg_stat_archiver)::float8 AS "unarchived!",
                  standbys AS "standbys!", lag AS "lag!"
           FROM (SELECT count(*) AS standbys, coalesce(extract(epoch FROM max(replay_lag)), 0)::float8 AS lag
                 FROM pg_stat_replication WHERE state = 'streaming') streaming
           LEFT JOIN (SELECT pid, usename, datname, xact_start FROM pg_stat_activity
                      WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
                      ORDER BY xact_start LIMIT 1) longest ON true"#
    );
    let row = query.fetch_one(connection).await?;
    Ok(ServerState {
        size: count(row.size),
        xid_age: count(row.xid_age),
        longest_transaction: age(row.longest_transaction),
        longest_of: row.longest_of,
        unarchived: age(row.unarchived),
        standbys: count(row.standbys),
        standby_lag: age(row.lag),
    })
}
