//! The metrics of the provisioner, and the reads of the database behind them. All instruments of
//! this service are made here, so that one file shows what it measures; docs/metrics.md describes
//! each.

use std::time::Duration;

use domain::esim_change::EsimChangeKind;
use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge},
};
use pg::{
    Database,
    server::{ServerState, server},
};
use pipeline::{figures::ProcessFigures, metrics::DueRows};
use runtime::{
    Shutdown,
    metrics::{Durations, Instruments},
    outage,
};
use store::{
    figures::Measure,
    providers::{self, BreakerState, ProviderBacklog},
};

use crate::providers::Balance;

/// How often the backlogs and the state of the server are read.
const PERIOD: Duration = Duration::from_secs(15);

/// Histogram bounds of the time from an order to its profiles, in seconds.
const READY_BOUNDS: [f64; 15] = [
    0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 300.0, 900.0, 1_800.0, 7_200.0, 21_600.0,
    86_400.0,
];

/// The instruments. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    /// The same counts, for operators who ask PostgreSQL.
    pub figures: ProcessFigures,
    balance: Gauge<f64>,
    breaker: Gauge<u64>,
    lanes_held_back: Gauge<u64>,
    calls: Counter<u64>,
    call_duration: Durations,
    parked: Gauge<u64>,
    oldest_overdue: Gauge<f64>,
    due: DueRows,
    server: ServerGauges,
    callbacks: Counter<u64>,
    topups: Counter<u64>,
    rerouted: Counter<u64>,
    give_backs: Counter<u64>,
    give_backs_parked: Gauge<u64>,
    extensions: Counter<u64>,
    extensions_parked: Gauge<u64>,
    ready_duration: Durations,
}

impl Default for Metrics {
    fn default() -> Self {
        let make = Instruments::of("provisioner");
        Self {
            figures: ProcessFigures::default(),
            balance: global::meter("provisioner")
                .f64_gauge("esim.provider.balance")
                .with_description("What is left in our account at a provider; read every 5 min")
                .build(),
            breaker: make.gauge(
                "esim.provider.breaker",
                "State of a provider's breaker: 0 closed, 1 open, 2 half open",
            ),
            lanes_held_back: make.gauge(
                "esim.provider.lanes.held_back",
                "Lanes of a provider whose purchases this process holds back, because they fail",
            ),
            calls: make.counter(
                "esim.provider.calls",
                "Calls to a provider, by call and outcome",
            ),
            call_duration: make.durations(
                "esim.provider.call.duration",
                "Duration of a call to a provider",
                &[0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0],
            ),
            parked: make.gauge(
                "esim.placements.parked",
                "Parked placements; read every 15 s",
            ),
            oldest_overdue: make.seconds(
                "esim.due.oldest",
                "How long the oldest due row has been due; read every 15 s",
            ),
            due: DueRows::new("provisioner"),
            server: ServerGauges::default(),
            callbacks: make.counter(
                "esim.provider.callbacks",
                "Callbacks from providers, by outcome",
            ),
            topups: make.counter(
                "esim.topups",
                "Units that are ready, failed or parked, by outcome",
            ),
            rerouted: make.counter(
                "esim.placements.rerouted",
                "Placements that one provider rejected and that went to the next one",
            ),
            give_backs: make.counter("esim.give_backs", "Give-backs that have ended, by outcome"),
            give_backs_parked: make.gauge(
                "esim.give_backs.parked",
                "Parked give-backs; read every 15 s",
            ),
            extensions: make.counter(
                "esim.extensions",
                "Extensions of eSIMs that have ended, by outcome",
            ),
            extensions_parked: make.gauge(
                "esim.extensions.parked",
                "Extensions of eSIMs that wait for an operator; read every 15 s",
            ),
            ready_duration: make.durations(
                "esim.topup.ready.duration",
                "Time from an accepted order to the stored profile of a unit",
                &READY_BOUNDS,
            ),
        }
    }
}

/// The state of the PostgreSQL server. Every replica shows the same.
#[derive(Clone)]
struct ServerGauges {
    size: Gauge<u64>,
    xid_age: Gauge<u64>,
    longest_transaction: Gauge<f64>,
    unarchived: Gauge<f64>,
    standbys: Gauge<u64>,
    standby_lag: Gauge<f64>,
}

impl Default for ServerGauges {
    fn default() -> Self {
        let make = Instruments::of("provisioner");
        Self {
            size: global::meter("provisioner")
                .u64_gauge("esim.database.size")
                .with_unit("By")
                .with_description("Size of the database")
                .build(),
            xid_age: make.gauge(
                "esim.database.xid_age",
                "Transactions since the oldest unfrozen row; writes stop near 2 billion",
            ),
            longest_transaction: make.seconds(
                "esim.database.longest_transaction",
                "Age of the oldest open transaction of a client",
            ),
            unarchived: make.seconds(
                "esim.database.archive_age",
                "How long WAL has not been archived because archiving fails",
            ),
            standbys: make.gauge("esim.database.standbys", "Connected standbys"),
            standby_lag: make.seconds(
                "esim.database.standby_lag",
                "Largest replay lag of a connected standby",
            ),
        }
    }
}

impl ServerGauges {
    fn show(&self, server: &ServerState) {
        self.size.record(server.size, &[]);
        self.xid_age.record(server.xid_age, &[]);
        self.longest_transaction
            .record(server.longest_transaction.as_secs_f64(), &[]);
        self.unarchived.record(server.unarchived.as_secs_f64(), &[]);
        self.standbys.record(server.standbys, &[]);
        self.standby_lag
            .record(server.standby_lag.as_secs_f64(), &[]);
    }
}

fn provider(name: &str) -> KeyValue {
    KeyValue::new("provider", name.to_owned())
}

impl Metrics {
    pub fn balance(&self, name: &str, balance: &Balance) {
        self.balance.record(balance.amount, &[provider(name)]);
    }

    pub fn breaker(&self, name: &str, state: BreakerState) {
        let value = match state {
            BreakerState::Closed => 0,
            BreakerState::Open => 1,
            BreakerState::HalfOpen => 2,
        };
        self.breaker.record(value, &[provider(name)]);
    }

    pub fn lanes_held_back(&self, name: &str, lanes: usize) {
        self.lanes_held_back
            .record(u64::try_from(lanes).unwrap_or(u64::MAX), &[provider(name)]);
    }

    /// Counts a call. One without a usable response has `failed`.
    pub fn call(
        &self,
        name: &str,
        call: &'static str,
        outcome: &'static str,
        took: Duration,
        failed: bool,
    ) {
        self.figures.took(Measure::Call, name, took, failed);
        let asked = [provider(name), KeyValue::new("call", call)];
        self.call_duration.record(took.as_secs_f64(), &asked);
        let [name, call] = asked;
        self.calls
            .add(1, &[name, call, KeyValue::new("outcome", outcome)]);
    }

    pub fn callback(&self, name: &str, outcome: &'static str) {
        self.callbacks
            .add(1, &[provider(name), KeyValue::new("outcome", outcome)]);
    }

    /// Counts units that failed for good. If ingress may still refuse their order, it is not
    /// `decided` what they are: ingress counts them as refused or failed, once it has answered.
    pub fn failed(&self, name: &str, units: usize, decided: bool) {
        if decided {
            self.figures.count(Measure::Failed, name, units);
        }
        self.topups(name, "failed", units);
    }

    /// Counts units that were parked.
    pub fn parked(&self, name: &str, units: usize) {
        self.figures.count(Measure::Parked, name, units);
        self.topups(name, "parked", units);
    }

    /// Counts a purchase that the provider has confirmed, and notes the time since its order.
    pub fn bought(&self, name: &str, since_order: Duration) {
        self.figures.took(Measure::Bought, name, since_order, false);
    }

    fn topups(&self, name: &str, outcome: &'static str, units: usize) {
        if units > 0 {
            let units = u64::try_from(units).unwrap_or(u64::MAX);
            self.topups
                .add(units, &[provider(name), KeyValue::new("outcome", outcome)]);
        }
    }

    /// Counts a placement that the provider `from` rejected and that went to the provider `to`.
    pub fn rerouted(&self, from: &str, to: &str) {
        let to = KeyValue::new("to", to.to_owned());
        self.rerouted.add(1, &[provider(from), to]);
    }

    /// Counts a change to a delivered eSIM that has ended.
    pub fn esim_change(&self, kind: EsimChangeKind, name: &str, outcome: &'static str) {
        let ended = match kind {
            EsimChangeKind::GiveBack => &self.give_backs,
            EsimChangeKind::Extension => &self.extensions,
        };
        ended.add(1, &[provider(name), KeyValue::new("outcome", outcome)]);
    }

    /// Counts units whose profiles were stored, and records the time since their order was
    /// accepted.
    pub fn ready(&self, name: &str, units: usize, since_order: Duration) {
        self.topups(name, "ready", units);
        for _ in 0..units {
            self.figures.took(Measure::Ready, name, since_order, false);
            self.ready_duration
                .record(since_order.as_secs_f64(), &[provider(name)]);
        }
    }

    fn backlog(&self, backlog: &ProviderBacklog) {
        let name = &backlog.provider;
        self.parked.record(backlog.parked, &[provider(name)]);
        self.give_backs_parked
            .record(backlog.give_backs_parked, &[provider(name)]);
        self.extensions_parked
            .record(backlog.extensions_parked, &[provider(name)]);
        self.due.show(Some(name.clone()), backlog.due);
        let of = [provider(name), KeyValue::new("stage", "provisioner")];
        self.oldest_overdue
            .record(backlog.oldest_overdue.as_secs_f64(), &of);
    }

    /// Reads the backlogs of the providers, and the state of the PostgreSQL server, until the soft
    /// stop. Providers that only other processes serve are included, because a provider that nobody
    /// serves would otherwise go unnoticed.
    pub async fn watch(
        self,
        served: Vec<String>,
        database: Database,
        shutdown: Shutdown,
    ) -> anyhow::Result<()> {
        let mut ticks = shutdown.ticks(PERIOD);
        while ticks.next().await {
            match database
                .run(async |connection| providers::backlogs(connection, &served).await)
                .await
            {
                Ok(backlogs) => backlogs.iter().for_each(|backlog| self.backlog(backlog)),
                Err(error) => {
                    if let Some(others) = outage::DATABASE.line(error.is_transient()) {
                        tracing::error!(
                            %error,
                            others,
                            "cannot read the backlogs of the providers; their gauges keep the last \
                             values"
                        );
                    }
                }
            }
            match database.run(server).await {
                Ok(server) => self.server.show(&server),
                Err(error) => {
                    if let Some(others) = outage::DATABASE.line(error.is_transient()) {
                        tracing::error!(
                            %error,
                            others,
                            "cannot read the state of PostgreSQL; its gauges keep the last values"
                        );
                    }
                }
            }
        }
        Ok(())
    }
}
