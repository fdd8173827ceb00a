//! A cell divides while its partners order. The new cell is a real streaming standby, whose stages
//! run before the cut. Both cells buy from one sandbox, whose ledger shows whether anything was
//! bought twice.

use crate::shop::{Shop, bought_once, fresh, size};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use testkit::client::{Answer, Client};
use testkit::postgres::PostgresServer;
use testkit::stack::{Stack, Stage, Stored};
use testkit::{bin_dir, wait};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

/// Longer than the slowest purchase of the sandbox in this test.
const SETTLE: &str = "21s";
/// How long the client waits before it repeats a request that got a 503.
const AGAIN: Duration = Duration::from_millis(50);
/// How much later than a webhook its answer may be noticed here, although it was sent before.
const NOTICED: Duration = Duration::from_millis(500);
const SLOW: &str = r#"{"detect_duplicates": false, "latency_ms": 2000, "silent_rate": 0.3, "not_found_lag_ms": 6000}"#;
const FAST: &str = r#"{"detect_duplicates": false}"#;

/// The parts of the orders in `filled`.
const FILLED: &str = "
    INSERT INTO orders (order_id, partner_id, external_order_id, answer_by, created_at)
    SELECT id, partner_id, 'filled-' || n, at, at FROM filled;
    INSERT INTO placements (placement_id, order_id, partner_id, provider, lane, state, attempt, attempted_at, placed_at, created_at)
    SELECT id, id, partner_id, 'sandbox', 'ready', 'placed', 1, at, at, at FROM filled;
    INSERT INTO topups (topup_id, placement_id, position, option_id, provider_option_id)
    SELECT topup_id, id, 0, (SELECT min(option_id::text)::uuid FROM options), 'ready' FROM filled;
    INSERT INTO esims (topup_id, provider, provider_unit_id, iccid, profile, ready_at, delivery_id, code_digest)
    SELECT topup_id, 'sandbox', unit, '88' || lpad(n::text, 17, '0'), decode(repeat(unit, 11), 'hex'), at, id, decode(unit, 'hex') FROM filled;
    INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, state, attempt, attempted_at, status, delivered_at, created_at)
    SELECT id, partner_id, 'topup.ready', topup_id, id, 'delivered', 1, at, 200, at, at FROM filled;
    ANALYZE";

/// Stores finished orders, half of them of each partner, as if they had been bought before.
async fn fill(cell: &Stack, shops: &[Shop; 2], orders: u64) -> Result<()> {
    let mut database = cell.database.connect().await?;
    sqlx::raw_sql("SET session_replication_role = replica; SET synchronous_commit = off")
        .execute(&mut database)
        .await?;
    let filled = "CREATE TEMP TABLE filled AS
        SELECT n, now() - interval '1 hour' - n * interval '2 s' AS at, md5('unit ' || n) AS unit,
               ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS id,
               '20240101000000' || lpad(n::text, 12, '0') AS topup_id,
               (SELECT partner_id FROM partners WHERE access_key = ($2::text[])[n % 2 + 1]) AS partner_id
        FROM generate_series(1, $1::bigint) n";
    let keys = shops.each_ref().map(|shop| shop.partner.access_key.clone());
    let orders = i64::try_from(orders)?;
    sqlx::query(filled)
        .bind(orders)
        .bind(keys.as_slice())
        .execute(&mut database)
        .await?;
    sqlx::raw_sql(FILLED).execute(&mut database).await?;
    Ok(())
}

/// What happens after a step of the division, of which the command then dies.
#[derive(Clone, Copy)]
enum Fault {
    /// Nothing else.
    Command,
    /// The standby replays nothing any more, so that the command does not come to the promotion.
    Paused,
    /// The server of this cell is killed, and starts again.
    Server(usize),
    /// The server of the old cell is killed, and starts again only when the new one is active.
    OldLost,
}

struct Cells {
    a: Stack,
    b: Stack,
    /// The servers of both. They end after the stacks.
    servers: [tokio::sync::Mutex<PostgresServer>; 2],
    dir: tempfile::TempDir,
}

impl Cells {
    /// Cell a with two partners and `orders` finished orders, and the stages of cell b, which wait at a
    /// standby of its database.
    async fn start(orders: u64) -> Result<(Self, [Shop; 2])> {
        let dir = tempfile::tempdir()?;
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711))?;
        let first = PostgresServer::start(dir.path()).await?;
        let a = Stack::builder()
            .database_server(first.url())
            .env(Stage::Provisioner, "SETTLE", SETTLE)
            .start()
            .await?;
        a.set_faults(FAST).await?;
        let shops = [Shop::open(&a).await?, Shop::open(&a).await?];
        fill(&a, &shops, orders).await?;
        let standby = first.start_standby(dir.path()).await?;
        let mut b = Stack::builder()
            .database(&standby.url_of_copy(a.database.url())?)
            .env(Stage::Provisioner, "SETTLE", SETTLE)
            .env(Stage::Provisioner, "SANDBOX_URL", &a.sandbox_url)
            .without(Stage::Sandbox);
        for stage in Stage::OURS {
            b = b.env(stage, "CELL", "b").without(stage);
        }
        let mut b = b.start().await?;
        for stage in Stage::OURS {
            b.process(stage)?.spawn()?;
        }
        let file = json!({ "provider_rates": { "sandbox": 100 }, "cells": [
            { "name": "a", "database_url": a.database.url(), "backend": "ingress-a", "rate_shares": { "sandbox": 0.5 } },
            { "name": "b", "database_url": b.database.url(), "backend": "ingress-b", "rate_shares": { "sandbox": 0.5 } },
        ]});
        std::fs::write(dir.path().join("cells.json"), file.to_string())?;
        let cells = Self {
            a,
            b,
            servers: [first, standby].map(tokio::sync::Mutex::new),
            dir,
        };
        Ok((cells, shops))
    }

    fn esimctl(&self, args: &[&str]) -> Command {
        let mut command = Command::new(bin_dir().join("esimctl"));
        command
            .args(args)
            .arg("--json")
            .env("ESIM_CELLS", self.dir.path().join("cells.json"))
            .env_remove("DATABASE_URL")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs a command, and returns the last line of its output.
    async fn run(&self, args: &[&str]) -> Result<Value> {
        let output = self.esimctl(args).output().await?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "esimctl {}: {}: {said} {}",
            args.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(serde_json::from_str(
            said.lines().last().context("no output")?,
        )?)
    }

    /// Begins to divide the cell, and kills the command as soon as it has told of this step. It may also
    /// end, because the one before had come further than this step when it was killed.
    async fn killed(&self, access_key: &str, step: &str) -> Result<()> {
        let mut child = self.esimctl(&divide(access_key)).spawn()?;
        let mut lines = BufReader::new(child.stderr.take().context("stderr")?).lines();
        let mut said = Vec::new();
        let told = async {
            while let Some(line) = lines.next_line().await? {
                let is_told = line.contains(step);
                said.push(line);
                if is_told {
                    return Ok(true);
                }
            }
            let status = child.wait().await?;
            ensure!(
                status.success(),
                "the command ended before {step:?}: {said:?}"
            );
            Ok(false)
        };
        let is_running = tokio::time::timeout(Duration::from_mins(2), told).await??;
        if is_running {
            child.kill().await?;
        }
        Ok(())
    }

    /// The topups of a partner in each cell.
    async fn stored(&self, access_key: &str) -> Result<[Vec<Stored>; 2]> {
        let mut a = self.a.stored().await?;
        let mut b = self.b.stored().await?;
        for stored in [&mut a, &mut b] {
            stored.retain(|one| one.access_key == access_key);
        }
        Ok([a, b])
    }
}

impl Cells {
    /// Lets the standby replay again, until it has the fence.
    async fn replay_the_fence(&self) -> Result<()> {
        let standby = self.servers[1].lock().await;
        standby.sql("SELECT pg_wal_replay_resume()").await?;
        let fenced = "SELECT count(*) FROM system WHERE cut ? 'walks'";
        let replayed = async || Ok((self.b.count(fenced).await? > 0).then_some(()));
        wait::until(Duration::from_mins(1), "the fence in the standby", replayed).await
    }

    async fn suffer(&self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Command => {}
            Fault::Paused => {
                let standby = self.servers[1].lock().await;
                standby.sql("SELECT pg_wal_replay_pause()").await?;
            }
            Fault::Server(cell) => {
                let mut server = self.servers[cell].lock().await;
                server.stop_immediately().await?;
                server.start_again().await?;
            }
            Fault::OldLost => {
                self.replay_the_fence().await?;
                let mut old = self.servers[0].lock().await;
                old.stop_immediately().await?;
                self.servers[1].lock().await.promote().await?;
                let activate = ["cell", "activate", "b", "--reason", "test", "--yes"];
                self.run(&activate).await?;
                old.start_again().await?;
            }
        }
        Ok(())
    }
}

/// The arguments that divide the cell.
fn divide(access_key: &str) -> [&str; 9] {
    [
        "cell",
        "divide",
        "b",
        "--from-cell",
        "a",
        access_key,
        "--reason",
        "test",
        "--yes",
    ]
}

/// The clients of one partner: each orders one unit after the other, and repeats each order until the
/// answer is definite.
struct Load {
    clients: [Client; 2],
    options: [String; 2],
    /// The cell to which the proxy sends the partner.
    cell: AtomicUsize,
    stop: AtomicBool,
    moving: AtomicUsize,
    last: Mutex<Instant>,
    longest_gap: Mutex<Duration>,
    /// When the 201 of each topup was read.
    answered: Mutex<BTreeMap<String, Instant>>,
}

impl Load {
    fn new(cells: &Cells, shop: &Shop) -> Result<Self> {
        Ok(Self {
            clients: [
                cells.a.client(&shop.partner)?,
                cells.b.client(&shop.partner)?,
            ],
            options: [
                cells.a.option("ready")?.to_owned(),
                cells.a.option("delayed")?.to_owned(),
            ],
            cell: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            moving: AtomicUsize::new(0),
            last: Mutex::new(Instant::now()),
            longest_gap: Mutex::default(),
            answered: Mutex::default(),
        })
    }

    fn success(&self) {
        let mut last = self.last.lock().unwrap();
        let mut longest = self.longest_gap.lock().unwrap();
        *longest = longest.max(last.elapsed());
        *last = Instant::now();
    }

    /// Orders until the load is stopped. Returns the external ids of all orders that were answered
    /// with success, or with a 422 that says that they are stored.
    async fn order(&self, worker: usize) -> Result<Vec<String>> {
        let mut stored = Vec::new();
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let id = fresh(&format!("divide-{worker}"));
            let option = &self.options[number % 2];
            loop {
                let client = &self.clients[self.cell.load(Ordering::Relaxed)];
                let Ok(answer) = client.order(&id, &[(option, 1)]).await else {
                    tokio::time::sleep(AGAIN).await;
                    continue;
                };
                let taken = String::from_utf8_lossy(&answer.body).contains("already been taken");
                match answer.status {
                    201 => {
                        let read = Instant::now();
                        let mut answered = self.answered.lock().unwrap();
                        for product in answer.products()? {
                            answered.insert(product.topup_id, read);
                        }
                        break;
                    }
                    422 if taken => break,
                    status @ (429 | 500 | 503) => {
                        if status == 503 && code(&answer) == "partner_moving" {
                            self.moving.fetch_add(1, Ordering::Relaxed);
                        }
                        tokio::time::sleep(AGAIN).await;
                    }
                    status => bail!("{status} {}", String::from_utf8_lossy(&answer.body)),
                }
            }
            self.success();
            stored.push(id);
        }
        Ok(stored)
    }

    /// All workers, until the load is stopped.
    async fn run(&self, workers: usize) -> Result<BTreeSet<String>> {
        let lanes = (0..workers).map(|worker| self.order(worker));
        let lanes = futures_util::future::try_join_all(lanes).await?;
        Ok(lanes.into_iter().flatten().collect())
    }
}

/// The code of an error.
fn code(answer: &Answer) -> &str {
    let code = answer.headers.get("x-service-error");
    code.and_then(|code| code.to_str().ok()).unwrap_or_default()
}

/// Divides a cell with `before` orders of each of two partners under load, and compares what the
/// clients, both databases, the endpoints and the sandbox say.
async fn divides(
    before: usize,
    workers: usize,
    cancelled: bool,
    faults: &[(&str, Fault)],
) -> Result<()> {
    let (cells, [leaving, staying]) = Cells::start(size("DIVIDED_STORED", 2_000)).await?;
    let key = leaving.partner.access_key.clone();
    let loads = [Load::new(&cells, &leaving)?, Load::new(&cells, &staying)?];
    let operate = async {
        let enough = async || {
            let answered = |load: &Load| load.answered.lock().unwrap().len() >= before;
            Ok(loads.iter().all(answered).then_some(()))
        };
        wait::until(
            Duration::from_mins(20),
            "orders before the division",
            enough,
        )
        .await?;
        cells.a.set_faults(SLOW).await?;
        if cancelled {
            cells.killed(&key, "frozen").await?;
            cells.suffer(Fault::Paused).await?;
            cells.killed(&key, "the old cell does nothing").await?;
            cells.replay_the_fence().await?;
            let mut cancel = divide(&key).to_vec();
            cancel.push("--cancel");
            cells.run(&cancel).await?;
            let again = cells.stored(&key).await?[0].len();
            let more = async || Ok((cells.stored(&key).await?[0].len() > again).then_some(()));
            wait::until(
                Duration::from_mins(1),
                "orders after it was taken back",
                more,
            )
            .await?;
        }
        for (step, fault) in faults {
            cells.killed(&key, step).await?;
            cells.suffer(*fault).await?;
        }
        let divided = cells.run(&divide(&key)).await?;
        println!("{divided}");
        cells.a.set_faults(FAST).await?;
        let map = cells.run(&["cell", "map"]).await?;
        let map = map["map"].as_str().context("map")?;
        ensure!(map.contains(&format!("{key} ingress-b")), "{map}");
        let stays = format!("{} ingress-a", staying.partner.access_key);
        ensure!(map.contains(&stays), "{map}");
        loads[0].cell.store(1, Ordering::Relaxed);
        let [_, moved] = cells.stored(&key).await?;
        let ordered =
            async || Ok((cells.stored(&key).await?[1].len() > moved.len() + workers).then_some(()));
        wait::until(Duration::from_mins(2), "orders in the new cell", ordered).await?;
        for load in &loads {
            load.stop.store(true, Ordering::Relaxed);
        }
        anyhow::Ok(())
    };
    let (left, stayed, ()) =
        tokio::try_join!(loads[0].run(workers), loads[1].run(workers), operate)?;
    println!(
        "{} requests got 503; longest gap between two answers: {:?} of the leaving partner, {:?} of the staying one",
        loads[0].moving.load(Ordering::Relaxed),
        loads[0].longest_gap.lock().unwrap(),
        loads[1].longest_gap.lock().unwrap()
    );
    ensure!(
        loads[0].moving.load(Ordering::Relaxed) > 0 && loads[1].moving.load(Ordering::Relaxed) == 0,
        "the wrong partner was frozen"
    );
    sent_away(&cells, &leaving).await?;
    agree(
        &cells,
        [(&leaving, &loads[0], &left), (&staying, &loads[1], &stayed)],
    )
    .await?;
    purged(&cells).await
}

/// Waits until everything is delivered in the cell in which its partner lives, and compares the
/// clients' orders with both databases, the sandbox's ledger and the endpoints.
async fn agree(cells: &Cells, partners: [(&Shop, &Load, &BTreeSet<String>); 2]) -> Result<()> {
    let mut placed = BTreeSet::new();
    for (cell, (shop, load, answered)) in [1, 0].into_iter().zip(partners) {
        let finished = async || {
            let stored = cells.stored(&shop.partner.access_key).await?;
            let stored = stored.into_iter().nth(cell).context("two cells")?;
            let done = |one: &Stored| {
                one.placement == "placed" && one.delivery.as_deref() == Some("delivered")
            };
            Ok(stored.iter().all(done).then_some(stored))
        };
        let stored = wait::until(Duration::from_mins(5), "every unit delivered", finished).await?;
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
        placed.extend(stored.iter().map(|one| one.placement_id.clone()));
        let topups: BTreeSet<String> = stored.iter().map(|one| one.topup_id.clone()).collect();
        let received = shop.delivered(&topups, Duration::from_mins(1)).await?;
        let answers = load.answered.lock().unwrap();
        let early = received.iter().filter(|webhook| {
            let answer = answers.get(webhook.topup_id());
            answer.is_some_and(|answer| webhook.at + NOTICED < *answer)
        });
        ensure!(early.count() == 0, "webhooks came before their 201");
    }
    let ledger = cells.a.ledger().await?;
    bought_once(&ledger)?;
    let sold: BTreeSet<String> = ledger.orders.into_iter().map(|one| one.order_id).collect();
    ensure!(
        sold == placed,
        "{} sold, {} placed; only sold: {:?}, only placed: {:?}",
        sold.len(),
        placed.len(),
        sold.difference(&placed).take(5).collect::<Vec<_>>(),
        placed.difference(&sold).take(5).collect::<Vec<_>>()
    );
    Ok(())
}

/// The old cell knows the partner, and sends it away. Its orders are found in the new one only.
async fn sent_away(cells: &Cells, shop: &Shop) -> Result<()> {
    let asked = cells.a.client(&shop.partner)?;
    let answer = asked.get("/api/v1/api_partner/account").send().await?;
    ensure!(
        answer.status == 503 && code(&answer) == "partner_moving",
        "{answer:?}"
    );
    ensure!(answer.headers.contains_key("retry-after"), "{answer:?}");
    let settings = cells.run(&["cell", "settings", "b"]).await?;
    ensure!(
        settings["settings"]["PROVIDER_RATE"] == 50 && settings["settings"]["CELL"] == "b",
        "{settings}"
    );
    Ok(())
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

/// `cell check` finds the copies until they are purged, and then nothing.
async fn purged(cells: &Cells) -> Result<()> {
    let found = cells.esimctl(&["cell", "check"]).output().await?;
    let said = String::from_utf8_lossy(&found.stdout);
    ensure!(found.status.code() == Some(1), "{said}");
    for cell in ["a", "b"] {
        ensure!(said.contains(&format!("cell purge {cell}")), "{said}");
        let args = ["cell", "purge", cell, "--reason", "test", "--yes"];
        let purged = cells.run(&args).await?;
        ensure!(purged["orders"].as_u64() > Some(0), "{purged}");
    }
    let checked = cells.run(&["cell", "check"]).await?;
    ensure!(
        checked["faults"].as_array().is_some_and(Vec::is_empty),
        "{checked}"
    );
    let left = "SELECT count(*) FROM orders o JOIN partners p USING (partner_id) WHERE p.moved_to IS NOT NULL";
    for stack in [&cells.a, &cells.b] {
        ensure!(
            stack.count(left).await? == 0,
            "orders of foreign partners are left"
        );
        let topups = "SELECT count(*) FROM topups t LEFT JOIN placements p USING (placement_id) WHERE p.placement_id IS NULL";
        ensure!(
            stack.count(topups).await? == 0,
            "units without a placement are left"
        );
    }
    check_finds_a_second_esim(cells).await
}

/// `DIVIDED_STORED` finished orders, and `DIVIDED_ORDERS` of each partner by `DIVIDED_IN_FLIGHT` clients
/// of each before the division. docs/scale.md has the result.
#[tokio::test]
async fn a_cell_divides_under_load() {
    let number = |size: u64| usize::try_from(size).unwrap();
    let before = number(size("DIVIDED_ORDERS", 60));
    let workers = number(size("DIVIDED_IN_FLIGHT", 6));
    divides(before, workers, false, &[]).await.unwrap();
}

#[tokio::test]
async fn a_division_goes_on_after_each_death_of_its_command_and_is_cancelled() {
    let kills = [
        "frozen",
        "answers have left",
        "the old cell does nothing",
        "the standby has all",
        "is a primary",
        "the new cell serves",
    ];
    let kills = kills.map(|step| (step, Fault::Command));
    divides(40, 4, true, &kills).await.unwrap();
}

#[tokio::test]
async fn a_division_goes_on_after_each_death_of_a_server() {
    let deaths = [
        ("the old cell does nothing", Fault::Server(0)),
        ("the standby has all", Fault::Server(1)),
        ("is a primary", Fault::Server(0)),
        ("the new cell serves", Fault::Server(1)),
    ];
    divides(40, 4, false, &deaths).await.unwrap();
}

/// The new cell needs nothing of the old one after the fence. When the old one comes back, it finds
/// the partner hidden, and the command ends the division there.
#[tokio::test]
async fn a_division_goes_on_without_the_old_cell() {
    let lost = [
        ("frozen", Fault::Paused),
        ("the old cell does nothing", Fault::OldLost),
    ];
    divides(40, 4, false, &lost).await.unwrap();
}
