//! No statement waits for a delayed acknowledgement, because each connection of the pool has
//! `TCP_NODELAY`.
//!
//! This is measured over TLS, where a large statement consists of several writes, and over
//! loopback, where each of them fits into a segment. There almost every execution would wait
//! without the option, so the test does not depend on luck.

use std::{
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use pg::Error;
use sqlx::{Connection, PgConnection};
use testkit::{postgres::PostgresServer, wait};

use crate::bench::config;

/// The shortest time by which Linux delays an acknowledgement.
const DELAY: Duration = Duration::from_millis(40);
/// Lengths of a statement's parameter. 16 KiB fit into a record of TLS.
const LENGTHS: [usize; 4] = [2_000, 10_000, 20_000, 50_000];
const REPETITIONS: usize = 21;

/// Turns TLS on. The names of these files are the server's defaults.
async fn with_tls(server: &PostgresServer, data: &Path) {
    let certificate = data.join("server.crt");
    let key = data.join("server.key");
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]);
    let made = openssl
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "openssl: {}",
        String::from_utf8_lossy(&made.stderr)
    );
    let owner = std::fs::metadata(data).unwrap();
    for file in [&certificate, &key] {
        chown(file, Some(owner.uid()), Some(owner.gid())).unwrap();
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    for statement in ["ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()"] {
        sqlx::query(statement)
            .execute(&mut connection)
            .await
            .unwrap();
    }
}

/// The shortest and the median time of a statement with a parameter of this length.
async fn times(connection: &mut PgConnection, length: usize) -> sqlx::Result<(Duration, Duration)> {
    let text = "x".repeat(length);
    let mut times = Vec::new();
    for _ in 0..REPETITIONS {
        let began = Instant::now();
        let length: i32 = sqlx::query_scalar("SELECT length($1)")
            .bind(&text)
            .fetch_one(&mut *connection)
            .await?;
        times.push(began.elapsed());
        assert_eq!(usize::try_from(length).unwrap(), text.len());
    }
    times.sort();
    Ok((times[0], times[REPETITIONS / 2]))
}

#[tokio::test]
async fn no_statement_waits_for_a_delayed_acknowledgement() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let server = PostgresServer::start(folder.path()).await.unwrap();
    with_tls(&server, &folder.path().join("postgres/data")).await;
    let url = format!("{}?sslmode=require", server.url());
    let mut sqlx_alone =
        wait::soon("TLS", async || Ok(PgConnection::connect(&url).await.ok())).await;

    let mut without = Vec::new();
    for length in LENGTHS {
        without.push(times(&mut sqlx_alone, length).await.unwrap());
    }
    let database = config(&url).open("store tests").unwrap();
    let mut with = Vec::new();
    for length in LENGTHS {
        with.push(
            database
                .run(async |connection| Ok::<_, Error>(times(connection, length).await?))
                .await
                .unwrap(),
        );
    }

    for ((length, without), with) in LENGTHS.iter().zip(&without).zip(&with) {
        eprintln!(
            "a parameter of {length} bytes, shortest and median: {without:.1?} without TCP_NODELAY, {with:.1?} with it"
        );
    }
    // On a busy machine any statement may take long for another reason, but not each of them.
    assert!(
        with.iter().all(|(shortest, _)| *shortest < DELAY / 2),
        "{with:?}"
    );
    assert!(
        without.iter().any(|(_, median)| *median >= DELAY),
        "sqlx sets TCP_NODELAY again, or TLS is gone: libs/pg/src/nodelay.rs and crate nix can go. {without:?}"
    );
}
