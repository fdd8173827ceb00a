//! Partners: what is stored of them, and the memory of all of them.

use anyhow::{Context, Result};
use signing::{SecretKey, generate, webhook::Secret};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use uuid::Uuid;

/// A row of `partners`. It has no `Debug`, because it holds secrets.
#[derive(Clone)]
pub struct Row {
    pub partner_id: Uuid,
    pub access_key: String,
    /// Base64.
    pub secret_key: String,
    /// `whsec_` and Base64.
    pub webhook_secret: String,
    pub webhook_url: String,
}

impl Row {
    /// A new partner with keys of its own.
    pub fn new(webhook_url: String) -> Result<Self> {
        let (access_key, secret_key) = generate::keys()?;
        Ok(Self {
            partner_id: Uuid::now_v7(),
            access_key,
            secret_key: secret_key.to_base64(),
            webhook_secret: generate::webhook_secret()?.to_text(),
            webhook_url,
        })
    }
}

/// A partner with its keys ready for use.
pub struct Partner {
    pub partner_id: Uuid,
    pub secret_key: SecretKey,
    pub webhook_secret: Secret,
    pub webhook_url: String,
}

/// All partners in memory, so that no order and no webhook has to read one.
#[derive(Clone, Default)]
pub struct Partners(Arc<RwLock<Known>>);

#[derive(Default)]
struct Known {
    by_id: HashMap<Uuid, Arc<Partner>>,
    by_access_key: HashMap<String, Arc<Partner>>,
}

impl Partners {
    pub fn add(&self, row: Row) -> Result<()> {
        let partner = Arc::new(Partner {
            partner_id: row.partner_id,
            secret_key: SecretKey::from_base64(&row.secret_key)?,
            webhook_secret: Secret::parse(&row.webhook_secret)?,
            webhook_url: row.webhook_url,
        });
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.by_id.insert(row.partner_id, Arc::clone(&partner));
        known.by_access_key.insert(row.access_key, partner);
        Ok(())
    }

    pub fn by_access_key(&self, access_key: &str) -> Option<Arc<Partner>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.by_access_key.get(access_key).cloned()
    }

    pub fn by_id(&self, partner_id: Uuid) -> Result<Arc<Partner>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let partner = known.by_id.get(&partner_id).cloned();
        partner.context("there is no such partner")
    }
}
