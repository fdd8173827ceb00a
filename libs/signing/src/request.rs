//! The signature of a partner's request, which is sent in the header `X-Service-Signature`.
//!
//! The specification defines it as the lowercase hex HMAC-SHA256 of four lines:
//! `METHOD<LF>PATH<LF>TIMESTAMP<LF>ACCESS_KEY`. It covers neither the query nor the body.
//!
//! A partner can protect these, too, by sending the digest of the body in a header. Such a request
//! signs five lines: `METHOD<LF>PATH?QUERY<LF>TIMESTAMP<LF>ACCESS_KEY<LF>DIGEST`. The parts cannot
//! contain a line feed, so no signature is valid for both forms, and nobody can turn one into the
//! other by removing or adding the header.

use sha2::{Digest, Sha256};

use crate::{SecretKey, same};

fn mac(
    secret: &SecretKey,
    method: &str,
    target: &str,
    timestamp: &str,
    access_key: &str,
    digest: Option<&[u8]>,
) -> String {
    let [method, target, timestamp, access_key] =
        [method, target, timestamp, access_key].map(str::as_bytes);
    let four = [method, b"\n", target, b"\n", timestamp, b"\n", access_key];
    let fifth = digest.map(|digest| [b"\n", digest]);
    let text: Vec<&[u8]> = four
        .into_iter()
        .chain(fifth.into_iter().flatten())
        .collect();
    hex::encode(secret.mac(&text))
}

/// The digest of a body for the fifth line, which is its SHA-256 in lowercase hex.
pub fn digest(body: &[u8]) -> String {
    hex::encode(Sha256::digest(body))
}

/// Whether `given` is the [`digest`] of the body. The comparison is exact, so a digest in upper
/// case is refused.
pub fn is_digest(given: &[u8], body: &[u8]) -> bool {
    same(digest(body).as_bytes(), given)
}

/// Signs a request with four lines. `path` is the path exactly as requested, without the query.
/// `timestamp` is the text of the timestamp header.
pub fn sign(
    secret: &SecretKey,
    method: &str,
    path: &str,
    timestamp: &str,
    access_key: &str,
) -> String {
    mac(
        secret,
        &method.to_ascii_uppercase(),
        path,
        timestamp,
        access_key,
        None,
    )
}

/// Signs a request with five lines, which covers its query and its body, too. `target` is the path
/// exactly as requested, with `?` and the query if there is one. `digest` is the [`digest`] of the
/// body.
pub fn sign_whole(
    secret: &SecretKey,
    method: &str,
    target: &str,
    timestamp: &str,
    access_key: &str,
    digest: &str,
) -> String {
    mac(
        secret,
        &method.to_ascii_uppercase(),
        target,
        timestamp,
        access_key,
        Some(digest.as_bytes()),
    )
}

/// Whether `signature` is the lowercase hex signature of the request. With a `digest` the request
/// has five lines, and `target` must include the query; without one it has four, and `target` is
/// the path alone.
pub fn verify(
    secret: &SecretKey,
    method: &str,
    target: &str,
    timestamp: &str,
    access_key: &str,
    digest: Option<&[u8]>,
    signature: &[u8],
) -> bool {
    let expected = mac(secret, method, target, timestamp, access_key, digest);
    same(expected.as_bytes(), signature)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/api/v1/api_partner/orders";
    /// `printf %s '{}' | openssl dgst -sha256`.
    const DIGEST: &str = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";

    fn secret() -> SecretKey {
        SecretKey::from_base64("c2VjcmV0LWtleQ==").unwrap()
    }

    /// The expected value is what this command prints: `printf
    /// 'POST\n/api/v1/api_partner/orders\n1700000000\nAK' | openssl dgst -sha256 -hmac secret-key`.
    #[test]
    fn signs_as_openssl_does() {
        assert_eq!(
            sign(&secret(), "post", PATH, "1700000000", "AK"),
            "01b20bc3aefc2db24f3274ab516cd84157104aea28018b7bb6d04828df68a486"
        );
    }

    /// Like the vector above, with a query, and with a line feed and the digest at the end.
    #[test]
    fn signs_query_and_body_as_openssl_does() {
        assert_eq!(digest(b"{}"), DIGEST);
        let target = format!("{PATH}?limit=2");
        assert_eq!(
            sign_whole(&secret(), "post", &target, "1700000000", "AK", DIGEST),
            "191f05d39f7fbc0299f55764acdd1d7fa330c0abd527811fba86d7c48742365e"
        );
    }

    /// Each row changes one of the values that are signed, or the signature.
    #[test]
    fn only_the_exact_signature_is_accepted() {
        let four = sign(&secret(), "POST", PATH, "1700000000", "AK");
        let five = sign_whole(&secret(), "POST", PATH, "1700000000", "AK", DIGEST);
        let check = |method: &str,
                     target: &str,
                     time: &str,
                     key: &str,
                     digest: Option<&str>,
                     given: &str| {
            let digest = digest.map(str::as_bytes);
            let given = given.as_bytes();
            verify(&secret(), method, target, time, key, digest, given)
        };
        let time = "1700000000";
        assert!(check("POST", PATH, time, "AK", None, &four));
        assert!(check("POST", PATH, time, "AK", Some(DIGEST), &five));
        let query = format!("{PATH}?limit=2");
        let other = digest(b"");
        for (signature, digest) in [(&four, None), (&five, Some(DIGEST))] {
            let upper = signature.to_uppercase();
            let longer = format!("{signature}0");
            for bad in [&upper, &signature[..63], &longer, ""] {
                assert!(!check("POST", PATH, time, "AK", digest, bad), "{bad}");
            }
            for target in ["/v1/api_partner/orders", &query] {
                assert!(
                    !check("POST", target, time, "AK", digest, signature),
                    "{target}"
                );
            }
            assert!(!check("PUT", PATH, time, "AK", digest, signature));
            assert!(!check("POST", PATH, "1700000001", "AK", digest, signature));
            assert!(!check("POST", PATH, time, "AK2", digest, signature));
            assert!(!check("POST", PATH, time, "AK", Some(&other), signature));
        }
        // A signature of one form is not valid for the other form, whether the digest is left out,
        // added or empty.
        assert!(!check("POST", PATH, time, "AK", None, &five));
        assert!(!check("POST", PATH, time, "AK", Some(DIGEST), &four));
        assert!(!check("POST", PATH, time, "AK", Some(""), &four));
    }

    #[test]
    fn a_digest_is_lowercase_and_whole() {
        assert!(is_digest(DIGEST.as_bytes(), b"{}"));
        for bad in [
            &DIGEST.to_uppercase(),
            &DIGEST[..63],
            "",
            "RBNvo1WzZ4oRRq0W9+hknpT7T8If536DEMBg9hyq/4o=",
        ] {
            assert!(!is_digest(bad.as_bytes(), b"{}"), "{bad}");
        }
        assert!(!is_digest(DIGEST.as_bytes(), b"{} "));
    }
}
