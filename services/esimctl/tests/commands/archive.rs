//! `esimctl archive`: finished orders go into files, are shown and restored from there, and nothing
//! is lost or duplicated when a run is killed.

mod bucket;

use std::{fs, path::Path};

use domain::PartnerId;
use serde_json::{Value, json};
use sqlx::PgConnection;
use testkit::wait;
use time::Duration;
use uuid::{NoContext, Timestamp, Uuid};

use crate::support::{CONFIRMED, Operator, store_order};
use crate::{make_unit_ready, text};

/// All rows of orders, so that equal texts mean that every column is equal.
const ROWS: &str = "
    SELECT coalesce(string_agg(line, E'\\n' ORDER BY line), '') FROM (
        SELECT 'orders ' || r::text AS line FROM orders r UNION ALL SELECT 'placements ' || r::text FROM placements r
        UNION ALL SELECT 'topups ' || r::text FROM topups r UNION ALL SELECT 'esims ' || r::text FROM esims r
        UNION ALL SELECT 'deliveries ' || r::text FROM deliveries r
        UNION ALL SELECT 'attempts ' || r::text FROM delivery_attempts r) rows";

/// An operator with a partner, and a folder for archives. Retention keeps everything, so profiles
/// are archived, too.
struct Archiver {
    operator: Operator,
    partner: Value,
    connection: PgConnection,
    folder: tempfile::TempDir,
}

impl Archiver {
    async fn new() -> Self {
        let operator = Operator::new().await;
        let partner = operator.create_partner().await;
        let mut connection = operator.database.connect().await.unwrap();
        sqlx::query("UPDATE walks SET days = NULL")
            .execute(&mut connection)
            .await
            .unwrap();
        Self {
            operator,
            partner,
            connection,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn to(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }

    /// A delivered order of 500 days ago. `number` makes its ids unique.
    async fn order(&mut self, external_id: &str, number: u32) -> crate::support::Order {
        let partner: PartnerId = text(&self.partner, "partner_id").parse().unwrap();
        let order = store_order(&mut self.connection, partner, external_id).await;
        make_unit_ready(&mut self.connection, &order, number).await;
        let at = runtime::clock::now() - Duration::days(500);
        let seconds = u64::try_from(at.unix_timestamp()).unwrap() + u64::from(number);
        let old = Uuid::new_v7(Timestamp::from_unix(NoContext, seconds, 0));
        for statement in [
            "UPDATE orders SET order_id = $2, created_at = created_at - interval '500 days' WHERE order_id = $1",
            "UPDATE placements SET order_id = $2 WHERE order_id = $1",
            "UPDATE deliveries SET order_id = $2, state = 'delivered', delivered_at = now() WHERE order_id = $1",
        ] {
            sqlx::query(statement)
                .bind(order.id.uuid())
                .bind(old)
                .execute(&mut self.connection)
                .await
                .unwrap();
        }
        crate::support::Order {
            id: old.into(),
            ..order
        }
    }

    async fn rows(&mut self) -> String {
        sqlx::query_scalar(ROWS)
            .fetch_one(&mut self.connection)
            .await
            .unwrap()
    }

    async fn number(&mut self, statement: &'static str) -> i64 {
        sqlx::query_scalar(statement)
            .fetch_one(&mut self.connection)
            .await
            .unwrap()
    }

    /// Waits until the server has noticed that a killed run is gone.
    async fn no_run_is_left(&mut self) {
        wait::soon("the lock of the killed run to end", async || {
            let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
                         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
            Ok((self.number(locks).await == 0).then_some(()))
        })
        .await;
    }

    /// The arguments of a run that moves a few orders at a time.
    fn run(&self) -> Vec<&str> {
        let run = [
            "archive",
            "run",
            "--to",
            self.to(),
            "--older-than",
            "400d",
            "--batch",
            "4",
            "--rate",
            "8",
        ];
        [&run[..], &CONFIRMED].concat()
    }
}

#[tokio::test]
async fn finished_orders_are_archived_shown_verified_and_restored() {
    let mut archiver = Archiver::new().await;
    let order = archiver
        .order("first, \"with\" quotes\nand a line feed", 1)
        .await;
    archiver.order("o-2", 2).await;
    let open = archiver.order("o-3", 3).await;
    sqlx::query("INSERT INTO held (id, state, provider, partner_id) SELECT delivery_id, 'exhausted', '', partner_id FROM deliveries WHERE order_id = $1")
        .bind(open.id.uuid())
        .execute(&mut archiver.connection)
        .await
        .unwrap();
    let before = archiver.rows().await;
    let operator = &archiver.operator;
    let to = archiver.to().to_owned();
    let id = order.id.to_string();
    let shown = operator.json(&["order", "show", &id]).await;

    let no_age = ["archive", "run", "--to", &to, "--dry-run"];
    operator
        .run(&no_age)
        .await
        .fails(1, "retention set orders --days 400");
    let young = [
        "archive",
        "run",
        "--to",
        &to,
        "--older-than",
        "0d",
        "--dry-run",
    ];
    operator.run(&young).await.fails(2, "less than a day");
    let term = ["retention", "set", "orders", "--days", "400"];
    operator.json(&[&term[..], &CONFIRMED].concat()).await;
    let preview = operator.json(&no_age).await;
    assert_eq!(
        (&preview["orders"], &preview["left"]),
        (&json!(2), &json!(1))
    );

    let run = ["archive", "run", "--to", &to];
    let ran = operator.json(&[&run[..], &CONFIRMED].concat()).await;
    assert_eq!(
        (&ran["orders"], &ran["left"]),
        (&json!(2), &json!(1)),
        "{ran}"
    );
    let folder = Path::new(&to).join("archive-1");
    assert_eq!(
        text(&ran["archives"][0], "folder"),
        folder.to_str().unwrap()
    );
    assert_eq!(archiver.number("SELECT count(*) FROM orders").await, 1);
    archiver.says_where_orders_are(&order, &shown).await;
    archiver.restores(&id, &shown).await;
    archiver.names_archives_of_a_partner().await;
    archiver.finds_a_changed_byte(&folder).await;
    assert_eq!(archiver.rows().await, before);
}

impl Archiver {
    /// The look-ups of the archived orders `order` and `o-2`. `shown` is what `order show` printed
    /// of `order`.
    async fn says_where_orders_are(&self, order: &crate::support::Order, shown: &Value) {
        let operator = &self.operator;
        let to = self.to();
        let found = operator.json(&["order", "show", "o-2"]).await;
        assert_eq!(found["archived"][0]["archive"], 1);
        operator
            .run(&["order", "show", "o-2"])
            .await
            .says("is in archive 1");
        let unknown = operator
            .run(&["order", "show", "8981000000000000001"])
            .await;
        unknown.fails(1, "archive show 8981000000000000001 --from DIR");
        let erase = ["order", "erase", "o-2"];
        operator
            .run(&[&erase[..], &CONFIRMED].concat())
            .await
            .fails(1, "archive restore");
        let listed = operator.json(&["archive", "list"]).await;
        assert_eq!(listed[0]["orders"], 2);
        operator.run(&["archive", "show", "1"]).await.says("test");
        let keys = operator.json(&["master-key", "status"]).await;
        assert_eq!(
            keys["archives"],
            json!([{ "key": "test", "archives": [1] }])
        );
        let known = operator.json(&["archive", "show", "o-2"]).await;
        assert_eq!(known["archived"][0]["archive"], 1);
        for name in [
            order.id.to_string().as_str(),
            "8981000000000000001",
            order.topup.as_str(),
            &order.placement.to_string(),
        ] {
            let from = operator
                .json(&["archive", "show", name, "--from", to])
                .await;
            assert_eq!(from["orders"], shown["orders"], "{name}");
        }
        operator
            .run(&["archive", "show", "o-9", "--from", to])
            .await
            .fails(1, "no archived order");
        operator
            .run(&["archive", "list", "--verify", to])
            .await
            .says("ok");
    }

    /// The arguments that restore an order or an archive.
    fn restore<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        let restore = ["archive", "restore", name, "--from", self.to()];
        [&restore[..], &CONFIRMED].concat()
    }

    /// One order comes back, and then the rest.
    async fn restores(&self, id: &str, shown: &Value) {
        let operator = &self.operator;
        let to = self.to();
        let preview = ["archive", "restore", "o-2", "--from", to, "--dry-run"];
        assert_eq!(operator.json(&preview).await["orders"], 1);
        let restored = operator.json(&self.restore("o-2")).await;
        assert_eq!(
            restored["restored"],
            json!({ "orders": 1, "present": 0, "erased": 0 })
        );
        operator.run(&self.restore("o-2")).await.fails(1, "already");
        let restored = operator.json(&self.restore("1")).await;
        assert_eq!(
            restored["restored"],
            json!({ "orders": 1, "present": 1, "erased": 0 })
        );
        let again = operator.json(&["order", "show", id]).await;
        assert_eq!(&again, shown);
        let actions = operator.actions().await;
        let commands = actions.iter().map(|one| text(one, "command"));
        let commands: Vec<&str> = commands.collect();
        let expected = [
            "archive restore",
            "archive restore",
            "archive run",
            "archive run",
            "retention set",
        ];
        assert_eq!(commands, expected);
        let listed = operator.json(&["archive", "list"]).await;
        assert_eq!(listed[0]["restored"], 2);
    }

    async fn names_archives_of_a_partner(&mut self) {
        let operator = &self.operator;
        let partner = text(&self.partner, "partner_id").to_owned();
        operator
            .json(&["partner", "set", &partner, "--disabled"])
            .await;
        for statement in [
            "UPDATE walks SET up_to = now() + interval '1 minute' WHERE name IN ('placements', 'deliveries')",
            "DELETE FROM work",
        ] {
            sqlx::query(statement)
                .execute(&mut self.connection)
                .await
                .unwrap();
        }
        let erase = ["partner", "erase", &partner, "--dry-run"];
        let erased = operator.json(&erase).await;
        assert_eq!(erased["archives"][0]["orders"], 2);
        operator.run(&erase).await.says("archive 1 in ");
    }

    async fn finds_a_changed_byte(&self, folder: &Path) {
        let operator = &self.operator;
        let file = folder.join("esims.csv.gz");
        let mut bytes = fs::read(&file).unwrap();
        let last = bytes.len() - 9;
        bytes[last] ^= 1;
        fs::write(&file, bytes).unwrap();
        let verified = operator
            .run(&["archive", "list", "--verify", folder.to_str().unwrap()])
            .await;
        assert_eq!(verified.code, Some(1), "{verified:?}");
        assert!(verified.stdout.contains("esims.csv.gz"), "{verified:?}");
        operator
            .run(&self.restore("1"))
            .await
            .fails(1, "nothing was changed");
    }
}

/// A division that was interrupted does not hold the lock of archive runs. The new cell would inherit an
/// archive that is not complete, and be refused because of it.
#[tokio::test]
async fn no_run_begins_while_the_cell_divides() {
    let mut archiver = Archiver::new().await;
    archiver.order("o-1", 1).await;
    let divides =
        "UPDATE system SET cell = 'a', cut = '{\"from\": \"a\", \"to\": \"b\", \"partners\": []}'";
    sqlx::query(divides)
        .execute(&mut archiver.connection)
        .await
        .unwrap();
    let refused = archiver.operator.run(&archiver.run()).await;
    refused.fails(1, "`esimctl cell divide`");
    let begun = archiver.number("SELECT count(*) FROM archives").await;
    assert_eq!(begun, 0);
    sqlx::query("UPDATE system SET cut = NULL")
        .execute(&mut archiver.connection)
        .await
        .unwrap();
    let run = archiver.operator.json(&archiver.run()).await;
    assert_eq!(run["orders"], 1);
}

/// A run is killed while a batch is on disk and not committed, and again between two batches. Then
/// it ends, and every order is in the archive once.
#[tokio::test]
async fn a_run_that_is_killed_loses_and_duplicates_nothing() {
    let mut archiver = Archiver::new().await;
    for number in 1..=9 {
        archiver.order(&format!("o-{number}"), number).await;
    }
    let before = archiver.rows().await;
    let folder = archiver.folder.path().join("archive-1");
    let written = |name: &str| fs::metadata(folder.join(name)).map_or(0, |file| file.len());

    // The row of the archive is locked when everything is reserved. So the first batch is written
    // to the files, and its transaction waits before it commits.
    let mut first = archiver.operator.command(&archiver.run()).spawn().unwrap();
    wait::soon("all orders to be reserved", async || {
        let reserved = archiver
            .number("SELECT count(*) FROM archived_orders")
            .await;
        Ok((reserved == 9).then_some(()))
    })
    .await;
    let mut blocking = archiver.operator.database.connect().await.unwrap();
    for statement in ["BEGIN", "SELECT FROM archives FOR UPDATE"] {
        sqlx::query(statement).execute(&mut blocking).await.unwrap();
    }
    wait::soon("the first batch to be on disk", async || {
        Ok((written("delivery_attempts.csv.gz") > 0).then_some(()))
    })
    .await;
    first.kill().await.unwrap();
    sqlx::query("ROLLBACK")
        .execute(&mut blocking)
        .await
        .unwrap();
    assert_eq!(archiver.rows().await, before);
    archiver.no_run_is_left().await;

    let mut second = archiver.operator.command(&archiver.run()).spawn().unwrap();
    wait::soon("a batch to be moved", async || {
        let moved = archiver.number("SELECT orders FROM archives").await;
        Ok((moved > 0).then_some(()))
    })
    .await;
    second.kill().await.unwrap();
    archiver.no_run_is_left().await;

    let elsewhere = tempfile::tempdir().unwrap();
    let wrong = [
        "archive",
        "run",
        "--to",
        elsewhere.path().to_str().unwrap(),
        "--older-than",
        "400d",
    ];
    let moved = archiver.number("SELECT orders FROM archives").await;
    if moved < 9 {
        let refused = archiver
            .operator
            .run(&[&wrong[..], &CONFIRMED].concat())
            .await;
        assert!(refused.stderr.contains("is not complete"), "{refused:?}");
    }
    archiver.operator.run(&archiver.run()).await.text();
    assert_eq!(archiver.number("SELECT count(*) FROM orders").await, 0);
    assert_eq!(archiver.number("SELECT orders FROM archives").await, 9);
    assert_eq!(
        archiver
            .number("SELECT count(*) FROM archived_orders")
            .await,
        9
    );
    let to = archiver.to().to_owned();
    let verified = archiver
        .operator
        .json(&["archive", "list", "--verify", &to])
        .await;
    assert_eq!(verified["archives"][0]["orders"], 9);
    assert_eq!(verified["archives"][0]["faults"], json!([]));

    let restore = ["archive", "restore", "1", "--from", &to];
    let restored = archiver
        .operator
        .json(&[&restore[..], &CONFIRMED].concat())
        .await;
    assert_eq!(restored["restored"]["orders"], 9);
    assert_eq!(archiver.rows().await, before);
}

/// Whoever can write into the folder of archives cannot have anything restored that no archive run
/// has written: the number of an archive that the database does not know, a changed manifest, or a
/// manifest that names files elsewhere.
#[tokio::test]
async fn a_forged_archive_is_not_restored() {
    let mut archiver = Archiver::new().await;
    archiver.order("o-1", 1).await;
    archiver.operator.run(&archiver.run()).await.text();
    let genuine = archiver.folder.path().join("archive-1");
    let forged = tempfile::tempdir().unwrap();
    let folder = forged.path().join("archive-7");
    fs::create_dir(&folder).unwrap();
    for file in fs::read_dir(&genuine).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    let manifest = folder.join("manifest.json");
    let written: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let from = forged.path().to_str().unwrap();
    let restore = ["archive", "restore", "o-1", "--from", from];
    let restore = [&restore[..], &CONFIRMED].concat();
    let mut numbered = written.clone();
    numbered["archive"] = json!(7);
    let mut changed = written.clone();
    changed["version"] = json!("forged");
    for one in [numbered, changed] {
        fs::write(&manifest, one.to_string()).unwrap();
        let number = one["archive"].to_string();
        // The database remembers in which archive `o-1` is, so its other ids find it in the files.
        for name in ["8981000000000000001", &number] {
            let mut by_name = restore.clone();
            by_name[2] = name;
            let refused = archiver.operator.run(&by_name).await;
            assert_eq!(refused.code, Some(1), "{name}: {refused:?}");
        }
        let shown = ["archive", "show", "8981000000000000001", "--from", from];
        let refused = archiver.operator.run(&shown).await;
        refused.fails(1, "the database has no record of");
        assert_eq!(archiver.number("SELECT count(*) FROM orders").await, 0);
    }
    // A file outside of the folder is not read, whatever the manifest calls it.
    let mut elsewhere = written;
    let outside = forged.path().join("orders.csv.gz");
    fs::rename(folder.join("orders.csv.gz"), &outside).unwrap();
    elsewhere["files"][0]["name"] = json!("../orders.csv.gz");
    fs::write(&manifest, elsewhere.to_string()).unwrap();
    let verify = ["archive", "list", "--verify", folder.to_str().unwrap()];
    let refused = archiver.operator.run(&verify).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stdout.contains("cannot open"), "{refused:?}");

    // With the operator's word the database takes what it may have forgotten after a restore.
    fs::rename(&outside, folder.join("orders.csv.gz")).unwrap();
    for statement in ["DELETE FROM archives", "DELETE FROM archived_orders"] {
        sqlx::query(statement)
            .execute(&mut archiver.connection)
            .await
            .unwrap();
    }
    let restore = ["archive", "restore", "1", "--from", archiver.to()];
    let restore = [&restore[..], &CONFIRMED].concat();
    let refused = archiver.operator.run(&restore).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let vouched = [&restore[..], &["--unrecorded"]].concat();
    let restored = archiver.operator.json(&vouched).await;
    assert_eq!(restored["restored"]["orders"], 1);
}
