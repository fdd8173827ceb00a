//! Who sends a request: the checks of section 5 of the specification, in its sequence.

use std::sync::Arc;

use axum::{
    extract::FromRequestParts,
    http::{HeaderValue, request::Parts},
};

use crate::{
    App,
    directory::{Key, Partner},
    error::ApiError,
};

/// How far a request's timestamp may be from our clock, either side, in seconds.
const WINDOW: u64 = 300;

/// A partner whose request has passed every check. There is no other way to get one.
pub struct AuthenticatedPartner(pub Arc<Partner>);

/// The names of the three headers, lowercase, and how the access key's is spelled to partners.
#[derive(Clone, Debug)]
pub struct HeaderNames {
    access_key: String,
    signature: String,
    timestamp: String,
    access_key_spelled: String,
}

impl HeaderNames {
    /// `X-<Brand>-Access-Key` and so on.
    pub fn new(brand: &str) -> Self {
        let name = |last: &str| format!("X-{brand}-{last}").to_ascii_lowercase();
        Self {
            access_key: name("Access-Key"),
            signature: name("Signature"),
            timestamp: name("Timestamp"),
            access_key_spelled: format!("X-{brand}-Access-Key"),
        }
    }
}

impl FromRequestParts<Arc<App>> for AuthenticatedPartner {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let names = &app.headers;
        let denied = |reason: &'static str, message: String| {
            app.metrics.auth_failure(reason);
            ApiError::Unauthorized(message)
        };
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
        // Anything but visible ASCII is present, but can't be anybody's key.
        let access_key = access_key.to_str().map_err(|_| unknown("access_key"))?;
        let partner = app
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
                let id = partner.partner_id;
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
        Ok(Self(partner))
    }
}

fn is_blank(value: &HeaderValue) -> bool {
    value.as_bytes().iter().all(u8::is_ascii_whitespace)
}
