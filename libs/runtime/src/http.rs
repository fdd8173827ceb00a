//! The span and the metric of each request that a service serves. Both name the route, such as
//! `/qr/{text}/{size}`, and not the path, because a path with parameters may contain an activation
//! code, and because each value of a label costs memory.

use std::time::Instant;

use axum::{
    extract::{MatchedPath, Request},
    http::{Method, StatusCode},
};
use opentelemetry::KeyValue;
use opentelemetry_semantic_conventions::{
    attribute::{ERROR_TYPE, HTTP_REQUEST_METHOD, HTTP_RESPONSE_STATUS_CODE, HTTP_ROUTE},
    metric::HTTP_SERVER_REQUEST_DURATION,
};
use tracing::{Span, field, info_span};

use crate::{
    metrics::{Durations, Instruments},
    trace::TRACEPARENT,
};

/// The bucket bounds of request durations in seconds, as the semantic conventions recommend them.
const BOUNDS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];

/// Records the requests of one server. Clones share the instruments.
#[derive(Clone)]
pub struct RequestMetrics {
    duration: Durations,
}

/// A request that is being served.
pub struct Underway {
    /// The span around the handler.
    pub span: Span,
    method: &'static str,
    route: Option<MatchedPath>,
    began: Instant,
}

impl Default for RequestMetrics {
    fn default() -> Self {
        let duration = Instruments::of("runtime").durations(
            HTTP_SERVER_REQUEST_DURATION,
            "Time from a request to the head of its response",
            &BOUNDS,
        );
        Self { duration }
    }
}

impl RequestMetrics {
    /// Starts the span of a request.
    pub fn begin(&self, request: &Request) -> Underway {
        let began = Instant::now();
        let method = method(request.method());
        let matched = request.extensions().get::<MatchedPath>().cloned();
        let route = matched.as_ref().map(MatchedPath::as_str);
        let span = info_span!(
            "request",
            otel.name = route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}")),
            otel.kind = "server",
            otel.status_code = field::Empty,
            http.request.method = method,
            http.route = route,
            url.scheme = "http",
            // A path with parameters may hold an activation code.
            url.path = route.filter(|route| !route.contains('{')),
            http.response.status_code = field::Empty,
            error.type = field::Empty,
            request.id = field::Empty,
            partner.id = field::Empty,
            order.id = field::Empty,
        );
        Underway {
            span,
            method,
            route: matched,
            began,
        }
    }

    /// Records the response. `None` means that the connection is closed without one.
    pub fn end(&self, request: &Underway, status: Option<StatusCode>) {
        let span = &request.span;
        let answered = if let Some(status) = status {
            span.record(HTTP_RESPONSE_STATUS_CODE, status.as_u16());
            KeyValue::new(HTTP_RESPONSE_STATUS_CODE, i64::from(status.as_u16()))
        } else {
            KeyValue::new(ERROR_TYPE, NO_ANSWER)
        };
        if status.is_none_or(|status| status.is_server_error()) {
            span.record(
                ERROR_TYPE,
                status.as_ref().map_or(NO_ANSWER, StatusCode::as_str),
            );
            span.record("otel.status_code", "ERROR");
        }
        let route = request.route.as_ref().map_or("", MatchedPath::as_str);
        let attributes = [
            KeyValue::new(HTTP_REQUEST_METHOD, request.method),
            answered,
            KeyValue::new(HTTP_ROUTE, route.to_owned()),
        ];
        let seconds = request.began.elapsed().as_secs_f64();
        self.duration.record_in(seconds, &attributes, span);
    }
}

/// The value of `error.type` for a request that got no response.
const NO_ANSWER: &str = "no_answer";

/// The trace context in the header of a request. The client can send any text there.
pub fn traceparent(request: &Request) -> Option<&str> {
    request.headers().get(TRACEPARENT)?.to_str().ok()
}

/// The name of the method, or `_OTHER` for one that HTTP does not define. Otherwise a client could
/// create any number of metrics.
fn method(method: &Method) -> &'static str {
    const KNOWN: [&str; 9] = [
        "CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE",
    ];
    KNOWN
        .into_iter()
        .find(|known| *known == method.as_str())
        .unwrap_or("_OTHER")
}
