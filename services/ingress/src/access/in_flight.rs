//! A bound on what is in flight, of which no partner can take everything.
//!
//! Guarantee: a partner can fill at most half of what the other partners leave free, so that a
//! flood of one partner leaves room for everyone else. With a capacity of 1000, for example, the
//! first busy partner gets 500 places and the second one 250; as their requests end, both approach
//! 333.
//!
//! [`super::admission`] has one for each thing that it bounds, and relies on permits being dropped
//! when their request ends.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use domain::PartnerId;
use runtime::lock;
use tokio::sync::Notify;

/// A bound on what is in flight, which all partners share. Amounts are requests or bytes, depending
/// on the limit.
#[derive(Debug)]
pub(super) struct InFlightLimit {
    in_flight: Mutex<InFlight>,
    /// Told when a permit is returned.
    freed: Notify,
}

#[derive(Debug)]
struct InFlight {
    capacity: u64,
    all: u64,
    by_partner: HashMap<PartnerId, u64>,
}

/// The bound that a request would exceed. It decides between a 503 and a 429, and becomes the
/// reason in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// The capacity for all partners.
    Capacity,
    /// The share of the capacity that the partner may use now.
    Share,
    /// The limit that an operator has set for the partner.
    Own,
}

/// A request's part of an [`InFlightLimit`]; dropping it frees the part.
#[derive(Debug)]
pub(crate) struct InFlightPermit {
    limit: Arc<InFlightLimit>,
    partner: PartnerId,
    amount: u64,
}

impl InFlightLimit {
    pub(super) fn new(capacity: u64) -> Arc<Self> {
        Arc::new(Self {
            in_flight: Mutex::new(InFlight {
                capacity,
                all: 0,
                by_partner: HashMap::new(),
            }),
            freed: Notify::new(),
        })
    }

    /// Takes a permit for `amount`, or names the bound that refuses it. `own` is the partner's own
    /// limit.
    pub(super) fn acquire(
        self: &Arc<Self>,
        partner: PartnerId,
        amount: u64,
        own: Option<u64>,
    ) -> Result<InFlightPermit, Bound> {
        self.add(partner, amount, 0, own)?;
        Ok(InFlightPermit {
            limit: Arc::clone(self),
            partner,
            amount,
        })
    }

    /// Adds `amount` to what the partner has in flight. `held` is the part of the partner's use
    /// that the same request already has; it is not 0 when a permit grows.
    fn add(
        &self,
        partner: PartnerId,
        amount: u64,
        held: u64,
        own: Option<u64>,
    ) -> Result<(), Bound> {
        let mut in_flight = lock(&self.in_flight);
        let mine = in_flight
            .by_partner
            .get(&partner)
            .copied()
            .unwrap_or_default();
        let free = in_flight.capacity.saturating_sub(in_flight.all);
        if own.is_some_and(|own| mine + amount > own) {
            return Err(Bound::Own);
        }
        if amount > free {
            return Err(Bound::Capacity);
        }
        // A partner may use half of what the others leave free, which is `free + mine`. The share
        // does not apply if nothing else of the partner is in flight, so that a single request is
        // refused only when the capacity is used up. Otherwise a partner could be shut out entirely
        // while the others are busy.
        if mine > held && mine + amount > u64::midpoint(free, mine) {
            return Err(Bound::Share);
        }
        in_flight.all += amount;
        in_flight.by_partner.insert(partner, mine + amount);
        Ok(())
    }

    fn remove(&self, partner: PartnerId, amount: u64) {
        let mut in_flight = lock(&self.in_flight);
        in_flight.all -= amount;
        if let Some(mine) = in_flight.by_partner.get_mut(&partner) {
            *mine -= amount;
            if *mine == 0 {
                in_flight.by_partner.remove(&partner);
            }
        }
        drop(in_flight);
        self.freed.notify_waiters();
    }

    /// Like [`Self::acquire`], but waits for up to `wait` until there is room.
    pub(super) async fn acquire_within(
        self: &Arc<Self>,
        partner: PartnerId,
        wait: Duration,
    ) -> Result<InFlightPermit, Bound> {
        let until = tokio::time::Instant::now() + wait;
        loop {
            let mut freed = pin!(self.freed.notified());
            // From here on the notification of a permit that is returned meanwhile is not missed.
            freed.as_mut().enable();
            let bound = match self.acquire(partner, 1, None) {
                Ok(permit) => return Ok(permit),
                Err(bound) => bound,
            };
            if tokio::time::timeout_at(until, freed).await.is_err() {
                return Err(bound);
            }
        }
    }

    /// How much of the limit a partner uses.
    pub(super) fn used_by(&self, partner: PartnerId) -> u64 {
        let in_flight = lock(&self.in_flight);
        in_flight
            .by_partner
            .get(&partner)
            .copied()
            .unwrap_or_default()
    }

    pub(super) fn all(&self) -> u64 {
        lock(&self.in_flight).all
    }

    pub(super) fn capacity(&self) -> u64 {
        lock(&self.in_flight).capacity
    }

    /// Permits that exceed the new capacity stay; new ones are refused until enough are returned.
    pub(super) fn set_capacity(&self, capacity: u64) {
        lock(&self.in_flight).capacity = capacity;
    }
}

impl InFlightPermit {
    /// Changes the amount. If there is no room for a larger amount, the permit keeps its old one.
    pub(super) fn resize(&mut self, amount: u64) -> Result<(), Bound> {
        if amount > self.amount {
            self.limit
                .add(self.partner, amount - self.amount, self.amount, None)?;
        } else {
            self.limit.remove(self.partner, self.amount - amount);
        }
        self.amount = amount;
        Ok(())
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.limit.remove(self.partner, self.amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes permits until one is refused.
    fn flood(limit: &Arc<InFlightLimit>, partner: PartnerId) -> (Vec<InFlightPermit>, Bound) {
        let mut taken = Vec::new();
        loop {
            match limit.acquire(partner, 1, None) {
                Ok(permit) => taken.push(permit),
                Err(bound) => return (taken, bound),
            }
        }
    }

    #[test]
    fn a_flood_leaves_half_of_what_is_free_to_the_others() {
        let limit = InFlightLimit::new(1000);
        let [one, other, third] = [PartnerId::new(), PartnerId::new(), PartnerId::new()];
        let (mut of_one, bound) = flood(&limit, one);
        assert_eq!((of_one.len(), bound), (500, Bound::Share));
        let (mut of_other, _) = flood(&limit, other);
        assert_eq!(of_other.len(), 250);
        // As orders end, both partners reach the same share.
        for _ in 0..500 {
            for (partner, taken) in [(one, &mut of_one), (other, &mut of_other)] {
                taken.pop();
                taken.extend(flood(&limit, partner).0);
            }
        }
        assert_eq!((of_one.len(), of_other.len()), (333, 333));
        assert_eq!(limit.acquire(third, 334, None).unwrap().amount, 334);
        assert_eq!(
            limit.acquire(third, 335, None).unwrap_err(),
            Bound::Capacity
        );
        drop((of_one, of_other));
        assert!(lock(&limit.in_flight).all == 0 && lock(&limit.in_flight).by_partner.is_empty());
    }

    #[test]
    fn a_partner_has_its_own_limit_and_one_permit_that_fits() {
        let limit = InFlightLimit::new(2);
        let [one, other] = [PartnerId::new(), PartnerId::new()];
        let first = limit.acquire(one, 1, Some(1)).unwrap();
        assert_eq!(limit.acquire(one, 1, Some(1)).unwrap_err(), Bound::Own);
        assert_eq!(limit.acquire(one, 1, None).unwrap_err(), Bound::Share);
        let mut last = limit.acquire(other, 1, None).unwrap();
        assert_eq!(
            limit.acquire(PartnerId::new(), 1, None).unwrap_err(),
            Bound::Capacity
        );
        drop(first);
        assert_eq!(last.resize(3), Err(Bound::Capacity));
        assert_eq!(last.amount, 1);
        last.resize(0).unwrap();
        assert_eq!(lock(&limit.in_flight).all, 0);
    }

    #[tokio::test]
    async fn a_request_beyond_the_share_waits_for_the_end_of_another_one() {
        let limit = InFlightLimit::new(4);
        let partner = PartnerId::new();
        let (mut taken, bound) = flood(&limit, partner);
        assert_eq!((taken.len(), bound), (2, Bound::Share));
        let wait = Duration::from_millis(20);
        let late = limit.acquire_within(partner, wait).await;
        assert_eq!(late.unwrap_err(), Bound::Share);
        let waiting = limit.acquire_within(partner, Duration::from_mins(1));
        let ends = async {
            tokio::task::yield_now().await;
            taken.pop();
        };
        let (permit, ()) = tokio::join!(waiting, ends);
        permit.unwrap();
    }

    #[test]
    fn a_partners_only_request_may_grow_to_everything() {
        let limit = InFlightLimit::new(10);
        let partner = PartnerId::new();
        let mut only = limit.acquire(partner, 1, None).unwrap();
        only.resize(10).unwrap();
        only.resize(1).unwrap();
        let mut second = limit.acquire(partner, 1, None).unwrap();
        assert_eq!(second.resize(9), Err(Bound::Share));
    }
}
