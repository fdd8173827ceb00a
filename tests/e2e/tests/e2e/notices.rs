//! Notices on another channel than the endpoint that fails: a URL or an e-mail address, from its
//! verification to what it is told.

use crate::esim_partner::Tool;
use crate::partner::{assert_refused, get, header, send};
use crate::shop::{PATH, SOON, Shop, fresh};
use serde_json::{Value, json};
use std::time::Duration;
use testkit::client::{Answer, Client};
use testkit::mailbox::{Mail, MailRelay};
use testkit::receiver::{self, Received, Receiver, Signature};
use testkit::stack::{Builder, Stack, Stage};
use testkit::wait;

const FROM: &str = "eSIM service <noreply@esim.example>";
const EMAIL: &str = "ops@shop.example";
/// How soon a partner is told of a block and of a recovery.
const MINUTE: Duration = Duration::from_mins(1);

/// A stack whose endpoints are blocked after four failures in a row, for at most two seconds.
fn quickly_blocked() -> Builder {
    Stack::builder()
        .env(Stage::Notifier, "ENDPOINT_FAILURES", "4")
        .env(Stage::Notifier, "--endpoint-block-longest", "2s")
        .env(Stage::Notifier, "RETRY_SCHEDULE", "1s,1s,1s,1s,1s,1s,1s,1s")
        .env(Stage::Ingress, "REDELIVER_INTERVAL", "1ms")
}

async fn put(client: &Client, channel: &Value) -> Answer {
    send(client, "PUT", "/notices", &channel.to_string())
        .await
        .unwrap()
}

async fn verify(client: &Client, code: &str) -> Answer {
    let body = json!({"code": code}).to_string();
    send(client, "POST", "/notices/verify", &body)
        .await
        .unwrap()
}

/// The types of the notices that have arrived, in order.
fn types(received: &[Received]) -> Vec<&str> {
    let kinds = received
        .iter()
        .filter_map(|one| one.headers.get("webhook-type")?.to_str().ok());
    kinds.collect()
}

/// The first notice of this type.
async fn told(channel: &Receiver, kind: &str, within: Duration) -> Received {
    let arrived = channel.wait_until(within, kind, |received| types(received).contains(&kind));
    let received = arrived.await.unwrap();
    let is_it = |one: &Received| {
        one.headers
            .get("webhook-type")
            .is_some_and(|found| found == kind)
    };
    received.into_iter().find(is_it).unwrap()
}

/// A channel at this receiver, verified by the code that it got.
async fn channel_at(shop: &Shop, channel: &Receiver) {
    let set = put(&shop.client, &json!({"url": channel.url("/notices")})).await;
    let set: Value = set.json().unwrap();
    channel
        .verify("/notices", set["secret"].as_str().unwrap())
        .unwrap();
    assert_eq!(
        (&set["state"], &set["email"]),
        (&json!("unverified"), &Value::Null)
    );
    let code = told(channel, "notice.verify", SOON).await;
    // The secret may have become known to the receiver after the code had arrived.
    let code = code.json["data"]["code"].as_str().unwrap().to_owned();
    let verified = verify(&shop.client, &code).await;
    assert_eq!(verified.json().unwrap()["state"], "open");
}

/// The code in a mail.
fn code(mail: &Mail) -> String {
    let mut lines = mail.text.lines();
    let code = lines.find_map(|line| line.trim().strip_prefix("code: "));
    code.expect("a code").to_owned()
}

/// The first mail to this address whose subject holds the text.
async fn mailed(relay: &MailRelay, to: &str, subject: &str, within: Duration) -> Mail {
    let is_it = |mail: &Mail| mail.to == to && mail.header("Subject").contains(subject);
    let mails = relay.wait_until(within, subject, |mails| mails.iter().any(is_it));
    mails.await.unwrap().into_iter().find(is_it).unwrap()
}

#[tokio::test]
async fn a_dead_endpoint_is_reported_within_a_minute_of_its_block_and_of_its_recovery() {
    let stack = quickly_blocked().start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let channel = Receiver::start().await.unwrap();
    channel_at(&shop, &channel).await;

    shop.receiver
        .answer(PATH, |_| receiver::Answer::status(503));
    let began = std::time::Instant::now();
    shop.buy(&fresh("dead"), stack.option("ready").unwrap(), 10)
        .await
        .unwrap();
    let blocked = told(&channel, "notice.endpoint_blocked", MINUTE).await;
    assert!(began.elapsed() < MINUTE);
    assert_eq!(blocked.signature, Signature::Valid);
    let data = &blocked.json["data"];
    assert_eq!(data["endpoint_id"], shop.partner.partner_id.as_str());
    assert_eq!(data["host"], "127.0.0.1");
    assert_eq!(
        (&data["outcome"], &data["status"]),
        (&json!("status_5xx"), &json!(503))
    );
    assert!(
        data["since"].is_string() && data["failures"].as_i64() >= Some(4),
        "{data}"
    );
    assert!(
        data["advice"]
            .as_str()
            .is_some_and(|advice| !advice.is_empty())
    );

    shop.receiver
        .answer(PATH, |_| receiver::Answer::status(200));
    let recovered = told(&channel, "notice.endpoint_recovered", MINUTE).await;
    assert_eq!(recovered.json["data"]["endpoint_id"], data["endpoint_id"]);

    // Ten webhooks failed again and again, but each change is told once.
    let all = channel.received();
    let kinds = types(&all);
    for kind in ["notice.endpoint_blocked", "notice.endpoint_recovered"] {
        assert_eq!(
            kinds.iter().filter(|one| **one == kind).count(),
            1,
            "{kinds:?}"
        );
    }
    let topup = shop.receiver.received().remove(0);
    let code = topup.json["activate_code"].as_str().unwrap().to_owned();
    for notice in &all {
        let text = String::from_utf8_lossy(&notice.body);
        assert!(!text.contains(&code) && !text.contains(PATH), "{text}");
    }
}

#[tokio::test]
async fn a_channel_is_verified_by_its_code() {
    let relay = MailRelay::start().await.unwrap();
    let url = format!("smtp://{}?tls=none", relay.host());
    let stack = quickly_blocked()
        .env(Stage::Notifier, "SMTP_URL", &url)
        .env(Stage::Notifier, "MAIL_FROM", FROM)
        .env(Stage::Ingress, "MAIL_FROM", FROM)
        .start()
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let client = &shop.client;
    let none = get(client, "/notices").await.unwrap();
    assert_eq!(
        (&none["state"], &none["url"], &none["email_from"]),
        (&json!("none"), &Value::Null, &json!(FROM))
    );
    assert_refused(
        &verify(client, "7KQM-2XWB-9TRA").await,
        409,
        "notices_not_set",
    );

    let set: Value = put(client, &json!({"email": EMAIL})).await.json().unwrap();
    assert_eq!(
        (&set["state"], &set["email"], &set["secret"]),
        (&json!("unverified"), &json!(EMAIL), &Value::Null)
    );
    let first = mailed(&relay, EMAIL, "code", SOON).await;
    assert_eq!(first.from, "noreply@esim.example");
    let from = first.header("From");
    assert!(
        from.contains("eSIM service") && from.ends_with("<noreply@esim.example>"),
        "{from}"
    );
    assert_eq!(first.header("Auto-Submitted"), "auto-generated");
    // Nothing of the partner is in it, in case it goes to a stranger.
    assert!(!first.text.contains("127.0.0.1") && !first.text.contains(&shop.partner.partner_id));
    for left in [4, 3] {
        let wrong = verify(client, "2222-2222-2222").await;
        assert_refused(&wrong, 422, "notice_code_invalid; parameter=code");
        let message = wrong.json().unwrap()["errors"][0].to_string();
        assert!(message.contains(&format!("{left} more")), "{message}");
    }
    // Another partner's code is none.
    let stranger = Shop::open(&stack).await.unwrap();
    put(&stranger.client, &json!({"email": "b@shop.example"})).await;
    mailed(&relay, "b@shop.example", "code", SOON).await;
    let theirs = verify(&stranger.client, &code(&first)).await;
    assert_refused(&theirs, 422, "notice_code_invalid; parameter=code");
    let verified = verify(client, &code(&first).to_lowercase()).await;
    assert_eq!(verified.json().unwrap()["state"], "open");
    assert_eq!(
        get(&stranger.client, "/notices").await.unwrap()["email"],
        "b@shop.example"
    );

    // Setting it again changes nothing, and sends nothing.
    let again: Value = put(client, &json!({"email": EMAIL})).await.json().unwrap();
    assert_eq!(again["state"], "open");

    // The endpoint dies, and the mail says so.
    shop.receiver
        .answer(PATH, |_| receiver::Answer::status(500));
    shop.buy(&fresh("dead"), stack.option("ready").unwrap(), 5)
        .await
        .unwrap();
    let blocked = mailed(&relay, EMAIL, "is blocked", MINUTE).await;
    assert!(
        blocked
            .text
            .contains("last failure: status_5xx (status 500)"),
        "{}",
        blocked.text
    );
    shop.receiver
        .answer(PATH, |_| receiver::Answer::status(200));
    mailed(&relay, EMAIL, "works again", MINUTE).await;

    // A new channel replaces the old one. The fifth code of the day is the last one.
    for (email, status) in [
        ("c@shop.example", 200),
        ("d@shop.example", 200),
        ("e@shop.example", 200),
        ("f@shop.example", 200),
        ("g@shop.example", 429),
    ] {
        let answer = put(client, &json!({ "email": email })).await;
        assert_eq!(answer.status, status, "{email}");
        if status == 429 {
            assert_refused(&answer, 429, "verification_limited");
            let wait: u64 = header(&answer, "retry-after").parse().unwrap();
            assert!(wait > 80_000, "{wait}");
        }
    }
    let removed = send(client, "DELETE", "/notices", "").await.unwrap();
    assert_eq!(removed.json().unwrap()["state"], "none");
    assert!(relay.mails().iter().all(|mail| mail.to != "g@shop.example"));
    let list = ["action", "list", "--by", "partner"];
    let actions: Value = stack.esimctl.run(&list).await.unwrap();
    let recorded = actions.to_string();
    for command in ["notices set", "notices verify", "notices remove"] {
        assert!(recorded.contains(command), "{command}: {recorded}");
    }
    assert!(
        !recorded.contains("shop.example"),
        "no address is recorded: {recorded}"
    );
}

#[tokio::test]
async fn new_source_addresses_are_shown_and_told_once() {
    let mut stack = quickly_blocked()
        .env(
            Stage::Ingress,
            "SOURCE_ADDRESSES",
            "198.51.100.7,2001:db8::/48",
        )
        .env(
            Stage::Notifier,
            "SOURCE_ADDRESSES",
            "2001:db8::/48,198.51.100.7",
        )
        .start()
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let account = get(&shop.client, "/account").await.unwrap();
    assert_eq!(
        account["source_addresses"],
        json!(["198.51.100.7", "2001:db8::/48"])
    );
    let reference = testkit::http::client()
        .unwrap()
        .get(format!("{}/partner-reference.md", stack.base_url));
    let reference = reference.send().await.unwrap().text().await.unwrap();
    assert!(reference.contains("come from 198.51.100.7, 2001:db8::/48"));

    let channel = Receiver::start().await.unwrap();
    channel_at(&shop, &channel).await;
    // Two restarts with a new list, of which the second is the same.
    for list in ["203.0.113.0/24,198.51.100.7", "198.51.100.7,203.0.113.0/24"] {
        let notifier = stack.process(Stage::Notifier).unwrap();
        notifier.terminate(MINUTE).await.unwrap();
        notifier
            .program_mut()
            .env
            .insert("SOURCE_ADDRESSES".into(), list.into());
        notifier.start().await.unwrap();
    }
    let notice = told(&channel, "notice.source_addresses", SOON).await;
    assert_eq!(
        notice.json["data"]["addresses"],
        json!(["198.51.100.7", "203.0.113.0/24"])
    );
    // A later webhook shows that no second notice came before it.
    shop.receiver
        .answer(PATH, |_| receiver::Answer::status(503));
    shop.buy(&fresh("after"), stack.option("ready").unwrap(), 5)
        .await
        .unwrap();
    told(&channel, "notice.endpoint_blocked", MINUTE).await;
    let all = channel.received();
    let count = types(&all)
        .iter()
        .filter(|kind| **kind == "notice.source_addresses")
        .count();
    assert_eq!(count, 1);
}

#[tokio::test]
async fn without_a_relay_only_urls_are_offered() {
    let stack = Stack::start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let none = get(&shop.client, "/notices").await.unwrap();
    assert_eq!(none["email_from"], Value::Null);
    let refused = put(&shop.client, &json!({"email": EMAIL})).await;
    assert_refused(&refused, 422, "email_not_offered; parameter=email");
    let account = get(&shop.client, "/account").await.unwrap();
    assert_eq!(account["source_addresses"], json!([]));

    // The operator sees the state of the channel, and not where it is.
    let channel = Receiver::start().await.unwrap();
    channel_at(&shop, &channel).await;
    let id = &shop.partner.partner_id;
    let shown = async || {
        let shown: Value = stack.esimctl.run(&["partner", "show", id]).await?;
        Ok((shown["notices"]["state"] == "open").then_some(shown))
    };
    let shown = wait::soon("the channel to be shown", shown).await;
    assert_eq!(shown["notices"]["channel"], "url", "{shown}");
    assert!(!shown.to_string().contains("/notices\""), "{shown}");

    // The partner's command line does the same.
    let other = Shop::open(&stack).await.unwrap();
    let tool = Tool::login(&stack.base_url, &other.partner).await.unwrap();
    let url = channel.url("/of-the-other");
    let set = tool.json(&["notices", "set", "--url", &url]).await.unwrap();
    assert!(
        set["secret"]
            .as_str()
            .is_some_and(|secret| secret.starts_with("whsec_"))
    );
    let arrived = |received: &[Received]| received.iter().any(|one| one.path == "/of-the-other");
    let received = channel.wait_until(SOON, "the code", arrived).await.unwrap();
    let code = received
        .iter()
        .find(|one| one.path == "/of-the-other")
        .unwrap();
    let code = code.json["data"]["code"].as_str().unwrap();
    tool.failure(&["notices", "verify", "2222"]).await.unwrap();
    let verified = tool.json(&["notices", "verify", code]).await.unwrap();
    assert_eq!(
        (&verified["state"], &verified["url"]),
        (&json!("open"), &json!(url))
    );
    assert_eq!(
        tool.json(&["notices", "remove"]).await.unwrap()["state"],
        "none"
    );
    assert_eq!(
        tool.json(&["notices", "show"]).await.unwrap()["state"],
        "none"
    );
    // Each partner has a channel of its own.
    assert_eq!(
        get(&shop.client, "/notices").await.unwrap()["state"],
        "open"
    );
}
