//! Verdicts: what provisioners say while partners wait for the answer, and which provisioners are
//! there to say something in time.

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

/// A heartbeat older than this promises nothing.
const FRESH: Duration = Duration::from_secs(3);

/// A verdict and where its reply goes.
pub(crate) struct Arrived {
    /// The placement that it is about.
    pub(crate) placement_id: PlacementId,
    /// The attempt that it is about.
    pub(crate) attempt: u32,
    /// What was said.
    pub(crate) said: Said,
    placed: bool,
    reply: Option<Subject>,
}

impl Arrived {
    /// In a word.
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
    /// Where this process, and no other, is told.
    subject: String,
    waiting: Mutex<HashMap<OrderId, mpsc::UnboundedSender<Arrived>>>,
    promises: Mutex<HashMap<String, Promise>>,
    started: Instant,
}

struct Promise {
    heard: Instant,
    verdict_in: Duration,
}

/// An order's place among those that wait; ends when dropped.
pub(crate) struct Waiting {
    verdicts: Arc<Verdicts>,
    order_id: OrderId,
    arrived: mpsc::UnboundedReceiver<Arrived>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Verdicts {
    /// Listens on a subject of its own; [`Verdicts::listen`] must run.
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

    /// Whether every one of `providers` promises a verdict within `wait`.
    pub(crate) fn promised<'a>(&self, mut providers: impl Iterator<Item = &'a str>, wait: Duration) -> bool {
        if !self.nats.is_connected() {
            return false;
        }
        let promises = lock(&self.promises);
        // Right after the start nobody can have been heard yet: wait as if promised.
        let is_young = self.started.elapsed() < FRESH;
        providers.all(|provider| match promises.get(provider) {
            Some(promise) => promise.heard.elapsed() < FRESH && promise.verdict_in < wait,
            None => is_young,
        })
    }

    /// Begins to wait for an order's verdicts; before its jobs are published.
    pub(crate) fn wait_for(self: &Arc<Self>, order_id: OrderId) -> Waiting {
        let (sender, arrived) = mpsc::unbounded_channel();
        lock(&self.waiting).insert(order_id, sender);
        Waiting {
            verdicts: Arc::clone(self),
            order_id,
            arrived,
        }
    }

    /// Where provisioners send verdicts, for a job.
    pub(crate) fn address(&self, within: Duration) -> VerdictTo {
        let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        VerdictTo {
            subject: self.subject.clone(),
            within_ms,
        }
    }

    /// Takes verdicts and heartbeats until the end of the process, also during a stop: orders may
    /// still wait. Returns only when NATS takes a subscription away.
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
        // Only this process was told this subject, and the order doesn't wait any more: its answer
        // has left, or nobody is there to get it.
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
    /// The next verdict.
    pub(crate) async fn next(&mut self) -> Option<Arrived> {
        self.arrived.recv().await
    }

    /// Replies to one verdict.
    pub(crate) async fn reply(&self, arrived: Arrived, reply: Reply) {
        self.verdicts.reply(arrived, reply).await;
    }

    /// Waits no more, and replies to what has arrived meanwhile.
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
