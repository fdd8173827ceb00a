//! Permits bound how many rows a worker runs at once, and share this room between lanes and owners,
//! which are partners, or at the notifier endpoints ([`crate::owner`]).
//!
//! A row is worked on only while it holds a [`Permit`], and dropping the permit returns
//! it. Guarantee: while a few lanes hang, the next lane still finds a free permit, because each
//! queue gets only a part of what the others have left:
//!
//! - A queue (one lane and one owner) holds at most half of the permits that it could reach,
//!   which are its own and the free ones. Of 64 permits, for example, the first queue gets 32 and
//!   the second gets 16 of the other 32.
//! - All queues of one lane together, and all queues of one owner together, hold at most three
//!   quarters: 48 of 64.
//! - A lane, and an owner, also has a limit of its own. The limit of a lane may change at any
//!   time, see [`LaneState`]. Within the limit of a lane, too, a queue usually holds at most half
//!   of what it could reach: of a limit of 12 the first queue gets 6 and the second gets 3.
//! - With [`PermitLimits::slow_attempt`], an owner has a small share until its attempts have
//!   turned out to be quick, as `pace` notes them. All owners with slow attempts together hold at
//!   most half of the permits, and half of those of a lane.
//!
//! [`crate::queues`] asks for permits on behalf of waiting tickets. A worker gets a permit together
//! with a row. It may count the permit for another lane ([`Permit::move_to`]), and returns it by
//! dropping it.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use runtime::lock;

use crate::{
    owner::Owner,
    pace::{Pace, Paces},
};

/// The queues of one lane, or of one owner, hold at most this many times the number of free
/// permits, which is three quarters of the permits that they could reach.
const SHARED_BY_QUEUES: usize = 3;

/// An owner whose attempts are slow, or not known yet, holds at most this part of the permits.
const NOT_QUICK_PART: usize = 64;
/// The number of permits that such an owner may hold in any case, if the other limits allow it.
const NOT_QUICK_LEAST: usize = 8;

/// How much a worker may run at once.
#[derive(Clone, Copy, Debug)]
pub struct PermitLimits {
    /// Maximum number of rows in flight.
    pub permits: usize,
    /// Maximum number of rows of one lane in flight.
    pub per_lane: usize,
    /// Maximum number of rows of one owner in flight: of a partner, or of an endpoint of a partner.
    pub per_owner: usize,
    /// An attempt that takes at least this long is slow, and its owner gets a smaller share, so
    /// that many slow owners together leave room for the others. `None` gives all owners the
    /// same share, however long their attempts take.
    pub slow_attempt: Option<Duration>,
    /// A queue whose first ticket has waited for this long is slow: its further fresh tickets are
    /// deferred.
    pub slow: Duration,
}

/// What a lane may do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneState {
    /// How many rows of the lane may be in flight; 0 stops the lane.
    pub permits: usize,
    /// Whether a queue leaves half of them to the others. Otherwise it may hold all of them.
    pub is_shared: bool,
    /// Whether tickets of new messages may wait. While a lane fails, they are deferred instead.
    /// Their rows then wait as due work, where the further attempts of older rows come first.
    pub accepts_fresh: bool,
}

impl LaneState {
    /// The state of a lane that only the [`PermitLimits`] bound.
    pub const UNLIMITED: Self = Self {
        permits: usize::MAX,
        is_shared: true,
        accepts_fresh: true,
    };
}

/// Tells the state of a lane. It is called while locks are held, so it must be quick and must not
/// use the permits.
pub type LaneStates = Arc<dyn Fn(&str) -> LaneState + Send + Sync>;

/// The lane states of a worker whose lanes never fail by themselves.
pub fn unlimited_lanes() -> LaneStates {
    Arc::new(|_| LaneState::UNLIMITED)
}

/// The lane and the owner of a ticket. Tickets with the same key are a queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueueKey {
    /// The lane; empty if it is not known yet. Rows of unknown lanes share no limit of a lane.
    pub lane: Arc<str>,
    pub owner: Owner,
}

/// All permits of a worker.
pub(crate) struct Permits {
    pub(crate) limits: PermitLimits,
    lanes: LaneStates,
    in_use: Mutex<InUse>,
    /// Called after a permit has been returned, so that a waiting ticket can get it.
    on_release: Box<dyn Fn() + Send + Sync>,
}

/// The permits in use. Counts of 0 are not stored, so that the maps stay as small as the work in
/// flight.
#[derive(Default)]
struct InUse {
    total: usize,
    by_lane: HashMap<Arc<str>, usize>,
    by_owner: HashMap<Owner, usize>,
    by_queue: HashMap<QueueKey, usize>,
    paces: Paces,
}

/// The permission to work on one row. It is returned when it is dropped.
pub struct Permit {
    permits: Arc<Permits>,
    key: QueueKey,
}

impl Permit {
    /// The lane and the owner that the permit counts for.
    pub fn key(&self) -> &QueueKey {
        &self.key
    }

    /// Counts the permit for `lane` from now on, because the lane of its row has become known.
    /// Returns false, and changes nothing, if that lane is at its limit.
    pub fn move_to(&mut self, lane: &Arc<str>) -> bool {
        if self.key.lane == *lane {
            return true;
        }
        let key = QueueKey {
            lane: Arc::clone(lane),
            owner: self.key.owner,
        };
        let limit = self.permits.limited_lane(lane).permits;
        let mut in_use = lock(&self.permits.in_use);
        let fits = in_use.of_lane(lane) < limit;
        if fits {
            in_use.remove(&self.key);
            in_use.add(&key);
            self.key = key;
        }
        fits
    }

    /// Notes how long the attempt under this permit took, so that the share of its owner follows
    /// from it.
    pub fn attempted(&self, took: Duration) {
        if let Some(slow) = self.permits.limits.slow_attempt {
            let mut in_use = lock(&self.permits.in_use);
            in_use
                .paces
                .attempted(self.key.owner, took >= slow, Instant::now());
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut in_use = lock(&self.permits.in_use);
        in_use.remove(&self.key);
        if in_use.of_owner(self.key.owner) == 0 {
            in_use.paces.end(self.key.owner);
        }
        drop(in_use);
        (self.permits.on_release)();
    }
}

impl Permits {
    pub(crate) fn new(
        limits: PermitLimits,
        lanes: LaneStates,
        on_release: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            limits,
            lanes,
            in_use: Mutex::default(),
            on_release: Box::new(on_release),
        })
    }

    pub(crate) fn lane(&self, lane: &str) -> LaneState {
        (self.lanes)(lane)
    }

    pub(crate) fn any_is_free(&self) -> bool {
        lock(&self.in_use).total < self.limits.permits
    }

    /// A permit for the next row of a queue, if the queue may hold another one.
    pub(crate) fn try_acquire(self: &Arc<Self>, key: &QueueKey) -> Option<Permit> {
        let lane = self.limited_lane(&key.lane);
        let mut in_use = lock(&self.in_use);
        let now = Instant::now();
        if !self.may_hold_another(&in_use, key, lane)
            || !self.pace_allows(&in_use, key, lane.permits, now)
        {
            return None;
        }
        in_use.add(key);
        if self.limits.slow_attempt.is_some() && in_use.of_owner(key.owner) == 1 {
            in_use.paces.begin(key.owner, now);
        }
        Some(Permit {
            permits: Arc::clone(self),
            key: key.clone(),
        })
    }

    /// Applies the rules of the module head. "At most half" means that a queue may not hold more
    /// permits than stay free: of 64 permits, a queue that holds 32 leaves 32 free and gets no
    /// further one. "At most three quarters" likewise means at most three times as many as stay
    /// free: a lane that holds 48 leaves 16.
    fn may_hold_another(&self, in_use: &InUse, key: &QueueKey, lane: LaneState) -> bool {
        let free = self.limits.permits - in_use.total;
        let of_queue = in_use.of_queue(key);
        let of_lane = in_use.of_lane(&key.lane);
        let of_owner = in_use.of_owner(key.owner);
        let free_in_lane = lane.permits.saturating_sub(of_lane);
        let left_to_others = if lane.is_shared { of_queue } else { 0 };

        let queue_has_room = of_queue < free;
        let owner_has_room = of_owner < self.limits.per_owner.min(free * SHARED_BY_QUEUES);
        let lane_has_room = key.lane.is_empty()
            || (of_lane < free * SHARED_BY_QUEUES && left_to_others < free_in_lane);
        queue_has_room && owner_has_room && lane_has_room
    }

    /// Whether the pace of an owner allows it another permit. An owner whose attempts are known
    /// to be quick has no further limit.
    fn pace_allows(&self, in_use: &InUse, key: &QueueKey, lane_limit: usize, now: Instant) -> bool {
        let Some(slow) = self.limits.slow_attempt else {
            return true;
        };
        let pace = |owner| in_use.paces.of(owner, slow, now);
        let own = pace(key.owner);
        if own == Pace::Quick {
            return true;
        }
        let most = (self.limits.permits / NOT_QUICK_PART).max(NOT_QUICK_LEAST);
        if in_use.of_owner(key.owner) >= most {
            return false;
        }
        if own == Pace::Unknown {
            return true;
        }
        let mut of_slow = 0;
        let mut of_slow_in_lane = 0;
        for (queue, held) in &in_use.by_queue {
            if pace(queue.owner) == Pace::Slow {
                of_slow += held;
                if queue.lane == key.lane {
                    of_slow_in_lane += held;
                }
            }
        }
        // A single permit is always possible, so that a worker with few permits serves slow
        // owners, too.
        of_slow == 0
            || (of_slow < self.limits.permits / 2
                && (key.lane.is_empty() || of_slow_in_lane < lane_limit.div_ceil(2)))
    }

    /// What a lane may do within the limits of the worker. `permits` are those of all its queues
    /// together.
    fn limited_lane(&self, lane: &str) -> LaneState {
        if lane.is_empty() {
            return LaneState::UNLIMITED;
        }
        let state = self.lane(lane);
        LaneState {
            permits: state.permits.min(self.limits.per_lane),
            ..state
        }
    }
}

impl InUse {
    fn of_queue(&self, key: &QueueKey) -> usize {
        self.by_queue.get(key).copied().unwrap_or_default()
    }

    fn of_lane(&self, lane: &str) -> usize {
        self.by_lane.get(lane).copied().unwrap_or_default()
    }

    fn of_owner(&self, owner: Owner) -> usize {
        self.by_owner.get(&owner).copied().unwrap_or_default()
    }

    fn add(&mut self, key: &QueueKey) {
        self.total += 1;
        *self.by_lane.entry(Arc::clone(&key.lane)).or_default() += 1;
        *self.by_owner.entry(key.owner).or_default() += 1;
        *self.by_queue.entry(key.clone()).or_default() += 1;
    }

    fn remove(&mut self, key: &QueueKey) {
        self.total -= 1;
        decrement(&mut self.by_lane, &key.lane);
        decrement(&mut self.by_owner, &key.owner);
        decrement(&mut self.by_queue, key);
    }
}

/// Subtracts one, and removes a count of 0.
pub(crate) fn decrement<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use domain::PartnerId;

    use super::*;

    fn permits(permits: usize, per_lane: usize, per_owner: usize) -> Arc<Permits> {
        let limits = PermitLimits {
            permits,
            per_lane,
            per_owner,
            slow_attempt: None,
            slow: Duration::MAX,
        };
        Permits::new(limits, unlimited_lanes(), || {})
    }

    fn key(lane: &str, partner: PartnerId) -> QueueKey {
        QueueKey {
            lane: lane.into(),
            owner: partner.into(),
        }
    }

    /// Takes all permits that this queue may hold.
    fn fill(permits: &Arc<Permits>, lane: &str, partner: PartnerId) -> Vec<Permit> {
        let key = key(lane, partner);
        std::iter::from_fn(|| permits.try_acquire(&key)).collect()
    }

    #[test]
    fn a_queue_holds_half_and_a_lane_or_partner_three_quarters_of_what_it_could_reach() {
        let partner = PartnerId::new();
        let permits = self::permits(64, 64, 64);
        let mut held = fill(&permits, "a", partner);
        assert_eq!(held.len(), 32);
        for lane in 0..9 {
            held.extend(fill(&permits, &lane.to_string(), partner));
        }
        assert_eq!(held.len(), 48, "of one partner");
        assert_eq!(fill(&permits, "z", PartnerId::new()).len(), 8);

        let permits = self::permits(64, 64, 64);
        let mut held = fill(&permits, "a", partner);
        for _ in 0..9 {
            held.extend(fill(&permits, "a", PartnerId::new()));
        }
        assert_eq!(held.len(), 48, "of one lane");
        assert_eq!(
            fill(&permits, "z", partner).len(),
            4,
            "this partner holds half already"
        );
    }

    #[test]
    fn a_lane_and_a_partner_have_limits_and_within_that_of_a_lane_a_queue_holds_half() {
        let permits = permits(100, 12, 8);
        let [one, other, third] = std::array::from_fn(|_| PartnerId::new());
        let held = [
            fill(&permits, "shared", one),
            fill(&permits, "shared", other),
            fill(&permits, "elsewhere", one),
            fill(&permits, "", third),
        ];
        assert_eq!(held.each_ref().map(Vec::len), [6, 3, 2, 8]);
    }

    #[test]
    fn a_stopped_lane_gets_no_permit_until_its_state_changes() {
        let limit = Arc::new(AtomicUsize::new(0));
        let now = Arc::clone(&limit);
        let lanes: LaneStates = Arc::new(move |_| LaneState {
            permits: now.load(Ordering::Relaxed),
            is_shared: true,
            accepts_fresh: false,
        });
        let limits = PermitLimits {
            permits: 8,
            per_lane: 8,
            per_owner: 8,
            slow_attempt: None,
            slow: Duration::MAX,
        };
        let permits = Permits::new(limits, lanes, || {});
        assert!(fill(&permits, "a", PartnerId::new()).is_empty());
        limit.store(1, Ordering::Relaxed);
        let held = fill(&permits, "a", PartnerId::new());
        assert_eq!(held.len(), 1);
        assert!(
            fill(&permits, "a", PartnerId::new()).is_empty(),
            "the lane holds its only permit"
        );
    }

    #[test]
    fn a_permit_moves_to_the_lane_of_its_row_unless_that_lane_is_full() {
        let permits = permits(8, 1, 8);
        let partner = PartnerId::new();
        let mut held = fill(&permits, "", partner);
        assert_eq!(
            held.len(),
            4,
            "a lane that is not known has no limit of its own"
        );
        let lane = Arc::from("a");
        assert!(held[0].move_to(&lane));
        assert!(!held[1].move_to(&lane));
        assert_eq!(
            (held[0].key(), held[1].key()),
            (&key("a", partner), &key("", partner))
        );
        held.remove(0);
        assert!(held[0].move_to(&lane), "the first one was returned");
    }

    #[test]
    fn a_returned_permit_leaves_no_count_and_is_reported() {
        let released = Arc::new(AtomicUsize::new(0));
        let reported = Arc::clone(&released);
        let limits = PermitLimits {
            permits: 4,
            per_lane: 4,
            per_owner: 4,
            slow_attempt: None,
            slow: Duration::MAX,
        };
        let permits = Permits::new(limits, unlimited_lanes(), move || {
            reported.fetch_add(1, Ordering::Relaxed);
        });
        drop(fill(&permits, "a", PartnerId::new()));
        assert_eq!(released.load(Ordering::Relaxed), 2);
        let in_use = lock(&permits.in_use);
        assert_eq!(in_use.total, 0);
        assert!(
            in_use.by_lane.is_empty() && in_use.by_owner.is_empty() && in_use.by_queue.is_empty()
        );
    }

    #[test]
    fn many_slow_partners_leave_room_for_the_others() {
        let slow = Duration::from_secs(3);
        let limits = PermitLimits {
            permits: 512,
            per_lane: 256,
            per_owner: 64,
            slow_attempt: Some(slow),
            slow: Duration::MAX,
        };
        let permits = Permits::new(limits, unlimited_lanes(), || {});
        let quick = PartnerId::new();
        for permit in fill(&permits, "host", quick) {
            permit.attempted(Duration::from_millis(5));
        }
        // Their first attempts are in flight, so nobody knows yet that they are slow.
        let partners: Vec<PartnerId> = (0..24).map(|_| PartnerId::new()).collect();
        let fill_all = || -> Vec<Vec<Permit>> {
            let partners = partners.iter();
            partners
                .map(|partner| fill(&permits, "host", *partner))
                .collect()
        };
        let held = fill_all();
        assert!(held.iter().all(|held| held.len() == 8), "a small share");
        // The attempts end, and all partners have more work. As they are known to be slow now, they
        // get no more than half of the permits of their host together.
        for permit in held.iter().flatten() {
            permit.attempted(slow);
        }
        drop(held);
        let held = fill_all();
        assert_eq!(held.iter().map(Vec::len).sum::<usize>(), 128);
        assert_eq!(fill(&permits, "host", quick).len(), 64, "the whole share");
    }
}
