//! `certify` passes a correct receiver, and names what is wrong with each broken one.
//!
//! A broken receiver is the correct one with some parts replaced, so that each mistake that
//! partners make fails the checks that are meant for it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::{HashMap, HashSet};
use std::{sync::Mutex, time::Duration};

use domain::event::EventKind;
use esim_partner::certify::{CheckVerdict, EndpointCheck, checks};
use signing::webhook::Secret;
use testkit::receiver::{Answer, Received, Receiver};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const PATH: &str = "/hook";
const TIMEOUT: Duration = Duration::from_secs(2);

fn header<'a>(webhook: &'a Received, name: &str) -> &'a str {
    webhook
        .headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// The parts of a receiver. A broken one replaces parts of [`CORRECT`].
#[derive(Clone, Copy)]
struct Parts {
    /// Which of the signatures are looked at.
    chosen: fn(&str) -> Vec<&str>,
    /// The text whose signature is checked.
    signed: fn(&Received) -> (String, Vec<u8>),
    /// Whether the timestamp is accepted.
    fresh: fn(i64) -> bool,
    /// Whether a webhook without signature is accepted.
    unsigned: bool,
    /// The status for a valid webhook.
    good: u16,
    /// The status for a valid webhook that came before.
    repeated: u16,
    /// The status for an invalid webhook.
    bad: u16,
    delay: Duration,
    /// The valid webhooks that get a 500.
    refused: fn(&Received) -> bool,
    /// Whether a webhook that is older than an earlier one is refused.
    ordered: bool,
    /// The status for a valid webhook that came before with the same timestamp, as when two equal
    /// ones arrive at once.
    concurrent: u16,
}

const CORRECT: Parts = Parts {
    chosen: |signatures| signatures.split(' ').collect(),
    signed: |webhook| {
        (
            header(webhook, "webhook-id").to_owned(),
            webhook.body.to_vec(),
        )
    },
    fresh: |age| age.abs() <= 300,
    unsigned: false,
    good: 200,
    repeated: 200,
    bad: 401,
    delay: Duration::ZERO,
    refused: |_| false,
    ordered: false,
    concurrent: 200,
};

/// What a receiver has seen.
#[derive(Default)]
struct Seen {
    ids: HashSet<String>,
    /// How often a webhook came with one timestamp.
    attempts: HashMap<(String, i64), u8>,
    newest: i64,
}

fn answer(parts: &Parts, secret: &Secret, seen: &Mutex<Seen>, webhook: &Received) -> Answer {
    let timestamp =
        signing::parse_unix_time(header(webhook, "webhook-timestamp")).unwrap_or_default();
    let (signed_id, body) = (parts.signed)(webhook);
    let signatures = header(webhook, "webhook-signature");
    let valid = (parts.chosen)(signatures)
        .iter()
        .any(|one| secret.verify(&signed_id, timestamp, &body, one));
    let valid = valid || (parts.unsigned && signatures.is_empty());
    let mut seen = seen.lock().unwrap();
    let id = header(webhook, "webhook-id").to_owned();
    let status = if !valid || !(parts.fresh)(timestamp - runtime::clock::unix_seconds()) {
        parts.bad
    } else if (parts.refused)(webhook) {
        500
    } else {
        let attempts = seen.attempts.entry((id.clone(), timestamp)).or_default();
        *attempts += 1;
        let concurrent = *attempts > 1;
        // `certify` signs its repeated webhook a second ahead, which must not make the next one
        // late.
        let late = parts.ordered && timestamp < seen.newest - 5;
        seen.newest = seen.newest.max(timestamp);
        match (late, seen.ids.insert(id)) {
            (true, _) => 422,
            (false, true) => parts.good,
            (false, false) if concurrent => parts.concurrent,
            (false, false) => parts.repeated,
        }
    };
    Answer {
        status,
        delay: parts.delay,
    }
}

/// The names of the checks that a receiver fails.
async fn failed(parts: Parts) -> Vec<&'static str> {
    let receiver = Receiver::start().await.unwrap();
    let secret = signing::generate::webhook_secret().unwrap();
    let known = secret.clone();
    let seen = Mutex::<Seen>::default();
    receiver.answer(PATH, move |webhook| answer(&parts, &known, &seen, webhook));
    let checks = checks(&receiver.url(PATH), &secret, TIMEOUT).await.unwrap();
    named(checks)
}

fn named(checks: Vec<EndpointCheck>) -> Vec<&'static str> {
    // Each kind of events has one, and in place of the ready topup comes an unknown kind.
    assert_eq!(checks.len(), 20 + EventKind::ALL.len());
    let failed = checks
        .into_iter()
        .filter(|check| check.verdict == CheckVerdict::Failed);
    failed
        .inspect(|check| assert!(!check.remedy.is_empty(), "{check:?}"))
        .map(|check| check.name)
        .collect()
}

#[tokio::test]
async fn a_correct_receiver_passes() {
    assert_eq!(failed(CORRECT).await, [""; 0]);
    // Any 2xx acknowledges, and any other status refuses.
    assert_eq!(
        failed(Parts {
            good: 204,
            repeated: 202,
            bad: 400,
            ..CORRECT
        })
        .await,
        [""; 0]
    );
}

#[tokio::test]
async fn each_broken_receiver_is_named() {
    let of_events = |webhook: &Received| !header(webhook, "webhook-type").is_empty();
    let events = failed(Parts {
        refused: of_events,
        ..CORRECT
    });
    let events = events.await;
    assert!(events.iter().all(|name| name.starts_with("event_")));
    assert_eq!(events.len(), EventKind::ALL.len());
    // JSON that was parsed and written again has no blanks.
    let rewritten = |webhook: &Received| {
        let text = String::from_utf8_lossy(&webhook.body).replace(" :  ", ":");
        (header(webhook, "webhook-id").to_owned(), text.into())
    };
    let broken: [(&str, Parts, &[&str]); 20] = testkit::rows! {
        "checks nothing", Parts { bad: 200, ..CORRECT } => &["wrong_signature"];
        "refuses all", Parts { good: 500, repeated: 500, concurrent: 500, ..CORRECT } => &["good"];
        "redirects", Parts { good: 302, repeated: 302, concurrent: 302, ..CORRECT } => &["good"];
        "fails on events that it does not know",
            Parts { refused: |webhook| header(webhook, "webhook-type") == "certify.unknown", ..CORRECT }
            => &["event_unknown"];
        "fails on raw UTF-8", Parts { refused: |webhook| !webhook.body.is_ascii(), ..CORRECT } => &["utf8"];
        "fails on added fields",
            Parts { refused: |webhook| webhook.json.as_object().is_some_and(|fields| fields.len() == 10), ..CORRECT }
            => &["added_fields"];
        "verifies JSON that it has written again", Parts { signed: rewritten, ..CORRECT } => &["raw_body"];
        "verifies text that was read as Latin-1",
            Parts { signed: |webhook| {
                let latin: String = webhook.body.iter().map(|byte| char::from(*byte)).collect();
                (header(webhook, "webhook-id").to_owned(), latin.into())
            }, ..CORRECT } => &["utf8"];
        "refuses a repeated webhook", Parts { repeated: 409, ..CORRECT } => &["repeated"];
        "ignores the time", Parts { fresh: |_| true, ..CORRECT } => &["old", "future"];
        "accepts the future", Parts { fresh: |age| age >= -300, ..CORRECT } => &["future"];
        "looks at the first signature only", Parts { chosen: |all| all.split(' ').take(1).collect(), ..CORRECT }
            => &["second_signature"];
        "looks at the last signature only", Parts { chosen: |all| all.rsplit(' ').take(1).collect(), ..CORRECT }
            => &["first_signature", "public_key_signature"];
        "does not split the signatures",
            Parts { chosen: |all| if all.contains(' ') { Vec::new() } else { vec![all] }, ..CORRECT }
            => &["second_signature", "first_signature", "public_key_signature"];
        "fails on kinds of signatures that it does not know",
            Parts { refused: |webhook| header(webhook, "webhook-signature").contains("v1a,"), ..CORRECT }
            => &["public_key_signature"];
        "accepts what is not signed", Parts { unsigned: true, ..CORRECT } => &["no_signature"];
        "takes the id from the body",
            Parts { signed: |webhook| {
                // Events have no topup.
                let id = Some(webhook.topup_id()).filter(|id| !id.is_empty());
                (id.unwrap_or(header(webhook, "webhook-id")).to_owned(), webhook.body.to_vec())
            }, ..CORRECT }
            => &["changed_id"];
        "fails on two equal webhooks at once", Parts { concurrent: 500, ..CORRECT } => &["repeated_at_once"];
        "expects timestamps to rise", Parts { ordered: true, ..CORRECT } => &["out_of_order"];
        "is slow", Parts { delay: Duration::from_secs(1), ..CORRECT } => &["quick"];
    };
    for (name, parts, expected) in broken {
        assert_eq!(failed(parts).await, expected, "{name}");
    }
}

#[tokio::test]
async fn an_endpoint_that_nobody_listens_at_is_named_as_such() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{PATH}", listener.local_addr().unwrap());
    drop(listener);
    let secret = signing::generate::webhook_secret().unwrap();
    let checks = checks(&url, &secret, TIMEOUT).await.unwrap();
    let answered = &checks[0].answered;
    assert!(answered.contains("nobody listens"), "{answered}");
    assert_eq!(named(checks), ["reached"]);
}

#[tokio::test]
async fn a_receiver_that_never_answers_is_named_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{PATH}", listener.local_addr().unwrap());
    let secret = signing::generate::webhook_secret().unwrap();
    let wait = Duration::from_millis(100);
    let checks = checks(&url, &secret, wait).await.unwrap();
    assert_eq!(checks[1].answered, "no answer in time");
    assert_eq!(named(checks), ["good"]);
}

/// A server that takes whatever its first read returns for the whole body. `certify` sends one body
/// in two halves and must notice.
#[tokio::test]
async fn a_receiver_that_reads_half_a_body_is_named() {
    let secret = signing::generate::webhook_secret().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}{PATH}", listener.local_addr().unwrap());
    let known = secret.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let known = known.clone();
            tokio::spawn(async move {
                let mut request = vec![0; 16 * 1024];
                let mut length = client.read(&mut request).await.unwrap();
                // The head and the first part of the body arrive in one piece or in two.
                if request[..length].ends_with(b"\r\n\r\n") {
                    length += client.read(&mut request[length..]).await.unwrap();
                }
                let text = String::from_utf8_lossy(&request[..length]).into_owned();
                let (head, body) = text.split_once("\r\n\r\n").unwrap();
                let header = |name: &str| {
                    let mut lines = head.lines();
                    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                    value.unwrap_or_default().to_owned()
                };
                let timestamp = header("webhook-timestamp").parse().unwrap_or_default();
                let age: i64 = timestamp - runtime::clock::unix_seconds();
                let signatures = header("webhook-signature");
                let valid = known.verify(
                    &header("webhook-id"),
                    timestamp,
                    body.as_bytes(),
                    &signatures,
                );
                let status = if valid && age.abs() <= 300 { 200 } else { 401 };
                let answer = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
                client.write_all(answer.as_bytes()).await.unwrap();
            });
        }
    });
    assert_eq!(
        named(checks(&url, &secret, TIMEOUT).await.unwrap()),
        ["slow"]
    );
}
