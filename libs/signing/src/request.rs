//! The signature of a partner's request: lowercase hex HMAC-SHA256 of
//! `METHOD<LF>PATH<LF>TIMESTAMP<LF>ACCESS_KEY`.

use crate::{SecretKey, same};

fn mac(secret: &SecretKey, method: &str, path: &str, timestamp: &str, access_key: &str) -> String {
    let parts = [method, path, timestamp, access_key].map(str::as_bytes);
    let [method, path, timestamp, access_key] = parts;
    hex::encode(secret.mac(&[method, b"\n", path, b"\n", timestamp, b"\n", access_key]))
}

/// Signs a request. `path` is the path exactly as requested, without query; `timestamp` is the
/// text of the timestamp header.
pub fn sign(secret: &SecretKey, method: &str, path: &str, timestamp: &str, access_key: &str) -> String {
    mac(secret, &method.to_ascii_uppercase(), path, timestamp, access_key)
}

/// Whether `signature` is the lowercase hex signature of the request, compared as sent.
pub fn verify(
    secret: &SecretKey,
    method: &str,
    path: &str,
    timestamp: &str,
    access_key: &str,
    signature: &[u8],
) -> bool {
    let expected = mac(secret, method, path, timestamp, access_key);
    same(expected.as_bytes(), signature)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/api/v1/api_partner/orders";

    fn secret() -> SecretKey {
        SecretKey::from_base64("c2VjcmV0LWtleQ==").unwrap()
    }

    /// The expected value comes from openssl: `printf 'POST\n/api/v1/api_partner/orders\n1700000000\nAK' |
    /// openssl dgst -sha256 -hmac secret-key`.
    #[test]
    fn signs_as_openssl_does() {
        assert_eq!(
            sign(&secret(), "post", PATH, "1700000000", "AK"),
            "01b20bc3aefc2db24f3274ab516cd84157104aea28018b7bb6d04828df68a486"
        );
    }

    #[test]
    fn only_the_exact_signature_is_accepted() {
        let good = sign(&secret(), "POST", PATH, "1700000000", "AK");
        let check =
            |signature: &str| verify(&secret(), "POST", PATH, "1700000000", "AK", signature.as_bytes());
        assert!(check(&good));
        assert!(!check(&good.to_uppercase()));
        assert!(!check(&good[..63]));
        assert!(!check(""));
        assert!(!verify(
            &secret(),
            "POST",
            "/v1/api_partner/orders",
            "1700000000",
            "AK",
            good.as_bytes()
        ));
        assert!(!verify(
            &secret(),
            "POST",
            PATH,
            "1700000001",
            "AK",
            good.as_bytes()
        ));
        assert!(!verify(
            &secret(),
            "POST",
            PATH,
            "1700000000",
            "AK2",
            good.as_bytes()
        ));
    }
}
