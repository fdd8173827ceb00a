//! A partner's account: its keys and the options that it may order.

use domain::{Environment, OptionId, PartnerId};
use serde_json::{Map, Value};
use sqlx::{Connection, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use super::record_change;
use crate::{Result, options, partners::Rotated};

/// An option that a partner may order.
#[derive(Clone, Debug)]
pub struct OfferedOption {
    pub option_id: OptionId,
    pub name: String,
    /// The operator's description.
    pub details: Map<String, Value>,
}

/// The options that a partner of this environment may order, by id, after `after` and at most
/// `limit`. A live partner is offered the live options of `providers`, and a sandbox partner all
/// options, because it buys nothing real.
pub async fn options(
    connection: &mut PgConnection,
    environment: Environment,
    providers: &[String],
    after: Option<OptionId>,
    limit: i64,
) -> Result<Vec<OfferedOption>> {
    let rows = sqlx::query!(
        r#"SELECT option_id, name, details::text AS "details!" FROM options
         WHERE enabled AND option_id > $1 AND ($2 OR (environment = 'live' AND provider = ANY ($3)))
         ORDER BY option_id LIMIT $4"#,
        after.map_or(Uuid::nil(), OptionId::uuid),
        environment == Environment::Sandbox,
        providers,
        limit,
    );
    let offered = rows.fetch_all(connection).await?.into_iter().map(|row| {
        Ok(OfferedOption {
            option_id: row.option_id.into(),
            name: row.name,
            details: options::details(&row.details)?,
        })
    });
    offered.collect()
}

/// A partner's account, without secrets.
#[derive(Clone, Debug)]
pub struct Account {
    pub name: String,
    /// `sandbox` or `live`.
    pub environment: String,
    pub access_key: String,
    /// The access key before the last rotation, during the overlap.
    pub old_access_key: Option<String>,
    /// When the old keys end.
    pub old_keys_until: Option<OffsetDateTime>,
    pub created_at: OffsetDateTime,
}

pub async fn account(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<Option<Account>> {
    let account = sqlx::query_as!(
        Account,
        r#"SELECT name, environment, access_key, created_at,
                  CASE WHEN old_keys_until > now() THEN old_access_key END AS old_access_key,
                  CASE WHEN old_keys_until > now() THEN old_keys_until END AS old_keys_until
           FROM partners WHERE partner_id = $1"#,
        partner_id.uuid(),
    );
    Ok(account.fetch_optional(connection).await?)
}

/// Performs a rotation (`rotate`) at the request of the partner, and records it as `command` in the
/// same transaction. A refused rotation is not recorded.
pub async fn rotate(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    command: &'static str,
    rotate: impl AsyncFnOnce(&mut PgConnection) -> Result<Rotated>,
) -> Result<Rotated> {
    let mut transaction = connection.begin().await?;
    let rotated = rotate(&mut transaction).await?;
    if rotated != Rotated::Refused {
        record_change(&mut transaction, command, partner_id).await?;
    }
    transaction.commit().await?;
    Ok(rotated)
}
