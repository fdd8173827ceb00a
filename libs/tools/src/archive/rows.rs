//! The rows of archived orders: which orders are finished, and how their rows leave the tables.

use std::fmt::Write;

use pg::{Error, Result, Transaction, seconds};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::record::{Archive, GRACE};

/// A table whose rows are archived.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub name: &'static str,
    /// Where the rows `r` of the order `o` come from, and the order in which they are written.
    from: &'static str,
    sorted: &'static str,
    /// The columns for which `null` is written.
    secret: &'static [&'static str],
}

/// The tables whose rows make up an order, beside `orders`. Rows of `work` and `held` do not exist
/// for a finished order.
///
/// No file has an activation code, so `null` stands for what opens one: an order leaves only when
/// its profiles are erased, and what an endpoint answered, which may repeat what it was sent, stays
/// out with them.
pub const TABLES: [Table; 8] = [
    Table {
        name: "placements",
        from: "placements r WHERE r.order_id = o.order_id",
        sorted: "r.placement_id",
        secret: &["first_claim"],
    },
    Table {
        name: "topups",
        from: "placements p JOIN topups r ON r.placement_id = p.placement_id WHERE p.order_id = o.order_id",
        sorted: "r.topup_id",
        secret: &[],
    },
    Table {
        name: "esims",
        from: "placements p JOIN topups t ON t.placement_id = p.placement_id
               JOIN esims r ON r.topup_id = t.topup_id WHERE p.order_id = o.order_id",
        sorted: "r.topup_id",
        secret: &["profile", "code_digest"],
    },
    Table {
        name: "deliveries",
        from: "order_deliveries n JOIN deliveries r ON r.delivery_id = n.delivery_id WHERE n.order_id = o.order_id",
        sorted: "r.delivery_id",
        secret: &[],
    },
    Table {
        name: "delivery_attempts",
        from: "order_deliveries n JOIN delivery_attempts r ON r.delivery_id = n.delivery_id WHERE n.order_id = o.order_id",
        sorted: "r.delivery_id, r.attempt, r.at",
        secret: &["response_start"],
    },
    Table {
        name: "further_deliveries",
        from: "placements p JOIN topups t ON t.placement_id = p.placement_id
               JOIN further_deliveries r ON r.topup_id = t.topup_id WHERE p.order_id = o.order_id",
        sorted: "r.topup_id, r.delivery_id",
        secret: &[],
    },
    Table {
        name: "topup_changes",
        from: "placements p JOIN topups t ON t.placement_id = p.placement_id
               JOIN topup_changes r ON r.topup_id = t.topup_id WHERE p.order_id = o.order_id",
        sorted: "r.at, r.topup_id, r.change",
        secret: &[],
    },
    Table {
        name: "history",
        from: "history r WHERE r.order_id = o.order_id",
        sorted: "r.at, r.history_id",
        secret: &[],
    },
];

/// The statement that reads each order with its rows as one JSON object, and how many rows it has
/// of each table.
fn reading() -> String {
    let mut object = String::from("jsonb_build_object('orders', to_jsonb(o)");
    let mut counts = String::from("1");
    for table in TABLES {
        let Table {
            name,
            from,
            sorted,
            secret,
        } = table;
        let row = secret.iter().fold("to_jsonb(r)".to_owned(), |row, column| {
            format!("jsonb_set({row}, '{{{column}}}', 'null')")
        });
        let _ = write!(
            object,
            ", '{name}', coalesce((SELECT jsonb_agg({row} ORDER BY {sorted}) FROM {from}), '[]')"
        );
        let _ = write!(counts, ", jsonb_array_length(line->'{name}')");
    }
    // OFFSET 0 keeps the object from being made once for each count.
    format!(
        "SELECT line::text AS line, ARRAY[{counts}]::bigint[] AS counts
         FROM (SELECT o.order_id, {object}) AS line FROM orders o WHERE o.order_id = ANY ($1) OFFSET 0) made
         ORDER BY order_id"
    )
}

/// Those of the orders that are finished, in the order of their ids.
///
/// An order is finished when nothing will happen to it by itself, and nobody is expected to act:
/// each placement is placed, failed or refused; each unit has failed or has its eSIM; each webhook
/// about it is delivered, or was given up because the order was erased; nothing of it is in
/// `work` or `held`; and no question about an eSIM of it is open. So parked placements, exhausted
/// webhooks and webhooks without a URL keep an order in the tables until somebody resolves them.
/// An order also waits until retention has erased its profiles, and its attempts if these have a
/// term: no file may have an activation code, and none is thrown away with its order.
pub(super) async fn finished(connection: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<Uuid>> {
    let query = sqlx::query_scalar!(
        r#"WITH unit AS MATERIALIZED (
               SELECT p.order_id, p.placement_id, t.topup_id, p.state AS placement, t.state, e.ready_at,
                      e.profile IS NOT NULL AS has_profile
               FROM placements p
               LEFT JOIN topups t ON t.placement_id = p.placement_id
               LEFT JOIN esims e ON e.topup_id = t.topup_id
               WHERE p.order_id = ANY ($1)
           ), webhook AS MATERIALIZED (
               SELECT n.order_id, d.delivery_id, d.state FROM order_deliveries n
               JOIN deliveries d ON d.delivery_id = n.delivery_id
               WHERE n.order_id = ANY ($1)
           ), open AS (
               SELECT order_id FROM unit
               WHERE placement NOT IN ('placed', 'failed', 'refused')
                  OR (state <> 'failed' AND ready_at IS NULL)
                  OR has_profile
                  OR (SELECT true FROM work w WHERE w.id = unit.placement_id)
                  OR (SELECT true FROM held h WHERE h.id = unit.placement_id)
                  OR (SELECT true FROM work w WHERE w.id = derived_id('report', unit.topup_id))
                  OR (SELECT r.usage_asked_at IS NOT NULL OR r.give_back IN ('asked', 'sending', 'claimed', 'parked')
                             OR r.suspension IN ('asked', 'sending')
                      FROM esim_requests r WHERE r.topup_id = unit.topup_id)
                  OR (SELECT true FROM extensions x
                      WHERE x.topup_id = unit.topup_id AND x.state IN ('asked', 'sending', 'parked'))
               UNION ALL
               SELECT order_id FROM webhook
               WHERE state NOT IN ('delivered', 'exhausted')
                  OR (SELECT true FROM work w WHERE w.id = webhook.delivery_id)
                  OR (SELECT true FROM held h WHERE h.id = webhook.delivery_id)
                  OR ((SELECT days IS NOT NULL FROM walks WHERE name = 'attempts')
                      AND (SELECT true FROM delivery_attempts a WHERE a.delivery_id = webhook.delivery_id LIMIT 1))
           )
           SELECT o.order_id FROM orders o
           WHERE o.order_id = ANY ($1) AND o.order_id <> ALL (ARRAY (SELECT order_id FROM open))
             AND o.answer_by < now()
           ORDER BY o.order_id"#,
        ids,
    );
    Ok(query.fetch_all(connection).await?)
}

/// The orders of an archive whose rows are locked and copied, and not deleted yet.
#[derive(Clone, Debug)]
pub struct CopiedOrders {
    /// Those of the reserved orders whose rows were copied.
    pub orders: Vec<Uuid>,
    /// The others, which stay in the tables, because they are no longer finished.
    left: Vec<Uuid>,
    /// One line for each order: a JSON object with its row and, by the names of [`TABLES`], those
    /// of its other rows.
    pub lines: String,
    /// How many rows the lines have: of `orders`, and then of each of [`TABLES`].
    pub rows: Vec<u64>,
}

/// Locks the rows of these orders, which are reserved for the archive, and copies the rows of those
/// that are still finished. It runs in a transaction, which [`complete`] continues.
///
/// The locks let a resend, an erasure or a new encryption that is under way end first, and make
/// later ones wait for this transaction. So what is copied is exactly what is deleted.
pub async fn copy(
    transaction: &mut Transaction<'_>,
    archive: &Archive,
    orders: &[Uuid],
) -> Result<CopiedOrders> {
    let query = sqlx::query_scalar!(
        "SELECT order_id FROM orders o
         WHERE order_id = ANY ($1)
           AND (SELECT a.archive = $2 AND a.archived_at < now() - make_interval(secs => $3)
                FROM archived_orders a WHERE a.order_id = o.order_id)
         ORDER BY order_id FOR UPDATE",
        orders,
        archive.archive,
        seconds(GRACE),
    );
    let reserved = query.fetch_all(&mut **transaction).await?;
    let query = sqlx::query!(
        "SELECT placement_id FROM placements WHERE order_id = ANY ($1) ORDER BY placement_id FOR UPDATE",
        &reserved,
    );
    query.fetch_all(&mut **transaction).await?;
    let query = sqlx::query!(
        "SELECT e.topup_id FROM placements p
         JOIN topups t ON t.placement_id = p.placement_id
         JOIN esims e ON e.topup_id = t.topup_id
         WHERE p.order_id = ANY ($1) ORDER BY e.topup_id FOR UPDATE OF e",
        &reserved,
    );
    query.fetch_all(&mut **transaction).await?;
    let query = sqlx::query!(
        "SELECT d.delivery_id FROM deliveries d
         WHERE d.delivery_id = ANY (ARRAY (SELECT delivery_id FROM order_deliveries WHERE order_id = ANY ($1)))
         ORDER BY d.delivery_id FOR UPDATE",
        &reserved,
    );
    query.fetch_all(&mut **transaction).await?;
    let all = orders;
    // Judged again behind the locks.
    let orders = finished(transaction, &reserved).await?;
    let read: Vec<(String, Vec<i64>)> = sqlx::query_as(AssertSqlSafe(reading()))
        .bind(&orders)
        .fetch_all(&mut **transaction)
        .await?;
    let mut left = all.to_vec();
    left.retain(|id| !orders.contains(id));
    let mut copied = CopiedOrders {
        orders,
        left,
        lines: String::new(),
        rows: vec![0; TABLES.len() + 1],
    };
    for (line, counts) in read {
        copied.lines.push_str(&line);
        copied.lines.push('\n');
        for (sum, count) in copied.rows.iter_mut().zip(counts) {
            *sum += pg::count(count);
        }
    }
    Ok(copied)
}

/// The error of a run whose archive is complete, or has another file by now.
pub(super) fn lost(archive: &Archive) -> Error {
    Error::Unreadable(format!(
        "archive {} is complete, or another `esimctl archive run` goes on with it; see `esimctl archive list`",
        archive.archive
    ))
}

/// Deletes the copied rows after their file is stored, and completes the archive. Fails if other
/// rows would be deleted than were copied, or if the archive is complete or has another file by
/// now; the caller then rolls back.
pub async fn complete(
    transaction: &mut Transaction<'_>,
    archive: &mut Archive,
    copied: &CopiedOrders,
    sha256: &str,
) -> Result<()> {
    let deleted = sqlx::query!(
        r#"WITH unit AS MATERIALIZED (
               SELECT p.placement_id, t.topup_id FROM placements p
               JOIN topups t ON t.placement_id = p.placement_id
               WHERE p.order_id = ANY ($1)
           ), webhook AS MATERIALIZED (
               SELECT delivery_id AS id FROM order_deliveries WHERE order_id = ANY ($1)
           ), attempts AS (
               DELETE FROM delivery_attempts WHERE delivery_id = ANY (ARRAY (SELECT id FROM webhook)) RETURNING 1
           ), deliveries AS (
               DELETE FROM deliveries WHERE delivery_id = ANY (ARRAY (SELECT id FROM webhook)) RETURNING 1
           ), links AS (
               DELETE FROM further_deliveries WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM unit)) RETURNING 1
           ), changes AS (
               DELETE FROM topup_changes WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM unit)) RETURNING 1
           ), late AS (
               DELETE FROM work WHERE id = ANY (ARRAY (
                   SELECT unnest(work_of_topup(topup_id)) FROM unit))
           ), asked AS (DELETE FROM esim_requests WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM unit))
           ), esims AS (
               DELETE FROM esims WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM unit)) RETURNING 1
           ), topups AS (
               DELETE FROM topups WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM unit)) RETURNING 1
           ), placements AS (
               DELETE FROM placements WHERE order_id = ANY ($1) RETURNING 1
           ), history AS (
               DELETE FROM history WHERE order_id = ANY ($1) RETURNING 1
           ), orders AS (
               DELETE FROM orders WHERE order_id = ANY ($1) RETURNING partner_id
           )
           SELECT ARRAY[(SELECT count(*) FROM orders), (SELECT count(*) FROM placements), (SELECT count(*) FROM topups),
                        (SELECT count(*) FROM esims), (SELECT count(*) FROM deliveries), (SELECT count(*) FROM attempts),
                        (SELECT count(*) FROM links), (SELECT count(*) FROM changes), (SELECT count(*) FROM history)] AS "rows!",
                  (SELECT jsonb_object_agg(partner_id, n)::text
                   FROM (SELECT partner_id, count(*) AS n FROM orders GROUP BY partner_id) AS counted) AS partners"#,
        &copied.orders,
    );
    let deleted = deleted.fetch_one(&mut **transaction).await?;
    let rows: Vec<u64> = deleted.rows.into_iter().map(pg::count).collect();
    if rows != copied.rows {
        return Err(Error::Unreadable(format!(
            "the rows of archive {} differ from its file, so it is rolled back: deleted {rows:?}, copied {:?}",
            archive.archive, copied.rows
        )));
    }
    // The reservations of orders that stay in the tables end.
    let completed = sqlx::query!(
        "WITH free AS (
             DELETE FROM archived_orders WHERE order_id = ANY ($2)
         )
         UPDATE archives SET completed_at = now(), orders = $3, sha256 = $4, partners = $5::text::jsonb
         WHERE archive = $1 AND file = $6 AND completed_at IS NULL
         RETURNING completed_at, orders, sha256",
        archive.archive,
        &copied.left,
        i64::try_from(copied.orders.len()).unwrap_or(i64::MAX),
        sha256,
        deleted.partners.as_deref().unwrap_or("{}"),
        archive.file,
    );
    let completed = completed.fetch_optional(&mut **transaction).await?;
    let completed = completed.ok_or_else(|| lost(archive))?;
    archive.completed_at = completed.completed_at;
    archive.orders = completed.orders;
    archive.sha256 = completed.sha256;
    Ok(())
}
