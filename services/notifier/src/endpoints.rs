//! Each endpoint's share of the notifier, so that one which is slow can't take what all need.
//!
//! A delivery that was taken up has a *seat*; while its request runs it also has a *slot*. Slots are
//! what is scarce. They are given by turns, at most so many to one endpoint and to one host, and no
//! endpoint has more than half as many as are free, in all and at its host: the more endpoints are
//! slow, the less each of them has, and one that is not finds a slot. There are more seats than slots:
//! a burst of readiness events waits a moment for slots instead of being left to the redrive loop.
//! They are shared in the same way.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use domain::PartnerId;
use store::deliveries::Room;
use tokio::sync::oneshot;

/// How many seats there are for each slot.
const SEATS: usize = 4;

/// How many requests may run at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Altogether.
    pub all: usize,
    /// To one endpoint.
    pub per_endpoint: usize,
    /// To one host, where several partners may have their endpoints.
    pub per_host: usize,
}

impl Limits {
    /// How many deliveries may be taken up at once.
    pub fn seats(&self) -> usize {
        self.all * SEATS
    }
}

/// Who has what.
pub struct Endpoints {
    limits: Limits,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    seats: usize,
    slots: usize,
    shares: HashMap<PartnerId, Share>,
    /// The slots of each host.
    hosts: HashMap<String, usize>,
    /// Partners that wait for slots, in the order of their turns.
    turns: VecDeque<PartnerId>,
}

#[derive(Default)]
struct Share {
    seats: usize,
    slots: usize,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    host: Option<String>,
    slot: oneshot::Sender<Slot>,
}

/// What a partner's turn brings.
enum Turn {
    Now(Waiting),
    NotNow,
    NobodyWaits,
}

/// A seat; given back when it is dropped.
pub struct Seat {
    endpoints: Arc<Endpoints>,
    partner: PartnerId,
    host: Option<String>,
}

/// A slot; given back when it is dropped.
pub struct Slot {
    /// None once it isn't held any more.
    endpoints: Option<Arc<Endpoints>>,
    partner: PartnerId,
    host: Option<String>,
}

/// What nobody may exceed who wants some of so many that are free.
fn share(most: usize, free: usize) -> usize {
    most.min((free / 2).max(1))
}

impl Endpoints {
    /// Shares that nobody has taken from yet.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            book: Mutex::default(),
        })
    }

    /// A seat for a delivery of this partner, whose endpoint is on this host, if one is left of its share.
    pub fn seat(self: &Arc<Self>, partner: PartnerId, host: Option<&str>) -> Option<Seat> {
        let book = self.book();
        let free = self.limits.seats().saturating_sub(book.seats);
        let taken = book.shares.get(&partner).map_or(0, |share| share.seats);
        (free > 0 && taken < share(usize::MAX, free)).then(|| self.sit(book, partner, host))
    }

    /// A seat for a delivery for which there was [room](Self::room).
    pub fn reserved(self: &Arc<Self>, partner: PartnerId, host: Option<&str>) -> Seat {
        self.sit(self.book(), partner, host)
    }

    fn sit(self: &Arc<Self>, mut book: MutexGuard<'_, Book>, partner: PartnerId, host: Option<&str>) -> Seat {
        book.seats += 1;
        book.shares.entry(partner).or_default().seats += 1;
        Seat {
            endpoints: Arc::clone(self),
            partner,
            host: host.map(ToOwned::to_owned),
        }
    }

    /// How many deliveries, and whose, would find slots at once: at most `most`, and half of what is
    /// free, so that something is left for who comes next.
    pub fn room(&self, most: usize) -> Room {
        let book = self.book();
        let free = self.limits.all.saturating_sub(book.slots);
        let partners = book.shares.iter().map(|(partner, share)| (*partner, share.seats));
        let hosts = book.hosts.iter().map(|(host, slots)| (host.clone(), *slots));
        Room {
            all: most.min(free.div_ceil(2)),
            per_partner: share(self.limits.per_endpoint, free),
            per_host: self.limits.per_host,
            partners: partners.collect(),
            hosts: hosts.collect(),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives slots, by turns, to those who wait and may have one.
    fn give(self: &Arc<Self>) {
        let mut book = self.book();
        let mut refused = 0;
        while refused < book.turns.len() {
            let Some(partner) = book.turns.pop_front() else {
                return;
            };
            let waiting = match book.turn_of(partner, &self.limits) {
                Turn::NobodyWaits => continue,
                Turn::NotNow => {
                    refused += 1;
                    book.turns.push_back(partner);
                    continue;
                }
                Turn::Now(waiting) => waiting,
            };
            book.turns.push_back(partner);
            refused = 0;
            let slot = Slot {
                endpoints: Some(Arc::clone(self)),
                partner,
                host: waiting.host,
            };
            book.take_slot(&slot);
            if let Err(mut slot) = waiting.slot.send(slot) {
                // Not by dropping it, which would need the book.
                slot.endpoints = None;
                book.return_slot(&slot);
            }
        }
    }
}

impl Book {
    /// Whether the next of this partner who waits may have a slot.
    fn turn_of(&mut self, partner: PartnerId, limits: &Limits) -> Turn {
        let Some(shares) = self.shares.get_mut(&partner) else {
            return Turn::NobodyWaits;
        };
        shares.forget_who_left();
        let Some(waiting) = shares.waiting.pop_front() else {
            return Turn::NobodyWaits;
        };
        let at_host = waiting.host.as_ref().and_then(|host| self.hosts.get(host));
        let free = limits.all.saturating_sub(self.slots);
        let free_at_host = limits
            .per_host
            .saturating_sub(at_host.copied().unwrap_or_default());
        let most = share(share(limits.per_endpoint, free), free_at_host);
        if free == 0 || free_at_host == 0 || shares.slots >= most {
            shares.waiting.push_front(waiting);
            return Turn::NotNow;
        }
        Turn::Now(waiting)
    }

    fn take_slot(&mut self, slot: &Slot) {
        self.slots += 1;
        self.shares.entry(slot.partner).or_default().slots += 1;
        if let Some(host) = &slot.host {
            *self.hosts.entry(host.clone()).or_default() += 1;
        }
    }

    fn return_slot(&mut self, slot: &Slot) {
        self.slots -= 1;
        if let Some(share) = self.shares.get_mut(&slot.partner) {
            share.slots -= 1;
        }
        if let Some(host) = &slot.host
            && let Some(slots) = self.hosts.get_mut(host)
        {
            *slots -= 1;
            if *slots == 0 {
                self.hosts.remove(host);
            }
        }
        self.tidy(slot.partner);
    }

    /// Forgets a partner that has nothing under way.
    fn tidy(&mut self, partner: PartnerId) {
        if self
            .shares
            .get(&partner)
            .is_some_and(|share| share.seats == 0 && share.slots == 0)
        {
            self.shares.remove(&partner);
        }
    }
}

impl Share {
    /// Whoever has waited longest leaves first.
    fn forget_who_left(&mut self) {
        while self
            .waiting
            .front()
            .is_some_and(|waiting| waiting.slot.is_closed())
        {
            self.waiting.pop_front();
        }
    }
}

impl Seat {
    /// Waits for a slot. Whoever stops waiting loses the turn.
    pub async fn slot(&self) -> Option<Slot> {
        let (slot, given) = oneshot::channel();
        {
            let mut book = self.endpoints.book();
            let shares = book.shares.entry(self.partner).or_default();
            shares.forget_who_left();
            shares.waiting.push_back(Waiting {
                host: self.host.clone(),
                slot,
            });
            if !book.turns.contains(&self.partner) {
                book.turns.push_back(self.partner);
            }
        }
        self.endpoints.give();
        given.await.ok()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut book = self.endpoints.book();
        book.seats -= 1;
        if let Some(share) = book.shares.get_mut(&self.partner) {
            share.seats -= 1;
        }
        book.tidy(self.partner);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(endpoints) = self.endpoints.take() {
            endpoints.book().return_slot(self);
            endpoints.give();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn endpoints(all: usize, per_endpoint: usize, per_host: usize) -> Arc<Endpoints> {
        Endpoints::new(Limits {
            all,
            per_endpoint,
            per_host,
        })
    }

    /// Takes slots for one partner until none is given at once.
    fn fill(endpoints: &Arc<Endpoints>, partner: PartnerId, host: &str) -> Vec<(Seat, Slot)> {
        let take = || {
            let seat = endpoints.reserved(partner, Some(host));
            let slot = seat.slot().now_or_never()??;
            Some((seat, slot))
        };
        std::iter::from_fn(take).collect()
    }

    #[test]
    fn an_endpoint_and_a_host_have_so_many_slots_and_no_more() {
        let endpoints = endpoints(100, 3, 12);
        let [one, other, third] = std::array::from_fn(|_| PartnerId::new());
        let mut ones = fill(&endpoints, one, "shared");
        let others = fill(&endpoints, other, "shared");
        assert_eq!((ones.len(), others.len()), (3, 3));
        let thirds = fill(&endpoints, third, "shared");
        assert_eq!(thirds.len(), 2, "half of the four that are left");
        assert_eq!(fill(&endpoints, PartnerId::new(), "elsewhere").len(), 3);

        ones.pop();
        ones.extend(fill(&endpoints, one, "shared"));
        assert_eq!(ones.len(), 2, "it has half of the five that are left");
        drop(thirds);
        drop((ones, others));
        assert_eq!(fill(&endpoints, one, "shared").len(), 3);
        let book = endpoints.book();
        assert!(book.shares.is_empty() && book.hosts.is_empty() && book.seats == 0 && book.slots == 0);
    }

    #[test]
    fn although_many_are_slow_the_next_finds_a_slot_and_a_seat() {
        let endpoints = endpoints(512, 64, 256);
        let mut held = Vec::new();
        for _ in 0..12 {
            let slow = PartnerId::new();
            held.push(fill(&endpoints, slow, "one host"));
            while let Some(seat) = endpoints.seat(slow, Some("one host")) {
                std::mem::forget(seat);
            }
        }
        assert_eq!(held[0].len(), 64);
        let fast = PartnerId::new();
        let seat = endpoints.seat(fast, Some("one host")).unwrap();
        assert!(seat.slot().now_or_never().flatten().is_some());
        let room = endpoints.room(1_000);
        assert!(room.all > 0 && room.per_partner > 0, "{room:?}");
    }

    #[test]
    fn slots_are_given_by_turns_and_not_to_those_who_left() {
        let endpoints = endpoints(2, 2, 2);
        let [busy, other] = std::array::from_fn(|_| PartnerId::new());
        let seats: Vec<Seat> = (0..4).map(|_| endpoints.reserved(busy, None)).collect();
        let running = seats[0].slot().now_or_never().flatten().unwrap();
        let mut left = Box::pin(seats[1].slot());
        let mut second = Box::pin(seats[2].slot());
        let mut third = Box::pin(seats[3].slot());
        assert!((&mut left).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        // Half of the one that is free is one: the other partner isn't behind the queue of the first.
        let others = endpoints.reserved(other, None);
        assert!(others.slot().now_or_never().flatten().is_some());
        drop(left);
        drop(running);
        let running = second.now_or_never().flatten().unwrap();
        assert!((&mut third).now_or_never().is_none());
        drop(running);
        assert!(third.now_or_never().flatten().is_some());
        drop((others, seats));
        assert!(endpoints.book().shares.is_empty());
    }

    #[test]
    fn seats_are_shared_like_slots() {
        let endpoints = endpoints(4, 4, 4);
        let [one, other] = std::array::from_fn(|_| PartnerId::new());
        let take = |partner| std::iter::from_fn(|| endpoints.seat(partner, None)).collect::<Vec<_>>();
        let ones = take(one);
        assert_eq!(ones.len(), 5, "half of what was left of sixteen");
        assert_eq!(take(other).len(), 4);
        let room = endpoints.room(3);
        assert_eq!((room.all, room.per_partner), (2, 2));
        assert_eq!(room.partners, [(one, 5)]);
    }
}
