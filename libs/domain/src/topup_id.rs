//! Topup ids. The specification gives them 26 digits: the UTC time `YYYYMMDDHHMMSS`, and 12 digits
//! that make the id unique within the second. For example, `20250129123456123456789012` was made on
//! 2025-01-29 at 12:34:56.

use std::{
    collections::HashSet,
    fmt,
    str::FromStr,
    sync::{Mutex, PoisonError},
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::ids::NotAnId;

/// Identifies one unit of an order by 26 decimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct TopupId(String);

impl TopupId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for TopupId {
    type Error = NotAnId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let digits = text.len() == 26 && text.bytes().all(|byte| byte.is_ascii_digit());
        if digits {
            Ok(Self(text))
        } else {
            Err(NotAnId("a topup id is 26 decimal digits"))
        }
    }
}

impl FromStr for TopupId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.to_owned().try_into()
    }
}

impl fmt::Display for TopupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The number of different ids within one second.
const RANGE: u64 = 1_000_000_000_000;

/// Generates topup ids without coordination between replicas. Each ingress has one generator.
///
/// The 12 digits come from a generator that is secure for cryptography, so that nobody can compute
/// from some ids which others there are, or how many. A partner sees its own ids only; with a
/// counter, however scattered, two of them would tell it how many units all partners bought in
/// between.
///
/// One generator never makes the same id twice within a second. Two of them can, though rarely: at
/// 5,000 ids per second each, about once in half a day. In this case the unique key on the topup id
/// refuses the second order, and ingress stores it again with new ids.
pub struct TopupIds {
    made: Mutex<Made>,
}

/// What a generator made in the current second.
struct Made {
    random: StdRng,
    second: i64,
    numbers: HashSet<u64>,
}

impl TopupIds {
    /// Creates a generator. `seed` must be random and secret, because the ids follow from it.
    #[must_use]
    pub fn new(seed: [u8; 32]) -> Self {
        Self {
            made: Mutex::new(Made {
                random: StdRng::from_seed(seed),
                second: 0,
                numbers: HashSet::new(),
            }),
        }
    }

    /// Makes the next id. `now` is in UTC.
    pub fn next(&self, now: OffsetDateTime) -> TopupId {
        let unique = self.unique(now.unix_timestamp());
        let date = now.date();
        let time = now.time();
        TopupId(format!(
            "{:04}{:02}{:02}{:02}{:02}{:02}{unique:012}",
            date.year(),
            u8::from(date.month()),
            date.day(),
            time.hour(),
            time.minute(),
            time.second(),
        ))
    }

    /// A number that was not returned in this second.
    fn unique(&self, second: i64) -> u64 {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let made = &mut *made;
        if made.second != second {
            made.second = second;
            made.numbers.clear();
        }
        loop {
            let number = made.random.random_range(0..RANGE);
            if made.numbers.insert(number) {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;

    #[test]
    fn an_id_is_the_time_and_twelve_digits() {
        let id = TopupIds::new([7; 32]).next(datetime!(2025-01-29 12:34:56.789 UTC));
        assert_eq!(id.as_str().len(), 26);
        assert!(id.as_str().starts_with("20250129123456"), "{id}");
        assert_eq!(id.as_str().parse::<TopupId>().unwrap(), id);
    }

    #[test]
    fn other_texts_are_no_ids() {
        for bad in [
            "",
            "2025012912345612345678901",
            "2025012912345612345678901x",
            "٢0250129123456123456789012",
        ] {
            assert!(bad.parse::<TopupId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_generator_never_repeats_within_a_second() {
        let ids = TopupIds::new([7; 32]);
        let now = datetime!(2025-01-29 12:34:56 UTC);
        // Random numbers alone would repeat here with a probability of 86 %.
        let made: HashSet<_> = (0..2_000_000)
            .map(|_| ids.unique(now.unix_timestamp()))
            .collect();
        assert_eq!(made.len(), 2_000_000);
    }

    proptest! {
        /// Ids that two partners get in turn, in the same second and in later ones.
        #[test]
        fn ids_do_not_tell_how_many_there_were_in_between(seed: [u8; 32]) {
            let ids = TopupIds::new(seed);
            let now = datetime!(2025-01-29 12:34:56 UTC);
            let number = |id: TopupId| id.as_str()[14..].parse::<u64>().unwrap();
            let numbers: Vec<u64> = (0..50)
                .map(|step| number(ids.next(now + time::Duration::milliseconds(100 * step))))
                .collect();
            let steps: HashSet<u64> = numbers
                .windows(2)
                .map(|pair| (pair[1] + RANGE - pair[0]) % RANGE)
                .collect();
            prop_assert_eq!(steps.len(), 49);
        }
    }
}
