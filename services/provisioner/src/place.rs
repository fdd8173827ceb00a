//! The stage: buys placements, looks up attempts whose outcome is unknown, collects profiles.
//!
//! The state from which a placement was claimed decides the work, see [`domain::placement`]. Only a claim from
//! `accepted` records a new attempt, and only the claim that recorded an attempt sends it. Every outcome is one
//! settlement. It is recorded in a group commit, and only then are its readiness events sent, and any verdict that may
//! lead to a refusal. Only the verdict `placed` leaves before the record.

mod settle;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

pub use self::settle::Settlements;
use domain::{PartnerId, PlacementId, PlacementState, placement};
use pipeline::{
    Effect, GroupCommit, messaging_span,
    payload::{JobPlacement, TopupJob, Verdict},
    perform,
    streams::JOBS,
    trace,
    worker::{Class, Found, Look, Permit, Stage, Ticket, Trigger},
};
use runtime::Shutdown;
use store::{
    Database,
    placements::{self, Claim, Claimed, Outcome},
    vault::Vault,
    work::Page,
};
use tokio::sync::{Semaphore, SemaphorePermit};
use tracing::{Instrument, Span, info_span};

use crate::{
    assign,
    calls::Calls,
    providers::{FindAnswer, ProviderUnit, Purchase, PurchaseAnswer, Trouble},
    reporter::Reporter,
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

/// Everything that the two stages of one provider share: its calls, its room for records, its settings.
pub struct ProviderWork {
    pub calls: Calls,
    pub database: Database,
    pub vault: Vault,
    /// Sends verdicts and readiness events; all providers share it.
    pub reporter: Arc<Reporter>,
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

/// A provider has two stages with permits of their own, so that neither takes the other's: purchases, each with its
/// first collect (`buys`), and look-ups with later collects. Jobs reach only the one that buys.
pub struct ProviderStage {
    pub work: Arc<ProviderWork>,
    pub buys: bool,
}

impl Stage for ProviderStage {
    const NAME: &'static str = "provisioner";
    const KIND: &'static str = "job";
    const CLAIM: (&'static str, &'static str) = ("UPDATE", "placements");
    type Message = TopupJob;
    type Id = PlacementId;
    type Work = Claimed;

    fn tickets_of(&self, job: TopupJob) -> Vec<Ticket<PlacementId>> {
        let TopupJob::V1 { placements } = job;
        let ticket = |placement: JobPlacement| Ticket {
            id: placement.placement_id,
            lane: placement.lane.into(),
            partner: placement.partner_id,
        };
        placements.into_iter().map(ticket).collect()
    }

    async fn defer(&self, rows: &[PlacementId]) -> anyhow::Result<()> {
        let deferred = self.work.database.run(async |connection| placements::defer(connection, rows).await).await?;
        self.work.reporter.deferred(&deferred);
        Ok(())
    }

    async fn due(&self, look: Look) -> anyhow::Result<Found<PlacementId>> {
        let calls = &self.work.calls;
        if !calls.breaker.is_closed() {
            return Ok(Found { due: Vec::new(), after: None });
        }
        let skip = if self.buys { calls.limiters.stopped(Instant::now()) } else { Vec::new() };
        let page = Page { limit: look.limit, per_lane: look.per_lane, after: look.after, skip: &skip };
        self.work.due(self.buys, &page).await
    }

    async fn claim(&self, rows: &[PlacementId], class: Class) -> anyhow::Result<Vec<(PlacementId, Claimed)>> {
        let claim = match class {
            Class::Fresh => Claim::Fresh,
            Class::Due => Claim::Due,
        };
        let claimed = self.work.claim(rows, claim).await?;
        Ok(claimed.into_iter().map(|claimed| (claimed.placement_id, claimed)).collect())
    }

    async fn run(self: Arc<Self>, claimed: Claimed, trigger: Trigger, permit: Permit) {
        self.work.run(claimed, trigger, Some(permit)).await;
    }
}

/// What a probe of the provider tried last.
#[derive(Default)]
struct Probes {
    /// The last probe was a purchase, so the next one tries a look-up first.
    purchased: bool,
    /// The lane and partner of the last purchase, after which the next one begins.
    after: Option<(String, PartnerId)>,
}

impl ProviderWork {
    async fn due(&self, purchases: bool, page: &Page<'_>) -> anyhow::Result<Found<PlacementId>> {
        let name = &self.calls.name;
        let found =
            self.database.run(async |connection| placements::due(connection, name, purchases, page).await).await?;
        let tickets =
            found.due.into_iter().map(|due| Ticket { id: due.id, lane: due.lane.into(), partner: due.partner_id });
        Ok(Found { due: tickets.collect(), after: found.after })
    }

    async fn claim(&self, rows: &[PlacementId], claim: Claim) -> anyhow::Result<Vec<Claimed>> {
        let name = &self.calls.name;
        let lease = self.lease;
        let claimed =
            self.database.run(async |connection| placements::claim(connection, name, rows, claim, lease).await);
        Ok(claimed.await?)
    }

    /// Probes the provider with one placement at a time while its breaker is half open, until the soft stop. Look-ups
    /// and purchases take turns, and each purchase is of another lane, so that one bad option keeps no breaker open.
    pub async fn probe(self: Arc<Self>) -> anyhow::Result<()> {
        let mut ticks = self.shutdown.ticks(PROBE);
        let mut probes = Probes { purchased: true, after: None };
        while ticks.next().await {
            if self.calls.breaker.is_half_open()
                && let Err(error) = self.probe_with_one(&mut probes).await
            {
                tracing::warn!(error = format!("{error:#}"), "cannot probe the provider");
            }
        }
        Ok(())
    }

    async fn probe_with_one(self: &Arc<Self>, probes: &mut Probes) -> anyhow::Result<()> {
        let order = if probes.purchased { [false, true] } else { [true, false] };
        let mut candidate = None;
        for purchase in order {
            candidate = self.candidate(purchase, probes).await?;
            if candidate.is_some() {
                probes.purchased = purchase;
                break;
            }
        }
        let Some(candidate) = candidate else { return Ok(()) };
        if !self.calls.breaker.probe(self.lease).await? {
            return Ok(());
        }
        let claim_began = Instant::now();
        for claimed in perform(Effect::ClaimDue, self.claim(&[candidate], Claim::Probe)).await? {
            let trigger = Trigger { class: Class::Due, traceparent: None, claim_began };
            let shared = Arc::clone(self);
            self.shutdown.tracker().spawn(Box::pin(async move { shared.run(claimed, trigger, None).await }));
        }
        Ok(())
    }

    /// A due placement for a probe: the next lane's purchase, or any look-up.
    async fn candidate(&self, purchase: bool, probes: &mut Probes) -> anyhow::Result<Option<PlacementId>> {
        let page = |after| Page { limit: PROBED_LANES, per_lane: 1, after, skip: &[] };
        if !purchase {
            let found = self.due(false, &page(None)).await?;
            return Ok(found.due.first().map(|ticket| ticket.id));
        }
        // After the last lane the first one follows.
        for after in [probes.after.clone(), None] {
            if let Some(ticket) = self.due(true, &page(after)).await?.due.into_iter().next() {
                probes.after = Some((ticket.lane.to_string(), ticket.partner));
                return Ok(Some(ticket.id));
            }
        }
        Ok(None)
    }

    async fn run(&self, claimed: Claimed, trigger: Trigger, permit: Option<Permit>) {
        self.process(&claimed, &trigger, permit).instrument(process_span(&claimed, &trigger, &self.calls.name)).await;
    }
}

/// The first attempt's early work belongs to the order's trace; later work starts one with a link to it.
fn process_span(claimed: &Claimed, trigger: &Trigger, provider: &str) -> Span {
    if !trace::is_recorded() {
        return Span::none();
    }
    let span = if trigger.class == Class::Fresh {
        messaging_span!(INFO, "process", "consumer", "process", JOBS;
            messaging.message.id = %claimed.placement_id, order.id = %claimed.order_id,
            placement.id = %claimed.placement_id, provider.name = provider, attempt = claimed.attempt,
        )
    } else {
        // Without a message: the row was due.
        info_span!(
            parent: None,
            "due placement",
            otel.kind = "internal", order.id = %claimed.order_id, placement.id = %claimed.placement_id,
            provider.name = provider, placement.state = claimed.was.as_str(), attempt = claimed.attempt,
        )
    };
    let belongs = claimed.attempt <= 1 && claimed.age < ONE_TRACE;
    trace::follow(&span, trigger.traceparent.as_deref(), claimed.traceparent.as_deref(), belongs);
    span
}

impl ProviderWork {
    async fn process(&self, claimed: &Claimed, trigger: &Trigger, permit: Option<Permit>) {
        let lane = Arc::from(claimed.lane.as_str());
        match claimed.was {
            PlacementState::Accepted => self.buy(claimed, &lane, trigger, permit).await,
            PlacementState::Placing => self.look_up(claimed, &lane, trigger, permit).await,
            PlacementState::Placed | PlacementState::Parked => self.collect(claimed, trigger, permit).await,
            // Closed placements are never due.
            PlacementState::Refused | PlacementState::Failed => {}
        }
    }

    /// Waits for room among the outcomes that are not recorded yet, then releases the permit. Returns that room.
    ///
    /// The provider's work is done, so a slow database must not keep its permits from other purchases. The room bounds
    /// how many outcomes a crash leaves to look-ups; while there is none, permits are kept and buying stops.
    async fn release_once_recordable(&self, permit: Option<Permit>) -> Option<SemaphorePermit<'_>> {
        let room = self.unrecorded.acquire().await.ok();
        drop(permit);
        room
    }

    /// Sends the purchase of the attempt that this claim recorded, once.
    async fn buy(&self, claimed: &Claimed, lane: &Arc<str>, trigger: &Trigger, permit: Option<Permit>) {
        let purchase = Purchase { placement_id: claimed.placement_id, items: assign::items(&claimed.topups) };
        // After a stall, a look-up may already have said "not found", so this purchase must not be sent. Sent within the
        // first half of the settling delay, the call also ends within that delay, because `SETTLE` is more than twice
        // `PROVIDER_TIMEOUT`.
        let send_by = trigger.claim_began + self.settle_delay / 2;
        let Some(answer) = self.calls.purchase(lane, &purchase, send_by).await else {
            tracing::warn!(placement.id = %claimed.placement_id, "attempt abandoned: it was recorded too long ago");
            return;
        };
        match answer {
            Ok(PurchaseAnswer::Bought(units)) => {
                // The partner waits neither for the profiles nor for the record, because a 201 rests on the stored
                // order alone.
                self.reporter.verdict(claimed, Verdict::Placed);
                // The response to a purchase usually lists the units without their profiles, so they are asked for at
                // once. If that fails, the units are recorded without profiles, and a later collect brings those.
                // Purchase and profiles are one outcome, so the ordinary order costs one record.
                let units = match self.calls.collect(claimed.placement_id).await {
                    Ok(FindAnswer::Found(units)) => units,
                    Ok(FindAnswer::NotFound) | Err(_) => units,
                };
                let _room = self.release_once_recordable(permit).await;
                self.record_units(claimed, trigger, units, LATE).await;
            }
            Ok(PurchaseAnswer::Rejected { status, message }) => {
                let _room = self.release_once_recordable(permit).await;
                tracing::info!(placement.id = %claimed.placement_id, order.id = %claimed.order_id, status, message, "the provider rejected the purchase");
                // Recorded before the verdict is sent: the 422 rests on what is stored.
                if self.settle(claimed, Outcome::Rejected { status, message }).await.moved {
                    self.reporter.verdict(claimed, Verdict::Rejected);
                }
            }
            Err(trouble) => {
                let _room = self.release_once_recordable(permit).await;
                self.settle_without_purchase(claimed, trouble).await;
            }
        }
    }

    /// Settles an attempt for which neither a purchase nor a rejection is confirmed.
    async fn settle_without_purchase(&self, claimed: &Claimed, trouble: Trouble) {
        let wait = trouble.after(LONGEST_WAIT);
        let (class, reason) = (trouble.class(), trouble.reason().to_owned());
        tracing::warn!(placement.id = %claimed.placement_id, class, reason, "no purchase is confirmed");
        let verdict = match trouble {
            Trouble::NotSent(_) => Verdict::NotSent,
            Trouble::Unknown(_) | Trouble::Denied(_) | Trouble::Busy { .. } => Verdict::UnderWay,
        };
        let outcome = match trouble {
            Trouble::Unknown(_) => Outcome::Unknown { look_in: placement::next_look(Duration::ZERO), reason },
            // Retried without limit until the provider accepts it.
            Trouble::NotSent(_) | Trouble::Denied(_) | Trouble::Busy { .. } => {
                Outcome::NotBought { retry_in: placement::next_attempt(claimed.attempt).max(wait), reason }
            }
        };
        // Recorded before the verdict is sent: ingress may answer 422 only if the record says that nothing was sent.
        let settled = self.settle(claimed, outcome).await;
        if settled.moved || verdict == Verdict::UnderWay {
            self.reporter.verdict(claimed, verdict);
        }
    }

    /// Looks up an attempt without a recorded outcome. Buys nothing.
    async fn look_up(&self, claimed: &Claimed, lane: &Arc<str>, trigger: &Trigger, permit: Option<Permit>) {
        let answer = self.calls.find(lane, claimed.placement_id, claimed.unknowns > 0).await;
        let _room = self.release_once_recordable(permit).await;
        let outcome = match answer {
            Ok(FindAnswer::Found(units)) => {
                tracing::info!(placement.id = %claimed.placement_id, attempt = claimed.attempt, "a look-up found the purchase");
                return self.record_units(claimed, trigger, units, LATE).await;
            }
            Ok(FindAnswer::NotFound) => {
                let settled = claimed.attempt_age >= self.settle_delay;
                let look_in = self.settle_delay.saturating_sub(claimed.attempt_age).max(Duration::from_secs(1));
                if settled && claimed.attempt >= MAX_ATTEMPTS {
                    self.park(claimed, format!("not bought after {} attempts", claimed.attempt))
                } else {
                    Outcome::NotFound { settled, look_in }
                }
            }
            Err(trouble) => {
                let reason = trouble.reason().to_owned();
                if claimed.attempt_age >= self.park_after && self.is_lasting(claimed, &trouble) {
                    self.park(claimed, format!("outcome unknown: {reason}"))
                } else {
                    let look_in = placement::next_look(claimed.attempt_age).max(trouble.after(LONGEST_WAIT));
                    Outcome::Unknown { look_in, reason }
                }
            }
        };
        self.settle(claimed, outcome).await;
    }

    async fn collect(&self, claimed: &Claimed, trigger: &Trigger, permit: Option<Permit>) {
        let answer = self.calls.collect(claimed.placement_id).await;
        let _room = self.release_once_recordable(permit).await;
        match answer {
            Ok(FindAnswer::Found(units)) => self.record_units(claimed, trigger, units, LATE).await,
            Ok(FindAnswer::NotFound) => {
                tracing::error!(placement.id = %claimed.placement_id, "the provider no longer knows the purchase");
                self.record_units(claimed, trigger, Vec::new(), "bought, but the provider no longer knows it").await;
            }
            Err(trouble) => {
                let since_purchase = claimed.placed_age.unwrap_or_default();
                if since_purchase >= self.park_after && self.is_lasting(claimed, &trouble) {
                    let late = format!("bought, but its profiles cannot be collected: {}", trouble.reason());
                    return self.record_units(claimed, trigger, Vec::new(), &late).await;
                }
                // An overdue purchase parks after a few failed calls, so they are not an hour apart.
                let parked = claimed.was == PlacementState::Parked;
                let overdue = if parked { self.park_after } else { Duration::MAX };
                let look_in = placement::next_collect(since_purchase, overdue).max(trouble.after(LONGEST_WAIT));
                let reason = trouble.reason().to_owned();
                tracing::warn!(placement.id = %claimed.placement_id, reason, "profiles not collected");
                self.settle(claimed, Outcome::Unknown { look_in, reason }).await;
            }
        }
    }

    /// Records the units that the provider returned, and announces those that became ready. `late` says why the
    /// placement is parked if units are overdue.
    async fn record_units(&self, claimed: &Claimed, trigger: &Trigger, units: Vec<ProviderUnit>, late: &str) {
        // The calls have taken time since the claim read the age.
        let since_order = claimed.age + trigger.claim_began.elapsed();
        // Without NATS no event can announce the deliveries, so they get due rows, due at `answer_by`.
        let announced = self.reporter.is_connected();
        let settled = self.settle_bought(claimed, since_order, units, announced, late).await;
        if announced {
            self.reporter.ready(claimed, settled.ready);
        }
    }
}
