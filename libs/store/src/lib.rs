//! PostgreSQL, the source of truth: the schema and all statements, as free functions over a connection.
//!
//! Hot statements work on batches. A statement moves a placement along a transition of [`domain::placement`], with a
//! condition on its state and attempt, so a repetition changes nothing.

pub mod config;
pub mod database;
pub mod deliveries;
pub mod master_key;
mod nodelay;
pub mod operator;
pub mod options;
pub mod orders;
pub mod partners;
pub mod placements;
pub mod profile;
pub mod provider_lanes;
pub mod providers;
pub mod recover;
pub mod retention;
pub mod schema;
pub mod self_service;
pub mod server;
mod sweep;
pub mod vault;
pub mod work;

use std::{borrow::Cow, sync::Arc, time::Duration};

pub use database::Database;
pub use sqlx::PgConnection;
use sqlx::error::DatabaseError;
pub use sweep::Swept;

type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the database. Cheap to clone: a failed batch fails all its members.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A statement failed, or its result is unknown.
    #[error("database: {}", reason(.0))]
    Database(Arc<sqlx::Error>),
    #[error(
        "database: no connection to {address} within {waited:?}: it doesn't respond (DATABASE_URL), or all {most} connections are in use (DATABASE_CONNECTIONS)"
    )]
    NoConnection {
        /// Host and port, or the socket's folder.
        address: String,
        waited: Duration,
        most: usize,
    },
    /// No response for this long: the result is unknown.
    #[error("database: no response within {0:?}")]
    Silent(Duration),
    #[error(transparent)]
    Vault(#[from] vault::VaultError),
    #[error("the database holds a value that this version does not know: {0}")]
    Unreadable(String),
}

/// The error's text without the server's source position, which looks like one of ours.
fn reason(error: &sqlx::Error) -> String {
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

/// A failed statement is the `Store` of these errors.
macro_rules! store_errors {
    ($($error:ty),+) => {
        $(impl From<sqlx::Error> for $error {
            fn from(error: sqlx::Error) -> Self {
                Self::Store(error.into())
            }
        })+
    };
}
store_errors!(operator::erase::NotErased, operator::placements::NotResolved);
store_errors!(recover::NotRecovered);

impl From<domain::states::UnknownName> for Error {
    fn from(error: domain::states::UnknownName) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl From<domain::ids::NotAnId> for Error {
    fn from(error: domain::ids::NotAnId) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl Error {
    /// No connection was available in time.
    pub fn timed_out() -> Self {
        sqlx::Error::PoolTimedOut.into()
    }

    /// The server's error, if it refused the statement.
    fn refused(&self) -> Option<&(dyn DatabaseError + 'static)> {
        match self {
            Self::Database(error) => error.as_database_error(),
            _ => None,
        }
    }

    /// The violated constraint, if there is one.
    pub fn constraint(&self) -> Option<&str> {
        self.refused()?.constraint()
    }

    fn code(&self) -> Option<Cow<'_, str>> {
        self.refused()?.code()
    }

    /// Whether the server's code begins with one of these classes.
    fn is_of(&self, classes: &[&str]) -> bool {
        self.code().is_some_and(|code| classes.iter().any(|class| code.starts_with(class)))
    }

    /// Whether the role lacks the privilege.
    pub fn is_denied(&self) -> bool {
        self.is_of(&["42501"])
    }

    /// Whether the statement lost a deadlock or a serialisation conflict, and so changed nothing.
    fn is_conflict(&self) -> bool {
        self.is_of(&["40"])
    }

    /// Whether the statement's data is at fault, not the database: its rows are worth trying one by one.
    pub fn is_about_data(&self) -> bool {
        // 54: a value is too large for its column or an index.
        matches!(self, Self::Vault(_) | Self::Unreadable(_)) || self.is_of(&["21", "22", "23", "54"])
    }

    /// Whether the same statement may succeed later: the connection, the server's load or its role is at fault. A
    /// statement that the server refuses for any other reason is retried only a bounded number of times.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Vault(_) | Self::Unreadable(_) => false,
            _ => self.code().is_none() || self.is_of(&["08", "25", "40", "53", "55", "57", "58"]),
        }
    }
}

/// How often a statement is retried at once after a conflict.
const CONFLICTS: u32 = 5;

/// Retries a statement, or a whole transaction, that lost a deadlock or a serialisation conflict and so changed
/// nothing. A macro, because a future that holds an async closure is not `Send` for the compiler.
macro_rules! retry_conflicts {
    ($statement:expr) => {{
        let mut conflicts = 0;
        loop {
            match $statement.await {
                Err(error) if $crate::Error::is_conflict(&error) && conflicts < $crate::CONFLICTS => {
                    conflicts += 1;
                }
                result => break result,
            }
        }
    }};
}
use retry_conflicts;

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

/// A stored number that is never negative.
fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or_default()
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// A number for a column of type `integer`.
fn signed(number: impl TryInto<i32>) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}

/// An age that the database computed in seconds.
fn age(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}
