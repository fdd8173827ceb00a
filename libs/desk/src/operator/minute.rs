//! A time as the sentences for partners and operators write it.

use time::{OffsetDateTime, macros::format_description};

/// A UTC time to the minute, such as `2025-01-29 12:34 UTC`.
pub fn minute(at: OffsetDateTime) -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute] UTC");
    let at = at.to_offset(time::UtcOffset::UTC);
    at.format(format).unwrap_or_else(|_| at.to_string())
}
