//! Tells every ingress process, once a second, that this process can buy from a provider now.
//!
//! Ingress lets a partner wait for a verdict only while it hears these heartbeats. So if the
//! provider fails or this stage falls behind, ingress answers 201 without waiting, and the intake
//! of orders does not slow down. Nothing else depends on heartbeats.
//!
//! A heartbeat speaks for the whole provider. If only one lane is held back, its placements are
//! deferred, and the provisioner sends the verdict *under way* for each of them at once.

use std::time::{Duration, Instant};

use pipeline::Nats;
use runtime::Shutdown;

use crate::{breaker::Breaker, limiter::LaneLimiters};

const PERIOD: Duration = Duration::from_secs(1);

/// Sends heartbeats until the soft stop, except while the provider's breaker is not closed, while
/// as many purchases as there are permits are being sent and no other one begins, or while NATS is
/// down, because this process gets no jobs then.
pub async fn send(
    provider: &str,
    breaker: &Breaker,
    limiters: &LaneLimiters,
    nats: &Nats,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let mut ticks = shutdown.ticks(PERIOD);
    while ticks.next().await {
        if breaker.is_closed() && !limiters.is_stuck(Instant::now()) && nats.is_up() {
            nats.send_heartbeat(provider).await;
        }
    }
    Ok(())
}
