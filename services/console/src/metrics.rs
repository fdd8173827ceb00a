//! The metrics of the console. Labels are bounded, and none holds an id or a name.

use opentelemetry::{KeyValue, metrics::Counter};
use runtime::{http::RequestMetrics, metrics::Instruments};

pub(crate) struct Metrics {
    /// The durations of requests.
    pub(crate) requests: RequestMetrics,
    sign_ins: Counter<u64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let sign_ins = Instruments::of("console").counter(
            "esim.console.sign_ins",
            "Attempts to sign in to the console, by what came of them",
        );
        for outcome in ["signed_in", "refused", "limited", "unavailable"] {
            sign_ins.add(0, &[KeyValue::new("outcome", outcome)]);
        }
        Self {
            requests: RequestMetrics::default(),
            sign_ins,
        }
    }
}

/// What came of the webhooks to `ALERT_URL`.
pub(crate) struct AlertMetrics(Counter<u64>);

impl Default for AlertMetrics {
    fn default() -> Self {
        let alerts = Instruments::of("console").counter(
            "esim.console.alerts",
            "Tries to send a webhook to ALERT_URL, by what came of them",
        );
        for outcome in ["sent", "failed"] {
            alerts.add(0, &[KeyValue::new("outcome", outcome)]);
        }
        Self(alerts)
    }
}

impl AlertMetrics {
    pub(crate) fn alert(&self, is_sent: bool) {
        let outcome = if is_sent { "sent" } else { "failed" };
        self.0.add(1, &[KeyValue::new("outcome", outcome)]);
    }
}

impl Metrics {
    /// Counts an attempt: `signed_in`, `refused`, `limited`, or `unavailable` if the OpenID
    /// provider does not respond.
    pub(crate) fn sign_in(&self, outcome: &'static str) {
        self.sign_ins.add(1, &[KeyValue::new("outcome", outcome)]);
    }
}
