//! Tests `deploy/backup`: a base backup with the log after it is restored to its end, and to a time
//! in between, and holds exactly what was committed until then.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use domain::PartnerId;
use pg::schema;
use sqlx::{Connection, PgConnection};
use store::orders;
use testkit::{postgres::PostgresServer, wait};

use crate::bench::{execute, order};

pub fn backup(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(testkit::workspace().join("deploy/backup"));
    command
        .args(arguments)
        .env("DATABASE_ADMIN_URL", url)
        .stdin(Stdio::null());
    command
}

pub fn run(command: &mut Command) {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

pub async fn buy(connection: &mut PgConnection, partner: PartnerId, name: &str) {
    let mut order = order(partner, 1);
    name.clone_into(&mut order.external_order_id);
    assert_eq!(orders::insert(connection, &[order]).await.unwrap(), [true]);
}

/// Starts `deploy/backup wal`, and waits until it streams the log. What was written before its slot
/// existed would be missing.
pub async fn stream_log(connection: &mut PgConnection, url: &str, backups: &str) -> Child {
    let log = backup(url, &["wal", backups]).spawn().unwrap();
    wait::soon("the log to be streamed", async || {
        let active = "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = 'esim_backup' AND active)";
        let active: bool = sqlx::query_scalar(active).fetch_one(&mut *connection).await?;
        Ok(active.then_some(()))
    })
    .await;
    log
}

/// Waits until `deploy/backup wal` has stored the log up to now.
pub async fn until_log_is_stored(connection: &mut PgConnection) {
    let end: String = sqlx::query_scalar("SELECT pg_current_wal_lsn()::text")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    wait::soon("the log to be stored", async || {
        let flushed =
            "SELECT coalesce(max(flush_lsn) >= $1::pg_lsn, false) FROM pg_stat_replication";
        let flushed: bool = sqlx::query_scalar(flushed)
            .bind(&end)
            .fetch_one(&mut *connection)
            .await?;
        Ok(flushed.then_some(()))
    })
    .await;
}

/// Replaces the data of a stopped server by a restore, and starts it.
async fn restore(
    server: &mut PostgresServer,
    data: &Path,
    backups: &str,
    time: Option<&str>,
) -> PgConnection {
    let before = data.with_file_name("before");
    if before.exists() {
        std::fs::remove_dir_all(data).unwrap();
    } else {
        std::fs::rename(data, &before).unwrap();
    }
    let data = data.to_str().unwrap();
    let arguments: Vec<&str> = ["restore", backups, data].into_iter().chain(time).collect();
    run(&mut backup(server.url(), &arguments));
    // The server may run as another user than this test.
    run(Command::new("chown").args(["-R", "--reference", before.to_str().unwrap(), data]));
    server.start_again().await.unwrap();
    wait::soon("the end of the recovery", async || {
        let mut connection = PgConnection::connect(server.url()).await?;
        let recovering: bool = sqlx::query_scalar("SELECT pg_is_in_recovery()")
            .fetch_one(&mut connection)
            .await?;
        Ok((!recovering).then_some(connection))
    })
    .await
}

#[tokio::test]
async fn a_base_backup_and_its_log_restore_the_last_commit_or_a_time_before_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let mut server = PostgresServer::start(folder.path()).await.unwrap();
    // The server reads the archive while it recovers.
    let backups: PathBuf = folder.path().join("backups");
    std::fs::create_dir(&backups).unwrap();
    let backups = backups.to_str().unwrap();
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    schema::migrate(&mut connection).await.unwrap();
    let partner = PartnerId::new();
    buy(&mut connection, partner, "before").await;

    let mut log = stream_log(&mut connection, server.url(), backups).await;
    run(&mut backup(server.url(), &["base", backups]));
    // The log tells of limits that the base backup does not know. A server that answers queries
    // while it replays the log would refuse it.
    execute(&mut connection, "ALTER SYSTEM SET max_connections = 250").await;
    server.stop_fast().await.unwrap();
    server.start_again().await.unwrap();
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    buy(&mut connection, partner, "after").await;
    execute(&mut connection, "SELECT pg_sleep(1)").await;
    let between: String = sqlx::query_scalar("SELECT now()::text")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    buy(&mut connection, partner, "last").await;
    until_log_is_stored(&mut connection).await;
    server.stop_immediately().await.unwrap();
    log.kill().unwrap();
    log.wait().unwrap();
    run(Command::new("chmod").args(["-R", "a+rX", backups]));

    let data = folder.path().join("postgres/data");
    for time in [None, Some(between.as_str())] {
        let mut restored = restore(&mut server, &data, backups, time).await;
        for (name, is_there) in [("before", true), ("after", true), ("last", time.is_none())] {
            let status = orders::status(&mut restored, partner, name).await;
            assert_eq!(status.unwrap().is_some(), is_there, "{name}, {time:?}");
        }
        drop(restored);
        let settings = std::fs::read_to_string(data.join("postgresql.auto.conf")).unwrap();
        assert!(settings.contains("\nmax_connections = "), "{settings}");
        assert!(!settings.contains("recovery"), "{settings}");
        assert!(!settings.contains("hot_standby"), "{settings}");
        server.stop_fast().await.unwrap();
    }
    let metric = std::fs::read_to_string(Path::new(backups).join("esim_backup.prom")).unwrap();
    assert!(
        metric.contains("esim_backup_timestamp_seconds "),
        "{metric}"
    );
}
