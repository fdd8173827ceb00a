//! A partner's first endpoint, and its webhooks in the order of their creation. `GET
//! …/webhook/listen` reads the latter, so that `esim-partner listen` can forward the webhooks of a
//! sandbox account to an endpoint that we cannot reach.

use domain::{OptionId, PartnerId, TopupId};
use serde::Serialize;
use sqlx::{Connection, PgConnection};
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;

use super::record_change;
use crate::{
    Result,
    deliveries::endpoints::Block,
    partners::{self, NewWebhook},
};

/// How long after its creation a webhook is found, in seconds. Transactions do not commit in the
/// order in which they begin. A reader that had already passed the time of a webhook would miss it
/// if it appeared later.
const SETTLE: f64 = 1.0;

/// The largest count. Larger numbers are shown as this one, because counting them all would cost
/// too much.
pub(super) const MOST_COUNTED: i64 = 10_000;

/// The webhook endpoint.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Endpoint {
    pub url: Option<String>,
    /// The further events that are sent, such as `topup.failed`.
    pub events: Vec<String>,
    /// `open`, `blocked` (after failures), `probing` (one webhook tests it), `paused` (by us or by
    /// you) or `no_url`.
    pub state: String,
    #[serde(with = "rfc3339::option")]
    pub blocked_until: Option<OffsetDateTime>,
    /// Consecutive failed attempts.
    pub failures: i32,
    /// Webhooks that wait for an attempt, counted up to 10,000.
    // Those within their first lease do not count, unless their endpoint is blocked.
    pub waiting: i64,
    /// Webhooks whose retries have ended, counted up to 10,000; redeliver them one by one.
    pub exhausted: i64,
    /// Until when the old secret signs, too.
    #[serde(with = "rfc3339::option")]
    pub old_secret_until: Option<OffsetDateTime>,
}

/// The URL of the partner's endpoint, if there is one.
pub async fn webhook_url(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<Option<String>> {
    let url = sqlx::query_scalar!(
        "SELECT webhook_url FROM partners WHERE partner_id = $1",
        partner_id.uuid()
    );
    Ok(url.fetch_optional(connection).await?.flatten())
}

pub async fn endpoint(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<Option<Endpoint>> {
    let endpoint = sqlx::query_as!(
        Endpoint,
        r#"SELECT p.webhook_url AS url, p.webhook_events AS events,
                  CASE WHEN e.blocked_until = 'infinity' THEN 'paused'
                       WHEN p.webhook_url IS NULL THEN 'no_url'
                       WHEN e.probe IS NOT NULL OR e.blocked_until <= now() THEN 'probing'
                       WHEN e.blocked_until IS NOT NULL THEN 'blocked'
                       ELSE 'open' END AS "state!",
                  nullif(e.blocked_until, 'infinity') AS blocked_until,
                  coalesce(e.failures, 0) AS "failures!",
                  (SELECT count(*)
                   FROM (SELECT FROM work w
                         WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = '' AND w.partner_id = $1
                         LIMIT $2) waiting) AS "waiting!",
                  (SELECT count(*)
                   FROM (SELECT FROM held h WHERE h.partner_id = $1 AND h.state = 'exhausted' AND h.lane = ''
                         LIMIT $2) exhausted) AS "exhausted!",
                  CASE WHEN p.old_webhook_secret_until > now() THEN p.old_webhook_secret_until END
                      AS old_secret_until
           FROM partners p LEFT JOIN endpoints e ON e.partner_id = p.partner_id
           WHERE p.partner_id = $1"#,
        partner_id.uuid(),
        MOST_COUNTED,
    );
    Ok(endpoint.fetch_optional(connection).await?)
}

/// Changes the partner's webhook endpoint, and records the change. After a new URL the notifiers
/// make waiting deliveries due, and the next probe of a blocked endpoint is due at once. Returns
/// whether anything changed.
pub async fn set_webhook(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    new: &NewWebhook<'_>,
) -> Result<bool> {
    let mut transaction = connection.begin().await?;
    let changed =
        partners::change_webhook(&mut transaction, partner_id, new, Block::ProbeNow).await?;
    if changed {
        record_change(&mut transaction, "webhook set", partner_id).await?;
    }
    transaction.commit().await?;
    Ok(changed)
}

/// The position of a webhook among all webhooks of its partner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// When its delivery was stored.
    pub at: OffsetDateTime,
    /// Its topup. Empty for the position before all webhooks of that time.
    pub topup_id: String,
}

/// The parts of a webhook as they are stored.
#[derive(Clone, Debug)]
pub struct StoredWebhook {
    pub topup_id: TopupId,
    pub option_id: OptionId,
    pub external_order_id: String,
    pub iccid: String,
    /// The sealed profile; `None` if it was erased.
    pub profile: Option<Vec<u8>>,
    pub position: Position,
}

/// The oldest webhooks of a partner after the position `after`, at most `limit`. The state of their
/// deliveries does not matter.
pub async fn webhooks(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    after: &Position,
    limit: i64,
) -> Result<Vec<StoredWebhook>> {
    let query = sqlx::query!(
        r#"SELECT d.topup_id AS "topup_id!", d.created_at, t.option_id, o.external_order_id, e.iccid,
                  CASE WHEN e.erased_at IS NULL THEN e.profile END AS profile
           FROM (SELECT topup_id, order_id, created_at FROM deliveries
                 WHERE partner_id = $1 AND kind = 'topup.ready' AND endpoint_id IS NULL
                   AND created_at >= $2 AND (created_at, topup_id) > ($2, $3)
                   AND created_at <= now() - make_interval(secs => $4)
                 ORDER BY created_at, topup_id LIMIT $5) d
           JOIN topups t ON t.topup_id = d.topup_id
           JOIN esims e ON e.topup_id = d.topup_id
           JOIN orders o ON o.order_id = d.order_id
           ORDER BY d.created_at, d.topup_id"#,
        partner_id.uuid(),
        after.at,
        after.topup_id,
        SETTLE,
        limit,
    );
    let read = query.fetch_all(connection).await?.into_iter().map(|row| {
        Ok(StoredWebhook {
            position: Position {
                at: row.created_at,
                topup_id: row.topup_id.clone(),
            },
            topup_id: row.topup_id.try_into()?,
            option_id: row.option_id.into(),
            external_order_id: row.external_order_id,
            iccid: row.iccid.unwrap_or_default(),
            profile: row.profile,
        })
    });
    read.collect()
}

/// The sealed webhook secrets of a partner, newest first. There are two during the overlap of a
/// rotation.
pub async fn webhook_secrets(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<Vec<Vec<u8>>> {
    let query = sqlx::query!(
        "SELECT webhook_secret, CASE WHEN old_webhook_secret_until > now() THEN old_webhook_secret END AS old
         FROM partners WHERE partner_id = $1",
        partner_id.uuid(),
    );
    let row = query.fetch_optional(connection).await?;
    Ok(row
        .map(|row| [Some(row.webhook_secret), row.old])
        .into_iter()
        .flatten()
        .flatten()
        .collect())
}
