//! Brings webhooks to an endpoint that the service cannot reach, such as one on a laptop.
//!
//! `listen` asks the service for the webhooks of a sandbox account (`GET /webhook/listen`, a long
//! poll) and posts each one to the endpoint, with the body and headers that the service made. It
//! forwards each webhook once and does not retry, because the developer who watches can send it
//! again. `redeliver --forward-to` signs one webhook here, with the account's own secret. Neither
//! changes anything at the service: the account's deliveries go on as if nobody listened. Only ids,
//! statuses and times are printed, never activation codes.

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

/// The maximum number of requests to the endpoint at once.
const AT_ONCE: usize = 8;
/// How long the service may wait for webhooks before it answers with none, in seconds.
const WAIT: u8 = 20;
/// The longest pause after a failed request. The pause doubles with each failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The timeout of a webhook. It is the default of the service, so that an endpoint that is too slow
/// here is also too slow there.
const TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Args, Clone, Debug)]
pub(crate) struct Listen {
    /// The endpoint that gets the webhooks, such as `http://localhost:3000/hook`
    #[arg(long, value_name = "URL", value_parser = endpoint)]
    forward_to: Url,
    /// Also forward the webhooks of eSIMs that became ready, and the events, within this time, such as `10m`
    ///
    /// Without it only webhooks from now on are forwarded.
    #[arg(long, value_parser = runtime::config::positive_duration)]
    since: Option<Duration>,
    /// End after this many webhooks
    ///
    /// The exit status is 0 if the endpoint acknowledged all of them, and otherwise 1, so that a
    /// test can check it.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// Parses an `http` or `https` URL.
pub(crate) fn endpoint(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error| format!("{error}"))?;
    if matches!(url.scheme(), "http" | "https") && url.has_host() {
        Ok(url)
    } else {
        Err(
            "it is not an http:// or https:// URL; write it like `http://localhost:3000/hook`"
                .into(),
        )
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
    /// Forwards webhooks until the program is interrupted, or until `count` of them were forwarded.
    /// Returns whether all were acknowledged. A temporary failure of the service is only printed
    /// and tried again, because a developer leaves this running for hours.
    pub(crate) async fn run(&self, account: &Account) -> anyhow::Result<bool> {
        let http = forwarder()?;
        let mut query = "wait=0".to_owned();
        if let Some(since) = self.since {
            let since = time::Duration::try_from(since).ok();
            let at = since.and_then(|since| runtime::clock::now().checked_sub(since));
            let at = at.unwrap_or(OffsetDateTime::UNIX_EPOCH).format(&Rfc3339)?;
            query = format!("wait=0&created_after={}", encoded(&at));
        }
        let mut forwarded = 0;
        let mut failed = 0;
        let mut began = false;
        let mut pause = Duration::from_secs(1);
        loop {
            let page = match account.send("GET", "/webhook/listen", &query, None).await {
                Ok(answer) if answer.is_success() => answer.success::<Page>()?,
                Ok(answer) if !answer.is_temporary() => {
                    bail!("{}: {}", answer.summary(), answer.text)
                }
                other => {
                    let why =
                        other.map_or_else(|error| format!("{error:#}"), |answer| answer.summary());
                    eprintln!("esim-partner: {why}; trying again in {pause:?}");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
            };
            pause = Duration::from_secs(1);
            if !began {
                eprintln!(
                    "Forwarding webhooks to {}. Press Ctrl-C to end",
                    self.forward_to
                );
                began = true;
            }
            let left = self.count.map(|count| count - forwarded);
            let most = left.map_or(usize::MAX, |left| {
                usize::try_from(left).unwrap_or(usize::MAX)
            });
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
    // The endpoint is often on this machine, which a proxy does not reach.
    account::http(TIMEOUT)
        .no_proxy()
        .build()
        .context("cannot create an HTTP client")
}

/// Posts a webhook and prints its outcome, but not its body, because the activation code is a
/// secret. Returns whether it was acknowledged.
async fn forward(http: &reqwest::Client, url: &Url, webhook: &Webhook) -> anyhow::Result<bool> {
    let mut request = http
        .post(url.clone())
        .header(
            "user-agent",
            concat!("esim-partner/", env!("CARGO_PKG_VERSION")),
        )
        .body(webhook.body.clone());
    for (name, value) in &webhook.headers {
        request = request.header(name, value);
    }
    let began = Instant::now();
    let answered = request.send().await;
    let took = began.elapsed().as_millis();
    let body: Value = serde_json::from_str(&webhook.body).unwrap_or_default();
    // A webhook of an eSIM names its order, and an event its type.
    let subject = ["external_order_id", "type"].map(|field| body[field].as_str());
    let subject = subject.into_iter().flatten().next().unwrap_or_default();
    let id = webhook.headers.get("webhook-id").map_or("", String::as_str);
    let (acknowledged, outcome) = match answered {
        Ok(answer) => (
            answer.status().is_success(),
            format!("{} after {took} ms", answer.status().as_u16()),
        ),
        Err(error) if error.is_timeout() => (false, "no answer within 15 s".to_owned()),
        Err(error) if error.is_connect() => (
            false,
            "no connection, so check that the endpoint is running".to_owned(),
        ),
        Err(_) => (false, "no valid HTTP answer".to_owned()),
    };
    print(format!("{id} {subject:?}: {outcome}"))?;
    if !acknowledged && is_event(id) {
        eprintln!(
            "It was not acknowledged. Run `esim-partner listen` with --since to forward it again"
        );
    } else if !acknowledged {
        eprintln!(
            "It was not acknowledged. Send it again: esim-partner redeliver {id} --forward-to {url}"
        );
    }
    Ok(acknowledged)
}

/// Whether a `webhook-id` names an event.
pub(crate) fn is_event(id: &str) -> bool {
    id.starts_with("evt_")
}

/// Signs the webhook of a topup on this machine, and posts it to an endpoint. Nothing changes at
/// the service.
pub(crate) async fn redeliver(
    account: &Account,
    topup_id: &str,
    url: &Url,
) -> anyhow::Result<bool> {
    #[derive(Deserialize)]
    struct Topup<'a> {
        state: String,
        // The bytes as the service sent them, because they are the body of the webhook and the
        // signature covers them.
        #[serde(borrow)]
        esim: Option<&'a RawValue>,
    }
    ensure!(
        !is_event(topup_id),
        "{topup_id} is an event, and events can only be sent to the account's webhook URL: leave out --forward-to"
    );
    let secret = account.webhook_secret()?;
    let answer = account
        .send("GET", &format!("/topups/{}", encoded(topup_id)), "", None)
        .await?;
    ensure!(answer.is_success(), "{}", answer.summary());
    let topup: Topup =
        serde_json::from_str(&answer.text).context("the answer has an unexpected form: check BASE_URL, and whether a newer esim-partner exists")?;
    let Some(esim) = topup.esim else {
        bail!(
            "topup {topup_id} is {}, so it has no eSIM that a webhook could bring",
            topup.state
        )
    };
    let timestamp = runtime::clock::unix_seconds();
    let headers = [
        ("content-type", "application/json".to_owned()),
        ("webhook-id", topup_id.to_owned()),
        ("webhook-timestamp", timestamp.to_string()),
        (
            "webhook-signature",
            secret.sign(topup_id, timestamp, esim.get().as_bytes()),
        ),
    ];
    let headers = headers.map(|(name, value)| (name.to_owned(), value)).into();
    let webhook = Webhook {
        headers,
        body: esim.get().to_owned(),
    };
    forward(&forwarder()?, url, &webhook).await
}
