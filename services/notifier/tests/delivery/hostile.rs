//! Endpoints that answer too much, too slowly, or not with an answer: they cost neither memory, nor
//! more than one request per attempt, nor others their webhooks. The notifier is a process of its
//! own here.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use testkit::process::{Process, Program};
use testkit::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use self::Manner::{Last, Sends};
use crate::support::{Bench, PATIENCE};

/// Deliveries to each hostile endpoint.
const EACH: usize = 20;
/// The most memory that the notifier may use, in kB.
const MOST_KILOBYTES: usize = 100_000;

/// What an endpoint does once it has read a request.
#[derive(Clone, Copy)]
enum Manner {
    /// An answer of 300 MB.
    Huge,
    /// One byte of the head a second.
    DripHead,
    /// A head, then one byte of the body a second.
    DripBody,
    /// 10,000 headers.
    Headers,
    /// 10 MB of gzip, which would be 1.6 GB.
    Bomb,
    /// Interim answers without end, as fast as they are read.
    Interim,
    Silent,
    /// A reset of the connection.
    Reset,
    /// A status line without end.
    Endless,
    /// These bytes, and the connection stays open.
    Sends(&'static [u8]),
    /// These bytes, and the end of the connection.
    Last(&'static [u8]),
}

/// The class of the attempt at each manner.
const MANNERS: [(&str, Manner, &str); 19] = testkit::rows! {
    "a huge body", Manner::Huge => "status_5xx";
    "a slow head", Manner::DripHead => "timeout";
    "a slow body", Manner::DripBody => "status_5xx";
    "10,000 headers", Manner::Headers => "head_too_large";
    "a bomb", Manner::Bomb => "status_5xx";
    "interim answers", Manner::Interim => "head_too_large";
    "silence", Manner::Silent => "timeout";
    "a reset", Manner::Reset => "no_answer";
    "an endless status line", Manner::Endless => "head_too_large";
    "to itself", Sends(b"HTTP/1.1 307 Moved\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n") => "status_3xx";
    "a wait of a thousand years",
        Sends(b"HTTP/1.1 503 No\r\nretry-after: 31536000000\r\ncontent-length: 0\r\n\r\n") => "status_5xx";
    "the end", Last(b"") => "no_answer";
    "half a head", Last(b"HTTP/1.1 200 OK\r\ncontent-") => "bad_answer";
    "another protocol", Last(b"SSH-2.0-OpenSSH_9.9\r\n\r\n") => "bad_answer";
    "a TLS record", Last(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03") => "bad_answer";
    "two lengths", Last(b"HTTP/1.1 500 No\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab") => "status_5xx";
    "a header with a NUL", Last(b"HTTP/1.1 200 OK\r\nx: \0\r\n\r\n") => "bad_answer";
    "a chunk without a size", Last(b"HTTP/1.1 500 No\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n") => "status_5xx";
    "a switch", Last(b"HTTP/1.1 101 Go\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n") => "status_other";
};

impl Manner {
    async fn answer(self, connection: &mut TcpStream) -> std::io::Result<()> {
        const HEAD: &[u8] = b"HTTP/1.1 500 No\r\ncontent-length: 300000000\r\n";
        let filler = vec![b'x'; 64 * 1024];
        match self {
            Self::Huge => {
                connection.write_all(&[HEAD, b"\r\n"].concat()).await?;
                for _ in 0..300_000_000 / filler.len() {
                    connection.write_all(&filler).await?;
                }
            }
            Self::Bomb => {
                let encoding = b"content-encoding: gzip\r\n\r\n";
                connection
                    .write_all(&[HEAD, &encoding[..]].concat())
                    .await?;
                connection.write_all(&gzip_of_zeros(10_000_000)).await?;
            }
            Self::DripHead => drip(connection, b"HTTP/1.1 200 ").await?,
            Self::DripBody => {
                connection.write_all(&[HEAD, b"\r\n"].concat()).await?;
                drip(connection, &filler).await?;
            }
            Self::Headers => {
                let header = |n| format!("x-{n}: {}\r\n", "y".repeat(100)).into_bytes();
                let headers: Vec<u8> = (0..10_000).flat_map(header).collect();
                connection
                    .write_all(&[b"HTTP/1.1 200 OK\r\n", &headers[..], b"\r\n"].concat())
                    .await?;
            }
            Self::Interim => {
                let many = b"HTTP/1.1 102 Wait\r\n\r\n".repeat(1_000);
                loop {
                    connection.write_all(&many).await?;
                }
            }
            Self::Silent => std::future::pending().await,
            Self::Reset => {
                connection.set_zero_linger()?;
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
            Self::Endless => {
                connection
                    .write_all(format!("HTTP/1.1 200 {}", "y".repeat(200_000)).as_bytes())
                    .await?;
            }
            Sends(bytes) => connection.write_all(bytes).await?,
            Last(bytes) => {
                connection.write_all(bytes).await?;
                connection.shutdown().await?;
            }
        }
        Ok(())
    }
}

/// The first `size` bytes of an endless gzip stream: one zero, then "the same again, 258 times" in
/// 13 bits each.
fn gzip_of_zeros(size: usize) -> Vec<u8> {
    const HEADER: &[u8] = b"\x1f\x8b\x08\0\0\0\0\0\0\xff";
    // Not the last block, fixed codes; then the code of the byte 0.
    let first = "010".bytes().chain("00110000".bytes());
    let bits: Vec<bool> = first
        .chain("1100010100000".bytes().cycle())
        .map(|bit| bit == b'1')
        .take((2 + 13) * 8)
        .collect();
    let byte = |bits: &[bool]| {
        bits.iter()
            .rev()
            .fold(0, |byte, bit| byte << 1 | u8::from(*bit))
    };
    let bytes: Vec<u8> = bits.chunks(8).map(byte).collect();
    // After two bytes, every thirteen are the same.
    let mut stream = [HEADER, &bytes[..2]].concat();
    stream.extend(bytes[2..].repeat(size / 13));
    stream
}

/// Sends one byte a second: this endpoint is slow on purpose.
async fn drip(connection: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    for byte in bytes {
        connection.write_all(&[*byte]).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// Serves in this manner; returns its URL and the count of requests it has read.
async fn endpoint(manner: Manner) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let mut buffer = vec![0; 16 * 1024];
                // A request fits into one packet here.
                while connection
                    .read(&mut buffer)
                    .await
                    .is_ok_and(|read| read > 0)
                {
                    count.fetch_add(1, Ordering::Relaxed);
                    if manner.answer(&mut connection).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, requests)
}

pub fn program(bench: &Bench, folder: &std::path::Path) -> Program {
    let mut env = bench.settings.clone();
    // As many at once as in production.
    env.retain(|name, _| !name.ends_with("_CONCURRENCY") && name != "DATABASE_CONNECTIONS");
    let changed = [("WEBHOOK_TIMEOUT", "5s"), ("RETRY_SCHEDULE", "1h")];
    env.extend(changed.map(|(name, value)| (name.into(), value.into())));
    Program {
        name: "notifier".to_owned(),
        binary: env!("CARGO_BIN_EXE_notifier").into(),
        args: Vec::new(),
        env,
        ready_url: format!("http://{}/readyz", bench.config.admin_listen),
        log: folder.join("log"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_endpoints_cost_neither_memory_nor_repeats() {
    let bench = Bench::prepared().await;
    let folder = tempfile::tempdir().unwrap();
    let mut endpoints = Vec::new();
    for (name, manner, class) in MANNERS {
        let (url, requests) = endpoint(manner).await;
        let (partner, _) = bench.partner(Some(&url)).await;
        let topups = bench.copies(partner, EACH, Some(Duration::ZERO)).await;
        endpoints.push((name, class, requests, topups));
    }
    let mut notifier = Process::new(program(&bench, folder.path()));
    notifier.start().await.unwrap();
    let attempted = async || {
        let left = "SELECT count(*) FROM deliveries WHERE attempt = 0 AND state = 'pending'";
        let left: i64 = sqlx::query_scalar(left).fetch_one(&bench.pool).await?;
        Ok((left == 0).then_some(()))
    };
    wait::until(PATIENCE * 6, "every delivery to be attempted", attempted)
        .await
        .unwrap();
    let peak = notifier.peak_memory().unwrap();
    println!("{peak} kB at the peak");
    assert!(peak < MOST_KILOBYTES, "{peak} kB at the peak");

    for (name, class, requests, topups) in endpoints {
        assert_eq!(requests.load(Ordering::Relaxed), EACH, "{name}");
        let topups: Vec<_> = topups.iter().map(ToString::to_string).collect();
        let attempts = "SELECT a.class, a.attempt FROM delivery_attempts a JOIN deliveries USING (delivery_id) WHERE topup_id = ANY($1)";
        let attempts: Vec<(String, i32)> = sqlx::query_as(attempts)
            .bind(topups)
            .fetch_all(&bench.pool)
            .await
            .unwrap();
        assert_eq!(attempts, vec![(class.to_owned(), 0); EACH], "{name}");
    }
    let kept = "SELECT max(octet_length(response_start)) FROM delivery_attempts";
    let kept: i32 = sqlx::query_scalar(kept)
        .fetch_one(&bench.pool)
        .await
        .unwrap();
    assert!(
        (1_024..1_200).contains(&kept),
        "1 KiB of an answer, sealed: {kept}"
    );
    assert!(notifier.terminate(PATIENCE).await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_interim_answers_holds_no_other_webhook_up() {
    let bench = Bench::prepared().await;
    let folder = tempfile::tempdir().unwrap();
    let (url, floods) = endpoint(Manner::Interim).await;
    let (partner, _) = bench.partner(Some(&url)).await;
    bench.copies(partner, EACH, Some(Duration::ZERO)).await;
    let good = bench.partner_at("/good").await;
    let mut notifier = Process::new(program(&bench, folder.path()));
    notifier.start().await.unwrap();
    wait::soon("the floods", async || {
        Ok((floods.load(Ordering::Relaxed) >= EACH / 2).then_some(()))
    })
    .await;
    for _ in 0..5 {
        let began = Instant::now();
        bench.delivers(good).await;
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{:?}",
            began.elapsed()
        );
    }
    notifier.kill().await.unwrap();
}
