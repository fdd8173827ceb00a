//! HTTP of the tests: a client, and servers that behave as a test says.

use anyhow::Result;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

/// A client without proxy and redirects, with 30 s for a whole exchange.
pub fn client() -> Result<reqwest::Client> {
    // Fails only if a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(Duration::from_secs(30))
        .build()?;
    Ok(client)
}

/// Serves HTTP/1.1 and HTTP/2 until the task is aborted. An error of `answer` ends the connection silently.
pub fn serve<F, A, B>(listener: TcpListener, answer: F) -> JoinHandle<()>
where
    F: Fn(Request<Bytes>) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Response<B>>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        // Dropped with this task, which ends the connections.
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            while connections.try_join_next().is_some() {}
            let answer = Arc::clone(&answer);
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = Arc::clone(&answer);
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await?.to_bytes();
                    answer(Request::from_parts(head, body)).await
                }
            });
            connections.spawn(async move {
                // Clients disconnect at any time, and some answers are errors on purpose.
                let server = auto::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    })
}
