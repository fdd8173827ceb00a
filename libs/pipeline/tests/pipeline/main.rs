//! Tests of crate `pipeline` on a real nats-server, with separate streams for each test.
//!
//! - [`streams`], [`publishing`]: created streams, and published messages.
//! - [`handshake`]: verdicts and releases.
//! - [`worker`], [`stopping`], [`recovery`]: the loop of a stage, its stop, and its recovery.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a helper that fails fails its test")]

mod access;
mod bench;
mod handshake;
mod publishing;
mod recovery;
mod stopping;
mod streams;
mod worker;
