//! Finds a key that a JSON object has twice.
//!
//! RFC 8259 leaves open what such an object means: parsers take the first value, the last one, or
//! refuse it. So a proxy or an audit in front of us could read another request than we do. The
//! requests of self-service are refused then. A create-order request is not, because its
//! specification is silent about it and old clients may rely on the last value
//! (`docs/decisions/0001-silent-specification.md`).

use std::{collections::HashSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

/// The first repeated key of a JSON text, at any depth.
struct Repeated(Option<String>);

impl<'de> Deserialize<'de> for Repeated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Keys)
    }
}

struct Keys;

impl<'de> Visitor<'de> for Keys {
    type Value = Repeated;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Repeated, A::Error> {
        let mut known = HashSet::new();
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            let Repeated(inner) = map.next_value()?;
            found = found.or(inner);
            if found.is_none() && known.contains(&key) {
                found = Some(key.clone());
            }
            known.insert(key);
        }
        Ok(Repeated(found))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Repeated, A::Error> {
        let mut found = None;
        while let Some(Repeated(inner)) = values.next_element()? {
            found = found.or(inner);
        }
        Ok(Repeated(found))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Repeated, E> {
        Ok(Repeated(None))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Repeated, E> {
        Ok(Repeated(None))
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Repeated, E> {
        Ok(Repeated(None))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Repeated, E> {
        Ok(Repeated(None))
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Repeated, E> {
        Ok(Repeated(None))
    }

    fn visit_unit<E: Error>(self) -> Result<Repeated, E> {
        Ok(Repeated(None))
    }
}

/// A key that some object of this JSON text has twice. The text was parsed before, so that one that
/// is no JSON has none.
pub(crate) fn repeated_key(json: &[u8]) -> Option<String> {
    let Repeated(found) = serde_json::from_slice(json).ok()?;
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_at_any_depth_however_it_is_written() {
        for (json, expected) in [
            (r#"{"a": 1, "b": [true, null, 1.5, -1, "a"]}"#, None),
            (r#"{"a": {"a": {"a": 1}}, "b": {"a": 2}}"#, None),
            (r#"{"a": 1, "b": 2, "a": 1}"#, Some("a")),
            (r#"{"a": 1, "\u0061": 1}"#, Some("a")),
            (r#"{"a": {"b": 1, "b": null}}"#, Some("b")),
            (r#"[1, {"c": [], "c": []}]"#, Some("c")),
            ("7", None),
            ("{", None),
            ("", None),
        ] {
            assert_eq!(repeated_key(json.as_bytes()).as_deref(), expected, "{json}");
        }
    }
}
