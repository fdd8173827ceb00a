//! One HTTP connection. It reports when a response has left, because the webhook must not go out earlier. It
//! closes the connection instead of sending a late response, enforces timeouts, and gives the HTTP layer's
//! own errors the specified shape.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode},
};
use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use runtime::lock;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::oneshot,
    time::Sleep,
};

use crate::{
    access::limits::LimitsConfig,
    http::{
        codes::Code,
        observe::{Observer, request_id},
    },
};

/// How long a connection is read after a response that came before the request's end. Most clients read
/// the response only after they have sent everything, and an early close would discard it.
const LINGER: Duration = Duration::from_secs(2);
/// The most bytes that are read and discarded during that time.
const LINGER_BYTES: usize = 4 * 1024 * 1024;

/// The state that a connection's socket and requests share.
pub(crate) struct Connection {
    pub(crate) peer: SocketAddr,
    observer: Arc<Observer>,
    begun: AtomicU64,
    /// Whether a request is being handled.
    busy: AtomicBool,
    /// Whether the client may still send bytes that are discarded.
    lingers: AtomicBool,
    /// The responses in hyper's buffer that are not in the socket's buffer yet.
    leaving: Mutex<Vec<Leaving>>,
}

/// A response that has not left yet.
struct Leaving {
    /// The time after which the response is not sent.
    deadline: Instant,
    left: oneshot::Sender<()>,
}

impl Connection {
    pub(crate) fn new(peer: SocketAddr, observer: Arc<Observer>) -> Arc<Self> {
        Arc::new(Self {
            peer,
            observer,
            begun: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            lingers: AtomicBool::new(false),
            leaving: Mutex::default(),
        })
    }

    /// Marks that a request's head was read.
    pub(crate) fn begin(&self) {
        self.begun.fetch_add(1, Relaxed);
        self.busy.store(true, Relaxed);
    }

    /// Marks that the response is ready.
    pub(crate) fn end(&self) {
        self.busy.store(false, Relaxed);
    }

    /// Marks that the last response comes before the request's end.
    pub(crate) fn linger(&self) {
        self.lingers.store(true, Relaxed);
    }

    fn leaving(&self) -> MutexGuard<'_, Vec<Leaving>> {
        lock(&self.leaving)
    }

    fn have_left(&self) {
        for answer in self.leaving().drain(..) {
            let _ = answer.left.send(());
        }
    }

    /// A whole response to an unreadable request; logged and counted like the others.
    fn canned(&self, status: StatusCode, code: Code, message: &str) -> Bytes {
        let id = request_id();
        self.observer.refused(status, code.name(), None, &id, self.peer);
        let id = HeaderValue::to_str(&id).unwrap_or_default();
        let body = serde_json::json!({ "error": message }).to_string();
        let length = body.len();
        let mut head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             x-request-id: {id}\r\nconnection: close\r\n"
        );
        for (name, value) in self.observer.explanation(&[code.into()]) {
            head = head + name.as_str() + ": " + value.to_str().unwrap_or_default() + "\r\n";
        }
        (head + "\r\n" + &body).into()
    }
}

/// A body in one piece that reports when it has left.
struct AnswerBody {
    bytes: Option<Bytes>,
    connection: Arc<Connection>,
    leaving: Option<Leaving>,
}

/// A body that sends to `left` once the whole response is in the socket's buffer. If the response never
/// gets there, `left` is dropped. After `deadline` the connection is closed and the body is not sent.
pub(crate) fn answer_body(
    bytes: Bytes,
    connection: Arc<Connection>,
    deadline: Instant,
    left: oneshot::Sender<()>,
) -> Body {
    Body::new(AnswerBody { bytes: Some(bytes), connection, leaving: Some(Leaving { deadline, left }) })
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    /// hyper first encodes the piece into its buffer, and flushes the socket only when that buffer is
    /// empty. So the next flush means that this response has left.
    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(leaving) = self.leaving.take() {
            self.connection.leaving().push(leaving);
        }
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// What the socket waits for while its timer runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Nothing,
    /// The first byte of the first request.
    First,
    /// The rest of a head.
    Head,
    /// The next request.
    Next,
    /// The end of a request that already has its response.
    End,
}

pub(crate) struct Socket {
    stream: TcpStream,
    connection: Arc<Connection>,
    head_timeout: Duration,
    idle_timeout: Duration,
    timer: Pin<Box<Sleep>>,
    waiting: Waiting,
    /// [`Connection::begun`] as of the last read.
    begun: u64,
    /// The unsent rest of a response that replaces one of the HTTP layer.
    canned: Option<Bytes>,
    drained: usize,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, connection: Arc<Connection>, limits: &LimitsConfig) -> Self {
        Self {
            stream,
            connection,
            head_timeout: limits.head_timeout,
            idle_timeout: limits.idle_timeout,
            timer: Box::pin(tokio::time::sleep(limits.head_timeout)),
            waiting: Waiting::First,
            begun: 0,
            canned: None,
            drained: 0,
        }
    }

    fn wait_for(&mut self, waiting: Waiting, within: Duration) {
        self.waiting = waiting;
        self.timer.as_mut().reset(tokio::time::Instant::now() + within);
    }

    /// Stops the timer when a request has begun.
    fn follow(&mut self) {
        let begun = self.connection.begun.load(Relaxed);
        if begun != self.begun {
            self.begun = begun;
            self.waiting = Waiting::Nothing;
        }
    }

    /// Ready when the connection's timeout has passed.
    fn poll_waiting(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.connection.busy.load(Relaxed) {
            return Poll::Pending;
        }
        if self.waiting == Waiting::Nothing {
            self.wait_for(Waiting::Next, self.idle_timeout);
        }
        self.timer.as_mut().poll(context)
    }

    fn check(&self) -> io::Result<()> {
        if self.connection.leaving().iter().any(|answer| answer.deadline <= Instant::now()) {
            tracing::warn!("connection closed: the response is past its deadline");
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Ends a connection whose next head did not arrive in time.
    fn time_out(&mut self) -> io::Error {
        if self.waiting == Waiting::Head {
            let (status, message) = (StatusCode::REQUEST_TIMEOUT, "Request head did not arrive in time");
            // Nothing else is in the socket's buffer, so all of it fits.
            let _ = self.stream.try_write(&self.connection.canned(status, Code::HeadTimeout, message));
        }
        io::ErrorKind::TimedOut.into()
    }

    /// Replaces a response that the HTTP layer created, which has no body. Returns `None` for any other.
    fn poll_replaced(
        &mut self,
        context: &mut Context<'_>,
        head: &[u8],
        length: usize,
    ) -> Option<Poll<io::Result<usize>>> {
        if self.canned.is_none() {
            let (status, code, message) = made_up(head)?;
            self.canned = Some(self.connection.canned(status, code, message));
        }
        while let Some(rest) = self.canned.as_mut().filter(|rest| !rest.is_empty()) {
            match Pin::new(&mut self.stream).poll_write(context, rest) {
                Poll::Ready(Ok(written)) => rest.advance(written),
                other => return Some(other),
            }
        }
        self.canned = None;
        self.connection.linger();
        Some(Poll::Ready(Ok(length)))
    }
}

/// The status of a response that hyper creates for an unreadable head, and its replacement. Our own
/// responses are recognized by their id.
fn made_up(head: &[u8]) -> Option<(StatusCode, Code, &'static str)> {
    const ID: &[u8] = b"x-request-id:";
    let status = head.strip_prefix(b"HTTP/1.1 ").or(head.strip_prefix(b"HTTP/1.0 "))?;
    if status.first() != Some(&b'4') || head.windows(ID.len()).any(|window| window == ID) {
        return None;
    }
    match StatusCode::from_bytes(status.get(..3)?).ok()? {
        status @ StatusCode::URI_TOO_LONG => Some((status, Code::UriTooLong, "Request URI is too long")),
        status @ StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            Some((status, Code::HeadTooLarge, "Request head is too large or has too many headers"))
        }
        status => Some((status, Code::Malformed, "Malformed HTTP request")),
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.follow();
        if read.is_ready() {
            let some = buffer.filled().len() > before;
            match self.waiting {
                // The timer of the first head runs already: it started with the connection.
                Waiting::First if some => self.waiting = Waiting::Head,
                Waiting::Nothing | Waiting::Next if some && !self.connection.busy.load(Relaxed) => {
                    let within = self.head_timeout;
                    self.wait_for(Waiting::Head, within);
                }
                _ => {}
            }
            return read;
        }
        ready!(self.poll_waiting(context));
        Poll::Ready(Err(self.time_out()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        if let Some(replaced) = self.poll_replaced(context, bytes, bytes.len()) {
            return replaced;
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        let head = slices.first().map_or(&[][..], |slice| slice);
        let length = slices.iter().map(|slice| slice.len()).sum();
        if let Some(replaced) = self.poll_replaced(context, head, length) {
            return replaced;
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.connection.have_left();
        self.follow();
        if self.waiting == Waiting::Nothing {
            // hyper reads again only when bytes arrive, so the timer must wake it.
            let _ = self.poll_waiting(context);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waiting != Waiting::End {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
            if !self.connection.lingers.load(Relaxed) {
                return Poll::Ready(Ok(()));
            }
            self.wait_for(Waiting::End, LINGER);
        }
        let mut thrown_away = [0; 4096];
        while self.drained < LINGER_BYTES {
            let mut buffer = ReadBuf::new(&mut thrown_away);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => self.drained += buffer.filled().len(),
                Poll::Ready(_) => break,
                Poll::Pending => {
                    ready!(self.timer.as_mut().poll(context));
                    break;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}
