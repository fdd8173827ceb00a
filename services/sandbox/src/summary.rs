//! The answers to `GET /ledger` and `GET /ledger.csv`. The first one is what tests compare with
//! what the pipeline delivered. Cancelled and failed units count as bought, because the provider
//! has sold them.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    profile::UnitNumber,
    purchase::{LedgerExtension, LedgerPurchase},
};

#[derive(Serialize)]
pub struct LedgerSummary {
    pub purchases: usize,
    pub units: u64,
    pub canceled: usize,
    /// The orders, in the order of their first purchase.
    pub orders: Vec<OrderSummary>,
    /// The extensions, in the order of their sale.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<ExtensionSummary>,
    /// The units that are suspended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suspended: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct ExtensionSummary {
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    pub extension_id: String,
    pub topup_id: String,
    pub option_id: String,
}

impl ExtensionSummary {
    pub fn of(extension: LedgerExtension) -> Self {
        Self {
            at: extension.at,
            extension_id: extension.extension_id,
            topup_id: extension.unit.to_string(),
            option_id: extension.option_id,
        }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct OrderSummary {
    pub order_id: String,
    pub units: u64,
    pub purchased_times: usize,
    pub canceled: usize,
    /// Each purchase in detail; present only if one order was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bought: Option<Vec<PurchaseSummary>>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct PurchaseSummary {
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

impl LedgerSummary {
    /// Summarises purchases. With `in_detail` each of them is listed. The cost grows with their
    /// number.
    pub fn of(
        purchases: &[Arc<LedgerPurchase>],
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
                bought.push(PurchaseSummary {
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
            extensions: Vec::new(),
            suspended: Vec::new(),
        }
    }
}

/// All purchases as CSV, one line each, in the format that `esimctl recover --ledger` reads. A real
/// provider has such a list in its portal.
pub fn csv(purchases: &[Arc<LedgerPurchase>]) -> String {
    let mut text = "order_id,at,units,option\n".to_owned();
    for purchase in purchases {
        let options: Vec<&str> = purchase
            .products
            .iter()
            .map(|product| product.option_id.as_str())
            .collect();
        // The time has milliseconds and is in UTC, so it can always be written.
        let at = purchase.at.format(&Rfc3339).unwrap_or_default();
        let fields = [
            quoted(&purchase.order_id),
            at,
            purchase.size().to_string(),
            quoted(&options.join("+")),
        ];
        text.push_str(&fields.join(","));
        text.push('\n');
    }
    text
}

/// A field in quotes, because ids come from callers and may hold commas, quotes and line breaks.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::protocol::Product;

    #[test]
    fn the_csv_has_one_quoted_line_per_purchase() {
        let products = [("ready", 2), ("delayed", 1)].map(|(option, qty)| Product {
            option_id: option.into(),
            qty,
        });
        let purchase = Arc::new(LedgerPurchase {
            at: datetime!(2026-11-20 12:00:00.5 UTC),
            order_id: "a\"b,c".to_owned(),
            first_unit: 1,
            products: products.into(),
        });
        let line = "\"a\"\"b,c\",2026-11-20T12:00:00.5Z,3,\"ready+delayed\"\n";
        assert_eq!(
            csv(&[Arc::clone(&purchase), purchase]),
            format!("order_id,at,units,option\n{line}{line}")
        );
    }
}
