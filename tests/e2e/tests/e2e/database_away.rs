//! `PostgreSQL` is unreachable for a while; the test cuts a forwarder between it and the services.

use crate::forwarder::Forwarder;
use crate::shop::{Shop, fresh, ids, stored_ids};
use anyhow::{Context, Result};
use serde_json::json;
use std::time::{Duration, Instant};
use testkit::stack::{Stack, Stage};
use testkit::{client::Answer, http, wait};
use url::Url;

/// A stack whose services reach their database through a forwarder; esimctl and this test don't.
pub async fn start() -> Result<(Stack, Forwarder)> {
    let builder = Stage::OURS
        .into_iter()
        .fold(Stack::builder(), testkit::stack::Builder::without);
    let builder = builder.env(Stage::Provisioner, "SETTLE", "6s");
    let mut stack = builder
        .env(Stage::Provisioner, "PROVIDER_TIMEOUT", "2s")
        .start()
        .await?;
    let mut url: Url = stack.database.url().parse()?;
    let server = url.socket_addrs(|| Some(5432))?;
    let forwarder = Forwarder::to(*server.first().context("no address of PostgreSQL")?).await?;
    url.set_host(Some("127.0.0.1"))?;
    url.set_port(Some(forwarder.port()))
        .map_err(|()| anyhow::anyhow!("no port in {url}"))?;
    for stage in Stage::OURS {
        let process = stack.process(stage)?;
        process
            .program_mut()
            .env
            .insert("DATABASE_URL".into(), url.to_string());
        process.start().await?;
    }
    Ok((stack, forwarder))
}

#[tokio::test]
async fn without_postgresql_the_answer_is_500_and_everything_recovers() {
    let (mut stack, mut forwarder) = start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let ready = stack.option("ready").unwrap().to_owned();
    let mut topup_ids = ids(&shop.buy("before", &ready, 1).await.unwrap());
    shop.delivered(&topup_ids, Duration::from_secs(30))
        .await
        .unwrap();

    // Cut while orders are being stored, bought and delivered.
    let external_ids: Vec<String> = (0..40).map(|_| fresh("cut")).collect();
    let items = [(ready.as_str(), 1)];
    let orders = external_ids.iter().map(|id| shop.client.order(id, &items));
    let first_stored = async {
        shop.receiver.wait_for(2, Duration::from_secs(30)).await?;
        forwarder.cut().await;
        anyhow::Ok(())
    };
    let (answers, cut) = tokio::join!(futures_util::future::join_all(orders), first_stored);
    cut.unwrap();

    let answer = shop.client.order("away", &items).await.unwrap();
    assert_eq!(
        (answer.status, answer.json().unwrap()),
        (500, json!({"error": "Internal server error"})),
        "after {:?}",
        answer.took
    );
    let ready_url = stack
        .process(Stage::Ingress)
        .unwrap()
        .program()
        .ready_url
        .clone();
    // The proxy in front still sends requests to an ingress that is not ready if no other one is,
    // so that partners get the specified 500 (deploy/proxy/haproxy.cfg).
    let http = http::client().unwrap();
    wait::soon("ingress not to be ready", async || {
        let answer = http.get(&ready_url).send().await?;
        let is_missing = answer.status() == 503 && answer.text().await?.contains("database");
        Ok(is_missing.then_some(()))
    })
    .await;

    forwarder.restore().await.unwrap();
    let recovered = async || Ok(shop.client.order("away", &items).await?.products().ok());
    let products = wait::until(
        Duration::from_secs(15),
        "ingress to recover by itself",
        recovered,
    )
    .await
    .unwrap();
    topup_ids.extend(ids(&products));

    // A 5xx leaves the result open; sending the order again gives a definite one.
    for (external_order_id, answer) in external_ids.iter().zip(answers) {
        match answer.unwrap() {
            Answer { status: 201, .. } => {}
            Answer { status: 500, .. } => {
                let again = shop.client.order(external_order_id, &items).await.unwrap();
                let taken = json!({"errors": ["External order id has already been taken"]});
                let settled =
                    again.status == 201 || (again.status == 422 && again.json().unwrap() == taken);
                assert!(settled, "{again:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    topup_ids.extend(stored_ids(&stack).await.unwrap());
    assert_eq!(topup_ids.len(), 42);
    shop.delivered(&topup_ids, Duration::from_secs(90))
        .await
        .unwrap();
    let ledger = stack.ledger().await.unwrap();
    assert_eq!((ledger.purchases, ledger.units), (42, 42));
}

/// A proxy whose backend is down accepts connections and closes them, so every statement of every
/// stage fails at once, and an order fails within a millisecond.
#[tokio::test]
async fn an_outage_is_one_line_per_second_in_words_and_one_at_its_end() {
    const AT_ONCE: usize = 20;
    let (mut stack, mut forwarder) = start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let ready = stack.option("ready").unwrap().to_owned();
    let topup_ids = ids(&shop.buy("before", &ready, 1).await.unwrap());
    shop.delivered(&topup_ids, Duration::from_secs(30))
        .await
        .unwrap();

    let server = forwarder.server();
    forwarder.lose_backend().await.unwrap();
    let began = Instant::now();
    let mut failed = 0;
    while began.elapsed() < Duration::from_secs(5) {
        let ids: Vec<String> = (0..AT_ONCE).map(|_| fresh("away")).collect();
        let items = [(ready.as_str(), 1)];
        let orders = ids.iter().map(|id| shop.client.order(id, &items));
        for answer in futures_util::future::join_all(orders).await {
            assert_eq!(answer.unwrap().status, 500);
            failed += 1;
        }
    }
    forwarder.lead_to(server).await.unwrap();
    for stage in Stage::OURS {
        let process = &*stack.process(stage).unwrap();
        wait::soon("the line at the end", async || {
            Ok(process
                .log()?
                .contains("PostgreSQL works again")
                .then_some(()))
        })
        .await;
        let log = process.log().unwrap();
        let lines: Vec<&str> = log
            .lines()
            .filter(|line| line.contains("database:"))
            .collect();
        let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
        println!(
            "{}: {} lines, {failed} orders failed",
            stage.name(),
            lines.len()
        );
        assert!(failed > 100, "{failed} orders prove nothing");
        assert!(
            !lines.is_empty() && lines.len() <= seconds + 1,
            "{} lines in {seconds} s: {lines:#?}",
            lines.len()
        );
        assert!(
            lines.iter().all(|line| line.contains("ERROR")),
            "{lines:#?}"
        );
        // The connection ends with or without a reset, as it happens, and both texts name the
        // cause.
        assert!(log.contains("a proxy without a backend"), "{lines:#?}");
        assert_eq!(log.matches("PostgreSQL works again").count(), 1);
    }
}
