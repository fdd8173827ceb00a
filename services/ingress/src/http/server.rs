//! Accepts connections and serves the requests on them until the stop.

use std::{
    convert::Infallible,
    net::SocketAddr,
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
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use runtime::{
    Shutdown, connection,
    listener::{self, Connections},
    lock,
};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

use crate::{
    access::limits::{LimitsConfig, size},
    http::{
        connection::{Connection, Socket},
        observe::Observer,
    },
};

/// The response to a connection beyond `MAX_CONNECTIONS`.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
    content-length: 58\r\nretry-after: 1\r\nconnection: close\r\n\r\n\
    {\"error\":\"Too many connections are open; try again later\"}";

/// How long an open connection may send one more request after the soft stop; its response closes it.
const LAST_REQUEST: Duration = Duration::from_secs(1);

pub(crate) struct Server {
    connections: Arc<Connections>,
    router: Router,
    observer: Arc<Observer>,
    limits: LimitsConfig,
    shutdown: Shutdown,
}

impl Server {
    pub(crate) fn new(limits: &LimitsConfig, router: Router, observer: Arc<Observer>, shutdown: Shutdown) -> Arc<Self> {
        let connections = Connections::new(limits.connections(), TOO_MANY);
        Arc::new(Self { connections, router, observer, limits: limits.clone(), shutdown })
    }

    /// Serves until the soft stop. Then it accepts no more connections and finishes the requests in flight.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) -> anyhow::Result<()> {
        let serve_one = |stream, peer| Arc::clone(&self).connection(stream, peer);
        listener::accept_bounded(listener, &self.shutdown, &self.connections, serve_one).await
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        let connection = Connection::new(peer, Arc::clone(&self.observer));
        let socket = Socket::new(stream, Arc::clone(&connection), &self.limits);
        let service = service_fn(|request| self.handle(Arc::clone(&connection), request));
        let mut http = http1::Builder::new();
        // The socket enforces the timeouts.
        http.header_read_timeout(None).max_buf_size(size(self.limits.max_head));
        connection::serve(&http, socket, service, &self.shutdown, LAST_REQUEST).await;
    }

    async fn handle(&self, connection: Arc<Connection>, request: Request<Incoming>) -> Result<Response, Infallible> {
        connection.begin();
        let (parts, incoming) = request.into_parts();
        let expects = parts.headers.contains_key(header::EXPECT);
        let body = (!incoming.is_end_stream()).then(|| RequestBody::new(incoming));
        let for_handler = body.clone().map_or_else(Body::empty, Body::new);
        let mut request = Request::from_parts(parts, for_handler);
        request.extensions_mut().insert(Arc::clone(&connection));
        let mut response = self.router.clone().oneshot(request).await?;
        let unread = body.is_some_and(|body| !body.ends(expects));
        if unread {
            connection.linger();
        }
        if unread || self.shutdown.is_stopping() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        connection.end();
        Ok(response)
    }
}

/// A request's body that a handler may leave partly unread.
#[derive(Clone)]
struct RequestBody(Arc<(Mutex<Incoming>, AtomicBool)>);

impl RequestBody {
    fn new(incoming: Incoming) -> Self {
        Self(Arc::new((Mutex::new(incoming), AtomicBool::new(false))))
    }

    fn incoming(&self) -> MutexGuard<'_, Incoming> {
        lock(&self.0.0)
    }

    /// Discards what has arrived and returns whether that reached the body's end. A client that sent
    /// `Expect: 100-continue` is not asked for the body.
    fn ends(&self, expects: bool) -> bool {
        let mut incoming = self.incoming();
        if expects && !self.0.1.load(Relaxed) {
            return false;
        }
        while !incoming.is_end_stream() {
            let frame = std::future::poll_fn(|context| Pin::new(&mut *incoming).poll_frame(context));
            match frame.now_or_never() {
                Some(Some(Ok(_))) => {}
                Some(None) => return true,
                Some(Some(Err(_))) | None => return false,
            }
        }
        true
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.0.1.store(true, Relaxed);
        Pin::new(&mut *self.incoming()).poll_frame(context)
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
