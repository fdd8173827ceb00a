//! The only place that reads the wall clock; clippy refuses other reads. Rules and calculations get
//! the time as a value, so that tests can choose it.

use time::OffsetDateTime;

/// The current time in UTC.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the clock"
)]
pub fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// The current Unix time in seconds.
pub fn unix_seconds() -> i64 {
    now().unix_timestamp()
}

/// The current Unix time in milliseconds.
pub fn unix_milliseconds() -> i64 {
    i64::try_from(now().unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}
