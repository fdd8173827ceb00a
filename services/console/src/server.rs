//! Serves the pages over HTTP/1.
//!
//! Guarantees: there are at most `MAX_CONNECTIONS` connections, because the console is for a few
//! people and must not use up the process's files; and nobody keeps others out. A connection
//! without a session gives its place to a new one as soon as it is idle, and so does one of an
//! operator who has more than an equal share of them. A connection is idle, too, while its form
//! arrives ([`crate::access`]).

use std::{future::pending, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::Request,
    middleware::{self, Next},
    response::Response,
};
use runtime::{
    Shutdown, connection,
    listener::{self, ConnectionPlace, Connections, WatchedSocket},
};
use tokio::net::{TcpListener, TcpStream};

/// The longest wait for the head of a request, also between two requests. Browsers and proxies open
/// a new connection when they need one again. Together with the time for a form it is shorter than
/// a stop may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(12);

/// The response to a connection that gives its place to another one, or gets none.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\n\
    content-length: 52\r\nretry-after: 1\r\ncache-control: no-store\r\nconnection: close\r\n\r\n\
    Too many connections are open; try it again shortly.";

/// The address of the client's end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    most: usize,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let connections = Connections::new(most, "MAX_CONNECTIONS", TOO_MANY);
    let serve_one = |stream, peer, place| {
        let router = router
            .clone()
            .layer(middleware::from_fn(in_place))
            .layer(Extension(Peer(peer)))
            .layer(Extension(Arc::clone(&place)));
        serve_one(router, stream, place, shutdown.clone())
    };
    listener::accept_bounded(listener, &shutdown, &connections, serve_one).await
}

/// Serves a connection until it ends, or until it has to leave because it is idle and its holder
/// has to make room.
async fn serve_one(router: Router, stream: TcpStream, place: Arc<ConnectionPlace>, stop: Shutdown) {
    let socket = WatchedSocket::new(stream, Arc::clone(&place));
    let http = connection::http(HEAD_TIMEOUT);
    let service = connection::service(router);
    connection::serve_in_place(
        &http,
        socket,
        service,
        &stop,
        Duration::ZERO,
        &place,
        TOO_MANY,
    )
    .await;
}

/// Keeps the place of a connection while a request of it is handled.
async fn in_place(
    Extension(place): Extension<Arc<ConnectionPlace>>,
    request: Request,
    next: Next,
) -> Response {
    begin(&place).await;
    let response = next.run(request).await;
    place.end_request();
    response
}

/// Begins to handle a request, or goes on with it. If the connection has lost its place, it is
/// about to be closed, so this never returns.
pub(crate) async fn begin(place: &ConnectionPlace) {
    if !place.begin_request() {
        pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_response_to_one_too_many_has_the_length_that_it_says() {
        let text = str::from_utf8(TOO_MANY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let length = format!("content-length: {}\r\n", body.len());
        assert!(head.contains(&length), "{head}");
    }
}
