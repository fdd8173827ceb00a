//! What a partner keeps with an order, or with one of its items: a few texts by name, such as the
//! number of a ticket or of a customer. Nobody interprets it. It may name persons, so the erasure
//! of an order removes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// At least one pair of a name and a text. Its text is the same for equal pairs, in whatever order
/// they were sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Metadata(BTreeMap<String, String>);

/// Why pairs are no metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMetadata {
    TooManyPairs,
    TooLong,
    /// A name is empty, or a text has a NUL character, which PostgreSQL cannot store.
    Unfit,
}

/// What is stored as metadata is damaged.
#[derive(Debug, thiserror::Error)]
#[error("the metadata: {0}")]
pub struct UnreadableMetadata(#[from] serde_json::Error);

impl Metadata {
    pub const MOST_PAIRS: usize = 10;
    /// Of all names and texts together, in UTF-8.
    pub const MOST_BYTES: usize = 1_024;

    /// `None` if there are no pairs.
    pub fn new(pairs: BTreeMap<String, String>) -> Result<Option<Self>, NoMetadata> {
        let bytes: usize = pairs
            .iter()
            .map(|(name, text)| name.len() + text.len())
            .sum();
        let is_unfit = |(name, text): (&String, &String)| {
            name.is_empty() || name.contains('\0') || text.contains('\0')
        };
        if pairs.len() > Self::MOST_PAIRS {
            Err(NoMetadata::TooManyPairs)
        } else if bytes > Self::MOST_BYTES {
            Err(NoMetadata::TooLong)
        } else if pairs.iter().any(is_unfit) {
            Err(NoMetadata::Unfit)
        } else {
            Ok((!pairs.is_empty()).then_some(Self(pairs)))
        }
    }

    /// As it is stored.
    pub fn stored(&self) -> String {
        // Texts can always be written.
        serde_json::to_string(self).unwrap_or_default()
    }

    pub fn read(stored: &str) -> Result<Self, UnreadableMetadata> {
        Ok(serde_json::from_str(stored)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn what_is_stored_is_read_again_and_no_pairs_are_none() {
        assert_eq!(Metadata::new(pairs(&[])), Ok(None));
        let kept = Metadata::new(pairs(&[("ticket", "T-1 \"é\""), ("a", "")])).unwrap();
        let kept = kept.unwrap();
        assert_eq!(kept.stored(), r#"{"a":"","ticket":"T-1 \"é\""}"#);
        assert_eq!(Metadata::read(&kept.stored()).unwrap(), kept);
        for damaged in ["", "null", "[]", "{", r#"{"a":1}"#] {
            assert!(Metadata::read(damaged).is_err(), "{damaged}");
        }
    }

    #[test]
    fn it_is_bounded() {
        let most: Vec<String> = (0..=Metadata::MOST_PAIRS).map(|n| n.to_string()).collect();
        let many: Vec<(&str, &str)> = most.iter().map(|name| (name.as_str(), "")).collect();
        assert!(Metadata::new(pairs(&many[1..])).is_ok());
        assert_eq!(Metadata::new(pairs(&many)), Err(NoMetadata::TooManyPairs));
        let long = "é".repeat(Metadata::MOST_BYTES / 2);
        assert!(Metadata::new(pairs(&[("12", &long[2..])])).is_ok());
        assert_eq!(
            Metadata::new(pairs(&[("1", &long)])),
            Err(NoMetadata::TooLong)
        );
        for unfit in [("", "a"), ("a", "\0"), ("\0", "a")] {
            assert_eq!(Metadata::new(pairs(&[unfit])), Err(NoMetadata::Unfit));
        }
    }
}
