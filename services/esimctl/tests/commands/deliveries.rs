//! `esimctl delivery` and `esimctl endpoint`.

use std::time::Duration;

use domain::PartnerId;
use serde_json::json;

use crate::support::{CONFIRMED, Operator, record, run, store_order, words};
use crate::{make_unit_ready, text};

#[tokio::test]
async fn a_delivery_is_shown_with_its_attempts_and_replayed() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let id = text(&made, "partner_id");
    let (mut connection, order) = operator.ready_order(&made, "o-1").await;
    let topup = order.topup.to_string();
    record(&mut connection, &order, 0, Some(Duration::from_hours(1))).await;
    record(&mut connection, &order, 1, None).await;

    let list = ["delivery", "list", "--state", "exhausted", "--since", "1h"];
    let listed = operator.json(&list).await;
    assert_eq!(listed[0]["topup_id"], topup);
    assert_eq!(listed[0]["attempts"], 2);
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

    let replay = ["delivery", "replay", &topup];
    let confirmed = [&replay[..], &CONFIRMED].concat();
    assert_eq!(operator.json(&confirmed).await["replayed"], 1);
    let shown = operator.json(&["delivery", "show", &topup]).await;
    assert_eq!(shown["delivery"]["state"], "pending");
    assert_eq!(
        shown["attempts"].as_array().unwrap().len(),
        2,
        "what was tried is still known"
    );
    operator.run(&confirmed).await.says("nothing to replay");

    record(&mut connection, &order, 2, None).await;
    let access_key = text(&made, "access_key");
    let all = [
        "delivery",
        "replay",
        "--partner",
        access_key,
        "--since",
        "1h",
    ];
    let confirmed = [&all[..], &CONFIRMED].concat();
    assert_eq!(operator.json(&confirmed).await["replayed"], 1);
    assert!(
        operator
            .run(&[&all[..4], &CONFIRMED].concat())
            .await
            .line(2)
            .contains("--since")
    );
    let unknown = ["delivery", "replay", "20250129123456618033988749"];
    operator
        .run(&[&unknown[..], &CONFIRMED].concat())
        .await
        .fails(1, "no delivery");
    let mut without_key = operator.command(&["delivery", "show", &topup, "--answers"]);
    run(without_key.env_remove("MASTER_KEY"))
        .await
        .fails(2, "MASTER_KEY");
}

/// A command that sends many webhooks needs a reason and a confirmation, and is recorded together
/// with its change.
#[tokio::test]
async fn a_replay_is_previewed_confirmed_bounded_and_recorded() {
    let operator = Operator::new().await;
    let made = operator.create_partner().await;
    let id = text(&made, "partner_id");
    let partner: PartnerId = id.parse().unwrap();
    let mut connection = operator.database.connect().await.unwrap();
    for number in 1..=3 {
        let order = store_order(&mut connection, partner, &format!("o-{number}")).await;
        make_unit_ready(&mut connection, &order, number).await;
        record(&mut connection, &order, 0, None).await;
    }
    let exhausted = async || {
        operator
            .json(&["delivery", "list", "--state", "exhausted"])
            .await
            .as_array()
            .unwrap()
            .len()
    };
    let replay = ["delivery", "replay", "--partner", id, "--since", "1h"];
    let with = |more: &[&'static str]| [&replay[..], more].concat();

    let preview = operator.json(&with(&["--dry-run"])).await;
    assert_eq!(preview["replayed"], 3);
    assert_eq!(preview["exhausted"], 3);
    assert_eq!(preview["dry_run"], true);
    assert!(operator.run(&replay).await.line(2).contains("--reason"));
    let unconfirmed = operator.run(&with(&["--reason", "lost"])).await;
    let line = unconfirmed.line(1);
    assert!(
        line.contains("nothing was changed: 3 webhooks") && line.contains("--yes"),
        "{line}"
    );
    let confirmed = ["--reason", "lost", "--yes"];
    let long_ago = ["--until", "2020-01-01T00:00:00Z"];
    operator
        .run(&with(&[&long_ago[..], &confirmed].concat()))
        .await
        .fails(1, "so nothing lies between them: exchange the two");
    let before = with(&[&["--until", "30m"][..], &confirmed].concat());
    assert_eq!(operator.json(&before).await["replayed"], 0);
    assert_eq!(exhausted().await, 3);
    assert!(operator.actions().await.is_empty());

    let limited = with(&["--limit", "2", "--reason", "endpoint lost them", "--yes"]);
    let replayed = operator
        .json(&[&limited[..], &["--operator", "ada"]].concat())
        .await;
    assert_eq!(replayed["replayed"], 2);
    assert_eq!(replayed["dry_run"], false);
    assert_eq!(exhausted().await, 1);
    let actions = operator.actions().await;
    assert_eq!(actions.len(), 1);
    let action = &actions[0];
    let fields = ["operator", "command", "reason"].map(|field| text(action, field));
    assert_eq!(fields, ["ada", "delivery replay", "endpoint lost them"]);
    assert_eq!(action["affected"], 2);
    assert!(text(action, "target").contains("limit 2"), "{action}");
    operator
        .run(&["action", "list"])
        .await
        .says("endpoint lost them");
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
    refused.fails(1, "BUYS 1 units from sandbox by attempt 2");
    operator
        .run(&[&resolve[..], &["--dry-run"]].concat())
        .await
        .says("BUYS 1 units");
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

    let paused = operator.json(&["endpoint", "pause", id]).await;
    assert_eq!(
        paused,
        json!({ "endpoint_id": id, "partner_id": id, "state": "paused" })
    );
    assert_eq!(state().await, "paused");
    operator.run(&["endpoint", "list"]).await.says("paused");
    let resumed = operator.json(&["endpoint", "resume", id]).await;
    let expected =
        json!({ "endpoint_id": id, "partner_id": id, "state": "open", "deliveries_due": 1 });
    assert_eq!(resumed, expected);
    assert_eq!(state().await, "open");
    operator
        .run(&["endpoint", "pause", "ak_nobody"])
        .await
        .fails(1, "`esimctl partner list`");
}
