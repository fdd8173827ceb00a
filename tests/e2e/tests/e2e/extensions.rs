//! More data for delivered eSIMs: each extension is bought once, however often it is ordered and
//! whatever becomes of the provider's answer, and its partner hears how it ended.

use std::collections::HashSet;

use serde_json::{Value, json};
use testkit::client::{Answer, Client};
use testkit::receiver::Received;
use testkit::stack::Stack;
use testkit::wait;

use crate::partner::{ask, assert_refused, get, send};
use crate::shop::{SOON, Shop, fresh, open};

const GIB: u64 = 1024 * 1024 * 1024;

/// A delivered eSIM of an option.
async fn esim(stack: &Stack, shop: &Shop, option: &str) -> String {
    let option = stack.option(option).unwrap();
    let bought = shop.buy(&fresh("base"), option, 1).await.unwrap();
    let topup_id = bought[0].topup_id.clone();
    crate::partner::delivered(&shop.client, &topup_id).await;
    topup_id
}

/// The same, with what the partner keeps with the order and its item.
async fn esim_with_metadata(stack: &Stack, shop: &Shop, option: &str) -> String {
    let option = stack.option(option).unwrap();
    let item = json!({ "option_id": option, "qty": 1, "metadata": { "traveller": "T-1" } });
    let body = json!({
        "external_order_id": fresh("base"), "metadata": { "desk": "7" }, "products": [item],
    });
    let ordered = send(&shop.client, "POST", "/orders", &body.to_string()).await;
    let ordered: Value = ordered.unwrap().json().unwrap();
    let topup_id = ordered["products"][0]["topup_id"].as_str().unwrap();
    crate::partner::delivered(&shop.client, topup_id).await;
    topup_id.to_owned()
}

async fn extend(client: &Client, topup_id: &str, external_id: &str, option: &str) -> Answer {
    let body = json!({ "external_id": external_id, "option_id": option }).to_string();
    let path = format!("/topups/{topup_id}/extensions");
    send(client, "POST", &path, &body).await.unwrap()
}

async fn extensions(client: &Client, topup_id: &str) -> Value {
    let path = format!("/topups/{topup_id}/extensions");
    get(client, &path).await.unwrap()
}

/// Waits until the extension of this id has this state.
async fn ends_as(client: &Client, topup_id: &str, external_id: &str, state: &str) -> Value {
    let look = async || {
        let all = extensions(client, topup_id).await;
        let all = all["extensions"].as_array().cloned().unwrap_or_default();
        let mut all = all.into_iter();
        Ok(all.find(|one| one["external_id"] == external_id && one["state"] == state))
    };
    let what = format!("the extension {external_id} is {state}");
    wait::until(SOON, &what, look).await.unwrap()
}

fn of_kind(received: &[Received], kind: &str) -> Vec<Value> {
    let of_kind = received.iter().filter(|one| one.json["type"] == kind);
    of_kind.map(|one| one.json["data"].clone()).collect()
}

async fn wants_events(shop: &Shop) {
    let events = r#"{"events": ["extension.ready", "extension.failed"]}"#;
    let set = send(&shop.client, "PUT", "/webhook", events).await.unwrap();
    assert_eq!(set.status, 200, "{set:?}");
}

#[tokio::test]
async fn an_esim_is_extended_once_however_often_it_is_ordered() {
    let (stack, shop) = open().await;
    wants_events(&shop).await;
    let topup_id = esim_with_metadata(&stack, &shop, "in-use").await;
    let option = stack.option("extension").unwrap();
    let offered = extensions(&shop.client, &topup_id).await;
    let options = offered["options"].as_array().unwrap();
    assert!(
        options.iter().any(|one| one["option_id"] == option),
        "{offered}"
    );
    assert_eq!(offered["extensions"], json!([]));

    let more = fresh("more");
    let orders = (0..5).map(|_| extend(&shop.client, &topup_id, &more, option));
    for answer in futures_util::future::join_all(orders).await {
        assert_eq!(answer.status, 201, "{answer:?}");
        let added: Value = answer.json().unwrap();
        assert_eq!(added["state"], "added");
        assert_eq!(
            (&added["topup_id"], &added["external_id"]),
            (&json!(topup_id), &json!(more))
        );
    }
    let path = format!("/topups/{topup_id}/usage");
    let usage = get(&shop.client, &path).await.unwrap();
    assert_eq!(usage["data_total_bytes"], 10 * GIB, "{usage}");
    assert_eq!(stack.ledger().await.unwrap().extensions.len(), 1);
    let told = |received: &[Received]| !of_kind(received, "extension.ready").is_empty();
    let received = shop.receiver.wait_until(SOON, "the event", told).await;
    let data = of_kind(&received.unwrap(), "extension.ready");
    assert_eq!(data.len(), 1, "{data:?}");
    assert_eq!(data[0]["external_id"], json!(more));
    assert_eq!(data[0]["new_esim"], false);
    assert_eq!(data[0]["metadata"], json!({ "traveller": "T-1" }));
    assert_eq!(data[0]["order_metadata"], json!({ "desk": "7" }));

    // The same id for something else, and ids of another partner.
    let other = stack.option("ready").unwrap();
    let differs = extend(&shop.client, &topup_id, &more, other).await;
    assert_refused(&differs, 409, "extension_differs");
    let another = esim(&stack, &shop, "ready").await;
    let differs = extend(&shop.client, &another, &more, option).await;
    assert_refused(&differs, 409, "extension_differs");
    let stranger = Shop::open(&stack).await.unwrap();
    let foreign = extend(&stranger.client, &topup_id, &fresh("more"), option).await;
    assert_refused(&foreign, 404, "not_found");
    let path = format!("/topups/{topup_id}/extensions");
    let foreign = ask(&stranger.client, "GET", &path).await.unwrap();
    assert_refused(&foreign, 404, "not_found");
    let unknown = uuid::Uuid::now_v7().to_string();
    let unknown = extend(&shop.client, &topup_id, &fresh("more"), &unknown).await;
    assert_refused(&unknown, 409, "extension_not_offered");
    let blank = send(&shop.client, "POST", &path, r#"{"external_id": " "}"#).await;
    assert_eq!(blank.unwrap().status, 422);
    // Another partner may use the same id.
    let theirs = esim(&stack, &stranger, "ready").await;
    let answer = extend(&stranger.client, &theirs, &more, option).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(stack.ledger().await.unwrap().extensions.len(), 2);
}

#[tokio::test]
async fn an_extension_whose_answer_is_lost_is_found_and_not_repeated() {
    let (stack, shop) = open().await;
    wants_events(&shop).await;
    for option in ["extension-lost", "extension-late"] {
        let topup_id = esim(&stack, &shop, "ready").await;
        let more = fresh(option);
        let option = stack.option(option).unwrap();
        let answer = extend(&shop.client, &topup_id, &more, option).await;
        assert!(matches!(answer.status, 201 | 202), "{answer:?}");
        let busy = extend(&shop.client, &topup_id, &fresh("busy"), option).await;
        if answer.status == 202 {
            assert_refused(&busy, 409, "extension_open");
            let path = format!("/topups/{topup_id}/give-back");
            let back = ask(&shop.client, "POST", &path).await.unwrap();
            assert_refused(&back, 409, "esim_extending");
        }
        ends_as(&shop.client, &topup_id, &more, "added").await;
    }
    let ledger = stack.ledger().await.unwrap();
    let ids: HashSet<&str> = (ledger.extensions.iter())
        .map(|one| one.extension_id.as_str())
        .collect();
    assert_eq!(ids.len(), ledger.extensions.len(), "{ledger:?}");
    let told = |received: &[Received]| of_kind(received, "extension.ready").len() >= 2;
    let received = shop.receiver.wait_until(SOON, "the events", told).await;
    assert!(of_kind(&received.unwrap(), "extension.failed").is_empty());
}

#[tokio::test]
async fn a_refused_extension_buys_nothing_and_another_esim_is_delivered() {
    let (stack, shop) = open().await;
    wants_events(&shop).await;
    let topup_id = esim(&stack, &shop, "ready").await;
    let expired = fresh("expired");
    let option = stack.option("extension-expired").unwrap();
    for _ in 0..2 {
        let refused = extend(&shop.client, &topup_id, &expired, option).await;
        assert_refused(&refused, 409, "extension_refused");
    }
    let told = |received: &[Received]| !of_kind(received, "extension.failed").is_empty();
    let received = shop.receiver.wait_until(SOON, "the event", told).await;
    let data = of_kind(&received.unwrap(), "extension.failed");
    assert_eq!(data[0]["external_id"], json!(expired));
    assert!(data[0]["error"].is_string(), "{data:?}");
    assert!(stack.ledger().await.unwrap().extensions.is_empty());

    // The provider sells another eSIM instead: the topup gets it, and its webhook comes again.
    let path = format!("/topups/{topup_id}");
    let before = get(&shop.client, &path).await.unwrap();
    let other = fresh("other");
    let option = stack.option("extension-other").unwrap();
    let answer = extend(&shop.client, &topup_id, &other, option).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(answer.json().unwrap()["new_esim"], true);
    let after = get(&shop.client, &path).await.unwrap();
    assert_ne!(before["esim"]["iccid"], after["esim"]["iccid"], "{after}");
    let iccid = after["esim"]["iccid"].clone();
    let again = |received: &[Received]| {
        let mut of_topup = received.iter().filter(|one| one.json["type"].is_null());
        of_topup.any(|one| one.topup_id() == topup_id && one.json["iccid"] == iccid)
    };
    let received = shop.receiver.wait_until(SOON, "the new eSIM", again).await;
    let received = received.unwrap();
    let of_topup = received.iter().filter(|one| one.json["type"].is_null());
    assert_eq!(of_topup.count(), 2, "{received:?}");
}
