//! `esimctl retention`, `order erase` and `partner erase`.

use std::time::Duration;

use serde_json::{Value, json};
use store::deliveries::{AttemptResult, EndedAttempt};

use crate::support::{CONFIRMED, Operator, Order, record, store_attempt, store_order};
use crate::text;

async fn delivered(operator: &Operator, partner: &Value, external_id: &str) -> Order {
    let (mut connection, order) = operator.ready_order(partner, external_id).await;
    record(&mut connection, &order, 0, Some(Duration::from_hours(1))).await;
    let attempted = EndedAttempt {
        id: order.delivery,
        endpoint_id: order.partner.first_endpoint(),
        is_event: false,
        leased: true,
        ended_attempts: 1,
        schedule_start: 0,
        at: runtime::clock::now(),
        duration: Duration::from_millis(3),
        status: Some(200),
        class: "delivered",
        detail: None,
        proves: false,
        response_start: None,
        result: AttemptResult::Delivered,
    };
    store_attempt(&mut connection, attempted).await;
    order
}

fn with<'a>(command: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [command, more].concat()
}

#[tokio::test]
async fn an_order_is_erased_after_a_preview_and_is_recorded() {
    let operator = Operator::new().await;
    let partner = operator.create_partner().await;
    let order = delivered(&operator, &partner, "o-1").await;
    let erase = ["order", "erase", "o-1"];
    let preview = operator.json(&with(&erase, &["--dry-run"])).await;
    assert_eq!(preview["profiles"], 1);
    assert_eq!(preview["attempts"], 1);
    assert!(operator.run(&erase).await.line(2).contains("--reason"));
    operator
        .run(&with(&erase, &["--reason", "asked"]))
        .await
        .fails(1, "nothing was changed");
    assert!(operator.actions().await.is_empty());

    let erased = operator.run(&with(&erase, &CONFIRMED)).await;
    for copies in ["dumps", "WAL", "TOPUP_DEAD", "logs"] {
        erased.says(copies);
    }
    let actions = operator.json(&["action", "list"]).await;
    assert_eq!(actions[0]["command"], "order erase");
    assert_eq!(actions[0]["affected"], 1);
    operator
        .run(&["order", "show", "o-1"])
        .await
        .says("profile erased");
    let topup = order.topup.to_string();
    operator
        .run(&with(&["resend", "start", &topup], &CONFIRMED))
        .await
        .fails(1, "its profile was erased");
    let shown = operator.json(&["delivery", "show", &topup]).await;
    assert!(shown["delivery"]["erased_at"].is_string(), "{shown}");

    let mut connection = operator.database.connect().await.unwrap();
    store_order(&mut connection, order.partner, "o-2").await;
    operator
        .run(&with(&["order", "erase", "o-2"], &CONFIRMED))
        .await
        .fails(1, "not finished");
    operator
        .run(&with(&["order", "erase", "o-3"], &CONFIRMED))
        .await
        .fails(1, "there is no order");
}

#[tokio::test]
async fn a_partner_is_erased_after_it_was_disabled() {
    let operator = Operator::new().await;
    let partner = operator.create_partner().await;
    let id = text(&partner, "partner_id").to_owned();
    delivered(&operator, &partner, "o-1").await;
    let erase = ["partner", "erase", &id];
    operator
        .run(&with(&erase, &CONFIRMED))
        .await
        .fails(1, "partner set PARTNER --disabled");
    operator.json(&["partner", "set", &id, "--disabled"]).await;
    let mut connection = operator.database.connect().await.unwrap();
    sqlx::query("UPDATE walks SET up_to = now() + interval '1 minute' WHERE name IN ('placements', 'deliveries')")
        .execute(&mut connection)
        .await
        .unwrap();
    assert_eq!(
        operator.json(&with(&erase, &["--dry-run"])).await["orders"],
        1
    );
    let erased = operator.json(&with(&erase, &CONFIRMED)).await;
    assert_eq!(
        (&erased["orders"], &erased["profiles"]),
        (&json!(1), &json!(1))
    );
    let shown = operator.json(&["partner", "show", &id]).await;
    assert_eq!(text(&shown, "name"), "erased");
    assert_eq!(shown["has_secret_key"], false);
    // A repetition, as after an interruption, succeeds by the partner's id and finds nothing left
    // to erase.
    assert_eq!(
        operator.json(&with(&erase, &CONFIRMED)).await["profiles"],
        0
    );
}

#[tokio::test]
async fn terms_are_listed_and_set() {
    let operator = Operator::new().await;
    operator
        .run(&["retention", "list"])
        .await
        .says("90 days")
        .says("30 days")
        .says("for ever");
    let set = ["retention", "set", "profiles"];
    let kept = async || {
        let terms = operator.json(&["retention", "list"]).await;
        let terms = terms.as_array().unwrap();
        terms
            .iter()
            .find(|term| term["class"] == "profiles")
            .unwrap()["days"]
            .clone()
    };
    let preview = operator
        .run(&with(&set, &["--days", "7", "--dry-run"]))
        .await;
    preview.says("would be kept 7 days; before: 90 days");
    assert_eq!(kept().await, 90);
    let confirmed = with(&set, &CONFIRMED);
    operator.json(&with(&confirmed, &["--days", "7"])).await;
    assert_eq!(kept().await, 7);
    operator.json(&with(&confirmed, &["--for-ever"])).await;
    assert_eq!(kept().await, Value::Null);
    let refused = operator
        .run(&with(
            &["retention", "set", "logs", "--days", "7"],
            &CONFIRMED,
        ))
        .await;
    refused.fails(2, "there is no class");
}
