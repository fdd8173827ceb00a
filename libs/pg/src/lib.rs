//! PostgreSQL, the source of truth, as far as it holds no orders: the connection, the schema with
//! its migrations and roles, what can go wrong, and the record of actions.
//!
//! All SQL of the services is in this crate and in those that depend on it, as free functions over
//! a connection. Each of these depends only on the ones before it:
//!
//! - `pg`, beside `vault`, which seals what is secret and knows no database;
//! - `accounts`: who orders what, and where it is told;
//! - `store`: what the stages write for an order;
//! - `desk`: what people read and decide;
//! - `tools`: what only operators run.
//!
//! Their functions rely on two things. The migrations of this crate must have been applied, which
//! [`schema`] checks when a program starts. And the connection comes from a [`Database`], which
//! bounds how long each use of a connection may take.

pub mod actions;
mod columns;
pub mod config;
pub mod database;
pub mod down;
mod error;
mod nodelay;
pub mod primary;
pub mod schema;
pub mod server;
pub mod sessions;
pub mod transaction;
mod unfit;

pub use columns::{age, count, rfc3339, seconds, signed, unsigned, uuids};
pub use database::Database;
pub use error::{CONFLICTS, Error, Result, TransactionError};
pub use sqlx::PgConnection;
pub use transaction::{Transaction, TransactionEnd};
