//! What partners look up and change of their own account: options, webhook, keys.

use crate::partner::{API, ask, assert_refused, get, header, send};
use crate::shop::{PATH, SOON, fresh, open};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use testkit::client::{Client, Product};
use testkit::receiver::{self, Receiver, Signature};
use testkit::stack::{Stack, Stage};
use testkit::{names::NameServer, wait};

#[tokio::test]
async fn options_are_listed_and_cached() {
    let (stack, shop) = open().await;
    // When an option changed is not what this test is about.
    let timeless = |mut page: Value| {
        for option in page["options"].as_array_mut().unwrap() {
            let option = option.as_object_mut().unwrap();
            assert!(option.remove("updated_at").unwrap().is_string());
            let facts = option.remove("facts").unwrap();
            assert_eq!(
                facts["coverage"][0]["networks"][0]["name"],
                "Sandbox Mobile"
            );
        }
        page
    };
    let mut cursor = String::new();
    let mut offered = Vec::new();
    loop {
        let page = get(&shop.client, &format!("/options?limit=1{cursor}"))
            .await
            .unwrap();
        let page = timeless(page);
        offered.extend(page["options"].as_array().unwrap().clone());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
        assert!(offered.len() < 100, "the pages do not end");
    }
    let ready = json!({"option_id": stack.option("ready").unwrap(), "name": "ready", "details": {
        "country": "JP", "days": 30, "data_gb": 5, "outcome": "201, and the webhook at once",
    }, "countries": ["JP"], "data_mb": 5120, "unlimited": false, "days": 30});
    assert!(offered.contains(&ready), "{offered:?}");
    let whole = ask(&shop.client, "GET", "/options?limit=100")
        .await
        .unwrap();
    assert_eq!(
        timeless(whole.json().unwrap()),
        json!({"options": offered, "next_cursor": null})
    );

    let etag = header(&whole, "etag").to_owned();
    let since = async |etag: &str| {
        let options = shop.client.get(&format!("{API}/options"));
        options
            .query("limit=100")
            .header("if-none-match", etag)
            .send()
            .await
            .unwrap()
    };
    let unchanged = since(&etag).await;
    assert_eq!((unchanged.status, unchanged.body.len()), (304, 0));
    let mut database = stack.database.connect().await.unwrap();
    let disabling = sqlx::query("UPDATE options SET enabled = false WHERE name = 'refused'");
    disabling.execute(&mut database).await.unwrap();
    let changed = since(&etag).await;
    let etag = header(&changed, "etag").to_owned();
    let options = changed.json().unwrap();
    assert_eq!(
        options["options"].as_array().unwrap().len(),
        offered.len() - 1
    );

    // What the operator adds is shown as it is, and what the file leaves out stays.
    let details =
        json!({"country": "JP", "days": 7, "price": {"amount": "4.50", "currency": "EUR"}});
    let catalogue = json!({"options": [{"option_id": stack.option("ready").unwrap(), "name": "ready",
        "provider": "sandbox", "provider_option_id": "ready", "environment": "sandbox", "details": details}]});
    for outcome in ["imported", "unchanged"] {
        assert_eq!(
            stack.esimctl.import(catalogue.to_string()).await.unwrap()[outcome],
            1
        );
    }
    let whole = timeless(since(&etag).await.json().unwrap());
    let ready = json!({
        "option_id": stack.option("ready").unwrap(), "name": "ready", "details": details,
        "countries": ["JP"], "data_mb": 5120, "unlimited": false, "days": 30,
    });
    assert!(
        whole["options"].as_array().unwrap().contains(&ready),
        "{whole}"
    );

    // No live option is configured.
    let live = stack.create_partner("live", None).await.unwrap();
    let live = stack.client(&live).unwrap();
    assert_eq!(
        get(&live, "/options").await.unwrap(),
        json!({"options": [], "next_cursor": null})
    );
    // What a partner may not order looks like an unknown option.
    let path = format!("/options/{}", stack.option("ready").unwrap());
    let own = ask(&shop.client, "GET", &path).await.unwrap();
    assert_eq!(own.status, 200);
    let known = shop.client.get(&format!("{API}{path}"));
    let known = known.header("if-none-match", header(&own, "etag"));
    assert_eq!(known.send().await.unwrap().status, 304);
    assert_refused(&ask(&live, "GET", &path).await.unwrap(), 404, "not_found");
}

/// Orders one unit.
async fn order(client: &Client, id: &str, option: &str) -> Vec<Product> {
    client
        .order(id, &[(option, 1)])
        .await
        .unwrap()
        .products()
        .unwrap()
}

#[tokio::test]
async fn the_webhook_is_changed_by_the_partner() {
    let stack = Stack::start().await.unwrap();
    let receiver = Receiver::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let client = stack.client(&partner).unwrap();
    let ready = stack.option("ready").unwrap();
    let account = get(&client, "/account").await.unwrap();
    assert_eq!(account["environment"], "sandbox");
    assert_eq!(account["access_key"], partner.access_key);
    assert_eq!(account["old_access_key"], Value::Null);
    assert_eq!(account["limits"]["units_per_order"], 1000, "{account}");

    // A webhook waits for a URL.
    let bought = order(&client, &fresh("waiting"), ready).await;
    let topup_id = &bought[0].topup_id;
    let held = async || {
        let topup = get(&client, &format!("/topups/{topup_id}")).await?;
        Ok((topup["delivery"] == "no_endpoint").then_some(()))
    };
    wait::soon("a webhook without an endpoint", held).await;
    let redeliver = ask(&client, "POST", &format!("/topups/{topup_id}/redeliver"))
        .await
        .unwrap();
    assert_refused(&redeliver, 409, "webhook_url_missing");
    let put = async |url: Value| {
        send(&client, "PUT", "/webhook", &json!({"url": url}).to_string())
            .await
            .unwrap()
    };
    for (url, code) in [
        (
            json!("http://10.1.2.3/hook"),
            "url_forbidden; parameter=url",
        ),
        (
            json!("http://127.0.0.1:22/hook"),
            "url_forbidden; parameter=url",
        ),
        (json!("ftp://example.com"), "url_invalid; parameter=url"),
        (
            json!("https://user:pass@example.com"),
            "url_invalid; parameter=url",
        ),
        (json!(7), "url_invalid; parameter=url"),
    ] {
        assert_refused(&put(url).await, 422, code);
    }
    assert_eq!(get(&client, "/webhook").await.unwrap()["state"], "no_url");
    assert_eq!(
        put(json!(receiver.url(PATH))).await.json().unwrap()["url"],
        receiver.url(PATH)
    );
    receiver.wait_for(1, SOON).await.unwrap();

    // Both secrets sign during the overlap.
    let rotated = ask(&client, "POST", "/webhook/secret").await.unwrap();
    assert_eq!(rotated.status, 201);
    receiver
        .verify(
            PATH,
            rotated.json().unwrap()["webhook_secret"].as_str().unwrap(),
        )
        .unwrap();
    let second = ask(&client, "POST", "/webhook/secret").await.unwrap();
    assert_refused(&second, 409, "rotation_under_way");
    order(&client, &fresh("signed"), ready).await;
    let signed = |received: &[receiver::Received]| {
        let two = |one: &receiver::Received| {
            let signatures = one.headers["webhook-signature"]
                .to_str()
                .unwrap_or_default();
            one.signature == Signature::Valid && signatures.split(' ').count() == 2
        };
        received.iter().any(two)
    };
    receiver
        .wait_until(SOON, "a webhook with two signatures", signed)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_webhook_url_is_judged_by_what_its_name_resolves_to() {
    let server = NameServer::start(&[
        ("good.test", &[[127, 0, 0, 1]]),
        ("private.test", &[[10, 0, 0, 1]]),
        ("mixed.test", &[[127, 0, 0, 1], [169, 254, 169, 254]]),
    ]);
    let server = server.await.unwrap();
    let resolvers = server.address.to_string();
    let stack = Stack::with(Stage::Ingress, &[("WEBHOOK_RESOLVERS", resolvers.as_str())])
        .await
        .unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let client = stack.client(&partner).unwrap();
    let put = async |host: &str| {
        let body = json!({"url": format!("http://{host}/hook")}).to_string();
        send(&client, "PUT", "/webhook", &body).await.unwrap()
    };
    for host in ["private.test", "mixed.test:8080", "PRIVATE.test"] {
        assert_refused(&put(host).await, 422, "url_forbidden; parameter=url");
        assert_eq!(get(&client, "/webhook").await.unwrap()["url"], Value::Null);
    }
    // A name that has no address yet may get one.
    for (host, warns) in [
        ("good.test", false),
        ("none.test", true),
        ("a.silent.test", true),
    ] {
        let began = Instant::now();
        let answer = put(host).await;
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{host}: {:?}",
            began.elapsed()
        );
        let endpoint: Value = answer.json().unwrap();
        let url = format!("http://{host}/hook");
        assert_eq!(
            (answer.status, &endpoint["url"]),
            (200, &json!(url)),
            "{endpoint}"
        );
        assert_eq!(endpoint["warning"].is_string(), warns, "{endpoint}");
    }
    // The stored URL again is not resolved again.
    let again: Value = put("a.silent.test").await.json().unwrap();
    assert_eq!(again["warning"], Value::Null, "{again}");
}

#[tokio::test]
async fn keys_are_changed_by_the_partner() {
    let stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let client = stack.client(&partner).unwrap();
    // Both pairs of keys are valid during the overlap.
    let rotated = ask(&client, "POST", "/keys").await.unwrap();
    assert_eq!(
        (rotated.status, header(&rotated, "cache-control")),
        (201, "no-store")
    );
    let keys = rotated.json().unwrap();
    let text = |name: &str| keys[name].as_str().unwrap();
    let renewed = Client::new(&stack.base_url, text("access_key"), text("secret_key")).unwrap();
    for client in [&renewed, &client] {
        let account = get(client, "/account").await.unwrap();
        assert_eq!(
            (&account["access_key"], &account["old_access_key"]),
            (&keys["access_key"], &json!(partner.access_key))
        );
        assert!(account["old_keys_until"].is_string());
    }
    let second = ask(&renewed, "POST", "/keys").await.unwrap();
    assert_refused(&second, 409, "rotation_under_way");
}
