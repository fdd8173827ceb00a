//! Times in the past as arguments: the values of `--since` and `--until`.

use anyhow::ensure;
use runtime::{
    clock,
    config::{LONGEST, TOO_LONG, any_duration},
};
use time::{OffsetDateTime, UtcOffset, format_description::well_known::Rfc3339};

use crate::output::utc;

/// Reads a time such as `2025-01-29T12:00:00Z`, or an age such as `2h`, which counts back from now.
///
/// A time in the future is refused. It is a slip, such as a wrong year or zone, and without an error
/// an empty list would look as if nothing had happened.
pub fn past(text: &str) -> Result<OffsetDateTime, String> {
    let now = clock::now();
    if let Ok(at) = OffsetDateTime::parse(text, &Rfc3339) {
        return if at <= now {
            Ok(at.to_offset(UtcOffset::UTC))
        } else {
            Err(format!(
                "it is in the future, because now it is {}: check the year and the time zone, or write an age such as `2h`",
                utc(now)
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

/// Checks that some time lies between `--since` and `--until`. A command without `--since` goes back to
/// the beginning, and one without `--until` ends now.
pub fn check_range(
    since: Option<OffsetDateTime>,
    until: Option<OffsetDateTime>,
) -> anyhow::Result<()> {
    let Some((since, until)) = since.zip(until) else {
        return Ok(());
    };
    ensure!(
        since < until,
        "--until ({}) is not after --since ({}), so nothing lies between them: exchange the two, or leave --until out for now",
        utc(until),
        utc(since)
    );
    Ok(())
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
        for (bad, says) in testkit::rows! {
            "" => "neither a time nor an age: write it like";
            "yesterday" => "neither a time nor an age: write it like";
            "2025-01-29" => "neither a time nor an age: write it like";
            "-2h" => "neither a time nor an age: write it like";
            "99999999999999999999y" => "neither a time nor an age: write it like";
            "400d" => "at most 365 days: for an earlier time write the time itself";
            "2years" => "at most 365 days: for an earlier time write the time itself";
            next_year.as_str() => "it is in the future, because now it is 2";
        } {
            let error = past(bad).unwrap_err();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }

    #[test]
    fn a_range_has_a_beginning_before_its_end() {
        let at = datetime!(2025-01-29 12:00 UTC);
        let earlier = at - time::Duration::SECOND;
        for (since, until) in [
            (None, None),
            (Some(at), None),
            (None, Some(at)),
            (Some(earlier), Some(at)),
        ] {
            check_range(since, until).unwrap();
        }
        for since in [at, at + time::Duration::SECOND] {
            let error = check_range(Some(since), Some(at)).unwrap_err().to_string();
            assert!(error.contains("exchange the two"), "{error}");
        }
    }
}
