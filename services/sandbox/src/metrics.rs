//! The metrics of the sandbox. Labels are bounded, and none holds an id.

use std::sync::Arc;

use opentelemetry::{KeyValue, global, metrics::Counter};
use runtime::{http::RequestMetrics, metrics::Instruments};

use crate::{faults::Switch, purchase::LedgerPurchase};

pub struct Metrics {
    /// The durations of requests, which [`crate::observe`] records.
    pub requests: RequestMetrics,
    purchases: Counter<u64>,
    units: Counter<u64>,
}

impl Metrics {
    pub fn new(faults: Arc<Switch>) -> Self {
        global::meter("sandbox")
            .u64_observable_gauge("esim.sandbox.faults")
            .with_description("Which faults of the whole provider are in force")
            .with_callback(move |gauge| {
                for (fault, in_force) in faults.get().in_force() {
                    gauge.observe(in_force.into(), &[KeyValue::new("fault", fault)]);
                }
            })
            .build();
        let make = Instruments::of("sandbox");
        Self {
            requests: RequestMetrics::default(),
            purchases: make.counter("esim.sandbox.purchases", "Purchases, answered or not"),
            units: make.counter("esim.sandbox.units", "Units of purchases"),
        }
    }

    pub fn bought(&self, purchase: &LedgerPurchase) {
        self.purchases.add(1, &[]);
        self.units.add(purchase.size(), &[]);
    }
}
