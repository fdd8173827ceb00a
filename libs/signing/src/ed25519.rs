//! The signatures of webhooks that a partner verifies with a public key, which Standard Webhooks
//! calls `v1a`. They stand in the header `webhook-signature` beside those by the endpoint's secrets
//! ([`crate::webhook`]).
//!
//! Such a signature is `v1a,` and the Base64 of the Ed25519 signature of
//! `{id}.{timestamp}.{raw body}`. One pair of keys signs the webhooks of all partners, so whoever
//! verifies them holds nothing with which it could forge one.
//!
//! `ring` does not wipe a key when it is dropped. The keys of a process live as long as the
//! process.

use std::sync::Arc;

use base64::Engine;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use crate::BASE64;

const SECRET: &str = "whsk_";
const PUBLIC: &str = "whpk_";
/// The length of a seed, and that of a public key.
const KEY: usize = 32;

/// A text is neither a key that signs webhooks nor one that verifies them. The message does not
/// repeat it.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "the key is not `whsk_` with the Base64 of 32 bytes, or of 64 bytes that end with its public key, or `whpk_` with \
     the Base64 of a public key; `openssl rand -base64 32` makes the 32 bytes"
)]
pub struct InvalidKey;

/// The keys of a system: those that sign, and those that are only published.
#[derive(Clone, Debug, Default)]
pub struct Ed25519Keys {
    signing: Vec<SigningKey>,
    published: Vec<PublicKey>,
}

impl Ed25519Keys {
    /// Whether a text is meant to be such a key.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(SECRET) || text.starts_with(PUBLIC)
    }

    /// Adds a key: `whsk_…` signs and its public half is published, `whpk_…` is published only.
    pub fn add(&mut self, text: &str) -> Result<(), InvalidKey> {
        if text.starts_with(PUBLIC) {
            self.published.push(PublicKey::parse(text)?);
        } else {
            let key = SigningKey::parse(text)?;
            self.published.push(key.public());
            self.signing.push(key);
        }
        Ok(())
    }

    /// The keys that sign, in the order in which they were added.
    pub fn signing(&self) -> &[SigningKey] {
        &self.signing
    }

    /// The public keys that partners verify with.
    pub fn published(&self) -> &[PublicKey] {
        &self.published
    }
}

/// A key that signs webhooks. `Debug` prints `[REDACTED]`.
#[derive(Clone)]
pub struct SigningKey(Arc<Ed25519KeyPair>);

impl SigningKey {
    /// Parses `whsk_<Base64>` of the seed, or of the seed and its public key, as other programs
    /// write it. A seed of zeros is refused, because it is a placeholder that everybody knows.
    pub fn parse(text: &str) -> Result<Self, InvalidKey> {
        let bytes = decoded(text, SECRET)?;
        let (seed, public) = bytes.split_at_checked(KEY).ok_or(InvalidKey)?;
        if seed.iter().all(|byte| *byte == 0) {
            return Err(InvalidKey);
        }
        let pair = if public.is_empty() {
            Ed25519KeyPair::from_seed_unchecked(seed)
        } else {
            Ed25519KeyPair::from_seed_and_public_key(seed, public)
        };
        pair.map(|pair| Self(Arc::new(pair)))
            .map_err(|_| InvalidKey)
    }

    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.public_key().as_ref().to_vec())
    }

    /// Makes one signature, `v1a,<Base64>`. `timestamp` is the Unix time of the attempt in seconds.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let signature = self.0.sign(&signed(id, timestamp, body));
        format!("v1a,{}", BASE64.encode(signature))
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey([REDACTED])")
    }
}

/// A key that verifies webhooks and can be given to anybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey(Vec<u8>);

impl PublicKey {
    /// Parses `whpk_<Base64>`.
    pub fn parse(text: &str) -> Result<Self, InvalidKey> {
        let bytes = decoded(text, PUBLIC)?;
        (bytes.len() == KEY)
            .then_some(Self(bytes))
            .ok_or(InvalidKey)
    }

    /// The form `whpk_<Base64>`.
    pub fn to_text(&self) -> String {
        format!("{PUBLIC}{}", BASE64.encode(&self.0))
    }

    /// Whether one of the signatures in `header`, which are separated by spaces, is valid. The age
    /// of the timestamp is not checked here; the caller has to do that.
    pub fn verify(&self, id: &str, timestamp: i64, body: &[u8], header: &str) -> bool {
        let signed = signed(id, timestamp, body);
        let key = UnparsedPublicKey::new(&ED25519, &self.0);
        header
            .split(' ')
            .filter_map(|signature| signature.strip_prefix("v1a,"))
            .filter_map(|signature| BASE64.decode(signature).ok())
            .any(|signature| key.verify(&signed, &signature).is_ok())
    }
}

fn decoded(text: &str, prefix: &str) -> Result<Vec<u8>, InvalidKey> {
    let encoded = text.trim().strip_prefix(prefix).ok_or(InvalidKey)?;
    BASE64.decode(encoded).map_err(|_| InvalidKey)
}

fn signed(id: &str, timestamp: i64, body: &[u8]) -> Vec<u8> {
    let timestamp = timestamp.to_string();
    [id.as_bytes(), b".", timestamp.as_bytes(), b".", body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIR: &str = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
    const ITS_PUBLIC: &str = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=";
    const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    const AT: i64 = 1_614_265_330;
    const BODY: &[u8] = br#"{"test": 2432232314}"#;
    const SIGNATURE: &str = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==";

    /// The test vector that other programs for Standard Webhooks publish.
    #[test]
    fn signs_the_published_vector() {
        let key = SigningKey::parse(PAIR).unwrap();
        assert_eq!(key.sign(ID, AT, BODY), SIGNATURE);
        assert_eq!(key.public().to_text(), ITS_PUBLIC);
        let public = PublicKey::parse(ITS_PUBLIC).unwrap();
        assert!(public.verify(ID, AT, BODY, &format!("v1,x {SIGNATURE}")));
        for (id, at, body, signature) in [
            ("msg_2", AT, BODY, SIGNATURE),
            (ID, AT + 1, BODY, SIGNATURE),
            (ID, AT, b"{}".as_slice(), SIGNATURE),
            (ID, AT, BODY, &SIGNATURE.replace("v1a,", "v1,")),
            (ID, AT, BODY, &SIGNATURE.replace("v1a,h", "v1a,i")),
            (ID, AT, BODY, "v1a,"),
        ] {
            assert!(!public.verify(id, at, body, signature), "{signature}");
        }
        assert!(!format!("{key:?}").contains("6Xb"));
    }

    #[test]
    fn the_seed_alone_is_the_same_key() {
        let seed = BASE64.encode(&decoded(PAIR, SECRET).unwrap()[..KEY]);
        let key = SigningKey::parse(&format!("whsk_{seed}")).unwrap();
        assert_eq!(key.public().to_text(), ITS_PUBLIC);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let other = BASE64.encode([&[7; KEY], &[8; KEY][..]].concat());
        let zeros = BASE64.encode([0; KEY]);
        for text in [
            "whsk_",
            "whpk_",
            "whsk_%%",
            "whsk_AAAA",
            "whpk_AAAA",
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            &format!("whsk_{other}"),
            &format!("whsk_{zeros}"),
            &PAIR.replace(SECRET, PUBLIC),
        ] {
            assert_eq!(Ed25519Keys::default().add(text), Err(InvalidKey), "{text}");
        }
        let mut keys = Ed25519Keys::default();
        keys.add(PAIR).unwrap();
        keys.add(&format!("whpk_{}", BASE64.encode([9; KEY])))
            .unwrap();
        assert_eq!((keys.signing().len(), keys.published().len()), (1, 2));
    }
}
