//! Events and notices that no order causes: about keys that end soon, low balances, changed options
//! and our addresses. Old ones are deleted. [`crate::run`] starts [`start`] in every replica, and
//! [`crate::batches`] runs [`look_at_all`] once a minute. Replicas may do the same work at the same
//! time, because each statement leaves out what another process is working on, or changes nothing
//! the second time.

use std::{sync::Arc, time::Duration};

use domain::event::NoticeKind;
use pg::Database;
use runtime::{Shutdown, outage};
use store::{
    deliveries::{batches, events, notices, offers, resends},
    history,
};

use crate::metrics::Metrics;

/// The pause before a start is tried again.
const AGAIN: Duration = Duration::from_millis(500);
/// The maximum number of rows of one statement.
const BATCH: u32 = 500;

/// Does what has to be done once after each start, and tries again until it is done or the soft
/// stop.
///
/// Partners are told the addresses only then, because a setting changes with a restart: during an
/// upgrade old and new processes may have different lists, and would otherwise tell them in turn.
pub async fn start(
    database: Database,
    addresses: Vec<String>,
    metrics: Arc<Metrics>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut ticks = shutdown.ticks(AGAIN);
    while ticks.next().await {
        let begun = async {
            database.run(batches::begin_notices).await?;
            tell_addresses(&database, &addresses, &metrics).await
        };
        match begun.await {
            Ok(()) => {
                // A task that ends by itself would end the process.
                shutdown.soft().cancelled().await;
                break;
            }
            Err(error) => {
                if let Some(others) = outage::DATABASE.line(error.is_transient()) {
                    tracing::error!(%error, others, "cannot begin the work on events and notices; trying again");
                }
            }
        }
    }
    Ok(())
}

/// Tells partners the addresses from which webhooks come, if they have changed.
async fn tell_addresses(
    database: &Database,
    addresses: &[String],
    metrics: &Metrics,
) -> Result<(), pg::Error> {
    let told = database
        .run(async |connection| notices::source_addresses(connection, addresses).await)
        .await?;
    if told > 0 {
        metrics.notices(NoticeKind::SourceAddresses, told, false);
        tracing::info!(
            told,
            "SOURCE_ADDRESSES have changed; partners with a verified channel are notified"
        );
    }
    Ok(())
}

/// Makes the events and notices about keys that end within `notice`, low balances and changed
/// options, and deletes old events, resends and history in batches.
pub async fn look_at_all(
    database: &Database,
    notice: Duration,
    metrics: &Metrics,
    shutdown: &Shutdown,
) -> Result<(), pg::Error> {
    let made = database
        .run(async |connection| events::expiring(connection, notice).await)
        .await?;
    if made > 0 {
        tracing::info!(
            made,
            "old keys or webhook secrets end soon; their partners are notified"
        );
    }
    let low = database
        .run(async |connection| events::low_balances(connection, None).await)
        .await?;
    if low > 0 {
        tracing::info!(
            low,
            "accounts fell below the thresholds of their partners, who are told"
        );
    }
    let changed = database.run(offers::tell_changes).await?;
    if changed > 0 {
        tracing::info!(
            changed,
            "options or prices have changed; who asked for it is told"
        );
    }
    let told = database
        .run(async |connection| notices::keys_expire(connection, notice).await)
        .await?;
    if told > 0 {
        metrics.notices(NoticeKind::KeysExpire, told, false);
    }
    loop {
        let gone = database
            .run(async |connection| events::forget(connection, BATCH).await)
            .await?;
        let also = database
            .run(async |connection| resends::forget(connection, BATCH).await)
            .await?;
        let old = database
            .run(async |connection| history::forget(connection, BATCH).await)
            .await?;
        if gone.max(also).max(old) < u64::from(BATCH) || shutdown.is_stopping() {
            return Ok(());
        }
    }
}
