//! Prices, balances and statements, as partners see them, with real services beside each other.

use crate::esim_partner::Tool;
use crate::partner::{ask, assert_refused, get, header, send};
use crate::shop::{SOON, Shop, fresh, ids, open, size};
use futures_util::future::join_all;
use serde_json::{Value, json};
use testkit::client::Client;
use testkit::esimctl::Partner;
use testkit::receiver::Received;
use testkit::stack::{Stack, Stage};
use testkit::wait;

/// Gives a partner a list in which each option costs this, and a prepaid account in JOD, whose
/// minor unit is a thousandth. Returns once every ingress knows it.
async fn agree(stack: &Stack, shop: &Shop, price: i64) {
    let partner = &shop.partner.partner_id;
    let mut database = stack.database.connect().await.unwrap();
    let statements = format!(
        "INSERT INTO price_lists (price_list, currency) VALUES ('{partner}', 'JOD');
         INSERT INTO prices (price_list, option_id, amount)
             SELECT '{partner}', option_id, {price} FROM options WHERE name <> 'runs-out';
         INSERT INTO accounts (partner_id, currency) VALUES ('{partner}', 'JOD');
         UPDATE partners SET price_list = '{partner}' WHERE partner_id = '{partner}'"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(statements))
        .execute(&mut database)
        .await
        .unwrap();
    for url in stack.base_urls() {
        let client = Client::of(&url, &shop.partner).unwrap();
        let knows = async || {
            let listed = get(&client, "/options?limit=1").await?;
            Ok((listed["options"][0]["price"] == price).then_some(()))
        };
        wait::until(SOON, "the price list", knows).await.unwrap();
    }
}

async fn pay(stack: &Stack, partner: &Partner, amount: i64) {
    let mut database = stack.database.connect().await.unwrap();
    sqlx::query("SELECT book_entry($1::uuid, 'JOD', 'deposit', $2, $3, 'paid', 'test')")
        .bind(&partner.partner_id)
        .bind(amount)
        .bind(fresh("paid"))
        .execute(&mut database)
        .await
        .unwrap();
}

/// Balance, held and available.
async fn balance(client: &Client) -> (i64, i64, i64) {
    let shown = get(client, "/balance").await.unwrap();
    let only = &shown["balances"][0];
    assert_eq!(shown["balances"].as_array().unwrap().len(), 1, "{shown}");
    let number = |name: &str| only[name].as_i64().unwrap();
    (number("balance"), number("held"), number("available"))
}

async fn charged(client: &Client, expected: i64) {
    let look = async || Ok((balance(client).await == (expected, 0, expected)).then_some(()));
    let what = format!("a balance of {expected} with nothing held");
    wait::until(SOON, &what, look).await.unwrap();
}

#[tokio::test]
async fn what_is_ordered_is_held_charged_refunded_and_stated() {
    let (stack, shop) = open().await;
    let client = &shop.client;
    let nothing = get(client, "/balance").await.unwrap();
    assert_eq!(nothing, json!({ "balances": [] }));
    agree(&stack, &shop, 1250).await;
    let ready = stack.option("ready").unwrap();
    let id = fresh("priced");
    let refused = client.order(&id, &[(ready, 2)]).await.unwrap();
    let named = "balance_insufficient; required=2500; available=0; currency=JOD";
    assert_refused(&refused, 422, named);
    let text = refused.json().unwrap()["errors"][0].to_string();
    assert!(
        text.contains("2.500 JOD are required and 0.000 JOD"),
        "{text}"
    );
    // Nothing of it is stored, so it may be sent again.
    let looked = ask(client, "GET", &format!("/orders/{id}")).await.unwrap();
    assert_refused(&looked, 404, "not_found");
    pay(&stack, &shop.partner, 5000).await;
    let ordered = client.order(&id, &[(ready, 2)]).await.unwrap();
    assert_eq!(ordered.status, 201, "{ordered:?}");
    charged(client, 2500).await;
    // The repeat of a stored order is told as taken, whatever is left.
    let again = client.order(&id, &[(ready, 2)]).await.unwrap();
    assert_refused(&again, 422, "external_order_id_taken");

    let order = get(client, &format!("/orders/{id}")).await.unwrap();
    let topup = &order["topups"][0];
    assert_eq!(
        (&topup["price"], &topup["currency"]),
        (&json!(1250), &json!("JOD"))
    );
    let topup_id = topup["topup_id"].as_str().unwrap();
    // A unit that the provider refuses costs nothing.
    let sold_out = stack.option("out-of-stock").unwrap();
    let refused = client
        .order(&fresh("gone"), &[(sold_out, 1)])
        .await
        .unwrap();
    assert_refused(&refused, 422, "provider_rejected");
    charged(client, 2500).await;
    let path = format!("/topups/{topup_id}/give-back");
    let returned = send(client, "POST", &path, "").await.unwrap();
    assert_eq!(returned.status, 200, "{returned:?}");
    charged(client, 3750).await;

    let listed = get(client, "/statements").await.unwrap();
    let statement = &listed["statements"][0];
    assert_eq!(
        (&statement["opening"], &statement["closing"]),
        (&json!(0), &json!(3750))
    );
    let month = statement["month"].as_str().unwrap();
    let mut entries = Vec::new();
    let mut after = json!(0);
    while let Some(number) = after.as_i64() {
        let path = format!("/statements/{month}-JOD?limit=2&after={number}");
        let page = get(client, &path).await.unwrap();
        entries.extend(page["entries"].as_array().unwrap().clone());
        after = page["next_after"].clone();
    }
    let numbers: Vec<i64> = entries
        .iter()
        .map(|one| one["number"].as_i64().unwrap())
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    let sum: i64 = entries
        .iter()
        .map(|one| one["amount"].as_i64().unwrap())
        .sum();
    assert_eq!(sum, 3750);
    let kinds: Vec<&str> = entries
        .iter()
        .map(|one| one["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["deposit", "charge", "charge", "release", "refund"]);
    assert_eq!(entries[4]["topup_id"], topup_id);
    assert_eq!(entries[1]["external_order_id"], id);
    // Another partner sees nothing of it.
    let other = Shop::open(&stack).await.unwrap();
    let none = get(&other.client, "/statements").await.unwrap();
    assert_eq!(none, json!({ "statements": [] }));
    let none = ask(&other.client, "GET", &format!("/statements/{month}-JOD")).await;
    assert_refused(&none.unwrap(), 404, "not_found");
    for bad in [
        "/statements/nothing",
        "/statements/2026-13-JOD",
        "/statements/%00-JOD",
    ] {
        assert_refused(&ask(client, "GET", bad).await.unwrap(), 404, "not_found");
    }
    let bad = ask(client, "GET", "/statements?currency=jod")
        .await
        .unwrap();
    assert_refused(&bad, 422, "currency_invalid; parameter=currency");
}

#[tokio::test]
async fn a_partner_is_told_that_its_balance_is_low() {
    let (stack, shop) = open().await;
    let client = &shop.client;
    let put =
        async |path: &str, body: Value| send(client, "PUT", path, &body.to_string()).await.unwrap();
    let none = put("/balance/JOD", json!({ "warn_below": 1 })).await;
    assert_refused(&none, 404, "not_found");
    agree(&stack, &shop, 1250).await;
    pay(&stack, &shop.partner, 5000).await;
    let wanted = json!({ "events": ["balance.low"] });
    assert_eq!(put("/webhook", wanted).await.status, 200);
    for bad in [
        json!({ "warn_below": -1 }),
        json!({ "warn_below": "5" }),
        json!({ "warn_below": 1.5 }),
        json!({}),
    ] {
        let refused = put("/balance/JOD", bad).await;
        assert_refused(&refused, 422, "amount_invalid; parameter=warn_below");
    }
    assert_refused(
        &put("/balance/JOD", json!({ "warn_below": 1, "x": 1 })).await,
        422,
        "parameter_unknown",
    );
    for unknown in ["/balance/USD", "/balance/jod", "/balance/%00"] {
        assert_refused(
            &put(unknown, json!({ "warn_below": 1 })).await,
            404,
            "not_found",
        );
    }
    let tool = Tool::login(&stack.base_url, &shop.partner).await.unwrap();
    let set = tool
        .json(&["balance", "--warn-below", "5.001"])
        .await
        .unwrap();
    assert_eq!(
        (&set["warn_below"], &set["available"]),
        (&json!(5001), &json!(5000))
    );
    let shown: Value = stack
        .esimctl
        .run(&["account", "show", &shop.partner.partner_id])
        .await
        .unwrap();
    assert_eq!(shown["accounts"][0]["warn_below"], 5001);
    let received = shop.receiver.wait_for(1, SOON).await.unwrap();
    let data = &received[0].json["data"];
    let expected = json!({ "currency": "JOD", "available": 5000, "threshold": 5001, "as_of": data["as_of"], "last_entry": 1 });
    assert_eq!(
        (&received[0].json["type"], data),
        (&json!("balance.low"), &expected)
    );
    assert!(received[0].is_valid());
    // It can be fetched, too, like all events without a URL.
    let fetched = get(
        client,
        "/webhook/listen?wait=5&created_after=2020-01-01T00:00:00Z",
    )
    .await
    .unwrap();
    assert!(fetched.to_string().contains("balance.low"), "{fetched}");
    let listed = get(client, "/webhook/events").await.unwrap();
    assert_eq!(listed["events"][0]["type"], "balance.low", "{listed}");
    let off = tool.json(&["balance", "--no-warning"]).await.unwrap();
    assert_eq!(off["warn_below"], Value::Null);
}

/// What was booked stands in the events about it and in the order, for a partner that has prices.
#[tokio::test]
async fn events_and_orders_say_what_was_paid() {
    let (stack, shop) = open().await;
    let other = Shop::open(&stack).await.unwrap();
    agree(&stack, &shop, 1250).await;
    pay(&stack, &shop.partner, 50_000).await;
    let kinds = ["topup.failed", "order.cancelled", "esim.returned"];
    let money = ["price", "currency", "released", "refunded", "charged"];
    let expected = [
        json!([1250, "JOD", 1250, null, null]),
        json!([2500, "JOD", 2500, null, null]),
        json!([1250, "JOD", null, 1250, null]),
    ];
    for (shop, has_prices) in [(&shop, true), (&other, false)] {
        let client = &shop.client;
        let wanted = json!({ "events": kinds }).to_string();
        let asked = send(client, "PUT", "/webhook", &wanted).await.unwrap();
        assert_eq!(asked.status, 200);
        let id = fresh("paid");
        shop.buy(&id, stack.option("partly").unwrap(), 2)
            .await
            .unwrap();
        let cancelled = fresh("cancelled");
        shop.buy(&cancelled, stack.option("cancellable").unwrap(), 2)
            .await
            .unwrap();
        let path = format!("/orders/{cancelled}");
        let cancel = async || {
            let answer = ask(client, "DELETE", &path).await?;
            Ok((answer.status == 200).then_some(()))
        };
        wait::until(SOON, "the cancellation", cancel).await.unwrap();
        let ready = shop
            .buy(&fresh("back"), stack.option("ready").unwrap(), 1)
            .await
            .unwrap();
        shop.delivered(&ids(&ready), SOON).await.unwrap();
        let path = format!("/topups/{}/give-back", ready[0].topup_id);
        let back = send(client, "POST", &path, "").await.unwrap();
        assert_eq!(back.status, 200, "{back:?}");
        for (kind, expected) in kinds.iter().zip(&expected) {
            let is_it = |one: &Received| one.json["type"] == *kind;
            let told = shop
                .receiver
                .wait_until(SOON, kind, |all| all.iter().any(is_it))
                .await;
            let told = told.unwrap().into_iter().find(is_it).unwrap().json;
            let said: Vec<&Value> = money.iter().map(|name| &told["data"][name]).collect();
            let none = json!([null, null, null, null, null]);
            assert_eq!(
                &json!(said),
                if has_prices { expected } else { &none },
                "{told}"
            );
        }
        let shown = get(client, &format!("/orders/{id}")).await.unwrap();
        let list = get(client, "/orders").await.unwrap();
        let listed = list["orders"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["external_order_id"] == id);
        for order in [&shown, listed.unwrap()] {
            let price = if has_prices { json!(2500) } else { Value::Null };
            assert_eq!(order["price"], price, "{order}");
            assert_eq!(order["currency"].is_string(), has_prices, "{order}");
        }
    }
}

/// A partner rehearses an empty balance in the sandbox, with orders that race for the rest.
#[tokio::test]
async fn a_sandbox_balance_is_set_emptied_and_raced_for() {
    let (stack, shop) = open().await;
    let client = &shop.client;
    let put = async |client: &Client, path: &str, body: Value| {
        send(client, "PUT", path, &body.to_string()).await.unwrap()
    };
    let path = "/sandbox/balance/JOD";
    let none = put(client, path, json!({ "balance": 1 })).await;
    assert_refused(&none, 404, "not_found");
    agree(&stack, &shop, 1250).await;
    let live = stack.create_partner("live", None).await.unwrap();
    let live = stack.client(&live).unwrap();
    assert_refused(
        &put(&live, path, json!({ "balance": 1 })).await,
        403,
        "sandbox_only",
    );
    for bad in [
        json!({}),
        json!({ "balance": null }),
        json!({ "balance": -1 }),
        json!({ "balance": "1" }),
    ] {
        assert_refused(
            &put(client, path, bad).await,
            422,
            "amount_invalid; parameter=balance",
        );
    }
    let tool = Tool::login(&stack.base_url, &shop.partner).await.unwrap();
    let url = shop.receiver.url("/certify");
    let told = async || {
        let output = tool.run(&["certify", &url, "--json"]).await.unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let items = report["checklist"].as_array().unwrap().clone();
        items
            .into_iter()
            .find(|one| one["name"] == "balance")
            .unwrap()["done"]
            .clone()
    };
    assert_eq!(told().await, "no");
    assert_eq!(
        put(client, "/webhook", json!({ "events": ["balance.low"] }))
            .await
            .status,
        200
    );
    tool.json(&["balance", "--warn-below", "1.251"])
        .await
        .unwrap();
    assert_eq!(told().await, "yes");
    let set = tool.json(&["balance", "--set", "3.000"]).await.unwrap();
    assert_eq!(set["available"], 3000, "{set}");
    // There is enough for two of them.
    let ready = stack.option("ready").unwrap();
    let orders = (0..8).map(async |_| {
        client
            .order(&fresh("race"), &[(ready, 1)])
            .await
            .unwrap()
            .status
    });
    let mut answers = join_all(orders).await;
    answers.sort_unstable();
    assert_eq!(answers, [201, 201, 422, 422, 422, 422, 422, 422]);
    tool.json(&["balance", "--set", "0"]).await.unwrap();
    let refused = client.order(&fresh("empty"), &[(ready, 1)]).await.unwrap();
    assert_eq!(refused.status, 422, "{refused:?}");
    let low = |one: &Received| one.json["type"] == "balance.low" && one.path == crate::shop::PATH;
    let told = shop
        .receiver
        .wait_until(SOON, "balance.low", |all| all.iter().any(low));
    told.await.unwrap();
    let checked: Value = stack.esimctl.run(&["account", "check"]).await.unwrap();
    assert_eq!(checked["disagreements"], json!([]), "{checked}");
    // It reaches no other account.
    let other = Shop::open(&stack).await.unwrap();
    let none = put(&other.client, path, json!({ "balance": 1 })).await;
    assert_refused(&none, 404, "not_found");
}

#[tokio::test]
async fn prices_bound_what_can_be_ordered() {
    let (stack, shop) = open().await;
    agree(&stack, &shop, 100).await;
    pay(&stack, &shop.partner, 1000).await;
    let client = &shop.client;
    let ready = stack.option("ready").unwrap();
    let unlisted = stack.option("runs-out").unwrap();
    let refused = client.order(&fresh("unlisted"), &[(unlisted, 1)]).await;
    assert_refused(&refused.unwrap(), 422, "option_not_found; item=0");
    let order = async |client: &Client, most: Value| {
        let item = json!({ "option_id": ready, "qty": 1, "max_price": most });
        let body = json!({ "external_order_id": fresh("most"), "products": [item] });
        send(client, "POST", "/orders", &body.to_string())
            .await
            .unwrap()
    };
    let dear = order(client, json!(99)).await;
    assert_refused(&dear, 422, "price_above_max; item=0");
    for bad in [json!(-1), json!("99"), json!(1.5), json!([])] {
        assert_refused(&order(client, bad).await, 422, "max_price_invalid; item=0");
    }
    for good in [json!(100), Value::Null, json!(1000)] {
        assert_eq!(order(client, good).await.status, 201);
    }
    // Partners without prices never sent the field, and it means nothing for them.
    let other = Shop::open(&stack).await.unwrap();
    assert_eq!(order(&other.client, json!("x")).await.status, 201);
    let listed = get(&other.client, "/options?limit=1").await.unwrap();
    assert!(listed["options"][0].get("price").is_none(), "{listed}");
    let after = header(
        &ask(client, "GET", "/options?limit=1").await.unwrap(),
        "etag",
    )
    .to_owned();
    let mut database = stack.database.connect().await.unwrap();
    sqlx::raw_sql("UPDATE prices SET amount = 101")
        .execute(&mut database)
        .await
        .unwrap();
    let page = ask(client, "GET", "/options?limit=1").await.unwrap();
    assert_ne!(header(&page, "etag"), after);
}

/// Two ingresses sell for one partner at once, with repeats, refusals and deposits beside. Exactly
/// what is paid for is sold.
#[tokio::test]
async fn a_prepaid_account_sells_exactly_what_it_has() {
    let builder = Stack::builder().replicas(Stage::Ingress, 2);
    let stack = builder.start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    agree(&stack, &shop, 7).await;
    let urls = stack.base_urls();
    let clients: Vec<Client> = urls
        .iter()
        .map(|url| Client::of(url, &shop.partner).unwrap())
        .collect();
    let ready = stack.option("ready").unwrap();
    let sold_out = stack.option("out-of-stock").unwrap();
    let mut paid = 0;
    for round in 0..size("MONEY_ROUNDS", 3) {
        pay(&stack, &shop.partner, 7 * 20).await;
        paid += 21;
        let one = |nth: usize| {
            let client = &clients[nth % 2];
            let (stack, partner) = (&stack, &shop.partner);
            async move {
                if nth == 7 {
                    pay(stack, partner, 7).await;
                }
                // Each id is used at both ingresses, and some orders are refused by the provider.
                let id = format!("{round} {}", nth / 2);
                let option = if (nth / 2).is_multiple_of(5) {
                    sold_out
                } else {
                    ready
                };
                loop {
                    let answer = client.order(&id, &[(option, 1)]).await.unwrap();
                    match answer.status {
                        201 | 422 => return,
                        _ => tokio::task::yield_now().await,
                    }
                }
            }
        };
        join_all((0..64).map(one)).await;
    }
    // What is left is sold, too, so the sum is exact whatever happened before.
    loop {
        let answer = clients[0]
            .order(&fresh("rest"), &[(ready, 1)])
            .await
            .unwrap();
        if answer.status == 422 {
            break;
        }
    }
    charged(&shop.client, 0).await;
    let sold = "SELECT count(*) FROM account_entries WHERE kind = 'charge' AND amount = -7";
    assert_eq!(stack.count(sold).await.unwrap(), paid);
    let checked: Value = stack.esimctl.run(&["account", "check"]).await.unwrap();
    assert!(
        checked["disagreements"].as_array().unwrap().is_empty(),
        "{checked}"
    );
}
