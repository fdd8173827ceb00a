//! The connections to endpoints, which are servers of other people and may be hostile.
//! [`crate::webhook`] sends its requests through this client.
//!
//! Guarantee: an endpoint can send only a bounded number of bytes before the head of its response
//! is complete, including what TLS itself receives. Otherwise interim (1xx) responses, or TLS
//! records without content, could keep a processor busy until the deadline and delay all other
//! webhooks. For this, the connection counts the bytes below TLS and begins anew with each request.
//!
//! No request begins on a connection that is older than [`OLDEST`], so that a partner that moves
//! its host to another address gets its webhooks there: a connection is bound to the address that
//! the name had when it was made, and a busy one would otherwise never end.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::Uri;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{CaptureConnection, Connected, Connection, HttpConnector, dns::Name},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use runtime::lock;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tower::Service;
use webhooks::dns::{Dns, NameError};

/// The age from which no further request begins on a connection. A name whose address changes is
/// looked up again after its TTL, so a longer age would be what makes a partner wait. A new
/// connection each minute costs nothing that could be measured.
pub const OLDEST: Duration = Duration::from_mins(1);
/// The maximum number of headers that hyper reads of a response. What has more within the bytes
/// that are allowed still counts by its status: [`crate::head`].
const HEADERS: usize = 1_024;
/// How much of the beginning of a response is kept to say what is wrong with it. It has room for a
/// few interim responses.
const HEAD_KEPT: usize = 4 * 1024;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub type WebhookClient = Client<EndpointConnector, Full<Bytes>>;

/// An endpoint sent too much before the head of its response was complete.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the head of the response is too large")]
pub struct HeadTooLarge;

/// A connection was not made in time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("connecting took too long")]
pub struct ConnectTimeout;

/// There is no TCP connection, so whatever went wrong was not TLS.
#[derive(Debug, thiserror::Error)]
#[error("no TCP connection")]
pub struct NotConnected(#[source] BoxError);

/// The limits of requests to endpoints.
#[derive(Clone, Debug)]
pub struct ClientLimits {
    /// The deadline of a whole exchange. Making the connection has no shorter one of its own: a
    /// server whose TLS is slow may use all of it.
    pub timeout: Duration,
    /// Bytes that an endpoint may send before the head of its response is complete.
    pub head_max: usize,
    /// Unused connections that are kept for one host.
    pub idle: usize,
    /// The age from which no further request begins on a connection. Half of it is for the time
    /// that a connection may be unused before its last request begins.
    pub oldest: Duration,
}

/// What is known of a connection besides what hyper knows. Requests get it from their
/// [`CaptureConnection`].
#[derive(Clone)]
struct KnownConnection {
    /// From when on the connection ends after its response.
    ends_at: Instant,
    /// The beginning of what was received since the last request.
    head: Arc<Mutex<Vec<u8>>>,
}

/// Ends the connection of a request after its response if it is old. Returns the beginning of what
/// was received since the request; empty if there was no connection.
pub fn after_request(captured: &CaptureConnection) -> Vec<u8> {
    let mut extras = http::Extensions::new();
    if let Some(connected) = captured.connection_metadata().as_ref() {
        connected.get_extras(&mut extras);
        let known = extras.get::<KnownConnection>();
        if known.is_some_and(|known| known.ends_at <= Instant::now()) {
            connected.poison();
        }
    }
    let known = extras.remove::<KnownConnection>();
    known.map_or_else(Vec::new, |known| lock(&known.head).clone())
}

/// Creates the client, which speaks HTTP/1.1.
///
/// The head is read as tolerantly as browsers and curl read it, because an endpoint behind a sloppy
/// gateway or plugin has received the webhook all the same. Of a head that hyper refuses,
/// [`crate::head`] still reads the status, but `Retry-After` and the body are lost.
pub fn endpoints(dns: Dns, limits: &ClientLimits) -> io::Result<WebhookClient> {
    let mut http = HttpConnector::new_with_resolver(Names(dns));
    http.enforce_http(false);
    http.set_nodelay(true);
    // Several addresses of one name share it.
    http.set_connect_timeout(Some(limits.timeout));
    let https = HttpsConnectorBuilder::new()
        .with_provider_and_platform_verifier(rustls::crypto::ring::default_provider())?
        .https_or_http()
        .enable_http1()
        .wrap_connector(CountingConnector {
            http,
            head_max: limits.head_max,
        });
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(limits.oldest / 2)
        .pool_max_idle_per_host(limits.idle)
        // Twice as much as the connection lets through, so that only its count decides.
        .http1_max_buf_size(limits.head_max.max(16 * 1024) * 2)
        .http1_max_headers(HEADERS)
        .http1_allow_obsolete_multiline_headers_in_responses(true)
        .http1_allow_spaces_after_header_name_in_responses(true)
        .http1_ignore_invalid_headers_in_responses(true)
        .build(EndpointConnector {
            https,
            timeout: limits.timeout,
            oldest: limits.oldest,
        }))
}

/// Resolves the names of endpoints. [`Dns`] refuses addresses that the guard forbids, so that a
/// name cannot lead a webhook into a private network.
#[derive(Clone)]
struct Names(Dns);

impl Service<Name> for Names {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = NameError;
    type Future = BoxFuture<'static, Result<Self::Response, NameError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), NameError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let dns = self.0.clone();
        async move {
            let addresses = dns.resolve(name.as_str()).await?.into_iter();
            Ok(addresses
                .map(|address| SocketAddr::new(address, 0))
                .collect::<Vec<_>>()
                .into_iter())
        }
        .boxed()
    }
}

/// Makes TCP connections that count what they receive.
#[derive(Clone)]
struct CountingConnector {
    http: HttpConnector<Names>,
    head_max: usize,
}

impl Service<Uri> for CountingConnector {
    type Response = TokioIo<CountedStream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.http.call(uri);
        let most = self.head_max;
        async move {
            let connected = connecting.await;
            let tcp = connected
                .map_err(|error| NotConnected(error.into()))?
                .into_inner();
            Ok(TokioIo::new(CountedStream {
                tcp,
                received: 0,
                most,
            }))
        }
        .boxed()
    }
}

/// A TCP connection that fails once it has received too much since the last request.
struct CountedStream {
    tcp: TcpStream,
    received: usize,
    most: usize,
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.tcp).poll_read(context, buffer))?;
        self.received += buffer.filled().len() - before;
        Poll::Ready(if self.received > self.most {
            Err(io::Error::other(HeadTooLarge))
        } else {
            Ok(())
        })
    }
}

/// Implements writing through the field `$to`, calling `$begin` before each write.
macro_rules! write_through {
    ($type:ty, $to:tt $(, $begin:ident)?) => {
        impl AsyncWrite for $type {
            fn poll_write(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                $(self.$begin();)?
                Pin::new(&mut self.$to).poll_write(context, bytes)
            }

            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                $(self.$begin();)?
                Pin::new(&mut self.$to).poll_write_vectored(context, slices)
            }

            fn is_write_vectored(&self) -> bool {
                self.$to.is_write_vectored()
            }

            fn poll_flush(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Pin::new(&mut self.$to).poll_flush(context)
            }

            fn poll_shutdown(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Pin::new(&mut self.$to).poll_shutdown(context)
            }
        }
    };
}
write_through!(CountedStream, tcp);
write_through!(ConnectionWithHead, stream, begin);

impl Connection for CountedStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Makes connections to endpoints within `timeout`, with TLS if the URL asks for it. The deadline
/// of the request does not suffice, because the client may go on connecting when a request has
/// ended or has got another connection.
#[derive(Clone)]
pub struct EndpointConnector {
    https: HttpsConnector<CountingConnector>,
    timeout: Duration,
    oldest: Duration,
}

impl Service<Uri> for EndpointConnector {
    type Response = TokioIo<ConnectionWithHead>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.https.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = tokio::time::timeout(self.timeout, self.https.call(uri));
        // The address is looked up after this moment.
        let ends_at = Instant::now() + self.oldest / 2;
        async move {
            let stream = connecting.await.map_err(|_| ConnectTimeout)??;
            Ok(TokioIo::new(ConnectionWithHead {
                stream: TokioIo::new(stream),
                known: KnownConnection {
                    ends_at,
                    head: Arc::default(),
                },
            }))
        }
        .boxed()
    }
}

/// A connection that resets the count of received bytes when a request is written to it, and keeps
/// the beginning of what it receives then. It lies above TLS, so what TLS sends by itself does not
/// reset the count.
pub struct ConnectionWithHead {
    stream: TokioIo<MaybeHttpsStream<TokioIo<CountedStream>>>,
    known: KnownConnection,
}

impl ConnectionWithHead {
    /// Resets the count, which is in the innermost layer of the connection.
    fn begin(&mut self) {
        lock(&self.known.head).clear();
        let counted = match self.stream.inner_mut() {
            MaybeHttpsStream::Http(tcp) => tcp.inner_mut(),
            MaybeHttpsStream::Https(tls) => tls.inner_mut().get_mut().0.inner_mut().inner_mut(),
        };
        counted.received = 0;
    }
}

impl AsyncRead for ConnectionWithHead {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let received = &buffer.filled()[before..];
        let mut head = lock(&self.known.head);
        let room = HEAD_KEPT.saturating_sub(head.len());
        head.extend_from_slice(&received[..received.len().min(room)]);
        Poll::Ready(Ok(()))
    }
}

impl Connection for ConnectionWithHead {
    fn connected(&self) -> Connected {
        self.stream.inner().connected().extra(self.known.clone())
    }
}
