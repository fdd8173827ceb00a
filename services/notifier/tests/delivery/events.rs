//! Events other than the specified webhook; deliveries that move to a new URL or find their host
//! full.

use std::time::{Duration, Instant};

use accounts::partners::{self, endpoints::EndpointUpdate};
use desk::self_service;
use domain::{DeliveryId, EndpointKey, PartnerId, WebhookId, event::EventKind};
use pg::{TransactionEnd, transaction};
use store::deliveries::{
    View,
    events::{self, EndpointTestResult},
};
use testkit::receiver::{Answer, Received, Signature};
use testkit::wait;

use crate::support::{Bench, PATIENCE};

impl Bench {
    async fn test_endpoint(&self, partner: PartnerId) -> DeliveryId {
        let mut connection = self.pool.acquire().await.unwrap();
        match events::test(&mut connection, EndpointKey::first(partner), Duration::ZERO)
            .await
            .unwrap()
        {
            EndpointTestResult::Due(id) => id,
            other => panic!("{other:?}"),
        }
    }

    /// The event once it has this state.
    async fn event(&self, id: DeliveryId, state: &str) -> View {
        let look = async || {
            let mut connection = self.pool.acquire().await?;
            let seen = events::find(&mut connection, None, id).await?;
            Ok(seen.filter(|event| event.state.as_str() == state))
        };
        wait::soon(&format!("the event to be {state}"), look).await
    }
}

#[tokio::test]
async fn a_test_has_one_signed_attempt_with_its_type() {
    let (mut bench, partner) = Bench::start_for("/hook").await;
    bench.receiver.answer("/hook", |_| Answer::status(503));
    let failed = bench.test_endpoint(partner).await;
    let seen = bench.event(failed, "exhausted").await;
    assert_eq!(
        (seen.attempts, seen.status, seen.due_at),
        (1, Some(503), None)
    );
    bench.receiver.answer("/hook", |_| Answer::status(200));
    let good = bench.test_endpoint(partner).await;
    bench.event(good, "delivered").await;
    let received: Vec<Received> = bench.receiver.received();
    assert_eq!(received.len(), 2);
    for (webhook, id) in received.iter().zip([failed, good]) {
        assert_eq!(webhook.signature, Signature::Valid);
        assert_eq!(
            webhook.headers["webhook-id"],
            WebhookId::Event(id).to_string()
        );
        assert_eq!(webhook.headers["webhook-type"], "webhook.test");
        assert_eq!(webhook.json["type"], "webhook.test");
        assert!(webhook.json["data"]["challenge"].is_string());
    }
    let mut connection = bench.pool.acquire().await.unwrap();
    let made = self_service::attempts(&mut connection, failed)
        .await
        .unwrap();
    assert_eq!((made.len(), made[0].class.as_str()), (1, "status_5xx"));
    // The webhook of a topup has no type.
    bench.delivers(partner).await;
    let webhook = bench.receiver.received().pop().unwrap();
    assert!(!webhook.headers.contains_key("webhook-type"));
    bench.stop().await;
}

#[tokio::test]
async fn a_test_ends_the_block_of_an_endpoint_that_is_back() {
    let (mut bench, partner) = Bench::start_for("/hook").await;
    let block = format!(
        "UPDATE partner_endpoints SET failures = 20, blocks = 9, blocked_until = now() + interval '1 hour'
         WHERE endpoint_id = '{partner}'"
    );
    bench.sql(&block).await;
    let waiting = bench.copies(partner, 3, Some(Duration::ZERO)).await;
    let id = bench.test_endpoint(partner).await;
    bench.event(id, "delivered").await;
    for topup in &waiting {
        bench.delivered(topup).await;
    }
    let first = bench.receiver.received().remove(0);
    assert_eq!(
        first.headers["webhook-id"],
        WebhookId::Event(id).to_string(),
        "the test came first"
    );
    bench.stop().await;
}

#[tokio::test]
async fn keys_that_end_soon_are_announced_and_retried() {
    let mut bench = Bench::prepared().await;
    let partner = bench.partner_at("/hook").await;
    let mut connection = bench.pool.acquire().await.unwrap();
    let set = transaction!(
        &mut connection,
        "a test",
        |transaction| -> Result<bool, pg::Error> {
            partners::set_events(transaction, partner, &[EventKind::KeyExpiring])
                .await
                .map(TransactionEnd::Commit)
        }
    );
    assert!(set.unwrap());
    bench
        .sql("UPDATE partners SET old_keys_until = now() + interval '1 hour'")
        .await;
    bench.receiver.answer("/hook", |_| Answer::status(500));
    bench.go().await;
    bench.receiver.wait_for(1, PATIENCE).await.unwrap();
    let first = bench.receiver.received().remove(0);
    assert_eq!(first.headers["webhook-type"], "key.expiring");
    assert_eq!(first.json["data"]["credential"], "keys");
    let WebhookId::Event(id) = first.headers["webhook-id"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap()
    else {
        panic!("{first:?}");
    };
    let retried = async || {
        let mut connection = bench.pool.acquire().await?;
        let seen = events::find(&mut connection, None, id).await?;
        Ok(seen.filter(|event| event.attempts == 1))
    };
    assert_eq!(
        wait::soon("the attempt to be recorded", retried)
            .await
            .state
            .as_str(),
        "pending"
    );
    bench.receiver.answer("/hook", |_| Answer::status(204));
    bench.event(id, "delivered").await;
    let bodies: Vec<_> = bench
        .receiver
        .received()
        .into_iter()
        .map(|one| one.body)
        .collect();
    assert_eq!(bodies.len(), 2);
    assert_eq!(bodies[0], bodies[1], "a retry has the same body");
    bench.stop().await;
}

#[tokio::test]
async fn a_delivery_that_finds_its_host_full_does_not_wait_for_its_lease() {
    let mut bench = Bench::start_with(|config| {
        config.host_concurrency = 1;
        config.delivery_concurrency = 4;
    })
    .await;
    let slow = bench.partner_at("/slow").await;
    let other = bench.partner_at("/other").await;
    bench.receiver.answer("/slow", |_| Answer {
        status: 200,
        delay: Duration::from_secs(1),
    });
    let first = bench.ready_and_announced(slow).await;
    bench.receiver.wait_for(1, PATIENCE).await.unwrap();
    // The host of this partner is not known yet, so its lane does not know that the host is full.
    let began = Instant::now();
    bench.delivers(other).await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
    bench.delivered(&first).await;
    bench.stop().await;
}

/// A sandbox account is free, and a small order of it makes thousands of webhooks. A host that it
/// has chosen gets one at a time and one a second, until it returns the code of a test. Showing
/// what it was sent proves nothing.
#[tokio::test]
async fn a_host_that_a_sandbox_account_has_chosen_proves_itself_once() {
    let (mut bench, partner) = Bench::start_for("/operator").await;
    let set = async |path: &str| {
        let url = bench.receiver.url(path).replace("127.0.0.1", "localhost");
        let change = EndpointUpdate {
            url: Some(Some(&url)),
            ..EndpointUpdate::default()
        };
        let first = EndpointKey::first(partner);
        let mut connection = bench.pool.acquire().await.unwrap();
        let changed = self_service::change_endpoint(&mut connection, first, &change).await;
        assert_eq!(changed.unwrap(), Some(true));
    };
    let arrived = |path: &'static str| {
        let received = bench.receiver.received().into_iter();
        received.filter(move |one| one.path == path).count()
    };
    let proven = async || {
        // The proof is one commit, and the end of the last webhook's pace is the next one.
        wait::soon("the endpoint to be open", async || {
            let mut connection = bench.pool.acquire().await?;
            let endpoint = self_service::endpoint(&mut connection, partner).await?;
            let endpoint = endpoint.unwrap();
            Ok((endpoint.state.as_str() == "open").then_some(endpoint.proven))
        })
        .await
    };
    assert!(proven().await, "an operator has set it");
    set("/stranger").await;
    assert!(!proven().await);
    let many = bench.copies(partner, 200, Some(Duration::ZERO)).await;
    let began = Instant::now();
    wait::soon("the first webhooks", async || {
        Ok((arrived("/stranger") >= 4).then_some(()))
    })
    .await;
    assert!(
        began.elapsed() > Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
    let test = bench.test_endpoint(partner).await;
    bench.event(test, "delivered").await;
    assert!(
        !proven().await,
        "it has acknowledged the test, as many a server would"
    );
    let seconds = began.elapsed().as_secs();
    let most = usize::try_from(seconds).unwrap() + 3;
    assert!(
        arrived("/stranger") <= most,
        "{} in {seconds} s",
        arrived("/stranger")
    );

    bench.receiver.prove("/stranger");
    let test = bench.test_endpoint(partner).await;
    bench.event(test, "delivered").await;
    assert!(proven().await);
    for topup in &many {
        bench.delivered(topup).await;
    }
    // Another path of the host needs no proof, and another host needs one again.
    set("/stranger/elsewhere").await;
    assert!(proven().await);
    bench.stop().await;
}
