//! What operators watch. Attributes are few and bounded: never an id, a path or a text of others.

use opentelemetry::{KeyValue, global, metrics::Counter};
use pipeline::payload::Said;

/// The instruments. Clones are the same ones.
#[derive(Clone)]
pub struct Metrics {
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
    /// 503: it was dropped from the queue before it was stored.
    Expired,
    /// 500.
    Error,
}

impl Default for Metrics {
    fn default() -> Self {
        let meter = global::meter("ingress");
        Self {
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
    /// An order's request, and of one that was accepted its units.
    pub fn order(&self, outcome: Outcome, units: usize) {
        let name = match outcome {
            Outcome::Accepted => "accepted",
            Outcome::Invalid => "invalid",
            Outcome::Duplicate => "duplicate",
            Outcome::Refused => "refused",
            Outcome::Unreachable => "unreachable",
            Outcome::Expired => "expired",
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
    pub fn verdict(&self, said: Option<Said>) {
        let verdict = match said {
            Some(Said::Placed) => "placed",
            Some(Said::UnderWay) => "later",
            Some(Said::Refused) => "refused",
            Some(Said::NotSent) => "not_sent",
            None => "none",
        };
        self.verdicts.add(1, &[KeyValue::new("verdict", verdict)]);
    }
}
