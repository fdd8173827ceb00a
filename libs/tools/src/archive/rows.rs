//! The rows of archived orders: which orders are finished, and how their rows leave the tables and
//! come back.

use std::collections::HashMap;

use futures_util::TryStreamExt;
use pg::{Error, Result};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::record::{Archive, FileState, grace};

/// A table whose rows are archived.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub name: &'static str,
    /// Where the rows `r` of the orders `batch` come from, with the id of their order and the order
    /// in which they are written.
    from: &'static str,
    of_order: &'static str,
    sorted: &'static str,
    /// Archives of older versions have no file of it, because they had no such rows.
    pub optional: bool,
}

/// The units `t` of orders with their eSIMs `e`. A unit has at most two deliveries to the first
/// endpoint: that of its eSIM, and the event about its failure, whose id is derived from the topup.
/// Those to further endpoints are listed in a table.
macro_rules! of_delivery {
    ($table:literal) => {
        concat!(
            "placements p JOIN topups t ON t.placement_id = p.placement_id
             LEFT JOIN esims e ON e.topup_id = t.topup_id
             CROSS JOIN LATERAL unnest(ARRAY[e.delivery_id, md5('topup.failed ' || t.topup_id)::uuid]
                 || ARRAY (SELECT f.delivery_id FROM further_deliveries f WHERE f.topup_id = t.topup_id)) AS named (id)
             JOIN ",
            $table,
            " r ON r.delivery_id = named.id
             WHERE p.order_id"
        )
    };
}

/// The tables whose rows make up an order. Rows of `work` and `held` do not exist for a finished
/// order, and rows of `work` with the kind `erase` are made again by [`restore`].
pub const TABLES: [Table; 8] = [
    Table {
        name: "orders",
        from: "orders r WHERE r.order_id",
        of_order: "r.order_id",
        sorted: "r.order_id",
        optional: false,
    },
    Table {
        name: "placements",
        from: "placements r WHERE r.order_id",
        of_order: "r.order_id",
        sorted: "r.placement_id",
        optional: false,
    },
    Table {
        name: "topups",
        from: "placements p JOIN topups r ON r.placement_id = p.placement_id WHERE p.order_id",
        of_order: "p.order_id",
        sorted: "r.topup_id",
        optional: false,
    },
    Table {
        name: "esims",
        from: "placements p JOIN topups t ON t.placement_id = p.placement_id
               JOIN esims r ON r.topup_id = t.topup_id WHERE p.order_id",
        of_order: "p.order_id",
        sorted: "r.topup_id",
        optional: false,
    },
    Table {
        name: "deliveries",
        from: of_delivery!("deliveries"),
        of_order: "p.order_id",
        sorted: "r.delivery_id",
        optional: false,
    },
    Table {
        name: "delivery_attempts",
        from: of_delivery!("delivery_attempts"),
        of_order: "p.order_id",
        sorted: "r.delivery_id, r.attempt, r.at",
        optional: false,
    },
    Table {
        name: "further_deliveries",
        from: "placements p JOIN topups t ON t.placement_id = p.placement_id
               JOIN further_deliveries r ON r.topup_id = t.topup_id WHERE p.order_id",
        of_order: "p.order_id",
        sorted: "r.topup_id, r.delivery_id",
        optional: true,
    },
    Table {
        name: "history",
        from: "history r WHERE r.order_id",
        of_order: "r.order_id",
        sorted: "r.at, r.history_id",
        optional: true,
    },
];

impl Table {
    /// Copies the rows of the orders that the setting `esim.archive_orders` lists. The first column
    /// is the order of the row, so that the rows of one order are found in each file.
    fn copy(self) -> String {
        let Self {
            from,
            of_order,
            sorted,
            ..
        } = self;
        format!(
            "COPY (SELECT {of_order} AS of_order, r.* FROM {from} = ANY (current_setting('esim.archive_orders')::uuid[])
                   ORDER BY {of_order}, {sorted}) TO STDOUT (FORMAT csv, HEADER)"
        )
    }
}

/// Whether an order with a profile or an attempt waits until retention has erased it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Terms {
    /// It does if the class has a term, because retention cannot erase in files.
    Waited,
    /// It does not. A restore brings orders back whose term may have been set since.
    Ignored,
}

/// Those of the orders that are finished, in the order of their ids.
///
/// An order is finished when nothing will happen to it by itself, and nobody is expected to act:
/// each placement is placed, failed or refused; each unit has failed or has its eSIM; each webhook
/// about it is delivered, or was given up because the order was erased; nothing of it is in
/// `work` or `held`; and no question about an eSIM of it is open. So parked placements, exhausted
/// webhooks and webhooks without a URL keep an order in the tables until somebody resolves them.
pub(super) async fn finished(
    connection: &mut PgConnection,
    ids: &[Uuid],
    terms: Terms,
) -> Result<Vec<Uuid>> {
    let query = sqlx::query_scalar!(
        r#"WITH term AS MATERIALIZED (
               SELECT $2 AND bool_or(name = 'profiles' AND days IS NOT NULL) AS profiles_end,
                      $2 AND bool_or(name = 'attempts' AND days IS NOT NULL) AS attempts_end
               FROM walks
           ), unit AS MATERIALIZED (
               SELECT p.order_id, p.placement_id, t.topup_id, p.state AS placement, t.state, e.ready_at, e.delivery_id,
                      ARRAY (SELECT f.delivery_id FROM further_deliveries f WHERE f.topup_id = t.topup_id) AS further,
                      e.profile IS NOT NULL AS has_profile,
                      -- The id of the event `topup.failed` is derived from the topup.
                      md5('topup.failed ' || t.topup_id)::uuid AS event_id
               FROM placements p
               LEFT JOIN topups t ON t.placement_id = p.placement_id
               LEFT JOIN esims e ON e.topup_id = t.topup_id
               WHERE p.order_id = ANY ($1)
           ), webhook AS MATERIALIZED (
               SELECT unit.order_id, d.delivery_id, d.state FROM unit
               CROSS JOIN LATERAL unnest(ARRAY[unit.delivery_id, unit.event_id] || unit.further) AS named (id)
               JOIN deliveries d ON d.delivery_id = named.id
           ), open AS (
               SELECT order_id FROM unit
               WHERE placement NOT IN ('placed', 'failed', 'refused')
                  OR (state <> 'failed' AND ready_at IS NULL)
                  OR (has_profile AND (SELECT profiles_end FROM term))
                  OR (SELECT true FROM work w WHERE w.id = unit.placement_id)
                  OR (SELECT true FROM held h WHERE h.id = unit.placement_id)
                  OR (SELECT r.usage_asked_at IS NOT NULL OR r.give_back IN ('asked', 'sending', 'parked') FROM esim_requests r
                      WHERE r.topup_id = unit.topup_id)
               UNION ALL
               SELECT order_id FROM webhook
               WHERE state NOT IN ('delivered', 'exhausted')
                  OR (SELECT true FROM work w WHERE w.id = webhook.delivery_id)
                  OR (SELECT true FROM held h WHERE h.id = webhook.delivery_id)
                  OR ((SELECT attempts_end FROM term)
                      AND (SELECT true FROM delivery_attempts a WHERE a.delivery_id = webhook.delivery_id LIMIT 1))
           )
           SELECT o.order_id FROM orders o
           WHERE o.order_id = ANY ($1) AND o.order_id <> ALL (ARRAY (SELECT order_id FROM open))
             AND o.answer_by < now()
           ORDER BY o.order_id"#,
        ids,
        terms == Terms::Waited,
    );
    Ok(query.fetch_all(connection).await?)
}

/// The rows of one table, in CSV with a header. The first column is the id of the order.
#[derive(Clone, Debug)]
pub struct Part {
    pub table: &'static str,
    pub csv: Vec<u8>,
}

/// A batch of orders whose rows are locked and copied, and not deleted yet.
#[derive(Clone, Debug)]
pub struct Copied {
    /// All orders of the batch.
    batch: Vec<Uuid>,
    /// Those whose rows were copied. The others stay in the tables, because they are not finished
    /// any more or are restored or gone.
    pub orders: Vec<Uuid>,
    /// The rows, in the order of [`TABLES`].
    pub parts: Vec<Part>,
    /// The ids of the master keys that their profiles and responses need.
    keys: Vec<String>,
}

impl Copied {
    /// The orders of the batch that stay in the tables.
    fn left(&self) -> Vec<Uuid> {
        let stays = |id: &&Uuid| !self.orders.contains(id);
        self.batch.iter().filter(stays).copied().collect()
    }
}

/// Locks the rows of these reserved orders, and copies the rows of those that are still finished.
/// It runs in a transaction, which [`delete`] continues.
///
/// The locks let a resend, an erasure or a new encryption that is under way end first, and make
/// later ones wait for this batch. So what is copied is exactly what is deleted.
pub async fn copy(
    transaction: &mut PgConnection,
    archive: &Archive,
    batch: &[Uuid],
) -> Result<Copied> {
    let query = sqlx::query_scalar!(
        "SELECT order_id FROM orders o
         WHERE order_id = ANY ($1)
           AND (SELECT a.archive = $2 AND a.archived_at < now() - make_interval(secs => $3)
                FROM archived_orders a WHERE a.order_id = o.order_id)
         ORDER BY order_id FOR UPDATE",
        batch,
        archive.archive,
        grace(),
    );
    let reserved = query.fetch_all(&mut *transaction).await?;
    let query = sqlx::query!(
        "SELECT placement_id FROM placements WHERE order_id = ANY ($1) ORDER BY placement_id FOR UPDATE",
        &reserved,
    );
    query.fetch_all(&mut *transaction).await?;
    let query = sqlx::query!(
        "SELECT e.topup_id FROM placements p
         JOIN topups t ON t.placement_id = p.placement_id
         JOIN esims e ON e.topup_id = t.topup_id
         WHERE p.order_id = ANY ($1) ORDER BY e.topup_id FOR UPDATE OF e",
        &reserved,
    );
    query.fetch_all(&mut *transaction).await?;
    let query = sqlx::query!(
        "SELECT d.delivery_id FROM placements p
         JOIN topups t ON t.placement_id = p.placement_id
         LEFT JOIN esims e ON e.topup_id = t.topup_id
         CROSS JOIN LATERAL unnest(
             ARRAY[e.delivery_id, md5('topup.failed ' || t.topup_id)::uuid]
             || ARRAY (SELECT f.delivery_id FROM further_deliveries f WHERE f.topup_id = t.topup_id)) AS named (id)
         JOIN deliveries d ON d.delivery_id = named.id
         WHERE p.order_id = ANY ($1) ORDER BY d.delivery_id FOR UPDATE OF d",
        &reserved,
    );
    query.fetch_all(&mut *transaction).await?;
    // Judged again behind the locks.
    let orders = finished(&mut *transaction, &reserved, Terms::Waited).await?;
    let listed: Vec<String> = orders.iter().map(Uuid::to_string).collect();
    sqlx::query(
        "SELECT set_config('esim.archive_orders', $1, true), set_config('timezone', 'UTC', true),
                set_config('datestyle', 'ISO', true), set_config('bytea_output', 'hex', true)",
    )
    .bind(format!("{{{}}}", listed.join(",")))
    .execute(&mut *transaction)
    .await?;
    let mut parts = Vec::with_capacity(TABLES.len());
    for table in TABLES {
        let mut csv = Vec::new();
        let mut rows = transaction.copy_out_raw(&table.copy()).await?;
        while let Some(bytes) = rows.try_next().await? {
            csv.extend_from_slice(&bytes);
        }
        parts.push(Part {
            table: table.name,
            csv,
        });
    }
    Ok(Copied {
        batch: batch.to_vec(),
        keys: keys(transaction, &orders).await?,
        orders,
        parts,
    })
}

/// The ids of the master keys that the sealed values of these orders name. A sealed value begins
/// with the length of the key's id and the id itself ([`vault`]).
async fn keys(transaction: &mut PgConnection, orders: &[Uuid]) -> Result<Vec<String>> {
    let query = sqlx::query_scalar!(
        r#"WITH unit AS MATERIALIZED (
               SELECT e.delivery_id, e.profile, md5('topup.failed ' || t.topup_id)::uuid AS event_id,
                      ARRAY (SELECT f.delivery_id FROM further_deliveries f WHERE f.topup_id = t.topup_id) AS further
               FROM placements p
               JOIN topups t ON t.placement_id = p.placement_id
               LEFT JOIN esims e ON e.topup_id = t.topup_id
               WHERE p.order_id = ANY ($1)
           ), sealed AS (
               SELECT profile AS value FROM unit WHERE profile IS NOT NULL
               UNION ALL
               SELECT a.answer FROM unit
               JOIN delivery_attempts a ON a.delivery_id = ANY (ARRAY[unit.delivery_id, unit.event_id] || unit.further)
               WHERE a.answer IS NOT NULL
           )
           SELECT DISTINCT substring(value FROM 2 FOR get_byte(value, 0)) AS "key!" FROM sealed
           WHERE length(value) > 0 AND get_byte(value, 0) BETWEEN 1 AND 32 AND length(value) > get_byte(value, 0)"#,
        orders,
    );
    let heads = query.fetch_all(transaction).await?;
    Ok(heads
        .iter()
        .map(|key| String::from_utf8_lossy(key).into_owned())
        .collect())
}

/// The states of the files by their names, as JSON.
fn in_words(files: &[(String, FileState)]) -> Result<String> {
    let states = files.iter().map(|(name, state)| (name.as_str(), *state));
    let states: std::collections::BTreeMap<&str, FileState> = states.collect();
    serde_json::to_string(&states).map_err(|error| Error::Unreadable(error.to_string()))
}

/// Deletes the copied rows after they are on disk, and records how long each file is now. Fails if
/// other rows would be deleted than were copied; the caller then rolls back.
pub async fn delete(
    transaction: &mut PgConnection,
    archive: &mut Archive,
    copied: &Copied,
    rows: &[u64],
    files: &[(String, FileState)],
) -> Result<()> {
    let deleted = sqlx::query!(
        r#"WITH unit AS MATERIALIZED (
               SELECT p.placement_id, t.topup_id, e.delivery_id, md5('topup.failed ' || t.topup_id)::uuid AS event_id
               FROM placements p
               JOIN topups t ON t.placement_id = p.placement_id
               LEFT JOIN esims e ON e.topup_id = t.topup_id
               WHERE p.order_id = ANY ($1)
           ), webhook AS MATERIALIZED (
               SELECT delivery_id AS id FROM unit WHERE delivery_id IS NOT NULL UNION ALL SELECT event_id FROM unit
               UNION ALL SELECT f.delivery_id FROM further_deliveries f
               WHERE f.topup_id = ANY (ARRAY (SELECT topup_id FROM unit))
           ), attempts AS (
               DELETE FROM delivery_attempts WHERE delivery_id = ANY (ARRAY (SELECT id FROM webhook)) RETURNING 1
           ), deliveries AS (
               DELETE FROM deliveries WHERE delivery_id = ANY (ARRAY (SELECT id FROM webhook)) RETURNING 1
           ), links AS (
               DELETE FROM further_deliveries WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM unit)) RETURNING 1
           ), late AS (
               DELETE FROM work WHERE id = ANY (ARRAY (
                   SELECT md5(kind || ' ' || topup_id)::uuid
                   FROM unit CROSS JOIN unnest('{erase,usage,give_back}'::text[]) AS kind))
           ), asked AS (DELETE FROM esim_requests WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM unit))
           ), esims AS (
               DELETE FROM esims WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM unit)) RETURNING 1
           ), topups AS (
               DELETE FROM topups WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM unit)) RETURNING 1
           ), placements AS (
               DELETE FROM placements WHERE placement_id = ANY (ARRAY (SELECT placement_id FROM unit)) RETURNING 1
           ), history AS (
               DELETE FROM history WHERE order_id = ANY ($1) RETURNING 1
           ), orders AS (
               DELETE FROM orders WHERE order_id = ANY ($1) RETURNING partner_id, created_at
           )
           SELECT (SELECT count(*) FROM orders) AS "orders!", (SELECT count(*) FROM placements) AS "placements!",
                  (SELECT count(*) FROM topups) AS "topups!", (SELECT count(*) FROM esims) AS "esims!",
                  (SELECT count(*) FROM deliveries) AS "deliveries!", (SELECT count(*) FROM attempts) AS "attempts!",
                  (SELECT count(*) FROM links) AS "links!", (SELECT count(*) FROM history) AS "history!",
                  (SELECT min(created_at) FROM orders) AS first_at, (SELECT max(created_at) FROM orders) AS last_at,
                  (SELECT jsonb_object_agg(partner_id, n)::text
                   FROM (SELECT partner_id, count(*) AS n FROM orders GROUP BY partner_id) AS counted) AS partners"#,
        &copied.orders,
    );
    let deleted = deleted.fetch_one(&mut *transaction).await?;
    let counts = [
        deleted.orders,
        deleted.placements,
        deleted.topups,
        deleted.esims,
        deleted.deliveries,
        deleted.attempts,
        deleted.links,
        deleted.history,
    ]
    .map(pg::count);
    if counts != *rows {
        return Err(Error::Unreadable(format!(
            "the rows of a batch differ from its files, so it is rolled back: deleted {counts:?}, copied {rows:?}"
        )));
    }
    let left = copied.left();
    let moved_to = copied.batch.last().copied().unwrap_or(archive.moved_to);
    let moved = deleted.orders;
    let after = in_words(files)?;
    // `free` ends the reservations of orders that stay in the tables.
    let recorded = sqlx::query!(
        r#"WITH free AS (
               DELETE FROM archived_orders WHERE order_id = ANY ($6)
           )
           UPDATE archives
           SET moved_to = $2, orders = orders + $3, files = $4::text::jsonb,
               keys = ARRAY (SELECT DISTINCT key FROM unnest(keys || $5::text[]) key ORDER BY key),
               first_at = least(first_at, $7), last_at = greatest(last_at, $8),
               partners = (SELECT coalesce(jsonb_object_agg(key, n), '{}')
                           FROM (SELECT key, sum(value::bigint) AS n
                                 FROM (SELECT key, value FROM jsonb_each_text(partners)
                                       UNION ALL SELECT key, value FROM jsonb_each_text($9::text::jsonb)) pair
                                 GROUP BY key) AS summed)
           WHERE archive = $1
           RETURNING keys, first_at, last_at"#,
        archive.archive,
        moved_to,
        moved,
        after,
        &copied.keys,
        &left,
        deleted.first_at,
        deleted.last_at,
        deleted.partners.as_deref().unwrap_or("{}"),
    );
    let recorded = recorded.fetch_one(transaction).await?;
    archive.moved_to = moved_to;
    archive.orders += moved;
    archive.files = files.iter().cloned().collect();
    archive.keys = recorded.keys;
    archive.first_at = recorded.first_at;
    archive.last_at = recorded.last_at;
    Ok(())
}

/// Why orders were not restored. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum NotRestored {
    /// These orders belong to partners that were erased after the orders were archived.
    #[error(
        "the partners of these orders were erased, and a restore would bring their data back: {0:?}"
    )]
    PartnerErased(Vec<Uuid>),
    #[error("the archive names a table or column that this version does not know: {0:?}")]
    UnknownColumn(String),
    /// The database has not written these files, or does not know any more that it has.
    #[error(
        "the database has no record of archive {0} with this manifest, so it cannot know whether these files are its own"
    )]
    Unrecorded(i32),
    /// Something would happen to these orders after the restore, for example a purchase. An archive
    /// run takes finished orders only, so it has not written these rows.
    #[error(
        "these orders are not finished, so no archive run has written them, and a restore might buy or deliver something: {0:?}"
    )]
    NotFinished(Vec<Uuid>),
    #[error("{0} has rows of other orders than the file says, so no archive run has written them")]
    ForeignRows(&'static str),
    #[error(
        "rows of partners that live in another cell are hidden, and until `esimctl cell purge` has ended nothing can be put back"
    )]
    Hidden,
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(NotRestored);

/// Those of the orders that are in the tables now.
pub async fn present(connection: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<Uuid>> {
    let query = sqlx::query_scalar!("SELECT order_id FROM orders WHERE order_id = ANY ($1)", ids);
    Ok(query.fetch_all(connection).await?)
}

/// The files that orders are restored from.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The number in the manifest.
    pub archive: i32,
    /// The SHA-256 of the manifest, which holds those of all files. The database has recorded it.
    pub manifest_sha256: &'a str,
    /// The operator knows that the database has no record of the archive, because it was restored
    /// from an older backup, and vouches for the files.
    pub unrecorded: bool,
}

/// Puts the rows of these orders back into the tables, in the transaction of the caller. `parts`
/// have the columns of their header and no column for the order.
///
/// The rows are inserted by COPY, so every column gets the text that COPY has written. Profiles get
/// a row in `work`, because the walk of retention has passed their time and would not erase them
/// otherwise.
///
/// Files can be forged, and an order that is restored unfinished would be bought. So the transaction
/// itself proves what the archive run has demanded: each row belongs to one of the orders, and each
/// order is finished. An unrecorded source is no exception.
pub async fn restore(
    transaction: &mut PgConnection,
    source: Source<'_>,
    orders: &[Uuid],
    parts: &[Part],
) -> Result<(), NotRestored> {
    let archive = source.archive;
    let recorded = sqlx::query_scalar!(
        "SELECT manifest_sha256 FROM archives WHERE archive = $1",
        archive
    );
    let recorded = recorded.fetch_optional(&mut *transaction).await?.flatten();
    let is_recorded = recorded.as_deref() == Some(source.manifest_sha256);
    if !is_recorded && !source.unrecorded {
        return Err(NotRestored::Unrecorded(archive));
    }
    copy_in(transaction, orders, parts).await?;
    let query = sqlx::query_scalar!(
        "SELECT o.order_id FROM orders o JOIN partners p ON p.partner_id = o.partner_id
         WHERE o.order_id = ANY ($1) AND p.erased_at IS NOT NULL ORDER BY o.order_id",
        orders,
    );
    let erased = query.fetch_all(&mut *transaction).await?;
    if !erased.is_empty() {
        return Err(NotRestored::PartnerErased(erased));
    }
    let finished = finished(transaction, orders, Terms::Ignored).await?;
    let open: Vec<Uuid> = orders
        .iter()
        .filter(|id| !finished.contains(id))
        .copied()
        .collect();
    if !open.is_empty() {
        return Err(NotRestored::NotFinished(open));
    }
    // The number of an unrecorded archive may have been given to another one since.
    let statement = sqlx::query!(
        "WITH forgotten AS (
             DELETE FROM archived_orders WHERE order_id = ANY ($2)
         ), late AS (
             INSERT INTO work (id, kind, provider, lane, partner_id, at)
             SELECT md5('erase ' || e.topup_id)::uuid, 'erase', '', e.topup_id, p.partner_id, now() FROM placements p
             JOIN topups t ON t.placement_id = p.placement_id
             JOIN esims e ON e.topup_id = t.topup_id
             WHERE p.order_id = ANY ($2) AND e.profile IS NOT NULL
             ON CONFLICT DO NOTHING
         )
         UPDATE archives SET restored = restored + cardinality($2) WHERE archive = $1 AND $3",
        archive,
        orders,
        is_recorded,
    );
    statement.execute(transaction).await?;
    Ok(())
}

/// Inserts the rows, and checks that they are rows of these orders: the first column of a file,
/// which says so, is not part of the row.
async fn copy_in(
    transaction: &mut PgConnection,
    orders: &[Uuid],
    parts: &[Part],
) -> Result<(), NotRestored> {
    if crate::cells::membrane::is_up(transaction).await? {
        return Err(NotRestored::Hidden);
    }
    let mut copied: HashMap<&str, u64> = HashMap::new();
    for part in parts {
        let known = TABLES.iter().any(|table| table.name == part.table);
        let header = part.csv.split(|byte| *byte == b'\n').next();
        let header = String::from_utf8_lossy(header.unwrap_or_default()).into_owned();
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_' || byte == b',';
        if !known || header.is_empty() || !header.bytes().all(is_name) {
            return Err(NotRestored::UnknownColumn(format!(
                "{} ({header})",
                part.table
            )));
        }
        let statement = format!(
            "COPY {} ({header}) FROM STDIN (FORMAT csv, HEADER)",
            part.table
        );
        let mut rows = transaction.copy_in_raw(&statement).await?;
        rows.send(part.csv.as_slice()).await?;
        *copied.entry(part.table).or_default() += rows.finish().await?;
    }
    for table in TABLES {
        let Table { name, from, .. } = table;
        let statement = AssertSqlSafe(format!("SELECT count(*) FROM {from} = ANY ($1)"));
        let found: i64 = sqlx::query_scalar(statement)
            .bind(orders)
            .fetch_one(&mut *transaction)
            .await?;
        if pg::count(found) != copied.get(name).copied().unwrap_or_default() {
            return Err(NotRestored::ForeignRows(name));
        }
    }
    Ok(())
}
