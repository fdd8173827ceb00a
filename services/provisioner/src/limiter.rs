//! One limit for each lane: how many of its purchases may be in flight in this process.
//!
//! A lane is what fails together at a provider, usually one option. Without limits, the purchases
//! of an option that hangs would use up the permits of the provider, and every failing call would
//! cost the provider and perhaps us something. So a failing round halves the limit of a lane, and
//! each good one lets it grow again ([`Lane`]). A lane that has not failed may use all permits of
//! the provider as soon as one of its purchases got a response. Until then it is *untested*, and
//! what it may lose is bounded: all untested lanes together have at most [`UNTESTED`] purchases in
//! flight in this process, and each of them may have one. Further new placements of such a lane are
//! deferred, so that their answers do not wait for the first response.
//!
//! | result of a purchase | counts as |
//! |---|---|
//! | bought, rejected, however slowly | good |
//! | certainly not sent | failing |
//! | outcome unknown | nothing yet; its look-up is good if it finds the purchase, otherwise failing |
//! | busy, denied | nothing, because they concern the whole provider |
//!
//! A slow answer is a good one. What keeps a slow lane from harming the others is its share of the
//! permits; a lower limit would only make its own orders later.
//!
//! Two more bounds protect the provider and the operator's money:
//!
//! - A lane is *suspect* while its last purchase got no answer. Its next purchase begins only if
//!   the [`FailingBudget`] of the provider has a token for it, so that many suspect lanes together
//!   do not flood the provider with failing calls. Lanes that answer need no tokens, because
//!   otherwise one lost response would slow a busy lane down.
//! - At most [`MOST_UNSETTLED`] attempts of a lane are sent and unsettled, because each may be
//!   money spent. The number is read from PostgreSQL once a second and so covers all replicas. It
//!   can be exceeded by what other replicas sent within that second. A lane that answers and has no
//!   unsettled attempts may have more purchases in flight than this. If none of them is answered,
//!   all of them become unsettled, and no further purchase begins until enough of them are settled.
//!
//! [`Calls`](crate::calls::Calls) reports each purchase and look-up. The worker asks for the
//! [`LaneState`] of a lane before it grants a permit. `watch` reads the number of unsettled
//! attempts, and publishes the [`waiting`](LaneLimiters::waiting) lanes. The time comes in as a
//! value, so that tests can simulate hours. A lane is remembered while it is in use and two minutes
//! longer, so memory is bounded by the number of options that are sold.

mod begun;
mod budget;
mod lane;
#[cfg(test)]
mod simulation;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use pipeline::worker::LaneState;
use runtime::lock;
use store::provider_lanes::{HeldBackLane, MOST_UNSETTLED};

pub use self::begun::{PurchaseInFlight, PurchaseResult};
use self::{
    budget::FailingBudget,
    lane::{HeldBack, Lane, LaneHealth, Room},
};

/// The maximum number of purchases in flight in all untested lanes of a provider together. All of
/// them become unsettled if none is answered. It is half of what may be, so that two replicas that
/// begin to sell a dead option at the same time stay within that.
const UNTESTED: usize = MOST_UNSETTLED / 2;

/// How long an unused lane is remembered.
const IDLE: Duration = Duration::from_mins(2);
/// A lane with a purchase in this time is active.
const ACTIVE: Duration = Duration::from_secs(10);
/// How long a lane is still reported after it was last held back. Otherwise a lane that is held
/// back every other second would appear and disappear all the time.
const REPORTED: Duration = Duration::from_secs(10);
/// The maximum number of lanes in one report, which is written to PostgreSQL.
const REPORTED_LANES: usize = 256;
/// For how long no purchase must have begun, while as many are being sent as there are permits,
/// before the process counts as stuck.
const STUCK: Duration = Duration::from_secs(1);

/// The limits of a provider's lanes in this process.
pub struct LaneLimiters {
    provider: String,
    /// The provider's permits for purchases, of all lanes together.
    permits: usize,
    lanes: Mutex<Lanes>,
}

struct Lanes {
    by_name: HashMap<Arc<str>, Lane>,
    budget: FailingBudget,
    in_flight: usize,
    /// Those of them that began while their lane was untested.
    untested: usize,
    last_begun: Instant,
}

impl LaneLimiters {
    /// The limits of a provider with `permits` permits for purchases.
    pub fn new(provider: String, permits: usize, now: Instant) -> Self {
        let lanes = Lanes {
            by_name: HashMap::new(),
            budget: FailingBudget::new(now),
            in_flight: 0,
            untested: 0,
            last_begun: now,
        };
        Self {
            provider,
            permits,
            lanes: Mutex::new(lanes),
        }
    }

    /// What the lane may do now. It takes no lock but its own and calls nothing else, because the
    /// worker asks while it holds the lock of its queues.
    pub fn state(&self, lane: &str, now: Instant) -> LaneState {
        let mut lanes = lock(&self.lanes);
        let room = lanes.room(now);
        match lanes.by_name.get(lane) {
            Some(lane) => lane.state(room),
            None => Lane::new(self.permits, now).state(room),
        }
    }

    /// The lanes that may not buy at all now, so that a look at due work leaves them out. A lane
    /// whose permits are all in use is not one of them, because its next ticket should wait for the
    /// first permit that is returned.
    pub fn stopped(&self, now: Instant) -> Vec<String> {
        let mut lanes = lock(&self.lanes);
        let room = lanes.room(now);
        let is_stopped = |lane: &Lane| lane.state(room).permits == 0;
        lanes
            .by_name
            .iter()
            .filter(|(_, lane)| is_stopped(lane))
            .map(|(name, _)| name.to_string())
            .collect()
    }

    /// The number of lanes in use.
    pub fn active(&self, now: Instant) -> usize {
        let is_active = |lane: &&Lane| {
            lane.in_flight > 0 || now.saturating_duration_since(lane.last_call) < ACTIVE
        };
        lock(&self.lanes).by_name.values().filter(is_active).count()
    }

    /// Whether nothing can be bought soon, because as many purchases as there are permits are being
    /// sent and none has begun for a second. Permits of purchases that collect or wait to be
    /// recorded do not count, because they are free again soon.
    pub fn is_stuck(&self, now: Instant) -> bool {
        let lanes = lock(&self.lanes);
        lanes.in_flight >= self.permits && now.saturating_duration_since(lanes.last_begun) >= STUCK
    }

    /// Records that a purchase is about to be sent.
    pub fn begin(self: &Arc<Self>, lane: &Arc<str>, now: Instant) -> PurchaseInFlight {
        let mut lanes = lock(&self.lanes);
        let lanes = &mut *lanes;
        lanes.in_flight += 1;
        lanes.last_begun = now;
        let entry = lanes
            .by_name
            .entry(Arc::clone(lane))
            .or_insert_with(|| Lane::new(self.permits, now));
        entry.in_flight += 1;
        entry.last_call = now;
        let health = entry.health;
        match health {
            LaneHealth::Untested => lanes.untested += 1,
            LaneHealth::Responding => {}
            LaneHealth::Suspect => lanes.budget.charge(now),
        }
        let limiters = Arc::clone(self);
        let lane = Arc::clone(lane);
        PurchaseInFlight::new(move |result, now| limiters.end(&lane, health, result, now))
    }

    /// Records the result of a purchase in a lane that had this `health` when it began.
    fn end(&self, lane: &Arc<str>, health: LaneHealth, result: PurchaseResult<'_>, now: Instant) {
        let mut lanes = lock(&self.lanes);
        let lanes = &mut *lanes;
        lanes.in_flight = lanes.in_flight.saturating_sub(1);
        if health == LaneHealth::Untested {
            lanes.untested = lanes.untested.saturating_sub(1);
        }
        let Some(lane) = lanes.by_name.get_mut(lane) else {
            return;
        };
        lane.in_flight = lane.in_flight.saturating_sub(1);
        lane.last_call = now;
        match result {
            PurchaseResult::Responded => {
                lane.health = LaneHealth::Responding;
                lane.succeed(self.permits);
                lanes.budget.responded(now);
            }
            PurchaseResult::NotSent(reason) => {
                lane.health = LaneHealth::Suspect;
                reason.clone_into(&mut lane.last_failure);
                lane.fail();
            }
            PurchaseResult::Unknown(reason) => {
                lane.health = LaneHealth::Suspect;
                reason.clone_into(&mut lane.last_failure);
                lane.add_unsettled();
            }
            PurchaseResult::Inconclusive => {}
        }
        let fails = matches!(
            result,
            PurchaseResult::NotSent(_) | PurchaseResult::Unknown(_)
        );
        match (health == LaneHealth::Suspect, fails) {
            (true, false) => lanes.budget.refund(),
            (false, true) => lanes.budget.charge(now),
            (true, true) | (false, false) => {}
        }
    }

    /// Records that a look-up found the purchase of an attempt. If the outcome `was_unknown`, the
    /// purchase was charged to the failing budget, in whichever process, and its token is returned.
    /// Otherwise the process that sent it died before it recorded an outcome.
    pub fn found(&self, lane: &Arc<str>, was_unknown: bool, now: Instant) {
        let mut lanes = lock(&self.lanes);
        let lanes = &mut *lanes;
        let lane = lanes
            .by_name
            .entry(Arc::clone(lane))
            .or_insert_with(|| Lane::new(self.permits, now));
        lane.remove_unsettled();
        lane.succeed(self.permits);
        if was_unknown {
            lanes.budget.refund();
        }
    }

    /// Records that the first look-up of an attempt with an unknown outcome did not find a
    /// purchase.
    pub fn not_found(&self, lane: &Arc<str>, now: Instant) {
        let mut lanes = lock(&self.lanes);
        let lane = lanes
            .by_name
            .entry(Arc::clone(lane))
            .or_insert_with(|| Lane::new(self.permits, now));
        lane.health = LaneHealth::Suspect;
        if lane.last_failure.is_empty() {
            "a look-up did not find the purchase".clone_into(&mut lane.last_failure);
        }
        lane.fail();
    }

    /// Marks the begin of a read of the number of unsettled attempts. [`Self::end_read`] follows if
    /// the read succeeds.
    pub fn begin_read(&self) {
        lock(&self.lanes)
            .by_name
            .values_mut()
            .for_each(Lane::begin_read);
    }

    /// Takes over the number of unsettled attempts that was read, for each lane that has any.
    /// Forgets the lanes that have not been used for a while.
    pub fn end_read(&self, unsettled: impl IntoIterator<Item = (String, usize)>, now: Instant) {
        let mut lanes = lock(&self.lanes);
        let mut unsettled: HashMap<String, usize> = unsettled.into_iter().collect();
        for (name, lane) in &mut lanes.by_name {
            lane.end_read(unsettled.remove(&**name).unwrap_or(0));
        }
        for (name, number) in unsettled {
            let mut lane = Lane::new(self.permits, now);
            lane.end_read(number);
            lanes.by_name.insert(name.into(), lane);
        }
        lanes.by_name.retain(|_, lane| {
            lane.in_flight > 0
                || lane.unsettled > 0
                || now.saturating_duration_since(lane.last_call) < IDLE
        });
    }

    /// The lanes that are held back, now or a moment ago: those that fail, and those with as many
    /// unsettled attempts as a lane may have. Called once a second. Logs when a lane starts or
    /// stops being held back.
    pub fn waiting(&self, now: Instant) -> Vec<HeldBackLane> {
        let mut lanes = lock(&self.lanes);
        let mut reports = Vec::new();
        for (name, lane) in &mut lanes.by_name {
            if lane.is_held_back() {
                let held_back = lane.held_back.get_or_insert_with(|| {
                    tracing::warn!(
                        provider.name = self.provider,
                        lane = &**name,
                        unsettled = lane.unsettled,
                        reason = lane.last_failure,
                        "purchases of a lane are held back, because they fail or too many outcomes \
                         are unknown; they continue by themselves once the lane works again"
                    );
                    HeldBack {
                        since: now,
                        seen: now,
                    }
                });
                held_back.seen = now;
            }
            let Some(held_back) = lane.held_back else {
                continue;
            };
            if now.saturating_duration_since(held_back.seen) >= REPORTED {
                tracing::info!(
                    provider.name = self.provider,
                    lane = &**name,
                    "a lane works again; its purchases are no longer held back"
                );
                lane.held_back = None;
                continue;
            }
            reports.push(HeldBackLane {
                lane: name.to_string(),
                max_in_flight: pg::signed(lane.limit),
                unsettled: pg::signed(lane.unsettled),
                reason: lane.last_failure.clone(),
                held_for: now.saturating_duration_since(held_back.since),
            });
        }
        reports.sort_unstable_by(|one, other| {
            other
                .held_for
                .cmp(&one.held_for)
                .then_with(|| one.lane.cmp(&other.lane))
        });
        reports.truncate(REPORTED_LANES);
        reports
    }
}

impl Lanes {
    fn room(&mut self, now: Instant) -> Room {
        Room {
            untested: UNTESTED.saturating_sub(self.untested),
            suspect: self.budget.available(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERMITS: usize = 256;

    fn limiters(now: Instant) -> Arc<LaneLimiters> {
        Arc::new(LaneLimiters::new("test".into(), PERMITS, now))
    }

    /// How many permits a lane has, and whether it accepts fresh tickets.
    fn state(limiters: &LaneLimiters, lane: &str, now: Instant) -> (usize, bool) {
        let state = limiters.state(lane, now);
        (state.permits, state.accepts_fresh)
    }

    fn buy(limiters: &Arc<LaneLimiters>, lane: &str, result: PurchaseResult<'_>, now: Instant) {
        let begun = limiters.begin(&lane.into(), now);
        begun.end(result, now);
    }

    #[test]
    fn a_lane_that_fails_is_tested_by_one_purchase_and_accepts_no_fresh_work() {
        let now = Instant::now();
        let limiters = limiters(now);
        assert_eq!(state(&limiters, "bad", now), (UNTESTED, true));
        buy(&limiters, "bad", PurchaseResult::NotSent("no route"), now);
        assert_eq!(state(&limiters, "bad", now), (1, false));
        buy(&limiters, "bad", PurchaseResult::Responded, now);
        assert_eq!(state(&limiters, "bad", now), (2, true));
    }

    #[test]
    fn untested_lanes_share_what_they_may_have_in_flight_until_each_gets_a_response() {
        let now = Instant::now();
        let limiters = limiters(now);
        let begin = |lane: &str| limiters.begin(&lane.into(), now);
        let mut begun: Vec<_> = (0..UNTESTED).map(|_| begin("a")).collect();
        assert_eq!(
            state(&limiters, "a", now),
            (UNTESTED, false),
            "further ones are deferred"
        );
        assert_eq!(
            state(&limiters, "b", now),
            (1, true),
            "each lane may begin one"
        );
        begun.push(begin("b"));
        assert_eq!(state(&limiters, "b", now), (1, false));

        let last = begun.pop().unwrap();
        last.end(PurchaseResult::Responded, now);
        assert_eq!(state(&limiters, "b", now), (PERMITS, true));
        assert!(limiters.state("b", now).is_shared);
        assert!(!limiters.state("a", now).is_shared);
        begun.drain(1..).for_each(|one| {
            one.end(PurchaseResult::Inconclusive, now);
        });
        assert_eq!(state(&limiters, "a", now), (UNTESTED, true));
    }

    #[test]
    fn a_busy_or_denied_call_says_nothing_about_the_lane() {
        let now = Instant::now();
        let limiters = limiters(now);
        (0..100).for_each(|_| buy(&limiters, "a", PurchaseResult::Inconclusive, now));
        assert_eq!(state(&limiters, "a", now), (UNTESTED, true));
        buy(&limiters, "a", PurchaseResult::Responded, now);
        (0..100).for_each(|_| buy(&limiters, "a", PurchaseResult::Inconclusive, now));
        assert_eq!(state(&limiters, "a", now), (PERMITS, true));
    }

    #[test]
    fn a_purchase_that_a_look_up_finds_is_a_late_success() {
        let now = Instant::now();
        let limiters = limiters(now);
        let lane = Arc::from("late");
        for _ in 0..10 {
            buy(&limiters, "late", PurchaseResult::Unknown("HTTP 500"), now);
        }
        assert_eq!(
            limiters.state("late", now).permits,
            0,
            "the failing budget is used up"
        );
        for _ in 0..7 {
            limiters.found(&lane, true, now);
        }
        assert_eq!(
            limiters.state("late", now).permits,
            7,
            "seven good results that came late"
        );
        assert!(limiters.waiting(now).is_empty());
    }

    fn busy(now: Instant) -> Arc<LaneLimiters> {
        let limiters = limiters(now);
        (0..20).for_each(|_| buy(&limiters, "a", PurchaseResult::Responded, now));
        assert_eq!(limiters.state("a", now).permits, PERMITS);
        limiters
    }

    fn read(limiters: &LaneLimiters, unsettled: &[(&str, usize)], now: Instant) {
        limiters.begin_read();
        limiters.end_read(
            unsettled
                .iter()
                .map(|(lane, count)| ((*lane).to_owned(), *count)),
            now,
        );
    }

    #[test]
    fn no_purchase_begins_beside_64_unsettled_attempts_of_its_lane_in_all_replicas() {
        let now = Instant::now();
        let limiters = busy(now);
        read(
            &limiters,
            &[("a", MOST_UNSETTLED - 4), ("elsewhere", MOST_UNSETTLED)],
            now,
        );
        assert_eq!(limiters.state("a", now).permits, 4);
        assert_eq!(state(&limiters, "elsewhere", now), (0, false));

        (0..4).for_each(|_| buy(&limiters, "a", PurchaseResult::Unknown("HTTP 500"), now));
        assert_eq!(state(&limiters, "a", now), (0, false));
        assert_eq!(limiters.stopped(now).len(), 2);
        limiters.found(&"a".into(), true, now);
        assert_eq!(state(&limiters, "a", now), (1, true));
        read(&limiters, &[], now);
        assert!(limiters.state("a", now).permits > 1);
    }

    #[test]
    fn a_lost_response_does_not_slow_a_busy_lane_down() {
        let now = Instant::now();
        let limiters = busy(now);
        buy(&limiters, "a", PurchaseResult::Unknown("HTTP 500"), now);
        assert_eq!(limiters.state("a", now).permits, 9, "the failing budget");
        buy(&limiters, "a", PurchaseResult::Responded, now);
        assert_eq!(limiters.state("a", now).permits, MOST_UNSETTLED - 1);
        limiters.not_found(&"a".into(), now);
        buy(&limiters, "a", PurchaseResult::Responded, now);
        read(&limiters, &[], now);
        assert_eq!(limiters.state("a", now).permits, PERMITS);
    }

    #[test]
    fn a_lane_is_reported_while_it_is_held_back_and_a_moment_longer() {
        let start = Instant::now();
        let limiters = limiters(start);
        buy(&limiters, "bad", PurchaseResult::NotSent("no route"), start);
        let report = HeldBackLane {
            lane: "bad".into(),
            max_in_flight: 1,
            unsettled: 0,
            reason: "no route".into(),
            held_for: Duration::ZERO,
        };
        assert_eq!(limiters.waiting(start), std::slice::from_ref(&report));
        let soon = start + Duration::from_secs(2);
        buy(&limiters, "bad", PurchaseResult::Responded, soon);
        assert_eq!(
            limiters.waiting(soon),
            [HeldBackLane {
                max_in_flight: 2,
                held_for: Duration::from_secs(2),
                ..report
            }]
        );
        assert!(limiters.waiting(start + REPORTED).is_empty());
    }

    #[test]
    fn unused_lanes_are_forgotten() {
        let start = Instant::now();
        let limiters = limiters(start);
        for lane in 0..1_000 {
            buy(
                &limiters,
                &lane.to_string(),
                PurchaseResult::Responded,
                start,
            );
        }
        let _in_flight = limiters.begin(&"busy".into(), start);
        assert_eq!(limiters.active(start), 1_001);
        let later = start + IDLE;
        limiters.begin_read();
        limiters.end_read([("unsettled".to_owned(), 1)], later);
        assert_eq!(lock(&limiters.lanes).by_name.len(), 2);
        assert_eq!(limiters.active(later), 2);
    }

    #[test]
    fn a_process_whose_permits_are_all_taken_for_a_second_is_stuck() {
        let start = Instant::now();
        let limiters = Arc::new(LaneLimiters::new("test".into(), 1, start));
        let _hangs = limiters.begin(&"a".into(), start);
        assert!(!limiters.is_stuck(start + STUCK / 2));
        assert!(limiters.is_stuck(start + STUCK));
    }
}
