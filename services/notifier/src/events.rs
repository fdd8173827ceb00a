//! The work of the notifier that no message announces: it moves waiting deliveries to a new URL,
//! works off redeliveries, makes the events about ending keys, and deletes old events. [`crate::run`] starts it in every
//! replica. Replicas may do the same work at the same time, because each statement leaves out what
//! another process is working on, or changes nothing the second time.

use std::time::Duration;

use pipeline::{Effect, perform};
use runtime::{Shutdown, outage};
use store::{
    Database,
    deliveries::{
        endpoints, events,
        redeliveries::{self, Redelivery},
    },
};
use tokio::time::Instant;

/// How often endpoints with a new URL are looked for.
const LOOK: Duration = Duration::from_millis(500);
/// How often ending keys and old events are looked for.
const SLOW_LOOK: Duration = Duration::from_mins(1);
/// The most rows of one statement.
const BATCH: u32 = 500;

/// Runs until the soft stop. An event about a key is made when the key ends within `notice`. A
/// redelivery makes at most `most_due` deliveries of its partner due at a time.
pub async fn run(
    database: Database,
    notice: Duration,
    most_due: u32,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let mut ticks = shutdown.ticks(LOOK);
    let mut slow: Option<Instant> = None;
    while ticks.next().await {
        if let Err(error) = move_waiting(&database, &shutdown).await
            && let Some(others) = outage::DATABASE.failed()
        {
            tracing::error!(%error, others, "cannot move deliveries to a new URL; trying again");
        }
        if let Err(error) = redeliver(&database, most_due, &shutdown).await
            && let Some(others) = outage::DATABASE.failed()
        {
            tracing::error!(%error, others, "cannot continue redeliveries; trying again");
        }
        if slow.is_none_or(|last| last.elapsed() >= SLOW_LOOK) {
            slow = Some(Instant::now());
            if let Err(error) = look_at_all(&database, notice, &shutdown).await
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
async fn move_waiting(database: &Database, shutdown: &Shutdown) -> Result<(), store::Error> {
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

/// Continues the redeliveries of all partners. They take turns, one batch each, so that a long one
/// does not make the others wait. An error of one does not keep the others from their turn; the last
/// error is returned.
async fn redeliver(
    database: &Database,
    most_due: u32,
    shutdown: &Shutdown,
) -> Result<(), store::Error> {
    let mut running = Vec::new();
    loop {
        let after = running.last().map(|one: &Redelivery| one.partner_id);
        let page = database
            .run(async |connection| redeliveries::running(connection, after, BATCH.into()).await)
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
            let id = one.redelivery_id;
            let stepping =
                database.run(async |connection| redeliveries::step(connection, id, most_due).await);
            match perform(Effect::CommitRedelivery, stepping).await {
                Ok(step) => {
                    if step.ended {
                        tracing::info!(
                            partner.id = %one.partner_id,
                            redelivery.id = %id,
                            "a redelivery has ended: all its webhooks were sent again"
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

/// Makes the events about ending keys, and deletes old events and redeliveries in batches.
async fn look_at_all(
    database: &Database,
    notice: Duration,
    shutdown: &Shutdown,
) -> Result<(), store::Error> {
    let made = database
        .run(async |connection| events::expiring(connection, notice).await)
        .await?;
    if made > 0 {
        tracing::info!(
            made,
            "old keys or webhook secrets end soon; their partners are notified"
        );
    }
    loop {
        let gone = database
            .run(async |connection| events::forget(connection, BATCH).await)
            .await?;
        let also = database
            .run(async |connection| redeliveries::forget(connection, BATCH).await)
            .await?;
        if gone.max(also) < u64::from(BATCH) || shutdown.is_stopping() {
            return Ok(());
        }
    }
}
