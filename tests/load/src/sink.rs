//! The webhook endpoint of all partners. It responds 200 and records the topup. It does not check
//! signatures, which would take processor time from the measured services; other tests do that.

use crate::book::Book;
use crate::wire::{Connection, topup_ids};
use anyhow::{Context, Result};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Instant;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet, spawn_local};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// Listens on a free port until it is dropped.
pub struct Sink {
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl Sink {
    pub async fn start(at: Ipv4Addr, book: Rc<Book>) -> Result<Self> {
        let listener = TcpListener::bind((at, 0))
            .await
            .context("the sink cannot listen")?;
        Ok(Self {
            address: listener.local_addr()?,
            server: spawn_local(accept(listener, book)),
        })
    }

    /// The webhook URL of the partner with this number.
    pub fn url(&self, partner: u32) -> String {
        format!("http://{}/{partner}", self.address)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn accept(listener: TcpListener, book: Rc<Book>) {
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn_local(serve(stream, Rc::clone(&book)));
            }
            Err(error) => book.failed("sink accept", &error.to_string()),
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, book: Rc<Book>) {
    if let Err(error) = exchange(stream, &book).await {
        book.failed("sink connection", &error.to_string());
    }
}

async fn exchange(stream: TcpStream, book: &Book) -> io::Result<()> {
    let mut connection = Connection::new(stream)?;
    while let Some((head, body)) = connection.read().await? {
        let at = Instant::now();
        match topup_ids(body).next() {
            Some(topup_id) => book.webhook(topup_id, at),
            None => book.failed("webhook without topup_id", &String::from_utf8_lossy(body)),
        }
        connection.write(OK).await?;
        if head.close {
            break;
        }
    }
    Ok(())
}
