//! Each request as a span and in the metrics, by its route: its path is shown only where it can't
//! hold anything.

use std::{sync::Arc, time::Instant};

use axum::{
    extract::{MatchedPath, Request, State},
    http::Method,
    middleware::Next,
    response::Response,
};
use pipeline::trace;
use tracing::{Instrument, field, info_span};

use crate::{App, routes::ROUTES};

/// Wraps every route, and what no route matches.
pub async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let method = method(request.method());
    let matched = request.extensions().get::<MatchedPath>();
    let route = matched.and_then(|path| ROUTES.into_iter().find(|route| *route == path.as_str()));
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
        partner.id = field::Empty,
        order.id = field::Empty,
    );
    // Whoever sent it may write anything there: it doesn't decide what is recorded, nor where.
    trace::link(
        &span,
        request
            .headers()
            .get(trace::TRACEPARENT)
            .and_then(|value| value.to_str().ok()),
    );
    let response = next.run(request).instrument(span.clone()).await;
    let status = response.status();
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("error.type", status.as_str());
        span.record("otel.status_code", "ERROR");
    }
    app.metrics
        .request(method, route, status.as_u16(), began.elapsed());
    response
}

/// A method, if it is one that HTTP defines.
fn method(method: &Method) -> &'static str {
    const KNOWN: [&str; 9] = [
        "CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE",
    ];
    KNOWN
        .into_iter()
        .find(|known| *known == method.as_str())
        .unwrap_or("_OTHER")
}
