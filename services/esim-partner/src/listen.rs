//! Webhooks to an endpoint that the service cannot reach.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use clap::Args;
use futures_util::{StreamExt, stream};
use reqwest::Url;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    account::{self, Account, encoded},
    output::print,
};

/// Requests to the endpoint at once.
const AT_ONCE: usize = 8;
/// The longest wait of the service for webhooks, in seconds.
const WAIT: u8 = 20;
/// The longest pause after a failed request.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The timeout of a webhook, as the service has it.
const TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Args, Clone, Debug)]
pub(crate) struct Listen {
    /// The endpoint, such as `http://localhost:3000/hook`
    #[arg(long, value_name = "URL", value_parser = endpoint)]
    forward_to: Url,
    /// Also forward webhooks of eSIMs that became ready within this time, such as `10m`
    #[arg(long, value_parser = runtime::config::positive_duration)]
    since: Option<Duration>,
    /// End after this many webhooks, with success if all were acknowledged
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// An `http` or `https` URL.
pub(crate) fn endpoint(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error| format!("{error}"))?;
    if matches!(url.scheme(), "http" | "https") && url.has_host() {
        Ok(url)
    } else {
        Err("write it like `http://localhost:3000/hook`".into())
    }
}

#[derive(Deserialize)]
struct Webhook {
    headers: BTreeMap<String, String>,
    body: String,
}

#[derive(Deserialize)]
struct Page {
    webhooks: Vec<Webhook>,
    next_cursor: String,
}

impl Listen {
    /// Forwards webhooks until it is interrupted, or `count` were forwarded. Returns whether all were acknowledged.
    pub(crate) async fn run(&self, account: &Account) -> anyhow::Result<bool> {
        let http = forwarder()?;
        let mut query = "wait=0".to_owned();
        if let Some(since) = self.since {
            let since = time::Duration::try_from(since).ok();
            let at = since.and_then(|since| runtime::clock::now().checked_sub(since));
            let at = at.unwrap_or(OffsetDateTime::UNIX_EPOCH).format(&Rfc3339)?;
            query = format!("wait=0&created_after={}", encoded(&at));
        }
        let (mut forwarded, mut failed, mut began) = (0, 0, false);
        let mut pause = Duration::from_secs(1);
        loop {
            let page = match account.send("GET", "/webhook/listen", &query, None).await {
                Ok(answer) if answer.is_success() => answer.success::<Page>()?,
                Ok(answer) if !answer.is_temporary() => bail!("{}: {}", answer.summary(), answer.text),
                other => {
                    let why = other.map_or_else(|error| format!("{error:#}"), |answer| answer.summary());
                    eprintln!("esim-partner: {why}; trying again in {pause:?}");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
            };
            pause = Duration::from_secs(1);
            if !began {
                eprintln!("Forwarding webhooks to {}. End with Ctrl-C", self.forward_to);
                began = true;
            }
            let left = self.count.map(|count| count - forwarded);
            let most = left.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
            let mut results = stream::iter(page.webhooks.iter().take(most))
                .map(|webhook| forward(&http, &self.forward_to, webhook))
                .buffer_unordered(AT_ONCE);
            while let Some(acknowledged) = results.next().await {
                forwarded += 1;
                failed += u64::from(!acknowledged?);
            }
            if self.count == Some(forwarded) {
                return Ok(failed == 0);
            }
            query = format!("wait={WAIT}&cursor={}", encoded(&page.next_cursor));
        }
    }
}

fn forwarder() -> anyhow::Result<reqwest::Client> {
    // A proxy does not reach the caller's machine.
    account::http(TIMEOUT).no_proxy().build().context("cannot create an HTTP client")
}

/// Posts a webhook and prints its outcome, without the activation code, which is a secret. Returns whether it was
/// acknowledged.
async fn forward(http: &reqwest::Client, url: &Url, webhook: &Webhook) -> anyhow::Result<bool> {
    let mut request = http
        .post(url.clone())
        .header("user-agent", concat!("esim-partner/", env!("CARGO_PKG_VERSION")))
        .body(webhook.body.clone());
    for (name, value) in &webhook.headers {
        request = request.header(name, value);
    }
    let began = Instant::now();
    let answered = request.send().await;
    let took = began.elapsed().as_millis();
    let body: Value = serde_json::from_str(&webhook.body).unwrap_or_default();
    let order = body["external_order_id"].as_str().unwrap_or_default();
    let id = webhook.headers.get("webhook-id").map_or("", String::as_str);
    let (acknowledged, outcome) = match answered {
        Ok(answer) => (answer.status().is_success(), format!("{} after {took} ms", answer.status().as_u16())),
        Err(error) if error.is_timeout() => (false, "no answer in 15 s".to_owned()),
        Err(error) if error.is_connect() => (false, "no connection".to_owned()),
        Err(_) => (false, "no valid answer".to_owned()),
    };
    print(format!("{id} {order:?}: {outcome}"))?;
    if !acknowledged {
        eprintln!("Send it again: esim-partner redeliver {id} --forward-to {url}");
    }
    Ok(acknowledged)
}

/// Whether a `webhook-id` names an event.
pub(crate) fn is_event(id: &str) -> bool {
    id.starts_with("evt_")
}

/// Signs the webhook of a topup here and posts it to an endpoint. The service and the account's deliveries are not
/// changed.
pub(crate) async fn redeliver(account: &Account, topup_id: &str, url: &Url) -> anyhow::Result<bool> {
    #[derive(Deserialize)]
    struct Topup<'a> {
        state: String,
        // The bytes as sent: they are the body of the webhook.
        #[serde(borrow)]
        esim: Option<&'a RawValue>,
    }
    ensure!(!is_event(topup_id), "events are sent to the account's webhook URL only: leave out --forward-to");
    let secret = account.webhook_secret()?;
    let answer = account.send("GET", &format!("/topups/{}", encoded(topup_id)), "", None).await?;
    ensure!(answer.is_success(), "{}", answer.summary());
    let topup: Topup = serde_json::from_str(&answer.text).context("the response has an unexpected form")?;
    let Some(esim) = topup.esim else { bail!("the topup is {} and has no eSIM to send", topup.state) };
    let timestamp = runtime::clock::unix_seconds();
    let headers = [
        ("content-type", "application/json".to_owned()),
        ("webhook-id", topup_id.to_owned()),
        ("webhook-timestamp", timestamp.to_string()),
        ("webhook-signature", secret.sign(topup_id, timestamp, esim.get().as_bytes())),
    ];
    let headers = headers.map(|(name, value)| (name.to_owned(), value)).into();
    let webhook = Webhook { headers, body: esim.get().to_owned() };
    forward(&forwarder()?, url, &webhook).await
}
