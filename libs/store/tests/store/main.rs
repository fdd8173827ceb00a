//! The statements of crate `store` on a real PostgreSQL, a database of its own for each test.
//!
//! - [`machine`]: every statement that moves a placement, against the state machine of crate `domain`.
//! - [`orders`], [`claim`], [`settle`], [`deliveries`]: what each statement promises, alone and when
//!   several processes run it at once.
//! - [`providers`], [`parked`]: breakers, hints, and what operators settle.
//! - [`recover`]: what is moved after an old dump was restored.
//! - [`database`]: deadlines, and connections that fall silent.
//! - [`rotation`]: keys and secrets that are replaced, and everything sealed anew under another master key.
//! - [`configuration`], [`schema`]: what services notice of changes made by operators.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod bench;
mod claim;
mod configuration;
mod database;
mod deliveries;
mod endpoints;
mod machine;
mod orders;
mod parked;
mod providers;
mod recover;
mod rotation;
mod schema;
mod settle;
