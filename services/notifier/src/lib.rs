//! The notifier sends partners their eSIMs, one signed webhook per ready topup, and the further events they asked for.
//!
//! Modules: [`deliver`] reads deliveries, attempts them and records the results. [`webhook`] sends one request and
//! reads the response. [`schedule`] decides what a response leads to and when to retry. [`webhooks::guard`] keeps
//! webhooks out of private networks. [`endpoint`] prepares the parts that all requests to one partner share. `client`
//! holds the connections to endpoints, and `outcome` says what an attempt's result is called in the record, the log
//! and the metrics. [`metrics`] holds the instruments. `events` makes events and moves deliveries to new URLs.
//! `retention` erases old data. [`pipeline::permits`] shares the requests in flight between endpoints.
//!
//! Guarantee: every delivery is attempted until the endpoint acknowledges it, the schedule ends, or the
//! partner has no webhook URL. Each of these ends is recorded. Delivery is at least once: a crash between
//! the response and its record redelivers the webhook with the same `webhook-id`.
//!
//! The lease of a due row keeps two notifiers from sending the same webhook at once; a new delivery belongs
//! to its message. Correctness does not depend on it: a notifier that outlives its lease sends a
//! duplicate, and the second record changes nothing.

mod client;
pub mod deliver;
pub mod endpoint;
mod events;
pub mod metrics;
mod outcome;
mod retention;
pub mod schedule;
pub mod webhook;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use clap::Parser;
use pipeline::{
    Nats, NatsConfig,
    metrics::{DueRows, Watched, watch as watch_streams},
    streams::{DEAD, READY, Source},
    worker::{self, Limits},
};
use runtime::{
    CommonConfig, Shutdown,
    config::{BadSetting, positive_duration},
    health::{self, Readiness},
};
use store::{
    Database,
    config::{MasterKeyConfig, PoolConfig},
    deliveries::{
        self,
        endpoints::{self, BlockPolicy},
    },
    schema::{self, SchemaError},
    vault::Keyring,
};
use webhooks::{
    config::{GuardConfig, QrConfig, public_url},
    qr::QrUrls,
};

use crate::{
    deliver::{Deliver, Settings},
    metrics::Metrics,
    schedule::Schedule,
    webhook::Sender,
};

/// How often the database is checked for readiness.
const LOOK: Duration = Duration::from_secs(1);
/// How often the gauges of stored rows are updated.
const STANDING: Duration = Duration::from_secs(5);
/// Eight attempts over about 28 hours.
const RETRY_SCHEDULE: &str = "5s,5m,30m,2h,5h,10h,10h";
/// How much of a delivery's first lease is at least left for its readiness event to reach us. The rest is for one whole
/// attempt. An event that comes later claims nothing; the sweep finds its delivery.
const EVENT_ARRIVAL_LEAST: Duration = Duration::from_secs(5);
/// The longest `WEBHOOK_TIMEOUT`. The arrival of the event and a first attempt must fit into the first lease.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(18);
const _: () = assert!(
    EVENT_ARRIVAL_LEAST.as_secs() + LONGEST_TIMEOUT.as_secs() + deliver::LEASE_MARGIN.as_secs()
        <= deliver::FIRST_LEASE.as_secs()
);

/// The upper limit of both settings of blocks: a recovered endpoint is probed within a day.
const LONGEST_BLOCK: Duration = Duration::from_hours(24);

/// Sends ready eSIMs to partners by webhook
#[derive(Parser, Clone, Debug)]
#[command(name = "notifier", version)]
pub struct Config {
    /// Address of `/livez`, `/readyz` and `/metrics`
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:8084")]
    pub admin_listen: SocketAddr,
    /// Public base URL of ingress, used in `qrcode_img_url`
    #[arg(long, env = "PUBLIC_URL", value_parser = public_url)]
    pub public_url: String,
    #[command(flatten)]
    pub qr: QrConfig,
    #[command(flatten)]
    pub guard: GuardConfig,
    /// Bytes that an endpoint may send before the head of its response is complete, including
    /// interim responses and the TLS handshake
    #[arg(long, env = "WEBHOOK_HEAD_MAX", default_value_t = 64 * 1024, value_parser = clap::value_parser!(u32).range(16 * 1024..=16 * 1024 * 1024))]
    pub webhook_head_max: u32,
    /// Timeout of a whole webhook request, at most 18s
    #[arg(long, env = "WEBHOOK_TIMEOUT", default_value = "15s", value_parser = webhook_timeout)]
    pub webhook_timeout: Duration,
    /// Waits between the attempts of a delivery, separated by commas; each varies by 10 %
    #[arg(long, env = "RETRY_SCHEDULE", default_value = RETRY_SCHEDULE, value_parser = Schedule::parse)]
    pub retry_schedule: Schedule,
    /// Most requests in flight; no endpoint takes more than half of the free slots
    #[arg(long, env = "DELIVERY_CONCURRENCY", default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..))]
    pub delivery_concurrency: u16,
    /// Most requests in flight to one partner's endpoint
    #[arg(long, env = "ENDPOINT_CONCURRENCY", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub endpoint_concurrency: u16,
    /// Most requests in flight to one host; no endpoint takes more than half of the host's free slots
    #[arg(long, env = "HOST_CONCURRENCY", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    pub host_concurrency: u16,
    /// Consecutive failed attempts after which an endpoint is blocked; 0 means never
    #[arg(long, env = "ENDPOINT_FAILURES", default_value_t = 20)]
    pub endpoint_failures: u16,
    /// How long an endpoint stays blocked at first; doubles with each failed probe, up to `ENDPOINT_BLOCK_LONGEST`
    #[arg(long, env = "ENDPOINT_BLOCK", default_value = "5s", value_parser = block)]
    pub endpoint_block: Duration,
    /// Longest time that an endpoint stays blocked before the next probe
    #[arg(long, env = "ENDPOINT_BLOCK_LONGEST", default_value = "5m", value_parser = block)]
    pub endpoint_block_longest: Duration,
    /// Send `key.expiring`, to partners that asked for it, this long before old keys or an old webhook secret end
    #[arg(long, env = "KEY_EXPIRING_NOTICE", default_value = "6h", value_parser = positive_duration)]
    pub key_expiring_notice: Duration,
    /// Most stored rows per second that retention reads in this process; 0 erases nothing. Replicas may work on
    /// different classes at the same time
    #[arg(long, env = "RETENTION_RATE", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub retention_rate: u32,
    #[command(flatten)]
    pub database: PoolConfig,
    #[command(flatten)]
    pub nats: NatsConfig,
    #[command(flatten)]
    pub master_key: MasterKeyConfig,
    #[command(flatten)]
    pub common: CommonConfig,
}

fn webhook_timeout(text: &str) -> Result<Duration, String> {
    at_most(LONGEST_TIMEOUT, text)
}

fn block(text: &str) -> Result<Duration, String> {
    at_most(LONGEST_BLOCK, text)
}

fn at_most(most: Duration, text: &str) -> Result<Duration, String> {
    let duration = positive_duration(text)?;
    if duration > most {
        return Err(format!("must be at most {most:?}"));
    }
    Ok(duration)
}

/// Runs the stage until the soft stop.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    let database = config.database.open("notifier").map_err(BadSetting::error)?;
    let pool = database.clone();
    runtime::metrics::connections(move || pool.connections());
    let vault = config.master_key.vault(&[Keyring::Webhooks, Keyring::Profiles]).map_err(BadSetting::error)?;
    let qr_keys = config.qr.keys().map_err(BadSetting::error)?;
    let name_servers = config.guard.webhook_resolvers.clone();
    let calls = webhook::Limits {
        timeout: config.webhook_timeout,
        head_max: usize::try_from(config.webhook_head_max).unwrap_or(usize::MAX),
        idle: config.endpoint_concurrency.into(),
    };
    let sender = Sender::new(config.guard.guard(), &name_servers, &calls)?;
    let nats = Nats::connect(&config.nats, "notifier").await?;

    let readiness = Readiness::new(&shutdown, &["database"]);
    health::serve(config.admin_listen, readiness.clone()).await?;
    let stop = shutdown.soft();
    match stop.run_until_cancelled(schema::wait(&database, &vault)).await {
        None => return Ok(()),
        Some(checked) => checked?,
    }
    shutdown.spawn("readiness", watch(database.clone(), readiness, shutdown.clone()));

    shutdown.spawn("retention", retention::run(database.clone(), config.retention_rate, shutdown.clone()));
    shutdown.spawn("events", events::run(database.clone(), config.key_expiring_notice, shutdown.clone()));
    let metrics = Arc::new(Metrics::register());
    shutdown.spawn("metrics", report(database.clone(), Arc::clone(&metrics), shutdown.clone()));
    let settings = Settings {
        qr: QrUrls::new(config.public_url, qr_keys),
        timeout: config.webhook_timeout,
        schedule: config.retry_schedule,
        block_policy: BlockPolicy {
            failures: config.endpoint_failures.into(),
            first: config.endpoint_block,
            longest: config.endpoint_block_longest,
        },
    };
    let durable = String::from("notifier");
    let watched = vec![
        Watched { stream: READY, consumers: vec![durable.clone()] },
        Watched { stream: DEAD, consumers: Vec::new() },
    ];
    shutdown.spawn("streams", watch_streams(nats.clone(), watched, shutdown.clone()));
    let source = Source { stream: READY, durable, subject: nats.ready_subjects() };
    let work = worker::Settings {
        source: Some(source),
        limits: Limits {
            permits: config.delivery_concurrency.into(),
            per_lane: config.host_concurrency.into(),
            per_partner: config.endpoint_concurrency.into(),
            slow: deliver::SLOW,
        },
        lane: worker::unlimited_lanes(),
        provider: None,
    };
    let stage = Deliver::new(database.clone(), vault, sender, settings, metrics, &shutdown);
    worker::start(Arc::new(stage), &nats, work, &shutdown);
    let sweeping = worker::sweep::<Deliver, _>(shutdown.clone(), move || {
        let database = database.clone();
        async move {
            let swept = database.run(async |connection| deliveries::sweep(connection, deliver::FIRST_LEASE).await);
            let swept = swept.await?;
            Ok((swept.late, swept.more))
        }
    });
    shutdown.spawn("sweep", sweeping);
    tracing::info!(admin = %config.admin_listen, "notifier is running");

    stop.cancelled().await;
    let finished = shutdown.finished().await;
    nats.flush().await;
    finished
}

/// Updates readiness by the state of the database. NATS does not count, because looks at due work find every row without it.
async fn watch(database: Database, readiness: Readiness, shutdown: Shutdown) -> anyhow::Result<()> {
    let mut ticks = shutdown.ticks(LOOK);
    while ticks.next().await {
        // Only a failed connection counts. A newer schema is normal during a rollout.
        let checked = database.run(async |connection| schema::check(connection).await);
        if let Err(SchemaError::Store(error)) = checked.await {
            readiness.set_not_ready("database", error.to_string());
        } else {
            readiness.set_ready("database");
        }
    }
    Ok(())
}

async fn report(database: Database, metrics: Arc<Metrics>, shutdown: Shutdown) -> anyhow::Result<()> {
    let due = DueRows::new("notifier");
    let mut ticks = shutdown.ticks(STANDING);
    while ticks.next().await {
        match database.run(endpoints::backlog).await {
            Ok(backlog) => {
                due.show(None, backlog.due);
                metrics.backlog(&backlog);
            }
            Err(error) => tracing::debug!(%error, "delivery gauges not updated"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_fits_into_the_first_lease() {
        assert_eq!(webhook_timeout("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(webhook_timeout("18s"), Ok(LONGEST_TIMEOUT));
        assert!(webhook_timeout("19s").is_err() && webhook_timeout("0").is_err());
    }
}
