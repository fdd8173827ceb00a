//! The program, from the command line to the exit status.

use crate::document::{self, Document};
use crate::grow::Grow;
use crate::run::{Measured, measure};
use crate::settings::{Settings, System};
use crate::{compare, ladder, pgbench};
use anyhow::{Context, Result, ensure};
use clap::Parser;
use sqlx::{Connection, PgConnection};
use std::ffi::OsString;
use std::process::ExitCode;
use tokio::task::LocalSet;

pub fn main() -> Result<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if arguments.get(1).is_some_and(|first| first == "grow") {
        let grow = Grow::parse_from(&arguments[1..]);
        return runtime.block_on(checked(&grow.system, grow.run()));
    }
    let settings = Settings::parse_from(arguments);
    runtime.block_on(checked(&settings.system, measurement(&settings)))
}

async fn checked(system: &System, work: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
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
            let before =
                earlier.iter().find(|document| document.runs.iter().any(|run| run.of_saturation.is_some()));
            ladder::plot(prefix, &document, before)?;
        }
    }
    Ok(if document.runs.iter().all(crate::report::Report::complete) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Fails unless the database is durable: other figures are meaningless.
async fn check_durability(system: &System) -> Result<()> {
    let mut connection =
        PgConnection::connect(&system.database_url).await.context("cannot connect to DATABASE_URL")?;
    let queries = [
        ("fsync", "SHOW fsync"),
        ("synchronous_commit", "SHOW synchronous_commit"),
        ("full_page_writes", "SHOW full_page_writes"),
    ];
    for (setting, query) in queries {
        let value: String = sqlx::query_scalar(query).fetch_one(&mut connection).await?;
        ensure!(value == "on", "PostgreSQL's {setting} is {value}; figures are reported only when it is on");
    }
    connection.close().await?;
    Ok(())
}
