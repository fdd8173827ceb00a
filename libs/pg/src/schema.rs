//! The version of the schema: which programs it serves, and the check that every program makes at
//! its start.
//!
//! `esimctl migrate` applies the migrations and grants the database roles their privileges. The
//! services never change the schema. Each of them calls `accounts::start` at its start, and
//! refuses to run on a schema that is older than the program, or on a newer one that no longer
//! serves it. Otherwise a statement could fail in the middle of a purchase. During an upgrade the
//! schema is newer than the old programs, and the migrations declare that it still serves them (`--
//! serves: N`).

mod migrate;
mod progress;
mod roles;
mod version;

pub use migrate::{LockPatience, MigrationError, Wait, apply, migrate};
pub use progress::{IndexBuild, index_build, pid};
pub use roles::{DatabaseRole, Privilege, ROLES, grant, missing, set_password, settings};
pub use version::{SchemaError, check, latest, migrations};
