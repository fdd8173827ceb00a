//! Authenticates requests: first the checks of section 5 of the specification, in its sequence, then the checks of a
//! signed body.

use std::sync::Arc;

use axum::http::{HeaderValue, request::Parts};

use crate::{
    access::{
        directory::{Directory, Key, Partner},
        replays::{Replays, Use},
    },
    http::{codes::Code, error::ApiError},
    metrics::Metrics,
};

/// The largest difference between a request's timestamp and our clock, in seconds.
pub(crate) const WINDOW: u64 = 300;

/// The names of the headers, as partners write them: `X-<Brand>-Access-Key` and so on.
struct HeaderNames {
    access_key: String,
    signature: String,
    timestamp: String,
    content_sha256: String,
}

/// A request whose head is authentic.
pub(crate) struct Signed {
    pub(crate) partner: Arc<Partner>,
    /// What the signature says about the body; `None` if it does not cover it.
    pub(crate) body: Option<SignedBody>,
}

/// A body that the signature covers.
pub(crate) struct SignedBody {
    digest: HeaderValue,
    /// The use to remember, if the request changes something.
    once: Option<Use>,
}

pub(crate) struct Authenticator {
    names: HeaderNames,
    directory: Arc<Directory>,
    replays: Option<Replays>,
    metrics: Metrics,
}

impl Authenticator {
    /// Creates the authenticator. `brand` is part of the header names. `replays` remembers signatures.
    pub(crate) fn new(brand: &str, directory: Arc<Directory>, replays: Option<Replays>, metrics: Metrics) -> Self {
        let [access_key, signature, timestamp, content_sha256] =
            ["Access-Key", "Signature", "Timestamp", "Content-SHA256"].map(|last| format!("X-{brand}-{last}"));
        let names = HeaderNames { access_key, signature, timestamp, content_sha256 };
        Self { names, directory, replays, metrics }
    }

    /// Counts a failed check under `reason`, and returns the 401.
    fn denied(&self, reason: &'static str, code: Code, message: impl Into<String>) -> ApiError {
        self.metrics.auth_failure(reason);
        ApiError::Unauthorized { reason, code, message: message.into() }
    }

    /// Checks the head of a request. Its body is checked by [`Authenticator::body`].
    pub(crate) async fn head(&self, parts: &Parts) -> Result<Signed, ApiError> {
        let names = &self.names;
        for name in [&names.access_key, &names.signature, &names.timestamp, &names.content_sha256] {
            if parts.headers.get_all(name.as_str()).iter().nth(1).is_some() {
                let message = format!("Header {} is repeated", name.to_ascii_lowercase());
                return Err(ApiError::bad_request(Code::RepeatedHeader, message));
            }
        }
        let header = |name: &str| parts.headers.get(name).filter(|value| !value.as_bytes().trim_ascii().is_empty());
        let (Some(access_key), Some(signature), Some(timestamp)) =
            (header(&names.access_key), header(&names.signature), header(&names.timestamp))
        else {
            let message = "Missing required authentication headers.";
            return Err(self.denied("missing_header", Code::AuthenticationHeaderMissing, message));
        };

        let read = timestamp.to_str().ok().and_then(|text| Some((text, signing::parse_unix_time(text)?)));
        let Some((timestamp, at)) = read.filter(|(_, at)| at.abs_diff(runtime::clock::unix_seconds()) <= WINDOW) else {
            let message = "Request timestamp is too old or invalid.";
            return Err(self.denied("timestamp", Code::TimestampInvalid, message));
        };

        let unknown = |reason| {
            let header = &names.access_key;
            let message = format!("Invalid or missing access key. Please provide a valid {header} header.");
            self.denied(reason, Code::AccessKeyUnknown, message)
        };
        // A value with other characters than visible ASCII is no key.
        let access_key = access_key.to_str().map_err(|_| unknown("access_key"))?;
        let partner = self.directory.partner(access_key).await.map_err(ApiError::internal)?;
        let partner = partner.ok_or_else(|| unknown("access_key"))?;
        if partner.disabled {
            return Err(unknown("disabled"));
        }

        let secret = match &partner.key {
            Key::Missing => {
                let message = "Missing secret key in partner record.";
                return Err(self.denied("missing_secret_key", Code::SecretKeyMissing, message));
            }
            Key::Unusable => {
                let error = anyhow::anyhow!("the secret key of partner {} is unusable", partner.id);
                return Err(ApiError::Internal(error));
            }
            Key::Known(secret) => secret,
        };
        // An empty value counts as a wrong digest.
        let digest = parts.headers.get(&names.content_sha256);
        let target = match (digest, parts.uri.path_and_query()) {
            (Some(_), Some(whole)) => whole.as_str(),
            _ => parts.uri.path(),
        };
        let (method, given, signed) = (parts.method.as_str(), digest.map(HeaderValue::as_bytes), signature.as_bytes());
        let is_valid = signing::request::verify(secret, method, target, timestamp, access_key, given, signed);
        if !is_valid {
            return Err(self.denied("signature", Code::SignatureInvalid, "Invalid signature."));
        }
        let Some(digest) = digest else {
            if partner.signed_body_required {
                let header = &names.content_sha256;
                let message = format!("Missing {header} header: this account's requests sign their body.");
                return Err(self.denied("content_sha256_missing", Code::ContentSha256Missing, message));
            }
            return Ok(Signed { partner, body: None });
        };
        let body = Some(SignedBody { digest: digest.clone(), once: Use::of(&parts.method, at, signature) });
        Ok(Signed { partner, body })
    }

    /// Checks the body of a request, if its signature covers it. If replays are refused, a request that changes
    /// something passes only once.
    pub(crate) fn body(&self, signed: &Signed, received: &[u8]) -> Result<(), ApiError> {
        let Some(body) = &signed.body else { return Ok(()) };
        if !signing::request::is_digest(body.digest.as_bytes(), received) {
            let header = &self.names.content_sha256;
            let message = format!("{header} is not the SHA-256 of the body in lowercase hex.");
            return Err(self.denied("content_sha256", Code::ContentSha256Invalid, message));
        }
        if let (Some(replays), Some(once)) = (&self.replays, &body.once)
            && !replays.is_first(signed.partner.id, once)
        {
            let message = "The signature was used before: sign the request again.";
            return Err(self.denied("replayed", Code::SignatureReplayed, message));
        }
        Ok(())
    }
}
