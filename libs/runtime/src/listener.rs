//! The sockets that services listen on.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context;
use tokio::net::{TcpListener, TcpStream};

use crate::Shutdown;

/// How long no connection is accepted after one could not be.
const PAUSE: Duration = Duration::from_millis(50);

/// Binds `address`, or says which setting to change.
pub async fn bind(setting: &'static str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {setting}={address}"))
}

/// Serves each connection in a task that the stop waits for, until the soft stop. No connection that was
/// made by then is reset.
pub async fn accept<F>(
    listener: TcpListener,
    shutdown: &Shutdown,
    serve: impl Fn(TcpStream) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    let stop = shutdown.soft();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => drop(shutdown.tracker().spawn(serve(stream))),
            Err(error) => {
                // Out of file descriptors, most likely: some connections must end first.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    // The kernel has made connections that wait to be accepted; closing the listener would reset them.
    let listener = listener.into_std()?;
    while let Ok((stream, _)) = listener.accept() {
        stream.set_nonblocking(true)?;
        shutdown.tracker().spawn(serve(TcpStream::from_std(stream)?));
    }
    Ok(())
}
