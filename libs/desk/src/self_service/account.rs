//! A partner's account: its keys and the options that it may order.

use accounts::{
    facts::{Facts, PlanKind},
    options,
    partners::RotationResult,
};
use domain::{Environment, OptionId, PartnerId, product::Country};
use pg::{
    Result, Transaction, TransactionEnd,
    actions::ActionChange,
    rfc3339,
    transaction::{self, TransactionKind},
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

use super::record_change;

/// An option that you may order.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Offered)]
pub struct OfferedOption {
    #[schema(value_type = Uuid, example = "424b7b26-96e7-5c95-8df9-6654a3998070")]
    pub option_id: OptionId,
    pub name: String,
    /// What we tell you about the option beside its name, such as country, validity or price; `{}`
    /// if there is nothing.
    #[schema(value_type = Object)]
    pub details: Map<String, Value>,
    /// Where the eSIM can be used, as codes of ISO 3166-1 alpha-2 in alphabetical order, and `XK` for
    /// Kosovo; null if we do not say it in this form.
    #[schema(example = json!(["JP"]))]
    pub countries: Option<Vec<String>>,
    /// How much data the eSIM has, in MB, of which 1024 are a GB; null if it is unlimited, or if we do
    /// not say it in this form.
    #[schema(example = 5120, minimum = 1)]
    pub data_mb: Option<i32>,
    /// Whether the data is unlimited; null if we do not say it in this form.
    #[schema(example = false)]
    pub unlimited: Option<bool>,
    /// For how many days the data can be used; null if we do not say it in this form.
    #[schema(example = 30, minimum = 1)]
    pub days: Option<i32>,
    #[schema(required = false)]
    pub facts: Facts,
    /// When it, or its price, changed for the last time.
    #[serde(with = "time::serde::rfc3339")]
    #[schema(required = false)]
    pub updated_at: OffsetDateTime,
    /// What a unit costs now, in minor units of `currency`. Left out if we have agreed no prices with
    /// you.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 1250, minimum = 0)]
    pub price: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "USD")]
    pub currency: Option<String>,
}

/// Which options a partner asks for. An option of which nothing is known matches no condition.
#[derive(Clone, Copy, Debug, Default)]
pub struct OptionFilter<'a> {
    /// Only this one.
    pub option: Option<OptionId>,
    pub country: Option<Country>,
    /// The name of a network, in any case. If a country is asked for, it must be one of that
    /// country.
    pub network: Option<&'a str>,
    pub kind: Option<PlanKind>,
    /// At least so much data, in MB. Unlimited data is always enough.
    pub min_data_mb: Option<i32>,
    /// At most so much data, in MB. Unlimited data is always too much.
    pub max_data_mb: Option<i32>,
    pub unlimited: Option<bool>,
    pub min_days: Option<i32>,
    pub max_days: Option<i32>,
    /// Those that have changed since then.
    pub updated_since: Option<OffsetDateTime>,
}

/// One page of the options that a partner of this environment may order.
#[derive(Clone, Copy, Debug)]
pub struct OptionPage<'a> {
    pub environment: Environment,
    /// The connected providers.
    pub providers: &'a [String],
    /// The price list of the partner, if it has one. It is offered what that list has now.
    pub price_list: Option<&'a str>,
    pub filter: OptionFilter<'a>,
    /// The last option of the page before.
    pub after: Option<OptionId>,
    pub limit: i64,
}

/// The options of a page, by id. A live partner is offered the live options of the connected
/// providers, and a sandbox partner all options, because it buys nothing real.
pub async fn options(
    connection: &mut PgConnection,
    page: OptionPage<'_>,
) -> Result<Vec<OfferedOption>> {
    let filter = page.filter;
    let country = filter.country.map(|country| country.to_string());
    let kind = filter.kind.map(|kind| kind.to_string());
    // A change is seen only once it is committed, so a reader may have missed those of the last
    // moments before its `updated_since`. It gets these again, which does no harm.
    let rows = sqlx::query!(
        r#"SELECT option_id, name, details::text AS "details!", countries, data_mb, unlimited, days, facts::text AS facts,
                told::text AS told, updated_at AS "updated_at!", amount AS "price?", currency AS "currency?"
         FROM (
         -- Only what the page shows is written out.
         SELECT option_id, name, details, countries, data_mb, unlimited, days, facts, told,
                greatest(updated_at, price.valid_from) AS updated_at, price.amount, price.currency
         FROM options LEFT JOIN LATERAL price_in($10, option_id) price ON true
         WHERE enabled AND ($10::text IS NULL OR price.amount IS NOT NULL) AND option_id > $1 AND ($2 OR (environment = 'live' AND provider = ANY ($3)))
           AND ($5::text IS NULL OR $5 = ANY (countries))
           AND ($6::int IS NULL OR unlimited OR data_mb >= $6)
           AND ($7::bool IS NULL OR unlimited = $7)
           AND ($8::int IS NULL OR days >= $8)
           AND ($9::int IS NULL OR days <= $9)
           AND ($11::uuid IS NULL OR option_id = $11)
           AND ($12::int IS NULL OR data_mb <= $12)
           AND ($13::text IS NULL OR coalesce(facts->>'kind', told->>'kind') = $13)
           AND ($14::timestamptz IS NULL OR greatest(updated_at, price.valid_from) >= $14 - interval '1 minute')
           AND ($15::text IS NULL OR lower(concat_ws(E'\n', $5::text, $15)) = ANY (networks))
         ORDER BY option_id LIMIT $4) page
         ORDER BY option_id"#,
        page.after.map_or(Uuid::nil(), OptionId::uuid),
        page.environment == Environment::Sandbox,
        page.providers,
        page.limit,
        country,
        filter.min_data_mb,
        filter.unlimited,
        filter.min_days,
        filter.max_days,
        page.price_list,
        filter.option.map(OptionId::uuid),
        filter.max_data_mb,
        kind,
        filter.updated_since,
        filter.network,
    );
    let offered = rows
        .fetch_all(connection)
        .await?
        .into_iter()
        .map(|row| OfferedOption {
            option_id: row.option_id.into(),
            name: row.name,
            // The option can be ordered without its description, and the others are listed.
            details: options::details(&row.details).unwrap_or_default(),
            countries: row.countries,
            data_mb: row.data_mb,
            unlimited: row.unlimited,
            days: row.days,
            facts: facts(row.told.as_deref(), row.facts.as_deref()),
            updated_at: row.updated_at,
            price: row.price,
            currency: row.currency,
        });
    Ok(offered.collect())
}

/// What is known of an option. One whose facts cannot be read can be ordered all the same.
pub(super) fn facts(told: Option<&str>, by_hand: Option<&str>) -> Facts {
    let told = Facts::read(told).unwrap_or_default();
    Facts::read(by_hand).unwrap_or_default().over(told)
}

/// A partner's account, without secrets.
#[derive(Clone, Debug)]
pub struct PartnerAccount {
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
) -> Result<Option<PartnerAccount>> {
    let account = sqlx::query_as!(
        PartnerAccount,
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
    command: domain::Command,
    rotate: impl AsyncFnOnce(&mut Transaction<'_>) -> Result<RotationResult>,
) -> Result<RotationResult> {
    let rotate = async |transaction: &mut Transaction<'_>| {
        let rotated = rotate(transaction).await?;
        if let RotationResult::Until(until) = rotated {
            let old_until = until.map(rfc3339);
            let changed = ActionChange::created(json!({ "old_until": old_until }));
            record_change(transaction, command, partner_id, changed).await?;
        }
        Ok(TransactionEnd::Commit(rotated))
    };
    transaction::once(
        connection,
        TransactionKind::Writing,
        "account::rotate",
        rotate,
    )
    .await
}
