//! One search for everything that somebody who asks "where is this order" may have at hand.
//!
//! It takes seven kinds of ids and finds each by an index: an external order id, an order,
//! placement or topup id, an ICCID (with blanks or dashes between its digits, with or without its
//! check digit), the provider's number of a purchase or of a unit, and the id or access key of a
//! partner. Ids of units are indexed together with their provider, so these look-ups go through all
//! known providers. A partner is found by each of its keys, also by those that have ended, because
//! whoever reports a leak has nothing else. Refused requests are found by their external order id
//! or request id, too. If no order has the id as it is, those are found whose order, placement or
//! topup id or ICCID begins with it; and of the newest orders, those whose external order id does,
//! because a prefix of that has no index, which each order would have to write. For the same reason
//! the trace id of a request and the last six or more digits of an ICCID are looked for among the
//! newest ones. Partners are found by any part of their name. Upper and lower case, blanks, dashes
//! and underscores do not matter: an order that is only written in another way is found by its
//! other spellings, and if nothing is found, those ids are that differ in one character
//! ([`meant`]).

mod meant;

use accounts::refused::{self, RefusedRequestView};
use domain::{KnownIccid, PartnerId};
use pg::{Error, Result};
use serde::Serialize;
use sqlx::PgConnection;
use store::Unflushed;
use time::OffsetDateTime;
use uuid::Uuid;

/// The maximum number of orders, and the most partners, that a search returns.
pub const MOST: i64 = 20;

/// What an order was found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::EnumString, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum MatchedId {
    ExternalOrderId,
    Order,
    Placement,
    Topup,
    Iccid,
    /// The provider's id of the purchase or of the unit.
    Provider,
    /// The trace of the request that created it.
    Trace,
}

impl MatchedId {
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
    pub by: MatchedId,
}

/// An order that was found, as it is read.
struct StoredHit {
    order_id: Uuid,
    external_order_id: String,
    partner_id: Uuid,
    partner: Option<String>,
    created_at: OffsetDateTime,
    by: String,
}

impl StoredHit {
    fn read(self) -> Result<OrderHit> {
        let by = self.by.parse();
        Ok(OrderHit {
            order_id: self.order_id,
            external_order_id: self.external_order_id,
            partner_id: self.partner_id,
            partner: self.partner,
            created_at: self.created_at,
            by: by.map_err(|_| Error::Unreadable(format!("a hit by {:?}", self.by)))?,
        })
    }
}

/// A partner that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartnerHit {
    pub partner_id: Uuid,
    pub name: String,
    pub environment: String,
    /// The key that it was found by, if that is not the current first one.
    pub key: Option<KeyHit>,
}

/// A key that a partner was found by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyHit {
    pub access_key: String,
    /// The name of a further key; `None` of a first one.
    pub name: Option<String>,
    /// When it ended, if it has.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ended_at: Option<OffsetDateTime>,
}

impl KeyHit {
    /// What it is, such as `its further key “checkout”`.
    pub fn described(&self) -> String {
        match (&self.name, self.ended_at) {
            (Some(name), None) => format!("its further key “{name}”"),
            (Some(name), Some(_)) => format!("its further key “{name}”, which has ended"),
            (None, None) => "its key before the last change of keys".to_owned(),
            (None, Some(_)) => "an earlier key of its, which has ended".to_owned(),
        }
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SearchHits {
    /// The newest first, at most [`MOST`].
    pub orders: Vec<OrderHit>,
    /// How many further orders match, counted up to some hundreds.
    pub more_orders: i64,
    /// At most [`MOST`]; a partner with exactly this name comes first.
    pub partners: Vec<PartnerHit>,
    pub more_partners: i64,
    /// Refused requests with this external order id or request id, the newest first.
    pub refused: Vec<RefusedRequestView>,
    /// If nothing was found: orders with an id that differs in one character, the newest first.
    pub meant: Vec<OrderHit>,
    /// The same of refused requests, and those that are only written in another way: their external
    /// order ids.
    pub meant_refused: Vec<String>,
}

impl SearchHits {
    pub fn is_empty(&self) -> bool {
        self.orders.is_empty() && self.partners.is_empty() && self.refused.is_empty()
    }

    /// How to go on if there is more than what is shown, in one sentence.
    pub fn how_to_go_on(&self) -> Option<String> {
        let orders = (self.more_orders > 0).then(|| {
            format!(
                "{} more orders: type more of the id, or list the orders of its partner",
                self.more_orders
            )
        });
        let partners = (self.more_partners > 0).then(|| {
            format!(
                "{} more partners: type more of the name",
                self.more_partners
            )
        });
        let said: Vec<String> = orders.into_iter().chain(partners).collect();
        (!said.is_empty()).then(|| format!("{}.", said.join(". ")))
    }
}

/// Searches for an id, or for the beginning of one, or a part of a partner's name.
pub async fn find(connection: &mut PgConnection, id: &str) -> Result<Unflushed<SearchHits>> {
    let mut hits = whole(&mut *connection, id).await?;
    let text = id.trim();
    let mut spellings = Vec::new();
    if hits.orders.is_empty() && hits.refused.is_empty() {
        spellings = meant::spellings(text);
        hits.orders = any_of(&mut *connection, &spellings).await?;
    }
    if hits.orders.is_empty() && hits.refused.is_empty() {
        (hits.orders, hits.more_orders) = beginning(&mut *connection, text).await?;
    }
    if hits.is_empty() {
        let neighbours = meant::neighbours(text);
        hits.meant = any_of(&mut *connection, &neighbours).await?;
        // What only looks like another one comes first.
        let asked = meant::looks(text);
        hits.meant
            .sort_by_key(|one| meant::looks(&one.external_order_id) != asked);
        spellings.extend(neighbours);
        hits.meant_refused = any_of_refused(connection, &spellings).await?;
    }
    Ok(Unflushed::of(hits))
}

/// Searches for an id as a whole. If nothing has it as it is, blanks around it are left out,
/// because an external order id may begin or end with one, and a copied id often does by accident.
pub(crate) async fn whole(connection: &mut PgConnection, id: &str) -> Result<SearchHits> {
    let hits = exactly(connection, id).await?;
    let trimmed = id.trim();
    if hits.is_empty() && trimmed != id {
        return exactly(connection, trimmed).await;
    }
    Ok(hits)
}

/// The fewest characters of the beginning of an id. With fewer, nearly everything would match.
const LEAST: usize = 4;
/// The same of an access key, which begins with `ak_`.
const LEAST_OF_A_KEY: i32 = 7;
/// The maximum number of orders of one kind of id that are counted.
const COUNTED: i64 = 200;
/// The newest orders and eSIMs, which are looked at for what has no index.
const NEWEST: i64 = 20_000;
/// The fewest digits of the end of an ICCID.
const LEAST_OF_AN_END: usize = 6;

/// What a `traceparent` of this trace begins with, if the text is a trace id.
fn trace(text: &str) -> Option<String> {
    let is_trace = text.len() == 32 && text.bytes().all(|one| one.is_ascii_hexdigit());
    is_trace.then(|| format!("00-{}-", text.to_lowercase()))
}

/// The first and the last UUID that begin with this text; `None` if none does.
fn range(text: &str) -> Option<(Uuid, Uuid)> {
    let digits: String = text.chars().filter(|one| *one != '-').collect();
    let fits = (LEAST..=32).contains(&digits.len());
    let bound = |filling: &str| {
        let filled = format!("{digits}{}", filling.repeat(32 - digits.len()));
        Uuid::parse_str(&filled).ok()
    };
    if fits {
        bound("0").zip(bound("f"))
    } else {
        None
    }
}

/// The orders with an id that begins with this text, the newest first, and how many more there are.
async fn beginning(connection: &mut PgConnection, text: &str) -> Result<(Vec<OrderHit>, i64)> {
    if text.chars().count() < LEAST {
        return Ok((Vec::new(), 0));
    }
    let range = range(text);
    let digits = without_separators(text);
    let is_number = digits.len() >= LEAST && digits.bytes().all(|one| one.is_ascii_digit());
    // Nines sort behind all digits in every collation.
    let number = is_number.then(|| (digits.clone(), format!("{digits:9<40}")));
    let end = number
        .as_ref()
        .map(|(digits, _)| digits.as_str())
        .filter(|digits| digits.len() >= LEAST_OF_AN_END);
    let query = sqlx::query!(
        r#"WITH found (order_id, by) AS (
               (SELECT order_id, 'order' FROM orders WHERE order_id BETWEEN $1 AND $2 ORDER BY order_id DESC LIMIT $6)
               UNION ALL (SELECT order_id, 'placement' FROM placements WHERE placement_id BETWEEN $1 AND $2
                          ORDER BY placement_id DESC LIMIT $6)
               UNION ALL (SELECT p.order_id, 'topup'
                          FROM (SELECT topup_id, placement_id FROM topups WHERE topup_id BETWEEN $3 AND $4
                                ORDER BY topup_id DESC LIMIT $6) t
                          JOIN placements p ON p.placement_id = t.placement_id)
               UNION ALL (SELECT p.order_id, 'iccid'
                          FROM (SELECT topup_id FROM esims WHERE iccid BETWEEN $3 AND $4 ORDER BY iccid LIMIT $6) e
                          JOIN topups t ON t.topup_id = e.topup_id
                          JOIN placements p ON p.placement_id = t.placement_id)
               UNION ALL (SELECT order_id, 'external_order_id'
                          FROM (SELECT order_id, external_order_id FROM orders ORDER BY order_id DESC LIMIT $8) newest
                          WHERE starts_with(lower(translate(external_order_id, '-_ ', '')), $5) ORDER BY order_id DESC LIMIT $6)
               UNION ALL (SELECT order_id, 'trace'
                          FROM (SELECT order_id, traceparent FROM orders WHERE $9::text IS NOT NULL
                                ORDER BY order_id DESC LIMIT $8) newest
                          WHERE starts_with(traceparent, $9) LIMIT $6)
               UNION ALL (SELECT p.order_id, 'iccid'
                          FROM (SELECT topup_id, iccid FROM esims WHERE $10::text IS NOT NULL
                                ORDER BY topup_id DESC LIMIT $8) e
                          JOIN topups t ON t.topup_id = e.topup_id
                          JOIN placements p ON p.placement_id = t.placement_id
                          WHERE right(e.iccid, length($10)) = $10 LIMIT $6)
           )
           SELECT o.order_id AS "order_id!", o.external_order_id AS "external_order_id!", o.partner_id AS "partner_id!",
                  (SELECT name FROM partners a WHERE a.partner_id = o.partner_id) AS partner,
                  o.created_at AS "created_at!", (SELECT min(by) FROM found WHERE found.order_id = o.order_id) AS "by!",
                  count(*) OVER () AS "total!"
           FROM orders o WHERE o.order_id = ANY (ARRAY (SELECT order_id FROM found))
           ORDER BY o.order_id DESC LIMIT $7"#,
        range.map(|(first, _)| first),
        range.map(|(_, last)| last),
        number.as_ref().map(|(first, _)| first.as_str()),
        number.as_ref().map(|(_, last)| last.as_str()),
        Some(digits.to_lowercase()).filter(|folded| !folded.is_empty()),
        COUNTED,
        MOST,
        NEWEST,
        trace(text),
        end,
    );
    let mut orders = Vec::new();
    let mut more = 0;
    for row in query.fetch_all(connection).await? {
        more = row.total - MOST;
        let hit = StoredHit {
            order_id: row.order_id,
            external_order_id: row.external_order_id,
            partner_id: row.partner_id,
            partner: row.partner,
            created_at: row.created_at,
            by: row.by,
        };
        orders.push(hit.read()?);
    }
    Ok((orders, more.max(0)))
}

async fn exactly(connection: &mut PgConnection, id: &str) -> Result<SearchHits> {
    let uuid: Option<Uuid> = id.parse().ok();
    let iccids = match KnownIccid::parse(id) {
        Some(KnownIccid::Whole(forms)) => forms,
        Some(KnownIccid::End(_)) | None => Vec::new(),
    };
    let query = sqlx::query_as!(
        StoredHit,
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
                         WHERE e.iccid = ANY ($3)
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
        &iccids,
        MOST,
    );
    let rows = query.fetch_all(&mut *connection).await?.into_iter();
    let mut hits = SearchHits {
        orders: rows.map(StoredHit::read).collect::<Result<_>>()?,
        ..SearchHits::default()
    };
    // Partners are few, so their names have no index.
    let query = sqlx::query!(
        r#"WITH keys (partner_id, access_key, name, ended_at) AS (
               SELECT partner_id, old_access_key, NULL, NULL::timestamptz FROM partners WHERE old_access_key IS NOT NULL
               UNION ALL SELECT partner_id, access_key, name, NULL FROM partner_keys
               UNION ALL SELECT partner_id, access_key, name, ended_at FROM ended_keys
           )
           SELECT p.partner_id AS "partner_id!", p.name AS "name!", p.environment AS "environment!",
                  k.access_key AS "access_key?", k.name AS "key_name?", k.ended_at AS "ended_at?", count(*) OVER () AS "total!"
           FROM partners p
           LEFT JOIN LATERAL (
               SELECT access_key, name, ended_at FROM keys
               WHERE keys.partner_id = p.partner_id AND length($2) >= $6 AND starts_with(access_key, $2)
               ORDER BY access_key LIMIT 1
           ) k ON true
           WHERE p.partner_id = $1 OR p.partner_id BETWEEN $4 AND $5 OR k.access_key IS NOT NULL
              OR (length($2) >= $6 AND starts_with(p.access_key, $2))
              OR (length($2) >= 2 AND strpos(lower(p.name), lower($2)) > 0) OR lower(p.name) = lower($2)
           ORDER BY lower(p.name) = lower($2) DESC, p.name, p.partner_id LIMIT $3"#,
        uuid,
        id,
        MOST,
        range(id).map(|(first, _)| first),
        range(id).map(|(_, last)| last),
        LEAST_OF_A_KEY,
    );
    for row in query.fetch_all(&mut *connection).await? {
        hits.more_partners = (row.total - MOST).max(0);
        hits.partners.push(PartnerHit {
            partner_id: row.partner_id,
            name: row.name,
            environment: row.environment,
            key: row.access_key.map(|access_key| KeyHit {
                access_key,
                name: row.key_name,
                ended_at: row.ended_at,
            }),
        });
    }
    hits.refused = refused::find(connection, id).await?;
    Ok(hits)
}

/// The orders that have one of these ids, the newest first.
async fn any_of(connection: &mut PgConnection, ids: &[String]) -> Result<Vec<OrderHit>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let uuids: Vec<Uuid> = ids.iter().filter_map(|one| one.parse().ok()).collect();
    let is_number = |one: &&String| one.bytes().all(|digit| digit.is_ascii_digit());
    let numbers: Vec<String> = ids.iter().filter(is_number).cloned().collect();
    // Each is looked up by itself, because for many at once the planner would read whole tables.
    let query = sqlx::query_as!(
        StoredHit,
        r#"WITH found (order_id, by) AS (
               SELECT o.order_id, 'external_order_id'
               FROM unnest($1::text[]) AS near (id)
               CROSS JOIN LATERAL (SELECT order_id FROM orders WHERE external_order_id = near.id LIMIT $4) o
               UNION ALL SELECT o.order_id, 'order'
                         FROM unnest($2::uuid[]) AS near (id)
                         CROSS JOIN LATERAL (SELECT order_id FROM orders WHERE order_id = near.id LIMIT 1) o
               UNION ALL SELECT p.order_id, 'placement'
                         FROM unnest($2::uuid[]) AS near (id)
                         CROSS JOIN LATERAL (SELECT order_id FROM placements WHERE placement_id = near.id LIMIT 1) p
               UNION ALL SELECT p.order_id, 'topup'
                         FROM unnest($3::text[]) AS near (id)
                         CROSS JOIN LATERAL (SELECT placement_id FROM topups WHERE topup_id = near.id LIMIT 1) t
                         CROSS JOIN LATERAL (SELECT order_id FROM placements
                                             WHERE placement_id = t.placement_id LIMIT 1) p
               UNION ALL SELECT p.order_id, 'iccid'
                         FROM unnest($3::text[]) AS near (id)
                         CROSS JOIN LATERAL (SELECT topup_id FROM esims WHERE iccid = near.id LIMIT $4) e
                         CROSS JOIN LATERAL (SELECT placement_id FROM topups WHERE topup_id = e.topup_id LIMIT 1) t
                         CROSS JOIN LATERAL (SELECT order_id FROM placements
                                             WHERE placement_id = t.placement_id LIMIT 1) p
           )
           SELECT o.order_id AS "order_id!", o.external_order_id AS "external_order_id!", o.partner_id AS "partner_id!",
                  (SELECT name FROM partners a WHERE a.partner_id = o.partner_id) AS partner,
                  o.created_at AS "created_at!", (SELECT min(by) FROM found WHERE found.order_id = o.order_id) AS "by!"
           FROM orders o WHERE o.order_id = ANY (ARRAY (SELECT order_id FROM found))
           ORDER BY o.order_id DESC LIMIT $4"#,
        ids,
        &uuids,
        &numbers,
        MOST,
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    rows.map(StoredHit::read).collect()
}

/// Those of these ids that are the external ids of refused requests.
async fn any_of_refused(connection: &mut PgConnection, ids: &[String]) -> Result<Vec<String>> {
    let query = sqlx::query_scalar!(
        r#"SELECT DISTINCT r.id AS "id!" FROM unnest($1::text[]) AS near (id)
           CROSS JOIN LATERAL (SELECT external_order_id AS id FROM refused_requests
                               WHERE external_order_id = near.id LIMIT 1) r
           ORDER BY 1 LIMIT $2"#,
        ids,
        MOST,
    );
    Ok(query.fetch_all(connection).await?)
}

/// The text without what people put between its parts.
fn without_separators(id: &str) -> String {
    id.chars()
        .filter(|one| !domain::is_separator(*one))
        .collect()
}

/// A partner, or one of its endpoints, that has a text as a part of its name or of its host.
#[derive(Clone, Debug)]
pub struct NearMatch {
    pub partner_id: PartnerId,
    pub name: String,
    /// The host that has it; `None` if the name does.
    pub host: Option<String>,
}

/// The partners and the endpoints that come near a text, those of each kind first that begin with
/// it. Both are few, so they have no index for it.
pub async fn near(connection: &mut PgConnection, text: &str, most: i64) -> Result<Vec<NearMatch>> {
    let rows = sqlx::query!(
        r#"(SELECT partner_id AS "partner_id!", name AS "name!", NULL AS host
            FROM partners WHERE strpos(lower(name), lower($1)) > 0
            ORDER BY strpos(lower(name), lower($1)), name, partner_id LIMIT $2)
           UNION ALL
           (SELECT e.partner_id, p.name, e.host
            FROM partner_endpoints e JOIN partners p ON p.partner_id = e.partner_id
            WHERE strpos(e.host, lower($1)) > 0
            ORDER BY strpos(e.host, lower($1)), e.host, e.endpoint_id LIMIT $2)"#,
        text,
        most,
    );
    let rows = rows.fetch_all(connection).await?.into_iter();
    let found = rows.map(|row| NearMatch {
        partner_id: row.partner_id.into(),
        name: row.name,
        host: row.host,
    });
    Ok(found.collect())
}
