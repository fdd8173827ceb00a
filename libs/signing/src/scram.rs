//! The SCRAM secret that PostgreSQL stores instead of a password (RFC 5802, RFC 7677). `esimctl
//! migrate` sets the passwords of the stages' roles with it, because a statement that contains this
//! secret does not show the password to the log of the server.

use base64::{Engine, prelude::BASE64_STANDARD};
use sha2::{Digest, Sha256};

use crate::SecretKey;

/// The number of iterations that PostgreSQL itself uses by default.
const ITERATIONS: u32 = 4096;

/// Computes the SCRAM-SHA-256 secret of a password. The password must consist of ASCII characters,
/// because others would have to be normalised first.
pub fn secret(password: &str, salt: [u8; 16]) -> String {
    let password = SecretKey(password.as_bytes().to_vec().into());
    let mut block = password.mac(&[&salt, &1_u32.to_be_bytes()]);
    let mut salted = block;
    for _ in 1..ITERATIONS {
        block = password.mac(&[&block]);
        for (sum, byte) in salted.iter_mut().zip(block) {
            *sum ^= byte;
        }
    }
    let salted = SecretKey(salted.to_vec().into());
    let stored_key: [u8; 32] = Sha256::digest(salted.mac(&[b"Client Key"])).into();
    let server_key = salted.mac(&[b"Server Key"]);
    let salt = BASE64_STANDARD.encode(salt);
    let [stored_key, server_key] = [stored_key, server_key].map(|key| BASE64_STANDARD.encode(key));
    format!("SCRAM-SHA-256${ITERATIONS}:{salt}${stored_key}:{server_key}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The password and the salt of the example in RFC 7677, section 3.
    #[test]
    fn the_example_of_the_rfc() {
        let salt = BASE64_STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        assert_eq!(
            secret("pencil", salt.try_into().unwrap()),
            "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:\
             wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
        );
    }
}
