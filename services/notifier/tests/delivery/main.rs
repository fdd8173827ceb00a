//! The notifier against a real database, a real NATS and real endpoints.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod endpoints;
mod events;
mod fairness;
mod hostile;
mod known;
mod mails;
mod names;
mod rotation;
mod support;

use std::{collections::HashSet, time::Duration};

use async_nats::jetstream;
use domain::TopupId;
use pipeline::trace;
use runtime::Shutdown;
use support::{Bench, PATIENCE, PUBLIC_URL, TRACEPARENT, config, iccid, option_id, settings};
use testkit::database::Database;
use testkit::receiver::{Answer, Received, Signature};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// The trace id of a `traceparent` header.
fn trace_id(received: &Received) -> &str {
    received.headers[trace::TRACEPARENT]
        .to_str()
        .unwrap()
        .split('-')
        .nth(1)
        .unwrap()
}

fn topups(received: &[Received]) -> HashSet<&str> {
    received.iter().map(Received::topup_id).collect()
}

#[tokio::test]
async fn a_ready_topup_is_delivered_once_signed_and_in_the_orders_trace() {
    let (mut bench, partner) = Bench::start_for("/hook").await;
    let topup = bench.ready_and_announced(partner).await;
    let stored = bench.delivered(&topup).await;
    assert_eq!(
        (stored.attempt, stored.status, stored.error),
        (1, Some(200), None)
    );
    assert_eq!(stored.due_in, None);

    // Late and repeated events are no-ops: the next one is the second webhook.
    bench.announce(partner, &topup).await;
    let next = bench.ready_and_announced(partner).await;
    bench.delivered(&next).await;
    let received = bench.receiver.received();
    assert_eq!(
        received.iter().map(Received::topup_id).collect::<Vec<_>>(),
        [topup.as_str(), next.as_str()]
    );

    let expected = format!(
        concat!(
            r#"{{"topup_id":"{topup}","option_id":"{option}","iccid":"{iccid}","smdp":"smdp.example.com","#,
            r#""activate_code":"A1-B2","download_link":"LPA:1$smdp.example.com$A1-B2","#,
            r#""qrcode_img_url":"{url}/qr/LPA%3A1%24smdp.example.com%24A1-B2/300","#,
            r#""expired_date":"2026-12-31","external_order_id":"order of {topup}"}}"#
        ),
        topup = topup,
        option = option_id(),
        iccid = iccid(&topup),
        url = PUBLIC_URL,
    );
    let webhook = &received[0];
    assert_eq!(String::from_utf8_lossy(&webhook.body), expected);
    assert_eq!(webhook.signature, Signature::Valid);
    assert_eq!(webhook.headers["webhook-id"], topup.as_str());
    assert_eq!(webhook.headers["content-type"], "application/json");
    assert!(
        TRACEPARENT.contains(trace_id(webhook)),
        "{:?}",
        webhook.headers
    );
    bench.stop().await;
}

#[tokio::test]
async fn a_failed_attempt_is_tried_again_as_scheduled() {
    let (mut bench, partner) = Bench::start_for("/hook").await;
    bench.receiver.answer("/hook", |_| Answer::status(500));
    let topup = bench.ready_and_announced(partner).await;
    let stored = bench.attempted(&topup).await;
    assert_eq!(
        (stored.state.as_str(), stored.attempt, stored.status),
        ("pending", 1, Some(500))
    );
    assert_eq!(stored.error.as_deref(), Some("responded 500"));

    bench.make_due().await;
    let stored = bench.stored(&topup, |stored| stored.attempt == 2).await;
    let due_in = stored.due_in.unwrap();
    assert!(
        (265.0..=330.0).contains(&due_in),
        "the second wait is 5 minutes, give or take 10 %: {due_in}"
    );

    bench.receiver.answer("/hook", |_| Answer::status(204));
    bench.make_due().await;
    let stored = bench.delivered(&topup).await;
    assert_eq!(
        (stored.attempt, stored.status, stored.error),
        (3, Some(204), None)
    );
    let received = bench.receiver.received();
    assert!(
        received
            .iter()
            .all(|one| one.headers["webhook-id"] == topup.as_str())
    );
    assert!(received.iter().all(|one| one.signature == Signature::Valid));
    let traces: HashSet<_> = received.iter().map(trace_id).collect();
    assert_eq!(traces.len(), 3, "each later attempt is a trace of its own");
    bench.stop().await;
}

#[tokio::test]
async fn an_unannounced_delivery_is_sent_when_it_is_due() {
    let (mut bench, partner) = Bench::start_for("/hook").await;
    let topup = bench.ready(partner).await;
    bench.make_due().await;
    assert_eq!(bench.delivered(&topup).await.attempt, 1);
    assert!(TRACEPARENT.contains(trace_id(&bench.receiver.received()[0])));
    bench.stop().await;
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_retry_after_is_heeded() {
    let mut bench = Bench::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/moved", listener.local_addr().unwrap());
    let elsewhere = bench.receiver.url("/elsewhere");
    tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let _ = connection.read(&mut [0; 4096]).await.unwrap();
        let answer = format!(
            "HTTP/1.1 307 Moved\r\nlocation: {elsewhere}\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n"
        );
        connection.write_all(answer.as_bytes()).await.unwrap();
    });
    let (partner, _) = bench.partner(Some(&url)).await;
    let topup = bench.ready_and_announced(partner).await;
    let stored = bench.attempted(&topup).await;
    assert_eq!(
        (stored.state.as_str(), stored.status),
        ("pending", Some(307))
    );
    assert!(
        (3_590.0..=3_600.0).contains(&stored.due_in.unwrap()),
        "{stored:?}"
    );
    assert_eq!(bench.receiver.received().len(), 0);
    bench.stop().await;
}

#[tokio::test]
async fn endpoints_inside_of_our_network_are_refused() {
    let mut bench = Bench::start().await;
    for url in [
        "http://[::1]:1/",
        "http://10.0.0.1/",
        "http://0xa9fea9fe/latest/meta-data",
    ] {
        let (partner, _) = bench.partner(Some(url)).await;
        let topup = bench.ready_and_announced(partner).await;
        let stored = bench.attempted(&topup).await;
        assert_eq!(
            (stored.state.as_str(), stored.status),
            ("pending", None),
            "{url}"
        );
        assert_eq!(stored.error.as_deref(), Some("forbidden address"), "{url}");
    }
    bench.stop().await;
}

#[tokio::test]
async fn a_broken_row_or_url_delays_no_other_delivery() {
    let (mut bench, partner) = Bench::start_for("/hook").await;
    let broken = bench.ready(partner).await;
    bench
        .sql(&format!(
            "UPDATE esims SET profile = '\\x0174' WHERE topup_id = '{broken}'"
        ))
        .await;
    bench.announce(partner, &broken).await;
    let (nowhere, _) = bench.partner(Some("not a URL")).await;
    let homeless = bench.ready_and_announced(nowhere).await;
    bench.delivers(partner).await;
    let stored = bench.attempted(&broken).await;
    assert_eq!((stored.state.as_str(), stored.status), ("pending", None));
    let error = stored.error.unwrap();
    assert!(
        error.contains("profile") && error.contains("cannot be decrypted"),
        "{error}"
    );
    assert_eq!(
        bench.attempted(&homeless).await.error.as_deref(),
        Some("unusable URL")
    );
    bench.stop().await;
}

/// An attempt that cannot be recorded is not counted, so only its age makes the next one later.
#[tokio::test]
async fn a_delivery_whose_outcome_is_refused_is_sent_less_and_less_often() {
    let (bench, partner) = Bench::start_for("/hook").await;
    bench
        .sql("ALTER TABLE deliveries ADD CONSTRAINT refused CHECK (attempt = 0) NOT VALID")
        .await;
    let topup = bench.ready_and_announced(partner).await;
    let due_after = async |least| {
        bench
            .stored(&topup, |stored| {
                stored.due_in.is_some_and(|due_in| due_in > least)
            })
            .await
    };
    due_after(50.0).await;
    assert_eq!(bench.receiver.received().len(), 1);
    bench
        .sql("UPDATE deliveries SET created_at = now() - interval '10 hours'")
        .await;
    bench.sql("UPDATE work SET at = now()").await;
    let stored = due_after(4.9 * 3600.0).await;
    assert_eq!((stored.state.as_str(), stored.attempt), ("pending", 0));
    assert_eq!(bench.receiver.received().len(), 2);
    bench
        .sql("ALTER TABLE deliveries DROP CONSTRAINT refused")
        .await;
    bench.sql("UPDATE work SET at = now()").await;
    assert_eq!(bench.delivered(&topup).await.attempt, 1);
}

#[tokio::test]
async fn an_unreadable_message_is_put_aside_and_the_next_one_is_handled() {
    let (mut bench, partner) = Bench::start_for("/hook").await;
    let jetstream = jetstream::new(bench.nats.client().clone());
    let subject = bench.nats.ready_batch_subject();
    let made = async || {
        Ok(jetstream
            .get_stream(bench.nats.stream_name("TOPUP_READY"))
            .await
            .ok())
    };
    testkit::wait::soon("the notifier's stream", made).await;
    for garbage in ["{", r#"{"type":"topup.ready.v9","topup_id":"1"}"#] {
        jetstream
            .publish(subject.clone(), garbage.into())
            .await
            .unwrap()
            .await
            .unwrap();
    }
    let topup = bench.ready_and_announced(partner).await;
    bench.delivered(&topup).await;

    let dead = jetstream
        .get_stream(bench.nats.stream_name("TOPUP_DEAD"))
        .await
        .unwrap();
    let newest = testkit::wait::soon("two dead letters", async || {
        let newest = dead
            .get_last_raw_message_by_subject(&bench.nats.dead_subject("ready"))
            .await
            .ok();
        Ok(newest.filter(|message| message.sequence == 2))
    })
    .await;
    assert_eq!(
        newest.headers.get("Dead-Subject").unwrap().as_str(),
        subject
    );
    assert!(
        newest
            .headers
            .get("Dead-Reason")
            .unwrap()
            .as_str()
            .contains("topup.ready.v9")
    );
    bench.stop().await;
}

#[tokio::test]
async fn an_endpoint_gets_so_many_requests_at_once_and_no_more() {
    const DELAY: Duration = Duration::from_millis(150);
    let mut bench = Bench::start_with(|config| config.endpoint_concurrency = 2).await;
    let partner = bench.partner_at("/slow").await;
    bench.receiver.answer("/slow", |_| Answer {
        status: 200,
        delay: DELAY,
    });
    let mut ready = Vec::new();
    for _ in 0..10 {
        ready.push(bench.ready(partner).await);
    }
    for topup in &ready {
        bench.announce(partner, topup).await;
    }
    for topup in &ready {
        bench.delivered(topup).await;
    }
    let received = bench.receiver.received();
    assert_eq!(
        topups(&received),
        ready.iter().map(TopupId::as_str).collect()
    );
    let mut times: Vec<_> = received.iter().map(|one| one.at).collect();
    times.sort_unstable();
    for three in times.windows(3) {
        assert!(three[2] - three[0] >= DELAY, "three at once: {times:?}");
    }
    bench.stop().await;
}

#[tokio::test]
async fn a_stop_finishes_what_is_under_way() {
    let (mut bench, partner) = Bench::start_for("/slow").await;
    bench.receiver.answer("/slow", |_| Answer {
        status: 200,
        delay: Duration::from_millis(300),
    });
    let topup = bench.ready_and_announced(partner).await;
    bench.receiver.wait_for(1, PATIENCE).await.unwrap();
    bench.stop().await;
    assert_eq!(bench.look(&topup).await.unwrap().state, "delivered");
}

#[tokio::test]
async fn an_answer_that_came_while_the_database_was_away_is_recorded_when_it_is_back() {
    let (mut bench, partner) = Bench::start_for("/hook").await;
    bench.receiver.answer("/hook", |_| Answer {
        status: 200,
        delay: Duration::from_millis(300),
    });
    let topup = bench.ready_and_announced(partner).await;
    bench.receiver.wait_for(1, PATIENCE).await.unwrap();
    bench.without_database(bench.says_ready(false)).await;
    bench.says_ready(true).await;
    let stored = testkit::wait::soon("the attempt to be recorded", async || {
        // Connections of the test's own pool were cut, too.
        Ok(bench
            .look(&topup)
            .await
            .ok()
            .filter(|stored| stored.state == "delivered"))
    })
    .await;
    assert_eq!(stored.attempt, 1);

    bench.delivers(partner).await;
    assert_eq!(bench.receiver.received().len(), 2);
    bench.stop().await;
}

#[tokio::test]
async fn a_schema_that_is_behind_stops_the_start() {
    let database = Database::empty().await.unwrap();
    let error = notifier::run(config(&settings(&database)), Shutdown::new())
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("run `esimctl migrate`"),
        "{error:#}"
    );
}

/// The profile went between the resend and the attempt. Nothing is sent, and the delivery is held
/// at once.
#[tokio::test]
async fn a_webhook_without_its_profile_is_held_and_says_why() {
    let (mut bench, partner) = Bench::start_for("/hook").await;
    let topup = bench.ready(partner).await;
    bench
        .sql("UPDATE esims SET profile = NULL, erased_at = now()")
        .await;
    bench.announce(partner, &topup).await;
    let stored = bench.attempted(&topup).await;
    assert_eq!(
        (stored.state.as_str(), stored.status, stored.due_in),
        ("exhausted", None, None)
    );
    assert!(stored.error.unwrap().contains("erased"));
    assert_eq!(bench.receiver.received().len(), 0);
    let metrics = bench.metrics().await;
    assert!(metrics.contains(r#"outcome="erased""#), "{metrics}");
    bench.stop().await;
}

/// The notifier erases by itself what is past its term.
#[tokio::test]
async fn an_old_profile_is_erased_while_webhooks_go_on() {
    let mut bench = Bench::prepared().await;
    let partner = bench.partner_at("/hook").await;
    let old = bench.ready(partner).await;
    let of_2020 = "
        UPDATE deliveries SET topup_id = '20200101000000000000000001', state = 'delivered',
            delivered_at = now() - interval '100 days';
        UPDATE topups SET topup_id = '20200101000000000000000001';
        UPDATE esims SET topup_id = '20200101000000000000000001'";
    bench.sql(of_2020).await;
    // The first one does not open under its new id, and the start checks the master key.
    bench.ready(partner).await;
    bench.go().await;
    testkit::wait::soon("the profile to be erased", async || {
        let left = "SELECT count(*) FROM esims WHERE profile IS NOT NULL AND topup_id LIKE '2020%'";
        let left: i64 = sqlx::query_scalar(left).fetch_one(&bench.pool).await?;
        Ok((left == 0).then_some(()))
    })
    .await;
    let young = bench.ready_and_announced(partner).await;
    bench.delivered(&young).await;
    assert_ne!(old, young);
    testkit::wait::soon("the metrics of retention", async || {
        let metrics = bench.metrics().await;
        let shown = metrics.contains(r#"esim_retention_overdue_seconds{class="attempts""#);
        Ok((shown && metrics.contains("esim_retention_erased_total")).then_some(()))
    })
    .await;
    bench.stop().await;
}
