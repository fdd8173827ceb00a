//! The loop of a stage in normal operation, and with faulty messages or a faulty database.

use std::sync::Arc;

use async_nats::{HeaderMap, jetstream};
use bytes::Bytes;
use pipeline::worker::TicketClass;
use tokio::sync::{Notify, Semaphore};

use crate::bench::{Bench, DURABLE, Rows, until};

#[tokio::test]
async fn messages_are_claimed_in_batches_and_acknowledged() {
    let bench = Bench::new().await;
    bench.nats.ensure_streams().await.unwrap();
    for row in 0..20 {
        bench.announce_all(&[row, row + 20]).await;
    }
    bench.until_messages(20).await;
    let rows = Rows::new(0..40);
    let stage = bench.start(&rows, 16).await;
    rows.until_done(40).await;
    bench.until_messages(0).await;
    assert_eq!(rows.done_rows(), (0..40).collect::<Vec<_>>());
    assert!(
        rows.done()
            .iter()
            .all(|done| done.class == TicketClass::Fresh && done.early)
    );
    let claims = rows.fresh_claims();
    assert!(
        claims.iter().all(|size| *size <= 16),
        "all permits: {claims:?}"
    );
    assert!(claims.iter().any(|size| *size > 2), "{claims:?}");
    assert!(rows.most_running() <= 16);
    stage.stop().await;
}

#[tokio::test]
async fn a_message_is_acknowledged_once_its_rows_wait() {
    let rows = Rows::held(0..3);
    let (bench, stage) = Bench::running(&rows, 1).await;
    bench.announce_all(&[0, 1, 2]).await;
    rows.until_running(1).await;
    bench.until_messages(0).await;
    assert_eq!(rows.done().len(), 0);
    rows.let_end();
    rows.until_done(3).await;
    assert_eq!(rows.most_running(), 1);
    stage.stop().await;
}

#[tokio::test]
async fn what_needs_nothing_is_acknowledged_and_not_run() {
    let bench = Bench::new().await;
    bench.nats.ensure_streams().await.unwrap();
    // Row 1 twice; rows 2 and 3 are done already.
    for row in [1, 1, 2, 3] {
        bench.announce(row).await;
    }
    bench.until_messages(4).await;
    let rows = Rows::new([1]);
    let stage = bench.start(&rows, 16).await;
    bench.until_messages(0).await;
    rows.until_done(1).await;
    stage.stop().await;
    assert_eq!(rows.done_rows(), [1]);
}

#[tokio::test]
async fn a_claim_is_retried_while_the_database_is_away() {
    let rows = Rows::new(0..3);
    rows.fail_claims(2);
    let (bench, stage) = Bench::running(&rows, 16).await;
    bench.announce_all(&[0, 1, 2]).await;
    rows.until_done(3).await;
    assert_eq!(rows.done_rows(), [0, 1, 2]);
    stage.stop().await;
}

/// The messages of a pull that ends with an error are redelivered only after `ack_wait`, five
/// minutes here.
#[tokio::test]
async fn an_error_in_a_pull_loses_none_of_the_messages_that_came_with_it() {
    let rows = Rows::new(0..5);
    let (bench, stage) = Bench::running(&rows, 16).await;
    bench.announce(0).await;
    rows.until_done(1).await;
    bench.until_messages(0).await;
    let subject = bench.subject();
    let stream = bench.nats.stream_name("TOPUP_JOBS");
    bench.meanwhile(async |nats| {
        for row in 1..4 {
            nats.publish(subject.clone(), serde_json::json!({ "rows": [row] }), None)
                .await;
        }
        let stream = jetstream::new(nats.client().clone())
            .get_stream(stream)
            .await
            .unwrap();
        stream.delete_consumer(DURABLE).await.unwrap();
    });
    rows.until_done(4).await;
    assert_eq!(rows.done_rows(), [0, 1, 2, 3]);
    stage.stop().await;
}

#[tokio::test]
async fn unreadable_messages_are_put_aside_and_block_no_other() {
    let unreadable = [
        &b"no JSON"[..],
        b"",
        b"{\"rows\":\"\r\n\\u0000\x01\xc3\xa9\"}",
        b"\xff\xfe",
        b"{\"other\":1}",
    ];
    let rows = Rows::new(0..10);
    let (bench, stage) = Bench::running(&rows, 4).await;
    bench.until_pulled().await;
    for (index, payload) in unreadable.into_iter().enumerate() {
        bench.announce(u32::try_from(index).unwrap() * 2).await;
        let mut headers = HeaderMap::new();
        headers.insert("Number", index.to_string());
        let published = bench.jetstream.publish_with_headers(
            bench.subject(),
            headers,
            Bytes::copy_from_slice(payload),
        );
        published.await.unwrap().await.unwrap();
        bench.announce(u32::try_from(index).unwrap() * 2 + 1).await;
    }
    rows.until_done(10).await;
    bench.until_messages(0).await;
    assert_eq!(rows.done_rows(), (0..10).collect::<Vec<_>>());

    let dead = bench.stream("TOPUP_DEAD").await.unwrap();
    assert_eq!(
        (dead.state.messages, dead.state.last_sequence),
        (5, 5),
        "each once"
    );
    let stream = bench.jetstream.get_stream(dead.config.name).await.unwrap();
    let mut kept = Vec::new();
    for sequence in 1..=5 {
        let message = stream.get_raw_message(sequence).await.unwrap();
        assert_eq!(message.subject.as_str(), bench.nats.dead_subject("job"));
        let header = |name: &str| message.headers.get(name).unwrap().as_str().to_owned();
        assert_eq!(header("Dead-Subject"), bench.subject());
        assert_eq!(header("Dead-Size"), message.payload.len().to_string());
        assert!(!header("Dead-Reason").is_empty());
        kept.push(message.payload);
    }
    kept.sort_unstable();
    let mut expected = unreadable;
    expected.sort_unstable();
    assert_eq!(kept, expected);
    stage.stop().await;
}

#[tokio::test]
async fn an_idle_stage_looks_whenever_it_is_told_that_rows_are_due() {
    let bench = Bench::new().await;
    let rows = Rows::new(0..0);
    let due = Arc::new(Notify::new());
    let stage = bench.start_told(&rows, 16, Some(Arc::clone(&due))).await;
    for told in 1..4 {
        rows.make_due(told * 10..told * 10 + 10);
        due.notify_one();
        rows.until_done(usize::try_from(told).unwrap() * 10).await;
    }
    assert!(
        rows.done()
            .iter()
            .all(|done| done.class == TicketClass::Due)
    );
    stage.stop().await;
}

#[tokio::test]
async fn due_rows_run_without_any_message() {
    let rows = Rows::new([]);
    rows.make_due(0..50);
    let (bench, stage) = Bench::running(&rows, 8).await;
    rows.until_done(50).await;
    assert_eq!(rows.done_rows(), (0..50).collect::<Vec<_>>());
    assert!(
        rows.done()
            .iter()
            .all(|done| done.class == TicketClass::Due)
    );
    // A late message is a no-op.
    bench.announce(7).await;
    until("the message to be taken", async || {
        bench
            .consumer()
            .await
            .is_ok_and(|consumer| consumer.delivered.stream_sequence == 1)
    })
    .await;
    bench.until_messages(0).await;
    assert_eq!(rows.done().len(), 50);
    stage.stop().await;
}

#[tokio::test]
async fn permits_bound_what_runs_at_once() {
    let rows = Rows::held(0..20);
    rows.make_due(20..40);
    let (bench, stage) = Bench::running(&rows, 4).await;
    for row in 0..20 {
        bench.announce(row).await;
    }
    rows.until_running(4).await;
    rows.let_end();
    rows.until_done(40).await;
    bench.until_messages(0).await;
    assert_eq!(rows.most_running(), 4);
    assert_eq!(rows.done_rows(), (0..40).collect::<Vec<_>>());
    stage.stop().await;
}

/// Ends 80 rows one by one while messages and due rows both wait. Returns the number of due ones.
async fn due_of_eighty(messages: u32, due: u32) -> usize {
    let rows = Rows::held(0..messages);
    rows.make_due(5000..5000 + due);
    let (bench, stage) = Bench::running(&rows, 4).await;
    for first in (0..messages).step_by(20) {
        bench
            .announce_all(&(first..first + 20).collect::<Vec<_>>())
            .await;
    }
    bench.until_messages(0).await;
    rows.until_looks(2).await;
    for ended in 1..=80 {
        rows.let_one_end();
        rows.until_done(ended).await;
        rows.until_running(4).await;
    }
    let due = rows
        .done()
        .iter()
        .filter(|done| done.class == TicketClass::Due)
        .count();
    rows.let_end();
    stage.stop().await;
    due
}

#[tokio::test]
async fn in_a_flood_of_messages_or_of_due_rows_due_rows_have_a_quarter_of_the_permits() {
    for (messages, due) in [(600, 100), (200, 250)] {
        let due = due_of_eighty(messages, due).await;
        assert!(
            (16..=24).contains(&due),
            "{due} of 80, with {messages} messages"
        );
    }
}

#[tokio::test]
async fn one_lane_that_hangs_leaves_permits_to_the_others() {
    let rows = Rows::new(0..200);
    rows.hold_from(10_000, 10_000..10_100);
    let (bench, stage) = Bench::running(&rows, 8).await;
    bench
        .announce_all(&(10_000..10_032).collect::<Vec<_>>())
        .await;
    // Three quarters of what is free to it.
    rows.until_running(6).await;
    rows.make_due(10_032..10_100);
    for first in (0..200).step_by(20) {
        bench
            .announce_all(&(first..first + 20).collect::<Vec<_>>())
            .await;
    }
    rows.until_done(200).await;
    assert!(rows.done_rows().iter().all(|row| *row < 10_000));
    rows.let_end();
    rows.until_done(300).await;
    stage.stop().await;
}

#[tokio::test]
async fn a_due_row_that_looks_find_again_and_again_is_claimed_once() {
    let rows = Rows::new([]);
    rows.claims_may_pass.forget_permits(Semaphore::MAX_PERMITS);
    rows.make_due(0..4);
    let (_bench, stage) = Bench::running(&rows, 8).await;
    rows.until_looks(4).await;
    rows.claims_may_pass.add_permits(100);
    rows.until_done(4).await;
    stage.stop().await;
    let mut claimed = rows.due_claims();
    claimed.sort_unstable();
    assert_eq!(
        (rows.done_rows(), claimed),
        ((0..4).collect(), (0..4).collect())
    );
}

#[tokio::test]
async fn a_due_row_that_two_replicas_find_runs_once() {
    let rows = Rows::new([]);
    let (bench, one) = Bench::running(&rows, 8).await;
    let other = bench.start(&rows, 8).await;
    rows.make_due(0..100);
    rows.until_done(100).await;
    one.stop().await;
    other.stop().await;
    assert_eq!(rows.done_rows(), (0..100).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_claim_that_finds_nothing_returns_its_permits() {
    let rows = Rows::new([100]);
    rows.make_due_elsewhere(0..8);
    let (bench, stage) = Bench::running(&rows, 2).await;
    bench.announce_all(&(10..18).collect::<Vec<_>>()).await;
    until("all claims", async || {
        rows.due_claims().len() >= 8 && rows.fresh_claims().iter().sum::<usize>() == 8
    })
    .await;
    rows.make_due([200]);
    bench.announce(100).await;
    rows.until_done(2).await;
    assert_eq!(rows.done_rows(), [100, 200]);
    stage.stop().await;
}

#[tokio::test]
async fn a_failing_lane_runs_due_rows_only_and_as_many_as_its_limit() {
    let bench = Bench::new().await;
    bench.nats.ensure_streams().await.unwrap();
    bench.announce(10_007).await;
    bench.until_messages(1).await;
    let rows = Rows::held([]);
    rows.limit_lanes(1);
    rows.make_due(10_000..10_008);
    let stage = bench.start(&rows, 8).await;
    rows.until_running(1).await;
    rows.until_looks(2).await;
    assert_eq!(rows.due_claims().len(), 1);
    // The row of the message is deferred.
    bench.until_messages(0).await;
    rows.let_end();
    rows.until_done(8).await;
    assert!(
        rows.done()
            .iter()
            .all(|done| done.class == TicketClass::Due)
            && rows.most_running() == 1
    );
    stage.stop().await;
}

#[tokio::test]
async fn a_panic_in_a_claim_ends_the_process_with_an_error() {
    let rows = Rows::new([1]);
    let (bench, stage) = Bench::running(&rows, 4).await;
    rows.panic_at_claims();
    bench.announce(1).await;
    let failure = stage.failure().await;
    assert!(
        failure.contains("claims of fresh tickets panicked"),
        "{failure}"
    );
}
