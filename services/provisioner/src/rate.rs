//! The rate limit of a provider's calls, for all replicas together. Once a second each replica leases a share
//! of it through PostgreSQL, and spaces its own calls evenly within that share.
//!
//! The sum of all shares never exceeds the limit; after a change, all of it is used again within two seconds.

use std::{
    sync::{
        Mutex as Lock,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use runtime::lock;
use store::{PgConnection, providers};
use tokio::{
    sync::{Mutex, watch},
    time::{Instant, sleep_until},
};

/// The longest delay that later calls catch up on. A longer one would cause a burst above the provider's limit.
const MADE_UP: Duration = Duration::from_millis(10);

/// The calls of one replica to one provider.
pub struct Rate {
    /// Calls per second of all replicas together; 0 means no limit.
    limit: u32,
    instance: String,
    /// Calls per second of this replica; 0 before the first lease.
    share: watch::Sender<f64>,
    /// The turn of the last call.
    last: Mutex<Instant>,
    /// The calls since the last lease, and the calls that wait for their turn.
    asked: AtomicU32,
    waiting: AtomicU32,
    leased: Lock<Instant>,
}

impl Rate {
    /// Creates the rate limit of the replica `instance`. No call has a turn before the first lease.
    pub fn new(limit: u32, instance: String) -> Self {
        let now = Instant::now();
        Self {
            limit,
            instance,
            share: watch::Sender::new(0.0),
            last: Mutex::new(now),
            asked: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            leased: Lock::new(now),
        }
    }

    /// Waits for the turn of one call. Calls have their turns in order. Must not be cancelled.
    pub async fn turn(&self) {
        if self.limit == 0 {
            return;
        }
        self.asked.fetch_add(1, Relaxed);
        self.waiting.fetch_add(1, Relaxed);
        let mut last = self.last.lock().await;
        let mut share = self.share.subscribe();
        loop {
            let now = *share.borrow_and_update();
            // Without a share the turn is a year away, until the share is renewed.
            let turn = *last + Duration::from_secs_f64((1.0 / now).min(3e7));
            tokio::select! {
                () = sleep_until(turn) => {
                    *last = turn.max(Instant::now() - MADE_UP);
                    break;
                }
                _ = share.changed() => {}
            }
        }
        self.waiting.fetch_sub(1, Relaxed);
    }

    /// Leases this replica's share for the next second.
    pub async fn renew(&self, connection: &mut PgConnection, provider: &str) -> Result<(), store::Error> {
        if self.limit == 0 {
            return Ok(());
        }
        let since = std::mem::replace(&mut *lock(&self.leased), Instant::now());
        let asked = self.asked.swap(0, Relaxed) + self.waiting.load(Relaxed);
        let wanted = f64::from(asked) / since.elapsed().as_secs_f64().max(0.1);
        let limit = f64::from(self.limit);
        let share = providers::allowance(connection, provider, &self.instance, limit, wanted).await?;
        self.share.send_replace(share);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn turns(rate: &Rate, most: usize) -> Duration {
        let began = Instant::now();
        for _ in 0..most {
            rate.turn().await;
        }
        began.elapsed()
    }

    #[tokio::test]
    async fn calls_are_spaced_evenly_within_the_share() {
        let rate = Rate::new(100, "a".into());
        rate.share.send_replace(100.0);
        let took = turns(&rate, 20).await;
        assert!((Duration::from_millis(185)..Duration::from_millis(400)).contains(&took), "{took:?}");
    }

    #[tokio::test]
    async fn a_call_that_waits_for_a_small_share_has_its_turn_as_soon_as_the_share_grows() {
        let rate = Rate::new(100, "a".into());
        let (took, ()) = tokio::join!(turns(&rate, 3), async {
            tokio::task::yield_now().await;
            rate.share.send_replace(0.01);
            tokio::task::yield_now().await;
            rate.share.send_replace(100.0);
        });
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}
