//! A process's view of a provider's breaker. The breaker is a row in PostgreSQL, so every replica and the
//! operator see the same state. The view is refreshed each second ([`crate::watch`]) and after each change by this process.
//! The claim statement itself checks the row, so a stale view claims nothing behind an open breaker.
//!
//! It opens when the provider as a whole fails: the provider denies access or cannot be reached, or most of
//! its lanes fail and none succeeds. One bad lane is held back by its own limit ([`crate::limiter`]).

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use pipeline::{Effect, perform};
use runtime::lock;
use store::{
    Database,
    providers::{self, BreakerLimits, BreakerState, ProviderBreaker},
};

use crate::{limiter::LaneLimiters, metrics::Metrics, providers::Trouble};

pub struct Breaker {
    provider: String,
    limits: BreakerLimits,
    database: Database,
    limiters: Arc<LaneLimiters>,
    known: Mutex<Known>,
    metrics: Metrics,
}

#[derive(Default)]
struct Known {
    /// The row as last read or changed.
    breaker: Option<ProviderBreaker>,
    /// The version at which this process got the probe.
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
    /// Counts a failed call. Returns whether the provider as a whole fails. `active` is the number of lanes in use.
    fn fails(&mut self, lane: Option<Arc<str>>, not_sent: bool, active: usize, most: u32) -> bool {
        self.failed += 1;
        self.not_sent += u32::from(not_sent);
        self.parts.insert(lane);
        let parts = self.parts.len();
        self.not_sent >= most || (self.failed >= most && parts >= 2 && parts * 2 > active)
    }
}

impl Known {
    fn state(&self) -> Option<BreakerState> {
        self.breaker.as_ref().map(|breaker| breaker.state)
    }
}

/// The breaker's version when a call began. The call's result counts only while the breaker still has this version;
/// with `None` the breaker was not closed, and the result never counts.
#[derive(Clone, Copy, Debug)]
pub struct BreakerVersion(Option<i64>);

impl Breaker {
    /// Creates an unknown breaker. It counts as not closed until its row is read.
    pub fn new(
        provider: String,
        limits: BreakerLimits,
        database: Database,
        limiters: Arc<LaneLimiters>,
        metrics: Metrics,
    ) -> Arc<Self> {
        Arc::new(Self { provider, limits, database, limiters, known: Mutex::default(), metrics })
    }

    /// The name of the provider.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// Takes the row as it is in the database.
    pub fn update(&self, now: ProviderBreaker) {
        let mut known = lock(&self.known);
        // The row may be older than a change by this process.
        if known.breaker.as_ref().is_some_and(|known| known.version > now.version) {
            return;
        }
        let was_closed = known.state().is_none_or(|state| state == BreakerState::Closed);
        let provider = &self.provider;
        if was_closed && now.state != BreakerState::Closed {
            let (reason, until) = (now.reason.as_deref(), now.open_until.map(|at| at.to_string()));
            tracing::error!(provider.name = provider, reason, until, "breaker opened; placements wait");
        } else if !was_closed && now.state == BreakerState::Closed {
            tracing::info!(provider.name = provider, "breaker closed; placements continue");
        }
        self.metrics.breaker(provider, now.state);
        known.breaker = Some(now);
    }

    /// Whether the provider's placements are claimed.
    pub fn is_closed(&self) -> bool {
        lock(&self.known).state() == Some(BreakerState::Closed)
    }

    /// Whether the provider responds to other calls, so that a failure concerns its placement only.
    pub fn is_healthy(&self) -> bool {
        self.is_closed() && lock(&self.known).streak.failed < self.limits.failures
    }

    /// Whether one placement may probe the provider.
    pub fn is_half_open(&self) -> bool {
        lock(&self.known).state() == Some(BreakerState::HalfOpen)
    }

    /// Marks the start of a call.
    pub fn version_at_begin(&self) -> BreakerVersion {
        let known = lock(&self.known);
        let counts =
            |breaker: &&ProviderBreaker| breaker.state == BreakerState::Closed || known.probe == Some(breaker.version);
        BreakerVersion(known.breaker.as_ref().filter(counts).map(|breaker| breaker.version))
    }

    /// Records that a call begun at this version got a response. Writes only if the breaker is not closed.
    pub async fn answered(&self, version: BreakerVersion) {
        let Some(version) = version.0 else { return };
        {
            let mut known = lock(&self.known);
            known.streak = FailureStreak::default();
            let closes =
                |breaker: &ProviderBreaker| breaker.version == version && breaker.state != BreakerState::Closed;
            if !known.breaker.as_ref().is_some_and(closes) {
                return;
            }
        }
        let updated =
            self.database.run(async |connection| providers::answered(connection, &self.provider, version).await);
        self.apply(perform(Effect::CommitHealth, updated).await);
    }

    /// Records that a call begun at this version failed: a purchase in `lane`, or a look-up or collect in none.
    pub async fn failed(&self, version: BreakerVersion, lane: Option<&Arc<str>>, trouble: &Trouble) {
        let Some(version) = version.0 else { return };
        let active = self.limiters.active(Instant::now());
        {
            let mut known = lock(&self.known);
            let state = known.breaker.as_ref().filter(|breaker| breaker.version == version);
            let Some(state) = state.map(|breaker| breaker.state) else {
                return;
            };
            let not_sent = matches!(trouble, Trouble::NotSent(_));
            let fails = known.streak.fails(lane.cloned(), not_sent, active, self.limits.failures);
            let denied = matches!(trouble, Trouble::Denied(_));
            if !(fails || denied || state != BreakerState::Closed) {
                return;
            }
            known.streak = FailureStreak::default();
        }
        let (name, reason) = (&self.provider, trouble.reason());
        let updated = self
            .database
            .run(async |connection| providers::failed(connection, name, version, &self.limits, reason).await);
        self.apply(perform(Effect::CommitHealth, updated).await);
    }

    /// Takes the probe if the breaker is half open and no other process has it.
    pub async fn probe(&self, lease: Duration) -> Result<bool, store::Error> {
        let probing = self.database.run(async |connection| providers::probe(connection, &self.provider, lease).await);
        let probe = perform(Effect::CommitProbe, probing).await?;
        let granted = probe.is_some();
        if let Some(now) = probe {
            tracing::info!(provider.name = self.provider, "probing the provider with one placement");
            lock(&self.known).probe = Some(now.version);
            self.update(now);
        }
        Ok(granted)
    }

    fn apply(&self, updated: Result<Option<ProviderBreaker>, store::Error>) {
        match updated {
            Ok(Some(now)) => self.update(now),
            // Another process changed the row; the next read shows it.
            Ok(None) => {}
            Err(error) => tracing::warn!(provider.name = self.provider, %error, "cannot update the breaker"),
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
        assert!((0..MOST * 3).all(|_| !fails(&mut streak, "a", false, 1)), "one lane is one lane");
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
