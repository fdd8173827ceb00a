//! Faults of the whole provider, and duplicates that are not detected.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Caller, Started, config, ledger_file, option, sorted, strings};

fn none() -> Value {
    json!({
        "down": false, "error_rate": 0.0, "error_buys": 0.0, "latency_ms": 0, "silent_rate": 0.0,
        "not_found_lag_ms": 0, "detect_duplicates": null, "garbled": {}
    })
}

/// The statuses of `count` orders of one unit each.
async fn order_many(caller: &Caller, name: &str, count: usize) -> Vec<StatusCode> {
    let ready = option("ready");
    let mut statuses = Vec::new();
    for n in 0..count {
        let request = caller.ordering(&format!("{name}-{n}"), &[(&ready, 1)]);
        statuses.push(request.send().await.unwrap().status());
    }
    statuses
}

#[tokio::test]
async fn faults_are_replaced_as_a_whole_and_bad_ones_change_nothing() {
    let sandbox = Started::fresh().await;
    assert_eq!(sandbox.get("/faults").await, none());
    let (status, set) = sandbox
        .faults(json!({ "latency_ms": 5, "error_rate": 0.5, "detect_duplicates": false }))
        .await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        (
            &set["latency_ms"],
            &set["error_rate"],
            &set["detect_duplicates"]
        ),
        (&json!(5), &json!(0.5), &json!(false))
    );
    for (body, message) in [
        (
            json!({ "error_rate": 1.5 }),
            "error_rate must be between 0 and 1",
        ),
        (json!({ "slow": true }), "unknown field `slow`"),
        (json!([]), "not a set of faults"),
    ] {
        let (status, answer) = sandbox.faults(body).await;
        assert_eq!(
            (status, &answer["code"]),
            (StatusCode::BAD_REQUEST, &json!("9000"))
        );
        assert!(
            answer["message"].as_str().unwrap().contains(message),
            "{answer}"
        );
    }
    assert_eq!(sandbox.get("/faults").await, set);
    assert_eq!(
        sandbox.faults(json!({ "down": true })).await.1["latency_ms"],
        0
    );
    assert_eq!(sandbox.faults(json!({})).await, (StatusCode::OK, none()));
    assert_eq!(order_many(&sandbox, "well", 10).await, [StatusCode::OK; 10]);
}

#[tokio::test]
async fn down_closes_connections_and_buys_nothing() {
    let (_folder, path) = ledger_file();
    let sandbox = Started::new(&path).await;
    let ready = option("ready");
    sandbox.faults(json!({ "down": true })).await;
    let begun = Instant::now();
    for _ in 0..3 {
        let error = sandbox
            .ordering("order-1", &[(&ready, 1)])
            .send()
            .await
            .unwrap_err();
        assert!(error.is_request() && !error.is_timeout(), "{error:?}");
    }
    for (method, path) in [
        (Method::GET, "/api/v2/order/order-1"),
        (Method::POST, "/api/v2/cancel/1"),
    ] {
        let request = sandbox
            .http
            .request(method, format!("{}{path}", sandbox.base));
        assert!(request.send().await.is_err(), "{path}");
    }
    assert!(begun.elapsed() < Duration::from_secs(5));
    // Faults do not affect the sandbox's own routes.
    assert_eq!(sandbox.get("/faults").await["down"], true);
    assert_eq!(sandbox.ledger().await["purchases"], 0);
    sandbox.faults(json!({})).await;
    assert_eq!(sandbox.code("order-1", &[(&ready, 1)]).await, "0000");
    sandbox.stop().await;
}

#[tokio::test]
async fn errors_buy_or_do_not_as_asked() {
    let sandbox = Started::fresh().await;
    let error = StatusCode::INTERNAL_SERVER_ERROR;
    sandbox.faults(json!({ "error_rate": 1 })).await;
    assert_eq!(order_many(&sandbox, "nothing", 5).await, [error; 5]);
    assert_eq!(sandbox.ledger().await["purchases"], 0);

    sandbox
        .faults(json!({ "error_rate": 1, "error_buys": 1 }))
        .await;
    assert_eq!(order_many(&sandbox, "bought", 5).await, [error; 5]);
    assert_eq!(sandbox.ledger().await["purchases"], 5);
    let fetched = sandbox
        .send(Method::GET, "/api/v2/order/bought-0", "")
        .await;
    assert_eq!(
        fetched,
        (error, json!({ "code": "9999", "message": "Server error" }))
    );

    // 200 tosses of a coin: fewer than 40 of one side come once in 10^17 runs.
    sandbox
        .faults(json!({ "error_rate": 0.5, "error_buys": 0.5 }))
        .await;
    let statuses = order_many(&sandbox, "some", 200).await;
    let errors = statuses.iter().filter(|status| **status == error).count();
    assert!((40..160).contains(&errors), "{errors} errors");
    let bought =
        usize::try_from(sandbox.ledger().await["purchases"].as_u64().unwrap()).unwrap() - 5;
    let unsaid = bought - (200 - errors);
    assert!(
        0 < unsaid && unsaid < errors,
        "{unsaid} of {errors} errors bought"
    );
}

#[tokio::test]
async fn silence_buys_and_get_still_answers() {
    let sandbox = Started::fresh().await;
    sandbox.faults(json!({ "silent_rate": 1 })).await;
    sandbox
        .order_and_go("order-1", &[(&option("ready"), 2)])
        .await;
    assert_eq!(sandbox.bought("order-1").await, (1, 2));
    assert_eq!(
        sorted(&sandbox.fetch("order-1").await["products"], "status"),
        ["READY", "READY"]
    );
}

#[tokio::test]
async fn latency_delays_the_call_itself_and_outlives_the_client() {
    let (_folder, path) = ledger_file();
    let sandbox = Started::new(&path).await;
    let ready = option("ready");
    sandbox.faults(json!({ "latency_ms": 700 })).await;
    let begun = Instant::now();
    sandbox.order_and_go("order-1", &[(&ready, 1)]).await;
    let bought = sandbox.bought("order-1").await;
    assert!(bought == (0, 0) || begun.elapsed() >= Duration::from_millis(700));
    sandbox.until_bought("order-1").await;
    assert!(begun.elapsed() >= Duration::from_millis(700));
    let begun = Instant::now();
    assert_eq!(sandbox.fetch("order-1").await["code"], "0000");
    assert!(begun.elapsed() >= Duration::from_millis(700));

    // A stop does not wait until the latency is over: it answers the calls that have begun.
    sandbox.faults(json!({ "latency_ms": 60_000 })).await;
    let waiting = tokio::spawn(sandbox.ordering("order-2", &[(&ready, 1)]).send());
    sandbox.order_and_go("order-3", &[(&ready, 1)]).await;
    let begun = Instant::now();
    sandbox.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(waiting.await.unwrap().unwrap().status(), StatusCode::OK);
    let sandbox = Started::new(&path).await;
    for order_id in ["order-2", "order-3"] {
        assert_eq!(sandbox.bought(order_id).await, (1, 1), "{order_id}");
    }
    assert_eq!(
        sandbox.get("/faults").await,
        none(),
        "a restart lifts the faults"
    );
    sandbox.stop().await;
}

#[tokio::test]
async fn a_fresh_purchase_is_not_found_for_a_while() {
    let sandbox = Started::fresh().await;
    let ready = option("ready");
    let begun = Instant::now();
    sandbox.faults(json!({ "not_found_lag_ms": 800 })).await;
    assert_eq!(sandbox.code("order-1", &[(&ready, 1)]).await, "0000");
    let fetched = sandbox.fetch("order-1").await;
    if begun.elapsed() < Duration::from_millis(800) {
        assert_eq!(fetched["code"], "9002");
    }
    assert_eq!(sandbox.code("order-1", &[(&ready, 1)]).await, "9003");
    sandbox
        .fetch_until("order-1", |answer| answer["code"] == "0000")
        .await;
    assert!(begun.elapsed() >= Duration::from_millis(799));
}

#[tokio::test]
async fn undetected_duplicates_buy_again_and_the_ledger_shows_it() {
    let (_folder, path) = ledger_file();
    let mut settings = config(&path);
    settings.serve.detect_duplicates = false;
    let sandbox = Started::with(settings).await;
    let ready = option("ready");
    let answers = [
        sandbox.order("order-1", &[(&ready, 2)]).await,
        sandbox.order("order-1", &[(&ready, 2)]).await,
    ];
    let topups: HashSet<_> = answers
        .iter()
        .flat_map(|answer| sorted(&answer["products"], "topupId"))
        .collect();
    assert_eq!(topups.len(), 4);
    let fetched = sandbox.fetch("order-1").await;
    let found: HashSet<_> = sorted(&fetched["products"], "topupId")
        .into_iter()
        .collect();
    assert_eq!(found, topups);
    let detail = sandbox.get("/ledger?order_id=order-1").await;
    let order = &detail["orders"][0];
    assert_eq!(order["purchased_times"], 2);
    assert_eq!(order["units"], 4);
    for (bought, answer) in order["bought"].as_array().unwrap().iter().zip(&answers) {
        let told = strings(&answer["products"], "topupId");
        assert_eq!(strings(&bought["topups"], "topup_id"), told);
        assert_eq!(bought["topups"][0]["option_id"], ready);
    }
    assert_eq!(
        sandbox.code("order-1", &[(&option("refused"), 1)]).await,
        "9001"
    );

    // The faults overrule the setting in both directions.
    sandbox.faults(json!({ "detect_duplicates": true })).await;
    assert_eq!(sandbox.code("order-1", &[(&ready, 2)]).await, "9003");
    sandbox.faults(json!({ "detect_duplicates": false })).await;
    assert_eq!(sandbox.code("order-1", &[(&ready, 2)]).await, "0000");
    assert_eq!(sandbox.bought("order-1").await, (3, 6));
    let bad = sandbox
        .http
        .get(format!("{}/ledger?orderId=order-1", sandbox.base));
    assert_eq!(bad.send().await.unwrap().status(), StatusCode::BAD_REQUEST);
    sandbox.stop().await;
}

#[tokio::test]
async fn garbled_answers_are_about_one_option_and_buy_all_the_same() {
    let sandbox = Started::fresh().await;
    let garbled = option("never-ready");
    let ready = option("ready");
    let is_long = |id: &str| id.len() == 6_000;
    for (garble, check) in [
        ("long_unit_id", is_long as fn(&str) -> bool),
        ("empty_unit_id", |id| id.is_empty()),
        ("nul_unit_id", |id| id.ends_with('\0')),
    ] {
        sandbox
            .faults(json!({ "garbled": { "never-ready": garble } }))
            .await;
        let ordered = sandbox.order(garble, &[(&garbled, 1)]).await;
        let fetched = sandbox.fetch(garble).await;
        for answer in [ordered, fetched] {
            assert!(
                check(strings(&answer["products"], "topupId")[0]),
                "{garble}: {answer}"
            );
        }
        assert_eq!(sandbox.bought(garble).await, (1, 1));
        let good = sandbox
            .order(&format!("good-{garble}"), &[(&ready, 1)])
            .await;
        assert_eq!(sorted(&good["products"], "topupId")[0].len(), 15);
    }

    sandbox
        .faults(json!({ "garbled": { "ready": "bad_date" } }))
        .await;
    sandbox.order("date", &[(&ready, 1)]).await;
    assert_eq!(
        sorted(&sandbox.fetch("date").await["products"], "expiredDate"),
        ["9999-99-99"]
    );

    sandbox
        .faults(json!({ "garbled": { "refused": "odd_message" } }))
        .await;
    let refused = sandbox.order("odd", &[(&option("refused"), 1)]).await;
    assert_eq!(refused["code"], "9001");
    assert!(refused["message"].as_str().unwrap().contains('\0'));

    sandbox
        .faults(json!({ "garbled": { "ready": "huge", "slow": "no_json" } }))
        .await;
    let mut answer = sandbox
        .ordering("huge", &[(&ready, 1)])
        .send()
        .await
        .unwrap();
    let mut read = 0;
    while read < 2_000_000 {
        read += answer.chunk().await.unwrap().unwrap().len();
    }
    drop(answer);
    assert_eq!(sandbox.bought("huge").await, (1, 1));
}
