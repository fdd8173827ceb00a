//! Archives: finished orders are moved out of the tables into files
//! (`docs/decisions/0026-any-server-lost.md`). `esimctl archive` calls these functions and writes
//! the files; this module holds all SQL of it.
//!
//! An order is archived in two steps:
//!
//! 1. [`reserve`] commits a row in `archived_orders` for each finished order, which keeps its
//!    external id taken.
//! 2. At least [`GRACE`] later, one transaction locks the rows of the order, checks again that it
//!    is finished, and copies the rows out ([`copy`]). When the files are on disk, the same
//!    transaction deletes the rows and records how long the files are now ([`delete`]).
//!
//! Guarantees: rows are deleted only by the transaction that has read and locked them, and it
//! commits only after they are on disk. So an order is in the tables or in the committed part of
//! the files, and never in both or in neither, whenever the process dies. At every moment its
//! external id is taken by one of the two. No lock is taken that an order needs, because nothing
//! changes finished orders except operators, resends and retention, and those wait for at most
//! one batch.
//!
//! These functions need the privileges of the owner of the tables, because they read profiles and
//! delete orders. [Look-ups](desk::archived) need only the role that asks.

mod record;
mod rows;

use desk::{
    archived::{APART, accepted_at},
    self_service::first_id,
};
use domain::TopupId;
use pg::{
    Error, Result,
    actions::{self, Action, Changed},
    config::PLANS,
    rfc3339,
};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

pub use self::{
    record::{Archive, FileState, GRACE},
    rows::{Copied, NotRestored, Part, Source, TABLES, Table, copy, delete, present, restore},
};

/// The longest time of one statement of an archive run. It is less than the default
/// `DATABASE_TIMEOUT`, so no statement of a service waits for a batch until it fails.
const STATEMENT_TIMEOUT: &str = "5s";
/// The longest wait for a row that an operator, a resend or retention has locked.
const LOCK_TIMEOUT: &str = "2s";

/// The key of the lock that lets only one archive run work at a time.
const RUN_LOCK: i64 = 0x6573_696d_6172_6368;

/// Reads the archives that match a condition.
macro_rules! archives {
    ($condition:literal $(, $argument:expr)*) => {
        sqlx::query!(
            r#"SELECT archive, folder, began_at, completed_at, ordered_before, orders, restored, first_at, last_at,
                      files::text AS "files!", keys, manifest_sha256, reserved_to, moved_to
               FROM archives "# + $condition
            $(, $argument)*
        )
        .try_map(|row| {
            let files = serde_json::from_str(&row.files)
                .map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
            Ok(Archive {
                archive: row.archive,
                folder: row.folder,
                began_at: row.began_at,
                completed_at: row.completed_at,
                ordered_before: row.ordered_before,
                orders: row.orders,
                restored: row.restored,
                first_at: row.first_at,
                last_at: row.last_at,
                files,
                keys: row.keys,
                manifest_sha256: row.manifest_sha256,
                reserved_to: row.reserved_to,
                moved_to: row.moved_to,
            })
        })
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
    let may_hold = |archive: &Archive| {
        let begins = archive.first_at.is_some_and(|first| first <= at + APART);
        begins && archive.last_at.is_some_and(|last| last >= at - APART)
    };
    let all = list(connection).await?;
    Ok(all.into_iter().filter(may_hold).collect())
}

/// The archive with this number.
pub async fn get(connection: &mut PgConnection, archive: i32) -> Result<Option<Archive>> {
    let found = archives!("WHERE archive = $1", archive);
    Ok(found.fetch_optional(connection).await?)
}

/// The archive whose run is not complete. There is at most one, because a run continues it before
/// it begins another one.
pub async fn unfinished(connection: &mut PgConnection) -> Result<Option<Archive>> {
    let found = archives!("WHERE completed_at IS NULL ORDER BY archive LIMIT 1");
    Ok(found.fetch_optional(connection).await?)
}

/// Prepares the session of an archive run: plans that find rows by an index as those of the
/// services do, and limits that end each statement before it can hold anything up.
pub async fn prepare(connection: &mut PgConnection) -> Result<()> {
    let limits = [
        ("statement_timeout", STATEMENT_TIMEOUT),
        ("lock_timeout", LOCK_TIMEOUT),
        // COPY is planned for each batch. To judge a merge join, the planner looks up the ends of the
        // indexes, and the oldest end is where the run has just deleted. Planning one COPY took 300 ms
        // because of that, and takes 15 ms without.
        ("enable_mergejoin", "off"),
        // The processors are for the orders that arrive.
        ("max_parallel_workers_per_gather", "0"),
        // A process that is stopped in the middle of a batch must not keep its snapshot for hours.
        ("idle_in_transaction_session_timeout", "60s"),
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

/// Begins an archive, and records the action. `folder` makes its folder's name from its number, and
/// `after` is an order up to which nothing can be archived.
pub async fn begin(
    connection: &mut PgConnection,
    folder: impl FnOnce(i32) -> String,
    after: Uuid,
    ordered_before: OffsetDateTime,
    action: Action<'_>,
) -> Result<Archive> {
    let mut transaction = connection.begin().await?;
    let next =
        sqlx::query_scalar!(r#"SELECT coalesce(max(archive), 0) + 1 AS "next!" FROM archives"#);
    let next = next.fetch_one(&mut *transaction).await?;
    let statement = sqlx::query!(
        "INSERT INTO archives (archive, folder, ordered_before, reserved_to, moved_to) VALUES ($1, $2, $3, $4, $4)",
        next,
        folder(next),
        ordered_before,
        after,
    );
    statement.execute(&mut *transaction).await?;
    let begun = get(&mut transaction, next).await?;
    let folder = begun.as_ref().map(|archive| &archive.folder);
    let changed = Changed::created(json!({
        "archive": next, "folder": folder, "ordered_before": rfc3339(ordered_before),
    }));
    actions::record(&mut transaction, action, 1, changed).await?;
    transaction.commit().await?;
    begun.ok_or_else(|| Error::Unreadable(format!("archive {next} is not there")))
}

/// The orders of one page of the table `orders`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
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
) -> Result<Option<Page>> {
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
    Ok(Some(Page {
        last,
        seen: ids.len(),
        finished: rows::finished(connection, &ids, rows::Terms::Waited).await?,
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

/// Reserves the external ids of the next finished orders, and returns the page. `None` if the
/// archive has passed all orders that are old enough.
pub async fn reserve(
    connection: &mut PgConnection,
    archive: &mut Archive,
    limit: u32,
) -> Result<Option<Page>> {
    let mut transaction = connection.begin().await?;
    let next = page(
        &mut transaction,
        archive.reserved_to,
        archive.ordered_before,
        limit,
    );
    let Some(page) = next.await? else {
        transaction.rollback().await?;
        return Ok(None);
    };
    let statement = sqlx::query!(
        "WITH reserved AS (
             INSERT INTO archived_orders (order_id, partner_id, external_order_id, refused, archive)
             SELECT order_id, partner_id, external_order_id, refused_at IS NOT NULL, $1
             FROM orders WHERE order_id = ANY ($2)
         )
         UPDATE archives SET reserved_to = $3 WHERE archive = $1",
        archive.archive,
        &page.finished,
        page.last,
    );
    statement.execute(&mut *transaction).await?;
    transaction.commit().await?;
    archive.reserved_to = page.last;
    Ok(Some(page))
}

/// The next orders that this archive has reserved and not moved, at most `limit`. An interrupted run
/// has left them.
pub async fn reserved(
    connection: &mut PgConnection,
    archive: &Archive,
    after: Uuid,
    limit: u32,
) -> Result<Vec<Uuid>> {
    let query = sqlx::query_scalar!(
        "SELECT order_id FROM archived_orders WHERE order_id > $2 AND order_id <= $3 AND archive = $1
         ORDER BY order_id LIMIT $4",
        archive.archive,
        after,
        archive.reserved_to,
        i64::from(limit),
    );
    Ok(query.fetch_all(connection).await?)
}

/// Marks an archive as complete, after its manifest is on disk, and records the action.
pub async fn complete(
    connection: &mut PgConnection,
    archive: &Archive,
    manifest_sha256: &str,
    action: Action<'_>,
) -> Result<()> {
    let mut transaction = connection.begin().await?;
    let statement = sqlx::query!(
        "UPDATE archives SET completed_at = now(), manifest_sha256 = $2 WHERE archive = $1",
        archive.archive,
        manifest_sha256,
    );
    statement.execute(&mut *transaction).await?;
    let changed = Changed::between(
        json!({ "archive": archive.archive, "complete": false }),
        json!({
            "archive": archive.archive, "complete": true, "orders": archive.orders,
            "manifest_sha256": manifest_sha256,
        }),
    );
    actions::record(&mut transaction, action, archive.orders, changed).await?;
    transaction.commit().await?;
    Ok(())
}
