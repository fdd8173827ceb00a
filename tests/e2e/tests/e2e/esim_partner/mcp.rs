//! `esim-partner mcp` as an agent uses it: the protocol over standard input and output, against the real service.

use tokio::process::{ChildStdin, ChildStdout};

use super::*;

/// An agent with the server that it has started.
struct Agent {
    // The server ends with it.
    _server: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    requests: u64,
}

impl Agent {
    async fn start(tool: &Tool, arguments: &[&str]) -> Result<Self> {
        let mut command = tool.command(&[&["mcp"], arguments].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = command.spawn()?;
        let mut agent = Self {
            to: server.stdin.take().context("stdin")?,
            from: BufReader::new(server.stdout.take().context("stdout")?),
            _server: server,
            requests: 0,
        };
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
        let answer = agent.ask("initialize", hello).await?;
        ensure!(answer["serverInfo"]["name"] == "esim-partner", "{answer}");
        ensure!(answer["capabilities"]["tools"].is_object(), "{answer}");
        agent
            .say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await?;
        Ok(agent)
    }

    async fn say(&mut self, message: &Value) -> Result<()> {
        self.to.write_all(format!("{message}\n").as_bytes()).await?;
        Ok(self.to.flush().await?)
    }

    async fn ask(&mut self, method: &str, params: Value) -> Result<Value> {
        self.requests += 1;
        let id = self.requests;
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await?;
        let mut line = String::new();
        tokio::time::timeout(Duration::from_mins(1), self.from.read_line(&mut line)).await??;
        let answer: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
        ensure!(answer["id"] == id && answer["error"].is_null(), "{answer}");
        Ok(answer["result"].clone())
    }

    async fn tools(&mut self) -> Result<Vec<String>> {
        let listed = self.ask("tools/list", json!({})).await?;
        let tools = listed["tools"].as_array().context("tools")?.iter();
        Ok(tools
            .filter_map(|tool| Some(tool["name"].as_str()?.to_owned()))
            .collect())
    }

    /// The structured result of a tool, and whether it is an error.
    async fn call(&mut self, tool: &str, arguments: Value) -> Result<(Value, bool)> {
        let params = json!({"name": tool, "arguments": arguments});
        let result = self.ask("tools/call", params).await?;
        let is_error = result["isError"] == true;
        Ok((result["structuredContent"].clone(), is_error))
    }

    async fn told(&mut self, tool: &str, arguments: Value) -> Value {
        let (result, is_error) = self.call(tool, arguments).await.unwrap();
        assert!(!is_error, "{tool}: {result}");
        result
    }

    async fn refused(&mut self, tool: &str, arguments: Value, remedy: &str) {
        let (result, is_error) = self.call(tool, arguments).await.unwrap();
        let said = result["remedy"].as_str().unwrap_or_default();
        assert!(is_error && said.contains(remedy), "{tool}: {result}");
    }
}

#[tokio::test]
async fn an_agent_without_leave_only_looks() {
    let stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let ready = stack.option("ready").unwrap();
    let tool = Tool::login(&stack.base_url, &partner).await.unwrap();
    let order = json!({"external_order_id": fresh("agent"), "option_id": ready});
    let of_order = json!({"external_order_id": order["external_order_id"]});
    let mut looking = Agent::start(&tool, &[]).await.unwrap();
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
    let mut agent = Agent::start(&tool, &["--allow-orders"]).await.unwrap();
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
    let mut agent = Agent::start(&tool, &["--allow-orders"]).await.unwrap();
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

/// Waits until the eSIM is ready, and asserts that the agent sees it without what it can be installed with.
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
