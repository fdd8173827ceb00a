//! The proxy between the stages and the current primary, as a failover manager has one. When it is
//! led to another server, new connections go there, and old ones stay where they are.

use anyhow::Result;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Route {
    server: SocketAddr,
    /// Nothing passes, in either direction, and nothing is closed, as behind a firewall that drops
    /// all packets.
    is_cut: bool,
    /// How much later than they came the answers of the server are passed on.
    late: Duration,
}

/// The number of answers that were passed on late.
type Late = Arc<AtomicU64>;

/// The maximum number of bytes that are passed on at once.
const CHUNK: usize = 64 * 1024;

pub struct Proxy {
    port: u16,
    route: watch::Sender<Route>,
    late: Late,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port and forwards to `server`.
    pub async fn start(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let route = watch::Sender::new(Route {
            server,
            is_cut: false,
            late: Duration::ZERO,
        });
        let current = route.subscribe();
        let late = Late::default();
        let counted = Arc::clone(&late);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, current.clone(), Arc::clone(&counted)));
            }
        });
        Ok(Self {
            port,
            route,
            late,
            accepting,
        })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Leads new connections to this server.
    pub fn lead_to(&self, server: SocketAddr) {
        self.route.send_modify(|route| route.server = server);
    }

    /// Holds everything up. What is held up is closed when the cut ends.
    pub fn cut(&self) {
        self.route.send_modify(|route| route.is_cut = true);
    }

    /// Passes the answers of the server on that much later from now on. Returns how many came late
    /// until now.
    pub fn answer_late(&self, late: Duration) -> u64 {
        self.route.send_modify(|route| route.late = late);
        self.late.load(Ordering::Relaxed)
    }

    pub fn restore(&self) {
        self.route.send_modify(|route| route.is_cut = false);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Forwards one connection until one side closes it or a cut has held it up.
async fn forward(mut client: TcpStream, mut route: watch::Receiver<Route>, late: Late) {
    let now = *route.borrow_and_update();
    let current = route.clone();
    let mut forwarding = pin!(async {
        if now.is_cut {
            std::future::pending::<()>().await;
        }
        if let Ok(mut server) = TcpStream::connect(now.server).await {
            let _ = client.set_nodelay(true);
            let _ = server.set_nodelay(true);
            let (from_client, to_client) = client.split();
            let (from_server, to_server) = server.split();
            let asked = ask(from_client, to_server);
            let answered = answer(from_server, to_client, &current, &late);
            let _ = tokio::try_join!(asked, answered);
        }
    });
    tokio::select! {
        () = &mut forwarding => return,
        _ = route.wait_for(|route| route.is_cut) => {}
    }
    // Both sockets stay open during the cut, and nothing is copied, because nothing polls the copy.
    let _ = route.wait_for(|route| !route.is_cut).await;
}

async fn ask(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> io::Result<()> {
    copy(&mut from, &mut to).await?;
    to.shutdown().await
}

async fn answer(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    route: &watch::Receiver<Route>,
    counted: &Late,
) -> io::Result<()> {
    let mut bytes = vec![0; CHUNK];
    loop {
        let read = from.read(&mut bytes).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        let late = route.borrow().late;
        if !late.is_zero() {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(late).await;
        }
        to.write_all(&bytes[..read]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{Instant, timeout};

    /// A server that answers each byte with `letter`.
    async fn server(letter: u8) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    while client.read_u8().await.is_ok() {
                        client.write_u8(letter).await.unwrap();
                    }
                });
            }
        });
        address
    }

    async fn ask(connection: &mut TcpStream) -> std::io::Result<u8> {
        connection.write_u8(b'?').await?;
        connection.read_u8().await
    }

    #[tokio::test]
    async fn old_connections_stay_and_a_cut_holds_everything_up() {
        let one = server(b'1').await;
        let other = server(b'2').await;
        let proxy = Proxy::start(one).await.unwrap();
        let connect = || TcpStream::connect(("127.0.0.1", proxy.port()));
        let mut old = connect().await.unwrap();
        assert_eq!(ask(&mut old).await.unwrap(), b'1');
        proxy.lead_to(other);
        let mut new = connect().await.unwrap();
        assert_eq!(ask(&mut new).await.unwrap(), b'2');
        assert_eq!(ask(&mut old).await.unwrap(), b'1');

        let delay = Duration::from_millis(100);
        proxy.answer_late(delay);
        let asked = Instant::now();
        assert_eq!(ask(&mut new).await.unwrap(), b'2');
        assert!(asked.elapsed() >= delay);
        assert_eq!(proxy.answer_late(Duration::ZERO), 1);

        proxy.cut();
        let mut late = connect().await.unwrap();
        for connection in [&mut old, &mut new, &mut late] {
            let held = timeout(Duration::from_millis(50), ask(connection)).await;
            assert!(held.is_err(), "{held:?}");
        }
        proxy.restore();
        for connection in [&mut old, &mut new, &mut late] {
            ask(connection).await.unwrap_err();
        }
        assert_eq!(ask(&mut connect().await.unwrap()).await.unwrap(), b'2');
    }
}
