//! Slots, given by turns to waiting tickets, so that one slow part can't take the slots of the others.
//!
//! A *ticket* waits with two tags: its lane (rows that fail together) and its partner. Tickets with the same
//! tags are a queue. A queue holds at most half of the slots that are free to it; all queues with one common
//! tag hold at most three quarters. So the next lane finds a slot however many lanes hang, and a partner
//! whose orders hang in one lane goes on in the others. Fresh and overdue tickets wait apart. While both
//! wait, overdue ones get every fourth slot and fresh ones the others. Alone, either may use all slots.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use domain::PartnerId;
use runtime::lock;
use tokio::sync::Notify;

/// How many fresh tickets get a slot for each overdue one, while both wait.
const FRESH_TURNS: usize = 3;
/// Queues with a common tag may hold this many times the number of free slots: three quarters of the slots.
const TAG_SHARE: usize = 3;
/// The most queues that one look for the next turn examines; the next look continues after them.
const LOOK: usize = 64;

/// The limits of slots and waiting times.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub slots: usize,
    pub per_lane: usize,
    pub per_partner: usize,
    /// A queue whose head has waited for this long is slow: no fresh tickets are added to it.
    pub slow: Duration,
    /// An overdue ticket that has waited for this long is [given back](Lanes::stale): its lease is about to end.
    pub stale: Duration,
}

impl Limits {
    /// How many tickets of a class may wait.
    pub fn room(&self) -> usize {
        (self.slots * 32).max(1024)
    }
}

/// The source of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A message.
    Fresh,
    /// A due row.
    Overdue,
}

/// The lane of a ticket, empty if it is not known, and its partner.
pub type Tags = (Arc<str>, PartnerId);

/// The waiting tickets, and the slots in use.
pub struct Lanes<T> {
    limits: Limits,
    most: Box<dyn Fn(&str) -> usize + Send + Sync>,
    book: Mutex<Book<T>>,
    granted: [Notify; 2],
    room: Notify,
    drained: Notify,
}

struct Book<T> {
    used: usize,
    /// Slots in use, by tag.
    lanes: HashMap<Arc<str>, usize>,
    partners: HashMap<PartnerId, usize>,
    queues: HashMap<Tags, Queue<T>>,
    /// Queues with waiting tickets, in the order of their turns, for each class.
    turns: [VecDeque<Tags>; 2],
    waiting: [usize; 2],
    granted: [Vec<(T, Slot)>; 2],
    /// Overdue tickets that waited too long.
    stale: Vec<T>,
    /// Fresh grants since the last overdue one.
    fresh_turns: usize,
}

struct Queue<T> {
    waiting: [VecDeque<(Instant, T)>; 2],
    /// Slots in use.
    slots: usize,
}

/// Room for one row; returned when dropped.
pub struct Slot {
    lanes: Arc<dyn Lender>,
    tags: Tags,
}

impl Slot {
    /// Moves the slot into `lane`, once the lane of its row is known. Returns false if that lane has no slot left.
    pub fn join(&mut self, lane: &Arc<str>) -> bool {
        if self.tags.0 == *lane {
            return true;
        }
        let joined = (Arc::clone(lane), self.tags.1);
        let moved = self.lanes.exchange(&self.tags, &joined);
        if moved {
            self.tags = joined;
        }
        moved
    }
}

/// Lanes of any kind of ticket.
trait Lender: Send + Sync {
    fn take_back(self: Arc<Self>, tags: &Tags);
    fn exchange(&self, tags: &Tags, for_these: &Tags) -> bool;
}

impl Drop for Slot {
    fn drop(&mut self) {
        Arc::clone(&self.lanes).take_back(&self.tags);
    }
}

impl<T: Send + 'static> Lanes<T> {
    /// Creates empty lanes. `most` returns the number of slots that a lane may hold now, 0 while its breaker is
    /// open. It must not call these lanes.
    pub fn new(limits: Limits, most: impl Fn(&str) -> usize + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            limits,
            most: Box::new(most),
            book: Mutex::new(Book {
                used: 0,
                lanes: HashMap::new(),
                partners: HashMap::new(),
                queues: HashMap::new(),
                turns: Default::default(),
                waiting: [0; 2],
                granted: Default::default(),
                stale: Vec::new(),
                fresh_turns: 0,
            }),
            granted: Default::default(),
            room: Notify::new(),
            drained: Notify::new(),
        })
    }

    /// Queues tickets; returns the refused ones. A queue takes at most half of the room that is free to it.
    /// Fresh tickets of a slow or blocked lane are refused, also while single tickets test it: due rows come first.
    pub fn offer(self: &Arc<Self>, class: Class, tickets: impl Iterator<Item = (Tags, T)>) -> Vec<T> {
        let now = Instant::now();
        let mut book = lock(&self.book);
        let mut refused = Vec::new();
        for (tags, ticket) in tickets {
            let accepted = match class {
                Class::Fresh => self.takes_more(&book, &tags, now),
                Class::Overdue => true,
            };
            if accepted {
                book.wait(class, tags, (now, ticket));
            } else {
                refused.push(ticket);
            }
        }
        self.give(book);
        refused
    }

    fn takes_more(&self, book: &Book<T>, tags: &Tags, now: Instant) -> bool {
        let free = self.limits.room().saturating_sub(book.waiting[0]);
        let waiting = book.queues.get(tags).map(|queue| &queue.waiting[0]);
        let (count, head) = waiting.map_or((0, None), |waiting| (waiting.len(), waiting.front()));
        let slow = head.is_some_and(|(since, _)| now.duration_since(*since) >= self.limits.slow);
        count < free && !slow && (self.most)(&tags.0) > 1
    }

    fn most(&self, lane: &str) -> usize {
        if lane.is_empty() { usize::MAX } else { (self.most)(lane).min(self.limits.per_lane) }
    }

    /// Whether overdue tickets with these tags wait; if so, no more such rows are leased.
    pub fn waits(&self, tags: &Tags) -> bool {
        lock(&self.book).has_overdue(tags)
    }

    /// The room for more tickets of a class.
    pub fn room(&self, class: Class) -> usize {
        self.limits.room().saturating_sub(lock(&self.book).waiting[class as usize])
    }

    /// Waits for room for at least `tickets` more fresh tickets; returns the room.
    pub async fn room_for(&self, tickets: usize) -> usize {
        loop {
            let room = self.room(Class::Fresh);
            if room >= tickets {
                return room;
            }
            self.room.notified().await;
        }
    }

    /// Waits until tickets of a class have slots, and takes all of them.
    pub async fn granted(&self, class: Class) -> Vec<(T, Slot)> {
        loop {
            let granted = std::mem::take(&mut lock(&self.book).granted[class as usize]);
            if !granted.is_empty() {
                return granted;
            }
            self.granted[class as usize].notified().await;
        }
    }

    /// Takes the overdue tickets that waited too long.
    pub fn stale(&self) -> Vec<T> {
        std::mem::take(&mut lock(&self.book).stale)
    }

    /// Waits until a queue of overdue tickets is empty.
    pub async fn drained(&self) {
        self.drained.notified().await;
    }

    /// Whether no ticket waits for a slot or waits to be taken.
    pub fn is_idle(&self) -> bool {
        let book = lock(&self.book);
        book.waiting == [0; 2] && book.granted.iter().all(Vec::is_empty)
    }

    /// Looks for turns again, because [`Lanes::new`]'s `most` may have changed.
    pub fn look(self: &Arc<Self>) {
        self.give(lock(&self.book));
    }

    /// Gives slots, by turns, to tickets that may have one.
    fn give(self: &Arc<Self>, mut book: MutexGuard<'_, Book<T>>) {
        let before = book.waiting;
        while book.used < self.limits.slots {
            let mut order = [Class::Fresh, Class::Overdue];
            if book.fresh_turns >= FRESH_TURNS {
                order.reverse();
            }
            let granted = order.into_iter().find(|class| self.grant(&mut book, *class));
            book.fresh_turns = match granted {
                None => break,
                Some(Class::Fresh) => (book.fresh_turns + 1).min(FRESH_TURNS),
                Some(Class::Overdue) => 0,
            };
        }
        let after = book.waiting;
        for (notify, granted) in self.granted.iter().zip(&book.granted) {
            if !granted.is_empty() {
                notify.notify_one();
            }
        }
        drop(book);
        if after[0] < before[0] {
            self.room.notify_one();
        }
    }

    /// Gives a slot to the next ticket of this class that may have one. Returns false if there is none.
    fn grant(self: &Arc<Self>, book: &mut Book<T>, class: Class) -> bool {
        let index = class as usize;
        for _ in 0..book.turns[index].len().min(LOOK) {
            let Some(tags) = book.turns[index].pop_front() else {
                return false;
            };
            if class == Class::Overdue {
                book.drop_stale(&tags, self.limits.stale);
            }
            let queue = book.queues.get(&tags);
            let Some(queue) = queue.filter(|queue| !queue.waiting[index].is_empty()) else {
                book.tidy(&tags);
                self.drained.notify_one();
                continue;
            };
            if !self.may_have(book, queue, &tags) {
                book.turns[index].push_back(tags);
                continue;
            }
            let Some(ticket) = book.lend(class, &tags) else {
                continue;
            };
            if class == Class::Overdue && !book.has_overdue(&tags) {
                self.drained.notify_one();
            }
            let lanes = Arc::clone(self) as Arc<dyn Lender>;
            book.granted[index].push((ticket, Slot { lanes, tags }));
            return true;
        }
        false
    }

    /// Whether a queue may take another slot. A queue that holds as many slots as are free has its half. In a lane
    /// with its own limit, the same rule applies to each partner within that limit.
    fn may_have(&self, book: &Book<T>, queue: &Queue<T>, (lane, partner): &Tags) -> bool {
        let free = self.limits.slots - book.used;
        let of_partner = book.partners.get(partner).copied().unwrap_or_default();
        let of_lane = book.lanes.get(lane).copied().unwrap_or_default();
        let of_queue = queue.slots;
        let lane_has =
            lane.is_empty() || (of_lane < free * TAG_SHARE && of_queue < self.most(lane).saturating_sub(of_lane));
        of_queue < free && of_partner < self.limits.per_partner.min(free * TAG_SHARE) && lane_has
    }
}

impl<T> Book<T> {
    fn wait(&mut self, class: Class, tags: Tags, ticket: (Instant, T)) {
        let index = class as usize;
        self.waiting[index] += 1;
        let waiting = &mut self.queue(&tags).waiting[index];
        waiting.push_back(ticket);
        if waiting.len() == 1 {
            self.turns[index].push_back(tags);
        }
    }

    fn queue(&mut self, tags: &Tags) -> &mut Queue<T> {
        self.queues.entry(tags.clone()).or_insert_with(|| Queue { waiting: Default::default(), slots: 0 })
    }

    /// Counts a slot for the head of a queue, and ends its turn.
    fn lend(&mut self, class: Class, tags: &Tags) -> Option<T> {
        let index = class as usize;
        let queue = self.queues.get_mut(tags)?;
        let (_, ticket) = queue.waiting[index].pop_front()?;
        if !queue.waiting[index].is_empty() {
            self.turns[index].push_back(tags.clone());
        }
        self.waiting[index] -= 1;
        self.count_in(tags);
        Some(ticket)
    }

    fn count_in(&mut self, tags: &Tags) {
        self.used += 1;
        self.queue(tags).slots += 1;
        *self.lanes.entry(Arc::clone(&tags.0)).or_default() += 1;
        *self.partners.entry(tags.1).or_default() += 1;
    }

    fn count_out(&mut self, tags: &Tags) {
        self.used -= 1;
        count_down(&mut self.lanes, &tags.0);
        count_down(&mut self.partners, &tags.1);
        if let Some(queue) = self.queues.get_mut(tags) {
            queue.slots -= 1;
        }
        self.tidy(tags);
    }

    fn drop_stale(&mut self, tags: &Tags, stale: Duration) {
        let Some(waiting) = self.queues.get_mut(tags).map(|queue| &mut queue.waiting[1]) else {
            return;
        };
        while waiting.front().is_some_and(|(since, _)| since.elapsed() >= stale) {
            self.stale.extend(waiting.pop_front().map(|(_, ticket)| ticket));
            self.waiting[1] -= 1;
        }
    }

    fn has_overdue(&self, tags: &Tags) -> bool {
        let queue = self.queues.get(tags);
        queue.is_some_and(|queue| !queue.waiting[1].is_empty())
    }

    /// Forgets a queue without waiting tickets and without slots.
    fn tidy(&mut self, tags: &Tags) {
        let idle = |queue: &Queue<T>| queue.slots == 0 && queue.waiting.iter().all(VecDeque::is_empty);
        if self.queues.get(tags).is_some_and(idle) {
            self.queues.remove(tags);
        }
    }
}

fn count_down<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl<T: Send + 'static> Lender for Lanes<T> {
    fn take_back(self: Arc<Self>, tags: &Tags) {
        let mut book = lock(&self.book);
        book.count_out(tags);
        self.give(book);
    }

    fn exchange(&self, tags: &Tags, for_these: &Tags) -> bool {
        let mut book = lock(&self.book);
        let in_lane = book.lanes.get(&for_these.0).copied().unwrap_or_default();
        let has_room = in_lane < self.most(&for_these.0);
        if has_room {
            book.count_out(tags);
            book.count_in(for_these);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const SLOW: Duration = Duration::from_hours(1);

    fn limits(slots: usize, per_lane: usize, per_partner: usize) -> Limits {
        Limits { slots, per_lane, per_partner, slow: SLOW, stale: SLOW }
    }

    fn lanes(slots: usize, per_lane: usize, per_partner: usize) -> Arc<Lanes<usize>> {
        Lanes::new(limits(slots, per_lane, per_partner), |_| usize::MAX)
    }

    fn tags(lane: &str, partner: PartnerId) -> Tags {
        (lane.into(), partner)
    }

    fn offer(lanes: &Arc<Lanes<usize>>, class: Class, tags: &Tags, tickets: usize) -> usize {
        let tickets = (0..tickets).map(|ticket| (tags.clone(), ticket));
        lanes.offer(class, tickets).len()
    }

    fn granted(lanes: &Lanes<usize>, class: Class) -> Vec<(usize, Slot)> {
        lanes.granted(class).now_or_never().unwrap_or_default()
    }

    /// Offers many tickets; those that got their slots at once.
    fn fill(lanes: &Arc<Lanes<usize>>, lane: &str, partner: PartnerId) -> Vec<(usize, Slot)> {
        offer(lanes, Class::Fresh, &tags(lane, partner), 100);
        granted(lanes, Class::Fresh)
    }

    #[test]
    fn a_queue_has_half_and_a_tag_three_quarters_of_what_is_free_to_it() {
        let partner = PartnerId::new();
        let lanes = self::lanes(64, 64, 64);
        let mut held = fill(&lanes, "a", partner);
        assert_eq!(held.len(), 32);
        (0..9).for_each(|lane| held.extend(fill(&lanes, &lane.to_string(), partner)));
        assert_eq!(held.len(), 48, "of one partner");
        assert_eq!(fill(&lanes, "z", PartnerId::new()).len(), 8);

        let lanes = self::lanes(64, 64, 64);
        let mut held = fill(&lanes, "a", partner);
        (0..9).for_each(|_| held.extend(fill(&lanes, "a", PartnerId::new())));
        assert_eq!(held.len(), 48, "of one lane");
        assert_eq!(fill(&lanes, "z", partner).len(), 4, "this partner holds half already");
    }

    #[test]
    fn a_lane_and_a_partner_have_their_most_and_within_such_a_lane_a_partner_has_half() {
        let lanes = lanes(100, 12, 8);
        let [one, other, third] = std::array::from_fn(|_| PartnerId::new());
        let held = [
            fill(&lanes, "shared", one),
            fill(&lanes, "shared", other),
            fill(&lanes, "elsewhere", one),
            fill(&lanes, "", third),
        ];
        assert_eq!(held.each_ref().map(Vec::len), [6, 3, 2, 8]);
    }

    #[test]
    fn although_lanes_hang_the_next_one_goes_on() {
        let lanes = lanes(64, 64, 64);
        let mut hanging: Vec<_> = (0..40).map(|lane| fill(&lanes, &format!("lane {lane}"), PartnerId::new())).collect();
        assert_eq!(hanging.iter().map(Vec::len).sum::<usize>(), 64);
        assert!(fill(&lanes, "good", PartnerId::new()).is_empty());
        // The first calls time out: their slots go to queues without slots.
        hanging[0].truncate(1);
        let now = granted(&lanes, Class::Fresh);
        assert!(now.len() >= 30, "{}", now.len());
    }

    /// Ends one row after the other; returns the classes and the tickets that got the slots.
    fn run(lanes: &Arc<Lanes<usize>>, rows: usize) -> (String, Vec<usize>) {
        let (mut classes, mut tickets) = (String::new(), Vec::new());
        for _ in 0..rows {
            for (class, letter) in [(Class::Fresh, 'f'), (Class::Overdue, 'o')] {
                for (ticket, slot) in granted(lanes, class) {
                    classes.push(letter);
                    tickets.push(ticket);
                    drop(slot);
                }
            }
        }
        (classes, tickets)
    }

    #[test]
    fn queues_take_turns_and_each_keeps_its_order() {
        let lanes = lanes(1, 1, 1);
        offer(&lanes, Class::Fresh, &tags("a", PartnerId::new()), 3);
        let other = tags("b", PartnerId::new());
        lanes.offer(Class::Fresh, (10..12).map(|ticket| (other.clone(), ticket)));
        assert_eq!(run(&lanes, 9).1, [0, 1, 10, 2, 11]);
        assert!(lanes.is_idle());
        let book = lock(&lanes.book);
        assert!(book.used == 0 && book.lanes.is_empty() && book.partners.is_empty() && book.queues.is_empty());
    }

    #[test]
    fn while_both_wait_every_fourth_slot_is_for_overdue_tickets() {
        let lanes = lanes(1, 1, 1);
        let tags = tags("", PartnerId::new());
        offer(&lanes, Class::Fresh, &tags, 10);
        offer(&lanes, Class::Overdue, &tags, 6);
        assert_eq!(run(&lanes, 40).0, "fffofffofffofooo");
        offer(&lanes, Class::Overdue, &tags, 2);
        offer(&lanes, Class::Fresh, &tags, 2);
        assert_eq!(run(&lanes, 40).0.len(), 4);
    }

    #[test]
    fn a_queue_takes_half_of_the_room_and_a_slow_one_no_more_fresh_tickets() {
        let lanes = lanes(1, 1, 1);
        let partner = PartnerId::new();
        let _held = fill(&lanes, "", PartnerId::new());
        assert_eq!(offer(&lanes, Class::Fresh, &tags("a", partner), 600), 137);
        assert_eq!(offer(&lanes, Class::Fresh, &tags("b", partner), 600), 369);

        let slow = Limits { slow: Duration::ZERO, ..limits(1, 1, 1) };
        let lanes = Lanes::new(slow, |_| usize::MAX);
        assert_eq!(offer(&lanes, Class::Fresh, &tags("a", partner), 5), 4, "the first one waits for its slot");
        assert_eq!(offer(&lanes, Class::Overdue, &tags("a", partner), 5), 0);
    }

    #[test]
    fn an_overdue_ticket_that_waited_too_long_is_given_back() {
        let stale = Limits { stale: Duration::ZERO, ..limits(1, 1, 1) };
        let lanes = Lanes::new(stale, |_| usize::MAX);
        offer(&lanes, Class::Overdue, &tags("a", PartnerId::new()), 5);
        assert!(granted(&lanes, Class::Overdue).is_empty() && lanes.is_idle());
        assert_eq!(lanes.stale(), [0, 1, 2, 3, 4]);
        assert!(lock(&lanes.book).queues.is_empty());
        assert!(lanes.drained().now_or_never().is_some());
    }

    #[test]
    fn a_blocked_lane_gets_nothing_until_it_may_have_some() {
        let most = Arc::new(std::sync::atomic::AtomicUsize::new(2));
        let now = Arc::clone(&most);
        let lanes = Lanes::new(limits(8, 8, 8), move |_| now.load(std::sync::atomic::Ordering::Relaxed));
        let tags = tags("a", PartnerId::new());
        offer(&lanes, Class::Fresh, &tags, 4);
        let held = granted(&lanes, Class::Fresh);
        assert_eq!(held.len(), 1, "half of its two");
        most.store(0, std::sync::atomic::Ordering::Relaxed);
        drop(held);
        assert!(granted(&lanes, Class::Fresh).is_empty());
        assert_eq!(offer(&lanes, Class::Fresh, &tags, 4), 4);
        most.store(usize::MAX, std::sync::atomic::Ordering::Relaxed);
        lanes.look();
        assert_eq!(granted(&lanes, Class::Fresh).len(), 3);
    }
}
