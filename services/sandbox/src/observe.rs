//! One span and one measurement per request. The span continues the caller's trace, so that the
//! trace of an order also shows the provider's side. [`crate::routes`] puts [`observe`] around all
//! routes.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use runtime::{http::traceparent, trace};
use tracing::Instrument;

use crate::{metrics::Metrics, server::NoAnswer};

/// Counts and traces a request; it wraps every route and the fallback. Unlike ingress, it continues
/// the caller's `traceparent` instead of linking it, because all callers are our own programs. A
/// request that is left without an answer is counted without a status.
pub async fn observe(
    State(metrics): State<Arc<Metrics>>,
    request: Request,
    next: Next,
) -> Response {
    let requests = &metrics.requests;
    let underway = requests.begin(&request);
    trace::set_parent(&underway.span, traceparent(&request));
    let response = next.run(request).instrument(underway.span.clone()).await;
    let is_answered = response.extensions().get::<NoAnswer>().is_none();
    requests.end(&underway, is_answered.then(|| response.status()));
    response
}
