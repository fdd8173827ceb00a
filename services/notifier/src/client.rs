//! The connections to endpoints, which are servers of other people and may be hostile.
//! [`crate::webhook`] sends its requests through this client.
//!
//! Guarantee: an endpoint can send only a bounded number of bytes before the head of its response
//! is complete, including what TLS itself receives. Otherwise interim (1xx) responses, or TLS
//! records without content, could keep a processor busy until the deadline and delay all other
//! webhooks. For this, the connection counts the bytes below TLS and begins anew with each request.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::Uri;
use http_body_util::Full;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection, HttpConnector, dns::Name},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tower::Service;
use webhooks::dns::{Dns, NameError};

/// The deadline for making a connection, which includes resolving the name, TCP and TLS. A longer
/// one would leave too little time for the response.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(30);

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

/// Creates the client, which speaks HTTP/1.1. After each request, a connection may receive
/// `head_max` bytes before the head of the response is complete. `idle` is the number of unused
/// connections that are kept for one host.
pub fn endpoints(dns: Dns, head_max: usize, idle: usize) -> io::Result<WebhookClient> {
    let mut http = HttpConnector::new_with_resolver(Names(dns));
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let https = HttpsConnectorBuilder::new()
        .with_provider_and_platform_verifier(rustls::crypto::ring::default_provider())?
        .https_or_http()
        .enable_http1()
        .wrap_connector(CountingConnector { http, head_max });
    Ok(Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(idle)
        .http1_max_buf_size(head_max.max(16 * 1024))
        .build(EndpointConnector(https)))
}

/// Resolves the names of endpoints. [`Dns`] refuses addresses that the guard forbids, so that a
/// name cannot lead a webhook into a private network.
#[derive(Clone)]
pub struct Names(Dns);

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
pub struct CountingConnector {
    http: HttpConnector<Names>,
    head_max: usize,
}

impl Service<Uri> for CountingConnector {
    type Response = TokioIo<Counted>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.http.call(uri);
        let most = self.head_max;
        async move {
            let tcp = connecting.await?.into_inner();
            Ok(TokioIo::new(Counted {
                tcp,
                received: 0,
                most,
            }))
        }
        .boxed()
    }
}

/// A TCP connection that fails once it has received too much since the last request.
pub struct Counted {
    tcp: TcpStream,
    received: usize,
    most: usize,
}

impl AsyncRead for Counted {
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
write_through!(Counted, tcp);
write_through!(Exchange, 0, begin);

impl Connection for Counted {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// Makes connections to endpoints within `CONNECT_TIMEOUT`, with TLS if the URL asks for it.
#[derive(Clone)]
pub struct EndpointConnector(HttpsConnector<CountingConnector>);

impl Service<Uri> for EndpointConnector {
    type Response = TokioIo<Exchange>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, self.0.call(uri));
        async move {
            let stream = connecting.await.map_err(|_| ConnectTimeout)??;
            Ok(TokioIo::new(Exchange(TokioIo::new(stream))))
        }
        .boxed()
    }
}

/// A connection that resets the count of received bytes when a request is written to it. It lies
/// above TLS, so what TLS sends by itself does not reset the count.
pub struct Exchange(TokioIo<MaybeHttpsStream<TokioIo<Counted>>>);

impl Exchange {
    /// Resets the count, which is in the innermost layer of the connection.
    fn begin(&mut self) {
        let counted = match self.0.inner_mut() {
            MaybeHttpsStream::Http(tcp) => tcp.inner_mut(),
            MaybeHttpsStream::Https(tls) => tls.inner_mut().get_mut().0.inner_mut().inner_mut(),
        };
        counted.received = 0;
    }
}

impl AsyncRead for Exchange {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Connection for Exchange {
    fn connected(&self) -> Connected {
        self.0.inner().connected()
    }
}
