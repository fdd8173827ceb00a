//! The work of the notifier that no message announces: it moves waiting deliveries to a new URL,
//! works off resends, makes the events about ending keys and the notices about our addresses,
//! and deletes old events. [`crate::run`] starts it in every
//! replica. Replicas may do the same work at the same time, because each statement leaves out what
//! another process is working on, or changes nothing the second time.

use std::{sync::Arc, time::Duration};

use domain::event::Kind;
use pg::Database;
use pipeline::{Effect, perform};
use runtime::{Shutdown, outage};
use store::{
    deliveries::{
        endpoints, events, notices,
        resends::{self, Resend},
    },
    history,
};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// How often endpoints with a new URL are looked for.
const LOOK: Duration = Duration::from_millis(500);
/// How often ending keys and old events are looked for.
const SLOW_LOOK: Duration = Duration::from_mins(1);
/// The most rows of one statement.
const BATCH: u32 = 500;

/// What events, notices and resends are made of.
pub struct Causes {
    /// An event about a key is made when the key ends within this time.
    pub key_notice: Duration,
    /// The addresses from which webhooks come (`SOURCE_ADDRESSES`).
    pub source_addresses: Vec<String>,
    /// A resend makes at most this many deliveries of an endpoint due at a time
    /// (`REDELIVERY_DUE`).
    pub redelivery_due: u32,
}

/// Runs until the soft stop.
pub async fn run(
    database: Database,
    causes: Causes,
    metrics: Arc<Metrics>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut ticks = shutdown.ticks(LOOK);
    let mut slow: Option<Instant> = None;
    let mut addresses_told = false;
    while ticks.next().await {
        // Once after each start, because a setting changes with a restart. During an upgrade old and
        // new processes may have different lists, and would otherwise tell them in turn.
        if !addresses_told {
            match tell_addresses(&database, &causes.source_addresses, &metrics).await {
                Ok(()) => addresses_told = true,
                Err(error) => {
                    if let Some(others) = outage::DATABASE.failed() {
                        tracing::error!(%error, others, "cannot compare SOURCE_ADDRESSES with those that partners were told; trying again");
                    }
                }
            }
        }
        if let Err(error) = move_waiting(&database, &shutdown).await
            && let Some(others) = outage::DATABASE.failed()
        {
            tracing::error!(%error, others, "cannot move deliveries to a new URL; trying again");
        }
        if let Err(error) = redeliver(&database, causes.redelivery_due, &shutdown).await
            && let Some(others) = outage::DATABASE.failed()
        {
            tracing::error!(%error, others, "cannot continue resends; trying again");
        }
        if slow.is_none_or(|last| last.elapsed() >= SLOW_LOOK) {
            slow = Some(Instant::now());
            if let Err(error) = look_at_all(&database, causes.key_notice, &metrics, &shutdown).await
                && let Some(others) = outage::DATABASE.failed()
            {
                tracing::error!(%error, others, "cannot make or delete events; trying again");
            }
        }
    }
    Ok(())
}

/// Makes deliveries due whose partner has set a new URL or has ended a pause. Endpoints take turns,
/// one batch each, so that one with many deliveries does not make the others wait.
async fn move_waiting(database: &Database, shutdown: &Shutdown) -> Result<(), pg::Error> {
    let mut moving = database.run(endpoints::moving).await?;
    while !moving.is_empty() && !shutdown.is_stopping() {
        let mut left = Vec::with_capacity(moving.len());
        for endpoint in moving {
            let moved = database
                .run(async |connection| endpoints::move_waiting(connection, endpoint, BATCH).await)
                .await?;
            if moved.due > 0 {
                tracing::info!(
                    partner.id = %endpoint.partner_id,
                    endpoint.id = %endpoint.id,
                    due = moved.due,
                    "waiting deliveries are sent to the endpoint, whose URL is new or whose pause \
                     has ended"
                );
            }
            // If nothing moved although there is more, another notifier has locked these rows and
            // moves them.
            if moved.more && moved.due > 0 {
                left.push(endpoint);
            }
        }
        moving = left;
    }
    Ok(())
}

/// Continues the resends of all partners. They take turns, one batch each, so that a long one
/// does not make the others wait. An error of one does not keep the others from their turn; the last
/// error is returned.
async fn redeliver(
    database: &Database,
    most_due: u32,
    shutdown: &Shutdown,
) -> Result<(), pg::Error> {
    let mut running = Vec::new();
    loop {
        let after = running.last().map(|one: &Resend| one.partner_id);
        let page = database
            .run(async |connection| resends::running(connection, after, BATCH.into()).await)
            .await?;
        let full = u32::try_from(page.len()) == Ok(BATCH);
        running.extend(page);
        if !full {
            break;
        }
    }
    let mut failed = None;
    while !running.is_empty() && !shutdown.is_stopping() {
        let mut left = Vec::with_capacity(running.len());
        for one in running {
            let id = one.resend_id;
            let stepping =
                database.run(async |connection| resends::step(connection, id, most_due).await);
            match perform(Effect::CommitRedelivery, stepping).await {
                Ok(step) => {
                    if step.ended {
                        tracing::info!(
                            partner.id = %one.partner_id,
                            resend.id = %id,
                            "a resend has ended: all its webhooks were sent again"
                        );
                    }
                    if step.more {
                        left.push(one);
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        running = left;
    }
    failed.map_or(Ok(()), Err)
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
        metrics.notices(Kind::NoticeSourceAddresses, told, false);
        tracing::info!(
            told,
            "SOURCE_ADDRESSES have changed; partners with a verified channel are notified"
        );
    }
    Ok(())
}

/// Makes the events and notices about ending keys, and deletes old events, resends and history in
/// batches.
async fn look_at_all(
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
    let told = database
        .run(async |connection| notices::keys_expire(connection, notice).await)
        .await?;
    if told > 0 {
        metrics.notices(Kind::NoticeKeysExpire, told, false);
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
