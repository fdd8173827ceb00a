//! Storing orders that have a limit: units a day of their key, or what is available in the account
//! of their partner.
//!
//! Both are counted in the transaction that stores the orders, under a lock of the row that holds
//! the count. So they are exact however many processes store orders of one partner, and what an
//! order that is not stored would take is left to others. Orders without a limit in the same batch
//! wait for some more statements; a batch without any limit is stored by [`super::insert`].
//!
//! Rows are locked in one order, so that nobody waits in a circle: a stored order, a key, an
//! account, and then everything that is changed. Whoever refuses an order or ends a unit thus has
//! the account before it changes anything, because a new order of the same partner may hold the
//! account and wait for a change of an order with the same external id.

use std::collections::{BTreeMap, HashMap, HashSet};

use domain::Amount;
use pg::{Result, Transaction, TransactionEnd, transaction};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{NewOrder, all_wait, insert_all, keep};
use crate::funds::{self, Funds};

/// What became of an order that was to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    Stored,
    /// Its external id is taken.
    Taken,
    /// It has more units than its key may still order on this day, of which `left` are left.
    OverLimit {
        left: u32,
    },
    /// It costs more than is available in its partner's account.
    BalanceInsufficient {
        required: Amount,
        available: Amount,
    },
}

impl Inserted {
    /// What [`super::insert`] says of an order.
    pub fn of(is_stored: bool) -> Self {
        if is_stored { Self::Stored } else { Self::Taken }
    }
}

/// What is left of the limits of a batch, while their rows are locked.
struct Limits {
    /// The units that each key has ordered on this day.
    units: HashMap<Uuid, i64>,
    funds: Funds,
}

impl Limits {
    /// Locks the rows of everything that limits these orders, and reads them.
    async fn lock(transaction: &mut Transaction<'_>, orders: &[NewOrder]) -> Result<Self> {
        let mut units = HashMap::new();
        let limited = orders.iter().filter_map(|order| order.limited_key);
        let mut keys: Vec<Uuid> = limited.map(|key| key.key_id.uuid()).collect();
        keys.sort_unstable();
        keys.dedup();
        if !keys.is_empty() {
            // It locks the rows in the order of their keys, and makes those that are missing. A
            // transaction that waited here over midnight counts for the later day.
            let counted = sqlx::query!(
                "INSERT INTO partner_key_uses AS u (key_id, day)
                 SELECT k, date_trunc('day', now(), 'UTC') FROM unnest($1::uuid[]) k ORDER BY k
                 ON CONFLICT (key_id) DO UPDATE
                 SET day = greatest(u.day, excluded.day), units = CASE WHEN u.day >= excluded.day THEN u.units ELSE 0 END
                 RETURNING key_id, units",
                &keys,
            );
            let rows = counted.fetch_all(&mut **transaction).await?.into_iter();
            units = rows.map(|row| (row.key_id, row.units)).collect();
        }
        let priced = orders.iter().filter(|order| order.price().is_some());
        let partners: Vec<Uuid> = priced.map(|order| order.partner_id.uuid()).collect();
        let funds = Funds::lock(transaction, &partners).await?;
        Ok(Self { units, funds })
    }

    /// How many units its key may still order; any number if it has no limit.
    fn units_left(&self, order: &NewOrder) -> i64 {
        order.limited_key.map_or(i64::MAX, |key| {
            let ordered = self.units.get(&key.key_id.uuid());
            i64::from(key.units_per_day) - ordered.unwrap_or(&0)
        })
    }

    /// Why this order goes beyond a limit; `None` if it does not.
    fn refusal(&self, order: &NewOrder) -> Option<Inserted> {
        let left = self.units_left(order);
        if order.units() > left {
            let left = u32::try_from(left).unwrap_or(0);
            return Some(Inserted::OverLimit { left });
        }
        let required = order.price()?;
        let available = self.funds.shortage(order.partner_id, required)?;
        Some(Inserted::BalanceInsufficient {
            required,
            available,
        })
    }

    /// Takes what an order needs, or gives it back if `sign` is -1.
    fn take(&mut self, order: &NewOrder, sign: i64) {
        if let Some(key) = order.limited_key {
            *self.units.entry(key.key_id.uuid()).or_default() += sign * order.units();
        }
        if let Some(price) = order.price() {
            self.funds.take(order.partner_id, price, sign);
        }
    }
}

/// Stores orders as [`super::insert`] does, some of which have a limit. What is left of the units
/// of a key and of the money of a partner goes to the orders of the batch in their order.
///
/// An order beyond a limit is not stored. If its external id is taken, that is what is said of it,
/// because its partner may be repeating an order whose answer was lost. Units of an order that is
/// refused later stay counted; the hold of its price ends.
pub async fn insert_limited(
    connection: &mut PgConnection,
    orders: &[NewOrder],
) -> Result<Vec<Inserted>> {
    transaction!(connection, "orders::insert_limited", |transaction| {
        let all_wait = all_wait(orders);
        let mut limits = Limits::lock(transaction, orders).await?;
        let mut results = vec![Inserted::Taken; orders.len()];
        let mut waiting: Vec<usize> = (0..orders.len()).collect();
        loop {
            let mut fitting = Vec::with_capacity(waiting.len());
            let mut beyond = Vec::new();
            for index in waiting {
                match limits.refusal(&orders[index]) {
                    None => {
                        limits.take(&orders[index], 1);
                        fitting.push(index);
                    }
                    Some(_) => beyond.push(index),
                }
            }
            waiting = beyond;
            let chosen: Vec<&NewOrder> = fitting.iter().map(|index| &orders[*index]).collect();
            let stored = insert_all(transaction, &chosen, all_wait).await?;
            keep(transaction, &chosen, &stored).await?;
            // An order that is not stored leaves what it would have taken to those beyond the
            // limit.
            let mut is_more_left = false;
            for (index, stored) in fitting.into_iter().zip(stored) {
                if stored {
                    results[index] = Inserted::Stored;
                } else if orders[index].is_limited() {
                    limits.take(&orders[index], -1);
                    is_more_left = true;
                }
            }
            // Repeats of stored orders need nothing, and so they are left out before the next
            // round: many of them cost one statement.
            let beyond = waiting.iter().map(|index| &orders[*index]);
            let taken = taken_now(transaction, beyond).await?;
            waiting.retain(|index| !taken.contains(&identity(&orders[*index])));
            if waiting.is_empty() || !is_more_left {
                break;
            }
        }
        for index in waiting {
            if let Some(refusal) = limits.refusal(&orders[index]) {
                results[index] = refusal;
            }
        }
        let stored = orders.iter().zip(&results);
        let stored = stored.filter(|(_, result)| **result == Inserted::Stored);
        let stored: Vec<&NewOrder> = stored.map(|(order, _)| order).collect();
        count_units(transaction, &stored).await?;
        let prices = stored.iter();
        let prices = prices.filter_map(|order| Some((order.partner_id, order.price()?)));
        funds::hold(transaction, prices).await?;
        Ok(TransactionEnd::Commit(results))
    })
}

/// What an order is known by: its partner and its external id.
type Identity = (Uuid, String);

fn identity(order: &NewOrder) -> Identity {
    (order.partner_id.uuid(), order.external_order_id.clone())
}

/// Those of these orders whose external ids name an order that stands. It waits for nobody, because
/// accounts are locked: an order whose refusal is under way still stands.
async fn taken_now(
    transaction: &mut Transaction<'_>,
    orders: impl Iterator<Item = &NewOrder>,
) -> Result<HashSet<Identity>> {
    let (partners, ids): (Vec<Uuid>, Vec<String>) = orders.map(identity).unzip();
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    let taken = sqlx::query!(
        r#"SELECT new.partner_id AS "partner_id!", new.external_order_id AS "external_order_id!"
           FROM unnest($1::uuid[], $2::text[]) AS new (partner_id, external_order_id)
           WHERE EXISTS (SELECT FROM orders o
                         WHERE o.partner_id = new.partner_id AND o.external_order_id = new.external_order_id
                           AND o.refused_at IS NULL)
              OR EXISTS (SELECT FROM archived_orders a
                         WHERE a.partner_id = new.partner_id AND a.external_order_id = new.external_order_id
                           AND NOT a.refused)"#,
        &partners,
        &ids,
    );
    let rows = taken.fetch_all(&mut **transaction).await?.into_iter();
    Ok(rows
        .map(|row| (row.partner_id, row.external_order_id))
        .collect())
}

/// Counts the units of stored orders for their keys.
async fn count_units(transaction: &mut Transaction<'_>, stored: &[&NewOrder]) -> Result<()> {
    let mut units: BTreeMap<Uuid, i64> = BTreeMap::new();
    for order in stored {
        if let Some(key) = order.limited_key {
            *units.entry(key.key_id.uuid()).or_default() += order.units();
        }
    }
    if units.is_empty() {
        return Ok(());
    }
    let (keys, units): (Vec<Uuid>, Vec<i64>) = units.into_iter().unzip();
    let count = sqlx::query!(
        "UPDATE partner_key_uses u SET units = u.units + new.units
         FROM unnest($1::uuid[], $2::bigint[]) AS new (key_id, units) WHERE u.key_id = new.key_id",
        &keys,
        &units,
    );
    count.execute(&mut **transaction).await?;
    Ok(())
}
