//! Passwords of operators, hashed by Argon2id.
//!
//! Guarantee: a stored hash does not tell the password, and each guess costs the attacker 19 MiB
//! and some 30 ms. The same holds for us, so callers limit the number of attempts, and hash on a
//! thread that may block.

use argon2::{Argon2, PasswordHasher, PasswordVerifier, password_hash::phc::PasswordHash};
use secrecy::{ExposeSecret, SecretString};

use crate::generate::{NotGenerated, random};

/// The fewest characters of a password. NIST SP 800-63B asks for 15 where it is the only factor.
pub const SHORTEST: usize = 15;
/// The maximum number of bytes of a password, so that hashing a long text costs nothing more.
pub const LONGEST: usize = 256;

/// Why a password was not hashed.
#[derive(Debug, thiserror::Error)]
pub enum NotHashed {
    #[error("the password has fewer than {SHORTEST} characters; several words make a good one")]
    TooShort,
    #[error("the password has more than {LONGEST} bytes")]
    TooLong,
    #[error(transparent)]
    NotGenerated(#[from] NotGenerated),
    #[error("the password cannot be hashed: {0}")]
    Refused(argon2::password_hash::Error),
}

/// Hashes a new password, with a salt of its own. The text names the algorithm and its costs, so
/// these may be raised later.
pub fn hash(password: &SecretString) -> Result<String, NotHashed> {
    let password = password.expose_secret();
    if password.chars().count() < SHORTEST {
        return Err(NotHashed::TooShort);
    }
    if password.len() > LONGEST {
        return Err(NotHashed::TooLong);
    }
    let salt = random::<16>()?;
    let hashed = Argon2::default().hash_password_with_salt(password.as_bytes(), &salt);
    Ok(hashed.map_err(NotHashed::Refused)?.to_string())
}

/// Whether the password is the hashed one. Without a hash (an unknown name, or an operator without
/// a password) the same work is done for nothing, so that the time tells nobody which names exist.
pub fn verify(password: &SecretString, hashed: Option<&str>) -> bool {
    let password = password.expose_secret().as_bytes();
    let stored = hashed.and_then(|hashed| PasswordHash::new(hashed).ok());
    match stored {
        _ if password.len() > LONGEST => false,
        Some(stored) => Argon2::default().verify_password(password, &stored).is_ok(),
        None => {
            let wasted: Result<PasswordHash, _> =
                Argon2::default().hash_password_with_salt(password, &[0; 16]);
            drop(wasted);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_password_fits_its_hash_only() {
        let password = SecretString::from("correct horse battery");
        let hashed = hash(&password).unwrap();
        assert!(
            hashed.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"),
            "{hashed}"
        );
        assert!(verify(&password, Some(&hashed)));
        assert!(!verify(&"correct horse batterY".into(), Some(&hashed)));
        assert!(!verify(&password, None) && !verify(&password, Some("")));
        assert_ne!(hash(&password).unwrap(), hashed, "the salt is the same");
    }

    #[test]
    fn short_and_long_passwords_are_refused() {
        let refused = |text: String| hash(&text.into()).unwrap_err();
        assert!(matches!(
            refused("a".repeat(SHORTEST - 1)),
            NotHashed::TooShort
        ));
        assert!(matches!(
            refused("a".repeat(LONGEST + 1)),
            NotHashed::TooLong
        ));
    }

    /// Loose bounds: without the wasted work the second one takes microseconds.
    #[test]
    fn an_unknown_name_takes_as_long() {
        let password = SecretString::from("correct horse battery");
        let hashed = hash(&password).unwrap();
        let known = Instant::now();
        verify(&"wrong wrong wrong".into(), Some(&hashed));
        let known = known.elapsed();
        let unknown = Instant::now();
        verify(&password, None);
        assert!(unknown.elapsed() > known / 10);
    }
}
