//! Erases data whose term has ended, at a limited rate, so that deliveries do not notice it.
//! [`desk::retention`] says what is erased when. Every replica runs this; a replica that dies in
//! between loses nothing, because the progress is in PostgreSQL.

use std::time::Duration;

use desk::retention::{self, DataClass};
use pg::Database;
use runtime::{Shutdown, outage};
use tokio::time::Instant;

use crate::metrics::RetentionMetrics;

/// How often the walks are continued, and the gauges updated.
const LOOK: Duration = Duration::from_secs(10);
/// The maximum number of rows of one statement.
const MOST_ROWS: u32 = 500;

/// Erases at most `rate` rows per second until the soft stop; 0 erases nothing.
pub async fn run(database: Database, rate: u32, shutdown: Shutdown) -> anyhow::Result<()> {
    let metrics = RetentionMetrics::register();
    let most = rate.min(MOST_ROWS);
    let stop = shutdown.soft();
    let mut ticks = shutdown.ticks(LOOK);
    while ticks.next().await {
        for class in DataClass::ERASED.into_iter().filter(|_| rate > 0) {
            loop {
                let began = Instant::now();
                let erased =
                    database.run(async |connection| retention::step(connection, class, most).await);
                let step = match erased.await {
                    Ok(step) => step,
                    Err(error) => {
                        if let Some(others) = outage::DATABASE.line(error.is_transient()) {
                            tracing::error!(
                                %error,
                                others,
                                class = class.as_str(),
                                "cannot erase old data; trying again in some seconds"
                            );
                        }
                        break;
                    }
                };
                metrics.erased(class, step.erased);
                if !step.more {
                    break;
                }
                show(&database, &metrics).await;
                let rows = u32::try_from(step.seen).unwrap_or(u32::MAX);
                let turn =
                    began + Duration::from_secs(1).mul_f64(f64::from(rows) / f64::from(rate));
                tokio::select! {
                    () = tokio::time::sleep_until(turn) => {}
                    () = stop.cancelled() => return Ok(()),
                }
            }
        }
        show(&database, &metrics).await;
    }
    Ok(())
}

/// Updates the gauges of what is overdue.
async fn show(database: &Database, metrics: &RetentionMetrics) {
    match database.run(retention::backlog).await {
        Ok(backlog) => metrics.backlog(&backlog),
        Err(error) => {
            tracing::debug!(
                %error,
                "cannot read the backlog of retention; its gauges keep the last values"
            );
        }
    }
}
