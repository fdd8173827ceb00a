//! HTTP connections that can be left without an answer, which axum does not offer.

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

/// The longest wait for the head of a request, also between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// How long an unanswered connection is held open.
const SILENCE: Duration = Duration::from_mins(2);

/// How a request is left without an answer.
#[derive(Clone, Copy, Debug)]
pub enum NoAnswer {
    Close,
    /// Nothing. The connection is closed when the client goes, after [`SILENCE`], or at a stop.
    Silence,
}

impl IntoResponse for NoAnswer {
    /// A marker; it is never sent.
    fn into_response(self) -> Response {
        let mut response = Response::default();
        response.extensions_mut().insert(self);
        response
    }
}

/// Serves `router` until the soft stop; the tracker then waits for the requests in flight.
pub async fn serve(listener: TcpListener, router: Router, shutdown: Shutdown) -> anyhow::Result<()> {
    let serve_one = |stream, _| {
        shutdown.tracker().spawn(serve_one(stream, router.clone(), shutdown.clone()));
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
    let http = connection::http(HEAD_TIMEOUT);
    connection::serve(&http, stream, service, &shutdown, Duration::ZERO).await;
}

pub async fn pause(shutdown: &Shutdown, duration: Duration) {
    let _ = tokio::time::timeout(duration, shutdown.soft().cancelled_owned()).await;
}
