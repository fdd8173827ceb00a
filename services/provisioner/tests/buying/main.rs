//! The provisioner against the real sandbox provider, PostgreSQL and NATS: what each response of a
//! provider leads to in the database and in the sandbox's ledger of purchases.
//!
//! - [`after_delivery`]: questions about delivered eSIMs, and give-backs.
//! - [`answers`]: the classes of the failure taxonomy.
//! - [`breaker`]: placements of a failing provider.
//! - [`callbacks`]: hints and their tokens.
//! - [`catalogues`]: the lists of products and purchases, with what a provider should not send.
//! - [`claims`]: eSIMs that a provider takes back by a claim.
//! - [`extensions`]: data and days that are added to delivered eSIMs, at each provider.
//! - [`fields`]: each field of each response, with values that it should never have.
//! - [`hostile`]: responses that no provider should send, each with its class.
//! - [`lanes`]: lanes whose purchases are held back.
//! - [`operator`]: parked placements and how they are resolved.
//! - [`proofs`]: what a proof of our account changes.
//! - [`reports`]: what the ingress process that is answering an order is told.
//! - [`routing`]: options that several providers sell.
//! - [`suspended`]: delivered eSIMs that are suspended and resumed.
//! - [`upstreams`]: the providers that name a purchase by an id of their own and whose look-ups
//!   prove no absence. [`hostile_esim_access`] and [`hostile_airalo`] have their responses.
//! - [`unreadable`]: responses and outcomes that cannot be used.
//! - [`zendit`]: the provider that knows purchases by our id and sells one unit in each.
//!   [`hostile_zendit`] has its responses.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod after_delivery;
mod answers;
mod breaker;
mod callbacks;
mod catalogues;
mod claims;
mod extended;
mod extensions;
mod fields;
mod hostile;
mod hostile_airalo;
mod hostile_esim_access;
mod hostile_zendit;
mod lanes;
mod operator;
mod proofs;
mod reports;
mod routing;
mod seller;
mod support;
mod suspended;
mod unreadable;
mod upstreams;
mod zendit;
