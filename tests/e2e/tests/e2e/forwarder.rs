//! A TCP forwarder between the services and a server, which can be cut and restored.

use anyhow::{Context, Result};
use std::net::{Ipv4Addr, SocketAddr};
use testkit::ports;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Forwards connections on a port of its own as long as it isn't cut.
pub struct Forwarder {
    listen: SocketAddr,
    server: SocketAddr,
    running: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Starts to forward to `server`.
    pub async fn to(server: SocketAddr) -> Result<Self> {
        let listen = (Ipv4Addr::LOCALHOST, ports::free()?).into();
        let mut forwarder = Self {
            listen,
            server,
            running: None,
        };
        forwarder.restore().await?;
        Ok(forwarder)
    }

    /// The forwarding port.
    pub fn port(&self) -> u16 {
        self.listen.port()
    }

    /// Breaks every connection and refuses new ones.
    pub async fn cut(&mut self) {
        if let Some(running) = self.running.take() {
            running.abort();
            // The listener and all connections are closed once the task is gone.
            let _ = running.await;
        }
    }

    /// Goes on accepting connections, but closes each of them at once, as a proxy does whose
    /// backend is down. [`Forwarder::lead_to`] ends that.
    pub async fn lose_backend(&mut self) -> Result<()> {
        self.lead_to((Ipv4Addr::LOCALHOST, ports::free()?).into())
            .await
    }

    /// Breaks every connection, and forwards new ones to this server.
    pub async fn lead_to(&mut self, server: SocketAddr) -> Result<()> {
        self.cut().await;
        self.server = server;
        self.restore().await
    }

    /// The server to which it forwards.
    pub fn server(&self) -> SocketAddr {
        self.server
    }

    /// Forwards again.
    pub async fn restore(&mut self) -> Result<()> {
        let listener = TcpListener::bind(self.listen)
            .await
            .context("cannot listen again")?;
        let server = self.server;
        self.running = Some(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(forward(client, server));
                while connections.try_join_next().is_some() {}
            }
        }));
        Ok(())
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

/// Copies until one side closes.
async fn forward(mut client: TcpStream, server: SocketAddr) {
    if let Ok(mut upstream) = TcpStream::connect(server).await {
        let _ = client.set_nodelay(true);
        let _ = upstream.set_nodelay(true);
        let _ = copy_bidirectional(&mut client, &mut upstream).await;
    }
}
