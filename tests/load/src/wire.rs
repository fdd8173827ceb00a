//! A minimal HTTP/1.1 that knows only messages with a `Content-Length` over connections that are
//! kept open. A full implementation would take processor time from the measured services, which run
//! on the same machine.

use std::io::{self, ErrorKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HEAD_LIMIT: usize = 16 * 1024;
const BODY_LIMIT: usize = 1024 * 1024;
const TOPUP_ID_DIGITS: usize = 26;

#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes up to and including the empty line.
    length: usize,
    /// Bytes of the body.
    body: usize,
    /// The status of a response, 0 for a request.
    pub status: u16,
    /// The peer closes the connection after this message.
    pub close: bool,
}

/// Parses the head of a message. Returns `None` if it is incomplete.
fn parse_head(bytes: &[u8]) -> io::Result<Option<Head>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if bytes.len() > HEAD_LIMIT {
            Err(malformed("the head is too long"))
        } else {
            Ok(None)
        };
    };
    let mut lines = bytes[..end]
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii_end);
    let first = lines.next().unwrap_or_default();
    let status = match first.strip_prefix(b"HTTP/1.1 ") {
        Some(rest) => {
            number(rest.get(..3).unwrap_or_default()).ok_or_else(|| malformed("no status"))?
        }
        None => 0,
    };
    let status = u16::try_from(status).map_err(|_| malformed("no status"))?;
    let mut head = Head {
        length: end + 4,
        body: 0,
        status,
        close: false,
    };
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let name = &line[..colon];
        let value = line[colon + 1..].trim_ascii();
        if name.eq_ignore_ascii_case(b"content-length") {
            head.body = number(value).ok_or_else(|| malformed("no content length"))?;
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Err(malformed(
                "a transfer encoding, which is not supported here",
            ));
        } else if name.eq_ignore_ascii_case(b"connection") {
            head.close = value.eq_ignore_ascii_case(b"close");
        }
    }
    if head.body > BODY_LIMIT {
        return Err(malformed("the body is too long"));
    }
    Ok(Some(head))
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// Finds the topup ids in a JSON text by the name of their field, without parsing the text. Ids
/// that do not have 26 digits are skipped.
pub fn topup_ids(json: &[u8]) -> impl Iterator<Item = u128> {
    const NAME: &[u8] = b"\"topup_id\"";
    let mut rest = json;
    let values = std::iter::from_fn(move || {
        let name = rest.windows(NAME.len()).position(|window| window == NAME)?;
        rest = &rest[name + NAME.len()..];
        Some(rest)
    });
    values.filter_map(|value| {
        let value = value
            .trim_ascii_start()
            .strip_prefix(b":")?
            .trim_ascii_start()
            .strip_prefix(b"\"")?;
        let digits = value.get(..TOPUP_ID_DIGITS)?;
        let complete =
            value.get(TOPUP_ID_DIGITS) == Some(&b'"') && digits.iter().all(u8::is_ascii_digit);
        complete.then(|| {
            digits
                .iter()
                .fold(0, |id, digit| id * 10 + u128::from(digit - b'0'))
        })
    })
}

pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// The number of bytes of the buffer that belong to the message that was returned last.
    used: usize,
}

impl Connection {
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: Vec::with_capacity(4096),
            used: 0,
        })
    }

    /// False once the peer has closed it, as far as this side knows.
    pub fn is_open(&self) -> bool {
        self.stream
            .try_read(&mut [0; 1])
            .is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }

    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads the next message, its head and its body. Returns `None` if the peer closed the
    /// connection before it.
    pub async fn read(&mut self) -> io::Result<Option<(Head, &[u8])>> {
        self.buffer.drain(..self.used);
        self.used = 0;
        let mut head = None;
        loop {
            if head.is_none() {
                head = parse_head(&self.buffer)?;
            }
            if let Some(head) = head.take_if(|head| self.buffer.len() >= head.length + head.body) {
                self.used = head.length + head.body;
                let body = &self.buffer[head.length..self.used];
                return Ok(Some((head, body)));
            }
            self.buffer.reserve(4096);
            match self.stream.read_buf(&mut self.buffer).await {
                Ok(0) if !self.buffer.is_empty() => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(0) => return Ok(None),
                Ok(_) => {}
                // A reset between two messages counts as a normal end of the connection.
                Err(error)
                    if error.kind() == ErrorKind::ConnectionReset && self.buffer.is_empty() =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[test]
    fn heads_that_are_wrong_are_refused() {
        for bad in [
            "HTTP/1.1 abc\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        ] {
            assert!(parse_head(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn topup_ids_are_found() {
        let json = br#"{"products":[{"topup_id":"20250129123456123456789012","option_id":"a"},
            {"option_id":"b", "topup_id" : "20250129123456123456789013"}, {"topup_id":"1"}, {"topup_id":7}]}"#;
        let ids: Vec<u128> = topup_ids(json).collect();
        assert_eq!(
            ids,
            [
                20_250_129_123_456_123_456_789_012,
                20_250_129_123_456_123_456_789_013
            ]
        );
        assert_eq!(
            topup_ids(b"").count() + topup_ids(b"\"topup_id\"").count(),
            0
        );
    }

    #[tokio::test]
    async fn messages_are_read_however_they_are_cut() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let mut server = Connection::new(listener.accept().await.unwrap().0).unwrap();
        let writing = async {
            let text = "HTTP/1.1 201 Created\r\ncontent-length: 3\r\n\r\nabcHTTP/1.1 500 X\r\ncontent-length: 1\r\n\r\nd";
            for byte in text.as_bytes() {
                client.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(client);
        };
        let reading = async {
            let (head, body) = server.read().await.unwrap().unwrap();
            assert_eq!((head.status, body), (201, &b"abc"[..]));
            let (head, body) = server.read().await.unwrap().unwrap();
            assert_eq!((head.status, body), (500, &b"d"[..]));
            assert!(server.read().await.unwrap().is_none());
        };
        tokio::join!(writing, reading);
    }
}
