//! The messages of the answer's handshake: verdicts from a provisioner to the ingress that waits, and releases
//! back. They travel in batches over core NATS. Both are hints; PostgreSQL decides.

use std::{sync::Arc, time::Duration};

use domain::PlacementId;
use runtime::{Shutdown, sampler::Sampler};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    Batcher, Effect, Nats,
    payload::{Releases, Verdict, Verdicts},
    perform,
    publish::group_by_address,
};

/// The longest hint that is read, in bytes; ours take less than a tenth.
const LONGEST: usize = 64 * 1024;
/// The longest name of a process in a subject.
const LONGEST_NAME: usize = 64;

/// A verdict for the ingress that waits at `to`, the job's `verdict_to`.
pub struct Hint {
    pub to: Arc<str>,
    pub verdict: Verdict,
}

/// A placement whose webhooks may go out, for the provisioner at `to`, the verdicts' `release_to`.
pub struct Release {
    pub to: Arc<str>,
    pub placement_id: PlacementId,
}

impl Nats {
    /// Starts the sender of verdicts. Releases come back to the provisioner `instance`.
    pub fn verdicts(&self, instance: &str, shutdown: &Shutdown) -> Batcher<Hint> {
        let address = self.release_subject(instance);
        self.batcher("verdicts", shutdown, move |nats, hints: Vec<Hint>| {
            let address = address.clone();
            async move {
                for (to, verdicts) in group_by_address(hints.into_iter().map(|hint| (hint.to, hint.verdict))) {
                    let release_to = address.clone();
                    nats.send("topup.verdict", &to, &Verdicts::V2 { release_to, verdicts }).await;
                }
            }
        })
    }

    /// Starts the sender of releases.
    pub fn releases(&self, shutdown: &Shutdown) -> Batcher<Release> {
        self.batcher("releases", shutdown, async |nats: Self, releases: Vec<Release>| {
            let releases = releases.into_iter().map(|release| (release.to, release.placement_id));
            for (to, placements) in group_by_address(releases) {
                nats.send("topup.release", &to, &Releases::V2 { placements }).await;
            }
        })
    }

    /// Sends one message to one process. The address came in a message, so it must belong to the family of
    /// subjects `what`; otherwise nothing is sent.
    async fn send(&self, what: &'static str, to: &str, message: &impl Serialize) {
        let ours = to
            .strip_prefix(self.prefix())
            .and_then(|rest| rest.strip_prefix(what))
            .and_then(|rest| rest.strip_prefix('.'))
            .is_some_and(|name| name.len() <= LONGEST_NAME && name.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        if !ours {
            // A flood of forged messages must not flood the log.
            tracing::debug!("not sent: the address is not a subject of the pipeline");
            return;
        }
        if !self.is_connected() {
            return;
        }
        let Ok(payload) = serde_json::to_vec(message) else {
            return;
        };
        let sending = async {
            if let Err(error) = self.client().publish(to.to_owned(), payload.into()).await {
                tracing::warn!(subject = to, %error, "cannot send a hint");
            }
            #[cfg(feature = "failpoints")]
            self.send_now().await;
        };
        perform(Effect::Send, sending).await;
    }

    /// Passes the messages of a subject to `take`, except unreadable ones and those that are too long for one of ours.
    /// Returns an error when the subscription ends.
    pub async fn listen<M: DeserializeOwned>(&self, subject: String, mut take: impl FnMut(M)) -> anyhow::Result<()> {
        use futures_util::StreamExt;

        let unreadable = Sampler::every(Duration::from_secs(10));
        let mut messages = self.client().subscribe(subject.clone()).await?;
        while let Some(message) = messages.next().await {
            match read(&message.payload) {
                Ok(hint) => take(hint),
                Err(error) => {
                    if let Some(suppressed) = unreadable.pass() {
                        tracing::warn!(subject, suppressed, error, "ignored an unreadable hint");
                    }
                }
            }
        }
        anyhow::bail!("the subscription to {subject} ended")
    }
}

fn read<M: DeserializeOwned>(payload: &[u8]) -> Result<M, String> {
    let length = payload.len();
    if length > LONGEST {
        return Err(format!("{length} bytes are more than {LONGEST}"));
    }
    serde_json::from_slice(payload).map_err(|error| error.to_string())
}
