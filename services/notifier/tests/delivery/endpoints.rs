//! Blocked, paused and resumed endpoints; resent deliveries.

use std::time::Duration;

use desk::operator::deliveries;
use domain::standing::DeliveryState;
use pg::actions::{Action, Actor, Mode};
use store::deliveries::endpoints;
use store::deliveries::resends::DeliveryFilter;
use testkit::receiver::Answer;

use crate::support::Bench;

#[tokio::test]
async fn an_endpoint_that_fails_is_left_alone_then_probed_then_served() {
    let mut bench = Bench::start_with(|config| {
        config.endpoint_concurrency = 4;
        config.endpoint_failures = 3;
        config.endpoint_block_longest = Duration::from_mins(1);
    })
    .await;
    let partner = bench.partner_at("/hook").await;
    bench.receiver.answer("/hook", |_| Answer::status(500));
    let topups = bench.copies(partner, 30, Some(Duration::ZERO)).await;
    let blocked = async || {
        let listed = endpoints::list(&mut *bench.pool.acquire().await?, Some(partner)).await?;
        Ok((listed[0].state.as_str() != "open").then_some(()))
    };
    testkit::wait::soon("the endpoint to be blocked", blocked).await;
    // Each end of a block allows one probe: one attempt of one delivery.
    let is_block = |pair: &[testkit::receiver::Received]| {
        pair[1].at - pair[0].at >= Duration::from_millis(800)
    };
    let probes = async || {
        let received = bench.receiver.received();
        let before = received.windows(2).position(is_block).map(|last| last + 1);
        Ok(before
            .filter(|before| received.len() >= before + 2)
            .map(|before| (before, received[before + 1].at - received[before].at)))
    };
    let (before, pause) = testkit::wait::soon("two probes", probes).await;
    assert!((3..=12).contains(&before), "{before}");
    assert!(
        pause >= Duration::from_millis(1_500),
        "the second block is longer: {pause:?}"
    );
    let attempts: i64 = sqlx::query_scalar("SELECT sum(attempt) FROM deliveries")
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    let requests = i64::try_from(bench.receiver.received().len()).unwrap();
    assert!(
        attempts <= requests,
        "what was deferred has lost no attempt"
    );

    bench.receiver.answer("/hook", |_| Answer::status(200));
    bench.make_due().await;
    for topup in &topups {
        bench.delivered(topup).await;
    }
    bench.stop().await;
}

/// The sweep creates what a fan-out could not.
#[tokio::test]
async fn a_fan_out_that_fails_keeps_no_leased_delivery_from_its_endpoint() {
    let (mut bench, partner) = Bench::start_for("/hook").await;
    let broken = "UPDATE partners SET has_further_endpoints = true;
         ALTER FUNCTION derived_id RENAME TO hidden";
    bench.sql(broken).await;
    let topup = bench.ready(partner).await;
    bench.make_due().await;
    assert_eq!(bench.delivered(&topup).await.attempt, 1);
    bench.stop().await;
}

#[tokio::test]
async fn a_paused_endpoint_gets_nothing_and_loses_nothing() {
    let (mut bench, partner) = Bench::start_for("/paused").await;
    let other = bench.partner_at("/other").await;
    bench.pause(partner).await;
    let waiting = [
        bench.ready_and_announced(partner).await,
        bench.ready(partner).await,
    ];
    bench.make_due().await;
    // Later deliveries of another partner arrive, so these could have been sent.
    for _ in 0..2 {
        let next = bench.ready_and_announced(other).await;
        bench.delivered(&next).await;
        let next = bench.ready(other).await;
        bench.make_due().await;
        bench.delivered(&next).await;
    }
    assert!(
        bench
            .receiver
            .received()
            .iter()
            .all(|one| one.path == "/other")
    );
    bench.resume(partner).await;
    for topup in &waiting {
        assert_eq!(bench.delivered(topup).await.attempt, 1);
    }
    bench.stop().await;
}

#[tokio::test]
async fn a_replay_starts_the_schedule_again_and_keeps_the_attempts() {
    let (mut bench, partner) = Bench::start_for("/hook").await;
    let topup = bench.ready_and_announced(partner).await;
    bench.delivered(&topup).await;
    bench.receiver.answer("/hook", |_| Answer::status(503));
    let resend = async |state: DeliveryState| {
        let filter = DeliveryFilter {
            partner_id: Some(partner),
            state: Some(state),
            ..DeliveryFilter::default()
        };
        let mut connection = bench.pool.acquire().await.unwrap();
        let webhook = domain::WebhookId::Topup(topup.clone());
        let id = deliveries::find(&mut connection, &webhook).await.unwrap();
        let id = id.expect("a delivery");
        let action = Action {
            actor: Actor::esimctl("tester"),
            command: domain::Command::ResendStart,
            target: "partner",
            reason: "a test",
        };
        let resent =
            deliveries::resend_one(&mut connection, id, &filter, Mode::Apply(action)).await;
        resent.unwrap().resent
    };
    assert_eq!(resend(DeliveryState::Exhausted).await, 0);
    assert_eq!(resend(DeliveryState::Delivered).await, 1);
    let stored = bench.stored(&topup, |stored| stored.attempt == 2).await;
    let due_in = stored.due_in.unwrap();
    assert!(
        (3.0..=5.5).contains(&due_in),
        "the schedule's first wait is 5 s: {due_in}"
    );

    bench.receiver.answer("/hook", |_| Answer::status(410));
    bench.make_due().await;
    let stored = bench
        .stored(&topup, |stored| stored.state == "exhausted")
        .await;
    assert_eq!((stored.status, stored.due_in), (Some(410), None));
    bench.receiver.answer("/hook", |_| Answer::status(202));
    assert_eq!(resend(DeliveryState::Exhausted).await, 1);
    bench.delivered(&topup).await;
    let delivery = bench.delivery_of(&topup).await;
    let mut connection = bench.pool.acquire().await.unwrap();
    let all = deliveries::attempts(&mut connection, delivery, i64::MAX)
        .await
        .unwrap();
    let classes: Vec<(i32, &str)> = all
        .iter()
        .map(|one| (one.attempt, one.class.as_str()))
        .collect();
    assert_eq!(
        classes,
        [
            (0, "delivered"),
            (1, "status_5xx"),
            (2, "gone"),
            (3, "delivered")
        ]
    );
    let metrics = bench.metrics().await;
    for part in [
        r#"esim_deliveries_total{outcome="delivered""#,
        r#"esim_delivery_attempts_total{environment="sandbox",outcome="gone""#,
        "esim_delivery_duration_seconds_bucket",
        r#"esim_due_oldest_seconds{environment="live",stage="notifier"}"#,
        "esim_endpoints_blocked",
        "esim_deliveries_exhausted",
    ] {
        assert!(metrics.contains(part), "{part} in {metrics}");
    }
    bench.stop().await;
}
