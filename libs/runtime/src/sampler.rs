//! Limits log lines during a flood of events.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::lock;

/// Passes a bounded number of log lines per period and counts the others.
#[derive(Debug)]
pub struct Sampler {
    /// The lines that pass in one period.
    limit: u32,
    period: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    began: Instant,
    passed: u32,
    suppressed: u64,
}

impl Sampler {
    /// Passes at most `limit` lines per second.
    pub fn new(limit: u32) -> Self {
        let state = State { began: Instant::now(), passed: 0, suppressed: 0 };
        Self { limit, period: Duration::from_secs(1), state: Mutex::new(state) }
    }

    /// Passes one line per period.
    pub fn every(period: Duration) -> Self {
        Self { period, ..Self::new(1) }
    }

    /// Whether to write a line: `Some` with the number of lines suppressed since the last one.
    pub fn pass(&self) -> Option<u64> {
        self.pass_at(Instant::now())
    }

    fn pass_at(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.state);
        if now.saturating_duration_since(state.began) >= self.period {
            state.began = now;
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
    fn a_flood_is_counted_instead_of_written() {
        let sampler = Sampler::new(2);
        let now = Instant::now();
        let passed = [0, 0, 0, 0, 1, 1, 1].map(|second| sampler.pass_at(now + Duration::from_secs(second)));
        assert_eq!(passed, [Some(0), Some(0), None, None, Some(2), Some(0), None]);
    }
}
