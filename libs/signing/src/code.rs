//! One-time codes, which prove that a partner receives what we send to a new channel for notices.
//! The notifier makes a code when it sends it, and only its digest is stored. The database
//! compares.
//!
//! Guarantee: a code has 60 random bits. So its digest tells nothing about it, even to somebody who
//! can try a billion codes per second for the half hour in which it is valid, and the few guesses
//! that ingress allows are hopeless.

use crate::{
    SecretKey,
    generate::{NotGenerated, random},
};

/// Digits and capital letters, without 0, 1, I and O, which look alike.
const ALPHABET: &[u8; 32] = b"23456789ABCDEFGHJKLMNPQRSTUVWXYZ";
/// The number of characters, which are shown in groups of four.
const LENGTH: usize = 12;

/// Makes a code such as `7KQM-2XWB-9TRA`.
pub fn generate() -> Result<String, NotGenerated> {
    let mut code = String::with_capacity(LENGTH + 2);
    for (index, byte) in random::<LENGTH>()?.into_iter().enumerate() {
        if index > 0 && index % 4 == 0 {
            code.push('-');
        }
        code.push(char::from(ALPHABET[usize::from(byte % 32)]));
    }
    Ok(code)
}

/// The digest of a code for one channel. Blanks, hyphens and the case of letters do not matter,
/// because people type codes.
///
/// The function `verify_channel` of the database computes it, too, and compares.
pub fn digest(channel: &[u8], code: &str) -> [u8; 32] {
    SecretKey(plain(code).into_bytes().into()).mac(&[b"notice code\n", channel])
}

/// The letters and digits of a code, in capitals.
pub fn plain(code: &str) -> String {
    let plain = code.chars().filter(char::is_ascii_alphanumeric);
    plain.map(|one| one.to_ascii_uppercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_fits_its_channel_however_it_is_typed() {
        let code = generate().unwrap();
        assert_eq!((code.len(), code.split('-').count()), (14, 3));
        assert!(
            code.bytes()
                .all(|byte| byte == b'-' || ALPHABET.contains(&byte))
        );
        let stored = digest(b"channel", &code);
        let typed = code.to_lowercase().replace('-', " ");
        for given in [code.as_str(), &typed, &code.replace('-', "")] {
            assert_eq!(digest(b"channel", given), stored, "{given}");
        }
        assert_ne!(digest(b"other", &code), stored);
        assert_ne!(digest(b"channel", &code[1..]), stored);
        assert_ne!(generate().unwrap(), code);
    }
}
