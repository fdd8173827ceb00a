//! `webhook-signature`, the signature of a webhook, as Standard Webhooks defines it: `v1,` and the Base64 of HMAC-SHA256
//! over `{id}.{timestamp}.{raw body}`, keyed with the bytes after `whsec_`.

use crate::{BASE64, InvalidSecret, SecretKey, same};
use base64::Engine;

const PREFIX: &str = "whsec_";

/// The value of `webhook-signature`: one signature by each of the `secrets`, separated by spaces. `timestamp` is the
/// Unix time of the attempt in seconds.
pub fn signatures(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8]) -> String {
    secrets.iter().map(|secret| secret.sign(id, timestamp, body)).collect::<Vec<_>>().join(" ")
}

/// A partner's webhook secret.
#[derive(Clone, Debug)]
pub struct Secret(pub(crate) SecretKey);

impl Secret {
    /// Wraps the decoded bytes; they must not be empty.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, InvalidSecret> {
        SecretKey::from_bytes(bytes).map(Self)
    }

    /// Parses `whsec_<Base64>`.
    pub fn parse(text: &str) -> Result<Self, InvalidSecret> {
        let encoded = text.trim().strip_prefix(PREFIX).ok_or(InvalidSecret::MissingPrefix)?;
        SecretKey::from_base64(encoded).map(Self)
    }

    /// The `whsec_` form for the partner: a secret.
    pub fn to_text(&self) -> String {
        format!("{PREFIX}{}", self.0.to_base64())
    }

    /// The bytes for encryption at rest: a secret.
    pub fn expose(&self) -> &[u8] {
        self.0.expose()
    }

    /// One signature, `v1,<Base64>`. `timestamp` is the Unix time in seconds of this attempt.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let timestamp = timestamp.to_string();
        let mac = self.0.mac(&[id.as_bytes(), b".", timestamp.as_bytes(), b".", body]);
        format!("v1,{}", BASE64.encode(mac))
    }

    /// Whether one of the header's space-separated signatures is valid. The caller checks the age of the timestamp.
    pub fn verify(&self, id: &str, timestamp: i64, body: &[u8], header: &str) -> bool {
        let expected = self.sign(id, timestamp, body);
        header.split(' ').any(|signature| same(expected.as_bytes(), signature.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector that the Standard Webhooks libraries share.
    #[test]
    fn signs_the_published_vector() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let (id, timestamp, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
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
        assert_eq!(Secret::parse("MfKQ9r8G").unwrap_err(), InvalidSecret::MissingPrefix);
    }
}
