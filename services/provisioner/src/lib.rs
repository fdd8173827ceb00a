//! The provisioner buys what ingress accepted: one purchase per placement, recorded before it is
//! sent, then collects the profiles and publishes that topups are ready.
//!
//! Its guarantee: a placement is bought at most once. An attempt is recorded before the provider is
//! called; an attempt whose outcome isn't known is looked up by our key before anything is bought
//! again, and what can't be settled is parked.
//!
//! Its cast: [`place`] is the stage, [`assign`] pairs units with topups, [`pace`] promises verdicts,
//! [`providers`] are the adapters, [`account`] paces and watches their calls, [`breaker`] keeps work
//! away from a provider that fails, [`callbacks`] takes providers' hints. A lease (`redrive_at`) only
//! keeps two processes from working on one placement at once; it is *not* what prevents a second
//! purchase.

pub mod account;
pub mod assign;
pub mod breaker;
pub mod callbacks;
pub mod metrics;
pub mod pace;
pub mod place;
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
    account::Account,
    breaker::Breaker,
    callbacks::{Callbacks, Callers},
    metrics::Metrics,
    pace::Pace,
    place::{Answered, Placing, Settlements},
    providers::{
        Provider,
        usimsa::{Limits, Usimsa},
    },
};

/// Buys accepted orders from eSIM providers
#[derive(Parser, Clone, Debug)]
#[command(name = "provisioner", version)]
pub struct Config {
    /// Where providers call back: `POST /callbacks/<provider>/<token>`. Served if a provider has a token
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:8082")]
    pub listen: SocketAddr,
    /// Where `/livez`, `/readyz` and `/metrics` are served
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:8083")]
    pub admin_listen: SocketAddr,
    /// The providers to buy from: `sandbox`, `usimsa`
    #[arg(long, env = "PROVIDERS", default_value = "sandbox", value_delimiter = ',', value_parser = pipeline::streams::provider_name)]
    pub providers: Vec<String>,
    /// Placements under way at once, for each provider
    #[arg(long, env = "PROVIDER_CONCURRENCY", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub provider_concurrency: u16,
    /// The deadline of a call to a provider
    #[arg(long, env = "PROVIDER_TIMEOUT", value_parser = runtime::config::positive_duration, default_value = "10s")]
    pub provider_timeout: Duration,
    /// The largest answer of a provider, in bytes; the outcome of a larger one is unknown. Allow 1 KiB for
    /// each unit of `MAX_UNITS`
    #[arg(long, env = "PROVIDER_ANSWER_MAX", default_value_t = 1024 * 1024, value_parser = clap::value_parser!(u32).range(16 * 1024..=1024 * 1024 * 1024))]
    pub provider_answer_max: u32,
    /// How long after its attempt was recorded a purchase may still arrive at the provider. More than
    /// twice `PROVIDER_TIMEOUT`, plus what the provider's own look-up lags behind
    #[arg(long, env = "SETTLE", value_parser = runtime::config::duration, default_value = "60s")]
    pub settle: Duration,
    /// Profiles that don't come for so long are parked, and so are purchases of which nobody knows for
    /// so long whether they were made
    #[arg(long, env = "PARK_AFTER", value_parser = runtime::config::duration, default_value = "30m")]
    pub park_after: Duration,
    /// Calls per second, of this process to each provider; 0 is without a limit
    #[arg(long, env = "PROVIDER_RATE", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=100_000))]
    pub provider_rate: u32,
    /// So many calls in a row that fail open a provider's breaker; being denied opens it at once
    #[arg(long, env = "BREAKER_FAILURES", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub breaker_failures: u32,
    /// How long a breaker stays open at first, before one placement is tried; each time twice as long
    #[arg(long, env = "BREAKER_OPEN", value_parser = runtime::config::duration, default_value = "5s")]
    pub breaker_open: Duration,
    /// The longest time for which a breaker opens by itself
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

/// The account at the sandbox provider
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Provider `sandbox`")]
pub struct SandboxAccount {
    /// Where it is, e.g. `http://sandbox:8090`
    #[arg(long, env = "SANDBOX_URL")]
    pub sandbox_url: Option<Url>,
    /// Its access key
    #[arg(long, env = "SANDBOX_ACCESS_KEY", hide_env_values = true)]
    pub sandbox_access_key: Option<String>,
    /// Its secret key, Base64
    #[arg(long, env = "SANDBOX_SECRET_KEY", hide_env_values = true)]
    pub sandbox_secret_key: Option<SecretString>,
    /// The token in the URL that it calls back: at least 16 letters, digits, `-` or `_`
    #[arg(long, env = "SANDBOX_CALLBACK_TOKEN", hide_env_values = true)]
    pub sandbox_callback_token: Option<SecretString>,
}

/// The account at USIMSA
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Provider `usimsa`")]
pub struct UsimsaAccount {
    /// Where it is: scheme and host, without `/api`
    #[arg(long, env = "USIMSA_URL")]
    pub usimsa_url: Option<Url>,
    /// Its access key
    #[arg(long, env = "USIMSA_ACCESS_KEY", hide_env_values = true)]
    pub usimsa_access_key: Option<String>,
    /// Its secret key, Base64
    #[arg(long, env = "USIMSA_SECRET_KEY", hide_env_values = true)]
    pub usimsa_secret_key: Option<SecretString>,
    /// The token in the URL that it calls back: at least 16 letters, digits, `-` or `_`
    #[arg(long, env = "USIMSA_CALLBACK_TOKEN", hide_env_values = true)]
    pub usimsa_callback_token: Option<SecretString>,
}

/// A provider that is configured.
struct Configured {
    name: String,
    provider: Arc<dyn Provider>,
    callback_token: Option<Token>,
}

impl Config {
    /// The adapter of a provider, with its account.
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

    /// The providers, each once.
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

    /// How many placements of a provider are under way at once: with a rate limit no more than get
    /// their turn soon enough.
    fn permits(&self) -> usize {
        let turns = u64::from(self.provider_rate) * account::TURNS.as_secs();
        let most = if turns == 0 { u64::MAX } else { turns };
        let permits = u64::from(self.provider_concurrency).min(most);
        usize::try_from(permits).unwrap_or(usize::MAX)
    }

    /// How long a claimed placement is left to this process: a place and a collect, each with its turn
    /// and its deadline, and room to record what they brought.
    fn lease(&self) -> Duration {
        let turns = if self.provider_rate == 0 {
            Duration::ZERO
        } else {
            account::TURNS * 2
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

/// Buys until the soft stop.
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
        tracing::info!(listen = %config.listen, "providers may call back");
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
            let pace = Arc::new(Pace::new(permits));
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
                account: Account::new(
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
                settle: config.settle,
                park_after: config.park_after,
                lease: config.lease(),
                pace: Arc::clone(&pace),
                answered: Answered::default(),
                metrics: metrics.clone(),
                shutdown: shutdown.clone(),
            };
            worker::start(Arc::new(stage), &nats, source, permits, &shutdown);
            let (nats, stop) = (nats.clone(), shutdown.clone());
            shutdown.spawn("heartbeat", async move {
                pace.broadcast(&name, &breaker, &nats, &stop).await
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

/// The providers that may call back.
fn callers(providers: &[Configured]) -> Callers {
    let callers = providers.iter().filter_map(|configured| {
        let token = configured.callback_token.clone()?;
        Some((configured.name.clone(), (token, Arc::clone(&configured.provider))))
    });
    callers.collect()
}
