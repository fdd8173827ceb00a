//! The verdict time that this process promises for a provider. It is broadcast each second, so that
//! ingress waits only for verdicts that arrive in time.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use pipeline::{Nats, payload::Heartbeat};
use runtime::Shutdown;

use crate::breaker::Breaker;

const PERIOD: Duration = Duration::from_secs(1);

/// The expected time to a verdict.
pub struct Promise(Mutex<Measured>);

struct Measured {
    /// The longest wait in the job queue, in this period and in the previous one.
    queued: [Duration; 2],
    /// The moving average of an attempt's duration.
    attempt: Duration,
    in_flight: usize,
    last_claim: Instant,
    most: usize,
}

impl Promise {
    /// Creates the promise of a provider with at most `most` placements in flight.
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

    /// Records the start of an attempt whose job was queued for `queued`.
    pub fn begin(&self, queued: Duration) {
        let mut measured = self.lock();
        measured.queued[0] = measured.queued[0].max(queued);
        measured.in_flight += 1;
        measured.last_claim = Instant::now();
    }

    /// Records the end of an attempt that took `took`.
    pub fn end(&self, took: Duration) {
        let mut measured = self.lock();
        measured.attempt = (measured.attempt * 7 + took) / 8;
        measured.in_flight = measured.in_flight.saturating_sub(1);
    }

    /// The expected time from publishing a job to its verdict.
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

    /// Broadcasts the promise until the soft stop. Without a heartbeat, or with a breaker that is not
    /// closed, nothing is promised.
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
                tracing::warn!(%error, "heartbeat not sent");
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
        let promise = Promise::new(2);
        assert_eq!(promise.verdict_in(), Duration::ZERO);
        promise.begin(Duration::from_secs(3));
        promise.end(Duration::from_millis(80));
        assert_eq!(promise.verdict_in(), Duration::from_millis(3_010));
        // A long queue counts in its period and in the next one.
        promise.next_period();
        assert!(promise.verdict_in() > Duration::from_secs(3));
        promise.next_period();
        assert_eq!(promise.verdict_in(), Duration::from_millis(10));
    }
}
