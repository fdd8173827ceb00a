//! Streams for one test, and a stage whose rows are numbers.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use async_nats::jetstream::{self, consumer, stream};
use pipeline::worker::{
    self, Handler, LaneState, Permit, PermitLimits, Ticket, TicketClass, Trigger, WorkerSettings,
};
use pipeline::{Nats, NatsAccess, NatsConfig, streams::MessageSource};
use runtime::Shutdown;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::json;
use store::work::{LookResult, WorkLook};
use testkit::{nats::OwnStreams, wait};
use tokio::sync::{Notify, Semaphore};
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
        let url =
            std::env::var("TEST_NATS_URL").expect("TEST_NATS_URL must be set; tests/run does that");
        let mut bench = Self::at(&url).await;
        bench.streams = Some(OwnStreams::new(&url, &bench.config.stream_prefix));
        bench
    }

    /// The same, with the stage running on it; see [`Bench::start`].
    pub async fn running(rows: &Arc<Rows>, permits: usize) -> (Self, Running) {
        let bench = Self::new().await;
        let running = bench.start(rows, permits).await;
        (bench, running)
    }

    /// Uses the test's own server, which deletes its streams with itself.
    pub async fn at(url: &str) -> Self {
        let config = NatsConfig {
            nats_url: SecretString::from(url),
            stream_prefix: format!("{}_", Uuid::now_v7().simple()),
            stream_replicas: 1,
            access: NatsAccess::default(),
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
        self.announce_all(&[row]).await;
    }

    /// Publishes one message about these rows.
    pub async fn announce_all(&self, rows: &[u32]) {
        self.nats
            .publish(self.subject(), json!({ "rows": rows }), None)
            .await;
    }

    /// Runs the stage with this number of permits on its own connection.
    pub async fn start(&self, rows: &Arc<Rows>, permits: usize) -> Running {
        self.start_told(rows, permits, None).await
    }

    /// The same with what tells the stage that rows are due.
    pub async fn start_told(
        &self,
        rows: &Arc<Rows>,
        permits: usize,
        due: Option<Arc<Notify>>,
    ) -> Running {
        let limits = PermitLimits {
            permits,
            per_lane: permits,
            per_owner: permits,
            slow_attempt: None,
            slow: PATIENCE,
        };
        let source = MessageSource {
            stream: "TOPUP_JOBS",
            durable: DURABLE.into(),
            subject: self.subject(),
        };
        let limit = Arc::clone(&rows.lane_limit);
        let lane = Arc::new(move |lane: &str| {
            let permits = if lane.is_empty() {
                usize::MAX
            } else {
                limit.load(Ordering::SeqCst)
            };
            LaneState {
                permits,
                is_shared: true,
                accepts_fresh: permits > 1,
            }
        });
        let settings = WorkerSettings {
            source: Some(source),
            limits,
            lane,
            provider: None,
            wake: due,
        };
        let shutdown = Shutdown::new();
        let nats = connect(&self.config).await;
        worker::start(Arc::clone(rows), &nats, settings, &shutdown);
        Running { shutdown, nats }
    }

    /// Runs `act` on another thread's connection while this thread is blocked: messages that the
    /// server sends meanwhile arrive here all at once.
    pub fn meanwhile<F: Future<Output = ()>>(&self, act: impl FnOnce(Nats) -> F + Send) {
        let elsewhere = || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                let nats = connect(&self.config).await;
                act(nats.clone()).await;
                // After this round trip, the server has handled the earlier messages.
                nats.ensure_streams().await.unwrap();
            });
        };
        std::thread::scope(|scope| scope.spawn(elsewhere).join().unwrap());
    }

    pub async fn stream(&self, base: &str) -> Result<stream::Info> {
        let stream = self
            .jetstream
            .get_stream(self.nats.stream_name(base))
            .await?;
        Ok(stream.cached_info().clone())
    }

    /// The number of messages in a stream; 0 if it is missing.
    pub async fn messages(&self, base: &str) -> u64 {
        self.stream(base)
            .await
            .map_or(0, |info| info.state.messages)
    }

    pub async fn consumer(&self) -> Result<consumer::Info> {
        let stream = self
            .jetstream
            .get_stream_no_info(self.nats.stream_name("TOPUP_JOBS"))
            .await?;
        Ok(stream.consumer_info(DURABLE).await?)
    }

    /// Waits until this number of messages of the job stream is not taken yet.
    pub async fn until_messages(&self, count: u64) {
        let what = format!("{count} messages in TOPUP_JOBS");
        let waiting = async || match self.consumer().await {
            Ok(consumer) => consumer.num_pending,
            Err(_) => self.messages("TOPUP_JOBS").await,
        };
        until(&what, async || waiting().await == count).await;
    }

    /// Waits until the stage's consumer exists.
    pub async fn until_pulled(&self) {
        until("the consumer", async || self.consumer().await.is_ok()).await;
    }
}

pub async fn connect(config: &NatsConfig) -> Nats {
    let nats = Nats::connect(config, "pipeline tests").await.unwrap();
    tokio::time::timeout(PATIENCE, nats.until_up())
        .await
        .unwrap();
    nats
}

pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    wait::soon(what, async || Ok(condition().await.then_some(()))).await;
}

/// A running stage.
pub struct Running {
    shutdown: Shutdown,
    nats: Nats,
}

impl Running {
    /// Waits for a round trip on the stage's connection: earlier messages in both directions have
    /// then arrived.
    pub async fn round_trip(&self) {
        self.nats.ensure_streams().await.unwrap();
    }

    /// The number of tasks that the stop waits for.
    pub fn tasks(&self) -> usize {
        self.shutdown.tracker().len()
    }

    /// Begins the soft stop.
    pub fn begin_stop(&self) {
        self.shutdown.stop();
    }

    /// Ends like a service: what is buffered is sent.
    pub async fn finished(&self) {
        self.shutdown.finished().await.unwrap();
        self.nats.flush().await;
    }

    /// Waits until the stage stops by itself, and returns the failure.
    pub async fn failure(&self) -> String {
        let failed = tokio::time::timeout(PATIENCE, self.shutdown.finished()).await;
        format!("{:#}", failed.unwrap().unwrap_err())
    }

    /// Stops the stage and waits for its end.
    pub async fn stop(&self) {
        self.begin_stop();
        tokio::time::timeout(PATIENCE, self.finished())
            .await
            .unwrap();
    }
}

/// A message about rows.
#[derive(Deserialize)]
pub struct Message {
    pub rows: Vec<u32>,
}

/// The result of a row.
#[derive(Clone, Debug)]
pub struct Done {
    pub row: u32,
    /// Whether the stage claimed it with a ticket of a message or of a look.
    pub class: TicketClass,
    /// Whether its age counts from before its claim.
    pub early: bool,
    pub traceparent: Option<Arc<str>>,
}

/// A stage with rows in memory: the test is about the loop, not a database.
pub struct Rows {
    state: Mutex<State>,
    /// Each claim takes a permit; without one, it waits.
    pub claims_may_pass: Semaphore,
    /// Each run of a held row takes a permit; without one, it waits.
    pub runs_may_end: Semaphore,
    /// Rows from this one on are held.
    held_from: AtomicU32,
    panics: AtomicBool,
    running: AtomicUsize,
    /// How many rows of a lane may run.
    lane_limit: Arc<AtomicUsize>,
}

#[derive(Default)]
struct State {
    /// Not claimed yet.
    open: HashSet<u32>,
    /// When the last claim of a row began.
    claimed: HashMap<u32, Instant>,
    /// Rows that a look finds.
    due: BTreeSet<u32>,
    /// How many looks found rows.
    looks: usize,
    claims_to_fail: usize,
    /// The number of rows of each fresh claim.
    fresh_claims: Vec<usize>,
    /// The rows of all due claims.
    due_claims: Vec<u32>,
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
            runs_may_end: Semaphore::new(0),
            held_from: AtomicU32::new(u32::MAX),
            panics: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            lane_limit: Arc::new(AtomicUsize::new(usize::MAX)),
        })
    }

    /// The same, but no run ends before [`Rows::let_end`].
    pub fn held(open: impl IntoIterator<Item = u32>) -> Arc<Self> {
        let rows = Self::new(open);
        rows.held_from.store(0, Ordering::SeqCst);
        rows
    }

    /// Opens more rows; those from `from` on do not end before [`Rows::let_end`].
    pub fn hold_from(&self, from: u32, open: impl IntoIterator<Item = u32>) {
        self.held_from.store(from, Ordering::SeqCst);
        self.state.lock().unwrap().open.extend(open);
    }

    pub fn panic_at_claims(&self) {
        self.panics.store(true, Ordering::SeqCst);
    }

    /// Waits for further looks that find rows; the tickets of all but the last one are queued then.
    pub async fn until_looks(&self, count: usize) {
        let before = self.state.lock().unwrap().looks;
        let what = format!("{count} further looks");
        until(&what, async || {
            self.state.lock().unwrap().looks >= before + count
        })
        .await;
    }

    /// The rows of all due claims, in order; a row that was claimed twice occurs twice.
    pub fn due_claims(&self) -> Vec<u32> {
        self.state.lock().unwrap().due_claims.clone()
    }

    /// Lets at most this number of rows of a lane run. A lane of one row is failing: it accepts no
    /// fresh tickets.
    pub fn limit_lanes(&self, rows: usize) {
        self.lane_limit.store(rows, Ordering::SeqCst);
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
            state.due.insert(row);
        }
    }

    /// A look finds these rows, but the claim finds that another process has claimed them.
    pub fn make_due_elsewhere(&self, rows: impl IntoIterator<Item = u32>) {
        self.state.lock().unwrap().due.extend(rows);
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

    /// The number of rows of each fresh claim.
    pub fn fresh_claims(&self) -> Vec<usize> {
        self.state.lock().unwrap().fresh_claims.clone()
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
}

/// Rows below 10,000 have no lane; each further ten thousand is a lane.
fn ticket(row: u32) -> Ticket<u32> {
    let lane = if row < 10_000 {
        String::new()
    } else {
        format!("lane {}", row / 10_000)
    };
    Ticket {
        id: row,
        lane: lane.into(),
        owner: domain::PartnerId::from(Uuid::from_u128(row.into())).into(),
    }
}

impl Handler for Rows {
    const NAME: &'static str = "test";
    const KIND: &'static str = "job";
    const CLAIM_STATEMENT: (&'static str, &'static str) = ("UPDATE", "rows");
    type Message = Message;
    type Id = u32;
    type Claimed = u32;

    fn tickets_of(&self, message: Message) -> Vec<Ticket<u32>> {
        message.rows.into_iter().map(ticket).collect()
    }

    async fn defer(&self, rows: &[u32]) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        let open: Vec<u32> = rows
            .iter()
            .copied()
            .filter(|row| state.open.contains(row))
            .collect();
        state.due.extend(open);
        Ok(())
    }

    async fn due(&self, look: WorkLook) -> Result<LookResult<Ticket<u32>>> {
        let mut state = self.state.lock().unwrap();
        // One page, without lanes to walk through.
        let due: Vec<_> = state
            .due
            .iter()
            .take(look.limit)
            .copied()
            .map(ticket)
            .collect();
        state.looks += usize::from(!due.is_empty());
        Ok(LookResult { due, after: None })
    }

    async fn claim(&self, rows: &[u32], class: TicketClass) -> Result<Vec<(u32, u32)>> {
        assert!(!self.panics.load(Ordering::SeqCst), "as asked");
        let began = Instant::now();
        self.claims_may_pass.acquire().await?.forget();
        let mut state = self.state.lock().unwrap();
        if state.claims_to_fail > 0 {
            state.claims_to_fail -= 1;
            bail!("the database is away");
        }
        match class {
            TicketClass::Fresh => state.fresh_claims.push(rows.len()),
            TicketClass::Due => state.due_claims.extend(rows),
        }
        let leased = |row: &u32| {
            let was_due = state.due.remove(row);
            let claimed = (class == TicketClass::Fresh || was_due) && state.open.remove(row);
            if claimed {
                state.claimed.insert(*row, began);
            }
            claimed
        };
        Ok(rows
            .iter()
            .copied()
            .filter(leased)
            .map(|row| (row, row))
            .collect())
    }

    async fn run(self: Arc<Self>, row: u32, trigger: Trigger, _permit: Permit) {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        {
            let mut state = self.state.lock().unwrap();
            state.most_running = state.most_running.max(running);
        }
        if row >= self.held_from.load(Ordering::SeqCst) {
            self.runs_may_end.acquire().await.unwrap().forget();
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
        let mut state = self.state.lock().unwrap();
        let early = trigger.claim_began.monotonic <= state.claimed[&row];
        state.done.push(Done {
            row,
            class: trigger.class,
            early,
            traceparent: trigger.traceparent,
        });
    }
}
