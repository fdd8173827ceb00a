//! Callbacks: when a unit becomes ready, it is posted to the provisioner.
//!
//! As at the real provider, callbacks are a convenience and no guarantee. They are not signed,
//! nobody retries them, and those that do not fit into the queue, or that are unsent when the
//! sandbox stops or crashes, are lost. Then the provisioner finds the profile when it asks again.
//! In return no order ever waits for a callback: a sale only puts its purchase into the queue
//! ([`crate::channel`]), and [`run`] sends in a task of its own.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::Context;
use reqwest::{Client, Url, header::CONTENT_TYPE};
use runtime::client;
use tokio::{sync::mpsc, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    channel::{CallbackChannel, CallbackMessage, PurchaseCallbacks},
    ledger::Ledger,
    profile::UnitNumber,
    protocol::Callback,
    purchase::LedgerPurchase,
    script,
    units::{self, Fate},
};

/// The number of callbacks waiting for their time at which the queue is no longer read, which
/// bounds the memory.
const MAX_DUE: usize = 100_000;
/// The maximum number of callbacks that are sent at once.
const MAX_SENDING: usize = 32;
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long after its purchase an eSIM that is used is installed.
const INSTALLED_AFTER: Duration = Duration::from_secs(2);

/// Parses the URL of callbacks. The error does not repeat the URL, because it holds a secret token.
pub fn url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("it must begin with http:// or https://".into());
    }
    Ok(url)
}

/// A callback that waits for the time when its unit is ready.
struct Due {
    channel: Arc<CallbackChannel>,
    purchase: Arc<LedgerPurchase>,
    unit: UnitNumber,
    option_id: String,
}

/// Sends the callbacks of `purchases` until `stop`. Faults of the whole provider do not affect
/// them.
pub async fn run(
    ledger: Arc<Ledger>,
    mut purchases: mpsc::Receiver<PurchaseCallbacks>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let client = client::direct(TIMEOUT)
        .build()
        .context("cannot create the HTTP client of the callbacks")?;
    // The number keeps callbacks apart that are due at the same instant.
    let mut due: BTreeMap<(Instant, u64), Due> = BTreeMap::new();
    let mut number = 0;
    let mut sending = JoinSet::new();
    loop {
        let next = due.first_key_value().map(|((at, _), _)| *at);
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            Some((channel, purchase)) = purchases.recv(), if due.len() < MAX_DUE => {
                let now = Instant::now();
                for (unit, option_id, fate) in units::fates(&purchase) {
                    let Fate::Ready(mut after) = fate else { continue };
                    let script = script::of(option_id);
                    if script.after.is_installed() {
                        after += INSTALLED_AFTER;
                    }
                    for _ in 0..script.callbacks {
                        number += 1;
                        let option_id = option_id.to_owned();
                        let channel = Arc::clone(&channel);
                        let purchase = Arc::clone(&purchase);
                        due.insert((now + after, number), Due { channel, purchase, unit, option_id });
                    }
                }
            }
            () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)),
                if next.is_some() && sending.len() < MAX_SENDING =>
            {
                if let Some((_, callback)) = due.pop_first()
                    && !ledger.is_canceled(callback.unit)
                {
                    sending.spawn(send(client.clone(), Arc::clone(&ledger), callback));
                }
            }
            Some(_) = sending.join_next() => {}
        }
    }
}

/// The body of a callback in the protocol of USIMSA.
pub(crate) fn usimsa(
    ledger: &Ledger,
    purchase: &LedgerPurchase,
    unit: UnitNumber,
    option_id: &str,
) -> Vec<CallbackMessage> {
    let callback = Callback {
        topup_id: unit.to_string(),
        option_id,
        profile: ledger.profile(unit, purchase.at),
        // A made-up URL, so that the callback does not repeat the activation code in it.
        qrcode_img_url: format!("https://qr.sandbox.example/{unit}.png"),
    };
    vec![CallbackMessage::of(
        &serde_json::to_value(callback).unwrap_or_default(),
    )]
}

async fn send(client: Client, ledger: Arc<Ledger>, due: Due) {
    let Due {
        channel,
        purchase,
        unit,
        option_id,
    } = &due;
    for message in (channel.messages)(&ledger, purchase, *unit, option_id) {
        let mut request = client
            .post(channel.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(message.body);
        if let Some((name, signature)) = message.signature {
            request = request.header(name, signature);
        }
        match request.send().await {
            Ok(response) => {
                tracing::debug!(
                    topup.id = unit,
                    status = response.status().as_u16(),
                    "callback sent"
                );
            }
            Err(error) => {
                // The URL holds a secret token.
                tracing::debug!(topup.id = unit, error = %error.without_url(), "callback lost");
            }
        }
    }
}
