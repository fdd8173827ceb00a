//! The loop of a stage: tickets of [messages](messages) and due rows wait in [lanes](crate::lanes) and run.
//!
//! The rows of a message are in PostgreSQL, and the sweep finds those that never finish. Only the [`Stage`]
//! publishes messages and changes rows.

mod messages;
mod stage;

use std::{
    collections::HashMap,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use domain::PartnerId;
use runtime::Shutdown;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

pub use self::stage::{Found, Look, Received, Stage, Ticket, Trigger};
use crate::{
    Nats,
    effect::{Effect, perform},
    lanes::{Class, Lanes, Limits, Slot, Tags},
    metrics::Jobs,
    streams::Source,
    trace,
};

/// The interval between two looks for due rows while none are due, and the shortest interval.
const REDRIVE: Duration = Duration::from_millis(500);
const REDRIVE_MOST: Duration = Duration::from_millis(5);
/// The most due rows of one look.
const DUE: usize = 256;
/// The time for which a claim is retried, and the delay before a retry. Then its rows are left to redrive.
const CLAIM: Duration = Duration::from_secs(5);
const CLAIM_AGAIN: Duration = Duration::from_millis(200);
/// The time for which a stop still gives slots to waiting tickets. Then they are left to redrive.
const DRAIN: Duration = Duration::from_secs(2);
/// The interval between two sweeps.
const SWEEP: Duration = Duration::from_secs(1);

/// The settings of [`start`].
pub struct Settings {
    /// The source of messages; `None`: the stage works on due rows only.
    pub source: Option<Source>,
    pub limits: Limits,
    /// The provider of the rows, for metrics; `None` if the stage has no provider.
    pub provider: Option<String>,
}

/// Runs a stage until the soft stop.
pub fn start<S: Stage>(stage: Arc<S>, nats: &Nats, settings: Settings, shutdown: &Shutdown) {
    let breakers = Arc::clone(&stage);
    let worker = Arc::new(Worker {
        stage,
        nats: nats.clone(),
        lanes: Lanes::new(settings.limits, move |lane| breakers.most(lane)),
        per_lane: settings.limits.slots.div_ceil(2).min(DUE),
        jobs: Jobs::new(S::NAME, settings.provider),
        pulled: CancellationToken::new(),
        shutdown: shutdown.clone(),
    });
    match settings.source {
        Some(source) => shutdown.spawn("message loop", Arc::clone(&worker).messages(source)),
        None => worker.pulled.cancel(),
    }
    shutdown.spawn("claims of messages", Arc::clone(&worker).claims(Class::Fresh));
    shutdown.spawn("claims of due rows", Arc::clone(&worker).claims(Class::Overdue));
    shutdown.spawn("redrive loop", worker.redrive());
}

/// Runs `sweep` once a second until the soft stop, and again at once while more rows are left. `sweep` gives due
/// rows to rows whose first lease ended without an outcome; it returns their number, and whether more are left.
pub async fn sweep<S: Stage, Sweeping: Future<Output = anyhow::Result<(u64, bool)>>>(
    shutdown: Shutdown,
    sweep: impl Fn() -> Sweeping,
) -> anyhow::Result<()> {
    let jobs = Jobs::new(S::NAME, None);
    let mut ticks = shutdown.ticks(SWEEP);
    while ticks.next().await {
        loop {
            match perform(Effect::Sweep, sweep()).await {
                Ok((late, more)) => {
                    jobs.swept(late);
                    if !more || shutdown.is_stopping() {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "cannot sweep; trying again");
                    break;
                }
            }
        }
    }
    Ok(())
}

/// The message that brought a ticket; `None` for a due row.
type Brought<S> = Option<Arc<Received<<S as Stage>::Hint>>>;
/// A ticket that waits, with its message.
type Waiting<S> = (<S as Stage>::Id, Brought<S>);

struct Worker<S: Stage> {
    stage: Arc<S>,
    nats: Nats,
    lanes: Arc<Lanes<Waiting<S>>>,
    /// The most due rows of one lane and partner in one look.
    per_lane: usize,
    jobs: Jobs,
    /// Cancelled once no more messages are pulled.
    pulled: CancellationToken,
    shutdown: Shutdown,
}

impl<S: Stage> Worker<S> {
    /// Claims the tickets that got slots, and starts the work.
    async fn claims(self: Arc<Self>, class: Class) -> anyhow::Result<()> {
        let mut ended = pin!(self.ended());
        loop {
            tokio::select! {
                granted = self.lanes.granted(class) => self.claim(class, granted).await,
                () = &mut ended => return Ok(()),
            }
        }
    }

    /// Returns once the stage stops and no ticket waits, or [`DRAIN`] has passed.
    async fn ended(&self) {
        self.shutdown.soft().cancelled().await;
        self.pulled.cancelled().await;
        let idle = async {
            while !self.lanes.is_idle() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(DRAIN, idle).await;
    }

    async fn claim(&self, class: Class, granted: Vec<(Waiting<S>, Slot)>) {
        let claimed = Instant::now();
        let overdue = class == Class::Overdue;
        let (rows, rest): (Vec<S::Id>, Vec<_>) =
            granted.into_iter().map(|((id, message), slot)| (id, (message, slot))).unzip();
        let span = if overdue { Span::none() } else { Self::claim_span(&rest) };
        let works = self.claim_rows(&rows, overdue).instrument(span.clone()).await;
        trace::executed(&span, rows.len(), works.is_none());
        let Some(works) = works else { return };
        self.jobs.claimed(works.len(), if overdue { "redrive" } else { "message" });
        let mut waiting: HashMap<S::Id, _> = rows.into_iter().zip(rest).collect();
        for work in works {
            let Some((message, slot)) = waiting.remove(S::id(&work)) else {
                continue;
            };
            let trigger = Trigger { message, claimed };
            let under_way = self.jobs.begin(overdue);
            // Boxed: a large future would be copied several times on its way into the task.
            let running = Box::pin(Arc::clone(&self.stage).run(work, trigger, slot));
            self.shutdown.tracker().spawn(async move {
                running.await;
                drop(under_way);
            });
        }
    }

    /// The span of the statement that claims rows, with the contexts of their messages.
    fn claim_span(granted: &[(Brought<S>, Slot)]) -> Span {
        let (operation, table) = S::CLAIM;
        let span = trace::statement(operation, table);
        if !span.is_none() {
            let mut contexts: Vec<&str> =
                granted.iter().filter_map(|(message, _)| message.as_ref()?.traceparent.as_deref()).collect();
            contexts.sort_unstable();
            contexts.dedup();
            trace::gather(&span, contexts.into_iter().map(Some));
        }
        span
    }

    /// Claims rows, with retries for a short outage of the database. `None`: the rows are left to redrive.
    async fn claim_rows(&self, rows: &[S::Id], overdue: bool) -> Option<Vec<S::Work>> {
        let effect = if overdue { Effect::ClaimDue } else { Effect::Claim };
        let began = Instant::now();
        loop {
            let error = match perform(effect, self.stage.claim(rows, overdue)).await {
                Ok(works) => return Some(works),
                Err(error) => format!("{error:#}"),
            };
            if began.elapsed() >= CLAIM || self.shutdown.is_stopping() {
                tracing::warn!(error, rows = rows.len(), "cannot claim; the rows are left to redrive");
                return None;
            }
            tracing::warn!(error, rows = rows.len(), "cannot claim; trying again");
            tokio::time::sleep(CLAIM_AGAIN).await;
        }
    }

    async fn redrive(self: Arc<Self>) -> anyhow::Result<()> {
        let stop = self.shutdown.soft();
        let mut after = None;
        let mut pause = REDRIVE;
        loop {
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return Ok(());
            }
            // A breaker may have closed since.
            self.lanes.look();
            self.give_back().await;
            let began_anew = after.is_none();
            let found = match self.lease_due(&mut after).await {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "cannot lease due rows; trying again");
                    after = None;
                    false
                }
            };
            pause = if !found && after.is_none() && began_anew { REDRIVE } else { REDRIVE_MOST };
            if found && after.is_none() {
                // More rows of the same lanes may be due. The next look waits until one of them is drained.
                let drained = tokio::time::timeout(REDRIVE, self.lanes.drained());
                if stop.run_until_cancelled(drained).await.is_none() {
                    return Ok(());
                }
            }
        }
    }

    /// Ends the leases of due rows that waited too long for a slot, so that any process leases them again.
    async fn give_back(&self) {
        let rows: Vec<S::Id> = self.lanes.stale().into_iter().map(|(row, _)| row).collect();
        if !rows.is_empty()
            && let Err(error) = self.stage.give_back(&rows).await
        {
            let (error, rows) = (format!("{error:#}"), rows.len());
            tracing::warn!(error, rows, "cannot give leases back; the rows are due when their leases end");
        }
    }

    /// Leases due rows whose queue has none, and offers them to the lanes; of a lane under test, only what the test
    /// needs. Returns whether any row was due.
    async fn lease_due(&self, after: &mut Option<(String, PartnerId)>) -> anyhow::Result<bool> {
        let limit = self.lanes.room(Class::Overdue).min(DUE);
        if limit == 0 {
            *after = None;
            return Ok(false);
        }
        let found = self.stage.due(Look { limit, per_lane: self.per_lane, after: after.take() }).await?;
        *after = found.after;
        let any = !found.due.is_empty();
        let tagged = found.due.into_iter().map(|row| (row.id, (row.lane, row.partner)));
        let mut of_lane: HashMap<Arc<str>, usize> = HashMap::new();
        let fits = |(_, tags): &(S::Id, Tags)| {
            let before = of_lane.entry(Arc::clone(&tags.0)).or_default();
            *before += 1;
            *before <= self.stage.most(&tags.0) && !self.lanes.waits(tags)
        };
        let mut due: HashMap<S::Id, Tags> = tagged.filter(fits).collect();
        if due.is_empty() {
            return Ok(any);
        }
        let rows: Vec<S::Id> = due.keys().cloned().collect();
        let leased = perform(Effect::LeaseDue, self.stage.lease(&rows)).await?;
        let tickets = leased.into_iter().filter_map(|row| Some((due.remove(&row)?, (row, None))));
        self.lanes.offer(Class::Overdue, tickets);
        Ok(any)
    }
}
