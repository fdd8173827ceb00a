//! The endpoints of partners, prepared once instead of for each webhook. Preparing one means
//! parsing its URL and decrypting its secrets.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use domain::PartnerId;
use runtime::lock;
use signing::webhook::Secret;
use store::{deliveries::Delivery, partners, vault::Vault};
use url::Url;

use crate::webhook::Unanswered;

/// The most endpoints that are cached. When the cache is full, it is emptied, and the endpoints
/// that are still in use return to it with their next delivery.
const KEPT: usize = 10_000;

/// A prepared endpoint.
pub struct Endpoint {
    /// The URL and the encrypted secrets (the newest, the old one) as they were read. If a delivery
    /// brings others, the partner has changed them, and the endpoint is prepared again.
    url_text: String,
    sealed: [Option<Vec<u8>>; 2],
    /// The host, which is the lane of its deliveries.
    pub host: Arc<str>,
    pub url: Result<Url, Unanswered>,
    /// The secrets that sign its webhooks, the newest first.
    pub secrets: Result<Vec<Secret>, store::Error>,
}

impl Endpoint {
    fn is_of(&self, delivery: &Delivery, url_text: &str) -> bool {
        let [newest, old] = &self.sealed;
        self.url_text == url_text
            && newest.as_deref() == Some(&delivery.webhook_secret)
            && *old == delivery.old_webhook_secret
    }
}

/// The cache of endpoints by partner. It never serves an outdated endpoint, because each delivery
/// brings the current URL and secrets from PostgreSQL to compare with.
#[derive(Default)]
pub struct Endpoints(Mutex<HashMap<PartnerId, Arc<Endpoint>>>);

impl Endpoints {
    /// The host of a partner's endpoint, which is the lane of its deliveries; empty if it is not
    /// known yet.
    pub fn host(&self, partner: PartnerId) -> Arc<str> {
        let known = lock(&self.0)
            .get(&partner)
            .map(|endpoint| Arc::clone(&endpoint.host));
        known.unwrap_or_else(|| "".into())
    }

    /// The endpoint of a delivery; `None` if the partner has no URL.
    pub fn of(&self, delivery: &Delivery, vault: &Vault) -> Option<Arc<Endpoint>> {
        let url_text = delivery.webhook_url.as_deref()?;
        let partner = delivery.partner_id;
        if let Some(known) = lock(&self.0).get(&partner)
            && known.is_of(delivery, url_text)
        {
            return Some(Arc::clone(known));
        }
        let sealed = [
            Some(delivery.webhook_secret.clone()),
            delivery.old_webhook_secret.clone(),
        ];
        let open = |sealed: &Vec<u8>| partners::open_webhook_secret(vault, partner, sealed);
        let endpoint = Arc::new(Endpoint {
            host: delivery.webhook_host.as_deref().unwrap_or_default().into(),
            url: url_text.parse().map_err(|_| Unanswered::BadUrl),
            secrets: sealed.iter().flatten().map(open).collect(),
            url_text: url_text.to_owned(),
            sealed,
        });
        let mut known = lock(&self.0);
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(partner, Arc::clone(&endpoint));
        Some(endpoint)
    }
}
