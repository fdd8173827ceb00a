//! Times in the past as arguments, such as the value of `--since`.

use runtime::clock;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Reads a time such as `2025-01-29T12:00:00Z`, or an age such as `2h`, which counts back from now.
pub fn past(text: &str) -> Result<OffsetDateTime, String> {
    if let Ok(at) = OffsetDateTime::parse(text, &Rfc3339) {
        return Ok(at);
    }
    let age = runtime::config::duration(text).map_err(|_| {
        "it is neither a time nor an age: write it like `2025-01-29T12:00:00Z` or `2h`".to_owned()
    })?;
    let age = time::Duration::try_from(age).map_err(|_| "that is too long ago".to_owned())?;
    clock::now()
        .checked_sub(age)
        .ok_or_else(|| "that is too long ago".to_owned())
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
        for bad in ["", "yesterday", "2025-01-29", "99999999999y"] {
            assert!(past(bad).is_err(), "{bad}");
        }
    }
}
