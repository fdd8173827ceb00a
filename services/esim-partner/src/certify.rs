//! Sends webhooks as they really happen to an endpoint, and judges its answers.

use std::time::{Duration, Instant};

use clap::Args;
use futures_util::future::join_all;
use serde::Serialize;
use signing::webhook::Secret;

use crate::account::{self, Account};

/// The webhooks that are sent at once.
const AT_ONCE: u8 = 8;
/// A slower answer is near the timeout.
const SLOW: Duration = Duration::from_secs(5);

#[derive(Args, Clone, Debug)]
pub struct Certify {
    /// The webhook URL; the endpoint must know the `WEBHOOK_SECRET` of the keys
    url: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Longest wait for an answer; the real one is 15s
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
    /// What is wrong, and the remedy; empty if it passed.
    pub remedy: &'static str,
}

/// A webhook to send.
#[derive(Clone)]
struct Webhook {
    id: String,
    body: String,
    headers: Vec<(&'static str, String)>,
}

/// How an endpoint answered.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Status(u16, Duration),
    None,
}

impl Answer {
    fn is_acknowledged(self) -> bool {
        matches!(self, Self::Status(200..300, _))
    }

    fn told(self) -> String {
        match self {
            Self::Status(status, took) => format!("{status} after {} ms", took.as_millis()),
            Self::None => "no answer in time".to_owned(),
        }
    }
}

impl Webhook {
    /// An eSIM of a made-up topup, in the test's own range of ids.
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

    /// Signs with each of the secrets, at a time this many seconds from now.
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

    fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(header, _)| *header != name);
        self
    }
}

/// The endpoint under test.
struct Endpoint<'a> {
    url: &'a str,
    http: reqwest::Client,
    checks: Vec<Check>,
}

impl Endpoint<'_> {
    async fn send(&self, webhook: &Webhook) -> Answer {
        let mut request = self
            .http
            .post(self.url)
            .header("content-type", "application/json")
            .header("user-agent", "topup-notifier/certify")
            .body(webhook.body.clone());
        for (name, value) in &webhook.headers {
            request = request.header(*name, value);
        }
        let began = Instant::now();
        let answered = request.send().await;
        answered.map_or(Answer::None, |answer| {
            Answer::Status(answer.status().as_u16(), began.elapsed())
        })
    }

    async fn check(
        &mut self,
        name: &'static str,
        sent: &'static str,
        webhook: &Webhook,
        expected: bool,
        remedy: &'static str,
    ) {
        let answer = self.send(webhook).await;
        // No answer to a forged webhook is a fault, too: it means that the endpoint is slow or broken.
        let answered = matches!(answer, Answer::Status(..));
        let passed = answered && answer.is_acknowledged() == expected;
        self.note(name, sent, passed, answer.told(), remedy);
    }

    fn note(
        &mut self,
        name: &'static str,
        sent: &'static str,
        passed: bool,
        answered: String,
        remedy: &'static str,
    ) {
        self.checks.push(Check {
            name,
            sent,
            passed,
            answered,
            remedy: if passed { "" } else { remedy },
        });
    }
}

/// Runs all checks of an endpoint.
pub async fn checks(url: &str, secret: &Secret, timeout: Duration) -> anyhow::Result<Vec<Check>> {
    let other = signing::generate::webhook_secret()?;
    let mut endpoint = Endpoint {
        url,
        http: account::http(timeout)?,
        checks: Vec::new(),
    };
    let first = Webhook::new(1);
    let again = first.clone().signed(&[secret], 1);
    let first = first.signed(&[secret], 0);
    let began = endpoint.send(&first).await;
    endpoint.note(
        "good",
        "a webhook with a valid signature",
        began.is_acknowledged(),
        began.told(),
        "answer 200 to a valid webhook after you have stored it; compute the signature over the raw body with the decoded part of the secret after whsec_",
    );
    let quick = matches!(began, Answer::Status(_, took) if took < SLOW.min(timeout / 2));
    endpoint.note(
        "quick",
        "the same, timed",
        quick,
        began.told(),
        "answer at once and do the rest later: an answer after 15 s is a failure, and slow answers hold up your other webhooks",
    );
    endpoint
        .check(
            "repeated",
            "the same webhook again, with the same webhook-id",
            &again,
            true,
            "answer 200 to a repeated webhook-id and ignore it: webhooks are delivered at least once",
        )
        .await;
    forgeries(&mut endpoint, secret, &other).await;
    rotations(&mut endpoint, secret, &other).await;

    let mut spaced = Webhook::new(9);
    spaced.body = spaced
        .body
        .replace(":\"", " :  \"")
        .replace("certify-", "\\u0063ertify-");
    let spaced = spaced.signed(&[secret], 0);
    endpoint
        .check(
            "raw_body",
            "a valid webhook with blanks and escapes in its JSON",
            &spaced,
            true,
            "verify the raw bytes of the body, not JSON that you have parsed and written again",
        )
        .await;
    let many: Vec<Webhook> = (20..20 + AT_ONCE)
        .rev()
        .map(|number| Webhook::new(number).signed(&[secret], 0))
        .collect();
    let answers = join_all(many.iter().map(|webhook| endpoint.send(webhook))).await;
    let failed = answers.iter().find(|answer| !answer.is_acknowledged());
    endpoint.note(
        "at_once",
        "eight webhooks at once, the newest topup first",
        failed.is_none(),
        failed.map_or("all acknowledged".to_owned(), |answer| answer.told()),
        "accept webhooks at once and in any order",
    );
    Ok(endpoint.checks)
}

/// What must not be acknowledged.
async fn forgeries(endpoint: &mut Endpoint<'_>, secret: &Secret, other: &Secret) {
    const REFUSE: &str =
        "answer 401 unless one signature is valid for the id, the timestamp and the raw body";
    const STALE: &str =
        "refuse a webhook-timestamp that is more than five minutes from your clock, however it is signed";
    let wrong = Webhook::new(3).signed(&[other], 0);
    endpoint
        .check(
            "wrong_signature",
            "a webhook signed with another secret",
            &wrong,
            false,
            REFUSE,
        )
        .await;
    let unsigned = Webhook::new(4).signed(&[secret], 0).without("webhook-signature");
    endpoint
        .check(
            "no_signature",
            "a webhook without webhook-signature",
            &unsigned,
            false,
            REFUSE,
        )
        .await;
    let mut changed = Webhook::new(5).signed(&[secret], 0);
    changed.body = changed.body.replace("smdp.example.com", "smdp.example.net");
    endpoint
        .check(
            "changed_body",
            "a webhook whose body was changed",
            &changed,
            false,
            REFUSE,
        )
        .await;
    let mut renamed = Webhook::new(6).signed(&[secret], 0);
    if let Some((_, id)) = renamed.headers.first_mut() {
        id.push('0');
    }
    endpoint
        .check(
            "changed_id",
            "a webhook whose webhook-id was changed",
            &renamed,
            false,
            REFUSE,
        )
        .await;
    let old = Webhook::new(7).signed(&[secret], -3600);
    endpoint
        .check("old", "a webhook that was signed an hour ago", &old, false, STALE)
        .await;
    let future = Webhook::new(8).signed(&[secret], 3600);
    endpoint
        .check(
            "future",
            "a webhook that is signed for an hour from now",
            &future,
            false,
            STALE,
        )
        .await;
}

/// What happens while secrets change.
async fn rotations(endpoint: &mut Endpoint<'_>, secret: &Secret, other: &Secret) {
    const ANY: &str =
        "split webhook-signature at the spaces and accept the webhook if any signature is valid";
    let last = Webhook::new(10).signed(&[other, secret], 0);
    endpoint
        .check(
            "second_signature",
            "two signatures, the second one valid",
            &last,
            true,
            ANY,
        )
        .await;
    let first = Webhook::new(11).signed(&[secret, other], 0);
    endpoint
        .check(
            "first_signature",
            "two signatures, the first one valid",
            &first,
            true,
            ANY,
        )
        .await;
}

impl Certify {
    /// Prints the checklist; returns whether all checks passed.
    pub(crate) async fn run(&self, account: &Account) -> anyhow::Result<bool> {
        let checks = checks(&self.url, &account.webhook_secret()?, self.timeout).await?;
        let passed = checks.iter().all(|check| check.passed);
        if self.json {
            let report = serde_json::json!({"passed": passed, "checks": checks});
            println!("{}", serde_json::to_string_pretty(&report)?);
            return Ok(passed);
        }
        for check in &checks {
            let mark = if check.passed { "ok  " } else { "FAIL" };
            println!(
                "{mark} {}: {}; answer: {}",
                check.name, check.sent, check.answered
            );
            if !check.passed {
                println!("     {}", check.remedy);
            }
        }
        println!(
            "{}",
            if passed {
                "The endpoint is ready to go live."
            } else {
                "The endpoint is not ready to go live."
            }
        );
        Ok(passed)
    }
}
