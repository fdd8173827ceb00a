//! Files of JSON that people write. A key that stands twice in one object is refused, because a parser
//! takes the last one silently, and the person may have meant the first.

use std::{collections::HashSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

/// Checks that no object of the text repeats a key. The error names the first repeated key with its line
/// and column; a text that is no JSON is an error, too.
pub fn check_keys(text: &str) -> serde_json::Result<()> {
    serde_json::from_str::<Distinct>(text).map(drop)
}

/// Any JSON whose keys are distinct. Nothing of it is kept.
struct Distinct;

impl<'de> Deserialize<'de> for Distinct {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Walk)
    }
}

struct Walk;

impl<'de> Visitor<'de> for Walk {
    type Value = Distinct;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Distinct, A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if keys.contains(&key) {
                let reason =
                    format!("the key {key:?} stands twice in one object; remove one of them");
                return Err(A::Error::custom(reason));
            }
            keys.insert(key);
            map.next_value::<Distinct>()?;
        }
        Ok(Distinct)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Distinct, A::Error> {
        while list.next_element::<Distinct>()?.is_some() {}
        Ok(Distinct)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Distinct, E> {
        Ok(Distinct)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Distinct, E> {
        Ok(Distinct)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Distinct, E> {
        Ok(Distinct)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Distinct, E> {
        Ok(Distinct)
    }

    fn visit_str<E>(self, _: &str) -> Result<Distinct, E> {
        Ok(Distinct)
    }

    fn visit_unit<E>(self) -> Result<Distinct, E> {
        Ok(Distinct)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_key_is_named_with_its_line() {
        for (text, says) in testkit::rows! {
            r#"{"a": 1, "b": {"a": [true, null, -1, 1.5, "x"]}}"# => None;
            r#"[{"a": 1}, {"a": 2}]"# => None;
            "{\"a\": 1,\n \"b\": 2,\n \"a\": 3}" => Some("\"a\" stands twice in one object; remove one of them at line 3");
            "[{\"b\": {\n\"x\": 1, \"x\": 1}}]" => Some("\"x\" stands twice in one object; remove one of them at line 2");
            "{\"a\":\n1" => Some("EOF while parsing an object at line 2");
        } {
            let found = check_keys(text).err().map(|error| error.to_string());
            match (&found, says) {
                (None, None) => {}
                (Some(found), Some(says)) => assert!(found.contains(says), "{found}"),
                _ => panic!("{text}: {found:?}"),
            }
        }
    }
}
