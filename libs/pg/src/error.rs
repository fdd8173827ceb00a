//! What can go wrong with the database, for all statements.
//!
//! [`Error`] covers what a server or a vault refuses. An error of a single function is defined
//! beside that function and wraps this one, with [`store_error!`].

use std::{borrow::Cow, io::ErrorKind, sync::Arc, time::Duration};

use sqlx::error::DatabaseError;
use vault::VaultError;

use crate::unfit::Unfit;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the database. It is cheap to clone, because the failure of a batch is reported to
/// each of its members.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A statement failed, or the connection broke and it is unknown whether the statement took
    /// effect.
    #[error("database{}: {}", during(*.transaction), reason(.cause))]
    Database {
        cause: Arc<sqlx::Error>,
        /// The name of the [`transaction!`](crate::transaction!) that it has ended.
        transaction: Option<&'static str>,
    },
    #[error(
        "database: no connection to {address} within {waited:?}: it doesn't respond (DATABASE_URL), or all {most} connections are in use (DATABASE_CONNECTIONS)"
    )]
    NoConnection {
        /// The host and port, or the folder of the Unix socket.
        address: String,
        waited: Duration,
        most: usize,
    },
    /// The server did not respond for this long, so the connection was closed. Whether the
    /// statement took effect is unknown.
    #[error("database: no response within {0:?}; whether the statement took effect is unknown")]
    Silent(Duration),
    /// The server responded after a silence, and meanwhile another one had become the primary. What
    /// the old one committed is lost.
    #[error(
        "database: another server became the primary while this statement ran; whether the statement took effect is unknown"
    )]
    Replaced,
    /// The server responds, but it must not be used. Nothing was sent to it.
    #[error("database: {0}")]
    Unfit(#[from] Unfit),
    #[error(transparent)]
    Vault(#[from] VaultError),
    #[error("the database holds a value that this version does not know: {0}")]
    Unreadable(String),
}

/// Names the transaction of an error.
fn during(transaction: Option<&'static str>) -> String {
    transaction.map_or_else(String::new, |name| format!(" ({name})"))
}

/// The text of the error. Position and routine in the source of PostgreSQL are left out, because a
/// reader would take them for ours. A cancelled statement names the setting that bounds its time.
/// What sqlx says about a broken connection is the last byte or field that it missed, so that case
/// is put into words.
fn reason(error: &sqlx::Error) -> String {
    let Some(refused) = error.as_database_error() else {
        return without_response(error);
    };
    match refused.code().as_deref() {
        Some("57014") => format!("{} (DATABASE_TIMEOUT)", refused.message()),
        Some(code) => format!("{} ({code})", refused.message()),
        None => refused.message().to_owned(),
    }
}

/// The text of an error that the server did not report.
fn without_response(error: &sqlx::Error) -> String {
    match error {
        // A connection that is closed during its first message looks like this, too.
        sqlx::Error::Protocol(detail) => format!(
            "the server of DATABASE_URL closed the connection or does not speak PostgreSQL's protocol. Is it \
             a proxy without a backend, or the port of another service? ({detail})"
        ),
        sqlx::Error::Io(detail) if detail.kind() == ErrorKind::ConnectionRefused => {
            format!(
                "nothing listens at the address of DATABASE_URL. Is PostgreSQL running? ({detail})"
            )
        }
        sqlx::Error::Io(detail) => format!(
            "the connection broke. If that lasts, the server of DATABASE_URL has stopped or is a proxy without a backend, or \
             the network has failed ({detail})"
        ),
        sqlx::Error::Tls(detail) => format!(
            "no TLS with the server of DATABASE_URL; check sslmode and sslrootcert in the URL, and the certificate of \
             the server ({detail})"
        ),
        other => other.to_string(),
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        Self::Database {
            cause: Arc::new(error),
            transaction: None,
        }
    }
}

/// An error of a function that runs a transaction. [`store_error!`] implements it.
pub trait TransactionError: From<Error> {
    /// The error of the database in it, if it is one.
    fn database(&mut self) -> Option<&mut Error>;
}

impl TransactionError for Error {
    fn database(&mut self) -> Option<&mut Error> {
        Some(self)
    }
}

impl TransactionError for anyhow::Error {
    fn database(&mut self) -> Option<&mut Error> {
        self.downcast_mut()
    }
}

/// Converts a failed statement into the variant `Store` of an error, beside which this stands.
#[macro_export]
macro_rules! store_error {
    ($error:ty) => {
        impl From<sqlx::Error> for $error {
            fn from(error: sqlx::Error) -> Self {
                Self::Store(error.into())
            }
        }

        impl $crate::TransactionError for $error {
            fn database(&mut self) -> Option<&mut $crate::Error> {
                match self {
                    Self::Store(error) => Some(error),
                    _ => None,
                }
            }
        }
    };
}

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

impl From<domain::UnreadableMetadata> for Error {
    fn from(error: domain::UnreadableMetadata) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl From<domain::shop::UnreadableShop> for Error {
    fn from(error: domain::shop::UnreadableShop) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl From<domain::UnreadableTerms> for Error {
    fn from(error: domain::UnreadableTerms) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl Error {
    /// The error of a pool that had no free connection in time.
    pub fn timed_out() -> Self {
        sqlx::Error::PoolTimedOut.into()
    }

    /// The error of the server, if the server refused the statement.
    fn refused(&self) -> Option<&(dyn DatabaseError + 'static)> {
        match self {
            Self::Database { cause, .. } => cause.as_database_error(),
            _ => None,
        }
    }

    /// The same error, with the name of the transaction that it has ended.
    #[must_use]
    pub(crate) fn in_transaction(self, name: &'static str) -> Self {
        match self {
            Self::Database {
                cause,
                transaction: None,
            } => Self::Database {
                cause,
                transaction: Some(name),
            },
            other => other,
        }
    }

    /// The name of the violated constraint, if that is the error.
    pub fn constraint(&self) -> Option<&str> {
        self.refused()?.constraint()
    }

    pub fn code(&self) -> Option<Cow<'_, str>> {
        self.refused()?.code()
    }

    /// Whether the SQLSTATE of the error begins with one of these texts, such as a class of two
    /// characters.
    pub fn is_of(&self, classes: &[&str]) -> bool {
        self.code()
            .is_some_and(|code| classes.iter().any(|class| code.starts_with(class)))
    }

    /// Whether the database role lacks a privilege that the statement needs.
    pub fn is_denied(&self) -> bool {
        self.is_of(&["42501"])
    }

    /// Whether the statement lost a deadlock or a serialisation conflict, and so changed nothing.
    pub fn is_conflict(&self) -> bool {
        self.is_of(&["40"])
    }

    /// Whether another session has changed the same row of the catalogue, for which PostgreSQL has
    /// no code.
    pub(crate) fn is_concurrent_update(&self) -> bool {
        self.refused()
            .is_some_and(|error| error.message().contains("concurrently updated"))
    }

    /// Whether the data of the statement is at fault, and not the database. The same data would be
    /// refused again, so such an error is never [transient](Self::is_transient). For a batch it
    /// means that one of its items is probably at fault.
    pub fn is_about_data(&self) -> bool {
        if self.cannot_be_read() {
            return true;
        }
        // The classes are 21 (a row was affected twice), 22 (invalid data), 23 (a violated
        // constraint) and 54 (a limit was exceeded: for example, a value is too large for an
        // index).
        matches!(self, Self::Vault(_) | Self::Unreadable(_))
            || self.is_of(&["21", "22", "23", "54"])
    }

    /// Whether the same statement may succeed later, because the connection, the load of the server
    /// or the state of the role was at fault. A caller may retry such a statement for as long as it
    /// likes. A statement that the server refuses for any other reason would probably fail again,
    /// so callers retry it only a bounded number of times, if at all.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NoConnection { .. } | Self::Silent(_) | Self::Replaced | Self::Unfit(_) => true,
            Self::Vault(_) | Self::Unreadable(_) => false,
            Self::Database { cause, .. } => match &**cause {
                sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::PoolClosed
                | sqlx::Error::WorkerCrashed
                | sqlx::Error::BeginFailed
                // A connection that is closed during its first message looks like this, too.
                | sqlx::Error::Protocol(_) => true,
                sqlx::Error::Database(_) => {
                    self.is_of(&["08", "25", "40", "53", "55", "57", "58"])
                }
                // What this program has asked wrongly, or cannot read of what it got.
                _ => false,
            },
        }
    }

    /// Whether a value of the statement cannot be sent, or one of its result cannot be read. The
    /// server has no part in that, so such an error has no SQLSTATE, and a repeat meets it again.
    fn cannot_be_read(&self) -> bool {
        matches!(self, Self::Database { cause, .. } if matches!(
            **cause,
            sqlx::Error::Encode(_)
                | sqlx::Error::Decode(_)
                | sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::TypeNotFound { .. }
        ))
    }

    /// Whether one item of a batch may have caused the error, so that writing the items one by one
    /// is worth a try: the data of an item may be at fault, or a stored row that it changes, for
    /// example a damaged one. Transient errors hit the whole batch.
    pub fn may_concern_one_item(&self) -> bool {
        !self.is_transient()
    }
}

/// How often a statement is retried at once after a conflict, before the error is returned.
pub const CONFLICTS: u32 = 5;

/// Retries a statement, or a whole transaction, that lost a deadlock or a serialisation conflict.
/// That is safe, because the server has rolled it back and so it changed nothing. This is a macro,
/// because the compiler does not recognise a future that holds an async closure as `Send`.
#[macro_export]
macro_rules! retry_conflicts {
    ($statement:expr) => {{
        let mut conflicts = 0;
        loop {
            match $statement.await {
                Err(error)
                    if $crate::Error::is_conflict(&error) && conflicts < $crate::CONFLICTS =>
                {
                    conflicts += 1;
                }
                result => break result,
            }
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only an error of the connection goes away by itself. What this program cannot send or read
    /// is as wrong the next time, and one item of a batch that has such a value must not hold up
    /// the others.
    #[test]
    fn what_can_never_succeed_is_not_repeated_for_ever() {
        let unreadable = || sqlx::Error::ColumnDecode {
            index: "provider".to_owned(),
            source: "invalid utf-8".into(),
        };
        for error in [
            unreadable(),
            sqlx::Error::Decode("unexpected null".into()),
            sqlx::Error::Encode("too many elements".into()),
        ] {
            let error = Error::from(error);
            assert!(error.is_about_data(), "{error}");
            assert!(!error.is_transient(), "{error}");
            assert!(error.may_concern_one_item(), "{error}");
        }
        for error in [
            sqlx::Error::RowNotFound,
            sqlx::Error::ColumnNotFound("provider".to_owned()),
        ] {
            let error = Error::from(error);
            assert!(!error.is_transient() && !error.is_about_data(), "{error}");
        }
        for error in [
            sqlx::Error::Io(ErrorKind::ConnectionReset.into()),
            sqlx::Error::PoolTimedOut,
            sqlx::Error::Protocol("unexpected end".to_owned()),
        ] {
            let error = Error::from(error);
            assert!(error.is_transient() && !error.is_about_data(), "{error}");
        }
        for error in [
            Error::Silent(Duration::from_secs(10)),
            Error::Replaced,
            Error::Unfit(Unfit::Standby),
        ] {
            assert!(error.is_transient(), "{error}");
        }
    }
}
