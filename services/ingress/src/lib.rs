//! Ingress takes orders: it authenticates a partner's request, checks it, stores the order and
//! publishes a job for each of its placements.
//!
//! Its guarantee: a 201 is sent only after the order is committed, a 4xx only when nothing was
//! bought and nothing will be. What it publishes only makes things happen sooner: provisioners take
//! up what was never published.
//!
//! Its cast: [`server`] writes answers and knows when they have left, [`auth`] says who asks,
//! [`request`] what is asked, [`directory`] which partners and options there are, [`orders`] sees an
//! order through, [`handshake`] takes provisioners' verdicts and releases what they hold back, [`qr`] draws pictures,
//! [`observe`] and [`metrics`] show how it goes.

pub mod auth;
pub mod directory;
pub mod error;
pub mod handshake;
pub mod metrics;
pub mod observe;
pub mod orders;
pub mod qr;
pub mod request;
pub mod routes;
pub mod server;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use clap::Parser;
use pipeline::{Nats, NatsConfig};
use runtime::{
    CommonConfig, Shutdown,
    config::BadSetting,
    health::{self, Readiness},
    http::Requests,
};
use store::config::{MasterKeyConfig, PoolConfig};
use uuid::Uuid;

use crate::{
    auth::HeaderNames, directory::Directory, handshake::Handshake, metrics::Metrics, orders::Orders,
    request::Limits,
};

/// Takes signed orders from partners
#[derive(Parser, Clone, Debug)]
#[command(name = "ingress", version)]
pub struct Config {
    /// Where partners are served
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Where `/livez`, `/readyz` and `/metrics` are served
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:8081")]
    pub admin_listen: SocketAddr,
    /// The word in the header names `X-<Brand>-Access-Key`, `-Signature` and `-Timestamp`
    #[arg(long, env = "BRAND", default_value = "Service", value_parser = brand)]
    pub brand: String,
    /// How long an answer waits for the provider's verdict, so that a refusal can be told; 0 never waits
    #[arg(long, env = "PLACEMENT_WAIT", default_value = "2s", value_parser = runtime::config::duration)]
    pub placement_wait: Duration,
    /// The longest time an order waits in the queue to be stored; then it is dropped and answered with 503
    #[arg(long, env = "QUEUE_DEADLINE", default_value = "2s", value_parser = runtime::config::positive_duration)]
    pub queue_deadline: Duration,
    /// The most requests that wait for the fate of another one with the same external id, because that one
    /// may still be refused
    #[arg(long, env = "DUPLICATES_WAITING", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub duplicates_waiting: u16,
    /// The most items of an order
    #[arg(long, env = "MAX_ITEMS", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_items: u16,
    /// The most units of an order
    #[arg(long, env = "MAX_UNITS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub max_units: u32,
    /// The providers that provisioners are configured for; options of others don't exist for live partners
    #[arg(long, env = "PROVIDERS", default_value = "sandbox", value_delimiter = ',', value_parser = pipeline::streams::provider_name)]
    pub providers: Vec<String>,
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

fn brand(text: &str) -> Result<String, String> {
    let token = !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if token {
        Ok(text.to_owned())
    } else {
        Err("only letters, digits and `-` are allowed".into())
    }
}

/// What requests are handled with.
pub struct App {
    headers: HeaderNames,
    limits: Limits,
    directory: Arc<Directory>,
    orders: Arc<Orders>,
    metrics: Metrics,
    requests: Requests,
}

/// Serves partners until the soft stop.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    let database = config.database.open("ingress").map_err(BadSetting::error)?;
    runtime::metrics::connections({
        let database = database.clone();
        move || database.connections()
    });
    let vault = config.master_key.vault().map_err(BadSetting::error)?;
    let nats = Nats::connect(&config.nats, "ingress").await?;
    let listener = runtime::listener::bind("LISTEN", config.listen).await?;

    // Ready without NATS: orders are accepted and flow when it is back.
    let readiness = Readiness::new(&shutdown, &["database"]);
    health::serve(config.admin_listen, readiness.clone()).await?;
    let directory = Arc::new(Directory::new(database.clone(), vault));
    shutdown.spawn(
        "directory",
        Arc::clone(&directory).refresh(readiness, shutdown.clone()),
    );
    let instance = Uuid::now_v7().simple().to_string();
    let jobs = nats.jobs(&instance, &shutdown);
    let providers = config
        .providers
        .iter()
        .map(String::as_str)
        .chain([orders::SANDBOX]);
    let handshake = Handshake::new(&nats, instance, providers, &shutdown);
    let mut listening = tokio::spawn(Arc::clone(&handshake).listen());

    let metrics = Metrics::default();
    let orders = Orders::new(
        database,
        Arc::clone(&directory),
        handshake,
        jobs,
        rand::random(),
        config.providers,
        config.placement_wait,
        config.queue_deadline,
        config.duplicates_waiting,
        metrics.clone(),
        shutdown.clone(),
    );
    let app = App {
        headers: HeaderNames::new(&config.brand),
        limits: Limits {
            items: config.max_items.into(),
            units: config.max_units.into(),
        },
        directory,
        orders: Arc::new(orders),
        metrics,
        requests: Requests::new(&routes::ROUTES),
    };
    tracing::info!(listen = %config.listen, admin = %config.admin_listen, "ingress is listening");
    shutdown.spawn(
        "server",
        server::serve(listener, routes::router(Arc::new(app)), shutdown.clone()),
    );

    let stop = shutdown.soft();
    let listened = tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = &mut listening => ended.map_err(anyhow::Error::from).flatten(),
    };
    shutdown.stop();
    // What is in flight still listens for its verdicts.
    let finished = shutdown.finished().await;
    listening.abort();
    nats.flush().await;
    finished.and(listened)
}
