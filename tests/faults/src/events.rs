//! The way of a provider's events to the provisioners. The provider of a run posts its events here,
//! and they are passed on as they are, or as a fault wants it: late, again and again, not at all,
//! or together with forged ones.
//!
//! Events are hints, so none of this may matter. What a run would show is an event that was
//! believed: a forged one is taken although its token is wrong, or the eSIM that it names reaches a
//! partner.

use crate::book::lock;
use crate::fault::Fault;
use anyhow::Result;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::receiver::{Answer, Received, Receiver};
use testkit::stack::CALLBACK_TOKEN;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::JoinHandle;

/// The ICCID in forged events, which no provider has sold.
pub const FORGED: &str = "8999999999999999999";
/// When an event that is repeated arrives, since it was sent.
const REPEATS: [Duration; 6] = [
    Duration::ZERO,
    Duration::ZERO,
    Duration::from_millis(20),
    Duration::from_millis(300),
    Duration::from_secs(2),
    Duration::from_secs(5),
];
/// The status of the response to an event whose token is wrong.
const REFUSED: u16 = 404;

/// Takes the events, and passes them on until it is dropped.
pub struct Events {
    receiver: Receiver,
    sent: Mutex<Option<UnboundedReceiver<Received>>>,
    road: Arc<Road>,
    passing: Mutex<Option<JoinHandle<()>>>,
}

/// Where events go, and what happens to them now.
#[derive(Default)]
struct Road {
    fault: Mutex<Option<Fault>>,
    /// How many events a fault has met.
    met: AtomicU64,
    /// The forged events that were taken.
    believed: Mutex<Vec<String>>,
}

impl Events {
    /// Takes the events of this provider from now on.
    pub async fn start(provider: &str) -> Result<Self> {
        let receiver = Receiver::start().await?;
        let (sender, sent) = mpsc::unbounded_channel();
        for name in [provider, "sandbox"] {
            let sender = sender.clone();
            receiver.answer(&path(name, CALLBACK_TOKEN), move |event| {
                // Whoever receives them has gone only when the run ends.
                let _ = sender.send(event.clone());
                Answer::status(200)
            });
        }
        Ok(Self {
            receiver,
            sent: Mutex::new(Some(sent)),
            road: Arc::default(),
            passing: Mutex::default(),
        })
    }

    /// The address to which the provider posts them.
    pub fn url(&self) -> String {
        self.receiver.url("")
    }

    /// Passes events on to these provisioners from now on, beginning with the first one.
    pub fn pass_to(&self, provisioners: Vec<String>) -> Result<()> {
        let Some(mut sent) = lock(&self.sent).take() else {
            return Ok(());
        };
        let http = testkit::http::client()?;
        let road = Arc::clone(&self.road);
        let passing = tokio::spawn(async move {
            while let Some(event) = sent.recv().await {
                for (copy, passed) in road.copies(&event).into_iter().enumerate() {
                    let provisioner = &provisioners[copy % provisioners.len()];
                    let url = format!("http://{provisioner}{}", passed.path);
                    tokio::spawn(pass(http.clone(), Arc::clone(&road), url, passed));
                }
            }
        });
        *lock(&self.passing) = Some(passing);
        Ok(())
    }

    /// Lets this fault happen to all events from now on; returns how many the one before has met.
    pub fn befall(&self, fault: Option<Fault>) -> u64 {
        *lock(&self.road.fault) = fault;
        self.road.met.swap(0, Ordering::Relaxed)
    }

    /// The forged events that were taken.
    pub fn believed(&self) -> Vec<String> {
        lock(&self.road.believed).clone()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if let Some(passing) = lock(&self.passing).take() {
            passing.abort();
        }
    }
}

/// An event that is passed on.
struct Passed {
    after: Duration,
    path: String,
    headers: BTreeMap<String, Vec<u8>>,
    body: Vec<u8>,
    /// Whether it must be refused.
    is_refused: bool,
}

impl Road {
    /// What is passed on of an event.
    fn copies(&self, event: &Received) -> Vec<Passed> {
        let fault = *lock(&self.fault);
        let copy = |after| Passed {
            after,
            path: event.path.clone(),
            headers: headers(event),
            body: event.body.to_vec(),
            is_refused: false,
        };
        self.met
            .fetch_add(u64::from(fault.is_some()), Ordering::Relaxed);
        match fault {
            Some(Fault::EventsLost) => Vec::new(),
            Some(Fault::EventsLate(late)) => vec![copy(late)],
            Some(Fault::EventsRepeated) => REPEATS.map(copy).into(),
            Some(Fault::EventsForged) => {
                let forged = Passed {
                    body: forged(&event.json),
                    ..copy(Duration::ZERO)
                };
                // It has the length of the true one.
                let token: String = CALLBACK_TOKEN.chars().rev().collect();
                let stranger = Passed {
                    path: event.path.replace(CALLBACK_TOKEN, &token),
                    is_refused: true,
                    ..copy(Duration::ZERO)
                };
                vec![forged, stranger, copy(Duration::from_millis(50))]
            }
            _ => vec![copy(Duration::ZERO)],
        }
    }
}

/// Passes an event on. Nobody repeats it if it does not arrive.
async fn pass(http: reqwest::Client, road: Arc<Road>, url: String, event: Passed) {
    tokio::time::sleep(event.after).await;
    let mut request = http.post(url).body(event.body);
    for (name, value) in event.headers {
        request = request.header(name, value);
    }
    let Ok(response) = request.send().await else {
        return;
    };
    let status = response.status().as_u16();
    if event.is_refused && status != REFUSED {
        lock(&road.believed).push(format!("an event with a wrong token got {status}"));
    }
}

fn path(provider: &str, token: &str) -> String {
    format!("/callbacks/{provider}/{token}")
}

/// The headers of the provider, without those of the connection.
fn headers(event: &Received) -> BTreeMap<String, Vec<u8>> {
    let all = event.headers.iter();
    let its = all.filter(|(name, _)| !matches!(name.as_str(), "host" | "content-length"));
    its.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect()
}

/// The same event about another eSIM with another code.
fn forged(event: &Value) -> Vec<u8> {
    let mut forged = event.clone();
    if let Some(fields) = forged.as_object_mut() {
        fields.insert("iccid".into(), json!(FORGED));
    }
    forge(&mut forged);
    forged.to_string().into_bytes()
}

/// Replaces what installs an eSIM, wherever it stands.
fn forge(value: &mut Value) {
    const CODES: [&str; 5] = [
        "ac",
        "lpa",
        "activateCode",
        "activationCode",
        "downloadLink",
    ];
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == "iccid" {
                    *value = json!(FORGED);
                } else if CODES.contains(&name.as_str()) {
                    *value = json!("LPA:1$forged.example$FORGED");
                } else {
                    forge(value);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(forge),
        _ => {}
    }
}
