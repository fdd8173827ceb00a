//! The black-box suite: the real binaries on a real `PostgreSQL` and a real nats-server, seen from
//! outside by partners and operators, with faults.
//!
//! - [`spec`]: the specification as tables, one row per rule.
//! - [`webhook`], [`ordering`], [`duplicates`], [`repeats`], [`shell`]: what partners rely on.
//! - [`partner`], [`account`], [`events`]: what they look up and change themselves, and what they
//!   are notified of; [`notices`]: also on another channel. [`pages`]: what they read.
//! - [`redeliveries`]: missed webhooks are listed, and sent again by one request.
//! - [`refused`]: refused requests are kept for operators.
//! - [`resilience`], [`stop`]: the promise under load: hang-ups, a wiped JetStream, two providers,
//!   restarts.
//! - [`esim_partner`]: the partners' command line, and listening.
//! - [`examples`]: the examples and numbers of the partner guide.
//! - [`archive`]: finished orders leave the system.
//! - [`recover`]: an old dump is restored. [`upgrade`]: newer schemas below older programs.
//! - [`rotation`]: every secret is replaced while orders go on.
//! - [`routing`]: options that several providers sell.
//! - [`catalogue`]: products, prices and purchases of a provider are compared with ours, and
//!   partners filter what they are offered.
//! - [`faults`], [`database_away`]: processes, servers and connections fail.
//! - [`flushed`]: `PostgreSQL` crashes right after somebody was told of an order.
//! - [`health`]: a stage that dies is named by every view, and named as mended.
//! - [`forged`]: messages of an attacker with a stage's credentials.
//! - [`endpoints`]: several endpoints of one partner.
//! - [`keys`]: keys with rights, networks and limits.
//! - [`metadata`]: what partners keep with their orders. [`money`]: what they pay.
//! - [`limits`], [`limits_memory`], [`shares`]: overload is answered, and the other partners keep
//!   their share.
//! - [`isolation`]: an option that hangs or fails does not stop the others.
//! - [`qr`]: only pictures of sent codes are drawn, where the operator wants it.
//! - [`mishaps`]: what the sandbox does on demand.
//! - [`tampered`]: changed and repeated requests are refused.
//! - [`settings`]: invalid settings are refused.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on panics"
)]

mod account;
mod after_delivery;
mod archive;
mod catalogue;
mod database_away;
mod duplicates;
mod endpoints;
mod esim_partner;
mod events;
mod examples;
mod extensions;
mod faults;
mod flushed;
mod forged;
mod forwarder;
mod health;
mod install_page;
mod isolation;
mod keys;
mod limits;
mod limits_memory;
mod metadata;
mod mishaps;
mod money;
mod nats_quorum;
mod notices;
mod ordering;
mod pages;
mod partner;
mod pulse;
mod qr;
mod recover;
mod redeliveries;
mod refused;
mod repeats;
mod replicas;
mod resilience;
mod rotation;
mod routing;
mod settings;
mod shares;
mod shell;
mod shop;
mod spec;
mod stop;
mod tampered;
mod upgrade;
mod webhook;
