//! The metrics that every service has, and constructors of the usual kinds of instruments. The
//! names, units and labels of all metrics are in docs/metrics.md.

mod exemplars;
pub(crate) mod exposition;

use std::sync::LazyLock;

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge, Meter},
};
use opentelemetry_semantic_conventions::metric::DB_CLIENT_CONNECTION_COUNT;

pub use self::exemplars::Durations;
use crate::version;

/// Makes the instruments of one crate.
pub struct Instruments(Meter);

impl Instruments {
    /// `scope` is the name of the crate that records the metrics.
    pub fn of(scope: &'static str) -> Self {
        Self(global::meter(scope))
    }

    pub fn counter(&self, name: &'static str, description: &'static str) -> Counter<u64> {
        self.0
            .u64_counter(name)
            .with_description(description)
            .build()
    }

    pub fn gauge(&self, name: &'static str, description: &'static str) -> Gauge<u64> {
        self.0.u64_gauge(name).with_description(description).build()
    }

    /// Registers a gauge. At each scrape it shows the number that `look` returns.
    pub(crate) fn observe(
        &self,
        name: &'static str,
        description: &'static str,
        look: impl Fn() -> usize + Send + Sync + 'static,
    ) {
        let gauge = self
            .0
            .u64_observable_gauge(name)
            .with_description(description);
        let count = move || u64::try_from(look()).unwrap_or(u64::MAX);
        gauge
            .with_callback(move |gauge| gauge.observe(count(), &[]))
            .build();
    }

    /// Makes a gauge of seconds.
    pub fn seconds(&self, name: &'static str, description: &'static str) -> Gauge<f64> {
        self.0
            .f64_gauge(name)
            .with_description(description)
            .with_unit("s")
            .build()
    }

    /// Makes a histogram of durations. The bounds of its buckets are in seconds.
    pub fn durations(
        &self,
        name: &'static str,
        description: &'static str,
        bounds: &[f64],
    ) -> Durations {
        let histogram = self.0.f64_histogram(name).with_description(description);
        let histogram = histogram.with_unit("s").with_boundaries(bounds.to_vec());
        Durations::new(histogram.build(), name, bounds)
    }
}

/// Registers the metric whose labels are the version and the commit of the program.
pub(crate) fn build_info() {
    let build = [
        KeyValue::new("version", version::VERSION),
        KeyValue::new("commit", version::COMMIT.unwrap_or("unknown")),
    ];
    Instruments::of("runtime")
        .gauge(
            "esim.build.info",
            "Version and commit of the process; always 1",
        )
        .record(1, &build);
}

/// Counts a transaction of the database by its name and by how it ended.
pub fn transaction(name: &'static str, outcome: &'static str) {
    static TRANSACTIONS: LazyLock<Counter<u64>> = LazyLock::new(|| {
        Instruments::of("pg").counter(
            "esim.transactions",
            "Transactions of several statements, by their end",
        )
    });
    let labels = [
        KeyValue::new("transaction", name),
        KeyValue::new("outcome", outcome),
    ];
    TRANSACTIONS.add(1, &labels);
}

/// Registers the metric of a pool of database connections. `look` returns two numbers: the
/// connections in use, and the idle ones, which include those that may still be opened.
pub fn connections(look: impl Fn() -> (usize, usize) + Send + Sync + 'static) {
    let [idle_state, used_state] = ["idle", "used"].map(|state| [KeyValue::new("state", state)]);
    global::meter("runtime")
        .u64_observable_gauge(DB_CLIENT_CONNECTION_COUNT)
        .with_description("Connections to PostgreSQL, idle ones that are not open yet included")
        .with_callback(move |gauge| {
            let (used, idle) = look();
            for (number, state) in [(idle, &idle_state), (used, &used_state)] {
                gauge.observe(u64::try_from(number).unwrap_or_default(), state);
            }
        })
        .build();
}
