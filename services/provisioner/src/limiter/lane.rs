//! The limit of one lane. It is halved by a failing round, and grows again with each good one, as
//! TCP does with its window (additive increase, multiplicative decrease). The functions here are
//! pure; [`super::LaneLimiters`] holds the lanes and calls them under its lock.

use std::time::Instant;

use pipeline::worker::LaneState;
use store::provider_lanes::MOST_UNSETTLED;

/// The lowest limit. With one purchase at a time, a failing lane is still tested all the time.
pub(super) const FLOOR: usize = 1;
/// The limit up to which each good round doubles the limit of a lane that has failed. From there on
/// it grows by one, because the lane has shown that it cannot bear everything.
const DOUBLED_BELOW: usize = 8;
/// The maximum number of results that decide whether a round fails. If all results of a large round
/// counted, a lane could fail for long before its limit falls, because of the good results from
/// before.
const JUDGED_MOST: usize = 16;

/// Whether a lane responds, by its last purchase.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneHealth {
    /// None has ended yet.
    Untested,
    /// It got a response.
    Responding,
    /// It got none. A purchase that a look-up finds later makes the limit grow, but only a response
    /// proves that the provider serves this lane.
    Suspect,
}

/// What this process knows of a lane.
pub(super) struct Lane {
    /// How many purchases may be in flight.
    pub(super) limit: usize,
    pub(super) health: LaneHealth,
    /// A purchase of the lane has succeeded, whether or not the last one did.
    pub(super) has_succeeded: bool,
    /// Good results since the limit last changed.
    good: usize,
    /// The last results since the limit was last halved, the newest in the lowest bit; 1 is
    /// failing.
    results: u16,
    /// The last round failed, and the limit is the lowest one.
    pub(super) failed_at_floor: bool,
    pub(super) in_flight: usize,
    /// Attempts of all processes with an unknown outcome: the number that was last read, corrected
    /// by the changes that this process has made since.
    pub(super) unsettled: usize,
    /// This process's own changes of that number since the read under way began.
    unsettled_during_read: isize,
    pub(super) last_call: Instant,
    /// Why the last purchase without a response failed.
    pub(super) last_failure: String,
    pub(super) held_back: Option<HeldBack>,
}

/// The time for which a lane has been held back.
#[derive(Clone, Copy)]
pub(super) struct HeldBack {
    pub(super) since: Instant,
    /// When it was last seen to be held back.
    pub(super) seen: Instant,
}

/// How many purchases may begin now although nobody knows whether they will be answered.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// In untested lanes.
    pub(super) untested: usize,
    /// In suspect lanes: the tokens of the failing budget.
    pub(super) suspect: usize,
}

impl Lane {
    /// Creates a lane of which nothing is known. Its own limit is the highest one, because nothing
    /// has failed; until a purchase is answered, [`super::LaneLimiters`] allows fewer.
    pub(super) fn new(max: usize, now: Instant) -> Self {
        Self {
            limit: max,
            health: LaneHealth::Untested,
            has_succeeded: false,
            good: 0,
            results: 0,
            failed_at_floor: false,
            in_flight: 0,
            unsettled: 0,
            unsettled_during_read: 0,
            last_call: now,
            last_failure: String::new(),
            held_back: None,
        }
    }

    /// What the lane may have now.
    pub(super) fn state(&self, room: Room) -> LaneState {
        let mut permits = self.limit;
        if self.unsettled > 0 || self.health != LaneHealth::Responding {
            permits = permits.min(MOST_UNSETTLED.saturating_sub(self.unsettled));
        }
        let mut is_full = false;
        match self.health {
            LaneHealth::Untested => {
                permits = permits.min((self.in_flight + room.untested).max(FLOOR));
                is_full = self.in_flight >= permits;
            }
            LaneHealth::Responding => {}
            LaneHealth::Suspect => {
                permits = permits.min(self.in_flight + room.suspect);
                if !self.has_succeeded {
                    permits = permits.min(FLOOR);
                }
            }
        }
        LaneState {
            permits,
            // The few purchases that may begin without an answer are not divided between partners:
            // once there is one, all of them go on, and without it all of them fail.
            is_shared: self.health == LaneHealth::Responding,
            accepts_fresh: !self.is_held_back() && !is_full,
        }
    }

    pub(super) fn is_held_back(&self) -> bool {
        self.failed_at_floor || self.unsettled >= MOST_UNSETTLED
    }

    /// Counts a good result. A round is good once it has as many good results as purchases may be
    /// in flight.
    pub(super) fn succeed(&mut self, max: usize) {
        self.has_succeeded = true;
        self.results <<= 1;
        self.good += 1;
        if self.good < self.limit {
            return;
        }
        self.limit = if self.limit < DOUBLED_BELOW {
            self.limit * 2
        } else {
            self.limit + 1
        }
        .min(max);
        self.failed_at_floor = false;
        self.good = 0;
    }

    /// Counts a failing result. A round fails once half of its last results are failing. As many
    /// results are judged as the limit allows purchases, but at most 16. So at the lowest limit one
    /// failing result is enough, while single ones of a busy lane change nothing. A lane in which
    /// nothing has succeeded yet falls to the lowest limit at once.
    pub(super) fn fail(&mut self) {
        if !self.has_succeeded {
            self.limit = FLOOR;
        }
        self.results = self.results << 1 | 1;
        let judged = self.limit.min(JUDGED_MOST);
        let failing = (0..judged)
            .filter(|nth| self.results >> nth & 1 == 1)
            .count();
        if failing * 2 < judged {
            return;
        }
        self.limit = (self.limit / 2).max(FLOOR);
        self.failed_at_floor = self.limit == FLOOR;
        self.good = 0;
        self.results = 0;
    }

    /// One more attempt has an unknown outcome.
    pub(super) fn add_unsettled(&mut self) {
        self.unsettled += 1;
        self.unsettled_during_read += 1;
    }

    /// The outcome of one of those attempts is known.
    pub(super) fn remove_unsettled(&mut self) {
        self.unsettled = self.unsettled.saturating_sub(1);
        self.unsettled_during_read -= 1;
    }

    /// A read of the number of unsettled attempts begins.
    pub(super) fn begin_read(&mut self) {
        self.unsettled_during_read = 0;
    }

    /// The read has ended. Its result may not contain what changed while it was under way, so these
    /// changes are added.
    pub(super) fn end_read(&mut self, unsettled: usize) {
        self.unsettled = unsettled.saturating_add_signed(self.unsettled_during_read);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 256;

    fn lane() -> Lane {
        Lane::new(MAX, Instant::now())
    }

    fn round(lane: &mut Lane) {
        (0..lane.limit).for_each(|_| lane.succeed(MAX));
    }

    fn good() -> Lane {
        let mut lane = lane();
        (0..JUDGED_MOST).for_each(|_| lane.succeed(MAX));
        assert_eq!(lane.limit, MAX);
        lane
    }

    #[test]
    fn a_lane_that_failed_doubles_up_to_8_and_then_grows_by_one() {
        let mut lane = lane();
        lane.fail();
        assert!(lane.failed_at_floor && lane.limit == 1);
        let mut limits = Vec::new();
        for _ in 0..6 {
            round(&mut lane);
            limits.push(lane.limit);
        }
        assert_eq!(limits, [2, 4, 8, 9, 10, 11]);
        assert!(!lane.failed_at_floor);
    }

    #[test]
    fn a_lane_whose_purchases_all_fail_comes_down_to_one_at_a_time() {
        let mut lane = good();
        let mut results = 0;
        while !lane.failed_at_floor {
            lane.fail();
            results += 1;
        }
        assert_eq!((lane.limit, results), (1, 8 * 5 + 4 + 2 + 1));
    }

    #[test]
    fn a_single_failing_result_of_a_busy_lane_changes_nothing() {
        let mut lane = good();
        (0..100).for_each(|_| lane.succeed(MAX));
        (0..7).for_each(|_| lane.fail());
        assert_eq!(lane.limit, MAX);
    }

    #[test]
    fn a_read_keeps_what_happened_while_it_was_under_way() {
        let mut lane = lane();
        lane.add_unsettled();
        lane.begin_read();
        lane.add_unsettled();
        lane.add_unsettled();
        lane.remove_unsettled();
        assert_eq!(lane.unsettled, 2);
        lane.end_read(5);
        assert_eq!(lane.unsettled, 6);
        lane.begin_read();
        lane.remove_unsettled();
        lane.end_read(0);
        assert_eq!(lane.unsettled, 0);
    }

    proptest! {
        #[test]
        fn the_limit_stays_between_one_and_all_permits(results: Vec<bool>, max in 1..300_usize) {
            let mut lane = Lane::new(max, Instant::now());
            for good in results {
                if good { lane.succeed(max) } else { lane.fail() }
                prop_assert!((FLOOR..=max).contains(&lane.limit));
                prop_assert!(!lane.failed_at_floor || lane.limit == FLOOR);
            }
        }

        /// At most one result in three fails, however the failing ones are spread.
        #[test]
        fn a_minority_of_failing_results_never_halves_a_busy_lane(spread in proptest::collection::vec(2..20_usize, 1..200)) {
            let mut lane = good();
            for good in spread {
                (0..good).for_each(|_| lane.succeed(MAX));
                lane.fail();
                prop_assert_eq!(lane.limit, MAX);
            }
        }

        #[test]
        fn failing_results_alone_reach_the_floor_within_47(good in 0..2_000_usize) {
            let mut lane = lane();
            (0..good).for_each(|_| lane.succeed(MAX));
            (0..47).for_each(|_| lane.fail());
            prop_assert!(lane.failed_at_floor);
        }
    }
}
