//! Authentication of the provider's API, as the USIMSA protocol has it: three `x-gat-*` headers,
//! whose signature covers the method, the path, the query, the time and the access key, but not the
//! body.
//!
//! A handler that takes [`AuthenticRequest`] as an argument runs only for a valid signature, so a
//! route cannot forget the check.

use axum::{extract::FromRequestParts, http::request::Parts};
use runtime::clock;

use crate::{
    error::SandboxError,
    state::{Sandbox, SandboxCredentials},
};

/// The largest difference that is accepted between a caller's clock and ours, in milliseconds.
const WINDOW_MS: u64 = 5 * 60 * 1000;

/// Proof that a request has a valid signature and a fresh timestamp.
pub struct AuthenticRequest;

impl FromRequestParts<Sandbox> for AuthenticRequest {
    type Rejection = SandboxError;

    async fn from_request_parts(
        parts: &mut Parts,
        sandbox: &Sandbox,
    ) -> Result<Self, SandboxError> {
        check(parts, &sandbox.credentials, clock::unix_milliseconds())
            .map_err(SandboxError::Unauthorized)
    }
}

fn check(
    parts: &Parts,
    ours: &SandboxCredentials,
    now_ms: i64,
) -> Result<AuthenticRequest, &'static str> {
    let header = |name: &str| {
        parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let timestamp = header("x-gat-timestamp").ok_or("x-gat-timestamp is missing")?;
    let access_key = header("x-gat-access-key").ok_or("x-gat-access-key is missing")?;
    let signature = header("x-gat-signature").ok_or("x-gat-signature is missing")?;

    let sent_ms = signing::parse_unix_time(timestamp)
        .ok_or("x-gat-timestamp is not Unix time in milliseconds")?;
    if sent_ms.abs_diff(now_ms) > WINDOW_MS {
        return Err("x-gat-timestamp is more than 5 minutes off");
    }
    if access_key != ours.access_key {
        return Err("x-gat-access-key is unknown");
    }
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    if !signing::usimsa::verify(
        &ours.secret,
        parts.method.as_str(),
        path,
        timestamp,
        access_key,
        signature,
    ) {
        return Err("x-gat-signature is wrong");
    }
    Ok(AuthenticRequest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;
    use signing::SecretKey;

    const NOW: i64 = 1_700_000_000_000;
    const PATH: &str = "/api/v2/order/a%2Fb?x=1";

    /// The error for a valid request after `change`.
    fn refused(change: impl FnOnce(&mut Parts)) -> Option<&'static str> {
        let ours = SandboxCredentials {
            access_key: "AK".into(),
            secret: SecretKey::from_base64("c2VjcmV0LWtleQ==").unwrap(),
        };
        let timestamp = NOW.to_string();
        let signature = signing::usimsa::sign(&ours.secret, "GET", PATH, &timestamp, "AK");
        let request = Request::get(PATH)
            .header("x-gat-timestamp", timestamp)
            .header("x-gat-access-key", "AK")
            .header("x-gat-signature", signature);
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        change(&mut parts);
        check(&parts, &ours, NOW).err()
    }

    fn with(name: &'static str, value: &str) -> Option<&'static str> {
        refused(|parts| drop(parts.headers.insert(name, value.parse().unwrap())))
    }

    #[test]
    fn only_a_fresh_signature_over_this_request_passes() {
        assert_eq!(refused(|_| {}), None);
        let wrong = Some("x-gat-signature is wrong");
        assert_eq!(
            refused(|parts| parts.method = "POST".parse().unwrap()),
            wrong
        );
        let other = "/api/v2/order/a%2Fb?x=2";
        assert_eq!(refused(|parts| parts.uri = other.parse().unwrap()), wrong);
        let at = |timestamp: i64| with("x-gat-timestamp", &timestamp.to_string());
        assert_eq!(at(NOW + 1), wrong);
        for far in [NOW - 300_001, NOW + 300_001] {
            assert_eq!(at(far), Some("x-gat-timestamp is more than 5 minutes off"));
        }
        assert_eq!(
            at(-1),
            Some("x-gat-timestamp is not Unix time in milliseconds")
        );
        assert_eq!(with("x-gat-signature", "AAAA"), wrong);
        assert_eq!(
            with("x-gat-access-key", "other"),
            Some("x-gat-access-key is unknown")
        );
    }

    #[test]
    fn each_header_is_needed() {
        for name in ["x-gat-timestamp", "x-gat-access-key", "x-gat-signature"] {
            let message = refused(|parts| drop(parts.headers.remove(name)));
            assert_eq!(message, Some(format!("{name} is missing").as_str()));
        }
    }
}
