//! What the provisioner tells the ingress process that is still answering an order.

use std::time::Duration;

use async_nats::{Subscriber, jetstream};
use domain::DeliveryId;
use futures_util::StreamExt;
use pipeline::payload::{Reports, Verdict};
use serde_json::json;
use testkit::wait;
use uuid::Uuid;

use crate::support::{Bench, PATIENCE};

/// The reports to one ingress process.
struct Inbox(Subscriber);

impl Inbox {
    async fn of(bench: &Bench, ingress: Uuid) -> Self {
        let subject = bench.nats.reports_subject(ingress);
        let reports = bench.nats.client().subscribe(subject).await.unwrap();
        // After this round trip, the server knows the subscription.
        bench.nats.ensure_streams().await.unwrap();
        Self(reports)
    }

    async fn next(&mut self) -> Reports {
        let message = tokio::time::timeout(PATIENCE, self.0.next()).await;
        serde_json::from_slice(&message.unwrap().unwrap().payload).unwrap()
    }

    /// The next report must be the verdict on one placement.
    async fn verdict(&mut self) -> Verdict {
        let Reports::V1 { verdicts, ready } = self.next().await;
        assert!(
            verdicts.len() == 1 && ready.is_empty(),
            "{verdicts:?} {ready:?}"
        );
        verdicts[0].verdict
    }
}

/// The number of readiness events that were ever published to the stream.
async fn published(bench: &Bench) -> u64 {
    let stream = jetstream::new(bench.nats.client().clone())
        .get_stream(bench.nats.stream_name("TOPUP_READY"))
        .await;
    stream.unwrap().cached_info().state.last_sequence
}

#[tokio::test(flavor = "multi_thread")]
async fn the_verdict_leaves_before_the_outcome_is_recorded() {
    let bench = Bench::start(|_| {}).await;
    bench.sandbox.faults(json!({ "latency_ms": 300 })).await;
    let ingress = Uuid::now_v7();
    let mut inbox = Inbox::of(&bench, ingress).await;
    let order = bench.store_pending(ingress, &["ready"]).await;
    let id = order.placements[0].placement_id;
    bench.announce("sandbox", &[id]).await;
    bench.until(id, |stored| stored.state == "placing").await;
    // As long as this transaction runs, nothing can be recorded.
    let mut transaction = bench.pool.begin().await.unwrap();
    let lock = "SELECT FROM placements WHERE placement_id = $1 FOR UPDATE";
    sqlx::query(lock)
        .bind(id.uuid())
        .execute(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(inbox.verdict().await, Verdict::Placed);
    assert_eq!(bench.look(id).await.state, "placing");
    transaction.rollback().await.unwrap();
    bench.ready(id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_is_recorded_before_its_verdict() {
    let bench = Bench::start(|_| {}).await;
    let ingress = Uuid::now_v7();
    let mut inbox = Inbox::of(&bench, ingress).await;
    let order = bench.store_pending(ingress, &["refused"]).await;
    let id = order.placements[0].placement_id;
    bench.announce("sandbox", &[id]).await;
    assert_eq!(inbox.verdict().await, Verdict::Rejected);
    assert_eq!(bench.look(id).await.state, "failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_of_an_order_that_is_being_answered_goes_to_its_ingress() {
    let bench = Bench::start(|_| {}).await;
    let ingress = Uuid::now_v7();
    let mut inbox = Inbox::of(&bench, ingress).await;
    // The profile of the second one comes later, from another claim.
    for option in ["ready", "delayed"] {
        let order = bench.store_pending(ingress, &[option]).await;
        let id = order.placements[0].placement_id;
        bench.announce("sandbox", &[id]).await;
        let mut reported = None;
        while reported.is_none() {
            let Reports::V1 { ready, .. } = inbox.next().await;
            reported = ready.into_iter().next();
        }
        let reported = reported.unwrap();
        assert_eq!(
            (reported.order_id, reported.delivery.partner_id),
            (order.order_id, order.partner_id),
            "{option}"
        );
        let find =
            "SELECT delivery_id FROM esims JOIN topups USING (topup_id) WHERE placement_id = $1";
        let stored: Uuid = sqlx::query_scalar(find)
            .bind(id.uuid())
            .fetch_one(&bench.pool)
            .await
            .unwrap();
        assert_eq!(
            reported.delivery.delivery_id,
            DeliveryId::from(stored),
            "{option}"
        );
        assert_eq!(
            published(&bench).await,
            0,
            "ingress publishes it, once the answer has left"
        );
    }
    // An order that nobody answers any more is announced at once.
    let id = bench.accept(&["ready"]).await;
    bench.ready(id).await;
    wait::soon("the readiness event", async || {
        Ok((published(&bench).await == 1).then_some(()))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deferred_placement_is_under_way_at_once() {
    let bench = Bench::start(|_| {}).await;
    bench
        .sql("UPDATE providers SET open_until = now() + interval '1 hour', version = version + 1")
        .await;
    bench.until_breaker("sandbox", "open").await;
    // The process reads its breakers each second.
    let seen = async || {
        Ok((bench.metric("esim_provider_breaker", &["sandbox"]).await > 0.0).then_some(()))
    };
    wait::soon("the open breaker", seen).await;
    let ingress = Uuid::now_v7();
    let mut inbox = Inbox::of(&bench, ingress).await;
    let order = bench.store_pending(ingress, &["ready"]).await;
    let id = order.placements[0].placement_id;
    bench.announce("sandbox", &[id]).await;
    let verdict = tokio::time::timeout(Duration::from_secs(5), inbox.verdict())
        .await
        .unwrap();
    assert_eq!(verdict, Verdict::UnderWay);
    assert_eq!(bench.sandbox.purchases().await, 0);
}
