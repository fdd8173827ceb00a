//! Publishing, and the trace that travels with a message.

use std::time::Duration;

use domain::{DeliveryId, PartnerId, PlacementId};
use pipeline::payload::{JobMessage, JobPlacement, ROWS_PER_MESSAGE, ReadyDelivery, ReadyMessage};
use pipeline::publish::{AnnouncedRow, Job};
use pipeline::{Nats, NatsAccess, NatsConfig, trace};
use runtime::Shutdown;
use secrecy::SecretString;
use serde_json::json;
use testkit::ports;

use crate::bench::{Bench, Rows};

fn job() -> AnnouncedRow<JobPlacement> {
    AnnouncedRow {
        row: JobPlacement {
            placement_id: PlacementId::new(),
            partner_id: PartnerId::new(),
            lane: "option".into(),
        },
        traceparent: None,
    }
}

#[tokio::test]
async fn jobs_travel_by_provider_in_messages_that_one_replica_can_run() {
    let bench = Bench::new().await;
    let jobs = bench.nats.jobs(&Shutdown::new());
    let mut sandbox = Vec::new();
    let mut usimsa = Vec::new();
    for n in 0..100 {
        let (to, name) = if n % 4 == 0 {
            (&mut usimsa, "usimsa")
        } else {
            (&mut sandbox, "sandbox")
        };
        let placement = job();
        to.push(placement.row.clone());
        let provider = name.to_owned();
        jobs.push(Job {
            provider,
            placement,
        });
    }
    bench.nats.flush().await;
    let info = bench.stream("TOPUP_JOBS").await.unwrap();
    let stream = bench.jetstream.get_stream(info.config.name).await.unwrap();
    let mut found = [Vec::new(), Vec::new()];
    let mut sizes = Vec::new();
    for sequence in 1..=info.state.last_sequence {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let JobMessage::V1 { placements } = serde_json::from_slice(&message.payload).unwrap();
        assert!(
            message.headers.get(trace::TRACEPARENT).is_none(),
            "nothing is traced"
        );
        sizes.push(placements.len());
        let index = [
            bench.nats.job_subject("sandbox"),
            bench.nats.job_subject("usimsa"),
        ]
        .iter()
        .position(|subject| *subject == *message.subject);
        found[index.unwrap()].extend(placements);
    }
    let mut expected = [sandbox, usimsa];
    // Batches may be stored in another order.
    for list in found.iter_mut().chain(&mut expected) {
        list.sort_by_key(|one| one.partner_id.uuid());
    }
    assert_eq!(found, expected);
    assert!(
        sizes.iter().all(|size| *size <= ROWS_PER_MESSAGE),
        "{sizes:?}"
    );
    assert!(sizes.len() <= 8, "they travel together: {sizes:?}");
}

#[tokio::test]
async fn readiness_travels_in_batches() {
    let bench = Bench::new().await;
    let readiness = bench.nats.readiness_events(&Shutdown::new());
    let mut deliveries: Vec<ReadyDelivery> = (0..40)
        .map(|_| ReadyDelivery {
            delivery_id: DeliveryId::new(),
            partner_id: PartnerId::new(),
        })
        .collect();
    for delivery in deliveries.clone() {
        readiness.push(AnnouncedRow {
            row: delivery,
            traceparent: None,
        });
    }
    bench.nats.flush().await;
    let info = bench.stream("TOPUP_READY").await.unwrap();
    assert!((2..=4).contains(&info.state.messages), "{:?}", info.state);
    let stream = bench.jetstream.get_stream(info.config.name).await.unwrap();
    let mut found = Vec::new();
    for sequence in 1..=info.state.last_sequence {
        let message = stream.get_raw_message(sequence).await.unwrap();
        assert_eq!(message.subject.as_str(), bench.nats.ready_batch_subject());
        let ReadyMessage::V1 { deliveries } = serde_json::from_slice(&message.payload).unwrap();
        found.extend(deliveries);
    }
    // Batches may be stored in another order.
    for list in [&mut found, &mut deliveries] {
        list.sort_by_key(|one| one.partner_id.uuid());
    }
    assert_eq!(found, deliveries);
}

#[tokio::test]
async fn a_stream_that_is_missing_is_made_and_the_message_kept() {
    let bench = Bench::new().await;
    for _ in 0..2 {
        bench.announce(1).await;
        bench.until_messages(1).await;
        bench
            .jetstream
            .delete_stream(bench.nats.stream_name("TOPUP_JOBS"))
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn what_cannot_be_published_is_no_failure() {
    let bench = Bench::new().await;
    bench.nats.ensure_streams().await.unwrap();
    // Larger than the stream accepts.
    let large = json!({"row": "x".repeat(100_000)});
    bench.nats.publish(bench.subject(), &large, None).await;
    bench.announce(1).await;
    bench.until_messages(1).await;
}

#[tokio::test]
async fn without_nats_publishing_returns_at_once() {
    let config = NatsConfig {
        nats_url: SecretString::from(format!("nats://127.0.0.1:{}", ports::free().unwrap())),
        stream_prefix: String::new(),
        stream_replicas: 1,
        access: NatsAccess::default(),
    };
    let at_once = async {
        let nats = Nats::connect(&config, "pipeline tests").await.unwrap();
        assert!(!nats.is_up());
        let subject = nats.job_subject("sandbox");
        for _ in 0..1000 {
            nats.publish(subject.clone(), &1, None).await;
        }
        nats.flush().await;
    };
    tokio::time::timeout(Duration::from_secs(2), at_once)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_trace_travels_with_its_message() {
    let rows = Rows::new([1]);
    let (bench, stage) = Bench::running(&rows, 4).await;
    let context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let message = json!({"rows": [1]});
    bench
        .nats
        .publish(bench.subject(), &message, Some(context.into()))
        .await;
    rows.until_done(1).await;
    assert_eq!(rows.done()[0].traceparent.as_deref(), Some(context));
    stage.stop().await;
}
