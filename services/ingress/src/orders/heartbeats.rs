//! The heartbeats of provisioners, which say for which providers a verdict can be expected soon.
//!
//! [`super::handshake`] receives them and asks whether they are fresh. No promise rests on them: at
//! worst an order waits for a verdict that does not come, or gets its 201 without one.

use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use pipeline::payload::Heartbeat;
use runtime::lock;

/// The age from which a heartbeat no longer counts. A provisioner sends one each second, so a
/// provider is not given up because of one that is lost.
const FRESH: Duration = Duration::from_secs(3);
/// The last heartbeat of each configured provider. Those of other providers are ignored, so that
/// forged ones take no memory.
pub(super) struct Heartbeats {
    started: Instant,
    last: Mutex<HashMap<String, Option<Instant>>>,
}

impl Heartbeats {
    pub(super) fn new<'a>(providers: impl Iterator<Item = &'a str>) -> Self {
        let last = providers
            .map(|provider| (provider.to_owned(), None))
            .collect();
        Self {
            started: Instant::now(),
            last: Mutex::new(last),
        }
    }

    pub(super) fn receive(&self, Heartbeat::V1 { provider }: &Heartbeat) {
        if let Some(last) = lock(&self.last).get_mut(provider) {
            *last = Some(Instant::now());
        }
    }

    /// Whether a provisioner of this provider has sent a heartbeat in the last [`FRESH`]. Right
    /// after the start of this process none can have arrived, so the provisioners count as alive.
    pub(super) fn is_fresh(&self, provider: &str) -> bool {
        let last = lock(&self.last).get(provider).copied().flatten();
        last.unwrap_or(self.started).elapsed() < FRESH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fresh_heartbeat_of_the_provider_counts() {
        let mut heartbeats = Heartbeats::new(["sandbox", "usimsa"].into_iter());
        assert!(heartbeats.is_fresh("sandbox"), "none can have arrived yet");
        heartbeats.started -= FRESH;
        assert!(!heartbeats.is_fresh("sandbox"));
        for provider in ["sandbox", "invented"] {
            heartbeats.receive(&Heartbeat::V1 {
                provider: provider.into(),
            });
        }
        assert!(heartbeats.is_fresh("sandbox"));
        assert!(!heartbeats.is_fresh("usimsa") && !heartbeats.is_fresh("invented"));
        lock(&heartbeats.last).insert("sandbox".into(), Instant::now().checked_sub(FRESH));
        assert!(!heartbeats.is_fresh("sandbox"));
    }
}
