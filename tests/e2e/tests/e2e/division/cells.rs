//! Cell a, which divides, and the standby that becomes cell b.

use crate::shop::Shop;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;
use testkit::postgres::PostgresServer;
use testkit::stack::{Stack, Stage, Stored};
use testkit::{bin_dir, wait};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use url::Url;

/// Longer than the slowest purchase of the sandbox in these tests.
pub const SETTLE: &str = "21s";
pub const SLOW: &str = r#"{"detect_duplicates": false, "latency_ms": 2000, "silent_rate": 0.3, "not_found_lag_ms": 6000}"#;
pub const FAST: &str = r#"{"detect_duplicates": false}"#;

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

/// Stores finished orders, half of them of each partner, as if they had been bought before. Only a
/// superuser may do that.
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
pub enum Fault {
    /// Nothing else.
    Command,
    /// The standby replays nothing any more, so that the command does not come to the promotion.
    Paused,
    /// The server of this cell is killed, and starts again.
    Server(usize),
    /// The server of the old cell is killed, and starts again only when the new one is active. It is
    /// too late to take the division back then.
    OldLost,
    /// Whoever runs the server of the new cell promotes it.
    Promoted,
}

/// Who owns the tables of the old cell, and so divides it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Superuser,
    /// A role that the policies bind, and that may not promote a server.
    Bound,
}

pub struct Cells {
    pub a: Stack,
    pub b: Stack,
    /// The servers of both. They end after the stacks.
    servers: [tokio::sync::Mutex<PostgresServer>; 2],
    dir: tempfile::TempDir,
}

impl Cells {
    /// Cell a with two partners and `orders` finished orders, and the stages of cell b, which wait at a
    /// standby of its database.
    pub async fn start(orders: u64, owner: Owner, settle: &str) -> Result<(Self, [Shop; 2])> {
        let dir = tempfile::tempdir()?;
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711))?;
        let first = PostgresServer::start(dir.path()).await?;
        let mut server: Url = first.url().parse()?;
        if owner == Owner::Bound {
            let role = "CREATE ROLE bound LOGIN CREATEDB CREATEROLE PASSWORD 'bound'";
            first.sql(role).await?;
            let named = server.set_username("bound");
            let set = named.and_then(|()| server.set_password(Some("bound")));
            ensure!(set.is_ok(), "{server} takes no user");
        }
        let mut a = Stack::builder()
            .database_server(server.as_str())
            .env(Stage::Provisioner, "SETTLE", settle)
            .start()
            .await?;
        // It ends with its server.
        a.database.keep();
        a.set_faults(FAST).await?;
        let shops = [Shop::open(&a).await?, Shop::open(&a).await?];
        if orders > 0 {
            fill(&a, &shops, orders).await?;
        }
        let standby = first.start_standby(dir.path()).await?;
        let mut b = Stack::builder()
            .database(&standby.url_of_copy(a.database.url())?)
            .env(Stage::Provisioner, "SETTLE", settle)
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

    pub fn esimctl(&self, args: &[&str]) -> Command {
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
    pub async fn run(&self, args: &[&str]) -> Result<Value> {
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

    /// Runs a command that is refused, and says so with these words.
    pub async fn refused(&self, args: &[&str], words: &str) -> Result<()> {
        let output = self.esimctl(args).output().await?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            !output.status.success() && said.contains(words),
            "esimctl {}: {}: {said}",
            args.join(" "),
            output.status
        );
        Ok(())
    }

    /// Begins to divide the cell, and kills the command as soon as it has told of this step. It may also
    /// end, because the one before had come further than this step when it was killed.
    pub async fn killed(&self, access_key: &str, step: &str) -> Result<()> {
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
    pub async fn stored(&self, access_key: &str) -> Result<[Vec<Stored>; 2]> {
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
    pub async fn replay_the_fence(&self) -> Result<()> {
        let standby = self.servers[1].lock().await;
        standby.sql("SELECT pg_wal_replay_resume()").await?;
        let fenced = "SELECT count(*) FROM system WHERE cut ? 'walks'";
        let replayed = async || Ok((self.b.count(fenced).await? > 0).then_some(()));
        wait::until(Duration::from_mins(1), "the fence in the standby", replayed).await
    }

    pub async fn suffer(&self, access_key: &str, fault: Fault) -> Result<()> {
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
                self.refused(&cancel(access_key), "is activated").await?;
            }
            Fault::Promoted => self.servers[1].lock().await.promote().await?,
        }
        Ok(())
    }
}

impl Cells {
    /// Kills a purge of this cell in its second step: it waits for one of the foreign orders, which is
    /// locked here, when it has deleted others.
    pub async fn kill_a_purge(&self, cell: &str) -> Result<()> {
        let stack = if cell == "a" { &self.a } else { &self.b };
        let foreign = "SELECT count(*) FROM orders JOIN partners USING (partner_id) WHERE moved_to IS NOT NULL";
        let before = stack.count(foreign).await?;
        let mut locking = stack.database.connect().await?;
        // A row that OFFSET passes would be locked, too.
        let one = "BEGIN; SELECT FROM orders WHERE order_id = (
                       SELECT order_id FROM orders JOIN partners USING (partner_id) WHERE moved_to IS NOT NULL
                       ORDER BY order_id OFFSET 700 LIMIT 1) FOR UPDATE";
        sqlx::raw_sql(one).execute(&mut locking).await?;
        let args = ["cell", "purge", cell, "--reason", "test", "--yes"];
        let mut purge = self.esimctl(&args).spawn()?;
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                     AND application_name = 'esimctl' AND wait_event_type = 'Lock'";
        let waiting = async || Ok((stack.count(waits).await? > 0).then_some(()));
        wait::until(Duration::from_mins(1), "a step of the purge", waiting).await?;
        purge.kill().await?;
        // A server notices the death of a client that waits for a lock only when it answers.
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
                   AND application_name = 'esimctl'";
        sqlx::raw_sql(end).execute(&mut locking).await?;
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                        AND application_name = 'esimctl'";
        let ended = async || Ok((stack.count(sessions).await? == 0).then_some(()));
        wait::until(Duration::from_mins(1), "the end of the purge", ended).await?;
        sqlx::raw_sql("ROLLBACK").execute(&mut locking).await?;
        let left = stack.count(foreign).await?;
        ensure!(
            0 < left && left < before,
            "{left} of {before} foreign orders are left"
        );
        Ok(())
    }
}

/// The arguments that divide the cell.
pub fn divide(access_key: &str) -> [&str; 9] {
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

/// The arguments that take that back.
pub fn cancel(access_key: &str) -> Vec<&str> {
    [&divide(access_key)[..], &["--cancel"]].concat()
}
