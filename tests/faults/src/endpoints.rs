//! The partners' endpoints: each misbehaves in its own way until it heals.

use crate::book::{Arrival, Book, Clock};
use crate::orders::Behaviour;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use signing::webhook::Secret;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const BODY_LIMIT: usize = 64 * 1024;
/// The delay of the slow endpoint.
const SLOW: Duration = Duration::from_secs(2);
/// How long a hanging endpoint stays silent; longer than `WEBHOOK_TIMEOUT`.
const HANGING: Duration = Duration::from_mins(1);

/// Serves on a port of its own until it is dropped.
pub struct Endpoint {
    pub behaviour: Behaviour,
    pub url: String,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

struct Shared {
    partner: usize,
    behaviour: Behaviour,
    healed: AtomicBool,
    requests: AtomicU64,
    secret: OnceLock<Secret>,
    clock: Clock,
    book: Arc<Book>,
}

/// The reaction to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Answer(StatusCode, Duration),
    /// The connection is reset.
    Reset,
}

impl Endpoint {
    /// The endpoint of the partner of that index.
    pub async fn start(partner: usize, behaviour: Behaviour, clock: Clock, book: Arc<Book>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address: SocketAddr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            partner,
            behaviour,
            healed: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            secret: OnceLock::new(),
            clock,
            book,
        });
        let server = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            behaviour,
            url: format!("http://{address}/webhooks"),
            shared,
            server,
        })
    }

    /// The partner's `whsec_…`, to check signatures with.
    pub fn verify(&self, webhook_secret: &str) -> Result<()> {
        if self.shared.secret.set(Secret::parse(webhook_secret)?).is_err() {
            bail!("the endpoint has a secret already");
        }
        Ok(())
    }

    /// Responds 200 at once from now on.
    pub fn heal(&self) {
        self.shared.healed.store(true, Ordering::Relaxed);
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(serve(stream, Arc::clone(&shared)))),
            Err(error) => {
                eprintln!("an endpoint cannot accept a connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    // The system resets a connection that is closed with unsent or unread data.
    if shared.behaviour == Behaviour::Resetting && stream.set_zero_linger().is_err() {
        return;
    }
    let service = hyper::service::service_fn(|request| shared.answer(request));
    // Endpoints fail on purpose and notifiers are killed, so errors are expected.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

impl Shared {
    /// An error ends the connection without a response.
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Empty<Bytes>>> {
        let at = self.clock.now();
        let (head, body) = request.into_parts();
        let Ok(body) = Limited::new(body, BODY_LIMIT).collect().await else {
            bail!("the body did not come");
        };
        let body = body.to_bytes();
        let manner = manner(
            self.behaviour,
            self.healed.load(Ordering::Relaxed),
            self.requests.fetch_add(1, Ordering::Relaxed),
        );
        let json: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = |field: &str| json[field].as_str().unwrap_or_default().to_owned();
        self.book.arrived(Arrival {
            at,
            partner: self.partner,
            topup_id: text("topup_id"),
            iccid: text("iccid"),
            acknowledged: matches!(manner, Manner::Answer(StatusCode::OK, _)),
            genuine: self.is_genuine(&head.headers, &body).unwrap_or_default(),
        });
        let Manner::Answer(status, delay) = manner else {
            bail!("reset on purpose");
        };
        tokio::time::sleep(delay).await;
        let mut response = Response::new(Empty::new());
        *response.status_mut() = status;
        Ok(response)
    }

    fn is_genuine(&self, headers: &http::HeaderMap, body: &[u8]) -> Result<bool> {
        let header = |name: &str| -> Result<&str> { Ok(headers.get(name).context("missing")?.to_str()?) };
        let timestamp = signing::parse_unix_time(header("webhook-timestamp")?).context("no time")?;
        let secret = self.secret.get().context("the endpoint has no secret yet")?;
        let signature = header("webhook-signature")?;
        Ok(secret.verify(header("webhook-id")?, timestamp, body, signature))
    }
}

/// The reaction to the request with this number, from 0.
fn manner(behaviour: Behaviour, healed: bool, number: u64) -> Manner {
    let at_once = |status| Manner::Answer(status, Duration::ZERO);
    if healed {
        return at_once(StatusCode::OK);
    }
    match behaviour {
        Behaviour::Slow => Manner::Answer(StatusCode::OK, SLOW),
        Behaviour::Failing if number % 5 < 2 => at_once(StatusCode::INTERNAL_SERVER_ERROR),
        Behaviour::Hanging => Manner::Answer(StatusCode::SERVICE_UNAVAILABLE, HANGING),
        Behaviour::Resetting if number % 3 < 2 => Manner::Reset,
        Behaviour::Fast | Behaviour::Failing | Behaviour::Resetting | Behaviour::Absent => {
            at_once(StatusCode::OK)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reset_is_recorded_and_not_answered() {
        let book = Arc::new(Book::default());
        let endpoint = Endpoint::start(4, Behaviour::Resetting, Clock::start(), Arc::clone(&book))
            .await
            .unwrap();
        let client = testkit::http::client().unwrap();
        let post = || {
            client
                .post(&endpoint.url)
                .body(r#"{"topup_id":"7","iccid":"89"}"#)
                .send()
        };
        assert!(post().await.is_err());
        endpoint.heal();
        assert_eq!(post().await.unwrap().status(), 200);
        let (_, arrivals) = book.everything();
        let seen: Vec<_> = arrivals
            .iter()
            .map(|one| (one.topup_id.as_str(), one.acknowledged))
            .collect();
        assert_eq!(seen, [("7", false), ("7", true)]);
    }
}
