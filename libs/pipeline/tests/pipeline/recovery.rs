//! Streams, consumers and servers that disappear under a running stage.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::{Config, RetentionPolicy};
use futures_util::StreamExt;
use testkit::nats::NatsServer;

use crate::bench::{Bench, DURABLE, PATIENCE, Rows, until};

#[tokio::test]
async fn a_stream_or_consumer_that_is_deleted_comes_back() {
    let rows = Rows::new(0..4);
    let (bench, stage) = Bench::running(&rows, 4).await;
    bench.announce(0).await;
    rows.until_done(1).await;

    let name = bench.nats.stream_name("TOPUP_JOBS");
    bench.jetstream.delete_stream(&name).await.unwrap();
    bench.until_pulled().await;
    bench.announce(1).await;
    rows.until_done(2).await;

    bench.jetstream.delete_stream(&name).await.unwrap();
    // The test does not wait for this stream: the publisher creates it as well.
    bench.announce(2).await;
    rows.until_done(3).await;

    bench
        .jetstream
        .get_stream(&name)
        .await
        .unwrap()
        .delete_consumer(DURABLE)
        .await
        .unwrap();
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

    server.process.kill().await.unwrap();
    server.wipe().unwrap();
    until("the lost connection to be noticed", async || {
        !bench.nats.is_up()
    })
    .await;
    // Not published and not queued: the row is due in the database instead.
    bench.announce(1).await;
    rows.make_due([2]);
    rows.until_done(2).await;

    server.process.start().await.unwrap();
    tokio::time::timeout(PATIENCE, bench.nats.until_up())
        .await
        .unwrap();
    bench.announce(3).await;
    rows.until_done(3).await;
    assert_eq!(rows.done_rows(), [0, 2, 3]);
    bench.until_messages(0).await;
    assert_eq!(
        bench
            .stream("TOPUP_JOBS")
            .await
            .unwrap()
            .state
            .last_sequence,
        1
    );
    stage.stop().await;
}

#[tokio::test]
async fn the_stream_of_the_unreadable_comes_back_too() {
    let rows = Rows::new([1]);
    let (bench, stage) = Bench::running(&rows, 4).await;
    bench.until_pulled().await;
    let name = bench.nats.stream_name("TOPUP_DEAD");
    bench.jetstream.delete_stream(&name).await.unwrap();
    bench
        .jetstream
        .publish(bench.subject(), "unreadable".into())
        .await
        .unwrap()
        .await
        .unwrap();
    until("the message to be put aside", async || {
        bench.messages("TOPUP_DEAD").await == 1
    })
    .await;
    bench.until_messages(0).await;
    stage.stop().await;
}

/// The log of this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn lines_with(&self, part: &str) -> Vec<String> {
        let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        log.lines()
            .filter(|line| line.contains(part))
            .map(String::from)
            .collect()
    }
}

#[tokio::test]
async fn more_copies_than_servers_are_logged_once_with_the_remedy_and_retried_ever_more_rarely() {
    let log = Log::default();
    let writer = log.clone();
    let lines = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(lines);
    let folder = tempfile::tempdir().unwrap();
    let server = NatsServer::start(folder.path()).await.unwrap();
    let mut bench = Bench::at(server.url()).await;
    bench.config.stream_replicas = 3;
    let client = bench.nats.client();
    let audited = client.subscribe("$JS.EVENT.ADVISORY.API").await.unwrap();
    client.flush().await.unwrap();

    let rows = Rows::new([0]);
    rows.make_due([7]);
    let stage = bench.start(&rows, 4).await;
    let asked = audited
        .filter(|call| {
            std::future::ready(String::from_utf8_lossy(&call.payload).contains("STREAM.CREATE."))
        })
        .map(|_| Instant::now())
        .take(4)
        .collect::<Vec<_>>();
    let asked = tokio::time::timeout(PATIENCE, asked).await.unwrap();
    let pauses: Vec<Duration> = asked.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses[0] >= Duration::from_millis(450), "{pauses:?}");
    assert!(pauses[2] >= Duration::from_millis(1900), "{pauses:?}");
    let lines = log.lines_with("no messages come from NATS");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("ERROR"), "{lines:?}");
    assert!(
        lines[0].contains("STREAM_REPLICAS=3 needs a cluster"),
        "{lines:?}"
    );
    assert!(log.lines_with("cannot pull messages").is_empty());
    // Looks at due work still find the rows.
    rows.until_done(1).await;

    // An operator creates the streams.
    for (base, subject) in [("JOBS", "job"), ("READY", "ready"), ("DEAD", "dead")] {
        let own = Config {
            name: bench.nats.stream_name(&format!("TOPUP_{base}")),
            subjects: vec![format!("{}topup.{subject}.>", bench.config.stream_prefix)],
            retention: RetentionPolicy::Limits,
            ..Config::default()
        };
        bench.jetstream.create_stream(own).await.unwrap();
    }
    bench.announce(0).await;
    rows.until_done(2).await;
    assert_eq!(log.lines_with("messages come from NATS again").len(), 1);
    stage.stop().await;
}
