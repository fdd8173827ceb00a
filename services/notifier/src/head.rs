//! What the beginning of a response says if hyper cannot read it. [`crate::webhook`] asks after a
//! response that hyper has refused.
//!
//! Only the status of a response counts here, so a head that is odd further down, for example with
//! two lengths, is a response like any other: browsers and curl take it, and the endpoint has
//! received the webhook. What is no response is named, so that its owner can see what to correct.

/// Why the first bytes of a response say no status. The texts hold nothing of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHead {
    #[error("the connection ended within the head of the response")]
    Unfinished,
    #[error("it begins with TLS, so the URL has to begin with https://")]
    Tls,
    #[error("it begins with another protocol than HTTP")]
    NotHttp,
    #[error("its first line has no status of three digits behind HTTP/1.1")]
    Status,
    #[error("its head holds a NUL byte")]
    Nul,
}

/// The status of the response that begins with these bytes, of which there may be more. Interim
/// responses before it are passed over.
pub fn status(received: &[u8]) -> Result<u16, BadHead> {
    let mut rest = received;
    loop {
        while let [b'\r' | b'\n', after @ ..] = rest {
            rest = after;
        }
        // The types of TLS records, and the major version.
        if let [20..=23, 3, ..] = rest {
            return Err(BadHead::Tls);
        }
        let line = rest.split(|byte| *byte == b'\n').next();
        let line = line.unwrap_or_default();
        let is_whole = line.len() < rest.len();
        let status = status_of_line(line).map_err(|fault| {
            let may_go_on = !is_whole && b"HTTP/".starts_with(&upper(line, 5));
            if may_go_on {
                BadHead::Unfinished
            } else {
                fault
            }
        })?;
        let end = end_of_head(rest);
        if rest[..end.unwrap_or(rest.len())].contains(&0) {
            return Err(BadHead::Nul);
        }
        if !(100..200).contains(&status) || status == 101 {
            return Ok(status);
        }
        rest = &rest[end.ok_or(BadHead::Unfinished)?..];
    }
}

fn upper(bytes: &[u8], most: usize) -> Vec<u8> {
    bytes
        .iter()
        .take(most)
        .map(u8::to_ascii_uppercase)
        .collect()
}

/// The status of a line such as `HTTP/1.1 200 OK`. The version may be any, and blanks may be tabs
/// or several.
fn status_of_line(line: &[u8]) -> Result<u16, BadHead> {
    if upper(line, 5) != b"HTTP/" {
        return Err(BadHead::NotHttp);
    }
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let version = line[5..].iter().take_while(|byte| !is_blank(byte)).count();
    let after = &line[5 + version..];
    let blanks = after.iter().take_while(|byte| is_blank(byte)).count();
    let digits = &after[blanks..];
    let [
        hundreds @ b'1'..=b'9',
        tens @ b'0'..=b'9',
        ones @ b'0'..=b'9',
        end @ ..,
    ] = digits
    else {
        return Err(BadHead::Status);
    };
    if version == 0 || end.first().is_some_and(u8::is_ascii_digit) {
        return Err(BadHead::Status);
    }
    let digit = |byte: &u8| u16::from(byte - b'0');
    Ok(digit(hundreds) * 100 + digit(tens) * 10 + digit(ones))
}

/// Where the body begins: behind the first empty line.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let mut line_began = 0;
    for (at, byte) in bytes.iter().enumerate() {
        if *byte == b'\n' {
            if matches!(&bytes[line_began..at], [] | [b'\r']) {
                return Some(at + 1);
            }
            line_began = at + 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_status_is_read_however_the_head_goes_on() {
        for (head, status_read) in [
            ("HTTP/1.1 200 OK\r\na: b\r\n\r\n", 200),
            ("HTTP/1.1 204", 204),
            ("\r\nhttp/1.0\t 503\n", 503),
            ("HTTP/1.1 200OK\r\n", 200),
            ("HTTP/2 200\r\n", 200),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
                200,
            ),
            (
                "HTTP/1.1 103 Wait\r\nlink: a\r\n\r\nHTTP/1.1 410 Gone\r\n",
                410,
            ),
            ("HTTP/1.1 101 Go\r\n", 101),
        ] {
            assert_eq!(status(head.as_bytes()), Ok(status_read), "{head:?}");
        }
    }

    #[test]
    fn what_is_no_response_is_named() {
        for (head, fault) in [
            (&b""[..], BadHead::Unfinished),
            (b"HT", BadHead::Unfinished),
            (b"HTTP/1.1 100 Continue\r\n", BadHead::Unfinished),
            (b"\x16\x03\x01\x02\0\x01", BadHead::Tls),
            (b"\x15\x03\x03\0\x02", BadHead::Tls),
            (b"SSH-2.0-OpenSSH_9.9\r\n", BadHead::NotHttp),
            (b"<html>", BadHead::NotHttp),
            (b"HTTP/1.1 OK\r\n", BadHead::Status),
            (b"HTTP/1.1 2000 OK\r\n", BadHead::Status),
            (b"HTTP/1.1 200 OK\r\nx: \0\r\n\r\n", BadHead::Nul),
        ] {
            assert_eq!(status(head), Err(fault), "{head:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_odd_to_be_read(bytes: Vec<u8>, begin in "(HTTP/1.1 1?[0-9 ]{3}[\r\n]{0,4}){0,3}") {
            let all = [begin.as_bytes(), &bytes].concat();
            if let Ok(status) = status(&all) {
                prop_assert!((100..1000).contains(&status));
            }
        }
    }
}
