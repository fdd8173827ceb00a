//! The catalogue: the options that partners may order.
//!
//! `esimctl option apply` and `esimctl catalogue pull` write it. Ingress keeps it in memory, with
//! the changes that [`changed_since`] returns, and asks for unknown options with [`by_ids`].

use domain::{
    Environment, OptionId,
    cut::OptionAtProvider,
    product::{Cost, Country, Data, Price, Standard},
};
use pg::{Error, Result, Transaction};
use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::facts::Facts;

/// An option, as it is stored and as `esimctl option list --json` prints it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ProductOption {
    /// The id by which partners order the option.
    pub option_id: OptionId,
    pub name: String,
    pub provider: String,
    pub provider_option_id: String,
    /// The pairs that follow if this provider refuses a purchase, in order of preference. Each names
    /// another provider.
    pub alternatives: Vec<OptionAtProvider>,
    /// The environment whose partners may order the option.
    pub environment: Environment,
    /// Only enabled options can be ordered.
    pub enabled: bool,
    /// The operator's description for partners: any JSON object. It is empty unless [`all`] has
    /// read it, because orders do not need it.
    pub details: Map<String, Value>,
    /// What is known of the product in the same form for all providers.
    pub standard: Option<Standard>,
    /// What a file sets by hand, which counts. Like `told` it is empty unless [`all`] or [`one`]
    /// has read it.
    pub facts: Facts,
    /// What the first provider tells.
    pub told: Facts,
}

impl ProductOption {
    /// An option on sale that one provider sells, without a description.
    pub fn new(
        option_id: OptionId,
        name: impl Into<String>,
        sold: OptionAtProvider,
        environment: Environment,
    ) -> Self {
        Self {
            option_id,
            name: name.into(),
            provider: sold.provider,
            provider_option_id: sold.provider_option_id,
            alternatives: Vec::new(),
            environment,
            enabled: true,
            details: Map::new(),
            standard: None,
            facts: Facts::default(),
            told: Facts::default(),
        }
    }
}

/// Parses the details of an option as they are stored.
pub fn details(stored: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(stored)
        .map_err(|error| Error::Unreadable(format!("details of an option: {error}")))
}

/// Parses the alternatives of an option as they are stored.
fn alternatives(stored: &str) -> Result<Vec<OptionAtProvider>> {
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

/// The columns of an option.
struct OptionRow {
    option_id: Uuid,
    name: String,
    provider: String,
    provider_option_id: String,
    environment: String,
    enabled: bool,
    version: i64,
    alternatives: String,
    /// `None` if they were not asked for.
    details: Option<String>,
    countries: Option<Vec<String>>,
    data_mb: Option<i32>,
    unlimited: Option<bool>,
    days: Option<i32>,
    cost: Option<i64>,
    cost_currency: Option<String>,
    /// `None` if there are none, or if they were not asked for.
    facts: Option<String>,
    told: Option<String>,
}

impl OptionRow {
    fn read(self) -> StoredOption {
        StoredOption {
            option_id: self.option_id.into(),
            row_version: self.version,
            enabled: self.enabled,
            option: self.option(),
        }
    }

    fn option(self) -> Result<ProductOption> {
        let standard = StandardColumns {
            countries: self.countries,
            data_mb: self.data_mb,
            unlimited: self.unlimited,
            days: self.days,
            cost: self.cost,
            cost_currency: self.cost_currency,
        };
        Ok(ProductOption {
            option_id: self.option_id.into(),
            name: self.name,
            provider: self.provider,
            provider_option_id: self.provider_option_id,
            alternatives: alternatives(&self.alternatives)?,
            environment: self.environment.parse()?,
            enabled: self.enabled,
            details: (self.details.as_deref()).map_or(Ok(Map::new()), details)?,
            standard: standard.read()?,
            facts: Facts::read(self.facts.as_deref())?,
            told: Facts::read(self.told.as_deref())?,
        })
    }
}

/// Reads the options that match a condition, with or without their details, each with the row
/// version of its last change. The condition's own argument is `$2`.
macro_rules! options {
    ($connection:expr, $with_details:expr, $condition:literal $(, $argument:expr)?) => {{
        let rows = sqlx::query_as!(
            OptionRow,
            r#"SELECT option_id, name, provider, provider_option_id, environment, enabled, version,
                      alternatives::text AS "alternatives!", CASE WHEN $1::bool THEN details::text END AS details,
                      countries, data_mb, unlimited, days, cost, cost_currency,
                      CASE WHEN $1 THEN facts::text END AS facts, CASE WHEN $1 THEN told::text END AS told
               FROM options "#
                + $condition,
            $with_details
            $(, $argument)?
        );
        let rows = rows.fetch_all($connection).await?;
        Ok(rows.into_iter().map(OptionRow::read).collect())
    }};
}

/// An option as it is stored.
#[derive(Debug)]
pub struct StoredOption {
    pub option_id: OptionId,
    /// The row version of its last change, for [`changed_since`].
    pub row_version: i64,
    /// Whether it is on sale, which is also known of an option that cannot be read.
    pub enabled: bool,
    /// An error if the row cannot be read, which concerns this option only.
    pub option: Result<ProductOption>,
}

/// Writes these columns of an option, whose values follow in the same order. An option that is
/// there is replaced only if `$replaces`, and only if anything differs. Evaluates to whether a row
/// was written.
macro_rules! write_option {
    ($connection:expr, $option:expr, $replaces:expr, $columns:literal) => {{
        // Every field is named, so that a new one cannot be forgotten.
        let ProductOption {
            option_id,
            name,
            provider,
            provider_option_id,
            alternatives,
            environment,
            enabled,
            details,
            standard,
            facts,
            told,
        } = $option;
        let standard = StandardColumns::of(standard.as_ref());
        let statement = sqlx::query!(
            "INSERT INTO options AS o ("
                + $columns
                + ") VALUES ($2, $3, $4, $5, $6, $7, $8::text::jsonb, $9::text::jsonb, $10, $11, $12, $13, $14, $15, $16::text::jsonb, $17::text::jsonb)
             ON CONFLICT (option_id) DO UPDATE SET ("
                + $columns
                + ") = (SELECT "
                + $columns
                + " FROM (SELECT excluded.*) new)
             WHERE $1 AND to_jsonb(o) - 'version' IS DISTINCT FROM to_jsonb(excluded) - 'version'",
            $replaces,
            option_id.uuid(),
            name,
            provider,
            provider_option_id,
            environment.as_str(),
            enabled,
            Value::from(details.clone()).to_string(),
            json!(alternatives).to_string(),
            standard.countries.as_deref(),
            standard.data_mb,
            standard.unlimited,
            standard.days,
            standard.cost,
            standard.cost_currency,
            facts.stored(),
            told.stored(),
        );
        Ok(statement.execute($connection).await?.rows_affected() > 0)
    }};
}

async fn write(
    connection: &mut PgConnection,
    option: &ProductOption,
    replaces: bool,
) -> Result<bool> {
    write_option!(
        connection,
        option,
        replaces,
        "option_id, name, provider, provider_option_id, environment, enabled, details, alternatives,
         countries, data_mb, unlimited, days, cost, cost_currency, facts, told"
    )
}

/// Keeps all other changes of the catalogue out until the end of the transaction. Orders go on.
pub async fn lock(transaction: &mut Transaction<'_>) -> Result<()> {
    let statement = sqlx::query!("LOCK TABLE options IN SHARE ROW EXCLUSIVE MODE");
    statement.execute(&mut **transaction).await?;
    Ok(())
}

/// Inserts an option. Returns false, and changes nothing, if there is one with its id.
pub async fn create(connection: &mut PgConnection, option: &ProductOption) -> Result<bool> {
    write(connection, option, false).await
}

/// Inserts or updates an option. Returns whether anything changed. An unchanged option is not
/// written, so it gets no new version and no ingress reads it again.
pub async fn import(connection: &mut PgConnection, option: &ProductOption) -> Result<bool> {
    write(connection, option, true).await
}

/// All options with their details. One that cannot be read is an error of its own, so that the
/// others can be shown.
pub async fn all(connection: &mut PgConnection) -> Result<Vec<StoredOption>> {
    options!(
        connection,
        true,
        "ORDER BY environment, provider, name, option_id"
    )
}

/// The option with this id, with its details.
pub async fn one(connection: &mut PgConnection, option: OptionId) -> Result<Option<ProductOption>> {
    let found: Result<Vec<StoredOption>> =
        options!(connection, true, "WHERE option_id = $2", option.uuid());
    let found = found?.pop();
    found.map(|stored| stored.option).transpose()
}

/// The options that can be read, and what is wrong with each of the others.
#[must_use]
pub fn readable(stored: Vec<StoredOption>) -> (Vec<ProductOption>, Vec<String>) {
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
/// the next row version, and changes become visible in this order. So whoever remembers the
/// greatest one that it has seen misses no change.
pub async fn changed_since(
    connection: &mut PgConnection,
    row_version: i64,
) -> Result<Vec<StoredOption>> {
    options!(connection, false, "WHERE version > $2", row_version)
}

/// The options with these ids, without details.
pub async fn by_ids(connection: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<StoredOption>> {
    options!(connection, false, "WHERE option_id = ANY($2)", ids)
}
