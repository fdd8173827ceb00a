//! Crate `pipeline` on a real nats-server, with streams of its own for each test.
//!
//! - [`streams`], [`publishing`]: what is made, and what becomes of messages.
//! - [`handshake`]: verdicts and releases.
//! - [`worker`], [`stopping`], [`recovery`]: the loop of a stage, its end, and what it must survive.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper that fails fails its test"
)]

mod bench;
mod handshake;
mod publishing;
mod recovery;
mod stopping;
mod streams;
mod worker;
