//! Receives verdicts for orders that wait for them, and the provisioners' promises of verdict times.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use async_nats::Subject;
use domain::{OrderId, PlacementId};
use futures_util::StreamExt;
use pipeline::{
    Nats,
    payload::{Heartbeat, Reply, Said, Verdict, VerdictTo},
};
use tokio::sync::mpsc;
use uuid::Uuid;

/// The age after which a heartbeat promises nothing.
const FRESH: Duration = Duration::from_secs(3);

/// A received verdict and the subject for its reply.
pub(crate) struct Arrived {
    /// The placement that the verdict concerns.
    pub(crate) placement_id: PlacementId,
    /// The attempt that the verdict concerns.
    pub(crate) attempt: u32,
    /// The verdict itself.
    pub(crate) said: Said,
    placed: bool,
    reply: Option<Subject>,
}

impl Arrived {
    /// The verdict's name in metrics.
    pub(crate) fn verdict(&self) -> &'static str {
        match self.said {
            Said::UnderWay if self.placed => "placed",
            Said::UnderWay => "later",
            Said::Refused { .. } => "refused",
            Said::NotSent => "not_sent",
        }
    }
}

/// The orders of this process that wait for verdicts, and the promises of provisioners.
pub(crate) struct Verdicts {
    nats: Nats,
    /// The subject on which only this process receives verdicts.
    subject: String,
    waiting: Mutex<HashMap<OrderId, mpsc::UnboundedSender<Arrived>>>,
    promises: Mutex<HashMap<String, Promise>>,
    started: Instant,
}

struct Promise {
    heard: Instant,
    verdict_in: Duration,
}

/// An order that waits for verdicts; dropping it ends the wait.
pub(crate) struct Waiting {
    verdicts: Arc<Verdicts>,
    order_id: OrderId,
    arrived: mpsc::UnboundedReceiver<Arrived>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Verdicts {
    /// Creates the receiver with a subject of its own. [`Verdicts::listen`] must run.
    pub(crate) fn new(nats: Nats) -> Arc<Self> {
        let subject = nats.verdict_subject(&Uuid::now_v7().simple().to_string());
        Arc::new(Self {
            nats,
            subject,
            waiting: Mutex::default(),
            promises: Mutex::default(),
            started: Instant::now(),
        })
    }

    /// Whether all `providers` promise a verdict within `wait`.
    pub(crate) fn promised<'a>(&self, mut providers: impl Iterator<Item = &'a str>, wait: Duration) -> bool {
        if !self.nats.is_connected() {
            return false;
        }
        let promises = lock(&self.promises);
        // Right after the start no heartbeat can have arrived, so a promise is assumed.
        let is_young = self.started.elapsed() < FRESH;
        providers.all(|provider| match promises.get(provider) {
            Some(promise) => promise.heard.elapsed() < FRESH && promise.verdict_in < wait,
            None => is_young,
        })
    }

    /// Starts to wait for an order's verdicts. Called before its jobs are published.
    pub(crate) fn wait_for(self: &Arc<Self>, order_id: OrderId) -> Waiting {
        let (sender, arrived) = mpsc::unbounded_channel();
        lock(&self.waiting).insert(order_id, sender);
        Waiting {
            verdicts: Arc::clone(self),
            order_id,
            arrived,
        }
    }

    /// The verdict address for a job.
    pub(crate) fn address(&self, within: Duration) -> VerdictTo {
        let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        VerdictTo {
            subject: self.subject.clone(),
            within_ms,
        }
    }

    /// Receives verdicts and heartbeats. Continues during a stop, because orders may still wait. Returns
    /// only if a subscription ends.
    pub(crate) async fn listen(self: Arc<Self>) -> anyhow::Result<()> {
        let client = self.nats.client();
        let mut verdicts = client.subscribe(self.subject.clone()).await?;
        let mut heartbeats = client.subscribe(self.nats.heartbeat_subject("*")).await?;
        loop {
            tokio::select! {
                message = verdicts.next() => match message {
                    Some(message) => self.take(message).await,
                    None => anyhow::bail!("the subscription to verdicts ended"),
                },
                message = heartbeats.next() => match message {
                    Some(message) => self.hear(&message.payload),
                    None => anyhow::bail!("the subscription to heartbeats ended"),
                },
            }
        }
    }

    async fn take(&self, message: async_nats::Message) {
        let Verdict::V1 {
            order_id,
            placement_id,
            attempt,
            said,
            placed,
        } = match serde_json::from_slice(&message.payload) {
            Ok(verdict) => verdict,
            Err(error) => {
                tracing::warn!(%error, "unreadable verdict");
                return;
            }
        };
        let arrived = Arrived {
            placement_id,
            attempt,
            said,
            placed,
            reply: message.reply,
        };
        let sender = lock(&self.waiting).get(&order_id).cloned();
        let late = match sender {
            None => Some(arrived),
            Some(sender) => sender.send(arrived).err().map(|unsent| unsent.0),
        };
        // The order no longer waits: its response has left, or its partner hung up.
        if let Some(arrived) = late {
            self.reply(arrived, Reply::Answered).await;
        }
    }

    fn hear(&self, payload: &[u8]) {
        match serde_json::from_slice(payload) {
            Ok(Heartbeat::V1 { provider, verdict_ms }) => {
                let promise = Promise {
                    heard: Instant::now(),
                    verdict_in: Duration::from_millis(verdict_ms),
                };
                lock(&self.promises).insert(provider, promise);
            }
            Err(error) => tracing::warn!(%error, "unreadable heartbeat"),
        }
    }

    async fn reply(&self, arrived: Arrived, reply: Reply) {
        if let Some(to) = arrived.reply {
            self.nats.reply(to, reply).await;
        }
    }
}

impl Waiting {
    /// Waits for the next verdict.
    pub(crate) async fn next(&mut self) -> Option<Arrived> {
        self.arrived.recv().await
    }

    /// Replies to one verdict.
    pub(crate) async fn reply(&self, arrived: Arrived, reply: Reply) {
        self.verdicts.reply(arrived, reply).await;
    }

    /// Ends the wait and replies to the verdicts that arrived meanwhile.
    pub(crate) async fn end(mut self, reply: Reply) {
        lock(&self.verdicts.waiting).remove(&self.order_id);
        self.arrived.close();
        while let Some(arrived) = self.arrived.recv().await {
            self.verdicts.reply(arrived, reply).await;
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&self.verdicts.waiting).remove(&self.order_id);
    }
}
