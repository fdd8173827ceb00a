//! A process's view of a provider's breaker. The breaker is a row in PostgreSQL, so every replica and the
//! operator see the same state. The view is refreshed each second and after each change by this process.
//! The claim statement itself checks the row, so a stale view claims nothing behind an open breaker.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use pipeline::{Effect, perform};
use runtime::{Shutdown, health::Readiness};
use store::{
    Database, PgConnection,
    providers::{self, BreakerLimits, BreakerState},
};

use crate::{metrics::Metrics, providers::Trouble};

/// How often the breakers are read.
const PERIOD: Duration = Duration::from_secs(1);

/// The breaker of one provider.
pub struct Breaker {
    provider: String,
    limits: BreakerLimits,
    database: Database,
    known: Mutex<Known>,
    metrics: Metrics,
}

#[derive(Default)]
struct Known {
    /// The row as last read or changed.
    breaker: Option<providers::ProviderBreaker>,
    /// The version at which this process got the probe.
    probe: Option<i64>,
}

impl Known {
    fn state(&self) -> Option<BreakerState> {
        self.breaker.as_ref().map(|breaker| breaker.state)
    }
}

/// The breaker's version when a call began. Its result counts only while that version is current.
/// `None`: the call does not count.
#[derive(Clone, Copy, Debug)]
pub struct Since(Option<i64>);

impl Breaker {
    /// Creates an unknown breaker. It counts as not closed until its row is read.
    pub fn new(provider: String, limits: BreakerLimits, database: Database, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            provider,
            limits,
            database,
            known: Mutex::default(),
            metrics,
        })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, now: providers::ProviderBreaker) {
        let mut known = self.known();
        // The row may be older than a change by this process.
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
                "breaker opened; placements wait"
            );
        } else if !was_closed && now.state == BreakerState::Closed {
            tracing::info!(provider.name = provider, "breaker closed; placements continue");
        }
        self.metrics.breaker(provider, now.state);
        known.breaker = Some(now);
    }

    /// Whether the provider's placements are claimed.
    pub fn is_closed(&self) -> bool {
        self.known().state() == Some(BreakerState::Closed)
    }

    /// Marks the start of a call.
    pub fn begin(&self) -> Since {
        let known = self.known();
        let counts = |breaker: &&providers::ProviderBreaker| {
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

    /// Records that a call begun at `since` got a response. Writes only if that changes the row.
    pub async fn answered(&self, since: Since) {
        let Some(version) = since.0 else { return };
        {
            let mut known = self.known();
            match known.breaker.as_mut() {
                Some(breaker)
                    if breaker.version == version
                        && (breaker.failures > 0 || breaker.state != BreakerState::Closed) =>
                {
                    // One of the concurrent calls writes this.
                    breaker.failures = 0;
                }
                _ => return,
            }
        }
        let name = &self.provider;
        let updated = self
            .database
            .run(async |connection| providers::answered(connection, name, version).await);
        self.take(perform(Effect::CommitHealth, updated).await);
    }

    /// Records that a call begun at `since` failed. A busy provider counts as a response.
    pub async fn failed(&self, since: Since, trouble: &Trouble) {
        let at_once = match trouble {
            Trouble::Busy { .. } => return self.answered(since).await,
            Trouble::Denied(_) => true,
            Trouble::NotSent(_) | Trouble::Unknown(_) => false,
        };
        let Some(version) = since.0 else { return };
        let current = self.known().breaker.as_ref().map(|breaker| breaker.version);
        if current != Some(version) {
            return;
        }
        let (name, reason) = (&self.provider, trouble.reason());
        let updated = self.database.run(async |connection| {
            providers::failed(connection, name, version, at_once, &self.limits, reason).await
        });
        self.take(perform(Effect::CommitHealth, updated).await);
    }

    /// Takes the probe if the breaker is half open and no other process has it.
    pub async fn probe(&self, lease: Duration) -> Result<bool, store::Error> {
        if self.known().state() != Some(BreakerState::HalfOpen) {
            return Ok(false);
        }
        let probing = self
            .database
            .run(async |connection| providers::probe(connection, &self.provider, lease).await);
        let probe = perform(Effect::CommitProbe, probing).await?;
        let granted = probe.is_some();
        if let Some(now) = probe {
            tracing::info!(
                provider.name = self.provider,
                "probing the provider with one placement"
            );
            self.known().probe = Some(now.version);
            self.learn(now);
        }
        Ok(granted)
    }

    fn take(&self, updated: Result<Option<providers::ProviderBreaker>, store::Error>) {
        match updated {
            Ok(Some(now)) => self.learn(now),
            // Another process changed the row; the next read shows it.
            Ok(None) => {}
            Err(error) => tracing::warn!(provider.name = self.provider, %error, "cannot update the breaker"),
        }
    }
}

/// Reads the breakers of all providers and creates the missing ones of `names`.
async fn read(
    connection: &mut PgConnection,
    names: &[String],
) -> Result<Vec<providers::ProviderBreaker>, store::Error> {
    let rows = providers::list(connection).await?;
    if names.iter().all(|name| rows.iter().any(|row| row.name == *name)) {
        return Ok(rows);
    }
    providers::register(connection, names).await?;
    providers::list(connection).await
}

/// Reads the breakers until the soft stop and reports whether the database responds.
pub async fn watch(
    breakers: Vec<Arc<Breaker>>,
    database: Database,
    readiness: Readiness,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let names: Vec<String> = breakers.iter().map(|breaker| breaker.provider.clone()).collect();
    let mut ticks = shutdown.ticks(PERIOD);
    while ticks.next().await {
        match database
            .run(async |connection| read(connection, &names).await)
            .await
        {
            Ok(rows) => {
                readiness.well("database");
                for row in rows {
                    if let Some(breaker) = breakers.iter().find(|breaker| breaker.provider == row.name) {
                        breaker.learn(row);
                    }
                }
            }
            Err(error) => {
                readiness.unwell("database", "it does not respond");
                tracing::warn!(%error, "cannot read the breakers");
            }
        }
    }
    Ok(())
}
