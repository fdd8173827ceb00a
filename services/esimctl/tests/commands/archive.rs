//! `esimctl archive`: finished orders go into files that common tools check and read, and nothing
//! is lost or duplicated when a run is killed.

mod bucket;

use std::{fs, process::Command};

use domain::PartnerId;
use serde_json::{Value, json};
use sqlx::PgConnection;
use testkit::wait;
use time::Duration;
use uuid::{NoContext, Timestamp, Uuid};

use crate::support::{CONFIRMED, Operator, store_order};
use crate::{make_unit_ready, text};

/// All rows of orders, so that equal texts mean that nothing was changed.
const ROWS: &str = "
    SELECT coalesce(string_agg(line, E'\\n' ORDER BY line), '') FROM (
        SELECT 'orders ' || r::text AS line FROM orders r UNION ALL SELECT 'placements ' || r::text FROM placements r
        UNION ALL SELECT 'topups ' || r::text FROM topups r UNION ALL SELECT 'esims ' || r::text FROM esims r
        UNION ALL SELECT 'deliveries ' || r::text FROM deliveries r
        UNION ALL SELECT 'attempts ' || r::text FROM delivery_attempts r) rows";

/// An operator with a partner, and a folder for archives. Retention has erased the profiles of old
/// orders, and keeps attempts for ever.
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
            "UPDATE esims SET profile = NULL, erased_at = now() FROM topups t JOIN placements p USING (placement_id)
             WHERE t.topup_id = esims.topup_id AND p.order_id IN ($1, $2)",
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

/// What a command of a shell prints in the folder of the archives.
fn shell(archiver: &Archiver, script: &str) -> String {
    let mut command = Command::new("sh");
    command
        .args(["-ec", script])
        .current_dir(archiver.folder.path());
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{script}: {ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

/// The orders in the files of the folder.
fn lines(archiver: &Archiver) -> Vec<Value> {
    let text = shell(archiver, "zcat orders-*.jsonl.gz");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn finished_orders_are_in_files_that_common_tools_check_and_read() {
    let mut archiver = Archiver::new().await;
    let name = "first, \"with\" quotes\nand a line feed";
    let order = archiver.order(name, 1).await;
    archiver.order("o-2", 2).await;
    let open = archiver.order("o-3", 3).await;
    let profile = archiver.order("o-4", 4).await;
    for (statement, id) in [
        ("INSERT INTO held (id, state, provider, partner_id) SELECT delivery_id, 'exhausted', '', partner_id FROM deliveries WHERE order_id = $1", &open),
        ("UPDATE esims SET profile = '\\x01' FROM topups t JOIN placements p USING (placement_id)
          WHERE t.topup_id = esims.topup_id AND p.order_id = $1", &profile),
        ("INSERT INTO delivery_attempts (delivery_id, attempt, at, duration_ms, class, response_start)
          SELECT delivery_id, 0, now(), 3, 'status_5xx', '\\xabcdef' FROM deliveries WHERE order_id = $1", &order),
    ] {
        sqlx::query(statement)
            .bind(id.id.uuid())
            .execute(&mut archiver.connection)
            .await
            .unwrap();
    }
    let to = archiver.to().to_owned();
    let operator = &archiver.operator;
    let no_age = ["archive", "run", "--to", &to, "--dry-run"];
    operator
        .run(&no_age)
        .await
        .fails(1, "retention set orders --days 400");
    let young = [&no_age[..], &["--older-than", "0d"]].concat();
    operator.run(&young).await.fails(2, "less than a day");
    let term = ["retention", "set", "orders", "--days", "400"];
    operator.json(&[&term[..], &CONFIRMED].concat()).await;
    let preview = operator.json(&no_age).await;
    assert_eq!(
        (&preview["orders"], &preview["left"]),
        (&json!(2), &json!(2))
    );

    let run = [&["archive", "run", "--to", &to][..], &CONFIRMED].concat();
    let ran = operator.json(&run).await;
    assert_eq!(
        (&ran["orders"], &ran["left"]),
        (&json!(2), &json!(2)),
        "{ran}"
    );
    assert_eq!(archiver.number("SELECT count(*) FROM orders").await, 2);
    assert!(shell(&archiver, "sha256sum -c *.sha256").ends_with(": OK\n"));
    let orders = lines(&archiver);
    assert_eq!(orders.len(), 2);
    assert_eq!(orders[0]["orders"]["external_order_id"], name);
    assert_eq!(orders[0]["topups"][0]["topup_id"], order.topup.as_str());
    assert_eq!(orders[0]["esims"][0]["iccid"], "8981000000000000001");
    // What opens an activation code, or may repeat it, is not there.
    assert_eq!(orders[0]["esims"][0]["profile"], Value::Null);
    assert_eq!(orders[0]["delivery_attempts"][0]["class"], "status_5xx");
    assert_eq!(
        orders[0]["delivery_attempts"][0]["response_start"],
        Value::Null
    );
    archiver.says_where_orders_are(&order).await;
    archiver.names_archives_of_a_partner().await;
}

impl Archiver {
    /// The look-ups of the archived orders `order` and `o-2`.
    async fn says_where_orders_are(&self, order: &crate::support::Order) {
        let operator = &self.operator;
        let found = operator.json(&["order", "show", "o-2"]).await;
        assert_eq!(found["archived"][0]["archive"], 1);
        // The command that it prints shows the order.
        let told = operator.run(&["order", "show", "o-2"]).await;
        let (_, command) = told.text().rsplit_once(": ").unwrap();
        assert!(shell(self, command).contains("\"o-2\""), "{command}");
        let by_topup = operator.run(&["order", "show", order.topup.as_str()]).await;
        by_topup.fails(1, "there is no order");
        let unknown = operator
            .run(&["order", "show", "8981000000000000001"])
            .await;
        unknown.fails(1, "`zgrep` in the files of `esimctl archive list`");
        let erase = ["order", "erase", "o-2"];
        operator
            .run(&[&erase[..], &CONFIRMED].concat())
            .await
            .fails(1, "take its line out of the file");
        let listed = operator.json(&["archive", "list"]).await;
        assert_eq!(listed[0]["orders"], 2);
        let sums = shell(self, "cat *.sha256");
        assert!(sums.starts_with(text(&listed[0], "sha256")), "{sums}");
        let commands = operator.actions().await;
        let commands: Vec<&str> = commands.iter().map(|one| text(one, "command")).collect();
        assert_eq!(commands, ["archive run", "archive run", "retention set"]);
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
        operator.run(&erase).await.says("orders-1-");
    }
}

/// A run is killed while a file is stored and its orders are not deleted, and again between two
/// files. Then it ends, and every order is in one file, once.
#[tokio::test]
async fn a_run_that_is_killed_loses_and_duplicates_nothing() {
    let mut archiver = Archiver::new().await;
    for number in 1..=9 {
        archiver.order(&format!("o-{number}"), number).await;
    }
    let before = archiver.rows().await;
    // The rows of the archives are locked when everything is reserved. So the first file is stored,
    // and its transaction waits before it commits.
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
    let files = || fs::read_dir(archiver.folder.path()).unwrap().count();
    wait::soon("the first file to be stored", async || {
        // The text about the files, the first file and its sum.
        Ok((files() == 3).then_some(()))
    })
    .await;
    first.kill().await.unwrap();
    sqlx::query("ROLLBACK")
        .execute(&mut blocking)
        .await
        .unwrap();
    assert_eq!(archiver.rows().await, before);
    archiver.no_run_is_left().await;

    // The files that are begun stay where they are, so another place is refused.
    let elsewhere = tempfile::tempdir().unwrap();
    let wrong = ["archive", "run", "--older-than", "400d", "--to"];
    let to = [elsewhere.path().to_str().unwrap()];
    let refused = archiver
        .operator
        .run(&[&wrong[..], &to, &CONFIRMED].concat())
        .await;
    refused.fails(1, "is not complete");

    let mut second = archiver.operator.command(&archiver.run()).spawn().unwrap();
    let moved = "SELECT count(*) FROM archives WHERE completed_at IS NOT NULL";
    wait::soon("a file to be completed", async || {
        let moved = archiver.number(moved).await;
        Ok((moved > 0).then_some(()))
    })
    .await;
    second.kill().await.unwrap();
    archiver.no_run_is_left().await;

    archiver.operator.run(&archiver.run()).await.text();
    assert_eq!(archiver.number("SELECT count(*) FROM orders").await, 0);
    let archived = "SELECT count(*) FROM archived_orders";
    assert_eq!(archiver.number(archived).await, 9);
    let sum = "SELECT sum(orders)::bigint FROM archives";
    assert_eq!(archiver.number(sum).await, 9);
    shell(&archiver, "sha256sum -c *.sha256");
    let names: Vec<String> = lines(&archiver)
        .iter()
        .map(|line| text(&line["orders"], "external_order_id").to_owned())
        .collect();
    let expected: Vec<String> = (1..=9).map(|number| format!("o-{number}")).collect();
    assert_eq!(names, expected);
}
