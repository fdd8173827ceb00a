//! Metrics of every service.

use opentelemetry::{KeyValue, global};

use crate::version;

/// Registers the metric with version and commit.
pub(crate) fn build_info() {
    let build = [
        KeyValue::new("version", version::VERSION),
        KeyValue::new("commit", version::COMMIT.unwrap_or("unknown")),
    ];
    global::meter("runtime")
        .u64_gauge("esim.build.info")
        .with_description("Version and commit of the process; always 1")
        .build()
        .record(1, &build);
}

/// Registers the metric of a connection pool. `look` returns the number of open and of idle connections.
pub fn connections(look: impl Fn() -> (u32, usize) + Send + Sync + 'static) {
    let state = |state: &'static str| [KeyValue::new("state", state)];
    let (idle_state, used_state) = (state("idle"), state("used"));
    global::meter("runtime")
        .u64_observable_gauge("db.client.connection.count")
        .with_description("Open connections to PostgreSQL")
        .with_callback(move |gauge| {
            let (open, idle) = look();
            let idle = u64::try_from(idle).unwrap_or_default();
            gauge.observe(idle, &idle_state);
            gauge.observe(u64::from(open).saturating_sub(idle), &used_state);
        })
        .build();
}
