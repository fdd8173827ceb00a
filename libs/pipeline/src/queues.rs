//! The queues in which tickets wait for a [`Permit`], so that neither a slow lane nor a busy
//! owner makes the others wait.
//!
//! Each pair of lane and owner has a queue of its own. Guarantees:
//!
//! - A queue keeps its order, and the queues take turns.
//! - While fresh and due tickets both wait, due ones get every fourth permit and fresh ones the
//!   others, so that neither can hold up the other forever. If only one kind waits, it may use all
//!   permits.
//!
//! [`crate::worker`] puts tickets into the queues, and receives each one back once it has a permit.
//! [`crate::permits`] decides which queue may have another permit, and calls [`Queues::grant`] when
//! one is returned. Tickets are in memory only. They name rows and reserve nothing, so losing them
//! costs time only.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use runtime::lock;
use tokio::sync::Notify;

use crate::permits::{LaneStates, Permit, PermitLimits, Permits, QueueKey, decrement};

/// How many fresh tickets get a permit for each due one, while both wait.
const FRESH_FOR_EACH_DUE: usize = 3;
/// The maximum number of queues that are asked before a permit is left free. With thousands of
/// queues at their limits, asking all of them would take too long while the lock is held. The next
/// permit continues after them.
const QUEUES_PER_PERMIT: usize = 64;
/// How many tickets of a class may wait for each permit of the worker. They are enough work for the
/// next seconds, so that permits are never idle between two pulls, and few enough that other
/// replicas get their share of a burst.
const TICKETS_PER_PERMIT: usize = 32;
/// How many tickets of a class may wait at least, so that a worker with few permits has room for
/// several messages, too.
const TICKETS_AT_LEAST: usize = 1024;

/// Where a ticket came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketClass {
    /// A message brought it, and its row has no due work.
    Fresh,
    /// A look at due work found it.
    Due,
}

/// The waiting tickets of a worker.
pub(crate) struct Queues<T> {
    permits: Arc<Permits>,
    state: Mutex<State<T>>,
    /// Notified when tickets got permits, by class.
    grants_made: [Notify; 2],
    /// Notified when there is room for more fresh tickets.
    room: Notify,
    /// Notified when a queue can take due tickets again, see [`Queues::offer_due`].
    drained: Notify,
}

struct State<T> {
    /// The waiting tickets, by class.
    by_class: [TicketsOfClass<T>; 2],
    /// How many due tickets of a queue have permits and are being claimed.
    being_claimed: HashMap<QueueKey, usize>,
    /// How many due tickets of a lane wait or are being claimed.
    due_of_lane: HashMap<Arc<str>, usize>,
    /// Fresh tickets that got permits since the last due one did.
    fresh_since_due: usize,
}

/// The waiting tickets of one class.
struct TicketsOfClass<T> {
    /// The queues that have tickets.
    queues: HashMap<QueueKey, VecDeque<Waiting<T>>>,
    /// The same queues, in the order of their turns.
    turns: VecDeque<QueueKey>,
    tickets: usize,
    /// Tickets that got permits and have not been taken by the worker yet.
    granted: Vec<GrantedTicket<T>>,
}

struct Waiting<T> {
    since: Instant,
    ticket: T,
}

/// A ticket that got its permit.
pub(crate) struct GrantedTicket<T> {
    pub(crate) ticket: T,
    pub(crate) permit: Permit,
    /// How long the ticket waited for the permit.
    pub(crate) permit_wait: Duration,
}

impl<T: Send + 'static> Queues<T> {
    pub(crate) fn new(limits: PermitLimits, lanes: LaneStates) -> Arc<Self> {
        Arc::new_cyclic(|queues: &Weak<Self>| {
            let queues = Weak::clone(queues);
            let grant = move || {
                if let Some(queues) = queues.upgrade() {
                    queues.grant();
                }
            };
            Self {
                permits: Permits::new(limits, lanes, grant),
                state: Mutex::new(State {
                    by_class: [TicketsOfClass::default(), TicketsOfClass::default()],
                    being_claimed: HashMap::new(),
                    due_of_lane: HashMap::new(),
                    fresh_since_due: 0,
                }),
                grants_made: Default::default(),
                room: Notify::new(),
                drained: Notify::new(),
            }
        })
    }

    /// Queues the tickets of messages. Returns those that must be deferred, because their lane
    /// takes no fresh ones now, or because their queue is slow or already fills half of the room
    /// that it could reach.
    pub(crate) fn offer_fresh(&self, tickets: impl Iterator<Item = (QueueKey, T)>) -> Vec<T> {
        let now = Instant::now();
        let mut refused = Vec::new();
        let mut state = lock(&self.state);
        for (key, ticket) in tickets {
            let waiting = &mut state.by_class[TicketClass::Fresh as usize];
            if self.accepts(waiting, &key, now) {
                waiting.push(key, Waiting { since: now, ticket });
            } else {
                refused.push(ticket);
            }
        }
        drop(state);
        self.grant();
        refused
    }

    fn accepts(&self, fresh: &TicketsOfClass<T>, key: &QueueKey, now: Instant) -> bool {
        // A queue could reach the places that it holds and those that are free. As with permits, it
        // may fill half of that, which means that it takes no further ticket once it holds as many
        // as there are free places.
        let room = self.most_waiting().saturating_sub(fresh.tickets);
        let (queued, is_slow) = fresh.queues.get(key).map_or((0, false), |queue| {
            let slow = self.permits.limits.slow;
            let is_slow = queue
                .front()
                .is_some_and(|first| now.duration_since(first.since) >= slow);
            (queue.len(), is_slow)
        });
        queued < room && !is_slow && self.permits.lane(&key.lane).accepts_fresh
    }

    /// Queues tickets that a look at due work found, as far as they are useful here:
    ///
    /// - A queue whose earlier due tickets still wait or are being claimed gets none, because the
    ///   look has found the same rows again. So no row is queued twice.
    /// - A lane with a small limit gets only as many as it may run at once, because other processes
    ///   may run the others sooner.
    pub(crate) fn offer_due(&self, tickets: impl Iterator<Item = (QueueKey, T)>) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        let unknown: Vec<_> = tickets.filter(|(key, _)| !state.has_due(key)).collect();
        for (key, ticket) in unknown {
            let of_lane = state
                .due_of_lane
                .get(&key.lane)
                .copied()
                .unwrap_or_default();
            if of_lane < self.permits.lane(&key.lane).permits {
                state.due_of_lane.insert(Arc::clone(&key.lane), of_lane + 1);
                state.by_class[TicketClass::Due as usize].push(key, Waiting { since: now, ticket });
            }
        }
        drop(state);
        self.grant();
    }

    /// Says that the claim of due tickets with these keys has ended. Their rows are leased, or no
    /// longer due, or may be tried again.
    pub(crate) fn due_claimed<'a>(&self, keys: impl Iterator<Item = &'a QueueKey>) {
        let mut state = lock(&self.state);
        let mut any_drained = false;
        for key in keys {
            decrement(&mut state.being_claimed, key);
            decrement(&mut state.due_of_lane, &key.lane);
            any_drained |= !state.has_due(key);
        }
        drop(state);
        if any_drained {
            self.drained.notify_one();
        }
    }

    /// Waits until a queue has no due tickets left, so that a look may offer it others.
    pub(crate) async fn drained(&self) {
        self.drained.notified().await;
    }

    /// How many tickets of a class may wait.
    fn most_waiting(&self) -> usize {
        (self.permits.limits.permits * TICKETS_PER_PERMIT).max(TICKETS_AT_LEAST)
    }

    /// How many more tickets of a class may wait.
    pub(crate) fn room(&self, class: TicketClass) -> usize {
        self.most_waiting()
            .saturating_sub(lock(&self.state).by_class[class as usize].tickets)
    }

    /// Waits for room for at least `tickets` more fresh tickets; returns the room.
    pub(crate) async fn room_for(&self, tickets: usize) -> usize {
        loop {
            let room = self.room(TicketClass::Fresh);
            if room >= tickets {
                return room;
            }
            self.room.notified().await;
        }
    }

    /// Waits until tickets of a class have permits, and takes all of them.
    pub(crate) async fn take_granted(&self, class: TicketClass) -> Vec<GrantedTicket<T>> {
        loop {
            let granted = std::mem::take(&mut lock(&self.state).by_class[class as usize].granted);
            if !granted.is_empty() {
                return granted;
            }
            self.grants_made[class as usize].notified().await;
        }
    }

    /// Whether no ticket waits for a permit or waits to be taken.
    pub(crate) fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state
            .by_class
            .iter()
            .all(|waiting| waiting.tickets == 0 && waiting.granted.is_empty())
    }

    /// Gives free permits to the tickets that may have one. Called after every change of the
    /// tickets or of the permits in use, and also from time to time, because the state of a lane
    /// may have changed.
    pub(crate) fn grant(&self) {
        let mut state = lock(&self.state);
        let fresh_before = state.by_class[TicketClass::Fresh as usize].tickets;
        while self.permits.any_is_free() {
            let mut classes = [TicketClass::Fresh, TicketClass::Due];
            if state.fresh_since_due >= FRESH_FOR_EACH_DUE {
                classes.reverse();
            }
            match classes
                .into_iter()
                .find(|class| self.grant_next(&mut state, *class))
            {
                None => break,
                Some(TicketClass::Fresh) => {
                    state.fresh_since_due = (state.fresh_since_due + 1).min(FRESH_FOR_EACH_DUE);
                }
                Some(TicketClass::Due) => state.fresh_since_due = 0,
            }
        }
        let has_more_room = state.by_class[TicketClass::Fresh as usize].tickets < fresh_before;
        for (notify, waiting) in self.grants_made.iter().zip(&state.by_class) {
            if !waiting.granted.is_empty() {
                notify.notify_one();
            }
        }
        drop(state);
        if has_more_room {
            self.room.notify_one();
        }
    }

    /// Gives a permit to the next ticket of this class that may have one. Returns false if there is
    /// none.
    fn grant_next(&self, state: &mut State<T>, class: TicketClass) -> bool {
        let waiting = &mut state.by_class[class as usize];
        for _ in 0..waiting.turns.len().min(QUEUES_PER_PERMIT) {
            let Some(key) = waiting.turns.pop_front() else {
                return false;
            };
            let Some(queue) = waiting.queues.get_mut(&key) else {
                continue;
            };
            // The ticket is taken out before the permit is asked for, because a permit must not be
            // dropped while the lock is held: its drop grants the permit to the next ticket, which
            // needs the lock.
            let Some(first) = queue.pop_front() else {
                continue;
            };
            let Some(permit) = self.permits.try_acquire(&key) else {
                queue.push_front(first);
                waiting.turns.push_back(key);
                continue;
            };
            if queue.is_empty() {
                waiting.queues.remove(&key);
            } else {
                waiting.turns.push_back(key.clone());
            }
            waiting.tickets -= 1;
            waiting.granted.push(GrantedTicket {
                ticket: first.ticket,
                permit,
                permit_wait: first.since.elapsed(),
            });
            if class == TicketClass::Due {
                *state.being_claimed.entry(key).or_default() += 1;
            }
            return true;
        }
        false
    }
}

impl<T> State<T> {
    /// Whether due tickets of this queue wait or are being claimed.
    fn has_due(&self, key: &QueueKey) -> bool {
        self.by_class[TicketClass::Due as usize]
            .queues
            .contains_key(key)
            || self.being_claimed.contains_key(key)
    }
}

impl<T> Default for TicketsOfClass<T> {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            turns: VecDeque::new(),
            tickets: 0,
            granted: Vec::new(),
        }
    }
}

impl<T> TicketsOfClass<T> {
    fn push(&mut self, key: QueueKey, waiting: Waiting<T>) {
        self.tickets += 1;
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.push_back(waiting);
        } else {
            self.turns.push_back(key.clone());
            self.queues.insert(key, VecDeque::from([waiting]));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use domain::PartnerId;
    use futures_util::FutureExt;

    use super::*;
    use crate::permits::{LaneState, unlimited_lanes};

    fn limits(permits: usize) -> PermitLimits {
        PermitLimits {
            permits,
            per_lane: permits,
            per_owner: permits,
            slow_attempt: None,
            slow: Duration::from_hours(1),
        }
    }

    fn queues(permits: usize) -> Arc<Queues<usize>> {
        Queues::new(limits(permits), unlimited_lanes())
    }

    fn key(lane: &str, partner: PartnerId) -> QueueKey {
        QueueKey {
            lane: lane.into(),
            owner: partner.into(),
        }
    }

    /// Offers this number of fresh tickets; returns how many were refused.
    fn offer_fresh(queues: &Queues<usize>, key: &QueueKey, tickets: usize) -> usize {
        queues
            .offer_fresh((0..tickets).map(|ticket| (key.clone(), ticket)))
            .len()
    }

    fn has_due(queues: &Queues<usize>, key: &QueueKey) -> bool {
        lock(&queues.state).has_due(key)
    }

    fn offer_due(queues: &Queues<usize>, key: &QueueKey, tickets: usize) {
        queues.offer_due((0..tickets).map(|ticket| (key.clone(), ticket)));
    }

    fn granted(queues: &Queues<usize>, class: TicketClass) -> Vec<GrantedTicket<usize>> {
        queues
            .take_granted(class)
            .now_or_never()
            .unwrap_or_default()
    }

    /// Offers many fresh tickets; returns those that got their permits at once.
    fn fill(queues: &Queues<usize>, lane: &str, partner: PartnerId) -> Vec<GrantedTicket<usize>> {
        offer_fresh(queues, &key(lane, partner), 100);
        granted(queues, TicketClass::Fresh)
    }

    /// Ends one row after the other; returns the classes and the tickets in the order of their
    /// permits.
    fn run(queues: &Queues<usize>, rows: usize) -> (String, Vec<usize>) {
        let mut classes = String::new();
        let mut tickets = Vec::new();
        for _ in 0..rows {
            for (class, letter) in [(TicketClass::Fresh, 'f'), (TicketClass::Due, 'd')] {
                for GrantedTicket { ticket, permit, .. } in granted(queues, class) {
                    classes.push(letter);
                    tickets.push(ticket);
                    if class == TicketClass::Due {
                        queues.due_claimed(std::iter::once(permit.key()));
                    }
                    drop(permit);
                }
            }
        }
        (classes, tickets)
    }

    #[test]
    fn although_lanes_hang_the_next_one_goes_on() {
        let queues = queues(64);
        let mut hanging: Vec<_> = (0..40)
            .map(|lane| fill(&queues, &format!("lane {lane}"), PartnerId::new()))
            .collect();
        assert_eq!(hanging.iter().map(Vec::len).sum::<usize>(), 64);
        assert!(fill(&queues, "good", PartnerId::new()).is_empty());
        // The first calls time out, and queues that hold no permits get theirs.
        hanging[0].truncate(1);
        let now = granted(&queues, TicketClass::Fresh);
        assert!(now.len() >= 30, "{}", now.len());
    }

    #[test]
    fn queues_take_turns_and_each_keeps_its_order() {
        let queues = queues(1);
        offer_fresh(&queues, &key("a", PartnerId::new()), 3);
        let other = key("b", PartnerId::new());
        queues.offer_fresh((10..12).map(|ticket| (other.clone(), ticket)));
        assert_eq!(run(&queues, 9).1, [0, 1, 10, 2, 11]);
        offer_due(&queues, &other, 2);
        assert_eq!(run(&queues, 9).1, [0, 1]);
        assert!(queues.is_idle());
        let state = lock(&queues.state);
        assert!(
            state
                .by_class
                .iter()
                .all(|waiting| waiting.queues.is_empty() && waiting.turns.is_empty())
        );
        assert!(state.being_claimed.is_empty() && state.due_of_lane.is_empty());
    }

    #[test]
    fn while_both_wait_every_fourth_permit_is_for_due_tickets() {
        let queues = queues(1);
        let key = key("", PartnerId::new());
        offer_fresh(&queues, &key, 10);
        offer_due(&queues, &key, 6);
        assert_eq!(run(&queues, 40).0, "fffdfffdfffdfddd");
        offer_due(&queues, &key, 2);
        offer_fresh(&queues, &key, 2);
        assert_eq!(run(&queues, 40).0.len(), 4);
    }

    #[test]
    fn a_queue_takes_half_of_the_room_and_a_slow_one_no_more_fresh_tickets() {
        let partner = PartnerId::new();
        let queues = queues(1);
        let _held = fill(&queues, "", PartnerId::new());
        assert_eq!(offer_fresh(&queues, &key("a", partner), 600), 137);
        assert_eq!(offer_fresh(&queues, &key("b", partner), 600), 369);

        let slow = PermitLimits {
            slow_attempt: None,
            slow: Duration::ZERO,
            ..limits(1)
        };
        let queues = Queues::new(slow, unlimited_lanes());
        assert_eq!(
            offer_fresh(&queues, &key("a", partner), 5),
            4,
            "the first one waits for its permit"
        );
        offer_due(&queues, &key("a", partner), 5);
        assert_eq!(
            queues.room(TicketClass::Due),
            1024 - 5,
            "due tickets wait all the same"
        );
    }

    #[test]
    fn a_failing_lane_refuses_fresh_tickets_and_runs_due_ones() {
        let lanes: LaneStates = Arc::new(|lane| LaneState {
            permits: 1,
            is_shared: true,
            accepts_fresh: lane != "failing",
        });
        let queues = Queues::new(limits(8), lanes);
        let failing = key("failing", PartnerId::new());
        assert_eq!(offer_fresh(&queues, &failing, 3), 3);
        assert_eq!(offer_fresh(&queues, &key("good", PartnerId::new()), 3), 0);
        offer_due(&queues, &failing, 3);
        assert_eq!(granted(&queues, TicketClass::Due).len(), 1);
    }

    #[test]
    fn a_stopped_lane_gets_nothing_until_it_may_have_some() {
        let limit = Arc::new(AtomicUsize::new(2));
        let now = Arc::clone(&limit);
        let lanes: LaneStates = Arc::new(move |_| LaneState {
            permits: now.load(Ordering::Relaxed),
            is_shared: true,
            accepts_fresh: true,
        });
        let queues = Queues::new(limits(8), lanes);
        offer_fresh(&queues, &key("a", PartnerId::new()), 4);
        let held = granted(&queues, TicketClass::Fresh);
        assert_eq!(held.len(), 1, "half of its two");
        limit.store(0, Ordering::Relaxed);
        drop(held);
        assert!(granted(&queues, TicketClass::Fresh).is_empty());
        limit.store(usize::MAX, Ordering::Relaxed);
        queues.grant();
        assert_eq!(granted(&queues, TicketClass::Fresh).len(), 3);
    }

    #[test]
    fn a_lane_with_a_small_limit_queues_no_more_due_tickets_than_it_needs() {
        let lanes: LaneStates = Arc::new(|_| LaneState {
            permits: 2,
            is_shared: true,
            accepts_fresh: false,
        });
        let queues = Queues::new(limits(8), lanes);
        let partners: Vec<QueueKey> = (0..5).map(|_| key("a", PartnerId::new())).collect();
        for key in &partners {
            offer_due(&queues, key, 3);
        }
        let running = granted(&queues, TicketClass::Due);
        assert_eq!(
            (running.len(), queues.room(TicketClass::Due)),
            (1, 1024 - 1),
            "one runs and one waits"
        );
        queues.due_claimed(running.iter().map(|granted| granted.permit.key()));
        for key in &partners {
            offer_due(&queues, key, 3);
        }
        assert_eq!(
            granted(&queues, TicketClass::Due).len(),
            1,
            "the permit of the lane that was free"
        );
        assert_eq!(queues.room(TicketClass::Due), 1024 - 1);
    }

    #[test]
    fn rows_that_a_look_finds_again_are_not_queued_again() {
        let queues = queues(4);
        let key = key("a", PartnerId::new());
        offer_due(&queues, &key, 5);
        offer_due(&queues, &key, 5);
        assert_eq!(
            (
                granted(&queues, TicketClass::Due).len(),
                queues.room(TicketClass::Due)
            ),
            (2, 1024 - 3)
        );
    }

    #[test]
    fn a_queue_has_due_tickets_until_the_last_one_is_claimed() {
        let queues = queues(4);
        let key = key("a", PartnerId::new());
        offer_due(&queues, &key, 3);
        let first = granted(&queues, TicketClass::Due);
        assert_eq!(first.len(), 2, "half of the permits");
        queues.due_claimed(first.iter().map(|granted| granted.permit.key()));
        assert!(has_due(&queues, &key), "one ticket waits");
        drop(first);
        let last = granted(&queues, TicketClass::Due);
        assert_eq!(last.len(), 1);
        assert!(has_due(&queues, &key), "it is being claimed");
        assert!(queues.drained().now_or_never().is_none());
        queues.due_claimed(last.iter().map(|granted| granted.permit.key()));
        assert!(!has_due(&queues, &key));
        assert!(queues.drained().now_or_never().is_some());
    }
}
