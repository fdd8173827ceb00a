//! Times in the past as arguments: the values of `--since` and `--until` of the command lines of
//! operators and of partners.

use time::{OffsetDateTime, UtcOffset, format_description::well_known::Rfc3339};

use crate::{
    clock,
    config::{LONGEST, TOO_LONG, any_duration},
};

/// Reads a time such as `2025-01-29T12:00:00Z`, or an age such as `2h`, which counts back from now.
///
/// A time in the future is refused. It is a slip, such as a wrong year or zone, and without an
/// error an empty list would look as if nothing had happened.
pub fn past(text: &str) -> Result<OffsetDateTime, String> {
    let now = clock::now();
    if let Ok(at) = OffsetDateTime::parse(text, &Rfc3339) {
        return if at <= now {
            Ok(at.to_offset(UtcOffset::UTC))
        } else {
            Err(format!(
                "it is in the future, because now it is {}: check the year and the time zone, or write an age such as `2h`",
                told(now)
            ))
        };
    }
    let too_long = || {
        format!(
            "as an age {TOO_LONG}: for an earlier time write the time itself, like `2025-01-29T12:00:00Z`"
        )
    };
    let age = any_duration(text).map_err(|_| {
        "it is neither a time nor an age: write it like `2025-01-29T12:00:00Z` or `2h`".to_owned()
    })?;
    if age > LONGEST {
        return Err(too_long());
    }
    let age = time::Duration::try_from(age).map_err(|_| too_long())?;
    now.checked_sub(age).ok_or_else(too_long)
}

/// A time in UTC, to the second, in the form that [`past`] reads.
fn told(at: OffsetDateTime) -> String {
    let at = at.to_offset(UtcOffset::UTC);
    let at = at.replace_nanosecond(0).unwrap_or(at);
    at.format(&Rfc3339).unwrap_or_else(|_| at.to_string())
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn a_past_moment_is_a_time_or_an_age() {
        assert_eq!(
            past("2025-01-29T13:00:00+01:00").unwrap(),
            datetime!(2025-01-29 12:00 UTC)
        );
        let before = clock::now();
        let then = past("2h").unwrap();
        let age = before - then..=clock::now() - then;
        assert!(*age.start() <= time::Duration::HOUR * 2 && *age.end() >= time::Duration::HOUR * 2);
    }

    #[test]
    fn other_moments_are_refused_with_the_remedy() {
        let next_year = clock::now() + time::Duration::days(365);
        let next_year = next_year.format(&Rfc3339).unwrap();
        let neither = [
            "",
            "yesterday",
            "2025-01-29",
            "-2h",
            "99999999999999999999y",
        ];
        let too_long = ["400d", "2years"];
        let future = [next_year.as_str()];
        for (refused, says) in [
            (&neither[..], "neither a time nor an age: write it like"),
            (
                &too_long[..],
                "at most 365 days: for an earlier time write the time itself",
            ),
            (&future[..], "it is in the future, because now it is 2"),
        ] {
            for bad in refused {
                let error = past(bad).unwrap_err();
                assert!(error.contains(says), "{bad}: {error}");
            }
        }
    }
}
