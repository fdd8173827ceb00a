//! What partners look up and change of their orders.

use crate::shop::{PATH, SOON, Shop, fresh, open};
use anyhow::{Context, Result, ensure};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use testkit::client::{Answer, Client, ORDERS, ORDERS_SHORT};
use testkit::stack::{Stack, Stage};
use testkit::{receiver::Signature, wait};

pub const API: &str = "/api/v1/api_partner";

/// A signed request under the canonical prefix.
pub async fn ask(client: &Client, method: &str, path: &str) -> Result<Answer> {
    send(client, method, path, "").await
}

pub async fn send(client: &Client, method: &str, path: &str, body: &str) -> Result<Answer> {
    let request = client.post(body.to_owned()).method(method);
    let request = match path.split_once('?') {
        Some((path, query)) => request.path(&format!("{API}{path}")).query(query),
        None => request.path(&format!("{API}{path}")),
    };
    let answer = request.send().await?;
    ensure!(
        answer.headers.contains_key("x-request-id"),
        "{method} {path}: no X-Request-Id"
    );
    Ok(answer)
}

/// The JSON of a 200.
pub async fn get(client: &Client, path: &str) -> Result<Value> {
    let answer = ask(client, "GET", path).await?;
    ensure!(
        answer.status == 200 && header(&answer, "cache-control") == "no-store",
        "GET {path}: {} {}",
        answer.status,
        String::from_utf8_lossy(&answer.body)
    );
    answer.json()
}

pub fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer
        .headers
        .get(name)
        .map(|value| value.to_str())
        .transpose()
        .ok()
        .flatten()
        .unwrap_or_default()
}

/// The status, and the code in the error header.
#[track_caller]
pub fn assert_refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!(
        (answer.status, header(answer, "x-service-error")),
        (status, code)
    );
}

/// The status, the code in the error header, and the body.
fn refusal(answer: &Answer) -> (u16, &str, Value) {
    (
        answer.status,
        header(answer, "x-service-error"),
        answer.json().unwrap_or_default(),
    )
}

/// The delivery of a topup, once it is recorded.
pub async fn delivered(client: &Client, topup_id: &str) -> Value {
    let path = format!("/topups/{topup_id}/deliveries");
    let recorded = async || {
        let delivery = get(client, &path).await?;
        Ok((delivery["state"] == "delivered").then_some(delivery))
    };
    wait::soon("the recorded delivery", recorded).await
}

/// Asks for a redelivery until it is accepted. The first request comes before `REDELIVER_INTERVAL`
/// has passed, in seconds.
pub async fn redelivered(client: &Client, path: &str, interval: u64) -> Value {
    let mut too_soon = 0;
    let again = async || {
        let answer = ask(client, "POST", path).await?;
        if answer.status == 429 {
            ensure!(header(&answer, "x-service-error") == "redelivered_recently");
            let wait: u64 = header(&answer, "retry-after").parse()?;
            ensure!((1..=interval).contains(&wait), "Retry-After: {wait}");
            too_soon += 1;
            return Ok(None);
        }
        ensure!(answer.status == 202, "{}", answer.status);
        Ok(Some(answer.json()?))
    };
    let answer = wait::soon("a redelivery", again).await;
    assert!(too_soon > 0, "the first request was not too soon");
    answer
}

/// Polls an order until it has a state.
async fn reach(client: &Client, path: &str, state: &str) -> Result<Value> {
    let reached = async || {
        let order = get(client, path).await?;
        Ok((order["state"] == state).then_some(order))
    };
    wait::until(SOON, &format!("{path} to be {state}"), reached).await
}

#[tokio::test]
async fn a_lost_answer_and_a_lost_webhook_are_cured_by_the_order() {
    let (stack, shop) = open().await;
    // The endpoint acknowledges and forgets.
    let id = format!("{}/ö ?&%2F#", fresh("lost"));
    let bought = shop
        .buy(&id, stack.option("ready").unwrap(), 2)
        .await
        .unwrap();
    let answer = shop
        .client
        .post(testkit::client::order(&id, &[(stack.option("ready").unwrap(), 2)]).to_string())
        .path(ORDERS_SHORT)
        .send()
        .await
        .unwrap();
    // The repeated request names the stored order.
    assert_eq!(
        refusal(&answer),
        (
            422,
            "external_order_id_taken",
            json!({"errors": ["External order id has already been taken"]})
        )
    );
    let location = header(&answer, "location");
    let path = location.strip_prefix("/v1/api_partner").unwrap();
    assert!(path.starts_with("/orders/"), "{location}");

    let order = reach(&shop.client, path, "ready").await.unwrap();
    assert_eq!(order["external_order_id"], id.as_str());
    let counts =
        json!({"total": 2, "processing": 0, "on_hold": 0, "ready": 2, "failed": 0, "returned": 0});
    assert_eq!(order["topup_counts"], counts);
    let shown: Vec<&Value> = order["topups"].as_array().unwrap().iter().collect();
    for (topup, product) in shown.iter().zip(&bought) {
        assert_eq!(topup["topup_id"], product.topup_id.as_str());
    }
    let webhooks = shop
        .delivered(&testkit::shop::ids(&bought), SOON)
        .await
        .unwrap();
    for webhook in &webhooks {
        let topup_id = webhook.topup_id();
        let topup = shown
            .iter()
            .find(|topup| topup["topup_id"] == topup_id)
            .unwrap();
        assert_eq!(topup["esim"], webhook.json, "the order has another eSIM");
        // One topup looks like its part of the order, apart from the webhook's progress.
        let alone = get(&shop.client, &format!("/topups/{topup_id}"))
            .await
            .unwrap();
        assert_eq!(alone["esim"], webhook.json);
        assert_eq!(
            (&alone["state"], &alone["external_order_id"]),
            (&json!("ready"), &json!(id))
        );
    }
    let short = shop.client.get(location).send().await.unwrap();
    assert_eq!(
        (short.status, header(&short, "cache-control")),
        (200, "no-store")
    );
}

/// Clients and proxies normalise paths, so some ids can be named in a query only.
#[tokio::test]
async fn every_id_that_can_be_ordered_is_found_by_a_query() {
    let (stack, shop) = open().await;
    let ready = stack.option("ready").unwrap();
    let encoded = |id: &str| utf8_percent_encode(id, NON_ALPHANUMERIC).to_string();
    let in_query = |id: &str| format!("/orders?external_order_id={}", encoded(id));
    let unusual = format!("{}/a+b%2Fö ?&#\u{7f}\n", fresh("any"));
    for id in [".", "..", &unusual] {
        let path = in_query(id);
        let nothing = get(&shop.client, &path).await.unwrap();
        assert_eq!(nothing, json!({"orders": [], "next_cursor": null}));
        let answer = shop.client.order(id, &[(ready, 2)]).await.unwrap();
        let bought = answer.products().unwrap();
        let found = get(&shop.client, &path).await.unwrap();
        let order = &found["orders"][0];
        assert_eq!(order["external_order_id"], id, "{found}");
        assert_eq!(found["orders"].as_array().unwrap().len(), 1, "{found}");
        let shown = order["topups"].as_array().unwrap().iter();
        let shown: Vec<&Value> = shown.map(|topup| &topup["topup_id"]).collect();
        let bought: Vec<&str> = bought.iter().map(|one| one.topup_id.as_str()).collect();
        assert_eq!(shown, bought);
        // The answer names a path that leads to the order.
        let location = header(&answer, "location").strip_prefix(API).unwrap();
        let named = get(&shop.client, location).await.unwrap();
        let named = named["orders"].get(0).unwrap_or(&named);
        assert_eq!(named["order_id"], order["order_id"], "{location}");
        // The other filters hold, too.
        for (filter, found) in [
            ("state=refused", 0),
            ("created_after=2020-01-01T00:00:00Z", 1),
        ] {
            let filtered = get(&shop.client, &format!("{path}&{filter}"))
                .await
                .unwrap();
            let orders = filtered["orders"].as_array().unwrap();
            assert_eq!(orders.len(), found, "{filter}: {filtered}");
        }
    }
    // The whole list shows no topups.
    let all = get(&shop.client, "/orders").await.unwrap();
    assert!(all["orders"][0].get("topups").is_none(), "{all}");
}

#[tokio::test]
async fn a_201_names_its_order_and_a_rejected_one_is_refused() {
    let (stack, shop) = open().await;
    testkit::shop::verdicts_come(&stack, &shop.client)
        .await
        .unwrap();
    let id = fresh("named");
    let ready = stack.option("ready").unwrap();
    let answer = shop.client.order(&id, &[(ready, 1)]).await.unwrap();
    answer.products().unwrap();
    assert_eq!(header(&answer, "location"), format!("{ORDERS}/{id}"));
    assert_eq!(header(&answer, "x-service-error"), "");

    let id = fresh("refused");
    let refused = stack.option("refused").unwrap();
    let answer = shop.client.order(&id, &[(refused, 1)]).await.unwrap();
    assert_refused(&answer, 422, "provider_rejected");
    assert_eq!(header(&answer, "location"), "");
    let order = get(&shop.client, &format!("/orders/{id}")).await.unwrap();
    assert_eq!(
        (&order["state"], &order["topups"][0]["state"]),
        (&json!("refused"), &json!("failed"))
    );
    assert_eq!(
        order["topups"][0]["error"],
        answer.json().unwrap()["errors"][0]
    );
    let cancelled = ask(&shop.client, "DELETE", &format!("/orders/{id}"))
        .await
        .unwrap();
    assert_refused(&cancelled, 409, "order_refused");

    // Each item at fault is named by its index; the body stays as specified.
    let body = json!({"external_order_id": fresh("items"), "products": [
        {"option_id": ready, "qty": 1},
        {"option_id": "00000000-0000-4000-8000-000000000000", "qty": 1},
        {"option_id": ready, "qty": 0},
    ]});
    let answer = shop.client.post(body.to_string()).send().await.unwrap();
    let messages = [
        "Products[2] qty must be a positive integer",
        "Product with option_id not found",
    ];
    assert_eq!(
        refusal(&answer),
        (
            422,
            "qty_invalid; item=2, option_not_found; item=1",
            json!({"errors": messages})
        )
    );
}

#[tokio::test]
async fn a_lost_webhook_is_sent_again_at_the_partners_request() {
    let stack = Stack::with(Stage::Ingress, &[("REDELIVER_INTERVAL", "2s")])
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let bought = shop
        .buy(&fresh("again"), stack.option("ready").unwrap(), 1)
        .await
        .unwrap();
    let ids = testkit::shop::ids(&bought);
    let topup_id = &bought[0].topup_id;
    let first = shop.delivered(&ids, SOON).await.unwrap().remove(0);
    let delivery = delivered(&shop.client, topup_id).await;
    assert_eq!(
        delivery["attempts"][0]["outcome"], "delivered",
        "{delivery}"
    );
    assert_eq!(delivery["attempts"][0]["status"], 200);

    let answer = redelivered(&shop.client, &format!("/topups/{topup_id}/redeliver"), 2).await;
    assert_eq!(answer, json!({"topup_id": topup_id, "delivery": "pending"}));
    let all = shop.receiver.wait_for(2, SOON).await.unwrap();
    assert_eq!(all[1].headers["webhook-id"], first.headers["webhook-id"]);
    assert_eq!(
        (&all[1].body, all[1].signature),
        (&first.body, Signature::Valid)
    );
    let twice = async || {
        let delivery = get(&shop.client, &format!("/topups/{topup_id}/deliveries")).await?;
        Ok((delivery["attempts"].as_array().map_or(0, Vec::len) == 2).then_some(()))
    };
    wait::soon("two recorded attempts", twice).await;
}

#[tokio::test]
async fn failed_attempts_show_the_partners_own_answer() {
    let (stack, shop) = open().await;
    shop.receiver.fail_first(PATH, 500);
    let bought = shop
        .buy(&fresh("failing"), stack.option("ready").unwrap(), 1)
        .await
        .unwrap();
    let delivery = delivered(&shop.client, &bought[0].topup_id).await;
    let attempts = delivery["attempts"].as_array().unwrap().iter();
    let outcomes = attempts.map(|one| json!([one["attempt"], one["status"], one["outcome"]]));
    let expected = [json!([1, 500, "status_5xx"]), json!([2, 200, "delivered"])];
    assert_eq!(outcomes.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn an_order_that_waits_is_cancelled_and_never_bought() {
    let mut stack = Stack::builder()
        .without(Stage::Provisioner)
        .start()
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let ready = stack.option("ready").unwrap().to_owned();
    let id = fresh("cancelled");
    shop.buy(&id, &ready, 2).await.unwrap();
    let path = format!("/orders/{id}");
    // The 201 has arrived, so the order need not wait for the time at which that is certain.
    let cancelled = ask(&shop.client, "DELETE", &path).await.unwrap();
    assert_eq!(cancelled.status, 200);
    let order = cancelled.json().unwrap();
    assert_eq!(
        (&order["state"], &order["topups"][1]["state"]),
        (&json!("cancelled"), &json!("failed"))
    );
    assert!(order["cancelled_at"].is_string(), "{order}");
    // Once more changes nothing.
    let again = ask(&shop.client, "DELETE", &path).await.unwrap();
    assert_eq!((again.status, again.json().unwrap()), (200, order));

    // The id is free again, and only the second order is bought.
    let kept = shop.buy(&id, &ready, 1).await.unwrap();
    stack
        .process(Stage::Provisioner)
        .unwrap()
        .start()
        .await
        .unwrap();
    shop.delivered(&testkit::shop::ids(&kept), SOON)
        .await
        .unwrap();
    assert_eq!(get(&shop.client, &path).await.unwrap()["state"], "ready");
    let late = async || {
        let answer = ask(&shop.client, "DELETE", &path).await?;
        ensure!(answer.status == 409, "cancelled although it is bought");
        Ok((header(&answer, "x-service-error") == "order_not_waiting").then_some(()))
    };
    wait::soon("the bought order to be decided", late).await;
    // A later order is bought too, so the provisioner has looked at everything that was due.
    let last = shop.buy(&fresh("last"), &ready, 1).await.unwrap();
    shop.delivered(&testkit::shop::ids(&last), SOON)
        .await
        .unwrap();
    let ledger = stack.ledger().await.unwrap();
    assert_eq!((ledger.purchases, ledger.units), (2, 2));
    let list = ["action", "list", "--by", "partner"];
    let actions: Value = stack.esimctl.run(&list).await.unwrap();
    assert!(actions.to_string().contains("order cancel"), "{actions}");
}

/// The process that answered the order says so to the one that is asked to cancel it. Once it is
/// dead nobody knows, and the order waits for the time after which no answer can leave any more.
#[tokio::test]
async fn an_answered_order_is_cancelled_at_once_by_any_process() {
    let mut stack = Stack::builder()
        .without(Stage::Provisioner)
        .replicas(Stage::Ingress, 2)
        .start()
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let ready = stack.option("ready").unwrap().to_owned();
    let other = Client::of(&stack.base_urls()[1], &shop.partner).unwrap();
    let [early, late] = [fresh("early"), fresh("late")];
    shop.buy(&early, &ready, 1).await.unwrap();
    let answer = ask(&other, "DELETE", &format!("/orders/{early}"))
        .await
        .unwrap();
    assert_eq!(answer.status, 200, "{:?}", answer.json());

    shop.buy(&late, &ready, 1).await.unwrap();
    stack.replicas(Stage::Ingress)[0].kill().await.unwrap();
    let path = format!("/orders/{late}");
    let answer = ask(&other, "DELETE", &path).await.unwrap();
    assert_refused(&answer, 409, "order_not_answered");
    let rest: u64 = header(&answer, "retry-after").parse().unwrap();
    assert!((1..=6).contains(&rest), "{rest}");
    let asked = Instant::now();
    let cancelled = async || {
        let answer = ask(&other, "DELETE", &path).await?;
        ensure!(matches!(answer.status, 200 | 409), "{}", answer.status);
        Ok((answer.status == 200).then_some(()))
    };
    wait::soon("the cancelled order", cancelled).await;
    // What the answer said was the exact rest, rounded up to seconds; each look may take half a
    // one.
    let took = asked.elapsed();
    assert!(
        took < Duration::from_secs(rest + 2),
        "{took:?} instead of {rest} s"
    );
}

#[tokio::test]
async fn orders_are_listed_by_pages() {
    let (stack, shop) = open().await;
    let ready = stack.option("ready").unwrap();
    let mut ids = Vec::new();
    for number in 0..5 {
        let id = fresh(&number.to_string());
        shop.buy(&id, ready, 1).await.unwrap();
        reach(&shop.client, &format!("/orders/{id}"), "ready")
            .await
            .unwrap();
        ids.insert(0, id);
    }
    // Another partner's orders are not among them.
    let other = Shop::open(&stack).await.unwrap();
    other.buy(&fresh("other"), ready, 1).await.unwrap();

    let listed = async |query: &str| -> Result<(Vec<String>, Option<String>)> {
        let page = get(&shop.client, &format!("/orders?{query}")).await?;
        let orders = page["orders"].as_array().context("orders")?;
        let ids = orders
            .iter()
            .filter_map(|order| order["external_order_id"].as_str());
        Ok((
            ids.map(str::to_owned).collect(),
            page["next_cursor"].as_str().map(str::to_owned),
        ))
    };
    let (first, cursor) = listed("limit=2").await.unwrap();
    assert_eq!(first, ids[..2]);
    let (second, cursor) = listed(&format!("limit=2&cursor={}", cursor.unwrap()))
        .await
        .unwrap();
    assert_eq!(second, ids[2..4]);
    let (third, end) = listed(&format!("limit=2&cursor={}", cursor.unwrap()))
        .await
        .unwrap();
    assert_eq!((third.as_slice(), end), (&ids[4..], None));
    assert_eq!(listed("state=ready&limit=3").await.unwrap().0, ids[..3]);
    assert_eq!(listed("state=failed").await.unwrap(), (Vec::new(), None));

    let third = get(&shop.client, &format!("/orders/{}", ids[2]))
        .await
        .unwrap();
    let since = third["created_at"].as_str().unwrap();
    assert_eq!(
        listed(&format!("created_after={since}")).await.unwrap().0,
        ids[..2]
    );
    assert_eq!(
        listed("created_after=2999-01-01T00:00:00Z").await.unwrap(),
        (Vec::new(), None)
    );
}

#[tokio::test]
async fn another_partners_ids_look_unknown() {
    let (stack, shop) = open().await;
    let id = fresh("mine");
    let bought = shop
        .buy(&id, stack.option("ready").unwrap(), 1)
        .await
        .unwrap();
    shop.delivered(&testkit::shop::ids(&bought), SOON)
        .await
        .unwrap();
    let stranger = Shop::open(&stack).await.unwrap();
    let topup_id = &bought[0].topup_id;
    let no_order = fresh("none");
    let no_topup = "20200101000000000000000000";
    for (method, theirs, unknown) in [
        (
            "GET",
            format!("/orders/{id}"),
            format!("/orders/{no_order}"),
        ),
        (
            "DELETE",
            format!("/orders/{id}"),
            format!("/orders/{no_order}"),
        ),
        (
            "GET",
            format!("/topups/{topup_id}"),
            format!("/topups/{no_topup}"),
        ),
        (
            "GET",
            format!("/topups/{topup_id}/deliveries"),
            format!("/topups/{no_topup}/deliveries"),
        ),
        (
            "POST",
            format!("/topups/{topup_id}/redeliver"),
            format!("/topups/{no_topup}/redeliver"),
        ),
    ] {
        let seen = async |path: &str| {
            let mut answer = ask(&stranger.client, method, path).await.unwrap();
            answer.headers.remove("x-request-id");
            answer.headers.remove("date");
            (answer.status, answer.headers, answer.body)
        };
        let theirs = seen(&theirs).await;
        let unknown = seen(&unknown).await;
        assert_eq!(theirs, unknown, "{method}");
        assert_eq!(
            (theirs.0, theirs.2.as_ref()),
            (404, br#"{"error":"Not found"}"#.as_slice())
        );
    }
    assert_eq!(
        get(&stranger.client, "/orders").await.unwrap(),
        json!({"orders": [], "next_cursor": null})
    );
    // Nothing was sent again.
    assert_eq!(shop.receiver.received().len(), 1);
}

#[tokio::test]
async fn an_esim_is_found_by_its_number() {
    let (stack, shop) = open().await;
    let ready = stack.option("ready").unwrap();
    let bought = shop.buy(&fresh("numbered"), ready, 2).await.unwrap();
    let ids = testkit::shop::ids(&bought);
    shop.delivered(&ids, SOON).await.unwrap();
    let stranger = Shop::open(&stack).await.unwrap();
    for topup_id in ids {
        let shown = get(&shop.client, &format!("/topups/{topup_id}")).await;
        let shown = shown.unwrap();
        let iccid = shown["esim"]["iccid"].as_str().unwrap();
        let spaced = format!("{}%20{}-{}", &iccid[..4], &iccid[4..9], &iccid[9..]);
        let end = &iccid[iccid.len() - 6..];
        for text in [iccid, &spaced, end] {
            let path = format!("/topups?iccid={text}");
            let found = get(&shop.client, &path).await.unwrap();
            assert_eq!(found["topups"], json!([shown]), "{text}");
            let none = get(&stranger.client, &path).await.unwrap();
            assert_eq!(none["topups"], json!([]), "{text}");
        }
        let cut = format!("/topups?iccid={}", &iccid[..iccid.len() - 4]);
        let refused = ask(&shop.client, "GET", &cut).await.unwrap();
        assert_refused(&refused, 422, "iccid_invalid; parameter=iccid");
    }
    let missing = ask(&shop.client, "GET", "/topups").await.unwrap();
    assert_refused(&missing, 422, "iccid_invalid; parameter=iccid");
}

#[tokio::test]
async fn the_changes_of_a_day_take_one_walk() {
    let (stack, shop) = open().await;
    let [ready, partly] = ["ready", "partly"].map(|name| stack.option(name).unwrap());
    let since = runtime::clock::now() - time::Duration::hours(1);
    let since = since
        .format(&time::format_description::well_known::Rfc3339)
        .unwrap();
    let first = format!("/topups?updated_since={since}&limit=2");
    let bought = shop.buy(&fresh("ready"), ready, 3).await.unwrap();
    let ids = testkit::shop::ids(&bought);
    shop.delivered(&ids, SOON).await.unwrap();
    let id = fresh("partly");
    shop.buy(&id, partly, 2).await.unwrap();
    wait::until(SOON, "a failed topup", async || {
        let order = get(&shop.client, &format!("/orders/{id}")).await?;
        Ok((order["state"] == "partly_failed").then_some(()))
    })
    .await
    .unwrap();
    // What happened within the last minute may not be complete yet.
    let young = get(&shop.client, &first).await.unwrap();
    assert_eq!(young["topups"], json!([]), "{young}");
    let mut database = stack.database.connect().await.unwrap();
    for (table, column) in [("deliveries", "created_at"), ("topup_changes", "at")] {
        let aged = format!("UPDATE {table} SET {column} = {column} - interval '3 minutes'");
        let aged = sqlx::query(sqlx::AssertSqlSafe(aged)).execute(&mut database);
        aged.await.unwrap();
    }
    let stranger = Shop::open(&stack).await.unwrap();
    let none = get(&stranger.client, &first).await.unwrap();
    assert_eq!(
        (&none["topups"], &none["next_cursor"]),
        (&json!([]), &Value::Null)
    );
    let mut found: Vec<Value> = Vec::new();
    let mut path = first.clone();
    let complete_until = loop {
        let page = get(&shop.client, &path).await.unwrap();
        found.extend(page["topups"].as_array().unwrap().iter().cloned());
        let Some(cursor) = page["next_cursor"].as_str() else {
            break page["complete_until"].as_str().unwrap().to_owned();
        };
        // The cursor of another partner leads to nothing.
        path = format!("/topups?cursor={cursor}&limit=2");
        let none = get(&stranger.client, &path).await.unwrap();
        assert_eq!(none["topups"], json!([]));
    };
    let changes: Vec<&str> = found
        .iter()
        .filter_map(|one| one["change"].as_str())
        .collect();
    assert_eq!(
        changes.iter().filter(|one| **one == "ready").count(),
        4,
        "{changes:?}"
    );
    assert_eq!(changes.iter().filter(|one| **one == "failed").count(), 1);
    assert_eq!(found.len(), 5);
    for one in &found {
        assert_eq!(one["state"], one["change"]);
        assert_eq!(one["esim"].is_null(), one["change"] == "failed");
        let path = format!("/topups/{}", one["topup_id"].as_str().unwrap());
        let alone = get(&shop.client, &path).await.unwrap();
        for (field, value) in alone.as_object().unwrap() {
            assert_eq!(&one[field], value, "{field}");
        }
    }
    // The next walk begins where this one was complete.
    let next = format!("/topups?updated_since={complete_until}");
    let next = get(&shop.client, &next).await.unwrap();
    assert_eq!(next["topups"], json!([]));
    let until = format!("{first}&updated_until={since}");
    let until = get(&shop.client, &until).await.unwrap();
    assert_eq!(until["topups"], json!([]), "only those before it");
}
