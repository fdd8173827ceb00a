//! The loop of a stage in normal operation, and with faulty messages or a faulty database.

use async_nats::HeaderMap;
use bytes::Bytes;

use crate::bench::{Bench, Rows, until};

#[tokio::test]
async fn messages_are_claimed_in_batches_and_acknowledged() {
    let bench = Bench::new().await;
    bench.nats.ensure_streams().await.unwrap();
    for row in 0..40 {
        bench.announce(row).await;
    }
    bench.until_messages(40).await;
    let rows = Rows::new(0..40);
    let stage = bench.start(&rows, 16).await;
    rows.until_done(40).await;
    bench.until_messages(0).await;
    assert_eq!(rows.done_rows(), (0..40).collect::<Vec<_>>());
    assert!(rows.done().iter().all(|done| done.announced));
    let claims = rows.claims();
    assert!(
        claims.iter().all(|size| *size <= 8),
        "half the permits: {claims:?}"
    );
    assert!(claims.iter().any(|size| *size > 1), "{claims:?}");
    stage.stop().await;
}

#[tokio::test]
async fn a_message_is_acknowledged_only_after_its_row_was_run() {
    let bench = Bench::new().await;
    let rows = Rows::held([1]);
    let stage = bench.start(&rows, 4).await;
    bench.announce(1).await;
    rows.until_running(1).await;
    let consumer = bench.consumer().await.unwrap();
    assert_eq!(
        (consumer.num_ack_pending, bench.messages("TOPUP_JOBS").await),
        (1, 1)
    );
    rows.let_end();
    bench.until_messages(0).await;
    stage.stop().await;
}

#[tokio::test]
async fn what_needs_nothing_is_acknowledged_and_not_run() {
    let bench = Bench::new().await;
    bench.nats.ensure_streams().await.unwrap();
    // Row 1 twice, in one batch; rows 2 and 3 are done already.
    for (id, row) in [("a", 1), ("b", 1), ("c", 2), ("d", 3)] {
        bench.announce_as(id, row).await;
    }
    bench.until_messages(4).await;
    let rows = Rows::new([1]);
    let stage = bench.start(&rows, 16).await;
    bench.until_messages(0).await;
    assert_eq!(rows.done_rows(), [1]);
    stage.stop().await;
}

#[tokio::test]
async fn what_cannot_be_claimed_comes_again() {
    let bench = Bench::new().await;
    let rows = Rows::new(0..3);
    rows.fail_claims(1);
    let stage = bench.start(&rows, 16).await;
    for row in 0..3 {
        bench.announce(row).await;
    }
    rows.until_done(3).await;
    bench.until_messages(0).await;
    assert_eq!(rows.done_rows(), [0, 1, 2]);
    stage.stop().await;
}

#[tokio::test]
async fn unreadable_messages_are_put_aside_and_block_nobody() {
    let unreadable = [
        &b"no JSON"[..],
        b"",
        b"{\"row\":\"\r\n\\u0000\x01\xc3\xa9\"}",
        b"\xff\xfe",
        b"{\"other\":1}",
    ];
    let bench = Bench::new().await;
    let rows = Rows::new(0..10);
    let stage = bench.start(&rows, 4).await;
    bench.until_pulled().await;
    for (index, payload) in unreadable.into_iter().enumerate() {
        bench.announce(u32::try_from(index).unwrap() * 2).await;
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", index.to_string());
        let published =
            bench
                .jetstream
                .publish_with_headers(bench.subject(), headers, Bytes::copy_from_slice(payload));
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
async fn overdue_rows_are_taken_up_without_any_message() {
    let bench = Bench::new().await;
    let rows = Rows::new([]);
    rows.make_due(0..50);
    let stage = bench.start(&rows, 8).await;
    rows.until_done(50).await;
    assert_eq!(rows.done_rows(), (0..50).collect::<Vec<_>>());
    assert!(rows.done().iter().all(|done| !done.announced));
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
    let bench = Bench::new().await;
    let rows = Rows::held(0..20);
    rows.make_due(20..40);
    let stage = bench.start(&rows, 4).await;
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

#[tokio::test]
async fn one_permit_is_enough_for_messages_and_overdue_rows() {
    let bench = Bench::new().await;
    let rows = Rows::new(0..3);
    let stage = bench.start(&rows, 1).await;
    bench.until_pulled().await;
    rows.make_due([10, 11]);
    for row in 0..3 {
        bench.announce(row).await;
    }
    rows.until_done(5).await;
    assert_eq!(rows.most_running(), 1);
    bench.until_messages(0).await;
    stage.stop().await;
}

#[tokio::test]
async fn a_flood_of_messages_leaves_overdue_rows_their_turn() {
    let bench = Bench::new().await;
    let rows = Rows::held(0..2000);
    let stage = bench.start(&rows, 4).await;
    for row in 0..2000 {
        bench.announce(row).await;
    }
    rows.until_running(4).await;
    rows.make_due(5000..5003);
    until("an overdue row to be run", async || {
        rows.let_one_end();
        rows.done().iter().any(|done| !done.announced)
    })
    .await;
    assert!(rows.done().len() < 1500, "long before the flood is over");
    rows.let_end();
    rows.until_done(2003).await;
    assert_eq!(rows.most_running(), 4);
    stage.stop().await;
}
