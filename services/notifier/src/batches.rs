//! The work of the notifier that moves rows in batches and calls nobody: it makes deliveries due
//! that waited for a URL, works off resends, and makes the events and notices about keys that end
//! soon.
//!
//! Each is a row of `work`, which a worker of [`pipeline::worker`] runs like a delivery. This
//! worker has permits of its own, so that it holds up no delivery, and each kind has a lane of its
//! own with permits of its own, so that a long resend holds up no move. Each run of a move or a
//! resend does one batch and makes the row due again, so partners take turns.
//!
//! Guarantee: a batch that fails, or whose process dies, is done again when the lease of its row
//! ends. A batch of a resend is never done twice, because its position commits with it. The others
//! may be, because a repeat changes nothing.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use domain::{EndpointKey, PartnerId};
use pg::Database;
use pipeline::{
    Effect, Lookout, perform,
    worker::{self, Handler, Permit, PermitLimits, Ticket, TicketClass, Trigger},
};
use runtime::{Shutdown, lock, outage};
use store::{
    deliveries::{
        batches::{self, ClaimedBatch},
        endpoints, resends,
    },
    work::{LookResult, WorkKind, WorkLook},
};
use uuid::Uuid;

use crate::{events, metrics::Metrics};

/// The maximum number of rows of one batch that moves deliveries to a new URL.
const BATCH: u32 = 500;
/// How long a row belongs to the process that claimed it. A batch of a move or a resend takes a
/// fraction of it. Notices may take longer, and then a second process does the same beside it.
const LEASE: Duration = Duration::from_secs(5);
/// The pause until a row is looked at again that could do nothing now: enough webhooks of its
/// partner are due, or another process has locked the rows. It doubles each time, because each look
/// costs two commits, and a resend to a blocked endpoint can do nothing for hours.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest of these pauses, and so how much later such a resend may go on.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Of how many rows the last pause is remembered.
const REMEMBERED: usize = 1_000;
/// How often events about keys that end soon are made. They end hours later.
const NOTICES_EVERY: Duration = Duration::from_mins(1);
/// How many batches of one kind a process does at once. They are few, so that deliveries find a
/// connection to PostgreSQL, of which a process has eight.
const AT_ONCE: usize = 2;

/// What the worker for batches does.
pub struct Batches {
    pub database: Database,
    pub metrics: Arc<Metrics>,
    /// An event about a key is made when the key ends within this time.
    pub key_notice: Duration,
    /// A resend makes at most this many deliveries of an endpoint due at a time.
    pub resend_due: u32,
    pub pauses: Pauses,
    pub shutdown: Shutdown,
}

/// The pauses of the rows that could do nothing when this process looked at them last.
#[derive(Default)]
pub struct Pauses(Mutex<HashMap<Uuid, Duration>>);

impl Pauses {
    /// The next pause of a row that can do nothing.
    fn longer(&self, id: Uuid) -> Duration {
        let mut pauses = lock(&self.0);
        // Rows that another process has ended are never forgotten one by one. Forgetting all of
        // them only makes some pauses short again.
        if pauses.len() >= REMEMBERED {
            pauses.clear();
        }
        let pause = pauses.get(&id).map_or(PAUSE, |last| *last * 2);
        let pause = pause.min(LONGEST_PAUSE);
        pauses.insert(id, pause);
        pause
    }

    /// A row has done something, so its next pause is short.
    fn forget(&self, id: Uuid) {
        let mut pauses = lock(&self.0);
        pauses.remove(&id);
    }
}

/// The limits of [`Batches`]. No message announces its rows.
pub fn worker_settings(lookout: &Lookout) -> worker::WorkerSettings {
    worker::WorkerSettings {
        source: None,
        limits: PermitLimits {
            permits: WorkKind::BATCHES.len() * AT_ONCE,
            per_lane: AT_ONCE,
            per_owner: AT_ONCE,
            slow_attempt: None,
            slow: LEASE,
        },
        lane: worker::unlimited_lanes(),
        provider: None,
        wake: Some(lookout.watch(&WorkKind::BATCHES, "")),
    }
}

/// When a row is looked at again.
enum NextLook {
    Never,
    In(Duration),
    /// It could do nothing now.
    Later,
}

impl Handler for Batches {
    // Not "notifier": what is drained there is compared with the deliveries that are due.
    const NAME: &'static str = "batches";
    const KIND: &'static str = "batch";
    const CLAIM_STATEMENT: (&'static str, &'static str) = ("UPDATE", "work");
    type Message = ();
    type Id = Uuid;
    type Claimed = ClaimedBatch;

    async fn due(&self, look: WorkLook) -> anyhow::Result<LookResult<Ticket<Uuid>>> {
        let found = self
            .database
            .run(async |connection| batches::due(connection, &look).await)
            .await?;
        Ok(found.map(Ticket::from))
    }

    async fn claim(
        &self,
        rows: &[Uuid],
        _class: TicketClass,
    ) -> anyhow::Result<Vec<(Uuid, ClaimedBatch)>> {
        let claimed = self
            .database
            .run(async |connection| batches::claim(connection, rows, LEASE).await)
            .await?;
        Ok(claimed.into_iter().map(|one| (one.id, one)).collect())
    }

    async fn run(self: Arc<Self>, claimed: ClaimedBatch, _trigger: Trigger, permit: Permit) {
        let done = async {
            let next = match claimed.kind {
                WorkKind::Moved => self.move_waiting(claimed.id, claimed.partner_id).await?,
                WorkKind::Resend => self.resend(claimed.id, claimed.partner_id).await?,
                _ => self.notices().await?,
            };
            let again_in = match next {
                NextLook::Later => Some(self.pauses.longer(claimed.id)),
                NextLook::In(pause) => Some(pause),
                NextLook::Never => None,
            };
            if !matches!(next, NextLook::Later) {
                self.pauses.forget(claimed.id);
            }
            let recorded = self.database.run(async |connection| match again_in {
                None => batches::done(connection, &claimed).await,
                Some(pause) => batches::again(connection, &claimed, pause).await,
            });
            recorded.await
        };
        if let Err(error) = done.await
            && let Some(others) = outage::DATABASE.line(error.is_transient())
        {
            tracing::error!(
                %error,
                others,
                kind = claimed.kind.as_str(),
                partner.id = %claimed.partner_id,
                "a batch of work on events, resends or moved webhooks failed; it is tried again \
                 within seconds"
            );
        }
        drop(permit);
    }
}

impl Batches {
    /// Makes deliveries due whose partner has set a new URL or has ended a pause.
    async fn move_waiting(&self, id: Uuid, partner_id: PartnerId) -> Result<NextLook, pg::Error> {
        let endpoint = EndpointKey {
            partner_id,
            id: id.into(),
        };
        let moved = self
            .database
            .run(async |connection| endpoints::move_waiting(connection, endpoint, BATCH).await)
            .await?;
        if moved.due > 0 {
            tracing::info!(
                partner.id = %partner_id,
                endpoint.id = %endpoint.id,
                due = moved.due,
                "waiting deliveries are sent to the endpoint, whose URL is new or whose pause has \
                 ended"
            );
        }
        Ok(match moved {
            moved if !moved.more => NextLook::Never,
            moved if moved.due > 0 => NextLook::In(Duration::ZERO),
            _ => NextLook::Later,
        })
    }

    /// Does the next batch of a resend.
    async fn resend(&self, id: Uuid, partner_id: PartnerId) -> Result<NextLook, pg::Error> {
        let most_due = self.resend_due;
        let stepping = self
            .database
            .run(async |connection| resends::step(connection, id, most_due).await);
        let step = perform(Effect::CommitResend, stepping).await?;
        if step.ended {
            tracing::info!(
                partner.id = %partner_id,
                resend.id = %id,
                "a resend has ended: all its webhooks were sent again"
            );
        }
        Ok(match step {
            step if step.ended || step.gone => NextLook::Never,
            step if step.more => NextLook::In(Duration::ZERO),
            _ => NextLook::Later,
        })
    }

    async fn notices(&self) -> Result<NextLook, pg::Error> {
        events::look_at_all(
            &self.database,
            self.key_notice,
            &self.metrics,
            &self.shutdown,
        )
        .await?;
        Ok(NextLook::In(NOTICES_EVERY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_can_do_nothing_is_looked_at_less_and_less_often() {
        let pauses = Pauses::default();
        let row = Uuid::from_u128(1);
        let seconds: Vec<f64> = (0..9).map(|_| pauses.longer(row).as_secs_f64()).collect();
        assert_eq!(seconds, [0.5, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]);
        assert_eq!(pauses.longer(Uuid::from_u128(2)), PAUSE, "of its own");
        pauses.forget(row);
        assert_eq!(pauses.longer(row), PAUSE, "it has done something");
        for other in 3..3_000 {
            pauses.longer(Uuid::from_u128(other));
        }
        assert!(pauses.0.lock().unwrap().len() <= REMEMBERED);
    }
}
