//! The nightly comparison of accounts with what was ordered, and the metrics of what is wrong with
//! money ([`desk::operator::books`], [`desk::operator::health::money`]). Every replica runs this;
//! one of them makes the comparison of a night.

use std::time::Duration;

use desk::operator::{books, health::money};
use pg::{Database, config::PoolConfig};
use runtime::{Shutdown, outage};
use tokio::time::Instant;

use crate::metrics::BooksMetrics;

/// How often it is asked whether the comparison is due, and the gauges are updated.
const LOOK: Duration = Duration::from_mins(1);
/// The longest comparison. It reads each entry and each unit that has a price once.
const LONGEST: Duration = Duration::from_mins(30);
/// The pause after a comparison that failed, because the next one may take as long.
const AGAIN: Duration = Duration::from_hours(1);

/// Compares at night until the soft stop. The comparison takes longer than any statement of the
/// pool may, so it gets a connection of its own.
pub async fn run(pool: PoolConfig, database: Database, shutdown: Shutdown) -> anyhow::Result<()> {
    let metrics = BooksMetrics::register();
    let stop = shutdown.soft();
    let mut ticks = shutdown.ticks(LOOK);
    let mut not_before = Instant::now();
    while ticks.next().await {
        let is_due = database.run(books::is_due).await;
        if is_due.unwrap_or_default() && not_before <= Instant::now() {
            match stop.run_until_cancelled(compare(&pool)).await {
                None => return Ok(()),
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    not_before = Instant::now() + AGAIN;
                    if let Some(others) = outage::DATABASE.line(error.is_transient()) {
                        tracing::error!(
                            %error,
                            others,
                            "cannot compare accounts with what was ordered; trying again in an hour"
                        );
                    }
                }
            }
        }
        match database.run(money::read).await {
            Ok(state) => metrics.show(&state),
            Err(error) => {
                tracing::debug!(
                    %error,
                    "cannot read what is wrong with money; its gauges keep the last values"
                );
            }
        }
    }
    Ok(())
}

async fn compare(pool: &PoolConfig) -> Result<(), pg::Error> {
    let patient = pool.open_patient("notifier", LONGEST)?;
    let Some(checked) = patient.run(books::check_tonight).await? else {
        return Ok(());
    };
    if let Some(first) = checked.disagreements.first() {
        tracing::error!(
            found = checked.disagreements.len(),
            partner.name = first.partner,
            account.currency = first.currency,
            first = first.what,
            "accounts disagree with what was ordered; `esimctl account check` lists all places"
        );
    } else {
        tracing::info!(
            accounts = checked.accounts,
            entries = checked.entries,
            units = checked.units,
            "all accounts agree with what was ordered"
        );
    }
    Ok(())
}
