//! `esimctl delivery` and `esimctl endpoint`.

use std::time::Duration;

use domain::PartnerId;
use serde_json::json;

use crate::{
    make_ready,
    support::{Operator, record, run, store_order},
    text,
};

#[tokio::test]
async fn a_delivery_is_shown_with_its_attempts_and_replayed() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let id = text(&made, "partner_id");
    let partner: PartnerId = id.parse().unwrap();
    let mut connection = operator.database.connect().await.unwrap();
    let order = store_order(&mut connection, partner, "o-1").await;
    make_ready(&mut connection, &order).await;
    let topup = order.topup.to_string();
    record(&mut connection, partner, &order, 0, Some(Duration::from_hours(1))).await;
    record(&mut connection, partner, &order, 1, None).await;

    let list = ["delivery", "list", "--state", "exhausted", "--since", "1h"];
    let listed = operator.json(&list).await;
    assert_eq!(listed[0]["topup_id"], topup);
    assert_eq!(listed[0]["attempts"], 2);
    let none = [
        "delivery",
        "list",
        "--partner",
        id,
        "--since",
        "2099-01-01T00:00:00Z",
    ];
    assert_eq!(operator.json(&none).await, json!([]));

    let shown = operator.json(&["delivery", "show", &topup]).await;
    assert_eq!(shown["delivery"]["state"], "exhausted");
    assert_eq!(shown["attempts"].as_array().unwrap().len(), 2);
    assert_eq!(shown["attempts"][1]["class"], "status_5xx");
    assert!(shown["attempts"][1]["answer"].is_null());
    let answered = operator.run(&["delivery", "show", &topup, "--answers"]).await;
    let expected = r"answer to attempt 2: no room\u{1b}[2J";
    assert!(answered.text().contains(expected), "{answered:?}");

    assert_eq!(
        operator.json(&["delivery", "replay", &topup]).await,
        json!({ "replayed": 1 })
    );
    let shown = operator.json(&["delivery", "show", &topup]).await;
    assert_eq!(shown["delivery"]["state"], "pending");
    assert_eq!(
        shown["attempts"].as_array().unwrap().len(),
        2,
        "what was tried is still known"
    );
    let again = operator.run(&["delivery", "replay", &topup]).await;
    assert!(again.text().contains("nothing to replay"), "{again:?}");

    record(&mut connection, partner, &order, 2, None).await;
    let all = [
        "delivery",
        "replay",
        "--partner",
        text(&made, "access_key"),
        "--since",
        "1h",
    ];
    assert_eq!(operator.json(&all).await, json!({ "replayed": 1 }));
    assert!(operator.run(&all[..4]).await.line(2).contains("--since"));
    let unknown = operator
        .run(&["delivery", "replay", "20250129123456618033988749"])
        .await;
    assert!(unknown.line(1).contains("no delivery"), "{unknown:?}");
    let mut without_key = operator.command(&["delivery", "show", &topup, "--answers"]);
    let without_key = run(without_key.env_remove("MASTER_KEY")).await;
    assert!(without_key.line(2).contains("MASTER_KEY"), "{without_key:?}");
}

#[tokio::test]
async fn an_endpoint_is_blocked_paused_and_resumed() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let id = text(&made, "partner_id");
    let partner: PartnerId = id.parse().unwrap();
    operator
        .json(&[
            "partner",
            "set-webhook",
            id,
            "--url",
            "https://acme.example/hooks",
        ])
        .await;
    let state = async || operator.json(&["endpoint", "list"]).await[0]["state"].clone();
    assert_eq!(state().await, "open");

    let mut connection = operator.database.connect().await.unwrap();
    let order = store_order(&mut connection, partner, "o-1").await;
    make_ready(&mut connection, &order).await;
    let retry_in = Some(Duration::from_hours(1));
    record(&mut connection, partner, &order, 0, retry_in).await;
    record(&mut connection, partner, &order, 1, retry_in).await;
    let listed = operator.json(&["endpoint", "list"]).await;
    assert_eq!(listed[0]["state"], "blocked");
    assert!(listed[0]["blocked_until"].is_string(), "{listed}");
    assert_eq!(
        (&listed[0]["failures"], &listed[0]["pending"]),
        (&json!(2), &json!(1))
    );

    let paused = operator.json(&["endpoint", "pause", id]).await;
    assert_eq!(paused, json!({ "partner_id": id, "state": "paused" }));
    assert_eq!(state().await, "paused");
    assert!(
        operator
            .run(&["endpoint", "list"])
            .await
            .text()
            .contains("paused")
    );
    let resumed = operator.json(&["endpoint", "resume", id]).await;
    assert_eq!(
        resumed,
        json!({ "partner_id": id, "state": "open", "deliveries_due": 1 })
    );
    assert_eq!(state().await, "open");
    let unknown = operator.run(&["endpoint", "pause", "ak_nobody"]).await;
    assert!(unknown.line(1).contains("`esimctl partner list`"), "{unknown:?}");
}
