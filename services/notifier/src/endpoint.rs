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
use store::deliveries::{Delivery, Target, Validity};
use time::OffsetDateTime;
use url::Url;
use vault::{Vault, VaultError};
use webhooks::mail::is_mail;

use crate::webhook::Unanswered;

/// The most endpoints that are cached. When the cache is full, it is emptied, and the endpoints
/// that are still in use return to it with their next delivery.
const KEPT: usize = 10_000;

/// A prepared endpoint.
pub struct Endpoint {
    /// What it was made from. If a delivery brings another one, the partner has changed the endpoint,
    /// and it is prepared again.
    target: Arc<Target>,
    /// The host, which is the lane of its deliveries.
    pub host: Arc<str>,
    pub url: Result<Url, Unanswered>,
    /// The secrets that sign its webhooks, the newest first.
    pub secrets: Result<Vec<Secret>, pg::Error>,
    /// The headers that the partner has set for all requests to it.
    pub headers: Result<HeaderMap, pg::Error>,
}

/// The lane of all e-mail addresses, because one relay takes all mails.
const MAILS: &str = "mailto:";

fn host_of<'a>(target: &'a Target, url: &str) -> &'a str {
    if is_mail(url) {
        MAILS
    } else {
        target.host.as_deref().unwrap_or_default()
    }
}

/// The endpoints by id: prepared ones, and those that the next claim need not read again.
///
/// It never serves an outdated endpoint. Each delivery brings its target: either the claim has just
/// read it, or `store::deliveries::claim_known` has compared the version of the configuration in
/// which it was read.
#[derive(Default)]
pub struct Endpoints(Mutex<Directory>);

#[derive(Default)]
struct Directory {
    prepared: HashMap<EndpointId, Arc<Endpoint>>,
    /// The version of the configuration in which all of `known` were read.
    version: Option<i64>,
    known: HashMap<EndpointId, (Arc<Target>, Option<OffsetDateTime>)>,
}

impl Endpoints {
    /// The host of an endpoint, which is the lane of its deliveries; empty if it is not known yet.
    pub fn host(&self, endpoint: EndpointKey) -> Arc<str> {
        let known = lock(&self.0)
            .prepared
            .get(&endpoint.id)
            .map(|endpoint| Arc::clone(&endpoint.host));
        known.unwrap_or_else(|| "".into())
    }

    /// Remembers what a claim has read.
    pub fn learn(&self, targets: Vec<(EndpointId, Arc<Target>, Validity)>) {
        let mut directory = lock(&self.0);
        for (id, target, validity) in targets {
            if directory.version != Some(validity.version) || directory.known.len() >= KEPT {
                directory.known.clear();
                directory.version = Some(validity.version);
            }
            directory.known.insert(id, (target, validity.until));
        }
    }

    /// The version of the configuration in which endpoints are known, if any are.
    pub fn version(&self) -> Option<i64> {
        lock(&self.0).version
    }

    /// The target of an endpoint in this version of the configuration, if it is known and none of its
    /// secrets has ended by `now`, the time of the database.
    pub fn known(&self, id: EndpointId, version: i64, now: OffsetDateTime) -> Option<Arc<Target>> {
        let directory = lock(&self.0);
        let (target, until) = directory.known.get(&id)?;
        let holds = directory.version == Some(version) && until.is_none_or(|until| now < until);
        holds.then(|| Arc::clone(target))
    }

    /// The endpoint of a delivery; `None` if the partner has no URL.
    pub fn of(&self, delivery: &Delivery, vault: &Vault) -> Option<Arc<Endpoint>> {
        let target = &delivery.target;
        let url_text = target.url.as_deref()?;
        let key = delivery.endpoint;
        if let Some(known) = lock(&self.0).prepared.get(&key.id)
            && known.target == *target
        {
            return Some(Arc::clone(known));
        }
        let open = |sealed: &Vec<u8>| endpoints::open_secret(vault, key, sealed);
        let endpoint = Arc::new(Endpoint {
            host: host_of(target, url_text).into(),
            url: url_text.parse().map_err(|_| Unanswered::BadUrl),
            secrets: target.secrets.iter().map(open).collect(),
            headers: headers(delivery, vault),
            target: Arc::clone(target),
        });
        let mut directory = lock(&self.0);
        if directory.prepared.len() >= KEPT {
            directory.prepared.clear();
        }
        directory.prepared.insert(key.id, Arc::clone(&endpoint));
        Some(endpoint)
    }
}

/// Opens the headers of an endpoint. Ingress has checked that they can be sent. One that it would
/// refuse today, because it was set before the check had learned of its kind, is left out.
fn headers(delivery: &Delivery, vault: &Vault) -> Result<HeaderMap, pg::Error> {
    let Some(sealed) = &delivery.target.headers else {
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
