//! Graceful stops: a rolling restart under load cuts no request and loses nothing, and a stopping
//! process finishes its work in flight and returns the rest at once.

use crate::shop::{Shop, bought_once, ids, stored, stored_ids, verdicts_come};
use anyhow::{Context, Result, ensure};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{collections::BTreeSet, io::ErrorKind, time::Duration};
use testkit::stack::{Stack, Stage};
use testkit::{client::products, esimctl::Partner, raw, wait};
use tokio::{io::AsyncWriteExt, net::TcpStream};

const STOP: Duration = Duration::from_secs(25);
/// What a partner does between two orders.
const THINK: Duration = Duration::from_millis(75);

/// The results of one partner's requests over successive connections.
#[derive(Default)]
struct Line {
    topup_ids: BTreeSet<String>,
    /// Connections that were made and then broke before the answer.
    cut: Vec<String>,
    /// Answers other than 201.
    refused: Vec<String>,
    connections: usize,
}

/// A connection to the next server that accepts one, as a load balancer makes it.
async fn connect(servers: &[String], next: &mut usize) -> Result<TcpStream> {
    for _ in 0..servers.len() {
        *next += 1;
        let address = servers[*next % servers.len()].trim_start_matches("http://");
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error).context("a connection failed otherwise"),
        }
    }
    anyhow::bail!("every server refused")
}

/// Orders one unit after the other until `stop`; keeps a connection as long as the server does, at
/// most for a few orders.
async fn line(
    number: usize,
    servers: &[String],
    partner: &Partner,
    option: &str,
    answered: &AtomicUsize,
    stop: &AtomicBool,
) -> Result<Line> {
    const ORDERS_PER_CONNECTION: usize = 8;
    let mut line = Line::default();
    let mut next = number;
    let mut kept = None;
    for order in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let mut stream = if let Some(stream) = kept.take() {
            stream
        } else {
            line.connections += 1;
            connect(servers, &mut next).await?
        };
        let body = testkit::client::order(&format!("{number}/{order}"), &[(option, 1)]).to_string();
        let request = raw::create_order(partner, body.as_bytes())?;
        let exchange = async {
            stream.write_all(&request).await?;
            raw::answer(&mut stream).await
        };
        match exchange.await {
            Ok((answer, bytes)) if answer.status == 201 => {
                line.topup_ids.extend(ids(&products(&bytes[answer.body])?));
                answered.fetch_add(1, Ordering::Relaxed);
                let goes_on = !answer.closes && order % ORDERS_PER_CONNECTION != 7;
                kept = goes_on.then_some(stream);
            }
            Ok((_, bytes)) => line
                .refused
                .push(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => line.cut.push(format!("{number}/{order}: {error:#}")),
        }
        // The partner's pace, not a wait for a condition.
        tokio::time::sleep(THINK).await;
    }
    Ok(line)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_under_load_cuts_nothing_and_loses_nothing() {
    const LINES: usize = 16;
    const ROUNDS: usize = 2;
    /// The orders that are answered after one restart, before the next.
    const BETWEEN: usize = 50;
    let builder = Stage::OURS
        .into_iter()
        .fold(Stack::builder(), |builder, stage| {
            builder.replicas(stage, 2)
        });
    // A slow machine may take a while to connect to the database anew.
    let builder = builder.env(Stage::Ingress, "QUEUE_DEADLINE", "8s");
    let mut stack = builder.start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let option = stack.option("ready").unwrap().to_owned();
    let servers = stack.base_urls();
    let answered = AtomicUsize::new(0);
    let done = AtomicBool::new(false);
    let restarts = async {
        for (_, stage) in (0..ROUNDS).flat_map(|round| Stage::OURS.map(|stage| (round, stage))) {
            for replica in stack.replicas(stage) {
                let enough = answered.load(Ordering::Relaxed) + BETWEEN;
                let more = async || Ok((answered.load(Ordering::Relaxed) >= enough).then_some(()));
                wait::until(STOP, "orders to go on", more).await?;
                let name = replica.program().name.clone();
                let ended = replica.terminate(STOP).await?;
                ensure!(ended.success(), "{name} ended with {ended}");
                replica.start().await?;
            }
        }
        Ok(())
    };
    let restarts = async {
        let result: Result<()> = restarts.await;
        done.store(true, Ordering::Relaxed);
        result
    };
    let lines =
        (0..LINES).map(|number| line(number, &servers, &shop.partner, &option, &answered, &done));
    let (restarted, lines) = tokio::join!(restarts, futures_util::future::try_join_all(lines));
    restarted.unwrap();

    let mut all = Line::default();
    for line in lines.unwrap() {
        all.topup_ids.extend(line.topup_ids);
        all.cut.extend(line.cut);
        all.refused.extend(line.refused);
        all.connections += line.connections;
    }
    println!(
        "{} orders over {} connections",
        all.topup_ids.len(),
        all.connections
    );
    assert!(
        all.cut.is_empty(),
        "{} were cut: {:?}",
        all.cut.len(),
        all.cut.first()
    );
    assert!(all.refused.is_empty(), "{:?}", all.refused);
    let stored = stored_ids(&stack).await.unwrap();
    assert_eq!(stored, all.topup_ids, "stored and answered are the same");
    shop.delivered(&all.topup_ids, Duration::from_mins(1))
        .await
        .unwrap();
    bought_once(&stack.ledger().await.unwrap()).unwrap();
}

/// The profile comes two seconds after the answer. Until `answer_by` the provisioner reports it to
/// the ingress process that answered, so this process must not be gone by then.
#[tokio::test]
async fn a_stop_of_ingress_makes_no_webhook_late() {
    let mut stack = Stack::builder().start().await.unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    verdicts_come(&stack, &shop.client).await.unwrap();
    let option = stack.option("delayed").unwrap().to_owned();
    let topups = shop.buy("stopped", &option, 1).await.unwrap();
    let ended = stack
        .process(Stage::Ingress)
        .unwrap()
        .terminate(STOP)
        .await
        .unwrap();
    assert!(ended.success(), "ingress ended with {ended}");
    // A lost readiness event would be noticed 30 s after the profile came.
    shop.delivered(&ids(&topups), Duration::from_secs(15))
        .await
        .unwrap();
}

/// With a slow provider and more jobs than the provisioner takes at once, a SIGTERM records the
/// purchases in flight, and no job stays with the stopped process.
#[tokio::test]
async fn a_stop_finishes_what_was_begun_and_gives_back_the_rest() {
    const ORDERS: usize = 24;
    let builder = Stack::builder().env(Stage::Ingress, "PLACEMENT_WAIT", "0");
    let mut stack = builder
        .env(Stage::Provisioner, "PROVIDER_CONCURRENCY", "8")
        .start()
        .await
        .unwrap();
    let shop = Shop::open(&stack).await.unwrap();
    let option = stack.option("ready").unwrap().to_owned();
    stack.set_faults(r#"{"latency_ms": 700}"#).await.unwrap();
    let mut topup_ids = BTreeSet::new();
    for order in 0..ORDERS {
        let products = shop
            .buy(&format!("stop {order}"), &option, 1)
            .await
            .unwrap();
        topup_ids.extend(ids(&products));
    }
    let under_way = async || {
        let stored = stored(&stack).await?;
        let placing = stored
            .iter()
            .filter(|row| row.placement == "placing")
            .count();
        Ok((placing > 0).then_some(()))
    };
    wait::soon("purchases under way", under_way).await;
    let provisioner = stack.process(Stage::Provisioner).unwrap();
    let ended = provisioner.terminate(STOP).await.unwrap();
    assert!(ended.success(), "the provisioner ended with {ended}");

    let after = stored(&stack).await.unwrap();
    let count = |state: &str| after.iter().filter(|row| row.placement == state).count();
    let placed = count("placed");
    let accepted = count("accepted");
    println!("{placed} placed, {accepted} left");
    assert_eq!(placed + accepted, ORDERS, "none is under way any more");
    assert!(placed > 0 && accepted > 0, "it was stopped in the middle");
    stack
        .process(Stage::Provisioner)
        .unwrap()
        .start()
        .await
        .unwrap();
    shop.delivered(&topup_ids, Duration::from_mins(1))
        .await
        .unwrap();
    bought_once(&stack.ledger().await.unwrap()).unwrap();
}
