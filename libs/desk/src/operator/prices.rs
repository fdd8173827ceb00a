//! Price lists of partners (`esimctl price`): what options cost from when on, and which partner has
//! which list.
//!
//! A price that has been valid is never changed: a new one gets a row of its own from its time on.
//! Units that were ordered keep the price of their order in any case.

use std::collections::{HashMap, HashSet};

use accounts::prices::currency;
use domain::{Amount, OptionId, PartnerId, product::Currency};
use pg::{
    Error, Result, Transaction, TransactionEnd,
    actions::{ActionChange, Mode},
    rfc3339, transaction,
};
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// What an option is to cost from a time on.
#[derive(Clone, Debug)]
pub struct NewPrice {
    pub option_id: OptionId,
    /// `None`: partners with this list can no longer order it.
    pub amount: Option<Amount>,
    /// `None`: at once.
    pub valid_from: Option<OffsetDateTime>,
}

/// A price that was set, or would be.
#[derive(Clone, Debug, Serialize)]
pub struct PriceSet {
    pub option_id: OptionId,
    pub option: String,
    /// What the list said for that time before; `None` if it did not have the option.
    pub was: Option<Amount>,
    pub price: Option<Amount>,
    /// `None`: at once.
    #[serde(with = "time::serde::rfc3339::option")]
    pub valid_from: Option<OffsetDateTime>,
}

/// What [`apply`] has done.
#[derive(Clone, Debug, Serialize)]
pub struct PricesApplied {
    pub price_list: String,
    pub currency: Currency,
    /// Whether the list was made.
    pub is_new: bool,
    pub set: Vec<PriceSet>,
    /// The prices that were so before.
    pub unchanged: Vec<PriceSet>,
}

/// Why one of the prices cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPrice {
    #[error("there is no option {0}; `esimctl option list` shows all")]
    NoSuchOption(OptionId),
    #[error(
        "the price of option {0} would change from a time that has passed; leave valid_from out for at once"
    )]
    InThePast(OptionId),
}

/// Why prices were not set.
#[derive(Debug, thiserror::Error)]
pub enum NotPriced {
    #[error("the list has prices in {0}; a list has one currency, so make another list")]
    OtherCurrency(Currency),
    /// Each with the place of its price in what was given.
    #[error("{}", .0.iter().map(|(_, why)| why.to_string()).collect::<Vec<_>>().join("; "))]
    BadPrices(Vec<(usize, BadPrice)>),
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(NotPriced);

/// Sets prices of a list, all of them or none, and makes the list if there is none of this name.
/// Options that are not named stay as they are. A price that the list has already is no fault, even
/// if its time has passed, so that what [`prices`] returns can be applied again.
pub async fn apply(
    connection: &mut PgConnection,
    price_list: &str,
    in_currency: Currency,
    prices: &[NewPrice],
    mode: Mode<'_>,
) -> std::result::Result<PricesApplied, NotPriced> {
    transaction!(connection, "prices::apply", |transaction| {
        let made = sqlx::query!(
            "INSERT INTO price_lists (price_list, currency) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            price_list,
            in_currency.as_str(),
        );
        let is_new = made.execute(&mut **transaction).await?.rows_affected() > 0;
        // The update also gives the list a new version, so that each ingress reads it again, and
        // keeps others from changing it meanwhile.
        let locked = sqlx::query_scalar!(
            "UPDATE price_lists SET currency = currency WHERE price_list = $1 RETURNING currency",
            price_list,
        );
        let stored = currency(&locked.fetch_one(&mut **transaction).await?)?;
        if stored != in_currency {
            return Err(NotPriced::OtherCurrency(stored));
        }
        let mut applied = PricesApplied {
            price_list: price_list.to_owned(),
            currency: in_currency,
            is_new,
            set: Vec::new(),
            unchanged: Vec::new(),
        };
        let mut bad = set(transaction, prices, &mut applied).await?;
        if !bad.is_empty() {
            bad.sort_by_key(|(index, _)| *index);
            return Err(NotPriced::BadPrices(bad));
        }
        if applied.set.is_empty() && !is_new {
            return Ok(TransactionEnd::Rollback(applied));
        }
        let text = |amount: Option<Amount>| amount.map(|amount| amount.to_string());
        let named = |one: &PriceSet| {
            let from = one.valid_from.map(rfc3339);
            json!({ "option": one.option_id, "was": text(one.was), "is": text(one.price), "valid_from": from })
        };
        let some: Vec<_> = applied.set.iter().take(100).map(named).collect();
        let changed = ActionChange::created(json!({ "currency": in_currency, "prices": some }));
        let affected = i64::try_from(applied.set.len()).unwrap_or(i64::MAX);
        mode.record(transaction, affected, changed).await?;
        Ok(mode.end(applied))
    })
}

/// Sets prices of a locked list. Returns those that cannot be set, each with its place.
async fn set(
    transaction: &mut Transaction<'_>,
    prices: &[NewPrice],
    applied: &mut PricesApplied,
) -> Result<Vec<(usize, BadPrice)>> {
    let price_list = applied.price_list.clone();
    let in_currency = applied.currency;
    let of_list = |minor| Amount {
        minor,
        currency: in_currency,
    };
    let mut bad = Vec::new();
    // After the lock, so that of two changes at once the later one is valid later.
    let clock = sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "moment!""#);
    let moment = clock.fetch_one(&mut **transaction).await?;
    let began = prices
        .iter()
        .filter(|new| new.valid_from.is_some_and(|from| from <= moment));
    let began: HashSet<OptionId> = began.map(|new| new.option_id).collect();
    // In the order of time, because a later price is compared with those before it.
    let mut by_time: Vec<(usize, &NewPrice)> = prices.iter().enumerate().collect();
    by_time.sort_by_key(|(_, new)| new.valid_from);
    for (index, new) in by_time {
        let before = sqlx::query!(
            r#"SELECT o.name, since.amount AS "amount?", since.valid_from IS NOT DISTINCT FROM $3::timestamptz AS "is_there!",
                      now.amount AS "now?", now.valid_from IS NOT NULL AS "is_known!"
               FROM options o
               LEFT JOIN LATERAL price_in($1, o.option_id, coalesce($3::timestamptz, $4)) since ON true
               LEFT JOIN LATERAL price_in($1, o.option_id, $4) now ON true
               WHERE o.option_id = $2"#,
            price_list,
            new.option_id.uuid(),
            new.valid_from,
            moment,
        );
        let before = before.fetch_optional(&mut **transaction).await?;
        let Some(before) = before else {
            bad.push((index, BadPrice::NoSuchOption(new.option_id)));
            continue;
        };
        let price = PriceSet {
            option_id: new.option_id,
            option: before.name,
            was: before.amount.map(of_list),
            price: new.amount,
            valid_from: new.valid_from,
        };
        let is_past = new.valid_from.is_some_and(|from| from <= moment);
        let is_same = price.was == price.price;
        let is_unchanged = match new.valid_from {
            // A price of the same file that has begun since takes its place, so that a file can
            // be applied again.
            None => is_same || began.contains(&new.option_id),
            Some(_) if is_past => is_same || before.now.map(of_list) == new.amount,
            // A row of its own, so that a change in between ends there.
            Some(_) => is_same && before.is_there,
        };
        if is_unchanged {
            applied.unchanged.push(price);
            continue;
        }
        // In a list that never had the option, such as a copy of another list, it is valid at
        // once.
        if is_past && before.is_known {
            bad.push((index, BadPrice::InThePast(new.option_id)));
            continue;
        }
        let set = sqlx::query!(
            "INSERT INTO prices (price_list, option_id, valid_from, amount)
             VALUES ($1, $2, greatest($3::timestamptz, $5::timestamptz), $4)
             ON CONFLICT (price_list, option_id, valid_from) DO UPDATE SET amount = excluded.amount",
            price_list,
            new.option_id.uuid(),
            new.valid_from,
            new.amount.map(|amount| amount.minor),
            moment,
        );
        set.execute(&mut **transaction).await?;
        applied.set.push(price);
    }
    Ok(bad)
}

/// A price list as operators see it.
#[derive(Clone, Debug, Serialize)]
pub struct PriceListView {
    pub price_list: String,
    pub currency: String,
    /// How many options it has now.
    pub options: i64,
    /// The names of its partners.
    pub partners: Vec<String>,
}

/// All price lists by name.
pub async fn lists(connection: &mut PgConnection) -> Result<Vec<PriceListView>> {
    let all = sqlx::query_as!(
        PriceListView,
        r#"SELECT l.price_list, l.currency,
                  (SELECT count(*) FROM options o CROSS JOIN LATERAL price_in(l.price_list, o.option_id) price
                   WHERE price.amount IS NOT NULL) AS "options!",
                  ARRAY (SELECT r.name FROM partners r WHERE r.price_list = l.price_list ORDER BY r.name) AS "partners!"
           FROM price_lists l ORDER BY l.price_list"#,
    );
    Ok(all.fetch_all(connection).await?)
}

/// A price of a list that is valid now or later.
#[derive(Clone, Debug, Serialize)]
pub struct PriceView {
    pub option_id: OptionId,
    pub option: String,
    pub price: Option<Amount>,
    #[serde(with = "time::serde::rfc3339")]
    pub valid_from: OffsetDateTime,
}

/// The prices of a list that are valid now or later, by the names of their options; `None` if there
/// is no such list.
pub async fn prices(
    connection: &mut PgConnection,
    price_list: &str,
) -> Result<Option<Vec<PriceView>>> {
    let lists = accounts::prices::changed_since(&mut *connection, 0).await?;
    let Some(list) = lists.into_iter().find(|list| list.name == price_list) else {
        return Ok(None);
    };
    let ids: Vec<Uuid> = list.prices.keys().map(|id| id.uuid()).collect();
    let names = sqlx::query!(
        "SELECT option_id, name FROM options WHERE option_id = ANY ($1)",
        &ids
    );
    let names = names.fetch_all(&mut *connection).await?.into_iter();
    let names: HashMap<Uuid, String> = names.map(|row| (row.option_id, row.name)).collect();
    let clock = sqlx::query_scalar!(r#"SELECT now() AS "now!""#);
    let now = clock.fetch_one(connection).await?;
    let mut views: Vec<PriceView> = Vec::new();
    for (option_id, prices) in list.prices {
        let option = names.get(&option_id.uuid()).cloned().unwrap_or_default();
        // The price before is kept for a minute, for ingresses whose clocks are behind.
        let valid = prices.iter().rposition(|one| one.valid_from <= now);
        let prices = prices.into_iter().skip(valid.unwrap_or_default());
        views.extend(prices.map(|one| PriceView {
            option_id,
            option: option.clone(),
            price: one.amount,
            valid_from: one.valid_from,
        }));
    }
    views.sort_by(|one, other| {
        (&one.option, one.option_id, one.valid_from).cmp(&(
            &other.option,
            other.option_id,
            other.valid_from,
        ))
    });
    Ok(Some(views))
}

/// The price list of a partner, if it has one.
pub async fn list_of(
    connection: &mut PgConnection,
    partner_id: PartnerId,
) -> Result<Option<String>> {
    let list = sqlx::query_scalar!(
        "SELECT price_list FROM partners WHERE partner_id = $1",
        partner_id.uuid(),
    );
    Ok(list.fetch_optional(connection).await?.flatten())
}

/// Why a partner did not get a price list.
#[derive(Debug, thiserror::Error)]
pub enum NotAssigned {
    #[error("there is no such partner")]
    NoSuchPartner,
    #[error("there is no price list {0}; `esimctl price list` shows all")]
    NoSuchList(String),
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(NotAssigned);

/// What [`assign`] has done.
#[derive(Clone, Debug, Serialize)]
pub struct ListAssigned {
    pub partner_id: PartnerId,
    pub was: Option<String>,
    pub price_list: Option<String>,
    /// Whether the partner has an account in the currency of the list. Without one it can order
    /// only what costs nothing.
    pub has_account: bool,
}

/// Gives a partner a price list, or none, from its next order on.
pub async fn assign(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    price_list: Option<&str>,
    mode: Mode<'_>,
) -> std::result::Result<ListAssigned, NotAssigned> {
    transaction!(connection, "prices::assign", |transaction| {
        let partner = sqlx::query!(
            "SELECT price_list FROM partners WHERE partner_id = $1 FOR NO KEY UPDATE",
            partner_id.uuid(),
        );
        let partner = partner.fetch_optional(&mut **transaction).await?;
        let was = partner.ok_or(NotAssigned::NoSuchPartner)?.price_list;
        let mut has_account = false;
        if let Some(name) = price_list {
            let list = sqlx::query_scalar!(
                r#"SELECT EXISTS (SELECT FROM accounts a WHERE a.partner_id = $2 AND a.currency = l.currency) AS "has!"
                   FROM price_lists l WHERE l.price_list = $1"#,
                name,
                partner_id.uuid(),
            );
            let found = list.fetch_optional(&mut **transaction).await?;
            has_account = found.ok_or_else(|| NotAssigned::NoSuchList(name.to_owned()))?;
        }
        let changed = was.as_deref() != price_list;
        if changed {
            let statement = sqlx::query!(
                "UPDATE partners SET price_list = $2 WHERE partner_id = $1",
                partner_id.uuid(),
                price_list,
            );
            statement.execute(&mut **transaction).await?;
        }
        let what = ActionChange::between(
            json!({ "price_list": was }),
            json!({ "price_list": price_list }),
        );
        let what = if changed {
            what
        } else {
            ActionChange::nothing()
        };
        mode.record(transaction, i64::from(changed), what).await?;
        Ok(mode.end(ListAssigned {
            partner_id,
            was,
            price_list: price_list.map(str::to_owned),
            has_account,
        }))
    })
}
