//! Accepts connections and serves the requests on them until the stop.
//!
//! Guarantees: there are at most `MAX_CONNECTIONS` connections, and the head of a request arrives
//! within `HEAD_TIMEOUT` or its connection is closed. An idle connection of whoever holds most of
//! them is closed earlier if another one needs its place; while a handler waits for a body, its
//! connection is idle, so that nobody keeps others out by sending slowly. A stop cuts no request
//! off: requests in flight are finished, and each open connection may send one more, because a
//! proxy may have sent it before it learns about the stop.
//!
//! Called by [`crate::run`], once. Relies on hyper for HTTP/1, for its errors (400, 414 and 431
//! without a body) and for the timer of heads, and on [`BoundedServer`] for the places.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use futures_util::FutureExt;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use runtime::{
    Shutdown,
    listener::{ConnectionPlace, Connections},
    lock,
    server::BoundedServer,
};
use tokio::net::TcpListener;
use tower::ServiceExt;

use crate::{
    http::connection::Connection,
    limits::{LimitsConfig, size},
};

/// Maximum size of the head of a request, in bytes. A request with a larger head gets a 431. The
/// longest head that a partner needs, with a traceparent and a proxy's headers, has 2 KiB.
const MAX_HEAD: u32 = 16 * 1024;

/// How long an open connection may begin one more request after the soft stop. The response to it
/// closes the connection.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// How long the rest of a body is read and discarded, after a response that did not wait for all of
/// it.
const DISCARD_FOR: Duration = Duration::from_secs(2);
/// The maximum number of bytes of the rest that are discarded.
const DISCARD_BYTES: usize = 4 * 1024 * 1024;

/// Serves until the soft stop. Then it accepts no more connections and finishes the requests in
/// flight. `too_many` is [`crate::observe::Observer::too_many_connections`].
pub(crate) async fn serve(
    listener: TcpListener,
    limits: LimitsConfig,
    router: Router,
    too_many: Vec<u8>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let most = size(limits.max_connections);
    let mut builder = runtime::connection::builder(limits.head_timeout);
    builder.max_buf_size(size(MAX_HEAD));
    let server = BoundedServer {
        connections: Connections::new(most, "MAX_CONNECTIONS", &too_many),
        http: builder,
        last_request: LAST_REQUEST,
        shutdown: shutdown.clone(),
    };
    let handle =
        move |connection, request| respond(router.clone(), shutdown.clone(), connection, request);
    server.serve(listener, Connection::new, handle).await
}

async fn respond(
    router: Router,
    shutdown: Shutdown,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Response {
    let (parts, incoming) = request.into_parts();
    let expects = parts.headers.contains_key(header::EXPECT);
    let place = Arc::clone(&connection.place);
    let body = (!incoming.is_end_stream()).then(|| RequestBody::new(incoming, expects, place));
    let for_handler = body.clone().map_or_else(Body::empty, Body::new);
    let mut request = Request::from_parts(parts, for_handler);
    request.extensions_mut().insert(connection);
    let Ok(mut response) = router.oneshot(request).await;
    let unread = body.filter(|body| !body.discard_arrived());
    if unread.is_some() || shutdown.is_stopping() {
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some(body) = unread.filter(|body| !body.client_waits()) {
        tokio::spawn(body.discard_rest());
    }
    response
}

/// The body of a request. A handler may leave it partly unread, for example when it refuses the
/// request by its head.
#[derive(Clone)]
struct RequestBody(Arc<Shared>);

struct Shared {
    incoming: Mutex<Incoming>,
    /// Whether the client sends the body only after it was asked to, which it announces by `Expect:
    /// 100-continue`.
    expects: bool,
    /// Whether something was read. hyper has then asked such a client for the body.
    asked_for: AtomicBool,
    /// The place of the connection.
    place: Arc<ConnectionPlace>,
}

impl RequestBody {
    fn new(incoming: Incoming, expects: bool, place: Arc<ConnectionPlace>) -> Self {
        Self(Arc::new(Shared {
            incoming: Mutex::new(incoming),
            expects,
            asked_for: AtomicBool::new(false),
            place,
        }))
    }

    fn incoming(&self) -> MutexGuard<'_, Incoming> {
        lock(&self.0.incoming)
    }

    /// Whether the client still waits to be asked for the body, so that none of it will arrive.
    fn client_waits(&self) -> bool {
        self.0.expects && !self.0.asked_for.load(Relaxed)
    }

    /// Discards what has arrived of the body, without waiting. Returns whether that was all of it,
    /// because only then can the connection serve its next request.
    fn discard_arrived(&self) -> bool {
        if self.client_waits() {
            return false;
        }
        loop {
            if self.incoming().is_end_stream() {
                return true;
            }
            match self.frame().now_or_never() {
                Some(Some(Ok(_))) => {}
                Some(None) => return true,
                Some(Some(Err(_))) | None => return false,
            }
        }
    }

    /// Reads and discards the rest of the body, within bounds, while hyper already sends the
    /// response. Most clients read the response only after they have sent everything. If the
    /// connection were closed with unread bytes, the kernel would reset it, and the client would
    /// lose the response. hyper reads for as long as somebody takes the body, and then closes the
    /// connection.
    async fn discard_rest(self) {
        let discarding = async {
            let mut discarded = 0;
            while discarded < DISCARD_BYTES
                && let Some(Ok(frame)) = self.frame().await
            {
                discarded += frame.data_ref().map_or(0, Bytes::len);
            }
        };
        let _ = tokio::time::timeout(DISCARD_FOR, discarding).await;
    }

    async fn frame(&self) -> Option<Result<Frame<Bytes>, hyper::Error>> {
        std::future::poll_fn(|context| Pin::new(&mut *self.incoming()).poll_frame(context)).await
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    /// While the handler waits for the client, the connection is idle. If it loses its place then,
    /// it is about to be closed, and the request does not go on.
    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.0.asked_for.store(true, Relaxed);
        let frame = Pin::new(&mut *self.incoming()).poll_frame(context);
        if frame.is_pending() {
            self.0.place.wait_for_client();
        } else if !self.0.place.resume() {
            // Nothing wakes this up: `serve_one` of `runtime::server` drops it with the connection.
            return Poll::Pending;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.incoming().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming().size_hint()
    }
}

#[cfg(test)]
mod tests;
