//! Measures a running pipeline. This one process is the load generator, which sends orders like
//! partners, and the webhook sink, which receives their webhooks, so that both use the same clock.
//!
//! # What is measured
//! - **Accepted orders/s**: 201 responses read in the window (`--seconds` from the first send), by
//!   its length.
//! - **Webhooks/s**: first webhooks of topups that arrived within the window, divided by its
//!   length.
//! - **Drain/s**: see `--mode drain` below.
//! - **Answer latency**: from the send to the end of the answer. In the open loop it counts from
//!   the *intended* send, because otherwise a generator that is stalled by a slow system would hide
//!   the waiting time (coordinated omission). It includes the timer's resolution of 1 ms.
//! - **Order-to-webhook latency**: from the same moment until the sink read the topup's first
//!   webhook.
//! - **Processor time**: user and system time of each process and its children, from before the
//!   first send until the last webhook. Per order, it is divided by the accepted orders.
//! - **Peak memory**: see [`system::Usage`].
//! - **pgbench**: see [`pgbench`]. Rates are also given as a ratio to it, so that runs on different
//!   machines can be compared.
//! - **Counts** (`--counts`): see [`counts`]. They say the same on a busy machine, unlike times.
//! - **Verdicts**: how many verdicts ingress waited for, according to its metric. A run with waits
//!   cannot be compared with a run without.
//!
//! # Modes
//! - `accept`: a connection sends its next order after the answer to the last one. Orders are
//!   accepted faster than they are delivered and queue, so the order-to-webhook latency measures
//!   this queue and not the pipeline.
//! - `deliver`: the same, but a connection waits while `--outstanding` units have no webhook. So no
//!   queue grows, webhooks/s is the sustained rate, and the latency is about outstanding / rate.
//! - `drain`: the provisioner is paused while `--backlog` units are accepted. Then it resumes, and
//!   drain/s is the rate of the webhooks without the first and the last twentieth of them.
//!
//! All modes end when the webhook of every accepted topup has arrived, when none has arrived for
//! `--patience`, or after 10 min. SIGINT ends the sending, but not the wait for webhooks. With
//! `--rate`, and in the steps of `--ladder`, the loop is open: sending never waits for answers.
//!
//! The generator runs on the same machine as the measured system, so it must use little processor
//! time. That is why it has one thread, no HTTP library, and no checks of signatures in the sink;
//! other tests check them.

mod arrived;
mod beside;
mod book;
mod chart;
mod compare;
mod counts;
mod document;
mod fill;
mod generator;
mod grow;
mod ladder;
mod number;
mod over_time;
mod peer;
mod pgbench;
mod report;
mod run;
mod settings;
mod sink;
mod system;
mod verdicts;
mod wire;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use document::Document;
use grow::Grow;
use report::Report;
use run::{Measured, measure};
use settings::{Settings, System};
use sqlx::{Connection, PgConnection};
use std::ffi::OsString;
use std::process::ExitCode;
use tokio::task::LocalSet;

fn main() -> ExitCode {
    let work = || -> Result<ExitCode> {
        let arguments: Vec<OsString> = std::env::args_os().collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        if arguments.get(1).is_some_and(|first| first == "grow") {
            let grow: Grow =
                ::runtime::config::parse_from(arguments.into_iter().skip(1), |_| Ok(()));
            return runtime.block_on(checked(&grow.system, grow.run()));
        }
        let settings = Settings::parse_from(arguments);
        runtime.block_on(checked(&settings.system, measurement(&settings)))
    };
    work().unwrap_or_else(|error| {
        eprintln!("load: {error:#}");
        ExitCode::FAILURE
    })
}

async fn checked(
    system: &System,
    work: impl Future<Output = Result<ExitCode>>,
) -> Result<ExitCode> {
    if let Err(error) = check_durability(system).await {
        eprintln!("load: {error:#}");
        return Ok(ExitCode::from(2));
    }
    LocalSet::new().run_until(work).await
}

async fn measurement(settings: &Settings) -> Result<ExitCode> {
    let Settings { load, system, .. } = settings;
    let mut earlier = Vec::new();
    for path in &settings.compare {
        earlier.extend(Document::read(path)?);
    }
    let measured: Vec<Measured> = if settings.ladder {
        ladder::climb(settings).await?
    } else {
        let pgbench = pgbench::measure(system, load.pgbench_seconds).await?;
        vec![measure(load, system, pgbench).await?]
    };
    let runs = measured.iter().map(|one| one.report.clone()).collect();
    let document = Document::new(system, runs);
    if settings.json {
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        if settings.ladder {
            println!("{}", ladder::summary(&document));
        } else {
            println!("{}", document.runs[0]);
        }
        for table in compare::tables(&document, &earlier) {
            println!("\n{table}");
        }
    }
    if let Some(prefix) = &settings.out {
        document::write(prefix, &document, &measured)?;
        if settings.ladder {
            let before = earlier
                .iter()
                .find(|document| document.runs.iter().any(|run| run.of_saturation.is_some()));
            ladder::plot(prefix, &document, before)?;
        } else {
            over_time::plot(prefix, &document, &earlier)?;
        }
    }
    Ok(if document.runs.iter().all(Report::complete) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Fails unless the database is durable. A database that may lose commits is much faster, so its
/// figures would be meaningless.
async fn check_durability(system: &System) -> Result<()> {
    let mut connection = PgConnection::connect(&system.database_url)
        .await
        .context("cannot connect to DATABASE_URL")?;
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        let value: String = sqlx::query_scalar("SELECT current_setting($1)")
            .bind(setting)
            .fetch_one(&mut connection)
            .await?;
        ensure!(
            value == "on",
            "PostgreSQL's setting {setting} is {value}, so commits may get lost and figures would be \
             meaningless; switch it on"
        );
    }
    connection.close().await?;
    Ok(())
}
