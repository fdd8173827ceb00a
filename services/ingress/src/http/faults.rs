//! What is wrong with a key or an external id, wherever it stands: in the body of an order, in that
//! of another request, or in a query.

use std::collections::HashSet;

use crate::http::{
    codes::ErrorCode,
    error::{ApiError, RequestFault},
};

/// The longest `external_order_id`, in characters.
pub(crate) const MAX_EXTERNAL_ID: usize = 255;
/// The maximum number of characters of a key or a parameter that a response repeats.
pub(crate) const MAX_KEY: usize = 64;

/// How deep objects and arrays may be nested. A request has three levels; what it has beyond them
/// is ignored, but has to be looked through for repeated keys.
pub(crate) const MOST_NESTED: usize = 128;

/// A key that some object of this JSON text has twice, however it is written. Parsers differ in
/// which of the two values they take, so whoever looks at a request before us, such as a proxy or
/// an audit, might see another one than we would carry out. The text has been parsed before, so its
/// brackets match; a key that is no text, such as half of a surrogate pair, gets a 400.
///
/// It reads the text once, from its beginning to its end: anybody may send it, and a second look at
/// what was read would cost the more, the longer the text is. Numbers and texts are left as they
/// are, because one that fits no Rust type is valid JSON.
pub(crate) fn repeated_key(json: &str) -> Result<Option<String>, ApiError> {
    let invalid = || ApiError::from(ErrorCode::InvalidJson);
    let bytes = json.as_bytes();
    // What is open: the keys of an object, or `None` for an array.
    let mut open: Vec<Option<HashSet<String>>> = Vec::new();
    let mut is_key = false;
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let begin = at;
        at += 1;
        match byte {
            b'{' | b'[' => {
                is_key = *byte == b'{';
                open.push(is_key.then(HashSet::new));
                if open.len() > MOST_NESTED {
                    return Err(invalid());
                }
            }
            b'}' | b']' => {
                open.pop();
            }
            b',' => is_key = matches!(open.last(), Some(Some(_))),
            b':' => is_key = false,
            b'"' => {
                while let Some(inner) = bytes.get(at).filter(|inner| **inner != b'"') {
                    at += if *inner == b'\\' { 2 } else { 1 };
                }
                at += 1;
                if let Some(Some(keys)) = open.last_mut().filter(|_| is_key) {
                    let written = json.get(begin..at).ok_or_else(invalid)?;
                    let key: String = serde_json::from_str(written).map_err(|_| invalid())?;
                    if keys.contains(&key) {
                        return Ok(Some(key));
                    }
                    keys.insert(key);
                }
            }
            _ => {}
        }
    }
    Ok(None)
}

/// The fault of a key that stands twice in one object.
pub(crate) fn repeated(key: &str) -> RequestFault {
    let key: String = key.chars().take(MAX_KEY).collect();
    RequestFault::with(ErrorCode::ParameterRepeated, key)
}

/// A text as an external id, or what is wrong with it.
pub(crate) fn external_id(text: &str) -> Result<String, RequestFault> {
    let invalid = |detail: &str| {
        Err(RequestFault::with(
            ErrorCode::ExternalOrderIdInvalid,
            detail,
        ))
    };
    if text.trim().is_empty() {
        Err(RequestFault::new(ErrorCode::ExternalOrderIdBlank))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_stands_twice_is_found_wherever_it_stands() {
        for (json, expected) in [
            (r#"{"a": 1, "b": [true, null, 1.5e999, -1, "a"]}"#, None),
            (r#"{"a": {"a": {"a": 1}}, "b": {"a": 2}}"#, None),
            (r#"{"a": "a", "b": "{\"a\":1,\"a\":2}"}"#, None),
            (r#"{"a": 1, "b": 2, "a": 1}"#, Some("a")),
            (r#"{"a": 1, "\u0061": 1}"#, Some("a")),
            (r#"{"\"": 1, "\u0022": 1}"#, Some("\"")),
            (r#"{"a": {"b": 1, "b": null}}"#, Some("b")),
            (r#"[1, {"c": [], "c": []}]"#, Some("c")),
            (r#"{"a": [{}, {"x": 1}], "b": {}, "a": 1}"#, Some("a")),
            ("7", None),
            (r#""a""#, None),
        ] {
            let found = repeated_key(json).ok().flatten();
            assert_eq!(found.as_deref(), expected, "{json}");
        }
        assert!(repeated_key(r#"{"\ud800": 1}"#).is_err());
    }
}
