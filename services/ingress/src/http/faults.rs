//! What is wrong with a key or an external id, wherever it stands: in the body of an order, in that of
//! another request, or in a query.

use crate::http::{codes::Code, error::Fault};

/// The longest `external_order_id`, in characters.
pub(crate) const MAX_EXTERNAL_ID: usize = 255;
/// The maximum number of characters of a key or a parameter that a response repeats.
pub(crate) const MAX_KEY: usize = 64;

/// The fault of a key that stands twice in one object.
pub(crate) fn repeated(key: &str) -> Fault {
    let key: String = key.chars().take(MAX_KEY).collect();
    Fault::with(Code::ParameterRepeated, key)
}

/// A text as an external id, or what is wrong with it.
pub(crate) fn external_id(text: &str) -> Result<String, Fault> {
    let invalid = |detail: &str| Err(Fault::with(Code::ExternalOrderIdInvalid, detail));
    if text.trim().is_empty() {
        Err(Fault::new(Code::ExternalOrderIdBlank))
    } else if text.chars().count() > MAX_EXTERNAL_ID {
        invalid(&format!(
            "is too long (maximum is {MAX_EXTERNAL_ID} characters)"
        ))
    } else if text.contains('\0') {
        invalid("can't contain a NUL character")
    } else {
        Ok(text.to_owned())
    }
}
