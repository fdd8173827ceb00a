//! The loop of a stage. Tickets come from two sides, messages and due rows; they wait for slots in
//! [lanes](crate::lanes), are claimed in batches, and run.
//!
//! A message is acknowledged once its tickets wait: its rows are in PostgreSQL, and the sweep finds those
//! that never finish. Nothing here publishes on behalf of a stage or changes a row: that is [`Stage`]'s.

use std::{
    collections::HashMap,
    hash::Hash,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::jetstream::{AckKind, Message, message::Acker};
use domain::PartnerId;
use futures_util::{FutureExt, StreamExt};
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
/// How long a message waits to be delivered again when `TOPUP_DEAD` was away.
const RETRY: Duration = Duration::from_secs(1);
/// The wait between failing pulls: first, and at most.
const PULL_AGAIN: Duration = Duration::from_millis(500);
const PULL_AGAIN_MOST: Duration = Duration::from_secs(5);
/// How often it is logged that no messages come.
const LOG_EVERY: Duration = Duration::from_mins(1);
/// How often due rows are looked for: while there are none, and at most.
const REDRIVE: Duration = Duration::from_millis(500);
const REDRIVE_MOST: Duration = Duration::from_millis(5);
/// The most due rows of one look.
const DUE: usize = 256;
/// For how long a claim is retried; then its rows are left to redrive.
const CLAIM: Duration = Duration::from_secs(5);
const CLAIM_AGAIN: Duration = Duration::from_millis(200);
/// How long a stop lets tickets that wait get their slots; then they are left to redrive.
const DRAIN: Duration = Duration::from_secs(2);
/// How often rows are looked for whose first lease ended without an outcome.
const SWEEP: Duration = Duration::from_secs(1);

/// What a stage and its statements are called.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// The program, in metrics.
    pub stage: &'static str,
    /// The kind of message, in dead letters.
    pub kind: &'static str,
    /// Operation and table of the claim of rows that messages name, in spans.
    pub claims: (&'static str, &'static str),
    /// The claim of rows that messages name.
    pub claim: Effect,
    /// The lease of due rows.
    pub lease_due: Effect,
    /// The claim of due rows.
    pub claim_due: Effect,
    /// The acknowledgement of a message.
    pub acknowledge: Effect,
    /// Putting an unreadable message aside.
    pub bury: Effect,
}

/// One stage of the pipeline.
pub trait Stage: Send + Sync + 'static {
    /// What it is called.
    const NAMES: Names;
    /// A message.
    type Message: DeserializeOwned + Send;
    /// Identifies a row.
    type Id: Clone + Eq + Hash + Send + Sync + 'static;
    /// What a message says to all of its rows.
    type Hint: Send + Sync + 'static;
    /// A claimed row: this process alone works on it until its lease ends.
    type Work: Send + 'static;

    /// The rows that a message names, and what it says to all of them.
    fn open(&self, message: Self::Message) -> (Vec<Ticket<Self::Id>>, Self::Hint);
    /// How many slots a lane may hold now; 0 while its breaker is open. Called often, with a lock held.
    fn most(&self, _lane: &str) -> usize {
        usize::MAX
    }
    /// Looks for due rows; changes nothing.
    fn due(&self, look: Look) -> impl Future<Output = anyhow::Result<Found<Self::Id>>> + Send;
    /// Leases due rows; returns those that this process got.
    fn lease(&self, rows: &[Self::Id]) -> impl Future<Output = anyhow::Result<Vec<Self::Id>>> + Send;
    /// Claims rows that messages named or, if `overdue`, that this process has leased. Returns those that
    /// still need something.
    fn claim(
        &self,
        rows: &[Self::Id],
        overdue: bool,
    ) -> impl Future<Output = anyhow::Result<Vec<Self::Work>>> + Send;
    /// Identifies a claimed row.
    fn id(work: &Self::Work) -> &Self::Id;
    /// Acts, records and publishes. The slot is returned when it is dropped, at the latest at the end.
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
    /// What it may fail together with; empty if that is not known.
    pub lane: Arc<str>,
    /// Whose it is.
    pub partner: PartnerId,
}

/// Where a look for due rows begins and how much it may return.
#[derive(Clone, Debug)]
pub struct Look {
    /// The most rows.
    pub limit: usize,
    /// The most rows of one partner in one lane.
    pub per_lane: usize,
    /// The lane and partner after which the look begins.
    pub after: Option<(String, PartnerId)>,
}

/// What a look for due rows found.
#[derive(Clone, Debug)]
pub struct Found<Id> {
    /// The rows, none of them leased.
    pub due: Vec<Ticket<Id>>,
    /// Where the next look begins; `None` after the last lane.
    pub after: Option<(String, PartnerId)>,
}

/// What made a stage take a row up.
#[derive(Debug)]
pub struct Trigger<Hint> {
    /// The message; none when the row was due.
    pub message: Option<Arc<Received<Hint>>>,
    /// When this process set about claiming it; never later than the claim's commit.
    pub claimed: Instant,
}

impl<Hint> Trigger<Hint> {
    /// The message's trace context.
    pub fn traceparent(&self) -> Option<&str> {
        self.message.as_ref()?.traceparent.as_deref()
    }
}

/// A message, apart from the rows that it names.
#[derive(Debug)]
pub struct Received<Hint> {
    /// What it says to all of its rows.
    pub hint: Hint,
    /// Its trace context.
    pub traceparent: Option<String>,
}

/// What [`start`] needs beside the stage.
pub struct Settings {
    /// Where messages come from; without it only due rows are worked on.
    pub source: Option<Source>,
    /// How much runs at once.
    pub limits: Limits,
    /// The provider whose rows these are, in metrics.
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

/// Runs `sweep` once a second until the soft stop, at once again where it says that more is left. It
/// gives due rows to rows whose first lease ended without an outcome, and returns how many, and whether
/// more are left.
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
                    tracing::warn!(error = format!("{error:#}"), "cannot sweep");
                    break;
                }
            }
        }
    }
    Ok(())
}

/// How long nothing could be pulled, and what was logged of it.
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

    /// One failure is what a lost stream or a restarted server costs. What comes again lasts.
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
                "no messages come from NATS; redrive still finds due rows, later"
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

/// A ticket that waits, with the message that brought it.
type Waiting<S> = (<S as Stage>::Id, Option<Arc<Received<<S as Stage>::Hint>>>);

struct Worker<S: Stage> {
    stage: Arc<S>,
    nats: Nats,
    lanes: Arc<Lanes<Waiting<S>>>,
    /// The most due rows of one lane and partner in one look.
    per_lane: usize,
    jobs: Jobs,
    /// Cancelled once no more messages are taken.
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
            // Whatever was wrong, streams and consumer are made again where they are missing.
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
                // What came with the pull and was not accepted goes to another replica at once.
                while let Some(Some(chunk)) = chunks.next().now_or_never() {
                    for message in chunk.into_iter().flatten() {
                        self.acknowledge(&message.split().1, AckKind::Nak(None)).await;
                    }
                }
                return Ok(());
            }
            outage.over(&source.durable);
        }
    }

    /// Lets the rows that messages name wait for slots, then acknowledges the messages.
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
            self.jobs.deferred(refused);
            for acker in ackers {
                self.acknowledge(&acker, AckKind::Ack).await;
            }
        };
        accepting.instrument(span).await;
    }

    /// Claims tickets that got their slots, and runs them.
    async fn claims(self: Arc<Self>, class: Class) -> anyhow::Result<()> {
        let mut ended = pin!(self.ended());
        loop {
            tokio::select! {
                granted = self.lanes.granted(class) => self.claim(class, granted).await,
                () = &mut ended => return Ok(()),
            }
        }
    }

    /// Returns once the stage stops and nothing waits any more, or for too long.
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

    /// The span of the statement that claims rows, with the contexts of the messages that named them.
    fn claim_span(granted: &[(Option<Arc<Received<S::Hint>>>, Slot)]) -> Span {
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

    /// Retries for a while: the database may only be away for a moment. `None`: left to redrive.
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

    /// Puts an unreadable message aside. It is acknowledged only once the dead-letter stream has it.
    async fn bury(&self, message: Message, reason: &str) {
        let (message, acker) = message.split();
        // Rare, and too large to be part of every batch's future.
        let buried = Box::pin(self.nats.bury(S::NAMES.kind, &message, reason));
        match perform(S::NAMES.bury, buried).await {
            Ok(()) => {
                tracing::error!(subject = %message.subject, reason, "unreadable message moved to TOPUP_DEAD");
                self.acknowledge(&acker, AckKind::Ack).await;
            }
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "cannot reach TOPUP_DEAD; the message comes again"
                );
                self.acknowledge(&acker, AckKind::Nak(Some(RETRY))).await;
            }
        }
    }

    async fn acknowledge(&self, acker: &Acker, kind: AckKind) {
        let acknowledged = async {
            // Without it the message comes again, and its rows are claimed once all the same.
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
            let leased = match self.lease_due(&mut after).await {
                Ok(leased) => leased,
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "cannot look for due rows");
                    after = None;
                    0
                }
            };
            pause = if leased == 0 && after.is_none() && began_anew {
                REDRIVE
            } else {
                REDRIVE_MOST
            };
            if leased > 0 && after.is_none() {
                // More may be due in the same lanes, once what was leased has its slots.
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    () = self.lanes.drained() => {}
                    () = tokio::time::sleep(REDRIVE) => {}
                }
            }
        }
    }

    /// Looks for due rows of lanes in which none wait yet, and lets those that it can lease wait.
    async fn lease_due(&self, after: &mut Option<(String, PartnerId)>) -> anyhow::Result<usize> {
        let look = Look {
            limit: DUE,
            per_lane: self.per_lane,
            after: after.take(),
        };
        let found = self.stage.due(look).await?;
        *after = found.after;
        let tagged = found.due.into_iter().map(|row| (row.id, (row.lane, row.partner)));
        let mut due: HashMap<S::Id, Tags> = tagged.filter(|(_, tags)| !self.lanes.waits(tags)).collect();
        if due.is_empty() {
            return Ok(0);
        }
        let rows: Vec<S::Id> = due.keys().cloned().collect();
        let leased = perform(S::NAMES.lease_due, self.stage.lease(&rows)).await?;
        let count = leased.len();
        let tickets = leased
            .into_iter()
            .filter_map(|row| Some((due.remove(&row)?, (row, None))));
        self.lanes.offer(Class::Overdue, tickets);
        Ok(count)
    }
}
