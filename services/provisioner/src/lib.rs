//! The provisioner buys accepted orders: one purchase per placement, recorded before it is sent. Then it
//! collects the profiles and publishes readiness events.
//!
//! Guarantee: a placement is bought at most once. An attempt is recorded before the provider is called.
//! An attempt with an unknown outcome is looked up by its placement id before the next attempt buys. A
//! placement that cannot be settled is parked.
//!
//! Modules: [`place`] is the stage. [`assign`] pairs units with topups. [`promise`] promises verdict
//! times. [`providers`] holds the adapters. [`calls`] paces and measures their calls. [`breaker`] stops
//! work at a failing provider. [`callbacks`] receives providers' hints.
//!
//! A lease (`redrive_at`) saves work: other processes skip the placement. It does *not* prevent a second
//! purchase.

pub mod assign;
pub mod breaker;
pub mod callbacks;
pub mod calls;
pub mod metrics;
pub mod place;
pub mod promise;
pub mod providers;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use clap::Parser;
use pipeline::{
    Nats, NatsConfig,
    metrics::{Watched, watch as watch_streams},
    streams::Source,
    worker,
};
use reqwest::Url;
use runtime::{
    CommonConfig, Shutdown,
    config::BadSetting,
    health::{self, Readiness},
};
use secrecy::{ExposeSecret, SecretString};
use signing::{SecretKey, Token};
use store::{
    config::{MasterKeyConfig, PoolConfig},
    providers::BreakerLimits,
    schema,
};

use crate::{
    breaker::Breaker,
    callbacks::{Callbacks, Callers},
    calls::Calls,
    metrics::Metrics,
    place::{Answered, Placing, Settlements},
    promise::Promise,
    providers::{
        Provider,
        usimsa::{Limits, Usimsa},
    },
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
    #[arg(long, env = "PROVIDERS", default_value = "sandbox", value_delimiter = ',', value_parser = pipeline::streams::provider_name)]
    pub providers: Vec<String>,
    /// Placements in flight, per provider
    #[arg(long, env = "PROVIDER_CONCURRENCY", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub provider_concurrency: u16,
    /// Timeout of a call to a provider
    #[arg(long, env = "PROVIDER_TIMEOUT", value_parser = runtime::config::positive_duration, default_value = "10s")]
    pub provider_timeout: Duration,
    /// The largest response of a provider, in bytes; the outcome of a larger one is unknown. Allow 1 KiB for
    /// each unit of `MAX_UNITS`
    #[arg(long, env = "PROVIDER_ANSWER_MAX", default_value_t = 1024 * 1024, value_parser = clap::value_parser!(u32).range(16 * 1024..=1024 * 1024 * 1024))]
    pub provider_answer_max: u32,
    /// A purchase may still arrive at the provider this long after its attempt was recorded. Must exceed
    /// twice `PROVIDER_TIMEOUT` plus the delay of the provider's look-up
    #[arg(long, env = "SETTLE", value_parser = runtime::config::duration, default_value = "60s")]
    pub settle: Duration,
    /// How long profiles may be missing, or an outcome unknown, before the placement is parked
    #[arg(long, env = "PARK_AFTER", value_parser = runtime::config::duration, default_value = "30m")]
    pub park_after: Duration,
    /// Calls per second from this process to each provider; 0 means no limit
    #[arg(long, env = "PROVIDER_RATE", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub provider_rate: u32,
    /// Consecutive failed calls after which the breaker opens; a denied call (401, 403) opens it at once
    #[arg(long, env = "BREAKER_FAILURES", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub breaker_failures: u32,
    /// How long a breaker stays open at first, before one placement probes the provider; doubles with each failed probe
    #[arg(long, env = "BREAKER_OPEN", value_parser = runtime::config::duration, default_value = "5s")]
    pub breaker_open: Duration,
    /// Longest time that a breaker stays open, unless an operator opens it
    #[arg(long, env = "BREAKER_OPEN_MOST", value_parser = runtime::config::duration, default_value = "30s")]
    pub breaker_open_most: Duration,
    /// Callbacks in flight at once, on at most four times as many connections; others get 503
    #[arg(long, env = "CALLBACK_CONCURRENCY", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub callback_concurrency: u16,
    /// Callbacks per second that reach PostgreSQL; others get 503
    #[arg(long, env = "CALLBACK_RATE", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..))]
    pub callback_rate: u16,
    #[command(flatten)]
    pub sandbox: SandboxAccount,
    #[command(flatten)]
    pub usimsa: UsimsaAccount,
    #[command(flatten)]
    pub database: PoolConfig,
    #[command(flatten)]
    pub nats: NatsConfig,
    #[command(flatten)]
    pub master_key: MasterKeyConfig,
    #[command(flatten)]
    pub common: CommonConfig,
}

impl AsRef<CommonConfig> for Config {
    fn as_ref(&self) -> &CommonConfig {
        &self.common
    }
}

/// Settings of the sandbox provider
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Provider `sandbox`")]
pub struct SandboxAccount {
    /// Base URL of the sandbox, e.g. `http://sandbox:8090`
    #[arg(long, env = "SANDBOX_URL")]
    pub sandbox_url: Option<Url>,
    /// Access key of our account at the sandbox
    #[arg(long, env = "SANDBOX_ACCESS_KEY", hide_env_values = true)]
    pub sandbox_access_key: Option<String>,
    /// Secret key of our account at the sandbox, Base64
    #[arg(long, env = "SANDBOX_SECRET_KEY", hide_env_values = true)]
    pub sandbox_secret_key: Option<SecretString>,
    /// Token in the callback URL: at least 16 letters, digits, `-` or `_`
    #[arg(long, env = "SANDBOX_CALLBACK_TOKEN", hide_env_values = true)]
    pub sandbox_callback_token: Option<SecretString>,
}

/// Settings of USIMSA
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Provider `usimsa`")]
pub struct UsimsaAccount {
    /// Base URL of USIMSA: scheme and host, without `/api`
    #[arg(long, env = "USIMSA_URL")]
    pub usimsa_url: Option<Url>,
    /// Access key of our account at USIMSA
    #[arg(long, env = "USIMSA_ACCESS_KEY", hide_env_values = true)]
    pub usimsa_access_key: Option<String>,
    /// Secret key of our account at USIMSA, Base64
    #[arg(long, env = "USIMSA_SECRET_KEY", hide_env_values = true)]
    pub usimsa_secret_key: Option<SecretString>,
    /// Token in the callback URL: at least 16 letters, digits, `-` or `_`
    #[arg(long, env = "USIMSA_CALLBACK_TOKEN", hide_env_values = true)]
    pub usimsa_callback_token: Option<SecretString>,
}

/// A configured provider.
struct Configured {
    name: String,
    provider: Arc<dyn Provider>,
    callback_token: Option<Token>,
}

impl Config {
    /// Reads the settings of a provider and creates its adapter.
    fn provider(&self, name: &str) -> anyhow::Result<Configured> {
        let (url, access_key, secret_key, token) = match name {
            "sandbox" => {
                let SandboxAccount {
                    sandbox_url,
                    sandbox_access_key,
                    sandbox_secret_key,
                    sandbox_callback_token,
                } = &self.sandbox;
                (
                    sandbox_url,
                    sandbox_access_key,
                    sandbox_secret_key,
                    sandbox_callback_token,
                )
            }
            "usimsa" => {
                let UsimsaAccount {
                    usimsa_url,
                    usimsa_access_key,
                    usimsa_secret_key,
                    usimsa_callback_token,
                } = &self.usimsa;
                (
                    usimsa_url,
                    usimsa_access_key,
                    usimsa_secret_key,
                    usimsa_callback_token,
                )
            }
            other => {
                return Err(BadSetting::error(format!(
                    "PROVIDERS names {other:?}: known are sandbox and usimsa"
                )));
            }
        };
        let variable = |setting: &str| format!("{}_{setting}", name.to_ascii_uppercase());
        let missing = |setting: &str| {
            BadSetting::error(format!(
                "PROVIDERS names {name}, but {} is not set",
                variable(setting)
            ))
        };
        let url = url.clone().ok_or_else(|| missing("URL"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(BadSetting::error(format!(
                "{} is not an http or https address",
                variable("URL")
            )));
        }
        let access_key = access_key.clone().ok_or_else(|| missing("ACCESS_KEY"))?;
        let secret_key = secret_key.as_ref().ok_or_else(|| missing("SECRET_KEY"))?;
        let secret_key = SecretKey::from_base64(secret_key.expose_secret())
            .map_err(|error| BadSetting::error(format!("{}: {error}", variable("SECRET_KEY"))))?;
        let callback_token = token
            .as_ref()
            .map(|token| Token::parse(token.expose_secret()))
            .transpose()
            .map_err(|error| BadSetting::error(format!("{}: {error}", variable("CALLBACK_TOKEN"))))?;
        Ok(Configured {
            name: name.to_owned(),
            provider: Arc::new(Usimsa::new(&url, access_key, secret_key, self.limits())?),
            callback_token,
        })
    }

    fn limits(&self) -> Limits {
        Limits {
            timeout: self.provider_timeout,
            answer_max: usize::try_from(self.provider_answer_max).unwrap_or(usize::MAX),
        }
    }

    /// The configured providers; a repeated name is an error.
    fn configured(&self) -> anyhow::Result<Vec<Configured>> {
        let mut configured: Vec<Configured> = Vec::new();
        for name in &self.providers {
            if configured.iter().any(|other| other.name == *name) {
                return Err(BadSetting::error(format!("PROVIDERS names {name} twice")));
            }
            configured.push(self.provider(name)?);
        }
        Ok(configured)
    }

    /// The placements in flight per provider. A rate limit lowers them so that no call waits longer than
    /// [`calls::TURNS`].
    fn permits(&self) -> usize {
        let turns = u64::from(self.provider_rate) * calls::TURNS.as_secs();
        let most = if turns == 0 { u64::MAX } else { turns };
        let permits = u64::from(self.provider_concurrency).min(most);
        usize::try_from(permits).unwrap_or(usize::MAX)
    }

    /// The lease of a claimed placement: a purchase and a collect, each with its wait for the rate limit
    /// and its timeout, and time to record the outcome.
    fn lease(&self) -> Duration {
        let turns = if self.provider_rate == 0 {
            Duration::ZERO
        } else {
            calls::TURNS * 2
        };
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
            return Err(BadSetting::error(
                "PARK_AFTER and BREAKER_OPEN must be more than 0",
            ));
        }
        Ok(())
    }
}

/// Runs the stage until the soft stop.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    config.check()?;
    let providers = config.configured()?;
    let database = config.database.open("provisioner").map_err(BadSetting::error)?;
    runtime::metrics::connections({
        let database = database.clone();
        move || database.connections()
    });
    let vault = config.master_key.vault().map_err(BadSetting::error)?;
    let nats = Nats::connect(&config.nats, "provisioner").await?;
    let metrics = Metrics::default();
    let readiness = Readiness::new(&shutdown, &["database"]);
    health::serve(config.admin_listen, readiness.clone()).await?;
    tracing::info!(admin = %config.admin_listen, providers = ?config.providers, "provisioner is starting");

    let callers = callers(&providers);
    if !callers.is_empty() {
        let limits = callbacks::Limits {
            in_flight: config.callback_concurrency.into(),
            rate: config.callback_rate.into(),
        };
        let callbacks = Callbacks::new(callers, database.clone(), metrics.clone(), limits);
        let listener = runtime::listener::bind("LISTEN", config.listen).await?;
        tracing::info!(listen = %config.listen, "listening for callbacks");
        let serving = callbacks::serve(listener, callbacks, shutdown.clone());
        shutdown.spawn("callbacks", serving);
    }

    let stop = shutdown.soft();
    let checked = tokio::select! {
        () = stop.cancelled() => false,
        checked = schema::wait(&database, &vault) => checked.map(|()| true)?,
    };
    if checked {
        let limits = BreakerLimits {
            failures: config.breaker_failures,
            open: config.breaker_open,
            open_most: config.breaker_open_most,
        };
        let permits = config.permits();
        let settlements = Settlements::start(database.clone());
        let mut breakers = Vec::new();
        for Configured { name, provider, .. } in providers {
            let promise = Arc::new(Promise::new(permits));
            let breaker = Breaker::new(name.clone(), limits, database.clone(), metrics.clone());
            breakers.push(Arc::clone(&breaker));
            let source = Source {
                stream: "TOPUP_JOBS",
                durable: durable(&name),
                subject: nats.job_subject(&name),
                ack_wait: config.lease() * 2,
            };
            let stage = Placing {
                provider_name: name.clone(),
                calls: Calls::new(
                    name.clone(),
                    provider,
                    config.provider_rate,
                    Arc::clone(&breaker),
                    metrics.clone(),
                ),
                breaker: Arc::clone(&breaker),
                database: database.clone(),
                vault: vault.clone(),
                nats: nats.clone(),
                settlements: settlements.clone(),
                settle_delay: config.settle,
                park_after: config.park_after,
                lease: config.lease(),
                promise: Arc::clone(&promise),
                answered: Answered::default(),
                metrics: metrics.clone(),
                shutdown: shutdown.clone(),
            };
            worker::start(Arc::new(stage), &nats, source, permits, &shutdown);
            let (nats, stop) = (nats.clone(), shutdown.clone());
            shutdown.spawn("heartbeat", async move {
                promise.broadcast(&name, &breaker, &nats, &stop).await
            });
        }
        shutdown.spawn(
            "breakers",
            breaker::watch(breakers, database.clone(), readiness, shutdown.clone()),
        );
        let watched = vec![Watched {
            stream: "TOPUP_JOBS",
            consumers: config.providers.iter().map(|name| durable(name)).collect(),
        }];
        shutdown.spawn("streams", watch_streams(nats.clone(), watched, shutdown.clone()));
        shutdown.spawn(
            "metrics",
            metrics.watch(config.providers, database, shutdown.clone()),
        );
    }
    stop.cancelled().await;
    let finished = shutdown.finished().await;
    nats.flush().await;
    finished
}

/// The consumer of a provider's jobs.
fn durable(provider: &str) -> String {
    format!("provisioner-{provider}")
}

/// The providers with a callback token.
fn callers(providers: &[Configured]) -> Callers {
    let callers = providers.iter().filter_map(|configured| {
        let token = configured.callback_token.clone()?;
        Some((configured.name.clone(), (token, Arc::clone(&configured.provider))))
    });
    callers.collect()
}
