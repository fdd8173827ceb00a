//! Callbacks: a unit that has become ready is posted to the partner, unsigned and never retried.
//! Nothing waits for them: what doesn't fit the queue, and what a stop or a crash finds unsent, is
//! lost, as it is with the real provider.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::Context;
use reqwest::{Client, Url, redirect};
use time::OffsetDateTime;
use tokio::{sync::mpsc, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    ledger::Purchase,
    profile::UnitNumber,
    protocol::Callback,
    routes::Sandbox,
    units::{self, Fate},
};

/// Purchases that wait to be looked at.
const QUEUE: usize = 10_000;
/// Units that wait for their time; while there are more, no further purchase is looked at.
const MAX_DUE: usize = 100_000;
/// Callbacks under way.
const MAX_SENDING: usize = 32;
const TIMEOUT: Duration = Duration::from_secs(5);

/// Where callbacks go. The URL holds a token, so it isn't printed.
#[derive(Clone)]
pub struct CallbackUrl(Url);

impl CallbackUrl {
    /// Reads a URL, or says what is wrong with it without repeating it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| error.to_string())?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err("it must begin with http:// or https://".into());
        }
        Ok(Self(url))
    }
}

impl std::fmt::Debug for CallbackUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CallbackUrl([REDACTED])")
    }
}

/// Takes purchases that may have to be called back.
pub struct Queue(mpsc::Sender<Arc<Purchase>>);

impl Queue {
    pub fn new() -> (Self, mpsc::Receiver<Arc<Purchase>>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self(sender), receiver)
    }

    /// Never waits; a purchase that finds the queue full isn't called back.
    pub fn push(&self, purchase: Arc<Purchase>) {
        if let Err(error) = self.0.try_send(purchase) {
            tracing::warn!(%error, "a purchase will not be called back");
        }
    }
}

/// A callback that waits for its time.
struct Due {
    unit: UnitNumber,
    option_id: String,
    bought_at: OffsetDateTime,
}

/// Sends callbacks for the units of `purchases` until `stop`.
pub async fn run(
    CallbackUrl(url): CallbackUrl,
    sandbox: Arc<Sandbox>,
    mut purchases: mpsc::Receiver<Arc<Purchase>>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let client = Client::builder()
        .timeout(TIMEOUT)
        .redirect(redirect::Policy::none())
        .no_proxy()
        .build()
        .context("cannot set up the HTTP client of the callbacks")?;
    // The number keeps callbacks of the same instant apart.
    let mut due: BTreeMap<(Instant, u64), Due> = BTreeMap::new();
    let mut number = 0;
    let mut sending = JoinSet::new();
    loop {
        let next = due.first_key_value().map(|((at, _), _)| *at);
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            Some(purchase) = purchases.recv(), if due.len() < MAX_DUE => {
                let now = Instant::now();
                for (unit, option_id, fate) in units::fates(&purchase, &sandbox.script) {
                    let Fate::Ready(after) = fate else { continue };
                    for _ in 0..sandbox.script.outcome(option_id).callbacks {
                        number += 1;
                        let option_id = option_id.to_owned();
                        due.insert((now + after, number), Due { unit, option_id, bought_at: purchase.at });
                    }
                }
            }
            () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)),
                if next.is_some() && sending.len() < MAX_SENDING =>
            {
                if let Some((_, callback)) = due.pop_first()
                    && !sandbox.ledger.is_canceled(callback.unit)
                {
                    sending.spawn(send(client.clone(), url.clone(), Arc::clone(&sandbox), callback));
                }
            }
            Some(_) = sending.join_next() => {}
        }
    }
}

async fn send(client: Client, url: Url, sandbox: Arc<Sandbox>, due: Due) {
    let topup_id = due.unit.to_string();
    let callback = Callback {
        // Not the code's own picture: the activation code would be in one more place.
        qrcode_img_url: format!("https://qr.sandbox.example/{topup_id}.png"),
        topup_id,
        option_id: &due.option_id,
        profile: sandbox.ledger.profile(due.unit, due.bought_at),
    };
    let topup_id = due.unit;
    match client.post(url).json(&callback).send().await {
        Ok(response) => {
            tracing::debug!(
                topup.id = topup_id,
                status = response.status().as_u16(),
                "called back"
            );
        }
        Err(error) => {
            tracing::debug!(topup.id = topup_id, error = %error.without_url(), "a callback was lost");
        }
    }
}
