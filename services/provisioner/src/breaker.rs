//! A provider's breaker, as this process knows it. The truth is a row in PostgreSQL, so every replica
//! and the operator see the same; it is read each second, and a change made here is known at once. The
//! claim's own statement decides that nothing is claimed while the breaker is open.
//!
//! It opens when the provider as a whole fails: it denies us, it can't be reached, or most of its lanes
//! fail and none succeeds. One bad lane opens only itself ([`crate::lanes`]).

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pipeline::{Effect, perform};
use runtime::{Shutdown, health::Readiness};
use store::{
    Database, PgConnection,
    providers::{self, BreakerLimits, BreakerState},
};

use crate::{lanes::Lanes, metrics::Metrics, providers::Trouble, rate::Rate};

/// How often the breakers of all providers are read.
const PERIOD: Duration = Duration::from_secs(1);

/// The breaker of one provider.
pub struct Breaker {
    provider: String,
    limits: BreakerLimits,
    database: Database,
    lanes: Arc<Lanes>,
    known: Mutex<Known>,
    metrics: Metrics,
}

#[derive(Default)]
struct Known {
    /// As it was last read or changed.
    breaker: Option<providers::Breaker>,
    /// The version at which this process got the probe.
    probe: Option<i64>,
    run: Run,
}

/// Failed calls since the last one that was answered.
#[derive(Default)]
struct Run {
    not_sent: u32,
    failed: u32,
    /// What failed: lanes of purchases and, as if they were one more, look-ups and collects.
    parts: HashSet<Option<Arc<str>>>,
}

impl Run {
    /// Counts a failed call; whether the provider as a whole fails, of whose lanes so many are active.
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

/// The breaker's version when a call began: the call counts only while that is still the version. None:
/// it does not count, because it began while the breaker was open.
#[derive(Clone, Copy, Debug)]
pub struct Since(Option<i64>);

impl Breaker {
    /// Unknown, and so without a promise, until it is read for the first time.
    pub fn new(
        provider: String,
        limits: BreakerLimits,
        database: Database,
        lanes: Arc<Lanes>,
        metrics: Metrics,
    ) -> Arc<Self> {
        Arc::new(Self {
            provider,
            limits,
            database,
            lanes,
            known: Mutex::default(),
            metrics,
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, now: providers::Breaker) {
        let mut known = self.known();
        // What was read may be older than what this process has changed meanwhile.
        if known
            .breaker
            .as_ref()
            .is_some_and(|known| known.version > now.version)
        {
            return;
        }
        let was_closed = known.state().is_none_or(|state| state == BreakerState::Closed);
        let provider = &self.provider;
        if was_closed && now.state != BreakerState::Closed {
            let (reason, until) = (now.reason.as_deref(), now.open_until.map(|at| at.to_string()));
            tracing::error!(
                provider.name = provider,
                reason,
                until,
                "the breaker opened: its work is kept"
            );
        } else if !was_closed && now.state == BreakerState::Closed {
            tracing::info!(provider.name = provider, "the breaker closed: its work goes on");
        }
        self.metrics.breaker(provider, now.state);
        known.breaker = Some(now);
    }

    /// Whether the provider's queue is worked on.
    pub fn is_closed(&self) -> bool {
        self.known().state() == Some(BreakerState::Closed)
    }

    /// Whether what fails of one placement says something about that placement: the provider answers others.
    pub fn is_well(&self) -> bool {
        self.is_closed() && self.known().run.failed < self.limits.failures
    }

    /// Whether one placement may be tried.
    pub fn is_half_open(&self) -> bool {
        self.known().state() == Some(BreakerState::HalfOpen)
    }

    /// A call begins.
    pub fn begin(&self) -> Since {
        let known = self.known();
        let counts = |breaker: &&providers::Breaker| {
            breaker.state == BreakerState::Closed || known.probe == Some(breaker.version)
        };
        Since(
            known
                .breaker
                .as_ref()
                .filter(counts)
                .map(|breaker| breaker.version),
        )
    }

    /// A call that began at `since` was answered. Only a breaker that isn't closed is closed.
    pub async fn answered(&self, since: Since) {
        let Some(version) = since.0 else { return };
        {
            let mut known = self.known();
            known.run = Run::default();
            let closes = |breaker: &providers::Breaker| {
                breaker.version == version && breaker.state != BreakerState::Closed
            };
            if !known.breaker.as_ref().is_some_and(closes) {
                return;
            }
        }
        let answered = self
            .database
            .run(async |connection| providers::answered(connection, &self.provider, version).await);
        self.changed(perform(Effect::CommitHealth, answered).await);
    }

    /// A call that began at `since` failed: a purchase in a lane, or a look-up or collect in none.
    pub async fn failed(&self, since: Since, lane: Option<&Arc<str>>, trouble: &Trouble) {
        let Some(version) = since.0 else { return };
        let active = self.lanes.active();
        {
            let mut known = self.known();
            let state = known
                .breaker
                .as_ref()
                .filter(|breaker| breaker.version == version);
            let Some(state) = state.map(|breaker| breaker.state) else {
                return;
            };
            let not_sent = matches!(trouble, Trouble::NotSent(_));
            let fails = known
                .run
                .fails(lane.cloned(), not_sent, active, self.limits.failures);
            let denied = matches!(trouble, Trouble::Denied(_));
            if !(fails || denied || state != BreakerState::Closed) {
                return;
            }
            known.run = Run::default();
        }
        let (name, reason) = (&self.provider, trouble.reason());
        let failed = self.database.run(async |connection| {
            providers::failed(connection, name, version, true, &self.limits, reason).await
        });
        self.changed(perform(Effect::CommitHealth, failed).await);
    }

    /// Lets one placement through, if it is time for that and this process gets it.
    pub async fn probe(&self, lease: Duration) -> Result<bool, store::Error> {
        let probing = self
            .database
            .run(async |connection| providers::probe(connection, &self.provider, lease).await);
        let probe = perform(Effect::CommitProbe, probing).await?;
        let granted = probe.is_some();
        if let Some(now) = probe {
            tracing::info!(
                provider.name = self.provider,
                "trying the provider with one placement"
            );
            self.known().probe = Some(now.version);
            self.learn(now);
        }
        Ok(granted)
    }

    fn changed(&self, changed: Result<Option<providers::Breaker>, store::Error>) {
        match changed {
            Ok(Some(now)) => self.learn(now),
            // Another process changed it meanwhile; the next reading shows that.
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(provider.name = self.provider, %error, "the breaker was not changed")
            }
        }
    }
}

/// The breakers of all providers, with rows for these names.
async fn read(
    connection: &mut PgConnection,
    names: &[String],
) -> Result<Vec<providers::Breaker>, store::Error> {
    let rows = providers::list(connection).await?;
    if names.iter().all(|name| rows.iter().any(|row| row.name == *name)) {
        return Ok(rows);
    }
    providers::register(connection, names).await?;
    providers::list(connection).await
}

/// Reads the breakers of all providers, and leases each provider's share of its rate, until the soft stop.
/// Reports whether the database is there.
pub async fn watch(
    watched: Vec<(Arc<Breaker>, Arc<Rate>)>,
    database: Database,
    readiness: Readiness,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let names: Vec<String> = watched
        .iter()
        .map(|(breaker, _)| breaker.provider.clone())
        .collect();
    let mut ticks = shutdown.ticks(PERIOD);
    while ticks.next().await {
        let read = database.run(async |connection| {
            let rows = read(connection, &names).await?;
            for (breaker, rate) in &watched {
                rate.renew(connection, &breaker.provider).await?;
            }
            Ok::<_, store::Error>(rows)
        });
        match read.await {
            Ok(rows) => {
                readiness.well("database");
                for row in rows {
                    let of = watched.iter().find(|(breaker, _)| breaker.provider == row.name);
                    if let Some((breaker, _)) = of {
                        breaker.learn(row);
                    }
                }
            }
            Err(error) => {
                readiness.unwell("database", "it does not answer");
                tracing::warn!(%error, "the breakers were not read");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u32 = 10;

    fn fails(run: &mut Run, lane: &str, not_sent: bool, active: usize) -> bool {
        run.fails(Some(lane.into()), not_sent, active, MOST)
    }

    #[test]
    fn an_unreachable_provider_fails_as_a_whole_whatever_its_lanes() {
        let mut run = Run::default();
        assert!((1..MOST).all(|_| !fails(&mut run, "a", true, 8)));
        assert!(fails(&mut run, "a", true, 8));
    }

    #[test]
    fn a_provider_fails_as_a_whole_if_most_lanes_do() {
        let mut run = Run::default();
        assert!(
            (0..MOST * 3).all(|_| !fails(&mut run, "a", false, 1)),
            "one lane is one lane"
        );
        assert!(!fails(&mut run, "b", false, 4), "2 of 4");
        assert!(fails(&mut run, "c", false, 4), "3 of 4");
    }

    #[test]
    fn a_provider_whose_only_lane_and_whose_look_ups_fail_fails_as_a_whole() {
        let mut run = Run::default();
        assert!((0..MOST).all(|_| !fails(&mut run, "a", false, 1)));
        assert!(run.fails(None, false, 1, MOST));
    }
}
