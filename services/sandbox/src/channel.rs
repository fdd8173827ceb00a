//! Where the callbacks of a protocol go, and the queue of purchases that need them.

use std::sync::Arc;

use reqwest::Url;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::{ledger::Ledger, profile::UnitNumber, purchase::LedgerPurchase};

/// The maximum number of purchases in the queue.
const QUEUE: usize = 10_000;
/// Where the callbacks of a protocol go, and what they say about a unit that has become ready.
pub struct CallbackChannel {
    pub url: Url,
    /// What is posted about a unit of this option, in this order.
    pub messages: CallbackMessages,
}

pub type CallbackMessages =
    Box<dyn Fn(&Ledger, &LedgerPurchase, UnitNumber, &str) -> Vec<CallbackMessage> + Send + Sync>;

/// A callback.
pub struct CallbackMessage {
    pub body: String,
    /// The header that holds its signature, if the protocol has one.
    pub signature: Option<(&'static str, String)>,
}

impl CallbackMessage {
    /// A message without a signature.
    pub fn of(body: &Value) -> Self {
        Self {
            body: body.to_string(),
            signature: None,
        }
    }
}

/// A purchase that may need callbacks.
pub(crate) type PurchaseCallbacks = (Arc<CallbackChannel>, Arc<LedgerPurchase>);

/// The queue of purchases that need callbacks.
#[derive(Clone)]
pub struct CallbackQueue(mpsc::Sender<PurchaseCallbacks>);

impl CallbackQueue {
    pub fn new() -> (Self, mpsc::Receiver<PurchaseCallbacks>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self(sender), receiver)
    }

    /// Adds a purchase without waiting. If the queue is full, the callbacks of the purchase are
    /// lost.
    pub fn push(&self, channel: &Arc<CallbackChannel>, purchase: Arc<LedgerPurchase>) {
        if let Err(error) = self.0.try_send((Arc::clone(channel), purchase)) {
            tracing::warn!(
                %error,
                "the callbacks of a purchase are lost, because their queue is full or the sandbox stops; provisioners find its profiles by asking again"
            );
        }
    }
}
