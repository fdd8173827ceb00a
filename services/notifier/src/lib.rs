//! The notifier is the stage that delivers. It sends partners their eSIMs, one signed webhook for
//! each ready topup, and the further events that they asked for. It also erases stored eSIMs when
//! they are no longer needed.
//!
//! Guarantee: every delivery is attempted until the endpoint acknowledges it with a 2xx, the retry
//! schedule ends, the endpoint responds 410, or the partner has no webhook URL. Each of these ends
//! is recorded. Delivery is at least once: a process that dies between the response and its record
//! leaves the delivery pending, so the webhook is sent again, with the same `webhook-id`.
//!
//! Nothing relies on leases for correctness; they only make duplicates rare. During the first lease
//! of a new delivery, only its readiness event makes a notifier work on it. Once the delivery has a
//! row of due work, the lease of this row keeps two notifiers from sending the same webhook at the
//! same time. If an attempt takes longer than its lease, another notifier may send the webhook a
//! second time, with the same `webhook-id`. NATS is not needed either: a delivery whose readiness
//! event is lost is found by the sweep.
//!
//! The modules, in the order in which a delivery meets them:
//!
//! - [`deliver`] is what a worker of [`pipeline::worker`] does: it claims deliveries,
//!   attempts each once, and records the results. [`pipeline::permits`] shares the requests in
//!   flight between endpoints.
//! - [`endpoint`] prepares and caches what all webhooks to one endpoint share, and `client` holds
//!   the connections to endpoints. [`webhooks::guard`] keeps webhooks out of private networks.
//! - [`webhook`] sends one request and reads the response; [`mail`] sends the notices that go to
//!   e-mail addresses, whose text `mail_text` makes. [`schedule`] decides what a response
//!   leads to and when to retry. `outcome` says what the result is called in the database, the log
//!   and the metrics. [`metrics`] declares the metrics.
//! - `batches` is what a second worker does. It makes waiting deliveries due when their partner
//!   sets a new URL, works off resends, and lets `events` make the events about keys that end soon.
//!   `retention` erases old data, and `books` compares accounts with what was ordered, by night.
//!
//! [`run`] connects these parts, and returns after the soft stop, which takes no new work and
//! finishes the work in flight ([`runtime::Shutdown`]).

mod batches;
mod books;
pub mod client;
pub mod deliver;
pub mod endpoint;
mod events;
mod head;
pub mod mail;
mod mail_text;
pub mod metrics;
mod outcome;
mod retention;
pub mod schedule;
pub mod webhook;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use clap::Parser;
use desk::operator::health::webhooks as waiting;
use domain::endpoint::BlockPolicy;
use pg::{
    Database,
    config::{MasterKeyConfig, PoolConfig},
};
use pipeline::{
    Lookout, Nats, NatsConfig, figures,
    metrics::{DueRows, WatchedStream, watch as watch_streams},
    pulse,
    streams::{DEAD, MessageSource, READY},
    worker::{self, PermitLimits},
};
use runtime::{
    CommonConfig, Shutdown,
    config::{BadSetting, positive_duration},
    health::{self, Readiness},
};
use signing::qr::QrKeys;
use store::{
    deliveries::{self, resends},
    work::WorkKind,
};
use vault::{Keyring, Vault};
use webhooks::{
    config::{GuardConfig, QrConfig, SourceConfig, public_url},
    qr::QrUrls,
};

use crate::{
    batches::Batches,
    deliver::{Deliver, DeliverySettings, Transports},
    mail::RelayConfig,
    metrics::Metrics,
    schedule::Schedule,
    webhook::WebhookSender,
};

/// Bytes that an endpoint may send before the head of its response is complete. The TLS handshake
/// and interim (1xx) responses count, too. An endpoint that sends more fails the attempt. Otherwise
/// a hostile endpoint could keep a processor busy and delay the webhooks of all partners.
const HEAD_MAX: usize = 64 * 1024;
/// Time from which an endpoint that takes this long to respond counts as slow. A slow endpoint, and
/// one that has not responded yet, gets at most 8 requests at once, or `DELIVERY_CONCURRENCY` / 64
/// if that is more. All slow endpoints together get at most half of `DELIVERY_CONCURRENCY`, and
/// half of `host_concurrency` at one host. So many slow endpoints do not delay the webhooks of the
/// others. One response that comes sooner gives an endpoint its whole share.
const ENDPOINT_SLOW: Duration = Duration::from_secs(3);
/// Time between the event `key.expiring` and the end of the old keys or secret it announces. After
/// a rotation the old keys, or the old webhook secret, stay valid for a while. Partners that asked
/// for this event get it this long before that while ends. So if they forgot to change over, they
/// notice it before their requests are refused.
const KEY_EXPIRING_NOTICE: Duration = Duration::from_hours(6);
/// Maximum number of notices about its endpoints that a partner gets within 24 hours. A partner
/// with a verified channel for notices is told when an endpoint fails, is blocked, recovers, or
/// when the retries of a webhook have ended. Further notices are left out, so that an endpoint that
/// fails and recovers again and again does not flood people with mails.
const NOTICES_PER_DAY: u32 = 50;
/// The durable consumer that all notifiers share.
const CONSUMER: &str = "notifier";
/// How often the gauges of stored rows, such as exhausted deliveries, are updated.
const STANDING: Duration = Duration::from_secs(5);
/// The most running resends that are counted.
const MOST_RESENDS: i64 = 1_000;
/// The default of `RETRY_SCHEDULE`: eight attempts over about 28 hours.
const RETRY_SCHEDULE: &str = "5s,5m,30m,2h,5h,10h,10h";
/// How much of the first lease of a delivery is at least left for its readiness event to reach us.
/// The rest is for one whole attempt. An event that comes later claims nothing, and the sweep finds
/// its delivery. Otherwise the attempt could still be under way when the first lease ends, and the
/// sweep would cause a second one.
const EVENT_ARRIVAL_LEAST: Duration = Duration::from_secs(5);
/// The longest `WEBHOOK_TIMEOUT`. The arrival of the event and a first attempt must together fit
/// into the first lease, as the assertion below checks.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(18);
const _: () = assert!(
    EVENT_ARRIVAL_LEAST.as_secs() + LONGEST_TIMEOUT.as_secs() + deliver::LEASE_MARGIN.as_secs()
        <= deliver::FIRST_LEASE.as_secs()
);

/// The upper limit of `endpoint_block_longest`, so that an endpoint that works again is noticed
/// within a day.
const LONGEST_BLOCK: Duration = Duration::from_hours(24);

/// Sends ready eSIMs to partners by webhook
#[derive(Parser, Clone, Debug)]
#[command(name = "notifier", version)]
pub struct Config {
    /// Address of `/livez`, `/readyz` and `/metrics`
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:8084")]
    pub admin_listen: SocketAddr,
    /// Public base URL of ingress, as partners reach it
    ///
    /// Webhooks contain it in `qrcode_img_url`, because ingress draws the QR codes.
    #[arg(long, env = "PUBLIC_URL", value_parser = public_url)]
    pub public_url: String,
    #[command(flatten)]
    pub qr: QrConfig,
    #[command(flatten)]
    pub guard: GuardConfig,
    /// Timeout of a whole webhook request, at most 18s
    ///
    /// A process has a new webhook to itself for 30 s only. If the first attempt took longer than
    /// that, another process might send the same webhook, too.
    #[arg(long, env = "WEBHOOK_TIMEOUT", default_value = "15s", value_parser = webhook_timeout)]
    pub webhook_timeout: Duration,
    /// Waits between the attempts of a delivery, separated by commas
    ///
    /// Each wait varies by up to 10 %, so that deliveries which failed together are not all retried
    /// at the same moment. A delivery whose attempt after the last wait fails is exhausted; an
    /// operator or the partner can start its retries again. The default makes eight attempts over
    /// about 28 hours.
    #[arg(
        long,
        env = "RETRY_SCHEDULE",
        default_value = RETRY_SCHEDULE,
        value_parser = Schedule::parse
    )]
    pub retry_schedule: Schedule,
    /// Maximum number of webhook requests in flight, per process
    ///
    /// Further deliveries wait. Those that would wait for long become due in PostgreSQL, so that
    /// any notifier with room can take them. A single endpoint can use at most half of what the
    /// other endpoints leave free, so that one slow endpoint cannot block everybody.
    #[arg(
        long,
        env = "DELIVERY_CONCURRENCY",
        default_value_t = 512,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub delivery_concurrency: u16,
    /// Maximum number of webhook requests in flight to one partner's endpoint, per process. The
    /// limit protects the partner's server from too many requests at once. For each host, up to
    /// this many unused connections stay open for later requests. Only tests set it.
    #[arg(long, hide = true, default_value_t = 64)]
    pub endpoint_concurrency: u16,
    /// Maximum number of webhook requests in flight to one host, per process. Several partners may
    /// have endpoints at one host, which usually fail together. Each of these endpoints can use at
    /// most half of what the others at the host leave free. Only tests set it.
    #[arg(long, hide = true, default_value_t = 256)]
    pub host_concurrency: u16,
    /// Consecutive failed attempts after which an endpoint is blocked; 0: never
    ///
    /// The webhooks to a blocked endpoint wait without using up attempts, and from time to time one
    /// of them tests whether the endpoint works again.
    #[arg(long, env = "ENDPOINT_FAILURES", default_value_t = 20)]
    pub endpoint_failures: u16,
    /// Longest time that an endpoint stays blocked before the next probe. The first block is a 60th
    /// of it, and the time doubles with each failed probe. An endpoint that works again is noticed
    /// within minutes, and its partner can have it tested at once. Only tests set it.
    #[arg(long, hide = true, default_value = "5m", value_parser = block)]
    pub endpoint_block_longest: Duration,
    /// Maximum number of webhooks of one endpoint that are due while a resend makes more of them
    /// due. A partner can ask for thousands of webhooks to be sent again at once. They become due
    /// in batches, so that a slow endpoint takes them at its own pace, and its new webhooks do not
    /// wait behind them. A quick endpoint takes 200 in less than a second. Only tests set it.
    #[arg(
        long,
        hide = true,
        default_value_t = 200,
        value_parser = clap::value_parser!(u16).range(1..=10_000)
    )]
    pub resend_due: u16,
    #[command(flatten)]
    pub relay: RelayConfig,
    #[command(flatten)]
    pub source: SourceConfig,
    /// Maximum number of stored rows per second that retention reads, per process; 0 erases nothing
    ///
    /// Retention erases data that has been kept for longer than `esimctl retention list` shows. The
    /// limit keeps this from slowing down deliveries. Replicas may work on different classes of
    /// data at the same time.
    #[arg(
        long,
        env = "RETENTION_RATE",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(0..=100_000)
    )]
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
        return Err(format!("it must be at most {most:?}"));
    }
    Ok(duration)
}

/// What the settings open.
struct Opened {
    database: Database,
    vault: Vault,
    qr_keys: QrKeys,
    transports: Transports,
}

impl Config {
    /// Refuses what a start refuses after clap has taken it.
    pub fn check(&self) -> anyhow::Result<()> {
        self.open()?;
        self.nats.check("notifier")
    }

    fn open(&self) -> anyhow::Result<Opened> {
        let keyrings = [Keyring::Webhooks, Keyring::Profiles];
        Ok(Opened {
            database: self.database.open("notifier").map_err(BadSetting::error)?,
            vault: self
                .master_key
                .vault(&keyrings)
                .map_err(BadSetting::error)?,
            qr_keys: self.qr.keys().map_err(BadSetting::error)?,
            transports: Transports {
                sender: self.sender()?,
                mailer: self.relay.mailer(self.webhook_timeout)?,
            },
        })
    }

    /// Creates the sender of webhooks.
    fn sender(&self) -> anyhow::Result<WebhookSender> {
        let limits = client::ClientLimits {
            timeout: self.webhook_timeout,
            head_max: HEAD_MAX,
            idle: self.endpoint_concurrency.into(),
            oldest: client::OLDEST,
        };
        Ok(WebhookSender::new(
            self.guard.clone().guard(),
            &self.guard.webhook_resolvers,
            &limits,
        )?)
    }

    /// Where the worker gets its messages, and how much it may have in flight.
    fn worker_settings(&self, nats: &Nats, lookout: &Lookout) -> worker::WorkerSettings {
        worker::WorkerSettings {
            source: Some(MessageSource {
                stream: READY,
                durable: CONSUMER.to_owned(),
                subject: nats.ready_subjects(),
            }),
            limits: PermitLimits {
                permits: self.delivery_concurrency.into(),
                per_lane: self.host_concurrency.into(),
                per_owner: self.endpoint_concurrency.into(),
                slow_attempt: Some(ENDPOINT_SLOW),
                slow: deliver::SLOW,
            },
            lane: worker::unlimited_lanes(),
            provider: None,
            wake: Some(lookout.watch(&WorkKind::WEBHOOKS, "")),
        }
    }

    fn delivery_settings(self, qr_keys: QrKeys) -> DeliverySettings {
        DeliverySettings {
            qr: QrUrls::new(self.public_url, qr_keys),
            timeout: self.webhook_timeout,
            schedule: self.retry_schedule,
            block_policy: BlockPolicy {
                failures: self.endpoint_failures.into(),
                first: self.endpoint_block_longest / 60,
                longest: self.endpoint_block_longest,
            },
            notices_per_day: NOTICES_PER_DAY,
        }
    }
}

/// The streams whose backlog and consumers are reported as metrics.
fn watched_streams() -> Vec<WatchedStream> {
    vec![
        WatchedStream {
            stream: READY,
            consumers: vec![CONSUMER.to_owned()],
        },
        WatchedStream {
            stream: DEAD,
            consumers: Vec::new(),
        },
    ]
}

/// Runs the stage until the soft stop.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    let Opened {
        database,
        vault,
        qr_keys,
        transports,
    } = config.open()?;
    let pool = database.clone();
    runtime::metrics::connections(move || pool.connections());
    let nats = Nats::connect(&config.nats, "notifier").await?;

    let readiness = Readiness::new(&shutdown, &["database"]);
    health::serve(config.admin_listen, readiness.clone()).await?;
    let stop = shutdown.soft();
    match stop
        .run_until_cancelled(accounts::start::wait(&database, &vault))
        .await
    {
        None => return Ok(()),
        Some(checked) => checked?,
    }
    // NATS does not count for readiness, because looks at due work find every delivery without it.
    shutdown.spawn(
        "pulse",
        pulse::run(database.clone(), nats.clone(), readiness, shutdown.clone()),
    );

    shutdown.spawn(
        "retention",
        retention::run(database.clone(), config.retention_rate, shutdown.clone()),
    );
    shutdown.spawn(
        "books",
        books::run(config.database.clone(), database.clone(), shutdown.clone()),
    );
    let metrics = Arc::new(Metrics::register());
    shutdown.spawn(
        "figures",
        figures::run(metrics.figures.clone(), database.clone(), shutdown.clone()),
    );
    shutdown.spawn(
        "events",
        events::start(
            database.clone(),
            config.source.source_addresses.texts(),
            Arc::clone(&metrics),
            shutdown.clone(),
        ),
    );
    let lookout = Lookout::start(database.clone(), &shutdown);
    let batches = Batches {
        database: database.clone(),
        metrics: Arc::clone(&metrics),
        key_notice: KEY_EXPIRING_NOTICE,
        resend_due: config.resend_due.into(),
        pauses: batches::Pauses::default(),
        shutdown: shutdown.clone(),
    };
    worker::start(
        Arc::new(batches),
        &nats,
        batches::worker_settings(&lookout),
        &shutdown,
    );
    shutdown.spawn(
        "metrics",
        report(database.clone(), Arc::clone(&metrics), shutdown.clone()),
    );
    shutdown.spawn(
        "streams",
        watch_streams(nats.clone(), watched_streams(), shutdown.clone()),
    );
    let worker_settings = config.worker_settings(&nats, &lookout);
    let admin_listen = config.admin_listen;
    let settings = config.delivery_settings(qr_keys);
    let handler = Deliver::new(
        database.clone(),
        vault,
        transports,
        settings,
        metrics,
        &shutdown,
    );
    worker::start(Arc::new(handler), &nats, worker_settings, &shutdown);
    pipeline::sweep::start::<Deliver>(&database, &shutdown, |connection| {
        Box::pin(deliveries::sweep(connection, deliver::FIRST_LEASE))
    });
    tracing::info!(admin = %admin_listen, "notifier is running");

    stop.cancelled().await;
    let finished = shutdown.finished().await;
    nats.flush().await;
    finished
}

/// Updates the gauges of stored rows until the soft stop.
async fn report(
    database: Database,
    metrics: Arc<Metrics>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let due = DueRows::new("notifier");
    let mut ticks = shutdown.ticks(STANDING);
    while ticks.next().await {
        let running =
            database.run(async |connection| resends::running(connection, None, MOST_RESENDS).await);
        if let Ok(running) = running.await {
            metrics.redeliveries(running.len());
        }
        match database.run(waiting::backlog).await {
            Ok(backlog) => {
                due.show(None, backlog.due);
                metrics.backlog(&backlog);
            }
            Err(error) => {
                tracing::debug!(
                    %error,
                    "cannot read the backlog of deliveries; its gauges keep the last values"
                );
            }
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
