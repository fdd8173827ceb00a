//! A purchase and an extension, as the ledger keeps them.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::{profile::UnitNumber, protocol::Product};

/// One purchase. Its units are numbered from `first_unit` on, product by product, so they need not
/// be stored one by one.
#[derive(Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct LedgerPurchase {
    /// When it was bought, to the millisecond.
    #[serde(rename = "at_ms", with = "time::serde::timestamp::milliseconds")]
    pub at: OffsetDateTime,
    /// The caller's id of the order.
    pub order_id: String,
    pub first_unit: UnitNumber,
    pub products: Vec<Product>,
}

impl LedgerPurchase {
    /// The number of units.
    pub fn size(&self) -> u64 {
        self.products
            .iter()
            .map(|product| u64::from(product.qty))
            .sum()
    }

    pub fn unit_numbers(&self) -> Range<UnitNumber> {
        self.first_unit..self.first_unit + self.size()
    }

    /// Each unit with its option id, in the order of the products.
    pub fn units(&self) -> impl Iterator<Item = (UnitNumber, &str)> {
        let options = self
            .products
            .iter()
            .flat_map(|product| (0..product.qty).map(move |_| product.option_id.as_str()));
        (self.first_unit..).zip(options)
    }
}

/// An extension: data and days that were added to a unit, or another unit that was sold instead.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct LedgerExtension {
    /// When it takes effect, which may be later than its sale; to the millisecond.
    #[serde(rename = "at_ms", with = "time::serde::timestamp::milliseconds")]
    pub at: OffsetDateTime,
    /// The caller's id of the extension; empty in a protocol that has none.
    pub extension_id: String,
    /// The unit that was to be extended.
    pub unit: UnitNumber,
    pub option_id: String,
    /// The unit that was sold instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead: Option<UnitNumber>,
}
