//! Further keys of a partner: what each may do, from where and how much, and that it ends.

use crate::esim_partner::Tool;
use crate::partner::{API, ask, assert_refused, get, header};
use crate::shop::fresh;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use testkit::client::{Answer, Client};
use testkit::stack::{Stack, Stage};
use testkit::{http, wait};

/// How soon counted failures are told at the latest.
const NAMED: Duration = Duration::from_secs(30);
const RIGHTS: [&str; 4] = ["order", "read", "webhooks", "keys"];

/// Sends a request whose signature covers its body.
async fn signed(client: &Client, method: &str, path: &str, body: &Value) -> Result<Answer> {
    let request = client.post(body.to_string()).method(method).whole();
    request.path(&format!("{API}{path}")).send().await
}

/// Makes a key with these fields. Returns its id and a client that signs with it.
async fn make(client: &Client, base_url: &str, fields: Value) -> Result<(String, Client)> {
    let made = signed(client, "POST", "/account/keys", &fields).await?;
    ensure!(made.status == 201, "{} {:?}", made.status, made.body);
    let made = made.json()?;
    let text = |name: &str| made[name].as_str().unwrap_or_default().to_owned();
    let key = Client::new(base_url, &text("access_key"), &text("secret_key"))?;
    Ok((text("key_id"), key))
}

/// Which right each request needs. A request that is not here fails the test below.
fn needed() -> BTreeMap<&'static str, &'static str> {
    let table = "
        order POST /orders
        order DELETE /orders/{external_order_id}
        order POST /topups/{topup_id}/give-back
        order POST /topups/{topup_id}/extensions
        order POST /topups/{topup_id}/suspend
        order POST /topups/{topup_id}/resume
        order PUT /sandbox/balance/{currency}
        order POST /topups/{topup_id}/install-page
        order DELETE /topups/{topup_id}/install-page
        read GET /orders
        read GET /orders/{external_order_id}
        read GET /topups
        read GET /topups/{topup_id}
        read GET /topups/{topup_id}/deliveries
        read GET /topups/{topup_id}/usage
        read GET /topups/{topup_id}/give-back
        read GET /topups/{topup_id}/extensions
        read GET /topups/{topup_id}/suspension
        read GET /options
        read GET /options/{option_id}
        read GET /account
        read GET /account/install-pages
        read GET /balance
        read GET /statements
        read GET /statements/{statement}
        read GET /webhook
        read GET /webhook/listen
        read GET /webhook/events
        read GET /webhook/events/{event_id}
        read GET /webhooks
        read GET /webhooks/redeliver
        read GET /webhooks/redeliver/{redelivery_id}
        read GET /endpoints
        read GET /endpoints/{endpoint_id}
        read GET /notices
        webhooks POST /topups/{topup_id}/redeliver
        webhooks PUT /webhook
        webhooks POST /webhook/secret
        webhooks POST /webhook/test
        webhooks POST /webhook/events/{event_id}/redeliver
        webhooks POST /webhooks/redeliver
        webhooks DELETE /webhooks/redeliver/{redelivery_id}
        webhooks POST /endpoints
        webhooks PUT /endpoints/{endpoint_id}
        webhooks DELETE /endpoints/{endpoint_id}
        webhooks POST /endpoints/{endpoint_id}/secret
        webhooks POST /endpoints/{endpoint_id}/pause
        webhooks POST /endpoints/{endpoint_id}/resume
        webhooks POST /endpoints/{endpoint_id}/test
        webhooks PUT /notices
        webhooks DELETE /notices
        webhooks POST /notices/verify
        webhooks PUT /balance/{currency}
        webhooks POST /sandbox/events
        keys POST /keys
        keys PUT /account/install-pages
        keys GET /account/keys
        keys POST /account/keys
        keys PUT /account/keys/{key_id}
        keys DELETE /account/keys/{key_id}";
    let lines = table.lines().filter_map(|line| line.trim().split_once(' '));
    lines.map(|(right, request)| (request, right)).collect()
}

#[tokio::test]
async fn each_request_needs_its_right() {
    let stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let first = stack.client(&partner).unwrap();
    let url = format!("{}/openapi.json", stack.base_url);
    let document = http::client().unwrap().get(url).send().await.unwrap();
    let document: Value = serde_json::from_slice(&document.bytes().await.unwrap()).unwrap();
    let mut described = BTreeMap::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let text = operation["description"].as_str().unwrap();
            let right = text.split('`').rev().nth(1).unwrap().to_owned();
            described.insert(format!("{} {path}", method.to_uppercase()), right);
        }
    }
    let told = described.iter().map(|(one, right)| (&**one, &**right));
    assert_eq!(told.collect::<BTreeMap<_, _>>(), needed());

    for right in RIGHTS {
        let fields = json!({"name": right, "rights": [right]});
        let (_, key) = make(&first, &stack.base_url, fields).await.unwrap();
        for (request, needs) in needed() {
            let (method, path) = request.split_once(' ').unwrap();
            let path = path
                .replace("{external_order_id}", "none")
                .replace("{event_id}", "evt_none");
            let id = "0199b2a0-7c1e-7d52-9b43-2f6a8c0d1e57";
            let path: String = path
                .split('/')
                .map(|part| if part.starts_with('{') { id } else { part })
                .collect::<Vec<_>>()
                .join("/");
            let query = if path == "/webhook/listen" {
                "?wait=0"
            } else {
                ""
            };
            let answer = ask(&key, method, &format!("{path}{query}")).await.unwrap();
            let code = header(&answer, "x-service-error").to_owned();
            let is_missing = answer.status == 403 && code == "right_missing";
            assert_eq!(
                is_missing,
                needs != right,
                "{request} with {right}: {} {code}",
                answer.status
            );
            if is_missing {
                let error = answer.json().unwrap()["error"].as_str().unwrap().to_owned();
                assert!(error.contains(&format!("the right {needs},")), "{error}");
            }
        }
    }
    // The pair of a rotation would have all rights, so a further key cannot get it.
    let fields = json!({"name": "all", "rights": RIGHTS});
    let (_, all) = make(&first, &stack.base_url, fields).await.unwrap();
    let rotated = ask(&all, "POST", "/keys").await.unwrap();
    assert_refused(&rotated, 403, "first_key_required");
    assert_eq!(ask(&first, "POST", "/keys").await.unwrap().status, 201);
}

#[tokio::test]
async fn the_fields_of_a_key_are_checked() {
    let stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let first = stack.client(&partner).unwrap();
    for (fields, code) in [
        (
            json!({"rights": ["read"]}),
            "key_name_invalid; parameter=name",
        ),
        (
            json!({"name": " ", "rights": ["read"]}),
            "key_name_invalid; parameter=name",
        ),
        (
            json!({"name": "a", "rights": []}),
            "rights_invalid; parameter=rights",
        ),
        (
            json!({"name": "a", "rights": ["all"]}),
            "rights_invalid; parameter=rights",
        ),
        (
            json!({"name": "a", "rights": ["read"], "networks": ["10.0.0.0/33"]}),
            "networks_invalid; parameter=networks",
        ),
        (
            json!({"name": "a", "rights": ["read"], "units_per_day": -1}),
            "units_per_day_invalid; parameter=units_per_day",
        ),
    ] {
        let refused = signed(&first, "POST", "/account/keys", &fields).await;
        assert_refused(&refused.unwrap(), 422, code);
    }
    let listed = get(&first, "/account/keys").await.unwrap();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 1, "{listed}");
}

#[tokio::test]
async fn keys_are_made_changed_and_ended_within_what_a_key_has() {
    let stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let first = stack.client(&partner).unwrap();
    let base_url = &stack.base_url;
    let fields = json!({"name": "Anna", "rights": ["read", "keys"], "networks": ["127.0.0.0/8"]});
    // A signature that does not cover the body would also fit other rights.
    let body = fields.to_string();
    let unsigned = first.post(body).path(&format!("{API}/account/keys"));
    assert_eq!(unsigned.send().await.unwrap().status, 401);
    let (anna_id, anna) = make(&first, base_url, fields).await.unwrap();
    let listed = get(&anna, "/account/keys").await.unwrap();
    assert_eq!(listed["keys"][0]["first"], true);
    assert_eq!(listed["keys"][0]["access_key"], partner.access_key);
    assert_eq!(listed["keys"][1]["key_id"], anna_id);
    assert_eq!(listed["keys"][1]["networks"], json!(["127.0.0.0/8"]));
    assert!(!listed.to_string().contains("secret"), "{listed}");

    for fields in [
        json!({"name": "more", "rights": ["read", "order"], "networks": ["127.0.0.1"]}),
        json!({"name": "from anywhere", "rights": ["read"]}),
        json!({"name": "elsewhere", "rights": ["read"], "networks": ["10.0.0.0/8"]}),
    ] {
        let refused = signed(&anna, "POST", "/account/keys", &fields).await;
        assert_refused(&refused.unwrap(), 403, "key_not_given");
    }
    let own = format!("/account/keys/{anna_id}");
    let widened = signed(&anna, "PUT", &own, &json!({"networks": []})).await;
    assert_refused(&widened.unwrap(), 403, "key_not_given");
    let part = json!({"name": "part", "rights": ["read"], "networks": ["127.0.0.1"]});
    let (part_id, part) = make(&anna, base_url, part).await.unwrap();
    assert_eq!(ask(&part, "GET", "/account").await.unwrap().status, 200);

    // From another network the key does nothing, whatever its rights are.
    let away = json!({"networks": ["192.0.2.0/24"]});
    let path = format!("/account/keys/{part_id}");
    let changed = signed(&first, "PUT", &path, &away).await.unwrap();
    assert_eq!(changed.json().unwrap()["name"], "part");
    let refused = async || {
        let answer = ask(&part, "GET", "/account").await?;
        Ok((answer.status == 403).then_some(answer))
    };
    let refused = wait::soon("the changed networks", refused).await;
    assert_refused(&refused, 403, "network_not_allowed");

    // Keys of another partner are unknown, and so is the first key to these requests.
    let other = stack.create_partner("sandbox", None).await.unwrap();
    let stranger = stack.client(&other).unwrap();
    let name = json!({"name": "mine"});
    let theirs = signed(&stranger, "PUT", &path, &name).await.unwrap();
    assert_refused(&theirs, 404, "not_found");
    let theirs = ask(&stranger, "DELETE", &path).await.unwrap();
    assert_refused(&theirs, 404, "not_found");
    let partner_id = listed["keys"][0]["key_id"].as_str().unwrap();
    let path = format!("/account/keys/{partner_id}");
    assert_refused(
        &ask(&first, "DELETE", &path).await.unwrap(),
        409,
        "first_key",
    );
    assert_eq!(
        get(&first, "/account/keys").await.unwrap()["keys"]
            .as_array()
            .unwrap()
            .len(),
        3
    );

    for nth in 4..=10 {
        let fields = json!({"name": format!("key {nth}"), "rights": ["read"]});
        make(&first, base_url, fields).await.unwrap();
    }
    let eleventh = json!({"name": "eleventh", "rights": ["read"]});
    let refused = signed(&first, "POST", "/account/keys", &eleventh).await;
    assert_refused(&refused.unwrap(), 409, "too_many_keys");

    // What was used is noted, the first key included.
    let used = async || {
        let listed = get(&first, "/account/keys").await?;
        let used = |nth: usize| listed["keys"][nth]["last_used_at"].is_string();
        Ok((used(0) && used(1) && !used(3)).then_some(()))
    };
    wait::soon("the last use of the keys", used).await;
    // Whoever finds that keys have leaked ends all of them.
    let leaked = [
        "partner",
        "leaked",
        &partner.access_key,
        "--all",
        "--reason",
        "a test",
    ];
    let ended: Value = stack.esimctl.run(&leaked).await.unwrap();
    assert_eq!(ended["ended"].as_array().unwrap().len(), 10, "{ended}");
}

#[tokio::test]
async fn an_ended_key_is_refused_by_every_ingress_within_a_second() {
    let builder = Stack::builder().replicas(Stage::Ingress, 2);
    let stack = builder.start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let first = stack.client(&partner).unwrap();
    let urls = stack.base_urls();
    assert_eq!(urls.len(), 2);
    let fields = json!({"name": "short", "rights": ["read"]});
    let made = signed(&first, "POST", "/account/keys", &fields)
        .await
        .unwrap();
    let made = made.json().unwrap();
    let text = |name: &str| made[name].as_str().unwrap();
    let clients: Vec<Client> = urls
        .iter()
        .map(|url| Client::new(url, text("access_key"), text("secret_key")).unwrap())
        .collect();
    for client in &clients {
        // A new key works at once, because an unknown one is looked up.
        assert_eq!(ask(client, "GET", "/account").await.unwrap().status, 200);
    }
    let path = format!("/account/keys/{}", text("key_id"));
    assert_eq!(ask(&first, "DELETE", &path).await.unwrap().status, 204);
    let ended = Instant::now();
    let mut refused_after = Vec::new();
    for client in &clients {
        let refused = async || {
            let answer = ask(client, "GET", "/account").await?;
            Ok((answer.status == 401).then_some(answer))
        };
        let answer = wait::soon("the refusal of the ended key", refused).await;
        assert_refused(&answer, 401, "access_key_unknown");
        refused_after.push(ended.elapsed());
    }
    // Half a second until it is read, and the rest for a busy machine.
    let longest = Duration::from_secs(1);
    assert!(
        refused_after.iter().all(|after| *after < longest),
        "{refused_after:?}"
    );
    assert_eq!(ask(&first, "GET", "/account").await.unwrap().status, 200);

    // Whoever still uses it gets the answer of an invented key, and counts as its partner.
    for _ in 0..5 {
        let answer = ask(&clients[1], "GET", "/account").await.unwrap();
        assert_refused(&answer, 401, "access_key_unknown");
    }
    let named = async || {
        let found = stack.esimctl.run_allowing(&["attention"], &[0, 3]).await;
        let (_, attention): (_, Value) = found?;
        let attention = attention.to_string();
        Ok(attention
            .contains("its key “short” (ak_")
            .then_some(attention))
    };
    let attention = wait::until(NAMED, "the finding about the ended key", named).await;
    assert!(attention.unwrap().contains("is still used, since "));
    let refused = ["partner", "show", &partner.partner_id, "--refused"];
    let refused: Value = stack.esimctl.run(&refused).await.unwrap();
    assert!(
        refused.to_string().contains("access_key_unknown"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_limit_of_units_a_day_holds_for_orders_at_once() {
    let builder = Stack::builder().replicas(Stage::Ingress, 2);
    let stack = builder.start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let first = stack.client(&partner).unwrap();
    let fields = json!({"name": "agent", "rights": ["order", "read"], "units_per_day": 2});
    let made = signed(&first, "POST", "/account/keys", &fields)
        .await
        .unwrap();
    let made = made.json().unwrap();
    let text = |name: &str| made[name].as_str().unwrap();
    let keys: Vec<Client> = stack
        .base_urls()
        .iter()
        .map(|url| Client::new(url, text("access_key"), text("secret_key")).unwrap())
        .collect();
    let option = stack.option("ready").unwrap();
    let ids = [(); 3].map(|()| fresh("limited"));
    let at_once = ids.iter().zip(keys.iter().cycle());
    let at_once =
        at_once.map(async |(id, key): (&String, &Client)| key.order(id, &[(option, 1)]).await);
    let answers: Vec<Answer> = futures_util::future::try_join_all(at_once).await.unwrap();
    let mut statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 201, 422]);
    for (id, answer) in ids.iter().zip(&answers) {
        let again = keys[0].order(id, &[(option, 1)]).await.unwrap();
        if answer.status == 201 {
            // Its partner may have lost the answer, and must not take the order for refused.
            assert_refused(&again, 422, "external_order_id_taken");
            continue;
        }
        assert_refused(answer, 422, "units_per_day_reached");
        assert_refused(&again, 422, "units_per_day_reached");
        let error = again.json().unwrap()["errors"][0]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(
            error.ends_with("0 of 2 are left until 00:00 UTC"),
            "{error}"
        );
        // Nothing of it is stored, so another key may order it.
        let looked = ask(&first, "GET", &format!("/orders/{id}")).await.unwrap();
        assert_refused(&looked, 404, "not_found");
        let ordered = first.order(id, &[(option, 5)]).await.unwrap();
        assert_eq!(ordered.status, 201);
    }
    let listed = get(&first, "/account/keys").await.unwrap();
    assert_eq!(listed["keys"][1]["units_today"], 2, "{listed}");
}

/// An agent gets a key of its own in a file, which orders no more than its limit.
#[tokio::test]
async fn esim_partner_makes_a_key_for_an_agent() {
    let stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let tool = Tool::login(&stack.base_url, &partner).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agent.env");
    let file = file.to_str().unwrap();
    let limits = [
        "--rights",
        "order,read",
        "--units-per-day",
        "1",
        "--keys-file",
        file,
    ];
    let made = [&["keys", "add", "our agent"][..], &limits].concat();
    let made = tool.json(&made).await.unwrap();
    assert_eq!(made["rights"], json!(["order", "read"]));
    assert!(!made.to_string().contains("secret"), "{made}");
    let stored = std::fs::read_to_string(file).unwrap();
    assert!(
        stored.contains("SECRET_KEY=") && !stored.contains("WEBHOOK_SECRET"),
        "{stored}"
    );

    let option = stack.option("ready").unwrap();
    let agent = ["--keys", file, "order"];
    let first = fresh("agent");
    tool.json(&[&agent[..], &[&first, option]].concat())
        .await
        .unwrap();
    let second = fresh("agent");
    let refused = tool
        .failure(&[&agent[..], &[&second, option]].concat())
        .await
        .unwrap();
    assert!(refused.contains("units_per_day_reached"), "{refused}");
    let key_id = made["key_id"].as_str().unwrap();
    let end = ["--keys", file, "keys", "end", key_id];
    let refused = tool.failure(&end).await.unwrap();
    assert!(refused.contains("right_missing"), "{refused}");

    let listed = tool.json(&["keys", "list"]).await.unwrap();
    assert_eq!(listed["keys"][1]["name"], "our agent");
    let id = listed["keys"][1]["key_id"].as_str().unwrap();
    let change = ["keys", "change", id, "--units-per-day", "none"];
    let changed = tool.json(&change).await.unwrap();
    assert_eq!(changed["units_per_day"], Value::Null);
    assert!(
        tool.run(&["keys", "end", id])
            .await
            .unwrap()
            .status
            .success()
    );
    let listed = tool.json(&["keys", "list"]).await.unwrap();
    assert_eq!(listed["keys"].as_array().unwrap().len(), 1);
}
