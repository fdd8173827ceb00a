//! Tests `deploy/drill`: it passes for a good backup, and fails for one that is damaged or lacks
//! what the live database has.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use domain::PartnerId;
use pg::schema;
use sqlx::{Connection, PgConnection};
use testkit::postgres::PostgresServer;

use crate::backup::{backup, buy, run, stream_log, until_log_is_stored};
use crate::bench::execute;

/// Stores an order that is an hour old. The drill leaves out those of the last seconds of a backup,
/// because they may have been committed after its end.
async fn buy_an_hour_ago(connection: &mut PgConnection, partner: PartnerId, name: &str) {
    buy(connection, partner, name).await;
    for table in ["orders", "placements"] {
        let aged = format!("UPDATE {table} SET created_at = now() - interval '1 hour'");
        execute(connection, &aged).await;
    }
}

/// The backup of one server, and the drill that tests it.
struct Drill {
    live: String,
    folder: PathBuf,
}

/// What a drill said, and whether its exit status was 0.
#[derive(Debug)]
struct Result {
    passed: bool,
    line: String,
}

impl Drill {
    fn run(&self, esimctl: Option<&str>) -> Result {
        // The server of the drill runs as another user if this test runs as root.
        run(Command::new("chmod").args(["-R", "a+rX"]).arg(&self.folder));
        let mut drill = Command::new(testkit::workspace().join("deploy/drill"));
        drill
            .arg(&self.folder)
            .env("DATABASE_URL", &self.live)
            .env("TMPDIR", self.folder.parent().unwrap())
            .stdin(Stdio::null());
        if let Some(esimctl) = esimctl {
            let ledger = self.folder.join("ledger");
            fs::write(&ledger, "").unwrap();
            let ledger = ledger.display();
            drill.env("ESIMCTL", esimctl).args([
                "--ledger",
                &format!("airalo={ledger}"),
                "--ledger",
                &format!("usimsa={ledger}"),
            ]);
        }
        let done = drill.output().unwrap();
        let line = String::from_utf8(done.stdout).unwrap();
        assert_eq!(line.lines().count(), 1, "{line} {:?}", done.stderr);
        println!("{line}");
        Result {
            passed: done.status.success(),
            line,
        }
    }

    /// A drill that must fail. The time of the last good one stays.
    fn fails(&self, reason: &str) {
        let before = fs::read(self.folder.join("esim_drill.prom")).ok();
        let result = self.run(None);
        assert!(!result.passed && result.line.contains(reason), "{result:?}");
        assert!(result.line.starts_with("drill failed: "), "{result:?}");
        assert_eq!(before, fs::read(self.folder.join("esim_drill.prom")).ok());
    }

    /// The only base backup.
    fn base(&self) -> PathBuf {
        let mut bases = fs::read_dir(self.folder.join("base")).unwrap();
        bases.next().unwrap().unwrap().path()
    }

    /// The segments of the log, the oldest first.
    fn segments(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.folder.join("wal")).unwrap();
        let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    }
}

/// Changes bytes in the middle of a file, and returns what it held.
fn damage(file: &Path) -> Vec<u8> {
    let good = fs::read(file).unwrap();
    let mut bad = good.clone();
    let middle = bad.len() / 2;
    bad[..middle].fill(0xFF);
    fs::write(file, bad).unwrap();
    good
}

#[tokio::test]
async fn a_drill_passes_for_a_good_backup_and_fails_for_a_damaged_or_incomplete_one() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let server = PostgresServer::start(folder.path()).await.unwrap();
    // The server of the drill makes its copy below this folder.
    let place = folder.path().join("place");
    let backups = place.join("backups");
    fs::create_dir_all(&backups).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o711)).unwrap();
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    schema::migrate(&mut connection).await.unwrap();
    let drill = Drill {
        live: server.url().to_owned(),
        folder: backups.clone(),
    };
    let backups = backups.to_str().unwrap();
    let partner = PartnerId::new();
    buy_an_hour_ago(&mut connection, partner, "before").await;
    let mut log = stream_log(&mut connection, server.url(), backups).await;
    run(&mut backup(server.url(), &["base", backups]));
    // Each order is in a segment of its own.
    for name in ["after", "later", "last"] {
        buy_an_hour_ago(&mut connection, partner, name).await;
        execute(&mut connection, "SELECT pg_switch_wal()").await;
    }
    buy_an_hour_ago(&mut connection, partner, "end").await;
    until_log_is_stored(&mut connection).await;
    log.kill().unwrap();
    log.wait().unwrap();

    let result = drill.run(None);
    assert!(result.passed, "{result:?}");
    let counted = "with 5 orders, 5 placements and 5 units";
    assert!(result.line.starts_with("drill ok: "), "{result:?}");
    assert!(result.line.contains(counted), "{result:?}");
    let metric = fs::read_to_string(drill.folder.join("esim_drill.prom")).unwrap();
    assert!(
        metric.contains("\nesim_drill_timestamp_seconds 1"),
        "{metric}"
    );

    let result = drill.run(Some("true"));
    assert!(
        result.passed && result.line.matches("its placements agree with ").count() == 2,
        "{result:?}"
    );
    let result = drill.run(Some("false"));
    assert!(
        !result.passed && result.line.contains("which is no fault of the backup"),
        "{result:?}"
    );
    // What the ledgers have, and the two databases find in it: (in the restored one, in the live
    // one).
    let placement: uuid::Uuid = sqlx::query_scalar("SELECT placement_id FROM placements LIMIT 1")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let stranger = uuid::Uuid::now_v7();
    for (restored, live, passes) in [
        // Somebody else's purchase, or one that came after the backup: the live database may know
        // it.
        (stranger, None, true),
        // A difference that the live database has, too.
        (placement, Some(placement), true),
        // A purchase that the live database had before the end of the backup, and the backup lacks.
        (placement, None, false),
    ] {
        let esimctl = folder.path().join("esimctl");
        let found = |id: Option<uuid::Uuid>| {
            let findings = id.map(|id| format!(r#"{{"kind":"orphan","order_id":"{id}"}}"#));
            format!(
                r#"{{"ledger":{{"findings":[{}]}}}}"#,
                findings.unwrap_or_default()
            )
        };
        let script = format!(
            "#!/bin/sh\ncase $DATABASE_URL in\n*esim-drill*) echo '{}'; exit 3 ;;\n*) echo '{}'; exit 3 ;;\nesac\n",
            found(Some(restored)),
            found(live)
        );
        fs::write(&esimctl, script).unwrap();
        fs::set_permissions(&esimctl, fs::Permissions::from_mode(0o755)).unwrap();
        let result = drill.run(Some(esimctl.to_str().unwrap()));
        assert_eq!(result.passed, passes, "{result:?}");
    }

    // The live database has an order that the backup should have.
    buy_an_hour_ago(&mut connection, partner, "not in the backup").await;
    drill.fails("has 5 orders from before");
    execute(
        &mut connection,
        "CREATE TEMP TABLE surplus AS SELECT placement_id, order_id FROM placements JOIN orders USING (order_id)
         WHERE external_order_id = 'not in the backup';
         DELETE FROM topups WHERE placement_id IN (SELECT placement_id FROM surplus);
         DELETE FROM placements WHERE placement_id IN (SELECT placement_id FROM surplus);
         DELETE FROM orders WHERE order_id IN (SELECT order_id FROM surplus)",
    )
    .await;

    // PostgreSQL takes a damaged segment for the end of the log, and starts.
    let segments = drill.segments();
    let damaged = &segments[segments.len() - 3];
    let good = damage(damaged);
    drill.fails("a segment between them is damaged or missing");
    fs::write(damaged, good).unwrap();

    let file = drill.base().join("global/pg_filenode.map");
    let good = damage(&file);
    drill.fails("is damaged: ");
    fs::write(&file, good).unwrap();
    assert!(drill.run(None).passed);

    // Nothing is left of the copies.
    let left: Vec<PathBuf> = fs::read_dir(&place)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(left, std::slice::from_ref(&drill.folder));
}
