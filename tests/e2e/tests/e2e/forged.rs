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
    let placement_id = job["placements"][0]["placement_id"]
        .as_str()
        .context("no placement")?;
    let mut database = stack.database.connect().await?;
    let order = "SELECT order_id::text, replace(answering::text, '-', '') FROM placements JOIN orders USING (order_id)
                 WHERE placement_id::text = $1";
    let order: (String, Option<String>) = sqlx::query_as(order)
        .bind(placement_id)
        .fetch_one(&mut database)
        .await?;
    let (order_id, answering) = order;
    let ingress = answering.context("nobody waits")?;
    testkit::wait::until(SOON, "the purchase", async || {
        Ok((stack.ledger().await?.purchases > sold).then_some(()))
    })
    .await?;
    let forged = json!({
        "type": "topup.answer.v1",
        "verdicts": [{"order_id": order_id, "placement_id": placement_id, "verdict": "rejected"}],
    });
    let client = provisioners_client().await?;
    client
        .publish(
            format!("{}topup.answer.{ingress}", stack.prefix),
            forged.to_string().into(),
        )
        .await?;
    Ok(client.flush().await?)
}

/// The order's placement is bought, but its provider has not responded yet.
#[tokio::test]
async fn a_forged_verdict_makes_no_422_for_what_is_bought() {
    let (stack, shop) = open().await;
    verdicts_come(&stack, &shop.client).await.unwrap();
    let sold = stack.ledger().await.unwrap().purchases;
    let operator = nats::connect(&std::env::var("TEST_NATS_URL").unwrap())
        .await
        .unwrap();
    let jobs = operator
        .subscribe(format!("{}topup.job.sandbox", stack.prefix))
        .await
        .unwrap();
    operator.flush().await.unwrap();
    let id = fresh("forged");
    let items = [(stack.option("slow").unwrap(), 1)];
    let (answer, forged) = tokio::join!(
        shop.client.order(&id, &items),
        forge_a_refusal(jobs, &stack, sold)
    );
    forged.unwrap();
    shop.delivered(&ids(&answer.unwrap().products().unwrap()), SOON)
        .await
        .unwrap();
    assert_eq!(stack.ledger().await.unwrap().purchases, sold + 1);
}

/// Heartbeats of invented providers.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn forged_heartbeats_do_not_fill_ingress_memory() {
    let (mut stack, shop) = open().await;
    verdicts_come(&stack, &shop.client).await.unwrap();
    let pid = stack.process(Stage::Ingress).unwrap().pid().unwrap();
    let before = resident(pid).unwrap();
    let client = provisioners_client().await.unwrap();
    // A name of nearly the length that ingress still reads.
    let long = "x".repeat(40_000);
    for number in 0..1_000 {
        let heartbeat =
            json!({"type": "topup.heartbeat.v1", "provider": format!("invented-{number}-{long}")});
        let subject = format!("{}topup.heartbeat.invented-{number}", stack.prefix);
        client
            .publish(subject, heartbeat.to_string().into())
            .await
            .unwrap();
    }
    client.flush().await.unwrap();
    // Ingress has passed the flood once it hears the real provisioner again.
    verdicts_come(&stack, &shop.client).await.unwrap();
    let grown = resident(pid).unwrap() - before;
    println!("grown by {} MiB", grown >> 20);
    assert!(grown < GROWTH, "{} MiB", grown >> 20);
}
