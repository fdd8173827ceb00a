//! Processes, connections and messages fail; orders do not.

use crate::shop::{SOON, Shop, ids, open, verdicts_come};
use anyhow::Result;
use std::{collections::BTreeSet, time::Duration};
use testkit::http;
use testkit::stack::{Stack, Stage};

/// Orders `count` times at once; the ids of all topups.
async fn order_many(
    shop: &Shop,
    name: &str,
    option_id: &str,
    count: usize,
) -> Result<BTreeSet<String>> {
    let id = |number: usize| format!("{name}-{number}");
    let orders = (0..count).map(|number| async move { shop.buy(&id(number), option_id, 1).await });
    let products = futures_util::future::try_join_all(orders).await?;
    Ok(ids(products.iter().flatten()))
}

#[tokio::test]
async fn orders_outlive_nats_and_its_storage() {
    let mut stack = Stack::builder().own_nats().start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let [ready, delayed] = ["ready", "delayed"].map(|name| stack.option(name).unwrap().to_owned());
    let mut topup_ids = order_many(&shop, "before", &ready, 5).await.unwrap();
    // Still in flight when NATS stops.
    topup_ids.extend(order_many(&shop, "on the way", &delayed, 5).await.unwrap());

    stack
        .nats()
        .unwrap()
        .process
        .terminate(Duration::from_secs(10))
        .await
        .unwrap();
    topup_ids.extend(order_many(&shop, "away", &ready, 10).await.unwrap());
    let ingress = stack.process(Stage::Ingress).unwrap();
    let ready_url = http::client().unwrap().get(&ingress.program().ready_url);
    assert_eq!(
        ready_url.send().await.unwrap().status(),
        200,
        "without NATS"
    );
    ingress.terminate(SOON).await.unwrap();
    ingress.start().await.unwrap();
    topup_ids.extend(order_many(&shop, "started", &ready, 5).await.unwrap());

    stack.nats().unwrap().wipe().unwrap();
    stack.nats().unwrap().process.start().await.unwrap();
    assert_eq!(topup_ids.len(), 25);
    shop.delivered(&topup_ids, Duration::from_mins(1))
        .await
        .unwrap();

    // The streams exist again, so this order doesn't wait for a look at due work.
    let after = order_many(&shop, "after", &ready, 5).await.unwrap();
    shop.delivered(&after, Duration::from_secs(8))
        .await
        .unwrap();
    let ledger = stack.ledger().await.unwrap();
    assert_eq!((ledger.purchases, ledger.units), (30, 30));
}

/// The answer waits for the provider's verdict at most for `PLACEMENT_WAIT`.
#[tokio::test]
async fn a_provider_that_hangs_does_not_hold_the_answer() {
    let (mut stack, shop) = open().await;
    verdicts_come(&stack, &shop.client).await.unwrap();
    stack.process(Stage::Sandbox).unwrap().pause().unwrap();
    let answer = shop
        .client
        .order("hangs", &[(stack.option("ready").unwrap(), 1)])
        .await
        .unwrap();
    let topup_ids = ids(&answer.products().unwrap());
    let wait = Duration::from_millis(1900)..Duration::from_secs(4);
    assert!(
        wait.contains(&answer.took),
        "answered after {:?}",
        answer.took
    );
    stack.process(Stage::Sandbox).unwrap().resume().unwrap();
    shop.delivered(&topup_ids, Duration::from_secs(20))
        .await
        .unwrap();
}
