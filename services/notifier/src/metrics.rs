//! The notifier's metrics. Attributes are bounded and never hold an id or a URL.

use std::time::Duration;

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge, Histogram},
};
use store::endpoints::Standing;

/// Histogram bounds of the time from order to delivery, in seconds.
const DELIVERY_BOUNDS: [f64; 16] = [
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0, 21_600.0, 43_200.0,
    100_000.0,
];
/// Histogram bounds of the duration of one request, in seconds.
const ATTEMPT_BOUNDS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 5.0, 15.0];

/// The instruments of this stage.
pub struct Metrics {
    deliveries: Counter<u64>,
    attempts: Counter<u64>,
    attempt_duration: Histogram<f64>,
    delivery_duration: Histogram<f64>,
    ready_duration: Histogram<f64>,
    overdue: Gauge<f64>,
    blocked: Gauge<u64>,
    exhausted: Gauge<u64>,
}

/// The result of a claimed delivery.
#[derive(Clone, Copy, Debug)]
pub enum DeliveryResult {
    /// The endpoint acknowledged it.
    Delivered,
    /// A retry is scheduled.
    Retried,
    /// The schedule ended, or the endpoint responded 410.
    Exhausted,
    /// The partner has no webhook URL.
    NoEndpoint,
    /// It found no slot; no attempt was made.
    Deferred,
}

impl Metrics {
    /// Registers the instruments with the process's meter provider.
    pub fn register() -> Self {
        let meter = global::meter("notifier");
        Self {
            deliveries: meter
                .u64_counter("esim.deliveries")
                .with_description("Claimed deliveries, by result")
                .build(),
            attempts: meter
                .u64_counter("esim.delivery.attempts")
                .with_description("Webhook requests, by result")
                .build(),
            attempt_duration: meter
                .f64_histogram("esim.delivery.attempt.duration")
                .with_description("Duration of a webhook request")
                .with_unit("s")
                .with_boundaries(ATTEMPT_BOUNDS.into())
                .build(),
            delivery_duration: meter
                .f64_histogram("esim.delivery.duration")
                .with_description("Time from an order to the acknowledged webhook of a unit")
                .with_unit("s")
                .with_boundaries(DELIVERY_BOUNDS.into())
                .build(),
            ready_duration: meter
                .f64_histogram("esim.delivery.ready.duration")
                .with_description(
                    "Time from the readiness of a unit to its webhook, if the first attempt was acknowledged",
                )
                .with_unit("s")
                .with_boundaries(DELIVERY_BOUNDS.into())
                .build(),
            overdue: meter
                .f64_gauge("esim.redrive.oldest_overdue")
                .with_description("How long the oldest due row has been due, without blocked endpoints")
                .with_unit("s")
                .build(),
            blocked: meter
                .u64_gauge("esim.endpoints.blocked")
                .with_description("Endpoints that get no webhooks, by reason")
                .build(),
            exhausted: meter
                .u64_gauge("esim.deliveries.exhausted")
                .with_description("Exhausted deliveries, which an operator can replay")
                .build(),
        }
    }

    /// Counts a claimed delivery.
    pub fn delivery(&self, result: DeliveryResult) {
        let outcome = match result {
            DeliveryResult::Delivered => "delivered",
            DeliveryResult::Retried => "retried",
            DeliveryResult::Exhausted => "exhausted",
            DeliveryResult::NoEndpoint => "no_endpoint",
            DeliveryResult::Deferred => "deferred",
        };
        self.deliveries.add(1, &[KeyValue::new("outcome", outcome)]);
    }

    /// Counts an attempt and records its duration.
    pub fn attempt(&self, environment: &str, class: &'static str, took: Duration) {
        let of = [
            KeyValue::new("outcome", class),
            KeyValue::new("environment", environment.to_owned()),
        ];
        self.attempts.add(1, &of);
        self.attempt_duration.record(took.as_secs_f64(), &[]);
    }

    /// Records the time from an order to the delivery of a unit.
    pub fn delivered_after(&self, since_order: Duration) {
        self.delivery_duration.record(since_order.as_secs_f64(), &[]);
    }

    /// Records the time from readiness to a delivery by its first attempt.
    pub fn delivered_at_once(&self, environment: &str, since_ready: Duration) {
        let environment = KeyValue::new("environment", environment.to_owned());
        self.ready_duration
            .record(since_ready.as_secs_f64(), &[environment]);
    }

    /// Sets the gauges of stored deliveries and endpoints.
    pub fn standing(&self, standing: &Standing) {
        let overdue = [
            ("live", standing.overdue_live),
            ("sandbox", standing.overdue_sandbox),
        ];
        for (environment, overdue) in overdue {
            let of = [
                KeyValue::new("stage", "notifier"),
                KeyValue::new("environment", environment),
            ];
            self.overdue.record(overdue.as_secs_f64(), &of);
        }
        self.blocked
            .record(standing.blocked, &[KeyValue::new("reason", "failures")]);
        self.blocked
            .record(standing.paused, &[KeyValue::new("reason", "paused")]);
        self.exhausted.record(standing.exhausted, &[]);
    }
}
