//! How times, durations, numbers and addresses are written on the pages.

use desk::operator::words::noun;
use time::{Duration, OffsetDateTime, macros::format_description};
use url::form_urlencoded;

/// A UTC time to the second: `2025-01-29 12:34:56`.
pub(crate) fn utc(at: OffsetDateTime) -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    at.format(format).unwrap_or_else(|_| at.to_string())
}

/// A duration in its two largest units: `120 ms`, `1.20 s`, `12 s`, `2m 5s`, `3h 20m`, `5d 2h`.
pub(crate) fn took(duration: Duration) -> String {
    let seconds = duration.whole_seconds();
    match seconds {
        i64::MIN..1 => format!("{} ms", duration.whole_milliseconds().max(0)),
        1..10 => format!("{:.2} s", duration.as_seconds_f64()),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// How long something usually took, for sentences: `0.04 s`, `1.4 s`, `12 s`, `2 min`.
pub(crate) fn measured(duration: Duration) -> String {
    match duration.as_seconds_f64() {
        ..0.01 => "under 0.01 s".to_owned(),
        seconds @ 0.01..1.0 => format!("{seconds:.2} s"),
        seconds @ 1.0..10.0 => format!("{seconds:.1} s"),
        _ => brief(duration),
    }
}

/// A duration for people who glance at it: `12 s`, `46 min`, `2 h 34 min`, `5 d 2 h`.
pub(crate) fn brief(duration: Duration) -> String {
    let seconds = duration.whole_seconds().max(0);
    let (one, of, two, more) = match seconds {
        ..60 => return format!("{seconds} s"),
        60..3_600 => return format!("{} min", seconds / 60),
        3_600..86_400 => (seconds / 3_600, "h", seconds / 60 % 60, "min"),
        _ => (seconds / 86_400, "d", seconds / 3_600 % 24, "h"),
    };
    if two == 0 {
        format!("{one} {of}")
    } else {
        format!("{one} {of} {two} {more}")
    }
}

/// How long ago something was, or how far away it is: `3 min ago`, `in 5 s`.
pub(crate) fn relative(now: OffsetDateTime, at: OffsetDateTime) -> String {
    if at > now {
        format!("in {}", brief(at - now))
    } else {
        format!("{} ago", brief(now - at))
    }
}

/// A number with its thousands set apart: `1 234 567`, with narrow no-break spaces.
pub(crate) fn number(number: impl TryInto<i128>) -> String {
    let number = number.try_into().unwrap_or_default();
    let digits = number.unsigned_abs().to_string();
    let mut text = String::new();
    if number < 0 {
        text.push('-');
    }
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// A number with its noun: `1 unit`, `1 234 units`.
pub(crate) fn counted(count: impl TryInto<i128> + Copy, one: &str, several: &str) -> String {
    format!("{} {}", number(count), noun(count, one, several))
}

/// What an order is for: `2 × Thailand 1 GB, 7 days, 1 × Japan 5 GB`.
pub(crate) fn products<Name: std::fmt::Display>(
    all: impl IntoIterator<Item = (Name, i64)>,
) -> String {
    let all = all.into_iter();
    let parts: Vec<String> = all
        .map(|(name, units)| format!("{} × {name}", number(units)))
        .collect();
    parts.join(", ")
}

/// An address of this console with these fields in its query. What has no value is left out.
pub(crate) fn address<'a>(
    path: &str,
    fields: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> String {
    let given = fields.into_iter().filter(|(_, value)| !value.is_empty());
    let query = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(given)
        .finish();
    if query.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{query}")
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    #[test]
    fn durations_read_well() {
        for (duration, text) in [
            (Duration::milliseconds(123), "123 ms"),
            (Duration::milliseconds(1_500), "1.50 s"),
            (Duration::milliseconds(-5), "0 ms"),
            (Duration::seconds(59), "59 s"),
            (Duration::seconds(125), "2m 5s"),
            (Duration::minutes(200), "3h 20m"),
            (Duration::hours(50), "2d 2h"),
        ] {
            assert_eq!(took(duration), text);
        }
        let now = datetime!(2026-01-29 12:00 UTC);
        assert_eq!(relative(now, now + Duration::minutes(2)), "in 2 min");
        assert_eq!(relative(now, now - Duration::minutes(2)), "2 min ago");
        assert_eq!(utc(now), "2026-01-29 12:00:00");
    }

    #[test]
    fn numbers_beyond_those_of_a_browser_are_exact() {
        assert_eq!(
            number(9_007_199_254_740_993_i64),
            "9\u{202f}007\u{202f}199\u{202f}254\u{202f}740\u{202f}993"
        );
        assert_eq!(number(-1_000), "-1\u{202f}000");
        assert_eq!(number(999_u64), "999");
        assert_eq!(counted(0, "unit", "units"), "0 units");
        assert_eq!(counted(1, "unit", "units"), "1 unit");
        assert_eq!(counted(2_000, "unit", "units"), "2\u{202f}000 units");
    }

    #[test]
    fn an_address_has_the_fields_that_have_a_value() {
        let fields = [("q", "a/b?c=d&e#f %41+g;h"), ("before", "")];
        assert_eq!(
            address("/find", fields),
            "/find?q=a%2Fb%3Fc%3Dd%26e%23f+%2541%2Bg%3Bh"
        );
        assert_eq!(address("/orders", [("state", "")]), "/orders");
    }
}
