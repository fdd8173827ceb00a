//! Checks the texts that come from a provider before they reach PostgreSQL, logs and, as the
//! message of a refusal, partners.

use std::sync::Once;

use domain::PlacementId;
use runtime::terminal::is_format;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use time::{
    Date, Duration, OffsetDateTime, PrimitiveDateTime, format_description::StaticFormatDescription,
    macros::format_description,
};

pub(super) const DAY: StaticFormatDescription = format_description!("[year]-[month]-[day]");
pub(super) const MOMENT: StaticFormatDescription =
    format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
/// No eSIM expires before this year.
const FIRST_YEAR: i32 = 2000;
/// The longest message that is kept, in characters.
const MAX_MESSAGE: usize = 200;
/// The longest id of a unit or an option, in bytes. Ids of units are indexed, and an index row of
/// PostgreSQL holds 2.7 kB.
const MAX_ID: usize = 128;

/// Turns a text into one line of at most 200 characters.
pub fn one_line(message: &str) -> String {
    line_of(message, MAX_MESSAGE)
}

/// Turns a text into one line of at most so many characters. Each run of blanks and control
/// characters becomes one space, and format characters are removed.
pub(super) fn line_of(message: &str, most: usize) -> String {
    let mut line = String::new();
    let mut length = 0;
    let mut gap = false;
    for character in message.chars().filter(|character| !is_format(*character)) {
        if character.is_whitespace() || character.is_control() {
            gap = length > 0;
            continue;
        }
        let room = most - length;
        if room < 1 + usize::from(gap) {
            break;
        }
        if gap {
            line.push(' ');
            length += 1;
            gap = false;
        }
        line.push(character);
        length += 1;
    }
    line
}

/// The day of a date, or of a date with time, as `YYYY-MM-DD`. `None` if the text is neither, or if
/// the year is before 2000.
pub fn day(text: &str) -> Option<String> {
    let (day, time) = text.split_at_checked(10)?;
    if !(time.is_empty() || time.starts_with(['T', ' '])) {
        return None;
    }
    let date = Date::parse(day, DAY).ok()?;
    (date.year() >= FIRST_YEAR).then(|| day.to_owned())
}

/// Reads a field that is a text, and takes anything else for no text, for fields without which a
/// purchase can be delivered all the same.
pub fn text_or_none<'de, D: Deserializer<'de>>(field: D) -> Result<Option<String>, D::Error> {
    match Value::deserialize(field)? {
        Value::String(text) => Ok(Some(text)),
        _ => Ok(None),
    }
}

/// The last day to start an eSIM of a provider that does not name it: this many days after the
/// purchase. If the day of the purchase cannot be read, they count from that of the order, which
/// our id of the purchase names: a paid eSIM is not held for an estimate. It is the same day at
/// each look-up. `field` names what cannot be read.
pub fn start_by(
    bought: Option<Date>,
    placement_id: PlacementId,
    days: u16,
    field: &str,
) -> Option<String> {
    static WARNED: Once = Once::new();
    let since = bought.or_else(|| {
        WARNED.call_once(|| {
            tracing::warn!(
                field,
                "the provider names no day of a purchase that can be read, so the last day to start \
                 the eSIM is estimated from the day of the order; tell whoever maintains the adapter"
            );
        });
        let (seconds, _) = placement_id.uuid().get_timestamp()?.to_unix();
        let ordered = OffsetDateTime::from_unix_timestamp(seconds.try_into().ok()?);
        ordered.ok().map(OffsetDateTime::date)
    })?;
    let last = since.checked_add(Duration::days(days.into()))?;
    last.format(DAY).ok()
}

/// The moment of a time such as `2026-11-20T06:00:00+0000`, with a space instead of the `T`, and
/// with `Z` or nothing instead of the zone, which all mean UTC. `None` for any other text.
pub fn moment(text: &str) -> Option<OffsetDateTime> {
    let (time, zone) = text.split_at_checked(19)?;
    if !matches!(zone, "" | "Z" | "+0000" | "+00:00") {
        return None;
    }
    let time = PrimitiveDateTime::parse(&time.replacen('T', " ", 1), MOMENT).ok()?;
    (time.year() >= FIRST_YEAR).then(|| time.assume_utc())
}

/// An id that a provider gave to a unit or an option: 1 to 128 visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProviderId(String);

/// What is wrong with an id. The text does not repeat the id, because it may hold anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadId {
    #[error("is empty")]
    Empty,
    #[error("has {0} bytes; at most {MAX_ID} are accepted")]
    TooLong(usize),
    #[error("has characters other than visible ASCII")]
    BadCharacter,
}

impl ProviderId {
    pub fn parse(text: String) -> Result<Self, BadId> {
        if text.is_empty() {
            Err(BadId::Empty)
        } else if text.len() > MAX_ID {
            Err(BadId::TooLong(text.len()))
        } else if text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(text))
        } else {
            Err(BadId::BadCharacter)
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<ProviderId> for String {
    fn from(id: ProviderId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_are_one_bounded_line() {
        assert_eq!(one_line(" a\r\n b "), "a b");
        assert_eq!(one_line(""), "");
        assert_eq!(one_line(&"ä".repeat(500)).chars().count(), MAX_MESSAGE);
        assert_eq!(one_line(&"a ".repeat(500)).chars().count(), MAX_MESSAGE - 1);
    }

    #[test]
    fn control_and_format_characters_are_removed() {
        let odd = "sold\0 out\u{1b}[31m \u{202e}gnp\u{200b}.exe\u{feff} \u{2028}now\u{e0041}";
        assert_eq!(one_line(odd), "sold out [31m gnp.exe now");
    }

    #[test]
    fn a_moment_is_in_utc() {
        for text in [
            "2026-11-20T06:00:00+0000",
            "2026-11-20 06:00:00",
            "2026-11-20T06:00:00Z",
        ] {
            let read = moment(text).map(OffsetDateTime::unix_timestamp);
            assert_eq!(read, Some(1_795_154_400), "{text}");
        }
        for odd in [
            "",
            "2026-11-20",
            "2026-11-20T06:00:00+0900",
            "2026-02-30T06:00:00Z",
            "0000-11-20T06:00:00Z",
            "2026-11-20T06:00:0ä",
        ] {
            assert_eq!(moment(odd), None, "{odd}");
        }
    }

    #[test]
    fn ids_are_short_visible_ascii() {
        let parse = |text: &str| ProviderId::parse(text.to_owned());
        for good in ["1", "a-b_c.d:e/f", &"x".repeat(MAX_ID)] {
            assert_eq!(parse(good).map(String::from).as_deref(), Ok(good));
        }
        assert_eq!(parse(""), Err(BadId::Empty));
        assert_eq!(parse(&"x".repeat(6_000)), Err(BadId::TooLong(6_000)));
        for bad in ["a b", "a\0", "ä", "a\n", "\u{202e}a", "\u{7f}"] {
            assert_eq!(parse(bad), Err(BadId::BadCharacter), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_line_is_bounded_and_has_nothing_hidden(message: String) {
            let line = one_line(&message);
            prop_assert!(line.chars().count() <= MAX_MESSAGE && line.trim() == line);
            prop_assert!(!line.chars().any(|character| character.is_control() || is_format(character)));
            prop_assert_eq!(one_line(&line), line);
        }
    }
}
