//! The stage: buys placements, looks up attempts whose outcome is unknown, collects profiles.
//!
//! The state from which a placement was claimed decides what is done, see [`domain::placement`]: only a
//! claim from `accepted` recorded a fresh attempt, and only that may be sent. Every outcome is one
//! settlement, recorded in a group commit before anything is published.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use domain::{PartnerId, PlacementId, PlacementState, placement};
use pipeline::{
    Effect, GroupCommit,
    lanes::Slot,
    payload::{Said, TopupJob},
    perform, trace,
    worker::{Found, Look, Names, Stage, Ticket, Trigger},
};
use runtime::Shutdown;
use store::{
    Database,
    placements::{self, Claim, Claimed, Outcome, Page},
    vault::Vault,
};
use tracing::{Instrument, Span, info_span};

use crate::{
    assign,
    calls::Calls,
    handshake::Handshake,
    metrics::Metrics,
    providers::{FindAnswer, PlaceAnswer, ProviderUnit, Purchase, Trouble},
    settle::Settlements,
};

/// The most attempts to buy a placement whose purchases never arrive, although they are sent.
const MAX_ATTEMPTS: u32 = 50;
/// The longest wait that a provider may ask for.
const LONGEST_WAIT: Duration = Duration::from_mins(10);
/// How old an order may be for work on it to be part of its trace.
const ONE_TRACE: Duration = Duration::from_mins(5);
/// How often a half-open breaker looks for a placement to try.
const PROBE: Duration = Duration::from_millis(500);
/// The most lanes that a look for a placement to try passes by.
const PROBED_LANES: usize = 16;

/// Everything one provider's placements need.
pub struct Placing {
    /// How the provider is called.
    pub calls: Calls,
    /// The database.
    pub database: Database,
    /// For profiles.
    pub vault: Vault,
    /// Verdicts, releases and readiness, which all providers share.
    pub handshake: Arc<Handshake>,
    /// The group commit of outcomes, which all providers share.
    pub settlements: GroupCommit<Settlements>,
    /// How long after its attempt was recorded a purchase may still arrive at the provider.
    pub settle: Duration,
    /// Profiles that haven't come after this time, and purchases that can't be settled, are parked.
    pub park_after: Duration,
    /// How long a claimed placement is left to this process.
    pub lease: Duration,
    /// Counts topups.
    pub metrics: Metrics,
    /// Ends retries when the process stops.
    pub shutdown: Shutdown,
}

/// One of a provider's two queues: purchases, or look-ups and collects. Each has slots of its own, so
/// that an unknown outcome never waits behind purchases.
pub struct Queue {
    /// The provider's placements.
    pub placing: Arc<Placing>,
    /// This is the queue of purchases.
    pub buys: bool,
    /// How long a due row waits for its slot at most; its lease is that much longer.
    pub wait: Duration,
}

impl Stage for Queue {
    const NAMES: Names = Names {
        stage: "provisioner",
        kind: "job",
        claims: ("UPDATE", "placements"),
        claim: Effect::ClaimJobs,
        lease_due: Effect::LeaseDueJobs,
        claim_due: Effect::ClaimDueJobs,
        acknowledge: Effect::AckJob,
        bury: Effect::BuryJob,
    };
    type Message = TopupJob;
    type Id = PlacementId;
    /// The ingress that waits for verdicts.
    type Hint = Option<Arc<str>>;
    type Work = Claimed;

    fn open(&self, job: TopupJob) -> (Vec<Ticket<PlacementId>>, Self::Hint) {
        match job {
            TopupJob::V1 { placement_id } => {
                let ticket = Ticket {
                    id: placement_id,
                    lane: "".into(),
                    partner: PartnerId::from(uuid::Uuid::nil()),
                };
                (vec![ticket], None)
            }
            TopupJob::V2 {
                placements,
                verdict_to,
            } => {
                let tickets = placements.into_iter().map(|placement| Ticket {
                    id: placement.placement_id,
                    lane: placement.lane.into(),
                    partner: placement.partner_id,
                });
                (tickets.collect(), verdict_to.map(Arc::from))
            }
        }
    }

    fn most(&self, lane: &str) -> usize {
        let calls = &self.placing.calls;
        match (calls.breaker.is_closed(), self.buys) {
            (false, _) => 0,
            (true, false) => usize::MAX,
            (true, true) => calls.lanes.most(lane),
        }
    }

    async fn due(&self, look: Look) -> anyhow::Result<Found<PlacementId>> {
        let calls = &self.placing.calls;
        if !calls.breaker.is_closed() {
            return Ok(Found {
                due: Vec::new(),
                after: None,
            });
        }
        let skip = if self.buys { calls.lanes.open() } else { Vec::new() };
        let page = Page {
            limit: look.limit,
            per_lane: look.per_lane,
            after: look.after,
            skip: &skip,
        };
        self.placing.due(self.buys, &page).await
    }

    async fn lease(&self, rows: &[PlacementId]) -> anyhow::Result<Vec<PlacementId>> {
        self.placing.lease(rows, self.placing.lease + self.wait).await
    }

    async fn claim(&self, rows: &[PlacementId], overdue: bool) -> anyhow::Result<Vec<Claimed>> {
        let claim = if overdue { Claim::Overdue } else { Claim::Named };
        self.placing.claim(rows, claim).await
    }

    fn id(work: &Claimed) -> &PlacementId {
        &work.placement_id
    }

    async fn run(self: Arc<Self>, work: Claimed, trigger: Trigger<Self::Hint>, slot: Slot) {
        self.placing.run(work, trigger, Some(slot)).await;
    }
}

impl Placing {
    async fn due(&self, buys: bool, page: &Page<'_>) -> anyhow::Result<Found<PlacementId>> {
        let name = &self.calls.name;
        let found = self
            .database
            .run(async |connection| placements::due(connection, name, buys, page).await)
            .await?;
        let tickets = found.due.into_iter().map(|due| Ticket {
            id: due.placement_id,
            lane: due.lane.into(),
            partner: due.partner_id,
        });
        Ok(Found {
            due: tickets.collect(),
            after: found.after,
        })
    }

    async fn lease(&self, rows: &[PlacementId], lease: Duration) -> anyhow::Result<Vec<PlacementId>> {
        let leased = self
            .database
            .run(async |connection| placements::lease(connection, rows, lease).await);
        Ok(leased.await?)
    }

    async fn claim(&self, rows: &[PlacementId], claim: Claim) -> anyhow::Result<Vec<Claimed>> {
        let (name, lease) = (&self.calls.name, self.lease);
        let claimed = self
            .database
            .run(async |connection| placements::claim(connection, name, rows, claim, lease).await);
        Ok(claimed.await?)
    }

    /// While the breaker is half open, tries the provider with one placement at a time, until the soft
    /// stop: a look-up if one is due, then a purchase, each time of another lane.
    pub async fn probe(self: Arc<Self>) -> anyhow::Result<()> {
        let mut ticks = self.shutdown.ticks(PROBE);
        let (mut looks, mut tried) = (true, None);
        while ticks.next().await {
            if self.calls.breaker.is_half_open()
                && let Err(error) = self.try_one(&mut looks, &mut tried).await
            {
                tracing::warn!(error = format!("{error:#}"), "cannot try the provider");
            }
        }
        Ok(())
    }

    /// `looks`: a look-up is tried rather than a purchase. `tried`: lane and partner of the purchase that was
    /// tried last.
    async fn try_one(
        self: &Arc<Self>,
        looks: &mut bool,
        tried: &mut Option<(String, PartnerId)>,
    ) -> anyhow::Result<()> {
        let mut candidate = None;
        let purchases = [(true, tried.clone()), (true, None)];
        let lookups = [(false, None)];
        let (first, second) = if *looks {
            (&lookups[..], &purchases[..])
        } else {
            (&purchases[..], &lookups[..])
        };
        for (buys, after) in first.iter().chain(second).cloned() {
            let page = Page {
                limit: PROBED_LANES,
                per_lane: 1,
                after,
                skip: &[],
            };
            candidate = self.due(buys, &page).await?.due.into_iter().next();
            if let Some(found) = candidate.as_ref().filter(|_| buys) {
                *tried = Some((found.lane.to_string(), found.partner));
            }
            if candidate.is_some() {
                *looks = buys;
                break;
            }
        }
        let Some(Ticket { id, .. }) = candidate else {
            return Ok(());
        };
        if !self.calls.breaker.probe(self.lease).await? {
            return Ok(());
        }
        let claimed = Instant::now();
        let leased = perform(Effect::LeaseDueJobs, self.lease(&[id], self.lease)).await?;
        for work in perform(Effect::ClaimDueJobs, self.claim(&leased, Claim::Probe)).await? {
            let trigger = Trigger {
                message: None,
                claimed,
            };
            let placing = Arc::clone(self);
            let running = Box::pin(async move { placing.run(work, trigger, None).await });
            self.shutdown.tracker().spawn(running);
        }
        Ok(())
    }

    async fn run(&self, work: Claimed, trigger: Trigger<Option<Arc<str>>>, slot: Option<Slot>) {
        let span = process_span(&work, &trigger, &self.calls.name);
        self.process(&work, &trigger, slot).instrument(span).await;
    }
}

/// The first attempt, and the looks for its profiles that follow soon, belong to the order's trace. Later
/// work is a trace of its own with a link to it.
fn process_span(work: &Claimed, trigger: &Trigger<Option<Arc<str>>>, provider: &str) -> Span {
    if !trace::is_recorded() {
        return Span::none();
    }
    let span = if trigger.message.is_some() {
        info_span!(
            parent: None,
            "process TOPUP_JOBS",
            otel.kind = "consumer",
            messaging.system = "nats",
            messaging.operation.name = "process",
            messaging.operation.type = "process",
            messaging.destination.name = "TOPUP_JOBS",
            messaging.message.id = %work.placement_id,
            order.id = %work.order_id,
            placement.id = %work.placement_id,
            provider.name = provider,
            attempt = work.attempt,
        )
    } else {
        info_span!(
            parent: None,
            "redrive placement",
            otel.kind = "internal",
            order.id = %work.order_id,
            placement.id = %work.placement_id,
            provider.name = provider,
            placement.state = work.was.as_str(),
            attempt = work.attempt,
        )
    };
    let belongs = work.attempt <= 1 && work.age < ONE_TRACE;
    let message = trigger
        .message
        .as_ref()
        .and_then(|message| message.traceparent.as_deref());
    trace::follow(&span, message, work.traceparent.as_deref(), belongs);
    span
}

impl Placing {
    async fn process(&self, work: &Claimed, trigger: &Trigger<Option<Arc<str>>>, slot: Option<Slot>) {
        let lane = Arc::from(work.lane.as_str());
        match work.was {
            PlacementState::Accepted => self.buy(work, &lane, trigger, slot).await,
            PlacementState::Placing => self.look_up(work, &lane, slot).await,
            PlacementState::Placed | PlacementState::Parked => self.collect(work, slot).await,
            // Closed: never due.
            PlacementState::Refused | PlacementState::Failed => {}
        }
    }

    /// Sends the purchase of a fresh attempt, once.
    async fn buy(
        &self,
        work: &Claimed,
        lane: &Arc<str>,
        trigger: &Trigger<Option<Arc<str>>>,
        slot: Option<Slot>,
    ) {
        let message = trigger.message.as_deref();
        let verdict_to = message.and_then(|message| message.hint.as_ref());
        // A retry, or a row that was due, says nothing about the queue of jobs.
        let is_queued = message.is_some() && work.attempt == 1;
        let queued = if is_queued { work.age } else { Duration::ZERO };
        let purchase = Purchase {
            placement_id: work.placement_id,
            items: assign::items(&work.topups),
        };
        // A process that was stalled for long must not send what a look-up may already have missed.
        let send_by = trigger.claimed + self.settle / 2;
        let Some(answer) = self.calls.place(lane, &purchase, queued, send_by).await else {
            tracing::warn!(placement.id = %work.placement_id, "abandoned an attempt that was recorded too long ago");
            return;
        };
        match answer {
            Ok(PlaceAnswer::Bought(units)) => {
                // One recorded outcome for the purchase and the profiles that are there at once.
                let units = match self.calls.collect(work.placement_id).await {
                    Ok(FindAnswer::Found(units)) => units,
                    Ok(FindAnswer::NotFound) | Err(_) => units,
                };
                drop(slot);
                // A job without an address was published after the answer.
                let released = (message.is_some() && verdict_to.is_none()) || self.is_released(work);
                // What can't be published is due at `answer_by` instead.
                let announced = (released || verdict_to.is_some()) && self.handshake.is_connected();
                let age = work.age + trigger.claimed.elapsed();
                let (settled, complete) = self.settle_bought(work, age, units, announced).await;
                if announced && released {
                    self.handshake.announce(work, settled.ready);
                } else if announced {
                    self.handshake.hold(work, settled.ready, !complete);
                }
                self.handshake.hint(verdict_to, work, Said::Placed);
            }
            Ok(PlaceAnswer::Rejected { status, message }) => {
                drop(slot);
                tracing::info!(placement.id = %work.placement_id, order.id = %work.order_id, status, message, "the provider refused");
                // Recorded before ingress hears of it: the 422 rests on what is stored.
                if self
                    .settle(work, Outcome::Rejected { status, message })
                    .await
                    .moved
                {
                    self.handshake.hint(verdict_to, work, Said::Refused);
                }
            }
            Err(trouble) => {
                drop(slot);
                self.not_placed(work, verdict_to, trouble).await;
            }
        }
    }

    /// The provider did not answer the purchase itself.
    async fn not_placed(&self, work: &Claimed, verdict_to: Option<&Arc<str>>, trouble: Trouble) {
        let wait = trouble.after(LONGEST_WAIT);
        let (class, reason) = (trouble.class(), trouble.reason().to_owned());
        tracing::warn!(placement.id = %work.placement_id, class, reason, "not bought for now");
        let said = match trouble {
            Trouble::NotSent(_) => Said::NotSent,
            Trouble::Unknown(_) | Trouble::Denied(_) | Trouble::Busy { .. } => Said::UnderWay,
        };
        let outcome = match trouble {
            Trouble::Unknown(_) => Outcome::Unknown {
                look_in: placement::next_look(Duration::ZERO),
                reason,
            },
            // However often: it stays queued until the provider takes it.
            Trouble::NotSent(_) | Trouble::Denied(_) | Trouble::Busy { .. } => Outcome::NotBought {
                retry_in: placement::next_attempt(work.attempt).max(wait),
                reason,
            },
        };
        self.settle(work, outcome).await;
        if verdict_to.is_some() {
            // Once it is released, profiles that come later are announced at once.
            self.handshake.hold(work, Vec::new(), true);
        }
        self.handshake.hint(verdict_to, work, said);
    }

    /// Looks an attempt up whose outcome was never recorded. Buys nothing.
    async fn look_up(&self, work: &Claimed, lane: &Arc<str>, slot: Option<Slot>) {
        let answer = self.calls.find(lane, work.placement_id).await;
        drop(slot);
        let outcome = match answer {
            Ok(FindAnswer::Found(units)) => {
                tracing::info!(placement.id = %work.placement_id, attempt = work.attempt, "a look-up found the purchase");
                return self.record_units(work, units).await;
            }
            Ok(FindAnswer::NotFound) => {
                let settled = work.attempt_age >= self.settle;
                let look_in = self
                    .settle
                    .saturating_sub(work.attempt_age)
                    .max(Duration::from_secs(1));
                if settled && work.attempt >= MAX_ATTEMPTS {
                    self.park(work, format!("not bought after {} attempts", work.attempt))
                } else {
                    Outcome::NotFound { settled, look_in }
                }
            }
            Err(trouble) => {
                let reason = trouble.reason().to_owned();
                if work.attempt_age >= self.park_after && self.is_lasting(work, &trouble) {
                    self.park(
                        work,
                        format!("look-ups do not show whether it was bought: {reason}"),
                    )
                } else {
                    let look_in = placement::next_look(work.attempt_age).max(trouble.after(LONGEST_WAIT));
                    Outcome::Unknown { look_in, reason }
                }
            }
        };
        self.settle(work, outcome).await;
    }

    /// Asks for the profiles that are missing.
    async fn collect(&self, work: &Claimed, slot: Option<Slot>) {
        let answer = self.calls.collect(work.placement_id).await;
        drop(slot);
        match answer {
            Ok(FindAnswer::Found(units)) => self.record_units(work, units).await,
            Ok(FindAnswer::NotFound) => {
                tracing::error!(placement.id = %work.placement_id, "the provider does not know what it had");
                self.record_units(work, Vec::new()).await;
            }
            Err(trouble) => {
                let age = work.placed_age.unwrap_or_default();
                if age >= self.park_after && self.is_lasting(work, &trouble) {
                    return self.record_units(work, Vec::new()).await;
                }
                let look_in = placement::next_collect(age, self.park_after).max(trouble.after(LONGEST_WAIT));
                let reason = trouble.reason().to_owned();
                tracing::warn!(placement.id = %work.placement_id, reason, "profiles were not collected");
                self.settle(work, Outcome::Unknown { look_in, reason }).await;
            }
        }
    }

    /// Records what a look brought, and announces what became ready.
    async fn record_units(&self, work: &Claimed, units: Vec<ProviderUnit>) {
        let announced = self.is_released(work) && self.handshake.is_connected();
        let (settled, _) = self.settle_bought(work, work.age, units, announced).await;
        if announced {
            self.handshake.announce(work, settled.ready);
        }
    }

    /// Whether webhooks may go out: `answer_by` has passed, or an ingress released the placement.
    fn is_released(&self, work: &Claimed) -> bool {
        work.answered || self.handshake.is_released(work.placement_id)
    }
}
