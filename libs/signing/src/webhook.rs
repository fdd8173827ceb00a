//! The signature of a webhook, which is sent in the header `webhook-signature`. Partners can check
//! it with any library for Standard Webhooks.
//!
//! As Standard Webhooks defines it, it is `v1,` and the Base64 of the HMAC-SHA256 of
//! `{id}.{timestamp}.{raw body}`. The key is the bytes that follow `whsec_` in the secret, decoded
//! from Base64.

use crate::{BASE64, InvalidSecret, SecretKey, ed25519::SigningKey, same};
use base64::Engine;

const PREFIX: &str = "whsec_";

/// What signs a webhook. There are two secrets while a secret is being replaced, so that the
/// partner can check with the old or the new one. The same holds for the keys.
#[derive(Clone, Copy, Debug)]
pub struct Signers<'a> {
    /// Those of the endpoint, the newest first.
    pub secrets: &'a [Secret],
    /// Our own, for partners that verify by a public key.
    pub keys: &'a [SigningKey],
}

impl Signers<'_> {
    /// The value of the header `webhook-signature`: a signature by each secret and then by each
    /// key, separated by spaces. `timestamp` is the Unix time of the attempt in seconds.
    pub fn signatures(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let by_secrets = self
            .secrets
            .iter()
            .map(|secret| secret.sign(id, timestamp, body));
        let by_keys = self.keys.iter().map(|key| key.sign(id, timestamp, body));
        by_secrets.chain(by_keys).collect::<Vec<_>>().join(" ")
    }
}

/// A partner's webhook secret.
#[derive(Clone, Debug)]
pub struct Secret(pub(crate) SecretKey);

impl Secret {
    /// Wraps the decoded bytes, which must not be empty.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, InvalidSecret> {
        SecretKey::from_bytes(bytes).map(Self)
    }

    /// Parses `whsec_<Base64>`.
    pub fn parse(text: &str) -> Result<Self, InvalidSecret> {
        let encoded = text
            .trim()
            .strip_prefix(PREFIX)
            .ok_or(InvalidSecret::MissingPrefix)?;
        SecretKey::from_base64(encoded).map(Self)
    }

    /// The form `whsec_<Base64>` for the partner. It is the secret itself, so never log it.
    pub fn to_text(&self) -> String {
        format!("{PREFIX}{}", self.0.to_base64())
    }

    /// The bytes, for encryption at rest. They are the secret itself, so never log them.
    pub fn expose(&self) -> &[u8] {
        self.0.expose()
    }

    /// Makes one signature, `v1,<Base64>`. `timestamp` is the Unix time of the attempt in seconds.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let timestamp = timestamp.to_string();
        let mac = self
            .0
            .mac(&[id.as_bytes(), b".", timestamp.as_bytes(), b".", body]);
        format!("v1,{}", BASE64.encode(mac))
    }

    /// Whether one of the signatures in `header`, which are separated by spaces, is valid. The age
    /// of the timestamp is not checked here; the caller has to do that.
    pub fn verify(&self, id: &str, timestamp: i64, body: &[u8], header: &str) -> bool {
        let expected = self.sign(id, timestamp, body);
        header
            .split(' ')
            .any(|signature| same(expected.as_bytes(), signature.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vector that the libraries of Standard Webhooks share.
    #[test]
    fn signs_the_published_vector() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
        let timestamp = 1_614_265_330;
        let body = br#"{"test": 2432232314}"#;
        let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(secret.sign(id, timestamp, body), signature);
        assert!(secret.verify(id, timestamp, body, &format!("v1,other {signature}")));
        assert!(!secret.verify(id, timestamp + 1, body, signature));
        assert!(!secret.verify(id, timestamp, b"{}", signature));
    }

    #[test]
    fn secrets_round_trip_and_need_their_prefix() {
        let secret = Secret::from_bytes(vec![7; 24]).unwrap();
        assert_eq!(Secret::parse(&secret.to_text()).unwrap().expose(), [7; 24]);
        assert_eq!(
            Secret::parse("MfKQ9r8G").unwrap_err(),
            InvalidSecret::MissingPrefix
        );
    }
}
