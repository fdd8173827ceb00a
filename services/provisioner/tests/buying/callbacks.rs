//! Callbacks: hints and their tokens.

use serde_json::json;

use crate::support::{Bench, TOKEN};

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_brings_the_next_look_forward() {
    let bench = Bench::start(|_| {}).await;
    let id = bench.accept(&["delayed"]).await;
    bench.until(id, |stored| stored.bought).await;
    // Without a callback it is not due before tomorrow.
    let tomorrow = "UPDATE placements SET redrive_at = now() + interval '1 day' WHERE placement_id = $1";
    bench.set(tomorrow, id).await;
    let stored = bench.ready(id).await;
    assert_eq!((stored.state.as_str(), stored.deliveries), ("placed", 1));
    let hinted = bench
        .metric("esim_provider_callbacks_total", &["outcome=\"hinted\""])
        .await;
    assert!(hinted >= 1.0, "{hinted}");
    let shown = bench.metrics().await;
    for documented in [
        "esim_provider_breaker",
        "esim_provider_calls_total",
        "esim_provider_call_duration_seconds",
        "esim_provider_callbacks_total",
        "esim_placements_parked",
        "esim_redrive_oldest_overdue_seconds",
    ] {
        assert!(shown.contains(documented), "{documented}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_that_come_twice_or_before_the_answer_change_nothing() {
    let bench = Bench::start(|_| {}).await;
    let id = bench.accept(&["duplicate-callback", "duplicate-callback"]).await;
    let stored = bench.ready(id).await;
    assert_eq!((stored.attempt, stored.ready, stored.deliveries), (1, 2, 2));
    assert_eq!(bench.sandbox.bought(id).await, (1, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_knows_the_token_is_heard_and_nothing_but_a_hint_is_taken() {
    let bench = Bench::start(|_| {}).await;
    let id = bench.accept(&["never-ready"]).await;
    bench.until(id, |stored| stored.bought).await;
    let forged = json!({
        "topupId": bench.unit(id).await,
        "optionId": "o",
        "iccid": "8982123456789012345",
        "smdp": "smdp.example.com",
        "activateCode": "A1-B2",
        "downloadLink": "LPA:1$smdp.example.com$A1-B2",
        "expiredDate": "2026-12-31",
    })
    .to_string();
    let path = format!("/callbacks/sandbox/{TOKEN}");
    for (path, body, status) in [
        (
            "/callbacks/sandbox/another-token-of-some-length".into(),
            forged.clone(),
            404,
        ),
        (format!("/callbacks/usimsa/{TOKEN}"), forged.clone(), 404),
        ("/".into(), forged.clone(), 404),
        (path.clone(), "no JSON".into(), 400),
        (path.clone(), " ".repeat(64 * 1024 + 1), 413),
        (path.clone(), json!({ "topupId": "unknown" }).to_string(), 200),
        (path.clone(), forged, 200),
    ] {
        assert_eq!(bench.call_back(&path, body).await, status, "{path}");
    }
    let collected = bench
        .metric("esim_provider_calls_total", &["call=\"collect\""])
        .await;
    assert!(collected >= 1.0);
    let stored = bench.look(id).await;
    assert_eq!(
        (stored.state.as_str(), stored.pending, stored.deliveries),
        ("placed", 1, 0)
    );
}
