//! Serves the pages over HTTP/1.
//!
//! Guarantees: there are at most `MAX_CONNECTIONS` connections, because the console is for a few
//! people and must not use up the process's files; and nobody keeps others out. A connection
//! without a session gives its place to a new one as soon as it is idle, and so does one of an
//! operator who has more than an equal share of them. A connection is idle, too, while its form
//! arrives ([`crate::access`]).

use std::time::Duration;

use axum::Router;
use runtime::{Shutdown, connection, listener::Connections, server::BoundedServer};
use tokio::net::TcpListener;

/// The longest wait for the head of a request, also between two requests. Browsers and proxies open
/// a new connection when they need one again. Together with the time for a form it is shorter than
/// a stop may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(12);

/// The response to a connection that gives its place to another one, or gets none.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\n\
    content-length: 52\r\nretry-after: 1\r\ncache-control: no-store\r\nconnection: close\r\n\r\n\
    Too many connections are open; try it again shortly.";

pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    most: usize,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let server = BoundedServer {
        connections: Connections::new(most, "MAX_CONNECTIONS", TOO_MANY),
        http: connection::builder(HEAD_TIMEOUT),
        last_request: Duration::ZERO,
        shutdown,
    };
    server.serve_router(listener, router).await
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
