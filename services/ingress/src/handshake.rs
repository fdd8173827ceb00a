//! Ingress's side of the answer handshake: while an order is being answered, this process collects the verdicts on its
//! placements, and holds its readiness events until the answer has left.
//!
//! Guarantee: a readiness event that arrives here is published only when the answer of its order has left or never
//! will. Only this process knows that, and `orders.answering` names it, so every provisioner sends it the events of
//! such an order until `answer_by`.
//!
//! [`crate::orders`] calls it: an order is pending here from before its commit until its [`PendingAnswer`] is dropped.
//! Nothing rests on this memory:
//!
//! - If this process dies, the answers that it owes never leave. The readiness events that it held, and those that are
//!   still sent to it, are lost: the sweep finds their deliveries after their first lease, which is longer than the
//!   time until `answer_by` ([`pipeline::timing`] checks that). A restarted process has another id.
//! - If this process stops, it listens until `answer_by` of the last order that it answered ([`Handshake::drain`]), so
//!   that no webhook is late because of a restart.
//! - An order that is not pending here is answered or never will be by this process, so its events are published at
//!   once.
//! - A forged verdict only makes ingress ask PostgreSQL, which decides whether the order is refused. A forged readiness
//!   event only makes the notifier read the delivery. What one order keeps is bounded by its placements and units.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use domain::{OrderId, PlacementId};
use pipeline::{
    Batcher, Nats,
    payload::{Heartbeat, MOST, ReadyReport, Reports, Verdict, VerdictReport},
    publish::Ready,
};
use runtime::{Shutdown, lock};
use store::orders::{NewOrder, NewPlacement};
use tokio::sync::oneshot;
use uuid::Uuid;

/// The age after which a heartbeat does not count any more.
const FRESH: Duration = Duration::from_secs(3);

/// The orders that this process is answering, and the last heartbeat of each provider.
pub(crate) struct Handshake {
    nats: Nats,
    /// Names this process in `orders.answering`.
    instance: Uuid,
    pending: Mutex<HashMap<OrderId, PendingOrder>>,
    readiness: Batcher<Ready>,
    /// By configured provider; other heartbeats are ignored, so that forged ones take no memory.
    heartbeats: Mutex<HashMap<String, Option<Instant>>>,
    /// When the last `answer_by` of an order that this process answers will have passed.
    answering_until: Mutex<Instant>,
    started: Instant,
}

/// What has arrived for an order that is not answered yet.
struct PendingOrder {
    /// The last verdict on each placement of the order.
    verdicts: HashMap<PlacementId, Option<Verdict>>,
    units: usize,
    /// The held readiness events: at most one for each unit.
    ready: Vec<Ready>,
    /// Signals that the verdicts decide the answer.
    decided: Option<oneshot::Sender<()>>,
}

/// An order whose answer is pending. Dropping it means that the answer has left or never will, and publishes the
/// readiness events that were held.
pub(crate) struct PendingAnswer {
    handshake: Arc<Handshake>,
    order_id: OrderId,
    decided: oneshot::Receiver<()>,
}

impl Handshake {
    /// Creates the receiver for orders to `providers`. [`Handshake::listen`] must run.
    pub(crate) fn new<'a>(nats: &Nats, providers: impl Iterator<Item = &'a str>, shutdown: &Shutdown) -> Arc<Self> {
        let started = Instant::now();
        Arc::new(Self {
            nats: nats.clone(),
            instance: Uuid::now_v7(),
            pending: Mutex::default(),
            readiness: nats.readiness(shutdown),
            heartbeats: Mutex::new(providers.map(|provider| (provider.to_owned(), None)).collect()),
            answering_until: Mutex::new(started),
            started,
        })
    }

    /// The id under which provisioners report to this process.
    pub(crate) fn instance(&self) -> Uuid {
        self.instance
    }

    /// Whether verdicts on all placements can be expected soon, because a provisioner of each provider has sent a
    /// heartbeat a moment ago.
    pub(crate) fn expects_verdicts(&self, placements: &[NewPlacement]) -> bool {
        if !self.nats.is_connected() {
            return false;
        }
        // Right after the start no heartbeat can have arrived yet, so the provisioners count as alive.
        if self.started.elapsed() < FRESH {
            return true;
        }
        let heartbeats = lock(&self.heartbeats);
        placements.iter().all(|placement| {
            let last = heartbeats.get(&placement.provider).copied().flatten();
            last.is_some_and(|at| at.elapsed() < FRESH)
        })
    }

    /// Makes an order pending. Called before its commit, because a provisioner may report as soon as it is stored.
    pub(crate) fn expect_reports(self: &Arc<Self>, order: &NewOrder) -> PendingAnswer {
        let (sender, decided) = oneshot::channel();
        let pending = PendingOrder {
            verdicts: order.placements.iter().map(|placement| (placement.placement_id, None)).collect(),
            units: order.placements.iter().map(|placement| placement.topups.len()).sum(),
            ready: Vec::new(),
            decided: Some(sender),
        };
        lock(&self.pending).insert(order.order_id, pending);
        PendingAnswer { handshake: Arc::clone(self), order_id: order.order_id, decided }
    }

    /// Receives reports and heartbeats. Returns only if a subscription ends.
    pub(crate) async fn listen(self: Arc<Self>) -> anyhow::Result<()> {
        let reports = self.nats.answer_subject(self.instance);
        let reports = self.nats.listen(reports, |reports| self.receive(reports));
        let heartbeats = self.nats.listen(self.nats.heartbeat_subject("*"), |heartbeat| self.beat(&heartbeat));
        tokio::try_join!(reports, heartbeats).map(|((), ())| ())
    }

    /// Waits until `answer_by` of the last order has passed, at the end of a stop: at most `PLACEMENT_WAIT` and
    /// [`pipeline::timing::ANSWER`]. From then on provisioners publish readiness events themselves. The few that
    /// claimed a placement just before are late; the sweep finds what they report.
    pub(crate) async fn drain(&self) {
        let until = *lock(&self.answering_until);
        tokio::time::sleep_until(until.into()).await;
    }

    fn receive(&self, Reports::V1 { verdicts, ready }: Reports) {
        let mut pending = lock(&self.pending);
        for VerdictReport { order_id, placement_id, verdict } in verdicts {
            // A verdict that comes after the answer changes nothing.
            if let Some(order) = pending.get_mut(&order_id) {
                order.set(placement_id, verdict);
            }
        }
        // A longer message is forged, and must not become many messages in the stream.
        for ReadyReport { order_id, delivery, traceparent } in ready.into_iter().take(MOST) {
            let ready = Ready { delivery, traceparent };
            match pending.get_mut(&order_id) {
                Some(order) => order.hold(ready),
                None => self.readiness.push(ready),
            }
        }
    }

    fn beat(&self, Heartbeat::V1 { provider }: &Heartbeat) {
        if let Some(last) = lock(&self.heartbeats).get_mut(provider) {
            *last = Some(Instant::now());
        }
    }
}

impl PendingOrder {
    fn set(&mut self, placement_id: PlacementId, verdict: Verdict) {
        let Some(last) = self.verdicts.get_mut(&placement_id) else { return };
        *last = Some(verdict);
        let is_carried_out = matches!(verdict, Verdict::Placed | Verdict::UnderWay);
        if (is_carried_out || self.verdicts.values().all(Option::is_some))
            && let Some(decided) = self.decided.take()
        {
            let _ = decided.send(());
        }
    }

    fn hold(&mut self, ready: Ready) {
        if self.ready.len() < self.units {
            self.ready.push(ready);
        }
    }
}

impl PendingAnswer {
    /// Waits until the verdicts decide the answer or `until` passes. They decide it when one placement is bought or
    /// under way, because the order is then carried out, or when every placement has a verdict. Returns what is known.
    pub(crate) async fn verdicts(&mut self, until: Instant) -> HashMap<PlacementId, Verdict> {
        let _ = tokio::time::timeout_at(until.into(), &mut self.decided).await;
        let pending = lock(&self.handshake.pending);
        let known = pending.get(&self.order_id).into_iter().flat_map(|order| &order.verdicts);
        known.filter_map(|(placement_id, verdict)| Some((*placement_id, (*verdict)?))).collect()
    }

    /// Notes that the order is stored and is not answered after `deadline`.
    pub(crate) fn stored(&self, deadline: Instant) {
        let mut until = lock(&self.handshake.answering_until);
        *until = deadline.max(*until);
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        let order = lock(&self.handshake.pending).remove(&self.order_id);
        for ready in order.into_iter().flat_map(|order| order.ready) {
            self.handshake.readiness.push(ready);
        }
    }
}
