//! The provisioner against the real sandbox provider, PostgreSQL and NATS: what each answer of a
//! provider leads to, in the database and in the ledger of what was really bought.
//!
//! - [`answers`]: the classes of the failure taxonomy.
//! - [`breaker`]: what becomes of a provider's work while it fails.
//! - [`callbacks`]: hints, and who may give them.
//! - [`operator`]: what is parked, and how it is settled.
//! - [`unreadable`]: answers and outcomes that cannot be used.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper that fails fails its test"
)]

mod answers;
mod breaker;
mod callbacks;
mod operator;
mod support;
mod unreadable;
