//! Processes, connections and messages fail; orders do not.

use crate::shop::{Shop, fresh, ids, show, stored_ids, verdicts_come};
use anyhow::{Context, Result};
use async_nats::jetstream;
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;
use testkit::raw;
use testkit::stack::{Stack, Stage};
use testkit::{http, wait};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const SOON: Duration = Duration::from_secs(30);

/// Whether a stage reports that it is ready.
async fn is_ready(stack: &mut Stack, stage: Stage) -> Result<bool> {
    let url = stack.process(stage)?.program().ready_url.clone();
    Ok(http::client()?.get(url).send().await?.status().is_success())
}

/// Orders `count` times at once; the ids of all topups.
async fn order_many(shop: &Shop, name: &str, option_id: &str, count: usize) -> Result<BTreeSet<String>> {
    let id = |number: usize| format!("{name}-{number}");
    let orders = (0..count).map(|number| async move { shop.buy(&id(number), option_id, 1).await });
    let products = futures_util::future::try_join_all(orders).await?;
    Ok(ids(products.iter().flatten()))
}

#[tokio::test]
async fn orders_outlive_nats_and_its_storage() {
    let mut stack = Stack::builder().own_nats().start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let (ready, delayed) = (
        stack.option("ready").unwrap().to_owned(),
        stack.option("delayed").unwrap().to_owned(),
    );
    let mut topup_ids = order_many(&shop, "before", &ready, 5).await.unwrap();
    // Still in flight when NATS stops.
    topup_ids.extend(order_many(&shop, "on the way", &delayed, 5).await.unwrap());

    stack.nats().unwrap().stop().await.unwrap();
    topup_ids.extend(order_many(&shop, "away", &ready, 10).await.unwrap());
    assert!(
        is_ready(&mut stack, Stage::Ingress).await.unwrap(),
        "ingress is ready without NATS"
    );
    let ingress = stack.process(Stage::Ingress).unwrap();
    ingress.terminate(SOON).await.unwrap();
    ingress
        .start()
        .await
        .context("ingress starts without NATS")
        .unwrap();
    topup_ids.extend(order_many(&shop, "started", &ready, 5).await.unwrap());

    stack.nats().unwrap().wipe().unwrap();
    stack.nats().unwrap().start_again().await.unwrap();
    assert_eq!(topup_ids.len(), 25);
    shop.delivered(&topup_ids, Duration::from_mins(1)).await.unwrap();

    // The streams exist again, so this order doesn't wait for redrive.
    let after = order_many(&shop, "after", &ready, 5).await.unwrap();
    shop.delivered(&after, Duration::from_secs(8)).await.unwrap();
    let ledger = stack.ledger().await.unwrap();
    assert_eq!((ledger.purchases, ledger.units), (30, 30));
}

/// Sends an order; the connection is still waiting for the answer.
async fn send_only(stack: &Stack, shop: &Shop, external_order_id: &str) -> Result<TcpStream> {
    let items = [(stack.option("ready")?, 1)];
    let body = testkit::client::order(external_order_id, &items).to_string();
    let mut stream = raw::connect(&stack.base_url).await?;
    stream
        .write_all(&raw::create_order(&shop.partner, body.as_bytes())?)
        .await?;
    Ok(stream)
}

#[tokio::test]
async fn a_client_that_hangs_up_still_gets_its_webhooks() {
    const CLIENTS: usize = 40;
    let mut stack = Stack::start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    // Until the provider answers, orders are stored but not answered.
    verdicts_come(&stack, &shop.client).await.unwrap();
    stack.process(Stage::Sandbox).unwrap().pause().unwrap();
    let before = stored_ids(&stack).await.unwrap().len();
    let ids: Vec<String> = (0..CLIENTS).map(|number| format!("waits {number}")).collect();
    let sending = ids.iter().map(|id| send_only(&stack, &shop, id));
    let waiting = futures_util::future::try_join_all(sending).await.unwrap();
    let all = async || Ok((stored_ids(&stack).await?.len() == before + CLIENTS).then_some(()));
    wait::soon("the orders to be stored", all).await;
    drop(waiting);
    stack.process(Stage::Sandbox).unwrap().resume().unwrap();
    shop.receiver
        .wait_for(CLIENTS, Duration::from_mins(1))
        .await
        .unwrap();

    // After an immediate hang-up an order is stored or not. A stopping ingress finishes its requests, so
    // after its end the stored orders are final.
    let ids: Vec<String> = (0..CLIENTS).map(|number| format!("leaves {number}")).collect();
    let sending = ids.iter().map(|id| send_only(&stack, &shop, id));
    drop(futures_util::future::try_join_all(sending).await.unwrap());
    let status = stack
        .process(Stage::Ingress)
        .unwrap()
        .terminate(SOON)
        .await
        .unwrap();
    assert!(status.success(), "ingress ended with {status}");
    let topup_ids = stored_ids(&stack).await.unwrap();
    println!("{} of {CLIENTS} were stored", topup_ids.len() - before - CLIENTS);
    let bought = topup_ids.len() - before;
    let received = shop
        .receiver
        .wait_for(bought, Duration::from_mins(1))
        .await
        .unwrap();
    assert_eq!(received.len(), bought);
}

#[tokio::test]
async fn a_provisioner_that_is_killed_buys_nothing_twice() {
    const ORDERS: usize = 200;
    let settings = [("SETTLE", "6s"), ("PROVIDER_TIMEOUT", "2s")];
    let builder = Stack::builder().env(Stage::Ingress, "PLACEMENT_WAIT", "0");
    let builder = settings.iter().fold(builder, |builder, (name, value)| {
        builder.env(Stage::Provisioner, name, value)
    });
    let mut stack = builder.start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let delayed = stack.option("delayed").unwrap().to_owned();
    // From now on ingress knows the partner, however many orders come at once.
    let mut topup_ids = order_many(&shop, "first", &delayed, 1).await.unwrap();
    let killing = async {
        let begun = async || Ok((stack.ledger().await?.purchases >= 10).then_some(()));
        wait::until(SOON, "purchases", begun).await?;
        stack.process(Stage::Provisioner)?.kill().await?;
        Ok(stack.ledger().await?.purchases)
    };
    let (ordered, bought): (_, Result<u64>) =
        tokio::join!(order_many(&shop, "killed", &delayed, ORDERS), killing);
    topup_ids.extend(ordered.unwrap());
    println!(
        "killed after {} of {} purchases",
        bought.unwrap(),
        topup_ids.len()
    );
    stack.process(Stage::Provisioner).unwrap().start().await.unwrap();

    shop.delivered(&topup_ids, Duration::from_secs(90)).await.unwrap();
    let ledger = stack.ledger().await.unwrap();
    let repeated: Vec<_> = ledger
        .orders
        .iter()
        .filter(|order| order.purchased_times != 1 || order.units != 1)
        .collect();
    assert!(repeated.is_empty(), "{repeated:?}");
    assert_eq!(ledger.purchases, u64::try_from(ORDERS + 1).unwrap());
}

#[tokio::test]
async fn messages_that_nobody_can_read_are_put_aside_and_block_nothing() {
    let stack = Stack::start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    // Once an order has gone through, streams and consumers are there.
    let ready = stack.option("ready").unwrap();
    let first = order_many(&shop, "first", ready, 1).await.unwrap();
    shop.delivered(&first, SOON).await.unwrap();

    let nats = testkit::nats::connect(&std::env::var("TEST_NATS_URL").unwrap())
        .await
        .unwrap();
    let jetstream = jetstream::new(nats);
    let prefix = &stack.prefix;
    let unreadable = [
        (format!("{prefix}topup.job.sandbox"), "not JSON"),
        (
            format!("{prefix}topup.job.sandbox"),
            r#"{"type":"topup.job.v99"}"#,
        ),
        (
            format!("{prefix}topup.ready.{}", shop.partner.partner_id),
            "\u{0}",
        ),
        (format!("{prefix}topup.ready.nobody"), "{}"),
    ];
    for (subject, payload) in &unreadable {
        let sent = jetstream
            .publish(subject.clone(), (*payload).into())
            .await
            .unwrap();
        sent.await.unwrap();
    }
    let second = order_many(&shop, "second", ready, 5).await.unwrap();
    shop.delivered(&second, Duration::from_secs(8)).await.unwrap();

    let dead = jetstream.get_stream(format!("{prefix}TOPUP_DEAD")).await.unwrap();
    let put_aside = async || {
        let count = dead.get_info().await?.state.messages;
        Ok((count == u64::try_from(unreadable.len())?).then_some(()))
    };
    wait::soon("the unreadable messages in TOPUP_DEAD", put_aside).await;
    let mut kept = BTreeSet::new();
    for sequence in 1..=4 {
        let message = dead.get_raw_message(sequence).await.unwrap();
        let subject = message.headers.get("Dead-Subject").unwrap().to_string();
        kept.insert((subject, String::from_utf8(message.payload.to_vec()).unwrap()));
    }
    let sent = unreadable.map(|(subject, payload)| (subject, payload.to_owned()));
    assert_eq!(kept, BTreeSet::from(sent));
    for name in ["TOPUP_JOBS", "TOPUP_READY"] {
        let stream = jetstream.get_stream(format!("{prefix}{name}")).await.unwrap();
        let empty = async || Ok((stream.get_info().await?.state.messages == 0).then_some(()));
        wait::soon(&format!("{name} to be empty"), empty).await;
    }
}

/// Every answered order is delivered; sending an unanswered one again gives a definite result.
#[tokio::test]
async fn an_ingress_that_is_killed_loses_no_order_that_it_answered() {
    let mut stack = Stack::start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let ready = stack.option("ready").unwrap().to_owned();
    verdicts_come(&stack, &shop.client).await.unwrap();
    let external_ids: Vec<String> = (0..150).map(|_| fresh("killed")).collect();
    let items = [(ready.as_str(), 1)];
    let ordering =
        futures_util::future::join_all(external_ids.iter().map(|id| shop.client.order(id, &items)));
    let killing = async {
        shop.receiver.wait_for(5, SOON).await?;
        let ingress = stack.process(Stage::Ingress)?;
        ingress.kill().await?;
        ingress.start().await
    };
    let (answers, killed) = tokio::join!(ordering, killing);
    killed.unwrap();

    let mut promised = BTreeSet::new();
    let taken = json!({"errors": ["External order id has already been taken"]});
    for (external_order_id, answer) in external_ids.iter().zip(answers) {
        // An order without an answer is stored or not; a second request shows which.
        let answer = match answer {
            Ok(answer) => answer,
            Err(_) => shop.client.order(external_order_id, &items).await.unwrap(),
        };
        match answer.status {
            201 => promised.extend(ids(&answer.products().unwrap())),
            _ => assert_eq!((answer.status, answer.json().unwrap()), (422, taken.clone())),
        }
    }
    println!("{} of {} were answered", promised.len(), external_ids.len());
    let received = shop
        .receiver
        .wait_for(external_ids.len(), Duration::from_mins(1))
        .await
        .unwrap();
    let told: BTreeSet<String> = received
        .iter()
        .map(|webhook| webhook.topup_id().to_owned())
        .collect();
    assert!(promised.is_subset(&told));
    assert_eq!(told.len(), external_ids.len());
    let ledger = stack.ledger().await.unwrap();
    assert_eq!(ledger.purchases, u64::try_from(external_ids.len()).unwrap());
}

/// The answer waits for the provider's verdict at most for `PLACEMENT_WAIT`.
#[tokio::test]
async fn a_provider_that_hangs_does_not_hold_the_answer() {
    let mut stack = Stack::start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    verdicts_come(&stack, &shop.client).await.unwrap();
    stack.process(Stage::Sandbox).unwrap().pause().unwrap();
    let items = [(stack.option("ready").unwrap(), 1)];
    let answer = shop.client.order("hangs", &items).await.unwrap();
    let topup_ids = ids(&answer.products().unwrap());
    let wait = Duration::from_millis(1900)..Duration::from_secs(4);
    assert!(wait.contains(&answer.took), "answered after {:?}", answer.took);
    stack.process(Stage::Sandbox).unwrap().resume().unwrap();
    shop.delivered(&topup_ids, Duration::from_secs(20)).await.unwrap();
}

/// A notifier that dies between sending a webhook and recording it sends it again; none is lost.
#[tokio::test]
async fn a_notifier_that_is_killed_forgets_nothing() {
    let mut stack = Stack::start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let delayed = stack.option("delayed").unwrap().to_owned();
    let (name, some) = (fresh("killed"), shop.receiver.wait_for(5, SOON));
    let (topup_ids, some) = tokio::join!(order_many(&shop, &name, &delayed, 60), some);
    some.unwrap();
    stack.process(Stage::Notifier).unwrap().kill().await.unwrap();
    stack.process(Stage::Notifier).unwrap().start().await.unwrap();
    let topup_ids = topup_ids.unwrap();
    shop.delivered(&topup_ids, Duration::from_secs(90)).await.unwrap();
    let first = topup_ids.first().unwrap();
    assert_eq!(show(&stack, first).await.unwrap()["topups"][0]["state"], "ready");
}
