//! One-time codes, which prove that a partner receives what we send to a new channel for notices.
//! The notifier makes a code when it sends it, and only its digest is stored; ingress compares.
//!
//! Guarantee: a code has 60 random bits. So its digest tells nothing about it, even to somebody who
//! can try a billion codes per second for the half hour in which it is valid, and the few guesses
//! that ingress allows are hopeless.

use crate::{
    SecretKey,
    generate::{NotGenerated, random},
    same,
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
pub fn digest(channel: &[u8], code: &str) -> [u8; 32] {
    let plain = code.bytes().filter(u8::is_ascii_alphanumeric);
    let plain: Vec<u8> = plain.map(|byte| byte.to_ascii_uppercase()).collect();
    SecretKey(plain.into()).mac(&[b"notice code\n", channel])
}

/// Whether a digest is that of the code, compared in constant time.
pub fn matches(channel: &[u8], code: &str, stored: &[u8]) -> bool {
    same(&digest(channel, code), stored)
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
            assert!(matches(b"channel", given, &stored), "{given}");
        }
        assert!(!matches(b"other", &code, &stored));
        assert!(!matches(b"channel", &code[1..], &stored));
        assert!(!matches(b"channel", "", &stored) && !matches(b"channel", &code, b""));
        assert_ne!(generate().unwrap(), code);
    }
}
