//! Metrics of every service, and the usual kinds of instruments.

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge, Histogram, Meter},
};

use crate::version;

/// Makes the instruments of one crate.
pub struct Instruments(Meter);

impl Instruments {
    /// `scope` is the name of the crate.
    pub fn of(scope: &'static str) -> Self {
        Self(global::meter(scope))
    }

    pub fn counter(&self, name: &'static str, description: &'static str) -> Counter<u64> {
        self.0.u64_counter(name).with_description(description).build()
    }

    pub fn gauge(&self, name: &'static str, description: &'static str) -> Gauge<u64> {
        self.0.u64_gauge(name).with_description(description).build()
    }

    /// Registers a gauge of the count that `look` returns at each scrape.
    pub(crate) fn observe(
        &self,
        name: &'static str,
        description: &'static str,
        look: impl Fn() -> usize + Send + Sync + 'static,
    ) {
        let gauge = self.0.u64_observable_gauge(name).with_description(description);
        let count = move || u64::try_from(look()).unwrap_or(u64::MAX);
        gauge.with_callback(move |gauge| gauge.observe(count(), &[])).build();
    }

    /// A gauge of seconds.
    pub fn seconds(&self, name: &'static str, description: &'static str) -> Gauge<f64> {
        self.0.f64_gauge(name).with_description(description).with_unit("s").build()
    }

    /// A histogram of durations in seconds, with these bucket bounds.
    pub fn durations(&self, name: &'static str, description: &'static str, bounds: &[f64]) -> Histogram<f64> {
        let histogram = self.0.f64_histogram(name).with_description(description);
        histogram.with_unit("s").with_boundaries(bounds.to_vec()).build()
    }
}

/// Registers the metric with version and commit.
pub(crate) fn build_info() {
    let build =
        [KeyValue::new("version", version::VERSION), KeyValue::new("commit", version::COMMIT.unwrap_or("unknown"))];
    Instruments::of("runtime")
        .gauge("esim.build.info", "Version and commit of the process; always 1")
        .record(1, &build);
}

/// Registers the metric of a connection pool. `look` returns the number of open and of idle connections.
pub fn connections(look: impl Fn() -> (usize, usize) + Send + Sync + 'static) {
    let [idle_state, used_state] = ["idle", "used"].map(|state| [KeyValue::new("state", state)]);
    global::meter("runtime")
        .u64_observable_gauge("db.client.connection.count")
        .with_description("Connections to PostgreSQL, idle ones that are not open yet included")
        .with_callback(move |gauge| {
            let (used, idle) = look();
            for (number, state) in [(idle, &idle_state), (used, &used_state)] {
                gauge.observe(u64::try_from(number).unwrap_or_default(), state);
            }
        })
        .build();
}
