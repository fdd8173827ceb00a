//! The webhooks of Airalo, as its pages describe them (September 2026): an eSIM has little data or
//! time left, or our account little credit. Each is signed with the secret of our account and
//! repeated up to 20 times until the answer is a 200, and none has an id of its own. Before it uses
//! a URL, Airalo tries it by `HEAD`. Those of orders that we do not make (`orders-async`) are
//! acknowledged.

use domain::Iccid;
use serde::Deserialize;
use serde_json::Value;
use signing::{SecretKey, airalo};

use crate::providers::{
    provider::{BadCallback, CallbackRequest, Hint, ProviderReport, ReportSubject},
    text::one_line,
};

/// Signed over the bytes of the body. An SDK of the provider writes the JSON anew before it signs;
/// its documents do not say so, and only the bytes are believed here.
const SIGNATURE: &str = "airalo-signature";

#[derive(Deserialize)]
struct Event {
    /// `75%`, `90%`, `3days` or `1days`.
    level: Option<String>,
    iccid: Option<String>,
    /// What is left of our credit.
    remaining: Option<Value>,
    /// Of an order that was made asynchronously.
    request_id: Option<Value>,
}

pub(super) fn read(
    secret: &SecretKey,
    callback: &CallbackRequest<'_>,
) -> Result<Hint, BadCallback> {
    if callback.body.is_empty() {
        return Ok(Hint::Nothing);
    }
    let signature = callback.headers.get(SIGNATURE);
    let signature = signature.and_then(|value| value.to_str().ok());
    let signature = signature.filter(|one| airalo::verify(secret, callback.body, one));
    let signature = signature.ok_or(BadCallback::Forged)?;
    let event: Event =
        serde_json::from_slice(callback.body).map_err(|_| BadCallback::Unreadable)?;
    let iccid = event.iccid.as_deref().and_then(|id| Iccid::parse(id).ok());
    let (about, words) = match (iccid, event.level) {
        (Some(iccid), Some(level)) => {
            let words = one_line(&format!("little data or time left: {level}"));
            (ReportSubject::Iccid(iccid), words)
        }
        (None, None) if event.remaining.is_some() && event.request_id.is_none() => {
            (ReportSubject::Account, "little credit left".to_owned())
        }
        _ => return Ok(Hint::Nothing),
    };
    // The signature is one of the whole content, so it tells whether the content comes again.
    Ok(Hint::Report(ProviderReport {
        about,
        key: signature.to_owned(),
        words,
    }))
}
