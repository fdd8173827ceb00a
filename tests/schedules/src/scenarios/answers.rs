//! The handshake of ingress: a readiness event is published once, never before its answer has left,
//! and always afterwards, however reports, verdicts and the answer overlap. And "has left" is said
//! only of an answer that has.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use domain::{DeliveryId, OrderId, PartnerId, PlacementId};

use super::choose;
use crate::{
    Nats, Shutdown,
    orders::{NewOrder, NewPlacement, handshake::Handshake},
    payload::{ReadyDelivery, ReadyReport, Reports, Verdict, VerdictReport},
};

const WAIT: Duration = Duration::from_secs(20);
const UNITS: usize = 3;

fn ready(order_id: OrderId, delivery_id: DeliveryId) -> Reports {
    let delivery = ReadyDelivery {
        delivery_id,
        partner_id: PartnerId::new(),
    };
    Reports::V1 {
        verdicts: Vec::new(),
        ready: vec![ReadyReport {
            order_id,
            delivery,
            traceparent: None,
        }],
    }
}

pub fn readiness_follows_its_answer_once() {
    super::run(async {
        let shutdown = Shutdown::new();
        let (nats, mut stream) = Nats::new();
        let [ours, theirs] =
            std::array::from_fn(|_| Handshake::new(&nats, std::iter::empty(), &shutdown));
        let listening =
            [&ours, &theirs].map(|handshake| tokio::spawn(Arc::clone(handshake).listen()));
        let placement_id = PlacementId::new();
        let order = NewOrder {
            order_id: OrderId::new(),
            placements: vec![NewPlacement {
                placement_id,
                provider: "sandbox".into(),
                topups: vec![(); UNITS],
            }],
        };
        let left = Arc::new(AtomicBool::new(false));
        let mut answer = ours.expect_reports(&order);
        let order_id = order.order_id;
        let deliveries: Vec<_> = (0..UNITS).map(|_| DeliveryId::new()).collect();
        // Reports are sent once there is a subscription. The first event comes twice.
        while !nats.is_heard(ours.ingress_id()) {
            tokio::task::yield_now().await;
        }
        let twice = deliveries[0];
        let reports: Vec<_> = deliveries
            .iter()
            .copied()
            .chain([twice])
            .map(|delivery_id| {
                let nats = nats.clone();
                let to = ours.ingress_id();
                tokio::spawn(async move { nats.report(to, &ready(order_id, delivery_id)) })
            })
            .collect();
        nats.report(
            ours.ingress_id(),
            &Reports::V1 {
                verdicts: vec![VerdictReport {
                    order_id,
                    placement_id,
                    verdict: Verdict::Placed,
                    provider_ms: 1,
                }],
                ready: Vec::new(),
            },
        );
        let asks = tokio::spawn({
            let left = Arc::clone(&left);
            async move {
                if theirs.left_answers.has_left(order_id).await {
                    assert!(left.load(Ordering::Relaxed), "it has not left yet");
                }
            }
        });
        let answers = tokio::spawn({
            let left = Arc::clone(&left);
            async move {
                // An early answer, or one that waits for the verdict.
                let waits = choose(2) == 1;
                if waits {
                    let verdicts = answer.verdicts(Instant::now() + WAIT).await;
                    assert_eq!(verdicts.known[&placement_id], Verdict::Placed);
                }
                left.store(true, Ordering::Relaxed);
                ours.left_answers.note(order_id, Instant::now() + WAIT);
                if waits {
                    answer.answered(Instant::now() + WAIT);
                } else {
                    drop(answer);
                }
                ours
            }
        });
        let mut published = Vec::new();
        while published.len() < UNITS {
            let row = stream.recv().await.unwrap();
            assert!(left.load(Ordering::Relaxed), "a webhook before its answer");
            published.push(row.row.delivery_id);
        }
        for report in reports {
            report.await.unwrap();
        }
        let ours = answers.await.unwrap();
        tokio::time::trigger_timeouts(|_| true);
        asks.await.unwrap();
        // Whoever forgets an order publishes what still comes, so only the repeated one may follow.
        published.sort_unstable_by_key(ToString::to_string);
        published.dedup();
        assert!(
            published.len() >= UNITS - 1,
            "an event took another one's place"
        );
        // Every task ends with the two processes.
        for task in listening {
            task.abort();
        }
        drop(ours);
    });
}
