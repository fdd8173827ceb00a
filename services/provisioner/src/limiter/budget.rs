//! The failing budget: how many purchases of a provider may fail per second in this process.
//! [`super::LaneLimiters`] asks it before a suspect lane buys again. It bounds what a provider has
//! to bear from all failing lanes together, however many options it sells.

use std::time::{Duration, Instant};

/// Failing calls per second that every provider must bear, however seldom it responds.
const PER_SECOND: f64 = 10.0;
/// Failing calls for each one with a response, so that a busy provider is tested more often than an
/// idle one.
const PER_RESPONSE: f64 = 0.2;
/// The maximum number of tokens that are saved up while nothing fails: those of one second.
const CAPACITY: f64 = 10.0;
/// The largest debt. Purchases that were in flight when a lane began to fail are charged
/// afterwards; this bound keeps other lanes from paying for them longer than some seconds.
const MAX_DEBT: f64 = 64.0;
/// The interval at which the budget grows. It grows by the larger of its two rates, so both are
/// counted over the same interval.
const INTERVAL: Duration = Duration::from_millis(100);

/// A token bucket. Each call that fails costs one token.
pub(super) struct FailingBudget {
    tokens: f64,
    /// Purchases with a response since the last growth.
    responded: u32,
    grown: Instant,
}

impl FailingBudget {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            tokens: CAPACITY,
            responded: 0,
            grown: now,
        }
    }

    /// The number of purchases that may begin although they are likely to fail.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a small number, and at least 0"
    )]
    pub(super) fn available(&mut self, now: Instant) -> usize {
        self.grow(now);
        self.tokens.max(0.0) as usize
    }

    /// Charges one call. This may lead to a debt, because a call that was sent cannot be taken
    /// back.
    pub(super) fn charge(&mut self, now: Instant) {
        self.grow(now);
        self.tokens = (self.tokens - 1.0).max(-MAX_DEBT);
    }

    /// Returns the token of a call that did not fail after all.
    pub(super) fn refund(&mut self) {
        if self.tokens < CAPACITY {
            self.tokens = (self.tokens + 1.0).min(CAPACITY);
        }
    }

    /// Counts a purchase to which the provider responded.
    pub(super) fn responded(&mut self, now: Instant) {
        self.grow(now);
        self.responded += 1;
    }

    fn grow(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.grown);
        if elapsed < INTERVAL {
            return;
        }
        let by_time = elapsed.as_secs_f64() * PER_SECOND;
        let by_responses = f64::from(self.responded) * PER_RESPONSE;
        self.tokens = (self.tokens + by_time.max(by_responses)).min(CAPACITY.max(by_responses));
        self.responded = 0;
        self.grown = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_provider_bears_ten_failing_calls_per_second() {
        let start = Instant::now();
        let mut budget = FailingBudget::new(start);
        let mut failed = 0;
        for tick in 0..10_000 {
            let now = start + Duration::from_millis(tick);
            if budget.available(now) > 0 {
                budget.charge(now);
                failed += 1;
            }
        }
        assert!(
            (100..=110).contains(&failed),
            "{failed} failing calls in ten seconds"
        );
    }

    #[test]
    fn a_busy_provider_bears_a_fifth_of_what_it_responds_to() {
        let start = Instant::now();
        let mut budget = FailingBudget::new(start);
        let mut failed = 0;
        for tick in 0..10_000 {
            let now = start + Duration::from_millis(tick);
            budget.responded(now);
            if budget.available(now) > 0 {
                budget.charge(now);
                failed += 1;
            }
        }
        assert!(
            (1_900..=2_010).contains(&failed),
            "{failed} failing calls beside 10,000 with a response"
        );
    }

    #[test]
    fn what_is_saved_up_and_what_is_owed_are_bounded() {
        let start = Instant::now();
        let mut budget = FailingBudget::new(start);
        let hour_later = start + Duration::from_hours(1);
        assert_eq!(budget.available(hour_later), 10);
        (0..1_000).for_each(|_| budget.charge(hour_later));
        assert_eq!(
            budget.available(hour_later + Duration::from_millis(6_400)),
            0
        );
        assert_eq!(
            budget.available(hour_later + Duration::from_millis(6_600)),
            2
        );
        (0..1_000).for_each(|_| budget.refund());
        assert_eq!(
            budget.available(hour_later + Duration::from_millis(6_600)),
            10
        );
    }
}
