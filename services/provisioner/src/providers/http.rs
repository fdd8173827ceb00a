//! The HTTP calls of all adapters: their span, their deadline, the bound on the size of a response,
//! and the classes of a response that the protocol does not define.
//!
//! What is classified here is the same for every protocol, for example that a timeout leaves the
//! outcome unknown. The adapter classifies the rest.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use opentelemetry_semantic_conventions::attribute::{
    ERROR_TYPE, HTTP_RESPONSE_STATUS_CODE, URL_FULL,
};
use pipeline::trace;
use reqwest::{
    Client, Method, Response, StatusCode, Url,
    header::{self, HeaderMap, HeaderValue},
};
use runtime::{client, lock};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use time::{
    OffsetDateTime, PrimitiveDateTime, format_description::StaticFormatDescription,
    macros::format_description,
};
use tracing::{Instrument, Span, field, info_span};
use uuid::Uuid;

use super::{
    provider::{PacedCalls, Trouble},
    text::one_line,
};
use crate::rate::Rate;

/// The header `Date`, such as `Fri, 20 Nov 2026 06:00:00 GMT`.
const DATE: StaticFormatDescription = format_description!(
    "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
);

/// The longest time for which connections are used. A provider that moves to another address
/// changes its DNS record; a connection that was kept for ever would never notice. The system's
/// resolver does not tell the TTL of a record, so the time is short.
const CONNECTIONS: Duration = Duration::from_mins(1);

/// The HTTP interface of a provider.
pub(super) struct Http {
    /// The client with its connections, and when it was made.
    client: Mutex<(Client, Instant)>,
    timeout: Duration,
    connections_last: Duration,
    base: Url,
    /// Whether spans may show URLs: the base has no user, password or query, which could be secret.
    is_plain: bool,
    response_max: usize,
    rate: Arc<Rate>,
    /// The statuses whose bodies the protocol defines.
    defined: fn(StatusCode) -> bool,
    /// How far the provider's clock was ahead of ours, in seconds; `i64::MIN` if that is not known.
    clock_ahead: AtomicI64,
}

/// A request. `route` is its path as spans show it; they do not show the query.
pub(super) struct Call<'a> {
    pub(super) method: Method,
    pub(super) path: &'a str,
    pub(super) query: Option<&'a str>,
    pub(super) route: &'static str,
    pub(super) headers: HeaderMap,
    pub(super) body: Option<CallBody>,
    pub(super) size: Size,
}

/// How large the response to a call may be, and how long it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// An order, or something else of the size of one: the limits of
    /// [`CallLimits`](super::CallLimits) hold. Purchases that the provider carries out later,
    /// look-ups by an id, and calls about delivered eSIMs are such calls. None of the documents
    /// names a time for them, and a longer one would only keep their permits.
    Ordinary,
    /// A purchase that the provider carries out before it responds. It has this time instead.
    Purchase(Duration),
    /// A list, of which providers send thousands of entries at once: [`LIST_MAX`] and
    /// [`LIST_TIMEOUT`] hold instead, if they allow more.
    List,
}

/// The largest list that is read, in bytes. The longest one that a provider documents is that of
/// Airalo: about 3,200 packages in one response (September 2026), each 2.3 to 4 KB by its examples,
/// so 13 MB.
const LIST_MAX: usize = 32 << 20;
/// The timeout of reading a list, and of a search, which reads one: what a provider sends of 13 MB
/// takes longer than an order.
const LIST_TIMEOUT: Duration = Duration::from_mins(1);

/// The body of a request. It is made before the request, because some protocols sign it.
pub(super) struct CallBody {
    content_type: String,
    pub(super) bytes: Vec<u8>,
}

impl<'a> Call<'a> {
    pub(super) fn get(path: &'a str, route: &'static str) -> Self {
        Self {
            method: Method::GET,
            path,
            query: None,
            route,
            headers: HeaderMap::new(),
            body: None,
            size: Size::Ordinary,
        }
    }

    pub(super) fn post(path: &'a str, route: &'static str) -> Self {
        Self {
            method: Method::POST,
            ..Self::get(path, route)
        }
    }
}

/// The path of a call about something with this id. What has a meaning in a path must not get into
/// one, such as a slash, or dots alone.
pub(super) fn path_of(route: &str, name: &str, id: &str) -> Result<String, Trouble> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if id.bytes().all(is_plain) && !id.starts_with('.') {
        Ok(route.replace(name, id))
    } else {
        Err(Trouble::NotSent(
            "an id begins with a dot, or has characters other than letters, digits, -, _ and dots"
                .into(),
        ))
    }
}

/// The value of a header that we have made.
pub(super) fn header_of(text: String) -> Result<HeaderValue, Trouble> {
    HeaderValue::try_from(text).map_err(|_| Trouble::NotSent("no header".into()))
}

impl CallBody {
    pub(super) fn json(value: &impl Serialize) -> Result<Self, Trouble> {
        let bytes = serde_json::to_vec(value)
            .map_err(|_| Trouble::NotSent("the request cannot be written as JSON".into()))?;
        Ok(Self {
            content_type: "application/json".into(),
            bytes,
        })
    }

    /// A form of text fields, `multipart/form-data`.
    pub(super) fn multipart(fields: &[(&str, &str)]) -> Self {
        // The boundary is random, so that no value of a field can contain it.
        let boundary = Uuid::now_v7().simple().to_string();
        let part = |(name, value): &(&str, &str)| {
            let head = format!("content-disposition: form-data; name=\"{name}\"");
            format!("--{boundary}\r\n{head}\r\n\r\n{value}\r\n")
        };
        let parts: Vec<String> = fields.iter().map(part).collect();
        let text = format!("{}--{boundary}--\r\n", parts.concat());
        Self {
            content_type: format!("multipart/form-data; boundary={boundary}"),
            bytes: text.into_bytes(),
        }
    }
}

impl Http {
    /// Creates the interface at `base`. The body of a response is read only if its status is
    /// `defined`. Redirects are not followed and no proxy is used, because either could carry a
    /// purchase, or its signature, to a place that the operator did not choose.
    pub(super) fn new(
        base: &Url,
        paced: PacedCalls,
        defined: fn(StatusCode) -> bool,
    ) -> anyhow::Result<Self> {
        let PacedCalls { limits, rate } = paced;
        let client =
            new_client(limits.timeout).context("cannot build the provider's HTTP client")?;
        Ok(Self {
            client: Mutex::new((client, Instant::now())),
            timeout: limits.timeout,
            connections_last: CONNECTIONS,
            base: base
                .join("/")
                .context("the provider's address takes no path")?,
            is_plain: base.username().is_empty()
                && base.password().is_none()
                && base.query().is_none(),
            response_max: limits.response_max,
            rate,
            defined,
            clock_ahead: AtomicI64::new(i64::MIN),
        })
    }

    /// The timeout of a call (`PROVIDER_TIMEOUT`).
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Waits for the turn of one more call under `PROVIDER_RATE`. [`crate::calls`] has waited for
    /// the turn of the first call of an operation. An adapter that needs further ones, for example
    /// for the next page of a list, calls this before each of them.
    pub(super) async fn turn(&self) {
        self.rate.turn().await;
    }

    /// The client, with new connections if the old ones have been used for long enough. A call that
    /// is on its way on an old connection ends there.
    fn client(&self) -> Client {
        let mut current = lock(&self.client);
        if current.1.elapsed() >= self.connections_last {
            match new_client(self.timeout) {
                Ok(client) => *current = (client, Instant::now()),
                Err(error) => tracing::warn!(
                    %error,
                    "cannot build a new HTTP client, so the old connections to the provider stay"
                ),
            }
        }
        current.0.clone()
    }

    /// How far the provider's clock was ahead of ours at its last response, in seconds.
    pub(super) fn clock_ahead(&self) -> Option<i64> {
        let ahead = self.clock_ahead.load(Ordering::Relaxed);
        (ahead != i64::MIN).then_some(ahead)
    }

    /// Sends a request. Returns the status and the body of a response that the protocol defines.
    ///
    /// Unless the protocol defines it, 401 and 403 are [`Trouble::Denied`], and 429 is
    /// [`Trouble::Busy`]. With any other response the outcome is unknown. A 503 does not mean that
    /// nothing happened, for example, because a proxy may send it for an order that went through.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<(StatusCode, Vec<u8>), Trouble> {
        let span = info_span!(
            "provider call",
            otel.name = format!("{} {}", call.method, call.route),
            otel.kind = "client",
            otel.status_code = field::Empty,
            http.request.method = %call.method,
            url.template = call.route,
            url.full = field::Empty,
            server.address = self.base.host_str(),
            server.port = self.base.port_or_known_default(),
            http.response.status_code = field::Empty,
            error.type = field::Empty,
        );
        let mut status = None;
        let response = self
            .exchange(call, &span, &mut status)
            .instrument(span.clone())
            .await;
        if let Some(status) = status {
            span.record(HTTP_RESPONSE_STATUS_CODE, status.as_u16());
        }
        if let Err(trouble) = &response {
            let refused = status.as_ref().filter(|status| status.as_u16() >= 400);
            span.record(
                ERROR_TYPE,
                refused.map_or(trouble.class(), StatusCode::as_str),
            );
            span.record("otel.status_code", "ERROR");
        }
        response
    }

    async fn exchange(
        &self,
        call: Call<'_>,
        span: &Span,
        received: &mut Option<StatusCode>,
    ) -> Result<(StatusCode, Vec<u8>), Trouble> {
        let mut url = self.base.clone();
        url.set_path(call.path);
        // The ICCID of a delivered eSIM is not shown, because it outlives an erasure in the traces.
        if self.is_plain && !call.route.contains("{iccid}") {
            span.record(URL_FULL, url.as_str());
        }
        url.set_query(call.query);
        let mut request = self
            .client()
            .request(call.method, url)
            .headers(call.headers);
        if let Some(context) = trace::context_of(span) {
            request = request.header(trace::TRACEPARENT, context);
        }
        if let Some(body) = call.body {
            request = request
                .header(header::CONTENT_TYPE, body.content_type)
                .body(body.bytes);
        }
        let (response_max, setting) = match call.size {
            Size::Ordinary | Size::Purchase(_) => (self.response_max, " (MAX_UNITS)"),
            Size::List => (self.response_max.max(LIST_MAX), ""),
        };
        request = match call.size {
            Size::Ordinary => request,
            Size::Purchase(timeout) => request.timeout(timeout),
            Size::List => request.timeout(self.timeout.max(LIST_TIMEOUT)),
        };
        let response = request.send().await.map_err(failure)?;
        let status = response.status();
        *received = Some(status);
        if let Some(date) = date(response.headers()) {
            let ahead = (date - runtime::clock::now()).whole_seconds();
            self.clock_ahead.store(ahead, Ordering::Relaxed);
        }
        match status {
            status if (self.defined)(status) => {
                let body = read(response, response_max, setting).await?;
                Ok((status, body))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(Trouble::Denied(format!(
                "the provider denies access (HTTP {})",
                status.as_u16()
            ))),
            StatusCode::TOO_MANY_REQUESTS => Err(Trouble::Busy {
                after: retry_after(response.headers()),
                reason: "the provider is busy (HTTP 429)".into(),
            }),
            _ => Err(Trouble::not_understood(format!("HTTP {}", status.as_u16()))),
        }
    }
}

fn new_client(timeout: Duration) -> reqwest::Result<Client> {
    client::direct(timeout)
        .connect_timeout(timeout.min(Duration::from_secs(3)))
        .build()
}

const OTHER_JSON: &str = "not the protocol's JSON";

/// Reads a body of the protocol. The error is not serde's, because that one would quote the body,
/// which may hold activation codes.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Trouble> {
    serde_json::from_slice(body).map_err(|_| Trouble::unreadable(OTHER_JSON))
}

/// Reads a part of such a body.
pub(super) fn parse_part<T: DeserializeOwned>(part: &Value) -> Result<T, Trouble> {
    T::deserialize(part).map_err(|_| Trouble::unreadable(OTHER_JSON))
}

/// Reads the body of a response, up to `most` bytes. The outcome of a call with a longer body is
/// unknown.
async fn read(mut response: Response, most: usize, setting: &str) -> Result<Vec<u8>, Trouble> {
    let too_large =
        || Trouble::not_understood(format!("the response has more than {most} bytes{setting}"));
    let announced = response.content_length().unwrap_or_default();
    let announced = usize::try_from(announced).map_err(|_| too_large())?;
    if announced > most {
        return Err(too_large());
    }
    let mut body = Vec::with_capacity(announced);
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|error| Trouble::no_response(describe(&error.without_url())))?
    {
        if chunk.len() > most - body.len() {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The time of a response by the clock of its sender.
fn date(headers: &HeaderMap) -> Option<OffsetDateTime> {
    let value = headers.get(header::DATE)?.to_str().ok()?;
    let date = PrimitiveDateTime::parse(value, DATE).ok()?;
    Some(date.assume_utc())
}

/// The wait that `Retry-After` asks for. A date is compared with the clock of the provider, if the
/// response says its time. Whoever waits bounds it: [`Trouble::asked_wait`].
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    let now = date(headers).unwrap_or_else(runtime::clock::now);
    runtime::retry_after::parse(value, now)
}

/// Classifies a request that got no response. It was certainly not sent only if there was no
/// connection. On a connection, part of the request may have arrived, whatever the error says.
fn failure(error: reqwest::Error) -> Trouble {
    let error = error.without_url();
    let reason = describe(&error);
    if error.is_connect() || error.is_builder() {
        Trouble::NotSent(reason)
    } else {
        Trouble::no_response(reason)
    }
}

/// Describes an error by its deepest cause, which says most, without the URL.
fn describe(error: &reqwest::Error) -> String {
    let kind = if error.is_timeout() {
        "timed out: "
    } else {
        ""
    };
    let mut source: &dyn std::error::Error = error;
    while let Some(deeper) = source.source() {
        source = deeper;
    }
    one_line(&format!("{kind}{source}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::providers::CallLimits;

    /// Calls a server twice, and returns the number of its connections.
    async fn connections_of_two_calls(last: Duration) -> usize {
        testkit::http::client().unwrap(); // This installs the TLS provider.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    while connection
                        .read(&mut request)
                        .await
                        .is_ok_and(|read| read > 0)
                    {
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
                        let _ = connection.write_all(answer).await;
                    }
                });
            }
        });
        let limits = CallLimits {
            timeout: Duration::from_secs(5),
            response_max: 1 << 10,
        };
        let url = url.parse().unwrap();
        let mut http = Http::new(&url, PacedCalls::without_rate(limits), |_| true).unwrap();
        http.connections_last = last;
        for _ in 0..2 {
            http.call(Call::get("/", "/")).await.unwrap();
        }
        accepted.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn a_connection_is_kept_until_it_is_old() {
        assert_eq!(connections_of_two_calls(CONNECTIONS).await, 1);
        assert_eq!(connections_of_two_calls(Duration::ZERO).await, 2);
    }

    /// An order that is carried out before its response takes its time, and a list has thousands of
    /// entries: that of Airalo about 3,200 packages, or 13 MB (September 2026).
    #[tokio::test]
    async fn each_kind_of_call_has_the_time_and_the_size_of_its_kind() {
        testkit::http::client().unwrap(); // This installs the TLS provider.
        let limits = CallLimits {
            timeout: Duration::from_secs(3),
            response_max: 1 << 10,
        };
        let late = Duration::from_secs(4);
        let long = Size::Purchase(Duration::from_mins(1));
        for (size, wait, bytes, is_read) in [
            (Size::Ordinary, Duration::ZERO, 1 << 10, Ok(())),
            (Size::Ordinary, late, 2, Err("timed out")),
            (
                Size::Ordinary,
                Duration::ZERO,
                (1 << 10) + 1,
                Err("1024 bytes (MAX_UNITS)"),
            ),
            (long, late, 1 << 10, Ok(())),
            (
                long,
                Duration::ZERO,
                (1 << 10) + 1,
                Err("1024 bytes (MAX_UNITS)"),
            ),
            (Size::List, late, 13_000_000, Ok(())),
            (
                Size::List,
                Duration::ZERO,
                LIST_MAX + 1,
                Err("33554432 bytes"),
            ),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            tokio::spawn(async move {
                let (mut connection, _) = listener.accept().await.unwrap();
                let _ = connection.read(&mut [0; 1024]).await;
                tokio::time::sleep(wait).await;
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n");
                let _ = connection.write_all(head.as_bytes()).await;
                let _ = connection.write_all(&vec![b' '; bytes]).await;
            });
            let paced = PacedCalls::without_rate(limits);
            let http = Http::new(&url.parse().unwrap(), paced, |_| true).unwrap();
            let seen = http
                .call(Call {
                    size,
                    ..Call::get("/", "/")
                })
                .await
                .map(|(_, body)| body.len());
            match is_read {
                Ok(()) => assert_eq!(seen, Ok(bytes), "{size:?}"),
                Err(part) => {
                    let reason = seen.unwrap_err().reason().to_owned();
                    assert!(reason.contains(part), "{size:?} {bytes}: {reason}");
                }
            }
        }
    }

    #[test]
    fn a_form_ends_with_its_boundary_and_is_never_like_another_one() {
        let bodies = [0; 2].map(|_| CallBody::multipart(&[("a", "1"), ("b", "2\r\n--x")]));
        let text = String::from_utf8(bodies[0].bytes.clone()).unwrap();
        let boundary = bodies[0].content_type.split_once('=').unwrap().1;
        assert_eq!(text.matches(boundary).count(), 3);
        assert!(text.ends_with(&format!("--{boundary}--\r\n")), "{text}");
        assert!(text.contains("name=\"b\"\r\n\r\n2\r\n--x\r\n"), "{text}");
        assert_ne!(bodies[0].content_type, bodies[1].content_type);
    }

    #[test]
    fn the_date_of_a_response_is_read() {
        let read = |value: &'static str| {
            let value = HeaderValue::from_static(value);
            date(&HeaderMap::from_iter([(header::DATE, value)])).map(OffsetDateTime::unix_timestamp)
        };
        assert_eq!(read("Fri, 20 Nov 2026 06:00:00 GMT"), Some(1_795_154_400));
        for odd in [
            "",
            "soon",
            "2026-11-20T06:00:00Z",
            "Fri, 31 Feb 2026 06:00:00 GMT",
        ] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }

    #[test]
    fn retry_after_is_read_as_seconds_and_as_a_date_by_the_clock_of_the_provider() {
        let value = HeaderValue::from_static;
        let read = |text: &'static str| {
            let date = (header::DATE, value("Fri, 20 Nov 2026 05:59:00 GMT"));
            retry_after(&HeaderMap::from_iter([
                (header::RETRY_AFTER, value(text)),
                date,
            ]))
        };
        assert_eq!(read(" 7 "), Some(Duration::from_secs(7)));
        for date in [
            "Fri, 20 Nov 2026 06:00:00 GMT",
            "Friday, 20-Nov-26 06:00:00 GMT",
            "Fri Nov 20 06:00:00 2026",
        ] {
            assert_eq!(read(date), Some(Duration::from_mins(1)), "{date}");
        }
        for odd in ["", "-1", "soon"] {
            assert_eq!(read(odd), None, "{odd}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
