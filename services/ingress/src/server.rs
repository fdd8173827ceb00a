//! HTTP connections that know when an answer has left. The webhook may follow only once the answer
//! is readable on the partner's socket, and an answer that comes too late must not be sent at all;
//! both are decided where bytes are written.

use std::{
    io,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use runtime::{Shutdown, listener};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use tower::ServiceExt;

/// How long a connection may take to send a request's head, or stay idle between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// After the soft stop, how long an open connection may take to send the request that may be under
/// way on it. It is answered, and told that it was the connection's last.
const LAST_REQUEST: Duration = Duration::from_secs(1);

/// Serves `router` until the soft stop. Then it takes no more connections, and answers what is under
/// way on those that it has: no request that reached it is cut.
pub async fn serve(listener: TcpListener, router: Router, shutdown: Shutdown) -> anyhow::Result<()> {
    let serve_one = |stream| connection(stream, router.clone(), shutdown.clone());
    listener::accept(listener, &shutdown, serve_one).await
}

async fn connection(stream: TcpStream, router: Router, shutdown: Shutdown) {
    // An answer is one small write; waiting for more would only delay it.
    let _ = stream.set_nodelay(true);
    let answers = Arc::new(Answers::default());
    let stop = shutdown.soft();
    let service = router
        .map_request({
            let answers = Arc::clone(&answers);
            move |mut request: Request<hyper::body::Incoming>| {
                request.extensions_mut().insert(Arc::clone(&answers));
                request
            }
        })
        .map_response({
            let stop = stop.clone();
            move |mut response: Response| {
                if stop.is_cancelled() {
                    let close = HeaderValue::from_static("close");
                    response.headers_mut().insert(header::CONNECTION, close);
                }
                response
            }
        });
    let io = TokioIo::new(Watched { stream, answers });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(io, TowerToHyperService::new(service));
    let mut serving = pin!(serving);
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = stop.cancelled() => {
            if let Ok(ended) = tokio::time::timeout(LAST_REQUEST, serving.as_mut()).await {
                ended
            } else {
                // Idle, or busy with a request that is still finished.
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

/// The answers of one connection that are in hyper's buffer but not yet in the socket's.
#[derive(Default)]
pub struct Answers(Mutex<Vec<Leaving>>);

/// An answer on its way out.
struct Leaving {
    /// After this it must not be sent.
    deadline: Instant,
    /// Told once it has left.
    left: oneshot::Sender<()>,
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, Vec<Leaving>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_too_late(&self) -> bool {
        self.lock().iter().any(|answer| answer.deadline <= Instant::now())
    }

    fn have_left(&self) {
        for answer in self.lock().drain(..) {
            let _ = answer.left.send(());
        }
    }
}

/// A body that is one piece and whose departure is told.
struct AnswerBody {
    bytes: Option<Bytes>,
    answers: Arc<Answers>,
    leaving: Option<Leaving>,
}

/// A body that tells `left` once it, and the head before it, are in the socket's buffer; `left` is
/// dropped if they never get there. After `deadline` the connection is closed instead.
pub fn answer_body(
    bytes: Bytes,
    answers: Arc<Answers>,
    deadline: Instant,
    left: oneshot::Sender<()>,
) -> Body {
    let leaving = Some(Leaving { deadline, left });
    Body::new(AnswerBody {
        bytes: Some(bytes),
        answers,
        leaving,
    })
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    /// hyper encodes the piece into its buffer before it does anything else, and flushes the socket
    /// only when that buffer is empty: the next flush is this answer's.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(leaving) = self.leaving.take() {
            self.answers.lock().push(leaving);
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

/// A socket that tells when answers have been written.
struct Watched {
    stream: TcpStream,
    answers: Arc<Answers>,
}

impl Watched {
    fn check(&self) -> io::Result<()> {
        if self.answers.is_too_late() {
            tracing::warn!("closed a connection instead of answering after the order's answer_by");
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.answers.have_left();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::{Extension, routing::get};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        sync::mpsc,
    };

    use super::*;

    type Departures = mpsc::UnboundedSender<oneshot::Receiver<()>>;

    /// A server whose answers have `deadline` from the request on; returns the end of the client's
    /// socket and where the departures are told.
    async fn serve_one(
        deadline: Option<Duration>,
    ) -> (
        TcpStream,
        mpsc::UnboundedReceiver<oneshot::Receiver<()>>,
        Shutdown,
    ) {
        let (departures, told) = mpsc::unbounded_channel();
        let answer = move |Extension(answers): Extension<Arc<Answers>>,
                           Extension(departures): Extension<Departures>| async move {
            let (left, departure) = oneshot::channel();
            departures.send(departure).unwrap();
            let deadline = deadline.map_or_else(Instant::now, |deadline| Instant::now() + deadline);
            answer_body(Bytes::from_static(b"answer"), answers, deadline, left)
        };
        let router = Router::new().route("/", get(answer)).layer(Extension(departures));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = Shutdown::new();
        shutdown.spawn("server", serve(listener, router, shutdown.clone()));
        (TcpStream::connect(address).await.unwrap(), told, shutdown)
    }

    #[tokio::test]
    async fn a_departure_is_told_when_the_answer_is_readable() {
        let (mut client, mut told, shutdown) = serve_one(Some(Duration::from_mins(1))).await;
        for _ in 0..2 {
            client
                .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                .await
                .unwrap();
            told.recv().await.unwrap().await.expect("the answer has left");
            let mut answer = vec![0; 1024];
            // Readable at once: nothing is waited for.
            let length = client.try_read(&mut answer).unwrap();
            assert!(answer[..length].ends_with(b"answer"));
        }
        shutdown.stop();
        shutdown.finished().await.unwrap();
    }

    /// Connected, accepted or not, with a request on its way or not yet: nothing of it is cut.
    #[tokio::test]
    async fn what_was_connected_before_a_stop_is_answered_once_more() {
        let (mut client, _told, shutdown) = serve_one(Some(Duration::from_mins(1))).await;
        shutdown.stop();
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.contains("connection: close") && answer.ends_with("answer"),
            "{answer}"
        );
        shutdown.finished().await.unwrap();
    }

    #[tokio::test]
    async fn an_answer_after_its_deadline_is_not_sent() {
        let (mut client, mut told, _shutdown) = serve_one(None).await;
        client
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        assert!(told.recv().await.unwrap().await.is_err(), "nothing has left");
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer).await;
        assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    }
}
