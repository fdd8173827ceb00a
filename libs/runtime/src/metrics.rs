//! The metrics that every service has.

use opentelemetry::{KeyValue, global};

use crate::version;

/// Which version this process is. Lives as long as the process.
pub(crate) fn build_info() {
    let build = [
        KeyValue::new("version", version::VERSION),
        KeyValue::new("commit", version::COMMIT.unwrap_or("unknown")),
    ];
    global::meter("runtime")
        .u64_gauge("esim.build.info")
        .with_description("Which version runs; always 1")
        .build()
        .record(1, &build);
}

/// Shows a connection pool, of which `look` returns how many connections are open and how many of
/// those are idle.
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
