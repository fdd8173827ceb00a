//! Price lists: what options cost partners.
//!
//! `esimctl price apply` writes them. A list has one currency and belongs to any number of
//! partners; a partner has at most one. Ingress keeps all lists in memory, with the changes that
//! [`changed_since`] returns, and copies the price into each unit when it stores an order.

use std::collections::HashMap;

use domain::{Amount, OptionId, product::Currency};
use pg::{Error, Result};
use sqlx::PgConnection;
use time::OffsetDateTime;

/// What an option costs from a time on; `None` if the list does not have it from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriceSince {
    pub valid_from: OffsetDateTime,
    pub amount: Option<Amount>,
}

/// A price list, with the prices that are valid now or later.
#[derive(Clone, Debug)]
pub struct PriceList {
    pub name: String,
    pub currency: Currency,
    /// The row version of its last change, for [`changed_since`].
    pub row_version: i64,
    /// The prices of each option, oldest first.
    pub prices: HashMap<OptionId, Vec<PriceSince>>,
}

impl PriceList {
    /// What the option costs at this time; `None` if the list does not have it then.
    pub fn price(&self, option: OptionId, at: OffsetDateTime) -> Option<Amount> {
        let prices = self.prices.get(&option)?;
        let valid = prices.iter().rev().find(|one| one.valid_from <= at)?;
        valid.amount
    }
}

/// Reads the currency of a list or an account as it is stored.
pub fn currency(stored: &str) -> Result<Currency> {
    Currency::of_money(stored)
        .map_err(|error| Error::Unreadable(format!("the currency {stored}: {error}")))
}

/// The price lists that changed after this row version, with all of their prices that are valid now
/// or later.
pub async fn changed_since(
    connection: &mut PgConnection,
    row_version: i64,
) -> Result<Vec<PriceList>> {
    let lists = sqlx::query!(
        "SELECT price_list, currency, version FROM price_lists WHERE version > $1 ORDER BY price_list",
        row_version,
    );
    let rows = lists.fetch_all(&mut *connection).await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let mut lists: HashMap<String, PriceList> = HashMap::with_capacity(rows.len());
    for row in rows {
        let currency = match currency(&row.currency) {
            Ok(currency) => currency,
            Err(error) => {
                tracing::error!(
                    price_list = row.price_list,
                    %error,
                    "a price list cannot be read, so partners with it get 503; the others are served"
                );
                continue;
            }
        };
        let list = PriceList {
            name: row.price_list.clone(),
            currency,
            row_version: row.version,
            prices: HashMap::new(),
        };
        lists.insert(row.price_list, list);
    }
    let names: Vec<String> = lists.keys().cloned().collect();
    // A list that changes between the two statements has a newer version, so it is read again.
    let prices = sqlx::query!(
        "SELECT price_list, option_id, valid_from, amount FROM prices p
         WHERE price_list = ANY ($1) AND NOT EXISTS (
             SELECT FROM prices later
             WHERE later.price_list = p.price_list AND later.option_id = p.option_id
               -- The clock of who reads it may be behind, and then the price before is still valid.
               AND later.valid_from > p.valid_from AND later.valid_from <= now() - interval '1 minute')
         ORDER BY valid_from",
        &names,
    );
    for row in prices.fetch_all(&mut *connection).await? {
        let Some(list) = lists.get_mut(&row.price_list) else {
            continue;
        };
        let currency = list.currency;
        let prices: &mut Vec<PriceSince> = list
            .prices
            .entry(OptionId::from(row.option_id))
            .or_default();
        prices.push(PriceSince {
            valid_from: row.valid_from,
            amount: row.amount.map(|minor| Amount { minor, currency }),
        });
    }
    Ok(lists.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_is_valid_from_its_time_until_the_next_one() {
        let currency = Currency::of_money("EUR").unwrap();
        let option = OptionId::new();
        let at = |seconds| OffsetDateTime::UNIX_EPOCH + time::Duration::seconds(seconds);
        let since = |seconds, minor: Option<i64>| PriceSince {
            valid_from: at(seconds),
            amount: minor.map(|minor| Amount { minor, currency }),
        };
        let prices = vec![since(10, Some(100)), since(20, None), since(30, Some(90))];
        let list = PriceList {
            name: "retail".into(),
            currency,
            row_version: 1,
            prices: HashMap::from([(option, prices)]),
        };
        let price = |seconds| list.price(option, at(seconds)).map(|amount| amount.minor);
        let found = [9, 10, 19, 20, 29, 30, 40].map(price);
        let expected = [None, Some(100), Some(100), None, None, Some(90), Some(90)];
        assert_eq!(found, expected);
        assert_eq!(list.price(OptionId::new(), at(10)), None);
    }
}
