//! The protocols of eSIM Access, Airalo and Zendit: each answer has the shape of an example, which
//! we wrote after the documentation of the provider. All protocols sell from one ledger.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use reqwest::StatusCode;
use serde_json::{Value, json};
use signing::SecretKey;

use support::{ACCESS_KEY, SECRET, Started, option};

mod support;

/// Asserts that the answer has each field of the example, with a value of the same kind. An answer
/// may have more fields.
fn like(example: &Value, answer: &Value, at: &str) {
    match (example, answer) {
        (Value::Object(fields), Value::Object(_)) => {
            for (name, value) in fields {
                let at = format!("{at}.{name}");
                like(
                    value,
                    answer
                        .get(name)
                        .unwrap_or_else(|| panic!("{at} is missing")),
                    &at,
                );
            }
        }
        (Value::Array(examples), Value::Array(answers)) => {
            for one in answers {
                like(&examples[0], one, &format!("{at}[]"));
            }
        }
        _ => assert_eq!(
            std::mem::discriminant(example),
            std::mem::discriminant(answer),
            "{at}: {answer} is not like {example}"
        ),
    }
}

/// A call in the protocol of eSIM Access.
async fn esim_access(sandbox: &Started, path: &str, body: Value) -> Value {
    let body = body.to_string();
    let timestamp = runtime::clock::unix_milliseconds().to_string();
    let secret = SecretKey::from_bytes(SECRET.as_bytes().to_vec()).unwrap();
    let signature =
        signing::esim_access::sign(&secret, &timestamp, "request", ACCESS_KEY, body.as_bytes());
    let request = sandbox
        .http
        .post(format!("{}/api/v1/open/{path}", sandbox.base))
        .header("rt-accesscode", ACCESS_KEY)
        .header("rt-timestamp", timestamp)
        .header("rt-requestid", "request")
        .header("rt-signature", signature)
        .body(body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    response.json().await.unwrap()
}

fn ordering(id: &str, option: &str, count: u32) -> Value {
    json!({ "transactionId": id, "packageInfoList": [{ "packageCode": option, "count": count }] })
}

#[tokio::test]
async fn esim_access_answers_as_its_documentation_shows() {
    let sandbox = Started::fresh().await;
    let ordered = esim_access(&sandbox, "esim/order", ordering("o-1", &option("ready"), 2)).await;
    let example =
        json!({ "success": true, "obj": { "orderNo": "B22102010075311", "transactionId": "t" } });
    like(&example, &ordered, "order");
    // A repeated transaction is the same request.
    let again = esim_access(&sandbox, "esim/order", ordering("o-1", &option("ready"), 2)).await;
    assert_eq!(again["obj"], ordered["obj"]);
    assert_eq!(sandbox.bought("o-1").await, (1, 2));

    let number = &ordered["obj"]["orderNo"];
    let page = json!({ "orderNo": number, "pager": { "pageNum": 1, "pageSize": 50 } });
    let listed = esim_access(&sandbox, "esim/query", page).await;
    let example = json!({
        "success": true,
        "obj": {
            "esimList": [{
                "esimTranNo": "22102706381912",
                "orderNo": "B22102706381924",
                "transactionId": "t",
                "iccid": "89852245280000942210",
                "ac": "LPA:1$smdp.example.com$451F9802E6",
                "smdpStatus": "RELEASED",
                "esimStatus": "GOT_RESOURCE",
                "expiredTime": "2024-01-11T08:10:19+0000",
                "packageList": [{ "packageCode": "JC016" }],
            }],
            "pager": { "pageNum": 1, "pageSize": 50, "total": 2 },
        },
    });
    like(&example, &listed, "query");
    assert_eq!(listed["obj"]["esimList"].as_array().unwrap().len(), 2);

    let more = esim_access(&sandbox, "esim/order", ordering("o-2", "ready", 6)).await;
    let number = &more["obj"]["orderNo"];
    let second = json!({ "orderNo": number, "pager": { "pageNum": 2, "pageSize": 5 } });
    let second = esim_access(&sandbox, "esim/query", second).await;
    assert_eq!(second["obj"]["esimList"].as_array().unwrap().len(), 1);
    // It was ordered by its slug.
    let package = &second["obj"]["esimList"][0]["packageList"][0];
    assert_eq!(
        (&package["packageCode"], &package["slug"]),
        (&json!(option("ready")), &json!("ready"))
    );
    // A search names minutes and the zone.
    let pager = json!({ "pageNum": 1, "pageSize": 500 });
    let within = async |from: &str, until: &str| {
        let body = json!({ "startTime": from, "endTime": until, "pager": pager });
        esim_access(&sandbox, "esim/query", body).await
    };
    let all = within("2010-06-30T01:20+00:00", "2100-06-30T01:20+00:00").await;
    assert_eq!(all["obj"]["pager"]["total"], 8);
    let none = within("2010-06-30T01:20+00:00", "2010-06-30T01:21+00:00").await;
    assert_eq!(none["obj"]["pager"]["total"], 0);
    let balance = esim_access(&sandbox, "balance/query", json!({})).await;
    like(
        &json!({ "success": true, "obj": { "balance": 100_000 } }),
        &balance,
        "balance",
    );
}

#[tokio::test]
async fn esim_access_refuses_with_its_codes() {
    let sandbox = Started::fresh().await;
    let dear = json!({
        "transactionId": "o-1",
        "packageInfoList": [{ "packageCode": option("ready"), "count": 1, "price": 14_000 }],
    });
    let sum = json!({
        "transactionId": "o-1",
        "amount": 15_001,
        "packageInfoList": [{ "packageCode": option("ready"), "count": 1, "price": 15_000 }],
    });
    let unknown = json!({ "orderNo": "B1", "pager": { "pageNum": 1, "pageSize": 50 } });
    for (path, body, code) in [
        (
            "esim/order",
            ordering("o-1", &option("refused"), 1),
            "310241",
        ),
        (
            "esim/order",
            ordering("o-1", &option("out-of-stock"), 1),
            "200011",
        ),
        (
            "esim/order",
            ordering("o-1", &option("rate-limited"), 1),
            "900001",
        ),
        ("esim/order", dear, "200005"),
        ("esim/order", sum, "200006"),
        ("esim/order", json!({ "transactionId": "o-1" }), "000104"),
        ("esim/query", unknown, "310272"),
        (
            "esim/order",
            ordering("o-1", &option("ready"), 31),
            "200008",
        ),
        (
            "esim/order",
            ordering(&"o".repeat(51), &option("ready"), 1),
            "000107",
        ),
        (
            "esim/query",
            json!({ "startTime": "2026-11-20 06:00:00", "endTime": "2026-11-20 06:01:00",
                    "pager": { "pageNum": 1, "pageSize": 50 } }),
            "000105",
        ),
        (
            "esim/query",
            json!({ "orderNo": "B1", "pager": { "pageNum": 1, "pageSize": 501 } }),
            "000105",
        ),
    ] {
        let answer = esim_access(&sandbox, path, body).await;
        let example = json!({ "success": false, "errorCode": "310241", "errorMsg": "why" });
        like(&example, &answer, code);
        assert_eq!(answer["errorCode"], code);
    }
    assert_eq!(sandbox.bought("o-1").await, (0, 0));
    let never = esim_access(
        &sandbox,
        "esim/order",
        ordering("o-2", &option("never-ready"), 1),
    )
    .await;
    let page =
        json!({ "orderNo": never["obj"]["orderNo"], "pager": { "pageNum": 1, "pageSize": 50 } });
    assert_eq!(
        esim_access(&sandbox, "esim/query", page).await["errorCode"],
        "200010"
    );
}

#[tokio::test]
async fn esim_access_sells_the_iccid_of_a_cancelled_esim_again() {
    let sandbox = Started::fresh().await;
    let bought = async |id: &str| {
        let ordered = esim_access(&sandbox, "esim/order", ordering(id, "ready", 1)).await;
        let page = json!({ "orderNo": ordered["obj"]["orderNo"], "pager": { "pageNum": 1, "pageSize": 50 } });
        let listed = esim_access(&sandbox, "esim/query", page).await;
        let esim = &listed["obj"]["esimList"][0];
        ["esimTranNo", "iccid", "ac"].map(|field| esim[field].as_str().unwrap().to_owned())
    };
    let first = bought("o-1").await;
    let cancel = json!({ "esimTranNo": first[0] });
    let canceled = esim_access(&sandbox, "esim/cancel", cancel).await;
    assert_eq!(canceled["success"], true);
    let second = bought("o-2").await;
    let third = bought("o-3").await;
    assert_eq!(first[1], second[1]);
    assert!(first[0] != second[0] && first[2] != second[2] && second[1] != third[1]);
}

/// A form as curl sends it.
fn form(fields: &[(&str, &str)]) -> String {
    let field = |(name, value): &(&str, &str)| {
        format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    fields.iter().map(field).collect::<String>() + "--b--\r\n"
}

/// A call in the protocol of Airalo; a form makes it a `POST`.
async fn airalo(
    sandbox: &Started,
    token: &str,
    path: &str,
    fields: &[(&str, &str)],
) -> (u16, Value) {
    let url = format!("{}/v2/{path}", sandbox.base);
    let request = if fields.is_empty() {
        sandbox.http.get(url)
    } else {
        let request = sandbox.http.post(url).body(form(fields));
        request.header("content-type", "multipart/form-data; boundary=b")
    };
    let response = request.bearer_auth(token).send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap())
}

async fn token(sandbox: &Started) -> String {
    let keys = [
        ("client_id", ACCESS_KEY),
        ("client_secret", SECRET),
        ("grant_type", "client_credentials"),
    ];
    let (status, answer) = airalo(sandbox, "", "token", &keys).await;
    assert_eq!(status, 200);
    let data = json!({ "token_type": "Bearer", "expires_in": 86_400, "access_token": "x" });
    like(
        &json!({ "data": data, "meta": { "message": "success" } }),
        &answer,
        "token",
    );
    answer["data"]["access_token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn airalo_answers_as_its_documentation_shows() {
    let sandbox = Started::fresh().await;
    let token = token(&sandbox).await;
    let ready = option("ready");
    let order = [
        ("package_id", &ready[..]),
        ("quantity", "2"),
        ("type", "sim"),
        ("description", "o-1"),
    ];
    let (status, answer) = airalo(&sandbox, &token, "orders", &order).await;
    assert_eq!(status, 200);
    let example = json!({
        "id": 9_666,
        "code": "20230227-009666",
        "package_id": "kallur-digital-7days-1gb",
        "quantity": 1,
        "type": "sim",
        "description": "1 sim",
        "validity": 7,
        "price": 9.5,
        "currency": "USD",
        "created_at": "2023-02-27 08:30:23",
        "sims": [{
            "id": 11_047,
            "iccid": "891000000000009125",
            "lpa": "lpa.example.com",
            "matching_id": "TEST",
            "qrcode": "LPA:1$lpa.example.com$TEST",
            "confirmation_code": null,
        }],
        "status": { "name": "Completed", "slug": "completed" },
    });
    like(
        &json!({ "data": example, "meta": { "message": "success" } }),
        &answer,
        "order",
    );
    // A repeated order buys again: there is no key that would stop it.
    airalo(&sandbox, &token, "orders", &order).await;
    assert_eq!(sandbox.bought("o-1").await, (2, 4));

    let path = format!("orders/{}", answer["data"]["id"]);
    let (status, shown) = airalo(&sandbox, &token, &path, &[]).await;
    assert_eq!((status, &shown["data"]), (200, &answer["data"]));
    // In the test mode all eSIMs have one code.
    let test_mode = option("test-mode");
    let mut order = order;
    order[0].1 = &test_mode;
    let (_, tested) = airalo(&sandbox, &token, "orders", &order).await;
    for sim in tested["data"]["sims"].as_array().unwrap() {
        assert_eq!(sim["qrcode"], "LPA:1$lpa.airalo.com$TEST");
    }
    // The filter finds a part of the description, too.
    let (_, listed) = airalo(
        &sandbox,
        &token,
        "orders?filter[description]=-1&limit=1",
        &[],
    )
    .await;
    let meta = json!({ "message": "success", "current_page": 1, "last_page": 3, "total": 3 });
    let mut entry = example;
    (entry["price"], entry["validity"]) = (json!("9.5"), json!("7"));
    like(&json!({ "data": [entry], "meta": meta }), &listed, "list");
    assert_eq!(listed["meta"]["last_page"], 3);
    assert!(listed["data"][0]["price"].is_string() && listed["data"][0]["net_price"].is_null());
    let (_, balance) = airalo(&sandbox, &token, "balance", &[]).await;
    let available = json!({ "amount": 500.0, "currency": "USD" });
    let balances = json!({ "balances": { "name": "b", "availableBalance": available } });
    like(&json!({ "data": balances }), &balance, "balance");
}

#[tokio::test]
async fn airalo_lists_all_packages_at_once_or_page_by_page() {
    let sandbox = Started::fresh().await;
    let token = token(&sandbox).await;
    let (_, all) = airalo(&sandbox, &token, "packages", &[]).await;
    assert_eq!(all["meta"]["last_page"], 1);
    assert_eq!(all["pricing"]["model"], "net_pricing");
    let places = all["data"].as_array().unwrap();
    let packages = |place: &Value| place["operators"][0]["packages"].as_array().unwrap().len();
    assert!(places.iter().map(packages).sum::<usize>() >= 3_200);
    let (_, first) = airalo(&sandbox, &token, "packages?limit=25&page=1", &[]).await;
    assert!(first["data"].is_array());
    let (_, second) = airalo(&sandbox, &token, "packages?limit=25&page=2", &[]).await;
    assert!(second["data"]["25"]["operators"].is_array(), "an object");
}

#[tokio::test]
async fn airalo_refuses_with_its_codes() {
    let sandbox = Started::fresh().await;
    let token = token(&sandbox).await;
    let order = async |option: &str, quantity: &str, token: &str| {
        let fields = [
            ("package_id", option),
            ("quantity", quantity),
            ("description", "o-1"),
        ];
        airalo(&sandbox, token, "orders", &fields).await
    };
    let refused = order(&option("refused"), "1", &token).await;
    assert_eq!((refused.0, &refused.1["code"]), (422, &json!(34)));
    like(
        &json!({ "code": 34, "reason": "why" }),
        &refused.1,
        "refused",
    );
    let sold_out = order(&option("out-of-stock"), "1", &token).await;
    assert_eq!((sold_out.0, &sold_out.1["code"]), (422, &json!(33)));
    let many = order(&option("ready"), "51", &token).await;
    assert_eq!(
        (many.0, &many.1["meta"]["message"]),
        (422, &json!("the parameter is invalid"))
    );
    assert_eq!(order(&option("ready"), "1", "another").await.0, 401);
    assert_eq!(airalo(&sandbox, &token, "orders/1", &[]).await.0, 404);
    assert_eq!(sandbox.bought("o-1").await, (0, 0));
}

/// A call in the protocol of Zendit; a body makes it a `POST`.
async fn zendit(sandbox: &Started, key: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    let url = format!("{}/v1/{path}", sandbox.base);
    let request = match body {
        Some(body) => sandbox.http.post(url).json(&body),
        None => sandbox.http.get(url),
    };
    let response = request.bearer_auth(key).send().await.unwrap();
    (
        response.status().as_u16(),
        response.json().await.unwrap_or_default(),
    )
}

fn buying(id: &str, option: &str) -> Value {
    json!({ "offerId": option, "transactionId": id })
}

/// The fields of a purchase that its documentation has and that do not depend on its state.
fn purchase_of_zendit() -> Value {
    json!({
        "brand": "b", "brandName": "b", "cost": 325, "costBase": 300, "costCurrency": "USD",
        "costCurrencyDivisor": 100, "costFee": 25, "country": "JP", "createdAt": "t", "dataGB": 5, "dataSpeeds": ["4G"],
        "dataUnlimited": false, "durationDays": 30, "log": [{ "dateTime": "t", "status": "s", "statusMessage": "" }],
        "notes": "", "offerId": "o", "price": 0, "priceCurrency": "USD", "priceCurrencyDivisor": 100,
        "priceType": "FIXED", "productType": "ESIM", "regions": [], "roaming": [], "shortNotes": "", "status": "DONE",
        "subTypes": ["Standard"], "transactionId": "t", "updatedAt": "t",
    })
}

#[tokio::test]
async fn zendit_answers_as_its_documentation_shows() {
    let sandbox = Started::fresh().await;
    let call = async |path: &str, body| zendit(&sandbox, ACCESS_KEY, path, body).await;
    let (status, accepted) = call("esim/purchases", Some(buying("t-1", &option("ready")))).await;
    assert_eq!(status, 200);
    assert_eq!(
        accepted,
        json!({ "status": "ACCEPTED", "transactionId": "t-1" })
    );
    let (status, shown) = call("esim/purchases/t-1", None).await;
    assert_eq!((status, &shown["status"]), (200, &json!("DONE")));
    let mut example = purchase_of_zendit();
    example["confirmation"] = json!({
        "activationCode": "AB-12", "externalReferenceId": "", "iccid": "89", "redemptionInstructions": "",
        "smdpAddress": "smdp.example.com",
    });
    like(&example, &shown, "purchase");
    // What a second purchase with the same id does is not documented. Here it is sold.
    call("esim/purchases", Some(buying("t-1", &option("ready")))).await;
    assert_eq!(sandbox.bought("t-1").await, (2, 2));

    call(
        "esim/purchases",
        Some(buying("t-2", &option("never-ready"))),
    )
    .await;
    let (_, waiting) = call("esim/purchases/t-2", None).await;
    like(&purchase_of_zendit(), &waiting, "waiting");
    assert_eq!(waiting["status"], "IN_PROGRESS");
    assert_eq!(waiting["confirmation"], json!(null));

    let (_, listed) = call("esim/purchases?_limit=2&_offset=1", None).await;
    let example = json!({ "limit": 2, "offset": 1, "total": 3, "list": [purchase_of_zendit()] });
    like(&example, &listed, "list");
    assert_eq!(listed["list"].as_array().unwrap().len(), 2);

    let (_, offers) = call("esim/offers?_limit=1024&_offset=0", None).await;
    let cost = json!({
        "currency": "USD", "currencyDivisor": 100, "discount": 0, "fee": 25, "feePct": 0, "fixed": 300,
    });
    let example = json!({ "list": [{
        "brand": "b", "brandName": "b", "cost": cost, "country": "JP", "createdAt": "t", "dataGB": 5.0,
        "dataSpeeds": ["4G"], "durationDays": 30, "notes": "", "offerId": "o",
        "priceType": "FIXED", "productType": "ESIM", "roaming": [{ "country": "DE", "dataSpeeds": ["4G"] }],
        "shortNotes": "", "subTypes": ["Standard"], "updatedAt": "t",
    }], "total": 20 });
    like(&example, &offers, "offers");
    let (_, wallet) = call("balance", None).await;
    let example = json!({ "availableBalance": 1, "currency": "USD", "currencyDivisor": 100 });
    like(&example, &wallet, "balance");
}

#[tokio::test]
async fn zendit_shows_what_became_of_an_esim_and_gives_money_back() {
    let sandbox = Started::fresh().await;
    let call = async |path: &str, body| zendit(&sandbox, ACCESS_KEY, path, body).await;
    call("esim/purchases", Some(buying("t-1", &option("ready")))).await;
    let (_, shown) = call("esim/purchases/t-1", None).await;
    let iccid = shown["confirmation"]["iccid"].as_str().unwrap();
    let (_, plans) = call(&format!("esim/{iccid}/plans"), None).await;
    let example = json!({ "firstInstalledAt": "", "total": 1, "list": [{
        "description": "d", "endAt": "", "iccid": "89", "initialDataGB": 5.0, "offerId": "o",
        "remainingDataGB": 5.0, "startAt": "", "status": "ACTIVE", "unlimited": false,
    }] });
    like(&example, &plans, "plans");
    let (status, _) = call("esim/purchases/t-1/refund", None).await;
    assert_eq!(status, 404);
    let (_, accepted) = call("esim/purchases/t-1/refund", Some(json!({}))).await;
    assert_eq!(accepted, json!({ "status": "ACCEPTED" }));
    let (_, refund) = call("esim/purchases/t-1/refund", None).await;
    let example = json!({
        "amount": 1, "createdAt": "t", "currency": "USD", "currencyDivisor": 100, "log": [], "productType": "REFUND",
        "refundedTransactionId": "t-1", "status": "DONE", "transactionId": "r", "type": "CREDIT", "updatedAt": "t",
    });
    like(&example, &refund, "refund");
    let (_, shown) = call("esim/purchases/t-1", None).await;
    assert_eq!(shown["refund"], json!({ "status": "DONE" }));
}

#[tokio::test]
async fn zendit_refuses_with_its_codes() {
    let sandbox = Started::fresh().await;
    let error = json!({ "errorCode": "NOT_FOUND", "message": "why", "fields": {} });
    let refused = |option: &str| Some(buying("t-1", option));
    for (key, path, body, expected) in [
        ("wrong", "balance", None, (401, "NOT_AUTHORIZED")),
        (ACCESS_KEY, "esim/purchases/t-1", None, (404, "NOT_FOUND")),
        (ACCESS_KEY, "esim/offers/x", None, (404, "NOT_FOUND")),
        (
            ACCESS_KEY,
            "esim/purchases",
            refused(&option("refused")),
            (404, "NOT_FOUND"),
        ),
        (
            ACCESS_KEY,
            "esim/purchases",
            Some(json!({ "offerId": "x" })),
            (400, "INVALID_REQUEST"),
        ),
        (ACCESS_KEY, "esim/offers", None, (400, "INVALID_REQUEST")),
        (
            ACCESS_KEY,
            "esim/purchases?_limit=1025&_offset=0",
            None,
            (400, "INVALID_REQUEST"),
        ),
    ] {
        let (status, answer) = zendit(&sandbox, key, path, body).await;
        like(&error, &answer, path);
        assert_eq!(
            (status, &answer["errorCode"]),
            (expected.0, &json!(expected.1)),
            "{path}"
        );
    }
    // Out of stock: accepted, and failed for good under this id.
    let (_, failed) = zendit(
        &sandbox,
        ACCESS_KEY,
        "esim/purchases",
        Some(buying("t-2", &option("out-of-stock"))),
    )
    .await;
    assert_eq!(failed["status"], "FAILED");
    let (status, shown) = zendit(&sandbox, ACCESS_KEY, "esim/purchases/t-2", None).await;
    assert_eq!((status, &shown["status"]), (200, &json!("FAILED")));
    let error = json!({ "code": "c", "description": "d", "message": "m" });
    like(&error, &shown["error"], "error");
    assert_eq!(sandbox.bought("t-2").await, (0, 0));
}
