//! `esimctl delivery` and `esimctl endpoint`.

use std::time::Duration;

use domain::PartnerId;
use serde_json::{Value, json};

use crate::support::{CONFIRMED, Operator, record, run, store_order, words};
use crate::text;

#[tokio::test]
async fn a_delivery_is_shown_with_its_attempts_and_resent() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let id = text(&made, "partner_id");
    let (mut connection, order) = operator.ready_order(&made, "o-1").await;
    let topup = order.topup.to_string();
    record(&mut connection, &order, 0, Some(Duration::from_hours(1))).await;
    record(&mut connection, &order, 1, None).await;

    let list = ["delivery", "list", "--state", "exhausted", "--since", "1h"];
    let listed = operator.json(&list).await;
    assert_eq!(listed["deliveries"][0]["topup_id"], topup);
    assert_eq!(listed["deliveries"][0]["attempts"], 2);
    let future = format!("delivery list --partner {id} --since 2099-01-01T00:00:00Z");
    operator
        .run(&words(&future))
        .await
        .fails(2, "it is in the future, because now it is");

    let shown = operator.json(&["delivery", "show", &topup]).await;
    assert_eq!(shown["delivery"]["state"], "exhausted");
    assert_eq!(shown["attempts"].as_array().unwrap().len(), 2);
    assert_eq!(shown["attempts"][1]["class"], "status_5xx");
    assert!(shown["attempts"][1]["answer"].is_null());
    let shown = operator
        .run(&["delivery", "show", &topup, "--answers"])
        .await;
    shown.says(r"answer to attempt 2: no room\u{1b}[2J");

    let resend = ["resend", "start", &topup];
    let confirmed = [&resend[..], &CONFIRMED].concat();
    assert_eq!(operator.json(&confirmed).await["resent"], 1);
    let shown = operator.json(&["delivery", "show", &topup]).await;
    assert_eq!(shown["delivery"]["state"], "pending");
    assert_eq!(
        shown["attempts"].as_array().unwrap().len(),
        2,
        "what was tried is still known"
    );
    operator.run(&confirmed).await.says("nothing is sent");

    record(&mut connection, &order, 2, None).await;
    let unknown = ["resend", "start", "20250129123456618033988749"];
    operator
        .run(&[&unknown[..], &CONFIRMED].concat())
        .await
        .fails(1, "no delivery");
    let neither = ["resend", "start", "--state", "delivered"];
    operator.run(&neither).await.fails(2, "TOPUP_ID|EVENT_ID");
    // One webhook that was sent again is a resend that has ended.
    let listed = operator.json(&["resend", "list"]).await;
    assert_eq!(
        (&listed[0]["resent"], listed[0]["ended_at"].is_string()),
        (&json!(1), true),
        "{listed}"
    );
    let mut without_key = operator.command(&["delivery", "show", &topup, "--answers"]);
    run(without_key.env_remove("MASTER_KEY"))
        .await
        .fails(2, "MASTER_KEY");
}

/// What arrived at the first endpoint is not all: the webhook to the second one, which fails, is
/// shown, too.
#[tokio::test]
async fn a_delivery_is_shown_with_the_one_to_the_second_endpoint() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let (mut connection, order) = operator.ready_order(&made, "o-1").await;
    let second = "019a0000-0000-7000-8000-000000000001";
    for change in [
        &format!(
            "INSERT INTO partner_endpoints (endpoint_id, partner_id, nth, url, events)
             SELECT '{second}', partner_id, 1, 'https://second.example/hooks', '{{topup.ready}}' FROM partners"
        ),
        &format!(
            "INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, endpoint_id, attempt, status, error, attempted_at)
             SELECT '{second}', partner_id, kind, topup_id, order_id, '{second}', 3, 500, 'status 500', now() FROM deliveries"
        ),
        "INSERT INTO further_deliveries (topup_id, delivery_id)
         SELECT topup_id, delivery_id FROM deliveries WHERE endpoint_id IS NOT NULL",
        "UPDATE deliveries SET state = 'delivered', attempt = 1, status = 200, attempted_at = now(), delivered_at = now()
         WHERE endpoint_id IS NULL",
    ] {
        sqlx::query(sqlx::AssertSqlSafe(change.to_string()))
            .execute(&mut connection)
            .await
            .unwrap();
    }
    let topup = order.topup.to_string();
    let shown = operator.json(&["delivery", "show", &topup]).await;
    assert_eq!(shown["delivery"]["state"], "delivered");
    assert_eq!(shown["further"].as_array().unwrap().len(), 1, "{shown}");
    assert_eq!(shown["further"][0]["endpoint_id"], second);
    assert_eq!(shown["further"][0]["state"], "pending");
    let shown = operator.run(&["delivery", "show", &topup]).await;
    shown.says("to further endpoints").says("status 500");
}

#[tokio::test]
async fn a_purchase_is_not_retried_without_a_confirmation() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let partner: PartnerId = text(&made, "partner_id").parse().unwrap();
    let mut connection = operator.database.connect().await.unwrap();
    let order = store_order(&mut connection, partner, "o-1").await;
    sqlx::query("UPDATE placements SET state = 'parked', attempt = 1")
        .execute(&mut connection)
        .await
        .unwrap();
    let id = order.placement.to_string();
    let resolve = ["placement", "resolve", &id, "--retry"];
    let state =
        async || operator.json(&["placement", "list"]).await["placements"][0]["state"].clone();
    let refused = operator
        .run(&[&resolve[..], &["--reason", "not there"]].concat())
        .await;
    refused.fails(1, "BUYS 1 unit from sandbox by attempt 2");
    operator
        .run(&[&resolve[..], &["--dry-run"]].concat())
        .await
        .says("BUYS 1 unit ");
    assert!(operator.run(&resolve).await.line(2).contains("--reason"));
    assert_eq!(state().await, "parked");
    assert_eq!(
        operator.json(&[&resolve[..], &CONFIRMED].concat()).await["state"],
        "accepted"
    );
    assert_eq!(state().await, "accepted");
    let action = &operator.json(&["action", "list"]).await[0];
    assert_eq!(text(action, "command"), "placement resolve --retry");
    assert_eq!(text(action, "target"), format!("placement {id}"));

    let recover = ["recover", "--reason", "restored"];
    operator
        .run(&recover)
        .await
        .fails(1, "1 placement would be moved");
    assert_eq!(state().await, "accepted");
    operator.json(&[&recover[..], &["--yes"]].concat()).await;
    assert_eq!(state().await, "placing");
    assert_eq!(
        operator.json(&["action", "list"]).await[0]["command"],
        "recover"
    );
}

#[tokio::test]
async fn an_endpoint_is_blocked_paused_and_resumed() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let id = text(&made, "partner_id");
    operator
        .json(&words(&format!(
            "partner set {id} --webhook-url https://acme.example/hooks"
        )))
        .await;
    let state = async || operator.json(&["endpoint", "list"]).await[0]["state"].clone();
    assert_eq!(state().await, "open");

    let (mut connection, order) = operator.ready_order(&made, "o-1").await;
    for attempt in [0, 1] {
        record(
            &mut connection,
            &order,
            attempt,
            Some(Duration::from_hours(1)),
        )
        .await;
    }
    let listed = operator.json(&["endpoint", "list"]).await;
    assert_eq!(listed[0]["state"], "blocked");
    assert!(listed[0]["blocked_until"].is_string(), "{listed}");
    assert_eq!(listed[0]["failures"], 2);
    assert_eq!(listed[0]["pending"], 1);
    // The block is told with when the endpoint began to fail, however often it was blocked since.
    let ended = operator.run(&words("attention --json")).await;
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let lists = [&report["needs_person"], &report["ends_by_itself"]];
    let mut findings = lists.iter().flat_map(|list| list.as_array().unwrap());
    let blocked = findings.find(|one| one["finding"]["kind"] == "blocked");
    let blocked = blocked.unwrap_or_else(|| panic!("{report}"));
    assert_eq!(blocked["finding"]["since"], listed[0]["failing_since"]);
    assert!(blocked["told"]["since"].is_string(), "{blocked}");

    let paused = operator.json(&["endpoint", "pause", id]).await;
    assert_eq!(
        paused,
        json!({ "endpoint_id": id, "partner_id": id, "state": "paused" })
    );
    assert_eq!(state().await, "paused");
    operator.run(&["endpoint", "list"]).await.says("paused");
    let resumed = operator.json(&["endpoint", "resume", id]).await;
    let expected = json!({ "endpoint_id": id, "partner_id": id, "state": "open" });
    assert_eq!(resumed, expected);
    assert_eq!(state().await, "open");
    operator
        .run(&["endpoint", "pause", "ak_nobody"])
        .await
        .fails(1, "`esimctl partner list`");
}
