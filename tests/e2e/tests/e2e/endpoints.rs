//! Several endpoints of one partner: each gets what it asked for, and none stops another one.

use crate::partner::{assert_refused, get, send as ask};
use crate::shop::{PATH, SOON, Shop, fresh, ids, open};
use serde_json::{Value, json};
use testkit::client::Client;
use testkit::receiver::{Answer, Received, Signature};
use testkit::stack::{Stack, Stage};
use testkit::wait;

/// The path of a further endpoint of the shop's receiver.
const CRM: &str = "/crm";

/// Creates a further endpoint at a path of the shop's receiver, whose signatures are checked.
async fn create(shop: &Shop, path: &str, more: Value) -> Value {
    let mut body = json!({"url": shop.receiver.url(path)});
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let answer = ask(&shop.client, "POST", "/endpoints", &body.to_string())
        .await
        .unwrap();
    let created: Value = answer.json().unwrap();
    assert_eq!(answer.status, 201, "{created}");
    let secret = created["webhook_secret"].as_str().unwrap();
    shop.receiver.verify(path, secret).unwrap();
    created
}

fn path_of(endpoint: &Value, part: &str) -> String {
    format!(
        "/endpoints/{}{part}",
        endpoint["endpoint_id"].as_str().unwrap()
    )
}

fn at<'a>(received: &'a [Received], path: &str) -> Vec<&'a Received> {
    received.iter().filter(|one| one.path == path).collect()
}

#[tokio::test]
async fn an_endpoint_has_its_own_secret_events_and_headers() {
    let stack = Stack::with(Stage::Ingress, &[("REDELIVER_INTERVAL", "1s")])
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let headers = json!({"X-Api-Key": "s3cret", "Authorization": "Bearer t0ken"});
    let crm = create(&shop, CRM, json!({"headers": headers})).await;
    assert_eq!(crm["events"], json!(["topup.ready"]));
    assert_eq!(crm["header_names"], json!(["authorization", "x-api-key"]));
    assert_eq!(
        (&crm["first"], &crm["state"]),
        (&json!(false), &json!("open"))
    );
    let events = json!(["key.expiring", "topup.failed"]);
    let ops = create(&shop, "/ops", json!({"events": events})).await;
    assert_eq!(ops["events"], json!(["topup.failed", "key.expiring"]));

    are_listed_without_secrets(&shop).await;

    let bought = shop
        .buy(&fresh("both"), stack.option("ready").unwrap(), 1)
        .await
        .unwrap();
    let topup_id = &bought[0].topup_id;
    let received = shop
        .receiver
        .wait_until(SOON, "both endpoints", |received| {
            at(received, PATH).len() == 1 && at(received, CRM).len() == 1
        })
        .await
        .unwrap();
    let first = at(&received, PATH)[0];
    let second = at(&received, CRM)[0];
    assert_eq!(second.signature, Signature::Valid);
    assert_eq!(first.body, second.body);
    assert_eq!(second.headers["webhook-id"], topup_id.as_str());
    assert_eq!(second.headers["x-api-key"], "s3cret");
    assert_eq!(second.headers["authorization"], "Bearer t0ken");
    assert_eq!(second.headers["content-type"], "application/json");
    assert!(first.headers.get("x-api-key").is_none());

    // The attempts name their endpoint, and each can be sent again by itself.
    let path = format!("/topups/{topup_id}/deliveries");
    let recorded = async || {
        let delivery = get(&shop.client, &path).await?;
        let both = [&delivery["state"], &delivery["endpoints"][0]["state"]];
        Ok((both == [&json!("delivered"); 2]).then_some(delivery))
    };
    let delivery = wait::soon("both records", recorded).await;
    assert_eq!(delivery["endpoints"].as_array().unwrap().len(), 1);
    assert_eq!(delivery["endpoints"][0]["endpoint_id"], crm["endpoint_id"]);
    assert_eq!(delivery["endpoints"][0]["attempts"][0]["status"], 200);
    let again = format!(
        "/topups/{topup_id}/redeliver?endpoint_id={}",
        crm["endpoint_id"].as_str().unwrap()
    );
    let accepted = async || {
        let answer = ask(&shop.client, "POST", &again, "").await?;
        Ok((answer.status == 202).then_some(()))
    };
    wait::soon("the redelivery", accepted).await;
    let received = shop
        .receiver
        .wait_until(SOON, "the repeat", |received| at(received, CRM).len() == 2)
        .await
        .unwrap();
    assert_eq!(at(&received, PATH).len(), 1);
    assert_eq!(at(&received, "/ops").len(), 0);
    is_sent_to_a_new_endpoint(&shop, topup_id).await;

    // Only the endpoint that asked for failures hears of one.
    let failing = fresh("fails");
    shop.buy(&failing, stack.option("partly").unwrap(), 2)
        .await
        .unwrap();
    let received = shop
        .receiver
        .wait_until(SOON, "the failure", |received| {
            at(received, "/ops").len() == 1
        })
        .await
        .unwrap();
    let event = at(&received, "/ops")[0];
    assert_eq!(event.headers["webhook-type"], "topup.failed");
    assert_eq!(event.signature, Signature::Valid);
    let listed = get(&shop.client, "/webhook/events").await.unwrap();
    assert_eq!(listed["events"][0]["endpoint_id"], ops["endpoint_id"]);

    is_rotated_tested_and_deleted(&shop, &crm).await;
}

/// One adds an endpoint and wants there what came before. An endpoint that the partner does not
/// have is a 404, and nothing of the order is archived.
async fn is_sent_to_a_new_endpoint(shop: &Shop, topup_id: &str) {
    let new = create(shop, "/new", json!({})).await;
    let again = |id: &str| format!("/topups/{topup_id}/redeliver?endpoint_id={id}");
    let unknown = again("0199a1b2-0000-7000-8000-000000000000");
    let answer = ask(&shop.client, "POST", &unknown, "").await.unwrap();
    assert_refused(&answer, 404, "not_found");
    let known = again(new["endpoint_id"].as_str().unwrap());
    let answer = ask(&shop.client, "POST", &known, "").await.unwrap();
    assert_eq!(answer.status, 202, "{:?}", answer.body);
    let received = shop
        .receiver
        .wait_until(SOON, "the new endpoint", |received| {
            at(received, "/new").len() == 1
        })
        .await
        .unwrap();
    let webhook = at(&received, "/new")[0];
    assert_eq!(webhook.headers["webhook-id"], topup_id);
    let path = format!("/endpoints/{}", new["endpoint_id"].as_str().unwrap());
    let deleted = ask(&shop.client, "DELETE", &path, "").await.unwrap();
    assert_eq!(deleted.status, 204);
}

/// The list has all endpoints in their order, and no secret.
async fn are_listed_without_secrets(shop: &Shop) {
    let listed = get(&shop.client, "/endpoints").await.unwrap();
    let named: Vec<&Value> = listed["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["url"])
        .collect();
    assert_eq!(
        named,
        [
            &json!(shop.receiver.url(PATH)),
            &json!(shop.receiver.url(CRM)),
            &json!(shop.receiver.url("/ops"))
        ]
    );
    let text = listed.to_string();
    assert!(
        !text.contains("s3cret") && !text.contains("whsec_"),
        "secrets are shown once only: {text}"
    );
}

/// An endpoint gets a new secret, loses its headers, is tested, and is deleted.
async fn is_rotated_tested_and_deleted(shop: &Shop, crm: &Value) {
    let rotated = ask(&shop.client, "POST", &path_of(crm, "/secret"), "")
        .await
        .unwrap();
    assert_eq!(rotated.status, 201);
    let new: Value = rotated.json().unwrap();
    shop.receiver
        .verify(CRM, new["webhook_secret"].as_str().unwrap())
        .unwrap();
    let second = ask(&shop.client, "POST", &path_of(crm, "/secret"), "").await;
    assert_refused(&second.unwrap(), 409, "rotation_under_way");
    let changed = ask(&shop.client, "PUT", &path_of(crm, ""), r#"{"headers": {}}"#)
        .await
        .unwrap();
    let changed: Value = changed.json().unwrap();
    assert_eq!(changed["header_names"], json!([]));
    let tested = ask(&shop.client, "POST", &path_of(crm, "/test"), "")
        .await
        .unwrap();
    assert_eq!(tested.status, 200);
    let outcome: Value = tested.json().unwrap();
    assert_eq!(outcome["state"], "delivered", "{outcome}");
    assert_eq!(outcome["endpoint_id"], crm["endpoint_id"]);
    let received = shop.receiver.received();
    let test = *at(&received, CRM).last().unwrap();
    assert_eq!(test.headers["webhook-type"], "webhook.test");
    assert_eq!(test.signature, Signature::Valid);
    assert!(test.headers.get("x-api-key").is_none());
    let deleted = ask(&shop.client, "DELETE", &path_of(crm, ""), "").await;
    assert_eq!(deleted.unwrap().status, 204);
    let gone = ask(&shop.client, "GET", &path_of(crm, ""), "").await;
    assert_refused(&gone.unwrap(), 404, "not_found");
}

#[tokio::test]
async fn a_dead_endpoint_stops_no_other_one_and_its_webhooks_go_out_when_it_is_back() {
    let stack = Stack::builder()
        .env(Stage::Notifier, "ENDPOINT_FAILURES", "3")
        .env(Stage::Notifier, "--endpoint-block-longest", "24h")
        .env(Stage::Notifier, "RETRY_SCHEDULE", "1s,1h")
        .env(Stage::Ingress, "REDELIVER_INTERVAL", "6s")
        .start()
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let crm = create(&shop, CRM, json!({})).await;
    shop.receiver.answer(PATH, |_| Answer::status(503));
    let ready = stack.option("ready").unwrap();
    shop.buy(&fresh("warm"), ready, 3).await.unwrap();
    let state = async |expected: &str| {
        wait::soon(expected, async || {
            let shown = get(&shop.client, "/webhook").await?;
            Ok((shown["state"] == expected).then_some(()))
        })
        .await;
    };
    state("blocked").await;

    // Webhooks that become ready during the block reach the other endpoint, and are counted.
    shop.buy(&fresh("blocked"), ready, 5).await.unwrap();
    shop.receiver
        .wait_until(SOON, "the other endpoint", |received| {
            at(received, CRM).len() == 8
        })
        .await
        .unwrap();
    let waiting = async || {
        let shown = get(&shop.client, "/webhook").await?;
        Ok((shown["waiting"] == 8).then_some(()))
    };
    wait::soon("all to be counted", waiting).await;
    assert_eq!(
        get(&shop.client, &path_of(&crm, "")).await.unwrap()["state"],
        "open"
    );
    let seen: Value = stack.esimctl.run(&["endpoint", "list"]).await.unwrap();
    let states: Vec<&Value> = seen["endpoints"]
        .as_array()
        .or(seen.as_array())
        .unwrap()
        .iter()
        .filter(|one| one["partner_id"] == json!(shop.partner.partner_id))
        .map(|one| &one["state"])
        .collect();
    assert_eq!(states, ["blocked", "open"]);

    // The endpoint is back: all that became ready meanwhile arrives, without a wait for the sweep.
    let before = at(&shop.receiver.received(), PATH).len();
    shop.receiver.answer(PATH, |_| Answer::status(200));
    let tested = ask(&shop.client, "POST", "/webhook/test", "")
        .await
        .unwrap();
    let outcome: Value = tested.json().unwrap();
    assert_eq!(outcome["state"], "delivered", "{outcome}");
    state("open").await;
    shop.receiver
        .wait_until(SOON, "what waited", |received| {
            at(received, PATH).len() >= before + 1 + 5
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_pause_by_the_partner_holds_one_endpoint_until_it_is_resumed() {
    let (stack, shop) = open().await;
    let crm = create(&shop, CRM, json!({})).await;
    let paused = ask(&shop.client, "POST", &path_of(&crm, "/pause"), "")
        .await
        .unwrap();
    let shown: Value = paused.json().unwrap();
    assert_eq!(
        (&shown["state"], &shown["paused_by"]),
        (&json!("paused"), &json!("you"))
    );
    let tested = ask(&shop.client, "POST", &path_of(&crm, "/test"), "").await;
    assert_refused(&tested.unwrap(), 409, "webhook_paused");
    let bought = shop
        .buy(&fresh("paused"), stack.option("ready").unwrap(), 1)
        .await
        .unwrap();
    shop.delivered(&ids(&bought), SOON).await.unwrap();
    let waiting = async || {
        let shown = get(&shop.client, &path_of(&crm, "")).await?;
        Ok((shown["waiting"] == 1).then_some(()))
    };
    wait::soon("the paused webhook", waiting).await;
    assert_eq!(at(&shop.receiver.received(), CRM).len(), 0);
    let resumed = ask(&shop.client, "POST", &path_of(&crm, "/resume"), "").await;
    assert_eq!(resumed.unwrap().status, 200);
    shop.receiver
        .wait_until(SOON, "the webhook after the pause", |received| {
            at(received, CRM).len() == 1
        })
        .await
        .unwrap();
    // What we have paused, the partner cannot resume.
    let id = crm["endpoint_id"].as_str().unwrap();
    let _: Value = stack.esimctl.run(&["endpoint", "pause", id]).await.unwrap();
    let shown = get(&shop.client, &path_of(&crm, "")).await.unwrap();
    assert_eq!(shown["paused_by"], "us");
    let resumed = ask(&shop.client, "POST", &path_of(&crm, "/resume"), "").await;
    assert_refused(&resumed.unwrap(), 409, "webhook_paused");
    let _: Value = stack
        .esimctl
        .run(&["endpoint", "resume", id])
        .await
        .unwrap();
}

/// Every request about an endpoint, as another partner would try it.
fn requests(id: &str) -> Vec<(&'static str, String, &'static str)> {
    let path = |part: &str| format!("/endpoints/{id}{part}");
    vec![
        ("GET", path(""), ""),
        ("PUT", path(""), r#"{"events": []}"#),
        ("DELETE", path(""), ""),
        ("POST", path("/secret"), ""),
        ("POST", path("/pause"), ""),
        ("POST", path("/resume"), ""),
        ("POST", path("/test"), ""),
    ]
}

#[tokio::test]
async fn an_endpoint_of_another_partner_looks_like_none() {
    let (stack, shop) = open().await;
    let crm = create(&shop, CRM, json!({})).await;
    let stranger = Shop::open(&stack).await.unwrap();
    let seen = async |client: &Client, id: &str| {
        let mut answers = Vec::new();
        for (method, path, body) in requests(id) {
            let answer = ask(client, method, &path, body).await.unwrap();
            answers.push((method, answer.status, answer.body));
        }
        answers
    };
    let unknown = "0199aabb-ccdd-7eee-8fff-001122334455";
    let expected = seen(&stranger.client, unknown).await;
    assert!(
        expected.iter().all(|(_, status, _)| *status == 404),
        "{expected:?}"
    );
    // A further endpoint, and the first one, whose id is that of the partner.
    for id in [
        crm["endpoint_id"].as_str().unwrap(),
        &shop.partner.partner_id.clone(),
    ] {
        assert_eq!(seen(&stranger.client, id).await, expected, "{id}");
    }
    let shown = get(&shop.client, &path_of(&crm, "")).await.unwrap();
    assert_eq!(
        (&shown["state"], &shown["events"]),
        (&json!("open"), &json!(["topup.ready"]))
    );
    let listed = get(&stranger.client, "/endpoints").await.unwrap();
    assert_eq!(listed["endpoints"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn what_cannot_be_an_endpoint_is_refused_with_the_reason() {
    let (stack, shop) = open().await;
    let url = shop.receiver.url(CRM);
    let body = |more: Value| {
        let mut body = json!({"url": url});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body.to_string()
    };
    let many: serde_json::Map<String, Value> =
        (0..11).map(|n| (format!("x-{n}"), json!("v"))).collect();
    for (wrong, code) in [
        ("{}".to_owned(), "url_missing; parameter=url"),
        (json!({"url": 1}).to_string(), "url_invalid; parameter=url"),
        (
            json!({"url": "https://10.0.0.1/"}).to_string(),
            "url_forbidden; parameter=url",
        ),
        (
            body(json!({"events": ["webhook.test"]})),
            "events_invalid; parameter=events",
        ),
        (
            body(json!({"headers": []})),
            "headers_invalid; parameter=headers",
        ),
        (
            body(json!({"headers": {"Host": "a"}})),
            "headers_invalid; parameter=headers",
        ),
        (
            body(json!({"headers": {"webhook-id": "a"}})),
            "headers_invalid; parameter=headers",
        ),
        (
            body(json!({"headers": {"x": "a\r\nhost: b"}})),
            "headers_invalid; parameter=headers",
        ),
        (
            body(json!({"headers": {"X-A": "1", "x-a": "2"}})),
            "headers_invalid; parameter=headers",
        ),
        (
            body(json!({"headers": {"x": "v".repeat(4096)}})),
            "headers_invalid; parameter=headers",
        ),
        (
            body(json!({"headers": many})),
            "headers_invalid; parameter=headers",
        ),
    ] {
        let answer = ask(&shop.client, "POST", "/endpoints", &wrong)
            .await
            .unwrap();
        assert_refused(&answer, 422, code);
    }
    let broken = ask(&shop.client, "POST", "/endpoints", "{").await.unwrap();
    assert_refused(&broken, 400, "invalid_json");
    let first = format!("/endpoints/{}", shop.partner.partner_id);
    let changed = ask(&shop.client, "PUT", &first, &body(json!({}))).await;
    assert_refused(&changed.unwrap(), 409, "first_endpoint");
    let deleted = ask(&shop.client, "DELETE", &first, "").await;
    assert_refused(&deleted.unwrap(), 409, "first_endpoint");
    let again = "/topups/20200101000000000000000000/redeliver?endpoint_id=1";
    let again = ask(&shop.client, "POST", again, "").await.unwrap();
    assert_refused(&again, 422, "endpoint_id_invalid; parameter=endpoint_id");
    for _ in 0..9 {
        let answer = ask(&shop.client, "POST", "/endpoints", &body(json!({}))).await;
        assert_eq!(answer.unwrap().status, 201);
    }
    let eleventh = ask(&shop.client, "POST", "/endpoints", &body(json!({}))).await;
    assert_refused(&eleventh.unwrap(), 409, "too_many_endpoints");
    let text = format!(
        "{:?}",
        stack
            .esimctl
            .run::<Value>(&["action", "list", "--by", "partner"])
            .await
    );
    assert!(
        text.contains("endpoint create") && !text.contains("http"),
        "{text}"
    );
}
