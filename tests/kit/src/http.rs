//! HTTP for tests: a client, and servers that respond as a test says.

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

/// Makes a client that uses no proxy, follows no redirects, and gives up an exchange after 30 s.
pub fn client() -> Result<reqwest::Client> {
    // This fails only if a cryptography provider is installed already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(Duration::from_secs(30))
        .build()?;
    Ok(client)
}

/// Serves HTTP/1.1 and HTTP/2 until the returned task is aborted. If `answer` returns an error, the
/// connection is closed without a response.
pub fn serve<F, A, B>(listener: TcpListener, answer: F) -> JoinHandle<()>
where
    F: Fn(Request<Bytes>) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Response<B>>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        // The connections are dropped and thereby closed together with this task.
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
                // The result is ignored, because clients may disconnect at any time, and some
                // answers are errors on purpose.
                let server = auto::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    })
}
