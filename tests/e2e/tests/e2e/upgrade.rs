//! Upgrade, rollback, upgrade again, while orders go on.
//!
//! One version of the programs can be built at a time: here it is the *older* one. The newer
//! version is its schema: migrations that are applied by the same migrator that `esimctl migrate`
//! uses. So replicas that are restarted after them are the programs of a rollback, and what ran
//! before them is what an upgrade leaves running.

use crate::shop::{PATH, fresh, ids, show};
use anyhow::{Context, Result, ensure};
use pg::schema::{self, LockPatience};
use serde_json::{Value, json};
use sqlx::SqlSafeStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use testkit::client::Client;
use testkit::receiver::{Received, Receiver};
use testkit::stack::{Stack, Stage};
use tokio::{sync::RwLock, task::JoinSet};
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_mins(2);
const WORKERS: usize = 4;

/// What newer versions add to the tables that every order touches.
const NEWER: [&str; 4] = [
    "ALTER TABLE orders ADD COLUMN newer text, ADD COLUMN lane integer NOT NULL DEFAULT 0;
     ALTER TABLE placements ADD COLUMN newer timestamptz DEFAULT now();",
    "CREATE INDEX CONCURRENTLY orders_newer ON orders (created_at, newer);",
    "ALTER TABLE topups ADD COLUMN newest text; ALTER TABLE deliveries ADD COLUMN newest text;",
    "CREATE INDEX CONCURRENTLY deliveries_newest ON deliveries (newest);",
];

/// The migrations of a version that has the first `count` of [`NEWER`]; all of them serve this one.
fn newer(count: usize) -> Migrator {
    let known = schema::latest();
    let mut all: Vec<Migration> = schema::migrations().iter().cloned().collect();
    for (version, statement) in (known + 1..).zip(&NEWER[..count]) {
        let no_tx = statement.contains("CONCURRENTLY");
        let head = if no_tx { "-- no-transaction\n" } else { "" };
        let sql =
            sqlx::AssertSqlSafe(format!("{head}-- serves: {known}\n{statement}")).into_sql_str();
        all.push(Migration::new(
            version,
            "newer".into(),
            MigrationType::Simple,
            sql,
            no_tx,
        ));
    }
    Migrator::with_migrations(all)
}

/// Applies them beside a transaction that reads every table, as a dump does, and ends after the
/// first wait.
async fn upgrade(stack: &Stack, count: usize) -> Result<i64> {
    let mut dump = stack.database.connect().await?;
    sqlx::raw_sql("BEGIN; LOCK TABLE orders, placements, topups, deliveries IN ACCESS SHARE MODE")
        .execute(&mut dump)
        .await?;
    let (waits, mut waited) = tokio::sync::mpsc::unbounded_channel();
    let mut connection = stack.database.connect().await?;
    let migrator = newer(count);
    let migrated = schema::apply(
        &mut connection,
        &migrator,
        LockPatience::default(),
        |wait| {
            let _ = waits.send(wait.version);
        },
    );
    let dumped = async {
        waited
            .recv()
            .await
            .context("the migration didn't wait for the dump")?;
        sqlx::raw_sql("COMMIT").execute(&mut dump).await?;
        anyhow::Ok(())
    };
    let (version, dumped) = tokio::join!(migrated, dumped);
    dumped?;
    Ok(version?)
}

/// Orders through one of the two replicas of ingress; the lock is what a proxy's draining is.
struct Load {
    workers: JoinSet<Result<BTreeSet<String>>>,
    /// The replica that gets the orders.
    serving: Arc<RwLock<usize>>,
    stop: CancellationToken,
}

impl Load {
    fn start(clients: &[Client], option: &str) -> Self {
        let serving = Arc::new(RwLock::new(0));
        let stop = CancellationToken::new();
        let mut workers = JoinSet::new();
        for _ in 0..WORKERS {
            let serving = Arc::clone(&serving);
            let stop = stop.clone();
            let clients = clients.to_vec();
            let option = option.to_owned();
            workers.spawn(async move {
                let mut bought = BTreeSet::new();
                let mut ticks = tokio::time::interval(Duration::from_millis(100));
                while stop.run_until_cancelled(ticks.tick()).await.is_some() {
                    let replica = serving.read().await;
                    let external = fresh("order");
                    let answer = clients[*replica].order(&external, &[(&option, 1)]).await;
                    let answer = answer.with_context(|| external.clone())?;
                    ensure!(answer.status == 201, "{external}: {answer:?}");
                    bought.extend(ids(&answer.products()?));
                }
                Ok(bought)
            });
        }
        Self {
            workers,
            serving,
            stop,
        }
    }

    /// Every unit that was ordered, if no order failed.
    async fn finish(mut self) -> Result<BTreeSet<String>> {
        self.stop.cancel();
        let mut bought = BTreeSet::new();
        while let Some(worker) = self.workers.join_next().await {
            bought.extend(worker??);
        }
        Ok(bought)
    }
}

/// Replaces every replica, one after another.
async fn replace(stack: &mut Stack, load: &Load) -> Result<()> {
    for stage in Stage::OURS {
        for replica in 0..2 {
            if stage == Stage::Ingress {
                *load.serving.write().await = 1 - replica;
            }
            let process = &mut stack.replicas(stage)[replica];
            let status = process.terminate(Duration::from_secs(40)).await?;
            ensure!(status.success(), "{stage:?}: {status}");
            process.start().await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_upgrade_a_rollback_and_an_upgrade_fail_no_order() {
    let builder = Stage::OURS
        .into_iter()
        .fold(Stack::builder(), |builder, stage| {
            builder.replicas(stage, 2)
        });
    let mut stack = builder.start().await.unwrap();
    let receiver = Receiver::start().await.unwrap();
    let partner = stack
        .create_partner("sandbox", Some(&receiver.url(PATH)))
        .await
        .unwrap();
    receiver.verify(PATH, &partner.webhook_secret).unwrap();
    let clients: Vec<Client> = stack
        .base_urls()
        .iter()
        .map(|url| Client::of(url, &partner).unwrap())
        .collect();
    let load = Load::start(&clients, stack.option("ready").unwrap());

    let known = schema::latest();
    assert_eq!(upgrade(&stack, 2).await.unwrap(), known + 2);
    replace(&mut stack, &load).await.unwrap();
    let left_alone: Value = stack.esimctl.run(&["migrate"]).await.unwrap();
    assert_eq!(
        (&left_alone["schema_version"], &left_alone["was"]),
        (&json!(known + 2), &json!(known + 2))
    );
    assert_eq!(upgrade(&stack, 4).await.unwrap(), known + 4);
    replace(&mut stack, &load).await.unwrap();

    let bought = load.finish().await.unwrap();
    assert!(bought.len() > 50, "{} orders are no load", bought.len());
    let received = receiver
        .wait_until(PATIENCE, "every webhook", |received| {
            let told: BTreeSet<&str> = received.iter().map(Received::topup_id).collect();
            bought.iter().all(|unit| told.contains(unit.as_str()))
        })
        .await
        .unwrap();
    assert!(received.iter().all(Received::is_valid));
    let ledger = stack.ledger().await.unwrap();
    let once = ledger.orders.iter().all(|order| order.purchased_times == 1);
    assert!(
        once && ledger.orders.len() == bought.len(),
        "{} bought",
        ledger.orders.len()
    );
    let unit = bought.iter().next().unwrap();
    assert_eq!(
        show(&stack, unit).await.unwrap()["topups"][0]["delivery"],
        "delivered"
    );
}
