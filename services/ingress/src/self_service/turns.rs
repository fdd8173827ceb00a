//! Turns at the database. Waiting partners take turns, so one partner's flood delays another partner's request by at
//! most one statement.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use domain::PartnerId;
use runtime::lock;
use tokio::sync::oneshot;

pub(crate) struct Turns(Arc<Mutex<State>>);

struct State {
    free: usize,
    /// The partners that wait, the next one first, each with its requests.
    waiting: VecDeque<(PartnerId, VecDeque<oneshot::Sender<Turn>>)>,
}

/// A turn; dropping it passes it on.
pub(crate) struct Turn(Option<Arc<Mutex<State>>>);

impl Turns {
    pub(crate) fn new(all: usize) -> Self {
        Self(Arc::new(Mutex::new(State { free: all, waiting: VecDeque::new() })))
    }

    /// Waits for a turn of this partner. A request that stops waiting loses its place.
    pub(crate) async fn take(&self, partner: PartnerId) -> Turn {
        let turn = {
            let mut state = lock(&self.0);
            if state.free > 0 {
                state.free -= 1;
                return Turn(Some(Arc::clone(&self.0)));
            }
            state.enqueue(partner)
        };
        // A sender is dropped only after it has sent, or after its receiver.
        turn.await.unwrap_or(Turn(None))
    }
}

impl State {
    fn enqueue(&mut self, partner: PartnerId) -> oneshot::Receiver<Turn> {
        let (sender, receiver) = oneshot::channel();
        if let Some((_, queue)) = self.waiting.iter_mut().find(|(waits, _)| *waits == partner) {
            queue.retain(|waits| !waits.is_closed());
            queue.push_back(sender);
        } else {
            self.waiting.push_back((partner, VecDeque::from([sender])));
        }
        receiver
    }

    /// The next request; its partner goes to the end.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        while let Some((partner, mut queue)) = self.waiting.pop_front() {
            let next = queue.pop_front();
            if !queue.is_empty() {
                self.waiting.push_back((partner, queue));
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(shared) = self.0.take() else { return };
        loop {
            let next = {
                let mut state = lock(&shared);
                let next = state.next();
                if next.is_none() {
                    state.free += 1;
                }
                next
            };
            let Some(next) = next else { return };
            match next.send(Self(Some(Arc::clone(&shared)))) {
                Ok(()) => return,
                // This request no longer waits: the next one gets the turn.
                Err(mut turn) => drop(turn.0.take()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_flood_delays_another_partner_by_one_turn() {
        let turns = Turns::new(1);
        let [flood, other] = [PartnerId::new(), PartnerId::new()];
        let mut first = Some(turns.take(flood).now_or_never().unwrap());
        let mut many: Vec<_> = (0..50).map(|_| Box::pin(turns.take(flood))).collect();
        for waits in &mut many {
            assert!(waits.as_mut().now_or_never().is_none());
        }
        let mut look_up = Box::pin(turns.take(other));
        assert!(look_up.as_mut().now_or_never().is_none());
        drop(first.take());
        // The flood came first; the other partner is next.
        let mut ready = many.iter_mut().filter_map(|waits| waits.as_mut().now_or_never());
        let turn = ready.next().unwrap();
        assert!(ready.next().is_none(), "there is one turn");
        assert!(look_up.as_mut().now_or_never().is_none());
        drop(turn);
        assert!(look_up.as_mut().now_or_never().is_some(), "not after 49 others");
    }

    #[test]
    fn a_request_that_stops_waiting_loses_no_turn() {
        let turns = Turns::new(1);
        let partner = PartnerId::new();
        let first = turns.take(partner).now_or_never().unwrap();
        let (mut given_up, mut granted) = (Box::pin(turns.take(partner)), Box::pin(turns.take(partner)));
        let mut last = Box::pin(turns.take(partner));
        for waits in [&mut given_up, &mut granted, &mut last] {
            assert!(waits.as_mut().now_or_never().is_none());
        }
        drop(given_up);
        drop(first);
        // Granted, but dropped before it was read.
        drop(granted);
        drop(last.as_mut().now_or_never().unwrap());
        assert_eq!(lock(&turns.0).free, 1);
        assert!(lock(&turns.0).waiting.is_empty());
    }
}
