//! Where an order is that is no longer in the tables. `tools::archive` moves it into a file.

use domain::{PartnerId, TopupId};
use pg::Result;
use sqlx::PgConnection;
use time::{OffsetDateTime, PrimitiveDateTime, macros::format_description};
use uuid::Uuid;

use crate::self_service::first_id;

/// How far the time of an order's id may be from the second in its topups' ids. Ingress makes both
/// within milliseconds. It makes new topup ids if one is taken, which may be some seconds later.
pub const APART: time::Duration = time::Duration::seconds(10);

/// What is remembered of an archived order.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ArchivedOrder {
    pub order_id: Uuid,
    pub partner_id: Uuid,
    pub external_order_id: String,
    /// The order was answered with 422 or cancelled, so its external id is free.
    pub refused: bool,
    pub archive: i32,
    /// Where the file of the archive was stored: a path or the URL of an object.
    pub file: String,
    #[serde(with = "time::serde::rfc3339")]
    pub archived_at: OffsetDateTime,
}

impl ArchivedOrder {
    /// The command of a shell that shows the order, where its file can be read.
    pub fn shown_by(&self) -> String {
        let Self { order_id, file, .. } = self;
        if file.contains("://") {
            format!("aws s3 cp '{file}' - | zcat | grep {order_id}")
        } else {
            format!("zcat '{file}' | grep {order_id}")
        }
    }
}

/// The archived orders with this order id or external id, at most 20. An order that is only
/// reserved, and so still in the tables, is not among them.
pub async fn find(connection: &mut PgConnection, id: &str) -> Result<Vec<ArchivedOrder>> {
    let order_id: Option<Uuid> = id.parse().ok();
    let found = sqlx::query_as!(
        ArchivedOrder,
        r#"WITH found AS (
               SELECT order_id FROM archived_orders WHERE order_id = $1
               UNION SELECT order_id FROM archived_orders WHERE external_order_id = $2
           )
           SELECT a.order_id, a.partner_id, a.external_order_id, a.refused, a.archive, f.file, a.archived_at
           FROM archived_orders a JOIN archives f ON f.archive = a.archive
           WHERE a.order_id = ANY (ARRAY (SELECT order_id FROM found))
             AND (SELECT true FROM orders o WHERE o.order_id = a.order_id) IS NULL
           ORDER BY a.order_id DESC LIMIT 20"#,
        order_id,
        id,
    );
    Ok(found.fetch_all(connection).await?)
}

/// Whether the partner has an archived order with this external id.
pub async fn is_archived(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    external_order_id: &str,
) -> Result<bool> {
    let archived = sqlx::query_scalar!(
        r#"SELECT EXISTS (
               SELECT FROM archived_orders WHERE partner_id = $1 AND external_order_id = $2
           ) AS "archived!""#,
        partner_id.uuid(),
        external_order_id,
    );
    Ok(archived.fetch_one(connection).await?)
}

/// Whether the partner has an archived order that was accepted in the second with which this topup
/// id begins.
///
/// Topup ids are not remembered, because they would double the size of `archived_orders`. So an id
/// that was never given out counts as archived, too, if its first fourteen digits are the time of
/// an archived order. That says nothing that the partner does not know, because it is about its own
/// orders.
pub async fn is_topup_archived(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
) -> Result<bool> {
    let Some(at) = accepted_at(topup_id) else {
        return Ok(false);
    };
    let archived = sqlx::query_scalar!(
        r#"SELECT EXISTS (
               SELECT FROM archived_orders WHERE order_id >= $2 AND order_id < $3 AND partner_id = $1
           ) AS "archived!""#,
        partner_id.uuid(),
        first_id(at - APART),
        first_id(at + APART),
    );
    Ok(archived.fetch_one(connection).await?)
}

/// The second with which a topup id begins.
pub fn accepted_at(topup_id: &TopupId) -> Option<OffsetDateTime> {
    let format = format_description!("[year][month][day][hour][minute][second]");
    let at = PrimitiveDateTime::parse(topup_id.as_str().get(..14)?, &format);
    at.ok().map(PrimitiveDateTime::assume_utc)
}

/// An archive that holds orders of a partner.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PartnerArchive {
    pub archive: i32,
    pub file: String,
    /// The number of orders of this partner in it.
    pub orders: i64,
}

/// The archives that hold orders of a partner.
pub async fn of_partner(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<Vec<PartnerArchive>> {
    let found = sqlx::query_as!(
        PartnerArchive,
        r#"SELECT archive, file, (partners->>$1::uuid::text)::bigint AS "orders!"
           FROM archives WHERE partners ? $1::uuid::text ORDER BY archive"#,
        partner_id.uuid(),
    );
    Ok(found.fetch_all(connection).await?)
}
