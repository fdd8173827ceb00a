//! The statements of crate `store` on a real PostgreSQL, a database of its own for each test.
//!
//! - [`machine`]: every statement that moves a placement, against the state machine of crate `domain`.
//! - [`orders`], [`claim`], [`settle`], [`deliveries`]: what each statement promises, alone and when
//!   several processes run it at once.
//! - [`providers`]: breakers and hints. [`operator`]: what operators list, find and settle.
//! - [`recover`]: what is moved after an old dump was restored.
//! - [`database`]: deadlines, and connections that fall silent.
//! - [`rotation`]: keys and secrets that are replaced, and everything sealed anew under another master key.
//! - [`sweep`]: what did not finish within its first lease.
//! - [`configuration`]: what services notice of changes made by operators.
//! - [`schema`], [`migrations`]: migrations beside live traffic and older programs. [`pooler`]: poolers are refused.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod bench;
mod claim;
mod configuration;
mod database;
mod deliveries;
mod endpoints;
mod machine;
mod migrations;
mod operator;
mod orders;
mod pooler;
mod providers;
mod recover;
mod rotation;
mod schema;
mod settle;
mod sweep;
