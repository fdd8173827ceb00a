//! Each partner's share of the notifier, so that one slow endpoint can't take the permits of all.
//!
//! A delivery that was taken up has a *seat*; while its request runs it also has a *slot*. There are
//! as many slots as requests may run at once, and twice as many seats: a burst of readiness events
//! waits a moment for slots instead of being left to the redrive loop.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use domain::PartnerId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The shares of all partners that have something under way.
pub struct Endpoints {
    slots: usize,
    shares: Mutex<HashMap<PartnerId, Share>>,
}

struct Share {
    seats: usize,
    slots: Arc<Semaphore>,
}

/// A partner's seat; given back when it is dropped.
pub struct Seat {
    endpoints: Arc<Endpoints>,
    partner: PartnerId,
    slots: Arc<Semaphore>,
}

impl Endpoints {
    /// At most `slots` requests to one endpoint at once.
    pub fn new(slots: usize) -> Arc<Self> {
        Arc::new(Self {
            slots,
            shares: Mutex::default(),
        })
    }

    /// A seat, if this partner has one left.
    pub fn seat(self: &Arc<Self>, partner: PartnerId) -> Option<Seat> {
        let mut shares = self.shares();
        let share = shares.entry(partner).or_insert_with(|| Share {
            seats: 0,
            slots: Arc::new(Semaphore::new(self.slots)),
        });
        if share.seats >= self.slots * 2 {
            return None;
        }
        share.seats += 1;
        Some(Seat {
            endpoints: Arc::clone(self),
            partner,
            slots: Arc::clone(&share.slots),
        })
    }

    /// Who has how many seats.
    pub fn under_way(&self) -> Vec<(PartnerId, usize)> {
        self.shares()
            .iter()
            .map(|(partner, share)| (*partner, share.seats))
            .collect()
    }

    fn shares(&self) -> MutexGuard<'_, HashMap<PartnerId, Share>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Waits for a slot, first come first served; given back when it is dropped.
    pub async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots).acquire_owned().await.ok()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut shares = self.endpoints.shares();
        if let Some(share) = shares.get_mut(&self.partner) {
            share.seats -= 1;
            if share.seats == 0 {
                shares.remove(&self.partner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_partner_has_twice_as_many_seats_as_slots() {
        let endpoints = Endpoints::new(1);
        let (one, other) = (PartnerId::new(), PartnerId::new());
        let first = endpoints.seat(one).unwrap();
        let second = endpoints.seat(one).unwrap();
        assert!(endpoints.seat(one).is_none());
        assert!(
            endpoints.seat(other).is_some(),
            "another partner has a share of its own"
        );
        assert_eq!(endpoints.under_way(), [(one, 2)]);

        let slot = first.slot().now_or_never().unwrap();
        assert!(second.slot().now_or_never().is_none());
        drop(slot);
        assert!(second.slot().now_or_never().is_some());

        drop((first, second));
        assert_eq!(endpoints.under_way(), []);
        assert!(endpoints.seat(one).is_some());
    }
}
