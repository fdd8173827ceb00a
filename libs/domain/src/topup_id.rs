//! Topup ids. The specification gives them 26 digits: the UTC time `YYYYMMDDHHMMSS`, and 12 digits
//! that make the id unique within the second. For example, `20250129123456123456789012` was made on
//! 2025-01-29 at 12:34:56.

use std::{
    fmt,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
};

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
/// The distance between the 12 digits of two successive ids, modulo [`RANGE`]. It is coprime to
/// [`RANGE`], so that every number occurs once before one repeats. It is near the golden section of
/// the range, so that the ids are scattered and two ids do not show a partner how many units were
/// sold between them.
const STRIDE: u64 = 618_033_988_749;

/// Generates topup ids without coordination between replicas. Each ingress has one generator, which
/// begins at a random number.
///
/// One generator never repeats an id, because for that it would have to make 10^12 of them within
/// one second. Two generators can make the same id only if their random starts happen to be closer
/// than the number of ids that they make. In this case the unique key on the topup id refuses the
/// second order, and ingress stores it again with new ids.
pub struct TopupIds {
    next: AtomicU64,
}

impl TopupIds {
    pub fn new(random_start: u64) -> Self {
        Self {
            next: AtomicU64::new(random_start % RANGE),
        }
    }

    /// Makes the next id. `now` is in UTC.
    pub fn next(&self, now: OffsetDateTime) -> TopupId {
        let step = self.next.fetch_add(1, Ordering::Relaxed) % RANGE;
        let unique = u128::from(step) * u128::from(STRIDE) % u128::from(RANGE);
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
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;

    #[test]
    fn an_id_is_the_time_and_twelve_digits() {
        let id = TopupIds::new(7).next(datetime!(2025-01-29 12:34:56.789 UTC));
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
    fn the_stride_is_coprime_to_the_range() {
        let gcd = |mut a: u64, mut b: u64| {
            while b != 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        assert_eq!(gcd(STRIDE, RANGE), 1);
    }

    proptest! {
        #[test]
        fn a_generator_never_repeats_within_a_second(start: u64) {
            let ids = TopupIds::new(start);
            let now = datetime!(2025-01-29 12:34:56 UTC);
            let made: HashSet<_> = (0..2_000).map(|_| ids.next(now)).collect();
            prop_assert_eq!(made.len(), 2_000);
        }
    }
}
