//! The database: PostgreSQL holds the truth of the pipeline. This crate holds the schema and every statement,
//! as free functions over a connection; no other crate contains SQL.
//!
//! Frequent statements work on batches: one statement moves many rows. Each statement that moves a placement
//! follows a transition of [`domain::placement`]. Its condition on state and attempt makes a repeated
//! statement change nothing.

pub mod config;
pub mod database;
pub mod deliveries;
pub mod endpoints;
pub mod master_key;
pub mod operator;
pub mod options;
pub mod orders;
pub mod partners;
pub mod placements;
pub mod profile;
pub mod providers;
pub mod recover;
pub mod schema;
pub mod vault;

use std::{sync::Arc, time::Duration};

pub use database::Database;
pub use sqlx::PgConnection;

/// A database error. Cheap to clone: a failed batch fails every item in it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The statement failed, or its outcome is unknown.
    #[error("database: {}", told(.0))]
    Database(Arc<sqlx::Error>),
    /// No connection was available.
    #[error(
        "database: no connection to {address} within {waited:?}: it doesn't answer (DATABASE_URL), or all {most} connections are in use (DATABASE_CONNECTIONS)"
    )]
    NoConnection {
        /// Host and port, or the folder of the socket.
        address: String,
        /// The length of the wait.
        waited: Duration,
        /// The maximum number of connections.
        most: u32,
    },
    /// No response within this time: the outcome is unknown.
    #[error("database: no answer within {0:?}")]
    Silent(Duration),
    /// A stored secret is unusable.
    #[error(transparent)]
    Vault(#[from] vault::VaultError),
    /// A stored text has an unknown form.
    #[error("the database holds what this version does not know: {0}")]
    Unreadable(String),
}

/// The server's message, without the position in the server's source.
fn told(error: &sqlx::Error) -> String {
    let Some(refused) = error.as_database_error() else {
        return error.to_string();
    };
    match refused.code().as_deref() {
        Some("57014") => format!("{} (DATABASE_TIMEOUT)", refused.message()),
        Some(code) => format!("{} ({code})", refused.message()),
        None => refused.message().to_owned(),
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(Arc::new(error))
    }
}

impl From<domain::states::UnknownName> for Error {
    fn from(error: domain::states::UnknownName) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl From<domain::topup_id::NotATopupId> for Error {
    fn from(error: domain::topup_id::NotATopupId) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl Error {
    /// The database did not respond in time.
    pub fn timed_out() -> Self {
        sqlx::Error::PoolTimedOut.into()
    }

    /// The violated constraint, if there is one.
    pub fn constraint(&self) -> Option<&str> {
        match self {
            Self::Database(error) => error
                .as_database_error()
                .and_then(sqlx::error::DatabaseError::constraint),
            _ => None,
        }
    }

    /// Whether the statement's data is at fault, or a deadlock with other data. Then it is worth trying the
    /// rows of a batch one by one. Otherwise the database is at fault.
    pub fn is_about_data(&self) -> bool {
        match self {
            Self::Database(error) => error
                .as_database_error()
                .and_then(sqlx::error::DatabaseError::code)
                .is_some_and(|code| {
                    // 54: a value is too large for its column or an index.
                    ["21", "22", "23", "40", "54"]
                        .iter()
                        .any(|class| code.starts_with(class))
                }),
            Self::Silent(_) | Self::NoConnection { .. } => false,
            Self::Vault(_) | Self::Unreadable(_) => true,
        }
    }

    /// Whether a retry of the same statement may succeed: the connection, the server's load or its role is at
    /// fault. Every other refused statement is retried only a limited number of times.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Database(error) => error
                .as_database_error()
                .and_then(sqlx::error::DatabaseError::code)
                .is_none_or(|code| {
                    ["08", "25", "40", "53", "55", "57", "58"]
                        .iter()
                        .any(|class| code.starts_with(class))
                }),
            Self::Silent(_) | Self::NoConnection { .. } => true,
            Self::Vault(_) | Self::Unreadable(_) => false,
        }
    }
}

/// A duration in seconds, as the statements take it.
fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

/// Converts a stored number that is never negative.
fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or_default()
}

/// Converts a number for a column of type `integer`.
fn signed(number: impl TryInto<i32>) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}

/// Converts an age in seconds that the database computed.
fn age(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}
