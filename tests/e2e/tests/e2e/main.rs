//! The black-box suite: the real binaries on a real `PostgreSQL` and a real nats-server, seen from
//! where partners, operators and accidents see them.
//!
//! - [`spec`]: the specification as tables, one row per rule.
//! - [`webhook`], [`ordering`], [`duplicates`], [`shell`]: what a partner relies on.
//! - [`resilience`], [`stop`]: the promise at full size: hang-ups, a wiped JetStream, two providers, restarts.
//! - [`recover`]: an old dump is restored.
//! - [`rotation`]: every secret is replaced while orders go on.
//! - [`faults`], [`database_away`], [`settings`]: what must not matter, and what must be refused.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on panics"
)]

mod database_away;
mod duplicates;
mod faults;
mod forwarder;
mod ordering;
mod raw;
mod recover;
mod resilience;
mod rotation;
mod settings;
mod shell;
mod shop;
mod spec;
mod stop;
mod webhook;
