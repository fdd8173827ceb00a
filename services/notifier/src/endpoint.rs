//! The endpoints of partners, prepared once instead of for each webhook. Preparing one means
//! parsing its URL and decrypting its secrets and headers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use accounts::partners::endpoints;
use domain::{EndpointId, EndpointKey};
use http::{HeaderMap, HeaderName, HeaderValue};
use runtime::lock;
use signing::webhook::Secret;
use store::deliveries::Delivery;
use url::Url;
use vault::{Vault, VaultError};
use webhooks::mail::is_mail;

use crate::webhook::Unanswered;

/// The most endpoints that are cached. When the cache is full, it is emptied, and the endpoints
/// that are still in use return to it with their next delivery.
const KEPT: usize = 10_000;

/// A prepared endpoint.
pub struct Endpoint {
    /// The URL, the encrypted secrets (the newest first) and the encrypted headers as they
    /// were read. If a delivery brings others, the partner has changed them, and the endpoint is
    /// prepared again.
    url_text: String,
    sealed: Vec<Vec<u8>>,
    sealed_headers: Option<Vec<u8>>,
    /// The host, which is the lane of its deliveries.
    pub host: Arc<str>,
    pub url: Result<Url, Unanswered>,
    /// The secrets that sign its webhooks, the newest first.
    pub secrets: Result<Vec<Secret>, pg::Error>,
    /// The headers that the partner has set for all requests to it.
    pub headers: Result<HeaderMap, pg::Error>,
}

impl Endpoint {
    fn is_of(&self, delivery: &Delivery, url_text: &str) -> bool {
        self.url_text == url_text
            && self.sealed == delivery.secrets
            && self.sealed_headers == delivery.headers
    }
}

/// The lane of all e-mail addresses, because one relay takes all mails.
const MAILS: &str = "mailto:";

fn host_of<'a>(delivery: &'a Delivery, target: &str) -> &'a str {
    if is_mail(target) {
        MAILS
    } else {
        delivery.host.as_deref().unwrap_or_default()
    }
}

/// The cache of endpoints by id. It never serves an outdated endpoint, because each delivery
/// brings the current URL and secrets from PostgreSQL to compare with.
#[derive(Default)]
pub struct Endpoints(Mutex<HashMap<EndpointId, Arc<Endpoint>>>);

impl Endpoints {
    /// The host of an endpoint, which is the lane of its deliveries; empty if it is not known yet.
    pub fn host(&self, endpoint: EndpointKey) -> Arc<str> {
        let known = lock(&self.0)
            .get(&endpoint.id)
            .map(|endpoint| Arc::clone(&endpoint.host));
        known.unwrap_or_else(|| "".into())
    }

    /// The endpoint of a delivery; `None` if the partner has no URL.
    pub fn of(&self, delivery: &Delivery, vault: &Vault) -> Option<Arc<Endpoint>> {
        let url_text = delivery.url.as_deref()?;
        let key = delivery.endpoint;
        if let Some(known) = lock(&self.0).get(&key.id)
            && known.is_of(delivery, url_text)
        {
            return Some(Arc::clone(known));
        }
        let open = |sealed: &Vec<u8>| endpoints::open_secret(vault, key, sealed);
        let endpoint = Arc::new(Endpoint {
            host: host_of(delivery, url_text).into(),
            url: url_text.parse().map_err(|_| Unanswered::BadUrl),
            secrets: delivery.secrets.iter().map(open).collect(),
            url_text: url_text.to_owned(),
            sealed: delivery.secrets.clone(),
            headers: headers(delivery, vault),
            sealed_headers: delivery.headers.clone(),
        });
        let mut known = lock(&self.0);
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(key.id, Arc::clone(&endpoint));
        Some(endpoint)
    }
}

/// Opens the headers of an endpoint. Ingress has checked that they can be sent. One that it would
/// refuse today, because it was set before the check had learned of its kind, is left out.
fn headers(delivery: &Delivery, vault: &Vault) -> Result<HeaderMap, pg::Error> {
    let Some(sealed) = &delivery.headers else {
        return Ok(HeaderMap::new());
    };
    let mut headers = HeaderMap::new();
    for (name, value) in endpoints::open_headers(vault, delivery.endpoint.id, sealed)? {
        if webhooks::headers::check(&name, &value).is_err() {
            continue;
        }
        let name = HeaderName::try_from(name).map_err(|_| VaultError::Damaged)?;
        let mut value = HeaderValue::try_from(value).map_err(|_| VaultError::Damaged)?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}
