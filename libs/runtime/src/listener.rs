//! The sockets that services listen on, and the limits of their connections.
//!
//! Ingress, the console, the sandbox provider, the provisioner's callbacks and the admin endpoint
//! accept their connections here. Two things are guaranteed: a failed accept never ends a listener,
//! and connections that exist when the soft stop begins are still served instead of being reset.
//!
//! [`BoundedServer`](crate::server::BoundedServer) also limits the connections, because each open
//! one costs memory and a file descriptor. When the limit is reached, an idle connection of whoever
//! holds most of them gives its [`ConnectionPlace`] to the new one, so that nobody can keep the
//! others out, with keys or without. If there is none, the new one gets a short response and is
//! closed.

mod places;
mod socket;

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use opentelemetry::{KeyValue, metrics::Counter};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use self::places::{HeldPlace, Places};
pub(crate) use self::{places::DisplacedState, socket::WatchedSocket};
pub use self::{
    places::{ConnectionPlace, source},
    socket::Watch,
};
use crate::{Shutdown, metrics::Instruments, sampler::Sampler};

/// The pause after a failed accept, so that a lack of file descriptors does not become a busy loop.
const PAUSE: Duration = Duration::from_millis(50);
/// The maximum number of refused connections that stay open until their client has read the
/// refusal. Further ones are closed right after the refusal was written, so that refusing costs
/// little during a flood. If such a client was still sending its request, it may see a reset
/// connection instead.
const REFUSED: usize = 256;
/// How long a refused connection stays open at most.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// Listens on `address`. `[::]` means all interfaces for IPv6 and IPv4; on hosts without IPv6,
/// `0.0.0.0` is used instead. The error names the setting to change.
pub async fn bind(setting: &'static str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let mut bound = TcpListener::bind(address).await;
    if address.ip() == Ipv6Addr::UNSPECIFIED
        && bound
            .as_ref()
            .is_err_and(|error| error.kind() != ErrorKind::AddrInUse)
    {
        bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await;
    }
    bound.with_context(|| format!("cannot listen on {setting}={address}"))
}

/// The open connections of one listener.
#[derive(Debug)]
pub struct Connections {
    places: Arc<Places>,
    /// What sets how many there may be.
    limit: &'static str,
    /// The response to a refused connection.
    refusal: Box<[u8]>,
    refused: Counter<u64>,
    refused_held: Semaphore,
    log: Sampler,
}

impl Connections {
    /// Makes the count of a listener and registers its metrics. A connection beyond `most`, which
    /// the setting or constant `limit` says, gets the bytes `refusal`, which are a whole HTTP
    /// response, and is closed.
    pub fn new(most: usize, limit: &'static str, refusal: &[u8]) -> Arc<Self> {
        let refused = Instruments::of("runtime").counter(
            "esim.connections.refused",
            "Connections closed because the limit was reached",
        );
        for reason in ["all", "displaced"] {
            refused.add(0, &[KeyValue::new("reason", reason)]);
        }
        let connections = Arc::new(Self {
            places: Places::new(most),
            limit,
            refusal: refusal.into(),
            refused,
            refused_held: Semaphore::new(REFUSED),
            log: Sampler::new(1),
        });
        let observed = Arc::downgrade(&connections);
        Instruments::of("runtime").observe(
            "esim.connections",
            "Open connections of clients",
            move || {
                observed
                    .upgrade()
                    .map_or(0, |connections| connections.places.open())
            },
        );
        connections
    }

    /// The response to a connection without a place.
    pub(crate) fn refusal(&self) -> &[u8] {
        &self.refusal
    }

    /// Takes a place for a connection, which may be that of another connection.
    fn admit(&self, peer: IpAddr) -> Option<HeldPlace> {
        let admitted = self.places.admit(peer)?;
        if admitted.displaced_another {
            self.refused.add(1, &[KeyValue::new("reason", "displaced")]);
        }
        Some(admitted.held)
    }

    /// Responds to a connection without a place, and closes it.
    fn refuse(self: &Arc<Self>, mut stream: TcpStream, peer: SocketAddr) {
        self.refused.add(1, &[KeyValue::new("reason", "all")]);
        if let Some(suppressed) = self.log.pass() {
            tracing::warn!(
                network.peer.address = %peer.ip(),
                limit = self.limit,
                suppressed,
                "too many connections are open, so this one was refused; if the clients are legitimate, raise \
                 the limit"
            );
        }
        // The few bytes fit into the buffer of a new connection, so that also the client of a
        // connection that is closed at once usually learns why.
        let _ = stream.try_write(&self.refusal);
        let connections = Arc::clone(self);
        tokio::spawn(async move {
            let Ok(_held) = connections.refused_held.try_acquire() else {
                return;
            };
            // The request is read, too, because the kernel resets a connection that is closed with
            // unread bytes, and the client may then never see the response.
            let _ = tokio::time::timeout(REFUSED_FOR, read_until_closed(&mut stream)).await;
        });
    }
}

/// Ends the sending direction of a connection and reads until its client has closed it.
async fn read_until_closed(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    stream.shutdown().await?;
    let mut unread = [0; 1024];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

/// Serves each connection in a tracked task, until the soft stop. Connections beyond the limits of
/// `connections` are refused.
pub(crate) async fn accept_bounded<F>(
    listener: TcpListener,
    shutdown: &Shutdown,
    connections: &Arc<Connections>,
    serve: impl Fn(TcpStream, SocketAddr, Arc<ConnectionPlace>) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    accept(listener, shutdown, |stream, peer| {
        match connections.admit(peer.ip()) {
            Some(held) => {
                let serving = serve(stream, peer, Arc::clone(&held.0));
                shutdown.tracker().spawn(async move {
                    serving.await;
                    drop(held);
                });
            }
            None => connections.refuse(stream, peer),
        }
    })
    .await
}

/// Passes each connection to `serve`, until the soft stop. Connections that the kernel has already
/// established for us at that time are passed on, too.
pub async fn accept(
    listener: TcpListener,
    shutdown: &Shutdown,
    mut serve: impl FnMut(TcpStream, SocketAddr),
) -> anyhow::Result<()> {
    let stop = shutdown.soft();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => serve(prompt(stream), peer),
            Err(error) => {
                // The usual cause is a lack of file descriptors, and some connections have to end
                // before the next accept can succeed.
                tracing::warn!(
                    %error,
                    "cannot accept a connection and will try again; if this continues, raise the limit of open files"
                );
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    // The kernel queues connections that nobody has accepted yet, and closing the listener would
    // reset them. So they are accepted first.
    let listener = listener.into_std()?;
    while let Ok((stream, peer)) = listener.accept() {
        stream.set_nonblocking(true)?;
        serve(prompt(TcpStream::from_std(stream)?), peer);
    }
    Ok(())
}

/// Switches off Nagle's algorithm. A response is one small write, so the algorithm would only delay
/// it.
fn prompt(stream: TcpStream) -> TcpStream {
    let _ = stream.set_nodelay(true);
    stream
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unspecified_ipv6_address_is_reached_by_ipv4_too() {
        let listener = bind("LISTEN", (Ipv6Addr::UNSPECIFIED, 0).into())
            .await
            .unwrap();
        let port = listener.local_addr().unwrap().port();
        let connect = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        let (_client, accepted) = tokio::try_join!(connect, listener.accept()).unwrap();
        assert_eq!(accepted.1.ip().to_canonical(), Ipv4Addr::LOCALHOST);
        let taken = bind("LISTEN", (Ipv6Addr::UNSPECIFIED, port).into())
            .await
            .unwrap_err();
        assert!(taken.to_string().contains("LISTEN=[::]:"), "{taken}");
    }

    #[tokio::test]
    async fn a_refused_client_reads_the_refusal() {
        let connections = Connections::new(0, "MAX_CONNECTIONS", b"too many");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = Shutdown::new();
        shutdown.spawn("server", {
            let shutdown = shutdown.clone();
            async move { accept_bounded(listener, &shutdown, &connections, |_, _, _| async {}).await }
        });
        let mut client = TcpStream::connect(address).await.unwrap();
        client
            .write_all(b"a request that is not read")
            .await
            .unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "too many");
        shutdown.stop();
        shutdown.finished().await.unwrap();
    }
}
