//! This process's view of a provider's breaker, which stops the work for a provider that fails as a
//! whole.
//!
//! The breaker itself is a row in PostgreSQL, so every replica and the operator see the same state.
//! The view is refreshed once a second ([`crate::watch`]) and after each change that this process
//! makes. A view that is out of date does no harm, because the statement that claims placements
//! checks the row itself.
//!
//! The breaker opens when the provider denies access, when it cannot be reached, or when most of
//! its lanes fail and none succeeds. A single bad lane does not open it; such a lane is held back
//! by its own limit ([`crate::limiter`]). While the breaker is open, placements wait in PostgreSQL.
//! After a while it is half open: one placement probes the provider, and its result closes the
//! breaker or opens it again for longer. If no placement is due, a request about a delivered eSIM
//! probes it instead; such a probe may close the breaker, but its failure only lets the next probe
//! follow.
//!
//! [`Calls`](crate::calls::Calls) reports the result of each call. A result counts only if the
//! breaker has not changed since the call began. Otherwise the late failures of calls that were
//! sent before an outage ended could open the breaker again.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use pg::Database;
use pipeline::{Effect, perform};
use runtime::{lock, outage};
use store::providers::{self, BreakerLimits, BreakerState, ProviderBreaker};

use crate::{limiter::LaneLimiters, metrics::Metrics, providers::Trouble};

/// The view of one provider's breaker. All tasks of this process share it.
pub struct Breaker {
    provider: String,
    limits: BreakerLimits,
    database: Database,
    limiters: Arc<LaneLimiters>,
    known: Mutex<KnownBreaker>,
    metrics: Metrics,
}

/// What this process knows about the breaker, and the calls that it counts itself.
#[derive(Default)]
struct KnownBreaker {
    /// The row as last read or changed.
    breaker: Option<ProviderBreaker>,
    /// The version of the row since which this process has the probe, so that the calls of the
    /// probe count although the breaker is not closed.
    probe: Option<i64>,
    streak: FailureStreak,
}

/// The failed calls since the last response.
#[derive(Default)]
struct FailureStreak {
    not_sent: u32,
    failed: u32,
    /// The lanes of failed purchases; `None` stands for failed look-ups and collects.
    parts: HashSet<Option<Arc<str>>>,
}

impl FailureStreak {
    /// Counts a failed call. Returns whether the provider as a whole fails. `active` is the number
    /// of lanes in use.
    fn fails(&mut self, lane: Option<Arc<str>>, not_sent: bool, active: usize, most: u32) -> bool {
        self.failed += 1;
        self.not_sent += u32::from(not_sent);
        self.parts.insert(lane);
        let parts = self.parts.len();
        self.not_sent >= most || (self.failed >= most && parts >= 2 && parts * 2 > active)
    }
}

impl KnownBreaker {
    fn state(&self) -> Option<BreakerState> {
        self.breaker.as_ref().map(|breaker| breaker.state)
    }
}

/// The version of the breaker when a call began. The result of the call counts only while the
/// breaker still has this version. `None` means that the breaker was not closed, and the result
/// never counts.
#[derive(Clone, Copy, Debug)]
pub struct BreakerVersion(Option<i64>);

impl Breaker {
    /// Creates a breaker whose state is not known. It counts as not closed until its row has been
    /// read, so nothing is bought before that.
    pub fn new(
        provider: String,
        limits: BreakerLimits,
        database: Database,
        limiters: Arc<LaneLimiters>,
        metrics: Metrics,
    ) -> Arc<Self> {
        Arc::new(Self {
            provider,
            limits,
            database,
            limiters,
            known: Mutex::default(),
            metrics,
        })
    }

    /// The name of the provider.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// Takes over the row as it was read or changed, and logs if the breaker opened or closed.
    pub fn update(&self, now: ProviderBreaker) {
        let mut known = lock(&self.known);
        // The row may be older than a change by this process.
        if known
            .breaker
            .as_ref()
            .is_some_and(|known| known.version > now.version)
        {
            return;
        }
        let was_closed = known
            .state()
            .is_none_or(|state| state == BreakerState::Closed);
        let provider = &self.provider;
        if was_closed && now.state != BreakerState::Closed {
            let reason = now.reason.as_deref();
            let until = now.open_until.map(|at| at.to_string());
            tracing::error!(
                provider.name = provider,
                reason,
                until,
                "breaker opened because the provider fails, PostgreSQL has lost commits, or an \
                 operator opened it (see `reason`); its placements wait until a probe succeeds or \
                 an operator closes the breaker"
            );
        } else if !was_closed && now.state == BreakerState::Closed {
            tracing::info!(
                provider.name = provider,
                "breaker closed; placements of the provider continue"
            );
        }
        self.metrics.breaker(provider, now.state);
        known.breaker = Some(now);
    }

    /// Whether the breaker is closed, so that placements of the provider may be claimed.
    pub fn is_closed(&self) -> bool {
        lock(&self.known).state() == Some(BreakerState::Closed)
    }

    /// Whether the provider responds to other calls, so that a failure concerns its placement only.
    /// Only then may an unknown outcome lead to parking.
    pub fn is_healthy(&self) -> bool {
        self.is_closed() && lock(&self.known).streak.failed < self.limits.failures
    }

    /// Whether one placement may probe the provider.
    pub fn is_half_open(&self) -> bool {
        lock(&self.known).state() == Some(BreakerState::HalfOpen)
    }

    /// Returns the version that a call which starts now belongs to.
    pub fn version_at_begin(&self) -> BreakerVersion {
        let known = lock(&self.known);
        let counts = |breaker: &&ProviderBreaker| {
            breaker.state == BreakerState::Closed || known.probe == Some(breaker.version)
        };
        BreakerVersion(
            known
                .breaker
                .as_ref()
                .filter(counts)
                .map(|breaker| breaker.version),
        )
    }

    /// Records that a call got a response. `version` is the one at which the call began. Writes to
    /// PostgreSQL only if the breaker is not closed, so ordinary calls cost nothing.
    pub async fn responded(&self, version: BreakerVersion) {
        let Some(version) = version.0 else { return };
        {
            let mut known = lock(&self.known);
            known.streak = FailureStreak::default();
            let closes = |breaker: &ProviderBreaker| {
                breaker.version == version && breaker.state != BreakerState::Closed
            };
            if !known.breaker.as_ref().is_some_and(closes) {
                return;
            }
        }
        let updated = self.database.run(async |connection| {
            providers::responded(connection, &self.provider, version).await
        });
        self.apply(perform(Effect::CommitHealth, updated).await);
    }

    /// Records that the probe got a response, if it is a call that says nothing about purchases.
    /// Unlike [`Self::responded`], it does not end a streak of failures while the breaker is
    /// closed.
    pub async fn responded_to_probe(&self, version: BreakerVersion) {
        if !self.is_closed() {
            self.responded(version).await;
        }
    }

    /// Records that a call failed: a purchase in `lane`, or a look-up or collect without one.
    /// `version` is the one at which the call began. Writes to PostgreSQL only if the breaker has
    /// to open, or if the call was a failed probe.
    pub async fn failed(
        &self,
        version: BreakerVersion,
        lane: Option<&Arc<str>>,
        trouble: &Trouble,
    ) {
        let Some(version) = version.0 else { return };
        let active = self.limiters.active(Instant::now());
        {
            let mut known = lock(&self.known);
            let state = known
                .breaker
                .as_ref()
                .filter(|breaker| breaker.version == version);
            let Some(state) = state.map(|breaker| breaker.state) else {
                return;
            };
            let not_sent = matches!(trouble, Trouble::NotSent(_));
            let fails = known
                .streak
                .fails(lane.cloned(), not_sent, active, self.limits.failures);
            let denied = matches!(trouble, Trouble::Denied(_));
            if !(fails || denied || state != BreakerState::Closed) {
                return;
            }
            known.streak = FailureStreak::default();
        }
        let name = &self.provider;
        let denied = matches!(trouble, Trouble::Denied(_));
        let reason = (trouble.reason(), denied);
        let updated = self.database.run(async |connection| {
            providers::failed(connection, name, version, &self.limits, reason).await
        });
        self.apply(perform(Effect::CommitHealth, updated).await);
    }

    /// Takes the probe, if the breaker is half open and no other process has it. No other process
    /// gets a probe for the duration of `lease`.
    pub async fn probe(&self, lease: Duration) -> Result<bool, pg::Error> {
        let probing = self
            .database
            .run(async |connection| providers::probe(connection, &self.provider, lease).await);
        let probe = perform(Effect::CommitProbe, probing).await?;
        let granted = probe.is_some();
        if let Some(now) = probe {
            tracing::info!(
                provider.name = self.provider,
                "probing the provider with one placement or request"
            );
            lock(&self.known).probe = Some(now.version);
            self.update(now);
        }
        Ok(granted)
    }

    fn apply(&self, updated: Result<Option<ProviderBreaker>, pg::Error>) {
        match updated {
            Ok(Some(now)) => self.update(now),
            // Another process changed the row; the next read shows it.
            Ok(None) => {}
            Err(error) => {
                if let Some(others) = outage::DATABASE.line(error.is_transient()) {
                    tracing::error!(
                        provider.name = self.provider,
                        %error,
                        others,
                        "cannot record a change of the breaker; it keeps its state until a later \
                         call changes it"
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 10;

    fn fails(streak: &mut FailureStreak, lane: &str, not_sent: bool, active: usize) -> bool {
        streak.fails(Some(lane.into()), not_sent, active, MOST)
    }

    #[test]
    fn an_unreachable_provider_fails_as_a_whole_whatever_its_lanes() {
        let mut streak = FailureStreak::default();
        assert!((1..MOST).all(|_| !fails(&mut streak, "a", true, 8)));
        assert!(fails(&mut streak, "a", true, 8));
    }

    #[test]
    fn a_provider_fails_as_a_whole_if_most_lanes_do() {
        let mut streak = FailureStreak::default();
        assert!(
            (0..MOST * 3).all(|_| !fails(&mut streak, "a", false, 1)),
            "one lane is one lane"
        );
        assert!(!fails(&mut streak, "b", false, 4), "2 of 4");
        assert!(fails(&mut streak, "c", false, 4), "3 of 4");
    }

    #[test]
    fn a_provider_whose_only_lane_and_whose_look_ups_fail_fails_as_a_whole() {
        let mut streak = FailureStreak::default();
        assert!((0..MOST).all(|_| !fails(&mut streak, "a", false, 1)));
        assert!(streak.fails(None, false, 1, MOST));
    }
}
