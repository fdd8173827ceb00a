//! The metrics of ingress.
//!
//! The number of series is bounded, because a flood of requests must not become a flood of series.
//! A label therefore never holds a path or a text from a request. A reason is the code of an error
//! or the name of a limit, and only the first hundred partners of a process have series of their
//! own; all others share one.
//!
//! The handlers and [`crate::observe`] record into [`Metrics`]. What is in flight is not
//! recorded but read at each scrape ([`AdmissionGauges`]). `docs/metrics.md` describes each metric
//! for operators.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use domain::PartnerId;
use opentelemetry::{KeyValue, global, metrics::Counter};
use pipeline::{figures::ProcessFigures, payload::Verdict};
use runtime::{lock, metrics::Instruments};
use store::figures::Measure;
use strum::IntoStaticStr;

/// The maximum number of partners with a series of their own. The others share the series `other`.
const PARTNERS: usize = 100;

/// The instruments. Clones share them.
#[derive(Clone)]
pub(crate) struct Metrics {
    /// The same counts, for operators who ask PostgreSQL.
    pub(crate) figures: ProcessFigures,
    orders: Counter<u64>,
    units: Counter<u64>,
    auth_failures: Counter<u64>,
    verdicts: Counter<u64>,
    refused: Counter<u64>,
    refusals: Counter<u64>,
    /// The partners that have a series of their own.
    partners: Arc<Mutex<HashSet<PartnerId>>>,
}

/// The result of a known partner's create-order request.
#[derive(Clone, Copy, Debug, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum OrderResult {
    /// 201.
    Accepted,
    /// 4xx: the request is invalid, for example its body is too large or an item is wrong.
    Invalid,
    /// 429: the partner exceeded a limit of its own or its rate.
    Limited,
    /// 503: this process is overloaded.
    Shed,
    /// 422, or a repeat that asks for the answer and gets a 409: an earlier order has its external
    /// id.
    Duplicate,
    /// 200: a repeat got the answer of the order that an earlier request stored.
    Repeated,
    /// 422: the provider rejected the purchase.
    Refused,
    /// 422: the provider could not be reached.
    Unreachable,
    /// 503: the order waited too long in the queue, so it was not stored.
    Expired,
    /// 503 or 202: an earlier order with its external id may still be refused, so it was not
    /// stored.
    Undecided,
    /// The partner hung up before its order was stored.
    HungUp,
    /// 500.
    Error,
}

/// What became of the record of a refused request.
#[derive(Clone, Copy, Debug, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum RefusalRecording {
    /// It is stored.
    Kept,
    /// Too many of this partner and kind came within a minute.
    Limited,
    /// The queue was full.
    Dropped,
    /// The database did not take it.
    Failed,
}

impl Default for Metrics {
    fn default() -> Self {
        let make = Instruments::of("ingress");
        Self {
            figures: ProcessFigures::default(),
            orders: make.counter(
                "esim.orders",
                "Create-order requests of known partners, by partner and outcome",
            ),
            units: make.counter("esim.units.accepted", "Units of accepted orders"),
            auth_failures: make.counter(
                "esim.auth.failures",
                "Requests answered with 401, by the partner of the access key and the check that failed",
            ),
            verdicts: make.counter(
                "esim.verdicts",
                "Placements that ingress waited for, by verdict",
            ),
            refused: make.counter(
                "esim.requests.refused",
                "Requests answered with 4xx or 503, by partner and reason",
            ),
            refusals: make.counter(
                "esim.refusals.recorded",
                "Refused requests of known partners, by what became of their records",
            ),
            partners: Arc::default(),
        }
    }
}

impl Metrics {
    /// Counts the answer to a create-order request.
    pub(crate) fn answered(&self, took: Duration, failed: bool) {
        self.figures.took(Measure::Answered, "", took, failed);
    }

    /// Counts a request that failed or was refused, of the partner whose access key it has.
    pub(crate) fn outcome(&self, outcome: Measure, partner: Option<PartnerId>) {
        let subject = partner.map_or_else(String::new, |partner| partner.to_string());
        self.figures.count(outcome, &subject, 1);
    }

    /// Counts units that the provider has rejected of an order that is carried out all the same.
    pub(crate) fn failed(&self, provider: &str, units: usize) {
        self.figures.count(Measure::Failed, provider, units);
    }

    /// Counts a create-order request, and its units if it was accepted.
    pub(crate) fn order(&self, partner: PartnerId, result: OrderResult, units: usize) {
        self.orders.add(
            1,
            &[
                KeyValue::new("partner", self.label(partner)),
                KeyValue::new("outcome", <&str>::from(result)),
            ],
        );
        if matches!(result, OrderResult::Accepted) {
            self.units
                .add(u64::try_from(units).unwrap_or(u64::MAX), &[]);
        }
    }

    /// Counts the records of refused requests.
    pub(crate) fn refusals(&self, outcome: RefusalRecording, number: usize) {
        let outcome = KeyValue::new("outcome", <&str>::from(outcome));
        self.refusals
            .add(u64::try_from(number).unwrap_or(u64::MAX), &[outcome]);
    }

    /// Counts a 401. `claimed` is the partner whose access key the request has; anybody may have
    /// sent it.
    pub(crate) fn auth_failure(&self, claimed: Option<PartnerId>, reason: &'static str) {
        let partner = claimed.map_or_else(String::new, |partner| self.label(partner));
        self.auth_failures.add(
            1,
            &[
                KeyValue::new("partner", partner),
                KeyValue::new("reason", reason),
            ],
        );
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
        self.refused.add(
            1,
            &[
                KeyValue::new("partner", partner),
                KeyValue::new("reason", reason),
            ],
        );
    }

    /// The value of the label `partner`.
    fn label(&self, partner: PartnerId) -> String {
        let mut partners = lock(&self.partners);
        if partners.len() < PARTNERS {
            partners.insert(partner);
        }
        if partners.contains(&partner) {
            partner.to_string()
        } else {
            "other".into()
        }
    }
}

/// Returns the current value of a gauge. It is called at each scrape.
pub(crate) type GaugeReader = Box<dyn Fn() -> u64 + Send + Sync>;

/// The gauges of what [`crate::access::admission`] has admitted and may admit.
pub(crate) struct AdmissionGauges {
    pub(crate) orders: GaugeReader,
    pub(crate) orders_limit: GaugeReader,
    /// Bytes.
    pub(crate) memory: GaugeReader,
    pub(crate) self_service: GaugeReader,
    pub(crate) listeners: GaugeReader,
}

impl AdmissionGauges {
    /// Registers the gauges, which stay until the process ends.
    pub(crate) fn register(self) {
        let meter = global::meter("ingress");
        let gauge = |name, description, look: GaugeReader| {
            let gauge = meter
                .u64_observable_gauge(name)
                .with_description(description);
            gauge.with_callback(move |gauge| gauge.observe(look(), &[]))
        };
        gauge(
            "esim.orders.in_flight",
            "Orders that are being read, stored or answered",
            self.orders,
        )
        .build();
        gauge(
            "esim.orders.in_flight.limit",
            "Orders that may be in flight now: fewer while orders take too long",
            self.orders_limit,
        )
        .build();
        gauge(
            "esim.orders.in_flight.memory",
            "Estimated memory of the bodies and units of orders in flight",
            self.memory,
        )
        .with_unit("By")
        .build();
        gauge(
            "esim.self_service.in_flight",
            "Signed requests other than orders that are in flight",
            self.self_service,
        )
        .build();
        gauge(
            "esim.listeners",
            "Requests of sandbox accounts that wait for webhooks",
            self.listeners,
        )
        .build();
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
