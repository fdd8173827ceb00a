//! The lookout: one statement asks for all workers of a process whether any of their rows is due.
//!
//! A worker that has nothing to do would otherwise look for itself, and a provisioner has three
//! workers for each provider. Each statement of an idle process costs three wake-ups, in two
//! processes and in their kernel.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use pg::Database;
use runtime::{Shutdown, lock, outage};
use store::work::{self, WorkKind};
use tokio::sync::Notify;

/// The time between two questions, and so how much later than its time the row of an idle worker is
/// found.
const PERIOD: Duration = Duration::from_millis(500);

/// The lookout of a process.
#[derive(Default)]
pub struct Lookout(Mutex<Watched>);

/// What the workers watch: the kinds of their rows, each with a provider.
#[derive(Clone, Default)]
struct Watched {
    kinds: Vec<WorkKind>,
    providers: Vec<String>,
    workers: Vec<Arc<Notify>>,
}

impl Lookout {
    /// Starts a lookout that asks until the soft stop.
    pub fn start(database: Database, shutdown: &Shutdown) -> Arc<Self> {
        let lookout = Arc::new(Self::default());
        shutdown.spawn(
            "lookout",
            Arc::clone(&lookout).run(database, shutdown.clone()),
        );
        lookout
    }

    /// What a worker waits for, whose rows are of these kinds. The provider is empty for a worker
    /// that has none.
    pub fn watch(&self, kinds: &[WorkKind], provider: &str) -> Arc<Notify> {
        let due = Arc::new(Notify::new());
        let mut watched = lock(&self.0);
        for kind in kinds {
            watched.kinds.push(*kind);
            watched.providers.push(provider.to_owned());
            watched.workers.push(Arc::clone(&due));
        }
        due
    }

    async fn run(self: Arc<Self>, database: Database, shutdown: Shutdown) -> anyhow::Result<()> {
        let mut ticks = shutdown.ticks(PERIOD);
        while ticks.next().await {
            let watched = lock(&self.0).clone();
            let due = database.run(async |connection| {
                work::are_due(connection, &watched.kinds, &watched.providers).await
            });
            match due.await {
                Ok(due) => {
                    let workers = watched.workers.iter().zip(due);
                    for (worker, _) in workers.filter(|(_, is_due)| *is_due) {
                        worker.notify_one();
                    }
                }
                Err(error) => {
                    if let Some(others) = outage::DATABASE.failed() {
                        tracing::error!(%error, others, "cannot ask whether work is due; trying again");
                    }
                }
            }
        }
        Ok(())
    }
}
