//! The provisioner buys what ingress accepted: one purchase per placement, recorded before it is
//! sent, then collects the profiles and publishes that topups are ready.
//!
//! Its guarantee: a placement is bought at most once. An attempt is recorded before the provider is
//! called; an attempt whose outcome isn't known is looked up by our key before anything is bought
//! again, and what can't be settled is parked.
//!
//! Its cast: [`place`] is the stage, [`assign`] pairs units with topups, [`pace`] promises verdicts,
//! [`providers`] are the adapters. A lease (`redrive_at`) only keeps two processes from working on
//! one placement at once; it is *not* what prevents a second purchase.

pub mod assign;
pub mod pace;
pub mod place;
pub mod providers;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use clap::Parser;
use pipeline::{Nats, NatsConfig, streams::Source, worker};
use reqwest::Url;
use runtime::{
    CommonConfig, Shutdown,
    config::BadSetting,
    health::{self, Readiness},
};
use secrecy::{ExposeSecret, SecretString};
use signing::SecretKey;
use store::{
    config::{DatabaseConfig, MasterKeyConfig},
    schema,
};

use crate::{
    pace::Pace,
    place::{Answered, Placing, Settlements},
    providers::usimsa::Usimsa,
};

/// Buys accepted orders from eSIM providers
#[derive(Parser, Clone, Debug)]
#[command(name = "provisioner", version)]
pub struct Config {
    /// Where `/livez` and `/readyz` are served
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:8083")]
    pub admin_listen: SocketAddr,
    /// The providers to buy from: `sandbox`, `usimsa`
    #[arg(long, env = "PROVIDERS", default_value = "sandbox", value_delimiter = ',')]
    pub providers: Vec<String>,
    /// Placements under way at once, for each provider
    #[arg(long, env = "PROVIDER_CONCURRENCY", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub provider_concurrency: u16,
    /// The deadline of a call to a provider
    #[arg(long, env = "PROVIDER_TIMEOUT", value_parser = runtime::config::duration, default_value = "10s")]
    pub provider_timeout: Duration,
    /// How long after its attempt was recorded a purchase may still arrive at the provider. More than
    /// twice `PROVIDER_TIMEOUT`, plus what the provider's own look-up lags behind
    #[arg(long, env = "SETTLE", value_parser = runtime::config::duration, default_value = "60s")]
    pub settle: Duration,
    #[command(flatten)]
    pub sandbox: SandboxAccount,
    #[command(flatten)]
    pub usimsa: UsimsaAccount,
    #[command(flatten)]
    pub database: DatabaseConfig,
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
    #[arg(long, env = "SANDBOX_ACCESS_KEY")]
    pub sandbox_access_key: Option<String>,
    /// Its secret key, Base64
    #[arg(long, env = "SANDBOX_SECRET_KEY", hide_env_values = true)]
    pub sandbox_secret_key: Option<SecretString>,
}

/// The account at USIMSA
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Provider `usimsa`")]
pub struct UsimsaAccount {
    /// Where it is: scheme and host, without `/api`
    #[arg(long, env = "USIMSA_URL")]
    pub usimsa_url: Option<Url>,
    /// Its access key
    #[arg(long, env = "USIMSA_ACCESS_KEY")]
    pub usimsa_access_key: Option<String>,
    /// Its secret key, Base64
    #[arg(long, env = "USIMSA_SECRET_KEY", hide_env_values = true)]
    pub usimsa_secret_key: Option<SecretString>,
}

impl Config {
    /// The adapter of a provider that is configured.
    fn provider(&self, name: &str) -> anyhow::Result<Usimsa> {
        let (url, access_key, secret_key) = match name {
            "sandbox" => {
                let SandboxAccount {
                    sandbox_url,
                    sandbox_access_key,
                    sandbox_secret_key,
                } = &self.sandbox;
                (sandbox_url, sandbox_access_key, sandbox_secret_key)
            }
            "usimsa" => {
                let UsimsaAccount {
                    usimsa_url,
                    usimsa_access_key,
                    usimsa_secret_key,
                } = &self.usimsa;
                (usimsa_url, usimsa_access_key, usimsa_secret_key)
            }
            other => {
                return Err(BadSetting::error(format!(
                    "PROVIDERS names {other:?}: known are sandbox and usimsa"
                )));
            }
        };
        let missing = |setting: &str| {
            let variable = format!("{}_{setting}", name.to_ascii_uppercase());
            BadSetting::error(format!("PROVIDERS names {name}, but {variable} is not set"))
        };
        let url = url.clone().ok_or_else(|| missing("URL"))?;
        if !matches!(url.scheme(), "http" | "https") {
            let variable = format!("{}_URL", name.to_ascii_uppercase());
            return Err(BadSetting::error(format!(
                "{variable} is not an http or https address"
            )));
        }
        let access_key = access_key.clone().ok_or_else(|| missing("ACCESS_KEY"))?;
        let secret_key = secret_key.as_ref().ok_or_else(|| missing("SECRET_KEY"))?;
        let secret_key = SecretKey::from_base64(secret_key.expose_secret()).map_err(|error| {
            BadSetting::error(format!("{}_SECRET_KEY: {error}", name.to_ascii_uppercase()))
        })?;
        Usimsa::new(url, access_key, secret_key, self.provider_timeout)
    }

    fn check(&self) -> anyhow::Result<()> {
        if self.settle <= self.provider_timeout * 2 {
            return Err(BadSetting::error(format!(
                "SETTLE ({:?}) must be more than twice PROVIDER_TIMEOUT ({:?})",
                self.settle, self.provider_timeout
            )));
        }
        Ok(())
    }
}

/// Buys until the soft stop.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    config.check()?;
    let providers: Vec<(String, Usimsa)> = config
        .providers
        .iter()
        .map(|name| Ok((name.clone(), config.provider(name)?)))
        .collect::<anyhow::Result<_>>()?;
    let pool = config.database.pool("provisioner").map_err(BadSetting::error)?;
    let vault = config.master_key.vault().map_err(BadSetting::error)?;
    let nats = Nats::connect(&config.nats, "provisioner").await?;
    let readiness = Readiness::new(&shutdown, &["database"]);
    health::serve(config.admin_listen, readiness.clone()).await?;
    tracing::info!(admin = %config.admin_listen, providers = ?config.providers, "provisioner is starting");

    let stop = shutdown.soft();
    let checked = tokio::select! {
        () = stop.cancelled() => false,
        checked = schema::wait(&pool) => checked.map(|()| true)?,
    };
    if checked {
        readiness.well("database");
        // A place and a collect, each with its deadline, and room to record what they brought.
        let lease = config.provider_timeout * 2 + Duration::from_secs(10);
        let permits = usize::from(config.provider_concurrency);
        let settlements = Settlements::start(pool.clone());
        for (name, provider) in providers {
            let pace = Arc::new(Pace::new(permits));
            let source = Source {
                stream: "TOPUP_JOBS",
                durable: format!("provisioner-{name}"),
                subject: nats.job_subject(&name),
                ack_wait: lease * 2,
            };
            let stage = Placing {
                provider_name: name.clone(),
                provider: Box::new(provider),
                pool: pool.clone(),
                vault: vault.clone(),
                nats: nats.clone(),
                settlements: settlements.clone(),
                settle: config.settle,
                lease,
                pace: Arc::clone(&pace),
                answered: Answered::default(),
                shutdown: shutdown.clone(),
            };
            worker::start(Arc::new(stage), &nats, source, permits, &shutdown);
            let (nats, stop) = (nats.clone(), shutdown.clone());
            shutdown.spawn(
                "heartbeat",
                async move { pace.broadcast(&name, &nats, &stop).await },
            );
        }
    }
    stop.cancelled().await;
    let finished = shutdown.finished().await;
    nats.flush().await;
    finished
}
