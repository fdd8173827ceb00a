//! One search for everything that somebody who asks "where is this order" may have at hand.
//!
//! It takes seven kinds of ids, matches them exactly, and finds each by an index: an external order
//! id, an order, placement or topup id, an ICCID (with blanks or dashes between its digits), the
//! provider's number of a purchase or of a unit, and the name, id or access key of a partner. Ids of
//! units are indexed together with their provider, so these look-ups go through all known providers.
//! Refused requests are found by their external order id or request id, too.

use domain::Iccid;
use serde::Serialize;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Error, Result,
    refused::{self, Refused},
};

/// The most orders, and the most partners, that a search returns.
pub const MOST: i64 = 20;

/// What an order was found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::EnumString, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum By {
    ExternalOrderId,
    Order,
    Placement,
    Topup,
    Iccid,
    /// The provider's id of the purchase or of the unit.
    Provider,
}

impl By {
    /// The name, such as `external_order_id`.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// An order that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OrderHit {
    pub order_id: Uuid,
    pub external_order_id: String,
    pub partner_id: Uuid,
    /// The partner's name.
    pub partner: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    pub by: By,
}

/// A partner that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartnerHit {
    pub partner_id: Uuid,
    pub name: String,
    pub environment: String,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Hits {
    /// The newest first, at most [`MOST`].
    pub orders: Vec<OrderHit>,
    pub partners: Vec<PartnerHit>,
    /// Refused requests with this external order id or request id, the newest first.
    pub refused: Vec<Refused>,
}

impl Hits {
    pub fn is_empty(&self) -> bool {
        self.orders.is_empty() && self.partners.is_empty() && self.refused.is_empty()
    }
}

/// Searches for an id. If nothing has it as it is, blanks around it are left out, because an external
/// order id may begin or end with one, and a copied id often does by accident.
pub async fn find(connection: &mut PgConnection, id: &str) -> Result<Hits> {
    let hits = exactly(connection, id).await?;
    let trimmed = id.trim();
    if hits.is_empty() && trimmed != id {
        return exactly(connection, trimmed).await;
    }
    Ok(hits)
}

async fn exactly(connection: &mut PgConnection, id: &str) -> Result<Hits> {
    let uuid: Option<Uuid> = id.parse().ok();
    let iccid = Iccid::parse(&without_separators(id)).ok();
    let query = sqlx::query!(
        r#"WITH known (provider) AS MATERIALIZED (
               SELECT name FROM providers UNION SELECT provider FROM options
           ), found (order_id, by) AS (
               SELECT order_id, 'order' FROM orders WHERE order_id = $1
               UNION ALL SELECT order_id, 'placement' FROM placements WHERE placement_id = $1
               UNION ALL SELECT p.order_id, 'topup' FROM topups t JOIN placements p ON p.placement_id = t.placement_id
                         WHERE t.topup_id = $2
               UNION ALL SELECT p.order_id, 'iccid'
                         FROM esims e
                         JOIN topups t ON t.topup_id = e.topup_id
                         JOIN placements p ON p.placement_id = t.placement_id
                         WHERE e.iccid = $3
               UNION ALL SELECT p.order_id, 'provider'
                         FROM known
                         JOIN esims e ON e.provider = known.provider AND e.provider_unit_id = $2
                         JOIN topups t ON t.topup_id = e.topup_id
                         JOIN placements p ON p.placement_id = t.placement_id
               UNION ALL (SELECT p.order_id, 'provider'
                          FROM provider_references r JOIN placements p ON p.placement_id = r.placement_id
                          WHERE r.reference = $2 ORDER BY r.placement_id DESC LIMIT $4)
               UNION ALL (SELECT order_id, 'external_order_id' FROM orders WHERE external_order_id = $2
                          ORDER BY order_id DESC LIMIT $4)
           )
           SELECT o.order_id AS "order_id!", o.external_order_id AS "external_order_id!", o.partner_id AS "partner_id!",
                  (SELECT name FROM partners a WHERE a.partner_id = o.partner_id) AS partner,
                  o.created_at AS "created_at!", (SELECT min(by) FROM found WHERE found.order_id = o.order_id) AS "by!"
           FROM orders o WHERE o.order_id = ANY (ARRAY (SELECT order_id FROM found))
           ORDER BY o.order_id DESC LIMIT $4"#,
        uuid,
        id,
        iccid.as_ref().map(Iccid::as_str),
        MOST,
    );
    let mut hits = Hits::default();
    for row in query.fetch_all(&mut *connection).await? {
        let by = row.by.parse();
        hits.orders.push(OrderHit {
            order_id: row.order_id,
            external_order_id: row.external_order_id,
            partner_id: row.partner_id,
            partner: row.partner,
            created_at: row.created_at,
            by: by.map_err(|_| Error::Unreadable(format!("a hit by {:?}", row.by)))?,
        });
    }
    // Partners are few, so their names have no index.
    let query = sqlx::query_as!(
        PartnerHit,
        "SELECT partner_id, name, environment FROM partners
         WHERE partner_id = $1 OR access_key = $2 OR old_access_key = $2 OR lower(name) = lower($2)
         ORDER BY name, partner_id LIMIT $3",
        uuid,
        id,
        MOST,
    );
    hits.partners = query.fetch_all(&mut *connection).await?;
    hits.refused = refused::find(connection, id).await?;
    Ok(hits)
}

/// The text without spaces and dashes, which people and documents put between the digits of an
/// ICCID so that it is easier to read. For example, `8981 0000-0000 0000 001` is pasted from a PDF.
fn without_separators(id: &str) -> String {
    let dash = |character| matches!(character, '-' | '\u{2010}'..='\u{2014}' | '\u{2212}');
    id.chars()
        .filter(|character| !character.is_whitespace() && !dash(*character))
        .collect()
}
