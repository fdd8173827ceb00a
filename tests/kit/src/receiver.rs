//! A partner's webhook endpoint. It records every request, checks its signature, and responds as
//! the test says.

use crate::{http, record::Record};
use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::HeaderMap;
use hyper::{Request, Response};
use serde_json::Value;
use signing::webhook::Secret;
use std::collections::{BTreeSet, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

#[derive(Clone, Debug)]
pub struct Received {
    /// The time when the whole request had arrived.
    pub at: Instant,
    pub path: String,
    pub headers: HeaderMap,
    /// The body as sent.
    pub body: Bytes,
    /// The parsed body. It is `Null` if the body is not JSON.
    pub json: Value,
    pub signature: Signature,
    /// The status of the response.
    pub answer: u16,
}

/// Whether the signature is valid for the webhook secret of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// No secret was set for the path.
    Unchecked,
    Valid,
    /// The signature is wrong, or one of the three headers is missing or unreadable.
    Invalid,
}

#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The status of the response. With 0 the connection is closed without one.
    pub status: u16,
    /// The time between recording the request and sending the response.
    pub delay: Duration,
}

type Decide = Arc<dyn Fn(&Received) -> Answer + Send + Sync>;

/// The endpoint. It serves on 127.0.0.1, or on the address in `TEST_WEBHOOK_ADDRESS`, until it is
/// dropped.
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Record<Book>>,
    server: JoinHandle<()>,
}

#[derive(Default)]
struct Book {
    received: Vec<Received>,
    /// The paths that return the challenge of a test.
    proving: BTreeSet<String>,
    secrets: HashMap<String, Secret>,
    answers: HashMap<String, Decide>,
}

impl Received {
    /// The `topup_id` in the body, which is empty if there is none.
    pub fn topup_id(&self) -> &str {
        self.json["topup_id"].as_str().unwrap_or_default()
    }

    pub fn is_valid(&self) -> bool {
        self.signature == Signature::Valid
    }
}

impl Answer {
    pub fn status(status: u16) -> Self {
        Self {
            status,
            delay: Duration::ZERO,
        }
    }
}

impl Receiver {
    /// Starts on a free port. Every path responds 200 until [`Receiver::answer`] changes that.
    pub async fn start() -> Result<Self> {
        let at = match std::env::var("TEST_WEBHOOK_ADDRESS") {
            Ok(address) => address
                .parse()
                .context("TEST_WEBHOOK_ADDRESS is not an address")?,
            Err(_) => Ipv4Addr::LOCALHOST,
        };
        let listener = TcpListener::bind((at, 0))
            .await
            .with_context(|| format!("cannot listen on {at}"))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Record::default());
        let book = Arc::clone(&shared);
        let server = http::serve(listener, move |request| receive(Arc::clone(&book), request));
        Ok(Self {
            address,
            shared,
            server,
        })
    }

    /// The webhook URL of a path such as `/a`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Checks the signatures of requests to `path` from now on. `webhook_secret` begins with
    /// `whsec_`.
    pub fn verify(&self, path: &str, webhook_secret: &str) -> Result<()> {
        self.shared
            .book()
            .secrets
            .insert(path.into(), Secret::parse(webhook_secret)?);
        Ok(())
    }

    /// Sets how `path` responds from now on. The request is recorded after `decide` has returned,
    /// so `decide` sees the receiver as it was when the request arrived.
    pub fn answer(&self, path: &str, decide: impl Fn(&Received) -> Answer + Send + Sync + 'static) {
        self.shared
            .book()
            .answers
            .insert(path.into(), Arc::new(decide));
    }

    /// Returns the challenge of each test to `path` from now on.
    pub fn prove(&self, path: &str) {
        self.shared.book().proving.insert(path.into());
    }

    /// Responds `status` to the first request to `path` from now on, and 200 to the others.
    pub fn fail_first(&self, path: &str, status: u16) {
        let failed = AtomicBool::new(false);
        self.answer(path, move |_| {
            Answer::status(if failed.swap(true, Ordering::Relaxed) {
                200
            } else {
                status
            })
        });
    }

    pub fn count(&self) -> usize {
        self.shared.book().received.len()
    }

    /// Every request so far, in order.
    pub fn received(&self) -> Vec<Received> {
        self.shared.book().received.clone()
    }

    /// Waits until at least `count` requests have arrived over all paths, and returns all of them.
    pub async fn wait_for(&self, count: usize, timeout: Duration) -> Result<Vec<Received>> {
        self.wait_until(timeout, &format!("{count} webhooks"), |received| {
            received.len() >= count
        })
        .await
    }

    /// Waits until the requests satisfy `condition`, and returns all of them. The error names
    /// `what`.
    pub async fn wait_until(
        &self,
        timeout: Duration,
        what: &str,
        condition: impl Fn(&[Received]) -> bool,
    ) -> Result<Vec<Received>> {
        let look = |book: &Book| condition(&book.received).then(|| book.received.clone());
        let so_far = |book: &Book| format!("{} requests", book.received.len());
        self.shared.wait_until(timeout, what, look, so_far).await
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn receive(
    shared: Arc<Record<Book>>,
    request: Request<Bytes>,
) -> Result<Response<Full<Bytes>>> {
    let at = Instant::now();
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let (signature, decide) = {
        let book = shared.book();
        (
            check(book.secrets.get(&path), &head.headers, &body),
            book.answers.get(&path).cloned(),
        )
    };
    let mut received = Received {
        at,
        path,
        headers: head.headers,
        json: serde_json::from_slice(&body).unwrap_or_default(),
        body,
        signature,
        answer: 200,
    };
    let answer = decide.map_or(Answer::status(200), |decide| decide(&received));
    received.answer = answer.status;
    let challenge = received.json["data"]["challenge"].as_str();
    let challenge = challenge.filter(|_| shared.book().proving.contains(&received.path));
    let body = challenge.map(|challenge| serde_json::json!({ "challenge": challenge }).to_string());
    shared.arrived(|book| book.received.push(received));
    // The delay is part of how the endpoint behaves. The test does not wait for anything by it.
    tokio::time::sleep(answer.delay).await;
    // The status 0 is invalid, so this is an error, which closes the connection without a response.
    Ok(Response::builder()
        .status(answer.status)
        .body(Full::from(body.unwrap_or_default()))?)
}

fn check(secret: Option<&Secret>, headers: &HeaderMap, body: &[u8]) -> Signature {
    let Some(secret) = secret else {
        return Signature::Unchecked;
    };
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let timestamp = header("webhook-timestamp").and_then(signing::parse_unix_time);
    match (header("webhook-id"), timestamp, header("webhook-signature")) {
        (Some(id), Some(timestamp), Some(signature))
            if secret.verify(id, timestamp, body, signature) =>
        {
            Signature::Valid
        }
        _ => Signature::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const BODY: &str = r#"{"test": 2432232314}"#;

    async fn post(url: String, signature: &str) -> u16 {
        let request = http::client().unwrap().post(url).body(BODY);
        let request = request.header("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek");
        let request = request
            .header("webhook-timestamp", "1614265330")
            .header("webhook-signature", signature);
        request.send().await.unwrap().status().as_u16()
    }

    #[tokio::test]
    async fn signatures_are_checked_per_path() {
        let receiver = Receiver::start().await.unwrap();
        receiver.verify("/checked", SECRET).unwrap();
        let good = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(post(receiver.url("/checked"), good).await, 200);
        assert_eq!(post(receiver.url("/checked"), "v1,AAAA").await, 200);
        assert_eq!(post(receiver.url("/open"), "v1,AAAA").await, 200);
        let all = receiver.wait_for(3, Duration::from_secs(5)).await.unwrap();
        let signatures: Vec<_> = all.iter().map(|one| one.signature).collect();
        assert_eq!(
            signatures,
            [Signature::Valid, Signature::Invalid, Signature::Unchecked]
        );
        assert_eq!(all[0].json["test"], 2_432_232_314_u64);
        assert_eq!(all[0].body, BODY);
    }
}
