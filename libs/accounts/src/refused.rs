//! Refused requests of partners, for the question "we sent it, and you do not have it": a request
//! that is here was answered with a 4xx or 503, and one that is neither here nor stored did not
//! arrive.
//!
//! Ingress stores them in batches, off the path of requests ([`keep`]).
//! `esimctl partner show --refused` and the console show them. Each partner has room for so many of
//! each [`RefusedKind`], and the term `refusals` of `desk::retention` ends the rest. They hold
//! neither headers nor bodies, so no key, signature or query is among them.

use domain::PartnerId;
use pg::{Result, TransactionEnd, transaction};
use serde::Serialize;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// The most requests that [`find`] returns.
const MOST_FOUND: i64 = 20;

/// What kind of request was refused. Each kind has a room of its own, so that look-ups push out no
/// orders, and forged requests nothing genuine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RefusedKind {
    /// A create-order request with a valid signature.
    Order,
    /// Any other request with a valid signature.
    Other,
    /// A request without a valid signature. Anybody who knows the access key may have sent it.
    Unsigned,
}

impl RefusedKind {
    /// The name in the database.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A refused request, as ingress stores it.
#[derive(Clone, Debug)]
pub struct RefusedRequest {
    pub request_id: Uuid,
    pub partner_id: PartnerId,
    pub kind: RefusedKind,
    pub at: OffsetDateTime,
    pub status: u16,
    /// The code of the first error, or the name of the limit that was reached.
    pub reason: &'static str,
    /// The codes of all errors, as the response named them.
    pub errors: String,
    pub method: String,
    /// Without the query.
    pub path: String,
    pub external_order_id: Option<String>,
    /// How many requests of this partner and kind were not stored before this one, because there
    /// were too many.
    pub unrecorded: u64,
}

/// How many requests of a partner were refused since a time, of those that are stored.
pub async fn since(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    since: OffsetDateTime,
) -> Result<u64> {
    let number = sqlx::query_scalar!(
        r#"SELECT count(*) AS "number!" FROM refused_requests WHERE partner_id = $1 AND at >= $2"#,
        partner_id.uuid(),
        since,
    );
    Ok(pg::count(number.fetch_one(connection).await?))
}

/// The codes of the refused orders of these partners since a time, but for those above a limit of
/// a partner, with how often each is among those that are stored; the most frequent first.
pub async fn codes_since(
    connection: &mut PgConnection,
    partners: &[Uuid],
    since: OffsetDateTime,
) -> Result<Vec<(String, u64)>> {
    let codes = sqlx::query!(
        r#"SELECT reason, count(*) AS "number!" FROM refused_requests
           WHERE partner_id = ANY ($1) AND kind = 'order' AND at >= $2 AND status BETWEEN 400 AND 499 AND status NOT IN (401, 429)
           GROUP BY reason ORDER BY 2 DESC, reason"#,
        partners,
        since,
    );
    let rows = codes.fetch_all(connection).await?.into_iter();
    Ok(rows
        .map(|row| (row.reason, pg::count(row.number)))
        .collect())
}

/// Stores refused requests, and deletes those of their partners that are more than the `newest` of
/// their kind.
pub async fn keep(
    connection: &mut PgConnection,
    refusals: &[RefusedRequest],
    newest: u32,
) -> Result<()> {
    fn column<T>(of: &[RefusedRequest], value: impl Fn(&RefusedRequest) -> T) -> Vec<T> {
        of.iter().map(value).collect()
    }
    let partners = column(refusals, |one| one.partner_id.uuid());
    let kinds = column(refusals, |one| one.kind.as_str().to_owned());
    transaction!(connection, "refused::keep", |transaction| {
        let statement = sqlx::query!(
            "INSERT INTO refused_requests (request_id, partner_id, kind, at, status, reason, errors, method, path,
                                       external_order_id, unrecorded)
         SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::timestamptz[], $5::int[], $6::text[], $7::text[],
                              $8::text[], $9::text[], $10::text[], $11::bigint[])
         ON CONFLICT DO NOTHING",
            &column(refusals, |one| one.request_id),
            &partners,
            &kinds,
            &column(refusals, |one| one.at),
            &column(refusals, |one| i32::from(one.status)),
            &column(refusals, |one| one.reason.to_owned()),
            &column(refusals, |one| one.errors.clone()),
            &column(refusals, |one| one.method.clone()),
            &column(refusals, |one| one.path.clone()),
            &column(refusals, |one| one.external_order_id.clone()) as &[Option<String>],
            &column(refusals, |one| i64::try_from(one.unrecorded).unwrap_or(i64::MAX)),
        );
        statement.execute(&mut **transaction).await?;
        // The ids are in the order of time, so everything from the first one beyond the room is
        // older.
        let statement = sqlx::query!(
            "DELETE FROM refused_requests WHERE request_id = ANY (ARRAY (
             SELECT beyond.request_id
             FROM (SELECT DISTINCT partner_id, kind FROM unnest($1::uuid[], $2::text[]) AS one (partner_id, kind)) room
             CROSS JOIN LATERAL (
                 SELECT request_id FROM refused_requests r
                 WHERE r.partner_id = room.partner_id AND r.kind = room.kind
                 ORDER BY request_id DESC OFFSET $3 LIMIT 1000) beyond))",
            &partners,
            &kinds,
            i64::from(newest),
        );
        statement.execute(&mut **transaction).await?;
        Ok(TransactionEnd::Commit(()))
    })
}

/// A refused request, as operators see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RefusedRequestView {
    pub request_id: Uuid,
    pub partner_id: Uuid,
    /// The partner's name.
    pub partner: Option<String>,
    /// `order`, `other` or `unsigned`: the names of [`RefusedKind`].
    pub kind: String,
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    pub status: i32,
    pub reason: String,
    pub errors: String,
    pub method: String,
    pub path: String,
    pub external_order_id: Option<String>,
    pub unrecorded: i64,
}

impl RefusedRequestView {
    /// The id as the partner got it in `X-Request-Id`.
    pub fn request(&self) -> String {
        self.request_id.simple().to_string()
    }
}

/// The newest refused requests of a partner, at most `limit` of each kind, newest first.
pub async fn list(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    limit: u32,
) -> Result<Vec<RefusedRequestView>> {
    let query = sqlx::query_as!(
        RefusedRequestView,
        "SELECT newest.*, (SELECT name FROM partners a WHERE a.partner_id = newest.partner_id) AS partner
         FROM unnest(ARRAY['order', 'other', 'unsigned']) AS one (kind)
         CROSS JOIN LATERAL (
             SELECT * FROM refused_requests r WHERE r.partner_id = $1 AND r.kind = one.kind
             ORDER BY r.request_id DESC LIMIT $2) newest
         ORDER BY newest.request_id DESC",
        partner_id.uuid(),
        i64::from(limit),
    );
    Ok(query.fetch_all(connection).await?)
}

/// Refused requests with this external order id or request id, the newest first.
pub async fn find(connection: &mut PgConnection, id: &str) -> Result<Vec<RefusedRequestView>> {
    let request_id: Option<Uuid> = id.parse().ok();
    let query = sqlx::query_as!(
        RefusedRequestView,
        "SELECT r.*, (SELECT name FROM partners a WHERE a.partner_id = r.partner_id) AS partner
         FROM refused_requests r WHERE r.request_id = ANY (ARRAY (
             SELECT request_id FROM refused_requests WHERE request_id = $1
             UNION ALL
             (SELECT request_id FROM refused_requests WHERE external_order_id = $2
              ORDER BY at DESC LIMIT $3)))
         ORDER BY r.request_id DESC LIMIT $3",
        request_id,
        id,
        MOST_FOUND,
    );
    Ok(query.fetch_all(connection).await?)
}
