//! `esim-partner certify`: sends realistic webhooks to an endpoint, and judges its answers.
//!
//! Each check sends what a partner's endpoint will meet in practice: valid, repeated, slow and
//! unordered webhooks, which it must acknowledge with a 2xx, and forged, changed and stale ones,
//! which it must refuse. A failed check comes with a remedy, so that a developer can fix the
//! endpoint without asking us. A fault that makes many checks fail is named once: the others are
//! then not judged ([`CheckVerdict::NotJudged`]). The names of the checks are stable, because
//! scripts read them from `--json`.
//!
//! The webhooks are made and signed here, so the endpoint needs to know nothing but the webhook
//! secret, and nothing is ordered. Their made-up topup ids begin with `20000101`, their event ids
//! with `evt_20000101` and their order ids with `certify-`, so that an endpoint can tell them from
//! real ones. Afterwards [`checklist`] looks at the account itself.

mod webhook;

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use domain::event::EventKind;
use futures_util::{future::join_all, stream};
use reqwest::{Body, Url};
use runtime::terminal::print;
use serde::Serialize;
use signing::webhook::Secret;

use self::webhook::{EndpointAnswer, TestWebhook, TestWebhookSender};
use crate::{
    account::{self, ApiClient},
    checklist::{self, ItemState},
    listen::endpoint,
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
pub struct EndpointCheck {
    /// The check's stable name.
    pub name: &'static str,
    /// What was sent.
    pub sent: &'static str,
    /// Whether it passed; false also if it was not judged.
    pub passed: bool,
    pub verdict: CheckVerdict,
    /// What the endpoint answered.
    pub answered: String,
    /// What to change in the endpoint; empty unless the check failed.
    pub remedy: &'static str,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckVerdict {
    Passed,
    Failed,
    /// An earlier check failed, and this one would say nothing new.
    NotJudged,
}

/// The name of a check, what it sends, and the remedy if it fails.
type Texts = [&'static str; 3];

/// The endpoint, and what is known about it so far.
struct Endpoint {
    sender: TestWebhookSender,
    checks: Vec<EndpointCheck>,
    /// Why checks of valid webhooks would say nothing new: the check that failed.
    refuses_valid: Option<&'static str>,
    /// Why checks of forged webhooks would say nothing new.
    accepts_forged: Option<&'static str>,
}

impl Endpoint {
    /// Sends a webhook that must be acknowledged, or must not.
    async fn check(&mut self, texts: Texts, webhook: &TestWebhook, expected: bool) {
        let reason = if expected {
            self.refuses_valid
        } else {
            self.accepts_forged
        };
        if let Some(reason) = reason {
            return self.skip(texts, reason);
        }
        let answer = self.sender.send(webhook).await;
        // A forged webhook must be refused by an answer. Without one the check fails, because the
        // endpoint is slow or broken, and we do not know what it did with the webhook.
        let passed =
            matches!(answer, EndpointAnswer::Status(..)) && answer.is_acknowledged() == expected;
        self.note(texts, passed, answer.summary());
    }

    /// Notes a check of valid webhooks, which passes if all of them were acknowledged. They are
    /// sent only if the check says something new.
    async fn all(&mut self, texts: Texts, answers: impl Future<Output = Vec<EndpointAnswer>>) {
        if let Some(reason) = self.refuses_valid {
            return self.skip(texts, reason);
        }
        let answers = answers.await;
        let failed = answers.iter().find(|answer| !answer.is_acknowledged());
        let answered = failed.map_or("all acknowledged".to_owned(), EndpointAnswer::summary);
        self.note(texts, failed.is_none(), answered);
    }

    fn note(&mut self, [name, sent, remedy]: Texts, passed: bool, answered: String) {
        self.checks.push(EndpointCheck {
            name,
            sent,
            passed,
            verdict: if passed {
                CheckVerdict::Passed
            } else {
                CheckVerdict::Failed
            },
            answered,
            remedy: if passed { "" } else { remedy },
        });
    }

    fn skip(&mut self, [name, sent, _]: Texts, failed: &str) {
        self.checks.push(EndpointCheck {
            name,
            sent,
            passed: false,
            verdict: CheckVerdict::NotJudged,
            answered: format!("not judged, because `{failed}` failed"),
            remedy: "",
        });
    }
}

/// Runs all checks against the endpoint, one after another, and returns them in that order. An
/// endpoint that does not answer is no error: its checks fail.
pub async fn checks(
    url: &str,
    secret: &Secret,
    timeout: Duration,
) -> anyhow::Result<Vec<EndpointCheck>> {
    let other = signing::generate::webhook_secret()?;
    let http = account::http(&url.parse().context("the URL of the endpoint")?, timeout)?;
    let mut endpoint = Endpoint {
        sender: TestWebhookSender {
            url: url.to_owned(),
            http,
        },
        checks: Vec::new(),
        refuses_valid: None,
        accepts_forged: None,
    };
    first(&mut endpoint, secret, timeout).await;
    forgeries(&mut endpoint, secret, &other).await;
    rotations(&mut endpoint, secret, &other).await;
    bodies(&mut endpoint, secret).await;
    slow(&mut endpoint, secret, HALVES.min(timeout / 6)).await;
    unordered(&mut endpoint, secret).await;
    let many: Vec<TestWebhook> = (20..20 + AT_ONCE)
        .rev()
        .map(|number| TestWebhook::new(number).signed(&[secret], 0))
        .collect();
    let sender = endpoint.sender.clone();
    let texts = [
        "at_once",
        "eight webhooks at once",
        "acknowledge webhooks that arrive at the same time: an order of many units brings many webhooks at once",
    ];
    let answers = join_all(many.iter().map(|webhook| sender.send(webhook)));
    endpoint.all(texts, answers).await;
    events(&mut endpoint, secret).await;
    Ok(endpoint.checks)
}

/// The first webhook, which shows whether the endpoint can be reached and accepts a valid webhook,
/// and its repetition.
async fn first(endpoint: &mut Endpoint, secret: &Secret, timeout: Duration) {
    let first = TestWebhook::new(1);
    let again = first.clone().signed(&[secret], 1);
    let answer = endpoint.sender.send(&first.signed(&[secret], 0)).await;

    let reached = !matches!(answer, EndpointAnswer::NotReached(_));
    let remedy = "start your endpoint, and check the URL: its scheme, host name and port. If it is https, its certificate must be valid for the host name";
    let texts = ["reached", "a connection to the endpoint", remedy];
    let summary = if reached {
        "connected".to_owned()
    } else {
        answer.summary()
    };
    endpoint.note(texts, reached, summary);
    if !reached {
        endpoint.refuses_valid = Some("reached");
        endpoint.accepts_forged = Some("reached");
    }

    let remedy = "answer 200 to a valid webhook once you have stored it. If your endpoint refuses the signature: compute it over the raw body, with the key that you get by decoding the part of the secret after whsec_ from Base64";
    let texts = ["good", "a webhook with a valid signature", remedy];
    let remedy = "answer as soon as the webhook is stored, and do the rest later: an answer after 15 s counts as a failure, and slow answers hold up your other webhooks";
    let timed = ["quick", "the same, timed", remedy];
    if let Some(reason) = endpoint.refuses_valid {
        endpoint.skip(texts, reason);
        endpoint.skip(timed, reason);
    } else {
        endpoint.note(texts, answer.is_acknowledged(), answer.summary());
        if !answer.is_acknowledged() {
            endpoint.refuses_valid = Some("good");
        }
        if let EndpointAnswer::Status(_, took) = answer {
            let quick = took < SLOW.min(timeout / 2);
            endpoint.note(timed, quick, answer.summary());
        } else {
            // Without an answer, there is also none to a forged webhook.
            endpoint.skip(timed, "good");
            endpoint.accepts_forged = Some("good");
        }
    }
    let sent = "the same webhook again, with the same webhook-id";
    let remedy = "answer 200 to a repeated webhook-id and ignore it: webhooks are delivered at least once, so repeats are normal";
    endpoint
        .check(["repeated", sent, remedy], &again, true)
        .await;
}

/// Webhooks whose JSON looks different from that of the first one.
async fn bodies(endpoint: &mut Endpoint, secret: &Secret) {
    const RAW: &str = "verify the signature over the raw bytes of the body, not over JSON that you have parsed and written again, and not over text in another encoding than UTF-8";
    let spaced = TestWebhook::new(9)
        .replaced(":\"", " :  \"")
        .replaced("certify-", "\\u0063ertify-");
    let foreign = TestWebhook::new(16).replaced("certify-16", "certify-Zoë-日本-📱");
    let added = TestWebhook::new(17).replaced(
        "\"topup_id\"",
        "\"added_later\":{\"list\":[1,null],\"text\":\"x\"},\"topup_id\"",
    );
    let ignore = "ignore fields that you do not know: we may add some to the body";
    for (texts, webhook) in [
        (
            [
                "raw_body",
                "a valid webhook with blanks and escapes in its JSON",
                RAW,
            ],
            spaced,
        ),
        (
            [
                "utf8",
                "a valid webhook with an order id in raw UTF-8: umlauts, Japanese, an emoji",
                RAW,
            ],
            foreign,
        ),
        (
            [
                "added_fields",
                "a valid webhook with a further field",
                ignore,
            ],
            added,
        ),
    ] {
        endpoint
            .check(texts, &webhook.signed(&[secret], 0), true)
            .await;
    }
}

/// The data of events about a topup, and about the use of its eSIM.
const OF_TOPUP: &str = r#"{"topup_id":"20000101000000000000000018","option_id":"424b7b26-96e7-5c95-8df9-6654a3998070","external_order_id":"certify-18"}"#;
const OF_USE: &str = r#"{"topup_id":"20000101000000000000000018","option_id":"424b7b26-96e7-5c95-8df9-6654a3998070","external_order_id":"certify-18","installed":true,"data_total_bytes":1073741824,"data_used_bytes":1073741824,"ends_at":"2000-01-31T00:00:00Z","as_of":null,"read_at":"2000-01-30T00:00:00Z","threshold":90}"#;
const OF_EXTENSION: &str = r#"{"topup_id":"20000101000000000000000018","external_order_id":"certify-18","external_id":"certify-18-more","option_id":"424b7b26-96e7-5c95-8df9-6654a3998070","new_esim":false}"#;

/// The check of events of a kind: its name, what it sends, and an example of the data. `None` for
/// what is no event.
fn example(kind: EventKind) -> Option<[&'static str; 3]> {
    match kind {
        EventKind::TopupReady => None,
        EventKind::TopupFailed => Some([
            "event_topup_failed",
            "a topup.failed",
            r#"{"topup_id":"20000101000000000000000018","option_id":"424b7b26-96e7-5c95-8df9-6654a3998070","external_order_id":"certify-18","error":"The eSIM will not be delivered"}"#,
        ]),
        EventKind::KeyExpiring => Some([
            "event_key_expiring",
            "a key.expiring",
            r#"{"credential":"webhook_secret","ends_at":"2099-12-31T00:00:00Z"}"#,
        ]),
        EventKind::BalanceLow => Some([
            "event_balance_low",
            "a balance.low",
            r#"{"currency":"USD","available":4200,"threshold":5000,"as_of":"2000-01-30T00:00:00Z","last_entry":17}"#,
        ]),
        EventKind::OptionsChanged => Some([
            "event_options_changed",
            "an options.changed",
            r#"{"added":["424b7b26-96e7-5c95-8df9-6654a3998070"],"removed":[],"changed":[],"repriced":[],"total":1}"#,
        ]),
        EventKind::WebhookTest => Some(["event_test", "a webhook.test", "{}"]),
        EventKind::TopupOnHold => Some(["event_topup_on_hold", "a topup.on_hold", OF_TOPUP]),
        EventKind::OrderCancelled => Some([
            "event_order_cancelled",
            "an order.cancelled",
            r#"{"external_order_id":"certify-18","units":1}"#,
        ]),
        EventKind::ExtensionReady => {
            Some(["event_extension_ready", "an extension.ready", OF_EXTENSION])
        }
        EventKind::ExtensionFailed => Some([
            "event_extension_failed",
            "an extension.failed",
            OF_EXTENSION,
        ]),
        EventKind::EsimReturned => Some(["event_esim_returned", "an esim.returned", OF_TOPUP]),
        EventKind::EsimInstalled => Some(["event_esim_installed", "an esim.installed", OF_USE]),
        EventKind::EsimFirstUsed => Some(["event_esim_first_used", "an esim.first_used", OF_USE]),
        EventKind::EsimLowData => Some(["event_esim_low_data", "an esim.low_data", OF_USE]),
        EventKind::EsimUsedUp => Some(["event_esim_used_up", "an esim.used_up", OF_USE]),
        EventKind::EsimExpiring => Some(["event_esim_expiring", "an esim.expiring", OF_USE]),
        EventKind::EsimExpired => Some(["event_esim_expired", "an esim.expired", OF_USE]),
    }
}

/// Further events, and one of a type that does not exist yet.
async fn events(endpoint: &mut Endpoint, secret: &Secret) {
    const KNOWN: &str = "acknowledge further events, too: those with the header webhook-type. Ignore them if you do not need them";
    const UNKNOWN: &str =
        "acknowledge events of a type that you do not know, and ignore them: we may add types";
    for (number, &kind) in (40..).zip(EventKind::ALL) {
        let Some([name, sent, data]) = example(kind) else {
            continue;
        };
        let event = TestWebhook::event(number, kind.as_str(), data).signed(&[secret], 0);
        endpoint.check([name, sent, KNOWN], &event, true).await;
    }
    let texts = ["event_unknown", "an event of an unknown type", UNKNOWN];
    let unknown = TestWebhook::event(39, "certify.unknown", r#"{"anything":[]}"#);
    endpoint
        .check(texts, &unknown.signed(&[secret], 0), true)
        .await;
}

/// A webhook over a slow network, and a webhook that is repeated while the first one is still being
/// handled.
async fn slow(endpoint: &mut Endpoint, secret: &Secret, pause: Duration) {
    let webhook = TestWebhook::new(12).signed(&[secret], 0);
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
    let sender = endpoint.sender.clone();
    let sent = "a webhook whose body arrives in two halves, up to a second apart";
    let remedy = "read the whole body (Content-Length bytes) before you verify it";
    let answer = async { vec![sender.send_body(&webhook, Body::wrap_stream(halves)).await] };
    endpoint.all(["slow", sent, remedy], answer).await;
    let webhook = TestWebhook::new(13).signed(&[secret], 0);
    let answers = join_all([&webhook, &webhook].map(|webhook| sender.send(webhook)));
    let sent = "the same webhook twice at once, as after a slow answer";
    let remedy = "answer 200 to both of two equal webhooks. For example, insert the webhook-id under a unique key: one request inserts it, and the other ignores the conflict";
    endpoint
        .all(["repeated_at_once", sent, remedy], answers)
        .await;
}

/// The webhooks of an order's units in an unexpected order.
async fn unordered(endpoint: &mut Endpoint, secret: &Secret) {
    let [first, second] = [14, 15].map(|number| {
        let mut webhook = TestWebhook::new(number);
        webhook.body = webhook
            .body
            .replace(&format!("certify-{number}"), "certify-two-units");
        webhook
    });
    let sender = endpoint.sender.clone();
    let answers = async {
        let later = sender.send(&second.signed(&[secret], 0)).await;
        let earlier = sender.send(&first.signed(&[secret], -10)).await;
        vec![later, earlier]
    };
    let sent = "the second unit of an order, then the first with an older timestamp";
    let remedy = "accept webhooks in any order: neither topup ids nor timestamps rise from one webhook to the next";
    endpoint.all(["out_of_order", sent, remedy], answers).await;
}

/// Webhooks that must not be acknowledged.
async fn forgeries(endpoint: &mut Endpoint, secret: &Secret, other: &Secret) {
    const REFUSE: &str = "answer 401 unless one of the signatures is valid for the webhook-id, the webhook-timestamp and the raw body: otherwise anybody can send you made-up eSIMs";
    const STALE: &str = "refuse a webhook-timestamp that is more than five minutes from your clock, even if the signature is valid: otherwise a recorded webhook can be sent to you again";
    let wrong = TestWebhook::new(3).signed(&[other], 0);
    let mut unsigned = TestWebhook::new(4).signed(&[secret], 0);
    unsigned
        .headers
        .retain(|(name, _)| *name != "webhook-signature");
    let mut changed = TestWebhook::new(5).signed(&[secret], 0);
    changed.body = changed.body.replace("smdp.example.com", "smdp.example.net");
    let mut renamed = TestWebhook::new(6).signed(&[secret], 0);
    if let Some((_, id)) = renamed.headers.first_mut() {
        id.push('0');
    }
    let old = TestWebhook::new(7).signed(&[secret], -3600);
    let future = TestWebhook::new(8).signed(&[secret], 3600);
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
        // An endpoint that accepts any signature accepts the other forgeries, too.
        if let [
            EndpointCheck {
                name: name @ "wrong_signature",
                verdict: CheckVerdict::Failed,
                ..
            },
        ] = &endpoint.checks[endpoint.checks.len() - 1..]
        {
            endpoint.accepts_forged = Some(name);
        }
    }
}

/// Webhooks with two signatures, as during a rotation of the secret.
async fn rotations(endpoint: &mut Endpoint, secret: &Secret, other: &Secret) {
    const ANY: &str =
        "split webhook-signature at the spaces and accept the webhook if any signature is valid";
    let last = TestWebhook::new(10).signed(&[other, secret], 0);
    let first = TestWebhook::new(11).signed(&[secret, other], 0);
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
    let by_key = TestWebhook::new(18)
        .signed(&[secret], 0)
        .also_signed_by_key();
    endpoint
        .check(
            [
                "public_key_signature",
                "a second signature of another kind, as of a public key (v1a)",
                "split webhook-signature at the spaces, and ignore signatures of a kind that you do not know",
            ],
            &by_key,
            true,
        )
        .await;
}

impl Certify {
    /// Prints the checks and the checklist; returns whether all checks passed.
    pub(crate) async fn run(&self, account: &ApiClient) -> anyhow::Result<bool> {
        let checks = checks(self.url.as_str(), &account.webhook_secret()?, self.timeout).await?;
        let passed = checks.iter().all(|check| check.passed);
        let checklist = checklist::checklist(account, &self.url, passed).await;
        let open = checklist
            .iter()
            .any(|item| matches!(item.done, ItemState::No | ItemState::Unknown));
        if self.json {
            let report = serde_json::json!({
                "passed": passed, "checks": checks, "ready": !open, "checklist": checklist,
            });
            print(serde_json::to_string_pretty(&report)?)?;
            return Ok(passed);
        }
        for EndpointCheck {
            name,
            sent,
            verdict,
            answered,
            remedy,
            ..
        } in &checks
        {
            match verdict {
                CheckVerdict::Passed => print(format!("ok   {name}: {sent}; answer: {answered}"))?,
                CheckVerdict::Failed => {
                    print(format!("FAIL {name}: {sent}; answer: {answered}"))?;
                    print(format!("     {remedy}"))?;
                }
                CheckVerdict::NotJudged => print(format!("-    {name}: {answered}"))?,
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
