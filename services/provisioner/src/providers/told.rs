//! Reads what a provider tells of a product for a shop ([`Facts`]).
//!
//! Nothing of it decides what is bought, and providers add words to it at any time. So a value that
//! is not understood makes its fact unknown and is reported ([`UnknownValue`]); it never keeps a
//! product out.

use accounts::facts::{Days, FactText, Facts, Generation, LARGEST, Network};
use domain::product::Country;
use serde_json::Value;

use super::text::line_of;

/// The longest text of a fact, in characters.
const LONGEST: usize = 500;
/// How much of a value is reported, in characters.
const REPORTED: usize = 60;

/// A value of a provider's field that was not understood.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnknownValue {
    pub field: &'static str,
    /// The beginning of the value as JSON: one short line.
    pub value: String,
}

/// What a provider tells of a product, and what of it was not understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToldFacts {
    pub facts: Facts,
    pub unknown: Vec<UnknownValue>,
}

impl ToldFacts {
    /// Reads a field. One that is missing, null or empty tells nothing.
    pub(super) fn read<T>(
        &mut self,
        object: &Value,
        field: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = object.get(field).filter(|value| says_something(value))?;
        let fact = read(value);
        if fact.is_none() {
            self.note(field, value);
        }
        fact
    }

    fn note(&mut self, field: &'static str, value: &Value) {
        let value = line_of(&value.to_string(), REPORTED);
        let unknown = UnknownValue { field, value };
        if !self.unknown.contains(&unknown) {
            self.unknown.push(unknown);
        }
    }

    /// The generations that a list or a text such as `3G/4G` names, sorted. Words that are none are
    /// left out.
    pub(super) fn generations(&mut self, object: &Value, field: &'static str) -> Vec<Generation> {
        let value = object.get(field).filter(|value| says_something(value));
        let words: Vec<&Value> = match value {
            Some(Value::Array(words)) => words.iter().collect(),
            Some(value) => vec![value],
            None => Vec::new(),
        };
        let mut generations = Vec::new();
        for word in words {
            let parts = word.as_str().into_iter().flat_map(|word| word.split('/'));
            let parts: Vec<Option<Generation>> = parts.map(generation).collect();
            if parts.is_empty() || parts.contains(&None) {
                self.note(field, word);
            }
            generations.extend(parts.into_iter().flatten());
        }
        generations.sort_unstable();
        generations.dedup();
        generations
    }

    /// The networks of a list, of which the fields have these names.
    pub(super) fn networks(
        &mut self,
        object: &Value,
        field: &'static str,
        name: &str,
        generations: &'static str,
    ) -> Vec<Network> {
        let listed = self.read(object, field, |listed| listed.as_array().cloned());
        let mut networks = Vec::new();
        for network in listed.unwrap_or_default() {
            let generations = self.generations(&network, generations);
            match network.get(name).and_then(line) {
                Some(name) => networks.push(Network { name, generations }),
                None => self.note(field, &network),
            }
        }
        networks.sort_unstable();
        networks.dedup();
        networks
    }

    /// The country that a field names; one that is none is reported.
    pub(super) fn country(&mut self, object: &Value, field: &'static str) -> Option<Country> {
        self.read(object, field, |code| code.as_str()?.parse().ok())
    }

    /// Leaves the networks out if the facts are larger than what we keep of an option.
    pub(super) fn bounded(mut self) -> Self {
        let size = self.facts.stored().map_or(0, |stored| stored.len());
        if size > LARGEST {
            self.facts.coverage = None;
            self.note("networks", &format!("{size} bytes").into());
        }
        self
    }
}

fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => true,
    }
}

fn generation(word: &str) -> Option<Generation> {
    match word.trim().to_ascii_uppercase().as_str() {
        "2G" => Some(Generation::Second),
        "3G" => Some(Generation::Third),
        "4G" | "LTE" => Some(Generation::Fourth),
        "5G" => Some(Generation::Fifth),
        _ => None,
    }
}

/// All generations of networks, sorted; `None` if there is none.
pub(super) fn together(all: impl Iterator<Item = Generation>) -> Option<Vec<Generation>> {
    let mut all: Vec<Generation> = all.collect();
    all.sort_unstable();
    all.dedup();
    (!all.is_empty()).then_some(all)
}

/// A list, unless it is empty.
pub(super) fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// A text as one line, cut if it is too long.
pub(super) fn line(value: &Value) -> Option<FactText> {
    FactText::try_from(line_of(value.as_str()?, LONGEST)).ok()
}

/// A truth value, which some providers write as 0 or 1.
pub(super) fn flag(value: &Value) -> Option<bool> {
    match (value, value.as_u64()) {
        (Value::Bool(flag), _) => Some(*flag),
        (_, Some(0)) => Some(false),
        (_, Some(1)) => Some(true),
        _ => None,
    }
}

/// A whole number, which some providers write as a text.
pub(super) fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

pub(super) fn days(value: &Value) -> Option<Days> {
    Days::try_from(whole(value)?).ok()
}
