//! A range of time between `--since` and `--until`, whose values [`runtime::past::past`] reads.

use anyhow::ensure;
use time::OffsetDateTime;

use crate::output::utc;

/// Checks that some time lies between `--since` and `--until`. A command without `--since` goes
/// back to the beginning, and one without `--until` ends now.
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
