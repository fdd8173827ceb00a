//! Reports from a provisioner to ingress processes.

use std::sync::{Arc, Mutex};

use domain::{DeliveryId, OrderId, PartnerId, PlacementId};
use pipeline::payload::{
    ROWS_PER_MESSAGE, ReadyDelivery, ReadyReport, Reports, Verdict, VerdictReport,
};
use pipeline::reports::{Report, ReportContent};
use runtime::Shutdown;
use uuid::Uuid;

use crate::bench::{Bench, connect, until};

/// The reports that arrive at an ingress process.
async fn received(bench: &Bench, ingress: Uuid) -> Arc<Mutex<Vec<Reports>>> {
    let received = Arc::new(Mutex::new(Vec::new()));
    let nats = connect(&bench.config).await;
    let listening = nats.clone();
    let kept = Arc::clone(&received);
    let subject = nats.reports_subject(ingress);
    tokio::spawn(async move {
        listening
            .listen(subject, |message| kept.lock().unwrap().push(message))
            .await
    });
    tokio::task::yield_now().await;
    // After this round trip, the server knows the subscription.
    nats.ensure_streams().await.unwrap();
    received
}

fn verdict() -> VerdictReport {
    VerdictReport {
        provider_ms: 0,
        order_id: OrderId::new(),
        placement_id: PlacementId::new(),
        verdict: Verdict::Placed,
    }
}

fn ready() -> ReadyReport {
    let delivery = ReadyDelivery {
        delivery_id: DeliveryId::new(),
        partner_id: PartnerId::new(),
    };
    ReadyReport {
        order_id: OrderId::new(),
        delivery,
        traceparent: None,
    }
}

#[tokio::test]
async fn reports_reach_the_ingress_that_answers_their_orders_together() {
    let bench = Bench::new().await;
    let reports = bench.nats.reports(&Shutdown::new());
    let mut expected = Vec::new();
    for ingress in [Uuid::now_v7(), Uuid::now_v7()] {
        let verdicts: Vec<VerdictReport> = (0..40).map(|_| verdict()).collect();
        let ready: Vec<ReadyReport> = (0..40).map(|_| ready()).collect();
        expected.push((ingress, received(&bench, ingress).await, verdicts, ready));
    }
    for row in 0..40 {
        for (ingress, _, verdicts, ready) in &expected {
            let verdict = ReportContent::Verdict(verdicts[row].clone());
            let ready = ReportContent::Ready(ready[row].clone());
            reports.push(Report {
                ingress: *ingress,
                content: verdict,
            });
            reports.push(Report {
                ingress: *ingress,
                content: ready,
            });
        }
    }
    for (_, received, verdicts, ready) in expected {
        let rows = || {
            let mut all_verdicts = Vec::new();
            let mut all_ready = Vec::new();
            for Reports::V1 { verdicts, ready } in received.lock().unwrap().iter() {
                assert!(verdicts.len() + ready.len() <= ROWS_PER_MESSAGE);
                all_verdicts.extend(verdicts.clone());
                all_ready.extend(ready.clone());
            }
            (all_verdicts, all_ready)
        };
        until("all reports", async || {
            rows().0.len() == verdicts.len() && rows().1.len() == ready.len()
        })
        .await;
        assert_eq!(rows(), (verdicts, ready));
        assert!(received.lock().unwrap().len() <= 5, "they travel together");
    }
}

#[tokio::test]
async fn an_unreadable_message_is_ignored() {
    let bench = Bench::new().await;
    let ingress = Uuid::now_v7();
    let received = received(&bench, ingress).await;
    let long = serde_json::json!({"type": "topup.answer.v1", "verdicts": [verdict()]});
    for ignored in [
        "nonsense".to_owned(),
        format!("{long}{}", " ".repeat(64 * 1024)),
    ] {
        bench
            .nats
            .client()
            .publish(bench.nats.reports_subject(ingress), ignored.into())
            .await
            .unwrap();
    }
    let readable = verdict();
    let reports = bench.nats.reports(&Shutdown::new());
    reports.push(Report {
        ingress,
        content: ReportContent::Verdict(readable.clone()),
    });
    until("the report", async || !received.lock().unwrap().is_empty()).await;
    let first = received.lock().unwrap()[0].clone();
    assert_eq!(
        first,
        Reports::V1 {
            verdicts: vec![readable],
            ready: vec![]
        }
    );
}
