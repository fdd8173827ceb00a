//! The catalogue: the options that partners may order.
//!
//! `esimctl option apply` and `esimctl catalogue pull` write it. Ingress keeps it in memory, with the changes that
//! [`changed_since`] returns, and asks for unknown options with [`by_ids`].

use domain::{
    Environment, OptionId,
    cut::Pair,
    product::{Cost, Country, Data, Price, Standard},
};
use pg::{Error, Result};
use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

/// An option, as it is stored and as the file of `esimctl option apply` has it. `docs/options.schema.json` is
/// generated from it.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProductOption {
    /// The id by which partners order the option.
    #[schema(value_type = Uuid)]
    pub option_id: OptionId,
    pub name: String,
    pub provider: String,
    pub provider_option_id: String,
    /// The pairs that follow if this provider refuses a purchase, in order of preference. Each names
    /// another provider.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub alternatives: Vec<Pair>,
    /// The environment whose partners may order the option: `sandbox` or `live`.
    #[schema(value_type = String, pattern = "^(sandbox|live)$")]
    pub environment: Environment,
    /// Only enabled options can be ordered.
    #[serde(default = "enabled")]
    pub enabled: bool,
    /// The operator's description for partners: any JSON object. It is empty unless [`all`] has
    /// read it, because orders do not need it.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub details: Map<String, Value>,
    /// What is known of the product in the same form for all providers. It is `None` unless [`all`]
    /// has read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub standard: Option<Standard>,
}

fn enabled() -> bool {
    true
}

/// Parses the details of an option as they are stored.
pub fn details(stored: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(stored)
        .map_err(|error| Error::Unreadable(format!("details of an option: {error}")))
}

/// Parses the alternatives of an option as they are stored.
fn alternatives(stored: &str) -> Result<Vec<Pair>> {
    serde_json::from_str(stored)
        .map_err(|error| Error::Unreadable(format!("alternatives of an option: {error}")))
}

/// The standard fields of an option as they are stored.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StandardColumns {
    pub countries: Option<Vec<String>>,
    pub data_mb: Option<i32>,
    pub unlimited: Option<bool>,
    pub days: Option<i32>,
    pub cost: Option<i64>,
    pub cost_currency: Option<String>,
}

impl StandardColumns {
    pub fn of(standard: Option<&Standard>) -> Self {
        let Some(standard) = standard else {
            return Self::default();
        };
        let megabytes = match standard.data {
            Data::Megabytes(megabytes) => Some(megabytes),
            Data::Unlimited => None,
        };
        let cost = standard.cost;
        Self {
            countries: Some(standard.countries.iter().map(Country::to_string).collect()),
            data_mb: megabytes.and_then(|megabytes| megabytes.try_into().ok()),
            unlimited: Some(megabytes.is_none()),
            days: Some(standard.days.into()),
            cost: cost.and_then(|cost| cost.price.0.try_into().ok()),
            cost_currency: cost.map(|cost| cost.currency.to_string()),
        }
    }

    fn read(self) -> Result<Option<Standard>> {
        let Some(countries) = self.countries else {
            return Ok(None);
        };
        let unreadable = || Error::Unreadable("the standard fields of an option".into());
        let countries: std::result::Result<Vec<Country>, _> =
            countries.iter().map(|code| code.parse()).collect();
        let megabytes = self.data_mb.and_then(|megabytes| megabytes.try_into().ok());
        let data = match self.unlimited {
            Some(true) => Some(Data::Unlimited),
            _ => megabytes.and_then(Data::megabytes),
        };
        let days = self.days.and_then(|days| days.try_into().ok());
        let price = self.cost.and_then(|cost| cost.try_into().ok());
        let currency = self.cost_currency.and_then(|code| code.parse().ok());
        let cost = price.zip(currency).map(|(price, currency)| Cost {
            price: Price(price),
            currency,
        });
        let standard = data
            .zip(days)
            .and_then(|(data, days)| Standard::new(countries.ok()?, data, days, cost));
        standard.map(Some).ok_or_else(unreadable)
    }
}

/// Reads the options that match a condition, without details and standard fields, each with the
/// row version of its last change.
macro_rules! options {
    ($connection:expr, $condition:literal $(, $argument:expr)?) => {
        sqlx::query!(
            r#"SELECT option_id, name, provider, provider_option_id, environment, enabled, version,
                      alternatives::text AS "alternatives!" FROM options "#
                + $condition
                $(, $argument)?
        )
        .fetch_all($connection)
        .await?
        .into_iter()
        .map(|row| Changed {
            option_id: row.option_id.into(),
            row_version: row.version,
            option: alternatives(&row.alternatives).and_then(|alternatives| {
                Ok(ProductOption {
                    option_id: row.option_id.into(),
                    name: row.name,
                    provider: row.provider,
                    provider_option_id: row.provider_option_id,
                    alternatives,
                    environment: row.environment.parse()?,
                    enabled: row.enabled,
                    details: Map::new(),
                    standard: None,
                })
            }),
        })
        .collect()
    };
}

/// An option as it is stored.
#[derive(Debug)]
pub struct Changed {
    pub option_id: OptionId,
    /// The row version of its last change, for [`changed_since`].
    pub row_version: i64,
    /// An error if the row cannot be read, which concerns this option only.
    pub option: Result<ProductOption>,
}

/// Inserts or updates an option. Returns whether anything changed. An unchanged option is not
/// written, so it gets no new version and no ingress reads it again.
pub async fn import(connection: &mut PgConnection, option: &ProductOption) -> Result<bool> {
    let details = Value::from(option.details.clone()).to_string();
    let alternatives = json!(option.alternatives).to_string();
    let standard = StandardColumns::of(option.standard.as_ref());
    let changed = sqlx::query!(
        "INSERT INTO options AS o (option_id, name, provider, provider_option_id, environment, enabled, details,
                                   alternatives, countries, data_mb, unlimited, days, cost, cost_currency)
         VALUES ($1, $2, $3, $4, $5, $6, $7::text::jsonb, $8::text::jsonb, $9, $10, $11, $12, $13, $14)
         ON CONFLICT (option_id) DO UPDATE
         SET name = $2, provider = $3, provider_option_id = $4, environment = $5, enabled = $6, details = $7::text::jsonb,
             alternatives = $8::text::jsonb,
             countries = $9, data_mb = $10, unlimited = $11, days = $12, cost = $13, cost_currency = $14
         WHERE (o.name, o.provider, o.provider_option_id, o.environment, o.enabled, o.details, o.alternatives,
                o.countries, o.data_mb, o.unlimited, o.days, o.cost, o.cost_currency)
            IS DISTINCT FROM ($2, $3, $4, $5, $6, $7::text::jsonb, $8::text::jsonb, $9, $10, $11, $12, $13, $14)",
        option.option_id.uuid(),
        option.name,
        option.provider,
        option.provider_option_id,
        option.environment.as_str(),
        option.enabled,
        details,
        alternatives,
        standard.countries.as_deref(),
        standard.data_mb,
        standard.unlimited,
        standard.days,
        standard.cost,
        standard.cost_currency,
    );
    Ok(changed.execute(connection).await?.rows_affected() > 0)
}

/// All options, with their details and standard fields. One that cannot be read is an error of its
/// own, so that the others can be shown.
pub async fn all(connection: &mut PgConnection) -> Result<Vec<Changed>> {
    let rows = sqlx::query!(
        r#"SELECT option_id, name, provider, provider_option_id, environment, enabled, version, details::text AS "details!",
                  alternatives::text AS "alternatives!", countries, data_mb, unlimited, days, cost, cost_currency
           FROM options ORDER BY environment, provider, name, option_id"#
    );
    let rows = rows.fetch_all(connection).await?;
    let all = rows.into_iter().map(|row| {
        let standard = StandardColumns {
            countries: row.countries,
            data_mb: row.data_mb,
            unlimited: row.unlimited,
            days: row.days,
            cost: row.cost,
            cost_currency: row.cost_currency,
        };
        let option = || {
            Ok(ProductOption {
                option_id: row.option_id.into(),
                name: row.name,
                provider: row.provider,
                provider_option_id: row.provider_option_id,
                alternatives: alternatives(&row.alternatives)?,
                environment: row.environment.parse()?,
                enabled: row.enabled,
                details: details(&row.details)?,
                standard: standard.read()?,
            })
        };
        Changed {
            option_id: row.option_id.into(),
            row_version: row.version,
            option: option(),
        }
    });
    Ok(all.collect())
}

/// The options that can be read, and what is wrong with each of the others.
#[must_use]
pub fn readable(stored: Vec<Changed>) -> (Vec<ProductOption>, Vec<String>) {
    let mut readable = Vec::new();
    let mut unreadable = Vec::new();
    for one in stored {
        match one.option {
            Ok(option) => readable.push(option),
            Err(error) => unreadable.push(format!("option {}: {error}", one.option_id)),
        }
    }
    (readable, unreadable)
}

/// The configuration version: one number, which every transaction raises that changes a partner, an
/// option or an endpoint. While it stays, nothing of these has changed, so nobody has to read them
/// again. What has changed is told by the row versions of partners and options, which are other
/// numbers: see [`changed_since`] and [`crate::partners::changed_since`].
pub async fn configuration_version(connection: &mut PgConnection) -> Result<i64> {
    let query = sqlx::query_scalar!("SELECT version FROM system");
    Ok(query.fetch_one(connection).await?)
}

/// The options that changed after this row version, without details. Each change of an option gets
/// the next row version, and changes become visible in this order. So whoever remembers the greatest
/// one that it has seen misses no change.
pub async fn changed_since(
    connection: &mut PgConnection,
    row_version: i64,
) -> Result<Vec<Changed>> {
    Ok(options!(connection, "WHERE version > $1", row_version))
}

/// The options with these ids, without details.
pub async fn by_ids(connection: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<Changed>> {
    Ok(options!(connection, "WHERE option_id = ANY($1)", ids))
}
