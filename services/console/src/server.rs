//! Serves the pages over HTTP/1. The number of connections is bounded: a further one is closed at
//! once, because the console is for a few people and must not use up the process's files.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Extension, Router};
use runtime::{Shutdown, connection, listener};
use tokio::{net::TcpListener, sync::Semaphore};

/// The longest wait for the head of a request, also between two requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// The address of the client's end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    most: usize,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let connections = Arc::new(Semaphore::new(most));
    let serve_one = |stream, peer| {
        let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else {
            return;
        };
        let service = connection::service(router.clone().layer(Extension(Peer(peer))));
        let stop = shutdown.clone();
        shutdown.tracker().spawn(async move {
            let http = connection::http(HEAD_TIMEOUT);
            connection::serve(&http, stream, service, &stop, Duration::ZERO).await;
            drop(permit);
        });
    };
    listener::accept(listener, &shutdown, serve_one).await
}
