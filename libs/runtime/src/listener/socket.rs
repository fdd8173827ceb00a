//! The transport of a connection, below hyper, with something that watches what is sent.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// What learns of the writes of a connection.
pub trait Watch {
    /// Runs before each write. An error is returned instead of writing, and makes hyper close the
    /// connection.
    fn before_write(&self) -> io::Result<()> {
        Ok(())
    }

    /// Everything that was written is in the socket's send buffer. hyper flushes its transport only
    /// when its own write buffer is empty.
    fn sent(&self);
}

/// A stream whose writes are watched.
#[derive(Debug)]
pub struct WatchedSocket<W> {
    stream: TcpStream,
    watch: Arc<W>,
}

impl<W: Watch> WatchedSocket<W> {
    pub fn new(stream: TcpStream, watch: Arc<W>) -> Self {
        Self { stream, watch }
    }

    /// Sends a whole response on a connection that has sent nothing of another one, if it fits into
    /// the socket's buffer, and closes the connection.
    pub fn refuse(self, response: &[u8]) {
        let _ = self.stream.try_write(response);
    }
}

impl<W: Watch> AsyncRead for WatchedSocket<W> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<W: Watch> AsyncWrite for WatchedSocket<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.watch.before_write()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.watch.before_write()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.watch.sent();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
