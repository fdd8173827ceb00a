//! In place of `pipeline::streams`: NATS in memory. A message goes to whoever has subscribed when
//! it is sent, as with the core of NATS, and a [`MessageSource`] keeps its messages, as a stream
//! does.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::{
    Batcher, Shutdown, lock,
    payload::{LeftQuestion, LeftReply, ReadyDelivery, Reports},
    publish::AnnouncedRow,
};

type Subscribers = HashMap<String, Vec<mpsc::UnboundedSender<String>>>;

#[derive(Clone)]
pub struct Nats {
    subscribers: Arc<Mutex<Subscribers>>,
    /// The stream of readiness events.
    published: mpsc::UnboundedSender<AnnouncedRow<ReadyDelivery>>,
}

/// A stream of messages for one stage, each a list of rows as JSON.
pub struct MessageSource {
    pub messages: mpsc::UnboundedReceiver<String>,
}

impl Nats {
    /// Also returns the stream of readiness events.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<AnnouncedRow<ReadyDelivery>>) {
        let (published, stream) = mpsc::unbounded_channel();
        let nats = Self {
            subscribers: Arc::default(),
            published,
        };
        (nats, stream)
    }

    pub fn is_up(&self) -> bool {
        true
    }

    pub fn readiness_events(&self, shutdown: &Shutdown) -> Batcher<AnnouncedRow<ReadyDelivery>> {
        let published = self.published.clone();
        Batcher::start(
            "readiness events",
            2,
            shutdown.tracker().clone(),
            shutdown,
            move |batch| {
                let published = published.clone();
                async move {
                    for row in batch {
                        let _ = published.send(row);
                    }
                }
            },
        )
    }

    pub fn reports_subject(&self, ingress: Uuid) -> String {
        format!("answer.{ingress}")
    }

    pub fn heartbeat_subject(&self, provider: &str) -> String {
        format!("heartbeat.{provider}")
    }

    pub fn left_subject(&self, ingress: Option<Uuid>) -> String {
        ingress.map_or_else(|| "left.all".to_owned(), |id| format!("left.{id}"))
    }

    /// Whether reports to an ingress process arrive.
    pub fn is_heard(&self, ingress: Uuid) -> bool {
        lock(&self.subscribers).contains_key(&self.reports_subject(ingress))
    }

    pub fn report(&self, ingress: Uuid, reports: &Reports) {
        self.send(&self.reports_subject(ingress), reports);
    }

    #[allow(clippy::unused_async, reason = "as in production")]
    pub async fn ask_left(&self, question: &LeftQuestion) {
        self.send(&self.left_subject(None), question);
    }

    #[allow(clippy::unused_async, reason = "as in production")]
    pub async fn tell_left(&self, ingress: Uuid, reply: &LeftReply) {
        self.send(&self.left_subject(Some(ingress)), reply);
    }

    fn send<M: Serialize>(&self, subject: &str, message: &M) {
        let message = serde_json::to_string(message).unwrap();
        let to = lock(&self.subscribers).get(subject).cloned();
        for subscriber in to.into_iter().flatten() {
            let _ = subscriber.send(message.clone());
        }
    }

    pub async fn listen<M: DeserializeOwned>(
        &self,
        subject: String,
        mut receive: impl FnMut(M),
    ) -> anyhow::Result<()> {
        let (sender, mut messages) = mpsc::unbounded_channel();
        lock(&self.subscribers)
            .entry(subject)
            .or_default()
            .push(sender);
        while let Some(message) = messages.recv().await {
            receive(serde_json::from_str(&message)?);
        }
        anyhow::bail!("the subscription ended")
    }
}
