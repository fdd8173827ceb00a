//! The stage: buys placements, looks up attempts whose outcome is unknown, collects profiles.
//!
//! The state from which a placement was claimed decides the work, see [`domain::placement`]. Only a
//! claim from `accepted` records a fresh attempt, and only a fresh attempt is sent. Every outcome is one
//! settlement, recorded in a group commit before anything is published.

mod settle;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

pub use self::settle::Settlements;
use domain::{PartnerId, PlacementId, PlacementState, placement};
use pipeline::{
    Effect, GroupCommit, messaging_span,
    payload::{Said, TopupJob},
    perform,
    streams::JOBS,
    trace,
    worker::{Class, Found, Look, Permit, Stage, Ticket, Trigger},
};
use runtime::Shutdown;
use store::{
    Database,
    placements::{self, Claim, Claimed, Outcome, Page},
    vault::Vault,
};
use tokio::sync::{Semaphore, SemaphorePermit};
use tracing::{Instrument, Span, info_span};

use crate::{
    assign,
    calls::Calls,
    handshake::Handshake,
    providers::{FindAnswer, PlaceAnswer, ProviderUnit, Purchase, Trouble},
};

/// The most attempts of a placement whose purchases are sent but never arrive.
const MAX_ATTEMPTS: u32 = 50;
/// Why a purchase is parked whose units stay pending.
const LATE: &str = "bought, but its profiles do not come";
/// The longest wait that a provider can ask for.
const LONGEST_WAIT: Duration = Duration::from_mins(10);
/// The age of an order after which new work starts a trace of its own.
const ONE_TRACE: Duration = Duration::from_mins(5);
/// The most outcomes of a provider that wait to be recorded.
pub const UNRECORDED: usize = 1024;
/// How often a half-open breaker looks for a placement to probe with.
const PROBE: Duration = Duration::from_millis(500);
/// The most lanes that one look for a probe reads.
const PROBED_LANES: usize = 16;

/// The stage for one provider.
pub struct Placing {
    pub calls: Calls,
    pub database: Database,
    pub vault: Vault,
    /// Sends verdicts and readiness events; all providers share it.
    pub handshake: Arc<Handshake>,
    /// The group commit of outcomes; all providers share it.
    pub settlements: GroupCommit<Settlements>,
    /// A purchase may still arrive at the provider this long after its attempt was recorded.
    pub settle_delay: Duration,
    /// How long profiles may be missing, or an outcome unknown, before the placement is parked.
    pub park_after: Duration,
    /// Room for outcomes that wait to be recorded.
    pub unrecorded: Semaphore,
    pub lease: Duration,
    pub shutdown: Shutdown,
}

/// One of a provider's queues: purchases, or look-ups and collects. Neither waits for slots of the other.
pub struct Queue {
    pub placing: Arc<Placing>,
    pub buys: bool,
}

impl Stage for Queue {
    const NAME: &'static str = "provisioner";
    const KIND: &'static str = "job";
    const CLAIM: (&'static str, &'static str) = ("UPDATE", "placements");
    type Message = TopupJob;
    type Id = PlacementId;
    type Work = Claimed;

    fn open(&self, job: TopupJob) -> Vec<Ticket<PlacementId>> {
        match job {
            TopupJob::V1 { placement_id } => {
                vec![Ticket { id: placement_id, lane: "".into(), partner: PartnerId::from(uuid::Uuid::nil()) }]
            }
            TopupJob::V2 { placements, verdict_to: _ } => placements
                .into_iter()
                .map(|placement| Ticket {
                    id: placement.placement_id,
                    lane: placement.lane.into(),
                    partner: placement.partner_id,
                })
                .collect(),
        }
    }

    async fn defer(&self, rows: &[PlacementId]) -> anyhow::Result<()> {
        let database = &self.placing.database;
        Ok(database.run(async |connection| placements::defer(connection, rows).await).await?)
    }

    async fn due(&self, look: Look) -> anyhow::Result<Found<PlacementId>> {
        let calls = &self.placing.calls;
        if !calls.breaker.is_closed() {
            return Ok(Found { due: Vec::new(), after: None });
        }
        let skip = if self.buys { calls.limiters.full(Instant::now()) } else { Vec::new() };
        let page = Page { limit: look.limit, per_lane: look.per_lane, after: look.after, skip: &skip };
        self.placing.due(self.buys, &page).await
    }

    async fn claim(&self, rows: &[PlacementId], class: Class) -> anyhow::Result<Vec<(PlacementId, Claimed)>> {
        let works = match class {
            Class::Fresh => self.placing.claim(rows, Claim::Named).await?,
            Class::Due => {
                let leased = self.placing.lease(rows, self.placing.lease).await?;
                self.placing.claim(&leased, Claim::Overdue).await?
            }
        };
        Ok(works.into_iter().map(|work| (work.placement_id, work)).collect())
    }

    async fn run(self: Arc<Self>, work: Claimed, trigger: Trigger, permit: Permit) {
        self.placing.run(work, trigger, Some(permit)).await;
    }
}

impl Placing {
    async fn due(&self, buys: bool, page: &Page<'_>) -> anyhow::Result<Found<PlacementId>> {
        let name = &self.calls.name;
        let found = self.database.run(async |connection| placements::due(connection, name, buys, page).await).await?;
        let tickets = found.due.into_iter().map(|due| Ticket {
            id: due.placement_id,
            lane: due.lane.into(),
            partner: due.partner_id,
        });
        Ok(Found { due: tickets.collect(), after: found.after })
    }

    async fn lease(&self, rows: &[PlacementId], lease: Duration) -> anyhow::Result<Vec<PlacementId>> {
        Ok(self.database.run(async |connection| placements::lease(connection, rows, lease).await).await?)
    }

    async fn claim(&self, rows: &[PlacementId], claim: Claim) -> anyhow::Result<Vec<Claimed>> {
        let (name, lease) = (&self.calls.name, self.lease);
        let claimed =
            self.database.run(async |connection| placements::claim(connection, name, rows, claim, lease).await);
        Ok(claimed.await?)
    }

    /// Probes the provider with one placement at a time while its breaker is half open, until the soft
    /// stop. Look-ups and purchases take turns, and each purchase is of another lane.
    pub async fn probe(self: Arc<Self>) -> anyhow::Result<()> {
        let mut ticks = self.shutdown.ticks(PROBE);
        let (mut looks, mut tried) = (true, None);
        while ticks.next().await {
            if self.calls.breaker.is_half_open()
                && let Err(error) = self.try_one(&mut looks, &mut tried).await
            {
                tracing::warn!(error = format!("{error:#}"), "cannot probe the provider");
            }
        }
        Ok(())
    }

    /// Tries one probe. `looks`: a look-up comes first. `tried`: lane and partner of the last purchase.
    async fn try_one(
        self: &Arc<Self>,
        looks: &mut bool,
        tried: &mut Option<(String, PartnerId)>,
    ) -> anyhow::Result<()> {
        let mut candidate = None;
        let purchases = [(true, tried.clone()), (true, None)];
        let lookups = [(false, None)];
        let (first, second) = if *looks { (&lookups[..], &purchases[..]) } else { (&purchases[..], &lookups[..]) };
        for (buys, after) in first.iter().chain(second).cloned() {
            let page = Page { limit: PROBED_LANES, per_lane: 1, after, skip: &[] };
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
        let claim = async {
            let leased = self.lease(&[id], self.lease).await?;
            self.claim(&leased, Claim::Probe).await
        };
        for work in perform(Effect::ClaimDue, claim).await? {
            let trigger = Trigger { class: Class::Due, traceparent: None, claimed };
            let placing = Arc::clone(self);
            self.shutdown.tracker().spawn(Box::pin(async move { placing.run(work, trigger, None).await }));
        }
        Ok(())
    }

    async fn run(&self, work: Claimed, trigger: Trigger, permit: Option<Permit>) {
        self.process(&work, &trigger, permit).instrument(process_span(&work, &trigger, &self.calls.name)).await;
    }
}

/// The first attempt's early work belongs to the order's trace; later work starts one with a link to it.
fn process_span(work: &Claimed, trigger: &Trigger, provider: &str) -> Span {
    if !trace::is_recorded() {
        return Span::none();
    }
    let span = if trigger.class == Class::Fresh {
        messaging_span!(INFO, "process", "consumer", "process", JOBS;
            messaging.message.id = %work.placement_id, order.id = %work.order_id,
            placement.id = %work.placement_id, provider.name = provider, attempt = work.attempt,
        )
    } else {
        // Without a message: the row was due.
        info_span!(
            parent: None,
            "redrive placement",
            otel.kind = "internal", order.id = %work.order_id, placement.id = %work.placement_id,
            provider.name = provider, placement.state = work.was.as_str(), attempt = work.attempt,
        )
    };
    let belongs = work.attempt <= 1 && work.age < ONE_TRACE;
    trace::follow(&span, trigger.traceparent.as_deref(), work.traceparent.as_deref(), belongs);
    span
}

impl Placing {
    async fn process(&self, work: &Claimed, trigger: &Trigger, permit: Option<Permit>) {
        let lane = Arc::from(work.lane.as_str());
        match work.was {
            PlacementState::Accepted => self.buy(work, &lane, trigger, permit).await,
            PlacementState::Placing => self.look_up(work, &lane, permit).await,
            PlacementState::Placed | PlacementState::Parked => self.collect(work, permit).await,
            // Closed placements are never due.
            PlacementState::Refused | PlacementState::Failed => {}
        }
    }

    /// Returns the permit once few enough outcomes wait to be recorded.
    async fn leave(&self, permit: Option<Permit>) -> Option<SemaphorePermit<'_>> {
        let room = self.unrecorded.acquire().await.ok();
        drop(permit);
        room
    }

    /// Sends the purchase of a fresh attempt, once.
    async fn buy(&self, work: &Claimed, lane: &Arc<str>, trigger: &Trigger, permit: Option<Permit>) {
        // Messages carry no verdict address any more. Until the claim returns the ingress that may still answer, no
        // verdict is sent and readiness events wait for `answer_by`.
        let verdict_to: Option<&Arc<str>> = None;
        let purchase = Purchase { placement_id: work.placement_id, items: assign::items(&work.topups) };
        // After a stall, a look-up may already have said "not found", so this purchase must not be sent.
        let send_by = trigger.claimed + self.settle_delay / 2;
        let Some(answer) = self.calls.place(lane, &purchase, send_by).await else {
            tracing::warn!(placement.id = %work.placement_id, "attempt abandoned: it was recorded too long ago");
            return;
        };
        match answer {
            Ok(PlaceAnswer::Bought(units)) => {
                // The purchase and the profiles that are ready are recorded as one outcome.
                let units = match self.calls.collect(work.placement_id).await {
                    Ok(FindAnswer::Found(units)) => units,
                    Ok(FindAnswer::NotFound) | Err(_) => units,
                };
                let _room = self.leave(permit).await;
                let released = self.is_released(work);
                // Without NATS no event can announce the delivery, so it is due at `answer_by`.
                let announced = (released || verdict_to.is_some()) && self.handshake.is_connected();
                let age = work.age + trigger.claimed.elapsed();
                let (settled, complete) = self.settle_bought(work, age, units, announced, LATE).await;
                if announced && released {
                    self.handshake.announce(work, settled.ready);
                } else if announced {
                    self.handshake.hold(work, settled.ready, !complete);
                }
                self.handshake.hint(verdict_to, work, Said::Placed);
            }
            Ok(PlaceAnswer::Rejected { status, message }) => {
                let _room = self.leave(permit).await;
                tracing::info!(placement.id = %work.placement_id, order.id = %work.order_id, status, message, "the provider rejected the purchase");
                // Recorded before the verdict is sent: the 422 rests on what is stored.
                if self.settle(work, Outcome::Rejected { status, message }).await.moved {
                    self.handshake.hint(verdict_to, work, Said::Refused);
                }
            }
            Err(trouble) => {
                let _room = self.leave(permit).await;
                self.not_placed(work, verdict_to, trouble).await;
            }
        }
    }

    /// Settles an attempt that led neither to a purchase nor to a rejection.
    async fn not_placed(&self, work: &Claimed, verdict_to: Option<&Arc<str>>, trouble: Trouble) {
        let wait = trouble.after(LONGEST_WAIT);
        let (class, reason) = (trouble.class(), trouble.reason().to_owned());
        tracing::warn!(placement.id = %work.placement_id, class, reason, "not bought yet");
        let said = match trouble {
            Trouble::NotSent(_) => Said::NotSent,
            Trouble::Unknown(_) | Trouble::Denied(_) | Trouble::Busy { .. } => Said::UnderWay,
        };
        let outcome = match trouble {
            Trouble::Unknown(_) => Outcome::Unknown { look_in: placement::next_look(Duration::ZERO), reason },
            // Retried without limit until the provider accepts it.
            Trouble::NotSent(_) | Trouble::Denied(_) | Trouble::Busy { .. } => {
                Outcome::NotBought { retry_in: placement::next_attempt(work.attempt).max(wait), reason }
            }
        };
        self.settle(work, outcome).await;
        if verdict_to.is_some() {
            // After the release, later profiles are announced at once.
            self.handshake.hold(work, Vec::new(), true);
        }
        self.handshake.hint(verdict_to, work, said);
    }

    /// Looks up an attempt without a recorded outcome. Buys nothing.
    async fn look_up(&self, work: &Claimed, lane: &Arc<str>, permit: Option<Permit>) {
        let answer = self.calls.find(lane, work.placement_id, work.unknowns > 0).await;
        let _room = self.leave(permit).await;
        let outcome = match answer {
            Ok(FindAnswer::Found(units)) => {
                tracing::info!(placement.id = %work.placement_id, attempt = work.attempt, "a look-up found the purchase");
                return self.record_units(work, units, LATE).await;
            }
            Ok(FindAnswer::NotFound) => {
                let settled = work.attempt_age >= self.settle_delay;
                let look_in = self.settle_delay.saturating_sub(work.attempt_age).max(Duration::from_secs(1));
                if settled && work.attempt >= MAX_ATTEMPTS {
                    self.park(work, format!("not bought after {} attempts", work.attempt))
                } else {
                    Outcome::NotFound { settled, look_in }
                }
            }
            Err(trouble) => {
                let reason = trouble.reason().to_owned();
                if work.attempt_age >= self.park_after && self.is_lasting(work, &trouble) {
                    self.park(work, format!("outcome unknown: {reason}"))
                } else {
                    let look_in = placement::next_look(work.attempt_age).max(trouble.after(LONGEST_WAIT));
                    Outcome::Unknown { look_in, reason }
                }
            }
        };
        self.settle(work, outcome).await;
    }

    async fn collect(&self, work: &Claimed, permit: Option<Permit>) {
        let answer = self.calls.collect(work.placement_id).await;
        let _room = self.leave(permit).await;
        match answer {
            Ok(FindAnswer::Found(units)) => self.record_units(work, units, LATE).await,
            Ok(FindAnswer::NotFound) => {
                tracing::error!(placement.id = %work.placement_id, "the provider no longer knows the purchase");
                self.record_units(work, Vec::new(), "bought, but the provider no longer knows it").await;
            }
            Err(trouble) => {
                let age = work.placed_age.unwrap_or_default();
                if age >= self.park_after && self.is_lasting(work, &trouble) {
                    let late = format!("bought, but its profiles cannot be collected: {}", trouble.reason());
                    return self.record_units(work, Vec::new(), &late).await;
                }
                // An overdue purchase parks after a few failed calls, so they are not an hour apart.
                let parked = work.was == PlacementState::Parked;
                let overdue = if parked { self.park_after } else { Duration::MAX };
                let look_in = placement::next_collect(age, overdue).max(trouble.after(LONGEST_WAIT));
                let reason = trouble.reason().to_owned();
                tracing::warn!(placement.id = %work.placement_id, reason, "profiles not collected");
                self.settle(work, Outcome::Unknown { look_in, reason }).await;
            }
        }
    }

    /// Records the returned units and announces the ready topups. `late`: why to park if units are overdue.
    async fn record_units(&self, work: &Claimed, units: Vec<ProviderUnit>, late: &str) {
        let announced = self.is_released(work) && self.handshake.is_connected();
        let (settled, _) = self.settle_bought(work, work.age, units, announced, late).await;
        if announced {
            self.handshake.announce(work, settled.ready);
        }
    }

    /// Whether the placement is released: `answer_by` has passed, or an ingress sent its release.
    fn is_released(&self, work: &Claimed) -> bool {
        work.answered || self.handshake.is_released(work.placement_id)
    }
}
