//! Takes a provider's catalogue over into ours (`esimctl catalogue pull`).
//!
//! The caller has compared both catalogues before. Somebody may have changed an option since then,
//! so each statement changes only what it has found in the state that was compared, and leaves all
//! that belongs to the operator alone: the name, the details, the facts that a file sets, and
//! whether the option is on sale.

use accounts::{
    facts::Facts,
    options::{self, ProductOption, StandardColumns},
};
use domain::{OptionId, product::Standard};
use pg::{
    Result,
    actions::{ActionChange, Mode},
    transaction,
};
use serde::Serialize;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

/// An option whose product has changed at the provider.
#[derive(Clone, Debug)]
pub struct Update {
    pub option_id: OptionId,
    /// The provider's option id when the catalogues were compared. An option that has another one
    /// by now is not changed.
    pub was: String,
    pub provider_option_id: String,
    pub place: PairPosition,
}

/// What the list of a provider says of a product.
#[derive(Clone, Debug)]
pub struct ListedProduct {
    pub standard: Standard,
    pub told: Facts,
}

/// Which pair of an option changes.
#[derive(Clone, Debug)]
pub enum PairPosition {
    /// Its first provider, whose standard fields and facts are those of the option.
    First(Box<ListedProduct>),
    /// This further provider.
    Alternative(String),
}

/// What is taken over.
#[derive(Clone, Debug, Default)]
pub struct CatalogueUpdate {
    pub new: Vec<ProductOption>,
    pub updates: Vec<Update>,
    /// Options that are taken out of sale.
    pub disable: Vec<OptionId>,
}

impl CatalogueUpdate {
    pub fn is_empty(&self) -> bool {
        self.new.is_empty() && self.updates.is_empty() && self.disable.is_empty()
    }
}

/// What was written. It is less than what was asked for if somebody changed an option meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CatalogueCounts {
    pub created: u64,
    pub updated: u64,
    pub disabled: u64,
}

/// Writes everything in one transaction, which also records the action.
pub async fn apply(
    connection: &mut PgConnection,
    pull: &CatalogueUpdate,
    mode: Mode<'_>,
) -> Result<CatalogueCounts> {
    transaction!(connection, "catalogue::apply", |transaction| {
        let mut pulled = CatalogueCounts::default();
        for option in &pull.new {
            let created = options::create(transaction, option).await?;
            pulled.created += u64::from(created);
        }
        for update in &pull.updates {
            let product = match &update.place {
                PairPosition::First(product) => product,
                PairPosition::Alternative(provider) => {
                    pulled.updated += set_alternative(transaction, update, provider).await?;
                    continue;
                }
            };
            let standard = StandardColumns::of(Some(&product.standard));
            let updated = sqlx::query!(
                "UPDATE options SET provider_option_id = $3, countries = $4, data_mb = $5, unlimited = $6, days = $7,
                                cost = $8, cost_currency = $9, told = $10::text::jsonb
             WHERE option_id = $1 AND provider_option_id = $2",
                update.option_id.uuid(),
                update.was,
                update.provider_option_id,
                standard.countries.as_deref(),
                standard.data_mb,
                standard.unlimited,
                standard.days,
                standard.cost,
                standard.cost_currency,
                product.told.stored(),
            );
            pulled.updated += updated.execute(&mut **transaction).await?.rows_affected();
        }
        let gone: Vec<Uuid> = pull.disable.iter().map(|option| option.uuid()).collect();
        let disabled = sqlx::query!(
            "UPDATE options SET enabled = false WHERE option_id = ANY ($1) AND enabled",
            &gone,
        );
        pulled.disabled = disabled.execute(&mut **transaction).await?.rows_affected();
        let affected = pulled.created + pulled.updated + pulled.disabled;
        let affected = i64::try_from(affected).unwrap_or(i64::MAX);
        mode.record(transaction, affected, changed(pull, &pulled))
            .await?;
        Ok(mode.end(pulled))
    })
}

/// The maximum number of options of which a record names what changed.
const MOST_NAMED: usize = 100;

/// What a pull changes: the ids at providers before and after, and which options were disabled.
fn changed(pull: &CatalogueUpdate, pulled: &CatalogueCounts) -> ActionChange {
    let moved = pull
        .updates
        .iter()
        .filter(|one| one.was != one.provider_option_id);
    let moved = moved.take(MOST_NAMED);
    let ids = |id: fn(&Update) -> &str| {
        let pairs = moved
            .clone()
            .map(|one| (one.option_id.to_string(), id(one).into()));
        Value::Object(pairs.collect())
    };
    let gone = pull.disable.iter().take(MOST_NAMED);
    let gone: Vec<String> = gone.map(ToString::to_string).collect();
    ActionChange::between(
        json!({ "provider_option_ids": ids(|one| &one.was), "enabled": gone }),
        json!({
            "provider_option_ids": ids(|one| &one.provider_option_id), "disabled": gone,
            "created": pulled.created, "updated": pulled.updated, "gone": pulled.disabled,
        }),
    )
}

/// Changes what an option buys at a further provider, and returns the number of changed options.
async fn set_alternative(
    connection: &mut PgConnection,
    update: &Update,
    provider: &str,
) -> Result<u64> {
    let statement = sqlx::query!(
        "UPDATE options o SET alternatives = (
             SELECT jsonb_agg(CASE WHEN pair->>'provider' = $2
                                   THEN jsonb_set(pair, '{provider_option_id}', to_jsonb($4::text)) ELSE pair END
                              ORDER BY place)
             FROM jsonb_array_elements(o.alternatives) WITH ORDINALITY AS all_pairs (pair, place))
         WHERE option_id = $1
           AND alternatives @> jsonb_build_array(jsonb_build_object('provider', $2::text, 'provider_option_id', $3::text))",
        update.option_id.uuid(),
        provider,
        update.was,
        update.provider_option_id,
    );
    Ok(statement.execute(connection).await?.rows_affected())
}
