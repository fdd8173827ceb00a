//! The only place that reads the wall clock; clippy refuses other reads. Rules and calculations get
//! the time as a value, so that tests can choose it.

use std::{
    ops::Add,
    time::{Duration, Instant},
};

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

/// A moment by both clocks of the machine. It has passed once either clock says so.
///
/// It is for what must not last too long, such as a replaced secret. The monotonic clock stands
/// still while a virtual machine is suspended, so by that clock alone the secret would be valid for
/// as much longer. The wall clock alone may be set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub monotonic: Instant,
    pub wall: OffsetDateTime,
}

impl Moment {
    #[must_use]
    pub fn now() -> Self {
        Self {
            monotonic: Instant::now(),
            wall: now(),
        }
    }

    #[must_use]
    pub fn has_passed(self) -> bool {
        let present = Self::now();
        self.monotonic <= present.monotonic || self.wall <= present.wall
    }

    /// The later of the two, by each clock.
    #[must_use]
    pub fn later(self, other: Self) -> Self {
        Self {
            monotonic: self.monotonic.max(other.monotonic),
            wall: self.wall.max(other.wall),
        }
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self {
            monotonic: self.monotonic + duration,
            wall: self.wall + duration,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_passes_while_the_machine_is_suspended_or_its_clock_is_set_back() {
        let present = Moment::now();
        let hour = Duration::from_hours(1);
        assert!(present.has_passed() && !(present + hour).has_passed());
        let suspended = Moment {
            wall: present.wall,
            ..present + hour
        };
        let set_back = Moment {
            monotonic: present.monotonic,
            ..present + hour
        };
        assert!(suspended.has_passed() && set_back.has_passed());
        assert_eq!(suspended.later(set_back), present + hour);
    }
}
