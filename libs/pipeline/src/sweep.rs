//! The loop of the sweep, which makes those rows due whose first lease ended without an outcome.
//! The statements, and how they miss no row, are in `store`.

use std::time::Duration;

use futures_util::future::BoxFuture;
use pg::{Database, PgConnection};
use runtime::{Shutdown, outage};
use store::SweepResult;

use crate::{
    effect::{Effect, perform},
    metrics::RowMetrics,
    worker::Handler,
};

/// The interval between two sweeps.
const SWEEP: Duration = Duration::from_secs(1);

/// Starts to run `statement`, which sweeps the rows of the handler, once a second until the soft
/// stop, and again at once while more rows are left.
pub fn start<H: Handler>(
    database: &Database,
    shutdown: &Shutdown,
    statement: impl Fn(&mut PgConnection) -> BoxFuture<'_, pg::Result<SweepResult>>
    + Send
    + Sync
    + 'static,
) {
    let database = database.clone();
    let mut ticks = shutdown.ticks(SWEEP);
    let stop = shutdown.clone();
    shutdown.spawn("sweep", async move {
        let metrics = RowMetrics::new(H::NAME, None);
        while ticks.next().await {
            loop {
                let sweeping = database.run(async |connection| statement(connection).await);
                match perform(Effect::Sweep, sweeping).await {
                    Ok(swept) => {
                        metrics.swept(swept.late);
                        if !swept.more || stop.is_stopping() {
                            break;
                        }
                    }
                    Err(error) => {
                        if let Some(others) = outage::DATABASE.failed() {
                            tracing::error!(
                                %error,
                                others,
                                "cannot sweep for unfinished rows; trying again"
                            );
                        }
                        break;
                    }
                }
            }
        }
        Ok(())
    });
}
