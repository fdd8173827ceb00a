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
use store::deliveries::{ClaimedDelivery, DeliveryTarget, Validity};
use time::OffsetDateTime;
use url::Url;
use vault::{Vault, VaultError};
use webhooks::mail::is_mail;

use crate::webhook::NoResponse;

/// The maximum number of endpoints that are cached. When the cache is full, it is emptied, and the
/// endpoints that are still in use return to it with their next delivery.
const KEPT: usize = 10_000;

/// A prepared endpoint.
pub struct PreparedEndpoint {
    /// The host: the lane by which permits are counted.
    pub host: Arc<str>,
    pub url: Result<Url, NoResponse>,
    /// The secrets that sign its webhooks, the newest first.
    pub secrets: Result<Vec<Secret>, pg::Error>,
    /// The headers that the partner has set for all requests to it.
    pub headers: Result<HeaderMap, pg::Error>,
}

/// The lane of all e-mail addresses, because one relay takes all mails.
const MAILS: &str = "mailto:";

fn host_of<'a>(target: &'a DeliveryTarget, url: &str) -> &'a str {
    if is_mail(url) {
        MAILS
    } else {
        target.host.as_deref().unwrap_or_default()
    }
}

/// The endpoints by id, with what was read of them and what was prepared from it.
///
/// It never serves an outdated endpoint. Each delivery brings its target: either the claim has just
/// read it, or `store::deliveries::claim_known` has compared the configuration version at which it
/// was read.
#[derive(Default)]
pub struct EndpointCache(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    endpoints: HashMap<EndpointId, KnownEndpoint>,
    /// The configuration version at which the targets were read that claims may take from here.
    configuration_version: Option<i64>,
}

/// What is known of an endpoint.
struct KnownEndpoint {
    target: Arc<DeliveryTarget>,
    /// Whether a claim may take the target from here, because it was read at the configuration
    /// version of the cache.
    is_current: bool,
    /// When a claim has to read it in any case, because one of its secrets ends.
    until: Option<OffsetDateTime>,
    /// Made from the target for its first webhook.
    prepared: Option<Arc<PreparedEndpoint>>,
}

impl Cache {
    /// The entry of an endpoint with this target. If it had another one, the partner has changed
    /// the endpoint, and what was made from the old one is forgotten.
    fn with(&mut self, id: EndpointId, target: &Arc<DeliveryTarget>) -> &mut KnownEndpoint {
        if self.endpoints.len() >= KEPT {
            self.endpoints.clear();
        }
        let new = || KnownEndpoint {
            target: Arc::clone(target),
            is_current: false,
            until: None,
            prepared: None,
        };
        let known = self.endpoints.entry(id).or_insert_with(new);
        if known.target != *target {
            *known = new();
        }
        known
    }
}

impl EndpointCache {
    /// The host of an endpoint, which is the lane by which permits are counted; empty if it is not
    /// known yet.
    pub fn host(&self, endpoint: EndpointKey) -> Arc<str> {
        let cache = lock(&self.0);
        let known = cache.endpoints.get(&endpoint.id);
        let prepared = known.and_then(|known| known.prepared.as_ref());
        prepared.map_or_else(|| "".into(), |endpoint| Arc::clone(&endpoint.host))
    }

    /// Remembers what a claim has read.
    pub fn learn(&self, targets: Vec<(EndpointId, Arc<DeliveryTarget>, Validity)>) {
        let mut cache = lock(&self.0);
        for (id, target, validity) in targets {
            // The version may also go back: the slower one of two claims has an older one, and the
            // numbers of a restored database come again.
            let version = Some(validity.configuration_version);
            if cache.configuration_version != version {
                cache.configuration_version = version;
                for known in cache.endpoints.values_mut() {
                    known.is_current = false;
                }
            }
            let known = cache.with(id, &target);
            known.is_current = true;
            known.until = validity.until;
        }
    }

    /// The configuration version at which endpoints are known, if any are.
    pub fn configuration_version(&self) -> Option<i64> {
        lock(&self.0).configuration_version
    }

    /// The target of an endpoint at this configuration version, if it is known and none of its
    /// secrets has ended by `now`, the time of the database.
    pub fn known(
        &self,
        id: EndpointId,
        configuration_version: i64,
        now: OffsetDateTime,
    ) -> Option<Arc<DeliveryTarget>> {
        let cache = lock(&self.0);
        let known = cache.endpoints.get(&id)?;
        let holds = cache.configuration_version == Some(configuration_version)
            && known.is_current
            && known.until.is_none_or(|until| now < until);
        holds.then(|| Arc::clone(&known.target))
    }

    /// The endpoint of a delivery; `None` if the partner has no URL.
    pub fn of(&self, delivery: &ClaimedDelivery, vault: &Vault) -> Option<Arc<PreparedEndpoint>> {
        let target = &delivery.target;
        let url_text = target.url.as_deref()?;
        let key = delivery.endpoint;
        if let Some(known) = lock(&self.0).endpoints.get(&key.id)
            && known.target == *target
            && known.prepared.is_some()
        {
            return known.prepared.clone();
        }
        let open = |sealed: &Vec<u8>| endpoints::open_secret(vault, key, sealed);
        let endpoint = Arc::new(PreparedEndpoint {
            host: host_of(target, url_text).into(),
            url: url_text.parse().map_err(|_| NoResponse::BadUrl),
            secrets: target.secrets.iter().map(open).collect(),
            headers: headers(delivery, vault),
        });
        // An older delivery may replace what a later claim has read. Then the next claim reads it
        // again.
        lock(&self.0).with(key.id, target).prepared = Some(Arc::clone(&endpoint));
        Some(endpoint)
    }
}

/// Opens the headers of an endpoint. Ingress has checked that they can be sent. One that it would
/// refuse today, because it was set before the check had learned of its kind, is left out.
fn headers(delivery: &ClaimedDelivery, vault: &Vault) -> Result<HeaderMap, pg::Error> {
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
