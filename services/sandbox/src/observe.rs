//! Metrics, and one span per request that continues the caller's trace.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use opentelemetry::{KeyValue, global, metrics::Counter};
use runtime::{
    http::{Requests, traceparent},
    metrics::Instruments,
    trace,
};
use tracing::Instrument;

use crate::{faults::Switch, purchase::Purchase, server::NoAnswer};

pub struct Metrics {
    requests: Requests,
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
            requests: Requests::default(),
            purchases: make.counter("esim.sandbox.purchases", "Purchases, answered or not"),
            units: make.counter("esim.sandbox.units", "Units of purchases"),
        }
    }

    pub fn bought(&self, purchase: &Purchase) {
        self.purchases.add(1, &[]);
        self.units.add(purchase.size(), &[]);
    }
}

/// Wraps every route and the fallback. It trusts `traceparent`, because all callers are ours.
pub async fn observe(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    let requests = &metrics.requests;
    let underway = requests.begin(&request);
    trace::set_parent(&underway.span, traceparent(&request));
    let response = next.run(request).instrument(underway.span.clone()).await;
    let is_answered = response.extensions().get::<NoAnswer>().is_none();
    requests.end(&underway, is_answered.then(|| response.status()));
    response
}
