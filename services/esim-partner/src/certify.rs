//! `esim-partner certify`: sends realistic webhooks to an endpoint, and judges its answers.
//!
//! Each check sends what a partner's endpoint will meet in practice: valid, repeated, slow and
//! unordered webhooks, which it must acknowledge with a 2xx, and forged, changed and stale ones,
//! which it must refuse. A failed check comes with a remedy, so that a developer can fix the
//! endpoint without asking us. The names of the checks are stable, because scripts read them from
//! `--json`.
//!
//! The webhooks are made and signed here, so the endpoint needs to know nothing but the webhook
//! secret, and nothing is ordered. Their made-up topup ids begin with `20000101` and their order
//! ids with `certify-`, so that an endpoint can tell them from real ones. Afterwards [`checklist`]
//! looks at the account itself.

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use futures_util::{future::join_all, stream};
use reqwest::{Body, Url};
use serde::Serialize;
use signing::webhook::Secret;

use crate::{
    account::{self, Account},
    checklist::{self, Done},
    listen::endpoint,
    output::print,
};

/// The number of webhooks that the last check sends at once.
const AT_ONCE: u8 = 8;
/// An answer that takes this long fails the check. The service gives up after 15 s by default, and
/// an endpoint that needs a third of that has little reserve for a busy day.
const SLOW: Duration = Duration::from_secs(5);
/// The pause between the two halves of a slow webhook.
const HALVES: Duration = Duration::from_secs(1);

#[derive(Args, Clone, Debug)]
pub struct Certify {
    /// The webhook URL of your endpoint, which must know the `WEBHOOK_SECRET` of your keys
    #[arg(value_parser = endpoint)]
    url: Url,
    /// Print the checks and the checklist as JSON
    #[arg(long)]
    json: bool,
    /// The longest wait for an answer
    ///
    /// The default is that of the service, which counts a later answer as a failure and sends the
    /// webhook again.
    #[arg(long, default_value = "15s", value_parser = runtime::config::positive_duration)]
    timeout: Duration,
}

/// One check of an endpoint.
#[derive(Debug, Serialize)]
pub struct Check {
    /// The check's stable name.
    pub name: &'static str,
    /// What was sent.
    pub sent: &'static str,
    pub passed: bool,
    /// What the endpoint answered.
    pub answered: String,
    /// What to change in the endpoint; empty if the check passed.
    pub remedy: &'static str,
}

#[derive(Clone)]
struct Webhook {
    id: String,
    body: String,
    headers: Vec<(&'static str, String)>,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Status(u16, Duration),
    None,
}

impl Answer {
    fn is_acknowledged(self) -> bool {
        matches!(self, Self::Status(200..300, _))
    }

    fn summary(self) -> String {
        match self {
            Self::Status(status, took) => format!("{status} after {} ms", took.as_millis()),
            Self::None => "no answer in time".to_owned(),
        }
    }
}

impl Webhook {
    /// The webhook of a made-up topup. `number` tells the webhooks of one run apart, and the time
    /// those of several runs: the endpoint must not take a new run for a repetition.
    fn new(number: u8) -> Self {
        let id = format!("20000101{:016}{number:02}", runtime::clock::unix_seconds());
        let body = format!(
            "{{\"topup_id\":\"{id}\",\"option_id\":\"424b7b26-96e7-5c95-8df9-6654a3998070\",\
             \"iccid\":\"8982000000000000000\",\"smdp\":\"smdp.example.com\",\"activate_code\":\"CERTIFY\",\
             \"download_link\":\"LPA:1$smdp.example.com$CERTIFY\",\
             \"qrcode_img_url\":\"https://esim.example.com/qr/LPA%3A1%24smdp.example.com%24CERTIFY/300\",\
             \"expired_date\":\"2099-12-31\",\"external_order_id\":\"certify-{number}\"}}"
        );
        Self {
            id,
            body,
            headers: Vec::new(),
        }
    }

    /// Signs with each of the secrets, with a timestamp this many seconds from now.
    fn signed(mut self, secrets: &[&Secret], from_now: i64) -> Self {
        let timestamp = runtime::clock::unix_seconds() + from_now;
        let sign = |secret: &&Secret| secret.sign(&self.id, timestamp, self.body.as_bytes());
        let signatures: Vec<String> = secrets.iter().map(sign).collect();
        self.headers = vec![
            ("webhook-id", self.id.clone()),
            ("webhook-timestamp", timestamp.to_string()),
            ("webhook-signature", signatures.join(" ")),
        ];
        self
    }
}

/// The name of a check, what it sends, and the remedy if it fails.
type Texts = [&'static str; 3];

struct Endpoint<'a> {
    url: &'a str,
    http: reqwest::Client,
    checks: Vec<Check>,
}

impl Endpoint<'_> {
    async fn send(&self, webhook: &Webhook) -> Answer {
        self.send_body(webhook, webhook.body.clone().into()).await
    }

    async fn send_body(&self, webhook: &Webhook, body: Body) -> Answer {
        let mut request = self
            .http
            .post(self.url)
            .header("content-type", "application/json")
            .header("content-length", webhook.body.len())
            .header("user-agent", "topup-notifier/certify")
            .body(body);
        for (name, value) in &webhook.headers {
            request = request.header(*name, value);
        }
        let began = Instant::now();
        let answered = request.send().await;
        answered.map_or(Answer::None, |answer| {
            Answer::Status(answer.status().as_u16(), began.elapsed())
        })
    }

    /// Sends a webhook that must be acknowledged, or must not.
    async fn check(&mut self, texts: Texts, webhook: &Webhook, expected: bool) {
        let answer = self.send(webhook).await;
        // A forged webhook must be refused by an answer. Without one the check fails, because the
        // endpoint is slow or broken, and we do not know what it did with the webhook.
        let passed = matches!(answer, Answer::Status(..)) && answer.is_acknowledged() == expected;
        self.note(texts, passed, answer.summary());
    }

    /// Notes a check that passes if all of its webhooks were acknowledged.
    fn all(&mut self, texts: Texts, answers: &[Answer]) {
        let failed = answers.iter().find(|answer| !answer.is_acknowledged());
        let answered = failed.map_or("all acknowledged".to_owned(), |answer| answer.summary());
        self.note(texts, failed.is_none(), answered);
    }

    fn note(&mut self, [name, sent, remedy]: Texts, passed: bool, answered: String) {
        self.checks.push(Check {
            name,
            sent,
            passed,
            answered,
            remedy: if passed { "" } else { remedy },
        });
    }
}

/// Runs all checks against the endpoint, one after another, and returns them in that order. An
/// endpoint that does not answer is no error: its checks fail.
pub async fn checks(url: &str, secret: &Secret, timeout: Duration) -> anyhow::Result<Vec<Check>> {
    let other = signing::generate::webhook_secret()?;
    let http = account::http(timeout)
        .build()
        .context("cannot create an HTTP client")?;
    let mut endpoint = Endpoint {
        url,
        http,
        checks: Vec::new(),
    };
    let first = Webhook::new(1);
    let again = first.clone().signed(&[secret], 1);
    let began = endpoint.send(&first.signed(&[secret], 0)).await;
    let remedy = "answer 200 to a valid webhook once you have stored it. If your endpoint refuses the signature: compute it over the raw body, with the key that you get by decoding the part of the secret after whsec_ from Base64";
    let texts = ["good", "a webhook with a valid signature", remedy];
    endpoint.note(texts, began.is_acknowledged(), began.summary());
    let quick = matches!(began, Answer::Status(_, took) if took < SLOW.min(timeout / 2));
    let remedy = "answer as soon as the webhook is stored, and do the rest later: an answer after 15 s counts as a failure, and slow answers hold up your other webhooks";
    endpoint.note(["quick", "the same, timed", remedy], quick, began.summary());
    let sent = "the same webhook again, with the same webhook-id";
    let remedy = "answer 200 to a repeated webhook-id and ignore it: webhooks are delivered at least once, so repeats are normal";
    endpoint
        .check(["repeated", sent, remedy], &again, true)
        .await;
    forgeries(&mut endpoint, secret, &other).await;
    rotations(&mut endpoint, secret, &other).await;

    let mut spaced = Webhook::new(9);
    let body = spaced.body.replace(":\"", " :  \"");
    spaced.body = body.replace("certify-", "\\u0063ertify-");
    let spaced = spaced.signed(&[secret], 0);
    let sent = "a valid webhook with blanks and escapes in its JSON";
    let remedy = "verify the signature over the raw bytes of the body, not over JSON that you have parsed and written again";
    endpoint
        .check(["raw_body", sent, remedy], &spaced, true)
        .await;
    slow(&mut endpoint, secret, HALVES.min(timeout / 6)).await;
    unordered(&mut endpoint, secret).await;
    let many: Vec<Webhook> = (20..20 + AT_ONCE)
        .rev()
        .map(|number| Webhook::new(number).signed(&[secret], 0))
        .collect();
    let answers = join_all(many.iter().map(|webhook| endpoint.send(webhook))).await;
    endpoint.all(
        [
            "at_once",
            "eight webhooks at once",
            "acknowledge webhooks that arrive at the same time: an order of many units brings many webhooks at once",
        ],
        &answers,
    );
    Ok(endpoint.checks)
}

/// A webhook over a slow network, and a webhook that is repeated while the first one is still being
/// handled.
async fn slow(endpoint: &mut Endpoint<'_>, secret: &Secret, pause: Duration) {
    let webhook = Webhook::new(12).signed(&[secret], 0);
    let (first, second) = webhook.body.split_at(webhook.body.len() / 2);
    let halves = [
        (first.to_owned(), Duration::ZERO),
        (second.to_owned(), pause),
    ];
    let halves = stream::unfold(halves.into_iter(), |mut halves| async move {
        let (half, pause) = halves.next()?;
        tokio::time::sleep(pause).await;
        Some((Ok::<_, std::io::Error>(half), halves))
    });
    let answer = endpoint
        .send_body(&webhook, Body::wrap_stream(halves))
        .await;
    let sent = "a webhook whose body arrives in two halves, up to a second apart";
    let remedy = "read the whole body (Content-Length bytes) before you verify it";
    endpoint.note(
        ["slow", sent, remedy],
        answer.is_acknowledged(),
        answer.summary(),
    );
    let webhook = Webhook::new(13).signed(&[secret], 0);
    let answers = join_all([&webhook, &webhook].map(|webhook| endpoint.send(webhook))).await;
    let sent = "the same webhook twice at once, as after a slow answer";
    let remedy = "answer 200 to both of two equal webhooks. For example, insert the webhook-id under a unique key: one request inserts it, and the other ignores the conflict";
    endpoint.all(["repeated_at_once", sent, remedy], &answers);
}

/// The webhooks of an order's units in an unexpected order.
async fn unordered(endpoint: &mut Endpoint<'_>, secret: &Secret) {
    let [first, second] = [14, 15].map(|number| {
        let mut webhook = Webhook::new(number);
        webhook.body = webhook
            .body
            .replace(&format!("certify-{number}"), "certify-two-units");
        webhook
    });
    let later = endpoint.send(&second.signed(&[secret], 0)).await;
    let earlier = endpoint.send(&first.signed(&[secret], -10)).await;
    let sent = "the second unit of an order, then the first with an older timestamp";
    let remedy = "accept webhooks in any order: neither topup ids nor timestamps rise from one webhook to the next";
    endpoint.all(["out_of_order", sent, remedy], &[later, earlier]);
}

/// Webhooks that must not be acknowledged.
async fn forgeries(endpoint: &mut Endpoint<'_>, secret: &Secret, other: &Secret) {
    const REFUSE: &str = "answer 401 unless one of the signatures is valid for the webhook-id, the webhook-timestamp and the raw body: otherwise anybody can send you made-up eSIMs";
    const STALE: &str = "refuse a webhook-timestamp that is more than five minutes from your clock, even if the signature is valid: otherwise a recorded webhook can be sent to you again";
    let wrong = Webhook::new(3).signed(&[other], 0);
    let mut unsigned = Webhook::new(4).signed(&[secret], 0);
    unsigned
        .headers
        .retain(|(name, _)| *name != "webhook-signature");
    let mut changed = Webhook::new(5).signed(&[secret], 0);
    changed.body = changed.body.replace("smdp.example.com", "smdp.example.net");
    let mut renamed = Webhook::new(6).signed(&[secret], 0);
    if let Some((_, id)) = renamed.headers.first_mut() {
        id.push('0');
    }
    let old = Webhook::new(7).signed(&[secret], -3600);
    let future = Webhook::new(8).signed(&[secret], 3600);
    for (texts, webhook) in [
        (
            [
                "wrong_signature",
                "a webhook signed with another secret",
                REFUSE,
            ],
            wrong,
        ),
        (
            [
                "no_signature",
                "a webhook without webhook-signature",
                REFUSE,
            ],
            unsigned,
        ),
        (
            ["changed_body", "a webhook whose body was changed", REFUSE],
            changed,
        ),
        (
            [
                "changed_id",
                "a webhook whose webhook-id was changed",
                REFUSE,
            ],
            renamed,
        ),
        (["old", "a webhook that was signed an hour ago", STALE], old),
        (
            [
                "future",
                "a webhook that is signed for an hour from now",
                STALE,
            ],
            future,
        ),
    ] {
        endpoint.check(texts, &webhook, false).await;
    }
}

/// Webhooks with two signatures, as during a rotation of the secret.
async fn rotations(endpoint: &mut Endpoint<'_>, secret: &Secret, other: &Secret) {
    const ANY: &str =
        "split webhook-signature at the spaces and accept the webhook if any signature is valid";
    let last = Webhook::new(10).signed(&[other, secret], 0);
    let first = Webhook::new(11).signed(&[secret, other], 0);
    endpoint
        .check(
            [
                "second_signature",
                "two signatures, the second one valid",
                ANY,
            ],
            &last,
            true,
        )
        .await;
    endpoint
        .check(
            [
                "first_signature",
                "two signatures, the first one valid",
                ANY,
            ],
            &first,
            true,
        )
        .await;
}

impl Certify {
    /// Prints the checks and the checklist; returns whether all checks passed.
    pub(crate) async fn run(&self, account: &Account) -> anyhow::Result<bool> {
        let checks = checks(self.url.as_str(), &account.webhook_secret()?, self.timeout).await?;
        let passed = checks.iter().all(|check| check.passed);
        let checklist = checklist::checklist(account, &self.url, passed).await;
        let open = checklist
            .iter()
            .any(|item| matches!(item.done, Done::No | Done::Unknown));
        if self.json {
            let report = serde_json::json!({
                "passed": passed, "checks": checks, "ready": !open, "checklist": checklist,
            });
            print(serde_json::to_string_pretty(&report)?)?;
            return Ok(passed);
        }
        for Check {
            name,
            sent,
            passed,
            answered,
            remedy,
        } in &checks
        {
            let mark = if *passed { "ok  " } else { "FAIL" };
            print(format!("{mark} {name}: {sent}; answer: {answered}"))?;
            if !passed {
                print(format!("     {remedy}"))?;
            }
        }
        checklist::show(&checklist)?;
        print(if !passed {
            "The endpoint is not ready to go live: fix what FAIL names, and run the command again."
        } else if open {
            "The endpoint is ready to go live, but the checklist has open items."
        } else {
            "The endpoint is ready to go live."
        })?;
        Ok(passed)
    }
}
