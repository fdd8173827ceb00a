//! The soft stop: finish work in flight, leave the rest to other replicas at once.

use std::time::Duration;

use tokio::sync::Semaphore;

use crate::bench::{Bench, Rows, until};

#[tokio::test]
async fn a_stop_finishes_what_is_in_flight() {
    let bench = Bench::new().await;
    let rows = Rows::held([1]);
    rows.make_due([2]);
    let stage = bench.start(&rows, 4).await;
    bench.announce(1).await;
    rows.until_running(2).await;
    stage.begin_stop();
    let mut finished = std::pin::pin!(stage.finished());
    assert!(
        tokio::time::timeout(Duration::from_millis(300), &mut finished)
            .await
            .is_err(),
        "it waits"
    );
    rows.let_end();
    finished.await;
    assert_eq!(rows.done_rows(), [1, 2]);
    bench.until_messages(0).await;
}

/// Unacknowledged messages are redelivered only after minutes here. So the other replica gets only messages
/// that the stopping one returned or never took.
#[tokio::test]
async fn what_a_stop_leaves_goes_to_another_replica_at_once() {
    let bench = Bench::new().await;
    let one = Rows::new(0..8);
    one.claims_may_pass.forget_permits(Semaphore::MAX_PERMITS);
    let stopping = bench.start(&one, 16).await;
    bench.announce(0).await;
    one.until_claiming().await;
    for row in 1..6 {
        bench.announce(row).await;
    }
    until("all to be delivered", async || {
        bench
            .consumer()
            .await
            .is_ok_and(|consumer| consumer.num_ack_pending == 6)
    })
    .await;
    stopping.round_trip().await;
    stopping.begin_stop();
    one.claims_may_pass.add_permits(10);
    stopping.stop().await;
    assert!(one.done_rows().contains(&0), "it was in flight");

    // Its last pull asked for two more messages than there were.
    stopping.round_trip().await;
    bench.announce(6).await;
    bench.announce(7).await;
    let other = Rows::new(0..8);
    let running = bench.start(&other, 16).await;
    bench.until_messages(0).await;
    let mut done = [one.done_rows(), other.done_rows()].concat();
    done.sort_unstable();
    assert_eq!(done, (0..8).collect::<Vec<_>>());
    running.stop().await;
}

#[tokio::test]
async fn a_stop_ends_a_stage_that_has_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = testkit::nats::NatsServer::start(folder.path()).await.unwrap();
    let bench = Bench::at(server.url()).await;
    let rows = Rows::new([]);
    let stage = bench.start(&rows, 4).await;
    bench.until_pulled().await;
    server.kill().await.unwrap();
    rows.make_due([1]);
    rows.until_done(1).await;
    stage.stop().await;
}
