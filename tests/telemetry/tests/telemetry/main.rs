//! What the services tell of themselves, as a collector, Prometheus and whoever reads log files hear
//! it: the real binaries, a real database and a real nats-server.
//!
//! - [`traces`]: one order is one trace; [`tree`] checks it.
//! - [`leaks`]: nothing of it holds a secret.
//! - [`collectors`]: a collector that is away or hangs costs nothing.
//! - [`metrics`]: docs/metrics.md is what there is.
//! - [`settings`]: variables that can't be used.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on panics"
)]

mod collectors;
mod leaks;
mod metrics;
mod secrets;
mod settings;
mod shop;
mod sink;
mod traces;
mod tree;
