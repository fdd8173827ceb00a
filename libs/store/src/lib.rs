//! PostgreSQL, the source of truth: the schema, and all SQL statements of the workspace as free
//! functions over a connection.
//!
//! Everything that was promised to a partner is in a row of this database, and so is the work that
//! is left to do. The services (ingress, provisioner, notifier) and `esimctl` call these functions;
//! no other crate holds SQL of the services.
//!
//! What the functions guarantee:
//!
//! - State and the work that it causes are committed together. A function that is one statement
//!   commits by itself; one that takes several steps opens a transaction. So a crash never leaves,
//!   for example, a ready unit without its delivery.
//! - A statement that moves a placement follows a transition of [`domain::placement`] and has a
//!   condition on the placement's state and attempt. So repeating it changes nothing, and a
//!   function can be called again after an error whose effect is unknown.
//! - Statements that run for each order or webhook work on batches: everything that queued while
//!   the previous execution ran is written by one execution and one commit (group commit).
//!
//! The functions rely on two things. The migrations of this crate must have been applied, which
//! [`schema`] checks when a program starts. And the connection comes from a [`Database`], which
//! bounds how long each use of a connection may take.

pub mod actions;
pub mod archive;
pub mod cells;
mod columns;
pub mod config;
pub mod database;
pub mod deliveries;
mod error;
pub mod esim_requests;
pub mod figures;
pub mod history;
pub mod ledger;
pub mod master_key;
mod nodelay;
pub mod operator;
pub mod options;
pub mod orders;
pub mod partners;
pub mod placements;
pub mod primary;
pub mod profile;
pub mod provider_lanes;
pub mod providers;
pub mod recover;
pub mod refused;
pub mod retention;
pub mod schema;
pub mod self_service;
pub mod server;
pub mod sessions;
mod start;
mod sweep;
pub mod vault;
pub mod work;

use columns::{age, count, rfc3339, seconds, signed, unsigned};
pub use database::Database;
pub use error::Error;
use error::{Result, retry_conflicts, store_error};
pub use sqlx::PgConnection;
pub use sweep::Swept;
