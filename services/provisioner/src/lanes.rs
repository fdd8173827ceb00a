//! A process's view of a provider's lanes: how many of a lane's purchases may be in flight, and how long verdicts
//! take. A lane opens when its purchases fail or are slow: they wait in the database, and later one tests it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use runtime::lock;

use crate::metrics::Metrics;

/// The fewest calls in a window that can open a lane.
const LEAST_CALLS: u32 = 5;
/// The time without calls after which a closed lane is forgotten.
const IDLE: Duration = Duration::from_mins(2);
/// The slots are stuck if all are taken and none has begun for this long.
const STUCK: Duration = Duration::from_secs(1);

/// The limits at which a lane opens, and the time for which it stays open.
#[derive(Clone, Copy, Debug)]
pub struct LaneLimits {
    /// The time over which calls are counted.
    pub window: Duration,
    /// The share of failed or slow calls that opens a lane, in percent.
    pub failure_rate: u32,
    /// A call that takes this long is slow.
    pub slow: Duration,
    /// How long a lane stays open at first; doubles with each failed test.
    pub open: Duration,
    /// The longest time that a lane stays open.
    pub open_most: Duration,
}

pub struct Lanes {
    provider: String,
    limits: LaneLimits,
    slots: usize,
    metrics: Metrics,
    book: Mutex<Book>,
}

struct Book {
    lanes: HashMap<Arc<str>, Lane>,
    in_flight: usize,
    last_begun: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    /// No purchase is sent before this time; then one tests the lane.
    Open(Instant),
    /// The test is in flight.
    Testing,
}

struct Lane {
    state: State,
    /// Grows with each change of the state. A call counts only if the version has not changed since its start.
    version: u64,
    openings: u32,
    /// Calls, and failed or slow calls, in this half of the window and in the previous one.
    halves: [(u32, u32); 2],
    half_began: Instant,
    in_flight: usize,
    last_change: Instant,
}

/// A purchase in flight; [`Lanes::end`] must follow.
pub struct Begun {
    lane: Arc<str>,
    version: u64,
}

impl Lanes {
    /// Creates the lanes of a provider with `slots` slots for purchases.
    pub fn new(provider: String, limits: LaneLimits, slots: usize, metrics: Metrics) -> Self {
        metrics.open_lanes(&provider, 0);
        let book = Book { lanes: HashMap::new(), in_flight: 0, last_begun: Instant::now() };
        Self { provider, limits, slots, metrics, book: Mutex::new(book) }
    }

    /// The number of purchases of a lane that may be in flight now.
    pub fn most(&self, lane: &str) -> usize {
        let state = lock(&self.book).lanes.get(lane).map(|lane| lane.state);
        match state.unwrap_or(State::Closed) {
            State::Closed => usize::MAX,
            State::Open(until) if Instant::now() < until => 0,
            State::Open(_) | State::Testing => 1,
        }
    }

    /// The lanes that take no due purchases now.
    pub fn open(&self) -> Vec<String> {
        let now = Instant::now();
        let closed_off = |lane: &Lane| match lane.state {
            State::Closed => false,
            State::Open(until) => now < until,
            State::Testing => lane.in_flight > 0,
        };
        let book = lock(&self.book);
        book.lanes.iter().filter(|(_, lane)| closed_off(lane)).map(|(name, _)| name.to_string()).collect()
    }

    /// The number of lanes with purchases in the window.
    pub fn active(&self) -> usize {
        let book = lock(&self.book);
        let since = Instant::now().checked_sub(self.limits.window);
        let active = |lane: &&Lane| lane.in_flight > 0 || since.is_none_or(|since| lane.last_change >= since);
        book.lanes.values().filter(active).count()
    }

    /// Records the start of a purchase.
    pub fn begin(&self, lane: &Arc<str>) -> Begun {
        let now = Instant::now();
        let mut book = lock(&self.book);
        book.in_flight += 1;
        book.last_begun = now;
        let entry = book.lanes.entry(Arc::clone(lane)).or_insert_with(|| Lane::new(now));
        let tests = match entry.state {
            State::Closed => false,
            State::Open(until) => until <= now,
            // The earlier test ended without a result.
            State::Testing => entry.in_flight == 0,
        };
        if tests {
            entry.state = State::Testing;
            entry.version += 1;
        }
        if entry.in_flight == 0 {
            entry.last_change = now;
        }
        entry.in_flight += 1;
        Begun { lane: Arc::clone(lane), version: entry.version }
    }

    /// Records the end of a purchase that took `took`. `answered`: whether the provider responded; `None`
    /// says nothing about the lane.
    pub fn end(&self, begun: &Begun, took: Duration, answered: Option<bool>) {
        let now = Instant::now();
        let mut book = lock(&self.book);
        book.in_flight -= 1;
        let Some(lane) = book.lanes.get_mut(&begun.lane) else {
            return;
        };
        lane.in_flight -= 1;
        lane.last_change = now;
        if lane.version != begun.version {
            return;
        }
        let Some(answered) = answered else {
            // The test said nothing about the lane: the next purchase tests it.
            if lane.state == State::Testing {
                lane.state = State::Open(now);
            }
            return;
        };
        let (provider, name) = (&self.provider, &*begun.lane);
        let slow = took >= self.limits.slow;
        let fails = lane.state == State::Closed && lane.count(now, &self.limits, !answered || slow);
        match lane.state {
            State::Testing if answered => {
                lane.change(State::Closed, 0);
                tracing::info!(provider.name = provider, lane = name, "lane closed; its purchases continue");
            }
            State::Closed if !fails => return,
            State::Open(_) => return,
            State::Closed | State::Testing => {
                let open = self.limits.open * 2_u32.saturating_pow(lane.openings.min(16));
                let open = open.min(self.limits.open_most);
                lane.change(State::Open(now + open), lane.openings + 1);
                tracing::warn!(
                    provider.name = provider,
                    lane = name,
                    seconds = open.as_secs_f64(),
                    "lane opened; its purchases wait"
                );
            }
        }
        let open = book.lanes.values().filter(|lane| lane.state != State::Closed).count();
        drop(book);
        self.metrics.open_lanes(&self.provider, open);
    }

    /// Records that a look-up in this lane got a response: if the lane is open, one purchase may test it now.
    pub fn looked_up(&self, lane: &str) {
        if let Some(lane) = lock(&self.book).lanes.get_mut(lane)
            && let State::Open(until) = &mut lane.state
        {
            *until = Instant::now();
        }
    }

    /// Whether every slot is taken and no purchase has begun for a second, so that a new job would wait. Also forgets
    /// idle lanes.
    pub fn is_stuck(&self) -> bool {
        let now = Instant::now();
        let mut book = lock(&self.book);
        book.lanes.retain(|_, lane| lane.in_flight > 0 || lane.state != State::Closed || now - lane.last_change < IDLE);
        book.in_flight >= self.slots && now - book.last_begun > STUCK
    }
}

impl Lane {
    fn new(now: Instant) -> Self {
        Self {
            state: State::Closed,
            version: 0,
            openings: 0,
            halves: [(0, 0); 2],
            half_began: now,
            in_flight: 0,
            last_change: now,
        }
    }

    /// Counts a call. Returns whether it opens the lane.
    fn count(&mut self, now: Instant, limits: &LaneLimits, bad: bool) -> bool {
        let half = limits.window / 2;
        let age = now - self.half_began;
        if age >= half {
            let last = if age < limits.window { self.halves[0] } else { (0, 0) };
            self.halves = [(0, 0), last];
            self.half_began = now;
        }
        self.halves[0].0 += 1;
        self.halves[0].1 += u32::from(bad);
        let calls = self.halves[0].0 + self.halves[1].0;
        let failed = self.halves[0].1 + self.halves[1].1;
        bad && calls >= LEAST_CALLS && failed * 100 >= calls * limits.failure_rate
    }

    fn change(&mut self, state: State, openings: u32) {
        self.state = state;
        self.version += 1;
        self.openings = openings;
        self.halves = [(0, 0); 2];
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const OPEN: Duration = Duration::from_mins(1);

    pub(crate) fn lanes(slots: usize) -> Lanes {
        let limits = LaneLimits {
            window: Duration::from_secs(10),
            failure_rate: 50,
            slow: Duration::from_secs(5),
            open: OPEN,
            open_most: OPEN * 2,
        };
        Lanes::new("test".into(), limits, slots, Metrics::default())
    }

    fn call(lanes: &Lanes, lane: &str, took: Duration, answered: bool) {
        let begun = lanes.begin(&lane.into());
        lanes.end(&begun, took, Some(answered));
    }

    fn fail(lanes: &Lanes, times: usize) {
        (0..times).for_each(|_| call(lanes, "bad", Duration::ZERO, false));
    }

    /// Ends the time for which a lane is open.
    fn opened_long_ago(lanes: &Lanes, lane: &str) {
        let mut book = lock(&lanes.book);
        let state = &mut book.lanes.get_mut(lane).unwrap().state;
        assert!(matches!(state, State::Open(_)), "{state:?}");
        *state = State::Open(Instant::now());
    }

    #[test]
    fn a_lane_opens_at_its_rate_of_failed_or_slow_calls_and_alone() {
        let lanes = lanes(64);
        call(&lanes, "good", Duration::ZERO, true);
        (0..5).for_each(|_| call(&lanes, "bad", Duration::ZERO, true));
        fail(&lanes, 4);
        assert_eq!(lanes.most("bad"), usize::MAX, "4 of 9 failed");
        call(&lanes, "bad", Duration::from_secs(5), true);
        assert_eq!(lanes.most("bad"), 0, "5 of 10 failed or were slow");
        assert_eq!((lanes.most("good"), lanes.open()), (usize::MAX, vec!["bad".to_owned()]));
    }

    #[test]
    fn a_few_calls_say_nothing() {
        let lanes = lanes(64);
        fail(&lanes, 4);
        assert_eq!(lanes.most("bad"), usize::MAX);
        fail(&lanes, 1);
        assert_eq!(lanes.most("bad"), 0);
    }

    #[test]
    fn one_purchase_tests_an_open_lane_and_what_began_before_says_nothing() {
        let lanes = lanes(64);
        let before = lanes.begin(&"bad".into());
        fail(&lanes, 5);
        opened_long_ago(&lanes, "bad");
        assert_eq!((lanes.most("bad"), lanes.open()), (1, vec![]));
        let test = lanes.begin(&"bad".into());
        lanes.end(&before, Duration::ZERO, Some(true));
        assert_eq!(lanes.most("bad"), 1, "only the test counts");
        lanes.end(&test, Duration::ZERO, Some(false));
        assert_eq!(lanes.most("bad"), 0);
        // A look-up with a response allows the next test at once.
        lanes.looked_up("bad");
        assert_eq!(lanes.most("bad"), 1);
        call(&lanes, "bad", Duration::from_secs(9), true);
        assert_eq!(lanes.most("bad"), usize::MAX, "slow, but answered");
    }

    #[test]
    fn a_test_without_a_result_is_followed_by_another() {
        let lanes = lanes(8);
        fail(&lanes, 5);
        lanes.looked_up("bad");
        let test = lanes.begin(&Arc::from("bad"));
        assert_eq!(lanes.open(), ["bad"], "one test at a time");
        // The provider was busy.
        lanes.end(&test, Duration::ZERO, None);
        assert!(lanes.open().is_empty() && lanes.most("bad") == 1);
        call(&lanes, "bad", Duration::ZERO, true);
        assert_eq!(lanes.most("bad"), usize::MAX);
    }

    #[test]
    fn while_every_slot_is_taken_and_none_begins_the_slots_are_stuck() {
        let lanes = lanes(1);
        assert!(!lanes.is_stuck());
        let hangs = lanes.begin(&"a".into());
        assert!(!lanes.is_stuck(), "it has only just begun");
        lock(&lanes.book).last_begun -= Duration::from_secs(3);
        assert!(lanes.is_stuck());
        lanes.end(&hangs, Duration::from_secs(3), Some(true));
        assert!(!lanes.is_stuck());
    }
}
