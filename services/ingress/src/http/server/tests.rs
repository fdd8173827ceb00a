use std::net::SocketAddr;

use axum::routing::{get, post};
use axum::{Extension, extract::Request, http::StatusCode, middleware};
use clap::Parser;
use runtime::clock::Moment;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::{
    http::connection::answer_body,
    metrics::Metrics,
    observe::{Observer, observe},
};

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    limits: LimitsConfig,
}

/// A server, and the signals that its responses have left.
struct Served {
    address: SocketAddr,
    left_answers: mpsc::UnboundedReceiver<oneshot::Receiver<()>>,
    shutdown: Shutdown,
}

/// More bytes than the buffers of a connection hold.
const LARGE: usize = 32 * 1024 * 1024;

/// `GET /` answers with a `deadline` from the request on, and `GET /large` with [`LARGE`] bytes;
/// `POST /` answers without reading the body.
async fn serve(deadline: Duration, settings: &[&str]) -> Served {
    let (left_answers, reported) = mpsc::unbounded_channel();
    let answer = move |bytes: Bytes| {
        let left_answers = left_answers.clone();
        move |Extension(connection): Extension<Arc<Connection>>| async move {
            let (left, has_left) = oneshot::channel();
            left_answers.send(has_left).unwrap();
            answer_body(bytes, connection, Moment::now() + deadline, left)
        }
    };
    let refuse = |_: Request| async { (StatusCode::FORBIDDEN, "refused") };
    let limits = Program::parse_from(["program"].iter().chain(settings)).limits;
    let observer = Observer::new(
        Metrics::default(),
        None,
        1,
        "Service",
        "https://esim.example.com",
    );
    let router = Router::new()
        .route("/", get(answer(Bytes::from_static(b"answer"))))
        .route("/large", get(answer(vec![b'x'; LARGE].into())))
        .route("/", post(refuse))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&observer),
            observe,
        ));
    let too_many = observer.too_many_connections();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = Shutdown::new();
    let serving = super::serve(listener, limits, router, too_many, shutdown.clone());
    shutdown.spawn("server", serving);
    Served {
        address,
        left_answers: reported,
        shutdown,
    }
}

const LATER: Duration = Duration::from_mins(1);
const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

async fn send(address: SocketAddr, request: &[u8]) -> TcpStream {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(request).await.unwrap();
    client
}

/// Everything until the server closes the connection.
async fn until_closed(mut client: TcpStream) -> String {
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    answer
}

/// A response that may be incomplete.
async fn part(client: &mut TcpStream) -> String {
    let mut answer = vec![0; 1024];
    let length = client.read(&mut answer).await.unwrap();
    String::from_utf8(answer[..length].to_vec()).unwrap()
}

#[tokio::test]
async fn a_departure_is_reported_when_the_answer_is_readable() {
    let mut served = serve(LATER, &[]).await;
    let mut client = TcpStream::connect(served.address).await.unwrap();
    for _ in 0..2 {
        client.write_all(GET).await.unwrap();
        served
            .left_answers
            .recv()
            .await
            .unwrap()
            .await
            .expect("the answer has left");
        let mut answer = vec![0; 1024];
        // The response can be read at once, without waiting.
        let length = client.try_read(&mut answer).unwrap();
        assert!(answer[..length].ends_with(b"answer"));
    }
    served.shutdown.stop();
    served.shutdown.finished().await.unwrap();
}

/// The signal waits for the last byte, not for the first one.
#[tokio::test]
async fn an_answer_has_not_left_while_the_socket_is_full() {
    let mut served = serve(LATER, &[]).await;
    let mut client = send(served.address, b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let mut has_left = served.left_answers.recv().await.unwrap();
    let mut received = part(&mut client).await.len();
    assert!(
        has_left.try_recv().is_err(),
        "the answer began to arrive, and cannot have left"
    );
    let mut bytes = vec![0; 1024 * 1024];
    while received < LARGE {
        received += client.read(&mut bytes).await.unwrap();
    }
    has_left.await.expect("the answer has left");
}

/// A stop cuts no connection, accepted or not, with or without a request.
#[tokio::test]
async fn a_connection_made_before_a_stop_is_answered_once_more() {
    let served = serve(LATER, &[]).await;
    let mut client = TcpStream::connect(served.address).await.unwrap();
    served.shutdown.stop();
    client.write_all(GET).await.unwrap();
    let answer = until_closed(client).await;
    assert!(
        answer.contains("connection: close") && answer.ends_with("answer"),
        "{answer}"
    );
    served.shutdown.finished().await.unwrap();
}

#[tokio::test]
async fn an_answer_after_its_deadline_is_not_sent() {
    let mut served = serve(Duration::ZERO, &[]).await;
    let mut client = send(served.address, GET).await;
    assert!(
        served.left_answers.recv().await.unwrap().await.is_err(),
        "nothing has left"
    );
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer).await;
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn a_head_that_cannot_be_read_is_answered_by_hyper_and_closes_the_connection() {
    let served = serve(LATER, &[]).await;
    let long = "x".repeat(40_000);
    let long = format!("GET / HTTP/1.1\r\nhost: x\r\nlong: {long}\r\n\r\n");
    let malformed = "GET / HTTP/1.1\r\nno colon\r\n\r\n".to_owned();
    for (request, status) in [(long, "431 "), (malformed, "400 ")] {
        // The server does not read the rest of the long head, so the client may see a reset after
        // the response.
        let answer = part(&mut send(served.address, request.as_bytes()).await).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
        assert!(answer.contains("connection: close"), "{answer}");
    }
}

#[tokio::test]
async fn a_connection_without_a_head_is_closed_in_time() {
    let served = serve(LATER, &["--head-timeout=50ms"]).await;
    let silent = TcpStream::connect(served.address).await.unwrap();
    assert_eq!(until_closed_early(silent).await, "");
    let slow = send(served.address, b"GET / HT").await;
    assert_eq!(until_closed_early(slow).await, "");
    let idle = send(served.address, GET).await;
    assert!(until_closed_early(idle).await.ends_with("answer"));

    let served = serve(LATER, &["--head-timeout=1h"]).await;
    let mut patient = send(served.address, GET).await;
    assert!(part(&mut patient).await.ends_with("answer"));
    assert!(
        tokio::time::timeout(Duration::from_millis(300), part(&mut patient))
            .await
            .is_err()
    );
    patient.write_all(GET).await.unwrap();
    assert!(part(&mut patient).await.ends_with("answer"));
}

/// The answer to a connection without a place is ours, as a client can see: it has a code, so it is
/// not taken for that of a proxy.
#[tokio::test]
async fn one_connection_too_many_is_answered_as_every_other_error() {
    let served = serve(LATER, &["--max-connections=1"]).await;
    let displaced = TcpStream::connect(served.address).await.unwrap();
    let mut last = send(served.address, GET).await;
    assert!(part(&mut last).await.ends_with("answer"));
    let refused = until_closed_early(displaced).await;
    let (head, body) = refused.split_once("\r\n\r\n").unwrap();
    let body_length = format!("content-length: {}", body.len());
    let lines: Vec<&str> = head.split("\r\n").collect();
    for line in [
        "HTTP/1.1 503 Service Unavailable",
        "content-type: application/json",
        &body_length,
        "retry-after: 1",
        "cache-control: no-store",
        "connection: close",
        "x-service-error: overloaded",
        "link: <https://esim.example.com/errors#overloaded>; rel=\"help\"",
    ] {
        assert!(lines.contains(&line), "{line} in {refused}");
    }
    assert_eq!(
        body,
        "{\"error\":\"Too many connections are open; try again later\"}"
    );
}

async fn until_closed_early(client: TcpStream) -> String {
    let closed = tokio::time::timeout(Duration::from_secs(10), until_closed(client));
    closed.await.expect("the connection is closed")
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_body_closes_the_connection() {
    let served = serve(LATER, &[]).await;
    let head = |length: usize, more: &str| {
        format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n{more}\r\n").into_bytes()
    };
    // All of the body has arrived, so the connection can serve its next request.
    let mut client = send(served.address, &[head(4, ""), b"body".to_vec()].concat()).await;
    let answer = part(&mut client).await;
    assert!(
        answer.ends_with("refused") && !answer.contains("connection: close"),
        "{answer}"
    );
    client.write_all(GET).await.unwrap();
    assert!(part(&mut client).await.ends_with("answer"));

    for more in ["", "expect: 100-continue\r\n"] {
        let answer = until_closed(send(served.address, &head(4, more)).await).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(
            answer.contains("connection: close") && answer.ends_with("refused"),
            "{answer}"
        );
    }
    // The client sends the rest after the response. Closing the connection must not make it lose
    // the response.
    let mut client = send(served.address, &head(2_000_000, "")).await;
    let answer = part(&mut client).await;
    assert!(answer.ends_with("refused"), "{answer}");
    client.write_all(&vec![b'x'; 2_000_000]).await.unwrap();
    assert_eq!(until_closed(client).await, "");
}
