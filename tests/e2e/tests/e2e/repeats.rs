//! `X-Service-Repeat: answer`: the repeat of an order gets the answer of its first request, and
//! buys nothing.

use std::collections::BTreeSet;

use anyhow::Result;
use futures_util::future;
use serde_json::{Value, json};
use testkit::client::{Answer, Client, order};
use testkit::stack::{Stack, Stage};
use testkit::wait;

use crate::partner::{assert_refused, get, header, send};
use crate::shop::{SOON, Shop, fresh, ids, open, verdicts_come};

const REPEAT: &str = "x-service-repeat";

/// Orders these items, and asks for the answer if the order is stored already.
pub async fn repeat(client: &Client, id: &str, items: &[(&str, u32)]) -> Result<Answer> {
    let request = client.post(order(id, items).to_string());
    request.header(REPEAT, "answer").send().await
}

/// The answer is that of an order that an earlier request stored, with this body.
#[track_caller]
fn assert_answered(answer: &Answer, body: &[u8]) {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(header(answer, REPEAT), "answered");
    assert_eq!(header(answer, "content-type"), "application/json");
    assert!(!header(answer, "location").is_empty());
    assert_eq!(answer.body, body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_orders_at_once_all_get_the_answer_of_the_one_that_is_bought() {
    let builder = Stack::builder().replicas(Stage::Ingress, 2);
    let stack = builder.start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let mut both = Vec::new();
    for base_url in stack.base_urls() {
        let client = Client::of(&base_url, &shop.partner).unwrap();
        verdicts_come(&stack, &client).await.unwrap();
        both.push(client);
    }
    let ready = stack.option("ready").unwrap();
    let before = stack.ledger().await.unwrap().units;
    let mut topup_ids = BTreeSet::new();
    for _ in 0..10 {
        let id = fresh("three");
        let items = [(ready, 2)];
        let clients = both.iter().cycle().take(3);
        let answers = future::join_all(clients.map(|client| repeat(client, &id, &items))).await;
        let answers: Vec<Answer> = answers.into_iter().map(Result::unwrap).collect();
        let is_created = |answer: &&Answer| answer.status == 201;
        assert_eq!(answers.iter().filter(is_created).count(), 1, "{answers:?}");
        let created = answers.iter().find(is_created).unwrap();
        assert!(!created.headers.contains_key(REPEAT));
        for answer in answers.iter().filter(|answer| answer.status != 201) {
            assert_answered(answer, &created.body);
        }
        topup_ids.extend(ids(&created.products().unwrap()));
    }
    assert_eq!(topup_ids.len(), 20);
    shop.delivered(&topup_ids, SOON).await.unwrap();
    assert_eq!(stack.ledger().await.unwrap().units - before, 20);

    // A refused order frees its id, so each of these is a new order, or waits for one.
    let refused = stack.option("refused").unwrap();
    for _ in 0..5 {
        let id = fresh("refused");
        let items = [(refused, 1)];
        let clients = both.iter().cycle().take(3);
        for answer in future::join_all(clients.map(|client| repeat(client, &id, &items))).await {
            let answer = answer.unwrap();
            let is_undecided = answer.status == 202 && header(&answer, REPEAT) == "undecided";
            if !is_undecided {
                assert_refused(&answer, 422, "provider_rejected");
            }
        }
    }
    assert_eq!(stack.ledger().await.unwrap().units - before, 20);
}

#[tokio::test]
async fn a_repeat_is_answered_only_if_it_asks_for_the_same() {
    let (stack, shop) = open().await;
    let [ready, delayed] = ["ready", "delayed"].map(|name| stack.option(name).unwrap());
    let id = fresh("repeated");
    let items = [(ready, 1), (delayed, 2)];
    let first = repeat(&shop.client, &id, &items).await.unwrap();
    assert_eq!(first.status, 201, "{first:?}");
    let again = repeat(&shop.client, &id, &items).await.unwrap();
    assert_answered(&again, &first.body);
    // What counts is which unit is asked for at which place.
    let cut = [(ready, 1), (delayed, 1), (delayed, 1)];
    let again = repeat(&shop.client, &id, &cut).await.unwrap();
    assert_answered(&again, &first.body);
    for other in [
        &[(ready, 1), (delayed, 1)][..],
        &[(ready, 1), (delayed, 3)],
        &[(delayed, 2), (ready, 1)],
        &[(delayed, 1), (ready, 2)],
    ] {
        let differs = repeat(&shop.client, &id, other).await.unwrap();
        assert_refused(&differs, 409, "order_differs");
        assert_eq!(header(&differs, "location"), header(&again, "location"));
        assert!(differs.json().unwrap()["error"].is_string());
    }
    // Without the header nothing has changed, and a body that is wrong is refused as before.
    let taken = shop.client.order(&id, &items).await.unwrap();
    assert_refused(&taken, 422, "external_order_id_taken");
    assert!(!taken.headers.contains_key(REPEAT));
    let wrong = repeat(&shop.client, &id, &[(ready, 0)]).await.unwrap();
    assert_eq!(wrong.status, 422);
    // Another value buys nothing.
    let misspelt = fresh("misspelt");
    for value in ["Answer", "true", ""] {
        let request = shop.client.post(order(&misspelt, &items).to_string());
        let refused = request.header(REPEAT, value).send().await.unwrap();
        assert_refused(&refused, 400, "repeat_invalid");
    }
    let unknown = send(&shop.client, "GET", &format!("/orders/{misspelt}"), "").await;
    assert_refused(&unknown.unwrap(), 404, "not_found");
    // The id of another partner is another order.
    let other = Shop::open(&stack).await.unwrap();
    let theirs = repeat(&other.client, &id, &items).await.unwrap();
    assert_eq!(theirs.status, 201, "{theirs:?}");

    // An option that is no longer offered does not change what was ordered.
    let mut database = stack.database.connect().await.unwrap();
    let disabled = "UPDATE options SET enabled = false WHERE option_id = $1::uuid";
    let disabled = sqlx::query(disabled).bind(delayed);
    disabled.execute(&mut database).await.unwrap();
    sqlx::query("UPDATE system SET version = version + 1")
        .execute(&mut database)
        .await
        .unwrap();
    wait::soon("the option to be gone", async || {
        let gone = shop.client.order(&fresh("gone"), &[(delayed, 1)]).await?;
        Ok((gone.status == 422).then_some(()))
    })
    .await;
    let again = repeat(&shop.client, &id, &items).await.unwrap();
    assert_answered(&again, &first.body);
    let differs = repeat(&shop.client, &id, &[(delayed, 1)]).await.unwrap();
    assert_refused(&differs, 409, "order_differs");
    let new = repeat(&shop.client, &fresh("new"), &items).await.unwrap();
    assert_refused(&new, 422, "option_not_found; item=1");
}

#[tokio::test]
async fn the_answer_that_was_lost_comes_with_the_repeat() {
    let (stack, shop) = open().await;
    let items = [(stack.option("answer-lost").unwrap(), 2)];
    let id = fresh("lost");
    let lost = repeat(&shop.client, &id, &items).await;
    assert!(lost.is_err(), "there is an answer: {lost:?}");
    let again = repeat(&shop.client, &id, &items).await.unwrap();
    let shown = get(&shop.client, &format!("/orders/{id}")).await.unwrap();
    let topups = shown["topups"].as_array().unwrap();
    let product =
        |topup: &Value| json!({"topup_id": topup["topup_id"], "option_id": topup["option_id"]});
    let products: Vec<Value> = topups.iter().map(product).collect();
    assert_answered(&again, &again.body);
    assert_eq!(again.json().unwrap(), json!({ "products": products }));
}
