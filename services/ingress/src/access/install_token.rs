//! The token of a page from which a traveller installs an eSIM. Whoever has it may open the page.
//!
//! It names the topup and has a keyed digest of it and of the number of the page, 128 bits long. So
//! nobody can make one, and nothing has to be stored before a page is ended.
//!
//! [`crate::self_service`] tells the address to the partner, and [`crate::pages::install`] serves
//! it.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use domain::TopupId;
use vault::{Keyring, Vault, VaultError};

/// The bytes of the topup id in a token: its 26 digits as a number.
const ID: usize = 11;

/// What the digest of a token is of. No activation code has this form, whose digests the same key
/// makes.
fn signed(topup_id: &TopupId, number: i32) -> String {
    format!("install-page/{topup_id}/{number}")
}

/// The token of a page.
pub(crate) fn token(vault: &Vault, topup_id: &TopupId, number: i32) -> Result<String, VaultError> {
    let digits: u128 = topup_id.as_str().parse().unwrap_or_default();
    let mut bytes = digits.to_be_bytes()[16 - ID..].to_vec();
    bytes.extend(vault.digest(Keyring::Profiles, signed(topup_id, number).as_bytes())?);
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

/// A token as it was sent: nothing says yet that it is valid.
pub(crate) struct GivenToken {
    pub(crate) topup_id: TopupId,
    digest: Vec<u8>,
}

impl GivenToken {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let (id, digest) = bytes.split_at_checked(ID)?;
        let mut digits = [0; 16];
        digits[16 - ID..].copy_from_slice(id);
        let digits = format!("{:026}", u128::from_be_bytes(digits));
        Some(Self {
            topup_id: digits.parse().ok()?,
            digest: digest.to_vec(),
        })
    }

    /// Whether it is that of the page with this number. There is none for a page that was ended,
    /// whose number is negative.
    pub(crate) fn is_of(&self, vault: &Vault, number: i32) -> Result<bool, VaultError> {
        let text = signed(&self.topup_id, number);
        vault.is_digest(Keyring::Profiles, text.as_bytes(), &self.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vault(text: &str) -> Vault {
        Vault::parse(&text.to_owned().into()).unwrap()
    }

    const NEW: &str = "new:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    const OLD: &str = "old:AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=";

    #[test]
    fn a_token_is_good_for_one_page_of_one_topup() {
        let topup: TopupId = "20250129123456123456789012".parse().unwrap();
        let other: TopupId = "00000000000000000000000001".parse().unwrap();
        let old = vault(OLD);
        let text = token(&old, &topup, 1).unwrap();
        assert_eq!(text.len(), 36);
        let given = GivenToken::parse(&text).unwrap();
        assert_eq!(given.topup_id, topup);
        assert!(given.is_of(&old, 1).unwrap());
        // It stays good while the master key is replaced.
        assert!(given.is_of(&vault(&format!("{NEW},{OLD}")), 1).unwrap());
        assert!(!given.is_of(&vault(NEW), 1).unwrap());
        for number in [0, -1, 2] {
            assert!(!given.is_of(&old, number).unwrap(), "{number}");
        }
        let mut of_other = GivenToken::parse(&token(&old, &other, 1).unwrap()).unwrap();
        assert_eq!(of_other.topup_id, other);
        of_other.topup_id = topup;
        assert!(!of_other.is_of(&old, 1).unwrap());
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let vault = vault(OLD);
        let topup: TopupId = "20250129123456123456789012".parse().unwrap();
        let good = token(&vault, &topup, 1).unwrap();
        for at in 0..good.len() {
            let mut bytes = good.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).unwrap();
            let is_good =
                GivenToken::parse(&changed).is_some_and(|one| one.is_of(&vault, 1).unwrap());
            assert!(!is_good, "{changed}");
        }
        for bad in [
            "",
            "A",
            &good[..35],
            &good[..16],
            "_".repeat(36).as_str(),
            &format!("{good}AAAA"),
        ] {
            let is_good = GivenToken::parse(bad).is_some_and(|one| one.is_of(&vault, 1).unwrap());
            assert!(!is_good, "{bad}");
        }
    }
}
