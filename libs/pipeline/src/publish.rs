//! Publishing never blocks an order. A message that cannot be published is dropped: its row is due in
//! PostgreSQL.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_nats::{
    HeaderMap,
    jetstream::{context::PublishErrorKind, message::PublishMessage},
};
use bytes::Bytes;
use serde::Serialize;
use tracing::Span;

use crate::{
    Nats,
    effect::{Effect, perform},
    trace,
};

/// The interval between log lines about unpublished messages: while NATS is down, every publish fails.
const TELL: Duration = Duration::from_secs(10);

/// Unpublished messages since the last log line.
#[derive(Default)]
pub(crate) struct Unpublished(Mutex<(Option<Instant>, u64)>);

impl Unpublished {
    fn tell(&self, subject: &str, error: &dyn std::fmt::Display) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (told, others) = &mut *state;
        if told.is_some_and(|told| told.elapsed() < TELL) {
            *others += 1;
            return;
        }
        tracing::warn!(subject, %error, others = *others, "not published; redrive will pick the row up");
        *state = (Some(Instant::now()), 0);
    }
}

impl Nats {
    /// Publishes `payload` on a stream's subject, with the trace context of `span`. Returns as soon as the
    /// message is sent. If the stream is missing, it is created and the message sent once more. `message_id`
    /// makes the stream drop duplicates.
    pub async fn publish(
        &self,
        effect: Effect,
        subject: String,
        message_id: &str,
        payload: &impl Serialize,
        span: &Span,
    ) {
        if !self.is_connected() {
            tracing::debug!(subject, "not published: NATS is disconnected");
            return;
        }
        let payload = match serde_json::to_vec(payload) {
            Ok(payload) => Bytes::from(payload),
            Err(error) => {
                tracing::error!(subject, %error, "not published: the payload cannot be written");
                return;
            }
        };
        let mut headers = HeaderMap::new();
        if let Some(context) = trace::context_of(span) {
            headers.insert(trace::TRACEPARENT, context);
        }
        let message = PublishMessage::build()
            .payload(payload)
            .headers(headers)
            .message_id(message_id);
        let sending = async {
            let sent = self.context.send_publish(subject.clone(), message.clone()).await;
            #[cfg(feature = "failpoints")]
            self.flush().await;
            sent
        };
        let sent = match perform(effect, sending).await {
            Ok(sent) => sent,
            Err(error) => {
                self.unpublished.tell(&subject, &error);
                return;
            }
        };
        let nats = self.clone();
        tokio::spawn(async move {
            match sent.await {
                Ok(_) => {}
                Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                    nats.publish_anew(subject, message).await;
                }
                Err(error) => nats.unpublished.tell(&subject, &error),
            }
        });
    }

    async fn publish_anew(&self, subject: String, message: PublishMessage) {
        let published = async {
            self.ensure_streams().await?;
            self.context.send_publish(subject.clone(), message).await?.await?;
            anyhow::Ok(())
        };
        if let Err(error) = published.await {
            self.unpublished.tell(&subject, &format!("{error:#}"));
        }
    }

    /// Moves an unreadable message to the dead messages, with the reason; returns once the stream has stored
    /// it.
    pub(crate) async fn bury(
        &self,
        kind: &str,
        message: &async_nats::Message,
        reason: &str,
    ) -> anyhow::Result<()> {
        const KEPT: usize = 64 * 1024;
        let mut headers = HeaderMap::new();
        headers.insert("Dead-Subject", message.subject.as_str());
        // Header values are one line.
        headers.insert("Dead-Reason", reason.replace(['\r', '\n'], " "));
        headers.insert("Dead-Size", message.payload.len().to_string());
        let payload = message.payload.slice(..message.payload.len().min(KEPT));
        let publish = PublishMessage::build().payload(payload).headers(headers);
        let subject = self.dead_subject(kind);
        let kept = self
            .context
            .send_publish(subject.clone(), publish.clone())
            .await?;
        match kept.await {
            Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                self.ensure_streams().await?;
                self.context.send_publish(subject, publish).await?.await?;
            }
            kept => drop(kept?),
        }
        Ok(())
    }
}
