//! Reports from a provisioner to the ingress process that is still answering an order: verdicts,
//! and units that have become ready. They are sent in batches over core NATS: one message carries
//! everything that queued while the previous one was sent.
//!
//! Nothing relies on a report. Core NATS drops a message that nobody listens to, so a report to a
//! process that has died is lost. That process will never answer the order, and the sweep finds the
//! order's deliveries after their first lease. The address of a report is `orders.answering` from
//! PostgreSQL, so no message can redirect a report to another process.

use std::time::Duration;

use runtime::{Shutdown, sampler::Sampler};
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::{
    Batcher, Effect, Nats,
    payload::{LeftQuestion, LeftReply, ReadyReport, Reports, VerdictReport},
    publish::group_by_address,
};

/// The longest message that [`Nats::listen`] reads, in bytes. Ours take at most about a tenth of
/// it, so a longer one is not ours.
const LONGEST: usize = 64 * 1024;

/// The pause before a subscription that the server has refused is tried again.
const SUBSCRIBE_AGAIN: Duration = Duration::from_secs(10);

/// One report, and the ingress process that it is for. `ingress::orders::handshake` receives it
/// there.
pub struct Report {
    pub ingress: Uuid,
    pub content: ReportContent,
}

pub enum ReportContent {
    Verdict(VerdictReport),
    Ready(ReadyReport),
}

impl Nats {
    /// Starts the sender of reports.
    pub fn reports(&self, shutdown: &Shutdown) -> Batcher<Report> {
        self.batcher(
            "reports",
            shutdown,
            async |nats: Self, reports: Vec<Report>| {
                for (ingress, contents) in group_by_address(
                    reports
                        .into_iter()
                        .map(|report| (report.ingress, report.content)),
                ) {
                    nats.send(
                        Effect::Send,
                        nats.reports_subject(ingress),
                        &message(contents),
                        None,
                    )
                    .await;
                }
            },
        )
    }

    /// Asks all ingress processes whether the answer of an order has left.
    pub async fn ask_left(&self, question: &LeftQuestion) {
        let subject = self.left_subject(None);
        self.send(Effect::Send, subject, question, None).await;
    }

    /// Tells an ingress process that the answer of an order has left.
    pub async fn tell_left(&self, ingress: Uuid, reply: &LeftReply) {
        let subject = self.left_subject(Some(ingress));
        self.send(Effect::Send, subject, reply, None).await;
    }

    /// Passes the messages of a core NATS subject to `receive`. Messages that cannot be read, or
    /// that are longer than one of ours can be, are logged and skipped. If the server refuses the
    /// subscription, it is tried again, because the permission may come. Returns an error when the
    /// subscription ends.
    pub async fn listen<M: DeserializeOwned>(
        &self,
        subject: String,
        mut receive: impl FnMut(M),
    ) -> anyhow::Result<()> {
        use futures_util::StreamExt;

        // The lines are sampled, so that a flood of forged messages does not flood the log.
        let unreadable = Sampler::every(Duration::from_secs(10));
        let mut refused = self.refused.subscriptions();
        let mut messages = self.client().subscribe(subject.clone()).await?;
        loop {
            let next = tokio::select! {
                next = messages.next() => next,
                refused = refused.recv() => {
                    if refused.is_ok_and(|refused| refused == subject) {
                        tokio::time::sleep(SUBSCRIBE_AGAIN).await;
                        messages = self.client().subscribe(subject.clone()).await?;
                    }
                    continue;
                }
            };
            let Some(message) = next else {
                anyhow::bail!("the subscription to {subject} ended unexpectedly")
            };
            match read(&message.payload) {
                Ok(message) => receive(message),
                Err(error) => {
                    if let Some(suppressed) = unreadable.pass() {
                        tracing::warn!(
                            subject,
                            suppressed,
                            error,
                            "ignored a message of another process that cannot be read, as when two versions run side by side; nothing \
                             is lost, because its rows are in PostgreSQL"
                        );
                    }
                }
            }
        }
    }
}

fn message(contents: Vec<ReportContent>) -> Reports {
    let mut verdicts = Vec::new();
    let mut ready = Vec::new();
    for content in contents {
        match content {
            ReportContent::Verdict(verdict) => verdicts.push(verdict),
            ReportContent::Ready(delivery) => ready.push(delivery),
        }
    }
    Reports::V1 { verdicts, ready }
}

fn read<M: DeserializeOwned>(payload: &[u8]) -> Result<M, String> {
    let length = payload.len();
    if length > LONGEST {
        return Err(format!(
            "it has {length} bytes, and at most {LONGEST} are read"
        ));
    }
    serde_json::from_slice(payload).map_err(|error| error.to_string())
}
