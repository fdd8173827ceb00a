//! Refreshes, once a second, what the provisioners share about the providers through PostgreSQL:
//! the state of each breaker, this replica's share of each rate limit, and the number of unsettled
//! attempts of each lane.
//!
//! In the other direction, the loop publishes for operators which lanes this process holds back,
//! and why. Nothing here decides whether something is bought. After a failed read, the process
//! works on with what it knew.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use pg::{Database, PgConnection};
use runtime::{Shutdown, outage};
use store::{
    provider_lanes::{self, HeldBackLane},
    providers::{self, AfterDelivery, ProviderBreaker},
};

use crate::{breaker::Breaker, limiter::LaneLimiters, metrics::Metrics, proof::Proof, rate::Rate};

const PERIOD: Duration = Duration::from_secs(1);
/// A report that does not change is written again after this time, because operators ignore rows
/// older than a minute: the process that wrote them may be gone.
const REPORT_AGAIN: Duration = Duration::from_secs(20);

/// What is watched of one provider.
pub struct WatchedProvider {
    pub breaker: Arc<Breaker>,
    pub rate: Arc<Rate>,
    pub limiters: Arc<LaneLimiters>,
    /// What is proved of our account, if purchases depend on it.
    pub proof: Option<Arc<Proof>>,
    /// What it does for delivered eSIMs, until that is stored.
    unsaid: Option<AfterDelivery>,
    /// The report as last written.
    written: Written,
}

struct Written {
    lanes: Vec<HeldBackLane>,
    at: Instant,
}

impl WatchedProvider {
    pub fn new(
        breaker: Arc<Breaker>,
        rate: Arc<Rate>,
        limiters: Arc<LaneLimiters>,
        can: AfterDelivery,
    ) -> Self {
        Self {
            breaker,
            rate,
            limiters,
            proof: None,
            unsaid: Some(can),
            written: Written {
                lanes: Vec::new(),
                at: Instant::now(),
            },
        }
    }

    /// Refreshes what this process knows of the provider, and publishes the lanes that it holds
    /// back.
    async fn refresh(
        &mut self,
        connection: &mut PgConnection,
        instance: &str,
        metrics: &Metrics,
    ) -> Result<(), pg::Error> {
        let provider = self.breaker.provider();
        if let Some(can) = self.unsaid {
            providers::note_after_delivery(connection, provider, can).await?;
            self.unsaid = None;
        }
        self.rate.renew(connection, provider).await?;
        if let Some(proof) = &self.proof {
            proof.renew(connection, provider).await?;
        }
        self.limiters.begin_read();
        let unsettled = providers::unsettled(connection, provider).await?;
        let now = Instant::now();
        let unsettled = unsettled
            .into_iter()
            .map(|(lane, count)| (lane, usize::try_from(count).unwrap_or(usize::MAX)));
        self.limiters.end_read(unsettled, now);
        let waiting = self.limiters.waiting(now);
        metrics.lanes_held_back(provider, waiting.len());
        if self.written.is_current(&waiting, now) {
            return Ok(());
        }
        provider_lanes::report(connection, provider, instance, &waiting).await?;
        self.written = Written {
            lanes: waiting,
            at: now,
        };
        Ok(())
    }
}

impl Written {
    /// Whether the rows of the last report still show what operators should see. The duration is
    /// not compared, because it is derived from the row.
    fn is_current(&self, waiting: &[HeldBackLane], now: Instant) -> bool {
        let is_same = |(lane, row): (&HeldBackLane, &HeldBackLane)| {
            HeldBackLane {
                held_for: row.held_for,
                ..lane.clone()
            } == *row
        };
        self.lanes.len() == waiting.len()
            && waiting.iter().zip(&self.lanes).all(is_same)
            && (waiting.is_empty() || now.saturating_duration_since(self.at) < REPORT_AGAIN)
    }
}

/// Reads the breakers of all providers and creates the missing ones of `watched`.
async fn breakers(
    connection: &mut PgConnection,
    watched: &[WatchedProvider],
) -> Result<Vec<ProviderBreaker>, pg::Error> {
    let rows = providers::list(connection).await?;
    let is_known = |watched: &WatchedProvider| {
        rows.iter()
            .any(|row| row.name == watched.breaker.provider())
    };
    if watched.iter().all(is_known) {
        return Ok(rows);
    }
    let names: Vec<String> = watched
        .iter()
        .map(|watched| watched.breaker.provider().to_owned())
        .collect();
    providers::register(connection, &names).await?;
    providers::list(connection).await
}

/// Refreshes all providers once a second until the soft stop.
pub async fn watch(
    mut watched: Vec<WatchedProvider>,
    instance: String,
    database: Database,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut ticks = shutdown.ticks(PERIOD);
    while ticks.next().await {
        let read = database.run(async |connection| breakers(connection, &watched).await);
        let read = logged(None, read.await);
        for row in read.into_iter().flatten() {
            if let Some(watched) = watched
                .iter()
                .find(|watched| watched.breaker.provider() == row.name)
            {
                watched.breaker.update(row);
            }
        }
        // What goes wrong with the rows of one provider keeps no other one from its share of the
        // rate limit. While the database is away, all of them go wrong.
        for watched in &mut watched {
            let refreshed = database
                .run(async |connection| watched.refresh(connection, &instance, &metrics).await);
            let refreshed = refreshed.await;
            logged(Some(watched.breaker.provider()), refreshed);
        }
    }
    Ok(())
}

/// Logs what could not be refreshed, of one provider or of all.
fn logged<T>(provider: Option<&str>, refreshed: Result<T, pg::Error>) -> Option<T> {
    refreshed
        .inspect_err(|error| {
            if let Some(others) = outage::DATABASE.line(error.is_transient()) {
                tracing::error!(
                    provider.name = provider,
                    %error,
                    others,
                    "cannot refresh the state of a provider, or of all; working on with what was read last"
                );
            }
        })
        .ok()
}
