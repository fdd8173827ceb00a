//! Limits the number of log lines during a flood of events, because writing a line for each would
//! fill the disk and cost more than the events themselves.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::lock;

/// Lets a bounded number of log lines pass in each period, and counts the others. A line that
/// passes says how many were suppressed before it, so the log still shows the size of the flood:
///
/// ```ignore
/// if let Some(suppressed) = sampler.pass() {
///     tracing::warn!(suppressed, "request refused");
/// }
/// ```
#[derive(Debug)]
pub struct Sampler {
    /// The maximum number of lines that pass in one period.
    limit: u32,
    period: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the period began, which is when its first line passed.
    began: Option<Instant>,
    passed: u32,
    suppressed: u64,
}

impl Sampler {
    /// Makes a sampler that lets at most `limit` lines per second pass.
    pub fn new(limit: u32) -> Self {
        let state = State {
            began: None,
            passed: 0,
            suppressed: 0,
        };
        Self {
            limit,
            period: Duration::from_secs(1),
            state: Mutex::new(state),
        }
    }

    /// Makes a sampler that lets one line per period pass.
    pub fn every(period: Duration) -> Self {
        Self::within(1, period)
    }

    /// Makes a sampler that lets at most `limit` lines per period pass.
    pub fn within(limit: u32, period: Duration) -> Self {
        Self {
            period,
            ..Self::new(limit)
        }
    }

    /// Decides whether to write a line. `Some` means yes, and contains the number of lines that
    /// were suppressed since the last one that passed. `None` means no.
    pub fn pass(&self) -> Option<u64> {
        self.pass_at(Instant::now())
    }

    /// Counts lines that had passed and were lost after all, together with what they would have
    /// said, so that the next one that passes says so.
    pub fn lost(&self, lines: u64) {
        let mut state = lock(&self.state);
        state.suppressed = state.suppressed.saturating_add(lines);
    }

    pub(crate) fn pass_at(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.state);
        let is_over = |began| now.saturating_duration_since(began) >= self.period;
        if state.began.is_none_or(is_over) {
            state.began = Some(now);
            state.passed = 0;
        }
        if state.passed >= self.limit {
            state.suppressed += 1;
            return None;
        }
        state.passed += 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_period_begins_with_the_first_line() {
        let sampler = Sampler::new(1);
        let now = Instant::now();
        let passed =
            [950, 1_010, 1_950].map(|time| sampler.pass_at(now + Duration::from_millis(time)));
        assert_eq!(passed, [Some(0), None, Some(1)]);
    }

    #[test]
    fn a_flood_is_counted_instead_of_written() {
        let sampler = Sampler::new(2);
        let now = Instant::now();
        let passed =
            [0, 0, 0, 0, 1, 1, 1].map(|second| sampler.pass_at(now + Duration::from_secs(second)));
        assert_eq!(
            passed,
            [Some(0), Some(0), None, None, Some(2), Some(0), None]
        );
    }

    #[test]
    fn what_was_lost_on_its_way_is_counted_by_the_next_line() {
        let sampler = Sampler::new(2);
        let now = Instant::now();
        assert_eq!(sampler.pass_at(now), Some(0));
        sampler.lost(1);
        assert_eq!(sampler.pass_at(now), Some(1));
        assert_eq!(sampler.pass_at(now), None);
        // The line that would have said 1 was lost, too.
        sampler.lost(2);
        assert_eq!(sampler.pass_at(now + Duration::from_secs(1)), Some(3));
    }
}
