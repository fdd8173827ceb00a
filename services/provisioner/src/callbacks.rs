//! `POST /callbacks/<provider>/<token>`: a provider reports that a unit changed. The sender is not
//! trusted, so a callback is only a hint: profiles are collected sooner. Neither body nor path is
//! logged.

use std::{collections::HashMap, pin::pin, sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Path, Request, State},
    http::StatusCode,
    routing::post,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use pipeline::{Effect, perform};
use runtime::{Shutdown, listener};
use signing::Token;
use store::{Database, providers};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;
use tracing::{Instrument, field::Empty, info_span};

use crate::{metrics::Metrics, providers::Provider};

const ROUTE: &str = "/callbacks/{provider}/{token}";
/// The largest body, in bytes.
const MAX_BODY: usize = 64 * 1024;
/// The timeout of a request's head, and of its body.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The providers that call back.
pub struct Callbacks {
    /// For each provider name, the token in the URL and the adapter that parses the body.
    pub providers: HashMap<String, (Token, Arc<dyn Provider>)>,
    /// Stores the hint.
    pub database: Database,
    /// Counts callbacks.
    pub metrics: Metrics,
}

/// The routes on `LISTEN`.
fn router(callbacks: Arc<Callbacks>) -> Router {
    Router::new().route(ROUTE, post(take)).with_state(callbacks)
}

async fn take(state: State<Arc<Callbacks>>, path: Path<(String, String)>, request: Request) -> StatusCode {
    let span = info_span!(
        "POST /callbacks/{provider}/{token}",
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = "POST",
        http.route = ROUTE,
        url.scheme = "http",
        http.response.status_code = Empty,
        error.type = Empty,
    );
    let status = hear(state, path, request).instrument(span.clone()).await;
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("error.type", status.as_str());
        span.record("otel.status_code", "ERROR");
    }
    status
}

async fn hear(
    State(callbacks): State<Arc<Callbacks>>,
    Path((name, token)): Path<(String, String)>,
    request: Request,
) -> StatusCode {
    let known = callbacks.providers.get(&name);
    let Some((_, provider)) = known.filter(|(expected, _)| expected.is(&token)) else {
        return StatusCode::NOT_FOUND;
    };
    let reading = to_bytes(request.into_body(), MAX_BODY);
    let body = match tokio::time::timeout(READ_TIMEOUT, reading).await {
        Ok(Ok(body)) => body,
        // The body is too large, or the client hung up and gets no response.
        Ok(Err(_)) => return StatusCode::PAYLOAD_TOO_LARGE,
        Err(_) => return StatusCode::REQUEST_TIMEOUT,
    };
    let Some(unit_id) = provider.parse_callback(&body) else {
        callbacks.metrics.callback(&name, "unreadable");
        return StatusCode::BAD_REQUEST;
    };
    let hinted = callbacks
        .database
        .run(async |connection| providers::hint(connection, &name, &unit_id).await);
    match perform(Effect::CommitHint, hinted).await {
        Ok(moved) => {
            let outcome = if moved { "hinted" } else { "ignored" };
            callbacks.metrics.callback(&name, outcome);
            StatusCode::OK
        }
        Err(error) => {
            tracing::warn!(provider.name = name, %error, "callback lost");
            callbacks.metrics.callback(&name, "lost");
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

/// Serves until the soft stop, then finishes the requests in flight.
pub async fn serve(listener: TcpListener, callbacks: Callbacks, shutdown: Shutdown) -> anyhow::Result<()> {
    let router = router(Arc::new(callbacks));
    let serve_one = |stream| connection(stream, router.clone(), shutdown.clone());
    listener::accept(listener, &shutdown, serve_one).await
}

async fn connection(stream: TcpStream, router: Router, shutdown: Shutdown) {
    let service = TowerToHyperService::new(
        router.map_request(|request: Request<hyper::body::Incoming>| request.map(Body::new)),
    );
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(READ_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = pin!(serving);
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = shutdown.soft().cancelled_owned() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}
