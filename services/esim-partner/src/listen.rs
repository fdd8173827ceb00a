//! Brings webhooks to an endpoint that the service cannot reach, such as one on a laptop.
//!
//! `listen` asks the service for the webhooks of a sandbox account (`GET /webhook/listen`, a long
//! poll) and posts each one to the endpoint, with the body and headers that the service made. It
//! forwards each webhook once and does not retry, because the developer who watches can send it
//! again. Without an endpoint it checks their signatures itself. `redeliver --forward-to` signs one
//! webhook here, with the account's own secret. Neither changes anything at the service: the
//! account's deliveries go on as if nobody listened. Only ids, statuses and times are printed,
//! never activation codes, and of the endpoint's URL neither the password nor the query.
//!
//! A webhook without an id of the right form is not forwarded, and of its headers only those of
//! webhooks ([`FORWARDED`]): another server than ours must not choose what this machine sends to
//! the endpoint.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use clap::Args;
use domain::{Stored, TopupId, WebhookId, standing::ShownState};
use futures_util::{StreamExt, stream};
use reqwest::{Url, header::HeaderValue};
use runtime::terminal::{one_line, print, say};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use signing::webhook::Secret;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::account::{self, ApiClient, UNEXPECTED, encoded};

/// The maximum number of requests to the endpoint at once.
const AT_ONCE: usize = 8;
/// How long the service may wait for webhooks before it answers with none, in seconds.
const WAIT: u8 = 20;
/// The longest pause after a failed request. The pause doubles with each failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The timeout of a webhook. It is the default of the service, so that an endpoint that is too slow
/// here is also too slow there.
const TIMEOUT: Duration = Duration::from_secs(15);
/// How far from now the time of a webhook may be, as the partner guide says it.
const TOLERANCE: Duration = Duration::from_mins(5);
/// The headers of a webhook that are forwarded.
const FORWARDED: [&str; 5] = [
    "content-type",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
    "webhook-type",
];
/// How much of an unexpected answer is printed, in characters.
const SHOWN: usize = 300;

#[derive(Args, Clone, Debug)]
pub(crate) struct Listen {
    /// The endpoint that gets the webhooks, such as `http://localhost:3000/hook`
    ///
    /// Without it nothing is sent on: the signature of each webhook is checked with
    /// `WEBHOOK_SECRET`, as your endpoint has to do it, and the result is printed.
    #[arg(long, value_name = "URL", value_parser = endpoint)]
    forward_to: Option<Url>,
    /// Also forward the webhooks of eSIMs that became ready, and the events, within this time, such
    /// as `10m`
    ///
    /// Without it only webhooks from now on are forwarded.
    #[arg(long, value_parser = runtime::config::positive_duration)]
    since: Option<Duration>,
    /// End after this many webhooks
    ///
    /// The exit status is 0 if the endpoint acknowledged all of them, or all signatures are valid,
    /// and otherwise 1, so that a test can check it.
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
    /// Takes webhooks until the program is interrupted, or until `count` of them came. Returns
    /// whether all were acknowledged, or have a valid signature. A temporary failure of the service
    /// is only printed and tried again, because a developer leaves this running for hours.
    pub(crate) async fn run(&self, account: &ApiClient) -> anyhow::Result<bool> {
        let taker = match &self.forward_to {
            Some(url) => Taker::Endpoint(account::http(url, TIMEOUT)?, url),
            None => Taker::Check(account.webhook_secret()?),
        };
        let mut query = "wait=0".to_owned();
        if let Some(since) = self.since {
            let since = time::Duration::try_from(since).ok();
            let at = since.and_then(|since| runtime::clock::now().checked_sub(since));
            let at = at.unwrap_or(OffsetDateTime::UNIX_EPOCH).format(&Rfc3339)?;
            query = format!("wait=0&created_after={}", encoded(&at));
        }
        let mut taken = 0;
        let mut failed = 0;
        let mut began = false;
        let mut pause = Duration::from_secs(1);
        loop {
            let page = match account.send("GET", "/webhook/listen", &query, None).await {
                Ok(answer) if answer.is_success() => answer.success::<Page>()?,
                Ok(answer) if !answer.is_temporary() => {
                    let text: String = answer.text.chars().take(SHOWN).collect();
                    bail!("{}: {text}", answer.summary())
                }
                other => {
                    let why =
                        other.map_or_else(|error| format!("{error:#}"), |answer| answer.summary());
                    say(format_args!(
                        "esim-partner: {}; trying again in {pause:?}",
                        one_line(&why)
                    ));
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
            };
            pause = Duration::from_secs(1);
            if !began {
                match taker {
                    Taker::Endpoint(_, url) => say(format_args!(
                        "Forwarding webhooks to {}. Press Ctrl-C to end",
                        shown(url)
                    )),
                    Taker::Check(_) => {
                        say("Checking the signatures of webhooks. Press Ctrl-C to end");
                    }
                }
                began = true;
            }
            let left = self.count.map(|count| count - taken);
            let most = left.map_or(usize::MAX, |left| {
                usize::try_from(left).unwrap_or(usize::MAX)
            });
            let mut results = stream::iter(page.webhooks.iter().take(most))
                .map(|webhook| taker.take(webhook))
                .buffer_unordered(AT_ONCE);
            while let Some(well) = results.next().await {
                taken += 1;
                failed += u64::from(!well?);
            }
            if self.count == Some(taken) {
                return Ok(failed == 0);
            }
            query = format!("wait={WAIT}&cursor={}", encoded(&page.next_cursor));
        }
    }
}

/// What takes the webhooks: an endpoint, or this program, which only checks them.
enum Taker<'a> {
    Endpoint(reqwest::Client, &'a Url),
    Check(Secret),
}

impl Taker<'_> {
    /// Returns whether the webhook was acknowledged, or has a valid signature.
    async fn take(&self, webhook: &Webhook) -> anyhow::Result<bool> {
        match self {
            Self::Endpoint(http, url) => forward(http, url, webhook).await,
            Self::Check(secret) => check(secret, webhook),
        }
    }
}

impl Webhook {
    fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(given, _)| given.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Its id, or nothing if the service cannot have sent it; that is said.
    fn id(&self) -> Option<WebhookId> {
        let id = self.header("webhook-id").and_then(|id| id.parse().ok());
        if id.is_none() {
            say(
                "A webhook without a valid webhook-id was left out, because the service sends no such: check BASE_URL",
            );
        }
        id
    }

    /// What it is about: a webhook of an eSIM names its order, and an event its type.
    fn subject(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        let names = ["external_order_id", "type"].map(|field| body[field].as_str());
        names
            .into_iter()
            .flatten()
            .next()
            .unwrap_or_default()
            .to_owned()
    }
}

/// Checks signature and time as an endpoint has to do it, and prints the result. Returns whether
/// both are valid.
fn check(secret: &Secret, webhook: &Webhook) -> anyhow::Result<bool> {
    let Some(id) = webhook.id() else {
        return Ok(false);
    };
    let subject = webhook.subject();
    let timestamp = webhook.header("webhook-timestamp");
    let timestamp: i64 = timestamp.and_then(|text| text.parse().ok()).unwrap_or(0);
    let signatures = webhook.header("webhook-signature").unwrap_or_default();
    if !secret.verify(
        &id.to_string(),
        timestamp,
        webhook.body.as_bytes(),
        signatures,
    ) {
        print(format!("{id} {subject:?}: signature not valid"))?;
        say(
            "WEBHOOK_SECRET is not the one of this account. Run `esim-partner login` with all its keys",
        );
        return Ok(false);
    }
    let off = runtime::clock::unix_seconds().abs_diff(timestamp);
    if off > TOLERANCE.as_secs() {
        print(format!(
            "{id} {subject:?}: signature valid, but {off} s off"
        ))?;
        say("Your endpoint would refuse it. Set the clock of this machine");
        return Ok(false);
    }
    print(format!("{id} {subject:?}: signature valid"))?;
    Ok(true)
}

/// The URL without user name, password, query and fragment, which may be secrets.
fn shown(url: &Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    shown.set_fragment(None);
    // This fails only for URLs without a host, which `endpoint` refuses.
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    shown.into()
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
    let Some(id) = webhook.id() else {
        return Ok(false);
    };
    for name in FORWARDED {
        let value = webhook.header(name);
        let value = value.and_then(|value| HeaderValue::from_str(value).ok());
        if let Some(value) = value {
            request = request.header(name, value);
        }
    }
    let began = Instant::now();
    let answered = request.send().await;
    let took = began.elapsed().as_millis();
    let subject = webhook.subject();
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
    match id {
        _ if acknowledged => {}
        WebhookId::Event(_) => say(
            "It was not acknowledged. Run `esim-partner listen` with --since to forward it again",
        ),
        WebhookId::Topup(id) => say(format_args!(
            "It was not acknowledged. Send it again: esim-partner redeliver {id} --forward-to {}",
            shown(url)
        )),
    }
    Ok(acknowledged)
}

/// Signs the webhook of a topup on this machine, and posts it to an endpoint. Nothing changes at
/// the service.
pub(crate) async fn redeliver(
    account: &ApiClient,
    id: &WebhookId,
    url: &Url,
) -> anyhow::Result<bool> {
    #[derive(Deserialize)]
    struct Topup<'a> {
        state: Stored<ShownState>,
        // The bytes as the service sent them, because they are the body of the webhook and the
        // signature covers them.
        #[serde(borrow)]
        esim: Option<&'a RawValue>,
    }
    let WebhookId::Topup(topup_id) = id else {
        bail!(
            "{id} is an event, and events can only be sent to the account's webhook URL: leave out --forward-to"
        )
    };
    let topup_id: &TopupId = topup_id;
    let secret = account.webhook_secret()?;
    let answer = account
        .send("GET", &format!("/topups/{topup_id}"), "", None)
        .await?;
    ensure!(answer.is_success(), "{}", answer.summary());
    let topup: Topup = serde_json::from_str(&answer.text).context(UNEXPECTED)?;
    let Some(esim) = topup.esim else {
        bail!(
            "topup {topup_id} is {}, so it has no eSIM that a webhook could bring",
            topup.state
        )
    };
    let timestamp = runtime::clock::unix_seconds();
    let headers = [
        ("content-type", "application/json".to_owned()),
        ("webhook-id", topup_id.to_string()),
        ("webhook-timestamp", timestamp.to_string()),
        (
            "webhook-signature",
            secret.sign(topup_id.as_str(), timestamp, esim.get().as_bytes()),
        ),
    ];
    let headers = headers.map(|(name, value)| (name.to_owned(), value)).into();
    let webhook = Webhook {
        headers,
        body: esim.get().to_owned(),
    };
    forward(&account::http(url, TIMEOUT)?, url, &webhook).await
}
