//! A slow or dead endpoint does not delay the webhooks of another one.

use std::time::{Duration, Instant};

use domain::{PartnerId, TopupId};
use testkit::receiver::{Answer, Received};

use crate::support::{Bench, PATIENCE};

/// Not due during a test.
const LATER: Duration = Duration::from_hours(1);

/// The settings of production.
async fn bench() -> Bench {
    Bench::start_with(|config| {
        config.delivery_concurrency = 512;
        config.endpoint_concurrency = 64;
        config.host_concurrency = 256;
        config.endpoint_failures = 20;
        config.webhook_timeout = Duration::from_secs(15);
        config.common.shutdown_timeout = Duration::from_secs(1);
    })
    .await
}

fn at(received: &[Received], path: &str) -> usize {
    received.iter().filter(|one| one.path == path).count()
}

/// The time from announcing these topups to the arrival of all webhooks.
async fn time(bench: &Bench, partner: PartnerId, path: &str, topups: &[TopupId]) -> Duration {
    let before = at(&bench.receiver.received(), path);
    let began = Instant::now();
    for topup in topups {
        bench.announce(partner, topup).await;
    }
    let all = bench.receiver.wait_until(PATIENCE, path, |received| {
        at(received, path) >= before + topups.len()
    });
    all.await.unwrap();
    began.elapsed()
}

#[tokio::test]
async fn a_fast_endpoint_does_not_wait_for_a_slow_one() {
    let bench = bench().await;
    let fast = bench.partner_at("/fast").await;
    let slow = bench.partner_at("/slow").await;
    bench.receiver.answer("/slow", |_| Answer {
        status: 200,
        delay: Duration::from_secs(10),
    });
    let alone = bench.copies(fast, 20, None).await;
    let among = bench.copies(fast, 20, None).await;
    let backlog = bench.copies(slow, 3_000, None).await;
    let baseline = time(&bench, fast, "/fast", &alone).await;

    for topup in &backlog {
        bench.announce(slow, topup).await;
    }
    bench
        .receiver
        .wait_until(PATIENCE, "the slow endpoint to be busy", |received| {
            at(received, "/slow") >= 8
        })
        .await
        .unwrap();
    let took = time(&bench, fast, "/fast", &among).await;
    assert!(
        took < Duration::from_millis(500) + baseline * 3,
        "{took:?} for 20 webhooks, which take {baseline:?} when there is nothing else"
    );
    let slow = at(&bench.receiver.received(), "/slow");
    assert!(
        slow <= 16,
        "no more than 8 at once to a slow endpoint: {slow}"
    );
    bench.abandon();
}

/// All of them have the same host, which has a limit of its own.
#[tokio::test]
async fn many_slow_endpoints_do_not_delay_the_webhooks_of_another_one() {
    const SLOW: usize = 24;
    let bench = bench().await;
    let fast = bench.partner_at("/fast").await;
    bench.receiver.answer("/slow", |_| Answer {
        status: 200,
        delay: Duration::from_secs(14),
    });
    let mut backlogs = Vec::new();
    for _ in 0..SLOW {
        let slow = bench.partner_at("/slow").await;
        backlogs.push((slow, bench.copies(slow, 40, None).await));
    }
    let among = bench.copies(fast, 20, None).await;
    for (slow, backlog) in &backlogs {
        for topup in backlog {
            bench.announce(*slow, topup).await;
        }
    }
    bench
        .receiver
        .wait_until(PATIENCE, "the slow endpoints to be busy", |received| {
            at(received, "/slow") >= 8 * SLOW
        })
        .await
        .unwrap();
    let took = time(&bench, fast, "/fast", &among).await;
    assert!(
        took < Duration::from_secs(2),
        "{took:?} for 20 webhooks beside {SLOW} slow endpoints"
    );
    bench.abandon();
}

#[tokio::test]
async fn due_retries_do_not_wait_for_those_of_a_dead_endpoint() {
    let bench = bench().await;
    let healthy = bench.partner_at("/healthy").await;
    // It accepts connections and never responds.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (dead, _) = bench
        .partner(Some(&format!(
            "http://{}/dead",
            silent.local_addr().unwrap()
        )))
        .await;
    bench.pause(dead).await;
    bench.copies(dead, 8_000, Some(Duration::ZERO)).await;
    let retries = bench.copies(healthy, 20, Some(LATER)).await;
    bench.resume(dead).await;
    // Deliveries to the dead endpoint are in flight.
    let _busy = silent.accept().await.unwrap();

    let began = Instant::now();
    bench.make_due_of(healthy).await;
    bench
        .receiver
        .wait_for(retries.len(), PATIENCE)
        .await
        .unwrap();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    bench.abandon();
}
