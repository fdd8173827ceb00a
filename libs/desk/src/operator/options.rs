//! Takes an option out of sale, and puts it back (`esimctl option set`).

use domain::OptionId;
use pg::{
    Result,
    actions::{ActionChange, Mode},
    transaction,
};
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

/// An option that an operator named.
#[derive(Clone, Debug, Serialize)]
pub struct NamedOption {
    pub option_id: OptionId,
    pub name: String,
    pub provider: String,
    pub provider_option_id: String,
    pub environment: String,
    /// Whether partners can order it.
    pub enabled: bool,
}

/// The options that an operator may mean: the one with this id, or else all with this name, in any
/// case, or this name at the provider. Names are not unique.
pub async fn named(connection: &mut PgConnection, named: &str) -> Result<Vec<NamedOption>> {
    let id: Option<Uuid> = named.parse().ok();
    let found = sqlx::query!(
        "SELECT option_id, name, provider, provider_option_id, environment, enabled FROM options
         WHERE option_id = $1 OR lower(name) = lower($2) OR provider_option_id = $2 ORDER BY environment, provider, name, option_id",
        id,
        named,
    );
    let rows = found.fetch_all(connection).await?;
    let options = rows.into_iter().map(|row| NamedOption {
        option_id: row.option_id.into(),
        name: row.name,
        provider: row.provider,
        provider_option_id: row.provider_option_id,
        environment: row.environment,
        enabled: row.enabled,
    });
    Ok(options.collect())
}

/// The names of what partners can order, at most so many of them, for who chooses one.
pub async fn names(connection: &mut PgConnection, most: i64) -> Result<Vec<String>> {
    let found = sqlx::query_scalar!(
        "SELECT DISTINCT name FROM options WHERE enabled ORDER BY name LIMIT $1",
        most,
    );
    Ok(found.fetch_all(connection).await?)
}

/// Sets whether partners can order an option, and returns whether that has changed anything. The
/// change gets a new version, so every ingress reads it.
pub async fn set_enabled(
    connection: &mut PgConnection,
    option: OptionId,
    enabled: bool,
    mode: Mode<'_>,
) -> Result<bool> {
    transaction!(connection, "options::set_enabled", |transaction| {
        let statement = sqlx::query!(
            "UPDATE options SET enabled = $2 WHERE option_id = $1 AND enabled <> $2",
            option.uuid(),
            enabled,
        );
        let changed = statement.execute(&mut **transaction).await?.rows_affected() > 0;
        let what = if changed {
            ActionChange::between(
                json!({ "enabled": !enabled }),
                json!({ "enabled": enabled }),
            )
        } else {
            ActionChange::nothing()
        };
        mode.record(transaction, i64::from(changed), what).await?;
        Ok(mode.end(changed))
    })
}
