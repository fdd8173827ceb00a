//! What the options do that behave otherwise than `ready`.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use reqwest::{StatusCode, header::RETRY_AFTER};
use serde_json::{Value, json};

use crate::support::{Started, option, sorted, strings, units};

/// The units in the order of the purchase.
fn by_topup(answer: &Value) -> Vec<&Value> {
    let mut units: Vec<_> = units(answer).iter().collect();
    units.sort_by_key(|unit| unit["topupId"].as_str());
    units
}

fn all_ready(answer: &Value) -> bool {
    strings(&answer["products"], "status")
        .iter()
        .all(|status| *status == "READY")
}

#[tokio::test]
async fn delayed_units_come_one_by_one_after_two_seconds() {
    let sandbox = Started::fresh().await;
    let begun = Instant::now();
    let products = [(option("delayed"), 3), (option("ready"), 1)];
    let products: Vec<_> = products
        .iter()
        .map(|(id, qty)| (id.as_str(), *qty))
        .collect();
    sandbox.order("order-1", &products).await;
    let first = sandbox.fetch("order-1").await;
    if begun.elapsed() < Duration::from_secs(2) {
        assert_eq!(
            sorted(&first["products"], "status"),
            ["PENDING", "PENDING", "PENDING", "READY"]
        );
        for unit in units(&first) {
            assert_eq!(
                unit.get("activateCode").is_some(),
                unit["status"] == "READY"
            );
        }
    }
    for (unit, after) in [(0, 2000), (1, 2200), (2, 2400)] {
        let answer = sandbox
            .fetch_until("order-1", |answer| {
                by_topup(answer)[unit]["status"] == "READY"
            })
            .await;
        // The sandbox cuts the time of the purchase to whole milliseconds, so the unit may be ready
        // up to one earlier.
        assert!(
            begun.elapsed() >= Duration::from_millis(after - 1),
            "unit {unit}"
        );
        if begun.elapsed() < Duration::from_millis(after + 150) {
            let delayed = &by_topup(&answer)[..3];
            assert!(
                delayed[unit + 1..]
                    .iter()
                    .all(|unit| unit["status"] == "PENDING"),
                "{answer}"
            );
        }
    }
    assert!(all_ready(&sandbox.fetch("order-1").await));
}

#[tokio::test]
async fn units_are_listed_in_any_order() {
    let sandbox = Started::fresh().await;
    let answer = sandbox.order("order-1", &[(&option("ready"), 20)]).await;
    let mut orders = HashSet::new();
    for _ in 0..3 {
        let fetched = sandbox.fetch("order-1").await;
        assert_eq!(
            sorted(&fetched["products"], "topupId"),
            sorted(&answer["products"], "topupId")
        );
        orders.insert(strings(&fetched["products"], "topupId").join(" "));
    }
    assert!(orders.len() > 1, "three times the same order of 20! orders");
}

#[tokio::test]
async fn bought_then_error_buys_and_does_not_say_so() {
    let sandbox = Started::fresh().await;
    let option = option("bought-then-error");
    let products: &[(&str, u32)] = &[(&option, 2)];
    let response = sandbox.ordering("order-1", products).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(
        response.json::<Value>().await.unwrap(),
        json!({ "code": "9999", "message": "Server error" })
    );
    assert_eq!(sandbox.bought("order-1").await, (1, 2));
    assert!(all_ready(&sandbox.fetch("order-1").await));
    assert_eq!(sandbox.code("order-1", products).await, "9003");
    assert_eq!(sandbox.bought("order-1").await, (1, 2));
}

#[tokio::test]
async fn bought_then_silent_buys_and_never_answers() {
    let sandbox = Started::fresh().await;
    let silent = option("bought-then-silent");
    sandbox.order_and_go("order-1", &[(&silent, 1)]).await;
    assert_eq!(sandbox.bought("order-1").await, (1, 1));
    assert!(all_ready(&sandbox.fetch("order-1").await));
    assert_eq!(sandbox.code("order-1", &[(&silent, 1)]).await, "9003");

    // When the sandbox stops, the connection of a client that still waits is closed.
    let waiting = tokio::spawn(
        sandbox
            .ordering("order-2", &[(&silent, 1)])
            .timeout(Duration::from_mins(1))
            .send(),
    );
    sandbox.until_bought("order-2").await;
    assert!(!waiting.is_finished());
    let stopping = Instant::now();
    sandbox.stop().await;
    let error = waiting.await.unwrap().unwrap_err();
    assert!(!error.is_timeout() && error.is_request(), "{error:?}");
    assert!(stopping.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn never_ready_stays_pending_and_can_be_canceled() {
    let sandbox = Started::fresh().await;
    let answer = sandbox
        .order("order-1", &[(&option("never-ready"), 2)])
        .await;
    assert_eq!(answer["code"], "0000");
    assert_eq!(
        strings(&sandbox.fetch("order-1").await["products"], "status"),
        ["PENDING"; 2]
    );
    let topup = answer["products"][0]["topupId"].as_str().unwrap();
    assert_eq!(sandbox.cancel(topup).await["code"], "0000");
    assert_eq!(
        sorted(&sandbox.fetch("order-1").await["products"], "status"),
        ["CANCELED", "PENDING"]
    );
}

#[tokio::test]
async fn partly_fails_one_unit_and_delivers_the_others() {
    let sandbox = Started::fresh().await;
    let partly = option("partly");
    let begun = Instant::now();
    sandbox.order("order-1", &[(&partly, 3)]).await;
    let first = sandbox.fetch("order-1").await;
    if begun.elapsed() < Duration::from_secs(1) {
        assert_eq!(strings(&first["products"], "status"), ["PENDING"; 3]);
    }
    sandbox.order("order-2", &[(&partly, 1)]).await;
    let settled = |answer: &Value| !strings(&answer["products"], "status").contains(&"PENDING");
    let answer = sandbox.fetch_until("order-1", settled).await;
    assert!(begun.elapsed() >= Duration::from_millis(999));
    assert_eq!(
        sorted(&answer["products"], "status"),
        ["FAILED", "READY", "READY"]
    );
    for unit in units(&answer) {
        assert_eq!(
            unit.get("activateCode").is_some(),
            unit["status"] == "READY"
        );
    }
    assert_eq!(
        strings(
            &sandbox.fetch_until("order-2", settled).await["products"],
            "status"
        ),
        ["FAILED"]
    );
    assert_eq!(sandbox.ledger().await["units"], 4);
}

#[tokio::test]
async fn slow_buys_at_once_and_answers_after_five_seconds() {
    let sandbox = Started::fresh().await;
    let slow = option("slow");
    let begun = Instant::now();
    let products: &[(&str, u32)] = &[(&slow, 1)];
    let gone = sandbox.order_and_go("order-1", products);
    let ((), answer) = tokio::join!(gone, sandbox.order("order-2", products));
    assert_eq!(answer["code"], "0000");
    assert!(begun.elapsed() >= Duration::from_secs(5));
    assert_eq!(sandbox.bought("order-1").await, (1, 1));
    // A repeated order id is refused at once, without the delay of the option. When the sandbox
    // stops, those that wait are answered at once.
    let begun = Instant::now();
    assert_eq!(sandbox.code("order-2", &[(&slow, 1)]).await, "9003");
    let waiting = tokio::spawn(sandbox.ordering("order-3", &[(&slow, 1)]).send());
    sandbox.until_bought("order-3").await;
    sandbox.stop().await;
    assert_eq!(waiting.await.unwrap().unwrap().status(), StatusCode::OK);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn flapping_and_rate_limited_buy_at_the_third_attempt_of_an_order_id() {
    let sandbox = Started::fresh().await;
    for (name, status, code, retry_after) in [
        ("flapping", StatusCode::INTERNAL_SERVER_ERROR, "9999", None),
        (
            "rate-limited",
            StatusCode::TOO_MANY_REQUESTS,
            "9011",
            Some("1"),
        ),
    ] {
        let option = option(name);
        let products: &[(&str, u32)] = &[(&option, 1)];
        let one = format!("{name}-1");
        let two = format!("{name}-2");
        for order_id in [&one, &two, &two, &one] {
            let response = sandbox.ordering(order_id, products).send().await.unwrap();
            assert_eq!(response.status(), status);
            assert_eq!(
                response
                    .headers()
                    .get(RETRY_AFTER)
                    .map(|value| value.to_str().unwrap()),
                retry_after
            );
            assert_eq!(response.json::<Value>().await.unwrap()["code"], code);
            assert_eq!(sandbox.bought(order_id).await, (0, 0));
            assert_eq!(sandbox.fetch(order_id).await["code"], "9002");
        }
        for order_id in [&one, &two] {
            assert_eq!(sandbox.code(order_id, products).await, "0000");
            assert_eq!(sandbox.bought(order_id).await, (1, 1));
            assert_eq!(sandbox.code(order_id, products).await, "9003");
        }
    }
}

#[tokio::test]
async fn a_cancellable_order_is_refused_once_for_a_minute() {
    let sandbox = Started::fresh().await;
    let option = option("cancellable");
    let products: &[(&str, u32)] = &[(&option, 1)];
    let response = sandbox.ordering("one", products).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()[RETRY_AFTER], "60");
    assert_eq!(sandbox.bought("one").await, (0, 0));
    assert_eq!(sandbox.code("one", products).await, "0000");
    assert_eq!(sandbox.bought("one").await, (1, 1));
}
