//! Records each request: a span, the metrics, and a log line if it was refused.
//!
//! Guarantees:
//!
//! - Every response to a request has an `X-Request-Id`, so that the log line of an error can be
//!   found by what the partner quotes. No cache may store it.
//! - An error is logged once, here, with the cause of a 500. A flood of refused requests, or of
//!   requests that fail because the database does, is sampled in the log, and counted in full by
//!   the metrics.
//! - No path, query or header of a request is logged, because they can hold secrets. Of a refused
//!   request with the access key of a partner, the path is stored for operators
//!   ([`crate::http::refusals`]); only signed routes have such requests, and their paths hold no
//!   secrets.
//!
//! [`crate::routes`] wraps all routes in [`observe`]. The module relies on [`ErrorRecord`], which
//! [`crate::http::error`] attaches to each error response.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Extension,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware::Next,
    response::Response,
};
use domain::PartnerId;
use pipeline::trace;
use runtime::{
    http::{RequestMetrics, traceparent},
    outage,
    sampler::Sampler,
};
use store::figures::Measure;
use tracing::{Instrument, field};
use uuid::Uuid;

use crate::{
    http::{
        codes::ErrorCode,
        connection::Connection,
        error::{ErrorRecord, HUNG_UP, ReplacedStatus},
        named::{self, NamedCode},
        refusals::{ExternalOrderId, RefusalAnswer, Refusals, RequestLine, RequestSender},
    },
    metrics::Metrics,
    pages,
};

/// The response header with the id of the request, which is also in its log line.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

pub(crate) struct Observer {
    requests: RequestMetrics,
    metrics: Metrics,
    log: Sampler,
    /// `None` keeps no refused requests.
    refusals: Option<Arc<Refusals>>,
    /// The name of the response header with the codes of the errors: `x-<brand>-error`.
    error_header: HeaderName,
    /// The URL of the page that explains the codes.
    errors_page: String,
}

/// The id of a request in its header, which consists of letters and digits.
fn header_of(request_id: Uuid) -> HeaderValue {
    let mut text = Uuid::encode_buffer();
    let text = request_id.simple().encode_lower(&mut text);
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("none"))
}

impl Observer {
    /// Creates the observer. It logs at most `logged` refused requests per second. `brand` is part
    /// of the name of the error header. `public_url`, without a final slash, is the base URL of the
    /// page that explains errors.
    pub(crate) fn new(
        metrics: Metrics,
        refusals: Option<Arc<Refusals>>,
        logged: u32,
        brand: &str,
        public_url: &str,
    ) -> Arc<Self> {
        let named = HeaderName::try_from(format!("x-{brand}-error").to_ascii_lowercase());
        Arc::new(Self {
            requests: RequestMetrics::default(),
            metrics,
            log: Sampler::new(logged),
            refusals,
            error_header: named.unwrap_or(HeaderName::from_static("x-service-error")),
            errors_page: format!("{public_url}{}", pages::ERRORS),
        })
    }

    /// The headers that name and explain errors. `codes` is the value of the first one.
    fn explanation(
        &self,
        errors: &[NamedCode],
        codes: HeaderValue,
    ) -> Vec<(HeaderName, HeaderValue)> {
        let codes = (self.error_header.clone(), codes);
        let links = named::links(&self.errors_page, errors).map(|links| (header::LINK, links));
        std::iter::once(codes).chain(links).collect()
    }

    /// The whole response to a connection for which there is no place. The listener sends these
    /// bytes without calling [`observe`], so they have the headers that it adds to every other
    /// error, but no id, because no request was read. Without the error header a client would take
    /// the response for one of a proxy.
    pub(crate) fn too_many_connections(&self) -> Vec<u8> {
        const BODY: &str = r#"{"error":"Too many connections are open; try again later"}"#;
        let errors = [NamedCode::from(ErrorCode::Overloaded)];
        let mut response = format!(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
             retry-after: 1\r\ncache-control: no-store\r\nconnection: close\r\n",
            BODY.len()
        )
        .into_bytes();
        for (name, value) in self.explanation(&errors, named::header(&errors)) {
            response.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
        }
        response.extend([&b"\r\n"[..], BODY.as_bytes()].concat());
        response
    }

    /// Counts a request with a 4xx or 503 response, and logs it unless the limit of log lines is
    /// reached; `suppressed` then says in the next line how many are missing. `partner` is known
    /// only if the signature is valid.
    fn refused(
        &self,
        status: StatusCode,
        reason: &'static str,
        partner: Option<PartnerId>,
        request_id: &HeaderValue,
        peer: SocketAddr,
    ) {
        self.metrics.refused(partner, reason);
        if let Some(suppressed) = self.log.pass() {
            tracing::info!(
                http.response.status_code = status.as_u16(),
                reason,
                partner.id = partner.map(field::display),
                request.id = request_id.to_str().unwrap_or_default(),
                network.peer.address = %peer.ip(),
                suppressed,
                "request refused"
            );
        }
    }

    /// Keeps a refused request for operators, if its access key belongs to a partner.
    fn keep(
        &self,
        response: &mut Response,
        request_id: Uuid,
        asked: &RequestLine,
        errors: &HeaderValue,
    ) {
        let Some(refusals) = &self.refusals else {
            return;
        };
        let extensions = response.extensions_mut();
        let Some(sender) = extensions.get::<RequestSender>().copied() else {
            return;
        };
        let Some((status, reason)) = extensions
            .get::<ErrorRecord>()
            .map(|record| (record.status, record.reason))
            .filter(|(status, _)| *status != StatusCode::INTERNAL_SERVER_ERROR)
        else {
            return;
        };
        let external = extensions.remove::<ExternalOrderId>();
        let answered = RefusalAnswer {
            request_id,
            status,
            reason,
            errors,
            external_order_id: external.map(|ExternalOrderId(id)| id),
        };
        refusals.note(sender, asked, answered);
    }

    /// Records the error of a response, if it has one.
    fn answered(
        &self,
        response: &Response,
        request_id: &HeaderValue,
        asked: &RequestLine,
        peer: SocketAddr,
    ) {
        let Some(record) = response.extensions().get::<ErrorRecord>() else {
            return;
        };
        let ErrorRecord {
            status,
            reason,
            cause,
            ..
        } = record;
        let sender = response.extensions().get::<RequestSender>();
        let claimed = sender.map(|one| one.partner);
        if let Some(outcome) = outcome(record, sender, asked) {
            self.metrics.outcome(outcome, claimed);
        }
        if *status == StatusCode::UNAUTHORIZED {
            self.metrics.auth_failure(claimed, reason);
        }
        let partner = sender.filter(|sender| sender.signed);
        let partner = partner.map(|sender| sender.partner);
        if *status != StatusCode::INTERNAL_SERVER_ERROR {
            self.refused(*status, reason, partner, request_id, peer);
            return;
        }
        // During an outage of the database every request gets a 500, so these lines are limited.
        let is_outage = cause.as_ref().is_some_and(|cause| cause.is_outage);
        let Some(others) = outage::DATABASE.line(is_outage) else {
            return;
        };
        tracing::error!(
            error = cause.as_ref().map(|cause| &*cause.text),
            partner.id = partner.map(field::display),
            request.id = request_id.to_str().unwrap_or_default(),
            others,
            "answered with 500"
        );
    }
}

/// What operators are told of a request that failed or was refused: each 401, and orders of known
/// partners. A repeated order that is stored already has got through.
fn outcome(
    record: &ErrorRecord,
    sender: Option<&RequestSender>,
    asked: &RequestLine,
) -> Option<Measure> {
    let of_provider = [
        ErrorCode::ProviderRejected,
        ErrorCode::ProviderUnreachable,
        ErrorCode::ProviderUnavailable,
    ];
    let names = |code: ErrorCode| record.errors.iter().any(|error| error.code == code);
    if record.status == StatusCode::UNAUTHORIZED {
        return Some(Measure::Denied);
    }
    if !asked.is_order() || !sender.is_some_and(|sender| sender.signed) {
        return None;
    }
    match record.status.as_u16() {
        500.. => Some(Measure::Errors),
        429 => Some(Measure::Limited),
        HUNG_UP => None,
        _ if of_provider.into_iter().any(names) => Some(Measure::Refused),
        _ if names(ErrorCode::ExternalOrderIdTaken) && record.errors.len() == 1 => None,
        _ => Some(Measure::Invalid),
    }
}

/// The middleware around all routes, and around requests that match no route.
pub(crate) async fn observe(
    State(observer): State<Arc<Observer>>,
    Extension(connection): Extension<Arc<Connection>>,
    request: Request,
    next: Next,
) -> Response {
    let request_id = Uuid::now_v7();
    let id = header_of(request_id);
    let asked = RequestLine::by(&request);
    let underway = observer.requests.begin(&request);
    let span = &underway.span;
    span.record("request.id", id.to_str().unwrap_or_default());
    // The client controls this header. Its trace is linked and not continued, because otherwise a
    // client could join its request to any trace, or decide which of our spans are recorded.
    trace::link(span, traceparent(&request));
    let mut response = next.run(request).instrument(span.clone()).await;
    let instead = response.extensions().get::<ReplacedStatus>().copied();
    let record = response.extensions().get::<ErrorRecord>();
    let own = record.map_or(response.status(), |record| record.status);
    let status = instead.map_or(own, |ReplacedStatus(status)| status);
    observer.requests.end(&underway, Some(status));
    if instead.is_none() {
        span.in_scope(|| observer.answered(&response, &id, &asked, connection.peer));
    }
    if let Some(ErrorRecord { errors, .. }) = response.extensions().get() {
        let codes = named::header(errors);
        let explanation = observer.explanation(errors, codes.clone());
        response.headers_mut().extend(explanation);
        if instead.is_none() {
            observer.keep(&mut response, request_id, &asked, &codes);
        }
    }
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    // Answers may contain secrets, and an error must not outlive its cause.
    let never = HeaderValue::from_static("no-store");
    headers.insert(header::CACHE_CONTROL, never);
    response
}
