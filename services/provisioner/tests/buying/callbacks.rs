//! Hints, who may give them, and how many.

use std::time::{Duration, Instant};

use serde_json::json;
use testkit::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::{net::TcpStream, task::JoinSet};

use crate::support::{Bench, TOKEN};

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_brings_the_next_look_forward() {
    let bench = Bench::start(|_| {}).await;
    let id = bench.accept(&["delayed"]).await;
    bench.until(id, |stored| stored.bought).await;
    // Without a callback it would not be looked at before tomorrow.
    bench
        .set(
            "UPDATE work SET at = now() + interval '1 day' WHERE id = $1",
            id,
        )
        .await;
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
        "esim_due_oldest_seconds",
    ] {
        assert!(shown.contains(documented), "{documented}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_that_come_twice_or_before_the_answer_change_nothing() {
    let bench = Bench::start(|_| {}).await;
    let id = bench
        .accept(&["duplicate-callback", "duplicate-callback"])
        .await;
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
        "topupId": bench.unit(id).await, "optionId": "o", "iccid": "8982123456789012345",
        "smdp": "smdp.example.com", "activateCode": "A1-B2", "downloadLink": "LPA:1$smdp.example.com$A1-B2",
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
        (path.clone(), json!({ "topupId": "nul\0" }).to_string(), 400),
        (
            path.clone(),
            json!({ "topupId": "x".repeat(6_000) }).to_string(),
            400,
        ),
        (path.clone(), " ".repeat(64 * 1024 + 1), 413),
        (
            path.clone(),
            json!({ "topupId": "unknown" }).to_string(),
            200,
        ),
        (path.clone(), forged, 200),
    ] {
        assert_eq!(bench.call_back(&path, body).await, status, "{path}");
    }
    assert!(bench.calls(&["call=\"collect\""]).await >= 1.0);
    let stored = bench.look(id).await;
    assert_eq!(
        (stored.state.as_str(), stored.pending, stored.deliveries),
        ("placed", 1, 0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_beyond_those_in_flight_get_503_until_there_is_room() {
    let bench = Bench::start(|_| {}).await;
    let path = format!("/callbacks/sandbox/{TOKEN}");
    let head = format!("POST {path} HTTP/1.1\r\nhost: callbacks\r\ncontent-length: 9\r\n\r\n");
    let begin = async || {
        let mut connection = TcpStream::connect(bench.config.listen).await.unwrap();
        connection.write_all(head.as_bytes()).await.unwrap();
        connection
    };
    // As many as may be in flight (`CALLBACK_CONCURRENCY`).
    let mut unfinished = Vec::new();
    for _ in 0..64 {
        unfinished.push(begin().await);
    }
    let third = async || {
        let mut connection = TcpStream::connect(bench.config.listen).await.unwrap();
        connection
            .write_all(format!("{head}not JSON.").as_bytes())
            .await
            .unwrap();
        let mut answer = vec![0; 1024];
        let read = connection.read(&mut answer).await.unwrap_or_default();
        String::from_utf8_lossy(&answer[..read]).to_ascii_lowercase()
    };
    wait::soon("a callback that is shed", async || {
        // An earlier one may have been shed itself: the whole one was faster.
        unfinished.push(begin().await);
        let answer = third().await;
        let is_shed = answer.starts_with("http/1.1 503") && answer.contains("retry-after: 1\r\n");
        Ok(is_shed.then_some(()))
    })
    .await;
    drop(unfinished);
    wait::soon("room", async || {
        Ok(third().await.starts_with("http/1.1 400").then_some(()))
    })
    .await;
    let shed = bench
        .metric("esim_provider_callbacks_total", &["outcome=\"shed\""])
        .await;
    assert!(shed >= 1.0, "{shed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_callbacks_makes_one_update_per_placement_and_second() {
    const FLOOD: Duration = Duration::from_secs(3);
    let bench = Bench::start(|_| {}).await;
    let count_hints = "
         CREATE TABLE hints (at timestamptz);
         CREATE FUNCTION hinted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
         BEGIN INSERT INTO hints VALUES (now()); RETURN NULL; END $$;
         CREATE TRIGGER hinted AFTER UPDATE ON placements FOR EACH ROW
         WHEN (NEW.hinted_at IS DISTINCT FROM OLD.hinted_at) EXECUTE FUNCTION hinted()";
    bench.sql(count_hints).await;
    let id = bench.accept(&["never-ready"]).await;
    bench.until(id, |stored| stored.bought).await;
    let unit = bench.unit(id).await;
    let url = format!("http://{}/callbacks/sandbox/{TOKEN}", bench.config.listen);
    let http = testkit::http::client().unwrap();
    let began = Instant::now();
    let mut flood = JoinSet::new();
    for caller in 0..100 {
        let http = http.clone();
        let url = url.clone();
        let unit = unit.clone();
        flood.spawn(async move {
            for round in 0.. {
                if began.elapsed() > FLOOD {
                    break;
                }
                // Half of them name a unit of their own, which nobody has.
                let unit = if caller % 2 == 0 {
                    unit.clone()
                } else {
                    format!("{caller}-{round}")
                };
                // A closed connection is fine, too.
                let _ = http
                    .post(&url)
                    .body(json!({ "topupId": unit }).to_string())
                    .send()
                    .await;
            }
        });
    }
    let good = bench.accept(&["ready"]).await;
    bench.ready(good).await;
    flood.join_all().await;
    let seconds = began.elapsed().as_secs_f64();
    let hints: i64 = sqlx::query_scalar("SELECT count(*) FROM hints")
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    assert!(
        (1.0..=seconds + 2.0).contains(&f64::from(i32::try_from(hints).unwrap())),
        "{hints} updates in {seconds} s"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_beyond_the_rate_cost_no_statement() {
    let bench = Bench::start(|config| config.callback_rate = 10).await;
    let path = format!("/callbacks/sandbox/{TOKEN}");
    let count = async |outcome: &str| {
        bench
            .metric(
                "esim_provider_callbacks_total",
                &[&format!("outcome=\"{outcome}\"")],
            )
            .await
    };
    let before = count("ignored").await;
    let began = Instant::now();
    let mut shed = 0;
    for round in 0..100 {
        // Every other one names the same unit again.
        let unit = if round % 2 == 0 {
            "same".to_owned()
        } else {
            round.to_string()
        };
        match bench
            .call_back(&path, json!({ "topupId": unit }).to_string())
            .await
        {
            200 => {}
            503 => shed += 1,
            other => panic!("{other}"),
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let statements = count("ignored").await - before;
    assert!(statements >= 10.0, "{statements} statements in {seconds} s");
    assert!(
        statements <= 10.0 * (seconds + 1.0),
        "{statements} statements in {seconds} s"
    );
    assert!(
        shed > 0 && count("repeated").await > 0.0,
        "{shed} shed in {seconds} s"
    );
}
