//! Authenticates requests: the checks of section 5 of the specification, in its sequence.

use std::sync::Arc;

use axum::http::{HeaderValue, request::Parts};

use crate::{
    codes::Code,
    directory::{Directory, Key, Partner},
    error::ApiError,
    metrics::Metrics,
};

/// The largest difference between a request's timestamp and our clock, in seconds.
const WINDOW: u64 = 300;

/// The names of the three headers, in lower case, and the access key's as partners write it.
#[derive(Clone, Debug)]
struct HeaderNames {
    access_key: String,
    signature: String,
    timestamp: String,
    access_key_spelled: String,
}

impl HeaderNames {
    /// `X-<Brand>-Access-Key` and so on.
    fn new(brand: &str) -> Self {
        let name = |last: &str| format!("X-{brand}-{last}").to_ascii_lowercase();
        Self {
            access_key: name("Access-Key"),
            signature: name("Signature"),
            timestamp: name("Timestamp"),
            access_key_spelled: format!("X-{brand}-Access-Key"),
        }
    }
}

/// Finds the partner that signed a request.
pub(crate) struct Authenticator {
    names: HeaderNames,
    directory: Arc<Directory>,
    metrics: Metrics,
}

impl Authenticator {
    /// Creates the authenticator. `brand` is part of the header names.
    pub(crate) fn new(brand: &str, directory: Arc<Directory>, metrics: Metrics) -> Self {
        Self {
            names: HeaderNames::new(brand),
            directory,
            metrics,
        }
    }

    /// Returns the partner of a request that passes every check.
    pub(crate) async fn partner(&self, parts: &Parts) -> Result<Arc<Partner>, ApiError> {
        let names = &self.names;
        let denied = |reason: &'static str, message: String| {
            self.metrics.auth_failure(reason);
            ApiError::Unauthorized { reason, message }
        };
        for name in [&names.access_key, &names.signature, &names.timestamp] {
            if parts.headers.get_all(name).iter().nth(1).is_some() {
                return Err(ApiError::BadRequest {
                    code: Code::RepeatedHeader,
                    message: format!("Header {name} is repeated"),
                });
            }
        }
        let header = |name: &str| parts.headers.get(name).filter(|value| !is_blank(value));
        let (Some(access_key), Some(signature), Some(timestamp)) = (
            header(&names.access_key),
            header(&names.signature),
            header(&names.timestamp),
        ) else {
            return Err(denied(
                "missing_header",
                "Missing required authentication headers.".into(),
            ));
        };

        let timestamp = timestamp
            .to_str()
            .ok()
            .filter(|text| {
                signing::parse_unix_time(text)
                    .is_some_and(|time| time.abs_diff(runtime::clock::unix_seconds()) <= WINDOW)
            })
            .ok_or_else(|| denied("timestamp", "Request timestamp is too old or invalid.".into()))?;

        let unknown = |reason| {
            let header = &names.access_key_spelled;
            let message = format!("Invalid or missing access key. Please provide a valid {header} header.");
            denied(reason, message)
        };
        // A value with other characters than visible ASCII is no key.
        let access_key = access_key.to_str().map_err(|_| unknown("access_key"))?;
        let partner = self
            .directory
            .partner(access_key)
            .await
            .map_err(|error| ApiError::Internal(error.into()))?
            .ok_or_else(|| unknown("access_key"))?;
        if partner.disabled {
            return Err(unknown("disabled"));
        }

        let secret = match &partner.key {
            Key::Missing => {
                return Err(denied(
                    "missing_secret_key",
                    "Missing secret key in partner record.".into(),
                ));
            }
            Key::Unusable => {
                let id = partner.id;
                return Err(ApiError::Internal(anyhow::anyhow!(
                    "the secret key of partner {id} is unusable"
                )));
            }
            Key::Known(secret) => secret,
        };
        let (method, path) = (parts.method.as_str(), parts.uri.path());
        if !signing::request::verify(secret, method, path, timestamp, access_key, signature.as_bytes()) {
            return Err(denied("signature", "Invalid signature.".into()));
        }
        Ok(partner)
    }
}

fn is_blank(value: &HeaderValue) -> bool {
    value.as_bytes().iter().all(u8::is_ascii_whitespace)
}
