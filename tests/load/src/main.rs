//! Load generator and webhook sink in one process.
//!
//! # What is measured
//! - **Accepted orders/s**: 201 answers read within the window (`--seconds`, from the first send),
//!   divided by its length.
//! - **Webhooks/s**: first webhooks of topups that came within the window, divided by its length.
//! - **Answer latency**: from the send until the whole answer was read. In the open loop from the
//!   *planned* send, so a generator that is held up doesn't hide the waiting (coordinated omission);
//!   the timer's granularity of 1 ms is part of it.
//! - **Order-to-webhook latency**: from the same moment until the topup's first webhook was read by
//!   the sink; one value per topup.
//! - **Processor time**: user and system time of each process and its children, from before the
//!   first send until the last webhook; per order it is divided by the accepted orders.
//! - **Peak memory**: see [`system::Usage`].
//!
//! # Modes
//! - `accept`: a connection sends its next order as soon as the last one is answered; what is
//!   accepted above the pipeline's pace piles up and is drained afterwards. Its order-to-webhook
//!   latency is the length of that queue, not the pipeline's latency.
//! - `deliver`: the same, but a connection waits while `--outstanding` units have no webhook yet.
//!   The pipeline stays busy and no queue grows, so webhooks/s is what the pipeline sustains, and
//!   latency is about outstanding / rate.
//!
//! Both end only when every accepted topup's webhook came, or none came for `--patience`, or after 10 min.
//! SIGINT ends the sending, not the waiting for webhooks.
//! With `--rate` nothing waits for anything: that is the point of an open loop.
//!
//! One thread, no HTTP library and no checks in the sink: the generator shares the machine with what
//! it measures.

mod book;
mod generator;
mod report;
mod sink;
mod system;
mod wire;

use anyhow::{Context, Result, bail, ensure};
use book::Book;
use clap::{Parser, ValueEnum};
use generator::{Pace, Sender};
use report::Report;
use serde::Serialize;
use sqlx::{Connection, PgConnection};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};
use testkit::esimctl::Esimctl;
use testkit::progress::Progress;
use tokio::task::{JoinSet, LocalSet};
use uuid::Uuid;

/// The wait for outstanding webhooks ends after this time, if `--patience` lets it.
const DRAIN: Duration = Duration::from_mins(10);

/// Measures a running pipeline: accepted orders, and orders to webhooks.
///
/// Refuses (exit status 2) unless `PostgreSQL` has `fsync`, `synchronous_commit` and `full_page_writes`
/// on. Exit status 0 only if orders were accepted and every accepted topup's webhook came.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  load                                      64 connections, 20 s, one unit per order
  load --mode deliver                       what the whole pipeline sustains
  load --rate 500 --seconds 60              open loop: 500 orders/s, whatever the answers do
  load --connections 8 --qty 10 --json      ten units per order, machine-readable")]
struct Settings {
    /// Connections to the ingress; in the closed loop also the orders under way at once.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Orders per second of an open loop, spread over the connections.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: Option<u32>,
    /// Length of the window in which orders are sent.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// Units per order.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    qty: u32,
    /// Partners made for the run, each with a webhook URL of its own; connections take turns.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    partners: u32,
    /// The sandbox option to order.
    #[arg(long, default_value = "ready")]
    option: String,
    /// What the run is about.
    #[arg(long, value_enum, default_value_t = Mode::Accept)]
    mode: Mode,
    /// Units without webhook at which the closed loop of `--mode deliver` holds back
    /// [default: 16 per connection].
    #[arg(long)]
    outstanding: Option<u32>,
    /// How long no webhook may come before the rest is given up; above 30 s deliveries that a killed
    /// notifier had taken up come too.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "30s")]
    patience: Duration,
    /// This machine's address where the webhooks are received.
    #[arg(long, env = "TEST_WEBHOOK_ADDRESS", default_value_t = std::net::Ipv4Addr::LOCALHOST)]
    webhook_address: std::net::Ipv4Addr,
    /// Prints the report as JSON.
    #[arg(long)]
    json: bool,
    /// Where the ingress listens.
    #[arg(long, env = "BASE_URL")]
    base_url: String,
    /// The pipeline's database, whose settings are checked.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: String,
    /// The folder with `<process>.pid` files.
    #[arg(long, default_value_os_t = testkit::local_dir().join("run"))]
    run_dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// How many orders are accepted per second.
    Accept,
    /// How many webhooks are delivered per second, and how long an order takes until then.
    Deliver,
}

fn main() -> ExitCode {
    let settings = Settings::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        runtime.block_on(async {
            if let Err(error) = check_durability(&settings.database_url).await {
                eprintln!("load: {error:#}");
                return Ok(ExitCode::from(2));
            }
            let report = LocalSet::new().run_until(measure(&settings)).await?;
            if settings.json {
                println!("{}", serde_json::to_string_pretty(&report)?);
            } else {
                println!("{report}");
            }
            Ok(if report.complete() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        })
    });
    result.unwrap_or_else(|error| {
        eprintln!("load: {error:#}");
        ExitCode::FAILURE
    })
}

/// A figure from a database that may lose what it confirmed would mean nothing.
async fn check_durability(database_url: &str) -> Result<()> {
    let mut connection = PgConnection::connect(database_url)
        .await
        .context("cannot connect to DATABASE_URL")?;
    let queries = [
        ("fsync", "SHOW fsync"),
        ("synchronous_commit", "SHOW synchronous_commit"),
        ("full_page_writes", "SHOW full_page_writes"),
    ];
    for (setting, query) in queries {
        let value: String = sqlx::query_scalar(query).fetch_one(&mut connection).await?;
        ensure!(
            value == "on",
            "PostgreSQL's {setting} is {value}; figures are reported only when it is on"
        );
    }
    connection.close().await?;
    Ok(())
}

async fn measure(settings: &Settings) -> Result<Report> {
    let book = Rc::new(Book::default());
    let sink = sink::Sink::start(settings.webhook_address, Rc::clone(&book)).await?;
    let esimctl = Esimctl::new([]);
    let option_id = esimctl.sandbox_option(&settings.option).await?;
    let run = Uuid::now_v7().simple().to_string();
    let mut senders = Vec::new();
    for number in 0..settings.partners {
        let url = sink.url(number);
        let partner = esimctl
            .create_partner(&format!("load {run} {number}"), "sandbox", Some(&url))
            .await?;
        senders.push(Rc::new(Sender::new(
            &settings.base_url,
            &partner,
            &option_id,
            settings.qty,
            &run,
        )?));
    }

    let before = system::sample(&settings.run_dir)?;
    let start = Instant::now();
    let window = Duration::from_secs(settings.seconds.into());
    book.open(start + window);
    let pace = Rc::new(Pace::new(settings, start));
    book.release_to(pace.permits());
    let mut workers = JoinSet::new();
    for sender in senders.iter().cycle().take(settings.connections as usize) {
        workers.spawn_local(generator::work(
            Rc::clone(sender),
            Rc::clone(&pace),
            Rc::clone(&book),
        ));
    }

    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let mut stopping = false;
    let mut progress = Progress::start();
    let mut line = Line::new(Rc::clone(&book), start);
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.tick().await;
    while !workers.is_empty() {
        tokio::select! {
            joined = workers.join_next() => if let Some(Err(error)) = joined { bail!("a connection's task died: {error}") },
            signal = &mut interrupted, if !stopping => {
                signal?;
                stopping = true;
                pace.stop();
            }
            _ = second.tick() => progress.show(line.next("sending")),
        }
    }
    let sent = Instant::now();
    let mut last_progress = (book.waiting(), sent);
    while book.waiting() > 0 && sent.elapsed() < DRAIN && last_progress.1.elapsed() < settings.patience {
        tokio::select! {
            () = book.nothing_waiting() => {}
            _ = second.tick() => {
                progress.show(line.next("waiting for the rest"));
                if book.waiting() != last_progress.0 {
                    last_progress = (book.waiting(), Instant::now());
                }
            }
        }
    }
    drop(progress);
    let after = system::sample(&settings.run_dir)?;
    Ok(Report::new(
        settings,
        &book,
        &pace,
        sent.elapsed(),
        &before,
        &after,
    ))
}

/// The text of the progress line.
struct Line {
    book: Rc<Book>,
    start: Instant,
    orders: u64,
    webhooks: u64,
}

impl Line {
    fn new(book: Rc<Book>, start: Instant) -> Self {
        Self {
            book,
            start,
            orders: 0,
            webhooks: 0,
        }
    }

    fn next(&mut self, what: &str) -> String {
        let totals = self.book.totals();
        let (orders, webhooks) = (totals.orders - self.orders, totals.webhooks - self.webhooks);
        (self.orders, self.webhooks) = (totals.orders, totals.webhooks);
        let elapsed = self.start.elapsed().as_secs();
        let waiting = self.book.waiting();
        let errors = totals.errors;
        format!(
            "{elapsed:>4} s  {what}: {orders:>6} orders/s {webhooks:>6} webhooks/s {waiting:>7} topups waiting {errors:>4} errors"
        )
    }
}
