//! What was read of orders, placements and units, before somebody outside may be told of it.
//!
//! [`crate::orders::insert`] may return before an order is flushed, and so may the settlement of
//! its purchase. A crash of the server would lose such rows, and nobody may have been told of them
//! then. So whatever reads them returns an [`Unflushed`], and the only way to its value leads
//! through [`Unflushed::after_flush`]: the compiler finds who forgets it.
//!
//! What writes needs none of this, because its commit is flushed and comes later in the log: a
//! claim, a refusal, a cancellation, a recorded action, an event, and also
//! [`crate::orders::status`], whose lock is written to the log.

use pg::Result;
use sqlx::{Connection, PgConnection};

/// Something that was read, and that a crash of the server may still undo.
#[derive(Debug)]
#[must_use = "what was read can be told after `after_flush`"]
pub struct Unflushed<T>(T);

impl<T> Unflushed<T> {
    /// What a statement has just read.
    pub fn of(read: T) -> Self {
        Self(read)
    }

    /// The same, in another form.
    pub fn map<U>(self, into: impl FnOnce(T) -> U) -> Unflushed<U> {
        Unflushed(into(self.0))
    }

    /// Reads more that depends on it, which can be told after the same flush.
    pub async fn then<U>(
        self,
        read: impl AsyncFnOnce(T) -> Result<Unflushed<U>>,
    ) -> Result<Unflushed<U>> {
        read(self.0).await
    }

    /// Makes sure that all that this session has read survives a crash of the server, and returns
    /// it.
    ///
    /// Usually the log is flushed, and this costs one small statement. Otherwise it writes an empty
    /// message to the log. A transaction id alone would not do, because a transaction that has
    /// written nothing is not flushed. It waits for this server's disk only, so that orders can be
    /// looked up while a standby that commits wait for is gone. Where they wait for one, the commit
    /// that was read has waited, too.
    ///
    /// A transaction that writes needs no flush of what it reads, and is refused here: its commit
    /// would not wait for a standby either.
    pub async fn after_flush(self, connection: &mut PgConnection) -> Result<T> {
        if connection.is_in_transaction() {
            let refused = "what was read in a transaction is told after its end";
            return Err(sqlx::Error::InvalidArgument(refused.into()).into());
        }
        let statement = sqlx::query!(
            "SELECT CASE WHEN pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()
                     THEN concat(set_config('synchronous_commit', 'local', true),
                                 pg_logical_emit_message(true, 'flush', ''::text)) END AS written"
        );
        statement.fetch_one(connection).await?;
        Ok(self.0)
    }
}
