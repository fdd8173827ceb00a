//! Each request as a span and in the metrics.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use pipeline::trace;
use runtime::http::traceparent;
use tracing::Instrument;

use crate::App;

/// Wraps every route, and what no route matches.
pub async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let underway = app.requests.begin(&request);
    // Whoever sent it may write anything there: it doesn't decide what is recorded, nor where.
    trace::link(&underway.span, traceparent(&request));
    let response = next.run(request).instrument(underway.span.clone()).await;
    app.requests.end(&underway, Some(response.status()));
    response
}
