//! Several provisioners work on one order: one buys, and another one collects.

use crate::shop::{Shop, fresh, ids, size, verdicts_come};
use anyhow::Result;
use futures_util::StreamExt;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};
use testkit::stack::{Stack, Stage};

/// Orders `count` units whose profiles come late, and returns the times from each 201 to its
/// webhook, the shortest first.
async fn delays(provisioners: usize, count: u64) -> Result<Vec<Duration>> {
    const AT_ONCE: usize = 20;
    let builder = Stack::builder().replicas(Stage::Provisioner, provisioners);
    let stack = builder.start().await?;
    let shop = Shop::open(&stack).await?;
    let option = stack.option("delayed")?;
    // Only an answer that waits for a verdict makes the provisioners report to ingress.
    verdicts_come(&stack, &shop.client).await?;
    let orders = (0..count).map(async |_| {
        let products = shop.buy(&fresh("delayed"), option, 1).await?;
        anyhow::Ok((ids(&products), Instant::now()))
    });
    let orders: Vec<Result<(BTreeSet<String>, Instant)>> = futures_util::stream::iter(orders)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let mut answered = HashMap::new();
    for order in orders {
        let (topup_ids, at) = order?;
        answered.extend(topup_ids.into_iter().map(|topup_id| (topup_id, at)));
    }
    let received = shop
        .delivered(&answered.keys().cloned().collect(), Duration::from_mins(2))
        .await?;
    let mut delays: Vec<Duration> = received
        .iter()
        .map(|webhook| webhook.at - answered[webhook.topup_id()])
        .collect();
    delays.sort_unstable();
    Ok(delays)
}

/// `DELAYED` orders. Ingress still holds the readiness events of an order whose profile comes
/// within 6 s of its creation (`answer_by`), so a provisioner that only collects must report to
/// ingress, too. If it published the event after `answer_by`, half of the webhooks would be late.
#[tokio::test]
async fn a_profile_that_another_provisioner_collects_is_delivered_as_soon() {
    let orders = size("DELAYED", 60);
    let mut medians = Vec::new();
    for provisioners in [1, 3] {
        let delays = delays(provisioners, orders).await.unwrap();
        let at = |percent: usize| delays[(delays.len() - 1) * percent / 100];
        let [median, p95, longest] = [50, 95, 100].map(at);
        println!(
            "{provisioners} provisioners, {} webhooks: p50 {median:?}, p95 {p95:?}, at most \
             {longest:?}",
            delays.len()
        );
        medians.push(median);
    }
    assert!(
        medians[1] < medians[0] + Duration::from_secs(2),
        "with one and with three provisioners: {medians:?}"
    );
}
