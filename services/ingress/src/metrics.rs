//! The metrics of ingress. Labels are bounded and never hold a path or text from a request; a reason is the code of an
//! error, or the name of a limit. Partners beyond the first hundred share a series.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use domain::PartnerId;
use opentelemetry::{KeyValue, metrics::Counter};
use pipeline::payload::Verdict;
use runtime::{lock, metrics::Instruments};
use strum::IntoStaticStr;

/// The most partners with their own series. The others share `other`.
const PARTNERS: usize = 100;

/// The instruments. Clones share them.
#[derive(Clone)]
pub(crate) struct Metrics {
    orders: Counter<u64>,
    units: Counter<u64>,
    auth_failures: Counter<u64>,
    verdicts: Counter<u64>,
    refused: Counter<u64>,
    /// The partners with their own series.
    partners: Arc<Mutex<HashSet<PartnerId>>>,
}

/// The result of a known partner's create-order request.
#[derive(Clone, Copy, Debug, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum OrderResult {
    /// 201.
    Accepted,
    /// 4xx: the request is invalid.
    Invalid,
    /// 429: the partner exceeded its rate limit.
    Limited,
    /// 503: this process is overloaded.
    Shed,
    /// 422: its external id is taken.
    Duplicate,
    /// 422: the provider rejected the purchase.
    Refused,
    /// 422: the provider could not be reached.
    Unreachable,
    /// The order was not stored. It waited too long in the queue, or an earlier order with its external id was still
    /// undecided: 503. Or the partner hung up while it was queued.
    Expired,
    /// 500.
    Error,
}

impl Default for Metrics {
    fn default() -> Self {
        let make = Instruments::of("ingress");
        Self {
            orders: make.counter("esim.orders", "Create-order requests of known partners, by outcome"),
            units: make.counter("esim.units.accepted", "Units of accepted orders"),
            auth_failures: make.counter("esim.auth.failures", "Requests answered with 401, by the check that failed"),
            verdicts: make.counter("esim.verdicts", "Placements that ingress waited for, by verdict"),
            refused: make.counter("esim.requests.refused", "Requests answered with 4xx or 503, by partner and reason"),
            partners: Arc::default(),
        }
    }
}

impl Metrics {
    /// Counts a create-order request, and its units if it was accepted.
    pub(crate) fn order(&self, result: OrderResult, units: usize) {
        self.orders.add(1, &[KeyValue::new("outcome", <&str>::from(result))]);
        if matches!(result, OrderResult::Accepted) {
            self.units.add(u64::try_from(units).unwrap_or(u64::MAX), &[]);
        }
    }

    pub(crate) fn auth_failure(&self, reason: &'static str) {
        self.auth_failures.add(1, &[KeyValue::new("reason", reason)]);
    }

    pub(crate) fn verdict(&self, verdict: Option<Verdict>) {
        let verdict = match verdict {
            Some(Verdict::Placed) => "placed",
            Some(Verdict::UnderWay) => "under_way",
            Some(Verdict::Rejected) => "rejected",
            Some(Verdict::NotSent) => "not_sent",
            None => "none",
        };
        self.verdicts.add(1, &[KeyValue::new("verdict", verdict)]);
    }

    /// Counts a 4xx or 503 response. `partner` is known only if the signature is valid.
    pub(crate) fn refused(&self, partner: Option<PartnerId>, reason: &'static str) {
        let partner = partner.map_or_else(String::new, |partner| self.label(partner));
        self.refused.add(1, &[KeyValue::new("partner", partner), KeyValue::new("reason", reason)]);
    }

    fn label(&self, partner: PartnerId) -> String {
        let mut partners = lock(&self.partners);
        if partners.len() < PARTNERS {
            partners.insert(partner);
        }
        if partners.contains(&partner) { partner.to_string() } else { "other".into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_partners_have_a_series_of_their_own() {
        let metrics = Metrics::default();
        let known = PartnerId::new();
        assert_eq!(metrics.label(known), known.to_string());
        for _ in 1..PARTNERS {
            assert_ne!(metrics.label(PartnerId::new()), "other");
        }
        assert_eq!(metrics.label(PartnerId::new()), "other");
        assert_eq!(metrics.label(known), known.to_string());
    }
}
