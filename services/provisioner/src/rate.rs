//! The rate limit of the calls to a provider, for all replicas together.
//!
//! Once a second each replica renews its equal share of the limit in PostgreSQL
//! ([`watch`](crate::watch)), and [`Calls`](crate::calls::Calls) spaces its own calls evenly within
//! that share. The sum of all shares never exceeds the limit. For that reason a replica that joins
//! gets only what the others have given up, and is at full speed after two seconds. The share of a
//! replica that died is free after three seconds.

use std::time::Duration;

use store::{PgConnection, providers};
use tokio::{
    sync::{Mutex, watch},
    time::{Instant, sleep_until},
};

/// How much lost time later calls may make up for. With more, calls that were delayed would follow
/// in a burst above the limit of the provider.
const CATCH_UP_MOST: Duration = Duration::from_millis(10);

/// The calls of one replica to one provider.
pub struct Rate {
    /// Calls per second of all replicas together; 0 means no limit.
    limit: u32,
    instance: String,
    /// Calls per second of this replica; 0 until the first share is renewed.
    share: watch::Sender<f64>,
    /// The turn of the last call.
    last: Mutex<Instant>,
}

impl Rate {
    /// Creates the rate limit of the replica `instance`. No call has its turn before the share has
    /// been renewed for the first time.
    pub fn new(limit: u32, instance: String) -> Self {
        Self {
            limit,
            instance,
            share: watch::Sender::new(0.0),
            last: Mutex::new(Instant::now()),
        }
    }

    /// Waits for the turn of one call. Calls get their turns in the order in which they asked. The
    /// wait must not be cancelled.
    pub async fn turn(&self) {
        if self.limit == 0 {
            return;
        }
        let mut last = self.last.lock().await;
        let mut share = self.share.subscribe();
        loop {
            let now = *share.borrow_and_update();
            // Without a share the turn is a year away, so the call waits until the share is
            // renewed.
            let turn = *last + Duration::from_secs_f64((1.0 / now).min(3e7));
            tokio::select! {
                () = sleep_until(turn) => {
                    *last = turn.max(Instant::now() - CATCH_UP_MOST);
                    break;
                }
                _ = share.changed() => {}
            }
        }
    }

    /// Renews this replica's share.
    pub async fn renew(
        &self,
        connection: &mut PgConnection,
        provider: &str,
    ) -> Result<(), store::Error> {
        if self.limit == 0 {
            return Ok(());
        }
        let limit = f64::from(self.limit);
        let share = providers::share_of_rate(connection, provider, &self.instance, limit).await?;
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
        assert!(
            (Duration::from_millis(185)..Duration::from_millis(400)).contains(&took),
            "{took:?}"
        );
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
