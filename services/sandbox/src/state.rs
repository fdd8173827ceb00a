//! The state that all request handlers share.

use std::{sync::Arc, time::Duration};

use runtime::{Shutdown, clock};
use signing::SecretKey;
use time::OffsetDateTime;

use crate::{
    attempts::AttemptCounts,
    channel::{CallbackChannel, CallbackQueue},
    faults::Switch,
    garble::Garble,
    ledger::{Ledger, Repeats},
    metrics::Metrics,
    protocol::Product,
    purchase::LedgerPurchase,
    script,
};

/// The keys of the account. The sandbox has only one.
#[derive(Clone)]
pub struct SandboxCredentials {
    pub access_key: String,
    pub secret: SecretKey,
}

/// The sandbox, as its routes see it. Each request gets a clone, and all clones share the same
/// state.
#[derive(Clone)]
pub struct Sandbox {
    pub credentials: SandboxCredentials,
    pub ledger: Arc<Ledger>,
    pub attempts: Arc<AttemptCounts>,
    pub faults: Arc<Switch>,
    /// Whether a repeated order id is refused, unless the faults overrule it.
    pub detect_duplicates: bool,
    /// The queue of callbacks.
    pub callbacks: CallbackQueue,
    /// Where the callbacks of USIMSA's protocol go; `None` if no URL is set.
    pub usimsa: Option<Arc<CallbackChannel>>,
    pub metrics: Arc<Metrics>,
    pub shutdown: Shutdown,
}

impl Sandbox {
    /// Whether a repeated order id is refused now.
    pub fn repeats(&self) -> Repeats {
        let faults = self.faults.faults();
        let detect = faults.and_then(|faults| faults.detect_duplicates);
        if detect.unwrap_or(self.detect_duplicates) {
            Repeats::Refused
        } else {
            Repeats::Bought
        }
    }

    /// Whether a look-up finds a purchase by now.
    pub fn shows(&self, purchase: &LedgerPurchase) -> bool {
        self.faults.faults().is_none() || self.shows_since(purchase.at)
    }

    /// The same of an extension, which may take effect later than it is sold.
    pub fn shows_since(&self, at: OffsetDateTime) -> bool {
        let lag = self.faults.faults().map(|faults| faults.not_found_lag_ms);
        clock::now() - at >= Duration::from_millis(lag.unwrap_or_default())
    }

    /// How an answer about an order of these products is garbled now, if it is. The first product
    /// with such a fault decides.
    pub fn garble<'a>(&self, mut products: impl Iterator<Item = &'a Product>) -> Option<Garble> {
        let faults = self.faults.faults()?;
        products.find_map(|product| {
            let name = script::name(&product.option_id)?;
            faults.garbled.get(name).copied()
        })
    }
}
