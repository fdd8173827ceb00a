//! The stage: buys placements, looks up attempts whose outcome is unknown, collects profiles.
//!
//! The state from which a placement was claimed decides the work, see [`domain::placement`]. Only a
//! claim from `accepted` records a fresh attempt, and only a fresh attempt is sent. Every outcome is one
//! settlement, recorded in a group commit before anything is published.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use domain::{OrderId, PlacementId, PlacementState, TopupId, placement};
use pipeline::{
    Effect, GroupCommit, Nats,
    group_commit::Writer,
    payload::{Reply, Said, TopupJob, TopupReady, Verdict, VerdictTo},
    trace,
    worker::{Kind, Stage, Trigger},
};
use runtime::Shutdown;
use store::{
    Database,
    placements::{self, Claim, Claimed, Outcome, Progress, Settled, Settlement, Unit},
    profile::Profile,
    vault::Vault,
};
use tracing::{Instrument, Span, info_span};

use crate::{
    assign,
    breaker::Breaker,
    calls::Calls,
    metrics::Metrics,
    promise::Promise,
    providers::{FindAnswer, PlaceAnswer, ProviderUnit, Purchase, Trouble, UnitState},
};

/// The most settlements in one commit.
const BATCH: usize = 256;
/// The most attempts of a placement whose purchases are sent but never arrive.
const MAX_ATTEMPTS: u32 = 50;
/// Consecutive unknown outcomes before a placement is parked. Age alone does not park it: after an
/// outage of the provider every placement is old.
const LASTING: u32 = 5;
/// The longest wait that a provider can ask for.
const LONGEST_WAIT: Duration = Duration::from_mins(10);
/// The age of an order after which new work starts a trace of its own.
const ONE_TRACE: Duration = Duration::from_mins(5);
/// The most tries to record an outcome after errors that concern neither the data nor the connection.
/// After the last try the lease ends, and the placement is looked up again.
const MAX_REFUSALS: u32 = 8;
/// How long an answered order is remembered. This is longer than the time to any `answer_by`.
const REMEMBERED: Duration = Duration::from_mins(1);

/// The stage for one provider.
pub struct Placing {
    /// The provider's name.
    pub provider_name: String,
    /// Paces and measures the calls to the provider.
    pub calls: Calls,
    /// The provider's breaker.
    pub breaker: Arc<Breaker>,
    /// The connection pool.
    pub database: Database,
    /// Encrypts profiles.
    pub vault: Vault,
    /// Publishes readiness events and verdicts.
    pub nats: Nats,
    /// The group commit of outcomes; all providers share it.
    pub settlements: GroupCommit<Settlements>,
    /// A purchase may still arrive at the provider this long after its attempt was recorded.
    pub settle_delay: Duration,
    /// After this time, missing profiles and unknown outcomes are parked.
    pub park_after: Duration,
    /// The lease of a claimed placement.
    pub lease: Duration,
    /// Promises verdict times to ingress.
    pub promise: Arc<Promise>,
    /// The answered orders, see [`Placing::is_answered`].
    pub answered: Answered,
    /// The instruments.
    pub metrics: Metrics,
    /// Ends retries on a stop.
    pub shutdown: Shutdown,
}

/// The group commit of outcomes: one statement for a batch of purchases.
pub struct Settlements(Database);

impl Settlements {
    /// Starts the writer.
    pub fn start(database: Database) -> GroupCommit<Self> {
        GroupCommit::start(Self(database), BATCH)
    }
}

impl Writer for Settlements {
    const EFFECT: Effect = Effect::CommitOutcomes;
    const STATEMENT: (&'static str, &'static str) = ("UPDATE", "placements");
    type Item = Settlement;
    type Output = Settled;
    type Error = store::Error;

    async fn write(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, store::Error> {
        self.0
            .run(async |connection| placements::settle(connection, settlements).await)
            .await
    }

    fn one_is_at_fault(error: &store::Error) -> bool {
        error.is_about_data() || !error.is_transient()
    }
}

/// Orders that an ingress reported as answered. Their later profiles are announced before `answer_by`
/// passes. Losing this memory costs seconds.
#[derive(Default)]
pub struct Answered(Mutex<HashMap<OrderId, Instant>>);

impl Answered {
    fn add(&self, order: OrderId) {
        let mut orders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Old entries are removed before the map grows.
        if orders.len() == orders.capacity() {
            orders.retain(|_, since| since.elapsed() < REMEMBERED);
        }
        orders.insert(order, Instant::now());
    }

    fn contains(&self, order: OrderId) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains_key(&order)
    }
}

impl Stage for Placing {
    const KIND: Kind = Kind::Job;
    type Message = TopupJob;
    type Work = Claimed;
    type Key = PlacementId;

    fn key(&self, TopupJob::V1 { placement_id, .. }: &TopupJob) -> PlacementId {
        *placement_id
    }

    fn work_key(&self, work: &Claimed) -> PlacementId {
        work.placement_id
    }

    async fn claim(&self, jobs: &[TopupJob]) -> anyhow::Result<Vec<Claimed>> {
        let ids: Vec<PlacementId> = jobs.iter().map(|job| self.key(job)).collect();
        self.claimed(Claim::Named(&ids)).await
    }

    async fn claim_due(&self, limit: usize) -> anyhow::Result<Vec<Claimed>> {
        let provider = &self.provider_name;
        let due = if self.breaker.probe(self.lease).await? {
            Claim::Probe { provider }
        } else {
            Claim::Due { provider, limit }
        };
        self.claimed(due).await
    }

    async fn run(&self, work: Claimed, trigger: Trigger<TopupJob>) {
        let span = process_span(&work, &trigger, &self.provider_name);
        self.process(&work, trigger).instrument(span).await;
    }
}

impl Placing {
    async fn claimed(&self, claim: Claim<'_>) -> anyhow::Result<Vec<Claimed>> {
        let claimed = self
            .database
            .run(async |connection| placements::claim(connection, claim, self.lease).await);
        Ok(claimed.await?)
    }
}

/// The first attempt and its early look-ups and collects belong to the order's trace. Later work starts
/// a trace of its own with a link to the order's.
fn process_span(work: &Claimed, trigger: &Trigger<TopupJob>, provider: &str) -> Span {
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
        // Without a message: the row was due.
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
    let (message, row) = (trigger.traceparent.as_deref(), work.traceparent.as_deref());
    trace::follow(&span, message, row, belongs);
    span
}

impl Placing {
    async fn process(&self, work: &Claimed, trigger: Trigger<TopupJob>) {
        match work.was {
            PlacementState::Accepted => {
                // Only a first attempt with a message measures the wait in the job queue.
                let is_queued = trigger.message.is_some() && work.attempt == 1;
                self.promise
                    .begin(if is_queued { work.age } else { Duration::ZERO });
                self.buy(work, trigger).await;
            }
            PlacementState::Placing => self.look_up(work).await,
            PlacementState::Placed | PlacementState::Parked => self.collect(work).await,
            // Closed placements are never due.
            PlacementState::Refused | PlacementState::Failed => {}
        }
    }

    /// Sends the purchase of a fresh attempt, once.
    async fn buy(&self, work: &Claimed, trigger: Trigger<TopupJob>) {
        let verdict_to = match &trigger.message {
            Some(TopupJob::V1 { verdict, .. }) => verdict.as_ref(),
            None => None,
        };
        let purchase = Purchase {
            placement_id: work.placement_id,
            items: assign::items(&work.topups),
        };
        // After a stall, a look-up may already have said "not found", so this purchase must not be sent.
        let send_by = trigger.taken + self.settle_delay / 2;
        let Some(answer) = self.calls.place(&purchase, send_by).await else {
            tracing::warn!(placement.id = %work.placement_id, "attempt abandoned: it was recorded too long ago");
            self.promise.end(Duration::ZERO);
            return;
        };
        self.promise.end(trigger.taken.elapsed());
        match answer {
            Ok(PlaceAnswer::Bought(units)) => {
                // The purchase and the profiles that are ready are recorded as one outcome.
                let units = match self.calls.collect(work.placement_id).await {
                    Ok(FindAnswer::Found(units)) => units,
                    Ok(FindAnswer::NotFound) | Err(_) => units,
                };
                // A job without a verdict address was published after the 201.
                let published_later = trigger.message.is_some() && verdict_to.is_none();
                let known = published_later || self.is_answered(work);
                // Without NATS no event can announce the delivery, so it is due at once.
                let announced = (known || verdict_to.is_some()) && self.nats.is_connected();
                let age = work.age + trigger.taken.elapsed();
                let settled = self.settle_bought(work, age, units, announced).await;
                let reply = self.tell(work, verdict_to, Said::UnderWay, true).await;
                if known || reply == Some(Reply::Answered) {
                    self.announce(work, settled.ready).await;
                }
            }
            Ok(PlaceAnswer::Rejected { status, message }) => {
                let reason = format!("the provider refused: {status} {message}");
                tracing::info!(placement.id = %work.placement_id, order.id = %work.order_id, reason, "the provider rejected the purchase");
                let said = Said::Refused { status, message };
                if self.tell(work, verdict_to, said, false).await != Some(Reply::Refused) {
                    self.settle(work, Outcome::Rejected { reason }).await;
                }
            }
            Err(trouble) => self.not_placed(work, verdict_to, trouble).await,
        }
    }

    /// Settles an attempt that led neither to a purchase nor to a rejection.
    async fn not_placed(&self, work: &Claimed, verdict_to: Option<&VerdictTo>, trouble: Trouble) {
        let wait = trouble.after(LONGEST_WAIT);
        let (class, reason) = (trouble.class(), trouble.reason().to_owned());
        tracing::warn!(placement.id = %work.placement_id, class, reason, "not bought yet");
        if matches!(trouble, Trouble::NotSent(_))
            && self.tell(work, verdict_to, Said::NotSent, false).await == Some(Reply::Refused)
        {
            return;
        }
        let outcome = match trouble {
            Trouble::Unknown(_) => Outcome::Unknown {
                look_in: placement::next_look(Duration::ZERO),
                reason,
            },
            // Retried without limit until the provider accepts it.
            Trouble::NotSent(_) | Trouble::Denied(_) | Trouble::Busy { .. } => Outcome::NotBought {
                retry_in: placement::next_attempt(work.attempt).max(wait),
                reason,
            },
        };
        let reported = matches!(trouble, Trouble::NotSent(_));
        self.settle(work, outcome).await;
        if !reported {
            self.tell(work, verdict_to, Said::UnderWay, false).await;
        }
    }

    /// Looks up an attempt without a recorded outcome. Buys nothing.
    async fn look_up(&self, work: &Claimed) {
        match self.calls.find(work.placement_id).await {
            Ok(FindAnswer::Found(units)) => {
                tracing::info!(placement.id = %work.placement_id, attempt = work.attempt, "a look-up found the purchase");
                self.record_units(work, units).await;
            }
            Ok(FindAnswer::NotFound) => {
                let settled = work.attempt_age >= self.settle_delay;
                let look_in = self
                    .settle_delay
                    .saturating_sub(work.attempt_age)
                    .max(Duration::from_secs(1));
                let outcome = if settled && work.attempt >= MAX_ATTEMPTS {
                    self.park(work, format!("not bought after {} attempts", work.attempt))
                } else {
                    Outcome::NotFound { settled, look_in }
                };
                self.settle(work, outcome).await;
            }
            Err(trouble) => {
                let reason = trouble.reason().to_owned();
                let outcome = if work.attempt_age >= self.park_after && self.is_lasting(work, &trouble) {
                    self.park(work, format!("outcome unknown: {reason}"))
                } else {
                    let look_in = placement::next_look(work.attempt_age).max(trouble.after(LONGEST_WAIT));
                    Outcome::Unknown { look_in, reason }
                };
                self.settle(work, outcome).await;
            }
        }
    }

    /// Collects the missing profiles.
    async fn collect(&self, work: &Claimed) {
        match self.calls.collect(work.placement_id).await {
            Ok(FindAnswer::Found(units)) => self.record_units(work, units).await,
            Ok(FindAnswer::NotFound) => {
                tracing::error!(placement.id = %work.placement_id, "the provider no longer knows the purchase");
                self.record_units(work, Vec::new()).await;
            }
            Err(trouble) => {
                let age = work.placed_age.unwrap_or_default();
                if age >= self.park_after && self.is_lasting(work, &trouble) {
                    return self.record_units(work, Vec::new()).await;
                }
                let look_in = placement::next_collect(age, self.park_after).max(trouble.after(LONGEST_WAIT));
                let reason = trouble.reason().to_owned();
                tracing::warn!(placement.id = %work.placement_id, reason, "profiles not collected");
                self.settle(work, Outcome::Unknown { look_in, reason }).await;
            }
        }
    }

    /// Records the units that the provider returned and announces the ready topups.
    async fn record_units(&self, work: &Claimed, units: Vec<ProviderUnit>) {
        let announced = self.is_answered(work) && self.nats.is_connected();
        let settled = self.settle_bought(work, work.age, units, announced).await;
        if announced {
            self.announce(work, settled.ready).await;
        }
    }

    /// Whether an operator must resolve this placement. A busy provider, or one whose breaker is not
    /// closed, says nothing about a single placement.
    fn is_lasting(&self, work: &Claimed, trouble: &Trouble) -> bool {
        !matches!(trouble, Trouble::Busy { .. }) && work.unknowns + 1 >= LASTING && self.breaker.is_closed()
    }

    /// Logs that the placement is parked.
    fn alarm(&self, work: &Claimed, reason: &str) {
        let (placement, order, partner) = (work.placement_id, work.order_id, work.partner_id);
        tracing::error!(placement.id = %placement, order.id = %order, partner.id = %partner, attempt = work.attempt,
            provider.name = self.provider_name, reason, "parked");
    }

    /// The outcome that parks the placement.
    fn park(&self, work: &Claimed, reason: String) -> Outcome {
        self.alarm(work, &reason);
        Outcome::Parked { reason }
    }

    /// Whether the order is released: `answer_by` has passed, or an ingress reported it as answered.
    fn is_answered(&self, work: &Claimed) -> bool {
        work.answered || self.answered.contains(work.order_id)
    }

    /// Settles a purchase with its units. `since_order` is the age of the order.
    async fn settle_bought(
        &self,
        work: &Claimed,
        since_order: Duration,
        units: Vec<ProviderUnit>,
        announced: bool,
    ) -> Settled {
        let waiting = work.topups.iter().filter(|topup| topup.pending).count();
        let mut final_units = 0;
        let mut known = Vec::with_capacity(units.len());
        for (topup_id, unit) in assign::pair(&work.topups, units) {
            let progress = match unit.state {
                UnitState::Pending => Progress::Pending,
                UnitState::Failed(reason) => Progress::Failed(reason),
                UnitState::Ready {
                    iccid,
                    code,
                    expired_date,
                } => match (Profile { code, expired_date }).seal(&self.vault, &topup_id) {
                    Ok(profile) => Progress::Ready { iccid, profile },
                    Err(error) => {
                        tracing::error!(topup.id = %topup_id, %error, "a profile cannot be encrypted");
                        Progress::Pending
                    }
                },
            };
            final_units += usize::from(!matches!(progress, Progress::Pending));
            known.push(Unit {
                topup_id,
                provider_unit_id: unit.unit_id.into(),
                progress,
            });
        }
        let age = work.placed_age.unwrap_or_default();
        let complete = final_units >= waiting;
        let overdue = !complete && age >= self.park_after;
        if overdue && work.was != PlacementState::Parked {
            self.alarm(work, "bought, but its profiles do not come");
        }
        let outcome = Outcome::Bought {
            units: known,
            collect_in: (!complete).then(|| placement::next_collect(age, self.park_after)),
            overdue,
            announced,
        };
        let settled = self.settle(work, outcome).await;
        self.metrics
            .ready(&self.provider_name, settled.ready.len(), since_order);
        settled
    }

    /// Records an outcome, and retries until the database is back. A crash before that loses nothing:
    /// the recorded attempt is looked up.
    async fn settle(&self, work: &Claimed, outcome: Outcome) -> Settled {
        let mut settlement = Settlement {
            placement_id: work.placement_id,
            attempt: work.attempt,
            outcome,
        };
        let mut wait = Duration::from_millis(100);
        let mut refusals = 0;
        loop {
            let error = match self.settlements.write(settlement.clone()).await {
                Ok(Ok(settled)) => {
                    self.report(work, &settled);
                    self.count(work, &settlement.outcome, &settled);
                    return settled;
                }
                Ok(Err(error)) => error,
                Err(pipeline::group_commit::Closed) => return Settled::default(),
            };
            if error.is_about_data() && !matches!(settlement.outcome, Outcome::Disputed { .. }) {
                let reason = match error.constraint() {
                    Some(constraint) => {
                        format!("the provider's response conflicts with stored data ({constraint})")
                    }
                    None => "the provider's response cannot be stored".to_owned(),
                };
                tracing::error!(placement.id = %work.placement_id, %error, "an outcome cannot be stored");
                self.alarm(work, &reason);
                settlement.outcome = Outcome::Disputed { reason };
                continue;
            }
            refusals += u32::from(!error.is_transient());
            if refusals >= MAX_REFUSALS {
                tracing::error!(placement.id = %work.placement_id, %error, "outcome not recorded; redrive looks the placement up when its lease ends");
                return Settled::default();
            }
            tracing::warn!(placement.id = %work.placement_id, %error, "outcome not recorded yet; retrying");
            if self.shutdown.is_stopping() {
                return Settled::default();
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(2));
        }
    }

    fn report(&self, work: &Claimed, settled: &Settled) {
        let (placement, order) = (work.placement_id, work.order_id);
        if settled.unexpected {
            tracing::error!(placement.id = %placement, order.id = %order, attempt = work.attempt, provider.name = self.provider_name,
                "parked: an unexpected purchase was found");
        } else if !settled.moved {
            tracing::info!(placement.id = %placement, order.id = %order, attempt = work.attempt, "already settled");
        }
    }

    /// Counts the topups that failed or are parked.
    fn count(&self, work: &Claimed, outcome: &Outcome, settled: &Settled) {
        let pending = work.topups.iter().filter(|topup| topup.pending).count();
        let (failed, parked) = match outcome {
            Outcome::Bought { units, overdue, .. } => {
                let failed = |unit: &&Unit| matches!(unit.progress, Progress::Failed(_));
                let parks = (*overdue && work.was != PlacementState::Parked) || settled.unexpected;
                let known = units
                    .iter()
                    .filter(|unit| !matches!(unit.progress, Progress::Pending));
                let parked = if parks {
                    pending.saturating_sub(known.count())
                } else {
                    0
                };
                (units.iter().filter(failed).count(), parked)
            }
            Outcome::Rejected { .. } => (pending, 0),
            Outcome::Parked { .. } | Outcome::Disputed { .. } => (0, pending),
            Outcome::NotBought { .. } | Outcome::NotFound { .. } | Outcome::Unknown { .. } => (0, 0),
        };
        if settled.moved {
            self.metrics.topups(&self.provider_name, "failed", failed);
            self.metrics.topups(&self.provider_name, "parked", parked);
        }
    }

    /// Sends the verdict to a waiting ingress and returns its reply. `placed`: the provider certainly has
    /// the purchase.
    async fn tell(&self, work: &Claimed, to: Option<&VerdictTo>, said: Said, placed: bool) -> Option<Reply> {
        let verdict = Verdict::V1 {
            order_id: work.order_id,
            placement_id: work.placement_id,
            attempt: work.attempt,
            said,
            placed,
        };
        let reply = self.nats.tell(to?, &verdict).await;
        if reply == Some(Reply::Answered) {
            self.answered.add(work.order_id);
        }
        reply
    }

    /// Publishes readiness events. Called only after the profiles are committed and the order is released.
    async fn announce(&self, work: &Claimed, ready: Vec<TopupId>) {
        for topup_id in ready {
            let span = trace::publish("TOPUP_READY", &topup_id);
            let id = topup_id.to_string();
            let event = TopupReady::V1 { topup_id };
            let subject = self.nats.ready_subject(work.partner_id);
            self.nats
                .publish(Effect::PublishReady, subject, &id, &event, &span)
                .instrument(span.clone())
                .await;
        }
    }
}
