//! Finds a key that a JSON object has twice.
//!
//! RFC 8259 leaves open what such an object means: parsers take the first value, the last one, or
//! refuse it. So a proxy or an audit in front of us could read another request than we do, and an
//! operator who wrote a key twice may have meant the value that a parser drops. The requests of
//! self-service and the files that `esimctl` imports are refused then. So is a create-order request
//! (`docs/decisions/0001-silent-specification.md`), which ingress reads in its own way, because it
//! leaves numbers as text.

use std::{collections::HashSet, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
};

/// Reads a JSON value whose objects have distinct keys, at any depth, and keeps nothing of it. The
/// first repeated key is an error, which the parser completes with its place in the text, and
/// `repeated` gets its name.
pub struct Distinct<'a> {
    pub repeated: &'a mut Option<String>,
}

impl Distinct<'_> {
    /// The same for a value inside.
    fn inner(&mut self) -> Distinct<'_> {
        Distinct {
            repeated: self.repeated,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Distinct<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Distinct<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut known = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if known.contains(&key) {
                let reason = format!("the key {key:?} stands twice in one object");
                *self.repeated = Some(key);
                return Err(A::Error::custom(reason));
            }
            map.next_value_seed(self.inner())?;
            known.insert(key);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut values: A) -> Result<(), A::Error> {
        while values.next_element_seed(self.inner())?.is_some() {}
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
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
            let mut repeated = None;
            let distinct = Distinct {
                repeated: &mut repeated,
            };
            let read = distinct.deserialize(&mut serde_json::Deserializer::from_str(json));
            assert_eq!(repeated.as_deref(), expected, "{json}");
            assert!(expected.is_none() || read.is_err(), "{json}");
        }
    }

    #[test]
    fn the_error_says_where_the_key_stands_again() {
        let mut repeated = None;
        let distinct = Distinct {
            repeated: &mut repeated,
        };
        let text = "{\"a\": 1,\n \"b\": 2,\n \"a\": 3}";
        let read = distinct.deserialize(&mut serde_json::Deserializer::from_str(text));
        let error = read.unwrap_err().to_string();
        assert!(
            error.starts_with("the key \"a\" stands twice in one object at line 3 column "),
            "{error}"
        );
    }
}
