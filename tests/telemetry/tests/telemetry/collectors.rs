//! A collector that isn't there, and one that takes connections and never answers: orders flow,
//! processes stop in time, and the log isn't full of it.

use crate::shop::Shop;
use futures_util::future::try_join_all;
use std::time::{Duration, Instant};
use testkit::stack::{Stack, Stage};
use tokio::net::TcpListener;

const ORDERS: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_collector_and_one_that_hangs_cost_nothing() {
    let nobody = format!("http://127.0.0.1:{}", testkit::ports::free().unwrap());
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hangs = format!("http://{}", hanging.local_addr().unwrap());
    let held = tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Ok((connection, _)) = hanging.accept().await {
            connections.push(connection);
        }
    });
    let mut builder = Stack::builder()
        .env(Stage::Ingress, "OTEL_EXPORTER_OTLP_ENDPOINT", &nobody)
        .env(Stage::Provisioner, "OTEL_EXPORTER_OTLP_ENDPOINT", &hangs)
        .env(Stage::Notifier, "OTEL_EXPORTER_OTLP_ENDPOINT", &hangs)
        .env(Stage::Notifier, "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    for stage in [Stage::Ingress, Stage::Provisioner, Stage::Notifier] {
        // Everything that may fill up or fail does so.
        builder = builder
            .env(stage, "OTEL_BSP_SCHEDULE_DELAY", "50")
            .env(stage, "OTEL_BSP_MAX_QUEUE_SIZE", "20")
            .env(stage, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5")
            .env(stage, "OTEL_BLRP_SCHEDULE_DELAY", "50")
            .env(stage, "OTEL_METRIC_EXPORT_INTERVAL", "100");
    }
    let mut stack = builder.start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let ready = stack.option("ready").unwrap().to_owned();
    let ids: Vec<String> = (0..ORDERS).map(|number| format!("order {number}")).collect();
    let items = [(ready.as_str(), 1)];
    let orders = ids.iter().map(|id| shop.client.order(id, &items));
    for answer in try_join_all(orders).await.unwrap() {
        answer.products().unwrap();
    }
    shop.receiver
        .wait_for(ORDERS, Duration::from_secs(20))
        .await
        .unwrap();
    drop(shop);

    for (stage, signals) in [(Stage::Ingress, 3), (Stage::Provisioner, 3), (Stage::Notifier, 3)] {
        let process = stack.process(stage).unwrap();
        let began = Instant::now();
        let status = process.terminate(Duration::from_secs(20)).await.unwrap();
        let took = began.elapsed();
        assert!(status.success(), "{stage:?}: {status}");
        // The stop itself, and at most two seconds for the collector.
        assert!(took < Duration::from_secs(6), "{stage:?} took {took:?}");
        let log = process.log().unwrap();
        let complaints = log.lines().filter(|line| line.contains("OTLP collector")).count();
        assert!(
            complaints <= signals,
            "{stage:?} complained {complaints} times:\n{log}"
        );
        assert!(!log.contains("opentelemetry"), "{log}");
    }
    let log = stack.process(Stage::Ingress).unwrap().log().unwrap();
    assert!(log.contains("does not take telemetry"), "it is told once: {log}");
    held.abort();
}
