//! The provisioner buys accepted orders: one purchase per placement, recorded before it is sent. Then it
//! collects the profiles and publishes readiness events.
//!
//! Guarantee: a placement is bought at most once. An attempt is recorded before the provider is called.
//! An attempt with an unknown outcome is looked up by its placement id before the next attempt buys. A
//! placement that cannot be settled is parked.
//!
//! Modules: [`place`] is the stage, and records outcomes. [`reporter`] sends verdicts and readiness events, and
//! [`heartbeat`] tells ingress that verdicts come in time. [`assign`] pairs units with topups. [`providers`] holds the
//! adapters. [`calls`] measures their calls, and [`rate`] paces them. [`limiter`] and [`breaker`] hold work back from what
//! fails, and [`watch`] shares what they know with the other replicas. [`callbacks`] receives providers' hints.
//!
//! A lease saves work: other processes skip the placement. It does *not* prevent a second purchase.

pub mod assign;
pub mod breaker;
pub mod callbacks;
pub mod calls;
pub mod heartbeat;
pub mod limiter;
pub mod metrics;
pub mod place;
pub mod providers;
pub mod rate;
pub mod reporter;
pub mod watch;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser;
use pipeline::{
    Nats, NatsConfig,
    metrics::{Watched as WatchedStream, watch as watch_streams},
    streams::{JOBS, Source},
    timing::PLACEMENT_FIRST_LEASE,
    worker::{self, LaneState, LaneStates, Limits},
};
use runtime::{
    CommonConfig, Shutdown,
    config::BadSetting,
    health::{self, Readiness},
};
use store::{
    Database,
    config::{MasterKeyConfig, PoolConfig},
    placements,
    providers::BreakerLimits,
    schema,
    vault::{Keyring, Vault},
};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::{
    breaker::Breaker,
    callbacks::{Callbacks, Callers},
    calls::Calls,
    limiter::LaneLimiters,
    metrics::Metrics,
    place::{ProviderStage, ProviderWork, Settlements, UNRECORDED},
    providers::{Accounts, Connected},
    rate::Rate,
    reporter::Reporter,
    watch::Watched,
};

/// Buys accepted orders from eSIM providers
#[derive(Parser, Clone, Debug)]
#[command(name = "provisioner", version)]
pub struct Config {
    /// Address of `POST /callbacks/<provider>/<token>`; served if a provider has a callback token
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:8082")]
    pub listen: SocketAddr,

    /// Address of `/livez`, `/readyz` and `/metrics`
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:8083")]
    pub admin_listen: SocketAddr,

    /// Providers to buy from: `sandbox`, `usimsa`
    #[arg(
        long,
        env = "PROVIDERS",
        default_value = "sandbox",
        value_delimiter = ',',
        value_parser = pipeline::streams::provider_name
    )]
    pub providers: Vec<String>,

    /// Purchases in flight, each with the first request for its profiles, per provider and process. One partner's orders for one option use at most half of them
    #[arg(
        long,
        env = "PROVIDER_CONCURRENCY",
        default_value_t = 256,
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    pub provider_concurrency: u16,

    /// Look-ups and later requests for profiles in flight, per provider and process. Default: half of `PROVIDER_CONCURRENCY`
    #[arg(
        long,
        env = "PROVIDER_LOOKUP_CONCURRENCY",
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    pub provider_lookup_concurrency: Option<u16>,

    /// Timeout of a call to a provider
    #[arg(
        long,
        env = "PROVIDER_TIMEOUT",
        value_parser = runtime::config::positive_duration,
        default_value = "10s"
    )]
    pub provider_timeout: Duration,

    /// The largest response of a provider, in bytes; the outcome of a larger one is unknown. Allow 1 KiB for
    /// each unit of `MAX_UNITS`
    #[arg(
        long,
        env = "PROVIDER_ANSWER_MAX",
        default_value_t = 1024 * 1024,
        value_parser = clap::value_parser!(u32).range(16 * 1024..=1024 * 1024 * 1024)
    )]
    pub provider_answer_max: u32,

    /// A purchase may still arrive at the provider this long after its attempt was recorded. Must exceed
    /// twice `PROVIDER_TIMEOUT` plus the delay of the provider's look-up
    #[arg(long, env = "SETTLE", value_parser = runtime::config::duration, default_value = "60s")]
    pub settle: Duration,

    /// How long profiles may be missing, or an outcome unknown, before the placement is parked
    #[arg(
        long,
        env = "PARK_AFTER",
        value_parser = runtime::config::duration,
        default_value = "30m"
    )]
    pub park_after: Duration,

    /// Calls per second to each provider, of all replicas together; 0 means no limit
    #[arg(
        long,
        env = "PROVIDER_RATE",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=100_000)
    )]
    pub provider_rate: u32,

    /// The breaker opens after this many consecutive calls that could not be sent, or after this many
    /// consecutive failed calls of any kind if most active lanes fail; a denied call (401, 403) opens it at once
    #[arg(
        long,
        env = "BREAKER_FAILURES",
        default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub breaker_failures: u32,

    /// How long a breaker stays open at first, before one placement probes it; doubles with each failed probe
    #[arg(
        long,
        env = "BREAKER_OPEN",
        value_parser = runtime::config::duration,
        default_value = "5s"
    )]
    pub breaker_open: Duration,

    /// Longest time that a breaker stays open, unless an operator opens the breaker
    #[arg(
        long,
        env = "BREAKER_OPEN_MOST",
        value_parser = runtime::config::duration,
        default_value = "30s"
    )]
    pub breaker_open_most: Duration,

    /// Callbacks in flight at once, on at most four times as many connections; others get 503
    #[arg(
        long,
        env = "CALLBACK_CONCURRENCY",
        default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    pub callback_concurrency: u16,

    /// Callbacks per second that reach PostgreSQL; others get 503
    #[arg(
        long,
        env = "CALLBACK_RATE",
        default_value_t = 200,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    pub callback_rate: u16,

    #[command(flatten)]
    pub accounts: Accounts,

    #[command(flatten)]
    pub database: PoolConfig,

    #[command(flatten)]
    pub nats: NatsConfig,

    #[command(flatten)]
    pub master_key: MasterKeyConfig,

    #[command(flatten)]
    pub common: CommonConfig,
}

/// The longest wait of a call for the rate limit. The permits are limited so that no call waits longer.
const TURNS: Duration = Duration::from_secs(5);
/// The wait of a ticket for its permit after which its queue is slow. Fresh tickets of a slow queue are deferred.
const SLOW: Duration = Duration::from_secs(1);

/// The configured providers by their names.
type Providers = Vec<(String, Connected)>;

impl Config {
    /// The configured providers; a repeated name is an error.
    fn connect(&self) -> anyhow::Result<Providers> {
        let limits = providers::Limits {
            timeout: self.provider_timeout,
            answer_max: usize::try_from(self.provider_answer_max).unwrap_or(usize::MAX),
        };
        let mut connected = Providers::new();
        for name in &self.providers {
            if connected.iter().any(|(other, _)| other == name) {
                return Err(BadSetting::error(format!("PROVIDERS names {name} twice")));
            }
            connected.push((name.clone(), self.accounts.connect(name, limits)?));
        }
        Ok(connected)
    }

    /// The limits of a provider's permits. A rate limit lowers them so that no call waits longer than [`TURNS`].
    fn limits(&self, concurrency: u16) -> Limits {
        let turns = u64::from(self.provider_rate) * TURNS.as_secs();
        let most = if turns == 0 { u64::MAX } else { turns };
        let permits = usize::try_from(u64::from(concurrency).min(most)).unwrap_or(usize::MAX);
        Limits { permits, per_lane: permits, per_partner: permits, slow: SLOW }
    }

    /// The lease of a claimed placement: a purchase and a collect, each with its wait for the rate limit
    /// and its timeout, and time to record the outcome.
    fn lease(&self) -> Duration {
        let turns = if self.provider_rate == 0 { Duration::ZERO } else { TURNS * 2 };
        self.provider_timeout * 2 + turns + Duration::from_secs(10)
    }

    fn check(&self) -> anyhow::Result<()> {
        if self.settle <= self.provider_timeout * 2 {
            return Err(BadSetting::error(format!(
                "SETTLE ({:?}) must be more than twice PROVIDER_TIMEOUT ({:?})",
                self.settle, self.provider_timeout
            )));
        }
        if self.park_after.is_zero() || self.breaker_open.is_zero() {
            return Err(BadSetting::error("PARK_AFTER and BREAKER_OPEN must be more than 0"));
        }
        Ok(())
    }
}

/// Runs the stage until the soft stop.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    config.check()?;
    let providers = config.connect()?;
    let database = config.database.open("provisioner").map_err(BadSetting::error)?;
    let pool = database.clone();
    runtime::metrics::connections(move || pool.connections());
    let vault = config.master_key.vault(&[Keyring::Profiles]).map_err(BadSetting::error)?;
    let nats = Nats::connect(&config.nats, "provisioner").await?;
    let metrics = Metrics::default();
    let readiness = Readiness::new(&shutdown, &["database"]);
    health::serve(config.admin_listen, readiness.clone()).await?;
    tracing::info!(admin = %config.admin_listen, providers = ?config.providers, "provisioner is starting");

    let callers = callers(&providers);
    if !callers.is_empty() {
        let (in_flight, rate) = (config.callback_concurrency.into(), config.callback_rate.into());
        let callbacks = Callbacks::new(callers, database.clone(), metrics.clone(), in_flight, rate);
        let listener = runtime::listener::bind("LISTEN", config.listen).await?;
        tracing::info!(listen = %config.listen, "listening for callbacks");
        shutdown.spawn("callbacks", callbacks::serve(listener, callbacks, shutdown.clone()));
    }

    let stop = shutdown.soft();
    let checked = stop.run_until_cancelled(schema::wait(&database, &vault)).await;
    let checked = checked.transpose()?.is_some();
    let instance = Uuid::now_v7().simple().to_string();
    let reporter = Arc::new(Reporter::start(&nats, &shutdown));
    if checked {
        let watched = start(&config, providers, &instance, &reporter, &database, &nats, &vault, &metrics, &shutdown);
        let watching = watch::watch(watched, instance, database.clone(), metrics.clone(), readiness, shutdown.clone());
        shutdown.spawn("providers", watching);
        let watched = vec![WatchedStream {
            stream: JOBS,
            consumers: config.providers.iter().map(|name| durable(name)).collect(),
        }];
        shutdown.spawn("streams", watch_streams(nats.clone(), watched, shutdown.clone()));
        let swept = database.clone();
        let sweep = move || {
            let database = swept.clone();
            async move {
                let swept = database.run(async |connection| placements::sweep(connection, PLACEMENT_FIRST_LEASE).await);
                let swept = swept.await?;
                Ok((swept.late, swept.more))
            }
        };
        shutdown.spawn("sweep", worker::sweep::<ProviderStage, _>(shutdown.clone(), sweep));
        shutdown.spawn("metrics", metrics.watch(config.providers, database, shutdown.clone()));
    }
    stop.cancelled().await;
    let finished = shutdown.finished().await;
    nats.flush().await;
    finished
}

/// Starts the queues of every provider. Returns what must be watched of each.
#[expect(clippy::too_many_arguments, reason = "called once, with the parts of the service")]
fn start(
    config: &Config,
    providers: Providers,
    instance: &str,
    reporter: &Arc<Reporter>,
    database: &Database,
    nats: &Nats,
    vault: &Vault,
    metrics: &Metrics,
    shutdown: &Shutdown,
) -> Vec<Watched> {
    let limits = BreakerLimits {
        failures: config.breaker_failures,
        open: config.breaker_open,
        open_most: config.breaker_open_most,
    };
    let purchases = config.limits(config.provider_concurrency);
    let lookups = config.provider_lookup_concurrency.unwrap_or(config.provider_concurrency.div_ceil(2));
    let lookups = config.limits(lookups);
    let settlements = Settlements::start(database.clone(), shutdown);
    let mut watched = Vec::new();
    for (name, Connected { provider, .. }) in providers {
        let limiters = Arc::new(LaneLimiters::new(name.clone(), purchases.permits, Instant::now()));
        let breaker = Breaker::new(name.clone(), limits, database.clone(), Arc::clone(&limiters), metrics.clone());
        let rate = Arc::new(Rate::new(config.provider_rate, instance.to_owned()));
        watched.push(Watched::new(Arc::clone(&breaker), Arc::clone(&rate), Arc::clone(&limiters)));
        let work = Arc::new(ProviderWork {
            calls: Calls {
                name: name.clone(),
                provider,
                rate,
                breaker: Arc::clone(&breaker),
                limiters: Arc::clone(&limiters),
                metrics: metrics.clone(),
            },
            database: database.clone(),
            vault: vault.clone(),
            reporter: Arc::clone(reporter),
            settlements: settlements.clone(),
            settle_delay: config.settle,
            unrecorded: Semaphore::new(UNRECORDED),
            park_after: config.park_after,
            lease: config.lease(),
            shutdown: shutdown.clone(),
        });
        let jobs = Source { stream: JOBS, durable: durable(&name), subject: nats.job_subject(&name) };
        for (buys, source, limits) in [(true, Some(jobs), purchases), (false, None, lookups)] {
            let stage = ProviderStage { work: Arc::clone(&work), buys };
            let lane = lane_states(Arc::clone(&breaker), buys.then(|| Arc::clone(&limiters)));
            let settings = worker::Settings { source, limits, lane, provider: Some(name.clone()) };
            worker::start(Arc::new(stage), nats, settings, shutdown);
        }
        shutdown.spawn("probes", work.probe());
        let (nats, stop) = (nats.clone(), shutdown.clone());
        shutdown.spawn("heartbeat", async move { heartbeat::send(&name, &breaker, &limiters, &nats, &stop).await });
    }
    watched
}

/// The states of a provider's lanes. `limiters` limit purchases; look-ups and collects only wait for the breaker.
fn lane_states(breaker: Arc<Breaker>, limiters: Option<Arc<LaneLimiters>>) -> LaneStates {
    Arc::new(move |lane| match &limiters {
        _ if !breaker.is_closed() => LaneState { permits: 0, accepts_fresh: false },
        Some(limiters) => limiters.state(lane, Instant::now()),
        None => LaneState::UNLIMITED,
    })
}

/// The consumer of a provider's jobs.
fn durable(provider: &str) -> String {
    format!("provisioner-{provider}")
}

/// The providers with a callback token.
fn callers(providers: &Providers) -> Callers {
    let callers = providers.iter().filter_map(|(name, connected)| {
        let token = connected.callback_token.clone()?;
        Some((name.clone(), (token, Arc::clone(&connected.provider))))
    });
    callers.collect()
}
