//! Streams for one test, and a stage whose rows are numbers.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, bail};
use async_nats::jetstream::{self, consumer, stream};
use pipeline::{
    Effect, Nats, NatsConfig,
    streams::Source,
    worker::{self, Kind, Stage, Trigger},
};
use runtime::Shutdown;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use testkit::{nats::OwnStreams, wait};
use tokio::sync::Semaphore;
use tracing::Span;
use uuid::Uuid;

/// Far longer than any test step; a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The durable name of the test stage's consumer.
pub const DURABLE: &str = "test-sandbox";

/// A connection, and streams under a unique prefix.
pub struct Bench {
    pub nats: Nats,
    pub config: NatsConfig,
    /// For reading and damaging the streams.
    pub jetstream: jetstream::Context,
    /// Deleted with the test.
    streams: Option<OwnStreams>,
}

impl Bench {
    /// Uses the shared server.
    pub async fn new() -> Self {
        let url = std::env::var("TEST_NATS_URL").expect("TEST_NATS_URL must be set; tests/run does that");
        let mut bench = Self::at(&url).await;
        bench.streams = Some(OwnStreams::new(&url, &bench.config.stream_prefix));
        bench
    }

    /// Uses the test's own server, which deletes its streams with itself.
    pub async fn at(url: &str) -> Self {
        let config = NatsConfig {
            nats_url: SecretString::from(url),
            stream_prefix: format!("{}_", Uuid::now_v7().simple()),
            stream_replicas: 1,
        };
        let nats = connect(&config).await;
        Self {
            jetstream: jetstream::new(nats.client().clone()),
            nats,
            config,
            streams: None,
        }
    }

    /// The subject of the test stage's messages.
    pub fn subject(&self) -> String {
        self.nats.job_subject("sandbox")
    }

    /// Publishes a message about this row.
    pub async fn announce(&self, row: u32) {
        self.announce_as(&format!("row-{row}"), row).await;
    }

    pub async fn announce_as(&self, message_id: &str, row: u32) {
        let message = Message { row };
        self.nats
            .publish(
                Effect::PublishJob,
                self.subject(),
                message_id,
                &message,
                &Span::none(),
            )
            .await;
    }

    /// Runs the stage with this number of permits on its own connection.
    pub async fn start(&self, rows: &Arc<Rows>, permits: usize) -> Running {
        let source = Source {
            stream: "TOPUP_JOBS",
            durable: DURABLE.into(),
            subject: self.subject(),
            // Long, so that a redelivery happens only on request.
            ack_wait: Duration::from_mins(5),
        };
        let shutdown = Shutdown::new();
        let nats = connect(&self.config).await;
        worker::start(Arc::clone(rows), &nats, source, permits, &shutdown);
        Running { shutdown, nats }
    }

    pub async fn stream(&self, base: &str) -> Result<stream::Info> {
        let stream = self.jetstream.get_stream(self.nats.stream_name(base)).await?;
        Ok(stream.cached_info().clone())
    }

    /// The number of messages in a stream; 0 if it is missing.
    pub async fn messages(&self, base: &str) -> u64 {
        self.stream(base).await.map_or(0, |info| info.state.messages)
    }

    pub async fn consumer(&self) -> Result<consumer::Info> {
        let stream = self
            .jetstream
            .get_stream_no_info(self.nats.stream_name("TOPUP_JOBS"))
            .await?;
        Ok(stream.consumer_info(DURABLE).await?)
    }

    /// Waits until the job stream holds this number of messages.
    pub async fn until_messages(&self, count: u64) {
        let what = format!("{count} messages in TOPUP_JOBS");
        until(&what, async || self.messages("TOPUP_JOBS").await == count).await;
    }

    /// Waits until the stage's consumer exists.
    pub async fn until_pulled(&self) {
        until("the consumer", async || self.consumer().await.is_ok()).await;
    }
}

pub async fn connect(config: &NatsConfig) -> Nats {
    let nats = Nats::connect(config, "pipeline tests").await.unwrap();
    tokio::time::timeout(PATIENCE, nats.connected()).await.unwrap();
    nats
}

pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    wait::until(PATIENCE, what, async || Ok(condition().await.then_some(())))
        .await
        .unwrap();
}

/// A running stage.
pub struct Running {
    shutdown: Shutdown,
    nats: Nats,
}

impl Running {
    /// Waits for a round trip on the stage's connection: earlier messages in both directions have then
    /// arrived.
    pub async fn round_trip(&self) {
        self.nats.ensure_streams().await.unwrap();
    }

    /// Begins the soft stop.
    pub fn begin_stop(&self) {
        self.shutdown.stop();
    }

    /// Ends like a service: the last acknowledgements are sent.
    pub async fn finished(&self) {
        self.shutdown.finished().await.unwrap();
        self.nats.flush().await;
    }

    /// Stops the stage and waits for its end.
    pub async fn stop(&self) {
        self.begin_stop();
        tokio::time::timeout(PATIENCE, self.finished()).await.unwrap();
    }
}

/// A message about a row.
#[derive(Serialize, Deserialize)]
pub struct Message {
    pub row: u32,
}

/// The result of a row.
#[derive(Clone, Debug)]
pub struct Done {
    pub row: u32,
    /// Whether the stage claimed it because of a message.
    pub announced: bool,
    pub traceparent: Option<String>,
}

/// A stage with rows in memory: the test is about the loop, not a database.
pub struct Rows {
    state: Mutex<State>,
    /// Each claim takes a permit; without one, it waits.
    pub claims_may_pass: Semaphore,
    /// Each run takes a permit; without one, it waits.
    pub runs_may_end: Semaphore,
    running: AtomicUsize,
    claiming: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// Not claimed yet.
    open: HashSet<u32>,
    /// The due ones among them.
    due: Vec<u32>,
    claims_to_fail: usize,
    claims: Vec<usize>,
    most_running: usize,
    done: Vec<Done>,
}

impl Rows {
    /// A stage with these open rows that claims and runs everything.
    pub fn new(open: impl IntoIterator<Item = u32>) -> Arc<Self> {
        let state = State {
            open: open.into_iter().collect(),
            ..State::default()
        };
        Arc::new(Self {
            state: Mutex::new(state),
            claims_may_pass: Semaphore::new(Semaphore::MAX_PERMITS),
            runs_may_end: Semaphore::new(Semaphore::MAX_PERMITS),
            running: AtomicUsize::new(0),
            claiming: AtomicUsize::new(0),
        })
    }

    /// The same, but no run ends before [`Rows::let_end`].
    pub fn held(open: impl IntoIterator<Item = u32>) -> Arc<Self> {
        let rows = Self::new(open);
        rows.runs_may_end.forget_permits(Semaphore::MAX_PERMITS);
        rows
    }

    pub fn let_end(&self) {
        self.runs_may_end.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    pub fn let_one_end(&self) {
        self.runs_may_end.add_permits(1);
    }

    pub fn make_due(&self, rows: impl IntoIterator<Item = u32>) {
        let mut state = self.state.lock().unwrap();
        for row in rows {
            state.open.insert(row);
            state.due.push(row);
        }
    }

    pub fn fail_claims(&self, count: usize) {
        self.state.lock().unwrap().claims_to_fail = count;
    }

    pub fn done(&self) -> Vec<Done> {
        self.state.lock().unwrap().done.clone()
    }

    /// The finished rows, sorted.
    pub fn done_rows(&self) -> Vec<u32> {
        let mut rows: Vec<u32> = self.done().iter().map(|done| done.row).collect();
        rows.sort_unstable();
        rows
    }

    /// The number of messages per claim.
    pub fn claims(&self) -> Vec<usize> {
        self.state.lock().unwrap().claims.clone()
    }

    pub fn most_running(&self) -> usize {
        self.state.lock().unwrap().most_running
    }

    pub async fn until_done(&self, count: usize) {
        until(&format!("{count} rows to be done"), async || {
            self.done().len() >= count
        })
        .await;
    }

    pub async fn until_running(&self, count: usize) {
        until(&format!("{count} rows to run"), async || {
            self.running.load(Ordering::SeqCst) == count
        })
        .await;
    }

    pub async fn until_claiming(&self) {
        until("a claim", async || self.claiming.load(Ordering::SeqCst) > 0).await;
    }
}

impl Stage for Rows {
    const KIND: Kind = Kind::Job;
    type Message = Message;
    type Work = u32;
    type Key = u32;

    fn key(&self, message: &Message) -> u32 {
        message.row
    }

    fn work_key(&self, work: &u32) -> u32 {
        *work
    }

    async fn claim(&self, messages: &[Message]) -> Result<Vec<u32>> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        self.claiming.fetch_add(1, Ordering::SeqCst);
        self.claims_may_pass.acquire().await?.forget();
        self.claiming.fetch_sub(1, Ordering::SeqCst);
        let mut state = self.state.lock().unwrap();
        state.claims.push(messages.len());
        if state.claims_to_fail > 0 {
            state.claims_to_fail -= 1;
            bail!("the database is away");
        }
        let named = messages.iter().map(|message| message.row);
        Ok(named.filter(|row| state.open.remove(row)).collect())
    }

    async fn claim_due(&self, limit: usize) -> Result<Vec<u32>> {
        let mut state = self.state.lock().unwrap();
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some(row) = state.due.pop()
        {
            if state.open.remove(&row) {
                taken.push(row);
            }
        }
        Ok(taken)
    }

    async fn run(&self, row: u32, trigger: Trigger<Message>) {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        {
            let mut state = self.state.lock().unwrap();
            state.most_running = state.most_running.max(running);
        }
        self.runs_may_end.acquire().await.unwrap().forget();
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.state.lock().unwrap().done.push(Done {
            row,
            announced: trigger.message.is_some(),
            traceparent: trigger.traceparent,
        });
    }
}
