//! The verdict: what the provider said, asked for while a partner still waits for the answer.

use std::time::Duration;

use crate::{
    Nats,
    payload::{Reply, Verdict, VerdictTo},
};

impl Nats {
    /// Tells a waiting ingress the verdict and returns its reply; none if it doesn't wait any more.
    pub async fn tell(&self, to: &VerdictTo, verdict: &Verdict) -> Option<Reply> {
        if !self.is_connected() {
            return None;
        }
        let payload = serde_json::to_vec(verdict).ok()?;
        let request = self.client().request(to.subject.clone(), payload.into());
        // The ingress replies in time or not at all; the margin is for the way.
        let within = Duration::from_millis(to.within_ms) + Duration::from_millis(500);
        let reply = tokio::time::timeout(within, request).await.ok()?.ok()?;
        serde_json::from_slice(&reply.payload).ok()
    }
}
