//! Schedules request slots fairly, so that a slow endpoint cannot take them all.
//!
//! A claimed delivery has a *seat*. While its request is in flight, it also has a *slot*. Slots are given
//! round-robin, with a limit per endpoint and per host. No endpoint takes more than half of the free
//! slots, in total and at its host: the more endpoints are slow, the fewer slots each has, and a fast
//! endpoint still finds one. There are more seats than slots, so a burst of readiness events waits
//! briefly for slots instead of for redrive. Seats are shared by the same rule.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use domain::PartnerId;
use store::deliveries::Room;
use tokio::sync::oneshot;

/// The number of seats per slot.
const SEATS: usize = 4;

/// The most requests in flight.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// In total.
    pub all: usize,
    /// To one endpoint.
    pub per_endpoint: usize,
    /// To one host, which may serve several partners' endpoints.
    pub per_host: usize,
}

impl Limits {
    /// The most claimed deliveries.
    pub fn seats(&self) -> usize {
        self.all * SEATS
    }
}

/// The seats and slots of all partners.
pub struct Slots {
    limits: Limits,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    seats: usize,
    slots: usize,
    shares: HashMap<PartnerId, Share>,
    /// The slots in use at each host.
    hosts: HashMap<String, usize>,
    /// The partners that wait for slots, in round-robin order.
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

/// The result of a partner's turn.
enum Turn {
    Now(Waiting),
    NotNow,
    NoneWaits,
}

/// A claimed delivery's seat; dropping returns it.
pub struct Seat {
    owner: Arc<Slots>,
    partner: PartnerId,
    host: Option<String>,
}

/// Permission for one request in flight; dropping returns it.
pub struct Slot {
    /// `None` after the slot was returned.
    owner: Option<Arc<Slots>>,
    partner: PartnerId,
    host: Option<String>,
}

/// The largest part of the free slots that one endpoint may take.
fn share(most: usize, free: usize) -> usize {
    most.min((free / 2).max(1))
}

impl Slots {
    /// Creates the slots, all free.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            book: Mutex::default(),
        })
    }

    /// Takes a seat for a partner's delivery to a host, if the partner's share allows it.
    pub fn seat(self: &Arc<Self>, partner: PartnerId, host: Option<&str>) -> Option<Seat> {
        let book = self.book();
        let free = self.limits.seats().saturating_sub(book.seats);
        let taken = book.shares.get(&partner).map_or(0, |share| share.seats);
        (free > 0 && taken < share(usize::MAX, free)).then(|| self.sit(book, partner, host))
    }

    /// Takes a seat for a delivery claimed within [`Self::room`].
    pub fn reserved(self: &Arc<Self>, partner: PartnerId, host: Option<&str>) -> Seat {
        self.sit(self.book(), partner, host)
    }

    fn sit(self: &Arc<Self>, mut book: MutexGuard<'_, Book>, partner: PartnerId, host: Option<&str>) -> Seat {
        book.seats += 1;
        book.shares.entry(partner).or_default().seats += 1;
        Seat {
            owner: Arc::clone(self),
            partner,
            host: host.map(ToOwned::to_owned),
        }
    }

    /// The deliveries per partner and host that would find slots now: at most `most`, and at most half of
    /// the free slots, so that later arrivals find some.
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

    /// Gives free slots round-robin to the waiting deliveries.
    fn give(self: &Arc<Self>) {
        let mut book = self.book();
        let mut refused = 0;
        while refused < book.turns.len() {
            let Some(partner) = book.turns.pop_front() else {
                return;
            };
            let waiting = match book.turn_of(partner, &self.limits) {
                Turn::NoneWaits => continue,
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
                owner: Some(Arc::clone(self)),
                partner,
                host: waiting.host,
            };
            book.take_slot(&slot);
            if let Err(mut slot) = waiting.slot.send(slot) {
                // Dropping the slot would lock the book again.
                slot.owner = None;
                book.return_slot(&slot);
            }
        }
    }
}

impl Book {
    /// Takes the partner's next waiting delivery if it may have a slot.
    fn turn_of(&mut self, partner: PartnerId, limits: &Limits) -> Turn {
        let Some(shares) = self.shares.get_mut(&partner) else {
            return Turn::NoneWaits;
        };
        shares.forget_cancelled();
        let Some(waiting) = shares.waiting.pop_front() else {
            return Turn::NoneWaits;
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

    /// Removes a partner without seats and slots.
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
    /// Removes cancelled waits from the front of the queue.
    fn forget_cancelled(&mut self) {
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
    /// Waits for a slot. A cancelled wait loses its place in the queue.
    pub async fn slot(&self) -> Option<Slot> {
        let (slot, given) = oneshot::channel();
        {
            let mut book = self.owner.book();
            let shares = book.shares.entry(self.partner).or_default();
            shares.forget_cancelled();
            shares.waiting.push_back(Waiting {
                host: self.host.clone(),
                slot,
            });
            if !book.turns.contains(&self.partner) {
                book.turns.push_back(self.partner);
            }
        }
        self.owner.give();
        given.await.ok()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut book = self.owner.book();
        book.seats -= 1;
        if let Some(share) = book.shares.get_mut(&self.partner) {
            share.seats -= 1;
        }
        book.tidy(self.partner);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            owner.book().return_slot(self);
            owner.give();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn slots(all: usize, per_endpoint: usize, per_host: usize) -> Arc<Slots> {
        Slots::new(Limits {
            all,
            per_endpoint,
            per_host,
        })
    }

    /// Takes slots for one partner until it has to wait.
    fn fill(slots: &Arc<Slots>, partner: PartnerId, host: &str) -> Vec<(Seat, Slot)> {
        let take = || {
            let seat = slots.reserved(partner, Some(host));
            let slot = seat.slot().now_or_never()??;
            Some((seat, slot))
        };
        std::iter::from_fn(take).collect()
    }

    #[test]
    fn slots_are_limited_per_endpoint_and_per_host() {
        let slots = slots(100, 3, 12);
        let [one, other, third] = std::array::from_fn(|_| PartnerId::new());
        let mut ones = fill(&slots, one, "shared");
        let others = fill(&slots, other, "shared");
        assert_eq!((ones.len(), others.len()), (3, 3));
        let thirds = fill(&slots, third, "shared");
        assert_eq!(thirds.len(), 2, "half of the four that are left");
        assert_eq!(fill(&slots, PartnerId::new(), "elsewhere").len(), 3);

        ones.pop();
        ones.extend(fill(&slots, one, "shared"));
        assert_eq!(ones.len(), 2, "it has half of the five that are left");
        drop(thirds);
        drop((ones, others));
        assert_eq!(fill(&slots, one, "shared").len(), 3);
        let book = slots.book();
        assert!(book.shares.is_empty() && book.hosts.is_empty() && book.seats == 0 && book.slots == 0);
    }

    #[test]
    fn a_fast_endpoint_finds_a_slot_and_a_seat_beside_many_slow_ones() {
        let slots = slots(512, 64, 256);
        let mut held = Vec::new();
        for _ in 0..12 {
            let slow = PartnerId::new();
            held.push(fill(&slots, slow, "one host"));
            while let Some(seat) = slots.seat(slow, Some("one host")) {
                std::mem::forget(seat);
            }
        }
        assert_eq!(held[0].len(), 64);
        let fast = PartnerId::new();
        let seat = slots.seat(fast, Some("one host")).unwrap();
        assert!(seat.slot().now_or_never().flatten().is_some());
        let room = slots.room(1_000);
        assert!(room.all > 0 && room.per_partner > 0, "{room:?}");
    }

    #[test]
    fn slots_are_given_round_robin_and_cancelled_waits_are_skipped() {
        let slots = slots(2, 2, 2);
        let [busy, other] = std::array::from_fn(|_| PartnerId::new());
        let seats: Vec<Seat> = (0..4).map(|_| slots.reserved(busy, None)).collect();
        let running = seats[0].slot().now_or_never().flatten().unwrap();
        let mut left = Box::pin(seats[1].slot());
        let mut second = Box::pin(seats[2].slot());
        let mut third = Box::pin(seats[3].slot());
        assert!((&mut left).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        // The other partner takes the free slot and does not wait behind the first one's queue.
        let others = slots.reserved(other, None);
        assert!(others.slot().now_or_never().flatten().is_some());
        drop(left);
        drop(running);
        let running = second.now_or_never().flatten().unwrap();
        assert!((&mut third).now_or_never().is_none());
        drop(running);
        assert!(third.now_or_never().flatten().is_some());
        drop((others, seats));
        assert!(slots.book().shares.is_empty());
    }

    #[test]
    fn seats_are_shared_like_slots() {
        let slots = slots(4, 4, 4);
        let [one, other] = std::array::from_fn(|_| PartnerId::new());
        let take = |partner| std::iter::from_fn(|| slots.seat(partner, None)).collect::<Vec<_>>();
        let ones = take(one);
        assert_eq!(ones.len(), 5, "half of what was left of sixteen");
        assert_eq!(take(other).len(), 4);
        let room = slots.room(3);
        assert_eq!((room.all, room.per_partner), (2, 2));
        assert_eq!(room.partners, [(one, 5)]);
    }
}
