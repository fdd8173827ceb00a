//! Requests as bytes on a socket, for those that an HTTP client refuses to send or that are broken
//! off in the middle.

use crate::client::{ACCESS_KEY, ORDERS, SIGNATURE, TIMESTAMP};
use crate::esimctl::Partner;
use anyhow::{Context, Result, bail};
use std::ops::Range;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than ingress waits for a body.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The head of a correctly signed create-order request. `framing` is the header line that tells the
/// length of the body, such as `Content-Length: 2`.
pub fn head(partner: &Partner, framing: &str) -> Result<Vec<u8>> {
    head_to(partner, "Host: partner-api", framing)
}

/// Like [`head`], with any header lines in place of `Host`.
pub fn head_to(partner: &Partner, host: &str, framing: &str) -> Result<Vec<u8>> {
    head_of(partner, "POST", ORDERS, &format!("{host}\r\n{framing}"))
}

/// The head of a correctly signed request with any method and path. `lines` are further header
/// lines, without the end of the last one.
pub fn head_of(partner: &Partner, method: &str, path: &str, lines: &str) -> Result<Vec<u8>> {
    let secret = signing::SecretKey::from_base64(&partner.secret_key)?;
    let timestamp = runtime::clock::unix_seconds().to_string();
    let access_key = &partner.access_key;
    let signature = signing::request::sign(&secret, method, path, &timestamp, access_key);
    let head = format!(
        "{method} {path} HTTP/1.1\r\nContent-Type: application/json\r\n\
         {ACCESS_KEY}: {access_key}\r\n{TIMESTAMP}: {timestamp}\r\n{SIGNATURE}: {signature}\r\n{lines}\r\n\r\n"
    );
    Ok(head.into_bytes())
}

pub fn create_order(partner: &Partner, body: &[u8]) -> Result<Vec<u8>> {
    let mut request = head(partner, &format!("Content-Length: {}", body.len()))?;
    request.extend_from_slice(body);
    Ok(request)
}

/// A whole body in the chunked encoding, as a single chunk.
pub fn chunked(body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{:x}\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(b"\r\n0\r\n\r\n");
    bytes
}

/// Connects to a base URL such as `http://127.0.0.1:20001`.
pub async fn connect(base_url: &str) -> Result<TcpStream> {
    let address = base_url.trim_start_matches("http://");
    let stream = TcpStream::connect(address)
        .await
        .with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A complete answer with a `Content-Length` at the beginning of a buffer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub json: bool,
    /// Whether it has an `X-Request-Id`.
    pub identified: bool,
    /// Whether it announces the end of the connection.
    pub closes: bool,
    pub body: Range<usize>,
}

impl Answer {
    /// Parses the answer. It is `None` while the answer is not complete.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
        let header = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
        };
        let length: usize = header("content-length")?.parse().ok()?;
        let body = head + 4..head + 4 + length;
        let complete = bytes.len() >= body.end;
        complete.then_some(Self {
            status: text.get(9..12)?.parse().ok()?,
            json: header("content-type") == Some("application/json"),
            identified: header("x-request-id").is_some_and(|id| !id.is_empty()),
            closes: header("connection") == Some("close"),
            body,
        })
    }
}

/// Reads one answer, and returns it with its bytes.
pub async fn answer(mut connection: impl AsyncRead + Unpin) -> Result<(Answer, Vec<u8>)> {
    let reading = async {
        let mut bytes = Vec::new();
        loop {
            if let Some(answer) = Answer::parse(&bytes) {
                return Ok((answer, bytes));
            }
            let read = connection
                .read_buf(&mut bytes)
                .await
                .context("the connection broke off")?;
            if read == 0 {
                bail!(
                    "the connection was closed after {:?}",
                    String::from_utf8_lossy(&bytes)
                );
            }
        }
    };
    tokio::time::timeout(TIMEOUT, reading)
        .await
        .with_context(|| format!("no answer within {TIMEOUT:?}"))?
}

/// Sends bytes and reads one answer. A failed write is not an error, because the server may answer
/// and close the connection before it has read everything.
pub async fn exchange(base_url: &str, request: &[u8]) -> Result<(Answer, Vec<u8>)> {
    let (reading, mut writing) = connect(base_url).await?.into_split();
    let (answer, _) = tokio::join!(answer(reading), writing.write_all(request));
    answer
}
