//! `esim-partner mcp` as an agent uses it: the protocol over standard input and output, against the
//! real service.

use testkit::agent::Agent;

use super::*;

async fn start(tool: &Tool, arguments: &[&str]) -> Result<Agent> {
    let mut command = tool.command(&[&["mcp"], arguments].concat());
    Agent::start(&mut command, "esim-partner").await
}

#[tokio::test]
async fn an_agent_without_leave_only_looks() {
    let stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let ready = stack.option("ready").unwrap();
    let tool = Tool::login(&stack.base_url, &partner).await.unwrap();
    let order = json!({"external_order_id": fresh("agent"), "option_id": ready});
    let of_order = json!({"external_order_id": order["external_order_id"]});
    let mut looking = start(&tool, &[]).await.unwrap();
    let tools = looking.tools().await.unwrap();
    assert!(
        tools.iter().all(|name| !name.contains("_order")),
        "{tools:?}"
    );
    looking
        .refused("confirm_order", order, "--allow-orders")
        .await;
    let account = looking.told("account", json!({})).await;
    assert_eq!(account["environment"], "sandbox");
    let options = looking.told("options", json!({})).await;
    assert!(options.to_string().contains(ready), "{options}");
    for (tool, arguments, remedy) in [
        ("options", json!({"colour": 1}), "input schema"),
        ("account", json!({"colour": 1}), "input schema"),
        ("order", of_order, "check the id"),
        ("usage", json!({"topup_id": "../keys"}), "26 digits"),
    ] {
        looking.refused(tool, arguments, remedy).await;
    }
}

#[tokio::test]
async fn an_agent_orders_in_two_steps_and_never_twice() {
    let stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let ready = stack.option("ready").unwrap();
    let tool = Tool::login(&stack.base_url, &partner).await.unwrap();
    let order = json!({"external_order_id": fresh("agent"), "option_id": ready});
    let of_order = json!({"external_order_id": order["external_order_id"]});
    let mut agent = start(&tool, &["--allow-orders"]).await.unwrap();
    agent
        .refused("confirm_order", order.clone(), "call preview_order")
        .await;
    let unknown = json!({"external_order_id": "a", "option_id": "none"});
    agent
        .refused("preview_order", unknown, "the tool options lists")
        .await;
    let mut many = order.clone();
    many["qty"] = json!(1_000_000);
    agent
        .refused("preview_order", many, "split the order")
        .await;
    let preview = agent.told("preview_order", order.clone()).await;
    assert_eq!(
        (
            &preview["buys_for_real"],
            &preview["option"]["option_id"],
            &preview["stored_order"]
        ),
        (&json!(false), &json!(ready), &json!(null))
    );
    assert_eq!(
        stack.ledger().await.unwrap().purchases,
        0,
        "a preview buys nothing"
    );
    // What was previewed is confirmed, and nothing else.
    let mut other = order.clone();
    other["qty"] = json!(2);
    agent
        .refused("confirm_order", other, "call preview_order")
        .await;
    let ordered = agent.told("confirm_order", order.clone()).await;
    let bought_unit = ordered["products"][0]["topup_id"].clone();
    let again = agent.told("confirm_order", order.clone()).await;
    // Another process of the agent has to preview it again, and gets the same order.
    let mut agent = start(&tool, &["--allow-orders"]).await.unwrap();
    let preview = agent.told("preview_order", order.clone()).await;
    assert_eq!(
        preview["stored_order"]["external_order_id"],
        order["external_order_id"]
    );
    let third = agent.told("confirm_order", order.clone()).await;
    let topup = |order: &Value| order["topups"][0]["topup_id"].clone();
    assert!(bought_unit.is_string(), "{ordered}");
    assert_eq!(
        (topup(&again), topup(&third)),
        (bought_unit.clone(), bought_unit)
    );
    let bought = async || Ok(Some(stack.ledger().await?).filter(|ledger| ledger.units == 1));
    assert_eq!(wait::soon("the purchase", bought).await.purchases, 1);

    let client = stack.client(&partner).unwrap();
    shown_without_codes(&mut agent, &client, of_order).await;
}

/// Waits until the eSIM is ready, and asserts that the agent sees it without what it can be
/// installed with.
async fn shown_without_codes(agent: &mut Agent, client: &Client, order: Value) {
    let id = order["external_order_id"].as_str().unwrap().to_owned();
    let is_ready = async || {
        let query = format!("external_order_id={id}");
        let orders = client.get("/api/v1/api_partner/orders").query(&query);
        let text = String::from_utf8(orders.send().await?.body.to_vec())?;
        Ok(Some(text).filter(|text| text.contains("activate_code")))
    };
    wait::until(SOON, "the eSIM", is_ready).await.unwrap();
    let shown = agent.told("order", order).await.to_string();
    assert!(
        shown.contains("iccid") && !shown.contains("LPA:"),
        "{shown}"
    );
    for name in [
        "activate_code",
        "download_link",
        "qrcode_img_url",
        "install_links",
    ] {
        assert!(!shown.contains(name), "{shown}");
    }
}
