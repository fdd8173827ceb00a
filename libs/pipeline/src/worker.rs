//! The loop of a stage. Tickets have two sources: messages and due rows. They wait for slots in
//! [lanes](crate::lanes), are claimed in batches, and run.
//!
//! A message is acknowledged once its tickets wait or are deferred to redrive: its rows are in PostgreSQL, and
//! the sweep finds those that never finish. Only the [`Stage`] publishes messages and changes rows.

use std::{
    collections::HashMap,
    hash::Hash,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::jetstream::{AckKind, Message, message::Acker};
use domain::PartnerId;
use futures_util::StreamExt;
use runtime::Shutdown;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use crate::{
    Nats,
    effect::{Effect, perform},
    lanes::{Class, Lanes, Limits, Slot, Tags},
    metrics::Jobs,
    payload::MOST,
    streams::{Source, TooFewServers},
    trace::{self, TRACEPARENT},
};

/// How long one pull stays open, and the most messages it brings.
const PULL: Duration = Duration::from_secs(3);
const PULL_MOST: usize = 64;
/// The delay before the redelivery of an unreadable message that `TOPUP_DEAD` did not store.
const RETRY: Duration = Duration::from_secs(1);
/// The delay before the next pull after a failed one: the first delay, and the longest.
const PULL_AGAIN: Duration = Duration::from_millis(500);
const PULL_AGAIN_MOST: Duration = Duration::from_secs(5);
/// How long a stop waits for a message that the server has sent already.
const LAST_MESSAGES: Duration = Duration::from_millis(50);
/// The interval between log lines about missing messages.
const LOG_EVERY: Duration = Duration::from_mins(1);
/// The interval between two looks for due rows: while none are due, and the shortest.
const REDRIVE: Duration = Duration::from_millis(500);
const REDRIVE_MOST: Duration = Duration::from_millis(5);
/// The most due rows of one look.
const DUE: usize = 256;
/// The time for which a claim is retried, and the delay before a retry. Then its rows are left to redrive.
const CLAIM: Duration = Duration::from_secs(5);
const CLAIM_AGAIN: Duration = Duration::from_millis(200);
/// The time for which a stop still gives slots to waiting tickets. Then they are left to redrive.
const DRAIN: Duration = Duration::from_secs(2);
/// The interval between two sweeps.
const SWEEP: Duration = Duration::from_secs(1);

/// The names of a stage and of its effects.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// The name of the stage in metrics.
    pub stage: &'static str,
    /// The name of the kind of message for dead messages.
    pub kind: &'static str,
    /// Operation and table of the statement that claims the rows of messages, for its span.
    pub claims: (&'static str, &'static str),
    /// The claim of the rows of messages.
    pub claim: Effect,
    /// The lease of due rows.
    pub lease_due: Effect,
    /// The claim of due rows.
    pub claim_due: Effect,
    /// The acknowledgement of a message.
    pub acknowledge: Effect,
    /// The move of an unreadable message to the dead messages.
    pub bury: Effect,
}

/// One stage of the pipeline.
pub trait Stage: Send + Sync + 'static {
    /// The names of the stage.
    const NAMES: Names;
    /// The content of a message.
    type Message: DeserializeOwned + Send;
    /// Identifies a row.
    type Id: Clone + Eq + Hash + Send + Sync + 'static;
    /// The content of a message for all of its rows.
    type Hint: Send + Sync + 'static;
    /// A claimed row, which only this process works on until its lease ends.
    type Work: Send + 'static;

    /// The rows of a message, and its content for all of them.
    fn open(&self, message: Self::Message) -> (Vec<Ticket<Self::Id>>, Self::Hint);
    /// The number of slots that a lane may hold now; 0 while its breaker is open. Called often, with a lock
    /// held.
    fn most(&self, _lane: &str) -> usize {
        usize::MAX
    }
    /// Makes rows due at once whose tickets found no room. On an error, the sweep finds them later.
    fn defer(&self, rows: &[Self::Id]) -> impl Future<Output = anyhow::Result<()>> + Send;
    /// Looks for due rows; changes nothing.
    fn due(&self, look: Look) -> impl Future<Output = anyhow::Result<Found<Self::Id>>> + Send;
    /// Leases due rows; returns those whose lease this process got.
    fn lease(&self, rows: &[Self::Id]) -> impl Future<Output = anyhow::Result<Vec<Self::Id>>> + Send;
    /// Claims the rows of messages or, if `overdue`, due rows that this process has leased. Returns those
    /// that still need work.
    fn claim(
        &self,
        rows: &[Self::Id],
        overdue: bool,
    ) -> impl Future<Output = anyhow::Result<Vec<Self::Work>>> + Send;
    /// The id of a claimed row.
    fn id(work: &Self::Work) -> &Self::Id;
    /// Acts, records and publishes. The slot is returned when it is dropped, at the latest at the end.
    /// Returns when the row needs nothing more before it is next due.
    fn run(
        self: Arc<Self>,
        work: Self::Work,
        trigger: Trigger<Self::Hint>,
        slot: Slot,
    ) -> impl Future<Output = ()> + Send;
}

/// A row that waits for a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket<Id> {
    /// The row.
    pub id: Id,
    /// The lane: rows that may fail together. Empty if it is not known.
    pub lane: Arc<str>,
    /// The partner of the row.
    pub partner: PartnerId,
}

/// The limits of a look for due rows, and where it begins.
#[derive(Clone, Debug)]
pub struct Look {
    /// The most rows.
    pub limit: usize,
    /// The most rows of one partner in one lane.
    pub per_lane: usize,
    /// The lane and partner after which the look begins.
    pub after: Option<(String, PartnerId)>,
}

/// The result of a look for due rows.
#[derive(Clone, Debug)]
pub struct Found<Id> {
    /// The rows, none of them leased.
    pub due: Vec<Ticket<Id>>,
    /// Where the next look begins; `None` after the last lane.
    pub after: Option<(String, PartnerId)>,
}

/// The reason why a stage claimed a row.
#[derive(Debug)]
pub struct Trigger<Hint> {
    /// The message; `None` if the row was due.
    pub message: Option<Arc<Received<Hint>>>,
    /// When this process started the claim; never later than the claim's commit.
    pub claimed: Instant,
}

impl<Hint> Trigger<Hint> {
    /// The message's trace context.
    pub fn traceparent(&self) -> Option<&str> {
        self.message.as_ref()?.traceparent.as_deref()
    }
}

/// A message without its rows.
#[derive(Debug)]
pub struct Received<Hint> {
    /// The content for all of its rows.
    pub hint: Hint,
    /// The message's trace context.
    pub traceparent: Option<String>,
}

/// The settings of [`start`].
pub struct Settings {
    /// The source of messages; `None`: the stage works on due rows only.
    pub source: Option<Source>,
    /// The limits of the lanes.
    pub limits: Limits,
    /// The provider of the rows, for metrics; `None` if the stage has no provider.
    pub provider: Option<String>,
}

/// Runs a stage until the soft stop.
pub fn start<S: Stage>(stage: Arc<S>, nats: &Nats, settings: Settings, shutdown: &Shutdown) {
    let breakers = Arc::clone(&stage);
    let worker = Arc::new(Worker {
        stage,
        nats: nats.clone(),
        lanes: Lanes::new(settings.limits, move |lane| breakers.most(lane)),
        per_lane: settings.limits.slots.div_ceil(2).min(DUE),
        jobs: Jobs::new(S::NAMES.stage, settings.provider),
        pulled: CancellationToken::new(),
        shutdown: shutdown.clone(),
    });
    match settings.source {
        Some(source) => shutdown.spawn("message loop", Arc::clone(&worker).messages(source)),
        None => worker.pulled.cancel(),
    }
    shutdown.spawn("claims of messages", Arc::clone(&worker).claims(Class::Fresh));
    shutdown.spawn("claims of due rows", Arc::clone(&worker).claims(Class::Overdue));
    shutdown.spawn("redrive loop", worker.redrive());
}

/// Runs `sweep` once a second until the soft stop, and again at once while more rows are left. `sweep` gives
/// due rows to rows whose first lease ended without an outcome. It returns their number, and whether more are
/// left.
pub async fn sweep<F, Sweeping>(
    stage: &'static str,
    effect: Effect,
    shutdown: Shutdown,
    sweep: F,
) -> anyhow::Result<()>
where
    F: Fn() -> Sweeping,
    Sweeping: Future<Output = anyhow::Result<(u64, bool)>>,
{
    let jobs = Jobs::new(stage, None);
    let mut ticks = shutdown.ticks(SWEEP);
    while ticks.next().await {
        loop {
            match perform(effect, sweep()).await {
                Ok((late, more)) => {
                    jobs.swept(late);
                    if !more || shutdown.is_stopping() {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "cannot sweep; trying again");
                    break;
                }
            }
        }
    }
    Ok(())
}

/// The duration of an outage of pulls, and the log lines about it.
#[derive(Default)]
struct Outage {
    failures: u32,
    began: Option<Instant>,
    logged: Option<Instant>,
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
        } else if self.logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            self.logged = Some(Instant::now());
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
            && self.logged.is_some()
        {
            let seconds = began.elapsed().as_secs();
            tracing::info!(consumer, seconds, "messages come from NATS again");
        }
        *self = Self::default();
    }
}

/// The message that brought a ticket; `None` for a due row.
type Brought<S> = Option<Arc<Received<<S as Stage>::Hint>>>;
/// A ticket that waits, with its message.
type Waiting<S> = (<S as Stage>::Id, Brought<S>);

struct Worker<S: Stage> {
    stage: Arc<S>,
    nats: Nats,
    lanes: Arc<Lanes<Waiting<S>>>,
    /// The most due rows of one lane and partner in one look.
    per_lane: usize,
    jobs: Jobs,
    /// Cancelled once no more messages are pulled.
    pulled: CancellationToken,
    shutdown: Shutdown,
}

impl<S: Stage> Worker<S> {
    async fn messages(self: Arc<Self>, source: Source) -> anyhow::Result<()> {
        let _pulled = self.pulled.clone().drop_guard();
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
            if let Err(error) = self.pull_until_broken(&source, &mut outage).await {
                outage.failed(&source.durable, &error);
            }
        }
        Ok(())
    }

    async fn pull_until_broken(&self, source: &Source, outage: &mut Outage) -> anyhow::Result<()> {
        let consumer = self.nats.consumer(source).await?;
        let stop = self.shutdown.soft();
        loop {
            let room = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                room = self.lanes.room_for(MOST) => room,
            };
            let most = (room / MOST).min(PULL_MOST);
            let batch = consumer.batch().max_messages(most).expires(PULL);
            let mut chunks = pin!(batch.messages().await?.ready_chunks(most));
            while let Some(chunk) = tokio::select! {
                biased;
                () = stop.cancelled() => None,
                chunk = chunks.next() => chunk,
            } {
                // An error ends the pull, but not what came with it.
                let mut broken = None;
                let messages = chunk.into_iter().filter_map(|message| match message {
                    Ok(message) => Some(message),
                    Err(error) => {
                        broken.get_or_insert(error);
                        None
                    }
                });
                let messages: Vec<Message> = messages.collect();
                if !messages.is_empty() {
                    outage.over(&source.durable);
                    self.take(source, messages).await;
                }
                if let Some(error) = broken {
                    anyhow::bail!("{error}");
                }
            }
            if stop.is_cancelled() {
                // Messages of the pull that were not accepted go to another replica at once.
                while let Ok(Some(chunk)) = tokio::time::timeout(LAST_MESSAGES, chunks.next()).await {
                    for message in chunk.into_iter().flatten() {
                        self.acknowledge(&message.split().1, AckKind::Nak(None)).await;
                    }
                }
                return Ok(());
            }
            outage.over(&source.durable);
        }
    }

    /// Offers the rows of messages to the lanes, then acknowledges the messages.
    async fn take(&self, source: &Source, messages: Vec<Message>) {
        let mut ackers = Vec::with_capacity(messages.len());
        let mut tickets = Vec::with_capacity(messages.len());
        let mut contexts = Vec::new();
        for message in messages {
            match serde_json::from_slice::<S::Message>(&message.payload) {
                Ok(read) => {
                    let (message, acker) = message.split();
                    let traceparent = message
                        .headers
                        .as_ref()
                        .and_then(|headers| headers.get(TRACEPARENT))
                        .map(|value| value.as_str().to_owned());
                    contexts.extend(traceparent.clone());
                    let (rows, hint) = self.stage.open(read);
                    let received = Arc::new(Received { hint, traceparent });
                    tickets.extend(rows.into_iter().map(|row| {
                        let waiting = (row.id, Some(Arc::clone(&received)));
                        ((row.lane, row.partner), waiting)
                    }));
                    ackers.push(acker);
                }
                Err(error) => self.bury(message, &error.to_string()).await,
            }
        }
        let span = trace::receive(source.stream, &source.durable, ackers.len(), &contexts);
        let accepting = async {
            let refused = self.lanes.offer(Class::Fresh, tickets.into_iter());
            self.defer(refused).await;
            for acker in ackers {
                self.acknowledge(&acker, AckKind::Ack).await;
            }
        };
        accepting.instrument(span).await;
    }

    async fn defer(&self, refused: Vec<Waiting<S>>) {
        if refused.is_empty() {
            return;
        }
        self.jobs.deferred(refused.len());
        let rows: Vec<S::Id> = refused.into_iter().map(|(row, _)| row).collect();
        if let Err(error) = self.stage.defer(&rows).await {
            tracing::warn!(
                error = format!("{error:#}"),
                rows = rows.len(),
                "cannot defer; the sweep finds the rows"
            );
        }
    }

    /// Claims the tickets that got slots, and starts the work.
    async fn claims(self: Arc<Self>, class: Class) -> anyhow::Result<()> {
        let mut ended = pin!(self.ended());
        loop {
            tokio::select! {
                granted = self.lanes.granted(class) => self.claim(class, granted).await,
                () = &mut ended => return Ok(()),
            }
        }
    }

    /// Returns once the stage stops and no ticket waits, or [`DRAIN`] has passed.
    async fn ended(&self) {
        self.shutdown.soft().cancelled().await;
        self.pulled.cancelled().await;
        let idle = async {
            while !self.lanes.is_idle() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(DRAIN, idle).await;
    }

    async fn claim(&self, class: Class, granted: Vec<(Waiting<S>, Slot)>) {
        let claimed = Instant::now();
        let overdue = class == Class::Overdue;
        let (rows, rest): (Vec<S::Id>, Vec<_>) = granted
            .into_iter()
            .map(|((id, message), slot)| (id, (message, slot)))
            .unzip();
        let span = if overdue {
            Span::none()
        } else {
            Self::claim_span(&rest)
        };
        let claiming = self.claim_rows(&rows, overdue).instrument(span.clone());
        let works = claiming.await;
        trace::executed(&span, rows.len(), works.is_none());
        let Some(works) = works else { return };
        self.jobs
            .claimed(works.len(), if overdue { "redrive" } else { "message" });
        let mut waiting: HashMap<S::Id, _> = rows.into_iter().zip(rest).collect();
        for work in works {
            let Some((message, slot)) = waiting.remove(S::id(&work)) else {
                continue;
            };
            let trigger = Trigger { message, claimed };
            let under_way = self.jobs.begin(overdue);
            // Boxed: a large future would be copied several times on its way into the task.
            let running = Box::pin(Arc::clone(&self.stage).run(work, trigger, slot));
            self.shutdown.tracker().spawn(async move {
                running.await;
                drop(under_way);
            });
        }
    }

    /// The span of the statement that claims rows, with the contexts of their messages.
    fn claim_span(granted: &[(Brought<S>, Slot)]) -> Span {
        let (operation, table) = S::NAMES.claims;
        let span = trace::statement(operation, table);
        if !span.is_none() {
            let mut contexts: Vec<&str> = granted
                .iter()
                .filter_map(|(message, _)| message.as_ref()?.traceparent.as_deref())
                .collect();
            contexts.sort_unstable();
            contexts.dedup();
            trace::gather(&span, contexts.into_iter().map(Some));
        }
        span
    }

    /// Claims rows, with retries for a short outage of the database. `None`: the rows are left to redrive.
    async fn claim_rows(&self, rows: &[S::Id], overdue: bool) -> Option<Vec<S::Work>> {
        let effect = if overdue {
            S::NAMES.claim_due
        } else {
            S::NAMES.claim
        };
        let began = Instant::now();
        loop {
            let claimed = perform(effect, self.stage.claim(rows, overdue)).await;
            let error = match claimed {
                Ok(works) => return Some(works),
                Err(error) => format!("{error:#}"),
            };
            if began.elapsed() >= CLAIM || self.shutdown.is_stopping() {
                tracing::warn!(
                    error,
                    rows = rows.len(),
                    "cannot claim; the rows are left to redrive"
                );
                return None;
            }
            tracing::warn!(error, rows = rows.len(), "cannot claim; trying again");
            tokio::time::sleep(CLAIM_AGAIN).await;
        }
    }

    /// Moves an unreadable message to the dead messages. It is acknowledged only once the stream has stored
    /// it.
    async fn bury(&self, message: Message, reason: &str) {
        let (message, acker) = message.split();
        // Boxed, because it is rare and would enlarge every batch's future.
        let buried = Box::pin(self.nats.bury(S::NAMES.kind, &message, reason));
        match perform(S::NAMES.bury, buried).await {
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
            // Without the acknowledgement, the message is redelivered; its rows are claimed only once.
            if let Err(error) = acker.ack_with(kind).await {
                tracing::debug!(%error, "a message was not acknowledged");
            }
            #[cfg(feature = "failpoints")]
            self.nats.send_now().await;
        };
        perform(S::NAMES.acknowledge, acknowledged).await;
    }

    async fn redrive(self: Arc<Self>) -> anyhow::Result<()> {
        let stop = self.shutdown.soft();
        let mut after = None;
        let mut pause = REDRIVE;
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            }
            // A breaker may have closed since.
            self.lanes.look();
            let began_anew = after.is_none();
            let found = match self.lease_due(&mut after).await {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "cannot lease due rows; trying again"
                    );
                    after = None;
                    false
                }
            };
            pause = if !found && after.is_none() && began_anew {
                REDRIVE
            } else {
                REDRIVE_MOST
            };
            if found && after.is_none() {
                // More rows of the same lanes may be due. The next look waits until one of them is drained.
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    () = self.lanes.drained() => {}
                    () = tokio::time::sleep(REDRIVE) => {}
                }
            }
        }
    }

    /// Looks for due rows whose queue has no waiting due rows, leases them and offers them to the lanes.
    /// Returns whether any row was due.
    async fn lease_due(&self, after: &mut Option<(String, PartnerId)>) -> anyhow::Result<bool> {
        let limit = self.lanes.room(Class::Overdue).min(DUE);
        if limit == 0 {
            *after = None;
            return Ok(false);
        }
        let look = Look {
            limit,
            per_lane: self.per_lane,
            after: after.take(),
        };
        let found = self.stage.due(look).await?;
        *after = found.after;
        let any = !found.due.is_empty();
        let tagged = found.due.into_iter().map(|row| (row.id, (row.lane, row.partner)));
        let mut due: HashMap<S::Id, Tags> = tagged.filter(|(_, tags)| !self.lanes.waits(tags)).collect();
        if due.is_empty() {
            return Ok(any);
        }
        let rows: Vec<S::Id> = due.keys().cloned().collect();
        let leased = perform(S::NAMES.lease_due, self.stage.lease(&rows)).await?;
        let tickets = leased
            .into_iter()
            .filter_map(|row| Some((due.remove(&row)?, (row, None))));
        self.lanes.offer(Class::Overdue, tickets);
        Ok(any)
    }
}
