//! Ingress accepts orders: it authenticates a partner's request, validates it, stores the order and
//! publishes a job for each placement.
//!
//! Guarantee: a 201 is sent only after the order is committed. A 4xx or 503 is sent only if nothing is
//! bought, now or later. Jobs only save time: provisioners find placements without a job in the database.
//!
//! The folders follow a request: [`http`] serves connections and names the errors. [`access`] authenticates requests
//! and limits their load. [`orders`] stores and answers orders; [`self_service`] answers all other signed requests.
//! [`pages`] serves the documentation and the QR codes. [`metrics`] counts.

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
use clap::Parser;
use domain::TopupIds;
use pipeline::{Nats, NatsConfig, timing::PLACEMENT_WAIT_MAX};
use runtime::{
    CommonConfig, Shutdown,
    config::BadSetting,
    health::{self, Readiness},
};
use store::{
    config::{MasterKeyConfig, PoolConfig},
    vault::Keyring,
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::sync::Semaphore;
use webhooks::{
    config::{GuardConfig, HttpConfig, QrConfig, public_url},
    dns::Dns,
    qr::{QrGate, QrUrls},
};

use crate::{
    access::{
        admission::Admission, authentication::Authenticator, directory::Directory, limits::LimitsConfig,
        replays::Replays,
    },
    http::{
        observe::Observer,
        routes::{self, App},
        server::Server,
    },
    metrics::Metrics,
    orders::{
        accept::{self, InsertOrders, Orders},
        handshake::Handshake,
        request::Largest,
    },
    pages::qr::Drawing,
    self_service::{Desk, Turns, openapi},
};

/// The most lookups of new webhook URLs' hosts in flight.
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
    /// Longest wait for the verdict on an order, at most 20s; a rejection that arrives in time becomes a 422. 0 never
    /// waits
    #[arg(long, env = "PLACEMENT_WAIT", default_value = "2s", value_parser = placement_wait)]
    pub placement_wait: Duration,
    /// Most requests that wait for an undecided order with the same external id; more get a 503
    #[arg(long, env = "DUPLICATES_WAITING", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub duplicates_waiting: u16,
    /// Most items in one order; large orders need a larger `MAX_BODY`
    #[arg(long, env = "MAX_ITEMS", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_items: u16,
    /// Most units in one order
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
    let vault = config.master_key.vault(&Keyring::ALL).map_err(BadSetting::error)?;
    let qr_keys = config.qr.keys().map_err(BadSetting::error)?;
    let connections = config.database.database_connections;
    if u32::from(config.limits.self_service_concurrency) > connections {
        tracing::warn!(
            turns = config.limits.self_service_concurrency,
            connections,
            "SELF_SERVICE_CONCURRENCY is larger than DATABASE_CONNECTIONS: requests of partners other than orders can \
             take all connections from orders"
        );
    }
    let nats = Nats::connect(&config.nats, "ingress").await?;
    let listener = runtime::listener::bind("LISTEN", config.listen).await?;

    // Ingress is ready without NATS: redrive picks the orders up.
    let readiness = Readiness::new(&shutdown, &["database"]);
    health::serve(config.admin_listen, readiness.clone()).await?;
    let directory = Arc::new(Directory::new(database.clone(), vault.clone()));
    shutdown.spawn("directory", Arc::clone(&directory).refresh(readiness, shutdown.clone()));
    let jobs = nats.jobs(&shutdown);
    let providers = config.providers.iter().map(String::as_str).chain([accept::SANDBOX]);
    let handshake = Handshake::new(&nats, providers, &shutdown);
    let mut listening = tokio::spawn(Arc::clone(&handshake).listen());

    let metrics = Metrics::default();
    let limits = config.limits.clone();
    let replays = Replays::new(limits.replays_remembered, limits.body_timeout);
    let name_servers = config.guard.webhook_resolvers.clone();
    let guard = config.guard.guard().http_live(config.http.webhook_http_live);
    let app = App {
        authenticator: Authenticator::new(&config.brand, Arc::clone(&directory), replays, metrics.clone()),
        admission: Admission::new(&limits, config.max_units),
        largest: Largest { items: config.max_items.into(), units: config.max_units.into() },
        desk: Desk {
            database: database.clone(),
            turns: Turns::new(limits.self_service_concurrency.into()),
            vault,
            dns: Dns::new(guard.clone(), &name_servers)?,
            resolving: Semaphore::new(RESOLVING),
            guard,
            qr: QrUrls::new(config.public_url.clone(), qr_keys.clone()),
            providers: config.providers.clone(),
            stop: shutdown.soft(),
        },
        orders: Arc::new(Orders {
            commit: InsertOrders::start(&database, &jobs, &shutdown),
            database,
            directory,
            handshake: Arc::clone(&handshake),
            jobs,
            topup_ids: TopupIds::new(rand::random()),
            providers: config.providers,
            placement_wait: config.placement_wait,
            queue_deadline: limits.queue_deadline,
            duplicates: Semaphore::new(config.duplicates_waiting.into()),
            metrics: metrics.clone(),
            shutdown: shutdown.clone(),
        }),
        metrics: metrics.clone(),
        limits: limits.clone(),
    };
    let observer = Observer::new(metrics, limits.refusals_logged, &config.brand, &config.public_url);
    let gate = QrGate::new(qr_keys, config.qr_bare_until.map(OffsetDateTime::unix_timestamp));
    let drawing = Drawing::new(gate, limits.qr_concurrency, limits.qr_rate, limits.qr_wait);
    let document = openapi::document(&config.brand).context("the OpenAPI document")?;
    let pages = pages::router(&config.brand, &document);
    let router = routes::router(Arc::new(app), pages, drawing, Arc::clone(&observer));
    let server = Server::new(&limits, router, observer, shutdown.clone());
    tracing::info!(listen = %config.listen, admin = %config.admin_listen, "ingress is listening");
    shutdown.spawn("server", server.serve(listener));

    let stop = shutdown.soft();
    let listened = tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = &mut listening => ended.map_err(anyhow::Error::from).flatten(),
    };
    shutdown.stop();
    // Orders in flight still receive verdicts, and readiness of the last answered orders is still passed on.
    let finished = shutdown.finished().await;
    if listened.is_ok() {
        handshake.drain().await;
    }
    listening.abort();
    nats.flush().await;
    finished.and(listened)
}
