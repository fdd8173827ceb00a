//! Secrets at rest: they are sealed (encrypted with XChaCha20-Poly1305 under a master key) before
//! they are stored, so that a copy of the database shows none.
//!
//! Guarantee: a sealed value opens only for the purpose and the row that it was sealed for, because
//! both are authenticated together with the ciphertext. A value that was moved to another row, or
//! changed, does not open. The modules `accounts::partners` and `accounts::profile` and the
//! services seal and open values; `desk::master_key` seals all of them again under a new key.
//!
//! The format of a sealed value:
//!
//! ```text
//! length of the key id (1 byte) | key id | nonce (24 bytes) | ciphertext with its tag
//! ```
//!
//! The key id is in plain text, so the right key is found at once and the values of each key can be
//! counted.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_STANDARD};
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use domain::{DeliveryId, EndpointId, KeyId, PartnerId, TopupId};
use hmac::{Hmac, Mac};
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use sha2::Sha256;
use signing::ed25519;

/// The length of a master key in bytes.
const KEY: usize = 32;
const NONCE: usize = 24;
const LONGEST_ID: usize = 32;
/// The number of bytes at the start of a sealed value that hold its key id, at most.
pub const HEAD: usize = 1 + LONGEST_ID;

/// The id of the keys in examples, such as `example:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=`.
/// They are refused, and so is a key of zeros under any id, because a published key protects
/// nothing.
const EXAMPLE_ID: &str = "example";

/// What a master key encrypts. Each kind can have a key of its own, so that a stage holds only the
/// keys that it needs. Ingress holds all three: it checks requests, and its self-service replaces
/// webhook secrets and shows eSIMs to their partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Keyring {
    /// Partners' request-signing keys: ingress.
    Partners,
    /// Webhook secrets, and the headers of further endpoints: the notifier signs with them or sends
    /// them, and ingress replaces them.
    Webhooks,
    /// Profiles, and responses of endpoints that may repeat them: the provisioner seals profiles,
    /// the notifier sends them and seals the responses, and ingress shows both in self-service.
    Profiles,
}

impl Keyring {
    pub const ALL: [Self; 3] = [Self::Partners, Self::Webhooks, Self::Profiles];
}

/// The kind and the row of a sealed value. It opens only for the same kind and row.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// A partner's request-signing key.
    SecretKey(PartnerId),
    /// A further request-signing key of a partner.
    FurtherKey(PartnerId, KeyId),
    /// The webhook-signing key of a partner's first endpoint.
    WebhookSecret(PartnerId),
    /// The webhook-signing key of a further endpoint.
    EndpointSecret(EndpointId),
    /// The headers of an endpoint.
    EndpointHeaders(EndpointId),
    /// The profile of a topup.
    Profile(&'a TopupId),
    /// An endpoint's response to a delivery attempt, which is numbered from 0.
    Response(DeliveryId, u32),
}

impl Purpose<'_> {
    pub fn keyring(self) -> Keyring {
        match self {
            Self::SecretKey(_) | Self::FurtherKey(..) => Keyring::Partners,
            Self::WebhookSecret(_) | Self::EndpointSecret(_) | Self::EndpointHeaders(_) => {
                Keyring::Webhooks
            }
            Self::Profile(_) | Self::Response(..) => Keyring::Profiles,
        }
    }

    fn associated_data(self) -> String {
        match self {
            Self::SecretKey(id) => format!("partners.secret_key/{id}"),
            Self::FurtherKey(partner, id) => format!("partner_keys.secret_key/{partner}/{id}"),
            Self::WebhookSecret(id) => format!("partners.webhook_secret/{id}"),
            Self::EndpointSecret(id) => format!("further_endpoints.secret/{id}"),
            Self::EndpointHeaders(id) => format!("further_endpoints.headers/{id}"),
            Self::Profile(id) => format!("topups.profile/{id}"),
            Self::Response(id, attempt) => {
                format!("delivery_attempts.response_start/{id}/{attempt}")
            }
        }
    }
}

/// Why master keys or a sealed value cannot be used. The texts show no secret.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum VaultError {
    #[error(
        "master key number {0} is not of the form <id>:<Base64 of 32 bytes> with an id of 1 to 32 characters"
    )]
    BadKey(usize),
    #[error("master key number {0} is an example; make one with `esimctl master-key create FILE`")]
    Example(usize),
    #[error(
        "there is no master key: set MASTER_KEY or MASTER_KEY_FILE (`esimctl master-key create FILE` makes one)"
    )]
    NoKey,
    #[error("entry number {0} of the master keys: {1}")]
    BadWebhookKey(usize, ed25519::InvalidKey),
    #[error("two master keys have the id {0:?}")]
    DuplicateKey(String),
    #[error("this program holds no master key for {0}")]
    NotHeld(Keyring),
    #[error("a stored secret needs the master key {0:?}, which is not configured")]
    MissingKey(String),
    /// The value was changed, or it belongs to another row or purpose.
    #[error("a stored secret cannot be decrypted")]
    Damaged,
}

#[derive(Clone)]
struct MasterKey {
    id: String,
    cipher: XChaCha20Poly1305,
    /// Computes digests. Its key is derived from the master key, so that no key has two uses.
    digest: HmacSha256,
}

type HmacSha256 = Hmac<Sha256>;

/// The length of a digest in bytes. It is long enough that two texts never share one.
const DIGEST: usize = 16;

/// What is written in a setting, before a vault uses it.
#[derive(Default)]
struct Written {
    master_keys: Vec<(String, SecretSlice<u8>)>,
    webhook_keys: ed25519::Ed25519Keys,
}

/// The master keys by purpose. The first key of a purpose seals, and all of them open, so a key can
/// be rotated. Clones are cheap.
#[derive(Clone)]
pub struct Vault(Arc<Held>);

struct Held {
    rings: Vec<(Keyring, Vec<MasterKey>)>,
    webhook_keys: ed25519::Ed25519Keys,
}

impl Vault {
    /// A vault with the same keys for all purposes.
    ///
    /// The keys have the form `<id>:<Base64 of 32 bytes>` and are separated by commas or line ends.
    /// An entry that begins with `#` is a comment. One that begins with `whsk_` or `whpk_` is no
    /// master key, but a key of [`Vault::webhook_keys`].
    pub fn parse(text: &SecretString) -> Result<Self, VaultError> {
        Self::of(&Keyring::ALL.map(|ring| (ring, text)))
    }

    /// A vault with these keys. Two different keys with the same id are refused, even if they are
    /// for two purposes, because an id in a sealed value must name one key.
    pub fn of(rings: &[(Keyring, &SecretString)]) -> Result<Self, VaultError> {
        let mut all: Vec<(Keyring, Written)> = Vec::new();
        for (ring, text) in rings {
            let keys = written(text)?;
            for (id, bytes) in &keys.master_keys {
                for (other, with) in all.iter().flat_map(|(_, keys)| &keys.master_keys) {
                    if other == id && with.expose_secret() != bytes.expose_secret() {
                        return Err(VaultError::DuplicateKey(id.clone()));
                    }
                }
            }
            all.push((*ring, keys));
        }
        let key = |(id, bytes): (String, SecretSlice<u8>)| {
            let hmac =
                |key: &[u8]| HmacSha256::new_from_slice(key).map_err(|_| VaultError::Damaged);
            let cipher = XChaCha20Poly1305::new_from_slice(bytes.expose_secret())
                .map_err(|_| VaultError::Damaged)?;
            let derived = hmac(bytes.expose_secret())?.chain_update(b"digest");
            let digest = hmac(&derived.finalize().into_bytes())?;
            Ok(MasterKey { id, cipher, digest })
        };
        let mut held = Held {
            rings: Vec::new(),
            webhook_keys: ed25519::Ed25519Keys::default(),
        };
        for (ring, written) in all {
            let keys = written.master_keys.into_iter().map(key);
            held.rings.push((ring, keys.collect::<Result<_, _>>()?));
            if ring == Keyring::Webhooks {
                held.webhook_keys = written.webhook_keys;
            }
        }
        Ok(Self(Arc::new(held)))
    }

    /// The pairs of keys for webhooks that are verified with a public key. They stand among the
    /// master keys for webhooks, because who holds those can forge a webhook anyway. There are none
    /// if the vault holds no keys for webhooks.
    pub fn webhook_keys(&self) -> &ed25519::Ed25519Keys {
        &self.0.webhook_keys
    }

    fn keys(&self, ring: Keyring) -> Result<&[MasterKey], VaultError> {
        let held = self.0.rings.iter().find(|(held, _)| *held == ring);
        held.map(|(_, keys)| keys.as_slice())
            .ok_or(VaultError::NotHeld(ring))
    }

    /// Whether the vault has keys for this purpose.
    pub fn holds(&self, ring: Keyring) -> bool {
        self.keys(ring).is_ok()
    }

    /// The ids of the keys for a purpose; the first one seals.
    pub fn key_ids(&self, ring: Keyring) -> impl Iterator<Item = &str> {
        self.keys(ring)
            .unwrap_or_default()
            .iter()
            .map(|key| key.id.as_str())
    }

    /// The prefix of all values that the first key of a purpose has sealed.
    pub fn first_prefix(&self, ring: Keyring) -> Result<Vec<u8>, VaultError> {
        let id = &self.keys(ring)?.first().ok_or(VaultError::NoKey)?.id;
        let id_length = u8::try_from(id.len()).map_err(|_| VaultError::Damaged)?;
        Ok([&[id_length], id.as_bytes()].concat())
    }

    /// Seals a secret for one purpose, under the first key for it.
    pub fn seal(&self, purpose: Purpose<'_>, secret: &[u8]) -> Result<Vec<u8>, VaultError> {
        let key = self
            .keys(purpose.keyring())?
            .first()
            .ok_or(VaultError::NoKey)?;
        let nonce: [u8; NONCE] = rand::random();
        let aad = purpose.associated_data();
        let sealed = key
            .cipher
            .encrypt(
                &XNonce::from(nonce),
                Payload {
                    msg: secret,
                    aad: aad.as_bytes(),
                },
            )
            .map_err(|_| VaultError::Damaged)?;
        Ok([&self.first_prefix(purpose.keyring())?, &nonce[..], &sealed].concat())
    }

    /// The digest of a text under the first key for a purpose. Without the key nobody can tell
    /// which text it belongs to, and a guess cannot be checked.
    pub fn digest(&self, ring: Keyring, text: &[u8]) -> Result<Vec<u8>, VaultError> {
        let key = self.keys(ring)?.first().ok_or(VaultError::NoKey)?;
        let digest = key.digest.clone().chain_update(text).finalize();
        Ok(digest.into_bytes()[..DIGEST].to_vec())
    }

    /// Whether it is the digest of a text under any of the keys for a purpose, so that a digest
    /// stays good while its key is replaced. The comparison takes constant time.
    pub fn is_digest(&self, ring: Keyring, text: &[u8], given: &[u8]) -> Result<bool, VaultError> {
        let keys = self.keys(ring)?;
        let is_digest = |key: &MasterKey| {
            let digest = key.digest.clone().chain_update(text);
            digest.verify_truncated_left(given).is_ok()
        };
        // Each key is asked, also after one has agreed.
        let agree = keys.iter().filter(|key| is_digest(key)).count();
        Ok(given.len() == DIGEST && agree > 0)
    }

    /// Opens a value and seals it again under the first key for its purpose.
    pub fn reseal(&self, purpose: Purpose<'_>, sealed: &[u8]) -> Result<Vec<u8>, VaultError> {
        self.seal(purpose, &self.open(purpose, sealed)?)
    }

    /// Opens a value that was sealed for the same purpose and row.
    pub fn open(&self, purpose: Purpose<'_>, sealed: &[u8]) -> Result<Vec<u8>, VaultError> {
        let (id, rest) = split(sealed).ok_or(VaultError::Damaged)?;
        let (nonce, ciphertext) = rest
            .split_first_chunk::<NONCE>()
            .ok_or(VaultError::Damaged)?;
        let key = self
            .keys(purpose.keyring())?
            .iter()
            .find(|key| key.id == id)
            .ok_or_else(|| VaultError::MissingKey(id.to_owned()))?;
        let aad = purpose.associated_data();
        key.cipher
            .decrypt(
                &XNonce::from(*nonce),
                Payload {
                    msg: ciphertext,
                    aad: aad.as_bytes(),
                },
            )
            .map_err(|_| VaultError::Damaged)
    }
}

fn written(text: &SecretString) -> Result<Written, VaultError> {
    let entries = text
        .expose_secret()
        .split(['\n', ','])
        .map(str::trim)
        .filter(|entry| !entry.is_empty() && !entry.starts_with('#'));
    let mut all = Written::default();
    for (index, entry) in entries.enumerate() {
        if ed25519::Ed25519Keys::is_meant(entry) {
            let added = all.webhook_keys.add(entry);
            added.map_err(|error| VaultError::BadWebhookKey(index + 1, error))?;
            continue;
        }
        let keys = &mut all.master_keys;
        let bad = || VaultError::BadKey(index + 1);
        let (id, encoded) = entry.split_once(':').ok_or_else(bad)?;
        let bytes = BASE64_STANDARD.decode(encoded).map_err(|_| bad())?;
        if id.is_empty() || id.len() > LONGEST_ID || bytes.len() != KEY {
            return Err(bad());
        }
        if keys.iter().any(|(other, _)| other == id) {
            return Err(VaultError::DuplicateKey(id.to_owned()));
        }
        if id == EXAMPLE_ID || bytes.iter().all(|byte| *byte == 0) {
            return Err(VaultError::Example(index + 1));
        }
        keys.push((id.to_owned(), bytes.into()));
    }
    if all.master_keys.is_empty() {
        Err(VaultError::NoKey)
    } else {
        Ok(all)
    }
}

/// Splits a sealed value into the id of its key and the rest.
fn split(sealed: &[u8]) -> Option<(&str, &[u8])> {
    let (&id_length, rest) = sealed.split_first()?;
    let (id, rest) = rest.split_at_checked(id_length.into())?;
    Some((str::from_utf8(id).ok()?, rest))
}

/// The id of the key that a value was sealed with. `head` is the beginning of the value, at least
/// its first [`HEAD`] bytes. A damaged value may name an id with a NUL, which no key has and which
/// `PostgreSQL` stores in no text, so that it would stop whoever records it.
pub fn key_id(head: &[u8]) -> Option<&str> {
    let (id, _) = split(head)?;
    (!id.contains('\0')).then_some(id)
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Vault([REDACTED])")
    }
}

/// An error if a key is missing, or if none of the secrets could be opened.
pub fn some_opened<T>(
    secrets: impl Iterator<Item = Result<T, VaultError>>,
) -> Result<(), VaultError> {
    let mut opened = false;
    let mut failure = Ok(());
    for secret in secrets {
        match secret {
            Ok(_) => opened = true,
            Err(missing @ VaultError::MissingKey(_)) => return Err(missing),
            Err(error) => failure = Err(error),
        }
    }
    if opened { Ok(()) } else { failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str, byte: u8) -> String {
        format!("{id}:{}", BASE64_STANDARD.encode([byte; 32]))
    }

    fn vault(text: &str) -> Result<Vault, VaultError> {
        Vault::parse(&SecretString::from(text))
    }

    #[test]
    fn a_secret_opens_only_for_its_row_and_unchanged() {
        let vault = vault(&key("a", 1)).unwrap();
        let mine = PartnerId::new();
        let other = PartnerId::new();
        let sealed = vault.seal(Purpose::SecretKey(mine), b"secret").unwrap();
        assert_eq!(
            vault.open(Purpose::SecretKey(mine), &sealed).unwrap(),
            b"secret"
        );
        for purpose in [Purpose::SecretKey(other), Purpose::WebhookSecret(mine)] {
            assert_eq!(vault.open(purpose, &sealed), Err(VaultError::Damaged));
        }
        let purpose = Purpose::SecretKey(mine);
        for cut in [0, 1, 2, 10, sealed.len() - 1] {
            assert!(vault.open(purpose, &sealed[..cut]).is_err());
        }
        let mut changed = sealed;
        *changed.last_mut().unwrap() ^= 1;
        assert_eq!(vault.open(purpose, &changed), Err(VaultError::Damaged));
    }

    #[test]
    fn keys_rotate() {
        let partner = Purpose::SecretKey(PartnerId::new());
        let sealed = vault(&key("old", 1))
            .unwrap()
            .seal(partner, b"secret")
            .unwrap();
        let rotated = vault(&format!(
            "# newest first\n{}\n{}\n",
            key("new", 2),
            key("old", 1)
        ))
        .unwrap();
        assert_eq!(rotated.open(partner, &sealed).unwrap(), b"secret");
        let resealed = rotated.seal(partner, b"secret").unwrap();
        let after = vault(&key("new", 2)).unwrap();
        assert_eq!(after.open(partner, &resealed).unwrap(), b"secret");
        let missing = VaultError::MissingKey("old".into());
        assert_eq!(after.open(partner, &sealed), Err(missing));
    }

    #[test]
    fn keys_for_signatures_of_webhooks_stand_among_the_master_keys_for_webhooks() {
        const PAIR: &str = "whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=";
        let text = format!("{}\n{PAIR}", key("a", 1));
        let sealed = vault(&text).unwrap();
        assert_eq!(sealed.webhook_keys().signing().len(), 1);
        assert_eq!(sealed.key_ids(Keyring::Webhooks).collect::<Vec<_>>(), ["a"]);
        let text = SecretString::from(text);
        let others = Vault::of(&[(Keyring::Partners, &text), (Keyring::Profiles, &text)]).unwrap();
        assert!(others.webhook_keys().published().is_empty());
        let wrong = vault(&format!("{},whpk_AAAA", key("a", 1)));
        let expected = VaultError::BadWebhookKey(2, ed25519::InvalidKey);
        assert_eq!(wrong.unwrap_err(), expected);
        assert_eq!(vault(PAIR).unwrap_err(), VaultError::NoKey);
    }

    #[test]
    fn a_vault_opens_only_the_purposes_that_it_holds() {
        let partners = SecretString::from(key("a", 1));
        let profiles = SecretString::from(key("b", 2));
        let all = Vault::of(&[
            (Keyring::Partners, &partners),
            (Keyring::Webhooks, &partners),
            (Keyring::Profiles, &profiles),
        ])
        .unwrap();
        let ingress = Vault::of(&[(Keyring::Partners, &partners)]).unwrap();
        let id = PartnerId::new();
        let request = Purpose::SecretKey(id);
        let webhook = Purpose::WebhookSecret(id);
        let sealed = all.seal(request, b"secret").unwrap();
        assert_eq!(ingress.open(request, &sealed).unwrap(), b"secret");
        let sealed = all.seal(webhook, b"secret").unwrap();
        let not_held = Err(VaultError::NotHeld(Keyring::Webhooks));
        assert_eq!(ingress.open(webhook, &sealed), not_held);
        assert_eq!(ingress.seal(webhook, b"secret"), not_held);
        let other = SecretString::from(key("a", 3));
        let twice = Vault::of(&[(Keyring::Partners, &partners), (Keyring::Webhooks, &other)]);
        assert_eq!(twice.unwrap_err(), VaultError::DuplicateKey("a".into()));
    }

    #[test]
    fn a_damaged_value_names_no_key_that_a_text_cannot_hold() {
        assert_eq!(key_id(b"\x02ab!"), Some("ab"));
        for damaged in [&b""[..], b"\x05ab", b"\x02\xff\xfe!", b"\x02a\0!"] {
            assert_eq!(key_id(damaged), None, "{damaged:?}");
        }
    }

    #[test]
    fn bad_keys_are_refused_by_number() {
        assert_eq!(vault("").unwrap_err(), VaultError::NoKey);
        assert_eq!(vault("nonsense").unwrap_err(), VaultError::BadKey(1));
        assert_eq!(
            vault(&format!("{},b:AAAA", key("a", 1))).unwrap_err(),
            VaultError::BadKey(2)
        );
        assert_eq!(
            vault(&key("example", 7)).unwrap_err(),
            VaultError::Example(1)
        );
        assert_eq!(
            vault(&format!("{},{}", key("a", 1), key("b", 0))).unwrap_err(),
            VaultError::Example(2)
        );
        let twice = format!("{},{}", key("a", 1), key("a", 2));
        assert_eq!(
            vault(&twice).unwrap_err(),
            VaultError::DuplicateKey("a".into())
        );
    }
}
