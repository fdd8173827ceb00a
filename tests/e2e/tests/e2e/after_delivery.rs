//! What partners ask about their delivered eSIMs: the data use, and giving them back.

use serde_json::Value;
use testkit::client::{Answer, Client};
use testkit::receiver::Received;
use testkit::stack::{Stack, Stage};
use testkit::wait;

use crate::partner::{ask, assert_refused, delivered, get, header, send};
use crate::shop::{SOON, Shop, fresh, open};

const GIB: u64 = 1024 * 1024 * 1024;

/// A delivered eSIM of an option.
async fn esim(stack: &Stack, shop: &Shop, option: &str) -> String {
    let bought = shop
        .buy(&fresh(option), stack.option(option).unwrap(), 1)
        .await
        .unwrap();
    let topup_id = bought[0].topup_id.clone();
    delivered(&shop.client, &topup_id).await;
    topup_id
}

async fn give_back(client: &Client, topup_id: &str) -> Answer {
    let path = format!("/topups/{topup_id}/give-back");
    ask(client, "POST", &path).await.unwrap()
}

async fn state(client: &Client, topup_id: &str) -> Value {
    let path = format!("/topups/{topup_id}/give-back");
    get(client, &path).await.unwrap()
}

#[tokio::test]
async fn a_partner_sees_the_data_use_and_how_old_it_is() {
    let (mut stack, shop) = open().await;
    let used = esim(&stack, &shop, "in-use").await;
    let path = format!("/topups/{used}/usage");
    let usage = get(&shop.client, &path).await.unwrap();
    assert_eq!(usage["topup_id"], used);
    assert_eq!(usage["installed"], true);
    assert_eq!(usage["data_total_bytes"], 5 * GIB);
    assert_eq!(usage["data_used_bytes"], GIB * 3 / 2);
    assert_eq!(usage["data_left_bytes"], GIB * 7 / 2);
    assert!(usage["ends_at"].is_string(), "{usage}");
    // The answer is kept for a while.
    let again = get(&shop.client, &path).await.unwrap();
    assert_eq!(again["read_at"], usage["read_at"]);

    let unused = esim(&stack, &shop, "ready").await;
    let never_ready = shop
        .buy(&fresh("never"), stack.option("never-ready").unwrap(), 1)
        .await
        .unwrap();
    let waiting = format!("/topups/{}/usage", never_ready[0].topup_id);
    let answer = ask(&shop.client, "GET", &waiting).await.unwrap();
    assert_refused(&answer, 409, "topup_not_ready");
    let stranger = Shop::open(&stack).await.unwrap();
    for path in [path.clone(), format!("/topups/{unused}/give-back")] {
        let answer = ask(&stranger.client, "GET", &path).await.unwrap();
        assert_refused(&answer, 404, "not_found");
    }
    assert_refused(
        &give_back(&stranger.client, &unused).await,
        404,
        "not_found",
    );

    // The provider is away: the last answer is served, however old it is, and without one a 503.
    let aged = "UPDATE esim_requests SET read_at = read_at - interval '2 days' WHERE topup_id = $1";
    let mut database = stack.database.connect().await.unwrap();
    sqlx::query(aged)
        .bind(&used)
        .execute(&mut database)
        .await
        .unwrap();
    stack.process(Stage::Sandbox).unwrap().kill().await.unwrap();
    let old = get(&shop.client, &path).await.unwrap();
    assert_eq!(old["data_used_bytes"], usage["data_used_bytes"]);
    assert!(old["age_seconds"].as_u64() > Some(170_000), "{old}");
    let unanswered = ask(&shop.client, "GET", &format!("/topups/{unused}/usage"))
        .await
        .unwrap();
    assert_refused(&unanswered, 503, "usage_unanswered");
    assert_eq!(header(&unanswered, "retry-after"), "30");
}

/// A partner hears once of what becomes of its eSIMs, at the endpoint that asked for it.
#[tokio::test]
async fn what_becomes_of_an_esim_is_told_to_a_partner_that_asked() {
    let (stack, shop) = open().await;
    let events = r#"{"events": ["esim.installed", "esim.first_used", "esim.low_data", "esim.returned", "order.cancelled"]}"#;
    let set = send(&shop.client, "PUT", "/webhook", events).await.unwrap();
    assert_eq!(set.status, 200, "{set:?}");
    let used = esim(&stack, &shop, "in-use").await;
    let usage = get(&shop.client, &format!("/topups/{used}/usage"))
        .await
        .unwrap();
    let returned = esim(&stack, &shop, "ready").await;
    assert_eq!(give_back(&shop.client, &returned).await.status, 200);
    let busy = fresh("cancellable");
    shop.buy(&busy, stack.option("cancellable").unwrap(), 2)
        .await
        .unwrap();
    let cancelled = ask(&shop.client, "DELETE", &format!("/orders/{busy}")).await;
    assert_eq!(cancelled.unwrap().status, 200);
    let expected = [
        "esim.first_used",
        "esim.installed",
        "esim.returned",
        "order.cancelled",
    ];
    let kinds = |received: &[Received]| -> Vec<String> {
        let kinds = received
            .iter()
            .filter_map(|one| Some(one.headers.get("webhook-type")?.to_str().ok()?.to_owned()));
        let mut kinds: Vec<String> = kinds.collect();
        kinds.sort_unstable();
        kinds
    };
    let told = |received: &[Received]| kinds(received).len() >= expected.len();
    let received = shop
        .receiver
        .wait_until(SOON, "four events", told)
        .await
        .unwrap();
    assert_eq!(kinds(&received), expected);
    let data_of = |kind: &str| {
        let found = received.iter().find(|one| one.json["type"] == kind);
        found.unwrap().json["data"].clone()
    };
    let first = data_of("esim.first_used");
    assert_eq!(first["topup_id"], used);
    assert_eq!(first["data_used_bytes"], usage["data_used_bytes"]);
    assert_eq!(first["read_at"], usage["read_at"]);
    assert_eq!(data_of("esim.returned")["topup_id"], returned);
    let cancelled = data_of("order.cancelled");
    assert_eq!(
        (&cancelled["external_order_id"], &cancelled["units"]),
        (&Value::from(busy), &Value::from(2))
    );
}

#[tokio::test]
async fn an_esim_is_given_back_once_and_for_all() {
    let (stack, shop) = open().await;
    for option in ["ready", "return-lost"] {
        let topup_id = esim(&stack, &shop, option).await;
        assert_eq!(state(&shop.client, &topup_id).await["state"], "not_asked");
        let answer = give_back(&shop.client, &topup_id).await;
        assert_eq!(answer.status, 200, "{option}");
        assert_eq!(answer.json().unwrap()["state"], "returned");
        let again = give_back(&shop.client, &topup_id).await;
        assert_eq!(again.json().unwrap(), answer.json().unwrap(), "{option}");

        let topup = get(&shop.client, &format!("/topups/{topup_id}"))
            .await
            .unwrap();
        assert_eq!(topup["state"], "returned");
        assert!(topup["returned_at"].is_string() && topup["esim"].is_null());
        let order = topup["external_order_id"].as_str().unwrap();
        let order = get(&shop.client, &format!("/orders/{order}"))
            .await
            .unwrap();
        assert_eq!(order["state"], "ready");
        assert_eq!(order["topup_counts"]["returned"], 1);
        assert_eq!(order["topup_counts"]["ready"], 0);
        for (method, path) in [("GET", "usage"), ("POST", "redeliver")] {
            let path = format!("/topups/{topup_id}/{path}");
            let answer = ask(&shop.client, method, &path).await.unwrap();
            assert_refused(&answer, 409, "topup_returned");
        }
    }
    let installed = esim(&stack, &shop, "in-use").await;
    for _ in 0..2 {
        let refused = give_back(&shop.client, &installed).await;
        assert_refused(&refused, 409, "esim_installed");
    }
    let shown = state(&shop.client, &installed).await;
    assert_eq!(
        (&shown["state"], &shown["code"]),
        (&"refused".into(), &"esim_installed".into())
    );
    let topup = get(&shop.client, &format!("/topups/{installed}"))
        .await
        .unwrap();
    assert_eq!(topup["state"], "ready");
}

#[tokio::test]
async fn a_give_back_without_an_outcome_waits_for_an_operator() {
    let stack = Stack::builder()
        .env(Stage::Provisioner, "PARK_AFTER", "3s")
        .start()
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    for (found, status) in [("--returned", 200), ("--not-returned", 409)] {
        let topup_id = esim(&stack, &shop, "return-unclear").await;
        let answer = give_back(&shop.client, &topup_id).await;
        assert_eq!(answer.status, 202);
        let shown = answer.json().unwrap()["state"].clone();
        assert!(shown == "under_way" || shown == "on_hold", "{shown}");
        let on_hold = async || {
            let state = state(&shop.client, &topup_id).await;
            Ok((state["state"] == "on_hold").then_some(()))
        };
        wait::soon("a parked give-back", on_hold).await;
        let list: Value = stack.esimctl.run(&["give-back", "list"]).await.unwrap();
        assert_eq!(list["give_backs"][0]["topup_id"], topup_id);
        let resolve = ["give-back", "resolve", &topup_id, found];
        let confirmed = ["--yes", "--reason", "a test"];
        let _: Value = stack
            .esimctl
            .run(&[&resolve[..], &confirmed].concat())
            .await
            .unwrap();
        let list: Value = stack.esimctl.run(&["give-back", "list"]).await.unwrap();
        assert_eq!(list["give_backs"].as_array().map(Vec::len), Some(0));
        let topup = get(&shop.client, &format!("/topups/{topup_id}"))
            .await
            .unwrap();
        if status == 200 {
            assert_eq!(topup["state"], "returned");
        } else {
            let shown = state(&shop.client, &topup_id).await;
            assert_eq!(
                (&shown["state"], &shown["code"]),
                (&"refused".into(), &"give_back_failed".into())
            );
            assert_eq!(topup["state"], "ready");
        }
    }
}

/// A damaged row answers its partner, and keeps no other one from being answered.
#[tokio::test]
async fn an_esim_that_no_call_can_name_is_refused_and_the_others_are_answered() {
    let (stack, shop) = open().await;
    let damaged = esim(&stack, &shop, "ready").await;
    let other = esim(&stack, &shop, "in-use").await;
    let mut database = stack.database.connect().await.unwrap();
    sqlx::query("UPDATE esims SET provider_unit_id = 'no id' WHERE topup_id = $1")
        .bind(&damaged)
        .execute(&mut database)
        .await
        .unwrap();
    let refused = give_back(&shop.client, &damaged).await;
    assert_refused(&refused, 409, "give_back_failed");
    let usage = format!("/topups/{damaged}/usage");
    let unanswered = ask(&shop.client, "GET", &usage).await.unwrap();
    assert_refused(&unanswered, 503, "usage_unanswered");
    let usage = get(&shop.client, &format!("/topups/{other}/usage"))
        .await
        .unwrap();
    assert_eq!(usage["installed"], true);
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM work WHERE lane = $1")
        .bind(&damaged)
        .fetch_one(&mut database)
        .await
        .unwrap();
    assert_eq!(left, 0, "it is not looked at again and again");
}

/// An eSIM is suspended and resumed, also if the answer of the provider is lost. Whoever may not
/// is told why.
#[tokio::test]
async fn an_esim_is_suspended_and_resumed() {
    let (stack, shop) = open().await;
    let post = async |topup_id: &str, act: &str| {
        let path = format!("/topups/{topup_id}/{act}");
        ask(&shop.client, "POST", &path).await.unwrap()
    };
    let stranger = Shop::open(&stack).await.unwrap();
    for option in ["in-use", "return-lost"] {
        let topup_id = esim(&stack, &shop, option).await;
        let state = format!("/topups/{topup_id}/suspension");
        let before = get(&shop.client, &state).await.unwrap();
        assert_eq!(
            (&before["state"], &before["suspend"]),
            (&"not_asked".into(), &Value::Null)
        );
        for (act, shown) in [
            ("suspend", "suspended"),
            ("suspend", "suspended"),
            ("resume", "active"),
        ] {
            let answer = post(&topup_id, act).await;
            assert_eq!(answer.status, 200, "{option} {act}: {answer:?}");
            let answer = answer.json().unwrap();
            assert_eq!(answer["state"], shown, "{option} {act}");
            assert_eq!(answer["suspend"], act == "suspend");
            assert_eq!(get(&shop.client, &state).await.unwrap(), answer);
        }
        let foreign = format!("/topups/{topup_id}/suspend");
        let foreign = ask(&stranger.client, "POST", &foreign).await.unwrap();
        assert_refused(&foreign, 404, "not_found");
    }
    let returned = esim(&stack, &shop, "ready").await;
    assert_eq!(give_back(&shop.client, &returned).await.status, 200);
    assert_refused(&post(&returned, "suspend").await, 409, "topup_returned");
    assert_refused(&post(&returned, "resume").await, 409, "topup_returned");
}
