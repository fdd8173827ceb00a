//! The answer to `GET /ledger`, which tests compare with what the pipeline delivered. Cancelled and
//! failed units count as bought, because the provider has sold them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use serde::Serialize;
use time::OffsetDateTime;

use crate::{profile::UnitNumber, purchase::Purchase};

#[derive(Serialize)]
pub struct Summary {
    pub purchases: usize,
    pub units: u64,
    pub canceled: usize,
    /// The orders, in the order of their first purchase.
    pub orders: Vec<OrderSummary>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct OrderSummary {
    pub order_id: String,
    pub units: u64,
    pub purchased_times: usize,
    pub canceled: usize,
    /// Each purchase in detail; present only if one order was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bought: Option<Vec<Bought>>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Bought {
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    pub topups: Vec<BoughtTopup>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct BoughtTopup {
    pub topup_id: String,
    pub option_id: String,
    pub canceled: bool,
}

impl Summary {
    /// Summarises purchases. With `in_detail` each of them is listed. The cost grows with their
    /// number.
    pub fn of(
        purchases: &[Arc<Purchase>],
        canceled: &BTreeSet<UnitNumber>,
        in_detail: bool,
    ) -> Self {
        let mut orders: Vec<OrderSummary> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for purchase in purchases {
            let place = *places.entry(&purchase.order_id).or_insert_with(|| {
                let bought = in_detail.then(Vec::new);
                let order_id = purchase.order_id.clone();
                orders.push(OrderSummary {
                    order_id,
                    units: 0,
                    purchased_times: 0,
                    canceled: 0,
                    bought,
                });
                orders.len() - 1
            });
            let order = &mut orders[place];
            order.units += purchase.size();
            order.purchased_times += 1;
            order.canceled += canceled.range(purchase.unit_numbers()).count();
            if let Some(bought) = &mut order.bought {
                let topups = purchase.units().map(|(unit, option_id)| BoughtTopup {
                    topup_id: unit.to_string(),
                    option_id: option_id.to_owned(),
                    canceled: canceled.contains(&unit),
                });
                bought.push(Bought {
                    at: purchase.at,
                    topups: topups.collect(),
                });
            }
        }
        Self {
            purchases: orders.iter().map(|order| order.purchased_times).sum(),
            units: orders.iter().map(|order| order.units).sum(),
            canceled: orders.iter().map(|order| order.canceled).sum(),
            orders,
        }
    }
}
