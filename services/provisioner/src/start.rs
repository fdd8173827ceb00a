//! Starts the tasks of the stage: for each provider its three workers, its probes and its
//! heartbeat, and for the whole process the refreshing of what all replicas share, and the sweep.
//!
//! [`crate::run`] calls these functions once the schema and the keys have been checked, because
//! from then on placements are bought.

use std::{sync::Arc, time::Instant};

use pg::Database;
use pipeline::{
    Lookout, Nats,
    metrics::{WatchedStream, watch as watch_streams},
    streams::{JOBS, MessageSource},
    timing::PLACEMENT_FIRST_LEASE,
    worker::{self, LaneState, LaneStates, PermitLimits},
};
use runtime::Shutdown;
use store::{
    placements::{self, Activity},
    providers::{AfterDelivery, BreakerLimits},
    work::WorkKind,
};
use tokio::sync::Semaphore;
use vault::Vault;

use crate::{
    after_delivery::EsimRequestHandler,
    balance,
    breaker::Breaker,
    calls::Calls,
    config::{Config, ConfiguredProvider},
    heartbeat,
    limiter::LaneLimiters,
    metrics::Metrics,
    polls,
    proof::Proof,
    providers::ProviderConnection,
    purchases::{PlacementHandler, ProviderContext, Settlements, UNRECORDED},
    rate::Rate,
    reporter::Reporter,
    watch::{self, WatchedProvider},
};

/// Maximum number of requests about delivered eSIMs in flight, per provider and process. These are
/// questions about the data use of an eSIM, and give-backs. Further ones wait. Those of one partner
/// use at most half of this number. The limit is low, because they share `PROVIDER_RATE` with
/// purchases, which come first.
const ESIM_REQUESTS: u16 = 4;

/// What several parts of the process share.
pub(crate) struct Parts {
    pub(crate) database: Database,
    pub(crate) vault: Vault,
    pub(crate) nats: Nats,
    pub(crate) metrics: Metrics,
}

/// Starts the work for every provider. Returns what [`watch`] has to refresh for each.
pub(crate) fn providers(
    config: &Config,
    providers: Vec<ConfiguredProvider>,
    reporter: &Arc<Reporter>,
    parts: &Parts,
    shutdown: &Shutdown,
) -> Vec<WatchedProvider> {
    let settlements = Settlements::start(parts.database.clone(), shutdown);
    let lookout = Lookout::start(parts.database.clone(), shutdown);
    let mut all = Vec::new();
    for ConfiguredProvider {
        name,
        connected: ProviderConnection { provider, .. },
        rate,
    } in providers
    {
        let capabilities = provider.capabilities();
        let lease = config.lease(provider.purchase_timeout(config.provider_timeout));
        let can = AfterDelivery {
            usage: capabilities.usage,
            // Whether an eSIM may be given back is read from what the provider shows of it.
            give_back: capabilities.usage && capabilities.give_back.is_some(),
            suspend: capabilities.usage && capabilities.suspend,
        };
        let mut watched = watched(config, (&name, rate, can), parts);
        let proof = Arc::new(Proof::new(config.accounts.digest(&name)));
        watched.proof = capabilities.purchase_key.then(|| Arc::clone(&proof));
        let calls = Calls {
            name,
            provider,
            rate: Arc::clone(&watched.rate),
            breaker: Arc::clone(&watched.breaker),
            limiters: Arc::clone(&watched.limiters),
            metrics: parts.metrics.clone(),
            timeout: config.provider_timeout,
        };
        all.push(watched);
        let context = Arc::new(ProviderContext {
            calls,
            proof,
            database: parts.database.clone(),
            vault: parts.vault.clone(),
            reporter: Arc::clone(reporter),
            settlements: settlements.clone(),
            settling_delay: config.settle,
            unrecorded: Semaphore::new(UNRECORDED),
            first_collects: Semaphore::new(limits_of_look_ups(config).permits),
            park_after: config.park_after,
            low_data: config.low_data_percent.clone(),
            polls_per_hour: config.polls_per_hour,
            lease,
            shutdown: shutdown.clone(),
        });
        start_workers(config, &context, &parts.nats, &lookout, shutdown);
    }
    all
}

/// Creates what holds the calls to a provider back: the limits of its lanes, its breaker and its
/// rate limit.
fn watched(
    config: &Config,
    (name, rate, can): (&str, Arc<Rate>, AfterDelivery),
    parts: &Parts,
) -> WatchedProvider {
    let limiters = Arc::new(LaneLimiters::new(
        name.to_owned(),
        config.limits(config.provider_concurrency).permits,
        Instant::now(),
    ));
    let breaker = Breaker::new(
        name.to_owned(),
        BreakerLimits {
            failures: config.breaker_failures,
            open: config.breaker_open_most / 6,
            open_most: config.breaker_open_most,
        },
        parts.database.clone(),
        Arc::clone(&limiters),
        parts.metrics.clone(),
    );
    WatchedProvider::new(breaker, rate, limiters, can)
}

/// Starts the three workers of a provider, its probes and its heartbeat. Look-ups and requests
/// about eSIMs have workers of their own, because they must go on while purchases use all of their
/// permits, and the other way round.
fn start_workers(
    config: &Config,
    context: &Arc<ProviderContext>,
    nats: &Nats,
    lookout: &Lookout,
    shutdown: &Shutdown,
) {
    let name = context.calls.name.clone();
    let breaker = Arc::clone(&context.calls.breaker);
    let limiters = Arc::clone(&context.calls.limiters);
    let purchases = config.limits(config.provider_concurrency);
    let lookups = limits_of_look_ups(config);
    let jobs = MessageSource {
        stream: JOBS,
        durable: durable(&name),
        subject: nats.job_subject(&name),
    };
    for (activity, source, limits) in [
        (Activity::Purchases, Some(jobs), purchases),
        (Activity::LookUps, None, lookups),
    ] {
        let handler = PlacementHandler {
            context: Arc::clone(context),
            activity,
        };
        // The limits of lanes concern purchases only, because look-ups buy nothing.
        let purchase_limiters = (activity == Activity::Purchases).then(|| Arc::clone(&limiters));
        let lane = lane_states(Arc::clone(&breaker), purchase_limiters);
        let settings = worker::WorkerSettings {
            source,
            limits,
            lane,
            provider: Some(name.clone()),
            wake: Some(lookout.watch(activity.kinds(), &name)),
        };
        worker::start(Arc::new(handler), nats, settings, shutdown);
    }
    shutdown.spawn("probes", Arc::clone(context).probe());
    let requests = config.limits(ESIM_REQUESTS);
    let settings = worker::WorkerSettings {
        source: None,
        // A partner that asks about many eSIMs does not keep the others waiting.
        limits: PermitLimits {
            per_owner: requests.permits.div_ceil(2),
            ..requests
        },
        lane: lane_states(Arc::clone(&breaker), None),
        provider: Some(name.clone()),
        wake: Some(lookout.watch(&WorkKind::REQUESTS, &name)),
    };
    let handler = EsimRequestHandler {
        context: Arc::clone(context),
    };
    worker::start(Arc::new(handler), nats, settings, shutdown);
    if context.calls.provider.capabilities().balance {
        let watching = balance::watch(Arc::clone(context), shutdown.clone());
        shutdown.spawn("balance", watching);
    }
    if context.calls.provider.capabilities().usage && context.polls_per_hour > 0 {
        shutdown.spawn("polls", polls::run(Arc::clone(context), shutdown.clone()));
    }
    let nats = nats.clone();
    let stop = shutdown.clone();
    shutdown.spawn("heartbeat", async move {
        heartbeat::send(&name, &breaker, &limiters, &nats, &stop).await
    });
}

/// Starts the tasks that refresh what is known of the providers, and that measure the streams.
pub(crate) fn watches(
    config: &Config,
    watched: Vec<WatchedProvider>,
    instance: String,
    parts: &Parts,
    shutdown: &Shutdown,
) {
    let watching = watch::watch(
        watched,
        instance,
        parts.database.clone(),
        parts.metrics.clone(),
        shutdown.clone(),
    );
    shutdown.spawn("providers", watching);
    let streams = vec![WatchedStream {
        stream: JOBS,
        consumers: config.providers.iter().map(|name| durable(name)).collect(),
    }];
    shutdown.spawn(
        "streams",
        watch_streams(parts.nats.clone(), streams, shutdown.clone()),
    );
}

/// Starts the sweep, which makes placements due whose first lease ended without an outcome.
pub(crate) fn sweep(database: &Database, shutdown: &Shutdown) {
    pipeline::sweep::start::<PlacementHandler>(database, shutdown, |connection| {
        Box::pin(placements::sweep(connection, PLACEMENT_FIRST_LEASE))
    });
}

/// How many look-ups, and how many first collects, are in flight.
fn limits_of_look_ups(config: &Config) -> PermitLimits {
    config.limits(config.provider_concurrency.div_ceil(2))
}

/// Tells the worker what a lane of the provider may do now. `limiters` limit the purchases of each
/// lane. Look-ups and collects have none; like purchases, they wait while the breaker is not
/// closed.
fn lane_states(breaker: Arc<Breaker>, limiters: Option<Arc<LaneLimiters>>) -> LaneStates {
    Arc::new(move |lane| match &limiters {
        _ if !breaker.is_closed() => LaneState {
            permits: 0,
            is_shared: true,
            accepts_fresh: false,
        },
        Some(limiters) => limiters.state(lane, Instant::now()),
        None => LaneState::UNLIMITED,
    })
}

/// The durable consumer of a provider's jobs, which all replicas share.
fn durable(provider: &str) -> String {
    format!("provisioner-{provider}")
}
