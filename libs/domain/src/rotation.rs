//! How a secret is replaced while it is in use. An endpoint has a list of secrets, the newest
//! first, and every one of them that has not ended signs its webhooks.

use std::time::Duration;

use time::OffsetDateTime;

/// A value of the list and when it ends; the newest one has no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Valid<Value> {
    pub value: Value,
    pub ends_at: Option<OffsetDateTime>,
}

/// What becomes of the old values in a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// How long the old one stays valid; 0 ends it at once.
    pub lasts: Duration,
    /// Keeps the old one of the last rotation, and replaces its new one. This is for a new value
    /// that never reached the partner, which still uses the old one.
    pub keep_old: bool,
}

/// The result of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationResult {
    /// The rotation is done. The old ones are valid until then, or not at all.
    Until(Option<OffsetDateTime>),
    /// Nothing was changed: the last overlap has not ended, there is no overlap to keep, or there
    /// is no such partner.
    Refused,
}

impl RotationResult {
    /// What is made of the end of the old value; `None` if the rotation was refused.
    pub fn done<T>(self, make: impl FnOnce(Option<OffsetDateTime>) -> T) -> Option<T> {
        match self {
            Self::Until(until) => Some(make(until)),
            Self::Refused => None,
        }
    }
}

/// The list after a rotation at the time `now`. `None` refuses it: the overlap of the last rotation
/// has not ended, so a further one would end a value that may still be in use, or there is no
/// overlap whose old value could be kept.
pub fn rotate<Value: Clone>(
    list: &[Valid<Value>],
    new: Value,
    overlap: Overlap,
    now: OffsetDateTime,
) -> Option<Vec<Valid<Value>>> {
    let newest = Valid {
        value: new,
        ends_at: None,
    };
    if overlap.lasts.is_zero() {
        return Some(vec![newest]);
    }
    let old = valid(list, now).find(|one| one.ends_at.is_some());
    let kept = match (overlap.keep_old, old) {
        (true, old) => old?,
        (false, Some(_)) => return None,
        (false, None) => list.first()?,
    };
    let kept = Valid {
        value: kept.value.clone(),
        ends_at: Some(now + overlap.lasts),
    };
    Some(vec![newest, kept])
}

/// The values that are valid now, the newest first.
pub fn valid<Value>(
    list: &[Valid<Value>],
    now: OffsetDateTime,
) -> impl Iterator<Item = &Valid<Value>> {
    list.iter()
        .filter(move |one| one.ends_at.is_none_or(|ends_at| ends_at > now))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use time::macros::datetime;

    use super::*;

    const NOW: OffsetDateTime = datetime!(2026-11-26 12:00 UTC);
    const HOUR: Duration = Duration::from_hours(1);

    fn overlap(lasts: Duration, keep_old: bool) -> Overlap {
        Overlap { lasts, keep_old }
    }

    fn values(list: &[Valid<u32>], now: OffsetDateTime) -> Vec<u32> {
        valid(list, now).map(|one| one.value).collect()
    }

    #[test]
    fn an_old_value_is_valid_for_its_overlap() {
        let first = vec![Valid {
            value: 1,
            ends_at: None,
        }];
        let second = rotate(&first, 2, overlap(HOUR, false), NOW).unwrap();
        assert_eq!(values(&second, NOW), [2, 1]);
        assert_eq!(values(&second, NOW + HOUR), [2]);
        // The partner may still use 1, so it is neither ended nor pushed out.
        assert_eq!(rotate(&second, 3, overlap(HOUR, false), NOW), None);
        let replaced = rotate(&second, 3, overlap(HOUR, true), NOW).unwrap();
        assert_eq!(values(&replaced, NOW), [3, 1]);
        let ended = rotate(&second, 3, overlap(Duration::ZERO, false), NOW).unwrap();
        assert_eq!(values(&ended, NOW), [3]);
        let later = rotate(&second, 3, overlap(HOUR, false), NOW + HOUR).unwrap();
        assert_eq!(values(&later, NOW + HOUR), [3, 2]);
        assert_eq!(rotate(&first, 2, overlap(HOUR, true), NOW), None);
    }

    proptest! {
        #[test]
        fn there_is_one_newest_value_and_at_most_one_old(
            steps in prop::collection::vec((0..3_u64, any::<bool>(), 0..3_u64), 0..20),
        ) {
            let mut now = NOW;
            let mut list = vec![Valid { value: 0_u32, ends_at: None }];
            for (number, (hours, keep_old, later)) in (1..).zip(steps) {
                now += Duration::from_hours(later);
                let before = values(&list, now);
                let overlap = overlap(Duration::from_hours(hours), keep_old);
                if let Some(next) = rotate(&list, number, overlap, now) {
                    list = next;
                    prop_assert_eq!(list[0].clone(), Valid { value: number, ends_at: None });
                    prop_assert!(values(&list, now)[1..].iter().all(|old| before.contains(old)));
                }
                prop_assert!(list.len() <= 2);
            }
        }
    }
}
