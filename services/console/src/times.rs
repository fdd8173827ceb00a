//! Times as a reader sees them: in the zone that this reader has chosen, relative in sentences and
//! as a clock in lists, and exact in both that zone and UTC on hover and on focus.
//!
//! The choice is a cookie of its own, so it needs neither JavaScript nor the database. Texts for
//! partners and CSV have UTC always, and do not pass here.

use std::fmt;

use axum::http::HeaderMap;
use jiff::{Timestamp, ZonedDateTime, tz::TimeZone};
use time::OffsetDateTime;

use crate::{
    cookies,
    format::{brief, utc},
};

/// The cookie with the name of the zone. It is no secret, and says nothing of who reads.
pub(crate) const COOKIE: &str = "console-zone";
/// The maximum number of bytes of a name of a zone.
pub(crate) const LONGEST: usize = 64;

/// The zone and the moment of a page.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    zone: TimeZone,
    /// The name of the zone, such as `Europe/Berlin`.
    pub(crate) name: String,
    pub(crate) now: OffsetDateTime,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            zone: TimeZone::UTC,
            name: "UTC".to_owned(),
            now: runtime::clock::now(),
        }
    }
}

/// A time as an element of a page. What it holds is made here, and nothing of it comes from others,
/// so templates write it as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimeElement(String);

impl fmt::Display for TimeElement {
    fn fmt(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        page.write_str(&self.0)
    }
}

impl TimeElement {
    /// What stands where a time would, if it depends on something else.
    pub(crate) fn words(words: &'static str) -> Self {
        Self(words.to_owned())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A zone by its name, such as `Europe/Berlin`.
pub(crate) fn zone(name: &str) -> Option<TimeZone> {
    if name == "UTC" {
        return Some(TimeZone::UTC);
    }
    TimeZone::get(name).ok()
}

/// The names of all zones.
pub(crate) fn zones() -> Vec<String> {
    let mut names: Vec<String> = jiff::tz::db()
        .available()
        .map(|name| name.as_str().to_owned())
        .filter(|name| name.contains('/') && !name.starts_with("Etc/"))
        .collect();
    names.sort_unstable();
    names.insert(0, "UTC".to_owned());
    names
}

impl Times {
    /// The times of a request.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let chosen = cookies::cookie(headers, COOKIE, LONGEST);
        let chosen = chosen.and_then(|name| Some((zone(&name)?, name)));
        match chosen {
            Some((zone, name)) => Self {
                zone,
                name,
                now: runtime::clock::now(),
            },
            None => Self::default(),
        }
    }

    fn local(&self, at: OffsetDateTime) -> ZonedDateTime {
        let at = Timestamp::from_second(at.unix_timestamp()).unwrap_or(Timestamp::UNIX_EPOCH);
        at.to_zoned_datetime(self.zone.clone())
    }

    /// The last part of the zone's name and its distance from UTC now: `Berlin, UTC+1`.
    pub(crate) fn label(&self) -> String {
        let place = self.name.rsplit('/').next().unwrap_or_default();
        let seconds = self.local(self.now).offset().seconds();
        let sign = if seconds < 0 { '−' } else { '+' };
        let hours = seconds.abs() / 3_600;
        let minutes = seconds.abs() / 60 % 60;
        let place = place.replace('_', " ");
        match (seconds, minutes) {
            (0, _) if place == "UTC" => place,
            (_, 0) => format!("{place}, UTC{sign}{hours}"),
            _ => format!("{place}, UTC{sign}{hours}:{minutes:02}"),
        }
    }

    fn element(&self, at: OffsetDateTime, text: &str, focusable: bool) -> String {
        let local = self.local(at);
        let place = self.name.rsplit('/').next().unwrap_or_default();
        let exact = if place == "UTC" {
            format!("{} UTC", local.strftime("%a %-d %b %Y %H:%M:%S"))
        } else {
            format!(
                "{} {} · {} UTC",
                local.strftime("%a %-d %b %Y %H:%M:%S"),
                place.replace('_', " "),
                utc(at).split(' ').nth(1).unwrap_or_default()
            )
        };
        let stamp = utc(at).replace(' ', "T");
        let focus = if focusable { " tabindex=\"0\"" } else { "" };
        format!("<time datetime=\"{stamp}Z\" data-exact=\"{exact}\"{focus}>{text}</time>")
    }

    /// The time of day, with its day if that is not today.
    fn time_of_day(&self, at: OffsetDateTime) -> String {
        let local = self.local(at);
        let now = self.local(self.now);
        let form = if local.date() == now.date() {
            "%H:%M:%S"
        } else if local.year() == now.year() {
            "%-d %b %H:%M:%S"
        } else {
            "%-d %b %Y %H:%M:%S"
        };
        local.strftime(form).to_string()
    }

    fn distance(&self, at: OffsetDateTime) -> String {
        if at > self.now {
            format!("in {}", brief(at - self.now))
        } else {
            format!("{} ago", brief(self.now - at))
        }
    }

    /// For lists: `15:05:12`, and `24 Nov 15:05:12` of another day.
    pub(crate) fn clock(&self, at: OffsetDateTime) -> TimeElement {
        TimeElement(self.element(at, &self.time_of_day(at), false))
    }

    /// For sentences: `33 min ago`, and `in 5 s`.
    pub(crate) fn ago(&self, at: OffsetDateTime) -> TimeElement {
        TimeElement(self.element(at, &self.distance(at), true))
    }

    /// Where there is room for both.
    pub(crate) fn both(&self, at: OffsetDateTime) -> TimeElement {
        let clock = self.element(at, &self.time_of_day(at), false);
        let distance = self.distance(at);
        TimeElement(format!(
            "<span>{clock} <span class=\"ago\">{distance}</span></span>"
        ))
    }

    /// In words that are no element, for texts of forms: `28 Nov 15:05 (Berlin, UTC+1)`.
    pub(crate) fn written(&self, at: OffsetDateTime) -> String {
        let at = self.local(at).strftime("%-d %b %Y %H:%M");
        format!("{at} ({})", self.label())
    }

    /// A time of day without its day, for the axis of a chart.
    pub(crate) fn axis(&self, at: OffsetDateTime, with_day: bool) -> String {
        let form = if with_day { "%-d %b %H:%M" } else { "%H:%M" };
        self.local(at).strftime(form).to_string()
    }

    /// What a field of a form has for this time, which [`Times::parse`] reads.
    pub(crate) fn field(&self, at: OffsetDateTime) -> String {
        self.local(at).strftime("%Y-%m-%dT%H:%M:%S").to_string()
    }

    /// The time that a field of a form has, read in the reader's zone. The first of two times
    /// counts when a clock is set back.
    pub(crate) fn parse(&self, field: &str) -> Option<OffsetDateTime> {
        let civil: jiff::civil::DateTime = field.parse().ok()?;
        let at = civil.to_zoned_datetime(self.zone.clone()).ok()?;
        OffsetDateTime::from_unix_timestamp(at.timestamp().as_second()).ok()
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn berlin() -> Times {
        Times {
            zone: zone("Europe/Berlin").unwrap(),
            name: "Europe/Berlin".into(),
            now: datetime!(2026-11-26 14:38:21 UTC),
        }
    }

    #[test]
    fn a_time_is_told_in_the_readers_zone_and_exactly_in_utc() {
        let times = berlin();
        assert_eq!(times.label(), "Berlin, UTC+1");
        assert_eq!(
            times.clock(datetime!(2026-11-26 14:05:12 UTC)).to_string(),
            "<time datetime=\"2026-11-26T14:05:12Z\" data-exact=\"Thu 26 Nov 2026 15:05:12 Berlin · 14:05:12 UTC\">15:05:12</time>"
        );
        let before = times.clock(datetime!(2026-07-24 14:05:12 UTC)).to_string();
        assert!(before.ends_with(">24 Jul 16:05:12</time>"), "{before}");
        let ago = times.ago(datetime!(2026-11-26 14:05:12 UTC)).to_string();
        assert!(ago.ends_with("tabindex=\"0\">33 min ago</time>"), "{ago}");
        assert_eq!(Times::default().label(), "UTC");
    }

    #[test]
    fn a_field_of_a_form_is_in_the_readers_zone() {
        let times = berlin();
        let at = datetime!(2026-11-26 14:05 UTC);
        assert_eq!(times.parse("2026-11-26T15:05"), Some(at));
        assert_eq!(times.parse("yesterday"), None);
    }

    #[test]
    fn a_zone_that_is_none_is_not_taken() {
        let mut headers = HeaderMap::new();
        for (cookie, name) in [
            ("console-zone=Asia/Tokyo", "Asia/Tokyo"),
            ("console-zone=../etc/passwd", "UTC"),
            ("console-zone=<b>", "UTC"),
        ] {
            headers.insert("cookie", cookie.parse().unwrap());
            assert_eq!(Times::of(&headers).name, name, "{cookie}");
        }
        assert!(zones().len() > 300);
    }
}
