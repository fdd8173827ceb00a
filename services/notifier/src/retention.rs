//! Erases data whose term has ended, at a limited rate: see [`store::retention`].

use std::time::Duration;

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Gauge},
};
use runtime::{Shutdown, metrics::Instruments};
use store::{
    Database,
    retention::{self, Class},
};
use tokio::time::Instant;

/// How often the walks are continued, and the gauges updated.
const LOOK: Duration = Duration::from_secs(10);
/// The most rows of one statement.
const MOST_ROWS: u32 = 500;

struct Metrics {
    erased: Counter<u64>,
    overdue: Gauge<f64>,
    waiting: Gauge<u64>,
}

impl Metrics {
    fn register() -> Self {
        let make = Instruments::of("notifier");
        Self {
            erased: make.counter("esim.retention.erased", "Rows that were erased after their term, by class"),
            overdue: make
                .seconds("esim.retention.overdue", "How long the oldest row of a class has been past its term"),
            waiting: make
                .gauge("esim.retention.waiting", "Profiles that are kept past the term because they are not delivered"),
        }
    }
}

/// Erases at most `rate` rows per second until the soft stop; 0 erases nothing.
pub async fn run(database: Database, rate: u32, shutdown: Shutdown) -> anyhow::Result<()> {
    let metrics = Metrics::register();
    let most = rate.min(MOST_ROWS);
    let stop = shutdown.soft();
    let mut ticks = shutdown.ticks(LOOK);
    while ticks.next().await {
        for class in Class::ALL.into_iter().filter(|_| rate > 0) {
            loop {
                let began = Instant::now();
                let erased = database.run(async |connection| retention::step(connection, class, most).await);
                let step = match erased.await {
                    Ok(step) => step,
                    Err(error) => {
                        tracing::warn!(%error, class = class.as_str(), "cannot erase old data; trying again");
                        break;
                    }
                };
                metrics.erased.add(step.erased, &[KeyValue::new("class", class.as_str())]);
                if !step.more {
                    break;
                }
                show(&database, &metrics).await;
                let rows = u32::try_from(step.seen).unwrap_or(u32::MAX);
                let turn = began + Duration::from_secs(1).mul_f64(f64::from(rows) / f64::from(rate));
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

async fn show(database: &Database, metrics: &Metrics) {
    match database.run(retention::backlog).await {
        Ok(backlog) => {
            for (class, overdue) in Class::ALL.into_iter().zip(backlog.overdue) {
                metrics.overdue.record(overdue.as_secs_f64(), &[KeyValue::new("class", class.as_str())]);
            }
            metrics.waiting.record(backlog.waiting, &[]);
        }
        Err(error) => tracing::debug!(%error, "retention gauges not updated"),
    }
}
