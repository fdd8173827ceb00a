//! Every secret is replaced while orders go on.

use crate::database_away;
use crate::shop::{Shop, fresh, ids, open};
use anyhow::Result;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use testkit::client::{Answer, Client};
use testkit::stack::{Stack, Stage};
use testkit::{esimctl::Esimctl, receiver::Received, settings::MASTER_KEY as OLD, wait};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

const PATIENCE: Duration = Duration::from_secs(30);
const NEW: &str = "second:AQECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

async fn rotate_keys(stack: &Stack, shop: &Shop, overlap: &str) -> Result<(Value, Client)> {
    let partner = shop.partner.partner_id.as_str();
    let rotated: Value = stack
        .esimctl
        .run(&["partner", "rotate", partner, "keys", "--overlap", overlap])
        .await?;
    let text = |field: &str| rotated[field].as_str().unwrap_or_default().to_owned();
    let client = Client::new(&stack.base_url, &text("access_key"), &text("secret_key"))?;
    Ok((rotated, client))
}

/// Orders with keys that end until they are denied.
async fn denied(client: &Client, option_id: &str) -> Result<Answer> {
    wait::until(PATIENCE, "the old keys to be denied", async || {
        let answer = client.order(&fresh("old"), &[(option_id, 1)]).await?;
        Ok((answer.status == 401).then_some(answer))
    })
    .await
}

async fn status(client: &Client, option_id: &str) -> u16 {
    client
        .order(&fresh("order"), &[(option_id, 1)])
        .await
        .unwrap()
        .status
}

#[tokio::test]
async fn both_pairs_of_keys_order_until_the_old_one_ends() {
    let (stack, shop) = open().await;
    let ready = stack.option("ready").unwrap();
    let taken = fresh("taken");
    shop.buy(&taken, ready, 1).await.unwrap();

    let (rotated, new) = rotate_keys(&stack, &shop, "4s").await.unwrap();
    let until =
        OffsetDateTime::parse(rotated["old_keys_until"].as_str().unwrap(), &Rfc3339).unwrap();
    assert_eq!(status(&new, ready).await, 201);
    assert_eq!(status(&shop.client, ready).await, 201);
    // It is one partner, whichever keys it uses.
    let again = new.order(&taken, &[(ready, 1)]).await.unwrap();
    let has_been = json!({"errors": ["External order id has already been taken"]});
    assert_eq!((again.status, again.json().unwrap()), (422, has_been));

    let old = denied(&shop.client, ready).await.unwrap();
    // Ingress counts the rest of the time from before it asked, so that a key never ends late. If
    // the question took a while, because the machine is busy, it asks again. What this process sees
    // later than the end is the time of its own requests.
    let late = runtime::clock::now() - until;
    assert!(
        late > time::Duration::milliseconds(-100) && late < time::Duration::SECOND,
        "denied {late} after the end"
    );
    let mut stranger = shop.partner.clone();
    stranger.access_key = "ak_stranger".into();
    let unknown = stack.client(&stranger).unwrap();
    let unknown = unknown
        .order(&fresh("unknown"), &[(ready, 1)])
        .await
        .unwrap();
    assert_eq!((old.status, &old.body), (unknown.status, &unknown.body));
    assert_eq!(status(&new, ready).await, 201);

    // At once, which is within the second of the refresh.
    let (_, newest) = rotate_keys(&stack, &shop, "0").await.unwrap();
    let began = Instant::now();
    denied(&new, ready).await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(status(&newest, ready).await, 201);

    let (_, last) = rotate_keys(&stack, &shop, "1h").await.unwrap();
    for client in [&newest, &last] {
        assert_eq!(status(client, ready).await, 201);
    }
    let _: Value = stack
        .esimctl
        .run(&["partner", "set", &shop.partner.partner_id, "--disabled"])
        .await
        .unwrap();
    for client in [&newest, &last] {
        denied(client, ready).await.unwrap();
    }
}

#[tokio::test]
async fn old_keys_end_without_the_database() {
    let (stack, mut forwarder) = database_away::start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let ready = stack.option("ready").unwrap();
    let (_, new) = rotate_keys(&stack, &shop, "3s").await.unwrap();
    for client in [&shop.client, &new] {
        assert_eq!(status(client, ready).await, 201);
    }
    forwarder.cut().await;
    denied(&shop.client, ready).await.unwrap();
    assert_eq!(
        status(&new, ready).await,
        500,
        "let in, but it can't be stored"
    );
}

async fn restart(stack: &mut Stack, master_key: &str) -> Result<()> {
    for stage in Stage::OURS {
        let process = stack.process(stage)?;
        process.terminate(PATIENCE).await?;
        let env = &mut process.program_mut().env;
        env.insert("MASTER_KEY".into(), master_key.into());
        process.start().await?;
    }
    Ok(())
}

/// The procedure of docs/operations.md; at its end no process has the old key.
#[tokio::test]
async fn a_master_key_is_replaced_step_by_step() {
    let (mut stack, shop) = open().await;
    let ready = stack.option("ready").unwrap().to_owned();
    let before = ids(&shop.buy(&fresh("before"), &ready, 2).await.unwrap());
    shop.delivered(&before, PATIENCE).await.unwrap();

    restart(&mut stack, &format!("{OLD},{NEW}")).await.unwrap();
    let both = format!("{NEW},{OLD}");
    restart(&mut stack, &both).await.unwrap();
    let settings = [
        ("DATABASE_URL", stack.database.url()),
        ("MASTER_KEY", &both),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let esimctl = Esimctl::new(settings);
    let done: Value = esimctl
        .run(&["master-key", "reencrypt", "--replicas-restarted"])
        .await
        .unwrap();
    // A partner's two secrets and the profiles of its units.
    assert_eq!(
        (&done["reencrypted"], &done["failed"], &done["left"]),
        (&json!(4), &json!([]), &json!(0)),
        "{done}"
    );

    restart(&mut stack, NEW).await.unwrap();
    let partner = shop.partner.partner_id.as_str();
    let resend = [
        "resend",
        "start",
        "--partner",
        partner,
        "--since",
        "1h",
        "--state",
        "delivered",
    ];
    let confirmed = ["--yes", "--reason", "a test"];
    let _: Value = stack
        .esimctl
        .run(&[&resend[..], &confirmed].concat())
        .await
        .unwrap();
    let after = ids(&shop.buy(&fresh("after"), &ready, 1).await.unwrap());
    let received = shop.receiver.wait_for(5, PATIENCE).await.unwrap();
    assert!(received.iter().all(Received::is_valid));
    for unit in before.iter().chain(&after) {
        let told = received.iter().filter(|webhook| webhook.topup_id() == unit);
        assert_eq!(
            told.count(),
            if before.contains(unit) { 2 } else { 1 },
            "{unit}"
        );
    }
}
