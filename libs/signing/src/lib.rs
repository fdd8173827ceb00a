//! All signatures of the system. No other crate uses `hmac` or `subtle`. Comparisons take constant time.

pub mod generate;
pub mod qr;
pub mod request;
pub mod scram;
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

/// Standard Base64; decoding accepts missing padding, because partners' tools differ.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// An unusable secret.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidSecret {
    #[error("the secret is not valid Base64")]
    NotBase64,
    /// The text decodes to no bytes, so anyone could sign with it.
    #[error("the secret is empty")]
    Empty,
    #[error("the key is shorter than 32 bytes")]
    TooShort,
    #[error("the webhook secret does not start with whsec_")]
    MissingPrefix,
    /// A token is part of a URL and must not be guessable.
    #[error("the token is not at least 16 letters, digits, `-` or `_`")]
    NotAToken,
}

/// An HMAC key. `Debug` prints `[REDACTED]`; dropping it wipes the bytes.
#[derive(Clone, Debug)]
pub struct SecretKey(SecretSlice<u8>);

impl SecretKey {
    /// Wraps the decoded bytes; they must not be empty.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, InvalidSecret> {
        if bytes.is_empty() {
            return Err(InvalidSecret::Empty);
        }
        Ok(Self(bytes.into()))
    }

    /// Decodes the Base64 form that partners get.
    pub fn from_base64(text: &str) -> Result<Self, InvalidSecret> {
        Self::from_bytes(BASE64.decode(text.trim()).map_err(|_| InvalidSecret::NotBase64)?)
    }

    /// The Base64 form for the partner: a secret.
    pub fn to_base64(&self) -> String {
        BASE64.encode(self.0.expose_secret())
    }

    /// The bytes for encryption at rest: a secret.
    pub fn expose(&self) -> &[u8] {
        self.0.expose_secret()
    }

    /// HMAC-SHA256 over the concatenated parts.
    fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        // HMAC accepts every key length, so this never fails; an all-zero MAC would still be denied.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(self.0.expose_secret()) else {
            return [0; 32];
        };
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

/// A secret in a callback URL. `Debug` prints `[REDACTED]`.
#[derive(Clone, Debug)]
pub struct Token(SecretString);

impl Token {
    /// Checks for at least 16 letters, digits, `-` or `_`.
    pub fn parse(text: &str) -> Result<Self, InvalidSecret> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if text.len() >= 16 && text.bytes().all(plain) { Ok(Self(text.into())) } else { Err(InvalidSecret::NotAToken) }
    }

    /// Compares in constant time.
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
        assert_eq!(SecretKey::from_base64("%%").unwrap_err(), InvalidSecret::NotBase64);
        assert_eq!(SecretKey::from_base64("").unwrap_err(), InvalidSecret::Empty);
        let printed = format!("{:?}", SecretKey::from_base64("a2V5cw==").unwrap());
        assert!(printed.contains("REDACTED") && !printed.contains("keys"), "{printed}");
    }

    #[test]
    fn a_token_is_long_and_fits_into_a_url() {
        let token = Token::parse("0123456789-abc_DEF").unwrap();
        assert!(token.is("0123456789-abc_DEF"));
        assert!(!token.is("0123456789-abc_DEG") && !token.is("") && !token.is("0123456789-abc_DE"));
        assert!(!format!("{token:?}").contains("0123"));
        for bad in ["", "short", "0123456789/abcdef", "0123456789abcde", "0123456789abcdeé"] {
            assert_eq!(Token::parse(bad).unwrap_err(), InvalidSecret::NotAToken, "{bad}");
        }
    }

    #[test]
    fn unix_times_are_plain_digits() {
        assert_eq!(parse_unix_time("1700000000"), Some(1_700_000_000));
        for bad in ["", "+1700000000", "-1", " 1", "1.0", "1e9", "99999999999999999999", "١٢"] {
            assert_eq!(parse_unix_time(bad), None, "{bad}");
        }
    }
}
