//! The HTTP server, whose handlers can leave a request without an answer.
//!
//! A provider that buys and then closes the connection, or says nothing, is the case that the
//! pipeline must handle best, and axum has no way to do it. So a handler returns [`NoAnswer`] as a
//! marker in its response, and the service around the router drops the connection, at once or after
//! a silence, instead of sending the response.

use std::{io, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use hyper::service::service_fn;
use runtime::{Shutdown, connection, listener};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

/// The longest wait for the head of a request, which is also the longest pause between two requests
/// of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// How long a connection is held open without an answer.
const SILENCE: Duration = Duration::from_mins(2);

/// How a request is left without an answer.
#[derive(Clone, Copy, Debug)]
pub enum NoAnswer {
    /// The connection is closed at once.
    Close,
    /// Nothing happens until the client goes, [`SILENCE`] has passed, or the sandbox stops. Then
    /// the connection is closed.
    Silence,
}

impl IntoResponse for NoAnswer {
    /// A response that only carries the marker and is never sent.
    fn into_response(self) -> Response {
        let mut response = Response::default();
        response.extensions_mut().insert(self);
        response
    }
}

/// Serves `router` until the soft stop. The tracker of `shutdown` then waits for the requests that
/// are in flight.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let serve_one = |stream, _| {
        shutdown
            .tracker()
            .spawn(serve_one(stream, router.clone(), shutdown.clone()));
    };
    listener::accept(listener, &shutdown, serve_one).await
}

async fn serve_one(stream: TcpStream, router: Router, shutdown: Shutdown) {
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        let answering = router.clone().oneshot(request.map(Body::new));
        let shutdown = &shutdown;
        async move {
            let response = answering.await.unwrap_or_else(|never| match never {});
            match response.extensions().get() {
                None => return Ok(response),
                Some(NoAnswer::Close) => {}
                Some(NoAnswer::Silence) => pause(shutdown, SILENCE).await,
            }
            // The error makes hyper drop the connection.
            Err(io::Error::other("left without an answer, as asked"))
        }
    });
    let http = connection::builder(HEAD_TIMEOUT);
    connection::serve(&http, stream, service, &shutdown, Duration::ZERO).await;
}

/// Waits for this long, or until the soft stop, so that a scripted delay does not hold up the end
/// of the process.
pub async fn pause(shutdown: &Shutdown, duration: Duration) {
    let _ = tokio::time::timeout(duration, shutdown.soft().cancelled_owned()).await;
}
