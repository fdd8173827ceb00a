//! The catalogue: the product options that partners may order.

use domain::{Environment, OptionId};
use serde_json::{Map, Value};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::Error;

/// A product option.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductOption {
    /// The `option_id` of partners' orders.
    pub option_id: OptionId,
    /// The display name.
    pub name: String,
    /// The provider that sells it.
    pub provider: String,
    /// The provider's id of the option.
    pub provider_option_id: String,
    /// Partners of this environment may order it.
    pub environment: Environment,
    /// Only enabled options can be ordered.
    #[serde(default = "enabled")]
    pub enabled: bool,
    /// What the operator tells partners about it, shown as it is.
    #[serde(default)]
    pub details: Map<String, Value>,
}

fn enabled() -> bool {
    true
}

/// Reads stored details.
pub(crate) fn details(stored: &str) -> Result<Map<String, Value>, Error> {
    serde_json::from_str(stored).map_err(|error| Error::Unreadable(format!("details of an option: {error}")))
}

struct OptionRow {
    option_id: Uuid,
    name: String,
    provider: String,
    provider_option_id: String,
    environment: String,
    enabled: bool,
    details: String,
    version: i64,
}

impl OptionRow {
    fn read(self) -> Result<(ProductOption, i64), Error> {
        let option = ProductOption {
            option_id: self.option_id.into(),
            name: self.name,
            provider: self.provider,
            provider_option_id: self.provider_option_id,
            environment: self.environment.parse()?,
            enabled: self.enabled,
            details: details(&self.details)?,
        };
        Ok((option, self.version))
    }
}

/// Inserts or updates an option. Returns whether anything changed.
pub async fn import(connection: &mut PgConnection, option: &ProductOption) -> Result<bool, Error> {
    let details = Value::from(option.details.clone()).to_string();
    let changed = sqlx::query!(
        "INSERT INTO options AS o (option_id, name, provider, provider_option_id, environment, enabled, details)
         VALUES ($1, $2, $3, $4, $5, $6, $7::text::jsonb)
         ON CONFLICT (option_id) DO UPDATE
         SET name = $2, provider = $3, provider_option_id = $4, environment = $5, enabled = $6, details = $7::text::jsonb
         WHERE (o.name, o.provider, o.provider_option_id, o.environment, o.enabled, o.details)
            IS DISTINCT FROM ($2, $3, $4, $5, $6, $7::text::jsonb)",
        option.option_id.uuid(),
        option.name,
        option.provider,
        option.provider_option_id,
        option.environment.as_str(),
        option.enabled,
        details,
    )
    .execute(connection)
    .await?;
    Ok(changed.rows_affected() > 0)
}

/// The options that changed after `version`, each with the version of its change; all for 0.
pub async fn changed_since(
    connection: &mut PgConnection,
    version: i64,
) -> Result<Vec<(ProductOption, i64)>, Error> {
    sqlx::query_as!(
        OptionRow,
        r#"SELECT option_id, name, provider, provider_option_id, environment, enabled, details::text AS "details!", version
         FROM options WHERE version > $1 ORDER BY environment, provider, name, option_id"#,
        version,
    )
    .fetch_all(connection)
    .await?
    .into_iter()
    .map(OptionRow::read)
    .collect()
}

/// The options with these ids.
pub async fn by_ids(connection: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<(ProductOption, i64)>, Error> {
    sqlx::query_as!(
        OptionRow,
        r#"SELECT option_id, name, provider, provider_option_id, environment, enabled, details::text AS "details!", version
         FROM options WHERE option_id = ANY($1)"#,
        ids,
    )
    .fetch_all(connection)
    .await?
    .into_iter()
    .map(OptionRow::read)
    .collect()
}
