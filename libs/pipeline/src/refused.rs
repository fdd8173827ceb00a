//! What the NATS server refuses, because the user of this process lacks a permission.
//!
//! A refused message is lost without an error for whoever sent it: the server only reports it on
//! the connection. Each order would be some 10 s late for ever, and nothing else would show it. So
//! each refusal is counted, and the pulse tells operators which ones last.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use opentelemetry::{KeyValue, metrics::Counter};
use runtime::{lock, metrics::Instruments};
use tokio::sync::broadcast;

use crate::payload::{DEAD, JOBS, READY};

/// A message that was sent this long ago, and of which no refusal came, was not refused.
const REPORTED_WITHIN: Duration = Duration::from_secs(2);
/// A refused subscription, and a refused request to JetStream, are tried again more often than
/// this.
const TRIED_AGAIN: Duration = Duration::from_mins(1);
/// The subjects whose messages [`RefusedPermissions::sent`] sees, and what they are called here.
const SENT: [(&str, &str); 6] = [
    ("topup.job.", JOBS),
    ("topup.ready.", READY),
    ("topup.dead.", DEAD),
    ("topup.answer.", "REPORTS"),
    ("topup.left.", "DEPARTURES"),
    ("topup.heartbeat.", "HEARTBEATS"),
];

/// What may not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    Publish,
    Subscribe,
    /// A request to JetStream itself, such as a pull.
    Ask,
}

impl Act {
    fn as_str(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Subscribe => "subscribe",
            Self::Ask => "ask",
        }
    }
}

#[derive(Debug)]
struct Refusal {
    last: Instant,
    /// When the first message after it was sent.
    tried: Option<Instant>,
}

/// What the server has refused and, as far as is known, still refuses.
#[derive(Debug)]
pub(crate) struct RefusedPermissions {
    prefix: String,
    counter: Counter<u64>,
    lasting: Mutex<BTreeMap<(&'static str, Act), Refusal>>,
    /// Whether anything was refused ever, because each message asks.
    any: AtomicBool,
    subscriptions: broadcast::Sender<String>,
}

impl RefusedPermissions {
    pub(crate) fn new(prefix: &str) -> Self {
        let counter = Instruments::of("pipeline").counter(
            "esim.nats.refused",
            "Messages, subscriptions and requests that NATS refused for lack of a permission",
        );
        let refused = Self {
            prefix: prefix.to_owned(),
            counter,
            lasting: Mutex::default(),
            any: AtomicBool::new(false),
            subscriptions: broadcast::channel(16).0,
        };
        // A rise can be seen only if there is a value before it.
        for stream in [JOBS, READY, DEAD] {
            refused.count(0, stream, Act::Publish);
        }
        refused
    }

    fn count(&self, refusals: u64, stream: &'static str, act: Act) {
        let of = [
            KeyValue::new("stream", stream),
            KeyValue::new("act", act.as_str()),
        ];
        self.counter.add(refusals, &of);
    }

    /// Notes what the server reports. Returns whether that is a refusal, and the first one of its
    /// kind.
    pub(crate) fn note(&self, report: &str) -> (bool, bool) {
        let Some((act, subject)) = read(report) else {
            return (false, true);
        };
        let (stream, act) = self.of(subject, act);
        self.count(1, stream, act);
        if act == Act::Subscribe {
            // Nobody listens if nobody subscribes now.
            let _ = self.subscriptions.send(subject.to_owned());
        }
        let refusal = Refusal {
            last: Instant::now(),
            tried: None,
        };
        let is_first = lock(&self.lasting).insert((stream, act), refusal).is_none();
        self.any.store(true, Ordering::Relaxed);
        (true, is_first)
    }

    /// The stream of a subject, or what else it carries. A request to JetStream names its stream.
    fn of(&self, subject: &str, act: Act) -> (&'static str, Act) {
        if let Some(request) = subject.strip_prefix("$JS.") {
            let mut words = request.split('.');
            let stream = words.find_map(|word| {
                let word = word.strip_prefix(self.prefix.as_str())?;
                [JOBS, READY, DEAD].into_iter().find(|name| *name == word)
            });
            return (stream.unwrap_or("JETSTREAM"), Act::Ask);
        }
        if subject.starts_with("_INBOX") {
            return ("REPLIES", act);
        }
        let subject = subject.strip_prefix(self.prefix.as_str());
        let known = SENT
            .into_iter()
            .find(|(begin, _)| subject.is_some_and(|subject| subject.starts_with(begin)));
        (known.map_or("OTHER", |(_, name)| name), act)
    }

    /// Notes that a message was sent. If its kind was refused before and no report follows, it is
    /// permitted now.
    pub(crate) fn sent(&self, subject: &str) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let key = self.of(subject, Act::Publish);
        if let Some(refusal) = lock(&self.lasting).get_mut(&key) {
            refusal.tried.get_or_insert_with(Instant::now);
        }
    }

    /// What is still refused, such as `publish TOPUP_READY`.
    pub(crate) fn lasting(&self) -> Option<String> {
        let now = Instant::now();
        let mut lasting = lock(&self.lasting);
        lasting.retain(|(_, act), refusal| match act {
            Act::Publish => refusal
                .tried
                .is_none_or(|tried| now.duration_since(tried) < REPORTED_WITHIN),
            Act::Subscribe | Act::Ask => now.duration_since(refusal.last) < TRIED_AGAIN,
        });
        let words = lasting
            .keys()
            .map(|(stream, act)| format!("{} {stream}", act.as_str()));
        let words: Vec<String> = words.collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    /// Hears of each refused subscription from now on.
    pub(crate) fn subscriptions(&self) -> broadcast::Receiver<String> {
        self.subscriptions.subscribe()
    }
}

/// What was refused according to a report such as
/// `Permissions Violation for Publish to "topup.ready.batch"`.
fn read(report: &str) -> Option<(Act, &str)> {
    let (_, what) = report.split_once("ermissions Violation for ")?;
    let act = if what.starts_with("Subscription") {
        Act::Subscribe
    } else {
        Act::Publish
    };
    Some((act, what.split('"').nth(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_lasts_until_a_message_of_its_kind_is_taken() {
        let refused = RefusedPermissions::new("");
        let report = "Permissions Violation for Publish to \"topup.ready.batch\"";
        assert_eq!(refused.note(report), (true, true));
        assert_eq!(refused.note(report), (true, false));
        assert_eq!(refused.lasting().as_deref(), Some("publish TOPUP_READY"));
        refused.sent("topup.job.sandbox");
        refused.sent("topup.ready.batch");
        // The report of this message may still come.
        assert_eq!(refused.lasting().as_deref(), Some("publish TOPUP_READY"));
        let key = (READY, Act::Publish);
        let earlier = Instant::now().checked_sub(REPORTED_WITHIN);
        lock(&refused.lasting).get_mut(&key).unwrap().tried = earlier;
        assert_eq!(refused.lasting(), None);
    }

    #[test]
    fn each_report_is_told_by_its_stream() {
        let refused = RefusedPermissions::new("x_");
        for (report, told) in [
            (
                "Permissions Violation for Publish to \"x_topup.job.sandbox\"",
                "publish TOPUP_JOBS",
            ),
            (
                "Permissions Violation for Subscription to \"x_topup.left.all\"",
                "subscribe DEPARTURES",
            ),
            (
                "Permissions Violation for Publish to \"$JS.API.CONSUMER.MSG.NEXT.x_TOPUP_READY.notifier\"",
                "ask TOPUP_READY",
            ),
            (
                "Permissions Violation for Subscription to \"_INBOX_notifier.ab.*\"",
                "subscribe REPLIES",
            ),
        ] {
            assert_eq!(refused.note(report), (true, true));
            let lasting = refused.lasting().unwrap();
            assert!(lasting.split(", ").any(|one| one == told), "{lasting}");
        }
        assert_eq!(refused.note("maximum payload exceeded"), (false, true));
    }
}
