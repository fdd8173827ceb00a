//! The metrics of the notifier. All of its instruments are made here; docs/metrics.md describes
//! each. Attributes are bounded and never hold an id or a URL.

use std::time::Duration;

use desk::{
    operator::health::{money::MoneyState, webhooks::WebhookBacklog},
    retention::{self, DataClass},
};
use domain::{EndpointId, event::NoticeKind};
use opentelemetry::{
    KeyValue,
    metrics::{Counter, Gauge},
};
use pipeline::figures::ProcessFigures;
use runtime::metrics::{Durations, Instruments};
use store::{
    deliveries::{AttemptResult, ClaimedDelivery, DeliveryContent},
    figures::Measure,
};

/// Histogram bounds of the time from an order to its delivery, in seconds. They reach to the end of
/// the retry schedule.
const DELIVERY_BOUNDS: [f64; 16] = [
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0, 21_600.0,
    43_200.0, 100_000.0,
];
/// Histogram bounds of the duration of one request, in seconds.
const ATTEMPT_BOUNDS: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 5.0, 15.0];

pub struct Metrics {
    /// The same counts, for operators who ask PostgreSQL.
    pub figures: ProcessFigures,
    deliveries: Counter<u64>,
    attempts: Counter<u64>,
    attempt_duration: Durations,
    delivery_duration: Durations,
    ready_duration: Durations,
    notices: Counter<u64>,
    overdue: Gauge<f64>,
    blocked: Gauge<u64>,
    exhausted: Gauge<u64>,
    redeliveries: Gauge<u64>,
}

impl Metrics {
    pub fn register() -> Self {
        let make = Instruments::of("notifier");
        Self {
            figures: ProcessFigures::default(),
            deliveries: make.counter("esim.deliveries", "Claimed deliveries, by result"),
            attempts: make.counter("esim.delivery.attempts", "Webhook requests, by result"),
            attempt_duration: make.durations(
                "esim.delivery.attempt.duration",
                "Duration of a webhook request",
                &ATTEMPT_BOUNDS,
            ),
            delivery_duration: make.durations(
                "esim.delivery.duration",
                "Time from an order to the acknowledged webhook of a unit",
                &DELIVERY_BOUNDS,
            ),
            ready_duration: make.durations(
                "esim.delivery.ready.duration",
                "Time from the readiness of a unit to its webhook, if the first attempt was \
                 acknowledged",
                &DELIVERY_BOUNDS,
            ),
            notices: make.counter("esim.notices", "Notices to partners, by kind and outcome"),
            overdue: make.seconds(
                "esim.due.oldest",
                "How long the oldest due row has been due, without blocked endpoints",
            ),
            blocked: make.gauge(
                "esim.endpoints.blocked",
                "Endpoints that get no webhooks, by reason",
            ),
            exhausted: make.gauge(
                "esim.deliveries.exhausted",
                "Exhausted deliveries, which an operator can send again",
            ),
            redeliveries: make.gauge(
                "esim.redeliveries.running",
                "Redeliveries of many webhooks that partners asked for and that have not ended",
            ),
        }
    }

    /// Counts a claimed delivery by its outcome, which is `delivered`, `retried`, `exhausted` or
    /// `no_endpoint`, or `deferred` if it was not attempted because its host was full.
    pub fn delivery(&self, outcome: &'static str) {
        self.deliveries.add(1, &[KeyValue::new("outcome", outcome)]);
    }

    /// Counts notices of a kind that were made, or left out because their partner had got too many.
    pub fn notices(&self, kind: NoticeKind, count: u64, left_out: bool) {
        let outcome = if left_out { "left_out" } else { "made" };
        let name = kind.as_str();
        let of = [
            KeyValue::new("kind", name.strip_prefix("notice.").unwrap_or(name)),
            KeyValue::new("outcome", outcome),
        ];
        self.notices.add(count, &of);
    }

    /// Counts an ended attempt of a delivery.
    pub(crate) fn ended(
        &self,
        delivery: &ClaimedDelivery,
        class: &'static str,
        result: &AttemptResult,
        duration: Duration,
        since_claim: Duration,
    ) {
        let environment = &delivery.target.environment;
        let outcome = match result {
            AttemptResult::Delivered => "delivered",
            AttemptResult::Failed {
                retry_in: Some(_), ..
            } => "retried",
            AttemptResult::Failed { retry_in: None, .. } => "exhausted",
        };
        let is_delivered = outcome == "delivered";
        self.attempt(
            environment,
            delivery.endpoint.id,
            class,
            duration,
            is_delivered,
        );
        if outcome == "exhausted" {
            self.exhausted();
        }
        self.delivery(outcome);
        // A resend does not count for the delivery time, because somebody chose when it happened.
        if let DeliveryContent::Esim(esim) = &delivery.content
            && is_delivered
            && delivery.schedule_start == 0
        {
            self.delivered_after(esim.age + since_claim);
            if delivery.ended_attempts == 0 {
                self.delivered_at_once(environment, esim.ready_age + since_claim);
            }
        }
    }

    /// Counts a request to an endpoint.
    fn attempt(
        &self,
        environment: &str,
        endpoint: EndpointId,
        class: &'static str,
        took: Duration,
        acknowledged: bool,
    ) {
        self.figures
            .took(Measure::Attempt, &endpoint.to_string(), took, !acknowledged);
        let of = [
            KeyValue::new("outcome", class),
            KeyValue::new("environment", environment.to_owned()),
        ];
        self.attempts.add(1, &of);
        self.attempt_duration.record(took.as_secs_f64(), &[]);
    }

    /// Counts a webhook that has used up its retries.
    fn exhausted(&self) {
        self.figures.count(Measure::Exhausted, "", 1);
    }

    fn delivered_after(&self, since_order: Duration) {
        self.figures
            .took(Measure::Delivered, "", since_order, false);
        self.delivery_duration
            .record(since_order.as_secs_f64(), &[]);
    }

    fn delivered_at_once(&self, environment: &str, since_ready: Duration) {
        let environment = KeyValue::new("environment", environment.to_owned());
        self.ready_duration
            .record(since_ready.as_secs_f64(), &[environment]);
    }

    pub fn redeliveries(&self, running: usize) {
        let running = u64::try_from(running).unwrap_or(u64::MAX);
        self.redeliveries.record(running, &[]);
    }

    pub fn backlog(&self, backlog: &WebhookBacklog) {
        let overdue = [
            ("live", backlog.overdue_live),
            ("sandbox", backlog.overdue_sandbox),
        ];
        for (environment, overdue) in overdue {
            let of = [
                KeyValue::new("stage", "notifier"),
                KeyValue::new("environment", environment),
            ];
            self.overdue.record(overdue.as_secs_f64(), &of);
        }
        self.blocked
            .record(backlog.blocked, &[KeyValue::new("reason", "failures")]);
        self.blocked
            .record(backlog.paused, &[KeyValue::new("reason", "paused")]);
        self.exhausted.record(backlog.exhausted, &[]);
    }
}

/// The instruments of `retention`, which erases old data.
pub(crate) struct RetentionMetrics {
    erased: Counter<u64>,
    overdue: Gauge<f64>,
    waiting: Gauge<u64>,
}

impl RetentionMetrics {
    pub(crate) fn register() -> Self {
        let make = Instruments::of("notifier");
        Self {
            erased: make.counter(
                "esim.retention.erased",
                "Rows that were erased after their term, by class",
            ),
            overdue: make.seconds(
                "esim.retention.overdue",
                "How long the oldest row of a class has been past its term",
            ),
            waiting: make.gauge(
                "esim.retention.waiting",
                "Profiles that are kept past the term because they are not delivered",
            ),
        }
    }

    pub(crate) fn erased(&self, class: DataClass, rows: u64) {
        let class = KeyValue::new("class", class.as_str());
        self.erased.add(rows, &[class]);
    }

    pub(crate) fn backlog(&self, backlog: &retention::RetentionBacklog) {
        for (class, overdue) in DataClass::ERASED.into_iter().zip(backlog.overdue) {
            let class = KeyValue::new("class", class.as_str());
            self.overdue.record(overdue.as_secs_f64(), &[class]);
        }
        self.waiting.record(backlog.waiting, &[]);
    }
}

/// The instruments of `books`: what is wrong with the money of partners.
pub(crate) struct BooksMetrics {
    disagreements: Gauge<u64>,
    running_out: Gauge<u64>,
    below_cost: Gauge<u64>,
}

impl BooksMetrics {
    pub(crate) fn register() -> Self {
        let make = Instruments::of("notifier");
        Self {
            disagreements: make.gauge(
                "esim.accounts.disagreements",
                "Places where accounts disagree with what was ordered, at the last comparison",
            ),
            running_out: make.gauge(
                "esim.accounts.running_out",
                "Live accounts with less left than was spent in the last 24 hours",
            ),
            below_cost: make.gauge(
                "esim.prices.below_cost",
                "Prices of live partners that are below the cost of their options",
            ),
        }
    }

    pub(crate) fn show(&self, state: &MoneyState) {
        let disagreements = state.books.as_ref().map_or(0, |books| books.found);
        self.disagreements.record(disagreements, &[]);
        let running_out = u64::try_from(state.running_out.len()).unwrap_or(u64::MAX);
        self.running_out.record(running_out, &[]);
        let below_cost = state.below_cost.iter().map(|list| list.in_all).sum();
        self.below_cost.record(below_cost, &[]);
    }
}
