//! One webhook request: its headers, the exchange with the endpoint, and the classes of what can go
//! wrong. [`crate::deliver`] makes the body and calls [`Sender::post`].
//!
//! Guarantee: an exchange ends within `WEBHOOK_TIMEOUT`, reads a bounded number of bytes, follows
//! no redirect, and reaches no address that the guard forbids. No error text contains the URL,
//! which may hold a secret of the partner.

use std::{error::Error, io, time::Duration};

use bytes::Bytes;
use domain::WebhookId;
use http::{
    HeaderMap, HeaderValue, Method, Request, Uri,
    header::{ACCEPT, CONTENT_TYPE, InvalidHeaderValue, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use signing::webhook::{Secret, signatures};
use time::OffsetDateTime;
use url::Url;
use webhooks::{
    dns::{Dns, NameError, NameServers},
    event,
    guard::{Forbidden, Guard},
};

use crate::{
    client::{self, ConnectTimeout, HeadTooLarge, WebhookClient},
    schedule::{self, EndpointResponse},
};

/// The name in `User-Agent`.
const AGENT: &str = concat!("topup-notifier/", env!("CARGO_PKG_VERSION"));
/// How much of the body of a response is read. If it is longer, the connection is closed; the
/// status, which alone decides, is known by then.
const ANSWER_READ: usize = 1024;
/// The longest time for reading the body.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// Makes the headers of one attempt at the Unix time `timestamp`. `own` are those that the partner
/// has set for its endpoint, which never replace one of ours. The headers hold a Standard Webhooks
/// signature by each of the `secrets`, the newest first, so that a partner can rotate its secret
/// without losing webhooks. `kind` is the kind of an event; `None` for the specified webhook.
pub fn headers(
    own: &HeaderMap,
    id: &WebhookId,
    kind: Option<&'static str>,
    timestamp: i64,
    body: &[u8],
    secrets: &[Secret],
    traceparent: Option<&str>,
) -> Result<HeaderMap, InvalidHeaderValue> {
    let id = id.to_string();
    let mut headers = own.clone();
    headers.reserve(8);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("webhook-id", HeaderValue::from_str(&id)?);
    headers.insert("webhook-timestamp", HeaderValue::from(timestamp));
    let signatures = signatures(secrets, &id, timestamp, body);
    headers.insert("webhook-signature", HeaderValue::from_str(&signatures)?);
    if let Some(kind) = kind {
        headers.insert(event::TYPE, HeaderValue::from_static(kind));
    }
    if let Some(traceparent) = traceparent {
        headers.insert(
            pipeline::trace::TRACEPARENT,
            HeaderValue::from_str(traceparent)?,
        );
    }
    Ok(headers)
}

/// Why there is no response. The text is stored and shown to operators and partners, so it never
/// contains the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, thiserror::Error)]
#[strum(serialize_all = "snake_case")]
pub enum Unanswered {
    #[error("unusable URL")]
    BadUrl,
    #[error("{0}")]
    Forbidden(Forbidden),
    #[error("name not resolved")]
    Unresolved,
    #[error("timeout")]
    Timeout,
    #[error("TLS failed")]
    Tls,
    #[error("connection failed")]
    Connect,
    #[error("the head of the response is too large (WEBHOOK_HEAD_MAX)")]
    HeadTooLarge,
    #[error("no valid answer")]
    NoAnswer,
}

impl Unanswered {
    /// The class, in metrics and in the record of the attempt.
    pub fn class(self) -> &'static str {
        self.into()
    }
}

/// The limits of a request to an endpoint.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The deadline of a whole exchange.
    pub timeout: Duration,
    /// Bytes that an endpoint may send before the head of its response is complete.
    pub head_max: usize,
    /// Unused connections that are kept for one host.
    pub idle: usize,
}

/// Sends webhooks, with one client for all endpoints. Cheap to clone.
#[derive(Clone)]
pub struct Sender {
    endpoints: WebhookClient,
    guard: Guard,
    timeout: Duration,
}

impl Sender {
    /// Creates the client, with the name servers and certificates of the system. Must be called
    /// within a Tokio runtime.
    pub fn new(guard: Guard, name_servers: &NameServers, limits: &Limits) -> io::Result<Self> {
        let dns = Dns::new(guard.clone(), name_servers)?;
        Ok(Self {
            endpoints: client::endpoints(dns, limits.head_max, limits.idle)?,
            guard,
            timeout: limits.timeout,
        })
    }

    /// Posts one webhook. Returns the response and the beginning of its body. Redirects are not
    /// followed. A date in `Retry-After` is compared with `now`.
    pub async fn post(
        &self,
        url: Url,
        headers: HeaderMap,
        body: Vec<u8>,
        now: OffsetDateTime,
    ) -> Result<(EndpointResponse, Vec<u8>), Unanswered> {
        let request = request(&url, headers, body).ok_or(Unanswered::BadUrl)?;
        self.guard.check_url(&url).map_err(Unanswered::Forbidden)?;
        let exchange = async {
            let sent =
                pipeline::perform(pipeline::Effect::Webhook, self.endpoints.request(request));
            let response = sent.await.map_err(|error| classify(&error))?;
            let retry_after = response
                .headers()
                .get(RETRY_AFTER)
                .and_then(|header| header.to_str().ok());
            let answer = EndpointResponse {
                status: response.status().as_u16(),
                retry_after: retry_after.and_then(|header| schedule::retry_after(header, now)),
            };
            Ok((answer, response.into_body()))
        };
        let deadline = tokio::time::Instant::now() + self.timeout;
        let (answer, body) = tokio::time::timeout_at(deadline, exchange)
            .await
            .map_err(|_| Unanswered::Timeout)??;
        let mut beginning = Vec::new();
        let deadline = deadline.min(tokio::time::Instant::now() + ANSWER_WAIT);
        // A body that is late or broken changes nothing, because only the status counts.
        let _ = tokio::time::timeout_at(deadline, read_to_cap(body, &mut beginning)).await;
        Ok((answer, beginning))
    }
}

/// Makes the request; `None` if the URL is unusable.
fn request(url: &Url, mut headers: HeaderMap, body: Vec<u8>) -> Option<Request<Full<Bytes>>> {
    let is_usable = matches!(url.scheme(), "http" | "https") && url.username().is_empty();
    let uri: Uri = is_usable.then(|| url.as_str().parse().ok()).flatten()?;
    let mut request = Request::new(Full::from(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    *request.headers_mut() = headers;
    Some(request)
}

/// Reads the beginning of a body, at most [`ANSWER_READ`] bytes.
async fn read_to_cap(mut body: Incoming, beginning: &mut Vec<u8>) {
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(chunk) = frame.into_data() else {
            continue;
        };
        let room = ANSWER_READ - beginning.len();
        beginning.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            return;
        }
    }
}

/// Classifies an error of an exchange. Only the class is kept, because the text may contain the
/// URL, which may hold a secret of the partner.
fn classify(error: &hyper_util::client::legacy::Error) -> Unanswered {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(error) = current.downcast_ref::<NameError>() {
            return match error {
                NameError::Forbidden(forbidden) => Unanswered::Forbidden(*forbidden),
                NameError::Unresolved => Unanswered::Unresolved,
            };
        }
        if current.is::<ConnectTimeout>() {
            return Unanswered::Timeout;
        }
        // Either our bound on the received bytes ended it, or one of those that hyper has on its
        // buffer and on the number of headers.
        let too_large = |error: &hyper::Error| error.is_parse_too_large();
        if current.is::<HeadTooLarge>() || current.downcast_ref().is_some_and(too_large) {
            return Unanswered::HeadTooLarge;
        }
        if current.is::<rustls::Error>() {
            return Unanswered::Tls;
        }
        let io = current.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            return Unanswered::Timeout;
        }
        cause = match io.and_then(io::Error::get_ref) {
            // The source of an I/O error is not the error that it wraps, but the source of that
            // one. So the wrapped error is looked at first.
            Some(wrapped) => Some(wrapped),
            None => current.source(),
        };
    }
    if error.is_connect() {
        Unanswered::Connect
    } else {
        Unanswered::NoAnswer
    }
}

#[cfg(test)]
mod tests {
    use runtime::clock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use webhooks::guard::{Networks, Ports};

    fn sender(allowed: &str) -> Sender {
        let guard = Guard::new(
            Networks::parse(allowed).unwrap(),
            Networks::default(),
            Ports::default(),
        );
        let limits = Limits {
            timeout: Duration::from_millis(400),
            head_max: 16 * 1024,
            idle: 4,
        };
        Sender::new(guard, &NameServers::default(), &limits).unwrap()
    }

    async fn post(sender: &Sender, url: &str) -> Result<EndpointResponse, Unanswered> {
        Ok(post_and_read(sender, url).await?.0)
    }

    async fn post_and_read(
        sender: &Sender,
        url: &str,
    ) -> Result<(EndpointResponse, Vec<u8>), Unanswered> {
        sender
            .post(
                url.parse().unwrap(),
                HeaderMap::new(),
                b"{}".to_vec(),
                clock::now(),
            )
            .await
    }

    /// Answers each connection's first request with these bytes and leaves the connection open.
    async fn endpoint(answer: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook?secret=1", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut connection, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let _ = connection.read(&mut request).await;
                let _ = connection.write_all(&answer).await;
                open.push(connection);
            }
        });
        url
    }

    #[tokio::test]
    async fn an_answer_is_its_status_however_its_body_goes_on() {
        let sender = sender("127.0.0.0/8");
        let unfinished = endpoint(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec()).await;
        assert_eq!(
            post(&sender, &unfinished).await,
            Ok(EndpointResponse {
                status: 200,
                retry_after: None
            })
        );
        let mut large =
            b"HTTP/1.1 503 No\r\nretry-after: 7\r\ncontent-length: 99999999\r\n\r\n".to_vec();
        large.resize(64 * 1024, b'x');
        let waiting = EndpointResponse {
            status: 503,
            retry_after: Some(Duration::from_secs(7)),
        };
        let (answer, beginning) = post_and_read(&sender, &endpoint(large).await)
            .await
            .unwrap();
        assert_eq!(answer, waiting);
        assert_eq!(beginning, [b'x'; ANSWER_READ]);
        let moved =
            endpoint(b"HTTP/1.1 307 No\r\nlocation: /\r\ncontent-length: 0\r\n\r\n".to_vec()).await;
        assert_eq!(post(&sender, &moved).await.unwrap().status, 307);
    }

    #[tokio::test]
    async fn what_is_no_answer_is_named_by_its_class() {
        let sender = sender("127.0.0.0/8");
        let plain = endpoint(b"HTTP/1.1 400 No\r\n\r\n".to_vec()).await;
        let over_tls = plain.replace("http://", "https://");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let free = listener.local_addr().unwrap();
        drop(listener);
        let interim = endpoint("HTTP/1.1 103 Wait\r\n\r\n".repeat(10_000).into_bytes()).await;
        // The other classes: `hostile`, `names` and `main` in tests/delivery.
        for (url, class) in [
            (over_tls.as_str(), Unanswered::Tls),
            (&interim, Unanswered::HeadTooLarge),
            (&format!("http://{free}/"), Unanswered::Connect),
            ("ftp://127.0.0.1/", Unanswered::BadUrl),
            ("http://user@127.0.0.1/", Unanswered::BadUrl),
        ] {
            assert_eq!(post(&sender, url).await, Err(class), "{url}");
        }
    }
}
