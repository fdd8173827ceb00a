//! What operators watch. Attributes are few and bounded: never an id or a URL.

use std::time::Duration;

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge, Histogram},
};
use store::endpoints::Standing;

/// Bounds of the time from order to delivery, in seconds: from at once to the end of the schedule.
const DELIVERY_BOUNDS: [f64; 16] = [
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0, 21_600.0, 43_200.0,
    100_000.0,
];
/// Bounds of the duration of one exchange, in seconds.
const ATTEMPT_BOUNDS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 5.0, 15.0];

/// The instruments of this stage.
pub struct Metrics {
    deliveries: Counter<u64>,
    attempts: Counter<u64>,
    attempt_duration: Histogram<f64>,
    delivery_duration: Histogram<f64>,
    overdue: Gauge<f64>,
    blocked: Gauge<u64>,
    exhausted: Gauge<u64>,
}

/// What became of a delivery that was taken up.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    /// It arrived.
    Delivered,
    /// It is tried again.
    Retried,
    /// It is not.
    Exhausted,
    /// The partner has no URL.
    NoEndpoint,
    /// It found no slot; no attempt was made.
    Deferred,
}

impl Metrics {
    /// The instruments, by the process's meter provider.
    pub fn register() -> Self {
        let meter = global::meter("notifier");
        Self {
            deliveries: meter
                .u64_counter("esim.deliveries")
                .with_description("Deliveries that were taken up, by what became of them")
                .build(),
            attempts: meter
                .u64_counter("esim.delivery.attempts")
                .with_description("Webhook requests, by what they came to")
                .build(),
            attempt_duration: meter
                .f64_histogram("esim.delivery.attempt.duration")
                .with_description("How long webhook requests took")
                .with_unit("s")
                .with_boundaries(ATTEMPT_BOUNDS.into())
                .build(),
            delivery_duration: meter
                .f64_histogram("esim.delivery.duration")
                .with_description("From an order to the acknowledged webhook of its unit")
                .with_unit("s")
                .with_boundaries(DELIVERY_BOUNDS.into())
                .build(),
            overdue: meter
                .f64_gauge("esim.redrive.oldest_overdue")
                .with_description(
                    "For how long the oldest overdue row has been due; not those of blocked endpoints",
                )
                .with_unit("s")
                .build(),
            blocked: meter
                .u64_gauge("esim.endpoints.blocked")
                .with_description("Endpoints that get no webhooks, by reason")
                .build(),
            exhausted: meter
                .u64_gauge("esim.deliveries.exhausted")
                .with_description("Deliveries that were given up and can be replayed")
                .build(),
        }
    }

    /// Counts a delivery.
    pub fn delivery(&self, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Delivered => "delivered",
            Outcome::Retried => "retried",
            Outcome::Exhausted => "exhausted",
            Outcome::NoEndpoint => "no_endpoint",
            Outcome::Deferred => "deferred",
        };
        self.deliveries.add(1, &[KeyValue::new("outcome", outcome)]);
    }

    /// Counts an attempt.
    pub fn attempt(&self, class: &'static str, took: Duration) {
        self.attempts.add(1, &[KeyValue::new("outcome", class)]);
        self.attempt_duration.record(took.as_secs_f64(), &[]);
    }

    /// Records how long a unit took from its order to its partner.
    pub fn delivered_after(&self, since_order: Duration) {
        self.delivery_duration.record(since_order.as_secs_f64(), &[]);
    }

    /// Shows how deliveries stand.
    pub fn standing(&self, standing: &Standing) {
        self.overdue.record(
            standing.overdue.as_secs_f64(),
            &[KeyValue::new("stage", "notifier")],
        );
        self.blocked
            .record(standing.blocked, &[KeyValue::new("reason", "failures")]);
        self.blocked
            .record(standing.paused, &[KeyValue::new("reason", "paused")]);
        self.exhausted.record(standing.exhausted, &[]);
    }
}
