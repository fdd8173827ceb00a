//! Hints, who may give them, and how many.

use std::{
    num::NonZeroU32,
    time::{Duration, Instant},
};

use domain::PlacementId;
use serde_json::json;
use signing::{SecretKey, airalo};
use testkit::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::{net::TcpStream, task::JoinSet};

use crate::{
    seller::Seller,
    support::{Bench, SECRET_KEY, TOKEN, change_account},
};

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

/// Whoever opens connections and says nothing, or begins a request and does not end it, keeps no
/// provider out.
#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_keep_no_provider_out() {
    let bench = Bench::start(|_| {}).await;
    let path = format!("/callbacks/sandbox/{TOKEN}");
    // More than may be open, which is four times those in flight (`CALLBACK_CONCURRENCY`).
    let mut silent = Vec::new();
    for round in 0..300 {
        let mut connection = TcpStream::connect(bench.config.listen).await.unwrap();
        if round % 2 == 0 {
            connection.write_all(b"POST /call").await.unwrap();
        }
        silent.push(connection);
    }
    for _ in 0..8 {
        assert_eq!(bench.call_back(&path, "no JSON").await, 400);
    }
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
    let bench = Bench::start(|config| config.callback_rate = NonZeroU32::new(10).unwrap()).await;
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

/// What became of an eSIM as it is kept: its reports, and whether the provider was asked.
async fn reports(bench: &Bench, id: PlacementId) -> (Vec<String>, bool) {
    let reports: Vec<String> = sqlx::query_scalar(
        "SELECT detail FROM history WHERE kind = 'reported' AND placement_id = $1 ORDER BY at",
    )
    .bind(id.uuid())
    .fetch_all(&bench.pool)
    .await
    .unwrap();
    let asked = "SELECT EXISTS (SELECT FROM esim_requests JOIN topups USING (topup_id)
                                WHERE placement_id = $1 AND read_at IS NOT NULL AND data_used > 0)";
    let is_confirmed: bool = sqlx::query_scalar(asked)
        .bind(id.uuid())
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    (reports, is_confirmed)
}

async fn confirmed(bench: &Bench, id: PlacementId) {
    wait::soon("a report to be confirmed", async || {
        Ok(reports(bench, id).await.1.then_some(()))
    })
    .await;
}

/// The events of eSIM Access, as its reference shows them: doubled, in the form of its tests, of an
/// eSIM that nobody has, and with figures that are not true. Each is kept once and leads to one
/// call, whose answer is what counts.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_reported_of_an_esim_is_kept_once_and_confirmed_by_a_call() {
    let bench = Bench::start(|config| config.providers = vec!["esim-access".to_owned()]).await;
    let id = bench.accept_at("esim-access", &["in-use"]).await;
    bench.ready(id).await;
    let path = format!("/callbacks/esim-access/{TOKEN}");
    let unit = bench.unit(id).await;
    let event = |kind: &str, number: u32, unit: &str, content: serde_json::Value| {
        let mut body = json!({
            "notifyType": kind, "notifyId": format!("N{number}"), "eventGenerateTime": "2026-11-29T01:02:03Z",
            "content": { "orderNo": "B1", "esimTranNo": unit, "transactionId": id.to_string() },
        });
        let more = content.as_object().unwrap().clone();
        body["content"].as_object_mut().unwrap().extend(more);
        body.to_string()
    };
    let in_use = json!({ "esimStatus": "IN_USE", "smdpStatus": "ENABLED", "orderUsage": 1 });
    for _ in 0..2 {
        let body = event("ESIM_STATUS", 1, &unit, in_use.clone());
        assert_eq!(bench.call_back(&path, body).await, 200);
    }
    confirmed(&bench, id).await;
    let further = [
        event(
            "SMDP_EVENT",
            2,
            &unit,
            json!({ "smdpStatus": "ENABLED", "eid": "8904903200000000" }),
        ),
        event(
            "DATA_USAGE",
            3,
            &unit,
            json!({ "remain": 1_000, "remainThreshold": 0.1 }),
        ),
        event(
            "VALIDITY_USAGE",
            4,
            &unit,
            json!({ "remain": 1, "durationUnit": "DAY" }),
        ),
        event("CHECK_HEALTH", 5, &unit, json!({ "orderStatus": "Test" })),
        event("DATA_USAGE", 6, "7", json!({ "remain": 1_000 })),
        String::new(),
    ];
    for body in further {
        assert_eq!(bench.call_back(&path, body).await, 200);
    }
    let test = format!("{path}?notifyType=DATA_USAGE&notifyId=N7&content[esimTranNo]={unit}");
    assert_eq!(bench.call_back(&test, "").await, 200);
    let expected = [
        "ESIM_STATUS IN_USE ENABLED",
        "SMDP_EVENT ENABLED",
        "DATA_USAGE 1000 0.1",
        "VALIDITY_USAGE 1",
        "DATA_USAGE",
    ];
    assert_eq!(reports(&bench, id).await.0, expected);
    // The eSIM was asked for once. The later reports wait until the answer is five minutes old.
    assert!(bench.calls(&["call=\"status\""]).await <= 1.0);
    let wait = "SELECT at > now() + interval '4 minutes' FROM work WHERE kind = 'usage'";
    let waits: bool = sqlx::query_scalar(wait)
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    assert!(waits);
}

/// The stand-ins send what the documents of the providers list, as they show it, and not what this
/// file knows.
#[tokio::test(flavor = "multi_thread")]
async fn each_event_that_a_provider_documents_is_kept_and_confirmed() {
    let of_esim_access = [
        "DATA_USAGE 3758096384 0.7",
        "ESIM_STATUS IN_USE ENABLED",
        "SMDP_EVENT GOT_RESOURCE DOWNLOAD",
        "SMDP_EVENT GOT_RESOURCE ENABLED",
        "SMDP_EVENT GOT_RESOURCE INSTALLATION",
        "VALIDITY_USAGE 1",
    ];
    let of_airalo = [
        "little data or time left: 3days",
        "little data or time left: 75%",
    ];
    for (provider, expected) in [
        ("esim-access", of_esim_access.as_slice()),
        ("airalo", of_airalo.as_slice()),
    ] {
        let mut bench = Bench::stopped(|config| config.providers = vec![provider.to_owned()]).await;
        let listen = bench.config.listen;
        let url = format!("http://{listen}/callbacks/sandbox/{TOKEN}");
        let seller = Seller::with_events(&url).await;
        change_account(&mut bench.config, provider, "URL", seller.url().as_str());
        bench.run().await;
        let id = bench.accept_at(provider, &["in-use"]).await;
        bench.ready(id).await;
        wait::soon("each event", async || {
            let mut kept = reports(&bench, id).await.0;
            kept.sort_unstable();
            Ok((kept == expected).then_some(()))
        })
        .await;
        confirmed(&bench, id).await;
    }
}

/// The provider reports something and does not answer the question that follows. The question is
/// repeated until it has an answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_whose_confirmation_fails_is_confirmed_later() {
    let bench = Bench::start(|config| config.providers = vec!["esim-access".to_owned()]).await;
    let id = bench.accept_at("esim-access", &["in-use"]).await;
    bench.ready(id).await;
    let path = format!("/callbacks/esim-access/{TOKEN}");
    let unit = bench.unit(id).await;
    bench.sandbox.faults(json!({ "error_rate": 1.0 })).await;
    let content = json!({ "esimTranNo": unit, "esimStatus": "IN_USE" });
    let event = json!({ "notifyType": "ESIM_STATUS", "notifyId": "N1", "content": content });
    assert_eq!(bench.call_back(&path, event.to_string()).await, 200);
    wait::soon("a call that fails", async || {
        let failed = ["call=\"status\"", "outcome=\"unknown\""];
        Ok((bench.calls(&failed).await >= 1.0).then_some(()))
    })
    .await;
    bench.sandbox.faults(json!({})).await;
    wait::soon("the report to be confirmed", async || {
        bench
            .sql("UPDATE work SET at = now() WHERE kind = 'usage' AND at < now() + interval '20 seconds'")
            .await;
        Ok(reports(&bench, id).await.1.then_some(()))
    })
    .await;
    let left = "SELECT count(*) FROM work WHERE kind = 'usage'";
    let left: i64 = sqlx::query_scalar(left)
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    assert_eq!(left, 0);
}

/// Whoever knows the token may name an eSIM of ours with ever new ids of events.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_reports_about_an_esim_costs_eight_statements_a_second() {
    let bench = Bench::start(|config| config.providers = vec!["esim-access".to_owned()]).await;
    let id = bench.accept_at("esim-access", &["in-use"]).await;
    bench.ready(id).await;
    let path = format!("/callbacks/esim-access/{TOKEN}");
    let unit = bench.unit(id).await;
    let began = Instant::now();
    for number in 0..100 {
        let content = json!({ "esimTranNo": unit, "esimStatus": "IN_USE" });
        let id = format!("N{number}");
        let event = json!({ "notifyType": "ESIM_STATUS", "notifyId": id, "content": content });
        assert_eq!(bench.call_back(&path, event.to_string()).await, 200);
    }
    let seconds = began.elapsed().as_secs_f64();
    let kept = reports(&bench, id).await.0.len();
    let kept = f64::from(u32::try_from(kept).unwrap());
    assert!(
        (1.0..=8.0 * (seconds + 1.0)).contains(&kept),
        "{kept} in {seconds} s"
    );
}

/// Airalo signs its webhooks, and tries the URL by `HEAD`.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_of_airalo_counts_only_with_its_signature() {
    let bench = Bench::start(|config| config.providers = vec!["airalo".to_owned()]).await;
    let id = bench.accept_at("airalo", &["in-use"]).await;
    bench.ready(id).await;
    let url = |token: &str| format!("http://{}/callbacks/airalo/{token}", bench.config.listen);
    for (token, status) in [(TOKEN, 200), ("another-token-of-some-length", 404)] {
        let tried = bench.http.head(url(token)).send().await.unwrap();
        assert_eq!(tried.status().as_u16(), status);
    }
    let iccid = "SELECT iccid FROM esims JOIN topups USING (topup_id) WHERE placement_id = $1";
    let iccid: String = sqlx::query_scalar(iccid)
        .bind(id.uuid())
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    let low =
        json!({ "level": "90%", "iccid": iccid, "package_name": "P", "remaining_percentage": 10 });
    let credit = json!({ "message": "Your credit is low", "remaining": "12.50" });
    let secret = SecretKey::from_bytes(SECRET_KEY.as_bytes().to_vec()).unwrap();
    let other = SecretKey::from_bytes(b"another".to_vec()).unwrap();
    for (body, secret, status) in [
        (&low, &other, 401),
        (&low, &secret, 200),
        (&low, &secret, 200),
        (&credit, &other, 401),
        (&credit, &secret, 200),
        (&json!({ "request_id": "r" }), &secret, 200),
    ] {
        let body = body.to_string();
        let request = bench.http.post(url(TOKEN));
        let request = request.header("airalo-signature", airalo::sign(secret, body.as_bytes()));
        let response = request.body(body).send().await.unwrap();
        assert_eq!(response.status().as_u16(), status);
    }
    assert_eq!(
        bench
            .call_back(&format!("/callbacks/airalo/{TOKEN}"), low.to_string())
            .await,
        401
    );
    confirmed(&bench, id).await;
    let kept = reports(&bench, id).await.0;
    assert_eq!(kept, ["little data or time left: 90%"]);
    let account = "SELECT count(*) FROM history WHERE provider = 'airalo' AND order_id IS NULL AND kind = 'reported'";
    let account: i64 = sqlx::query_scalar(account)
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    assert_eq!(account, 1);
}
