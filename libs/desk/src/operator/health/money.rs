//! What is wrong with the money of partners: accounts that disagree with what was ordered, partners
//! that will soon have nothing left to order for, and options that are sold below their cost. The
//! notifier reads the same for its metrics.
//!
//! Nothing of it needs a setting. A balance runs out if what is available is less than what was
//! spent in the last 24 hours, whether it was paid before or may be owed: at that pace it does not
//! last a day. Test partners spend nothing that is real, and are left out.

use domain::{
    Amount, OptionId, PartnerId,
    product::{Cost, Currency, Price},
};
use pg::{Result, count};
use serde::Serialize;
use sqlx::PgConnection;

use crate::operator::books::{self, LastCheck};

/// The partners that are read, those first that have least for their pace.
const PARTNERS: i64 = 100;
/// How many options of a list are named.
const OPTIONS: usize = 5;
/// The decimals of a cost.
pub(in crate::operator) const COST_DECIMALS: usize = 4;

/// What is wrong with money.
#[derive(Clone, Debug, Default)]
pub struct MoneyState {
    pub books: Option<LastCheck>,
    pub running_out: Vec<RunningOut>,
    pub below_cost: Vec<SoldBelowCost>,
}

/// What a partner has left, and spends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunningOut {
    pub partner_id: PartnerId,
    pub name: String,
    pub available: Amount,
    /// What its balance went down by in the last 24 hours, without payments and corrections.
    pub spent: Amount,
}

/// The options of a price list that cost us more than its partners pay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SoldBelowCost {
    pub price_list: String,
    pub in_all: u64,
    /// The first of them.
    pub options: Vec<BelowCost>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BelowCost {
    pub option_id: OptionId,
    pub option: String,
    pub price: Amount,
    pub cost: Cost,
}

/// Reads what is wrong. Where no partner has prices, this reads two empty tables.
pub async fn read(connection: &mut PgConnection) -> Result<MoneyState> {
    Ok(MoneyState {
        books: books::last(&mut *connection).await?,
        running_out: running_out(&mut *connection).await?,
        below_cost: below_cost(connection).await?,
    })
}

/// What was spent follows from two balances and from what was booked by hand between them, so the
/// number of orders makes no difference.
async fn running_out(connection: &mut PgConnection) -> Result<Vec<RunningOut>> {
    let query = sqlx::query!(
        r#"SELECT a.partner_id, r.name, a.currency, a.posted - a.held + a.credit_limit AS "available!", spent.amount AS "spent!"
           FROM accounts a
           JOIN partners r ON r.partner_id = a.partner_id
           CROSS JOIN LATERAL (
               SELECT coalesce((SELECT n.balance - n.amount FROM account_entries n
                                WHERE n.partner_id = a.partner_id AND n.currency = a.currency AND n.at >= now() - interval '1 day'
                                ORDER BY n.at, n.number LIMIT 1), a.posted)
                      + coalesce((SELECT sum(n.amount)::bigint FROM account_entries n
                                  WHERE n.partner_id = a.partner_id AND n.currency = a.currency AND n.reference IS NOT NULL
                                    AND n.at >= now() - interval '1 day'), 0)
                      - a.posted AS amount
           ) spent
           WHERE a.credit_limit IS NOT NULL AND a.last_entry_at >= now() - interval '1 day'
             AND r.environment = 'live' AND r.disabled_at IS NULL
             AND spent.amount > 0 AND a.posted - a.held + a.credit_limit < spent.amount
           ORDER BY (a.posted - a.held + a.credit_limit)::float8 / spent.amount, r.name, a.currency LIMIT $1"#,
        PARTNERS,
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    let found = rows.map(|row| {
        let currency = accounts::prices::currency(&row.currency)?;
        Ok(RunningOut {
            partner_id: row.partner_id.into(),
            name: row.name,
            available: Amount {
                minor: row.available,
                currency,
            },
            spent: Amount {
                minor: row.spent,
                currency,
            },
        })
    });
    found.collect()
}

/// The lists of live partners that sell an option below its cost in the currency of the list. What
/// an option costs in another currency cannot be compared.
async fn below_cost(connection: &mut PgConnection) -> Result<Vec<SoldBelowCost>> {
    let lists = sqlx::query!(
        r#"SELECT l.price_list, l.currency FROM price_lists l
           WHERE l.price_list = ANY (ARRAY (SELECT DISTINCT r.price_list FROM partners r
                                            WHERE r.environment = 'live' AND r.price_list IS NOT NULL))
           ORDER BY l.price_list"#,
    );
    let mut names = Vec::new();
    let mut currencies = Vec::new();
    let mut parts = Vec::new();
    for row in lists.fetch_all(&mut *connection).await? {
        let currency = accounts::prices::currency(&row.currency)?;
        parts.push(parts_of_cost(currency));
        currencies.push(currency);
        names.push(row.price_list);
    }
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let query = sqlx::query!(
        r#"SELECT of_list.nth AS "nth!", o.option_id, o.name, price.amount AS "amount!", o.cost AS "cost!"
           FROM unnest($1::text[], $2::text[], $3::bigint[]) WITH ORDINALITY AS of_list (price_list, currency, parts, nth)
           CROSS JOIN LATERAL (
               SELECT DISTINCT ON (p.option_id) p.option_id, p.amount FROM prices p
               WHERE p.price_list = of_list.price_list AND p.valid_from <= now()
               ORDER BY p.option_id, p.valid_from DESC
           ) price
           -- One look-up for each price, because a join could compare each price with each option.
           CROSS JOIN LATERAL (
               SELECT o.option_id, o.name, o.cost FROM options o
               WHERE o.option_id = price.option_id AND o.enabled AND o.cost_currency = of_list.currency LIMIT 1
           ) o
           WHERE price.amount * of_list.parts < o.cost
           ORDER BY of_list.nth, o.name, o.option_id"#,
        &names,
        &currencies
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        &parts,
    );
    let mut found: Vec<SoldBelowCost> = Vec::new();
    for row in query.fetch_all(connection).await? {
        let place = usize::try_from(row.nth - 1).unwrap_or(usize::MAX);
        let Some((price_list, currency)) = names.get(place).zip(currencies.get(place).copied())
        else {
            continue;
        };
        if found
            .last()
            .is_none_or(|list| list.price_list != *price_list)
        {
            found.push(SoldBelowCost {
                price_list: price_list.clone(),
                in_all: 0,
                options: Vec::new(),
            });
        }
        let Some(list) = found.last_mut() else {
            continue;
        };
        list.in_all += 1;
        if list.options.len() < OPTIONS {
            list.options.push(BelowCost {
                option_id: row.option_id.into(),
                option: row.name,
                price: Amount {
                    minor: row.amount,
                    currency,
                },
                cost: Cost {
                    price: Price(count(row.cost)),
                    currency,
                },
            });
        }
    }
    Ok(found)
}

/// How many of the parts in which costs are counted the minor unit of a currency has.
pub(in crate::operator) fn parts_of_cost(currency: Currency) -> i64 {
    let decimals = COST_DECIMALS.saturating_sub(currency.exponent().unwrap_or_default());
    (0..decimals).fold(1, |parts, _| parts * 10)
}
