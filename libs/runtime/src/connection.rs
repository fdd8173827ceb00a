//! Serves the requests of one HTTP connection, and ends it at a stop without breaking off a
//! request.

use std::{convert::Infallible, error::Error, pin::pin, time::Duration};

use axum::{Router, extract::Request, response::Response};
use hyper::{body::Incoming, server::conn::http1, service::Service};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::Shutdown;

/// Makes the HTTP/1 settings of a connection. `head_timeout` is the longest wait for the head of a
/// request, also between two requests, so that idle and very slow clients do not keep connections
/// for ever.
pub fn builder(head_timeout: Duration) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout);
    builder
}

/// Serves the requests of a connection until the client closes it or the service stops.
///
/// At the soft stop the request in flight is finished. Before the connection is closed, requests
/// may still begin within `last_request`, because a client may have sent one already. An error of
/// `service` closes the connection without a response.
pub async fn serve<S>(
    http: &http1::Builder,
    socket: impl AsyncRead + AsyncWrite + Unpin,
    service: S,
    shutdown: &Shutdown,
    last_request: Duration,
) where
    S: Service<Request<Incoming>, Response = Response>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut serving = pin!(http.serve_connection(TokioIo::new(socket), service));
    let stop = shutdown.soft();
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = stop.cancelled() => {
            if let Ok(ended) = tokio::time::timeout(last_request, serving.as_mut()).await {
                ended
            } else {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

/// Makes a service that passes the requests of a connection to `router`.
pub fn service(
    router: Router,
) -> impl Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send> + Send {
    TowerToHyperService::new(router)
}
