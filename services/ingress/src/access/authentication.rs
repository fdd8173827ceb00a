//! Authenticates requests.
//!
//! The sequence of the checks is part of the API contract, because it decides which error a request
//! with several faults gets:
//!
//! 1. None of the authentication headers is repeated.
//! 2. All three required headers are present.
//! 3. The timestamp is at most five minutes from our clock.
//! 4. The access key belongs to an active partner that has a secret key.
//! 5. The signature is valid.
//! 6. If the account requires it, the signature covers the body.
//! 7. The key may be used from the address of the client, and has the right that the request needs.
//! 8. If the signature covers the body, the body that arrived is the signed one.
//!
//! Guarantees: a [`SignedRequest`] was signed with a valid key of an active partner that has the
//! right for it, at most five minutes from our clock. Within this window the same request may
//! arrive again. Replays are not recognised, because the replicas share no memory. A replayed order
//! does no harm, because its external id is unique as long as the order stands.
//!
//! Create-order and self-service call [`Authenticator::head`] before they read a body, so that an
//! unknown sender cannot make us read much, and [`Authenticator::body`] after. The module relies on
//! [`super::directory`] for keys that are at most a second old while the database responds.

use std::sync::Arc;

use axum::{
    http::{HeaderValue, request::Parts},
    response::{IntoResponse, Response},
};
use domain::{KeyTerms, Right};
use pg::primary::Unfit;
use runtime::forwarded;

use crate::{
    access::directory::{Directory, Key, KnownPartner},
    http::{codes::ErrorCode, connection::Connection, error::ApiError, refusals::RequestSender},
};

/// The largest allowed difference between the timestamp of a request and our clock, in seconds. It
/// leaves room for clocks that are somewhat wrong.
const WINDOW: u64 = 300;

/// The names of the headers, as partners write them: `X-<Brand>-Access-Key` and so on.
struct HeaderNames {
    access_key: String,
    signature: String,
    timestamp: String,
    content_sha256: String,
}

/// A request whose head is authentic. Only [`Authenticator::head`] makes one, so a handler that
/// takes one cannot forget the check.
pub(crate) struct SignedRequest {
    pub(crate) partner: Arc<KnownPartner>,
    /// The digest of the body in the signature; `None` if the signature does not cover the body.
    pub(crate) body_digest: Option<HeaderValue>,
}

/// Why the head of a request is not authentic.
#[derive(Debug)]
pub(crate) struct AuthenticationFailure {
    error: ApiError,
    /// The partner whose access key the request has. The response to a request without a valid
    /// signature must not depend on it, because whoever sent it did not prove to be the partner.
    sender: Option<RequestSender>,
}

impl IntoResponse for AuthenticationFailure {
    fn into_response(self) -> Response {
        let mut response = self.error.into_response();
        if let Some(sender) = self.sender {
            response.extensions_mut().insert(sender);
        }
        response
    }
}

pub(crate) struct Authenticator {
    names: HeaderNames,
    directory: Arc<Directory>,
    /// Whether a proxy names the address of the client; see [`forwarded::client`].
    is_forwarded: bool,
}

impl Authenticator {
    /// Creates the authenticator. `brand` is the middle part of the header names.
    pub(crate) fn new(brand: &str, directory: Arc<Directory>, is_forwarded: bool) -> Self {
        let [access_key, signature, timestamp, content_sha256] =
            ["Access-Key", "Signature", "Timestamp", "Content-SHA256"]
                .map(|last| format!("X-{brand}-{last}"));
        let names = HeaderNames {
            access_key,
            signature,
            timestamp,
            content_sha256,
        };
        Self {
            names,
            directory,
            is_forwarded,
        }
    }

    /// Checks the head of a request that needs this right, which are the steps 1 to 7 of the
    /// module's list. [`Authenticator::body`] is step 8.
    pub(crate) async fn head(
        &self,
        parts: &Parts,
        right: Right,
    ) -> Result<SignedRequest, AuthenticationFailure> {
        let mut sender = None;
        let checked = self.check(parts, right, &mut sender).await;
        checked.map_err(|error| AuthenticationFailure { error, sender })
    }

    /// See [`Self::head`]. Notes the partner as soon as the access key shows it.
    async fn check(
        &self,
        parts: &Parts,
        right: Right,
        sender: &mut Option<RequestSender>,
    ) -> Result<SignedRequest, ApiError> {
        let names = &self.names;
        for name in [
            &names.access_key,
            &names.signature,
            &names.timestamp,
            &names.content_sha256,
        ] {
            if parts.headers.get_all(name.as_str()).iter().nth(1).is_some() {
                return Err(ApiError::with(
                    ErrorCode::RepeatedHeader,
                    name.to_ascii_lowercase(),
                ));
            }
        }
        let header = |name: &str| {
            parts
                .headers
                .get(name)
                .filter(|value| !value.as_bytes().trim_ascii().is_empty())
        };
        let (Some(access_key), Some(signature), Some(timestamp)) = (
            header(&names.access_key),
            header(&names.signature),
            header(&names.timestamp),
        ) else {
            return Err(ErrorCode::AuthenticationHeaderMissing.into());
        };
        let Some(timestamp) = recent(timestamp) else {
            // The key is looked up only to note whose request it is, so the cache must do.
            let known = access_key.to_str().ok();
            let known = known.and_then(|access_key| self.directory.owner(access_key));
            *sender = known.map(RequestSender::unsigned);
            return Err(not_recent(self.directory.check_database()));
        };

        // A disabled partner gets the same answer as an unknown one, so that nobody can find out
        // that there was such a partner.
        let unknown = || self.unknown_key();
        // Access keys consist of visible ASCII characters. A value with any other character cannot
        // match a key, so it is refused without a look-up.
        let access_key = access_key.to_str().map_err(|_| unknown())?;
        let found = self
            .directory
            .partner(access_key)
            .await
            .map_err(ApiError::internal)?;
        // A key that has ended gets the answer of an unknown one, and counts as its partner's.
        let owner = match &found {
            Some(partner) => Some(partner.id),
            None => self.directory.owner(access_key),
        };
        *sender = owner.map(RequestSender::unsigned);
        let partner = found
            .filter(|partner| !partner.disabled)
            .ok_or_else(unknown)?;

        let secret = match &partner.key {
            Key::Known(secret) => secret,
            Key::Missing => return Err(ErrorCode::SecretKeyMissing.into()),
            Key::Unusable => {
                let error = anyhow::anyhow!("the secret key of partner {} is unusable", partner.id);
                return Err(ApiError::Internal(error));
            }
        };
        // There are two forms of the signature. If the request names the digest of its body, the
        // signature covers the path, the query and the digest; without that header it covers the
        // path alone. An empty header counts as the first form with a wrong digest and not as the
        // second form, because a client that sends the header wants its body to be checked.
        let body_digest = parts.headers.get(&names.content_sha256);
        let target = match (body_digest, parts.uri.path_and_query()) {
            (Some(_), Some(whole)) => whole.as_str(),
            _ => parts.uri.path(),
        };
        let is_valid = signing::request::verify(
            secret,
            parts.method.as_str(),
            target,
            timestamp,
            access_key,
            body_digest.map(HeaderValue::as_bytes),
            signature.as_bytes(),
        );
        if !is_valid {
            return Err(ErrorCode::SignatureInvalid.into());
        }
        if let Some(connection) = parts.extensions.get::<Arc<Connection>>() {
            connection.place.authenticated(&partner.id);
        }
        *sender = Some(RequestSender::signed(partner.id));
        if partner.signed_body_required && body_digest.is_none() {
            return Err(ApiError::with(
                ErrorCode::ContentSha256Missing,
                &names.content_sha256,
            ));
        }
        self.directory.note_use(&partner.credential);
        self.allowed(parts, &partner.credential.terms, right)?;
        Ok(SignedRequest {
            body_digest: body_digest.cloned(),
            partner,
        })
    }

    /// Step 7 of the module's list. It comes after the signature, so that only who has the key
    /// learns what it may do.
    fn allowed(&self, parts: &Parts, terms: &KeyTerms, right: Right) -> Result<(), ApiError> {
        if !terms.networks.is_empty() {
            let connection = parts.extensions.get::<Arc<Connection>>();
            let peer = connection.map(|connection| connection.peer.ip());
            let from = peer
                .map(|peer| forwarded::client(peer, &parts.headers, self.is_forwarded))
                .filter(|address| !terms.allow_from(*address));
            if let Some(address) = from {
                return Err(ApiError::with(ErrorCode::NetworkNotAllowed, address));
            }
            if peer.is_none() {
                return Err(ApiError::with(ErrorCode::NetworkNotAllowed, "unknown"));
            }
        }
        if terms.rights.contains(right) {
            Ok(())
        } else {
            Err(ApiError::with(ErrorCode::RightMissing, right.as_str()))
        }
    }

    /// The 401 for a request whose key has ended while it was handled.
    pub(crate) fn unknown_key(&self) -> ApiError {
        ApiError::with(ErrorCode::AccessKeyUnknown, &self.names.access_key)
    }

    /// The 401 for a request that needs a signature which covers its body, and has another one.
    pub(crate) fn body_not_signed(&self) -> ApiError {
        ApiError::Plain {
            code: ErrorCode::ContentSha256Missing,
            message: format!(
                "Missing {} header: this request needs a signature that covers its body.",
                self.names.content_sha256
            ),
        }
    }

    /// Step 8 of the module's list: the body is the one that was signed. Without a digest the
    /// signature does not cover the body, so every body passes.
    pub(crate) fn body(&self, signed: &SignedRequest, received: &[u8]) -> Result<(), ApiError> {
        match &signed.body_digest {
            Some(digest) if !signing::request::is_digest(digest.as_bytes(), received) => Err(
                ApiError::with(ErrorCode::ContentSha256Invalid, &self.names.content_sha256),
            ),
            _ => Ok(()),
        }
    }
}

/// The answer to a request whose time is far from ours. If it is our clock that is wrong, the
/// time may be right, and a 401 would say that a repeat is of no use. So it gets the 500 that
/// every other request gets until the clocks agree.
fn not_recent(checked: pg::Result<()>) -> ApiError {
    match checked {
        Err(error @ pg::Error::Unfit(Unfit::Clock { .. })) => ApiError::internal(error),
        _ => ErrorCode::TimestampInvalid.into(),
    }
}

/// The text of a timestamp that is at most [`WINDOW`] from our clock. The text is returned because
/// the signature covers it as it was sent.
fn recent(timestamp: &HeaderValue) -> Option<&str> {
    let text = timestamp.to_str().ok()?;
    let at = signing::parse_unix_time(text)?;
    (at.abs_diff(runtime::clock::unix_seconds()) <= WINDOW).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::StatusCode;

    use super::*;

    #[test]
    fn only_by_a_right_clock_a_time_is_refused() {
        let difference = Duration::from_mins(10);
        for (checked, expected) in [
            (Ok(()), StatusCode::UNAUTHORIZED),
            (Err(Unfit::Standby), StatusCode::UNAUTHORIZED),
            (
                Err(Unfit::Clock { difference }),
                StatusCode::INTERNAL_SERVER_ERROR,
            ),
        ] {
            let answer = not_recent(checked.map_err(Into::into));
            assert_eq!(answer.into_response().status(), expected);
        }
    }
}
