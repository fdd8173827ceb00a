//! Archives: finished orders leave the tables for good, into files that common tools read
//! (`docs/decisions/0037-a-quarter-lighter.md`). `esimctl archive` calls these functions and stores
//! the files; this module holds all SQL of it.
//!
//! An order is archived in two steps:
//!
//! 1. [`reserve`] commits a row in `archives`, which stands for one file, and a row in
//!    `archived_orders` for each of its orders, which keeps the external ids taken.
//! 2. At least [`GRACE`] later, one transaction locks the rows of these orders, checks again that
//!    they are finished, and copies them out ([`copy`]). When the file is stored and was read back,
//!    the same transaction deletes the rows ([`complete`]).
//!
//! Guarantees: rows are deleted only by the transaction that has read and locked them, and it
//! commits only after their file is stored. So an order is in the tables or in the file of an
//! archive that is complete, and never in both or in neither, whenever the process dies: the file
//! of an archive that is not complete counts for nothing, and the next run removes it and stores
//! another one under a new name ([`rename`]). A run that was stopped meanwhile and goes on late can
//! then neither replace that file nor complete the archive with its own. At every moment the
//! external id is taken by one of the two. No lock is taken that an order needs, because nothing
//! changes finished orders except operators, resends and retention, and those wait for at most one
//! file.
//!
//! These functions need the privileges of the owner of the tables, because they delete orders.
//! [Look-ups](desk::archived) need only the role that asks.

mod record;
mod rows;

use desk::{
    archived::{APART, accepted_at},
    self_service::first_id,
};
use domain::TopupId;
use pg::{Result, TransactionEnd, config::PLANS, transaction};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

pub use self::{
    record::{Archive, GRACE},
    rows::{CopiedOrders, TABLES, Table, complete, copy},
};

/// The longest time of one statement of an archive run. It is less than the default
/// `DATABASE_TIMEOUT`, so no statement of a service waits for it until it fails.
const STATEMENT_TIMEOUT: &str = "5s";
/// The longest wait for a row that an operator, a resend or retention has locked.
const LOCK_TIMEOUT: &str = "2s";

/// The key of the lock that lets only one archive run work at a time.
const RUN_LOCK: i64 = 0x6573_696d_6172_6368;

/// Reads the archives that match a condition.
macro_rules! archives {
    ($condition:literal $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            Archive,
            "SELECT archive, file, began_at, completed_at, first_order, last_order, orders, sha256
             FROM archives " + $condition
            $(, $argument)*
        )
    };
}

/// All archives, the oldest first.
pub async fn list(connection: &mut PgConnection) -> Result<Vec<Archive>> {
    Ok(archives!("ORDER BY archive").fetch_all(connection).await?)
}

/// The archives that may hold the order of a topup, judged by the time in its id.
pub async fn of_time(connection: &mut PgConnection, topup_id: &TopupId) -> Result<Vec<Archive>> {
    let Some(at) = accepted_at(topup_id) else {
        return Ok(Vec::new());
    };
    let found = archives!(
        "WHERE first_order < $2 AND last_order >= $1 ORDER BY archive",
        first_id(at - APART),
        first_id(at + APART),
    );
    Ok(found.fetch_all(connection).await?)
}

/// The archives whose orders are reserved and still in the tables. A run that was interrupted has
/// left them, and the next one completes them first.
pub async fn unfinished(connection: &mut PgConnection) -> Result<Vec<Archive>> {
    let found = archives!("WHERE completed_at IS NULL ORDER BY archive");
    Ok(found.fetch_all(connection).await?)
}

/// Gives an archive that is not complete another file, and returns the earlier one. Whoever still
/// works on it with that one can no longer [`complete`] it once this is committed.
pub async fn rename(
    transaction: &mut PgConnection,
    archive: &mut Archive,
    file: String,
) -> Result<String> {
    let renamed = sqlx::query!(
        "UPDATE archives SET file = $3 WHERE archive = $1 AND file = $2 AND completed_at IS NULL",
        archive.archive,
        archive.file,
        file,
    );
    if renamed.execute(transaction).await?.rows_affected() == 0 {
        return Err(rows::lost(archive));
    }
    Ok(std::mem::replace(&mut archive.file, file))
}

/// The orders that are reserved for an archive.
pub async fn reserved(connection: &mut PgConnection, archive: &Archive) -> Result<Vec<Uuid>> {
    let query = sqlx::query_scalar!(
        "SELECT order_id FROM archived_orders WHERE order_id >= $2 AND order_id <= $3 AND archive = $1
         ORDER BY order_id",
        archive.archive,
        archive.first_order,
        archive.last_order,
    );
    Ok(query.fetch_all(connection).await?)
}

/// Prepares the session of an archive run: plans that find rows by an index as those of the
/// services do, and limits that end each statement before it can hold anything up.
pub async fn prepare(connection: &mut PgConnection) -> Result<()> {
    let limits = [
        ("statement_timeout", STATEMENT_TIMEOUT),
        ("lock_timeout", LOCK_TIMEOUT),
        // To judge a merge join, the planner looks up the ends of the indexes, and the oldest end
        // is where the run has just deleted. Planning one copy took 300 ms because of that, and
        // takes 15 ms without.
        ("enable_mergejoin", "off"),
        // The processors are for the orders that arrive.
        ("max_parallel_workers_per_gather", "0"),
        // A process that is stopped in the middle must not keep its snapshot and its locks for
        // hours.
        ("idle_in_transaction_session_timeout", "60s"),
        // The times in the files.
        ("timezone", "UTC"),
    ];
    for (name, value) in PLANS.into_iter().chain(limits) {
        sqlx::query("SELECT set_config($1, $2, false)")
            .bind(name)
            .bind(value)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Takes the lock of archive runs for this session. Returns `false` if another run holds it.
pub async fn lock(connection: &mut PgConnection) -> Result<bool> {
    let locked = sqlx::query_scalar!(r#"SELECT pg_try_advisory_lock($1) AS "locked!""#, RUN_LOCK);
    Ok(locked.fetch_one(connection).await?)
}

/// The time before which orders are archived by the stored term; `None` if orders are kept for
/// ever.
pub async fn term(connection: &mut PgConnection) -> Result<Option<OffsetDateTime>> {
    let before = sqlx::query_scalar!(
        "SELECT now() - make_interval(days => days) FROM walks WHERE name = 'orders'"
    );
    Ok(before.fetch_optional(connection).await?.flatten())
}

/// The orders of one page of the table `orders`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchivePage {
    /// The last order of the page.
    pub last: Uuid,
    /// How many orders the page has.
    pub seen: usize,
    /// Those of them that are finished, in the order of their ids.
    pub finished: Vec<Uuid>,
}

/// Reads the next orders that were created before a time, at most `limit`, and judges which of them
/// are finished. `None` if there are no more.
pub async fn page(
    connection: &mut PgConnection,
    after: Uuid,
    ordered_before: OffsetDateTime,
    limit: u32,
) -> Result<Option<ArchivePage>> {
    let query = sqlx::query_scalar!(
        "SELECT order_id FROM orders WHERE order_id > $1 AND order_id < $2 ORDER BY order_id LIMIT $3",
        after,
        first_id(ordered_before),
        i64::from(limit),
    );
    let ids = query.fetch_all(&mut *connection).await?;
    let Some(last) = ids.last().copied() else {
        return Ok(None);
    };
    Ok(Some(ArchivePage {
        last,
        seen: ids.len(),
        finished: rows::finished(connection, &ids).await?,
    }))
}

/// Counts the next orders that were created before a time, at most `limit`, without judging them.
/// Returns their number and the last one.
pub async fn count(
    connection: &mut PgConnection,
    after: Uuid,
    ordered_before: OffsetDateTime,
    limit: u32,
) -> Result<(u64, Option<Uuid>)> {
    let query = sqlx::query!(
        r#"SELECT count(*) AS "count!", (array_agg(order_id ORDER BY order_id DESC))[1] AS last
           FROM (SELECT order_id FROM orders WHERE order_id > $1 AND order_id < $2 ORDER BY order_id LIMIT $3) page"#,
        after,
        first_id(ordered_before),
        i64::from(limit),
    );
    let row = query.fetch_one(connection).await?;
    Ok((pg::count(row.count), row.last))
}

/// Reserves the external ids of the finished orders of the next page for a new archive. `file`
/// makes the name of its file from its number. `None` if there are no more orders; no archive if
/// none of the page is finished.
pub async fn reserve(
    connection: &mut PgConnection,
    after: Uuid,
    ordered_before: OffsetDateTime,
    limit: u32,
    file: impl Fn(i32) -> String,
) -> Result<Option<(ArchivePage, Option<Archive>)>> {
    transaction!(connection, "archive::reserve", |transaction| {
        let next = page(transaction, after, ordered_before, limit).await?;
        let Some(page) = next else {
            return Ok(TransactionEnd::Rollback(None));
        };
        let (Some(first), Some(last)) = (page.finished.first(), page.finished.last()) else {
            return Ok(TransactionEnd::Rollback(Some((page, None))));
        };
        let number =
            sqlx::query_scalar!(r#"SELECT coalesce(max(archive), 0) + 1 AS "next!" FROM archives"#);
        let number = number.fetch_one(&mut **transaction).await?;
        let archive = sqlx::query_as!(
            Archive,
            "WITH reserved AS (
             INSERT INTO archived_orders (order_id, partner_id, external_order_id, refused, archive)
             SELECT order_id, partner_id, external_order_id, refused_at IS NOT NULL, $1
             FROM orders WHERE order_id = ANY ($5)
         )
         INSERT INTO archives (archive, file, first_order, last_order) VALUES ($1, $2, $3, $4)
         RETURNING archive, file, began_at, completed_at, first_order, last_order, orders, sha256",
            number,
            file(number),
            first,
            last,
            &page.finished,
        );
        let archive = archive.fetch_one(&mut **transaction).await?;
        Ok(TransactionEnd::Commit(Some((page, Some(archive)))))
    })
}
