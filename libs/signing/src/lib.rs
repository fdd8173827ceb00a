//! All signatures of the system, and the keys and secrets for them. It signs or verifies partners'
//! requests ([`request`]), webhooks ([`webhook`], and [`ed25519`] with a public key), calls to the
//! providers USIMSA ([`usimsa`]) and eSIM Access ([`esim_access`]), webhooks of Airalo
//! ([`airalo`]), and the URLs of QR pictures ([`qr`]). It also computes the form in which
//! PostgreSQL stores passwords ([`scram`]), because that is made of MACs, too, the one-time
//! [`code`]s that verify a channel for notices, and the [`password`]s and [`token`]s with which
//! operators sign in at the console.
//!
//! No other crate computes or compares a MAC, so what has to be right about it can be reviewed
//! here. A signature is compared in constant time, so that the time of a refusal does not show an
//! attacker how many of its bytes are right. `Debug` never prints a key, and dropping a key wipes
//! its bytes.

pub mod airalo;
pub mod code;
pub mod ed25519;
pub mod esim_access;
pub mod generate;
pub mod password;
pub mod qr;
pub mod request;
pub mod scram;
pub mod token;
pub mod usimsa;
pub mod webhook;

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use sha2::{Sha256, Sha512};
use subtle::ConstantTimeEq;

/// Standard Base64. Decoding accepts missing padding, because partners' tools differ in whether
/// they write it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A text or its bytes cannot be used as a secret. The messages never repeat the text.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidSecret {
    #[error("the secret is not valid Base64")]
    NotBase64,
    /// The text decodes to no bytes. Anybody could sign with such a key.
    #[error("the secret is empty")]
    Empty,
    #[error("the key is shorter than 32 bytes; `openssl rand -base64 32` makes one")]
    TooShort,
    #[error("the webhook secret does not start with whsec_")]
    MissingPrefix,
    /// A token is part of a URL, so its characters are limited, and it must be too long to be
    /// guessed.
    #[error("the token does not consist of at least 16 letters, digits, `-` or `_`")]
    NotAToken,
}

/// A key for HMAC. `Debug` prints `[REDACTED]`, and dropping the key wipes its bytes.
#[derive(Clone, Debug)]
pub struct SecretKey(SecretSlice<u8>);

impl SecretKey {
    /// Wraps the decoded bytes, which must not be empty.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, InvalidSecret> {
        if bytes.is_empty() {
            return Err(InvalidSecret::Empty);
        }
        Ok(Self(bytes.into()))
    }

    /// Decodes the Base64 form in which partners and operators get their keys. White space around
    /// it is ignored.
    pub fn from_base64(text: &str) -> Result<Self, InvalidSecret> {
        Self::from_bytes(
            BASE64
                .decode(text.trim())
                .map_err(|_| InvalidSecret::NotBase64)?,
        )
    }

    /// The Base64 form for the partner. It is the secret itself, so never log it.
    pub fn to_base64(&self) -> String {
        BASE64.encode(self.0.expose_secret())
    }

    /// The bytes, for encryption at rest. They are the secret itself, so never log them.
    pub fn expose(&self) -> &[u8] {
        self.0.expose_secret()
    }

    /// HMAC-SHA256 over the concatenated parts.
    fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        // HMAC accepts keys of every length, so this never fails. If it did, the all-zero MAC would
        // not match a signature that a partner computed.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(self.0.expose_secret()) else {
            return [0; 32];
        };
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }

    /// HMAC-SHA512.
    fn long_mac(&self, content: &[u8]) -> [u8; 64] {
        // As above, this never fails, and nobody could compute such a MAC.
        let Ok(mut mac) = Hmac::<Sha512>::new_from_slice(self.0.expose_secret()) else {
            return [0; 64];
        };
        mac.update(content);
        mac.finalize().into_bytes().into()
    }
}

/// The secret part of the URL to which a provider sends its callbacks. A caller that knows it must
/// be the provider, because nobody else was told the URL. `Debug` prints `[REDACTED]`.
#[derive(Clone, Debug)]
pub struct CallbackToken(SecretString);

impl CallbackToken {
    /// Accepts a text of at least 16 letters, digits, `-` or `_`.
    pub fn parse(text: &str) -> Result<Self, InvalidSecret> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if text.len() >= 16 && text.bytes().all(plain) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidSecret::NotAToken)
        }
    }

    /// Whether `given` is this token. The comparison takes constant time.
    pub fn is(&self, given: &str) -> bool {
        same(self.0.expose_secret().as_bytes(), given.as_bytes())
    }
}

fn same(left: &[u8], right: &[u8]) -> bool {
    left.ct_eq(right).into()
}

/// Parses a Unix time that consists of ASCII digits only. A text with a sign, a blank or a fraction
/// is refused.
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
        assert_eq!(
            SecretKey::from_base64("").unwrap_err(),
            InvalidSecret::Empty
        );
        let printed = format!("{:?}", SecretKey::from_base64("a2V5cw==").unwrap());
        assert!(
            printed.contains("REDACTED") && !printed.contains("keys"),
            "{printed}"
        );
    }

    #[test]
    fn a_token_is_long_and_fits_into_a_url() {
        let token = CallbackToken::parse("0123456789-abc_DEF").unwrap();
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
            assert_eq!(
                CallbackToken::parse(bad).unwrap_err(),
                InvalidSecret::NotAToken,
                "{bad}"
            );
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
