//! The endpoints of partners as operators see them, and the words for the state of an endpoint.

use std::collections::HashMap;

use domain::{EndpointKey, PartnerId, Stored, standing::EndpointState};
use pg::Result;
use sqlx::PgConnection;
use time::OffsetDateTime;
use url::Url;
use uuid::Uuid;

/// An endpoint, as operators see it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ListedEndpoint {
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
    /// When it was read, by the clock of the database. What was recorded before this moment is in
    /// the other fields, unless it was not committed yet.
    #[serde(skip)]
    pub read_at: OffsetDateTime,
}

impl ListedEndpoint {
    /// The host of its webhook URL, or `no URL`. Pages and lists that are about something else show
    /// no more of the URL, because partners put secrets into it.
    pub fn host(&self) -> String {
        let url = self.webhook_url.as_deref();
        let url = url.and_then(|url| url.parse::<Url>().ok());
        let host = url.as_ref().and_then(Url::host_str);
        host.map_or_else(|| "no URL".to_owned(), str::to_owned)
    }
}

/// A query for rows of this type, with the state of an endpoint between its two parts, in the words
/// of [`ListedEndpoint::state`]. `e` is its row in `partner_endpoints`. Operators and partners see
/// the same state, because all queries for it are made here.
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
) -> Result<Vec<ListedEndpoint>> {
    let Some(partner_id) = partner_id else {
        return of_all(connection, false).await;
    };
    let endpoints = with_state!(
        ListedEndpoint,
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
           WHERE e.partner_id = $1
           ORDER BY p.created_at, e.partner_id, e.nth"#,
        partner_id.uuid(),
    );
    Ok(endpoints.fetch_all(connection).await?)
}

/// The endpoints of all partners of which something is to be known: that fail, are blocked or
/// paused, or have webhooks that wait or were given up. Of ten thousand endpoints these are usually
/// few, so every look at the whole system reads only them.
pub async fn noted(connection: &mut PgConnection) -> Result<Vec<ListedEndpoint>> {
    of_all(connection, true).await
}

/// The webhooks of an endpoint.
#[derive(Default)]
struct Webhooks {
    pending: i64,
    exhausted: i64,
    exhausted_since: Option<OffsetDateTime>,
}

/// Counts the webhooks of all endpoints together, because a look-up for each of ten thousand
/// endpoints takes a second. The numbers are joined to the endpoints here, because PostgreSQL may
/// compare each row with each while its statistics say that there are none.
async fn of_all(connection: &mut PgConnection, only_noted: bool) -> Result<Vec<ListedEndpoint>> {
    let given_up = sqlx::query!(
        r#"SELECT partner_id, lane, count(*) AS "webhooks!", min(at) AS since FROM held
           WHERE state = 'exhausted' GROUP BY partner_id, lane"#,
    );
    let given_up = given_up.fetch_all(&mut *connection).await?;
    let waiting = sqlx::query!(
        r#"SELECT partner_id, lane, count(*) AS "webhooks!" FROM work
           WHERE kind = 'deliver' AND provider = '' GROUP BY partner_id, lane"#,
    );
    let waiting = waiting.fetch_all(&mut *connection).await?;
    let endpoint =
        |lane: &str, partner_id: Uuid| EndpointKey::of_work(partner_id.into(), lane).id.uuid();
    let mut webhooks: HashMap<Uuid, Webhooks> = HashMap::new();
    for row in given_up {
        let one = webhooks.entry(endpoint(&row.lane, row.partner_id));
        let one = one.or_default();
        one.exhausted = row.webhooks;
        one.exhausted_since = row.since;
    }
    for row in waiting {
        let one = webhooks.entry(endpoint(&row.lane, row.partner_id));
        one.or_default().pending = row.webhooks;
    }
    let with_webhooks: Vec<Uuid> = webhooks.keys().copied().collect();
    let endpoints = with_state!(
        ListedEndpoint,
        r#"SELECT e.endpoint_id, e.partner_id, p.name, e.url AS webhook_url, "#,
        r#" AS "state!",
                  CASE WHEN e.unproven_since IS NULL OR e.failures > 0 THEN nullif(e.blocked_until, 'infinity') END
                      AS blocked_until,
                  e.failures, e.failing_since, 0::bigint AS "pending!", 0::bigint AS "exhausted!",
                  NULL::timestamptz AS exhausted_since, now() AS "read_at!"
           FROM partner_endpoints e
           JOIN partners p ON p.partner_id = e.partner_id
           WHERE NOT $1::boolean OR e.failures > 0 OR e.blocked_until IS NOT NULL OR e.endpoint_id = ANY ($2)
           ORDER BY p.created_at, e.partner_id, e.nth"#,
        only_noted,
        &with_webhooks,
    );
    let mut endpoints = endpoints.fetch_all(connection).await?;
    for endpoint in &mut endpoints {
        let Webhooks {
            pending,
            exhausted,
            exhausted_since,
        } = webhooks.remove(&endpoint.endpoint_id).unwrap_or_default();
        endpoint.pending = pending;
        endpoint.exhausted = exhausted;
        endpoint.exhausted_since = exhausted_since;
    }
    Ok(endpoints)
}
