//! Events of a partner's endpoint other than the specified webhook, from its opt-in to its list.

use crate::partner::{assert_refused, get, header, redelivered, send as ask};
use crate::shop::{PATH, SOON, Shop, fresh};
use serde_json::{Value, json};
use testkit::receiver::{self, Signature};
use testkit::stack::{Stack, Stage};
use testkit::wait;

#[tokio::test]
async fn a_test_of_the_endpoint_is_answered_with_its_outcome() {
    let stack = Stack::with(Stage::Ingress, &[("REDELIVER_INTERVAL", "6h")])
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let tested = ask(&shop.client, "POST", "/webhook/test", "")
        .await
        .unwrap();
    let good: Value = tested.json().unwrap();
    assert_eq!(
        (tested.status, &good["state"], &good["type"]),
        (200, &json!("delivered"), &json!("webhook.test")),
        "{good}"
    );
    assert_eq!(good["attempts"][0]["outcome"], "delivered", "{good}");
    let received = shop.receiver.received().remove(0);
    assert_eq!(received.signature, Signature::Valid);
    assert_eq!(
        received.headers["webhook-id"],
        good["event_id"].as_str().unwrap()
    );
    assert_eq!(received.headers["webhook-type"], "webhook.test");

    let again = ask(&shop.client, "POST", "/webhook/test", "")
        .await
        .unwrap();
    assert_refused(&again, 429, "tested_recently");
    assert!(!header(&again, "retry-after").is_empty());

    let broken = Shop::open(&stack).await.unwrap();
    broken
        .receiver
        .answer(PATH, |_| receiver::Answer::status(503));
    let tested = ask(&broken.client, "POST", "/webhook/test", "")
        .await
        .unwrap();
    let failed: Value = tested.json().unwrap();
    assert_eq!(
        (tested.status, &failed["state"]),
        (200, &json!("exhausted")),
        "{failed}"
    );
    assert_eq!(failed["attempts"][0]["status"], 503);
    assert_eq!(failed["attempts"][0]["outcome"], "status_5xx");
    assert!(failed["attempts"][0]["duration_ms"].is_number(), "{failed}");

    // Each is listed for its partner only.
    for (shop, event) in [(&shop, &good), (&broken, &failed)] {
        let page = get(&shop.client, "/webhook/events?limit=1").await.unwrap();
        assert_eq!(page["events"][0]["event_id"], event["event_id"]);
        assert_eq!(page["next_cursor"], Value::Null);
    }
    let path = format!("/webhook/events/{}", good["event_id"].as_str().unwrap());
    assert_eq!(get(&shop.client, &path).await.unwrap(), good);
    let tested_again = ask(&shop.client, "POST", &format!("{path}/redeliver"), "").await;
    assert_refused(&tested_again.unwrap(), 409, "event_void");
    let stranger = Shop::open(&stack).await.unwrap();
    assert_eq!(
        ask(&stranger.client, "GET", &path, "")
            .await
            .unwrap()
            .status,
        404
    );
    assert_eq!(
        get(&stranger.client, "/webhook/events").await.unwrap(),
        json!({"events": [], "next_cursor": null})
    );
    let shown: Value = stack
        .esimctl
        .run(&["delivery", "show", failed["event_id"].as_str().unwrap()])
        .await
        .unwrap();
    assert_eq!(shown["attempts"][0]["class"], "status_5xx", "{shown}");

    assert_eq!(
        ask(&shop.client, "PUT", "/webhook", r#"{"url": null}"#)
            .await
            .unwrap()
            .status,
        200
    );
    let answer = ask(&shop.client, "POST", "/webhook/test", "")
        .await
        .unwrap();
    assert_refused(&answer, 409, "webhook_url_missing");
    let list = ["action", "list", "--by", "partner"];
    let actions: Value = stack.esimctl.run(&list).await.unwrap();
    let recorded = actions.to_string();
    assert!(recorded.contains("webhook set"), "{actions}");
    assert!(
        recorded.contains(&format!("partner {}", shop.partner.partner_id)),
        "{actions}"
    );
    assert!(!recorded.contains("http"), "no URL is recorded: {actions}");
}

#[tokio::test]
async fn a_topup_that_never_comes_is_reported_to_a_partner_that_asked() {
    let stack = Stack::with(Stage::Ingress, &[("REDELIVER_INTERVAL", "5s")])
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let silent = Shop::open(&stack).await.unwrap();
    for (body, code) in [
        (
            r#"{"events": ["webhook.test"]}"#,
            "events_invalid; parameter=events",
        ),
        (
            r#"{"events": "topup.failed"}"#,
            "events_invalid; parameter=events",
        ),
        (r#"{"events": [1]}"#, "events_invalid; parameter=events"),
        ("{}", "url_missing; parameter=url"),
    ] {
        let answer = ask(&shop.client, "PUT", "/webhook", body).await.unwrap();
        assert_refused(&answer, 422, code);
    }
    let before = get(&shop.client, "/webhook").await.unwrap();
    assert_eq!(before["events"], json!(["topup.ready"]));
    let asked = ask(
        &shop.client,
        "PUT",
        "/webhook",
        r#"{"events": ["topup.failed"]}"#,
    )
    .await
    .unwrap();
    let endpoint: Value = asked.json().unwrap();
    assert_eq!(
        (&endpoint["events"], &endpoint["url"]),
        (&json!(["topup.ready", "topup.failed"]), &before["url"])
    );
    // Both requests show the same, and what they show can be set.
    let all = get(&shop.client, "/endpoints").await.unwrap();
    assert_eq!(all["endpoints"][0]["events"], endpoint["events"]);
    let same = json!({"events": endpoint["events"]}).to_string();
    let again = ask(&shop.client, "PUT", "/webhook", &same).await.unwrap();
    assert_eq!(again.json().unwrap(), endpoint);

    let partly = stack.option("partly").unwrap();
    let id = fresh("partly");
    silent.buy(&fresh("silent"), partly, 2).await.unwrap();
    shop.buy(&id, partly, 2).await.unwrap();
    let is_event = |one: &&receiver::Received| one.headers.contains_key("webhook-type");
    let told = |received: &[receiver::Received]| received.iter().any(|one| is_event(&one));
    let received = shop
        .receiver
        .wait_until(SOON, "the event", told)
        .await
        .unwrap();
    let event = received.iter().find(is_event).unwrap();
    assert_eq!(event.signature, Signature::Valid);
    assert_eq!(event.json["type"], "topup.failed");
    let data = &event.json["data"];
    assert_eq!(data["external_order_id"], id.as_str());
    let topup_id = data["topup_id"].as_str().unwrap();
    let topup = get(&shop.client, &format!("/topups/{topup_id}"))
        .await
        .unwrap();
    assert_eq!(
        (&topup["state"], &topup["error"]),
        (&json!("failed"), &data["error"])
    );
    let listed = delivered(&shop).await;
    assert_eq!(listed["topup_id"], topup_id);
    assert_eq!(
        listed["event_id"].as_str().unwrap(),
        event.headers["webhook-id"]
    );

    is_sent_again(&stack, &shop, &silent, event).await;
    assert!(!told(&silent.receiver.received()));
    assert_eq!(
        get(&silent.client, "/webhook/events").await.unwrap()["events"],
        json!([])
    );
}

/// The newest event of this partner, once it is delivered.
async fn delivered(shop: &Shop) -> Value {
    let listed = wait::soon("the delivered event", async || {
        let events = get(&shop.client, "/webhook/events").await?;
        let event = &events["events"][0];
        Ok((event["state"] == "delivered").then_some(event.clone()))
    });
    listed.await
}

/// A delivered event is sent again as it was, for its partner only, and not at once.
async fn is_sent_again(stack: &Stack, shop: &Shop, stranger: &Shop, event: &receiver::Received) {
    let event_id = event.headers["webhook-id"].to_str().unwrap();
    let path = format!("/webhook/events/{event_id}/redeliver");
    let theirs = ask(&stranger.client, "POST", &path, "").await.unwrap();
    let unknown = "/webhook/events/evt_019a0000000070008000000000000001/redeliver";
    let unknown = ask(&stranger.client, "POST", unknown, "").await.unwrap();
    assert_eq!((theirs.status, &theirs.body), (404, &unknown.body));
    assert_eq!(
        redelivered(&shop.client, &path, 5).await,
        json!({"event_id": event_id, "state": "pending"})
    );
    let sent = async |count: usize| {
        let waiting = shop
            .receiver
            .wait_until(SOON, "the event again", |received| {
                received
                    .iter()
                    .filter(|one| one.headers["webhook-id"] == event_id)
                    .count()
                    == count
            });
        let mut received = waiting.await.unwrap();
        received.retain(|one| one.headers["webhook-id"] == event_id);
        received.remove(count - 1)
    };
    let second = sent(2).await;
    assert_eq!(
        (&second.body, second.signature),
        (&event.body, Signature::Valid)
    );
    delivered(shop).await;
    let resend = ["resend", "start", event_id, "--reason", "lost", "--yes"];
    let resent: Value = stack.esimctl.run(&resend).await.unwrap();
    assert_eq!(resent["delivered"], 1, "{resent}");
    sent(3).await;
}
