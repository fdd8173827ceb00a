//! `certify` passes a correct receiver and names what is wrong with each broken one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::{collections::HashSet, sync::Mutex, time::Duration};

use esim_partner::certify::checks;
use signing::webhook::Secret;
use testkit::receiver::{Answer, Received, Receiver};

const PATH: &str = "/hook";
const TIMEOUT: Duration = Duration::from_millis(1500);

fn header<'a>(webhook: &'a Received, name: &str) -> &'a str {
    let value = webhook.headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default()
}

/// The parts of a correct receiver; each broken one replaces a part.
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
    /// The answer to a valid webhook, and to one that came before.
    good: u16,
    repeated: u16,
    /// The answer to an invalid one.
    bad: u16,
    delay: Duration,
}

const CORRECT: Parts = Parts {
    chosen: |signatures| signatures.split(' ').collect(),
    signed: |webhook| (header(webhook, "webhook-id").to_owned(), webhook.body.to_vec()),
    fresh: |age| age.abs() <= 300,
    unsigned: false,
    good: 200,
    repeated: 200,
    bad: 401,
    delay: Duration::ZERO,
};

fn answer(parts: &Parts, secret: &Secret, seen: &Mutex<HashSet<String>>, webhook: &Received) -> Answer {
    let timestamp = signing::parse_unix_time(header(webhook, "webhook-timestamp")).unwrap_or_default();
    let (id, body) = (parts.signed)(webhook);
    let signatures = header(webhook, "webhook-signature");
    let valid = (parts.chosen)(signatures)
        .iter()
        .any(|one| secret.verify(&id, timestamp, &body, one));
    let valid = valid || (parts.unsigned && signatures.is_empty());
    let status = if !valid || !(parts.fresh)(timestamp - runtime::clock::unix_seconds()) {
        parts.bad
    } else if seen.lock().unwrap().insert(webhook.topup_id().to_owned()) {
        parts.good
    } else {
        parts.repeated
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
    let (known, seen) = (secret.clone(), Mutex::default());
    receiver.answer(PATH, move |webhook| answer(&parts, &known, &seen, webhook));
    let checks = checks(&receiver.url(PATH), &secret, TIMEOUT).await.unwrap();
    assert_eq!(checks.len(), 13);
    let failed = checks.into_iter().filter(|check| !check.passed);
    failed
        .inspect(|check| assert!(!check.remedy.is_empty(), "{check:?}"))
        .map(|check| check.name)
        .collect()
}

#[tokio::test]
async fn a_correct_receiver_passes() {
    assert_eq!(failed(CORRECT).await, [""; 0]);
    // Any 2xx acknowledges, and any other status refuses.
    let other = Parts {
        good: 204,
        repeated: 202,
        bad: 400,
        ..CORRECT
    };
    assert_eq!(failed(other).await, [""; 0]);
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table of receivers")]
async fn each_broken_receiver_is_named() {
    let forged = [
        "wrong_signature",
        "no_signature",
        "changed_body",
        "changed_id",
        "old",
        "future",
    ];
    let good = [
        "good",
        "repeated",
        "second_signature",
        "first_signature",
        "raw_body",
        "at_once",
    ];
    let rewritten = |webhook: &Received| {
        (
            header(webhook, "webhook-id").to_owned(),
            webhook.json.to_string().into(),
        )
    };
    let broken: [(&str, Parts, &[&str]); 12] = [
        ("checks nothing", Parts { bad: 200, ..CORRECT }, &forged),
        (
            "refuses all",
            Parts {
                good: 500,
                repeated: 500,
                ..CORRECT
            },
            &good,
        ),
        (
            "redirects",
            Parts {
                good: 302,
                repeated: 302,
                ..CORRECT
            },
            &good,
        ),
        (
            "refuses a repeated webhook",
            Parts {
                repeated: 409,
                ..CORRECT
            },
            &["repeated"],
        ),
        (
            "ignores the time",
            Parts {
                fresh: |_| true,
                ..CORRECT
            },
            &["old", "future"],
        ),
        (
            "accepts the future",
            Parts {
                fresh: |age| age >= -300,
                ..CORRECT
            },
            &["future"],
        ),
        (
            "looks at the first signature only",
            Parts {
                chosen: |all| all.split(' ').take(1).collect(),
                ..CORRECT
            },
            &["second_signature"],
        ),
        (
            "looks at the last signature only",
            Parts {
                chosen: |all| all.rsplit(' ').take(1).collect(),
                ..CORRECT
            },
            &["first_signature"],
        ),
        (
            "does not split the signatures",
            Parts {
                chosen: |all| if all.contains(' ') { Vec::new() } else { vec![all] },
                ..CORRECT
            },
            &["second_signature", "first_signature"],
        ),
        (
            "accepts what is not signed",
            Parts {
                unsigned: true,
                ..CORRECT
            },
            &["no_signature"],
        ),
        (
            "takes the id from the body",
            Parts {
                signed: |webhook| (webhook.topup_id().to_owned(), webhook.body.to_vec()),
                ..CORRECT
            },
            &["changed_id"],
        ),
        (
            "is slow",
            Parts {
                delay: Duration::from_secs(1),
                ..CORRECT
            },
            &["quick"],
        ),
    ];
    for (name, parts, expected) in broken {
        assert_eq!(failed(parts).await, expected, "{name}");
    }
    // It also fails on its own order of fields, so the first check is red already.
    let reserializes = failed(Parts {
        signed: rewritten,
        ..CORRECT
    })
    .await;
    assert!(reserializes.contains(&"raw_body"), "{reserializes:?}");
}
