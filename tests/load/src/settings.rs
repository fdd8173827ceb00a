//! The command line.

use clap::{Args, Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

const CLOSED_CONNECTIONS: u32 = 64;
/// The default of the maximum number of connections of an open loop. It is large enough to go on
/// sending on time while answers are late.
const OPEN_CONNECTIONS: u32 = 1_024;

/// Measure a running pipeline: accepted orders, webhooks, and the drain of a backlog
///
/// The exit status is 0 only if orders were accepted and the webhook of every accepted topup
/// arrived. It is 2 if the measurement could not begin, for example because `fsync`,
/// `synchronous_commit` or `full_page_writes` of `PostgreSQL` is off.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  load                                      64 connections, 20 s, one unit per order
  load --mode deliver --connections 256     what the whole pipeline sustains
  load --mode drain --backlog 50000         how fast a backlog is worked off
  load --rate 500 --seconds 60              open loop: 500 orders/s, whatever the answers do
  load --rate 30 --seconds 60 --beside slow=20   what a slow option costs the others
  load --rate 100 --seconds 2 --partners 1 --provider-latency 1s   a newsletter, and a real provider
  load --rate 200 --seconds 10 --counts     what one order costs, in counts
  load --ladder --out .local/load/ladder    rates from idle to twice the saturation, with plots
  load --mode deliver --compare FILE        the same run beside an earlier one
  load --connections 8 --qty 10 --json      ten units per order, machine-readable
  load grow --help                          the rate beside millions of finished orders")]
pub struct Settings {
    #[command(flatten)]
    pub load: Load,
    /// Measure one rate after the other in an open loop, from idle to twice the saturation. A short
    /// closed loop of `--mode` finds the saturation first
    #[arg(long, conflicts_with = "rate")]
    pub ladder: bool,
    /// Rates of the ladder in orders/s, instead of shares of the saturation, separated by commas
    #[arg(long, value_delimiter = ',', requires = "ladder")]
    pub rates: Vec<u32>,
    /// JSON file of an earlier run, or a folder of them, to print beside this run. Can be given
    /// several times
    #[arg(long, value_name = "PATH")]
    pub compare: Vec<PathBuf>,
    /// Write `<PREFIX>.json`, `<PREFIX>-histograms.csv`, and the plots of a ladder as
    /// `<PREFIX>-*.svg`
    #[arg(long, value_name = "PREFIX")]
    pub out: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub system: System,
}

/// One run.
#[derive(Clone, Debug, Args)]
pub struct Load {
    /// Number of connections to ingress. In a closed loop this is also the number of orders in
    /// flight [default: 64]. In an open loop it is a maximum [default: 1024]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub connections: Option<u32>,
    /// Send this many orders per second in an open loop, whether or not earlier ones are answered
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub rate: Option<u32>,
    /// Length in seconds of the window in which orders are sent, or of each step of a ladder
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
    /// Number of units in each order
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub qty: u32,
    /// Number of partners that are created for the run, each with a webhook URL of its own. They
    /// order in turn
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub partners: u32,
    /// Sandbox option to order
    #[arg(long, default_value = "ready")]
    pub option: String,
    /// Also order another sandbox option for a partner of its own, at RATE orders per second and at
    /// most COUNT orders in all. These orders are not part of the figures. Can be given several
    /// times
    #[arg(long, value_name = "OPTION=RATE[,COUNT]", value_parser = disturbance)]
    pub beside: Vec<Disturbance>,
    /// Let each call to the sandbox provider take this long during the run, as with a real
    /// provider, whose calls take 300 ms to 2 s
    #[arg(long, value_parser = humantime::parse_duration)]
    pub provider_latency: Option<Duration>,
    /// What the run measures
    #[arg(long, value_enum, default_value_t = Mode::Accept)]
    pub mode: Mode,
    /// Number of units without webhook at which the loop of `--mode deliver` pauses [default: 16
    /// per connection]
    #[arg(long)]
    pub outstanding: Option<u32>,
    /// Number of units that queue in `--mode drain` before the provisioner resumes
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=5_000_000))]
    pub backlog: u32,
    /// Give up if no webhook arrives for this long. Use more than 30 s to also receive the webhooks
    /// that a killed notifier left behind
    #[arg(long, value_parser = humantime::parse_duration, default_value = "30s")]
    pub patience: Duration,
    /// Length in seconds of the pgbench run right before the measurement. 0 skips it
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=600))]
    pub pgbench_seconds: u32,
    /// Also count what the servers do per order and per idle second: commits, flushes, WAL, scans,
    /// messages and wake-ups. It watches the idle system first, and takes a minute longer
    #[arg(long)]
    pub counts: bool,
}

/// The addresses of the pipeline.
#[derive(Clone, Debug, Args)]
pub struct System {
    /// Address of this machine that receives the webhooks
    #[arg(long, env = "TEST_WEBHOOK_ADDRESS", default_value_t = Ipv4Addr::LOCALHOST)]
    pub webhook_address: Ipv4Addr,
    /// Base URL of ingress
    #[arg(long, env = "BASE_URL")]
    pub base_url: String,
    /// URL of the admin endpoint of ingress, whose metrics show whether it waited for verdicts
    #[arg(long, env = "INGRESS_ADMIN_URL")]
    pub ingress_admin_url: Option<String>,
    /// URL of the sandbox provider, for `--provider-latency`
    #[arg(long, env = "SANDBOX_URL")]
    pub sandbox_url: Option<String>,
    /// URL of nats-server's monitoring, whose `/varz` counts its messages
    #[arg(long, env = "NATS_MONITOR_URL")]
    pub nats_monitor_url: Option<String>,
    /// URL of the pipeline's database. Its settings are checked, because figures of a database that
    /// is not durable are meaningless
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: String,
    /// URL of a role on the same server that may create databases, for the scratch database of
    /// pgbench
    #[arg(long, env = "DATABASE_ADMIN_URL", hide_env_values = true)]
    pub database_admin_url: Option<String>,
    /// Folder of the programs of `PostgreSQL` [default: the search path]
    #[arg(long, env = "PG_BIN")]
    pub pg_bin: Option<PathBuf>,
    /// Folder with the files `<process>.pid` of the running processes
    #[arg(long, default_value_os_t = testkit::local_dir().join("run"))]
    pub run_dir: PathBuf,
    /// A peer of tests/load/peer runs instead of the pipeline: the partners are made at its `POST
    /// /partners`, and not with esimctl
    #[arg(long)]
    pub peer: bool,
    /// Commit of the running programs, for the report
    #[arg(long, env = "LOAD_COMMIT")]
    pub commit: Option<String>,
}

impl System {
    /// The name of the pipeline's database.
    pub fn database(&self) -> &str {
        let path = self.database_url.rsplit('/').next().unwrap_or_default();
        path.split('?').next().unwrap_or_default()
    }
}

/// Orders that are sent beside the measured ones, to see whether they disturb them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disturbance {
    /// The sandbox option.
    pub option: String,
    /// Orders per second.
    pub rate: u32,
    /// The maximum number of orders in all.
    pub count: Option<u32>,
}

fn disturbance(text: &str) -> Result<Disturbance, String> {
    let parsed = || {
        let (option, numbers) = text.split_once('=')?;
        let (rate, count) = match numbers.split_once(',') {
            Some((rate, count)) => (rate, Some(count.parse().ok()?)),
            None => (numbers, None),
        };
        let rate: u32 = rate.parse().ok()?;
        (!option.is_empty() && rate > 0).then(|| Disturbance {
            option: option.to_owned(),
            rate,
            count,
        })
    };
    parsed().ok_or_else(|| {
        "expected OPTION=RATE or OPTION=RATE,COUNT, such as slow=20 or flapping=100,300".into()
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Accepted orders per second.
    Accept,
    /// Delivered webhooks per second, and the time from order to webhook.
    Deliver,
    /// The rate at which a backlog is bought and delivered: the provisioner is paused while orders
    /// queue.
    Drain,
}

impl Mode {
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

impl Load {
    pub fn most_connections(&self) -> u32 {
        let default = if self.rate.is_some() {
            OPEN_CONNECTIONS
        } else {
            CLOSED_CONNECTIONS
        };
        self.connections.unwrap_or(default)
    }

    /// The number of units without webhook at which the closed loop pauses. It is `None` if the
    /// loop never pauses.
    pub fn outstanding(&self) -> Option<u32> {
        let holds_back = self.mode == Mode::Deliver && self.rate.is_none();
        // With less than one order per connection, some connections would always be idle.
        let least = self.most_connections().saturating_mul(self.qty);
        holds_back.then(|| {
            self.outstanding
                .unwrap_or(16 * self.most_connections())
                .max(least)
        })
    }
}
