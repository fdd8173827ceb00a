//! Ingress's side of the answer handshake: receives verdicts while orders wait for them, sends releases once
//! the response has left, and keeps the provisioners' promises of verdict times.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use domain::{OrderId, PlacementId};
use pipeline::{
    Batcher, Nats,
    handshake::Release,
    payload::{Heartbeat, Said, Verdict, Verdicts},
};
use runtime::{Shutdown, lock};
use store::orders::{NewOrder, NewPlacement};
use tokio::sync::oneshot;

/// The age after which a heartbeat promises nothing.
const FRESH: Duration = Duration::from_secs(3);
/// The most provisioners per provider and lanes per provisioner whose promises are kept: heartbeats may be forged.
const MOST_PROVISIONERS: usize = 256;
const MOST_LANES: usize = 64;
/// The most kept verdicts per placement of a waiting order. A dropped verdict gets no release, so its webhook is late.
const MOST_VERDICTS: usize = 8;

/// The orders of this process that wait for verdicts, and the promises of provisioners.
pub(crate) struct Handshake {
    nats: Nats,
    instance: String,
    waiting: Mutex<HashMap<OrderId, Heard>>,
    releases: Batcher<Release>,
    /// By provider, then by provisioner. Only configured providers have an entry.
    promises: Mutex<HashMap<String, HashMap<String, Promise>>>,
    started: Instant,
}

/// The verdicts of an order that waits.
struct Heard {
    placements: usize,
    /// The last verdict of a placement counts.
    verdicts: Vec<(Said, Release)>,
    /// Signals that the verdicts decide the answer.
    settled: Option<oneshot::Sender<()>>,
}

struct Promise {
    heard: Instant,
    verdict_in: Duration,
    lanes: HashMap<String, Duration>,
}

/// An order that waits for verdicts. Dropping it releases its placements: the response left or never will.
pub(crate) struct Waiting {
    handshake: Arc<Handshake>,
    order_id: OrderId,
    settled: oneshot::Receiver<()>,
}

impl Handshake {
    /// Creates the receiver for orders to `providers`. `instance` names this process. [`Handshake::listen`]
    /// must run.
    pub(crate) fn new<'a>(
        nats: &Nats,
        instance: String,
        providers: impl Iterator<Item = &'a str>,
        shutdown: &Shutdown,
    ) -> Arc<Self> {
        let promises = providers.map(|provider| (provider.to_owned(), HashMap::new()));
        Arc::new(Self {
            nats: nats.clone(),
            instance,
            waiting: Mutex::default(),
            releases: nats.releases(shutdown),
            promises: Mutex::new(promises.collect()),
            started: Instant::now(),
        })
    }

    /// Whether a verdict on every placement is promised within `wait`. The fastest provisioner of a provider
    /// counts, because a job goes to one that has room. A lane that is slow in one process promises nothing.
    pub(crate) fn promised(&self, placements: &[NewPlacement], wait: Duration) -> bool {
        if !self.nats.is_connected() {
            return false;
        }
        let promises = lock(&self.promises);
        // Right after the start no heartbeat can have arrived, so a promise is assumed.
        let is_young = self.started.elapsed() < FRESH;
        placements.iter().all(|placement| {
            let of_provider = promises.get(&placement.provider).into_iter().flat_map(HashMap::values);
            let mut fresh = of_provider.filter(|promise| promise.heard.elapsed() < FRESH).peekable();
            if fresh.peek().is_none() {
                return is_young;
            }
            let (mut best, mut lane) = (Duration::MAX, Duration::ZERO);
            for promise in fresh {
                best = best.min(promise.verdict_in);
                lane = lane.max(promise.lanes.get(&placement.lane).copied().unwrap_or_default());
            }
            best.max(lane) < wait
        })
    }

    /// Starts to wait for an order's verdicts. Called before its jobs are published.
    pub(crate) fn wait_for(self: &Arc<Self>, order: &NewOrder) -> Waiting {
        let (sender, settled) = oneshot::channel();
        let heard = Heard { placements: order.placements.len(), verdicts: Vec::new(), settled: Some(sender) };
        lock(&self.waiting).insert(order.order_id, heard);
        Waiting { handshake: Arc::clone(self), order_id: order.order_id, settled }
    }

    /// Receives verdicts and heartbeats. Continues during a stop, because orders may still wait. Returns
    /// only if a subscription ends.
    pub(crate) async fn listen(self: Arc<Self>) -> anyhow::Result<()> {
        let verdicts = self.nats.verdict_subject(&self.instance);
        let taking = self.nats.listen(verdicts, |verdicts| self.take(verdicts));
        let hearing = self.nats.listen(self.nats.heartbeat_subject("*"), |heartbeat| self.hear(heartbeat));
        tokio::try_join!(taking, hearing).map(|((), ())| ())
    }

    fn take(&self, Verdicts::V2 { release_to, verdicts }: Verdicts) {
        let to: Arc<str> = release_to.into();
        let mut waiting = lock(&self.waiting);
        for Verdict { order_id, placement_id, said } in verdicts {
            let release = Release { to: Arc::clone(&to), placement_id };
            match waiting.get_mut(&order_id) {
                Some(heard) => heard.add(said, release),
                // The order no longer waits: its response has left, or its partner hung up.
                None => self.releases.hand_in(release),
            }
        }
    }

    fn hear(&self, heartbeat: Heartbeat) {
        let Heartbeat::V1 { provider, instance, verdict_ms, lanes } = heartbeat;
        let mut promises = lock(&self.promises);
        let Some(promises) = promises.get_mut(&provider) else { return };
        promises.retain(|_, promise| promise.heard.elapsed() < FRESH);
        if promises.len() >= MOST_PROVISIONERS && !promises.contains_key(&instance) {
            return;
        }
        let lanes = lanes.into_iter().take(MOST_LANES);
        let lanes = lanes.map(|lane| (lane.lane, Duration::from_millis(lane.verdict_ms))).collect();
        let verdict_in = Duration::from_millis(verdict_ms);
        promises.insert(instance, Promise { heard: Instant::now(), verdict_in, lanes });
    }
}

impl Heard {
    fn add(&mut self, said: Said, release: Release) {
        if self.verdicts.len() >= MOST_VERDICTS * self.placements {
            return;
        }
        self.verdicts.push((said, release));
        if (matches!(said, Said::Placed | Said::UnderWay) || self.said().len() == self.placements)
            && let Some(settled) = self.settled.take()
        {
            let _ = settled.send(());
        }
    }

    fn said(&self) -> HashMap<PlacementId, Said> {
        self.verdicts.iter().map(|(said, release)| (release.placement_id, *said)).collect()
    }
}

impl Waiting {
    /// Waits until all placements have a verdict, one is under way, or `until` passes; returns the verdicts.
    pub(crate) async fn verdicts(&mut self, until: Instant) -> HashMap<PlacementId, Said> {
        // After the timeout the order stands.
        let _ = tokio::time::timeout_at(until.into(), &mut self.settled).await;
        lock(&self.handshake.waiting).get(&self.order_id).map(Heard::said).unwrap_or_default()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let heard = lock(&self.handshake.waiting).remove(&self.order_id);
        for (_, release) in heard.into_iter().flat_map(|heard| heard.verdicts) {
            self.handshake.releases.hand_in(release);
        }
    }
}
