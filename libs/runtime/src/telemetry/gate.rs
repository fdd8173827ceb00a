//! Spans are not recorded during an outage of the collector, except for short tries in between.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use opentelemetry::{
    Context, KeyValue, TraceId,
    trace::{Link, SpanKind, TraceContextExt, TraceState},
};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, ShouldSample};

/// After this time a batch counts as hanging.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
const NOT_SENDING: u64 = u64::MAX;

/// Decides whether spans are recorded. Clones share their state.
#[derive(Clone, Debug)]
pub(super) struct Gate(Arc<Inner>);

/// Times in milliseconds since the start.
#[derive(Debug)]
struct Inner {
    started: Instant,
    closed_until: AtomicU64,
    sending_since: AtomicU64,
    failures: AtomicU32,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self(Arc::new(Inner {
            started: Instant::now(),
            closed_until: AtomicU64::new(0),
            sending_since: AtomicU64::new(NOT_SENDING),
            failures: AtomicU32::new(0),
        }))
    }

    fn now(&self) -> u64 {
        milliseconds(self.0.started.elapsed())
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open_at(self.now())
    }

    fn is_open_at(&self, now: u64) -> bool {
        let sending = now.saturating_sub(self.0.sending_since.load(Ordering::Relaxed));
        now >= self.0.closed_until.load(Ordering::Relaxed) && sending < milliseconds(PATIENCE)
    }

    pub(super) fn sending(&self) {
        self.0.sending_since.store(self.now(), Ordering::Relaxed);
    }

    pub(super) fn sent(&self, arrived: bool) {
        self.sent_at(self.now(), arrived);
    }

    fn sent_at(&self, now: u64, arrived: bool) {
        let closed_until = if arrived {
            self.0.failures.store(0, Ordering::Relaxed);
            0
        } else {
            let failures = self.0.failures.fetch_add(1, Ordering::Relaxed).min(10);
            now + milliseconds(Duration::from_secs(1 << failures).min(LONGEST_PAUSE))
        };
        self.0.closed_until.store(closed_until, Ordering::Relaxed);
        self.0.sending_since.store(NOT_SENDING, Ordering::Relaxed);
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Samples like the inner sampler while the gate is open, and nothing while it is closed.
#[derive(Clone, Debug)]
pub(super) struct Gated {
    pub(super) sampler: Sampler,
    pub(super) gate: Gate,
}

impl ShouldSample for Gated {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace_id: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        if self.gate.is_open() {
            return self.sampler.should_sample(parent, trace_id, name, kind, attributes, links);
        }
        let trace_state =
            parent.map_or_else(TraceState::default, |parent| parent.span().span_context().trace_state().clone());
        SamplingResult { decision: SamplingDecision::Drop, attributes: Vec::new(), trace_state }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_closes_it_for_a_while_and_what_arrives_opens_it() {
        let gate = Gate::new();
        assert!(gate.is_open_at(0));
        gate.sent_at(1_000, false);
        assert!(!gate.is_open_at(1_999) && gate.is_open_at(2_000));
        gate.sent_at(2_000, false);
        assert!(!gate.is_open_at(3_999) && gate.is_open_at(4_000));
        (0..100).for_each(|_| gate.sent_at(5_000, false));
        assert!(!gate.is_open_at(14_999) && gate.is_open_at(15_000));
        gate.sent_at(15_000, true);
        assert!(gate.is_open_at(15_000));
        gate.sent_at(16_000, false);
        assert!(gate.is_open_at(17_000), "the pauses begin again");
    }

    #[test]
    fn a_batch_that_hangs_closes_it_until_it_has_ended() {
        let gate = Gate::new();
        gate.0.sending_since.store(5_000, Ordering::Relaxed);
        assert!(gate.is_open_at(5_999) && !gate.is_open_at(6_000) && !gate.is_open_at(60_000));
        gate.sent_at(60_000, true);
        assert!(gate.is_open_at(60_000));
    }
}
