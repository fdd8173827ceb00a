//! How many orders may be in flight before they only wait for each other.
//!
//! A system that is offered more than it can do must refuse the rest at once. If it accepts
//! everything instead, each order waits behind all earlier ones, so every partner's answer becomes
//! slow and nobody gains anything. `MAX_IN_FLIGHT` alone cannot prevent that, because the right
//! number depends on the machine: by Little's law, `n` orders in flight at `r` orders per second
//! take `n / r` seconds each.
//!
//! So ingress measures how long orders take, without the time that they wait for the provider. It
//! judges a window of orders by the *shortest* of their delays, as `CoDel` does for packets: in a
//! burst some orders wait, but only under lasting overload does every one of them. If even the
//! shortest delay is above the target, the limit becomes what would have kept it at the target. In
//! every other window the limit grows by a quarter, until it is `MAX_IN_FLIGHT` again.
//!
//! The provider's time does not count, because orders that wait for a slow provider use nothing of
//! ours. Each verdict says how long its provider took ([`pipeline::payload::VerdictReport`]).
//!
//! Guarantee: the limit is never above `MAX_IN_FLIGHT`, and never below [`MIN_LIMIT`] unless
//! `MAX_IN_FLIGHT` is lower. It falls only after a window in which every order took longer than the
//! target.
//!
//! [`super::admission`] admits orders within the limit; the task of an order reports the delay.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use runtime::lock;

use super::in_flight::InFlightLimit;

/// The shortest length of a window. It is longer than a burst takes to pass, because in a burst all
/// orders are slow, too, without a lasting overload.
const WINDOW: Duration = Duration::from_secs(1);
/// The fewest orders of a window, so that a stall that hits a few orders changes nothing.
const SAMPLES: u32 = 16;
/// The lowest limit. With so few orders in flight, a long delay has another cause than load, for
/// example commits that wait for a distant standby, and refusing orders would not shorten it. A
/// single partner may use half of it.
const MIN_LIMIT: u64 = 256;
/// By how much the limit grows after a window without overload.
const GROWTH: f64 = 1.25;

/// Controls the limit of orders in flight by their measured delay. The limit itself is the capacity
/// of `orders`, which nothing else changes.
pub(super) struct Overload {
    orders: Arc<InFlightLimit>,
    /// The limit without overload: `MAX_IN_FLIGHT`.
    max_limit: u64,
    /// The delay up to which a window is not overloaded.
    target: Duration,
    /// The orders that are judged next.
    window: Mutex<Window>,
}

/// The orders since the last judgement.
struct Window {
    began: Instant,
    /// The number of orders that were admitted since it began and have reported their delay.
    samples: u32,
    /// The shortest delay of these orders.
    shortest_delay: Duration,
    /// The largest number of orders that were in flight when one of these orders reported.
    most_in_flight: u64,
}

impl Window {
    fn new(began: Instant) -> Self {
        Self {
            began,
            samples: 0,
            shortest_delay: Duration::MAX,
            most_in_flight: 0,
        }
    }
}

impl Overload {
    /// Controls the capacity of `orders`, which is the limit without overload until now. `target`
    /// is the longest delay that the shortest one of a window may have.
    pub(super) fn new(orders: &Arc<InFlightLimit>, target: Duration, now: Instant) -> Self {
        Self {
            orders: Arc::clone(orders),
            max_limit: orders.capacity(),
            target,
            window: Mutex::new(Window::new(now)),
        }
    }

    /// Whether fewer orders are admitted now than without overload.
    pub(super) fn is_lasting(&self) -> bool {
        self.orders.capacity() < self.max_limit
    }

    /// Notes that an order, whose task began at `admitted`, took `delay` without the provider's
    /// time. At the end of a window the limit changes.
    pub(super) fn note(&self, now: Instant, admitted: Instant, delay: Duration) {
        self.observe(now, admitted, delay, self.orders.all());
    }

    /// The same, with the number of orders that are in flight now.
    fn observe(&self, now: Instant, admitted: Instant, delay: Duration, in_flight: u64) {
        let mut window = lock(&self.window);
        // The delay of an order that was admitted under an earlier limit says nothing about the
        // current one. Without this rule one long queue would lower the limit again and again.
        if admitted < window.began {
            return;
        }
        window.samples += 1;
        window.shortest_delay = window.shortest_delay.min(delay);
        window.most_in_flight = window.most_in_flight.max(in_flight);
        if window.samples >= SAMPLES && now.duration_since(window.began) >= WINDOW {
            self.orders.set_capacity(self.next_limit(&window));
            *window = Window::new(now);
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a number of orders, clamped to its bounds"
    )]
    fn next_limit(&self, window: &Window) -> u64 {
        let limit = self.orders.capacity();
        let min_limit = MIN_LIMIT.min(self.max_limit);
        let next = if window.shortest_delay > self.target {
            let ratio = self.target.as_secs_f64() / window.shortest_delay.as_secs_f64();
            // The delay came from the orders that were in flight. If these were fewer than the
            // limit, scaling the limit would not reduce them.
            limit.min(window.most_in_flight) as f64 * ratio
        } else {
            limit as f64 * GROWTH
        };
        (next.ceil() as u64).clamp(min_limit, self.max_limit)
    }
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::cast_precision_loss,
        reason = "numbers of orders of a simulation"
    )]

    use std::collections::VecDeque;

    use domain::PartnerId;

    use super::*;
    use crate::access::in_flight::Bound;

    const MOST: u64 = 4096;
    const TARGET: Duration = Duration::from_millis(200);
    const TICK: Duration = Duration::from_millis(10);

    struct Outcome {
        answered_per_second: f64,
        refused: u64,
        p99: Duration,
    }

    /// A system that finishes `capacity` orders per tick in the order of their arrival and then
    /// waits `provider` for each, while `offered` arrive per tick for 30 s. The first five seconds
    /// do not count.
    fn simulate(offered: u64, capacity: usize, provider: Duration, is_controlled: bool) -> Outcome {
        let start = Instant::now();
        let limit = InFlightLimit::new(MOST);
        let overload = Overload::new(&limit, TARGET, start);
        let mut queue: VecDeque<Instant> = VecDeque::new();
        let mut at_provider: VecDeque<(Instant, Instant)> = VecDeque::new();
        let mut refused = 0;
        let mut delays = Vec::new();
        for tick in 0..3000 {
            let now = start + TICK * tick;
            let counts = tick >= 500;
            for _ in 0..offered {
                if ((queue.len() + at_provider.len()) as u64) < limit.capacity() {
                    queue.push_back(now);
                } else {
                    refused += u64::from(counts);
                }
            }
            for _ in 0..capacity {
                let Some(arrived) = queue.pop_front() else {
                    break;
                };
                at_provider.push_back((arrived, now + provider));
            }
            while let Some((arrived, done)) = at_provider.pop_front_if(|(_, done)| *done <= now) {
                let took = done.duration_since(arrived);
                let in_flight = (queue.len() + at_provider.len() + 1) as u64;
                if is_controlled {
                    overload.observe(now, arrived, took.saturating_sub(provider), in_flight);
                }
                if counts {
                    delays.push(took);
                }
            }
        }
        delays.sort_unstable();
        Outcome {
            answered_per_second: delays.len() as f64 / 25.0,
            refused,
            p99: delays[delays.len() * 99 / 100],
        }
    }

    #[test]
    fn at_twice_saturation_answers_stay_fast_and_the_throughput_stays() {
        for capacity in [5, 30, 100] {
            let outcome = simulate(2 * capacity as u64, capacity, Duration::ZERO, true);
            let full = capacity as f64 * 100.0;
            assert!(outcome.answered_per_second > 0.95 * full, "{capacity}");
            assert!(outcome.refused > 0);
            assert!(
                outcome.p99 < Duration::from_secs(1),
                "{capacity}: {:?}",
                outcome.p99
            );
        }
        let uncontrolled = simulate(60, 30, Duration::ZERO, false);
        assert!(
            uncontrolled.p99 > Duration::from_secs(1),
            "the test can fail"
        );
    }

    #[test]
    fn a_slow_provider_is_not_our_overload() {
        let outcome = simulate(20, 30, Duration::from_millis(1500), true);
        assert_eq!(outcome.refused, 0);
        assert!(outcome.p99 >= Duration::from_millis(1500));
    }

    #[test]
    fn below_saturation_nothing_is_refused() {
        assert_eq!(simulate(28, 30, Duration::ZERO, true).refused, 0);
    }

    #[test]
    fn a_stall_of_a_few_orders_changes_nothing_and_a_lasting_one_is_forgotten() {
        let start = Instant::now();
        let limit = InFlightLimit::new(MOST);
        let overload = Overload::new(&limit, TARGET, start);
        let observe = |now, admitted, delay, in_flight| {
            overload.observe(now, admitted, delay, in_flight);
            limit.capacity()
        };
        let slow = Duration::from_secs(1);
        let mut now = start;
        for _ in 1..SAMPLES {
            now += WINDOW;
            assert_eq!(observe(now, now, slow, 2000), MOST);
        }
        assert_eq!(observe(now, now, slow, 2000), 400);
        for _ in 0..2 * SAMPLES {
            assert_eq!(
                observe(now + WINDOW, start, slow, 500),
                400,
                "admitted before"
            );
        }
        for _ in 0..20 * SAMPLES {
            now += WINDOW;
            observe(now, now, Duration::ZERO, 1);
        }
        assert_eq!(limit.capacity(), MOST);
    }

    #[test]
    fn orders_that_all_take_too_long_lower_the_capacity_for_new_ones() {
        let limit = InFlightLimit::new(MOST);
        let long_ago = Instant::now().checked_sub(Duration::from_mins(1)).unwrap();
        let overload = Overload::new(&limit, TARGET, long_ago);
        let held = limit.acquire(PartnerId::new(), 2000, None).unwrap();
        for _ in 0..100 {
            overload.note(Instant::now(), Instant::now(), TARGET * 5);
            if overload.is_lasting() {
                break;
            }
        }
        assert_eq!(limit.capacity(), 400);
        let new = limit.acquire(PartnerId::new(), 1, None);
        assert_eq!(new.unwrap_err(), Bound::Capacity);
        drop(held);
        limit.acquire(PartnerId::new(), 1, None).unwrap();
    }

    #[test]
    fn the_limit_keeps_its_bounds() {
        let now = Instant::now();
        for most in [1, 10, MOST] {
            let limit = InFlightLimit::new(most);
            let overload = Overload::new(&limit, TARGET, now);
            for sample in 0..1000 {
                let now = now + WINDOW * sample;
                let delay = Duration::from_mins(1);
                overload.observe(now, now, delay, 1);
            }
            assert_eq!(limit.capacity(), MIN_LIMIT.min(most));
        }
    }
}
