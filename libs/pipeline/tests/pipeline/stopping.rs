//! The soft stop: finish work in flight, leave the rest to other replicas at once.

use std::time::Duration;

use tokio::sync::Semaphore;

use crate::bench::{Bench, PATIENCE, Rows, until};

#[tokio::test]
async fn a_stop_finishes_what_is_in_flight() {
    let rows = Rows::held([1]);
    rows.make_due([2]);
    let (bench, stage) = Bench::running(&rows, 4).await;
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

#[tokio::test]
async fn a_stop_starts_what_was_accepted_while_it_gets_permits_soon() {
    let rows = Rows::new(0..20);
    rows.claims_may_pass.forget_permits(Semaphore::MAX_PERMITS);
    let (bench, stage) = Bench::running(&rows, 2).await;
    bench.announce_all(&(0..20).collect::<Vec<_>>()).await;
    bench.until_messages(0).await;
    stage.begin_stop();
    rows.claims_may_pass.add_permits(100);
    stage.stop().await;
    assert_eq!(rows.done_rows(), (0..20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_stop_leaves_to_others_what_gets_no_permit() {
    let rows = Rows::held(0..3);
    let (bench, stage) = Bench::running(&rows, 1).await;
    bench.announce_all(&[0, 1, 2]).await;
    rows.until_running(1).await;
    let stopping = async {
        stage.begin_stop();
        until("only the row that runs to be left", async || {
            stage.tasks() == 1
        })
        .await;
        rows.let_end();
        stage.stop().await;
    };
    tokio::time::timeout(PATIENCE, stopping).await.unwrap();
    assert_eq!(rows.done_rows(), [0]);
}

/// A message comes only once. So the other replica finds only what the stopping one has deferred,
/// and the messages that were never sent to it.
#[tokio::test]
async fn what_a_stop_leaves_goes_to_another_replica_at_once() {
    let rows = Rows::new(0..8);
    let (bench, stopping) = Bench::running(&rows, 16).await;
    bench.announce(0).await;
    rows.until_done(1).await;
    bench.until_messages(0).await;
    let subject = bench.subject();
    bench.meanwhile(async |nats| {
        for row in 1..6 {
            nats.publish(subject.clone(), serde_json::json!({ "rows": [row] }), None)
                .await;
        }
    });
    stopping.begin_stop();
    stopping.stop().await;
    assert_eq!(rows.done_rows(), [0], "nothing was started after the stop");

    // Its last pull asked for more messages than there were.
    stopping.round_trip().await;
    bench.announce(6).await;
    bench.announce(7).await;
    let running = bench.start(&rows, 16).await;
    rows.until_done(8).await;
    assert_eq!(rows.done_rows(), (0..8).collect::<Vec<_>>());
    running.stop().await;
}

#[tokio::test]
async fn a_stop_ends_a_stage_that_has_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = testkit::nats::NatsServer::start(folder.path())
        .await
        .unwrap();
    let bench = Bench::at(server.url()).await;
    let rows = Rows::new([]);
    let stage = bench.start(&rows, 4).await;
    bench.until_pulled().await;
    server.process.kill().await.unwrap();
    rows.make_due([1]);
    rows.until_done(1).await;
    stage.stop().await;
}
