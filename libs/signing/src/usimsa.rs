//! The signature of the USIMSA protocol, which is sent in the header `x-gat-signature`. The
//! provisioner signs its calls with it, and the sandbox provider, which speaks the same protocol,
//! checks it.
//!
//! It is the Base64 of the HMAC-SHA256 of `METHOD path?query<LF>timestamp<LF>access key`. The
//! timestamp is in milliseconds.

use crate::{BASE64, SecretKey, same};
use base64::Engine;

/// Signs a call. `path_and_query` begins with `/api`, and `timestamp` is the text of the header
/// `x-gat-timestamp`.
pub fn sign(
    secret: &SecretKey,
    method: &str,
    path_and_query: &str,
    timestamp: &str,
    access_key: &str,
) -> String {
    let [method, path, timestamp, access_key] =
        [method, path_and_query, timestamp, access_key].map(str::as_bytes);
    BASE64.encode(secret.mac(&[method, b" ", path, b"\n", timestamp, b"\n", access_key]))
}

/// Whether `signature` is the signature of the call.
pub fn verify(
    secret: &SecretKey,
    method: &str,
    path_and_query: &str,
    timestamp: &str,
    access_key: &str,
    signature: &str,
) -> bool {
    let expected = sign(secret, method, path_and_query, timestamp, access_key);
    same(expected.as_bytes(), signature.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected value comes from openssl, as in the tests of [`crate::request`].
    #[test]
    fn signs_as_openssl_does() {
        let secret = SecretKey::from_base64("c2VjcmV0LWtleQ==").unwrap();
        let signature = sign(&secret, "GET", "/api/v2/order/a?b=c", "1700000000000", "AK");
        assert_eq!(signature, "cqLpAL8g3QYLt4RP7qxE6uXRVCXdxTvghe3FOHXyz84=");
        for (path, signed) in [("/api/v2/order/a?b=c", true), ("/api/v2/order/a", false)] {
            assert_eq!(
                verify(&secret, "GET", path, "1700000000000", "AK", &signature),
                signed,
                "{path}"
            );
        }
    }
}
