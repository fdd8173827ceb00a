//! `esimctl --mcp` as an agent uses it, against a real database.

use serde_json::json;
use testkit::agent::Agent;

use crate::support::{Operator, store_order};
use crate::{make_unit_ready, text};

const CODE: &str = "LPA:1$";

#[tokio::test]
async fn an_agent_looks_and_changes_nothing() {
    let operator = Operator::new().await;
    let partner = operator.create_partner().await;
    let id = text(&partner, "partner_id");
    let url = "https://hooks.example/in?token=hush";
    let set = [
        "partner",
        "set",
        id,
        "--webhook-url",
        url,
        "--reason",
        "test",
    ];
    operator.run(&set).await.text();
    let mut connection = operator.database.connect().await.unwrap();
    let order = store_order(&mut connection, id.parse().unwrap(), "acme-1001").await;
    make_unit_ready(&mut connection, &order, 1).await;

    let mut agent = Agent::start(&mut operator.command(&["--mcp"]), "esimctl")
        .await
        .unwrap();
    let tools = agent.tools().await.unwrap();
    for expected in ["attention", "status", "find", "order", "partner"] {
        assert!(tools.iter().any(|name| name == expected), "{tools:?}");
    }
    // Each tool that needs no argument succeeds, and what it tells is an object.
    let mut told = String::new();
    for tool in &tools {
        let arguments = match tool.as_str() {
            "find" | "order" => json!({"id": "acme-1001"}),
            "delivery" => json!({"id": order.topup.as_str()}),
            "partner" => json!({"partner": id}),
            _ => json!({}),
        };
        let result = agent.told(tool, arguments).await;
        assert!(result.is_object(), "{tool}: {result}");
        told.push_str(&result.to_string());
    }
    assert!(told.contains("acme-1001") && told.contains("https://hooks.example/…"));
    for secret in [
        "hush",
        CODE,
        text(&partner, "secret_key"),
        text(&partner, "webhook_secret"),
    ] {
        assert!(!told.contains(secret), "{secret}");
    }

    // Nothing else can be called, and arguments stay arguments.
    for tool in ["partner_set", "migrate", "order erase", ""] {
        agent.refused(tool, json!({}), "tools/list").await;
    }
    agent.refused("find", json!({}), "input schema").await;
    agent
        .refused("orders", json!({"csv": "x"}), "input schema")
        .await;
    let error = agent
        .refused("order", json!({"id": "--help"}), "correct the id")
        .await;
    assert!(error.contains("there is no order \"--help\""), "{error}");
    operator
        .run(&["--mcp", "status"])
        .await
        .fails(2, "takes no command");
}
