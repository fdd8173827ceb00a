//! An HTTP server whose connections have places.
//!
//! Guarantees: at most so many connections are open as [`Connections`] allows. An idle connection
//! of whoever holds most of them is closed if another one needs its place, and one with a request
//! in work is not. A stop cuts no request off.
//!
//! Ingress, the console and the provisioner's callbacks are such servers.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{ConnectInfo, Request},
    response::Response,
};
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};

use crate::{
    Shutdown, connection,
    listener::{
        ConnectionPlace, Connections, DisplacedState, Watch, WatchedSocket, accept_bounded,
    },
};

pub struct BoundedServer {
    pub connections: Arc<Connections>,
    /// [`connection::builder`] makes it.
    pub http: http1::Builder,
    /// How long an open connection may begin one more request after the soft stop.
    pub last_request: Duration,
    pub shutdown: Shutdown,
}

/// A connection whose socket only its place watches.
struct PlainConnection {
    peer: SocketAddr,
    place: Arc<ConnectionPlace>,
}

impl Watch for PlainConnection {
    fn sent(&self) {
        self.place.sent();
    }
}

impl BoundedServer {
    /// Serves `router` until the soft stop, then finishes the requests in flight. Each request has
    /// the address of its client ([`ConnectInfo`]) and the [`ConnectionPlace`] among its
    /// extensions.
    pub async fn serve_router(self, listener: TcpListener, router: Router) -> anyhow::Result<()> {
        let router = TowerToHyperService::new(router);
        let watch = |peer, place| Arc::new(PlainConnection { peer, place });
        let handle = move |connection: Arc<PlainConnection>, mut request: Request<Incoming>| {
            let extensions = request.extensions_mut();
            extensions.insert(ConnectInfo(connection.peer));
            extensions.insert(Arc::clone(&connection.place));
            let responding = router.call(request);
            async move {
                let Ok(response) = responding.await;
                response
            }
        };
        self.serve(listener, watch, handle).await
    }

    /// The same with a handler instead of a router. `watch` makes what watches the socket of a new
    /// connection, and the handler gets it with each request.
    pub async fn serve<W, F>(
        self,
        listener: TcpListener,
        watch: impl Fn(SocketAddr, Arc<ConnectionPlace>) -> Arc<W>,
        handle: impl Fn(Arc<W>, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    ) -> anyhow::Result<()>
    where
        W: Watch + Send + Sync + 'static,
        F: Future<Output = Response> + Send + 'static,
    {
        let server = Arc::new(self);
        let serve_one = |stream, peer, place| {
            let watch = watch(peer, Arc::clone(&place));
            Arc::clone(&server).serve_one(stream, place, watch, handle.clone())
        };
        accept_bounded(listener, &server.shutdown, &server.connections, serve_one).await
    }

    /// Serves a connection until it ends, or until it has to leave because it is idle and its
    /// holder has to make room.
    async fn serve_one<W: Watch, F: Future<Output = Response>>(
        self: Arc<Self>,
        stream: TcpStream,
        place: Arc<ConnectionPlace>,
        watch: Arc<W>,
        handle: impl Fn(Arc<W>, Request<Incoming>) -> F,
    ) {
        let mut socket = WatchedSocket::new(stream, Arc::clone(&watch));
        let service = service_fn(|request| {
            let place = &place;
            let responding = handle(Arc::clone(&watch), request);
            async move {
                place.go_on().await;
                let response = responding.await;
                place.end_request();
                Ok::<_, Infallible>(response)
            }
        });
        let serving = connection::serve(
            &self.http,
            &mut socket,
            service,
            &self.shutdown,
            self.last_request,
        );
        let leave = tokio::select! {
            () = serving => None,
            leave = place.must_leave() => Some(leave),
        };
        if leave == Some(DisplacedState::Idle) {
            socket.refuse(self.connections.refusal());
        }
    }
}
