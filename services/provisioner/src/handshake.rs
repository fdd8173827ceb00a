//! The provisioner's side of the answer handshake. Verdicts go to the waiting ingress. Readiness events are
//! held until that ingress releases the placement, because a webhook must not precede its 201.
//!
//! Held events are in memory only. Without a release the delivery is due at the end of its first lease.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use domain::{PartnerId, PlacementId, TopupId};
use pipeline::{
    Batcher, Nats,
    handshake::Hint,
    payload::{ReadyTopup, Releases, Said, Verdict},
    publish::Ready,
    trace,
};
use runtime::{Shutdown, lock};
use store::placements::Claimed;
use tracing::Span;

/// How long a placement is remembered: the first lease of a delivery, after which it is due anyway.
const REMEMBERED: Duration = Duration::from_secs(30);
/// How long a stop waits for releases.
const LAST_RELEASES: Duration = Duration::from_secs(2);

/// The verdicts, releases and readiness events of one process.
pub struct Handshake {
    nats: Nats,
    verdicts: Batcher<Hint>,
    readiness: Batcher<Ready>,
    remembered: Mutex<HashMap<PlacementId, (Instant, Remembered)>>,
}

/// The state of a placement whose verdict was sent.
enum Remembered {
    /// The release has not arrived. `more`: some of its profiles are not stored yet.
    Held { ready: Vec<Ready>, more: bool },
    /// It was released before all of its profiles were stored.
    Released,
}

impl Handshake {
    /// Starts the senders, and receives releases until the process ends.
    pub fn start(nats: &Nats, instance: &str, shutdown: &Shutdown) -> Arc<Self> {
        let handshake = Arc::new(Self {
            nats: nats.clone(),
            verdicts: nats.verdicts(instance, shutdown),
            readiness: nats.readiness(shutdown),
            remembered: Mutex::default(),
        });
        let subject = nats.release_subject(instance);
        let (taker, nats) = (Arc::clone(&handshake), nats.clone());
        shutdown.supervise("releases", async move {
            loop {
                let take = |Releases::V2 { placements }| taker.release(&placements);
                if let Err(error) = nats.listen(subject.clone(), take).await {
                    tracing::warn!(%error, "releases not received; subscribing again");
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        handshake
    }

    /// Whether NATS is connected, so that readiness events are published now.
    pub fn is_connected(&self) -> bool {
        self.nats.is_connected()
    }

    /// Sends a verdict to the waiting ingress. Called only after its outcome is committed.
    pub fn hint(&self, to: Option<&Arc<str>>, work: &Claimed, said: Said) {
        let Some(to) = to else { return };
        let verdict = Verdict { order_id: work.order_id, placement_id: work.placement_id, said };
        self.verdicts.push(Hint { to: Arc::clone(to), verdict });
    }

    /// Holds readiness events until the release; called before the verdict. `more`: profiles are missing.
    pub fn hold(&self, work: &Claimed, ready: Vec<TopupId>, more: bool) {
        let ready = readiness(work, ready).collect();
        let mut remembered = lock(&self.remembered);
        // Old entries are removed before the map grows.
        if remembered.len() == remembered.capacity() {
            remembered.retain(|_, (since, _)| since.elapsed() < REMEMBERED);
        }
        remembered.insert(work.placement_id, (Instant::now(), Remembered::Held { ready, more }));
    }

    /// Whether the placement is released, so that later profiles are announced at once.
    pub fn is_released(&self, placement: PlacementId) -> bool {
        matches!(lock(&self.remembered).get(&placement), Some((_, Remembered::Released)))
    }

    /// Publishes readiness events. Called only after the profiles are committed and the order is released.
    pub fn announce(&self, work: &Claimed, ready: Vec<TopupId>) {
        readiness(work, ready).for_each(|ready| self.readiness.push(ready));
    }

    fn release(&self, placements: &[PlacementId]) {
        let mut remembered = lock(&self.remembered);
        for placement in placements {
            let Some((since, Remembered::Held { ready, more })) = remembered.remove(placement) else {
                continue;
            };
            if more {
                remembered.insert(*placement, (since, Remembered::Released));
            }
            for ready in ready {
                self.readiness.push(ready);
            }
        }
    }

    /// Waits a moment for the releases of held events, at the end of the process.
    pub async fn finish(&self) {
        let holds =
            |(_, state): &(Instant, Remembered)| matches!(state, Remembered::Held { ready, .. } if !ready.is_empty());
        let released = async {
            while self.nats.is_connected() && lock(&self.remembered).values().any(holds) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(LAST_RELEASES, released).await;
    }
}

fn readiness(work: &Claimed, ready: Vec<TopupId>) -> impl Iterator<Item = Ready> {
    let partner_id: PartnerId = work.partner_id;
    let traceparent = trace::context_of(&Span::current()).or_else(|| work.traceparent.clone());
    ready
        .into_iter()
        .map(move |topup_id| Ready { topup: ReadyTopup { topup_id, partner_id }, traceparent: traceparent.clone() })
}
