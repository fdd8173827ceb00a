//! Exemplars: for each bucket of a histogram of durations the last recorded trace that fell into
//! it, so that a slow moment on a dashboard leads to a trace. The OpenTelemetry SDK collects none.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, TryLockError},
};

use opentelemetry::{
    KeyValue, SpanId, TraceId,
    metrics::Histogram,
    trace::{SpanContext, TraceContextExt},
};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::{clock, lock, telemetry::is_recorded};

/// A histogram of durations in seconds, with exemplars.
#[derive(Clone)]
pub struct Durations {
    histogram: Histogram<f64>,
    exemplars: Arc<Exemplars>,
}

impl Durations {
    pub(super) fn new(histogram: Histogram<f64>, name: &str, bounds: &[f64]) -> Self {
        let exemplars = lock(&HISTOGRAMS)
            .entry(format!("{}_seconds", shown_name(name)))
            .or_insert_with(|| Arc::new(Exemplars::new(bounds)))
            .clone();
        Self {
            histogram,
            exemplars,
        }
    }

    /// Records a duration. If the current span is recorded, too, its trace becomes the exemplar of
    /// the bucket; if no spans are, it is not even asked for.
    pub fn record(&self, seconds: f64, attributes: &[KeyValue]) {
        self.record_of(seconds, attributes, Span::current);
    }

    /// Does the same as [`record`](Self::record) for a span that is not the current one.
    pub fn record_in(&self, seconds: f64, attributes: &[KeyValue], span: &Span) {
        self.record_of(seconds, attributes, || span.clone());
    }

    fn record_of(&self, seconds: f64, attributes: &[KeyValue], span: impl FnOnce() -> Span) {
        self.histogram.record(seconds, attributes);
        if is_recorded() {
            let span = span();
            let context = span.context();
            let span = context.span();
            self.exemplars.note(
                seconds,
                attributes,
                span.span_context(),
                clock::unix_milliseconds(),
            );
        }
    }
}

/// The exemplars of all histograms of this process, by the name that Prometheus sees.
static HISTOGRAMS: Mutex<BTreeMap<String, Arc<Exemplars>>> = Mutex::new(BTreeMap::new());

/// The exemplars of a histogram now: one entry for each of its series.
pub(super) fn of(histogram: &str) -> Vec<Series> {
    let exemplars = lock(&HISTOGRAMS).get(histogram).cloned();
    exemplars.map_or_else(Vec::new, |exemplars| exemplars.shown())
}

type Buckets = Box<[Option<Exemplar>]>;

/// The exemplars of one series as Prometheus sees it. The last bucket has no bound.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) labels: BTreeMap<String, String>,
    pub(super) buckets: Buckets,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Exemplar {
    pub(super) trace: TraceId,
    pub(super) span: SpanId,
    pub(super) seconds: f64,
    /// In Unix milliseconds.
    pub(super) at: i64,
}

/// The exemplars of one histogram, by the attributes of its series, whose number the values of the
/// labels bound.
struct Exemplars {
    bounds: Box<[f64]>,
    series: Mutex<HashMap<Box<[KeyValue]>, Buckets>>,
}

impl Exemplars {
    fn new(bounds: &[f64]) -> Self {
        Self {
            bounds: bounds.into(),
            series: Mutex::default(),
        }
    }

    /// Keeps a span that is sampled. It costs an order next to nothing: it never waits, because a
    /// lock that somebody holds only means that another exemplar is kept, and it allocates for the
    /// first exemplar of a series only.
    fn note(&self, seconds: f64, attributes: &[KeyValue], span: &SpanContext, at: i64) {
        if !span.is_sampled() || !span.is_valid() {
            return;
        }
        let mut series = match self.series.try_lock() {
            Ok(series) => series,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if !series.contains_key(attributes) {
            let none = vec![None; self.bounds.len() + 1];
            series.insert(attributes.into(), none.into());
        }
        // A bucket includes its bound, as in Prometheus and in the SDK.
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        let kept = series
            .get_mut(attributes)
            .and_then(|buckets| buckets.get_mut(bucket));
        if let Some(kept) = kept {
            *kept = Some(Exemplar {
                trace: span.trace_id(),
                span: span.span_id(),
                seconds,
                at,
            });
        }
    }

    fn shown(&self) -> Vec<Series> {
        let series = lock(&self.series);
        let of_series = series.iter().map(|(attributes, buckets)| Series {
            labels: attributes
                .iter()
                .map(|one| (shown_name(one.key.as_str()), one.value.to_string()))
                .collect(),
            buckets: buckets.clone(),
        });
        of_series.collect()
    }
}

/// A name of OpenTelemetry as its exporter writes it for Prometheus.
fn shown_name(name: &str) -> String {
    name.replace('.', "_")
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{TraceFlags, TraceState};

    use super::*;

    fn span(trace: u128, flags: TraceFlags) -> SpanContext {
        let span = SpanId::from(7);
        SpanContext::new(trace.into(), span, flags, false, TraceState::default())
    }

    #[test]
    fn the_last_sampled_trace_of_each_bucket_is_kept() {
        let exemplars = Exemplars::new(&[0.1, 1.0]);
        let of = [KeyValue::new("http.route", "/orders")];
        let at = 0;
        for (trace, seconds) in [(1, 0.05), (2, 0.1), (3, 0.11), (4, 5.0)] {
            exemplars.note(seconds, &of, &span(trace, TraceFlags::SAMPLED), at);
        }
        exemplars.note(0.5, &of, &span(5, TraceFlags::NOT_SAMPLED), at);
        exemplars.note(0.5, &of, &SpanContext::NONE, at);
        let [series] = &exemplars.shown()[..] else {
            panic!("one series")
        };
        let labels = BTreeMap::from([("http_route".to_owned(), "/orders".to_owned())]);
        assert_eq!(series.labels, labels);
        let kept: Vec<_> = series
            .buckets
            .iter()
            .map(|one| one.map(|one| (one.trace, one.seconds)))
            .collect();
        let expected =
            [(2, 0.1), (3, 0.11), (4, 5.0)].map(|(trace, at): (u128, _)| Some((trace.into(), at)));
        assert_eq!(kept, expected);
    }

    #[test]
    fn what_is_not_sampled_makes_no_series_and_a_held_lock_delays_nobody() {
        let exemplars = Exemplars::new(&[0.1]);
        exemplars.note(0.5, &[], &span(5, TraceFlags::NOT_SAMPLED), 0);
        assert!(exemplars.shown().is_empty());
        let held = lock(&exemplars.series);
        exemplars.note(0.5, &[], &span(5, TraceFlags::SAMPLED), 0);
        assert!(held.is_empty());
    }
}
