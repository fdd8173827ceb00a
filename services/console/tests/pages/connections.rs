//! Connections of clients that send nothing, or too slowly.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use console::access::OperatorRole;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{Bench, Browser};

/// Opens a connection and sends a form without its end. No session is needed for that.
async fn unfinished(bench: &Bench) -> TcpStream {
    let address = bench.base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "POST /sign-in HTTP/1.1\r\nHost: console\r\nCookie: console-guest=a\r\nContent-Length: 1000\r\n\r\na";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Opens a connection, looks at a page with somebody's session, and keeps the connection.
async fn kept(bench: &Bench, browser: &Browser) -> TcpStream {
    let address = bench.base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let session = &browser.cookies["console"];
    let head = format!("HEAD / HTTP/1.1\r\nHost: console\r\nCookie: console={session}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    while !answer.ends_with("\r\n\r\n") {
        let byte = stream.read_u8().await.unwrap();
        answer.push(byte.into());
    }
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    stream
}

async fn rest(stream: &mut TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn unfinished_forms_shut_nobody_out() {
    let bench = Bench::start_with(&[("MAX_CONNECTIONS", "4")]).await;
    // This one keeps its place, because somebody has signed in on it.
    let mut ana = bench.sign_in("ana", OperatorRole::Viewer).await;
    let mut slow = Vec::new();
    for _ in 0..20 {
        slow.push(unfinished(&bench).await);
    }
    assert_eq!(ana.get("/").await.status(), 200);
    let mut newcomer = bench.browser();
    assert_eq!(newcomer.get("/sign-in").await.status(), 200);
    // Those that had to leave were told so, and the last ones do not wait for ever.
    let first = rest(&mut slow[0]).await;
    assert!(first.starts_with("HTTP/1.1 503 "), "{first}");
    let last = rest(slow.last_mut().unwrap()).await;
    assert!(last.starts_with("HTTP/1.1 408 "), "{last}");
    assert!(last.contains("connection: close\r\n"), "{last}");
    assert!(last.contains("The form did not arrive"), "{last}");
    bench.stop().await;
}

/// A session keeps as many connections as it wants, as long as nobody else needs one.
#[tokio::test]
async fn one_session_shuts_nobody_out() {
    let bench = Bench::start_with(&[("MAX_CONNECTIONS", "4")]).await;
    let mut ana = bench.sign_in("ana", OperatorRole::Viewer).await;
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(kept(&bench, &ana).await);
    }
    let mut newcomer = bench.browser();
    assert_eq!(newcomer.get("/sign-in").await.status(), 200);
    let first = rest(&mut held[0]).await;
    assert!(first.starts_with("HTTP/1.1 503 "), "{first}");
    assert_eq!(ana.get("/").await.status(), 200);
    bench.stop().await;
}

/// Where everybody has signed in, nobody makes room for one more, who reads why.
#[tokio::test]
async fn one_connection_too_many_reads_why_it_is_refused() {
    let bench = Bench::start_with(&[("MAX_CONNECTIONS", "1")]).await;
    let mut ana = bench.sign_in("ana", OperatorRole::Viewer).await;
    assert_eq!(ana.get("/").await.status(), 200);
    let address = bench.base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let refused = rest(&mut stream).await;
    let (head, body) = refused.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(head.contains("retry-after: 1\r\n"), "{refused}");
    assert!(head.contains("cache-control: no-store\r\n"), "{refused}");
    assert!(head.ends_with("connection: close"), "{refused}");
    assert_eq!(body, "Too many connections are open; try it again shortly.");
    // The one that was there goes on.
    assert_eq!(ana.get("/").await.status(), 200);
    bench.stop().await;
}
