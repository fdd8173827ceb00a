//! What a partner keeps with its orders and their items: it finds it again wherever they are shown,
//! except in the specified webhook, and nobody else does.

use crate::partner::{ask, assert_refused, get, send};
use crate::shop::{PATH, SOON, Shop, fresh, open, show};
use serde_json::{Value, json};
use testkit::stack::Stack;

const REPEAT: &str = "x-service-repeat";

/// An order of two items, of which the first one has metadata, too.
fn body(id: &str, options: [&str; 2]) -> Value {
    json!({
        "external_order_id": id,
        "metadata": {"ticket": "T-77 \"é\"", "desk": ""},
        "products": [
            {"option_id": options[0], "qty": 2, "metadata": {"traveller": "both"}},
            {"option_id": options[1], "qty": 1, "metadata": {}}],
    })
}

async fn repeat(shop: &Shop, body: &Value) -> (u16, Vec<u8>) {
    let request = shop.client.post(body.to_string()).header(REPEAT, "answer");
    let answer = request.send().await.unwrap();
    (answer.status, answer.body.to_vec())
}

#[tokio::test]
async fn it_is_in_every_look_up_and_not_in_the_specified_webhook() {
    let (stack, shop) = open().await;
    let other = Shop::open(&stack).await.unwrap();
    let ready = stack.option("ready").unwrap();
    let id = fresh("kept");
    let body = body(&id, [ready, ready]);
    let created = shop.client.post(body.to_string()).send().await.unwrap();
    assert_eq!(created.status, 201, "{created:?}");
    let ids: Vec<String> = created
        .products()
        .unwrap()
        .into_iter()
        .map(|one| one.topup_id)
        .collect();
    let all = ids.iter().cloned().collect();
    shop.delivered(&all, SOON).await.unwrap();

    let path = format!("/orders/{id}");
    let order = get(&shop.client, &path).await.unwrap();
    assert_eq!(order["metadata"], body["metadata"]);
    let of_items: Vec<&Value> = order["topups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|topup| &topup["metadata"])
        .collect();
    let item = &body["products"][0]["metadata"];
    assert_eq!(of_items, [item, item, &Value::Null]);
    let listed = get(&shop.client, "/orders").await.unwrap();
    assert_eq!(listed["orders"][0]["metadata"], body["metadata"]);
    let topup = get(&shop.client, &format!("/topups/{}", ids[0]))
        .await
        .unwrap();
    assert_eq!(
        (&topup["metadata"], &topup["order_metadata"]),
        (item, &body["metadata"])
    );
    let iccid = topup["esim"]["iccid"].as_str().unwrap();
    let found = get(&shop.client, &format!("/topups?iccid={iccid}"))
        .await
        .unwrap();
    assert_eq!(found["topups"][0]["order_metadata"], body["metadata"]);
    let shown = show(&stack, &id).await.unwrap();
    assert_eq!(shown["metadata"], body["metadata"]);
    assert_eq!(&shown["topups"][0]["metadata"], item);

    // The fields of the specified webhook are the same as of every order.
    for received in shop.receiver.received() {
        assert_eq!(received.path, PATH);
        let fields = received.json.as_object().unwrap();
        assert_eq!(fields.len(), 9, "{fields:?}");
        assert!(!received.json.to_string().contains("T-77"));
    }
    // Nobody else sees it.
    for path in [path.as_str(), &format!("/topups/{}", ids[0])] {
        let answer = ask(&other.client, "GET", path).await.unwrap();
        assert_refused(&answer, 404, "not_found");
    }
    let found = get(&other.client, &format!("/topups?iccid={iccid}")).await;
    assert_eq!(found.unwrap()["topups"], json!([]));

    erased(&stack, &shop, &body, &created.body).await;
}

/// The order is erased, and what its partner kept with it. It can be repeated as before.
async fn erased(stack: &Stack, shop: &Shop, body: &Value, answer: &[u8]) {
    let id = body["external_order_id"].as_str().unwrap();
    let mut without = body.clone();
    without.as_object_mut().unwrap().remove("metadata");
    let mut moved = body.clone();
    moved["products"][1]["metadata"] = json!({"traveller": "third"});
    assert_eq!(repeat(shop, body).await, (200, answer.to_vec()));
    for other in [&without, &moved] {
        assert_eq!(repeat(shop, other).await.0, 409, "{other}");
    }
    let shown = show(stack, id).await.unwrap();
    let order_id = shown["order_id"].as_str().unwrap();
    let erase = ["order", "erase", order_id, "--reason", "asked", "--yes"];
    let _: Value = stack.esimctl.run(&erase).await.unwrap();
    let order = get(&shop.client, &format!("/orders/{id}")).await.unwrap();
    assert!(order.get("metadata").is_none(), "{order}");
    assert!(order["topups"][0].get("metadata").is_none(), "{order}");
    for again in [body, &without] {
        assert_eq!(repeat(shop, again).await, (200, answer.to_vec()));
    }
}

#[tokio::test]
async fn events_about_a_topup_carry_it() {
    let (stack, shop) = open().await;
    let events = r#"{"events": ["topup.failed"]}"#;
    let asked = send(&shop.client, "PUT", "/webhook", events).await.unwrap();
    assert_eq!(asked.status, 200, "{asked:?}");
    let partly = stack.option("partly").unwrap();
    let ready = stack.option("ready").unwrap();
    let body = body(&fresh("kept"), [partly, ready]);
    let created = shop.client.post(body.to_string()).send().await.unwrap();
    assert_eq!(created.status, 201, "{created:?}");
    let is_event = |one: &&testkit::receiver::Received| one.headers.contains_key("webhook-type");
    let told = |received: &[testkit::receiver::Received]| received.iter().any(|one| is_event(&one));
    let received = shop.receiver.wait_until(SOON, "the event", told).await;
    let received = received.unwrap();
    let event = &received.iter().find(is_event).unwrap().json;
    assert_eq!(event["type"], "topup.failed");
    assert_eq!(event["data"]["metadata"], json!({"traveller": "both"}));
    assert_eq!(event["data"]["order_metadata"], body["metadata"]);
}
