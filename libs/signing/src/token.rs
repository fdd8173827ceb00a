//! Tokens of sessions and of one-time links: 32 random bytes as hex. Only their digests are stored.
//! A plain SHA-256 suffices, because nobody can guess 256 random bits, however fast the digest is.

use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use crate::generate::{NotGenerated, random};

/// Makes a token.
pub fn generate() -> Result<SecretString, NotGenerated> {
    Ok(hex::encode(random::<32>()?).into())
}

/// What is stored of a token.
pub fn digest(token: &SecretString) -> [u8; 32] {
    Sha256::digest(token.expose_secret()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_and_so_do_their_digests() {
        let one = generate().unwrap();
        let other = generate().unwrap();
        assert_eq!(one.expose_secret().len(), 64);
        assert_ne!(digest(&one), digest(&other));
        assert_eq!(digest(&one), digest(&one));
    }
}
