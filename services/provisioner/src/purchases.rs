//! What the provisioner does with placements: it buys them, looks up attempts whose outcome is
//! unknown, and collects profiles.
//!
//! Two of the three workers ([`pipeline::worker`]) of each provider call it with claimed
//! placements; the third one has [`crate::after_delivery`]. What it does with a placement is its
//! [`PlacementTask`], which follows from the state from which it was claimed:
//!
//! - `Buy`: the claim has recorded a new attempt, so this process sends the purchase, once.
//! - `LookUp`: another claim recorded the attempt. This process only looks it up. Where a look-up
//!   proves no absence, it repeats the request of the attempt, if it is proved for our account that
//!   an identical request is the same purchase.
//! - `LookAgain`: as before, for a parked one of which an operator wants to know more. It repeats
//!   nothing.
//! - `Collect`: it collects the profiles of what is bought.
//!
//! Guarantee: nothing is bought without an attempt that was recorded first, and only the claim that
//! recorded an attempt sends it, apart from such a repeat. Each outcome is recorded as one
//! settlement, which is written by group commit.
//!
//! While the breaker of the provider is half open, `probe` claims one placement at a time and runs
//! it without a permit, because an open breaker gives none.
//!
//! The order of the messages matters, too. Readiness events are sent only after the settlement is
//! committed, because the notifier reads the profiles at once. The verdicts *rejected* and *not
//! sent* are sent only after the commit, because they make ingress ask PostgreSQL whether it may
//! answer 422, and the answer depends on what is recorded. The verdicts *placed* and *under way*
//! need no record, because both lead to a 201, which rests on the stored order alone. But *placed*
//! must not be sent before the claim is committed with a flush: it tells ingress that the order,
//! which is before the claim in the log, is on disk.

mod again;
mod probe;
mod settle;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

pub use self::settle::Settlements;
use domain::{PlacementId, PlacementState, Reason, placement, reason::ReasonCode};
use pg::{Database, PgConnection};
use pipeline::{
    GroupCommit, messaging_span,
    payload::{JobMessage, JobPlacement, Verdict},
    streams::JOBS,
    trace,
    worker::{Handler, Permit, Ticket, TicketClass, Trigger},
};
use runtime::Shutdown;
use store::{
    history,
    placements::{self, Activity, AttemptOutcome, ClaimedPlacement, PlacementClaim, PlacementTask},
    work::{LookResult, WorkLook},
};
use tokio::sync::{Semaphore, SemaphorePermit};
use tracing::{Instrument, Span, info_span};
use vault::Vault;

use crate::{
    assign,
    calls::{Calls, Wanted},
    proof::Proof,
    providers::{
        BoughtUnits, LookUp, LookUpRequest, LookUpResponse, ProviderId, Purchase, PurchaseResponse,
        Trouble,
    },
    reporter::Reporter,
};

/// The maximum number of attempts of one placement that are looked up and not found. After the last
/// one the placement is parked, because a provider at which purchases are sent and never arrive
/// needs a person. Attempts that certainly bought nothing, because they were not sent or the
/// provider was busy, do not count: after an outage every placement has many of them.
const MAX_LOST: u32 = 50;
/// The longest wait that is honoured if a provider asks for one, so that a nonsensical
/// `Retry-After` cannot stop a placement for days.
const LONGEST_WAIT: Duration = Duration::from_mins(10);
/// The age of an order from which on its work starts a trace of its own, because a trace that lasts
/// hours is hard to read.
const ONE_TRACE: Duration = Duration::from_mins(5);
/// The maximum number of outcomes of one provider that may wait to be recorded while the database
/// is slow or away. If there are as many, permits are kept and buying stops.
pub const UNRECORDED: usize = 1024;
/// The status of a purchase that was refused before it was sent.
const REFUSED_HERE: &str = "not-sent";
/// If a call takes at least this long, the wait for its permit counts as the provider's time, too.
const SLOW_CALL: Duration = Duration::from_millis(100);

/// Everything that the three workers of one provider share: its calls, its room for records, its
/// settings.
pub struct ProviderContext {
    pub calls: Calls,
    pub proof: Arc<Proof>,
    pub database: Database,
    pub vault: Vault,
    /// Sends verdicts and readiness events; all providers share it.
    pub reporter: Arc<Reporter>,
    /// The group commit of outcomes; all providers share it.
    pub settlements: GroupCommit<Settlements>,
    /// How long after its attempt was recorded a purchase may still arrive at the provider
    /// (`SETTLE`).
    pub settling_delay: Duration,
    /// How long profiles may be missing, or an outcome unknown, before the placement is parked
    /// (`PARK_AFTER`).
    pub park_after: Duration,
    /// Room for outcomes that wait to be recorded.
    pub unrecorded: Semaphore,
    /// Room for purchases whose first collect goes on without their permit.
    pub first_collects: Semaphore,
    pub lease: Duration,
    /// The percentages of used data that partners are told of (`LOW_DATA_PERCENT`).
    pub low_data: Vec<u8>,
    /// How many eSIMs may be polled in an hour (`POLLS_PER_HOUR`).
    pub polls_per_hour: u32,
    pub shutdown: Shutdown,
}

/// What one of the two workers for the placements of a provider does. One makes purchases, each
/// with its first collect; the other makes look-ups and later collects. Each has permits of its
/// own, so that a flood of purchases cannot hold up the look-ups, nor the other way round. Jobs
/// reach only the worker that buys.
pub struct PlacementHandler {
    pub context: Arc<ProviderContext>,
    pub activity: Activity,
}

impl Handler for PlacementHandler {
    const NAME: &'static str = "provisioner";
    const KIND: &'static str = "job";
    const CLAIM_STATEMENT: (&'static str, &'static str) = ("UPDATE", "placements");
    type Message = JobMessage;
    type Id = PlacementId;
    type Claimed = ClaimedPlacement;

    fn tickets_of(&self, job: JobMessage) -> Vec<Ticket<PlacementId>> {
        let JobMessage::V1 { placements } = job;
        let ticket = |placement: JobPlacement| Ticket {
            id: placement.placement_id,
            lane: placement.lane.into(),
            owner: placement.partner_id.into(),
        };
        placements.into_iter().map(ticket).collect()
    }

    async fn defer(&self, rows: &[PlacementId]) -> anyhow::Result<()> {
        let deferred = self
            .context
            .database
            .run(async |connection| placements::defer(connection, rows).await)
            .await?;
        self.context.reporter.deferred(&deferred);
        Ok(())
    }

    async fn due(&self, look: WorkLook) -> anyhow::Result<LookResult<Ticket<PlacementId>>> {
        let calls = &self.context.calls;
        // While the breaker is not closed, the claim of a due row would find nothing. Probes find
        // their placements themselves.
        if !calls.breaker.is_closed() {
            return Ok(LookResult::nothing());
        }
        // A stopped lane buys nothing for now. Its look-ups and collects go on, because they buy
        // nothing and settle the attempts that may have stopped it.
        let skip = match self.activity {
            Activity::Purchases => calls.limiters.stopped(Instant::now()),
            Activity::LookUps => Vec::new(),
        };
        self.context
            .due(self.activity, &WorkLook { skip, ..look })
            .await
    }

    async fn claim(
        &self,
        rows: &[PlacementId],
        class: TicketClass,
    ) -> anyhow::Result<Vec<(PlacementId, ClaimedPlacement)>> {
        let claim = match class {
            TicketClass::Fresh => PlacementClaim::Fresh,
            TicketClass::Due => PlacementClaim::Due(self.activity),
        };
        let claimed = self.context.claim_rows(rows, claim).await?;
        Ok(claimed
            .into_iter()
            .map(|claimed| (claimed.placement_id, claimed))
            .collect())
    }

    async fn run(self: Arc<Self>, claimed: ClaimedPlacement, trigger: Trigger, permit: Permit) {
        self.context.process(&claimed, &trigger, Some(permit)).await;
    }
}

impl ProviderContext {
    async fn due(
        &self,
        activity: Activity,
        look: &WorkLook,
    ) -> anyhow::Result<LookResult<Ticket<PlacementId>>> {
        let name = &self.calls.name;
        let found = self
            .database
            .run(async |connection| placements::due(connection, name, activity, look).await)
            .await?;
        Ok(found.map(Ticket::from))
    }

    async fn claim_rows(
        &self,
        rows: &[PlacementId],
        claim: PlacementClaim,
    ) -> anyhow::Result<Vec<ClaimedPlacement>> {
        let name = &self.calls.name;
        let lease = self.lease;
        let claimed = self
            .database
            .run(async |connection| placements::claim(connection, name, rows, claim, lease).await);
        Ok(claimed.await?)
    }

    /// Does what the state of a claimed placement asks for, and records the outcome.
    async fn process(&self, claimed: &ClaimedPlacement, trigger: &Trigger, permit: Option<Permit>) {
        let work = async {
            let lane = Arc::from(claimed.lane.as_str());
            match claimed.task() {
                Some(PlacementTask::Buy) => self.buy(claimed, &lane, trigger, permit).await,
                Some(PlacementTask::LookUp) => self.look_up(claimed, &lane, trigger, permit).await,
                Some(PlacementTask::LookAgain) => self.look_again(claimed, trigger, permit).await,
                Some(PlacementTask::Collect) => self.collect(claimed, trigger, permit).await,
                None => {}
            }
        };
        let span = process_span(claimed, trigger, &self.calls.name);
        work.instrument(span).await;
    }

    /// Waits for room among the outcomes that are not recorded yet, and then releases the permit.
    /// The caller holds the returned room until the outcome is recorded.
    ///
    /// The provider's work is done at this point, so a slow database should not keep the permit
    /// from the next purchase. But every outcome that is not recorded yet must be looked up after a
    /// crash. The room bounds how many there are. While there is none, the permits are kept, and
    /// buying stops.
    async fn release_once_recordable(&self, permit: Option<Permit>) -> Option<SemaphorePermit<'_>> {
        let room = self.unrecorded.acquire().await.ok();
        drop(permit);
        room
    }

    /// Sends the purchase of the attempt that this claim recorded, once.
    async fn buy(
        &self,
        claimed: &ClaimedPlacement,
        lane: &Arc<str>,
        trigger: &Trigger,
        permit: Option<Permit>,
    ) {
        // If this process stalled after the claim, a look-up by another process may already have
        // said "not found", and sending the purchase now could make it a second one. So it is sent
        // within the first half of the settling delay or not at all. Then the call also ends within
        // that delay, because `SETTLE` is more than twice `PROVIDER_TIMEOUT`. It may take longer
        // only at a provider whose "not found" is never believed.
        let purchase = Purchase {
            placement_id: claimed.placement_id,
            items: assign::items(&claimed.topups),
            send_by: trigger.claim_began + self.settling_delay / 2,
        };
        let asked = Instant::now();
        let Some(response) = self.calls.purchase(lane, &purchase).await else {
            tracing::warn!(
                placement.id = %claimed.placement_id,
                "attempt abandoned without sending the purchase, because it was recorded too long \
                 ago; nothing is bought, and the next attempt follows"
            );
            // Before anything is recorded of the attempt only this process may send it, and it will
            // not. If another one has looked it up meanwhile, this outcome comes too late and
            // changes nothing: the look-ups or the repeat of the other one decide.
            let _room = self.release_once_recordable(permit).await;
            let abandoned = AttemptOutcome::NotBought {
                retry_in: placement::next_attempt(claimed.attempt),
                reason: Reason::with(ReasonCode::NotSent, "it was recorded too long ago"),
            };
            self.settle(claimed, abandoned).await;
            return;
        };
        let provider_time = time_of_provider(trigger.permit_wait, asked.elapsed());
        match response {
            Ok(PurchaseResponse::Bought(bought)) => {
                // The partner does not have to wait for the profiles or for the record, because a
                // 201 rests on the stored order alone.
                self.reporter
                    .verdict(claimed, Verdict::Placed, provider_time);
                self.reporter.let_verdict_leave(claimed).await;
                // The response to a purchase usually lists the units without their profiles, so
                // these are asked for at once. If that fails, the units are recorded without
                // profiles, and a later collect brings the profiles. Because purchase and profiles
                // are recorded as one outcome, an ordinary order costs one record instead of two.
                // Meanwhile the next purchase may begin, because this one has ended. If there are
                // too many collects, for example because they hang, buying waits for them.
                let collecting = self.first_collects.try_acquire();
                let permit = permit.filter(|_| collecting.is_err());
                let bought = self.collect_at_once(claimed, bought).await;
                let _room = self.release_once_recordable(permit).await;
                drop(collecting);
                self.record_units(claimed, trigger, bought, ReasonCode::ProfilesLate.into())
                    .await;
            }
            Ok(PurchaseResponse::Rejected { status, message }) => {
                let _room = self.release_once_recordable(permit).await;
                self.reject(claimed, status, message, provider_time).await;
            }
            Err(Trouble::RefusedHere(message)) => {
                let _room = self.release_once_recordable(permit).await;
                self.reject(claimed, REFUSED_HERE.to_owned(), message, provider_time)
                    .await;
            }
            Err(trouble) => {
                let _room = self.release_once_recordable(permit).await;
                self.settle_without_purchase(claimed, trouble, provider_time)
                    .await;
            }
        }
    }

    /// Settles a purchase that the provider, or its adapter, refuses for good.
    async fn reject(
        &self,
        claimed: &ClaimedPlacement,
        status: String,
        message: String,
        provider_time: Duration,
    ) {
        tracing::info!(
            placement.id = %claimed.placement_id,
            order.id = %claimed.order_id,
            status,
            message,
            "the purchase is rejected"
        );
        // The rejection is recorded before the verdict is sent, because ingress answers 422 on the
        // strength of what is stored. A placement that has gone to another provider is not decided
        // yet, so it gets its verdict there.
        let settled = self
            .settle(claimed, AttemptOutcome::Rejected { status, message })
            .await;
        if settled.moved && settled.rerouted.is_none() {
            self.reporter
                .verdict(claimed, Verdict::Rejected, provider_time);
        }
    }

    /// Asks for the profiles right after the purchase, unless the response to the purchase has
    /// brought all of them.
    async fn collect_at_once(
        &self,
        claimed: &ClaimedPlacement,
        bought: BoughtUnits,
    ) -> BoughtUnits {
        if bought.is_complete(claimed.topups.len()) {
            return bought;
        }
        let look_up = LookUpRequest {
            reference: bought.reference.clone(),
            ..self.look_up_request(claimed)
        };
        match self.calls.look_up(&look_up, Wanted::Profiles).await {
            Ok(LookUpResponse::Found(collected)) => BoughtUnits {
                reference: collected.reference.or(bought.reference),
                units: collected.units,
            },
            Ok(LookUpResponse::NotFound) | Err(_) => bought,
        }
    }

    /// Settles an attempt for which neither a purchase nor a rejection is confirmed: it is looked
    /// up if it may have bought something, and otherwise attempted again later.
    async fn settle_without_purchase(
        &self,
        claimed: &ClaimedPlacement,
        trouble: Trouble,
        provider_time: Duration,
    ) {
        let wait = trouble.asked_wait(LONGEST_WAIT);
        let reason = trouble.reason_of_purchase();
        tracing::warn!(
            placement.id = %claimed.placement_id,
            class = trouble.class(),
            reason = trouble.reason(),
            "the provider has not confirmed the purchase; it is looked up or attempted again"
        );
        let verdict = if matches!(trouble, Trouble::NotSent(_)) {
            Verdict::NotSent
        } else {
            Verdict::UnderWay
        };
        let outcome = if trouble.may_be_carried_out() {
            AttemptOutcome::Unknown {
                look_in: placement::next_look(Duration::ZERO),
                reason,
            }
        } else {
            // Such an attempt certainly bought nothing, so it is repeated without limit, until the
            // provider accepts one or an operator acts.
            AttemptOutcome::NotBought {
                retry_in: placement::next_attempt(claimed.attempt).max(wait),
                reason,
            }
        };
        // The outcome is recorded before the verdict is sent, because ingress may answer 422 only
        // if the record says that nothing was sent.
        let settled = self.settle(claimed, outcome).await;
        if settled.moved || verdict == Verdict::UnderWay {
            self.reporter.verdict(claimed, verdict, provider_time);
        }
    }

    /// Looks up an attempt whose outcome is unknown, or not recorded because its process died. Buys
    /// nothing, unless a repeat of the attempt is proved to be safe. Even if the provider says that
    /// it has no such purchase, that counts only once the settling delay has passed; until then a
    /// delayed request may still arrive.
    async fn look_up(
        &self,
        claimed: &ClaimedPlacement,
        lane: &Arc<str>,
        trigger: &Trigger,
        permit: Option<Permit>,
    ) {
        if self.may_repeat(claimed)
            && let Some(bought) = self.repeat(claimed, lane, trigger).await
        {
            let bought = self.collect_at_once(claimed, bought).await;
            let _room = self.release_once_recordable(permit).await;
            return self
                .record_units(claimed, trigger, bought, ReasonCode::ProfilesLate.into())
                .await;
        }
        let request = self.look_up_request(claimed);
        let was_unknown = claimed.unknowns > 0;
        let wanted = Wanted::Outcome { lane, was_unknown };
        let response = self.calls.look_up(&request, wanted).await;
        let _room = self.release_once_recordable(permit).await;
        let outcome = match response {
            Ok(LookUpResponse::Found(bought)) => {
                tracing::info!(
                    placement.id = %claimed.placement_id,
                    attempt = claimed.attempt,
                    "a look-up found the purchase"
                );
                return self
                    .record_units(claimed, trigger, bought, ReasonCode::ProfilesLate.into())
                    .await;
            }
            Ok(LookUpResponse::NotFound) => {
                let after_settling_delay = claimed.attempt_age >= self.settling_delay;
                let look_in = self
                    .settling_delay
                    .saturating_sub(claimed.attempt_age)
                    .max(Duration::from_secs(1));
                if self.cannot_prove_absence() {
                    self.not_found_by_search(claimed)
                } else if after_settling_delay && self.lost_attempts(claimed).await >= MAX_LOST {
                    let said = format!("{MAX_LOST} attempts were looked up and not found");
                    self.park(claimed, Reason::with(ReasonCode::OutcomeUnknown, said))
                } else {
                    AttemptOutcome::NotFound {
                        after_settling_delay,
                        look_in,
                    }
                }
            }
            // Nothing was asked, so nothing is recorded. The lease of the row ends after the wait.
            Err(Trouble::Waiting { .. }) => return,
            Err(trouble) => {
                let reason = Reason::with(ReasonCode::OutcomeUnknown, trouble.reason());
                if claimed.attempt_age >= self.park_after && self.is_lasting(claimed, &trouble) {
                    self.park(claimed, reason)
                } else {
                    let look_in = placement::next_look(claimed.attempt_age)
                        .max(trouble.asked_wait(LONGEST_WAIT));
                    AttemptOutcome::Unknown { look_in, reason }
                }
            }
        };
        self.settle(claimed, outcome).await;
    }

    /// How many attempts of this placement look-ups did not find, with the present one; 0 if they
    /// need not be counted. The history tells of each.
    async fn lost_attempts(&self, claimed: &ClaimedPlacement) -> u32 {
        if claimed.attempt < MAX_LOST {
            return 0;
        }
        let order = claimed.order_id;
        let id = claimed.placement_id;
        let count = async |connection: &mut PgConnection| {
            history::attempts_not_found(connection, order, id, claimed.attempt).await
        };
        match self.database.run(count).await {
            Ok(earlier) => earlier + 1,
            Err(error) => {
                tracing::warn!(
                    placement.id = %claimed.placement_id,
                    %error,
                    "the attempts that were not found cannot be counted, so the placement is not \
                     parked for their number yet"
                );
                0
            }
        }
    }

    /// Whether an attempt whose outcome is unknown may be sent again: only where nothing else can
    /// settle it, and only while it is no older than a purchase was for which it is proved that an
    /// identical request of our account is the same purchase. It must also be too young to be
    /// parked while the repeat is under way, because then an operator decides.
    ///
    /// Something must have been recorded that leaves the attempt in doubt. The process that
    /// recorded the attempt may hold an outcome that it could not store yet, such as a rejection.
    /// That would fail the placement, or send it to the next provider, while the repeat buys here;
    /// once the attempt is in doubt, the settlement takes no such outcome.
    fn may_repeat(&self, claimed: &ClaimedPlacement) -> bool {
        let names_purchases = self.calls.provider.capabilities().purchase_key;
        self.cannot_prove_absence()
            && names_purchases
            && claimed.attempt_age < self.proof.same_for()
            && claimed.in_doubt
            && claimed.attempt_age + self.lease < self.park_after
            && self.calls.breaker.is_closed()
    }

    /// Sends the request of an attempt again, byte for byte. If the provider has the purchase, it
    /// says so, and otherwise it sells it now. Only that settles the attempt: a refusal may concern
    /// the repeat alone, and says nothing of a purchase that was made before. Then `None` is
    /// returned, and the attempt is looked up as if there had been no repeat.
    async fn repeat(
        &self,
        claimed: &ClaimedPlacement,
        lane: &Arc<str>,
        trigger: &Trigger,
    ) -> Option<BoughtUnits> {
        let identical = assign::items(&claimed.topups);
        let proved_for = self.proof.same_for().saturating_sub(claimed.attempt_age);
        let purchase = Purchase {
            placement_id: claimed.placement_id,
            items: identical,
            send_by: trigger.claim_began + proved_for.min(self.lease / 2),
        };
        match self.calls.purchase(lane, &purchase).await? {
            Ok(PurchaseResponse::Bought(bought)) => {
                tracing::info!(
                    placement.id = %claimed.placement_id,
                    attempt = claimed.attempt,
                    "a repeat of the request has settled an attempt whose response was lost"
                );
                Some(bought)
            }
            Ok(PurchaseResponse::Rejected { status, message }) => {
                tracing::warn!(
                    placement.id = %claimed.placement_id,
                    status,
                    message,
                    "the provider refuses the repeat of a purchase whose response was lost; that does \
                     not say that it was not bought, so it is searched for"
                );
                None
            }
            Err(trouble) => {
                tracing::warn!(
                    placement.id = %claimed.placement_id,
                    class = trouble.class(),
                    reason = trouble.reason(),
                    "the repeat of a purchase has settled nothing either, so it is searched for"
                );
                None
            }
        }
    }

    /// Whether a look-up that finds no purchase says nothing for certain at this provider.
    fn cannot_prove_absence(&self) -> bool {
        self.calls.provider.capabilities().look_up != LookUp::Exact
    }

    /// The outcome of a search that found no purchase. The purchase may exist all the same, so
    /// nothing is bought again. The search is repeated until `park_after`, and then a person has to
    /// look into the provider's portal.
    fn not_found_by_search(&self, claimed: &ClaimedPlacement) -> AttemptOutcome {
        if claimed.attempt_age >= self.park_after {
            return self.park(claimed, ReasonCode::SearchProvesNothing.into());
        }
        AttemptOutcome::NotFound {
            after_settling_delay: false,
            look_in: placement::next_search(claimed.attempt_age),
        }
    }

    /// Asks the provider for the profiles of a purchase, and records those that came. A placement
    /// whose profiles are missing for `park_after` is parked. The provider is still asked about it,
    /// but rarely, because a late response can resolve it.
    async fn collect(&self, claimed: &ClaimedPlacement, trigger: &Trigger, permit: Option<Permit>) {
        let request = self.look_up_request(claimed);
        let response = self.calls.look_up(&request, Wanted::Profiles).await;
        let _room = self.release_once_recordable(permit).await;
        match response {
            Ok(LookUpResponse::Found(bought)) => {
                self.record_units(claimed, trigger, bought, ReasonCode::ProfilesLate.into())
                    .await;
            }
            Ok(LookUpResponse::NotFound) => {
                tracing::error!(
                    placement.id = %claimed.placement_id,
                    "the provider no longer knows a purchase that it had confirmed; it is asked \
                     again, and the placement is parked if that lasts (PARK_AFTER)"
                );
                self.record_units(
                    claimed,
                    trigger,
                    BoughtUnits::default(),
                    ReasonCode::PurchaseVanished.into(),
                )
                .await;
            }
            // As for a look-up.
            Err(Trouble::Waiting { .. }) => {}
            Err(trouble) => {
                let since_purchase = claimed.placed_age.unwrap_or_default();
                if since_purchase >= self.park_after && self.is_lasting(claimed, &trouble) {
                    let late = Reason::with(ReasonCode::ProfilesUncollectable, trouble.reason());
                    return self
                        .record_units(claimed, trigger, BoughtUnits::default(), late)
                        .await;
                }
                // A purchase that is overdue parks after a few failed calls in a row. Until then it
                // is asked about at the usual pace; the long pause is for placements that are
                // parked already.
                let parked = claimed.was == PlacementState::Parked;
                let overdue = if parked {
                    self.park_after
                } else {
                    Duration::MAX
                };
                let look_in = placement::next_collect(since_purchase, overdue)
                    .max(trouble.asked_wait(LONGEST_WAIT));
                let reason = Reason::with(ReasonCode::ProfilesUncollectable, trouble.reason());
                tracing::warn!(
                    placement.id = %claimed.placement_id,
                    reason = trouble.reason(),
                    "profiles could not be collected; trying again later"
                );
                self.settle(claimed, AttemptOutcome::Unknown { look_in, reason })
                    .await;
            }
        }
    }

    /// What the provider is asked about this placement.
    fn look_up_request(&self, claimed: &ClaimedPlacement) -> LookUpRequest {
        // A reference comes from an adapter, which has checked it. One that cannot be read is left
        // out, and the provider is asked by our id.
        let reference = claimed.reference.clone();
        let items = assign::items(&claimed.topups);
        LookUpRequest {
            placement_id: claimed.placement_id,
            reference: reference.and_then(|id| ProviderId::parse(id).ok()),
            attempt_age: claimed.attempt_age,
            options: items.into_iter().map(|(option, _)| option).collect(),
            arrives_within: self.settling_delay,
        }
    }

    /// Records the units that the provider returned, and announces those that became ready. `late`
    /// says why the placement is parked if units are overdue.
    async fn record_units(
        &self,
        claimed: &ClaimedPlacement,
        trigger: &Trigger,
        bought: BoughtUnits,
        late: Reason,
    ) {
        // The claim read the age of the order; the calls since then have taken time, too.
        let since_order = claimed.age + trigger.claim_began.monotonic.elapsed();
        // Without NATS no readiness event can announce the deliveries. Then they get due work in
        // the same commit, which is due at `answer_by` if the order may still be answered.
        let announced = self.reporter.can_announce();
        let settled = self
            .settle_bought(claimed, since_order, bought, announced, late)
            .await;
        if announced {
            self.reporter.ready(claimed, settled.ready);
        }
    }
}

/// How much of the time until the verdict the provider took, and not this system. Ingress admits
/// fewer orders when this system is slow, so a slow provider must not count as that. Permits are
/// rare either because the provider keeps them busy with long calls, or because this machine has
/// too much to do. Only in the first case does the wait for a permit belong to the provider.
fn time_of_provider(permit_wait: Duration, call: Duration) -> Duration {
    if call >= SLOW_CALL {
        permit_wait + call
    } else {
        call
    }
}

/// The span of the work on a placement. Early work of the first attempt belongs to the trace of the
/// order. Later work starts a trace of its own, with a link to that of the order.
fn process_span(claimed: &ClaimedPlacement, trigger: &Trigger, provider: &str) -> Span {
    if !trace::is_recorded() {
        return Span::none();
    }
    let span = if trigger.class == TicketClass::Fresh {
        messaging_span!(INFO, "process", "consumer", "process", JOBS;
            messaging.message.id = %claimed.placement_id, order.id = %claimed.order_id,
            placement.id = %claimed.placement_id, provider.name = provider,
            attempt = claimed.attempt,
        )
    } else {
        // No message caused this work, because the row was due.
        info_span!(
            parent: None,
            "due placement",
            otel.kind = "internal", order.id = %claimed.order_id,
            placement.id = %claimed.placement_id, placement.state = claimed.was.as_str(),
            provider.name = provider, attempt = claimed.attempt,
        )
    };
    let belongs = claimed.attempt <= 1 && claimed.age < ONE_TRACE;
    trace::follow(
        &span,
        trigger.traceparent.as_deref(),
        claimed.traceparent.as_deref(),
        belongs,
    );
    span
}
