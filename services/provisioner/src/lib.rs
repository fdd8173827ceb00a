//! The provisioner is the stage that buys. It claims the placements of accepted orders, buys each
//! from its provider in one purchase, collects the profiles, and announces the units that became
//! ready, so that the notifier can send their webhooks.
//!
//! Guarantee: a placement is bought at most once. An attempt is recorded in PostgreSQL before the
//! provider is called, and only the process that recorded it may send it. If the outcome of an
//! attempt is unknown, the provider is asked about the placement id, and another attempt buys only
//! after the provider has said twice that it has no such purchase. A placement that cannot be
//! settled in this way is parked for an operator.
//!
//! The guarantee rests on the recorded attempt alone. A lease makes other processes skip a
//! placement that is being worked on, which saves work, but it does *not* prevent a second
//! purchase. NATS is not needed either: without jobs, a placement is found in PostgreSQL after its
//! first lease.
//!
//! The modules, in the order in which a placement meets them:
//!
//! - [`purchases`] is what the workers of [`pipeline::worker`] run: it buys, looks up, collects,
//!   and records outcomes. [`assign`] decides which unit of the provider belongs to which topup.
//! - [`calls`] makes and measures the calls to a provider, at the pace that [`rate`] allows.
//!   [`providers`] holds one adapter per provider.
//! - [`limiter`] and [`breaker`] hold work back: the first for a lane that fails, the second for a
//!   provider that fails. Once a second [`watch`] reads from PostgreSQL what all replicas share
//!   about lanes and providers, and writes there which lanes this process holds back.
//! - [`reporter`] sends verdicts and readiness events. [`heartbeat`] tells ingress that this
//!   process can buy from a provider now; ingress waits for verdicts only while it hears that.
//! - [`after_delivery`] answers what partners ask about delivered eSIMs, and gives eSIMs back.
//! - [`polls`] asks for the use of eSIMs whose partners want to hear of it.
//! - [`balance`] reads what is left in our account at a provider, for the metric.
//! - [`callbacks`] receives the calls by which providers report that profiles are ready.
//!
//! [`run`] connects these parts, starts their tasks (`start`), and returns after the soft stop,
//! which takes no new work and finishes the work in flight ([`runtime::Shutdown`]).

pub mod after_delivery;
pub mod assign;
pub mod balance;
pub mod breaker;
pub mod callbacks;
pub mod calls;
mod config;
mod esim_change;
mod extensions;
pub mod heartbeat;
pub mod limiter;
pub mod metrics;
pub mod polls;
pub mod proof;
pub mod providers;
pub mod purchases;
pub mod rate;
pub mod reporter;
mod start;
pub mod watch;

use std::sync::Arc;

use pipeline::{Nats, figures, pulse};
use runtime::{
    Shutdown,
    health::{self, Readiness},
};
use uuid::Uuid;

pub use crate::config::Config;
use crate::{
    callbacks::{Callbacks, Callers},
    config::ConfiguredProvider,
    metrics::Metrics,
    providers::ProviderConnection,
    reporter::Reporter,
    start::Parts,
};

/// Maximum number of callbacks in flight. Further ones get 503 with Retry-After. At most four times
/// as many connections are open; a further one takes the place of an idle one. A lost callback does
/// no harm, because profiles are also asked for on a schedule.
const CALLBACK_CONCURRENCY: usize = 64;

/// Runs the stage until the soft stop, and then until the work in flight is finished.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    config.check_together()?;
    let instance = Uuid::now_v7().simple().to_string();
    let providers = config.connect(&instance)?;
    let parts = connect(&config).await?;
    let readiness = Readiness::new(&shutdown, &["database"]);
    health::serve(config.admin_listen, readiness.clone()).await?;
    tracing::info!(
        admin = %config.admin_listen,
        providers = ?config.providers,
        "provisioner is starting"
    );
    receive_callbacks(&config, &providers, &parts, &shutdown).await?;

    // Buying begins once the schema and the keys have been checked, or never if the stop comes
    // first.
    let stop = shutdown.soft();
    let checked = stop
        .run_until_cancelled(accounts::start::wait(&parts.database, &parts.vault))
        .await;
    let checked = checked.transpose()?.is_some();
    let reporter = Arc::new(Reporter::start(&parts.nats, &shutdown));
    if checked {
        let watched = start::providers(&config, providers, &reporter, &parts, &shutdown);
        start::watches(&config, watched, instance, &parts, &shutdown);
        let pulse = pulse::run(
            parts.database.clone(),
            parts.nats.clone(),
            readiness,
            shutdown.clone(),
        );
        shutdown.spawn("pulse", pulse);
        start::sweep(&parts.database, &shutdown);
        let figures = figures::run(
            parts.metrics.figures.clone(),
            parts.database.clone(),
            shutdown.clone(),
        );
        shutdown.spawn("figures", figures);
        let backlogs =
            parts
                .metrics
                .clone()
                .watch(config.providers, parts.database.clone(), shutdown.clone());
        shutdown.spawn("metrics", backlogs);
    }

    stop.cancelled().await;
    let finished = shutdown.finished().await;
    parts.nats.flush().await;
    finished
}

/// Opens what several parts of the process share. Invalid keys and URLs end the start here, before
/// anything listens.
async fn connect(config: &Config) -> anyhow::Result<Parts> {
    let (database, vault) = config.open()?;
    let pool = database.clone();
    runtime::metrics::connections(move || pool.connections());
    Ok(Parts {
        vault,
        nats: Nats::connect(&config.nats, "provisioner").await?,
        metrics: Metrics::default(),
        database,
    })
}

/// Listens for callbacks, if any provider calls back. It does not wait for the schema: a callback
/// that cannot be recorded gets 503, and its profiles are collected on schedule.
async fn receive_callbacks(
    config: &Config,
    providers: &[ConfiguredProvider],
    parts: &Parts,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let callers = callers(providers);
    if callers.is_empty() {
        return Ok(());
    }
    let callbacks = Callbacks::new(
        callers,
        parts.database.clone(),
        parts.metrics.clone(),
        CALLBACK_CONCURRENCY,
        config.callback_rate,
    );
    let listener = runtime::listener::bind("LISTEN", config.listen).await?;
    tracing::info!(listen = %config.listen, "listening for callbacks");
    shutdown.spawn(
        "callbacks",
        callbacks::serve(listener, callbacks, shutdown.clone()),
    );
    Ok(())
}

/// The providers with a callback token.
fn callers(providers: &[ConfiguredProvider]) -> Callers {
    let callers = providers.iter().filter_map(|configured| {
        let ProviderConnection {
            provider,
            callback_token,
        } = &configured.connected;
        let token = callback_token.clone()?;
        Some((configured.name.clone(), (token, Arc::clone(provider))))
    });
    callers.collect()
}
