//! The worker: it turns messages and due work into running rows, with which a [`Handler`] does what
//! has to be done. The notifier calls [`start`] twice, with the handlers `Deliver` (webhooks) and
//! `Batches`, and the provisioner three times for each provider: twice with `PlacementHandler`
//! (purchases, look-ups), and with `EsimRequestHandler`.
//!
//! ```text
//! message ──────────▶ ticket ─┐
//!                             ├─▶ queue of lane and owner ─▶ permit ─▶ claim ─▶ run
//! look at due work ─▶ ticket ─┘
//! ```
//!
//! A ticket names a row and reserves nothing. The row is taken by the claim, once there is a permit
//! to run it. So a row may have several tickets, here or in other processes. Usually only the first
//! claim finds work, and the others return their permits at once. But the claim of a fresh delivery
//! writes nothing, so if its message comes twice, the second claim finds it again until its attempt
//! is recorded. A run may also outlive its lease, and then another process may claim the same row.
//! So a handler must not rely on being the only one that works on a row. If it needs that, its
//! claim must ensure it, as the claim of a purchase does by recording the attempt.
//!
//! Guarantees:
//!
//! - A row runs only with a permit, and only after its claim.
//! - Due work gets every fourth permit even while messages flood the worker.
//! - A queue gets no further due tickets while earlier ones wait or are being claimed.
//! - A message that cannot be read does not stop the others.
//!
//! For completeness the worker relies on PostgreSQL alone. It may lose any ticket, because the
//! [`sweep`](crate::sweep) makes those rows due that nobody has finished within their first lease,
//! and the next look finds every due row again.

mod handler;
mod messages;

use std::{
    collections::HashMap,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use domain::PartnerId;
use rand::seq::SliceRandom;
use runtime::{Shutdown, clock::Moment, outage};
use store::work::{LookResult, WorkLook};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

pub use self::handler::{Handler, Ticket, Trigger};
use crate::{
    Nats,
    effect::{Effect, perform},
    metrics::RowMetrics,
    queues::{GrantedTicket, Queues},
    streams::MessageSource,
    trace,
};
pub use crate::{
    permits::{LaneState, LaneStates, Permit, PermitLimits, unlimited_lanes},
    queues::TicketClass,
};

/// How long a worker without a lookout pauses if the last look saw all lanes and nothing was due.
/// With one it waits for the lookout, and only gives out permits this often.
const LOOK_IDLE: Duration = Duration::from_millis(500);
/// The pause between two looks while rows are due, or while lanes are left to look at.
const LOOK_BUSY: Duration = Duration::from_millis(5);
/// The longest time that a look through due work waits until a queue is drained. Meanwhile rows of
/// queues without tickets may become due, and only the next look finds them.
const DRAINED_WITHIN: Duration = Duration::from_millis(500);
/// The most due rows that one look returns.
const LOOK_ROWS: usize = 256;
/// How long a claim that fails is retried. After that its rows are left to a later look or sweep.
/// Due rows whose leases the failed claim has already taken are found by no retry, and wait until
/// the leases end.
const CLAIM_RETRIED_FOR: Duration = Duration::from_secs(5);
/// The pause before a claim is retried.
const CLAIM_AGAIN: Duration = Duration::from_millis(200);
/// How long a worker that stops still gives permits to waiting tickets. After that they are left to
/// another process.
const DRAIN: Duration = Duration::from_secs(2);
/// The interval at which a worker that stops checks whether tickets still wait.
const DRAIN_CHECK: Duration = Duration::from_millis(5);

/// The settings of [`start`].
pub struct WorkerSettings {
    /// The source of messages. With `None`, the worker takes due rows only.
    pub source: Option<MessageSource>,
    pub limits: PermitLimits,
    /// Tells the state of a lane. Use [`unlimited_lanes`] if no lane fails by itself.
    pub lane: LaneStates,
    /// The provider of the rows, for metrics; `None` if they have none.
    pub provider: Option<String>,
    /// Notified by a [`lookout`](crate::lookout) when a row is due. With `None`, an idle worker
    /// looks for itself.
    pub wake: Option<Arc<Notify>>,
}

/// Starts the loops of a worker, which run until the soft stop: one pulls messages, one looks at
/// due work, and two claim rows that got permits.
pub fn start<H: Handler>(
    handler: Arc<H>,
    nats: &Nats,
    settings: WorkerSettings,
    shutdown: &Shutdown,
) {
    let worker = Arc::new(Worker {
        handler,
        nats: nats.clone(),
        queues: Queues::new(settings.limits, settings.lane),
        rows_per_queue: settings.limits.permits.div_ceil(2).min(LOOK_ROWS),
        metrics: RowMetrics::new(H::NAME, settings.provider),
        pulled: CancellationToken::new(),
        wake: settings.wake,
        shutdown: shutdown.clone(),
    });
    match settings.source {
        Some(source) => shutdown.spawn("message loop", Arc::clone(&worker).messages(source)),
        None => worker.pulled.cancel(),
    }
    shutdown.spawn(
        "claims of fresh tickets",
        Arc::clone(&worker).claims(TicketClass::Fresh),
    );
    shutdown.spawn(
        "claims of due tickets",
        Arc::clone(&worker).claims(TicketClass::Due),
    );
    shutdown.spawn("looks at due work", worker.looks());
}

/// A ticket in its queue.
struct QueuedTicket<Id> {
    id: Id,
    /// The trace context of its message; `None` for a due ticket.
    traceparent: Option<Arc<str>>,
}

struct Worker<H: Handler> {
    handler: Arc<H>,
    nats: Nats,
    queues: Arc<Queues<QueuedTicket<H::Id>>>,
    /// The most due rows of one queue in one look. More would be useless, because a queue can hold
    /// at most half of the permits at once.
    rows_per_queue: usize,
    metrics: RowMetrics,
    /// Cancelled once no more messages are pulled.
    pulled: CancellationToken,
    /// See [`WorkerSettings::wake`].
    wake: Option<Arc<Notify>>,
    shutdown: Shutdown,
}

impl<H: Handler> Worker<H> {
    /// Claims the tickets that got permits, and runs their rows. Each class has a loop of its own,
    /// because the store claims fresh rows with one lean statement and takes leases only for due
    /// ones.
    async fn claims(self: Arc<Self>, class: TicketClass) -> anyhow::Result<()> {
        let mut ended = pin!(self.ended());
        loop {
            tokio::select! {
                granted = self.queues.take_granted(class) => self.claim_and_run(class, granted).await,
                () = &mut ended => return Ok(()),
            }
        }
    }

    /// Returns once the process stops and no ticket waits any more, or [`DRAIN`] has passed.
    async fn ended(&self) {
        self.shutdown.soft().cancelled().await;
        self.pulled.cancelled().await;
        let idle = async {
            while !self.queues.is_idle() {
                tokio::time::sleep(DRAIN_CHECK).await;
            }
        };
        let _ = tokio::time::timeout(DRAIN, idle).await;
    }

    /// Claims the rows of these tickets in one statement, and starts a task for each row that needs
    /// work.
    async fn claim_and_run(
        &self,
        class: TicketClass,
        granted: Vec<GrantedTicket<QueuedTicket<H::Id>>>,
    ) {
        let claim_began = Moment::now();
        let rows: Vec<H::Id> = granted
            .iter()
            .map(|granted| granted.ticket.id.clone())
            .collect();
        let span = match class {
            TicketClass::Fresh => Self::claim_span(&granted),
            TicketClass::Due => Span::none(),
        };
        let claimed = self.claim_rows(&rows, class).instrument(span.clone()).await;
        trace::executed(&span, rows.len(), claimed.is_none());
        if class == TicketClass::Due {
            self.queues
                .due_claimed(granted.iter().map(|granted| granted.permit.key()));
        }
        let claimed = claimed.unwrap_or_default();
        self.metrics.claimed(claimed.len(), class);
        // The permits of rows that need no work are dropped, and so returned, at the end of this
        // function.
        let mut permits: HashMap<H::Id, _> = rows.into_iter().zip(granted).collect();
        for (id, claimed) in claimed {
            let Some(granted) = permits.remove(&id) else {
                continue;
            };
            let GrantedTicket {
                ticket,
                permit,
                permit_wait,
            } = granted;
            let trigger = Trigger {
                class,
                traceparent: ticket.traceparent,
                permit_wait,
                claim_began,
            };
            let in_flight = self.metrics.count_in_flight(class);
            // Boxed, because a large future would be copied several times on its way into the task.
            let running = Box::pin(Arc::clone(&self.handler).run(claimed, trigger, permit));
            let tracker = self.shutdown.tracker();
            tokio::spawn(tracker.track_future(async move {
                running.await;
                drop(in_flight);
            }));
        }
    }

    /// The span of the statement that claims rows, with the contexts of their messages.
    fn claim_span(granted: &[GrantedTicket<QueuedTicket<H::Id>>]) -> Span {
        let (operation, table) = H::CLAIM_STATEMENT;
        let span = trace::statement(operation, table);
        if !span.is_none() {
            let mut contexts: Vec<&str> = granted
                .iter()
                .filter_map(|granted| granted.ticket.traceparent.as_deref())
                .collect();
            contexts.sort_unstable();
            contexts.dedup();
            trace::gather(&span, contexts.into_iter().map(Some));
        }
        span
    }

    /// Claims rows, and retries for the length of a short outage of the database. `None` means that
    /// the rows are left to a later look or sweep, so their permits are free again.
    async fn claim_rows(
        &self,
        rows: &[H::Id],
        class: TicketClass,
    ) -> Option<Vec<(H::Id, H::Claimed)>> {
        let effect = match class {
            TicketClass::Fresh => Effect::Claim,
            TicketClass::Due => Effect::ClaimDue,
        };
        let began = Instant::now();
        loop {
            let error = match perform(effect, self.handler.claim(rows, class)).await {
                Ok(claimed) => return Some(claimed),
                Err(error) => format!("{error:#}"),
            };
            let line = outage::DATABASE.failed();
            let rows = rows.len();
            if began.elapsed() >= CLAIM_RETRIED_FOR || self.shutdown.is_stopping() {
                if let Some(others) = line {
                    tracing::error!(
                        error,
                        others,
                        rows,
                        "cannot claim rows; they are left until they are due"
                    );
                }
                return None;
            }
            if let Some(others) = line {
                tracing::error!(error, others, rows, "cannot claim rows; trying again");
            }
            tokio::time::sleep(CLAIM_AGAIN).await;
        }
    }

    /// Walks over the due work until the soft stop.
    async fn looks(self: Arc<Self>) -> anyhow::Result<()> {
        let stop = self.shutdown.soft();
        while stop.run_until_cancelled(self.until_due()).await.is_some() {
            while self.look_through(&stop).await {
                // More rows of the same queues may be due, but a queue takes no further due tickets
                // before it is drained. So the next look waits until one of them is.
                let pause = async {
                    let _ = tokio::time::timeout(DRAINED_WITHIN, self.queues.drained()).await;
                    tokio::time::sleep(LOOK_BUSY).await;
                };
                if stop.run_until_cancelled(pause).await.is_none() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Waits until a row may be due.
    async fn until_due(&self) {
        let Some(wake) = &self.wake else {
            return tokio::time::sleep(LOOK_IDLE).await;
        };
        while tokio::time::timeout(LOOK_IDLE, wake.notified())
            .await
            .is_err()
        {
            // The state of a lane may have changed since the last ticket or permit.
            self.queues.grant();
        }
    }

    /// Looks once at all lanes with due work, and queues tickets for what is due. If there are many
    /// lanes, that takes several looks. Returns whether any row was due.
    ///
    /// A look that fails counts as one that found nothing, so the next one comes no sooner. One
    /// that has no room for a single ticket returns what was found before it.
    async fn look_through(&self, stop: &CancellationToken) -> bool {
        let mut any_due = false;
        let mut after = None;
        loop {
            // The state of a lane may have changed since the last ticket or permit.
            self.queues.grant();
            let limit = self.queues.room(TicketClass::Due).min(LOOK_ROWS);
            if limit == 0 {
                return any_due;
            }
            let found = match self.look(limit, after).await {
                Ok(found) => found,
                Err(error) => {
                    if let Some(others) = outage::DATABASE.failed() {
                        tracing::error!(
                            error = format!("{error:#}"),
                            others,
                            "cannot look at due work; trying again"
                        );
                    }
                    return false;
                }
            };
            any_due |= !found.due.is_empty();
            self.offer(found.due);
            after = found.after;
            if after.is_none() {
                return any_due;
            }
            let pause = tokio::time::sleep(LOOK_BUSY);
            if stop.run_until_cancelled(pause).await.is_none() {
                return false;
            }
        }
    }

    /// Looks for at most `limit` due rows, from the lane and partner behind `after` on.
    async fn look(
        &self,
        limit: usize,
        after: Option<(String, PartnerId)>,
    ) -> anyhow::Result<LookResult<Ticket<H::Id>>> {
        let look = WorkLook {
            limit,
            rows_per_queue: self.rows_per_queue,
            after,
            skip: Vec::new(),
        };
        self.handler.due(look).await
    }

    /// Queues tickets of due rows.
    fn offer(&self, due: Vec<Ticket<H::Id>>) {
        let tickets = shuffled_within_queues(due).into_iter();
        self.queues.offer_due(tickets.map(|ticket| {
            (
                ticket.key(),
                QueuedTicket {
                    id: ticket.id,
                    traceparent: None,
                },
            )
        }));
    }
}

/// Shuffles the tickets within each queue, and keeps the order of the queues. All replicas find the
/// same rows, which are the oldest ones of each queue. In random order they rarely claim the same
/// row at the same time, so few claims find nothing.
fn shuffled_within_queues<Id>(tickets: Vec<Ticket<Id>>) -> Vec<Ticket<Id>> {
    let order: Vec<_> = tickets.iter().map(Ticket::key).collect();
    let mut queues: HashMap<_, Vec<Ticket<Id>>> = HashMap::new();
    for ticket in tickets {
        queues.entry(ticket.key()).or_default().push(ticket);
    }
    for queue in queues.values_mut() {
        queue.shuffle(&mut rand::rng());
    }
    order
        .iter()
        .filter_map(|key| queues.get_mut(key)?.pop())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_shuffled_within_each_queue_and_loses_nothing() {
        let [one, other] = std::array::from_fn(|_| PartnerId::new());
        let ticket = |id: usize| Ticket {
            id,
            lane: "a".into(),
            owner: if id.is_multiple_of(2) { one } else { other }.into(),
        };
        let shuffled = shuffled_within_queues((0..200).map(ticket).collect());
        let ids: Vec<usize> = shuffled.iter().map(|ticket| ticket.id).collect();
        assert!(
            ids.iter()
                .enumerate()
                .all(|(place, id)| place % 2 == id % 2),
            "partners take turns as before"
        );
        assert_ne!(ids, (0..200).collect::<Vec<_>>());
        let mut sorted = ids;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..200).collect::<Vec<_>>());
    }
}
