//! The MAC in the URL of a QR picture. With it, ingress draws only pictures whose URLs this system
//! has made, and nobody else can have pictures drawn under the operator's domain.
//!
//! It is the HMAC-SHA256 of `qr<LF>` and the text of the picture; the first 16 bytes of it, in
//! lowercase hex. 128 bits are enough and keep the URL short: who guesses a MAC only gets a picture
//! of a text that they already know.

use secrecy::{ExposeSecret, SecretString};

use crate::{InvalidSecret, SecretKey, same};

/// The length of a MAC in bytes.
const LENGTH: usize = 16;
/// The minimum length of a key in bytes.
const LEAST: usize = 32;

/// The keys of a deployment. The first one makes MACs, and a MAC by any of them is accepted, so
/// that a key can be replaced while URLs by the old one are still in use. Without keys, URLs have
/// no MAC.
#[derive(Clone, Debug, Default)]
pub struct QrKeys(Vec<SecretKey>);

impl QrKeys {
    /// Parses keys in Base64, separated by blanks, line ends or commas. There must be at least one.
    pub fn parse(text: &SecretString) -> Result<Self, InvalidSecret> {
        let texts = text
            .expose_secret()
            .split([',', ' ', '\t', '\r', '\n'])
            .filter(|key| !key.is_empty());
        let key = |text| {
            let key = SecretKey::from_base64(text)?;
            if key.expose().len() < LEAST {
                return Err(InvalidSecret::TooShort);
            }
            Ok(key)
        };
        let keys: Vec<_> = texts.map(key).collect::<Result<_, _>>()?;
        if keys.is_empty() {
            return Err(InvalidSecret::Empty);
        }
        Ok(Self(keys))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Makes the MAC of a text with the first key. Returns `None` if there are no keys.
    pub fn mac(&self, text: &str) -> Option<String> {
        self.0.first().map(|key| mac(key, text))
    }

    /// Whether `given` is the MAC of the text by one of the keys. All keys are tried, so that the
    /// time does not show which one matched.
    pub fn verify(&self, text: &str, given: &str) -> bool {
        let is_by = |key| same(mac(key, text).as_bytes(), given.as_bytes());
        self.0.iter().fold(false, |found, key| found | is_by(key))
    }
}

fn mac(key: &SecretKey, text: &str) -> String {
    hex::encode(&key.mac(&[b"qr\n", text.as_bytes()])[..LENGTH])
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const NEW: &str = "HxscHR4fAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBk=";
    const TEXT: &str = "LPA:1$smdp.example.com$A1-B2";

    fn keys(text: &str) -> Result<QrKeys, InvalidSecret> {
        QrKeys::parse(&text.into())
    }

    /// The expected value is the first 32 digits of what this command prints: `printf
    /// 'qr\nLPA:1$smdp.example.com$A1-B2' | openssl dgst -sha256 -mac HMAC -macopt
    /// hexkey:000102…1f`.
    #[test]
    fn a_mac_is_what_openssl_computes() {
        assert_eq!(
            keys(OLD).unwrap().mac(TEXT).unwrap(),
            "1bac46e2f89f9ce76b621ed5ad7d26d8"
        );
        assert_eq!(QrKeys::default().mac(TEXT), None);
    }

    #[test]
    fn every_key_checks_and_the_first_makes() {
        let [old, both] = [OLD, &format!("{NEW}\n{OLD}\n")].map(|text| keys(text).unwrap());
        let sent = old.mac(TEXT).unwrap();
        let new = both.mac(TEXT).unwrap();
        assert!(new != sent && both.verify(TEXT, &sent) && both.verify(TEXT, &new));
        assert!(!old.verify(TEXT, &new));
        for bad in [&sent[..31], &sent.to_uppercase(), &format!("{sent}0"), ""] {
            assert!(!both.verify(TEXT, bad), "{bad}");
        }
        assert!(!both.verify("LPA:1$smdp.example.com$A1-B3", &sent));
        assert!(!QrKeys::default().verify(TEXT, &sent) && !QrKeys::default().verify(TEXT, ""));
    }

    #[test]
    fn unusable_keys_are_refused_and_good_ones_never_printed() {
        assert_eq!(keys(" \n").unwrap_err(), InvalidSecret::Empty);
        assert_eq!(keys("%%").unwrap_err(), InvalidSecret::NotBase64);
        assert_eq!(keys("c2hvcnQ=").unwrap_err(), InvalidSecret::TooShort);
        assert!(!format!("{:?}", keys(OLD)).contains("AAEC"));
    }
}
