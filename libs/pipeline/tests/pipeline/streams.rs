//! The settings of created streams and consumers.

use std::time::Duration;

use async_nats::jetstream::consumer::AckPolicy;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};

use crate::bench::{Bench, DURABLE, Rows};

#[tokio::test]
async fn streams_are_made_once_and_bounded() {
    let bench = Bench::new().await;
    bench.nats.ensure_streams().await.unwrap();
    bench.nats.ensure_streams().await.unwrap();
    let prefix = &bench.config.stream_prefix;
    for (base, kind) in [("TOPUP_JOBS", "job"), ("TOPUP_READY", "ready")] {
        let config = bench.stream(base).await.unwrap().config;
        assert_eq!(config.name, format!("{prefix}{base}"));
        assert_eq!(config.subjects, [format!("{prefix}topup.{kind}.>")]);
        assert_eq!(
            (config.retention, config.storage),
            (RetentionPolicy::Limits, StorageType::Memory)
        );
        assert_eq!(config.discard, DiscardPolicy::Old);
        assert_eq!(config.num_replicas, 1);
        assert!(config.max_bytes > 0 && config.max_message_size > 0);
        assert_eq!(config.max_age, Duration::from_mins(1));
    }
    let dead = bench.stream("TOPUP_DEAD").await.unwrap().config;
    assert_eq!(dead.subjects, [format!("{prefix}topup.dead.>")]);
    assert_eq!(dead.retention, RetentionPolicy::Limits);
    assert_eq!(dead.storage, StorageType::File);
    assert_eq!(dead.max_age, Duration::from_hours(30 * 24));
    assert!(dead.max_bytes > 0);
}

#[tokio::test]
async fn a_stream_that_an_operator_changed_is_left_alone() {
    let bench = Bench::new().await;
    let own = Config {
        name: bench.nats.stream_name("TOPUP_JOBS"),
        subjects: vec![bench.nats.job_subject(">")],
        retention: RetentionPolicy::Limits,
        max_bytes: 1_000_000,
        ..Config::default()
    };
    bench.jetstream.create_stream(own).await.unwrap();
    bench.nats.ensure_streams().await.unwrap();
    assert_eq!(
        bench.stream("TOPUP_JOBS").await.unwrap().config.max_bytes,
        1_000_000
    );
}

#[tokio::test]
async fn a_provider_that_is_not_served_leaves_the_stream_to_the_others() {
    let bench = Bench::new().await;
    bench.nats.ensure_streams().await.unwrap();
    // Far more than its share, without a wait for each.
    let unserved = bench.nats.job_subject("unserved");
    for _ in 0..12_000 {
        bench
            .nats
            .client()
            .publish(unserved.clone(), "{}".into())
            .await
            .unwrap();
    }
    bench.nats.flush().await;
    bench.until_messages(10_000).await;
    bench.announce(1).await;
    bench.until_messages(10_001).await;
}

#[tokio::test]
async fn the_consumer_takes_each_message_once_and_only_its_subject() {
    let bench = Bench::new().await;
    let stage = bench.start(&Rows::new([]), 4).await;
    bench.until_pulled().await;
    let config = bench.consumer().await.unwrap().config;
    assert_eq!(config.durable_name.as_deref(), Some(DURABLE));
    assert_eq!(config.filter_subject, bench.subject());
    assert_eq!(config.ack_policy, AckPolicy::None);
    stage.stop().await;
}
