//! Messages of an attacker with a stage's own credentials of NATS.

use crate::limits_memory::resident;
use crate::shop::{SOON, fresh, ids, open, verdicts_come};
use anyhow::{Context, Result};
use futures_util::StreamExt;
use serde_json::{Value, json};
use testkit::nats;
use testkit::stack::{Stack, Stage};

/// What forged heartbeats may add to ingress' memory.
const GROWTH: u64 = 32 * 1024 * 1024;

async fn provisioners_client() -> Result<async_nats::Client> {
    nats::connect(&nats::url_of("provisioner")?).await
}

/// Waits until the next job is bought, more than `sold`, then sends a verdict that it is not.
async fn forge_a_refusal(mut jobs: async_nats::Subscriber, stack: &Stack, sold: u64) -> Result<()> {
    let job = jobs.next().await.context("no job")?;
    let job: Value = serde_json::from_slice(&job.payload)?;
    let placement_id = job["placements"][0]["placement_id"].as_str().context("no placement")?;
    let verdict_to = job["verdict_to"].as_str().context("nobody waits")?.to_owned();
    let mut database = stack.database.connect().await?;
    let order_id: String = sqlx::query_scalar("SELECT order_id::text FROM placements WHERE placement_id::text = $1")
        .bind(placement_id)
        .fetch_one(&mut database)
        .await?;
    testkit::wait::until(SOON, "the purchase", async || Ok((stack.ledger().await?.purchases > sold).then_some(())))
        .await?;
    let forged = json!({
        "type": "verdicts.v2", "release_to": format!("{}topup.release.attacker", stack.prefix),
        "verdicts": [{"order_id": order_id, "placement_id": placement_id, "said": "refused"}],
    });
    let client = provisioners_client().await?;
    client.publish(verdict_to, forged.to_string().into()).await?;
    Ok(client.flush().await?)
}

/// The order's placement is bought, but its provider has not responded yet.
#[tokio::test]
async fn a_forged_verdict_makes_no_422_for_what_is_bought() {
    let (stack, shop) = open().await;
    verdicts_come(&stack, &shop.client).await.unwrap();
    let sold = stack.ledger().await.unwrap().purchases;
    let operator = nats::connect(&std::env::var("TEST_NATS_URL").unwrap()).await.unwrap();
    let jobs = operator.subscribe(format!("{}topup.job.sandbox", stack.prefix)).await.unwrap();
    operator.flush().await.unwrap();
    let id = fresh("forged");
    let items = [(stack.option("slow").unwrap(), 1)];
    let (answer, forged) = tokio::join!(shop.client.order(&id, &items), forge_a_refusal(jobs, &stack, sold));
    forged.unwrap();
    shop.delivered(&ids(&answer.unwrap().products().unwrap()), SOON).await.unwrap();
    assert_eq!(stack.ledger().await.unwrap().purchases, sold + 1);
}

/// Heartbeats of invented providers, and of invented provisioners of a known one.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn forged_heartbeats_do_not_fill_ingress_memory() {
    let (mut stack, shop) = open().await;
    verdicts_come(&stack, &shop.client).await.unwrap();
    let pid = stack.process(Stage::Ingress).unwrap().pid().unwrap();
    let before = resident(pid).unwrap();
    let client = provisioners_client().await.unwrap();
    let lanes: Vec<Value> = (0..500).map(|lane| json!({"lane": format!("lane-{lane:050}"), "verdict_ms": 1})).collect();
    for number in 0..1_000 {
        let known = number % 2 == 0;
        let provider = if known { "sandbox".to_owned() } else { format!("invented{number}") };
        let heartbeat = json!({
            "type": "heartbeat.v1", "provider": provider, "instance": format!("forged{number}"),
            "verdict_ms": 1, "lanes": lanes,
        });
        let subject = format!("{}topup.heartbeat.{provider}", stack.prefix);
        client.publish(subject, heartbeat.to_string().into()).await.unwrap();
    }
    client.flush().await.unwrap();
    // Ingress has passed the flood once it hears the real provisioner again.
    verdicts_come(&stack, &shop.client).await.unwrap();
    let grown = resident(pid).unwrap() - before;
    println!("grown by {} MiB", grown >> 20);
    assert!(grown < GROWTH, "{} MiB", grown >> 20);
}
