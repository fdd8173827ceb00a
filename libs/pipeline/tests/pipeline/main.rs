//! Tests of crate `pipeline` on a real nats-server, with separate streams for each test.
//!
//! - [`streams`], [`publishing`]: created streams, and published messages.
//! - [`reports`]: from provisioners to ingress.
//! - [`worker`], [`stopping`], [`recovery`]: the loop of a stage, its stop, and its recovery.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper that fails fails its test"
)]

mod access;
mod bench;
mod publishing;
mod recovery;
mod reports;
mod stopping;
mod streams;
mod worker;
