//! The signature of Airalo's webhooks, which is sent in the header `airalo-signature`. The
//! provisioner checks it.
//!
//! It is the lowercase hex of the HMAC-SHA512 of the body. The characters of the account's client
//! secret are the key.

use crate::{SecretKey, same};

/// Signs a webhook with this body.
pub fn sign(secret: &SecretKey, body: &[u8]) -> String {
    hex::encode(secret.long_mac(body))
}

/// Whether `signature` is the signature of the body.
pub fn verify(secret: &SecretKey, body: &[u8], signature: &str) -> bool {
    same(sign(secret, body).as_bytes(), signature.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected value comes from openssl, as in the tests of [`crate::request`].
    #[test]
    fn signs_as_openssl_does() {
        let secret = SecretKey::from_bytes(b"1111".to_vec()).unwrap();
        let body = br#"{"level":"90%"}"#;
        let signature = sign(&secret, body);
        let expected = "3291642af8d7f3570cabf7558675aac24196249f822755f96830f090dffb2b2f\
                        bb62be699ccea41797fd46c9d5edf17a35f94a5fab011ee945e84c294791dc62";
        assert_eq!(signature, expected);
        assert!(verify(&secret, body, &signature));
        assert!(!verify(&secret, b"{}", &signature));
        assert!(!verify(&secret, body, ""));
    }
}
