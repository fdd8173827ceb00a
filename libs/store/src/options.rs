//! The catalogue: the options that partners may order.
//!
//! `esimctl option import` writes it. Ingress keeps it in memory, with the changes that
//! [`changed_since`] returns, and asks for unknown options with [`by_ids`]. The version of each
//! change comes from one locked row (see the migration of `configuration_version`), so a reader
//! that polls by version misses no change.

use domain::{Environment, OptionId, cut::Pair};
use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{Error, Result};

#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductOption {
    /// The id by which partners order the option.
    pub option_id: OptionId,
    pub name: String,
    pub provider: String,
    pub provider_option_id: String,
    /// The pairs that follow if this provider refuses a purchase, in order of preference. Each names
    /// another provider.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Pair>,
    /// The environment whose partners may order the option.
    pub environment: Environment,
    /// Only enabled options can be ordered.
    #[serde(default = "enabled")]
    pub enabled: bool,
    /// The operator's description for partners: any JSON object. It is empty unless [`all`] has
    /// read it, because orders do not need it.
    #[serde(default)]
    pub details: Map<String, Value>,
}

fn enabled() -> bool {
    true
}

/// Parses the details of an option as they are stored.
pub(crate) fn details(stored: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(stored)
        .map_err(|error| Error::Unreadable(format!("details of an option: {error}")))
}

/// Parses the alternatives of an option as they are stored.
fn alternatives(stored: &str) -> Result<Vec<Pair>> {
    serde_json::from_str(stored)
        .map_err(|error| Error::Unreadable(format!("alternatives of an option: {error}")))
}

/// Reads the options that match a condition, with `$details` as their details, each with the
/// version of its last change.
macro_rules! options {
    ($connection:expr, $details:literal, $condition:literal $(, $argument:expr)?) => {
        sqlx::query!(
            r#"SELECT option_id, name, provider, provider_option_id, environment, enabled, version,
                      alternatives::text AS "alternatives!", "#
                + $details
                + r#" AS "details!" FROM options "#
                + $condition
                $(, $argument)?
        )
        .fetch_all($connection)
        .await?
        .into_iter()
        .map(|row| {
            let option = ProductOption {
                option_id: row.option_id.into(),
                name: row.name,
                provider: row.provider,
                provider_option_id: row.provider_option_id,
                alternatives: alternatives(&row.alternatives)?,
                environment: row.environment.parse()?,
                enabled: row.enabled,
                details: details(&row.details)?,
            };
            Ok((option, row.version))
        })
        .collect()
    };
}

/// Inserts or updates an option. Returns whether anything changed. An unchanged option is not
/// written, so it gets no new version and no ingress reads it again.
pub async fn import(connection: &mut PgConnection, option: &ProductOption) -> Result<bool> {
    let details = Value::from(option.details.clone()).to_string();
    let alternatives = json!(option.alternatives).to_string();
    let changed = sqlx::query!(
        "INSERT INTO options AS o (option_id, name, provider, provider_option_id, environment, enabled, details,
                                   alternatives)
         VALUES ($1, $2, $3, $4, $5, $6, $7::text::jsonb, $8::text::jsonb)
         ON CONFLICT (option_id) DO UPDATE
         SET name = $2, provider = $3, provider_option_id = $4, environment = $5, enabled = $6, details = $7::text::jsonb,
             alternatives = $8::text::jsonb
         WHERE (o.name, o.provider, o.provider_option_id, o.environment, o.enabled, o.details, o.alternatives)
            IS DISTINCT FROM ($2, $3, $4, $5, $6, $7::text::jsonb, $8::text::jsonb)",
        option.option_id.uuid(),
        option.name,
        option.provider,
        option.provider_option_id,
        option.environment.as_str(),
        option.enabled,
        details,
        alternatives,
    );
    Ok(changed.execute(connection).await?.rows_affected() > 0)
}

/// All options, with their details.
pub async fn all(connection: &mut PgConnection) -> Result<Vec<ProductOption>> {
    let all: Result<Vec<(ProductOption, i64)>> = options!(
        connection,
        "details::text",
        "ORDER BY environment, provider, name, option_id"
    );
    Ok(all?.into_iter().map(|(option, _)| option).collect())
}

/// The options that changed after `version`, without details, each with the version of its change.
pub async fn changed_since(
    connection: &mut PgConnection,
    version: i64,
) -> Result<Vec<(ProductOption, i64)>> {
    options!(connection, "'{}'", "WHERE version > $1", version)
}

/// The options with these ids, without details.
pub async fn by_ids(
    connection: &mut PgConnection,
    ids: &[Uuid],
) -> Result<Vec<(ProductOption, i64)>> {
    options!(connection, "'{}'", "WHERE option_id = ANY($1)", ids)
}
