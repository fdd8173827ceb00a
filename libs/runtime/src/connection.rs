//! The requests of one HTTP connection, and its end at a stop.

use std::{convert::Infallible, error::Error, pin::pin, time::Duration};

use axum::{Router, extract::Request, response::Response};
use hyper::{body::Incoming, server::conn::http1, service::Service};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::Shutdown;

/// HTTP/1 with this longest wait for the head of a request, also between two requests.
pub fn http(head_timeout: Duration) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head_timeout);
    http
}

/// Serves the requests of a connection. At the soft stop, one more request may begin within `last_request`; the
/// request in flight is finished. An error of `service` closes the connection without a response.
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

/// The requests of a connection go to `router`.
pub fn service(
    router: Router,
) -> impl Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send> + Send {
    TowerToHyperService::new(router)
}
