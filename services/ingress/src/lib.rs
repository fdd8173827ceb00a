//! Ingress accepts orders: it authenticates a partner's request, validates it, stores the order and publishes jobs for
//! its placements.
//!
//! Guarantee: a 201 is sent only after the order is committed. A 4xx or 503 is sent only if this request buys nothing,
//! now or later. The request of a 422 "already been taken" repeats an earlier order, which may well be bought. Jobs
//! only save time: provisioners find placements without a job in the database.
//!
//! The folders follow a request:
//!
//! 1. [`http`] accepts the connection, knows when an answer has left, and shapes and records errors.
//! 2. [`access`] authenticates the request and applies the limits of the partner and of this process.
//! 3. [`orders`] parses, stores and answers a create-order request; [`self_service`] answers all other signed requests.
//! 4. [`pages`] serves what needs no key: the documentation and the QR codes.
//!
//! [`metrics`] counts what they do. [`run`] connects the parts and lives until the soft stop.

mod access;
#[cfg(fuzzing)]
#[expect(clippy::expect_used, reason = "a target that cannot start fails")]
pub mod fuzz;
mod http;
mod metrics;
mod orders;
mod pages;
mod self_service;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use axum::Router;
use clap::Parser;
use domain::TopupIds;
use pipeline::{Batcher, Nats, NatsConfig, publish::JobRow, timing::PLACEMENT_WAIT_MAX};
use runtime::{
    CommonConfig, Shutdown,
    config::BadSetting,
    health::{self, Readiness},
};
use signing::qr::Keys;
use store::{
    Database,
    config::{MasterKeyConfig, PoolConfig},
    vault::{Keyring, Vault},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::sync::Semaphore;
use webhooks::{
    config::{GuardConfig, HttpConfig, QrConfig, public_url},
    dns::Dns,
    qr::{QrGate, QrUrls},
};

use crate::{
    access::{admission::Admission, authentication::Authenticator, directory::Directory, limits::LimitsConfig},
    http::{
        observe::Observer,
        routes::{self, App},
        server::Server,
    },
    metrics::Metrics,
    orders::{
        accept::{self, InsertOrders, Orders},
        handshake::Handshake,
        request::OrderSize,
    },
    pages::qr::QrRenderer,
    self_service::{SelfService, openapi},
};

/// The maximum number of lookups of new webhook URLs' hosts in flight.
const RESOLVING: usize = 8;

/// Accepts signed orders from partners
#[derive(Parser, Clone, Debug)]
#[command(name = "ingress", version)]
pub struct Config {
    /// Address of the partner API
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,

    /// Address of `/livez`, `/readyz` and `/metrics`
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:8081")]
    pub admin_listen: SocketAddr,

    /// Brand in the header names `X-<Brand>-Access-Key`, `-Signature` and `-Timestamp`
    #[arg(long, env = "BRAND", default_value = "Service", value_parser = brand)]
    pub brand: String,

    /// Public base URL of ingress, used in `qrcode_img_url`
    #[arg(long, env = "PUBLIC_URL", value_parser = public_url)]
    pub public_url: String,

    /// Maximum wait for the verdict on an order, at most 20s; a rejection that arrives in time becomes a 422, and after
    /// the wait the order gets its 201. With 0 ingress never waits.
    #[arg(long, env = "PLACEMENT_WAIT", default_value = "2s", value_parser = placement_wait)]
    pub placement_wait: Duration,

    /// Maximum number of requests that wait for an undecided order with the same external id; further requests get 503.
    #[arg(long, env = "DUPLICATES_WAITING", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub duplicates_waiting: u16,

    /// Maximum number of items in one order; a larger order gets 422. Large orders need a larger `MAX_BODY`.
    #[arg(long, env = "MAX_ITEMS", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_items: u16,

    /// Maximum number of units in one order; a larger order gets 422.
    #[arg(long, env = "MAX_UNITS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub max_units: u32,

    #[command(flatten)]
    pub qr: QrConfig,

    /// Draw QR pictures without a MAC until this time, such as `2027-01-31T00:00:00Z`, although `QR_KEYS` are set
    /// [default: never]
    #[arg(long, env = "QR_BARE_UNTIL", value_parser = moment)]
    pub qr_bare_until: Option<OffsetDateTime>,

    /// Providers that the provisioners serve; live partners can order only their options
    #[arg(long, env = "PROVIDERS", default_value = "sandbox", value_delimiter = ',', value_parser = pipeline::streams::provider_name)]
    pub providers: Vec<String>,

    #[command(flatten)]
    pub limits: LimitsConfig,

    #[command(flatten)]
    pub guard: GuardConfig,

    #[command(flatten)]
    pub http: HttpConfig,

    #[command(flatten)]
    pub database: PoolConfig,

    #[command(flatten)]
    pub nats: NatsConfig,

    #[command(flatten)]
    pub master_key: MasterKeyConfig,

    #[command(flatten)]
    pub common: CommonConfig,
}

/// See [`pipeline::timing`] for why this has a maximum.
fn placement_wait(text: &str) -> Result<Duration, String> {
    let wait = runtime::config::duration(text)?;
    if wait > PLACEMENT_WAIT_MAX {
        return Err(format!("at most {}s", PLACEMENT_WAIT_MAX.as_secs()));
    }
    Ok(wait)
}

fn moment(text: &str) -> Result<OffsetDateTime, String> {
    OffsetDateTime::parse(text, &Rfc3339).map_err(|_| "it is not an RFC 3339 time such as 2027-01-31T00:00:00Z".into())
}

fn brand(text: &str) -> Result<String, String> {
    let token = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if token { Ok(text.to_owned()) } else { Err("only letters, digits and `-` are allowed".into()) }
}

/// Runs the stage until the soft stop.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    let database = config.database.open("ingress").map_err(BadSetting::error)?;
    runtime::metrics::connections({
        let database = database.clone();
        move || database.connections()
    });
    warn_of_many_connections(&config);
    let parts = Parts {
        vault: config.master_key.vault(&Keyring::ALL).map_err(BadSetting::error)?,
        qr_keys: config.qr.keys().map_err(BadSetting::error)?,
        nats: Nats::connect(&config.nats, "ingress").await?,
        metrics: Metrics::default(),
        database,
    };
    let listener = runtime::listener::bind("LISTEN", config.listen).await?;

    // Ingress is ready without NATS: provisioners find the orders in the database.
    let readiness = Readiness::new(&shutdown, &["database"]);
    health::serve(config.admin_listen, readiness.clone()).await?;
    let directory = Arc::new(Directory::new(parts.database.clone(), parts.vault.clone()));
    shutdown.spawn("directory", Arc::clone(&directory).refresh(readiness, shutdown.clone()));
    let jobs = parts.nats.jobs(&shutdown);
    let providers = config.providers.iter().map(String::as_str).chain([accept::SANDBOX]);
    let handshake = Handshake::new(&parts.nats, providers, &shutdown);
    let mut listening = tokio::spawn(Arc::clone(&handshake).listen());

    let orders = accept_orders(&config, &parts, &directory, Arc::clone(&handshake), jobs, &shutdown);
    let router = router(&config, &parts, directory, orders, &shutdown)?;
    let server = Server::new(&config.limits, router, shutdown.clone());
    tracing::info!(listen = %config.listen, admin = %config.admin_listen, "ingress is listening");
    shutdown.spawn("server", server.serve(listener));

    let stop = shutdown.soft();
    let listened = tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = &mut listening => ended.map_err(anyhow::Error::from).flatten(),
    };
    shutdown.stop();
    // Orders in flight still receive verdicts, and readiness events of the last answered orders are still passed on.
    let finished = shutdown.finished().await;
    if listened.is_ok() {
        handshake.drain().await;
    }
    listening.abort();
    parts.nats.flush().await;
    finished.and(listened)
}

/// What several parts of the process share.
struct Parts {
    database: Database,
    vault: Vault,
    nats: Nats,
    qr_keys: Keys,
    metrics: Metrics,
}

fn warn_of_many_connections(config: &Config) {
    let connections = config.database.database_connections;
    if u32::from(config.limits.self_service_concurrency) > connections {
        tracing::warn!(
            self_service = config.limits.self_service_concurrency,
            connections,
            "SELF_SERVICE_CONCURRENCY is larger than DATABASE_CONNECTIONS: requests of partners other than orders can \
             take all connections from orders"
        );
    }
}

/// Makes what stores and answers orders.
fn accept_orders(
    config: &Config,
    parts: &Parts,
    directory: &Arc<Directory>,
    handshake: Arc<Handshake>,
    jobs: Batcher<JobRow>,
    shutdown: &Shutdown,
) -> Arc<Orders> {
    Arc::new(Orders {
        commit: InsertOrders::start(&parts.database, &jobs, shutdown),
        database: parts.database.clone(),
        directory: Arc::clone(directory),
        handshake,
        jobs,
        topup_ids: TopupIds::new(rand::random()),
        providers: config.providers.clone(),
        placement_wait: config.placement_wait,
        queue_deadline: config.limits.queue_deadline,
        duplicates: Semaphore::new(config.duplicates_waiting.into()),
        metrics: parts.metrics.clone(),
        shutdown: shutdown.clone(),
    })
}

/// Makes what answers self-service requests.
fn self_service(config: &Config, parts: &Parts, shutdown: &Shutdown) -> anyhow::Result<SelfService> {
    let guard = config.guard.clone().guard().http_live(config.http.webhook_http_live);
    Ok(SelfService {
        database: parts.database.clone(),
        connections: Semaphore::new(config.limits.self_service_concurrency.into()),
        vault: parts.vault.clone(),
        dns: Dns::new(guard.clone(), &config.guard.webhook_resolvers)?,
        resolving: Semaphore::new(RESOLVING),
        guard,
        qr: QrUrls::new(config.public_url.clone(), parts.qr_keys.clone()),
        providers: config.providers.clone(),
        stop: shutdown.soft(),
    })
}

/// Makes the router of all requests.
fn router(
    config: &Config,
    parts: &Parts,
    directory: Arc<Directory>,
    orders: Arc<Orders>,
    shutdown: &Shutdown,
) -> anyhow::Result<Router> {
    let limits = &config.limits;
    let app = App {
        authenticator: Authenticator::new(&config.brand, directory, parts.metrics.clone()),
        admission: Admission::new(limits, config.max_units),
        limits: limits.clone(),
        max_order: OrderSize { items: config.max_items.into(), units: config.max_units.into() },
        orders,
        metrics: parts.metrics.clone(),
        self_service: self_service(config, parts, shutdown)?,
    };
    let observer = Observer::new(parts.metrics.clone(), limits.refusals_logged, &config.brand, &config.public_url);
    let gate = QrGate::new(parts.qr_keys.clone(), config.qr_bare_until.map(OffsetDateTime::unix_timestamp));
    let pictures = QrRenderer::new(gate, limits.qr_concurrency, limits.qr_rate, limits.qr_wait);
    let document = openapi::document(&config.brand).context("the OpenAPI document")?;
    let pages = pages::router(&config.brand, &document);
    Ok(routes::router(Arc::new(app), pages, pictures, observer))
}
