//! Counts what the servers did for the orders of a run, or in an idle second: commits, flushes,
//! WAL, scans, messages and wake-ups. Unlike times, counts do not depend on what else the machine
//! does, so they show the effect of a change on any machine.

use crate::number::{approximate, round};
use crate::settings::System;
use crate::system::{self, GENERATOR, Sample};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sqlx::{Connection, PgConnection};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use testkit::table::table;

/// The totals of the servers since they started.
#[derive(Clone, Debug, Default)]
pub struct Totals(BTreeMap<&'static str, u64>);

/// What happened per order, or per second, by its name in [`NAMES`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counts(BTreeMap<String, f64>);

/// Each count, and what it counts.
const NAMES: [(&str, &str); 11] = [
    (
        "commits",
        "transactions that ended, also those that only read",
    ),
    ("flushes", "flushes of the log to the disk"),
    ("wal_bytes", "bytes of the log"),
    ("wal_records", "records of the log"),
    ("full_pages", "whole pages in the log, after a checkpoint"),
    (
        "scans",
        "scans of tables and indexes of ours that statements made",
    ),
    (
        "written_rows",
        "rows of ours that were inserted, updated or deleted",
    ),
    (
        "dead_rows",
        "versions of rows of ours that became dead by an update or a delete",
    ),
    ("nats_in", "messages that nats-server received"),
    ("nats_out", "messages that nats-server sent"),
    (
        "wake_ups",
        "times that a thread slept and was woken up, without generator and sandbox",
    ),
];

/// `PostgreSQL` publishes the counts of a session at most once a second, and those of an idle
/// session within ten.
const PUBLISHED: Duration = Duration::from_secs(11);
/// How long an idle system is watched.
const IDLE: Duration = Duration::from_secs(20);

impl Totals {
    /// Reads the totals. Counts whose source is not there, for example those of NATS without
    /// `--nats-monitor-url`, are left out.
    pub async fn read(system: &System) -> Result<Self> {
        let mut totals = BTreeMap::new();
        let url = system.database_admin_url.as_deref();
        let mut connection = PgConnection::connect(url.unwrap_or(&system.database_url))
            .await
            .context("cannot connect to DATABASE_ADMIN_URL")?;
        let row: (i64, i64, i64, i64) = sqlx::query_as(
            "SELECT wal_records, wal_bytes::int8, wal_fpi,
                    (SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1) FROM pg_stat_wal",
        )
        .bind(system.database())
        .fetch_one(&mut connection)
        .await?;
        // From version 18 on, the flushes are counted where all other input and output is.
        let version: i32 =
            sqlx::query_scalar("SELECT current_setting('server_version_num')::integer")
                .fetch_one(&mut connection)
                .await?;
        let flushes = if version >= 180_000 {
            "SELECT sum(fsyncs)::int8 FROM pg_stat_io WHERE object = 'wal'"
        } else {
            "SELECT wal_sync FROM pg_stat_wal"
        };
        let flushes: i64 = sqlx::query_scalar(flushes)
            .fetch_one(&mut connection)
            .await?;
        connection.close().await?;
        let mut connection = PgConnection::connect(&system.database_url).await?;
        let tables: (i64, i64, i64) = sqlx::query_as(
            "SELECT coalesce(sum(seq_scan), 0)::int8
                        + (SELECT coalesce(sum(idx_scan), 0)::int8 FROM pg_stat_user_indexes),
                    coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::int8,
                    coalesce(sum(n_tup_upd + n_tup_del), 0)::int8
             FROM pg_stat_user_tables",
        )
        .fetch_one(&mut connection)
        .await?;
        connection.close().await?;
        for (name, total) in [
            ("wal_records", row.0),
            ("wal_bytes", row.1),
            ("full_pages", row.2),
            ("commits", row.3),
            ("flushes", flushes),
            ("scans", tables.0),
            ("written_rows", tables.1),
            ("dead_rows", tables.2),
        ] {
            totals.insert(name, u64::try_from(total).unwrap_or_default());
        }
        if let Some(url) = &system.nats_monitor_url {
            let answer = testkit::http::client()?.get(format!("{url}/varz"));
            let varz: serde_json::Value = answer.send().await?.json().await?;
            for (name, field) in [("nats_in", "in_msgs"), ("nats_out", "out_msgs")] {
                totals.extend(varz[field].as_u64().map(|total| (name, total)));
            }
        }
        totals.extend(wake_ups(system)?.map(|total| ("wake_ups", total)));
        Ok(Self(totals))
    }

    /// What was added since `before`, divided by `by`.
    pub fn since(&self, before: &Self, by: f64) -> Counts {
        let added = self.0.iter().filter_map(|(name, total)| {
            let earlier = before.0.get(name)?;
            let added = approximate(total.saturating_sub(*earlier)) / by;
            Some(((*name).to_owned(), added))
        });
        Counts(added.collect())
    }
}

impl Counts {
    /// The counts as a table.
    pub fn table(&self, of: &str) -> String {
        let rows = NAMES.iter().filter_map(|(name, what)| {
            let count = self.0.get(*name)?;
            Some([(*what).to_owned(), format!("{count:.2}")])
        });
        table(&format!("count | {of}"), rows)
    }
}

/// The counts of a run.
#[derive(Clone, Debug)]
pub struct Counted {
    pub before: Totals,
    pub after: Totals,
    /// The time between the two.
    pub took: Duration,
    /// What the system did in an idle second before the run.
    pub idle: Idle,
}

impl Counted {
    /// What each of so many orders caused, without what the idle system would have done meanwhile.
    pub fn per_order(&self, orders: u64) -> Counts {
        let mut counts = self.after.since(&self.before, approximate(orders.max(1)));
        let idle = self.took.as_secs_f64() / approximate(orders.max(1));
        for (name, count) in &mut counts.0 {
            *count -= self.idle.counts.0.get(name).copied().unwrap_or_default() * idle;
        }
        counts
    }
}

/// Waits until the counts of all sessions are published.
pub async fn published() {
    tokio::time::sleep(PUBLISHED).await;
}

/// What an idle system does in one second.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Idle {
    pub counts: Counts,
    /// Milliseconds of processor time, by process.
    pub processor_ms: BTreeMap<String, f64>,
}

impl Idle {
    /// Watches the system for a while. Nothing may order meanwhile.
    pub async fn watch(system: &System) -> Result<Self> {
        published().await;
        let before = Totals::read(system).await?;
        let began = Instant::now();
        let processes = system::sample(&system.run_dir)?;
        tokio::time::sleep(IDLE).await;
        let seconds = began.elapsed().as_secs_f64();
        let after = system::sample(&system.run_dir)?;
        let counts = Totals::read(system).await?.since(&before, seconds);
        Ok(Self {
            counts,
            processor_ms: processor_ms(&processes, &after, seconds),
        })
    }

    pub fn table(&self) -> String {
        let rows = self
            .processor_ms
            .iter()
            .map(|(name, time)| [name.clone(), format!("{time:.1}")]);
        let all: f64 = self.processor_ms.values().sum();
        format!(
            "{}\n\n{}\nall processes: {all:.1} ms per second",
            self.counts.table("per idle second"),
            table("process | processor ms per idle second", rows)
        )
    }
}

fn processor_ms(before: &Sample, after: &Sample, seconds: f64) -> BTreeMap<String, f64> {
    let of_pipeline = after.iter().filter(|(name, _)| *name != GENERATOR);
    let times = of_pipeline.map(|(name, usage)| {
        let earlier = before.get(name).map(|one| one.cpu).unwrap_or_default();
        let spent = usage.cpu.saturating_sub(earlier).as_secs_f64();
        (name.clone(), round(spent * 1e3 / seconds))
    });
    times.collect()
}

/// How often the threads of the servers and services were woken up. `None` on systems without
/// `/proc`.
fn wake_ups(system: &System) -> Result<Option<u64>> {
    let all = system::sample(&system.run_dir)?;
    let ours = all
        .iter()
        .filter(|(name, _)| *name != GENERATOR && *name != "sandbox");
    let wake_ups = ours.filter_map(|(_, usage)| usage.wake_ups);
    Ok(wake_ups.reduce(|one, other| one + other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_an_idle_system_is_not_that_of_the_orders() {
        let totals = |flushes| Totals(BTreeMap::from([("flushes", flushes)]));
        let idle = Idle {
            counts: Counts(BTreeMap::from([("flushes".to_owned(), 5.0)])),
            ..Idle::default()
        };
        let counted = Counted {
            before: totals(100),
            after: totals(350),
            took: Duration::from_secs(10),
            idle,
        };
        let per_order = counted.per_order(100).0["flushes"];
        assert!((per_order - 2.0).abs() < 1e-9, "{per_order}");
    }

    #[test]
    fn what_was_added_is_divided_and_what_was_not_there_before_is_left_out() {
        let before = Totals(BTreeMap::from([("flushes", 100), ("commits", 7)]));
        let after = Totals(BTreeMap::from([
            ("flushes", 130),
            ("commits", 7),
            ("nats_in", 9),
        ]));
        let counts = after.since(&before, 20.0);
        let expected = [("commits".to_owned(), 0.0), ("flushes".to_owned(), 1.5)];
        assert_eq!(counts.0, BTreeMap::from(expected));
        assert!(counts.table("per order").contains("1.50"));
    }
}
