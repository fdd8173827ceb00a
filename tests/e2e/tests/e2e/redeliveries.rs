//! Missed webhooks are listed, and sent again by one request: at the pace of the endpoint, without
//! delaying other partners, and whatever process dies meanwhile.

use crate::esim_partner::Tool;
use crate::partner::{API, ask, assert_refused, get, header};
use crate::shop::{PATH, SOON, Shop, fresh, ids, size};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::client::{Answer, Client};
use testkit::receiver::{self, Received};
use testkit::stack::{Stack, Stage};
use testkit::wait;

const REDELIVER: &str = "/webhooks/redeliver";
/// How many webhooks of a partner are due at a time in these tests.
const DUE: usize = 20;

/// A stack in which an endpoint that responds 410 is not blocked, so that its webhooks are
/// exhausted at once.
async fn stack() -> Result<Stack> {
    stack_with(DUE as u64).await
}

/// The same with another number of webhooks that are due at a time.
async fn stack_with(due: u64) -> Result<Stack> {
    Stack::builder()
        .env(Stage::Ingress, "REDELIVER_INTERVAL", "1s")
        .env(Stage::Notifier, "ENDPOINT_FAILURES", "0")
        .env(Stage::Notifier, "--resend-due", &due.to_string())
        .start()
        .await
}

/// A request whose signature covers its body.
async fn post(client: &Client, path: &str, body: &Value) -> Answer {
    let request = client.post(body.to_string()).whole();
    request.path(&format!("{API}{path}")).send().await.unwrap()
}

/// The names of all webhooks of a list, read by pages.
async fn listed(client: &Client, query: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = get(client, &format!("/webhooks?{query}{cursor}")).await?;
        let webhooks = page["webhooks"].as_array().context("webhooks")?;
        let ids = webhooks.iter().filter_map(|one| one["webhook_id"].as_str());
        found.extend(ids.map(str::to_owned));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(found),
        }
    }
}

/// Orders units whose webhooks the endpoint refuses for good, until all are exhausted. Returns
/// their topups.
async fn miss(stack: &Stack, shop: &Shop, units: u32) -> BTreeSet<String> {
    shop.receiver
        .answer(PATH, |_| receiver::Answer::status(410));
    let ready = stack.option("ready").unwrap();
    let mut missed = BTreeSet::new();
    for first in (0..units).step_by(500) {
        let qty = (units - first).min(500);
        missed.extend(ids(&shop.buy(&fresh("missed"), ready, qty).await.unwrap()));
    }
    let exhausted = async || {
        let found = listed(&shop.client, "state=exhausted&limit=100").await?;
        Ok((found.len() == missed.len()).then_some(found))
    };
    let found = wait::soon("all webhooks to be exhausted", exhausted).await;
    assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), missed);
    missed
}

/// Waits until so many webhooks are exhausted and so many delivered.
async fn in_states(client: &Client, exhausted: usize, delivered: usize) {
    let reached = async || {
        let left = listed(client, "state=exhausted&limit=100").await?;
        let done = listed(client, "state=delivered&limit=100").await?;
        Ok((left.len() == exhausted && done.len() == delivered).then_some(()))
    };
    wait::soon("the states of the webhooks", reached).await;
}

/// The longest time from an order to its webhook, over orders one after the other until `ended`.
async fn slowest_until(stack: &Stack, shop: &Shop, ended: &AtomicBool) -> Duration {
    let ready = stack.option("ready").unwrap();
    let mut slowest = Duration::ZERO;
    while !ended.load(Ordering::Relaxed) {
        let began = Instant::now();
        let bought = shop.buy(&fresh("beside"), ready, 1).await.unwrap();
        shop.delivered(&ids(&bought), SOON).await.unwrap();
        slowest = slowest.max(began.elapsed());
    }
    slowest
}

/// How often each topup's webhook came.
fn counts(received: &[Received]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for one in received {
        *counts.entry(one.topup_id().to_owned()).or_default() += 1;
    }
    counts
}

/// `MISSED` is the number of webhooks.
#[tokio::test]
async fn one_command_brings_back_what_a_dead_endpoint_missed() {
    let units = u32::try_from(size("MISSED", 300)).expect("a small number");
    // More webhooks are sent in larger steps, so that they take as long.
    let stack = stack_with((u64::from(units) / 15).max(DUE as u64))
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let other = Shop::open(&stack).await.unwrap();
    let missed = miss(&stack, &shop, units).await;
    assert_eq!(
        get(&shop.client, "/webhook").await.unwrap()["exhausted"],
        units,
        "the count is that of the list"
    );
    let page = get(&shop.client, "/webhooks?limit=1").await.unwrap();
    let last = &page["webhooks"][0]["last_attempt"];
    assert_eq!(
        (&last["status"], &last["attempt"]),
        (&json!(410), &json!(1)),
        "{page}"
    );
    let before = shop.receiver.count();

    // The endpoint works again, and takes its time.
    shop.receiver.answer(PATH, |_| receiver::Answer {
        status: 200,
        delay: Duration::from_millis(100),
    });
    let tool = Tool::login(&stack.base_url, &shop.partner).await.unwrap();
    let redelivering = async {
        let arguments = [
            "webhooks",
            "redeliver",
            "--since",
            "2h",
            "--state",
            "exhausted",
        ];
        tool.run(&arguments).await.unwrap()
    };
    // Meanwhile another partner's webhooks come as ever.
    let ended = AtomicBool::new(false);
    let (output, slowest) = tokio::join!(
        async {
            let output = redelivering.await;
            ended.store(true, Ordering::Relaxed);
            output
        },
        slowest_until(&stack, &other, &ended)
    );
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{progress}");
    assert!(
        progress.contains(&format!("{units} of {units} webhooks")),
        "{progress}"
    );
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&shown["status"], &shown["matching"], &shown["redelivered"]),
        (&json!("ended"), &json!(units), &json!(units)),
        "{shown}"
    );
    assert!(
        slowest < Duration::from_secs(5),
        "another partner's webhook took {slowest:?}"
    );

    let again = |received: &[Received]| counts(&received[before..]).len() == missed.len();
    let received = shop
        .receiver
        .wait_until(SOON, "all webhooks again", again)
        .await
        .unwrap();
    for webhook in &received[before..] {
        assert!(
            webhook.is_valid() && missed.contains(webhook.topup_id()),
            "{webhook:?}"
        );
    }
    assert!(
        counts(&received[before..])
            .values()
            .all(|count| *count == 1)
    );
    in_states(&shop.client, 0, missed.len()).await;
    let list = ["action", "list", "--by", "partner"];
    let actions: Value = stack.esimctl.run(&list).await.unwrap();
    assert!(
        actions.to_string().contains("webhooks redeliver"),
        "{actions}"
    );
    let found: Value = stack.esimctl.run(&["resend", "list"]).await.unwrap();
    let own = found.as_array().unwrap().iter();
    let own = own.filter(|one| one["partner_id"] == shop.partner.partner_id.as_str());
    let resent: Vec<&Value> = own.map(|one| &one["resent"]).collect();
    assert_eq!(resent, [units], "{found}");
}

#[tokio::test]
async fn a_redelivery_survives_the_death_of_every_process() {
    const UNITS: u32 = 200;
    let mut stack = stack().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let missed = miss(&stack, &shop, UNITS).await;
    let before = shop.receiver.count();
    let slow = Arc::new(AtomicBool::new(true));
    let delayed = Arc::clone(&slow);
    shop.receiver.answer(PATH, move |_| receiver::Answer {
        status: 200,
        delay: Duration::from_millis(if delayed.load(Ordering::Relaxed) {
            200
        } else {
            0
        }),
    });
    let since = json!({"since": "2020-01-01T00:00:00Z", "state": "exhausted"});
    let begun = post(&shop.client, REDELIVER, &since).await;
    assert_eq!(begun.status, 202);
    let mut kills = 0;
    for (stage, arrived) in [
        (Stage::Notifier, 20),
        (Stage::Ingress, 60),
        (Stage::Notifier, 80),
        (Stage::Notifier, 120),
    ] {
        shop.receiver
            .wait_for(before + arrived, SOON)
            .await
            .unwrap();
        let process = stack.process(stage).unwrap();
        process.kill().await.unwrap();
        process.start().await.unwrap();
        kills += usize::from(stage == Stage::Notifier);
    }
    slow.store(false, Ordering::Relaxed);
    let all = |received: &[Received]| counts(&received[before..]).len() == missed.len();
    let minute = Duration::from_mins(2);
    shop.receiver
        .wait_until(minute, "all webhooks again", all)
        .await
        .unwrap();
    let path = header(&begun, "location")
        .strip_prefix(API)
        .unwrap()
        .to_owned();
    let ended = async || {
        let seen = get(&shop.client, &path).await?;
        Ok((seen["status"] == "ended").then_some(seen))
    };
    let seen = wait::until(minute, "the end of the redelivery", ended)
        .await
        .unwrap();
    assert_eq!(seen["redelivered"], UNITS, "nothing is handed over twice");
    // What was in flight when a notifier died may come twice.
    let received = shop.receiver.received();
    let repeated = received.len() - before - missed.len();
    assert!(repeated <= kills * DUE, "{repeated} were repeated");
}

#[tokio::test]
async fn a_redelivery_needs_a_signed_body_a_beginning_and_a_url() {
    let stack = stack().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let wanted = json!({"since": "2020-01-01T00:00:00Z"});
    // A signature that does not cover the body would also be valid for another one.
    let uncovered = shop.client.post(wanted.to_string());
    let path = format!("{API}{REDELIVER}");
    let answer = uncovered.path(&path).send().await.unwrap();
    assert_refused(&answer, 401, "content_sha256_missing");
    for (body, code) in [
        (json!({}), "time_invalid; parameter=since"),
        (
            json!({"since": "now", "until": 1, "state": "lost"}),
            "time_invalid; parameter=since, time_invalid; parameter=until, webhook_state_invalid; parameter=state",
        ),
    ] {
        assert_refused(&post(&shop.client, REDELIVER, &body).await, 422, code);
    }
    // Without a URL there is nowhere to send anything.
    let homeless = stack.create_partner("sandbox", None).await.unwrap();
    let homeless = stack.client(&homeless).unwrap();
    assert_refused(
        &post(&homeless, REDELIVER, &wanted).await,
        409,
        "webhook_url_missing",
    );
    assert_eq!(
        get(&shop.client, REDELIVER).await.unwrap(),
        json!({"redeliveries": []})
    );
}

#[tokio::test]
async fn a_redelivery_runs_alone_for_its_partner_only_and_can_be_cancelled() {
    let stack = stack().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let stranger = Shop::open(&stack).await.unwrap();
    let missed = miss(&stack, &shop, 60).await;
    let wanted = json!({"since": "2020-01-01T00:00:00Z"});

    // The endpoint is paused, so the redelivery waits.
    let key = &shop.partner.access_key;
    let _: Value = stack
        .esimctl
        .run(&["endpoint", "pause", key])
        .await
        .unwrap();
    let begun = post(&shop.client, REDELIVER, &wanted).await;
    assert_eq!(begun.status, 202);
    let running = begun.json().unwrap();
    assert_eq!(
        (&running["status"], &running["matching"]),
        (&json!("running"), &json!(60))
    );
    let location = header(&begun, "location").to_owned();
    let second = post(&shop.client, REDELIVER, &wanted).await;
    assert_refused(&second, 409, "redelivery_running");
    assert_eq!(header(&second, "location"), location);
    let id = running["redelivery_id"].as_str().unwrap();
    assert!(
        second.json().unwrap()["error"]
            .as_str()
            .unwrap()
            .contains(id)
    );
    let due = async || {
        let seen = get(&shop.client, location.strip_prefix(API).unwrap()).await?;
        Ok((seen["redelivered"] == DUE).then_some(()))
    };
    wait::soon("as many to be due as may be", due).await;

    // For another partner its id is unknown, and its own list is empty.
    let unknown = format!("{REDELIVER}/{}", uuid::Uuid::now_v7());
    for method in ["GET", "DELETE"] {
        let theirs = ask(&stranger.client, method, &format!("{REDELIVER}/{id}"))
            .await
            .unwrap();
        let unknown = ask(&stranger.client, method, &unknown).await.unwrap();
        assert_eq!(
            (theirs.status, &theirs.body),
            (404, &unknown.body),
            "{method}"
        );
    }
    assert_eq!(
        get(&stranger.client, REDELIVER).await.unwrap(),
        json!({"redeliveries": []})
    );
    assert!(
        listed(&stranger.client, "limit=100")
            .await
            .unwrap()
            .is_empty()
    );

    for _ in 0..2 {
        let cancelled = ask(&shop.client, "DELETE", &format!("{REDELIVER}/{id}"))
            .await
            .unwrap();
        let seen = cancelled.json().unwrap();
        assert_eq!(
            (cancelled.status, &seen["status"]),
            (200, &json!("cancelled")),
            "{seen}"
        );
    }
    shop.receiver
        .answer(PATH, |_| receiver::Answer::status(200));
    let before = shop.receiver.count();
    let _: Value = stack
        .esimctl
        .run(&["endpoint", "resume", key])
        .await
        .unwrap();
    shop.receiver.wait_for(before + DUE, SOON).await.unwrap();
    // The rest stays where it was, until it is asked for again.
    in_states(&shop.client, missed.len() - DUE, DUE).await;
    let list = get(&shop.client, &format!("{REDELIVER}?limit=1"))
        .await
        .unwrap();
    assert_eq!(list["redeliveries"][0]["redelivery_id"], id);
    let again =
        async || Ok((post(&shop.client, REDELIVER, &wanted).await.status == 202).then_some(()));
    wait::soon("another redelivery", again).await;
    let all = |received: &[Received]| counts(&received[before..]).len() == missed.len();
    shop.receiver
        .wait_until(SOON, "all webhooks", all)
        .await
        .unwrap();
}
