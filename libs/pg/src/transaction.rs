//! The door to transactions.
//!
//! Statements that belong together run in a [`transaction!`](crate::transaction!), which begins,
//! commits and rolls back, repeats what lost a conflict, and names itself in errors and metrics. It
//! is the only place that makes a [`Transaction`]. So a function that takes one cannot be run
//! outside of a transaction: its statements commit together, or not at all. A function whose
//! statements may commit one by one takes a [`PgConnection`], and its head says why that is enough.
//!
//! Only the migrator begins transactions of its own, whose errors are those of sqlx.

use std::ops::{Deref, DerefMut};

use runtime::metrics;
use sqlx::{Connection, PgConnection, Postgres};

use crate::{CONFLICTS, Error, TransactionError};

/// An open transaction. It derefs to its connection, so statements run on `&mut **transaction`.
/// Dropped before its end, it is rolled back.
#[derive(Debug)]
pub struct Transaction<'c> {
    inner: sqlx::Transaction<'c, Postgres>,
}

impl Deref for Transaction<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.inner
    }
}

impl DerefMut for Transaction<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.inner
    }
}

/// How a transaction ends that has met no error. An error always rolls back.
#[derive(Debug)]
pub enum TransactionEnd<T> {
    Commit(T),
    /// Nothing of it stays, for example because it was a preview, or because there was nothing to
    /// do.
    Rollback(T),
}

/// How a transaction begins.
#[derive(Clone, Copy, Debug)]
pub enum TransactionKind {
    /// Each statement sees what was committed before it.
    Writing,
    /// All statements see what was committed before the first one, and they only read.
    Snapshot,
}

/// One run of [`transaction!`](crate::transaction!), which is the only caller.
#[doc(hidden)]
#[derive(Debug)]
pub struct TransactionRun {
    name: &'static str,
    conflicts: u32,
}

impl TransactionRun {
    pub fn new(name: &'static str) -> Self {
        Self { name, conflicts: 0 }
    }

    pub async fn begin<'c>(
        &self,
        connection: &'c mut PgConnection,
        kind: TransactionKind,
    ) -> crate::Result<Transaction<'c>> {
        let begun = match kind {
            TransactionKind::Writing => connection.begin().await,
            TransactionKind::Snapshot => {
                let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
                connection.begin_with(begin).await
            }
        };
        match begun {
            Ok(inner) => Ok(Transaction { inner }),
            Err(error) => Err(self.named(error.into())),
        }
    }

    /// Ends the transaction. `None` means that it lost a conflict, so it has changed nothing and is
    /// run again.
    pub async fn end<T, E: TransactionError>(
        &mut self,
        transaction: Transaction<'_>,
        done: Result<TransactionEnd<T>, E>,
    ) -> Option<Result<T, E>> {
        let mut ended = self.end_once(transaction, done).await;
        let error = ended.as_mut().err().and_then(TransactionError::database);
        if error.is_some_and(|error| error.is_conflict()) && self.conflicts < CONFLICTS {
            self.conflicts += 1;
            return None;
        }
        Some(ended)
    }

    pub async fn end_once<T, E: TransactionError>(
        &self,
        transaction: Transaction<'_>,
        done: Result<TransactionEnd<T>, E>,
    ) -> Result<T, E> {
        let inner = transaction.inner;
        let ended = match done {
            Ok(TransactionEnd::Commit(done)) => match inner.commit().await {
                Ok(()) => {
                    metrics::transaction(self.name, "committed");
                    return Ok(done);
                }
                Err(error) => Error::from(error).into(),
            },
            Ok(TransactionEnd::Rollback(done)) => match inner.rollback().await {
                Ok(()) => {
                    metrics::transaction(self.name, "rolled_back");
                    return Ok(done);
                }
                Err(error) => Error::from(error).into(),
            },
            Err(error) => {
                // Now, because what it has locked would otherwise stay locked until the connection
                // is used again. If it fails, the server rolls back when it notices that the
                // connection is gone.
                let _ = inner.rollback().await;
                error
            }
        };
        Err(self.failed(ended))
    }

    fn failed<E: TransactionError>(&self, mut error: E) -> E {
        let Some(cause) = error.database() else {
            metrics::transaction(self.name, "rolled_back");
            return error;
        };
        let outcome = if cause.is_conflict() {
            "conflict"
        } else {
            "failed"
        };
        metrics::transaction(self.name, outcome);
        *cause = self.named(cause.clone());
        error
    }

    fn named(&self, error: Error) -> Error {
        error.in_transaction(self.name)
    }
}

/// Runs a closure in a transaction, once: a conflict is an error, because the closure belongs to a
/// caller who may have given it what it can use only once.
pub async fn once<T, E: TransactionError>(
    connection: &mut PgConnection,
    kind: TransactionKind,
    name: &'static str,
    work: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<TransactionEnd<T>, E>,
) -> Result<T, E> {
    let run = TransactionRun::new(name);
    let mut begun = run.begin(connection, kind).await?;
    let done = work(&mut begun).await;
    run.end_once(begun, done).await
}

/// What a block returns whose transaction results in this.
#[doc(hidden)]
pub trait Ends {
    type Block;
}

impl<T, E> Ends for Result<T, E> {
    type Block = Result<TransactionEnd<T>, E>;
}

/// Says of what type an asynchronous block is, which the compiler cannot find out by itself.
#[doc(hidden)]
pub fn typed<R: Ends, F: Future<Output = R::Block>>(_: &Option<R>, block: F) -> F {
    block
}

/// Runs statements in a transaction: `transaction!(connection, "name", |transaction| { … })`. Where
/// its result is not that of the function, the block says it:
/// `|transaction| -> Result<T, E> { … }`.
///
/// The block ends with [`TransactionEnd::Commit`] or [`TransactionEnd::Rollback`], or with an
/// error, which rolls back. If it loses a deadlock or a serialisation conflict, the server has
/// rolled it back and it is run again, at most [`CONFLICTS`] times. So the block does nothing that
/// a repetition would do twice: it sends nothing and counts nothing. The name, which is that of the
/// deed, stands in errors and in the metric `esim_transactions_total`.
///
/// This is a macro, because the compiler does not recognise a future that holds an async closure as
/// `Send`.
#[macro_export]
macro_rules! transaction {
    ($connection:expr, $name:literal, |$transaction:ident| -> $result:ty $body:block) => {{
        let ended: $result = $crate::transaction!($connection, $name, |$transaction| $body);
        ended
    }};
    ($connection:expr, $name:literal, |$transaction:ident| $body:block) => {{
        let mut run = $crate::transaction::TransactionRun::new($name);
        let mut ended = None;
        loop {
            // First, so that the compiler knows what the block returns.
            if let Some(ended) = ended.take() {
                break ended;
            }
            let mut begun = match run
                .begin($connection, $crate::transaction::TransactionKind::Writing)
                .await
            {
                Ok(begun) => begun,
                Err(error) => break Err(error.into()),
            };
            let done = $crate::transaction::typed(&ended, async {
                let $transaction = &mut begun;
                $body
            })
            .await;
            ended = run.end(begun, done).await;
        }
    }};
}
