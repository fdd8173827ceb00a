//! The lists of a provider, page by page: what it sells, and what it has sold us. `esimctl` reads
//! them; nothing that buys depends on them.
//!
//! A page is read whole or not at all if its shape is wrong, because a list with a hole would look
//! as if something were gone. A single product with an odd field is refused by itself and named, so
//! that one mistake of the provider does not keep thousands of others from being read.

use domain::product::{Price, Standard};
use serde_json::Value;
use time::OffsetDateTime;

use super::{
    text::{ProviderId, one_line},
    told::ToldFacts,
};

/// One page of a list.
#[derive(Clone, Debug)]
pub struct ListPage<T> {
    pub entries: Vec<T>,
    /// The number of the next page; `None` after the last one.
    pub next: Option<u32>,
}

/// A product that the provider sells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProductOffer {
    /// The provider's id of the product, by which it is ordered; `None` if it is unreadable.
    pub product: Option<ProviderId>,
    /// One short line; it may be empty.
    pub name: String,
    pub standard: Result<Standard, UnsuitableProduct>,
    /// What a shop tells about it; nothing of a product that is refused is needed.
    pub told: ToldFacts,
}

/// Why we cannot sell a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsuitableProduct {
    #[error("it needs a confirmation code, for which our webhook has no field")]
    ConfirmationCode,
    #[error("its user must prove an identity first, which our API cannot pass on")]
    Identity,
    #[error("it tops up an eSIM that exists, and is no eSIM of its own")]
    TopUp,
    #[error("its data is counted by the day, and our order has no number of days")]
    DailyData,
    #[error("its validity is not a number of whole days")]
    Period,
    #[error("it is listed twice, with different terms")]
    Ambiguous,
    #[error("its field {0} is missing, unreadable or makes no sense")]
    Unreadable(&'static str),
}

impl UnsuitableProduct {
    /// The name of the reason for programs.
    pub fn code(self) -> &'static str {
        match self {
            Self::ConfirmationCode => "confirmation_code",
            Self::Identity => "identity",
            Self::TopUp => "top_up",
            Self::DailyData => "daily_data",
            Self::Period => "period",
            Self::Ambiguous => "ambiguous",
            Self::Unreadable(_) => "unreadable",
        }
    }
}

/// The time of the purchases that are asked for.
#[derive(Clone, Copy, Debug)]
pub struct PurchasePeriod {
    pub since: OffsetDateTime,
    pub until: OffsetDateTime,
}

/// A purchase, or one unit of it: entries with the same reference belong to one purchase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoldPurchase {
    /// Our id of the purchase, as the provider shows it: one short line, empty if it shows none.
    pub order_id: String,
    /// The provider's own id of the purchase.
    pub reference: ProviderId,
    /// The provider's id of the unit if the entry is a single unit. An entry without it is the
    /// whole purchase. A list may move while its pages are read, so an entry may come twice.
    pub unit: Option<ProviderId>,
    /// When it was bought, as the provider writes it.
    pub at: Option<String>,
    pub units: u32,
    pub option: Option<ProviderId>,
    /// What we paid, for a unit or for all of them; `None` if the list does not say so.
    pub price: Option<Price>,
}

/// The text of a field.
pub(super) fn text<'a>(object: &'a Value, field: &str) -> Option<&'a str> {
    object.get(field)?.as_str()
}

/// The number of a field, which some providers write as a text.
pub(super) fn number(object: &Value, field: &str) -> Option<u64> {
    match object.get(field)? {
        Value::Number(number) => number.as_u64(),
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    }
}

/// The id of a product in a field.
pub(super) fn product(object: &Value, field: &str) -> Option<ProviderId> {
    ProviderId::parse(text(object, field)?.to_owned()).ok()
}

/// The name of a product in a field.
pub(super) fn name(object: &Value, field: &str) -> String {
    one_line(text(object, field).unwrap_or_default())
}

/// Whether one of the texts says that the product needs a confirmation code. No documented field
/// says so, but providers write such conditions into their descriptions.
pub(super) fn needs_confirmation_code<'a>(mut texts: impl Iterator<Item = &'a str>) -> bool {
    texts.any(|text| {
        let text = text.to_ascii_lowercase();
        text.contains("confirmation code") || text.contains("confirmation_code")
    })
}
