//! Streams, consumers and servers that vanish under a running stage.

use testkit::nats::NatsServer;

use crate::bench::{Bench, DURABLE, PATIENCE, Rows, until};

#[tokio::test]
async fn a_stream_or_consumer_that_is_deleted_comes_back() {
    let bench = Bench::new().await;
    let rows = Rows::new(0..4);
    let stage = bench.start(&rows, 4).await;
    bench.announce(0).await;
    rows.until_done(1).await;

    let name = bench.nats.stream_name("TOPUP_JOBS");
    bench.jetstream.delete_stream(&name).await.unwrap();
    bench.until_pulled().await;
    bench.announce(1).await;
    rows.until_done(2).await;

    bench.jetstream.delete_stream(&name).await.unwrap();
    // Not waited for: the publisher makes the stream as well.
    bench.announce(2).await;
    rows.until_done(3).await;

    let stream = bench.jetstream.get_stream(&name).await.unwrap();
    stream.delete_consumer(DURABLE).await.unwrap();
    bench.announce(3).await;
    rows.until_done(4).await;
    assert_eq!(rows.done_rows(), [0, 1, 2, 3]);
    stage.stop().await;
}

#[tokio::test]
async fn a_server_that_loses_its_storage_costs_nothing_but_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = NatsServer::start(folder.path()).await.unwrap();
    let bench = Bench::at(server.url()).await;
    let rows = Rows::new(0..4);
    let stage = bench.start(&rows, 4).await;
    bench.announce(0).await;
    rows.until_done(1).await;

    server.kill().await.unwrap();
    server.wipe().unwrap();
    until("the lost connection to be noticed", async || {
        !bench.nats.is_connected()
    })
    .await;
    // Not published, and not queued for later: it is due in the database instead.
    bench.announce(1).await;
    rows.make_due([2]);
    rows.until_done(2).await;

    server.start_again().await.unwrap();
    tokio::time::timeout(PATIENCE, bench.nats.connected())
        .await
        .unwrap();
    bench.announce(3).await;
    rows.until_done(3).await;
    assert_eq!(rows.done_rows(), [0, 2, 3]);
    bench.until_messages(0).await;
    assert_eq!(bench.stream("TOPUP_JOBS").await.unwrap().state.last_sequence, 1);
    stage.stop().await;
}

#[tokio::test]
async fn the_stream_of_the_unreadable_comes_back_too() {
    let bench = Bench::new().await;
    let rows = Rows::new([1]);
    let stage = bench.start(&rows, 4).await;
    bench.until_pulled().await;
    let name = bench.nats.stream_name("TOPUP_DEAD");
    bench.jetstream.delete_stream(&name).await.unwrap();
    let published = bench.jetstream.publish(bench.subject(), "unreadable".into());
    published.await.unwrap().await.unwrap();
    until("the message to be put aside", async || {
        bench.messages("TOPUP_DEAD").await == 1
    })
    .await;
    bench.until_messages(0).await;
    stage.stop().await;
}
