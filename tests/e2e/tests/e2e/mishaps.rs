//! What the sandbox does on demand: answers that go wrong at the edge of ingress, an order that can
//! be cancelled, and events. Live partners meet none of it.

use crate::partner::{API, assert_refused, get, header, send as ask};
use crate::shop::{SOON, Shop, fresh, ids, open};
use anyhow::ensure;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use testkit::client::{Answer, ORDERS};
use testkit::stack::{Stack, Stage};
use testkit::{receiver, wait};

/// Orders one unit of a sandbox option under this id.
async fn order(shop: &Shop, stack: &Stack, id: &str, option: &str) -> anyhow::Result<Answer> {
    shop.client.order(id, &[(stack.option(option)?, 1)]).await
}

/// The repeat of a stored order says so, its path shows it, and its webhook comes.
async fn is_stored(shop: &Shop, stack: &Stack, id: &str, option: &str) {
    let taken = order(shop, stack, id, option).await.unwrap();
    assert_refused(&taken, 422, "external_order_id_taken");
    let path = header(&taken, "location").strip_prefix(API).unwrap();
    let shown = get(&shop.client, path).await.unwrap();
    let topup_id = shown["topups"][0]["topup_id"].as_str().unwrap().to_owned();
    shop.delivered(&BTreeSet::from([topup_id]), SOON)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_500_and_a_lost_answer_hide_a_stored_order() {
    let (mut stack, shop) = open().await;
    let id = fresh("error");
    let error = order(&shop, &stack, &id, "stored-then-500").await.unwrap();
    assert_refused(&error, 500, "internal_error");
    assert_eq!(
        error.json().unwrap(),
        json!({"error": "Internal server error"})
    );
    assert!(header(&error, "location").is_empty());
    is_stored(&shop, &stack, &id, "stored-then-500").await;

    let id = fresh("lost");
    let lost = order(&shop, &stack, &id, "answer-lost").await;
    assert!(lost.is_err(), "there is an answer: {lost:?}");
    is_stored(&shop, &stack, &id, "answer-lost").await;

    // An order with errors is answered as any other: nothing of it is stored.
    let ordered = json!({"external_order_id": fresh("bad"), "products": [
        {"option_id": stack.option("stored-then-500").unwrap(), "qty": 1}, {"option_id": 1, "qty": 1}]});
    let bad = shop.client.post(ordered.to_string()).send().await.unwrap();
    assert_eq!(bad.status, 422);

    // No operator is woken: neither the metrics nor the log know of a failure.
    let ingress = stack.process(Stage::Ingress).unwrap();
    let metrics = ingress.metrics().await.unwrap();
    let failed = |line: &&str| {
        line.starts_with("http_server_request_duration_seconds_count")
            && line.contains(r#"http_response_status_code="5"#)
    };
    assert_eq!(metrics.lines().find(failed), None);
    assert!(!ingress.log().unwrap().contains("answered with 500"));
}

#[tokio::test]
async fn the_first_request_of_an_order_is_limited() {
    let (stack, shop) = open().await;
    let id = fresh("limited");
    let limited = order(&shop, &stack, &id, "limited-first").await.unwrap();
    assert_refused(&limited, 429, "rate_limited");
    assert_eq!(header(&limited, "retry-after"), "2");
    let path = format!("/orders/{id}");
    assert_eq!(
        ask(&shop.client, "GET", &path, "").await.unwrap().status,
        404
    );
    let accepted = async || {
        let answer = order(&shop, &stack, &id, "limited-first").await?;
        ensure!(matches!(answer.status, 201 | 429), "{}", answer.status);
        Ok((answer.status == 201).then_some(answer))
    };
    let created = wait::soon("the order to be accepted", accepted).await;
    let bought = created.products().unwrap();
    shop.delivered(&ids(&bought), SOON).await.unwrap();
}

#[tokio::test]
async fn a_cancellable_order_is_cancelled_and_nothing_of_it_is_bought() {
    let (stack, shop) = open().await;
    let id = fresh("cancel");
    let created = order(&shop, &stack, &id, "cancellable").await.unwrap();
    created.products().unwrap();
    let path = format!("/orders/{id}");
    let cancelled = async || {
        let answer = ask(&shop.client, "DELETE", &path, "").await?;
        let code = header(&answer, "x-service-error");
        ensure!(
            answer.status == 200 || code == "order_not_answered",
            "{} {code}",
            answer.status
        );
        Ok((answer.status == 200).then_some(answer))
    };
    let shown: Value = wait::soon("the cancellation", cancelled)
        .await
        .json()
        .unwrap();
    assert_eq!(shown["state"], "cancelled");
    assert_eq!(stack.ledger().await.unwrap().purchases, 0);
}

#[tokio::test]
async fn a_live_partner_cannot_ask_for_a_mishap() {
    let stack = Stack::start().await.unwrap();
    let live = stack.create_partner("live", None).await.unwrap();
    let client = stack.client(&live).unwrap();
    for option in ["stored-then-500", "answer-lost", "limited-first"] {
        let id = fresh("live");
        let answer = client
            .order(&id, &[(stack.option(option).unwrap(), 1)])
            .await;
        assert_refused(&answer.unwrap(), 422, "option_not_found; item=0");
    }
    let event = client.post(r#"{"type": "key.expiring"}"#);
    let event = event.path(&format!("{API}/sandbox/events")).send().await;
    assert_refused(&event.unwrap(), 403, "sandbox_only");
    assert_eq!(ORDERS, format!("{API}/orders"));
}

#[tokio::test]
async fn an_event_is_made_sent_and_listened_to() {
    let (stack, shop) = open().await;
    let make = async || {
        let body = r#"{"type": "key.expiring"}"#;
        ask(&shop.client, "POST", "/sandbox/events", body)
            .await
            .unwrap()
    };
    assert_refused(&make().await, 409, "event_not_wanted");
    let events = r#"{"events": ["topup.failed", "key.expiring"]}"#;
    let wanted = ask(&shop.client, "PUT", "/webhook", events).await.unwrap();
    assert_eq!(wanted.status, 200);
    let since = get(&shop.client, "/webhook/listen?wait=0").await.unwrap();
    let bad = ask(
        &shop.client,
        "POST",
        "/sandbox/events",
        r#"{"type": "webhook.test"}"#,
    )
    .await;
    assert_refused(&bad.unwrap(), 422, "event_type_invalid; parameter=type");

    let made = make().await;
    assert_eq!(made.status, 201);
    let made: Value = made.json().unwrap();
    assert_eq!(made["type"], "key.expiring");
    let event_id = made["event_id"].as_str().unwrap();
    let again = make().await;
    assert_refused(&again, 429, "tested_recently");
    assert!(!header(&again, "retry-after").is_empty());
    let is_it = |one: &receiver::Received| one.headers["webhook-id"] == event_id;
    let told = |received: &[receiver::Received]| received.iter().any(is_it);
    let received = shop
        .receiver
        .wait_until(SOON, "the event", told)
        .await
        .unwrap();
    let event = received.into_iter().find(is_it).unwrap();
    assert_eq!(event.signature, receiver::Signature::Valid);
    assert_eq!(event.headers["webhook-type"], "key.expiring");
    assert_eq!(event.json["data"]["credential"], "keys");

    let partly = stack.option("partly").unwrap();
    shop.buy(&fresh("partly"), partly, 2).await.unwrap();
    let since = format!(
        "limit=100&wait=0&cursor={}",
        since["next_cursor"].as_str().unwrap()
    );
    let listened = async || {
        let page = get(&shop.client, &format!("/webhook/listen?{since}")).await?;
        let webhooks = page["webhooks"].as_array().cloned().unwrap_or_default();
        Ok((webhooks.len() == 3).then_some(webhooks))
    };
    let webhooks = wait::soon("the event, a failed topup and a ready one", listened).await;
    let types: BTreeSet<_> = webhooks
        .iter()
        .map(|one| one["headers"]["webhook-type"].as_str())
        .collect();
    let expected = [None, Some("key.expiring"), Some("topup.failed")];
    assert_eq!(types, BTreeSet::from(expected));
    let found = webhooks
        .iter()
        .find(|one| one["headers"]["webhook-id"] == event_id)
        .unwrap();
    assert_eq!(found["body"].as_str().unwrap().as_bytes(), &event.body[..]);
}

#[tokio::test]
async fn the_options_of_the_sandbox_are_described() {
    let (_stack, shop) = open().await;
    let page = get(&shop.client, "/options?limit=100").await.unwrap();
    let options = page["options"].as_array().unwrap();
    assert!(options.len() >= 16, "{page}");
    for option in options {
        let details = &option["details"];
        assert_eq!(details["country"], "JP", "{option}");
        assert!(details["outcome"].is_string(), "{option}");
    }
}
