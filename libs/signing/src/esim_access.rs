//! The signature of the eSIM Access protocol, which is sent in the header `RT-Signature`. The
//! provisioner signs its calls with it, and the sandbox provider checks it.
//!
//! It is the lowercase hex of the HMAC-SHA256 of the timestamp in milliseconds, the id of the
//! request, the access code and the body, without anything between them. The characters of the
//! account's secret are the key.

use crate::{SecretKey, same};

/// Signs a call. `timestamp` and `request_id` are the texts of their headers.
pub fn sign(
    secret: &SecretKey,
    timestamp: &str,
    request_id: &str,
    access_code: &str,
    body: &[u8],
) -> String {
    let [timestamp, request_id, access_code] =
        [timestamp, request_id, access_code].map(str::as_bytes);
    hex::encode(secret.mac(&[timestamp, request_id, access_code, body]))
}

/// Whether `signature` is the signature of the call.
pub fn verify(
    secret: &SecretKey,
    timestamp: &str,
    request_id: &str,
    access_code: &str,
    body: &[u8],
    signature: &str,
) -> bool {
    let expected = sign(secret, timestamp, request_id, access_code, body);
    same(expected.as_bytes(), signature.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the provider's documentation; openssl computes the same.
    #[test]
    fn signs_as_the_documentation_does() {
        let secret = SecretKey::from_bytes(b"1111".to_vec()).unwrap();
        let body = br#"{"imsi":"326543826"}"#;
        let id = "4ce9d9cdac9e4e17b3a2c66c358c1ce2";
        let signature = sign(&secret, "1628670421", id, "11111", body);
        assert_eq!(
            signature,
            "7eb765e27df5373dea2dbc8c41a7d9557743e46c8054750f3d851b3fd01d0835"
        );
        assert!(verify(&secret, "1628670421", id, "11111", body, &signature));
        assert!(!verify(
            &secret,
            "1628670421",
            id,
            "11111",
            b"{}",
            &signature
        ));
    }
}
