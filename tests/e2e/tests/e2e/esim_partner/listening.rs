//! `esim-partner listen`, and the long poll behind it.

use super::*;

/// The webhooks of an answer of the endpoint, and the cursor.
fn page(answer: &Answer) -> Result<(Vec<Value>, String)> {
    ensure!(
        answer.status == 200 && answer.headers["cache-control"] == "no-store",
        "{} {}",
        answer.status,
        String::from_utf8_lossy(&answer.body)
    );
    let page = answer.json()?;
    let webhooks = page["webhooks"].as_array().context("webhooks")?.clone();
    Ok((
        webhooks,
        page["next_cursor"]
            .as_str()
            .context("next_cursor")?
            .to_owned(),
    ))
}

async fn listen(client: &Client, query: &str) -> Result<Answer> {
    client.get(LISTEN).query(query).send().await
}

/// All webhooks since an hour ago, once there are `count`.
async fn listened(client: &Client, count: usize) -> Result<Vec<Value>> {
    let hour_ago = (runtime::clock::now() - Duration::from_hours(1)).format(&Rfc3339)?;
    let query = format!("limit=100&wait=0&created_after={hour_ago}");
    let all = async || {
        let (webhooks, _) = page(&listen(client, &query).await?)?;
        Ok((webhooks.len() >= count).then_some(webhooks))
    };
    wait::until(SOON, "the webhooks", all).await
}

#[tokio::test]
async fn listen_forwards_what_the_webhook_url_gets() {
    let (stack, shop) = open().await;
    let tool = Tool::login(&stack.base_url, &shop.partner).await.unwrap();
    let laptop = Receiver::start().await.unwrap();
    laptop
        .verify("/hook", &shop.partner.webhook_secret)
        .unwrap();
    let (mut listening, _errors) = tool.listen(&laptop.url("/hook"), "2").await.unwrap();
    let ready = stack.option("ready").unwrap();
    let bought = shop.buy(&fresh("listen"), ready, 2).await.unwrap();
    let ids = testkit::shop::ids(&bought);
    let delivered = shop.delivered(&ids, SOON).await.unwrap();
    let forwarded = laptop.wait_for(2, SOON).await.unwrap();
    for webhook in &forwarded {
        assert!(webhook.is_valid());
        let regular = delivered
            .iter()
            .find(|regular| regular.headers["webhook-id"] == webhook.headers["webhook-id"])
            .expect("the regular webhook");
        // The same bytes; only the timestamp is of its own attempt.
        assert_eq!(webhook.body, regular.body);
        assert_eq!(
            webhook.headers["content-type"],
            regular.headers["content-type"]
        );
    }
    assert!(
        tokio::time::timeout(SOON, listening.wait())
            .await
            .unwrap()
            .unwrap()
            .success()
    );
    let mut shown = String::new();
    let mut output = listening.stdout.take().unwrap();
    output.read_to_string(&mut shown).await.unwrap();
    for (webhook, id) in forwarded.iter().zip(&ids) {
        assert!(shown.contains(&format!("{id} ")), "{shown}");
        let code = webhook.json["activate_code"].as_str().unwrap();
        assert!(!shown.contains(code), "it prints an activation code");
    }
    // Its own attempt counts, and only that of the webhook URL.
    for id in &ids {
        let delivery = crate::partner::delivered(&shop.client, id).await;
        assert_eq!(delivery["attempts"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn without_an_endpoint_listen_checks_the_signatures_itself() {
    let stack = Stack::start().await.unwrap();
    let mut partner = stack.create_partner("sandbox", None).await.unwrap();
    let tool = Tool::login(&stack.base_url, &partner).await.unwrap();
    let order = tool.json(&["trigger", "ready"]).await.unwrap();
    let topup_id = order["products"][0]["topup_id"].as_str().unwrap();
    let arguments = ["listen", "--since", "10m", "--count", "1"];
    let shown = tool.text(&arguments).await.unwrap();
    assert!(
        shown.starts_with(topup_id) && shown.ends_with(": signature valid\n"),
        "{shown}"
    );
    // The secret of another account.
    partner.webhook_secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into();
    let tool = Tool::login(&stack.base_url, &partner).await.unwrap();
    let output = tool.run(&arguments).await.unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(shown.ends_with(": signature not valid\n"), "{shown}");
    assert!(said.contains("WEBHOOK_SECRET"), "{said}");
}

#[tokio::test]
async fn listen_needs_no_webhook_url_and_names_a_failure() {
    let stack = Stack::start().await.unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let tool = Tool::login(&stack.base_url, &partner).await.unwrap();
    let laptop = Receiver::start().await.unwrap();
    laptop.verify("/hook", &partner.webhook_secret).unwrap();
    laptop.answer("/hook", |_| receiver::Answer::status(500));
    let (mut listening, mut errors) = tool.listen(&laptop.url("/hook"), "1").await.unwrap();
    let order = tool.json(&["trigger", "ready"]).await.unwrap();
    let topup_id = order["products"][0]["topup_id"].as_str().unwrap();
    laptop.wait_for(1, SOON).await.unwrap();
    assert!(
        !tokio::time::timeout(SOON, listening.wait())
            .await
            .unwrap()
            .unwrap()
            .success()
    );
    let mut hint = String::new();
    errors.read_to_string(&mut hint).await.unwrap();
    let command = format!("redeliver {topup_id} --forward-to {}", laptop.url("/hook"));
    assert!(hint.contains(&command), "{hint}");

    // The hinted command brings it back, with the same bytes.
    laptop.answer("/hook", |_| receiver::Answer::status(200));
    tool.text(&["redeliver", topup_id, "--forward-to", &laptop.url("/hook")])
        .await
        .unwrap();
    let received = laptop.received();
    assert_eq!(received.len(), 2);
    assert_eq!(received[0].body, received[1].body);
    assert!(received.iter().all(receiver::Received::is_valid));
    // The webhook itself waits for a URL.
    let orders = tool.json(&["orders", "list"]).await.unwrap();
    assert_eq!(orders["orders"][0]["state"], "ready");
    let client = stack.client(&partner).unwrap();
    let path = format!("/api/v1/api_partner/topups/{topup_id}");
    let waits = async || {
        let shown = client.get(&path).send().await?;
        Ok((shown.json()?["delivery"] == "no_endpoint").then_some(()))
    };
    wait::soon("the webhook to wait for a URL", waits).await;
}

#[tokio::test]
async fn listening_is_paged_bounded_and_shows_no_other_partners_webhooks() {
    let stack = Stack::with(Stage::Ingress, &[("LISTEN_WAIT", "3s")])
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let bought = shop
        .buy(&fresh("paged"), stack.option("ready").unwrap(), 3)
        .await
        .unwrap();
    let all = listened(&shop.client, 3).await.unwrap();
    let stranger = Shop::open(&stack).await.unwrap();

    // Page by page, each webhook once.
    let hour_ago = (runtime::clock::now() - Duration::from_hours(1))
        .format(&Rfc3339)
        .unwrap();
    let mut query = format!("created_after={hour_ago}");
    let mut found = Vec::new();
    let mut cursors = Vec::new();
    for _ in 0..3 {
        let answer = listen(&shop.client, &format!("limit=1&wait=0&{query}"))
            .await
            .unwrap();
        let (webhooks, cursor) = page(&answer).unwrap();
        assert_eq!(webhooks.len(), 1);
        found.push(webhooks[0]["headers"]["webhook-id"].clone());
        query = format!("cursor={cursor}");
        cursors.push(cursor);
    }
    let expected: Vec<_> = all
        .iter()
        .map(|one| one["headers"]["webhook-id"].clone())
        .collect();
    assert_eq!(found, expected);
    assert_eq!(found.len(), testkit::shop::ids(&bought).len());

    // Another partner finds nothing, with these cursors and without.
    for query in [
        format!("created_after={hour_ago}"),
        format!("cursor={}", cursors[0]),
    ] {
        let answer = listen(&stranger.client, &format!("wait=0&{query}"))
            .await
            .unwrap();
        assert_eq!(page(&answer).unwrap().0, [Value::Null; 0], "{query}");
    }
    // An empty answer comes after the service's longest wait, however long the partner would wait.
    let answer = listen(&stranger.client, "wait=3600").await.unwrap();
    assert!(page(&answer).unwrap().0.is_empty());
    assert!(
        answer.took > Duration::from_secs(1) && answer.took < Duration::from_secs(15),
        "{:?}",
        answer.took
    );

    let live = stack.create_partner("live", None).await.unwrap();
    let refused = listen(&stack.client(&live).unwrap(), "").await.unwrap();
    assert_eq!(
        (
            refused.status,
            refused.headers["x-service-error"].to_str().unwrap()
        ),
        (403, "sandbox_only")
    );
}

#[tokio::test]
async fn a_waiting_listener_is_answered_when_ingress_stops() {
    let mut stack = Stack::with(Stage::Ingress, &[("LISTEN_WAIT", "10m")])
        .await
        .unwrap();
    let partner = stack.create_partner("sandbox", None).await.unwrap();
    let client = stack.client(&partner).unwrap();
    let waiting = tokio::spawn(async move { listen(&client, "").await });
    let ingress = stack.process(Stage::Ingress).unwrap();
    let in_flight = async || {
        let text = ingress.metrics().await?;
        let mut listeners = text
            .lines()
            .filter(|line| line.starts_with("esim_listeners"));
        Ok(listeners.any(|line| line.ends_with(" 1")).then_some(()))
    };
    wait::soon("the waiting request", in_flight).await;
    assert!(
        ingress
            .terminate(Duration::from_secs(15))
            .await
            .unwrap()
            .success()
    );
    let (webhooks, _) = page(&waiting.await.unwrap().unwrap()).unwrap();
    assert!(webhooks.is_empty());
}
