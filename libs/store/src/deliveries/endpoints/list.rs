//! The endpoints of partners as operators see them, and the words for the state of an endpoint.

use domain::{PartnerId, Stored, standing::EndpointState};
use pg::Result;
use sqlx::PgConnection;
use time::OffsetDateTime;
use url::Url;
use uuid::Uuid;

/// An endpoint, as operators see it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Endpoint {
    /// That of the partner's first endpoint is the partner's id.
    pub endpoint_id: Uuid,
    pub partner_id: Uuid,
    /// The name of the partner.
    pub name: String,
    pub webhook_url: Option<String>,
    pub state: Stored<EndpointState>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub blocked_until: Option<OffsetDateTime>,
    pub failures: i32,
    /// Since when it has failed, if the last attempt failed.
    #[serde(with = "time::serde::rfc3339::option")]
    pub failing_since: Option<OffsetDateTime>,
    /// Deliveries with work, which leaves out those within their first lease.
    pub pending: i64,
    /// Deliveries of topups whose retries have ended. An operator can resend them.
    pub exhausted: i64,
    /// When the first of them was given up.
    #[serde(with = "time::serde::rfc3339::option")]
    pub exhausted_since: Option<OffsetDateTime>,
    /// When it was read, by the clock of the database. What was recorded before this moment is in the
    /// other fields, unless it was not committed yet.
    #[serde(skip)]
    pub read_at: OffsetDateTime,
}

impl Endpoint {
    /// The host of its webhook URL, or `no URL`. Pages and lists that are about something else show no
    /// more of the URL, because partners put secrets into it.
    pub fn host(&self) -> String {
        let url = self.webhook_url.as_deref();
        let url = url.and_then(|url| url.parse::<Url>().ok());
        let host = url.as_ref().and_then(Url::host_str);
        host.map_or_else(|| "no URL".to_owned(), str::to_owned)
    }
}

/// A query for rows of this type, with the state of an endpoint between its two parts, in the words of
/// [`Endpoint::state`]. `e` is its row in `partner_endpoints`. Operators and partners see the same
/// state, because all queries for it are made here.
#[macro_export]
macro_rules! with_state {
    ($row:ident, $head:literal, $tail:literal $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            $row,
            $head + "CASE WHEN e.blocked_until = 'infinity'
                               THEN CASE WHEN e.paused_by_partner THEN 'paused_by_partner' ELSE 'paused' END
                          WHEN e.url IS NULL THEN 'no_url'
                          WHEN e.unproven_since IS NOT NULL AND e.failures = 0 THEN 'open'
                          WHEN e.probe IS NOT NULL OR e.blocked_until <= now() THEN 'probing'
                          WHEN e.blocked_until IS NOT NULL THEN 'blocked'
                          ELSE 'open' END" + $tail
            $(, $argument)*
        )
    };
}

/// Lists the endpoints of all partners, or of one; the first endpoint of each partner comes first.
pub async fn list(
    connection: &mut PgConnection,
    partner_id: Option<PartnerId>,
) -> Result<Vec<Endpoint>> {
    let endpoints = with_state!(
        Endpoint,
        r#"SELECT e.endpoint_id, e.partner_id, p.name, e.url AS webhook_url, "#,
        r#" AS "state!",
                  CASE WHEN e.unproven_since IS NULL OR e.failures > 0 THEN nullif(e.blocked_until, 'infinity') END
                      AS blocked_until,
                  e.failures, e.failing_since,
                  (SELECT count(*) FROM work w
                   WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = e.lane
                     AND w.partner_id = e.partner_id) AS "pending!",
                  (SELECT count(*) FROM held h
                   WHERE h.partner_id = e.partner_id AND h.state = 'exhausted' AND h.lane = e.lane) AS "exhausted!",
                  (SELECT min(at) FROM held h
                   WHERE h.partner_id = e.partner_id AND h.state = 'exhausted' AND h.lane = e.lane) AS exhausted_since,
                  now() AS "read_at!"
           FROM partner_endpoints e
           JOIN partners p ON p.partner_id = e.partner_id
           WHERE $1::uuid IS NULL OR e.partner_id = $1
           ORDER BY p.created_at, e.partner_id, e.nth"#,
        partner_id.map(PartnerId::uuid),
    );
    Ok(endpoints.fetch_all(connection).await?)
}
