//! Deletes what a cell has of the partners that live in another one (`esimctl cell purge`).
//!
//! After a division each side has a copy of the other's rows, which the membrane hides. They take
//! space, and what a partner may demand to be erased is still there. So they are deleted soon, some
//! orders at a time, beside the work of the stages. A purge that was interrupted goes on when it is
//! run again.

use pg::{Result, count};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::{
    division,
    membrane::{self, SEE, TABLES, locked, run},
    refusal::NotDivided,
};

/// How many orders, or rows of another table, one step deletes.
pub const STEP: i64 = 500;

/// Deletes orders with all that belongs to them.
const ORDERS: &str = "
    WITH o AS MATERIALIZED (SELECT order_id FROM orders WHERE partner_id = $1 ORDER BY order_id LIMIT $2),
    p AS MATERIALIZED (SELECT placement_id FROM placements WHERE order_id = ANY (ARRAY (SELECT order_id FROM o))),
    t AS MATERIALIZED (SELECT topup_id FROM topups WHERE placement_id = ANY (ARRAY (SELECT placement_id FROM p))),
    a AS (DELETE FROM further_deliveries WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM t))),
    b AS (DELETE FROM esim_requests WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM t))),
    c AS (DELETE FROM esims WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM t))),
    d AS (DELETE FROM topups WHERE topup_id = ANY (ARRAY (SELECT topup_id FROM t))),
    e AS (DELETE FROM placements WHERE placement_id = ANY (ARRAY (SELECT placement_id FROM p))),
    f AS (DELETE FROM history WHERE order_id = ANY (ARRAY (SELECT order_id FROM o)))
    DELETE FROM orders WHERE order_id = ANY (ARRAY (SELECT order_id FROM o))";
/// Deletes webhooks with their attempts.
const DELIVERIES: &str = "
    WITH d AS MATERIALIZED (SELECT delivery_id FROM deliveries WHERE partner_id = $1 ORDER BY created_at LIMIT $2),
    a AS (DELETE FROM delivery_attempts WHERE delivery_id = ANY (ARRAY (SELECT delivery_id FROM d)))
    DELETE FROM deliveries WHERE delivery_id = ANY (ARRAY (SELECT delivery_id FROM d))";
/// The tables whose rows are deleted by the partner that they name.
const NAMED: [(&str, &str); 5] = [
    ("work", "true"),
    ("held", "true"),
    // What a resend of several partners has sent stays with it.
    ("resends", "batch_id IS NULL OR ended_at IS NULL"),
    ("archived_orders", "true"),
    ("refused_requests", "true"),
];

/// The partners that live elsewhere. Fails while the cell divides, because their rows may come back.
pub async fn foreign(connection: &mut PgConnection) -> Result<Vec<Uuid>, NotDivided> {
    run(connection, SEE).await?;
    if let Some(to) = division::state(connection).await?.to {
        return Err(NotDivided::Dividing(to));
    }
    let query = "SELECT partner_id FROM partners WHERE moved_to IS NOT NULL ORDER BY partner_id";
    let found = sqlx::query_scalar(query).fetch_all(connection).await?;
    Ok(found)
}

/// How many orders there are of these partners.
pub async fn orders(connection: &mut PgConnection, partners: &[Uuid]) -> Result<u64> {
    let query = sqlx::query_scalar("SELECT count(*) FROM orders WHERE partner_id = ANY ($1)");
    Ok(count(query.bind(partners).fetch_one(connection).await?))
}

/// Deletes the next orders, webhooks and other rows of a partner. Returns the number of orders, and
/// whether there may be more of anything.
pub async fn step(connection: &mut PgConnection, partner: Uuid) -> Result<(u64, bool)> {
    let named = NAMED.map(|(table, condition)| {
        format!("DELETE FROM {table} WHERE ctid = ANY (ARRAY (SELECT ctid FROM {table} WHERE partner_id = $1 AND ({condition}) LIMIT $2))")
    });
    let mut statements = vec![ORDERS, DELIVERIES];
    statements.extend(named.iter().map(String::as_str));
    let mut deleted = Vec::with_capacity(statements.len());
    for statement in statements {
        let statement = sqlx::query(AssertSqlSafe(statement.to_owned()))
            .bind(partner)
            .bind(STEP);
        deleted.push(statement.execute(&mut *connection).await?.rows_affected());
    }
    Ok((deleted[0], deleted.iter().any(|rows| *rows > 0)))
}

/// Takes the membrane away, once nothing is left that it hides.
pub async fn end(connection: &mut PgConnection) -> Result<(), NotDivided> {
    locked(connection, &TABLES, async |connection| {
        let left = "SELECT EXISTS (SELECT FROM orders o JOIN partners p ON p.partner_id = o.partner_id WHERE p.moved_to IS NOT NULL)";
        if sqlx::query_scalar(left).fetch_one(&mut *connection).await? {
            return Ok(());
        }
        membrane::lower(connection).await?;
        Ok(())
    })
    .await
}
