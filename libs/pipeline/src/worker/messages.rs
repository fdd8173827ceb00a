//! Pulls messages from JetStream and makes tickets of them. It runs as one of the loops of
//! [`super::start`].
//!
//! A message is a hint that rows are new. It is not acknowledged and never delivered again. If it
//! is lost, or if this process dies after taking it, the sweep makes its rows due at the end of
//! their first lease. So every error here costs time only, and the loop pulls again after any of
//! them. When the process stops, it defers the rows of the messages that it no longer queues, so
//! that another replica finds them at once. The sweep finds those that still wait in a queue and
//! get no permit while it drains.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use async_nats::jetstream::Message;
use futures_util::StreamExt;
use runtime::outage;
use tracing::Instrument;

use super::{Handler, QueuedTicket, Worker};
use crate::{
    effect::{Effect, perform},
    payload::ROWS_PER_MESSAGE,
    permits::QueueKey,
    streams::{DEAD, MessageSource, TooFewServers},
    trace::{self, TRACEPARENT},
};

/// How long one pull stays open if no messages come.
const PULL: Duration = Duration::from_secs(3);
/// The maximum number of messages of one pull.
const PULL_MESSAGES: usize = 64;
/// The delay before the next pull after a failed one. It doubles with each further failure.
const PULL_AGAIN: Duration = Duration::from_millis(500);
/// The longest delay before the next pull.
const PULL_AGAIN_MAX: Duration = Duration::from_secs(5);
/// How long a stop waits for messages that the server has already sent.
const LAST_MESSAGES: Duration = Duration::from_millis(50);
/// The interval between log lines about missing messages.
const LOG_EVERY: Duration = Duration::from_mins(1);

/// The pulls that failed in a row: how long that lasts, when to pull again, and what has been
/// logged about it.
#[derive(Default)]
struct FailedPulls {
    failures: u32,
    began: Option<Instant>,
    logged: Option<Instant>,
}

impl FailedPulls {
    /// The delay before the next pull.
    fn pause(&self) -> Duration {
        match self.failures.checked_sub(1) {
            None => Duration::ZERO,
            Some(earlier) => (PULL_AGAIN * 2_u32.pow(earlier.min(10))).min(PULL_AGAIN_MAX),
        }
    }

    /// Counts and logs a failed pull. A stream that was lost or a server that restarted costs one
    /// failure, so only a second one in a row means an outage. A cluster that is too small is one
    /// at once, because no retry helps.
    fn add(&mut self, consumer: &str, error: &anyhow::Error) {
        self.failures = self.failures.saturating_add(1);
        self.began.get_or_insert_with(Instant::now);
        let lasts = self.failures > 1 || error.is::<TooFewServers>();
        let error = format!("{error:#}");
        if !lasts {
            tracing::warn!(consumer, error, "cannot pull messages; trying again");
        } else if self.logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            self.logged = Some(Instant::now());
            tracing::error!(
                consumer,
                error,
                failures = self.failures,
                "no messages come from NATS; orders are still carried out, but later, because \
                 this stage finds its rows in PostgreSQL once they are due"
            );
        }
    }

    /// A pull succeeded, so the outage is over.
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

/// The content of messages that were read together.
struct Opened<Id> {
    messages: usize,
    tickets: Vec<(QueueKey, QueuedTicket<Id>)>,
    /// The trace contexts of the messages.
    contexts: Vec<Arc<str>>,
}

impl<H: Handler> Worker<H> {
    /// Pulls messages until the soft stop.
    pub(super) async fn messages(self: Arc<Self>, source: MessageSource) -> anyhow::Result<()> {
        let _pulled = self.pulled.clone().drop_guard();
        let stop = self.shutdown.soft();
        let mut failed = FailedPulls::default();
        while !stop.is_cancelled() {
            let waiting = async {
                tokio::time::sleep(failed.pause()).await;
                self.nats.until_up().await;
            };
            if stop.run_until_cancelled(waiting).await.is_none() {
                break;
            }
            // After any error the loop begins anew, which also creates missing streams and
            // consumers.
            if let Err(error) = self.pull_until_broken(&source, &mut failed).await {
                failed.add(&source.durable, &error);
            }
        }
        Ok(())
    }

    /// Pulls messages until the soft stop, until NATS is down, or until an error. It asks for no
    /// more messages than the queues have room for, so that a busy replica leaves messages to the
    /// others.
    async fn pull_until_broken(
        &self,
        source: &MessageSource,
        failed: &mut FailedPulls,
    ) -> anyhow::Result<()> {
        let consumer = self.nats.consumer(source).await?;
        let stop = self.shutdown.soft();
        loop {
            let Some(room) = stop
                .run_until_cancelled(self.queues.room_for(ROWS_PER_MESSAGE))
                .await
            else {
                return Ok(());
            };
            let messages = (room / ROWS_PER_MESSAGE).min(PULL_MESSAGES);
            let batch = consumer.batch().max_messages(messages).expires(PULL);
            let mut chunks = pin!(batch.messages().await?.ready_chunks(messages));
            loop {
                let next = tokio::select! {
                    biased;
                    next = stop.run_until_cancelled(chunks.next()) => next,
                    // Nobody would respond to this pull any more, and it would last for seconds
                    // after NATS is back.
                    () = self.nats.until_down() => return Ok(()),
                };
                let Some(Some(chunk)) = next else {
                    break;
                };
                // An error ends the pull, but the messages that came before it are accepted.
                let (messages, errors): (Vec<_>, Vec<_>) =
                    chunk.into_iter().partition(Result::is_ok);
                if !messages.is_empty() {
                    failed.over(&source.durable);
                    self.accept(source, messages.into_iter().flatten()).await;
                }
                if let Some(Err(error)) = errors.into_iter().next() {
                    anyhow::bail!("{error}");
                }
            }
            if stop.is_cancelled() {
                while let Ok(Some(chunk)) = tokio::time::timeout(LAST_MESSAGES, chunks.next()).await
                {
                    let tickets = self.open(chunk.into_iter().flatten()).await.tickets;
                    self.defer(tickets.into_iter().map(|(_, ticket)| ticket).collect())
                        .await;
                }
                return Ok(());
            }
            failed.over(&source.durable);
        }
    }

    /// Queues the tickets of messages. Rows for whose tickets there is no room are deferred.
    async fn accept(&self, source: &MessageSource, messages: impl Iterator<Item = Message>) {
        let opened = self.open(messages).await;
        let span = trace::receive(
            source.stream,
            &source.durable,
            opened.messages,
            &opened.contexts,
        );
        self.defer(self.queues.offer_fresh(opened.tickets.into_iter()))
            .instrument(span)
            .await;
    }

    /// Reads messages and makes their tickets. Messages that cannot be read are moved to the dead
    /// messages.
    async fn open(&self, messages: impl Iterator<Item = Message>) -> Opened<H::Id> {
        let mut opened = Opened {
            messages: 0,
            tickets: Vec::new(),
            contexts: Vec::new(),
        };
        for message in messages {
            let read = match serde_json::from_slice::<H::Message>(&message.payload) {
                Ok(read) => read,
                Err(error) => {
                    self.bury(&message, &error.to_string()).await;
                    continue;
                }
            };
            let traceparent: Option<Arc<str>> = message
                .headers
                .as_ref()
                .and_then(|headers| headers.get(TRACEPARENT))
                .map(|value| value.as_str().into());
            opened
                .tickets
                .extend(self.handler.tickets_of(read).into_iter().map(|ticket| {
                    let key = ticket.key();
                    (
                        key,
                        QueuedTicket {
                            id: ticket.id,
                            traceparent: traceparent.clone(),
                        },
                    )
                }));
            opened.contexts.extend(traceparent);
            opened.messages += 1;
        }
        opened
    }

    /// Makes rows due at once, because they cannot wait for permits in this process. The next look
    /// need not wait for its turn, so they lose no time if there is room for due tickets.
    async fn defer(&self, refused: Vec<QueuedTicket<H::Id>>) {
        if refused.is_empty() {
            return;
        }
        self.metrics.deferred(refused.len());
        let rows: Vec<H::Id> = refused.into_iter().map(|ticket| ticket.id).collect();
        if let Err(error) = self.handler.defer(&rows).await {
            if let Some(others) = outage::DATABASE.failed() {
                let error = format!("{error:#}");
                tracing::error!(
                    error,
                    others,
                    rows = rows.len(),
                    "cannot defer the rows of messages; the sweep finds them after their first \
                     lease"
                );
            }
        } else if let Some(wake) = &self.wake {
            wake.notify_one();
        }
    }

    /// Copies a message that cannot be read to the dead messages, for an operator to look at.
    async fn bury(&self, message: &Message, reason: &str) {
        // Boxed, because this future is rarely needed and would enlarge the future of every batch.
        let buried = Box::pin(self.nats.bury(H::KIND, message, reason));
        match perform(Effect::Bury, buried).await {
            Ok(()) => {
                tracing::error!(
                    subject = %message.subject,
                    reason,
                    "a message that cannot be read was moved to {DEAD}; the sweep finds its rows"
                );
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(
                    subject = %message.subject,
                    reason,
                    error,
                    "a message that cannot be read was dropped, because {DEAD} cannot be reached; \
                     the sweep finds its rows"
                );
            }
        }
    }
}
