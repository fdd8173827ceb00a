//! Saves the cost of spans that no collector takes. Without this gate, that would be a fifth of a
//! service's processor time during an outage of the collector.
//!
//! The exporter of spans reports each export here. While exports fail or hang,
//! `telemetry::is_recorded` is false, so that callers create no spans. The gate opens again after a
//! pause, because only a new batch can show that the collector is back. Nothing else depends on the
//! gate: without it, spans would wait in the queue of the SDK, which is bounded, and be dropped
//! there.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// An export that takes longer than this counts as hanging, and the gate closes.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the gate stays closed after a failed export. It is also the longest time after the end
/// of an outage until traces are complete again.
const PAUSE: Duration = Duration::from_secs(10);

/// The gate. It is open unless exports fail. Clones share their state.
#[derive(Clone, Debug)]
pub(super) struct ExportGate {
    started: Instant,
    /// The time at which the gate closes, in milliseconds after `started`. It is `u64::MAX`, which
    /// means never, while exports succeed.
    closes_at: Arc<AtomicU64>,
}

impl ExportGate {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            closes_at: Arc::new(AtomicU64::new(u64::MAX)),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open_at(self.started.elapsed())
    }

    pub(super) fn export_begins(&self) {
        self.close_at(self.started.elapsed() + PATIENCE);
    }

    pub(super) fn export_ended(&self, accepted: bool) {
        self.close_at(if accepted {
            Duration::MAX
        } else {
            self.started.elapsed()
        });
    }

    fn is_open_at(&self, now: Duration) -> bool {
        let closed_for = milliseconds(now).checked_sub(self.closes_at.load(Ordering::Relaxed));
        closed_for.is_none_or(|closed_for| closed_for >= milliseconds(PAUSE))
    }

    fn close_at(&self, time: Duration) {
        self.closes_at.store(milliseconds(time), Ordering::Relaxed);
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_closes_for_the_pause_unless_an_export_succeeds() {
        let gate = ExportGate::new();
        let at = |milliseconds| gate.is_open_at(Duration::from_millis(milliseconds));
        assert!(at(0) && at(1_000_000));

        gate.close_at(Duration::from_secs(5));
        assert!(at(4_999) && !at(5_000) && !at(14_999) && at(15_000));

        gate.export_ended(true);
        assert!(at(5_000));

        gate.export_begins();
        assert!(gate.is_open(), "an export may take a second");
        gate.export_ended(false);
        assert!(!gate.is_open());
    }
}
