//! A partner moves from one cell to another while it orders. Each cell has a database, streams and
//! stages of its own; both buy from one sandbox, whose ledger shows whether anything was bought
//! twice.

use crate::shop::{Shop, bought_once, fresh, size};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use testkit::client::{Answer, Client};
use testkit::settings::MASTER_KEY;
use testkit::stack::{Stack, Stage};
use testkit::{bin_dir, wait};
use tokio::process::Command;

/// Longer than the slowest purchase of the sandbox in this test.
const SETTLE: &str = "21s";
/// How long the client waits before it repeats a request that got a 503.
const AGAIN: Duration = Duration::from_millis(100);

struct Cells {
    a: Stack,
    b: Stack,
    dir: tempfile::TempDir,
}

impl Cells {
    async fn start() -> Result<Self> {
        let cell =
            |builder: testkit::stack::Builder| builder.env(Stage::Provisioner, "SETTLE", SETTLE);
        let a = cell(Stack::builder()).start().await?;
        let b = cell(Stack::builder())
            .without(Stage::Sandbox)
            .env(Stage::Provisioner, "SANDBOX_URL", &a.sandbox_url)
            .start()
            .await?;
        let dir = tempfile::tempdir()?;
        let file = json!({ "provider_rates": { "sandbox": 100 }, "cells": [
            { "name": "a", "database_url": a.database.url(), "backend": "ingress-a", "rate_shares": { "sandbox": 0.5 } },
            { "name": "b", "database_url": b.database.url(), "backend": "ingress-b", "rate_shares": { "sandbox": 0.5 } },
        ]});
        std::fs::write(dir.path().join("cells.json"), file.to_string())?;
        Ok(Self { a, b, dir })
    }

    fn map(&self) -> PathBuf {
        self.dir.path().join("cells.map")
    }

    fn esimctl(&self, args: &[&str]) -> Command {
        let mut command = Command::new(bin_dir().join("esimctl"));
        command
            .args(args)
            .arg("--json")
            .env("ESIM_CELLS", self.dir.path().join("cells.json"))
            .env("MASTER_KEY", MASTER_KEY)
            .env_remove("DATABASE_URL")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        for purpose in ["PARTNERS", "WEBHOOKS", "PROFILES"] {
            command.env_remove(format!("MASTER_KEY_{purpose}_FILE"));
        }
        command
    }

    /// Runs a command, and returns each line of its output.
    async fn lines(&self, args: &[&str]) -> Result<Vec<Value>> {
        let output = self.esimctl(args).output().await?;
        ensure!(
            output.status.success(),
            "esimctl {}: {}: {}",
            args.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stdout)
        );
        let text = String::from_utf8(output.stdout)?;
        Ok(text
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()?)
    }

    /// Moves the partner, and kills the command once after each of these times.
    async fn move_partner(&self, access_key: &str, kills: &[Duration]) -> Result<Value> {
        let args = [
            "partner",
            "move",
            access_key,
            "--from-cell",
            "a",
            "--to-cell",
            "b",
            "--drain",
            "0s",
            "--reason",
            "test",
            "--yes",
        ];
        for after in kills {
            let mut child = self.esimctl(&args).spawn()?;
            // The time of the kill, not a wait for a condition.
            if tokio::time::timeout(*after, child.wait()).await.is_err() {
                child.kill().await?;
            }
        }
        let mut lines = self.lines(&args).await?;
        lines.pop().context("the move printed nothing")
    }
}

/// Which cell the proxy's map names for the access key.
fn routed(map: &Path, access_key: &str) -> Result<usize> {
    let text = std::fs::read_to_string(map)?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(access_key))
        .context("the map lacks the access key")?;
    Ok(usize::from(line.trim() == "ingress-b"))
}

/// The partner's clients: each orders one unit after the other, and repeats each order until the
/// answer is definite.
struct Load {
    clients: [Client; 2],
    options: Vec<String>,
    /// The cell to which the proxy sends the partner.
    cell: AtomicUsize,
    stop: AtomicBool,
    refused: AtomicUsize,
    longest: std::sync::Mutex<Duration>,
}

impl Load {
    /// Orders until the load is stopped. Returns the external ids of all orders that were answered
    /// with success, or with a 422 that says that they are stored.
    async fn order(&self, worker: usize) -> Result<Vec<String>> {
        let mut stored = Vec::new();
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let id = fresh(&format!("move-{worker}"));
            let option = &self.options[number % self.options.len()];
            let began = Instant::now();
            loop {
                let client = &self.clients[self.cell.load(Ordering::Relaxed)];
                let Ok(answer) = client.order(&id, &[(option, 1)]).await else {
                    continue;
                };
                match answer.status {
                    201 => break,
                    422 if String::from_utf8_lossy(&answer.body).contains("already been taken") => {
                        break;
                    }
                    503 => {
                        if code(&answer) == "partner_moving" {
                            self.refused.fetch_add(1, Ordering::Relaxed);
                        }
                        tokio::time::sleep(AGAIN).await;
                    }
                    500 | 429 => tokio::time::sleep(AGAIN).await,
                    status => bail!("{status} {}", String::from_utf8_lossy(&answer.body)),
                }
            }
            let mut longest = self.longest.lock().unwrap();
            *longest = longest.max(began.elapsed());
            drop(longest);
            stored.push(id);
        }
        Ok(stored)
    }
}

/// The code of an error.
fn code(answer: &Answer) -> &str {
    let code = answer.headers.get("x-service-error");
    code.and_then(|code| code.to_str().ok()).unwrap_or_default()
}

/// What the sandbox plays. If it `detects` duplicates, it refuses to sell a placement twice; without
/// that, only the cells prevent a second purchase. If it is `slow`, purchases take long, half of them
/// are never answered, and look-ups find them late.
fn provider(detects: bool, slow: bool) -> &'static str {
    match (detects, slow) {
        (true, false) => r#"{"detect_duplicates": true}"#,
        (false, false) => r#"{"detect_duplicates": false}"#,
        (true, true) => {
            r#"{"detect_duplicates": true, "latency_ms": 5000, "silent_rate": 0.5, "not_found_lag_ms": 14000}"#
        }
        (false, true) => {
            r#"{"detect_duplicates": false, "latency_ms": 5000, "silent_rate": 0.5, "not_found_lag_ms": 14000}"#
        }
    }
}

/// Moves a partner that has `before` orders while `workers` clients order, kills the move after
/// each of `kills`, and compares what the clients, both databases, the endpoint and the sandbox
/// say. `detects` says whether the provider detects duplicates.
async fn moves(before: usize, workers: usize, kills: &[Duration], detects: bool) -> Result<()> {
    let cells = Cells::start().await?;
    let shop = Shop::open(&cells.a).await?;
    let key = shop.partner.access_key.clone();
    cells.a.set_faults(provider(detects, false)).await?;
    let write_map = [
        "cell",
        "map",
        "--output",
        &cells.map().display().to_string(),
    ]
    .map(str::to_owned);
    let write_map: Vec<&str> = write_map.iter().map(String::as_str).collect();
    cells.lines(&write_map).await?;
    ensure!(
        routed(&cells.map(), &key)? == 0,
        "the map does not lead to cell a"
    );

    let load = Load {
        clients: [
            cells.a.client(&shop.partner)?,
            cells.b.client(&shop.partner)?,
        ],
        options: vec![
            cells.a.option("ready")?.to_owned(),
            cells.a.option("delayed")?.to_owned(),
        ],
        cell: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        refused: AtomicUsize::new(0),
        longest: std::sync::Mutex::new(Duration::ZERO),
    };
    let lanes = futures_util::future::try_join_all((0..workers).map(|worker| load.order(worker)));
    let operate = async {
        let enough = async || {
            let orders = cells.a.count("SELECT count(*) FROM orders").await?;
            Ok((orders >= before).then_some(()))
        };
        wait::until(Duration::from_mins(10), "orders before the move", enough).await?;
        // From now on many purchases move while nobody knows what became of them.
        cells.a.set_faults(provider(detects, true)).await?;
        // Each answer waits for 5 s, so that by then all clients have a purchase in flight. They are
        // counted by the database, because a program that reads ten thousand orders at each look
        // leaves its clients no time to order.
        let in_flight = async || {
            let placing = "SELECT count(*) FROM placements WHERE state = 'placing'";
            let placing = cells.a.count(placing).await?;
            Ok((placing >= workers.min(200) / 2).then_some(placing))
        };
        let placing = wait::until(Duration::from_mins(1), "purchases in flight", in_flight).await?;
        let moved = cells.move_partner(&key, kills).await?;
        let open = |one: &testkit::stack::Stored| {
            ["accepted", "placing"].contains(&one.placement.as_str())
        };
        let open = cells.b.stored().await?.into_iter().filter(open).count();
        ensure!(open > 0, "no purchase moved in flight");
        cells.a.set_faults(provider(detects, false)).await?;
        cells.lines(&write_map).await?;
        let cell = routed(&cells.map(), &key)?;
        ensure!(cell == 1, "the map does not lead to cell b");
        load.cell.store(cell, Ordering::Relaxed);
        let ordered = async || {
            let orders = cells.b.count("SELECT count(*) FROM orders").await?;
            Ok((orders > before + workers).then_some(()))
        };
        // Some orders are placed in the new cell.
        wait::until(Duration::from_mins(2), "orders after the move", ordered).await?;
        load.stop.store(true, Ordering::Relaxed);
        anyhow::Ok((moved, placing, open))
    };
    let (answered, (moved, placing, open)) = tokio::try_join!(lanes, operate)?;
    let answered: BTreeSet<String> = answered.into_iter().flatten().collect();
    println!(
        "{placing} purchases were in flight and {open} moved without an outcome, {} requests got 503, the longest order took {:?}; {moved}",
        load.refused.load(Ordering::Relaxed),
        load.longest.lock().unwrap()
    );
    ensure!(
        load.refused.load(Ordering::Relaxed) > 0,
        "nothing was refused"
    );

    agree(&cells, &shop, &answered).await
}

/// Waits until everything is delivered, and compares the clients' orders with both databases, the
/// sandbox's ledger and the endpoint.
async fn agree(cells: &Cells, shop: &Shop, answered: &BTreeSet<String>) -> Result<()> {
    // The database of the old cell has nothing of the partner, and that of the new one everything.
    ensure!(
        cells.a.stored().await?.is_empty(),
        "orders are left in cell a"
    );
    let finished = async || {
        let stored = cells.b.stored().await?;
        let done = |one: &testkit::stack::Stored| {
            one.placement == "placed" && one.delivery.as_deref() == Some("delivered")
        };
        Ok(stored.iter().all(done).then_some(stored))
    };
    let stored = wait::until(Duration::from_mins(8), "every unit delivered", finished).await?;
    let external: BTreeSet<String> = stored
        .iter()
        .map(|one| one.external_order_id.clone())
        .collect();
    ensure!(external.len() == stored.len(), "an order is stored twice");
    ensure!(
        external == *answered,
        "{} answered, {} stored",
        answered.len(),
        external.len()
    );
    // The sandbox has sold each placement once, and nothing else.
    let ledger = cells.a.ledger().await?;
    bought_once(&ledger)?;
    let sold: BTreeSet<&str> = ledger
        .orders
        .iter()
        .map(|one| one.order_id.as_str())
        .collect();
    let placed: BTreeSet<&str> = stored.iter().map(|one| one.placement_id.as_str()).collect();
    ensure!(
        sold == placed,
        "{} sold, {} placed",
        sold.len(),
        placed.len()
    );
    // The endpoint has got a webhook for each unit.
    let topups: BTreeSet<String> = stored.iter().map(|one| one.topup_id.clone()).collect();
    shop.delivered(&topups, Duration::from_mins(1)).await?;

    cells.lines(&["cell", "check"]).await?;
    let shown = cells
        .lines(&[
            "--all-cells",
            "order",
            "show",
            external.first().context("no order")?,
        ])
        .await?;
    ensure!(shown.len() == 1 && shown[0]["cell"] == "b", "{shown:?}");
    let listed = cells.lines(&["partner", "list", "--all-cells"]).await?;
    ensure!(listed.len() == 2, "{listed:?}");
    let settings = cells.lines(&["cell", "settings", "b"]).await?;
    ensure!(
        settings[0]["settings"]["PROVIDER_RATE"] == 50,
        "{settings:?}"
    );
    // The old cell knows the partner, and sends it away.
    let asked = cells
        .a
        .client(&shop.partner)?
        .get("/api/v1/api_partner/account");
    let answer = asked.send().await?;
    ensure!(
        answer.status == 503 && code(&answer) == "partner_moving",
        "{answer:?}"
    );
    ensure!(answer.headers.contains_key("retry-after"), "{answer:?}");
    check_finds_a_second_esim(cells).await
}

/// An eSIM that was sold to partners of two cells is a fault, which `cell check` reports.
async fn check_finds_a_second_esim(cells: &Cells) -> Result<()> {
    let mut b = cells.b.database.connect().await?;
    let iccid: String =
        sqlx::query_scalar("SELECT iccid FROM esims WHERE iccid IS NOT NULL LIMIT 1")
            .fetch_one(&mut b)
            .await?;
    let mut a = cells.a.database.connect().await?;
    sqlx::query("INSERT INTO esims (topup_id, provider, provider_unit_id, iccid) VALUES ('1', 'sandbox', '1', $1)")
        .bind(&iccid)
        .execute(&mut a)
        .await?;
    let output = cells.esimctl(&["cell", "check"]).output().await?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.code() == Some(1), "{said}");
    ensure!(said.contains(&iccid) && said.contains("(a, b)"), "{said}");
    Ok(())
}

#[tokio::test]
async fn a_partner_moves_while_it_orders_and_the_move_is_killed() {
    let kills = [300, 1_500, 2_300, 2_500, 4_000].map(Duration::from_millis);
    moves(100, 32, &kills, false).await.unwrap();
}

/// `MOVED_ORDERS` orders, with `MOVED_IN_FLIGHT` clients. With `MOVED_DETECTING` in the environment
/// the provider detects duplicates. docs/scale.md has the result.
#[tokio::test]
#[ignore = "it takes minutes; docs/scale.md says how it is run"]
async fn a_large_partner_moves_under_load() {
    let before = size("MOVED_ORDERS", 10_000);
    let workers = size("MOVED_IN_FLIGHT", 256);
    let number = |size: u64| usize::try_from(size).unwrap();
    let detects = std::env::var_os("MOVED_DETECTING").is_some();
    moves(number(before), number(workers), &[], detects)
        .await
        .unwrap();
}
