//! The loop of a stage: claim, act, record, acknowledge. Work has two sources that share one set of permits:
//! batches of messages, and due rows whenever messages leave permits free.
//!
//! A message is acknowledged when its row is settled, or when the claim finds nothing for it. Only the
//! [`Stage`] publishes messages and changes rows.

use std::{
    collections::HashMap,
    hash::Hash,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::jetstream::{AckKind, Message, message::Acker};
use futures_util::{FutureExt, StreamExt};
use runtime::Shutdown;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::Instrument;

use crate::{
    Nats,
    effect::{self, Effect, perform},
    metrics::Jobs,
    streams::{Source, TooFewServers},
    trace::{self, TRACEPARENT},
};

/// How long one pull stays open.
const PULL: Duration = Duration::from_secs(3);
/// The delay before a retry after a database outage.
const RETRY: Duration = Duration::from_secs(1);
/// The delay before the next pull after a failed one: the first delay, and the longest.
const PULL_AGAIN: Duration = Duration::from_millis(500);
const PULL_AGAIN_MOST: Duration = Duration::from_secs(5);
/// The interval between log lines about missing messages.
const TOLD_EVERY: Duration = Duration::from_mins(1);
/// The interval between two claims of due rows.
const REDRIVE: Duration = Duration::from_millis(500);

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`crate::payload::TopupJob`].
    Job,
    /// [`crate::payload::TopupReady`].
    Ready,
}

impl Kind {
    /// The name of the kind for dead messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Ready => "ready",
        }
    }

    const fn claim(self) -> Effect {
        match self {
            Self::Job => Effect::ClaimJobs,
            Self::Ready => Effect::ClaimReady,
        }
    }

    const fn claim_due(self) -> Effect {
        match self {
            Self::Job => Effect::ClaimDueJobs,
            Self::Ready => Effect::ClaimDueReady,
        }
    }

    /// The statement that claims the rows of messages.
    const fn statement(self) -> (&'static str, &'static str) {
        match self {
            Self::Job => ("UPDATE", "placements"),
            // A new delivery has a lease from its creation, so a first attempt is only read.
            Self::Ready => ("SELECT", "deliveries"),
        }
    }

    const fn acknowledge(self) -> Effect {
        match self {
            Self::Job => Effect::AckJob,
            Self::Ready => Effect::AckReady,
        }
    }

    const fn bury(self) -> Effect {
        match self {
            Self::Job => Effect::BuryJob,
            Self::Ready => Effect::BuryReady,
        }
    }
}

/// One stage of the pipeline.
pub trait Stage: Send + Sync + 'static {
    /// The kind of message.
    const KIND: Kind;
    /// The content of a message.
    type Message: DeserializeOwned + Send + Sync + 'static;
    /// A claimed row, which only this process works on until its lease ends.
    type Work: Send + 'static;
    /// Identifies both a message and its row.
    type Key: Eq + Hash + Send;

    /// The key of a message.
    fn key(&self, message: &Self::Message) -> Self::Key;
    /// The key of a claimed row.
    fn work_key(&self, work: &Self::Work) -> Self::Key;
    /// Claims the rows that messages name, if they still need work.
    fn claim(
        &self,
        messages: &[Self::Message],
    ) -> impl Future<Output = anyhow::Result<Vec<Self::Work>>> + Send;
    /// Claims at most `limit` due rows.
    fn claim_due(&self, limit: usize) -> impl Future<Output = anyhow::Result<Vec<Self::Work>>> + Send;
    /// Acts, records and publishes. Returns when the row needs nothing more before its next `redrive_at`.
    fn run(&self, work: Self::Work, trigger: Trigger<Self::Message>) -> impl Future<Output = ()> + Send;
}

/// The reason why a stage claimed a row.
#[derive(Debug)]
pub struct Trigger<M> {
    /// The message; `None` if the row was due.
    pub message: Option<M>,
    /// The message's trace context.
    pub traceparent: Option<String>,
    /// When this process started the claim; never later than the claim's commit.
    pub taken: Instant,
}

/// Runs a stage until the soft stop, with at most `permits` rows in flight. One pull may bring messages for
/// half of the permits.
pub fn start<S: Stage>(stage: Arc<S>, nats: &Nats, source: Source, permits: usize, shutdown: &Shutdown) {
    let worker = Worker {
        stage,
        nats: nats.clone(),
        source,
        permits: Arc::new(Semaphore::new(permits)),
        pull: permits.div_ceil(2),
        jobs: Jobs::new(S::KIND.claim().stage()),
        shutdown: shutdown.clone(),
    };
    let worker = Arc::new(worker);
    shutdown.spawn("message loop", worker.clone().messages());
    shutdown.spawn("redrive loop", worker.redrive());
}

/// The duration of an outage of pulls, and the log lines about it.
#[derive(Default)]
struct Outage {
    failures: u32,
    began: Option<Instant>,
    told: Option<Instant>,
}

impl Outage {
    fn pause(&self) -> Duration {
        match self.failures.checked_sub(1) {
            None => Duration::ZERO,
            Some(earlier) => (PULL_AGAIN * 2_u32.pow(earlier.min(10))).min(PULL_AGAIN_MOST),
        }
    }

    /// A lost stream or a restarted server costs one failure. A second failure means an outage.
    fn failed(&mut self, consumer: &str, error: &anyhow::Error) {
        self.failures = self.failures.saturating_add(1);
        self.began.get_or_insert_with(Instant::now);
        let lasts = self.failures > 1 || error.is::<TooFewServers>();
        let error = format!("{error:#}");
        if !lasts {
            tracing::warn!(consumer, error, "pulling again");
        } else if self.told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
            self.told = Some(Instant::now());
            tracing::error!(
                consumer,
                error,
                failures = self.failures,
                "no messages come from NATS; redrive picks the rows up when they are due"
            );
        }
    }

    fn over(&mut self, consumer: &str) {
        if let Some(began) = self.began
            && self.told.is_some()
        {
            let seconds = began.elapsed().as_secs();
            tracing::info!(consumer, seconds, "messages come from NATS again");
        }
        *self = Self::default();
    }
}

struct Worker<S> {
    stage: Arc<S>,
    nats: Nats,
    source: Source,
    permits: Arc<Semaphore>,
    /// The maximum number of messages per pull.
    pull: usize,
    jobs: Jobs,
    shutdown: Shutdown,
}

impl<S: Stage> Worker<S> {
    async fn messages(self: Arc<Self>) -> anyhow::Result<()> {
        let stop = self.shutdown.soft();
        let mut outage = Outage::default();
        while !stop.is_cancelled() {
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(outage.pause()) => {}
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.nats.connected() => {}
            }
            // After any error, missing streams and consumers are created again.
            if let Err(error) = self.pull_until_broken(&mut outage).await {
                outage.failed(&self.source.durable, &error);
            }
        }
        Ok(())
    }

    async fn pull_until_broken(self: &Arc<Self>, outage: &mut Outage) -> anyhow::Result<()> {
        let consumer = self.nats.consumer(&self.source).await?;
        let stop = self.shutdown.soft();
        loop {
            let most = u32::try_from(self.pull)?;
            let permits = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                permits = Arc::clone(&self.permits).acquire_many_owned(most) => permits?,
            };
            let batch = consumer
                .batch()
                .max_messages(self.pull)
                .expires(PULL)
                .messages()
                .await?;
            let mut chunks = pin!(batch.ready_chunks(self.pull));
            let mut permits = Some(permits);
            loop {
                let chunk = tokio::select! {
                    () = stop.cancelled() => None,
                    chunk = chunks.next() => chunk,
                };
                let Some(chunk) = chunk else { break };
                let messages: Vec<Message> = chunk
                    .into_iter()
                    .collect::<Result<_, _>>()
                    .map_err(|error| anyhow::anyhow!("{error}"))?;
                outage.over(&self.source.durable);
                let taken = permits.as_mut().and_then(|permits| permits.split(messages.len()));
                self.take(messages, taken).await;
            }
            drop(permits);
            if stop.is_cancelled() {
                // Messages of the pull that were not started go to another replica at once.
                while let Some(Some(chunk)) = chunks.next().now_or_never() {
                    for message in chunk.into_iter().flatten() {
                        self.acknowledge(&message.split().1, AckKind::Nak(None)).await;
                    }
                }
                return Ok(());
            }
            outage.over(&self.source.durable);
        }
    }

    /// Claims the rows of a chunk of messages, and starts the work.
    async fn take(self: &Arc<Self>, messages: Vec<Message>, permits: Option<OwnedSemaphorePermit>) {
        let taken = Instant::now();
        let mut readable = Vec::with_capacity(messages.len());
        let mut origins = Vec::with_capacity(messages.len());
        for message in messages {
            match serde_json::from_slice::<S::Message>(&message.payload) {
                Ok(read) => {
                    let (message, acker) = message.split();
                    let traceparent = message
                        .headers
                        .as_ref()
                        .and_then(|headers| headers.get(TRACEPARENT))
                        .map(|value| value.as_str().to_owned());
                    readable.push(read);
                    origins.push((traceparent, acker));
                }
                Err(error) => self.bury(message, &error.to_string()).await,
            }
        }
        if readable.is_empty() {
            return;
        }
        let receive = trace::receive(self.source.stream, &self.source.durable, readable.len());
        trace::gather(
            &receive,
            origins.iter().map(|(traceparent, _)| traceparent.as_deref()),
        );
        let claiming = async {
            let (operation, table) = S::KIND.statement();
            let span = trace::statement(operation, table);
            let claiming = perform(S::KIND.claim(), self.stage.claim(&readable));
            let claimed = claiming.instrument(span.clone()).await;
            trace::executed(&span, readable.len(), claimed.is_err());
            claimed
        };
        let claimed = claiming.instrument(receive).await;
        let claimed = match claimed {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "cannot claim; trying again");
                for (_, acker) in origins {
                    self.acknowledge(&acker, AckKind::Nak(Some(RETRY))).await;
                }
                return;
            }
        };
        self.jobs.claimed(claimed.len(), "message");
        let mut claimed: HashMap<S::Key, S::Work> = claimed
            .into_iter()
            .map(|work| (self.stage.work_key(&work), work))
            .collect();
        let mut permits = permits;
        for (message, (traceparent, acker)) in readable.into_iter().zip(origins) {
            match claimed.remove(&self.stage.key(&message)) {
                // Done, in flight elsewhere or due later: a late or repeated message is a no-op.
                None => self.acknowledge(&acker, AckKind::Ack).await,
                Some(work) => {
                    let permit = permits.as_mut().and_then(|permits| permits.split(1));
                    let trigger = Trigger {
                        message: Some(message),
                        traceparent,
                        taken,
                    };
                    let (worker, under_way) = (Arc::clone(self), self.jobs.begin());
                    self.shutdown.tracker().spawn(async move {
                        worker.stage.run(work, trigger).await;
                        worker.acknowledge(&acker, AckKind::Ack).await;
                        drop((under_way, permit));
                    });
                }
            }
        }
    }

    /// Moves an unreadable message to the dead messages. It is acknowledged only once the stream has stored
    /// it.
    async fn bury(&self, message: Message, reason: &str) {
        let (message, acker) = message.split();
        // Boxed, because it is rare and would enlarge every batch's future.
        let buried = Box::pin(self.nats.bury(S::KIND.as_str(), &message, reason));
        match perform(S::KIND.bury(), buried).await {
            Ok(()) => {
                tracing::error!(subject = %message.subject, reason, "unreadable message moved to TOPUP_DEAD");
                self.acknowledge(&acker, AckKind::Ack).await;
            }
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "cannot reach TOPUP_DEAD; the message will be redelivered"
                );
                self.acknowledge(&acker, AckKind::Nak(Some(RETRY))).await;
            }
        }
    }

    async fn acknowledge(&self, acker: &Acker, kind: AckKind) {
        let acknowledged = async {
            // Without the acknowledgement, the message is redelivered and is then a no-op.
            if let Err(error) = acker.ack_with(kind).await {
                tracing::debug!(%error, "a message was not acknowledged");
            }
            #[cfg(feature = "failpoints")]
            self.nats.flush().await;
        };
        perform(S::KIND.acknowledge(), acknowledged).await;
    }

    async fn redrive(self: Arc<Self>) -> anyhow::Result<()> {
        let stop = self.shutdown.soft();
        let mut more = false;
        loop {
            // After a claim that found rows, more may be due: a stage may have claimed only its share.
            let pause = if more { Duration::from_millis(20) } else { REDRIVE };
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
            // Redrive queues for a permit like the messages, so a flood of messages cannot starve due rows.
            let mut permits = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                permit = Arc::clone(&self.permits).acquire_owned() => permit?,
            };
            let free = u32::try_from(self.permits.available_permits())?;
            if let Ok(free) = Arc::clone(&self.permits).try_acquire_many_owned(free) {
                permits.merge(free);
            }
            let limit = permits.num_permits();
            // Taken before the claim, so that a stall between its commit and its response counts too.
            let taken = Instant::now();
            effect::before(S::KIND.claim_due());
            let due = match self.stage.claim_due(limit).await {
                Ok(due) => due,
                Err(error) => {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "cannot claim due rows; trying again"
                    );
                    more = false;
                    continue;
                }
            };
            more = !due.is_empty();
            // A claim that found nothing is not an effect.
            if more {
                effect::after(S::KIND.claim_due());
                self.jobs.claimed(due.len(), "redrive");
            }
            for work in due {
                let permit = permits.split(1);
                let trigger = Trigger {
                    message: None,
                    traceparent: None,
                    taken,
                };
                let (stage, under_way) = (Arc::clone(&self.stage), self.jobs.begin());
                self.shutdown.tracker().spawn(async move {
                    stage.run(work, trigger).await;
                    drop((under_way, permit));
                });
            }
        }
    }
}
