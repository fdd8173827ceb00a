//! One webhook request: its headers, the exchange with the endpoint, and the classes of what can go
//! wrong. [`crate::deliver`] makes the body and calls [`WebhookSender::post`].
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
use hyper_util::client::legacy::connect::capture_connection;
use runtime::retry_after;
use rustls::CertificateError;
use signing::webhook::Signers;
use time::OffsetDateTime;
use url::Url;
use webhooks::{
    dns::{Dns, NameError, NameServers},
    event,
    guard::{Forbidden, Guard},
};

use crate::{
    client::{self, ClientLimits, ConnectTimeout, HeadTooLarge, NotConnected, WebhookClient},
    head::{self, BadHead},
    schedule::EndpointResponse,
};

/// The name in `User-Agent`.
const AGENT: &str = concat!("topup-notifier/", env!("CARGO_PKG_VERSION"));
/// How much of the body of a response is read. If it is longer, the connection is closed; the
/// status, which alone decides, is known by then.
const BODY_READ: usize = 1024;
/// The longest time for reading the body.
const BODY_WAIT: Duration = Duration::from_secs(1);

/// Makes the headers of one attempt at the Unix time `timestamp`. `own` are those that the partner
/// has set for its endpoint, which never replace one of ours. The headers hold a Standard Webhooks
/// signature by each of the `signers`. `kind` is the kind of an event; `None` for the specified
/// webhook.
pub fn headers(
    own: &HeaderMap,
    id: &WebhookId,
    kind: Option<&'static str>,
    timestamp: i64,
    body: &[u8],
    signers: Signers<'_>,
    traceparent: Option<&str>,
) -> Result<HeaderMap, InvalidHeaderValue> {
    let id = id.to_string();
    let mut headers = own.clone();
    headers.reserve(8);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("webhook-id", HeaderValue::from_str(&id)?);
    headers.insert("webhook-timestamp", HeaderValue::from(timestamp));
    let signatures = signers.signatures(&id, timestamp, body);
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
pub enum NoResponse {
    #[error("unusable URL")]
    BadUrl,
    #[error("{0}")]
    Forbidden(Forbidden),
    #[error("name not resolved")]
    Unresolved,
    #[error("timeout")]
    Timeout,
    #[error("TLS failed: {0}")]
    Tls(TlsFault),
    #[error("connection failed")]
    Connect,
    #[error("the head of the response is too large (64 KiB)")]
    HeadTooLarge,
    /// Not a byte of a response arrived.
    #[strum(serialize = "no_answer")]
    #[error("the connection ended before a response")]
    Nothing,
    /// What arrived is no response.
    #[strum(serialize = "bad_answer")]
    #[error("the response cannot be read: {0}")]
    Unreadable(BadHead),
}

/// Why there is no connection with TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    #[error("the certificate has expired")]
    Expired,
    #[error("the certificate is not valid yet")]
    NotYetValid,
    #[error("the certificate is for another host name")]
    OtherName,
    #[error(
        "the certificate is not signed by an authority that we know, or an intermediate \
         certificate is missing"
    )]
    UnknownIssuer,
    #[error("the certificate was revoked")]
    Revoked,
    #[error("the certificate cannot be verified")]
    Certificate,
    #[error("the server speaks no TLS at this port")]
    NotTls,
    #[error("the server has no TLS version or cipher in common with us")]
    Incompatible,
    #[error("the server refused the handshake with an alert")]
    Alert,
    #[error("the connection ended during the handshake")]
    Ended,
    #[error("the handshake failed")]
    Other,
}

impl From<&rustls::Error> for TlsFault {
    fn from(error: &rustls::Error) -> Self {
        use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage, PeerIncompatible};
        match error {
            InvalidCertificate(fault) => match fault {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    Self::Expired
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    Self::NotYetValid
                }
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => Self::OtherName,
                CertificateError::UnknownIssuer => Self::UnknownIssuer,
                CertificateError::Revoked => Self::Revoked,
                _ => Self::Certificate,
            },
            InvalidMessage(_) => Self::NotTls,
            PeerIncompatible(_) => Self::Incompatible,
            AlertReceived(_) => Self::Alert,
            _ => Self::Other,
        }
    }
}

impl NoResponse {
    /// The class, in metrics and in the record of the attempt.
    pub fn class(self) -> &'static str {
        self.into()
    }
}

/// Sends webhooks, with one client for all endpoints. Cheap to clone.
#[derive(Clone)]
pub struct WebhookSender {
    endpoints: WebhookClient,
    guard: Guard,
    timeout: Duration,
}

impl WebhookSender {
    /// Creates the client, with the name servers and certificates of the system. Must be called
    /// within a Tokio runtime.
    pub fn new(
        guard: Guard,
        name_servers: &NameServers,
        limits: &ClientLimits,
    ) -> io::Result<Self> {
        let dns = Dns::new(guard.clone(), name_servers)?;
        Ok(Self {
            endpoints: client::endpoints(dns, limits)?,
            guard,
            timeout: limits.timeout,
        })
    }

    /// Posts one webhook. Redirects are not
    /// followed. A date in `Retry-After` is compared with `now`.
    pub async fn post(
        &self,
        url: Url,
        headers: HeaderMap,
        body: Vec<u8>,
        now: OffsetDateTime,
    ) -> Result<EndpointResponse, NoResponse> {
        let mut request = request(&url, headers, body).ok_or(NoResponse::BadUrl)?;
        self.guard.check_url(&url).map_err(NoResponse::Forbidden)?;
        let captured = capture_connection(&mut request);
        let exchange = async {
            let sent =
                pipeline::perform(pipeline::Effect::Webhook, self.endpoints.request(request));
            let sent = sent.await;
            let received = client::after_request(&captured);
            let response = match sent {
                Ok(response) => response,
                Err(error) => {
                    let head = EndpointResponse {
                        status: unread(&error, &received)?,
                        ..EndpointResponse::default()
                    };
                    return Ok((head, None));
                }
            };
            let retry_after = response
                .headers()
                .get(RETRY_AFTER)
                .and_then(|header| header.to_str().ok());
            let head = EndpointResponse {
                status: response.status().as_u16(),
                retry_after: retry_after.and_then(|header| retry_after::parse(header, now)),
                ..EndpointResponse::default()
            };
            Ok((head, Some(response.into_body())))
        };
        let deadline = tokio::time::Instant::now() + self.timeout;
        let (mut response, body) = tokio::time::timeout_at(deadline, exchange)
            .await
            .map_err(|_| NoResponse::Timeout)??;
        let deadline = deadline.min(tokio::time::Instant::now() + BODY_WAIT);
        // A body that is late or broken changes nothing, because only the status counts.
        if let Some(body) = body {
            let _ =
                tokio::time::timeout_at(deadline, read_to_cap(body, &mut response.beginning)).await;
        }
        Ok(response)
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

/// Reads the beginning of a body, at most [`BODY_READ`] bytes.
async fn read_to_cap(mut body: Incoming, beginning: &mut Vec<u8>) {
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(chunk) = frame.into_data() else {
            continue;
        };
        let room = BODY_READ - beginning.len();
        beginning.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            return;
        }
    }
}

/// The status of a response that hyper refused, whose first bytes were `received`. Otherwise the
/// class of the error. The text of the error is not kept, because it may contain the URL, which may
/// hold a secret of the partner.
fn unread(error: &hyper_util::client::legacy::Error, received: &[u8]) -> Result<u16, NoResponse> {
    match classify(error) {
        Cause::Known(no_response) => Err(no_response),
        Cause::Head => head::status(received).map_err(NoResponse::Unreadable),
        Cause::Ended if received.is_empty() => Err(NoResponse::Nothing),
        // The head is not complete, so even a status that is there already does not count.
        Cause::Ended => Err(NoResponse::Unreadable(
            head::status(received).err().unwrap_or(BadHead::Unfinished),
        )),
    }
}

/// What an error of an exchange says.
enum Cause {
    Known(NoResponse),
    /// Hyper could not read the head.
    Head,
    /// The connection ended before the head was complete.
    Ended,
}

fn classify(error: &hyper_util::client::legacy::Error) -> Cause {
    let mut connected = true;
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(error) = current.downcast_ref::<NameError>() {
            return Cause::Known(match error {
                NameError::Forbidden(forbidden) => NoResponse::Forbidden(*forbidden),
                NameError::Unresolved => NoResponse::Unresolved,
            });
        }
        if current.is::<ConnectTimeout>() {
            return Cause::Known(NoResponse::Timeout);
        }
        if current.is::<HeadTooLarge>() {
            return Cause::Known(NoResponse::HeadTooLarge);
        }
        if let Some(error) = current.downcast_ref::<hyper::Error>()
            && error.is_parse()
        {
            return Cause::Head;
        }
        if let Some(error) = current.downcast_ref::<rustls::Error>() {
            return Cause::Known(NoResponse::Tls(error.into()));
        }
        connected &= !current.is::<NotConnected>();
        let io = current.downcast_ref::<io::Error>();
        if io.is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            return Cause::Known(NoResponse::Timeout);
        }
        cause = match io.and_then(io::Error::get_ref) {
            // The source of an I/O error is not the error that it wraps, but the source of that
            // one. So the wrapped error is looked at first.
            Some(wrapped) => Some(wrapped),
            None => current.source(),
        };
    }
    match error.is_connect() {
        true if connected => Cause::Known(NoResponse::Tls(TlsFault::Ended)),
        true => Cause::Known(NoResponse::Connect),
        false => Cause::Ended,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::SocketAddr,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        time::Instant,
    };

    use runtime::clock;
    use testkit::names::{NameServer, Zone};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use webhooks::guard::{Networks, Ports};

    fn sender(allowed: &str) -> WebhookSender {
        sender_with(allowed, &NameServers::default())
    }

    fn sender_with(allowed: &str, names: &NameServers) -> WebhookSender {
        let guard = Guard::new(
            Networks::parse(allowed).unwrap(),
            Networks::default(),
            Ports::default(),
        );
        let limits = ClientLimits {
            timeout: Duration::from_millis(400),
            head_max: 16 * 1024,
            idle: 4,
            oldest: Duration::from_secs(2),
        };
        WebhookSender::new(guard, names, &limits).unwrap()
    }

    async fn post(sender: &WebhookSender, url: &str) -> Result<EndpointResponse, NoResponse> {
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
    async fn a_response_is_its_status_however_its_body_goes_on() {
        let sender = sender("127.0.0.0/8");
        let unfinished = endpoint(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec()).await;
        let expected = EndpointResponse {
            status: 200,
            beginning: b"{".to_vec(),
            ..EndpointResponse::default()
        };
        assert_eq!(post(&sender, &unfinished).await, Ok(expected));
        let mut large =
            b"HTTP/1.1 503 No\r\nretry-after: 7\r\ncontent-length: 99999999\r\n\r\n".to_vec();
        large.resize(64 * 1024, b'x');
        let waiting = EndpointResponse {
            status: 503,
            retry_after: Some(Duration::from_secs(7)),
            beginning: vec![b'x'; BODY_READ],
            proves: false,
        };
        assert_eq!(post(&sender, &endpoint(large).await).await, Ok(waiting));
        let moved =
            endpoint(b"HTTP/1.1 307 No\r\nlocation: /\r\ncontent-length: 0\r\n\r\n".to_vec()).await;
        assert_eq!(post(&sender, &moved).await.unwrap().status, 307);
    }

    /// The same, and ends each connection afterwards.
    async fn ending(answer: impl Into<Vec<u8>>) -> String {
        let answer = answer.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook?secret=1", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let _ = connection.read(&mut request).await;
                let _ = connection.write_all(&answer).await;
                let _ = connection.shutdown().await;
            }
        });
        url
    }

    #[tokio::test]
    async fn a_sloppy_head_is_a_response_as_browsers_and_curl_take_it() {
        let sender = sender("127.0.0.0/8");
        let many: Vec<String> = (0..1_000).map(|n| format!("x-{n}: y\r\n")).collect();
        let many = many.concat();
        let tiny = "a:\r\n".repeat(3_000);
        for head in [
            "x: a\r\n  folded\r\n",
            " x: blank before the first\r\n",
            "x : blank before the colon\r\n",
            "no colon at all\r\n",
            "x(y): odd name\r\n",
            "x: a\x01b\r\n",
            "x: \u{e4}\r\n",
            "content-length: 1\r\ncontent-length: 2\r\n",
            "content-length: many\r\n",
            "content-length: -1\r\n",
            "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
            "transfer-encoding: gzip\r\n",
            &many,
            &tiny,
        ] {
            for line in [
                "HTTP/1.1 200 OK",
                "HTTP/1.0 200 OK",
                "HTTP/1.1 200",
                "HTTP/1.1  200  OK",
                "http/1.1 200 ok",
                "HTTP/1.2 200 OK",
                "HTTP/2 200",
            ] {
                for end in ["\r\n", "\n"] {
                    let head = head.replace("\r\n", end);
                    let url = ending(format!("{line}{end}{head}{end}")).await;
                    let status = post(&sender, &url).await.map(|answer| answer.status);
                    let shown = &head[..head.len().min(60)];
                    assert_eq!(status, Ok(200), "{line:?} {shown:?}");
                }
            }
        }
    }

    #[tokio::test]
    async fn the_rest_of_a_sloppy_response_is_read_too() {
        for odd in ["x: a\r\n folded", "x : blank", "no colon"] {
            let answer = format!("HTTP/1.1 503 Busy\r\n{odd}\r\nretry-after: 7\r\n\r\nbusy");
            let url = ending(answer).await;
            let answer = post(&sender("127.0.0.0/8"), &url).await.unwrap();
            let seen = (answer.retry_after.is_some(), answer.beginning.as_slice());
            assert_eq!(seen, (true, &b"busy"[..]), "{odd}");
        }
    }

    #[tokio::test]
    async fn what_is_no_response_says_why() {
        let sender = sender("127.0.0.0/8");
        for (answer, fault) in [
            (&b"HTTP/1.1 200 OK\r\ncontent-"[..], BadHead::Unfinished),
            (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", BadHead::NotHttp),
            (b"\x15\x03\x03\0\x02\x02\x28", BadHead::Tls),
            (b"HTTP/1.1 OK\r\n\r\n", BadHead::Status),
            (b"HTTP/1.1 200 OK\r\nx: \0\r\n\r\n", BadHead::Nul),
        ] {
            let url = ending(answer).await;
            let expected = Err(NoResponse::Unreadable(fault));
            assert_eq!(post(&sender, &url).await, expected, "{answer:?}");
        }
        assert_eq!(
            post(&sender, &ending(b"").await).await,
            Err(NoResponse::Nothing)
        );
    }

    /// Counts the requests at an address. It keeps connections as an ordinary server does.
    async fn counting(address: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let count = Arc::clone(&count);
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    while connection
                        .read(&mut request)
                        .await
                        .is_ok_and(|read| read > 0)
                    {
                        count.fetch_add(1, Ordering::Relaxed);
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                        let _ = connection.write_all(answer).await;
                    }
                });
            }
        });
        (address, requests)
    }

    /// The host is used all the time, so its connection is never idle for long enough to end.
    #[tokio::test]
    async fn a_host_that_moves_gets_its_webhooks_at_its_new_address() {
        const OLD: Zone = &[("moved.test", &[[127, 0, 0, 1]])];
        const NEW: Zone = &[("moved.test", &[[127, 0, 0, 2]])];
        let names = NameServer::start(OLD).await.unwrap();
        let servers = NameServers::parse(&names.address.to_string()).unwrap();
        let sender = sender_with("127.0.0.0/8", &servers);
        let (old, at_old) = counting(([127, 0, 0, 1], 0).into()).await;
        let (_, at_new) = counting(([127, 0, 0, 2], old.port()).into()).await;
        let url = format!("http://moved.test:{}/", old.port());
        assert_eq!(post(&sender, &url).await.unwrap().status, 200);
        assert_eq!(at_old.load(Ordering::Relaxed), 1);
        names.serve(NEW);
        let began = Instant::now();
        // The TTL is a second, and `oldest` two.
        while at_new.load(Ordering::Relaxed) == 0 {
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "it stays at the old address"
            );
            assert_eq!(post(&sender, &url).await.unwrap().status, 200);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(
            at_old.load(Ordering::Relaxed) > 5,
            "the connection was not kept"
        );
    }

    #[tokio::test]
    async fn what_is_no_response_is_named_by_its_class() {
        let sender = sender("127.0.0.0/8");
        let plain = endpoint(b"HTTP/1.1 400 No\r\n\r\n".to_vec()).await;
        let over_tls = plain.replace("http://", "https://");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let free = listener.local_addr().unwrap();
        drop(listener);
        let interim = endpoint("HTTP/1.1 103 Wait\r\n\r\n".repeat(10_000).into_bytes()).await;
        let ending = ending(b"").await.replace("http://", "https://");
        // The other classes: `hostile`, `names` and `main` in tests/delivery.
        for (url, class) in [
            (over_tls.as_str(), NoResponse::Tls(TlsFault::NotTls)),
            (&ending, NoResponse::Tls(TlsFault::Ended)),
            (&interim, NoResponse::HeadTooLarge),
            (&format!("http://{free}/"), NoResponse::Connect),
            ("ftp://127.0.0.1/", NoResponse::BadUrl),
            ("http://user@127.0.0.1/", NoResponse::BadUrl),
        ] {
            assert_eq!(post(&sender, url).await, Err(class), "{url}");
        }
    }
}
