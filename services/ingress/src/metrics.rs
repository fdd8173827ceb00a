//! What operators watch. Attributes are few and bounded: never an id, a path or a text of others.

use std::time::Duration;

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Histogram},
};

/// Bounds of the duration of a request, in seconds, as the semantic conventions give them.
const REQUEST_BOUNDS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];

/// The instruments. Clones are the same ones.
#[derive(Clone)]
pub struct Metrics {
    request_duration: Histogram<f64>,
    orders: Counter<u64>,
    units: Counter<u64>,
    auth_failures: Counter<u64>,
    verdicts: Counter<u64>,
}

/// What became of a request of a known partner to create an order.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    /// 201.
    Accepted,
    /// 4xx: something was wrong with it.
    Invalid,
    /// 422: its external id is taken.
    Duplicate,
    /// 422: the provider refused.
    Refused,
    /// 422: the provider could not be reached.
    Unreachable,
    /// 500.
    Error,
}

impl Default for Metrics {
    fn default() -> Self {
        let meter = global::meter("ingress");
        Self {
            request_duration: meter
                .f64_histogram("http.server.request.duration")
                .with_unit("s")
                .with_boundaries(REQUEST_BOUNDS.into())
                .with_description("How long requests took, until the head of the answer")
                .build(),
            orders: meter
                .u64_counter("esim.orders")
                .with_description("Orders of known partners, by what became of the request")
                .build(),
            units: meter
                .u64_counter("esim.units.accepted")
                .with_description("Units of accepted orders")
                .build(),
            auth_failures: meter
                .u64_counter("esim.auth.failures")
                .with_description("Requests that were answered with 401, by the check that failed")
                .build(),
            verdicts: meter
                .u64_counter("esim.verdicts")
                .with_description("Placements whose verdict was waited for, by what the provisioner said")
                .build(),
        }
    }
}

impl Metrics {
    /// A request that was answered. `route` is none where no route matched.
    pub fn request(&self, method: &'static str, route: Option<&'static str>, status: u16, took: Duration) {
        let attributes = [
            KeyValue::new("http.request.method", method),
            KeyValue::new("http.response.status_code", i64::from(status)),
            KeyValue::new("http.route", route.unwrap_or("")),
        ];
        self.request_duration.record(took.as_secs_f64(), &attributes);
    }

    /// An order's request, and of one that was accepted its units.
    pub fn order(&self, outcome: Outcome, units: usize) {
        let name = match outcome {
            Outcome::Accepted => "accepted",
            Outcome::Invalid => "invalid",
            Outcome::Duplicate => "duplicate",
            Outcome::Refused => "refused",
            Outcome::Unreachable => "unreachable",
            Outcome::Error => "error",
        };
        self.orders.add(1, &[KeyValue::new("outcome", name)]);
        if matches!(outcome, Outcome::Accepted) {
            self.units.add(u64::try_from(units).unwrap_or(u64::MAX), &[]);
        }
    }

    /// A request that was denied.
    pub fn auth_failure(&self, reason: &'static str) {
        self.auth_failures.add(1, &[KeyValue::new("reason", reason)]);
    }

    /// What was heard, or not, of a placement.
    pub fn verdict(&self, verdict: &'static str) {
        self.verdicts.add(1, &[KeyValue::new("verdict", verdict)]);
    }
}
