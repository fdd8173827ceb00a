//! Ingress's side of the exchange with the provisioners about an answer. While an order is being
//! answered, this process collects the verdicts on its placements, and holds its readiness events
//! until the answer has left.
//!
//! ```text
//!    expect_reports          the 201 has left           all units ready, or the deadline
//! ──────▶ Answering ────────────────▶ Answered ───────────────▶ forgotten
//!         events are held             events are published      events are published
//!                                     at once                   at once
//! ```
//!
//! Guarantee: a readiness event that arrives here is published only when the answer of its order
//! has left or never will. Only this process knows when that is. `orders.answering` names this
//! process, so every provisioner sends it the events of such an order until `answer_by`.
//!
//! [`super::accept`] calls it: an order is pending here from before its commit until its
//! [`PendingAnswer`] is dropped. One promise rests on the reports that arrive here: after the
//! verdict *placed* the 201 is sent without a flush (`decide.rs`), because the provisioner's claim,
//! which was flushed, is behind the order in the log. No other promise does:
//!
//! - If this process dies, the answers that it owes never leave. The readiness events that it held,
//!   and those that are still sent to it, are lost. The sweep finds their deliveries when their
//!   first lease has ended. That lease is longer than the time until `answer_by`, which
//!   [`pipeline::timing`] checks, so the webhook still comes after the answer. A restarted process
//!   has another id, so it does not get reports that were meant for the one before.
//! - If this process is stopped in the ordinary way, it goes on listening while an order that it
//!   has answered misses a unit, but only until `answer_by` of that order ([`Handshake::drain`]).
//!   So hardly any webhook is late because of a restart, and a restart rarely has to wait.
//! - If an order is not pending here, this process has answered it or never will. Its events are
//!   therefore published at once.
//! - If somebody forges a verdict, no order is refused wrongly, because only a transaction in
//!   PostgreSQL decides whether an order is refused. If somebody forges a readiness event, the
//!   notifier reads a delivery for nothing. At worst the forged event takes the place of a real
//!   one, because no more events are held than the order has units; then the sweep finds the real
//!   delivery after its first lease. An event that comes twice takes only one place. So one order
//!   can make this process keep at most one verdict for each of its placements and one event for
//!   each of its units.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use domain::{DeliveryId, OrderId, PlacementId};
use pipeline::{
    Batcher, Nats,
    payload::{ROWS_PER_MESSAGE, ReadyDelivery, ReadyReport, Reports, Verdict, VerdictReport},
    publish::AnnouncedRow,
};
use runtime::{Shutdown, lock, make_room};
use store::orders::{NewOrder, NewPlacement};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::heartbeats::Heartbeats;
use crate::http::left::LeftAnswers;

/// How often a process that stops checks whether it still waits for readiness events.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// The orders that this process is answering, and the heartbeats of provisioners.
pub(crate) struct Handshake {
    nats: Nats,
    /// The id of this process in `orders.answering`. Each start makes a new one.
    ingress_id: Uuid,
    pending: Arc<PendingOrders>,
    heartbeats: Heartbeats,
    /// The orders whose answers have left.
    pub(crate) left_answers: Arc<LeftAnswers>,
}

impl Handshake {
    /// Creates the receiver for orders to `providers`. It receives nothing until
    /// [`Handshake::listen`] runs.
    pub(crate) fn new<'a>(
        nats: &Nats,
        providers: impl Iterator<Item = &'a str>,
        shutdown: &Shutdown,
    ) -> Arc<Self> {
        let ingress_id = Uuid::now_v7();
        Arc::new(Self {
            nats: nats.clone(),
            ingress_id,
            left_answers: Arc::new(LeftAnswers::new(nats, ingress_id)),
            pending: Arc::new(PendingOrders {
                orders: Mutex::default(),
                readiness_events: nats.readiness_events(shutdown),
            }),
            heartbeats: Heartbeats::new(providers),
        })
    }

    /// The id under which provisioners report to this process.
    pub(crate) fn ingress_id(&self) -> Uuid {
        self.ingress_id
    }

    /// Whether verdicts on all placements can be expected soon: NATS is up, and each
    /// provider has a provisioner that can buy now. Otherwise waiting would only delay the 201.
    pub(crate) fn expects_verdicts(&self, placements: &[NewPlacement]) -> bool {
        self.nats.is_up()
            && placements
                .iter()
                .all(|placement| self.heartbeats.is_fresh(&placement.provider))
    }

    /// Makes an order pending. Called before its commit, because a provisioner may report as soon
    /// as it is stored.
    pub(crate) fn expect_reports(&self, order: &NewOrder) -> PendingAnswer {
        self.pending.insert(order)
    }

    /// Receives reports and heartbeats, and what other processes ask and say about answers that
    /// have left. Returns only if a subscription ends, always with an error.
    pub(crate) async fn listen(self: Arc<Self>) -> anyhow::Result<()> {
        let reports = self.nats.reports_subject(self.ingress_id);
        let reports = self
            .nats
            .listen(reports, |reports| self.pending.receive(reports));
        let heartbeats = self.nats.heartbeat_subject("*");
        let heartbeats = self
            .nats
            .listen(heartbeats, |heartbeat| self.heartbeats.receive(&heartbeat));
        let left_answers = self.left_answers.listen();
        tokio::try_join!(reports, heartbeats, left_answers).map(|_| ())
    }

    /// Waits at the end of a stop for the readiness events of answered orders whose units are
    /// missing. After `answer_by` provisioners publish these events themselves. A provisioner that
    /// claimed a placement shortly before `answer_by` may still report to this process after it has
    /// gone; the sweep then finds the delivery.
    pub(crate) async fn drain(&self) {
        while self.pending.misses_units() {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    }
}

/// The orders whose answers are pending, and those that were answered a moment ago and still miss
/// units.
struct PendingOrders {
    orders: Mutex<HashMap<OrderId, PendingOrder>>,
    readiness_events: Batcher<AnnouncedRow<ReadyDelivery>>,
}

/// What has arrived for an order.
struct PendingOrder {
    /// The last verdict on each placement of the order.
    verdicts: HashMap<PlacementId, Option<Verdict>>,
    /// The longest time that one of these verdicts waited for its provider.
    provider_time: Duration,
    /// The number of units whose readiness events have not arrived yet.
    missing: usize,
    /// The deliveries whose readiness events have arrived, so that a repeated event counts once.
    arrived: HashSet<DeliveryId>,
    phase: Phase,
    /// Signals that the verdicts decide the answer.
    answerable: Option<oneshot::Sender<()>>,
}

/// What happens to the readiness events of an order.
enum Phase {
    /// The order is being answered: its events are held, at most one for each unit.
    Answering {
        held: Vec<AnnouncedRow<ReadyDelivery>>,
    },
    /// The 201 has left, so events are published at once. Until the deadline of the answer, a
    /// moment before `answer_by`, provisioners still send the events of missing units to this
    /// process.
    Answered { until: Instant },
}

impl PendingOrders {
    fn insert(self: &Arc<Self>, order: &NewOrder) -> PendingAnswer {
        let (sender, answerable) = oneshot::channel();
        let pending = PendingOrder {
            verdicts: order
                .placements
                .iter()
                .map(|placement| (placement.placement_id, None))
                .collect(),
            missing: order
                .placements
                .iter()
                .map(|placement| placement.topups.len())
                .sum(),
            provider_time: Duration::ZERO,
            arrived: HashSet::new(),
            phase: Phase::Answering { held: Vec::new() },
            answerable: Some(sender),
        };
        let mut orders = lock(&self.orders);
        // Answered orders whose units never came are forgotten.
        let now = Instant::now();
        make_room(&mut orders, |_, order| match order.phase {
            Phase::Answering { .. } => true,
            Phase::Answered { until } => until > now,
        });
        orders.insert(order.order_id, pending);
        PendingAnswer {
            pending: Arc::clone(self),
            order_id: order.order_id,
            remember_until: None,
            answerable,
        }
    }

    fn receive(&self, Reports::V1 { verdicts, ready }: Reports) {
        let mut orders = lock(&self.orders);
        for VerdictReport {
            order_id,
            placement_id,
            verdict,
            provider_ms,
        } in verdicts
        {
            // A verdict that comes after the answer changes nothing.
            if let Some(order) = orders.get_mut(&order_id) {
                let provider_time = Duration::from_millis(provider_ms.into());
                order.set(placement_id, verdict, provider_time);
            }
        }
        // No provisioner sends a longer list, so a longer one is forged. Its rest is ignored,
        // because otherwise one message could become many in the stream.
        for ReadyReport {
            order_id,
            delivery,
            traceparent,
        } in ready.into_iter().take(ROWS_PER_MESSAGE)
        {
            let ready = AnnouncedRow {
                row: delivery,
                traceparent,
            };
            let Some(order) = orders.get_mut(&order_id) else {
                self.readiness_events.push(ready);
                continue;
            };
            let is_new = order.arrive(&ready);
            match &mut order.phase {
                Phase::Answering { held } if is_new => held.push(ready),
                Phase::Answering { .. } => {}
                Phase::Answered { .. } => {
                    if order.missing == 0 {
                        orders.remove(&order_id);
                    }
                    self.readiness_events.push(ready);
                }
            }
        }
    }

    /// Whether readiness events of an answered order are still expected.
    fn misses_units(&self) -> bool {
        let now = Instant::now();
        lock(&self.orders)
            .values()
            .any(|order| matches!(order.phase, Phase::Answered { until } if until > now))
    }
}

impl PendingOrder {
    /// Notes a verdict, and signals if the verdicts now decide the answer. A verdict on a placement
    /// of another order is ignored.
    fn set(&mut self, placement_id: PlacementId, verdict: Verdict, provider_time: Duration) {
        let Some(last) = self.verdicts.get_mut(&placement_id) else {
            return;
        };
        *last = Some(verdict);
        self.provider_time = self.provider_time.max(provider_time);
        if (verdict.means_carried_out() || self.verdicts.values().all(Option::is_some))
            && let Some(answerable) = self.answerable.take()
        {
            let _ = answerable.send(());
        }
    }

    /// Counts the readiness event of a unit. Returns false if the same event came before, or if all
    /// units have arrived already, so that such an event is not held.
    fn arrive(&mut self, ready: &AnnouncedRow<ReadyDelivery>) -> bool {
        let is_new = self.missing > 0 && self.arrived.insert(ready.row.delivery_id);
        if is_new {
            self.missing -= 1;
        }
        is_new
    }
}

/// What is known about an order when the verdicts decide its answer, or the time for them ends.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    pub(crate) known: HashMap<PlacementId, Verdict>,
    /// How much of the time until then was the provider's. `None` if the verdicts did not decide
    /// the answer in time.
    pub(crate) provider_time: Option<Duration>,
}

/// An order whose answer is pending, until [`Self::answered`] or [`Self::forget`]. Dropping it, as
/// a panic does, forgets the order, too, so that no readiness event is held for ever.
pub(crate) struct PendingAnswer {
    pending: Arc<PendingOrders>,
    order_id: OrderId,
    /// Until when the order is remembered after its answer, because readiness events of its missing
    /// units may still come. `None` if it is forgotten at once.
    remember_until: Option<Instant>,
    answerable: oneshot::Receiver<()>,
}

impl PendingAnswer {
    /// Waits until the verdicts decide the answer or `until` passes, and returns what is known
    /// then. They decide it when one placement is bought or under way, because the order is then
    /// carried out, or when every placement has a verdict.
    pub(crate) async fn verdicts(&mut self, until: Instant) -> Verdicts {
        let in_time = tokio::time::timeout_at(until.into(), &mut self.answerable).await;
        let orders = lock(&self.pending.orders);
        let Some(order) = orders.get(&self.order_id) else {
            return Verdicts::default();
        };
        let known = order.verdicts.iter();
        Verdicts {
            known: known
                .filter_map(|(placement_id, verdict)| Some((*placement_id, (*verdict)?)))
                .collect(),
            provider_time: in_time.is_ok().then_some(order.provider_time),
        }
    }

    /// The 201 of the order has left, or never will. Publishes the readiness events that were held,
    /// and expects those of the missing units until the deadline of the answer.
    pub(crate) fn answered(mut self, answer_deadline: Instant) {
        self.remember_until = Some(answer_deadline);
    }

    /// The order gets no 201. Publishes the readiness events that were held, if there are any, and
    /// expects no further ones.
    pub(crate) fn unanswered(self) {
        drop(self);
    }
}

impl Drop for PendingAnswer {
    fn drop(&mut self) {
        let mut orders = lock(&self.pending.orders);
        let Some(order) = orders.get_mut(&self.order_id) else {
            return;
        };
        if let Phase::Answering { held } = &mut order.phase {
            for ready in held.drain(..) {
                self.pending.readiness_events.push(ready);
            }
        }
        match self.remember_until {
            Some(until) if order.missing > 0 => order.phase = Phase::Answered { until },
            _ => drop(orders.remove(&self.order_id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::{OptionId, PartnerId, TopupIds};
    use store::orders::NewTopup;
    use tokio::sync::mpsc;

    use super::*;

    const WAIT: Duration = Duration::from_secs(20);

    /// Pending orders whose readiness events arrive in a channel instead of the stream.
    fn pending() -> (Arc<PendingOrders>, mpsc::UnboundedReceiver<DeliveryId>) {
        let (sender, published) = mpsc::unbounded_channel();
        let readiness_events = Batcher::start(
            "test",
            64,
            tokio_util::task::TaskTracker::new(),
            &Shutdown::new(),
            move |batch: Vec<AnnouncedRow<ReadyDelivery>>| {
                for ready in batch {
                    sender.send(ready.row.delivery_id).unwrap();
                }
                async {}
            },
        );
        (
            Arc::new(PendingOrders {
                orders: Mutex::default(),
                readiness_events,
            }),
            published,
        )
    }

    /// An order of two placements with one unit each.
    fn order() -> NewOrder {
        let ids = TopupIds::new([0; 32]);
        let placement = |position: usize| NewPlacement {
            placement_id: PlacementId::new(),
            provider: "sandbox".into(),
            lane: "option".into(),
            alternatives: Vec::new(),
            topups: vec![NewTopup::new(
                ids.next(runtime::clock::now()),
                position,
                OptionId::new(),
                "option",
            )],
        };
        let placements = vec![placement(0), placement(1)];
        NewOrder {
            answer_within: WAIT,
            answering: Some(Uuid::now_v7()),
            ..NewOrder::new(PartnerId::new(), "external".into(), placements)
        }
    }

    fn verdict(order: &NewOrder, placement: usize, verdict: Verdict) -> Reports {
        let placement_id = order.placements[placement].placement_id;
        let verdict = VerdictReport {
            order_id: order.order_id,
            placement_id,
            verdict,
            provider_ms: 30 - 10 * u32::try_from(placement).unwrap(),
        };
        Reports::V1 {
            verdicts: vec![verdict],
            ready: Vec::new(),
        }
    }

    /// Reports a ready unit, and returns its delivery.
    fn report_ready(pending: &PendingOrders, order_id: OrderId) -> DeliveryId {
        let delivery_id = DeliveryId::new();
        report_delivery(pending, order_id, delivery_id);
        delivery_id
    }

    fn report_delivery(pending: &PendingOrders, order_id: OrderId, delivery_id: DeliveryId) {
        let delivery = ReadyDelivery {
            delivery_id,
            partner_id: PartnerId::new(),
        };
        let ready = ReadyReport {
            order_id,
            delivery,
            traceparent: None,
        };
        pending.receive(Reports::V1 {
            verdicts: Vec::new(),
            ready: vec![ready],
        });
    }

    #[tokio::test]
    async fn one_purchase_decides_the_answer_and_a_rejection_waits_for_the_other_placements() {
        let (pending, _published) = pending();
        for (first, second) in [
            (Verdict::Placed, None),
            (Verdict::UnderWay, None),
            (Verdict::Rejected, Some(Verdict::NotSent)),
        ] {
            let order = order();
            let mut answer = pending.insert(&order);
            pending.receive(verdict(&order, 0, first));
            assert_eq!(
                answer.answerable.try_recv().is_ok(),
                second.is_none(),
                "{first:?}"
            );
            if let Some(second) = second {
                pending.receive(verdict(&order, 1, second));
                let verdicts = answer.verdicts(Instant::now() + WAIT).await;
                let longest = Duration::from_millis(30);
                assert_eq!(verdicts.provider_time, Some(longest));
                assert_eq!(
                    verdicts.known,
                    HashMap::from([
                        (order.placements[0].placement_id, first),
                        (order.placements[1].placement_id, second),
                    ])
                );
            }
        }
    }

    #[tokio::test]
    async fn the_last_verdict_on_a_placement_counts_and_only_placements_of_the_order_have_one() {
        let (pending, _published) = pending();
        let other = order();
        let order = order();
        let mut answer = pending.insert(&order);
        let placement_id = other.placements[0].placement_id;
        let foreign = VerdictReport {
            order_id: order.order_id,
            placement_id,
            verdict: Verdict::Placed,
            provider_ms: 0,
        };
        pending.receive(Reports::V1 {
            verdicts: vec![foreign],
            ready: Vec::new(),
        });
        pending.receive(verdict(&order, 0, Verdict::NotSent));
        pending.receive(verdict(&order, 0, Verdict::Rejected));
        assert!(answer.answerable.try_recv().is_err());
        let verdicts = answer.verdicts(Instant::now()).await;
        assert_eq!(verdicts.provider_time, None, "nothing is decided");
        assert_eq!(
            verdicts.known,
            HashMap::from([(order.placements[0].placement_id, Verdict::Rejected)])
        );
    }

    #[tokio::test]
    async fn readiness_is_published_only_once_the_answer_has_left() {
        let (pending, mut published) = pending();
        let order = order();
        let answered = OrderId::new();
        let answer = pending.insert(&order);
        let held = report_ready(&pending, order.order_id);
        // An order that is not pending here is answered, or never will be.
        let at_once = report_ready(&pending, answered);
        assert_eq!(published.recv().await, Some(at_once));
        assert!(
            published.try_recv().is_err(),
            "the answer is still on its way"
        );
        answer.unanswered();
        assert_eq!(published.recv().await, Some(held));
        let later = report_ready(&pending, order.order_id);
        assert_eq!(published.recv().await, Some(later));
        assert!(lock(&pending.orders).is_empty());
    }

    #[tokio::test]
    async fn a_stop_waits_for_the_missing_units_of_answered_orders_until_answer_by() {
        let (pending, _published) = pending();
        let order = order();
        let answer = pending.insert(&order);
        report_ready(&pending, order.order_id);
        answer.answered(Instant::now() + WAIT);
        assert!(pending.misses_units(), "one of two units is ready");
        report_ready(&pending, order.order_id);
        assert!(!pending.misses_units());
        assert!(lock(&pending.orders).is_empty());

        let answer = pending.insert(&order);
        answer.answered(Instant::now());
        assert!(
            !pending.misses_units(),
            "from `answer_by` on, no event comes here"
        );
    }

    #[tokio::test]
    async fn forged_readiness_takes_no_more_memory_than_the_units_of_the_order() {
        let (pending, mut published) = pending();
        let order = order();
        let answer = pending.insert(&order);
        let reported: Vec<DeliveryId> = (0..100)
            .map(|_| report_ready(&pending, order.order_id))
            .collect();
        answer.unanswered();
        assert_eq!(
            [published.recv().await, published.recv().await],
            [Some(reported[0]), Some(reported[1])]
        );
        assert!(published.try_recv().is_err());
    }

    #[tokio::test]
    async fn readiness_that_comes_twice_takes_no_other_units_place() {
        let (pending, mut published) = pending();
        let order = order();
        let answer = pending.insert(&order);
        let twice = report_ready(&pending, order.order_id);
        report_delivery(&pending, order.order_id, twice);
        let other = report_ready(&pending, order.order_id);
        answer.unanswered();
        assert_eq!(
            [published.recv().await, published.recv().await],
            [Some(twice), Some(other)]
        );
        assert!(published.try_recv().is_err());
    }
}
