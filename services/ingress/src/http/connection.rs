//! One HTTP connection, below hyper. It knows when an answer has left, and it sends no answer after
//! its deadline.
//!
//! Guarantees, for a response whose body [`answer_body`] made:
//! - `left` is signalled only when the last byte of the response is in the socket's send buffer.
//!   Create-order holds the order's readiness events until then, so that no webhook precedes its
//!   201.
//! - After the deadline no byte of the response is sent: the connection is closed instead. From
//!   `answer_by` on, other processes may send the order's webhooks without asking this one, so a
//!   later 201 could be overtaken.
//!
//! ```text
//! made ──hyper takes the body──▶ buffered ──written, then flushed──▶ left: the signal is sent
//!   │                               │
//!   │ hyper drops the response      │ the deadline passes before a write, or the connection fails
//!   └──────────────▶ never sent: the sender of the signal is dropped
//! ```
//!
//! Callers: [`super::server`] lets a [`Connection`] watch the stream of each accepted connection;
//! create-order makes the body of its 201.
//!
//! Relies on hyper to flush its transport only when its own write buffer is empty. hyper copies the
//! head and the body into that buffer, writes the buffer to the socket, and then calls
//! `poll_flush`. So at each flush, everything that was buffered before has been accepted by the
//! kernel. The test `an_answer_has_not_left_while_the_socket_is_full` pins this behaviour of
//! hyper. Whether the bytes then reach the client cannot be known without a reply from it.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use runtime::{
    clock::Moment,
    listener::{ConnectionPlace, Watch},
    lock,
};
use tokio::sync::oneshot;

/// What the socket of a connection and its requests share.
pub(crate) struct Connection {
    pub(crate) peer: SocketAddr,
    /// Its place among the connections of this process, which it keeps while a request is handled.
    pub(crate) place: Arc<ConnectionPlace>,
    /// The answers that hyper has buffered and that are not in the socket's send buffer yet. There
    /// can be several, because a client may send its next requests without waiting for the answers
    /// (pipelining).
    buffered: Mutex<Vec<BufferedAnswer>>,
}

/// An answer that has not left yet.
struct BufferedAnswer {
    sending: Sending,
    left: oneshot::Sender<()>,
}

/// Whether an answer may be sent.
#[derive(Clone, Copy)]
enum Sending {
    Until(Moment),
    /// The connection is closed instead.
    Never,
}

impl Connection {
    pub(crate) fn new(peer: SocketAddr, place: Arc<ConnectionPlace>) -> Arc<Self> {
        Arc::new(Self {
            peer,
            place,
            buffered: Mutex::default(),
        })
    }

    fn buffered(&self) -> MutexGuard<'_, Vec<BufferedAnswer>> {
        lock(&self.buffered)
    }
}

impl Watch for Connection {
    /// Fails if the deadline of a buffered answer has passed. The error makes hyper close the
    /// connection.
    fn before_write(&self) -> io::Result<()> {
        let buffered = self.buffered();
        let late = |answer: &BufferedAnswer| matches!(answer.sending, Sending::Until(deadline) if deadline.has_passed());
        let never = |answer: &BufferedAnswer| matches!(answer.sending, Sending::Never);
        if buffered.iter().any(never) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if buffered.iter().any(late) {
            tracing::warn!(
                "the 201 of an order did not leave before its deadline, so the connection is closed; the order is \
                 stored, and the partner learns that when it repeats the request"
            );
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    /// Whatever was buffered before this flush has left.
    fn sent(&self) {
        self.place.sent();
        for answer in self.buffered().drain(..) {
            let _ = answer.left.send(());
        }
    }
}

/// A body in one piece that reports when it has left.
struct AnswerBody {
    bytes: Option<Bytes>,
    connection: Arc<Connection>,
    answer: Option<BufferedAnswer>,
}

/// Makes a body that sends to `left` once the whole response is in the socket's send buffer. If the
/// response never gets there, `left` is dropped. After `deadline` the connection is closed and the
/// rest of the response is not sent.
pub(crate) fn answer_body(
    bytes: Bytes,
    connection: Arc<Connection>,
    deadline: Moment,
    left: oneshot::Sender<()>,
) -> Body {
    Body::new(AnswerBody {
        bytes: Some(bytes),
        connection,
        answer: Some(BufferedAnswer {
            sending: Sending::Until(deadline),
            left,
        }),
    })
}

/// Makes a body whose response is never sent: the connection is closed instead, as if the network
/// had failed.
pub(crate) fn unsent_body(connection: Arc<Connection>) -> Body {
    let (left, _) = oneshot::channel();
    Body::new(AnswerBody {
        // hyper asks for the body, and so tells the socket about it, only if there is one.
        bytes: Some(Bytes::from_static(b"{}")),
        connection,
        answer: Some(BufferedAnswer {
            sending: Sending::Never,
            left,
        }),
    })
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    /// hyper takes the piece and copies it into its buffer before it writes anything of this
    /// response. So the socket knows the answer before the first byte is written, and the next
    /// flush means that the answer has left.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(answer) = self.answer.take() {
            self.connection.buffered().push(answer);
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
