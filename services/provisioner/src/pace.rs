//! What this provisioner can promise for its provider: broadcast each second, so that an ingress
//! waits for a verdict only where one will come in time.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use pipeline::{Nats, payload::Heartbeat};
use runtime::Shutdown;

use crate::breaker::Breaker;

const PERIOD: Duration = Duration::from_secs(1);

/// How long verdicts take.
pub struct Pace(Mutex<Measured>);

struct Measured {
    /// The longest wait in the queue, in this period and in the one before.
    queued: [Duration; 2],
    /// A moving average of how long an attempt takes.
    attempt: Duration,
    in_flight: usize,
    last_claim: Instant,
    most: usize,
}

impl Pace {
    /// Of a provider that takes at most so many placements at once.
    pub fn new(most: usize) -> Self {
        Self(Mutex::new(Measured {
            queued: [Duration::ZERO; 2],
            attempt: Duration::ZERO,
            in_flight: 0,
            last_claim: Instant::now(),
            most,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attempt begins, of a placement that was queued for so long.
    pub fn begin(&self, queued: Duration) {
        let mut measured = self.lock();
        measured.queued[0] = measured.queued[0].max(queued);
        measured.in_flight += 1;
        measured.last_claim = Instant::now();
    }

    /// An attempt that took so long has ended.
    pub fn end(&self, took: Duration) {
        let mut measured = self.lock();
        measured.attempt = (measured.attempt * 7 + took) / 8;
        measured.in_flight = measured.in_flight.saturating_sub(1);
    }

    /// How long a job published now will take until its verdict.
    fn verdict_in(&self) -> Duration {
        let measured = self.lock();
        let stuck = if measured.in_flight >= measured.most {
            measured.last_claim.elapsed()
        } else {
            Duration::ZERO
        };
        let queued = measured.queued[0].max(measured.queued[1]);
        queued + measured.attempt + stuck
    }

    fn next_period(&self) {
        let mut measured = self.lock();
        measured.queued = [Duration::ZERO, measured.queued[0]];
    }

    /// Broadcasts the promise until the soft stop: no heartbeat is no promise, and neither is one of a
    /// provider whose breaker isn't closed.
    pub async fn broadcast(
        &self,
        provider: &str,
        breaker: &Breaker,
        nats: &Nats,
        shutdown: &Shutdown,
    ) -> anyhow::Result<()> {
        let subject = nats.heartbeat_subject(provider);
        let mut ticks = shutdown.ticks(PERIOD);
        while ticks.next().await {
            let verdict_in = if breaker.is_closed() {
                self.verdict_in()
            } else {
                Duration::MAX
            };
            let verdict_ms = u64::try_from(verdict_in.as_millis()).unwrap_or(u64::MAX);
            let heartbeat = Heartbeat::V1 {
                provider: provider.to_owned(),
                verdict_ms,
            };
            let payload = serde_json::to_vec(&heartbeat)?;
            if nats.is_connected()
                && let Err(error) = nats.client().publish(subject.clone(), payload.into()).await
            {
                tracing::warn!(%error, "a heartbeat was not sent");
            }
            self.next_period();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_covers_the_queue_and_the_attempt() {
        let pace = Pace::new(2);
        assert_eq!(pace.verdict_in(), Duration::ZERO);
        pace.begin(Duration::from_secs(3));
        pace.end(Duration::from_millis(80));
        assert_eq!(pace.verdict_in(), Duration::from_millis(3_010));
        // A long queue is remembered for one period after the one in which it was seen.
        pace.next_period();
        assert!(pace.verdict_in() > Duration::from_secs(3));
        pace.next_period();
        assert_eq!(pace.verdict_in(), Duration::from_millis(10));
    }
}
