//! The webhooks of a partner, in the order of their creation.

use domain::{OptionId, PartnerId, TopupId};
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::Result;

/// A webhook is found this long after its creation, in seconds: transactions commit in another order than they begin.
const SETTLE: f64 = 1.0;

/// The position of a webhook among all webhooks of its partner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// When its delivery was stored.
    pub at: OffsetDateTime,
    /// Its topup; empty for the position before all webhooks of that time.
    pub topup_id: String,
}

/// The stored parts of a webhook.
#[derive(Clone, Debug)]
pub struct StoredWebhook {
    pub topup_id: TopupId,
    pub option_id: OptionId,
    pub external_order_id: String,
    pub iccid: String,
    /// The sealed profile; none if it was erased.
    pub profile: Option<Vec<u8>>,
    pub position: Position,
}

/// The oldest webhooks of a partner after `after`, at most `limit`. The state of their deliveries does not matter.
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
                 WHERE partner_id = $1 AND kind = 'topup.ready'
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
            position: Position { at: row.created_at, topup_id: row.topup_id.clone() },
            topup_id: row.topup_id.try_into()?,
            option_id: row.option_id.into(),
            external_order_id: row.external_order_id,
            iccid: row.iccid.unwrap_or_default(),
            profile: row.profile,
        })
    });
    read.collect()
}

/// A partner's sealed webhook-signing keys, the newest first: two during the overlap of a rotation.
pub async fn webhook_secrets(connection: &mut PgConnection, partner_id: PartnerId) -> Result<Vec<Vec<u8>>> {
    let query = sqlx::query!(
        "SELECT webhook_secret, CASE WHEN old_webhook_secret_until > now() THEN old_webhook_secret END AS old
         FROM partners WHERE partner_id = $1",
        partner_id.uuid(),
    );
    let row = query.fetch_optional(connection).await?;
    Ok(row.map(|row| [Some(row.webhook_secret), row.old]).into_iter().flatten().flatten().collect())
}
