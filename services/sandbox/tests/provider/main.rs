//! The sandbox as its callers meet it: on a real socket, with a real ledger file and real restarts.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod callbacks;
mod faults;
mod options;
mod support;

use std::{collections::HashSet, fs};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{
    Caller, Started, binary, free_address, ledger_file, option, sorted, start_binary, strings,
    units,
};

#[tokio::test]
async fn a_ready_order_is_bought_and_its_profiles_are_there_at_the_first_get() {
    let sandbox = Started::fresh().await;
    let ready = option("ready");
    let other = "live-option-that-nobody-scripted";
    let answer = sandbox.order("order-1", &[(&ready, 2), (other, 1)]).await;
    assert_eq!(
        (&answer["code"], &answer["message"]),
        (&json!("0000"), &json!(""))
    );
    assert_eq!(
        strings(&answer["products"], "optionId"),
        [&ready, &ready, other]
    );
    let topups = strings(&answer["products"], "topupId");
    assert_eq!(topups.iter().collect::<HashSet<_>>().len(), 3);
    assert!(topups.concat().bytes().all(|digit| digit.is_ascii_digit()));

    let fetched = sandbox.fetch("order-1").await;
    assert_eq!(fetched["code"], "0000");
    assert_eq!(
        sorted(&fetched["products"], "topupId"),
        sorted(&answer["products"], "topupId")
    );
    assert_eq!(strings(&fetched["products"], "status"), ["READY"; 3]);
    let iccids: HashSet<_> = strings(&fetched["products"], "iccid").into_iter().collect();
    assert_eq!(iccids.len(), 3);
    let unit = fetched["products"][0].as_object().unwrap();
    let mut fields: Vec<_> = unit.keys().map(String::as_str).collect();
    fields.sort_unstable();
    let all = "activateCode createdAt downloadLink expiredDate iccid optionId smdp status topupId";
    assert_eq!(fields.join(" "), all);
    assert_eq!(unit["smdp"], "smdp.sandbox.example");
    let code = unit["activateCode"].as_str().unwrap();
    assert_eq!(
        unit["downloadLink"],
        format!("LPA:1$smdp.sandbox.example${code}")
    );

    let ledger = sandbox.ledger().await;
    assert_eq!(
        ledger,
        json!({
            "purchases": 1, "units": 3, "canceled": 0,
            "orders": [{ "order_id": "order-1", "units": 3, "purchased_times": 1, "canceled": 0 }]
        })
    );
}

#[tokio::test]
async fn a_refused_product_refuses_the_whole_order_and_buys_nothing() {
    let sandbox = Started::fresh().await;
    let ready = option("ready");
    let refused = option("refused");
    let sold_out = option("out-of-stock");
    assert_eq!(
        sandbox
            .order("order-1", &[(&ready, 2), (&refused, 1)])
            .await,
        json!({ "products": [], "code": "9001", "message": "Option is not on sale" })
    );
    assert_eq!(
        sandbox.order("order-1", &[(&sold_out, 1)]).await,
        json!({ "products": [], "code": "9005", "message": "Out of stock" })
    );
    assert_eq!(
        sandbox.fetch("order-1").await,
        json!({ "products": [], "code": "9002", "message": "Order not found" })
    );
    assert_eq!(
        sandbox.ledger().await,
        json!({ "purchases": 0, "units": 0, "canceled": 0, "orders": [] })
    );
    // The order id bought nothing, so it may be used again.
    assert_eq!(sandbox.code("order-1", &[(&ready, 1)]).await, "0000");
}

#[tokio::test]
async fn an_order_id_buys_once() {
    let sandbox = Started::fresh().await;
    let ready = option("ready");
    let body =
        json!({ "orderId": "a b/c", "products": [{ "optionId": ready, "qty": 2 }] }).to_string();
    let orders = (0..16).map(|_| sandbox.send(Method::POST, "/api/v2/order", body.clone()));
    let answers = futures_util::future::join_all(orders).await;
    let codes = answers
        .iter()
        .map(|(_, answer)| answer["code"].as_str().unwrap());
    let mut codes: Vec<_> = codes.collect();
    codes.sort_unstable();
    assert_eq!(codes, [&["0000"][..], &["9003"; 15]].concat());
    assert_eq!(
        sandbox.code("a b/c", &[(&option("refused"), 1)]).await,
        "9003"
    );
    assert_eq!(units(&sandbox.fetch("a%20b%2Fc").await).len(), 2);
    let ledger = sandbox.ledger().await;
    assert_eq!(
        ledger["orders"],
        json!([{ "order_id": "a b/c", "units": 2, "purchased_times": 1, "canceled": 0 }])
    );
}

#[tokio::test]
async fn a_canceled_unit_has_no_profile_and_stays_in_the_ledger() {
    let sandbox = Started::fresh().await;
    let answer = sandbox.order("order-1", &[(&option("ready"), 2)]).await;
    let topup = answer["products"][1]["topupId"].as_str().unwrap();
    let canceled = json!({ "code": "0000", "message": "" });
    assert_eq!(sandbox.cancel(topup).await, canceled);
    let again = json!({ "code": "9002", "message": "The topup is already canceled" });
    assert_eq!(sandbox.cancel(topup).await, again);
    let unknown = json!({ "code": "9001", "message": "Topup not found" });
    assert_eq!(sandbox.cancel("1").await, unknown);
    assert_eq!(sandbox.cancel("none").await, unknown);
    let fetched = sandbox.fetch("order-1").await;
    assert_eq!(
        sorted(&fetched["products"], "status"),
        ["CANCELED", "READY"]
    );
    for unit in units(&fetched) {
        assert_eq!(unit["status"] == "CANCELED", unit["topupId"] == topup);
        assert_eq!(unit.get("activateCode").is_none(), unit["topupId"] == topup);
    }
    let ledger = sandbox.ledger().await;
    assert_eq!(ledger["units"], 2);
    assert_eq!(ledger["canceled"], 1);
    assert_eq!(ledger["orders"][0]["canceled"], 1);
}

#[tokio::test]
async fn requests_that_are_not_authentic_get_401_and_buy_nothing() {
    let (_folder, path) = ledger_file();
    let sandbox = Started::new(&path).await;
    for (method, path) in [
        (Method::POST, "/api/v2/order"),
        (Method::GET, "/api/v2/order/o"),
        (Method::POST, "/api/v2/cancel/1"),
    ] {
        let request = sandbox
            .http
            .request(method, format!("{}{path}", sandbox.base));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        let answer: Value = response.json().await.unwrap();
        assert_eq!(
            answer,
            json!({ "code": "9010", "message": "x-gat-timestamp is missing" })
        );
    }
    assert_eq!(sandbox.ledger().await["purchases"], 0);
    sandbox.stop().await;
}

#[tokio::test]
async fn what_is_not_the_protocol_is_answered_in_json() {
    let sandbox = Started::fresh().await;
    let (status, answer) = sandbox
        .send(
            Method::POST,
            "/api/v2/order",
            r#"{"orderId":"o","products":[]}"#,
        )
        .await;
    let expected = json!({ "products": [], "code": "9000", "message": "products is empty" });
    assert_eq!((status, answer), (StatusCode::OK, expected));
    let large = vec![b' '; 1024 * 1024 + 1];
    for (method, path, body, status) in testkit::rows! {
        Method::POST, "/api/v2/order", large => StatusCode::PAYLOAD_TOO_LARGE;
        Method::GET, "/api/v2/order", Vec::new() => StatusCode::METHOD_NOT_ALLOWED;
        Method::GET, "/api/v2/balance", Vec::new() => StatusCode::NOT_FOUND;
    } {
        let answer = sandbox.send(method, path, body).await;
        let expected = json!({ "code": "9000", "message": status.canonical_reason() });
        assert_eq!(answer, (status, expected));
    }
}

#[tokio::test]
async fn a_restart_remembers_everything_but_a_torn_line() {
    let (_folder, path) = ledger_file();
    let sandbox = Started::new(&path).await;
    let ready = option("ready");
    let bought = sandbox.order("order-1", &[(&ready, 2)]).await;
    sandbox
        .cancel(bought["products"][0]["topupId"].as_str().unwrap())
        .await;
    let codes = async |caller: &Caller| {
        let fetched = caller.fetch("order-1").await;
        let mut units = units(&fetched).clone();
        units.sort_by_key(|unit| unit["topupId"].to_string());
        units
    };
    let fetched = codes(&sandbox).await;
    let ledger = sandbox.ledger().await;
    sandbox.stop().await;
    fs::write(
        &path,
        [&fs::read(&path).unwrap()[..], br#"{"bought":{"at_ms":17"#].concat(),
    )
    .unwrap();

    let sandbox = Started::new(&path).await;
    assert_eq!(sandbox.ledger().await, ledger);
    assert_eq!(codes(&sandbox).await, fetched);
    assert_eq!(sandbox.code("order-1", &[(&ready, 1)]).await, "9003");
    assert_eq!(sandbox.code("order-2", &[(&ready, 1)]).await, "0000");
    sandbox.stop().await;

    let sandbox = Started::new(&path).await;
    assert_eq!(sandbox.ledger().await["purchases"], 2);
    sandbox.stop().await;
}

#[tokio::test]
async fn no_answered_purchase_is_lost_to_kill_9() {
    let (_folder, path) = ledger_file();
    let address = free_address();
    let process = start_binary(&path, address);
    let caller = Caller::new(address).await;
    let ready = option("ready");
    for n in 0..50 {
        assert_eq!(
            caller.code(&format!("order-{n}"), &[(&ready, 1)]).await,
            "0000"
        );
    }
    let fetched = caller.fetch("order-49").await;
    drop(process);

    let _process = start_binary(&path, address);
    let caller = Caller::new(address).await;
    let ledger = caller.ledger().await;
    assert_eq!(
        (&ledger["purchases"], &ledger["units"]),
        (&json!(50), &json!(50))
    );
    assert_eq!(caller.fetch("order-49").await, fetched);
}

#[test]
fn the_command_line_says_what_it_needs() {
    let catalogue = binary().arg("catalogue").output().unwrap();
    assert!(catalogue.status.success() && catalogue.stderr.is_empty());
    let catalogue: Value = serde_json::from_slice(&catalogue.stdout).unwrap();
    assert_eq!(catalogue["options"][0]["option_id"], option("ready"));

    for arguments in [&[][..], &["serve"]] {
        let refused = binary().args(arguments).output().unwrap();
        assert_eq!(refused.status.code(), Some(2));
        let line = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(line.lines().count(), 1, "{line}");
        for setting in ["SANDBOX_LEDGER", "SANDBOX_ACCESS_KEY", "SANDBOX_SECRET_KEY"] {
            assert!(line.contains(setting), "{line}");
        }
    }

    let (_folder, path) = ledger_file();
    let bad = binary()
        .args(["--access-key", "k", "--secret-key", "no*base64", "--ledger"])
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(bad.status.code(), Some(2));
    let line = String::from_utf8(bad.stderr).unwrap();
    assert!(
        line.contains("SANDBOX_SECRET_KEY") && !line.contains("no*base64"),
        "{line}"
    );
}
