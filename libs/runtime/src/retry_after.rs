//! The header `Retry-After`, as endpoints and providers send it.

use std::time::{Duration, SystemTime};

use time::{OffsetDateTime, format_description::well_known::Rfc2822};

/// The wait that the value of a `Retry-After` asks for: seconds, or a date in one of the three
/// forms of RFC 9110, or in that of RFC 2822, which some programs send. `now` is the time by the
/// clock that a date is compared with; a date in the past asks for no wait. Whoever waits has to
/// bound the result, because it may be centuries.
pub fn parse(value: &str, now: OffsetDateTime) -> Option<Duration> {
    let value = value.trim();
    if value.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that is too large counts as the largest.
        return (!value.is_empty()).then(|| Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let until = httpdate::parse_http_date(value).ok();
    let until = until.or_else(|| {
        OffsetDateTime::parse(value, &Rfc2822)
            .ok()
            .map(SystemTime::from)
    });
    Some(until?.duration_since(now.into()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn it_is_read_as_seconds_and_as_a_date_in_each_form() {
        let now = datetime!(1994-11-06 08:48:37 UTC);
        let read = |value| parse(value, now);
        assert_eq!(read("120"), Some(Duration::from_mins(2)));
        assert_eq!(read(" 0 "), Some(Duration::ZERO));
        assert_eq!(
            read("99999999999999999999999"),
            Some(Duration::from_secs(u64::MAX))
        );
        for date in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
            "Sun, 06 Nov 1994 08:49:37 +0000",
            " Sun, 06 Nov 1994 09:49:37 +0100 ",
        ] {
            assert_eq!(read(date), Some(Duration::from_mins(1)), "{date}");
        }
        assert_eq!(read("Sun, 06 Nov 1994 08:47:37 GMT"), Some(Duration::ZERO));
        for odd in [
            "",
            "-1",
            "1.5",
            "soon",
            "1e99",
            "1994-11-06T08:49:37Z",
            "Sun, 31 Nov 1994 08:49:37 GMT",
            "\u{7f}",
        ] {
            assert_eq!(read(odd), None, "{odd:?}");
        }
    }
}
