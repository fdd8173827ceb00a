//! Publishing, and the trace that travels with a message.

use std::{sync::Once, time::Duration};

use opentelemetry::trace::TraceContextExt;
use pipeline::{Effect, Nats, NatsConfig, trace};
use runtime::CommonConfig;
use secrecy::SecretString;
use serde_json::json;
use testkit::ports;
use tracing::{Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::bench::{Bench, Rows};

#[tokio::test]
async fn a_repeated_message_is_dropped_by_its_id() {
    let bench = Bench::new().await;
    bench.nats.ensure_streams().await.unwrap();
    for _ in 0..3 {
        bench.announce(1).await;
    }
    bench.announce(2).await;
    bench.until_messages(2).await;
    let stream = bench.stream("TOPUP_JOBS").await.unwrap();
    assert_eq!(stream.state.last_sequence, 2);
    let stream = bench.jetstream.get_stream(stream.config.name).await.unwrap();
    let first = stream.get_raw_message(1).await.unwrap();
    assert_eq!(first.subject.as_str(), bench.subject());
    assert_eq!(first.payload, r#"{"row":1}"#);
    assert_eq!(first.headers.get("Nats-Msg-Id").unwrap().as_str(), "row-1");
    assert!(
        first.headers.get(trace::TRACEPARENT).is_none(),
        "nothing is traced"
    );
}

#[tokio::test]
async fn a_stream_that_is_missing_is_made_and_the_message_kept() {
    let bench = Bench::new().await;
    for _ in 0..2 {
        bench.announce(1).await;
        bench.until_messages(1).await;
        let name = bench.nats.stream_name("TOPUP_JOBS");
        bench.jetstream.delete_stream(name).await.unwrap();
    }
}

#[tokio::test]
async fn what_cannot_be_published_is_no_failure() {
    let bench = Bench::new().await;
    bench.nats.ensure_streams().await.unwrap();
    // Larger than the stream accepts.
    let large = json!({"row": "x".repeat(100_000)});
    bench
        .nats
        .publish(
            Effect::PublishJob,
            bench.subject(),
            "large",
            &large,
            &Span::none(),
        )
        .await;
    bench.announce(1).await;
    bench.until_messages(1).await;
}

#[tokio::test]
async fn without_nats_publishing_returns_at_once() {
    let config = NatsConfig {
        nats_url: SecretString::from(format!("nats://127.0.0.1:{}", ports::free().unwrap())),
        stream_prefix: String::new(),
        stream_replicas: 1,
    };
    let at_once = async {
        let nats = Nats::connect(&config, "pipeline tests").await.unwrap();
        assert!(!nats.is_connected());
        let subject = nats.job_subject("sandbox");
        for _ in 0..1000 {
            nats.publish(Effect::PublishJob, subject.clone(), "1", &1, &Span::none())
                .await;
        }
        nats.flush().await;
    };
    tokio::time::timeout(Duration::from_secs(2), at_once)
        .await
        .unwrap();
}

fn tracing_on() {
    static TELEMETRY: Once = Once::new();
    TELEMETRY.call_once(|| {
        let common = CommonConfig {
            log: "off".into(),
            ..CommonConfig::default()
        };
        drop(runtime::telemetry::start("pipeline", &common).unwrap());
    });
}

#[tokio::test]
async fn a_trace_travels_with_its_message() {
    tracing_on();
    let bench = Bench::new().await;
    let rows = Rows::new([1]);
    let stage = bench.start(&rows, 4).await;
    let post = info_span!("POST", otel.kind = "server");
    let context = trace::context_of(&post).unwrap();
    let message = json!({"row": 1});
    bench
        .nats
        .publish(Effect::PublishJob, bench.subject(), "row-1", &message, &post)
        .await;
    rows.until_done(1).await;
    let traceparent = rows.done()[0].traceparent.clone();
    assert_eq!(traceparent.as_deref(), Some(context.as_str()));
    stage.stop().await;

    let process = info_span!("process", otel.kind = "consumer");
    trace::set_parent(&process, traceparent.as_deref());
    let trace_of = |span: &Span| span.context().span().span_context().trace_id();
    assert_eq!(trace_of(&process), trace_of(&post));
    // No header, whatever its text, stops the work.
    let other = info_span!("process", otel.kind = "consumer");
    trace::set_parent(&other, Some("00-nonsense"));
    assert_ne!(trace_of(&other), trace_of(&post));
}
