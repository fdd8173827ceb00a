//! The verdict: a provisioner sends the provider's decision to an ingress that has not answered yet.

use std::time::Duration;

use async_nats::Subject;
use tracing::{Instrument, debug_span};

use crate::{
    Nats,
    effect::{Effect, perform},
    payload::{Reply, Verdict, VerdictTo},
};

impl Nats {
    /// Sends a verdict to a waiting ingress and returns its reply; `None` if ingress no longer waits.
    pub async fn tell(&self, to: &VerdictTo, verdict: &Verdict) -> Option<Reply> {
        if !self.is_connected() {
            return None;
        }
        let payload = serde_json::to_vec(verdict).ok()?;
        let request = self.client().request(to.subject.clone(), payload.into());
        // Ingress replies in time or never; the margin covers the network.
        let within = Duration::from_millis(to.within_ms) + Duration::from_millis(500);
        let told = tokio::time::timeout(within, request);
        let span = debug_span!(
            "request",
            otel.name = "request topup.verdict",
            otel.kind = "client",
            messaging.system = "nats",
            messaging.operation.name = "request",
            messaging.operation.type = "send",
            // The instance names a process.
            messaging.destination.template = "topup.verdict.{instance}",
            messaging.destination.temporary = true,
        );
        let reply = perform(Effect::TellVerdict, told)
            .instrument(span)
            .await
            .ok()?
            .ok()?;
        serde_json::from_slice(&reply.payload).ok()
    }

    /// Replies to a verdict; `to` is the sender's reply subject.
    pub async fn reply(&self, to: Subject, reply: Reply) {
        let Ok(payload) = serde_json::to_vec(&reply) else {
            return;
        };
        let replied = async {
            if let Err(error) = self.client().publish(to, payload.into()).await {
                tracing::warn!(%error, "cannot reply to a verdict");
            }
            #[cfg(feature = "failpoints")]
            self.flush().await;
        };
        perform(Effect::ReplyVerdict, replied).await;
    }
}
