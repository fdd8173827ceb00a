//! The sockets that services listen on, and the limits of their connections.
//!
//! Ingress, the sandbox provider, the provisioner's callbacks and the admin endpoint accept their
//! connections here. Two things are guaranteed: a failed accept never ends a listener, and
//! connections that exist when the soft stop begins are still served instead of being reset.
//!
//! [`accept_bounded`] also limits the connections, in all and from each source, because each open
//! connection costs memory and a file descriptor, and because a single client must not be able to
//! take all of them. A connection beyond a limit gets a short response and is closed.

use std::{
    collections::HashMap,
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::Context;
use opentelemetry::{KeyValue, metrics::Counter};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use crate::{Shutdown, lock, metrics::Instruments, sampler::Sampler};

/// The pause after a failed accept, so that a lack of file descriptors does not become a busy loop.
const PAUSE: Duration = Duration::from_millis(50);
/// The maximum number of refused connections that stay open until their client has read the
/// refusal. Further ones are closed without a response, so that refusing costs little during a
/// flood.
const REFUSED: usize = 64;
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

/// The maximum numbers of open connections of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// From all sources.
    pub all: usize,
    /// From one source, which is an IPv4 address or an IPv6 network of 64 bits.
    pub per_source: usize,
}

/// The open connections of one listener.
#[derive(Debug)]
pub struct Connections {
    bounds: Bounds,
    /// The response to a refused connection.
    refusal: &'static [u8],
    open: Mutex<Open>,
    refused: Counter<u64>,
    refused_held: Semaphore,
    log: Sampler,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    by_source: HashMap<IpAddr, usize>,
}

/// The right to keep one connection open. Dropping it lets another connection in.
#[derive(Debug)]
struct ConnectionPermit {
    connections: Arc<Connections>,
    source: IpAddr,
}

impl Connections {
    /// Makes the count of a listener and registers its metrics. A connection beyond `bounds` gets
    /// the bytes `refusal`, which are a whole HTTP response, and is closed.
    pub fn new(bounds: Bounds, refusal: &'static [u8]) -> Arc<Self> {
        let refused = Instruments::of("runtime").counter(
            "esim.connections.refused",
            "Connections closed at once, by the bound that was reached",
        );
        for reason in ["all", "source"] {
            refused.add(0, &[KeyValue::new("reason", reason)]);
        }
        let connections = Arc::new(Self {
            bounds,
            refusal,
            open: Mutex::default(),
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
                    .map_or(0, |connections| lock(&connections.open).all)
            },
        );
        connections
    }

    /// Takes a permit for a connection. The error names the limit that is reached, as in the label
    /// `reason` of the metric.
    fn admit(self: &Arc<Self>, peer: IpAddr) -> Result<ConnectionPermit, &'static str> {
        let source = source(peer);
        let mut open = lock(&self.open);
        let of_source = open.by_source.get(&source).copied().unwrap_or_default();
        if open.all >= self.bounds.all {
            return Err("all");
        }
        if of_source >= self.bounds.per_source {
            return Err("source");
        }
        open.all += 1;
        open.by_source.insert(source, of_source + 1);
        Ok(ConnectionPermit {
            connections: Arc::clone(self),
            source,
        })
    }

    /// Responds to a connection without a permit, and closes it.
    fn refuse(self: &Arc<Self>, mut stream: TcpStream, peer: SocketAddr, reason: &'static str) {
        self.refused.add(1, &[KeyValue::new("reason", reason)]);
        if let Some(suppressed) = self.log.pass() {
            tracing::warn!(
                bound = reason,
                network.peer.address = %peer.ip(),
                suppressed,
                "too many connections are open, so this one was refused; if the clients are legitimate, raise \
                 MAX_CONNECTIONS or MAX_CONNECTIONS_PER_SOURCE"
            );
        }
        let connections = Arc::clone(self);
        tokio::spawn(async move {
            let Ok(_held) = connections.refused_held.try_acquire() else {
                return;
            };
            // The request is read, too, because the kernel resets a connection that is closed with
            // unread bytes, and the client would then never see the response.
            let answering = async {
                stream.write_all(connections.refusal).await?;
                stream.shutdown().await?;
                let mut unread = [0; 1024];
                while stream.read(&mut unread).await? > 0 {}
                std::io::Result::Ok(())
            };
            let _ = tokio::time::timeout(REFUSED_FOR, answering).await;
        });
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = lock(&self.connections.open);
        open.all -= 1;
        if let Some(of_source) = open.by_source.get_mut(&self.source) {
            *of_source -= 1;
            if *of_source == 0 {
                open.by_source.remove(&self.source);
            }
        }
    }
}

/// The source that a connection is counted for. It is a whole network of 64 bits for IPv6, because
/// a client usually owns at least that many addresses and could use a new one for each connection.
/// An IPv4 address that is mapped into IPv6 counts as the IPv4 address.
fn source(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// Serves each connection in a tracked task, until the soft stop. Connections beyond the limits of
/// `connections` are refused.
pub async fn accept_bounded<F>(
    listener: TcpListener,
    shutdown: &Shutdown,
    connections: &Arc<Connections>,
    serve: impl Fn(TcpStream, SocketAddr) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = ()> + Send + 'static,
{
    accept(listener, shutdown, |stream, peer| {
        match connections.admit(peer.ip()) {
            Ok(permit) => {
                let serving = serve(stream, peer);
                shutdown.tracker().spawn(async move {
                    serving.await;
                    drop(permit);
                });
            }
            Err(reason) => connections.refuse(stream, peer, reason),
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

    #[test]
    fn connections_are_bounded_in_all_and_per_source() {
        let connections = Connections::new(
            Bounds {
                all: 3,
                per_source: 2,
            },
            b"",
        );
        let admit = |peer: &str| connections.admit(peer.parse().unwrap());
        let first = admit("192.0.2.1").unwrap();
        let _second = admit("::ffff:192.0.2.1").unwrap();
        assert_eq!(admit("192.0.2.1").unwrap_err(), "source");
        let _third = admit("2001:db8::1").unwrap();
        assert_eq!(admit("192.0.2.2").unwrap_err(), "all");
        drop(first);
        let _fourth = admit("2001:db8::ffff:1").unwrap();
        assert_eq!(
            lock(&connections.open).by_source.len(),
            2,
            "one network of 64 bits is one source"
        );
    }

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
        let connections = Connections::new(
            Bounds {
                all: 0,
                per_source: 1,
            },
            b"too many",
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = Shutdown::new();
        shutdown.spawn("server", {
            let shutdown = shutdown.clone();
            async move { accept_bounded(listener, &shutdown, &connections, |_, _| async {}).await }
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
