//! Publishing: never in the way of an order. A message that can't be published is dropped, because
//! what it announces is in PostgreSQL and due there.

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

impl Nats {
    /// Publishes `payload` on a stream's subject, with the trace context of `span`. Returns as soon as
    /// the message is on its way; a stream that turns out to be missing is made and the message sent
    /// once more. `message_id` makes the stream drop repetitions.
    pub async fn publish(
        &self,
        effect: Effect,
        subject: String,
        message_id: &str,
        payload: &impl Serialize,
        span: &Span,
    ) {
        if !self.is_connected() {
            tracing::debug!(subject, "not published: NATS is away");
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
                tracing::warn!(subject, %error, "not published");
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
                Err(error) => tracing::warn!(subject, %error, "not published"),
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
            tracing::warn!(subject, error = format!("{error:#}"), "not published");
        }
    }

    /// Keeps a message that no handler can read, with the reason; returns once the stream has it.
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
