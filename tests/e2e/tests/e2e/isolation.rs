//! One bad part does not stop the others: options that hang or fail beside good ones.

use crate::shop::{Shop, fresh};
use anyhow::{Result, ensure};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use testkit::stack::{Stack, Stage};
use testkit::{client::Client, receiver::Receiver};

/// How long orders are sent.
const SENDING: Duration = Duration::from_secs(15);
/// The time from the order to its webhook.
const IN_TIME: Duration = Duration::from_secs(5);

/// Sends orders of an option at fixed times, whatever the responses do. Returns the topups with the
/// times at which their orders were sent.
async fn send(client: &Client, option: &str, per_second: u32) -> Vec<(String, Instant)> {
    let began = Instant::now();
    let interval = Duration::from_secs(1) / per_second;
    let orders = (0..per_second * u32::try_from(SENDING.as_secs()).unwrap()).map(async |number| {
        let at = began + interval * number;
        tokio::time::sleep_until(at.into()).await;
        let products = client
            .order(&fresh("isolated"), &[(option, 1)])
            .await?
            .products()?;
        anyhow::Ok((products[0].topup_id.clone(), at))
    });
    futures_util::future::join_all(orders)
        .await
        .into_iter()
        .filter_map(Result::ok)
        .collect()
}

/// Good orders, 10 per second, beside others; at least 99 % must be delivered in time.
async fn good_beside(stack: &Stack, good: &Shop, bad: &[(&str, u32)]) -> Result<()> {
    let sink = Receiver::start().await?;
    let other = stack
        .create_partner("sandbox", Some(&sink.url("/bad")))
        .await?;
    let other = stack.client(&other)?;
    let ready = stack.option("ready")?;
    let disturbing = bad
        .iter()
        .map(async |(name, rate)| send(&other, stack.option(name).unwrap(), *rate).await);
    let disturbing = futures_util::future::join_all(disturbing);
    let (sent, _) = tokio::join!(send(&good.client, ready, 10), disturbing);
    ensure!(
        sent.len() >= 149,
        "only {} good orders were accepted",
        sent.len()
    );
    // The rest is judged below, once it is late.
    let _ = good.receiver.wait_for(sent.len(), IN_TIME).await;
    let received = good.receiver.received();
    let arrived: HashMap<&str, Instant> = received
        .iter()
        .rev()
        .map(|one| (one.topup_id(), one.at))
        .collect();
    let late: Vec<_> = sent
        .iter()
        .filter(|(topup, at)| {
            arrived
                .get(topup.as_str())
                .is_none_or(|arrived| *arrived - *at > IN_TIME)
        })
        .collect();
    ensure!(
        late.len() * 100 <= sent.len(),
        "{} of {} good webhooks were late beside {bad:?}",
        late.len(),
        sent.len()
    );
    Ok(())
}

/// `faults` are those of the whole provider.
async fn hang_or_fail_beside_good_ones(faults: &'static str) {
    let stack = Stack::builder()
        .replicas(Stage::Provisioner, 2)
        .start()
        .await
        .unwrap();
    let good = Shop::open(&stack).await.unwrap();
    stack.set_faults(faults).await.unwrap();
    good_beside(
        &stack,
        &good,
        &[("bought-then-silent", 5), ("flapping", 10), ("slow", 20)],
    )
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_that_hang_or_fail_leave_the_others_alone() {
    hang_or_fail_beside_good_ones("{}").await;
}

/// Each call takes as long as at a real provider.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_leave_the_others_alone_at_a_slow_provider_too() {
    hang_or_fail_beside_good_ones(r#"{"latency_ms": 1000}"#).await;
}
