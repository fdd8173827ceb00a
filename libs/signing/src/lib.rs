//! Every signature of the system, and the only user of `hmac` and `subtle`.
//!
//! - [`request`]: what a partner puts in `X-Service-Signature`.
//! - [`webhook`]: what we put in `webhook-signature` (Standard Webhooks).
//! - [`usimsa`]: what we put in `x-gat-signature` when we call a provider of that protocol.
//!
//! All comparisons take the same time wherever the first difference is.

pub mod request;
pub mod usimsa;
pub mod webhook;

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// Standard Base64 that also takes input without padding: partners paste keys from many tools.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A secret isn't usable as a key.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidSecret {
    /// The text isn't Base64.
    #[error("the secret is not valid Base64")]
    NotBase64,
    /// The text decodes to no bytes at all: anybody could sign with that.
    #[error("the secret is empty")]
    Empty,
    /// A webhook secret must start with `whsec_`.
    #[error("the webhook secret does not start with whsec_")]
    MissingPrefix,
    /// A token is part of a URL, and mustn't be guessed.
    #[error("the token is not at least 16 letters, digits, `-` or `_`")]
    NotAToken,
}

/// The bytes of an HMAC key. Prints as `[REDACTED]`, is wiped when dropped.
#[derive(Clone, Debug)]
pub struct SecretKey(SecretSlice<u8>);

impl SecretKey {
    /// Takes the decoded bytes of a key.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, InvalidSecret> {
        if bytes.is_empty() {
            return Err(InvalidSecret::Empty);
        }
        Ok(Self(bytes.into()))
    }

    /// Decodes a key from Base64, the form in which it is handed to partners.
    pub fn from_base64(text: &str) -> Result<Self, InvalidSecret> {
        let bytes = BASE64.decode(text.trim()).map_err(|_| InvalidSecret::NotBase64)?;
        Self::from_bytes(bytes)
    }

    /// The key in Base64: a secret, for the one who is to hold it.
    pub fn to_base64(&self) -> String {
        BASE64.encode(self.0.expose_secret())
    }

    /// The key's bytes: a secret, for encryption at rest.
    pub fn expose(&self) -> &[u8] {
        self.0.expose_secret()
    }

    /// HMAC-SHA256 over the parts, one after the other.
    fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        // HMAC takes keys of every length, so this never fails; an all-zero result would still deny.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(self.0.expose_secret()) else {
            return [0; 32];
        };
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

/// A secret that a caller has to know, as part of a URL. Prints as `[REDACTED]`.
#[derive(Clone, Debug)]
pub struct Token(SecretString);

impl Token {
    /// Takes a text of at least 16 letters, digits, `-` or `_`.
    pub fn parse(text: &str) -> Result<Self, InvalidSecret> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if text.len() >= 16 && text.bytes().all(plain) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidSecret::NotAToken)
        }
    }

    /// Whether this is what the caller gave.
    pub fn is(&self, given: &str) -> bool {
        same(self.0.expose_secret().as_bytes(), given.as_bytes())
    }
}

fn same(left: &[u8], right: &[u8]) -> bool {
    left.ct_eq(right).into()
}

/// Parses a Unix time written as plain ASCII digits; signs, blanks and fractions are no digits.
pub fn parse_unix_time(text: &str) -> Option<i64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_decoded_with_and_without_padding() {
        let padded = SecretKey::from_base64("a2V5cw==").unwrap();
        let bare = SecretKey::from_base64("a2V5cw").unwrap();
        assert_eq!(padded.expose(), b"keys");
        assert_eq!(bare.expose(), b"keys");
        assert_eq!(padded.to_base64(), "a2V5cw==");
    }

    #[test]
    fn unusable_keys_are_refused_and_good_ones_never_printed() {
        assert_eq!(
            SecretKey::from_base64("%%").unwrap_err(),
            InvalidSecret::NotBase64
        );
        assert_eq!(SecretKey::from_base64("").unwrap_err(), InvalidSecret::Empty);
        let printed = format!("{:?}", SecretKey::from_base64("a2V5cw==").unwrap());
        assert!(
            printed.contains("REDACTED") && !printed.contains("keys"),
            "{printed}"
        );
    }

    #[test]
    fn a_token_is_long_and_fits_into_a_url() {
        let token = Token::parse("0123456789-abc_DEF").unwrap();
        assert!(token.is("0123456789-abc_DEF"));
        assert!(!token.is("0123456789-abc_DEG") && !token.is("") && !token.is("0123456789-abc_DE"));
        assert!(!format!("{token:?}").contains("0123"));
        for bad in [
            "",
            "short",
            "0123456789/abcdef",
            "0123456789abcde",
            "0123456789abcdeé",
        ] {
            assert_eq!(Token::parse(bad).unwrap_err(), InvalidSecret::NotAToken, "{bad}");
        }
    }

    #[test]
    fn unix_times_are_plain_digits() {
        assert_eq!(parse_unix_time("1700000000"), Some(1_700_000_000));
        for bad in [
            "",
            "+1700000000",
            "-1",
            " 1",
            "1.0",
            "1e9",
            "99999999999999999999",
            "١٢",
        ] {
            assert_eq!(parse_unix_time(bad), None, "{bad}");
        }
    }
}
