//! Traces, logs and metrics of the services, as a collector, Prometheus and log files receive them:
//! the real binaries, a real database and a real nats-server.
//!
//! - [`traces`]: one order is one trace; [`tree`] checks it.
//! - [`leaks`]: no telemetry holds a secret.
//! - [`collectors`]: an unreachable or hanging collector costs nothing.
//! - [`metrics`]: docs/metrics.md lists exactly the existing metrics.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on panics"
)]

mod collectors;
mod leaks;
mod metrics;
mod secrets;
mod sink;
mod traces;
mod tree;
