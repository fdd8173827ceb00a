//! The work of the notifier that moves rows in batches and calls nobody: it makes deliveries due that
//! waited for a URL, works off resends, and makes the events and notices about keys that end soon.
//!
//! Each is a row of `work`, which the worker of [`pipeline::worker`] runs like a delivery. The stage
//! has permits of its own, so that it holds up no delivery, and each kind has a lane of its own with
//! permits of its own, so that a long resend holds up no move. Each run of a move or a resend does
//! one batch and makes the row due again, so partners take turns.
//!
//! Guarantee: a batch that fails, or whose process dies, is done again when the lease of its row
//! ends. A batch of a resend is never done twice, because its position commits with it. The others
//! may be, because a repeat changes nothing.

use std::{sync::Arc, time::Duration};

use domain::{EndpointKey, PartnerId};
use pg::Database;
use pipeline::{
    Effect, perform,
    worker::{self, Class, Found, Limits, Look, Permit, Stage, Ticket, Trigger},
};
use runtime::{Shutdown, outage};
use store::{
    deliveries::{
        batches::{self, Claimed},
        endpoints, resends,
    },
    work::{Kind, Page},
};
use uuid::Uuid;

use crate::{events, metrics::Metrics};

/// The most rows of one batch that moves deliveries to a new URL.
const BATCH: u32 = 500;
/// How long a row belongs to the process that claimed it. A batch of a move or a resend takes a
/// fraction of it. Notices may take longer, and then a second process does the same beside it.
const LEASE: Duration = Duration::from_secs(5);
/// The pause until a row is looked at again that could do nothing now: enough webhooks of its
/// partner are due, or another process has locked the rows.
const PAUSE: Duration = Duration::from_millis(500);
/// How often events about keys that end soon are made. They end hours later.
const NOTICES_EVERY: Duration = Duration::from_mins(1);
/// How many batches of one kind a process does at once. They are few, so that deliveries find a
/// connection to PostgreSQL, of which a process has eight.
const AT_ONCE: usize = 2;

/// The stage that works in batches.
pub struct Batches {
    pub database: Database,
    pub metrics: Arc<Metrics>,
    /// An event about a key is made when the key ends within this time.
    pub key_notice: Duration,
    /// A resend makes at most this many deliveries of an endpoint due at a time.
    pub redelivery_due: u32,
    pub shutdown: Shutdown,
}

/// The limits of [`Batches`]. No message announces its rows.
pub fn worker_settings() -> worker::Settings {
    worker::Settings {
        source: None,
        limits: Limits {
            permits: Kind::BATCHES.len() * AT_ONCE,
            per_lane: AT_ONCE,
            per_partner: AT_ONCE,
            slow_attempt: None,
            slow: LEASE,
        },
        lane: worker::unlimited_lanes(),
        provider: None,
    }
}

/// When a row is looked at again.
enum Next {
    Never,
    In(Duration),
}

impl Stage for Batches {
    // Not "notifier": what is drained there is compared with the deliveries that are due.
    const NAME: &'static str = "batches";
    const KIND: &'static str = "batch";
    const CLAIM_STATEMENT: (&'static str, &'static str) = ("UPDATE", "work");
    type Message = ();
    type Id = Uuid;
    type Work = Claimed;

    fn tickets_of(&self, (): ()) -> Vec<Ticket<Uuid>> {
        Vec::new()
    }

    async fn defer(&self, _rows: &[Uuid]) -> anyhow::Result<()> {
        Ok(())
    }

    async fn due(&self, look: Look) -> anyhow::Result<Found<Uuid>> {
        let page = Page {
            limit: look.limit,
            rows_per_queue: look.rows_per_queue,
            after: look.after,
            skip: &[],
        };
        let found = self
            .database
            .run(async |connection| batches::due(connection, &page).await)
            .await?;
        let tickets = found.due.into_iter().map(|due| Ticket {
            id: due.id,
            lane: due.lane.into(),
            owner: due.partner_id.into(),
        });
        Ok(Found {
            due: tickets.collect(),
            after: found.after,
        })
    }

    async fn claim(&self, rows: &[Uuid], _class: Class) -> anyhow::Result<Vec<(Uuid, Claimed)>> {
        let claimed = self
            .database
            .run(async |connection| batches::claim(connection, rows, LEASE).await)
            .await?;
        Ok(claimed.into_iter().map(|one| (one.id, one)).collect())
    }

    async fn run(self: Arc<Self>, claimed: Claimed, _trigger: Trigger, permit: Permit) {
        let done = async {
            let next = match claimed.kind {
                Kind::Moved => self.move_waiting(claimed.id, claimed.partner_id).await?,
                Kind::Resend => self.resend(claimed.id, claimed.partner_id).await?,
                _ => self.notices().await?,
            };
            let recorded = self.database.run(async |connection| match next {
                Next::Never => batches::done(connection, &claimed).await,
                Next::In(pause) => batches::again(connection, &claimed, pause).await,
            });
            recorded.await
        };
        if let Err(error) = done.await
            && let Some(others) = outage::DATABASE.failed()
        {
            tracing::error!(
                %error,
                others,
                kind = claimed.kind.as_str(),
                partner.id = %claimed.partner_id,
                "cannot do a batch; it is done again in some seconds"
            );
        }
        drop(permit);
    }
}

impl Batches {
    /// Makes deliveries due whose partner has set a new URL or has ended a pause.
    async fn move_waiting(&self, id: Uuid, partner_id: PartnerId) -> Result<Next, pg::Error> {
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
            moved if !moved.more => Next::Never,
            moved if moved.due > 0 => Next::In(Duration::ZERO),
            _ => Next::In(PAUSE),
        })
    }

    /// Does the next batch of a resend.
    async fn resend(&self, id: Uuid, partner_id: PartnerId) -> Result<Next, pg::Error> {
        let most_due = self.redelivery_due;
        let stepping = self
            .database
            .run(async |connection| resends::step(connection, id, most_due).await);
        let step = perform(Effect::CommitRedelivery, stepping).await?;
        if step.ended {
            tracing::info!(
                partner.id = %partner_id,
                resend.id = %id,
                "a resend has ended: all its webhooks were sent again"
            );
        }
        Ok(match step {
            step if step.ended || step.gone => Next::Never,
            step if step.more => Next::In(Duration::ZERO),
            _ => Next::In(PAUSE),
        })
    }

    async fn notices(&self) -> Result<Next, pg::Error> {
        events::look_at_all(
            &self.database,
            self.key_notice,
            &self.metrics,
            &self.shutdown,
        )
        .await?;
        Ok(Next::In(NOTICES_EVERY))
    }
}
