//! Changes of a partner's own endpoint, secret and keys. Each commits with its record.

use domain::PartnerId;
use sqlx::{Connection, PgConnection, Postgres, Transaction};

use super::{PARTNER, REASON};
use crate::{
    Result,
    endpoints::Block,
    operator::actions::{self, Action},
    partners::{self, NewWebhook, Rotated},
};

/// Commits a change of the partner with its record, if there is one.
async fn commit(
    mut transaction: Transaction<'_, Postgres>,
    changed: bool,
    command: &'static str,
    partner_id: PartnerId,
) -> Result<()> {
    if changed {
        let action = Action { operator: PARTNER, command, target: &format!("partner {partner_id}"), reason: REASON };
        actions::record(&mut transaction, action, 1).await?;
    }
    Ok(transaction.commit().await?)
}

/// Changes the partner's webhook endpoint. After a new URL, notifiers make waiting deliveries due, and the next probe
/// of a blocked endpoint is due at once. Returns whether anything changed.
pub async fn set_webhook(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    new: &NewWebhook<'_>,
) -> Result<bool> {
    let mut transaction = connection.begin().await?;
    let changed = partners::change_webhook(&mut transaction, partner_id, new, Block::ProbeNow).await?;
    commit(transaction, changed, "webhook set", partner_id).await?;
    Ok(changed)
}

/// Rotates at the partner's request; `command` goes into the record.
pub async fn rotate(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    command: &'static str,
    rotate: impl AsyncFnOnce(&mut PgConnection) -> Result<Rotated>,
) -> Result<Rotated> {
    let mut transaction = connection.begin().await?;
    let rotated = rotate(&mut transaction).await?;
    commit(transaction, rotated != Rotated::Refused, command, partner_id).await?;
    Ok(rotated)
}
