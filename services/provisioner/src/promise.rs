//! The verdict times that this process promises for a provider. They are broadcast each second, so that
//! ingress waits only for verdicts that arrive in time. [`crate::lanes`] measures them.

use std::time::Duration;

use pipeline::{
    Nats,
    payload::{Heartbeat, LanePromise},
};
use runtime::Shutdown;

use crate::{breaker::Breaker, lanes::Lanes};

const PERIOD: Duration = Duration::from_secs(1);

/// Broadcasts the promises until the soft stop; none while the breaker is not closed, or without heartbeats.
pub async fn broadcast(
    provider: &str,
    instance: &str,
    breaker: &Breaker,
    lanes: &Lanes,
    nats: &Nats,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let subject = nats.heartbeat_subject(provider);
    let mut ticks = shutdown.ticks(PERIOD);
    while ticks.next().await {
        let promises = lanes.promises();
        let verdict_in = if breaker.is_closed() { promises.verdict_in } else { Duration::MAX };
        let lanes = promises
            .lanes
            .into_iter()
            .map(|(lane, verdict_in)| LanePromise { lane: lane.to_string(), verdict_ms: milliseconds(verdict_in) });
        let heartbeat = Heartbeat::V1 {
            provider: provider.to_owned(),
            instance: instance.to_owned(),
            verdict_ms: milliseconds(verdict_in),
            lanes: lanes.collect(),
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
