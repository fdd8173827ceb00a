//! Reads the body of a request: within the largest size and the longest time.
//!
//! Create-order and the self-service requests with a body call it. Create-order calls the two steps
//! one by one: [`most_bytes`] says how much memory the body may take, so that the order can be
//! admitted before [`read_stream`] takes that memory.
//!
//! It relies on hyper, which has checked that `Content-Length` is a number, and never passes on
//! more bytes than it says.

use std::{
    io::{self, ErrorKind},
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderMap, header},
};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;

use crate::http::{codes::ErrorCode, error::ApiError};

/// Maximum time for the body of a request to arrive. The time counts from the moment at which
/// ingress begins to read the body. A slower request gets a 408. The largest body arrives in it at
/// 5 kB/s, which is slower than any line that a server has.
const BODY_TIMEOUT: Duration = Duration::from_secs(15);

/// Reads a whole body.
pub(crate) async fn read(
    max_body: usize,
    headers: &HeaderMap,
    body: Body,
) -> Result<Bytes, ApiError> {
    most_bytes(max_body, headers)?;
    read_stream(max_body, body).await
}

/// The maximum number of bytes that the body may have according to its headers: `Content-Length`,
/// or the largest one if the body is chunked and its length is unknown. A body that is too long by
/// its `Content-Length`, or encoded, is refused before it is read.
pub(crate) fn most_bytes(max_body: usize, headers: &HeaderMap) -> Result<usize, ApiError> {
    let length = match headers.get(header::CONTENT_LENGTH) {
        None if headers.contains_key(header::TRANSFER_ENCODING) => max_body,
        None => 0,
        Some(length) => length
            .to_str()
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(usize::MAX),
    };
    if length > max_body {
        return Err(ApiError::with(ErrorCode::BodyTooLarge, max_body));
    }
    // Without a body there is nothing that could be encoded.
    if length > 0 && is_encoded(headers) {
        return Err(ErrorCode::ContentEncodingUnsupported.into());
    }
    Ok(length)
}

/// Whether the body is compressed, or encoded in another way. `identity` stands for none.
fn is_encoded(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONTENT_ENCODING).iter();
    let mut encodings = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    encodings.any(|name| {
        let name = name.trim_ascii();
        !name.is_empty() && !name.eq_ignore_ascii_case(b"identity")
    })
}

/// Why a body has no end: its client has hung up, unless hyper could not read a chunk of it.
fn broken_off(error: &axum::Error) -> ApiError {
    let mut causes = anyhow::Chain::new(error);
    let is_malformed = causes.any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| {
            matches!(
                error.kind(),
                ErrorKind::InvalidInput | ErrorKind::InvalidData
            )
        })
    });
    if is_malformed {
        return ErrorCode::InvalidJson.into();
    }
    ApiError::HungUp
}

/// Reads a body whose [`most_bytes`] is within the limit.
pub(crate) async fn read_stream(max_body: usize, body: Body) -> Result<Bytes, ApiError> {
    let mut pieces = body.into_data_stream();
    let reading = async {
        let mut whole = BytesMut::new();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| broken_off(&error))?;
            if whole.len() + piece.len() > max_body {
                return Err(ApiError::with(ErrorCode::BodyTooLarge, max_body));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    };
    tokio::time::timeout(BODY_TIMEOUT, reading)
        .await
        .unwrap_or_else(|_| Err(ErrorCode::BodyTimeout.into()))
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn a_client_that_hangs_up_sends_no_invalid_json() {
        let broken = async |kind| {
            let pieces = [Ok("{"), Err(io::Error::from(kind))];
            read_stream(9, Body::from_stream(stream::iter(pieces))).await
        };
        for kind in [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset] {
            assert!(
                matches!(broken(kind).await, Err(ApiError::HungUp)),
                "{kind}"
            );
        }
        let malformed = broken(ErrorKind::InvalidData).await;
        assert!(
            matches!(malformed, Err(ApiError::Plain { code, .. }) if code == ErrorCode::InvalidJson)
        );
    }
}
