//! What an order agrees about each of its units, and what the partner is told of it ever after: in
//! look-ups and in the webhook of the eSIM.
//!
//! Ingress writes it once. The option has a column of its own, by which statements join. All other
//! fields are one text, the *terms*, which placements and deliveries carry along without reading
//! it. So a further field needs no column, no grant and no statement, and a program that does not
//! know it yet loses none of it. The text is read where somebody is told. It holds nothing
//! personal, because the erasure of an order keeps it. A unit of which only the option is agreed
//! has none, and takes no room for it.
//!
//! Programs of schema 2 and before carry no terms. So the version that agrees on the first field
//! needs a migration with `-- serves: 3`, even if it does nothing else.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Amount, OptionId};

/// The field of [`Agreed`] that is no term.
const OPTION: &str = "option_id";

/// What was agreed about one unit. A further field is an `Option`, because older units lack it, and
/// is left out of the text while it is `None`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreed {
    pub option_id: OptionId,
    /// What the partner pays for it, if it has a price list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Amount>,
}

impl Agreed {
    /// An option, and nothing else.
    pub fn new(option_id: OptionId) -> Self {
        Self {
            option_id,
            price: None,
        }
    }

    /// As it is stored.
    pub fn stored(&self) -> StoredAgreed {
        let option_id = self.option_id;
        let has_terms = *self != Self::new(option_id);
        StoredAgreed {
            option_id,
            terms: has_terms.then(|| self.terms()),
        }
    }

    /// The fields that are terms, as a JSON object.
    fn terms(&self) -> String {
        // Names and values can always be written. If they could not, the text would be `null`,
        // which nobody can read, instead of one that lacks them.
        let mut fields = serde_json::to_value(self).unwrap_or_default();
        if let Some(fields) = fields.as_object_mut() {
            fields.remove(OPTION);
        }
        fields.to_string()
    }
}

/// An [`Agreed`] as the tables `topups` and `deliveries` hold it, and as it is carried from one to
/// the other.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct StoredAgreed {
    pub option_id: OptionId,
    /// A JSON object with the other fields; `None` if there are none.
    pub terms: Option<String>,
}

/// The terms of a unit are damaged, or a newer version has agreed what this one takes for another
/// type.
#[derive(Debug, thiserror::Error)]
#[error("the terms of a unit: {0}")]
pub struct UnreadableTerms(#[from] serde_json::Error);

impl StoredAgreed {
    pub fn read(&self) -> Result<Agreed, UnreadableTerms> {
        let Some(terms) = &self.terms else {
            return Ok(Agreed::new(self.option_id));
        };
        let mut fields: Map<String, Value> = serde_json::from_str(terms)?;
        fields.insert(OPTION.to_owned(), self.option_id.to_string().into());
        Ok(serde_json::from_value(fields.into())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product::Currency;

    fn with(agreed: &Agreed, terms: &str) -> StoredAgreed {
        StoredAgreed {
            option_id: agreed.option_id,
            terms: Some(terms.to_owned()),
        }
    }

    #[test]
    fn what_is_stored_is_read_again_and_an_option_alone_takes_no_room() {
        let agreed = Agreed::new(OptionId::new());
        let stored = agreed.stored();
        assert_eq!(stored.terms, None);
        assert_eq!(stored.read().unwrap(), agreed);
        let written = agreed.terms();
        assert_eq!(written, "{}");
        assert_eq!(with(&agreed, &written).read().unwrap(), agreed);
        let price = Amount::parse("1.50", Currency::of_money("USD").unwrap()).unwrap();
        let priced = Agreed {
            price: Some(price),
            ..agreed
        };
        // The SQL function `account_for` reads it.
        let terms = r#"{"price":{"amount":150,"currency":"USD"}}"#;
        assert_eq!(priced.stored().terms.as_deref(), Some(terms));
        assert_eq!(priced.stored().read().unwrap(), priced);
    }

    #[test]
    fn terms_of_a_newer_version_are_read_in_part_and_damaged_ones_not_at_all() {
        let agreed = Agreed::new(OptionId::new());
        let read = |terms| with(&agreed, terms).read();
        assert_eq!(read(r#"{"made_up":1}"#).unwrap(), agreed);
        // The column decides, because statements join by it.
        assert_eq!(read(r#"{"option_id":"other"}"#).unwrap(), agreed);
        for damaged in ["", "null", "[]", "{"] {
            assert!(read(damaged).is_err(), "{damaged}");
        }
    }
}
