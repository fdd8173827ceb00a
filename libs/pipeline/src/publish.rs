//! Publishes jobs and readiness events to JetStream.
//!
//! Publishing never blocks an order and never fails it. A message that cannot be published is
//! dropped, because its rows are in PostgreSQL and a stage finds them once they are due. For the
//! same reason a message may be published only after the transaction that stored its rows has
//! committed; a reader would otherwise look for rows that do not exist yet.

use async_nats::{
    HeaderMap,
    jetstream::{context::PublishErrorKind, message::PublishMessage},
};
use futures_util::future::join_all;
use runtime::Shutdown;
use serde::Serialize;
use tracing::Instrument;

use crate::{
    Batcher, Nats,
    effect::{Effect, perform},
    payload::{Heartbeat, JobMessage, JobPlacement, ROWS_PER_MESSAGE, ReadyDelivery, ReadyMessage},
    streams::{JOBS, READY},
    trace,
};

/// The maximum number of rows that are sent at once, in all messages together.
const BATCH: usize = 1024;

/// A row that a message announces: a placement that waits to be bought, or a delivery whose webhook
/// can be sent.
pub struct AnnouncedRow<T> {
    pub row: T,
    /// W3C trace context of the work that the row comes from, if it is recorded.
    pub traceparent: Option<String>,
}

/// A job for a provider, and the placement that it announces there.
pub struct Job {
    pub provider: String,
    pub placement: AnnouncedRow<JobPlacement>,
}

fn unzip<T>(rows: Vec<AnnouncedRow<T>>) -> (Vec<T>, Vec<Option<String>>) {
    let rows = rows.into_iter();
    rows.map(|one| (one.row, one.traceparent)).unzip()
}

/// A message of several rows.
struct Message<M> {
    subject: String,
    content: M,
    /// The trace contexts of its rows.
    traceparents: Vec<Option<String>>,
}

/// The headers that carry a trace context; `None` without one.
fn traced(traceparent: Option<String>) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert(trace::TRACEPARENT, traceparent?);
    Some(headers)
}

/// Groups items by their address. A group has at most [`ROWS_PER_MESSAGE`] items, so an address may
/// get several groups.
pub(crate) fn group_by_address<K: PartialEq, T>(
    items: impl Iterator<Item = (K, T)>,
) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for (address, item) in items {
        let open = groups
            .iter_mut()
            .rev()
            .find(|(of, group)| *of == address && group.len() < ROWS_PER_MESSAGE);
        match open {
            Some((_, group)) => group.push(item),
            None => groups.push((address, vec![item])),
        }
    }
    groups
}

impl Nats {
    /// Starts a task that sends queued items in batches.
    pub(crate) fn batcher<T: Send + 'static, Sending: Future<Output = ()> + Send>(
        &self,
        name: &'static str,
        shutdown: &Shutdown,
        send: impl Fn(Self, Vec<T>) -> Sending + Send + 'static,
    ) -> Batcher<T> {
        let nats = self.clone();
        Batcher::start(name, BATCH, self.unsent.clone(), shutdown, move |items| {
            send(nats.clone(), items)
        })
    }

    /// Starts the publisher of jobs.
    pub fn jobs(&self, shutdown: &Shutdown) -> Batcher<Job> {
        self.batcher("jobs", shutdown, async |nats: Self, jobs: Vec<Job>| {
            let jobs = jobs.into_iter().map(|job| (job.provider, job.placement));
            let jobs = group_by_address(jobs);
            let messages = jobs.into_iter().map(|(provider, rows)| {
                let (placements, traceparents) = unzip(rows);
                Message {
                    subject: nats.job_subject(&provider),
                    content: JobMessage::V1 { placements },
                    traceparents,
                }
            });
            nats.publish_all(JOBS, messages).await;
        })
    }

    /// Starts the publisher of readiness events.
    pub fn readiness_events(&self, shutdown: &Shutdown) -> Batcher<AnnouncedRow<ReadyDelivery>> {
        self.batcher(
            "readiness",
            shutdown,
            async |nats: Self, ready: Vec<AnnouncedRow<ReadyDelivery>>| {
                // They all go to the same subject.
                let ready = ready.into_iter().map(|row| ((), row));
                let messages = group_by_address(ready).into_iter().map(|((), rows)| {
                    let (deliveries, traceparents) = unzip(rows);
                    Message {
                        subject: nats.ready_batch_subject(),
                        content: ReadyMessage::V1 { deliveries },
                        traceparents,
                    }
                });
                nats.publish_all(READY, messages).await;
            },
        )
    }

    /// Publishes messages together.
    ///
    /// If there are several, the next batch is sent only after the stream has confirmed them, so
    /// that under load the publisher goes no faster than the server. A single message, as at low
    /// load, is sent without waiting for a confirmation. That would cost as much as the message
    /// itself and protect nothing, because the rows of a lost message start once they are due.
    async fn publish_all<M: Serialize>(
        &self,
        stream: &'static str,
        messages: impl Iterator<Item = Message<M>>,
    ) {
        if !self.is_up() {
            tracing::debug!(stream, "not published: NATS is down");
            return;
        }
        let messages: Vec<_> = messages.collect();
        let is_confirmed = messages.len() > 1;
        let publishing = messages.into_iter().map(|message| {
            let span = trace::publish(stream, &message.traceparents);
            let traceparent = trace::context_of(&span);
            let publishing = async move {
                let Message {
                    subject, content, ..
                } = message;
                if is_confirmed {
                    self.publish(subject, content, traceparent).await;
                } else {
                    self.send(Effect::Publish, subject, &content, traceparent)
                        .await;
                }
            };
            publishing.instrument(span)
        });
        join_all(publishing).await;
    }

    /// Publishes a message, and waits until the stream has stored it. If the stream is missing, it
    /// is created and the message is sent once more. A failure is only logged, because the rows
    /// start once they are due.
    pub async fn publish(
        &self,
        subject: String,
        message: impl Serialize,
        traceparent: Option<String>,
    ) {
        if !self.is_up() {
            tracing::debug!(subject, "not published: NATS is down");
            return;
        }
        let published = async {
            let mut publish = PublishMessage::build().payload(serde_json::to_vec(&message)?.into());
            if let Some(headers) = traced(traceparent) {
                publish = publish.headers(headers);
            }
            perform(Effect::Publish, self.store(&subject, publish)).await
        };
        if let Err(error) = published.await {
            self.not_published(&subject, &error);
        }
    }

    /// Sends a message without waiting for a confirmation. If neither a stream nor a subscriber
    /// receives the subject, the message is lost. A stage whose stream is missing notices that at
    /// its next pull, and creates the stream. A message to a subscriber needs no stream, so only
    /// the connection counts here, and [`Nats::publish_all`] asks for more.
    pub(crate) async fn send(
        &self,
        effect: Effect,
        subject: String,
        message: &impl Serialize,
        traceparent: Option<String>,
    ) {
        if !self.is_connected() {
            tracing::debug!(subject, "not sent: NATS is disconnected");
            return;
        }
        let handed_over = self.hand_over(&subject, message, traceparent);
        if let Err(error) = perform(effect, handed_over).await {
            self.not_published(&subject, &error);
        }
    }

    /// Tells every ingress process that a provisioner can buy from this provider now. No crash
    /// point is named after it, because nothing is promised by it.
    pub async fn send_heartbeat(&self, provider: &str) {
        let subject = self.heartbeat_subject(provider);
        let heartbeat = Heartbeat::V1 {
            provider: provider.to_owned(),
        };
        if let Err(error) = self.hand_over(&subject, &heartbeat, None).await {
            self.not_published(&subject, &error);
        }
    }

    /// Hands a message to the connection.
    async fn hand_over(
        &self,
        subject: &str,
        message: &impl Serialize,
        traceparent: Option<String>,
    ) -> anyhow::Result<()> {
        let payload = serde_json::to_vec(message)?.into();
        let address = subject.to_owned();
        match traced(traceparent) {
            Some(headers) => {
                self.client()
                    .publish_with_headers(address, headers, payload)
                    .await?;
            }
            None => self.client().publish(address, payload).await?,
        }
        #[cfg(all(feature = "failpoints", debug_assertions))]
        if crate::effect::FAILPOINT.is_some() {
            self.send_now().await;
        }
        self.refused.sent(subject);
        Ok(())
    }

    /// Logs a failed publish, but only one of many: while NATS is down, every publish fails.
    fn not_published(&self, subject: &str, error: &anyhow::Error) {
        if let Some(others) = self.unpublished.pass() {
            let error = format!("{error:#}");
            tracing::warn!(
                subject,
                error,
                others,
                "cannot publish messages; the stages find their rows in PostgreSQL once they are \
                 due, and without heartbeats ingress answers without waiting for verdicts"
            );
        }
    }

    /// Sends a message and waits until the stream has stored it.
    async fn store(&self, subject: &str, message: PublishMessage) -> anyhow::Result<()> {
        let sent = self
            .context
            .send_publish(subject.to_owned(), message.clone())
            .await?;
        self.refused.sent(subject);
        match sent.await {
            Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                Box::pin(self.ensure_streams()).await?;
                self.context
                    .send_publish(subject.to_owned(), message)
                    .await?
                    .await?;
            }
            stored => drop(stored?),
        }
        Ok(())
    }

    /// Stores a message that cannot be read among the dead messages, with the reason. Long messages
    /// are cut.
    pub(crate) async fn bury(
        &self,
        kind: &str,
        message: &async_nats::Message,
        reason: &str,
    ) -> anyhow::Result<()> {
        const KEPT: usize = 64 * 1024;
        let mut headers = HeaderMap::new();
        headers.insert("Dead-Subject", message.subject.as_str());
        // The value of a header must be one line.
        headers.insert("Dead-Reason", reason.replace(['\r', '\n'], " "));
        headers.insert("Dead-Size", message.payload.len().to_string());
        let payload = message.payload.slice(..message.payload.len().min(KEPT));
        let publish = PublishMessage::build().payload(payload).headers(headers);
        self.store(&self.dead_subject(kind), publish).await
    }
}
