//! The verdict times that this process promises for a provider. They are broadcast each second, so that
//! ingress waits only for verdicts that arrive in time. [`crate::limiter`] knows whether purchases begin.

use std::time::{Duration, Instant};

use pipeline::{Nats, payload::Heartbeat};
use runtime::Shutdown;

use crate::{breaker::Breaker, limiter::LaneLimiters};

const PERIOD: Duration = Duration::from_secs(1);

/// Broadcasts the promises until the soft stop; none while the breaker is not closed, or without heartbeats.
pub async fn broadcast(
    provider: &str,
    instance: &str,
    breaker: &Breaker,
    limiters: &LaneLimiters,
    nats: &Nats,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let subject = nats.heartbeat_subject(provider);
    let mut ticks = shutdown.ticks(PERIOD);
    while ticks.next().await {
        let is_ready = breaker.is_closed() && !limiters.is_stuck(Instant::now());
        let verdict_in = if is_ready { Duration::ZERO } else { Duration::MAX };
        let heartbeat = Heartbeat::V1 {
            provider: provider.to_owned(),
            instance: instance.to_owned(),
            verdict_ms: milliseconds(verdict_in),
            lanes: Vec::new(),
        };
        let payload = serde_json::to_vec(&heartbeat)?;
        if nats.is_connected()
            && let Err(error) = nats.client().publish(subject.clone(), payload.into()).await
        {
            tracing::warn!(%error, "heartbeat not sent");
        }
    }
    Ok(())
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
