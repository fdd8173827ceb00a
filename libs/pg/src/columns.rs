//! Values between Rust and the columns of the database.

use std::time::Duration;

use domain::Id;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

pub fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

/// A stored number, which is never negative.
pub fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or_default()
}

pub fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// A number for a column of type `integer`; numbers that are too large become the largest one.
pub fn signed(number: impl TryInto<i32>) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}

/// An age that the database computed in seconds.
pub fn age(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}

/// A time in the JSON of what an action changed.
pub fn rfc3339(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_default()
}

pub fn uuids<Kind: Copy>(ids: &[Id<Kind>]) -> Vec<Uuid> {
    ids.iter().map(|id| id.uuid()).collect()
}
