//! The state that all request handlers share.

use std::sync::Arc;

use runtime::Shutdown;

use crate::{
    attempts::Attempts,
    auth::Credentials,
    callbacks,
    faults::Switch,
    garble::Garble,
    ledger::{Ledger, Repeats},
    observe::Metrics,
    protocol::Product,
    script,
};

/// The sandbox, as its routes see it. Clones share everything.
#[derive(Clone)]
pub struct Sandbox {
    pub credentials: Credentials,
    pub ledger: Arc<Ledger>,
    pub attempts: Arc<Attempts>,
    pub faults: Arc<Switch>,
    /// Whether a repeated order id is refused, unless the faults overrule it.
    pub detect_duplicates: bool,
    /// `None` without a callback URL.
    pub callbacks: Option<callbacks::Queue>,
    pub metrics: Arc<Metrics>,
    pub shutdown: Shutdown,
}

impl Sandbox {
    pub fn repeats(&self) -> Repeats {
        let faults = self.faults.faults();
        let detect = faults.and_then(|faults| faults.detect_duplicates);
        if detect.unwrap_or(self.detect_duplicates) { Repeats::Refused } else { Repeats::Bought }
    }

    pub fn garble<'a>(&self, mut products: impl Iterator<Item = &'a Product>) -> Option<Garble> {
        let faults = self.faults.faults()?;
        products.find_map(|product| {
            let name = script::name(&product.option_id)?;
            faults.garbled.get(name).copied()
        })
    }
}
