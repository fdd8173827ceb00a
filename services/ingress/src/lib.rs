//! Ingress is the stage that partners talk to. It authenticates a create-order request, validates
//! it, stores the order, hands it to the provisioners by publishing jobs for its placements, and
//! answers it. It also answers everything else that partners can ask for: self-service, the
//! documentation and the QR codes.
//!
//! Guarantees:
//!
//! - A 201 is sent only after the order is committed.
//! - A 4xx or 503 is sent only if this request buys nothing, now or later. A 422 "already been
//!   taken" is no exception: it concerns an earlier order with the same external id, and that one
//!   may well be bought.
//! - Jobs only save time. If a job is lost, provisioners find its placement in the database.
//!
//! Because everything that was promised is in PostgreSQL, a process of this stage may die at any
//! time, and any number of replicas can run side by side.
//!
//! The folders follow a request:
//!
//! 1. [`http`] accepts the connection, and notices when an answer has left. It also gives errors
//!    their form in the answer. The [`routes`] lead each request to its handler, and [`observe`]
//!    records it.
//! 2. [`access`] authenticates the request and applies the [`limits`] of the partner and of this
//!    process.
//! 3. [`orders`] parses, stores and answers a create-order request; [`self_service`] answers all
//!    other signed requests.
//! 4. [`pages`] serves what needs no key: the documentation and the QR codes.
//!
//! [`metrics`] counts what they do. [`run`] connects the parts, and returns after the soft stop,
//! which takes no new requests and finishes those in flight ([`runtime::Shutdown`]).

mod access;
#[cfg(debug_assertions)]
#[expect(clippy::expect_used, reason = "a target that cannot start fails")]
pub mod fuzz;
mod http;
mod limits;
mod metrics;
mod observe;
mod orders;
mod pages;
mod routes;
mod self_service;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use axum::Router;
use clap::Parser;
use domain::TopupIds;
use pg::{
    Database,
    config::{MasterKeyConfig, PoolConfig},
};
use pipeline::{Batcher, Nats, NatsConfig, figures, publish::Job, timing::PLACEMENT_WAIT_MAX};
use runtime::{
    CommonConfig, Shutdown,
    config::BadSetting,
    health::{self, Readiness},
};
use signing::qr::QrKeys;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use tokio::{sync::Semaphore, task::JoinHandle};
use vault::{Keyring, Vault};
use webhooks::{
    config::{GuardConfig, HttpConfig, MailConfig, QrConfig, SourceConfig, public_url},
    dns::Dns,
    qr::{QrGate, QrUrls},
};

use crate::{
    access::{
        admission::Admission, authentication::Authenticator, directory::Directory,
        gate::RequestGate,
    },
    http::{refusals::Refusals, server},
    limits::{LimitsConfig, OrderSize, max_body},
    metrics::Metrics,
    observe::Observer,
    orders::{
        accept::{InsertAndAnnounce, OrderService},
        check,
        create::CreateOrder,
        handshake::Handshake,
        mishap::Mishaps,
        repeat::RepeatHeader,
    },
    pages::{
        install::{self, TravellerPages},
        qr::{DRAWING, QrRenderer},
    },
    self_service::{openapi, session::SelfService},
};

/// Maximum number of database connections that self-service requests use at once, so that orders
/// always find a free one. A look-up takes a millisecond, so two serve what one process can. A
/// request that waits 2s for a connection gets a 503 with Retry-After.
const SELF_SERVICE_CONCURRENCY: u16 = 2;
/// Maximum number of log lines per second about refused requests. Further refused requests are not
/// logged, so that a flood of them does not fill the log. The metrics count all of them, and the
/// next line has the number of missing ones in `suppressed`.
const REFUSALS_LOGGED: u32 = 20;

/// The maximum number of host names of new webhook URLs that are resolved at the same time. Further
/// ones wait, so that many new URLs do not overload the name servers.
const RESOLVING: usize = 8;
/// The maximum number of requests that wait for an undecided order with the same external id. While
/// an order waits for its verdict, it may still be refused, and its external id would then be free
/// again. A second request with this id therefore waits until the first order is decided. Each one
/// that waits asks the database a few times per second, which this bounds; further ones get a 503
/// with Retry-After.
const DUPLICATES_WAITING: usize = 64;

/// Accepts signed orders from partners
///
/// Ingress checks and stores orders, answers them, and publishes jobs so that the provisioners buy
/// the eSIMs. It also answers self-service requests and serves the documentation and the QR codes.
/// Replicas can run side by side: each limit below holds for one process, so the replicas' limits
/// add up.
#[derive(Parser, Clone, Debug)]
#[command(name = "ingress", version)]
pub struct Config {
    /// Address of the partner API
    ///
    /// Partners' requests, the documentation and the QR codes are served here over plain HTTP, so a
    /// proxy in front has to terminate TLS. `[::]` listens on all interfaces.
    #[arg(long, env = "LISTEN", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,

    /// Address of `/livez`, `/readyz` and `/metrics`
    ///
    /// These paths need no authentication. Keep the address private, and let only the orchestrator
    /// and the monitoring reach it.
    #[arg(long, env = "ADMIN_LISTEN", default_value = "127.0.0.1:8081")]
    pub admin_listen: SocketAddr,

    /// Brand in the header names `X-<Brand>-Access-Key`, `-Signature` and `-Timestamp`
    ///
    /// The same brand is part of `X-<Brand>-Content-SHA256` and `X-<Brand>-Error`, and of the
    /// header names in the documentation that is served here. It may consist of letters, digits and
    /// `-`. Changing it breaks the programs of all partners, because they send the old names.
    #[arg(long, env = "BRAND", default_value = "Service", value_parser = brand)]
    pub brand: String,

    /// Public base URL of ingress, used in `qrcode_img_url`
    ///
    /// Partners and their customers must be able to reach ingress under this URL. It also begins
    /// the links to the page that explains errors, which each error response has in its `Link`
    /// header. Give the notifiers the same URL, because they send `qrcode_img_url` in webhooks.
    #[arg(long, env = "PUBLIC_URL", value_parser = public_url)]
    pub public_url: String,

    /// Maximum time that a create-order request waits for the provider's verdict on its order
    ///
    /// If the provider rejects the purchase within this time, the order gets a 422. It gets its 201
    /// as soon as it is certain to be carried out, and at the latest after this time. With 0
    /// ingress never waits: each valid order gets its 201 as soon as it is stored, and a later
    /// rejection is not reported by a 422. The same happens while no provisioner can give a verdict
    /// soon, for example because NATS is down. The maximum is 20s, because a webhook whose
    /// readiness event was lost is sent 30s after the eSIM became ready and must not arrive before
    /// the 201.
    #[arg(long, env = "PLACEMENT_WAIT", default_value = "2s", value_parser = placement_wait)]
    pub placement_wait: Duration,

    /// Maximum number of items in one order
    ///
    /// A larger order gets a 422. A request may have 640 bytes for each item, and at least 64 KiB;
    /// a larger one gets a 413.
    #[arg(long, env = "MAX_ITEMS", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_items: u16,

    /// Maximum number of units in one order
    ///
    /// The units of an order are the sum of the `qty` of its items. A larger order gets a 422. Set
    /// it to the same at the provisioners, which bound the response to a purchase by it.
    #[arg(long, env = "MAX_UNITS", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub max_units: u32,

    #[command(flatten)]
    pub qr: QrConfig,

    /// Until this time, URLs of QR pictures need no MAC, despite `QR_KEYS` [default: never]
    ///
    /// With `QR_KEYS`, each URL of a QR picture ends with a MAC, which shows that it comes from us.
    /// Webhooks that were sent before `QR_KEYS` were set contain URLs without a MAC. Until this
    /// time their pictures are still drawn; afterwards such URLs get a 404. The time is in RFC
    /// 3339, such as `2027-01-31T00:00:00Z`.
    #[arg(long, env = "QR_BARE_UNTIL", value_parser = moment)]
    pub qr_bare_until: Option<OffsetDateTime>,

    /// Providers that the provisioners serve, separated by commas
    ///
    /// Live partners can order only options of these providers, because nobody would buy the
    /// others; an order of another option gets a 422. Partners of the sandbox environment can order
    /// every enabled option, because their orders always go to the provider `sandbox`.
    #[arg(long, env = "PROVIDERS", default_value = "sandbox", value_delimiter = ',', value_parser = pipeline::streams::provider_name)]
    pub providers: Vec<String>,

    /// Take the client's address from the last entry of `X-Forwarded-For`
    ///
    /// A key of a partner may be limited to networks, which are compared with this address. Set it
    /// only behind a proxy that appends the address, because a client could choose it otherwise.
    #[arg(long, env = "INGRESS_FORWARDED", default_value_t = false, action = clap::ArgAction::Set)]
    pub ingress_forwarded: bool,

    #[command(flatten)]
    pub limits: LimitsConfig,

    #[command(flatten)]
    pub guard: GuardConfig,

    #[command(flatten)]
    pub http: HttpConfig,

    #[command(flatten)]
    pub mail: MailConfig,

    #[command(flatten)]
    pub source: SourceConfig,

    #[command(flatten)]
    pub database: PoolConfig,

    #[command(flatten)]
    pub nats: NatsConfig,

    #[command(flatten)]
    pub master_key: MasterKeyConfig,

    #[command(flatten)]
    pub common: CommonConfig,
}

/// Parses `PLACEMENT_WAIT`. [`pipeline::timing`] explains why it has a maximum.
fn placement_wait(text: &str) -> Result<Duration, String> {
    let wait = runtime::config::duration(text)?;
    if wait > PLACEMENT_WAIT_MAX {
        return Err(format!(
            "it may be at most {}s, so that no webhook precedes its 201",
            PLACEMENT_WAIT_MAX.as_secs()
        ));
    }
    Ok(wait)
}

fn moment(text: &str) -> Result<OffsetDateTime, String> {
    OffsetDateTime::parse(text, &Rfc3339)
        .map_err(|_| "it is not an RFC 3339 time such as 2027-01-31T00:00:00Z".into())
}

fn brand(text: &str) -> Result<String, String> {
    let token = !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if token {
        Ok(text.to_owned())
    } else {
        Err(
            "it must be one or more letters, digits and `-`, because it is part of header names"
                .into(),
        )
    }
}

impl Config {
    /// Refuses what a start refuses after clap has taken it.
    pub fn check(&self) -> anyhow::Result<()> {
        self.open()?;
        self.nats.check("ingress")
    }

    /// The database and the keys of the settings.
    fn open(&self) -> anyhow::Result<(Database, Vault, QrKeys)> {
        let database = self.database.open("ingress").map_err(BadSetting::error)?;
        let vault = self.master_key.vault(&Keyring::ALL);
        let qr_keys = self.qr.keys().map_err(BadSetting::error)?;
        Ok((database, vault.map_err(BadSetting::error)?, qr_keys))
    }
}

/// Runs the stage until the soft stop, and then until the work in flight is finished.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    let parts = connect(&config).await?;
    let listener = runtime::listener::bind("LISTEN", config.listen).await?;

    // Readiness does not depend on NATS, because ingress accepts orders without it: provisioners
    // find them in the database.
    let readiness = Readiness::new(&shutdown, &["database"]);
    health::serve(config.admin_listen, readiness.clone()).await?;
    let directory = Arc::new(Directory::new(parts.database.clone(), parts.vault.clone()));
    shutdown.spawn(
        "directory",
        Arc::clone(&directory).refresh(parts.nats.clone(), readiness, shutdown.clone()),
    );
    let jobs = parts.nats.jobs(&shutdown);
    let handshake = handshake(&config, &parts, &shutdown);
    let listening = tokio::spawn(Arc::clone(&handshake).listen());

    let orders = accept_orders(
        &config,
        &parts,
        &directory,
        Arc::clone(&handshake),
        jobs,
        &shutdown,
    );
    let refusals = Refusals::start(parts.database.clone(), parts.metrics.clone(), &shutdown);
    let observer = Observer::new(
        parts.metrics.clone(),
        Some(Arc::clone(&refusals)),
        REFUSALS_LOGGED,
        &config.brand,
        &config.public_url,
    );
    let too_many = observer.too_many_connections();
    let router = router(&config, &parts, directory, orders, observer, &shutdown)?;
    let figures = figures::run(
        parts.metrics.figures.clone(),
        parts.database.clone(),
        shutdown.clone(),
    );
    shutdown.spawn("figures", figures);
    tracing::info!(listen = %config.listen, admin = %config.admin_listen, "ingress is listening");
    let limits = config.limits.clone();
    let serving = server::serve(listener, limits, router, too_many, shutdown.clone());
    shutdown.spawn("server", serving);

    let finished = finish(&parts.nats, &handshake, listening, &shutdown).await;
    refusals.finish().await;
    finished
}

/// Opens what several parts of the process share. Invalid keys and URLs end the start here, before
/// anything listens.
async fn connect(config: &Config) -> anyhow::Result<Parts> {
    let (database, vault, qr_keys) = config.open()?;
    runtime::metrics::connections({
        let database = database.clone();
        move || database.connections()
    });
    warn_of_many_connections(config);
    Ok(Parts {
        vault,
        qr_keys,
        nats: Nats::connect(&config.nats, "ingress").await?,
        metrics: Metrics::default(),
        database,
    })
}

/// Makes the receiver of verdicts, readiness events and heartbeats. The sandbox is always among its
/// providers, because the orders of sandbox partners go there whatever `PROVIDERS` says.
fn handshake(config: &Config, parts: &Parts, shutdown: &Shutdown) -> Arc<Handshake> {
    let providers = config
        .providers
        .iter()
        .map(String::as_str)
        .chain([check::SANDBOX]);
    Handshake::new(&parts.nats, providers, shutdown)
}

/// Waits for the soft stop and finishes the work in flight. A subscription of the handshake that
/// ends begins the stop, too: this process could no longer receive the verdicts and readiness
/// events that provisioners still send to it, so it fails and has to be started again.
async fn finish(
    nats: &Nats,
    handshake: &Handshake,
    mut listening: JoinHandle<anyhow::Result<()>>,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let stop = shutdown.soft();
    let listened = tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = &mut listening => ended.map_err(anyhow::Error::from).flatten(),
    };
    shutdown.stop();
    // The handshake still listens while the last requests end, so that the orders in flight receive
    // their verdicts, and while it passes on the readiness events of the last answered orders.
    let finished = shutdown.finished().await;
    if listened.is_ok() {
        handshake.drain().await;
    }
    listening.abort();
    nats.flush().await;
    finished.and(listened)
}

/// What several parts of the process share.
struct Parts {
    database: Database,
    vault: Vault,
    nats: Nats,
    qr_keys: QrKeys,
    metrics: Metrics,
}

/// Self-service must leave database connections free for orders.
fn warn_of_many_connections(config: &Config) {
    let connections = config.database.database_connections;
    if u32::from(SELF_SERVICE_CONCURRENCY) > connections {
        tracing::warn!(
            self_service = SELF_SERVICE_CONCURRENCY,
            connections,
            "DATABASE_CONNECTIONS is smaller than what self-service requests may use at once, so they can occupy \
             all database connections and delay orders; raise it"
        );
    }
}

/// Makes the part that stores and answers orders, and starts their group commit.
fn accept_orders(
    config: &Config,
    parts: &Parts,
    directory: &Arc<Directory>,
    handshake: Arc<Handshake>,
    jobs: Batcher<Job>,
    shutdown: &Shutdown,
) -> Arc<OrderService> {
    Arc::new(OrderService {
        commit: InsertAndAnnounce::start(&parts.database, &jobs, shutdown),
        database: parts.database.clone(),
        directory: Arc::clone(directory),
        handshake,
        jobs,
        topup_ids: TopupIds::new(rand::random()),
        providers: config.providers.clone(),
        placement_wait: config.placement_wait,
        queue_deadline: config.limits.queue_deadline,
        duplicates: Semaphore::new(DUPLICATES_WAITING),
        metrics: parts.metrics.clone(),
        shutdown: shutdown.clone(),
    })
}

/// Makes the part that answers self-service requests.
fn self_service(
    config: &Config,
    parts: &Parts,
    gate: &Arc<RequestGate>,
    orders: &OrderService,
    shutdown: &Shutdown,
) -> anyhow::Result<SelfService> {
    let guard = config
        .guard
        .clone()
        .guard()
        .http_live(config.http.webhook_http_live);
    Ok(SelfService {
        gate: Arc::clone(gate),
        left_answers: Arc::clone(&orders.handshake.left_answers),
        database: parts.database.clone(),
        connections: Semaphore::new(SELF_SERVICE_CONCURRENCY.into()),
        vault: parts.vault.clone(),
        dns: Dns::new(guard.clone(), &config.guard.webhook_resolvers)?,
        resolving: Semaphore::new(RESOLVING),
        guard,
        qr: QrUrls::new(config.public_url.clone(), parts.qr_keys.clone()),
        public_url: config.public_url.clone(),
        providers: config.providers.clone(),
        mail_from: config.mail.sender().map(str::to_owned),
        source_addresses: config.source.source_addresses.texts(),
        stop: shutdown.soft(),
    })
}

/// Makes the router of all requests, with everything that they pass before their handlers.
fn router(
    config: &Config,
    parts: &Parts,
    directory: Arc<Directory>,
    orders: Arc<OrderService>,
    observer: Arc<Observer>,
    shutdown: &Shutdown,
) -> anyhow::Result<Router> {
    let limits = &config.limits;
    let max_body = max_body(config.max_items);
    let gate = Arc::new(RequestGate {
        authenticator: Authenticator::new(&config.brand, directory, config.ingress_forwarded),
        admission: Admission::new(limits, max_body, config.max_units),
        limits: limits.clone(),
        max_body,
        max_order: OrderSize {
            items: config.max_items.into(),
            units: config.max_units.into(),
        },
    });
    let service = self_service(config, parts, &gate, &orders, shutdown)?;
    let create = CreateOrder {
        gate,
        orders,
        mishaps: Mishaps::default(),
        repeat_header: RepeatHeader::of(&config.brand),
        metrics: parts.metrics.clone(),
    };
    let drawn = QrGate::new(
        parts.qr_keys.clone(),
        config.qr_bare_until.map(OffsetDateTime::unix_timestamp),
    );
    let pictures = QrRenderer::new(drawn, DRAWING);
    let document = openapi::document(&config.brand).context("the OpenAPI document")?;
    let sources = config.source.source_addresses.texts();
    let keys = parts.vault.webhook_keys().published();
    let install_pages = TravellerPages::new(parts.database.clone(), parts.vault.clone());
    let pages = pages::router(&config.brand, &document, &sources, keys)
        .merge(install::router(install_pages));
    Ok(routes::router(
        Arc::new(create),
        Arc::new(service),
        pages,
        pictures,
        observer,
    ))
}
