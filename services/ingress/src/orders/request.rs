//! Parses the body of a create-order request. It collects all errors of the body, so that one
//! response names all of them and the partner can correct them at once.
//!
//! Guarantees: a [`Draft`] without errors has an external id, at least one item, and no more items
//! and units than allowed. Whether its options exist is checked later, by [`super::check`], which
//! knows the catalogue.
//!
//! Called by [`super::create`]. It does no I/O. The values of a JSON object are parsed one by one
//! and not into a struct, because serde would stop at the first error, and because a number that
//! fits no Rust type is still valid JSON and must get a 422 instead of a 400.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroU32,
};

use domain::{Metadata, OptionId};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    http::{
        codes::ErrorCode,
        error::{ApiError, RequestFault},
        faults::{external_id, repeated, repeated_key},
    },
    limits::OrderSize,
};

/// One item of an order, whose option and quantity may still be wrong.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestedItem {
    /// The index in `products`, from 0.
    pub(crate) index: usize,
    /// The ordered option. `None` if the text cannot be the id of any option, so that the item gets
    /// the same error as one with an unknown id.
    pub(crate) option_id: Option<OptionId>,
    /// The number of units; 0 if it is invalid, which is then among the errors.
    pub(crate) quantity: u64,
    /// What the partner keeps with it, if it is valid.
    pub(crate) metadata: Option<Metadata>,
    /// The most that a unit of it may cost, in minor units.
    pub(crate) max_price: MaxPrice,
}

/// `max_price` of an item. It means something only to partners with a price list; the specification
/// does not know it, so it is ignored for all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MaxPrice {
    #[default]
    Any,
    Most(i64),
    Invalid,
}

/// What could be parsed of a body, with all its errors.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Draft {
    /// The partner's order id, if it is valid.
    pub(crate) external_order_id: Option<String>,
    pub(crate) items: Vec<RequestedItem>,
    /// What the partner keeps with the order, if it is valid.
    pub(crate) metadata: Option<Metadata>,
    /// The errors: those of the external id and the metadata first, and then those of the products
    /// by index.
    pub(crate) errors: Vec<RequestFault>,
}

impl Draft {
    /// The number of units of all items; `None` if it is 0. A number that is too large becomes the
    /// largest one, which exceeds every limit.
    pub(crate) fn units(&self) -> Option<NonZeroU32> {
        let units = self
            .items
            .iter()
            .map(|item| item.quantity)
            .fold(0, u64::saturating_add);
        NonZeroU32::new(u32::try_from(units).unwrap_or(u32::MAX))
    }
}

/// A JSON object whose values are still text.
type Object<'a> = HashMap<String, &'a RawValue>;

/// Parses a body. Returns a 400 if it is missing or not JSON; all other faults are errors of the
/// draft.
///
/// A body with a repeated key, and one that is no object, has no other faults: what its fields say
/// is not certain, or it has none.
pub(crate) fn read(body: &[u8], limits: OrderSize) -> Result<Draft, ApiError> {
    let whole: &RawValue = parse(body)?;
    let fault = if is(whole, '{') {
        repeated_key(whole.get())?.map(|key| repeated(&key))
    } else {
        Some(RequestFault::new(ErrorCode::BodyNotObject))
    };
    if let Some(fault) = fault {
        return Ok(Draft {
            errors: vec![fault],
            ..Draft::default()
        });
    }
    let fields: Object<'_> = parse(whole.get().as_bytes())?;
    let field = |name| fields.get(name).copied().filter(|value| !is(value, 'n'));
    let mut draft = Draft::default();
    match external_order_id(field("external_order_id"))? {
        Ok(id) => draft.external_order_id = Some(id),
        Err(error) => draft.errors.push(error),
    }
    match metadata(field("metadata"))? {
        Ok(metadata) => draft.metadata = metadata,
        Err(code) => draft.errors.push(RequestFault::new(code)),
    }
    products(field("products"), limits, &mut draft)?;
    Ok(draft)
}

fn parse<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(text).map_err(|_| ErrorCode::InvalidJson.into())
}

/// Whether a value begins with this character. The first character tells the type of a JSON value;
/// `n` begins only `null`, for example.
fn is(value: &RawValue, start: char) -> bool {
    value.get().starts_with(start)
}

/// The external id, or what is wrong with it. `null` counts as missing. An id with a NUL character
/// is refused in [`external_id`], because PostgreSQL cannot store it.
fn external_order_id(value: Option<&RawValue>) -> Result<Result<String, RequestFault>, ApiError> {
    let Some(value) = value else {
        return Ok(Err(RequestFault::new(ErrorCode::ExternalOrderIdBlank)));
    };
    if !is(value, '"') {
        let fault = RequestFault::with(ErrorCode::ExternalOrderIdInvalid, "must be a string");
        return Ok(Err(fault));
    }
    let text: String = parse(value.get().as_bytes())?;
    Ok(external_id(&text))
}

/// Parses the items into `draft`, with the errors of all of them.
fn products(
    value: Option<&RawValue>,
    limits: OrderSize,
    draft: &mut Draft,
) -> Result<(), ApiError> {
    if value.is_some_and(|value| !is(value, '[')) {
        draft
            .errors
            .push(RequestFault::new(ErrorCode::ProductsInvalid));
        return Ok(());
    }
    let items: Vec<&RawValue> =
        value.map_or(Ok(Vec::new()), |value| parse(value.get().as_bytes()))?;
    if items.is_empty() {
        draft
            .errors
            .push(RequestFault::new(ErrorCode::ProductsBlank));
        return Ok(());
    }
    if items.len() > limits.items {
        draft
            .errors
            .push(RequestFault::with(ErrorCode::TooManyItems, limits.items));
        return Ok(());
    }
    for (index, item) in items.into_iter().enumerate() {
        if !is(item, '{') {
            draft
                .errors
                .push(RequestFault::of_item(index, ErrorCode::ItemInvalid));
            continue;
        }
        let fields: Object<'_> = parse(item.get().as_bytes())?;
        let field = |name| fields.get(name).copied().filter(|value| !is(value, 'n'));
        let option = option_id(field("option_id"))?;
        if matches!(option, OptionField::Blank) {
            draft
                .errors
                .push(RequestFault::of_item(index, ErrorCode::OptionIdBlank));
        }
        let quantity = quantity(field("qty"));
        if quantity.is_none() {
            draft
                .errors
                .push(RequestFault::of_item(index, ErrorCode::QtyInvalid));
        }
        let metadata = metadata(field("metadata"))?;
        if let Err(code) = metadata {
            draft.errors.push(RequestFault::of_item(index, code));
        }
        // The option of an item with a wrong quantity is kept, so that it is looked up and the same
        // response can say that it does not exist.
        let option_id = match option {
            OptionField::Blank => continue,
            OptionField::Impossible => None,
            OptionField::Id(id) => Some(id),
        };
        draft.items.push(RequestedItem {
            index,
            option_id,
            quantity: quantity.unwrap_or(0),
            metadata: metadata.unwrap_or_default(),
            max_price: max_price(field("max_price")),
        });
    }
    let units = draft.units().map_or(0, NonZeroU32::get);
    if u64::from(units) > limits.units {
        draft
            .errors
            .push(RequestFault::with(ErrorCode::TooManyUnits, limits.units));
    }
    Ok(())
}

/// What an item says about its option.
enum OptionField {
    Blank,
    /// The value cannot be the id of any option.
    Impossible,
    Id(OptionId),
}

fn option_id(value: Option<&RawValue>) -> Result<OptionField, ApiError> {
    let Some(value) = value else {
        return Ok(OptionField::Blank);
    };
    if !is(value, '"') {
        return Ok(OptionField::Impossible);
    }
    let text: String = parse(value.get().as_bytes())?;
    if text.trim().is_empty() {
        return Ok(OptionField::Blank);
    }
    Ok(text
        .parse()
        .map_or(OptionField::Impossible, OptionField::Id))
}

/// An object of texts, within the limits of [`Metadata`]. `null` and an object without texts are as
/// if it was left out.
fn metadata(value: Option<&RawValue>) -> Result<Result<Option<Metadata>, ErrorCode>, ApiError> {
    let Some(value) = value else {
        return Ok(Ok(None));
    };
    if !is(value, '{') {
        return Ok(Err(ErrorCode::MetadataInvalid));
    }
    let fields: Object<'_> = parse(value.get().as_bytes())?;
    let mut pairs = BTreeMap::new();
    for (name, text) in fields {
        if !is(text, '"') {
            return Ok(Err(ErrorCode::MetadataInvalid));
        }
        pairs.insert(name, parse(text.get().as_bytes())?);
    }
    Ok(Metadata::new(pairs).map_err(|_| ErrorCode::MetadataInvalid))
}

/// A whole number from 0 on. A larger one than any price limits nothing.
fn max_price(value: Option<&RawValue>) -> MaxPrice {
    let Some(value) = value else {
        return MaxPrice::Any;
    };
    let text = value.get();
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return MaxPrice::Invalid;
    }
    MaxPrice::Most(text.parse().unwrap_or(i64::MAX))
}

/// A positive integer without fraction and exponent. JSON does not limit the size of a number, so
/// one that does not fit becomes the largest one that fits, and the order then has too many units.
fn quantity(value: Option<&RawValue>) -> Option<u64> {
    let text = value?.get();
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    (digits && text != "0").then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::http::faults::MOST_NESTED;

    const LIMITS: OrderSize = OrderSize {
        items: 3,
        units: 10,
    };
    const OPTION: &str = "6f9619ff-8b86-d011-b42d-00c04fc964ff";

    #[test]
    fn a_repeated_key_is_the_only_fault() {
        let item = format!(r#"{{"option_id": "{OPTION}", "qty": 1, "\u0071ty": 3}}"#);
        let body = format!(r#"{{"external_order_id": "", "products": [{item}]}}"#);
        let draft = read(body.as_bytes(), LIMITS).unwrap();
        let named: Vec<_> = draft
            .errors
            .iter()
            .map(|fault| (fault.code, fault.message.as_str()))
            .collect();
        let message = "Parameter qty is given more than once; send it once";
        assert_eq!(named, [(ErrorCode::ParameterRepeated, message)]);
        assert!(draft.items.is_empty());
    }

    #[test]
    fn what_is_nested_too_deep_hides_no_key() {
        for (levels, is_read) in [(MOST_NESTED - 1, true), (MOST_NESTED, false)] {
            let deep = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
            let body = format!(r#"{{"note": {deep}}}"#);
            assert_eq!(read(body.as_bytes(), LIMITS).is_ok(), is_read, "{levels}");
        }
    }

    // The table of rules in `tests/e2e` tests each rule of the specification. These tests look for
    // bodies that nobody thought of.
    proptest! {
        #[test]
        fn any_body_is_read_or_refused(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&body, LIMITS);
        }

        #[test]
        fn a_repeated_key_is_found_wherever_and_however_it_stands(
            depth in 0..MOST_NESTED - 2,
            is_array in any::<bool>(),
            escaped in any::<bool>(),
            number in "-?[1-9][0-9]{0,400}(\\.[0-9]{1,3})?([eE][1-9]{1,4})?",
        ) {
            let again = if escaped { "\\u0071ty" } else { "qty" };
            let (open, close) = if is_array { ("[", "]") } else { ("{\"a\":", "}") };
            let nested = |inner: &str| format!("{}{inner}{}", open.repeat(depth), close.repeat(depth));
            let object = |key: &str| nested(&format!("{{\"qty\":{number},\"{key}\":3}}"));
            for (key, found) in [(again, vec![ErrorCode::ParameterRepeated]), ("Qty", vec![])] {
                let body = format!("{{\"external_order_id\":\"a\",\"note\":{},\"products\":[{{\"option_id\":\"{OPTION}\",\"qty\":1}}]}}", object(key));
                let draft = read(body.as_bytes(), LIMITS).unwrap();
                let codes: Vec<ErrorCode> = draft.errors.iter().map(|fault| fault.code).collect();
                prop_assert_eq!(codes, found, "{}", body);
            }
        }

        #[test]
        fn a_draft_without_faults_is_complete(id in "\\PC{0,300}", qty in any::<i64>()) {
            let body = json!({"external_order_id": id, "products": [{"option_id": OPTION, "qty": qty}]});
            let draft = read(body.to_string().as_bytes(), LIMITS).unwrap();
            if draft.errors.is_empty() {
                prop_assert_eq!(draft.external_order_id, Some(id));
                prop_assert!(draft.items.iter().all(|item| (1..=10).contains(&item.quantity)));
            }
        }
    }
}
