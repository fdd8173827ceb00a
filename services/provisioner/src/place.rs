//! The stage: buys placements, looks up attempts whose outcome nobody knows, collects profiles.
//!
//! What is bought is decided by the state from which a placement was claimed, see
//! [`domain::placement`]: only a claim from `accepted` recorded a fresh attempt, and only that may be
//! sent. Every outcome is one settlement, recorded in a group commit before anything is published.

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
    account::Account,
    assign,
    breaker::Breaker,
    metrics::Metrics,
    pace::Pace,
    providers::{FindAnswer, PlaceAnswer, ProviderUnit, Purchase, Trouble, UnitState},
};

/// The most settlements of one commit.
const BATCH: usize = 256;
/// The most attempts to buy a placement whose purchases never arrive, although they are sent.
const MAX_ATTEMPTS: u32 = 50;
/// So many times in a row nobody must have known before a placement is parked for that, however old
/// it is: after an outage of the provider everything is old.
const LASTING: u32 = 5;
/// The longest wait that a provider may ask for.
const LONGEST_WAIT: Duration = Duration::from_mins(10);
/// How old an order may be for what is done for it to be part of its trace.
const ONE_TRACE: Duration = Duration::from_mins(5);
/// Tries to record an outcome that the database refuses for a reason that is neither the data nor the
/// connection. Then the lease ends, and the placement is looked up again.
const MAX_REFUSALS: u32 = 8;
/// How long it is remembered that an order was answered: longer than any `answer_by` is away.
const REMEMBERED: Duration = Duration::from_mins(1);

/// Everything one provider's placements need.
pub struct Placing {
    /// The provider's name.
    pub provider_name: String,
    /// Our account there.
    pub account: Account,
    /// Whether it is used at the moment.
    pub breaker: Arc<Breaker>,
    /// The database.
    pub database: Database,
    /// For profiles.
    pub vault: Vault,
    /// For readiness events and verdicts.
    pub nats: Nats,
    /// The group commit of outcomes, which all providers share.
    pub settlements: GroupCommit<Settlements>,
    /// How long after its attempt was recorded a purchase may still arrive at the provider.
    pub settle: Duration,
    /// Profiles that haven't come after this time, and purchases that can't be settled, are parked.
    pub park_after: Duration,
    /// How long a claimed placement is left to this process.
    pub lease: Duration,
    /// What is promised to ingress.
    pub pace: Arc<Pace>,
    /// Orders whose partners have their answer, see [`Placing::is_answered`].
    pub answered: Answered,
    /// Counts topups.
    pub metrics: Metrics,
    /// Ends retries when the process stops.
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

/// Orders of which an ingress said that they're answered, so that profiles which come a moment later
/// needn't wait for `answer_by`. Only a short cut: losing it costs seconds.
#[derive(Default)]
pub struct Answered(Mutex<HashMap<OrderId, Instant>>);

impl Answered {
    fn add(&self, order: OrderId) {
        let mut orders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Forgets the old ones whenever the number would make the map grow.
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

/// The first attempt, and the looks for its profiles that follow soon, belong to the order's trace. What
/// comes later is a trace of its own with a link to it.
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
        // Nobody said so: it was due.
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
                // A retry, or one that came without its message, says nothing of the queue of jobs.
                let is_queued = trigger.message.is_some() && work.attempt == 1;
                self.pace.begin(if is_queued { work.age } else { Duration::ZERO });
                self.buy(work, trigger).await;
            }
            PlacementState::Placing => self.look_up(work).await,
            PlacementState::Placed | PlacementState::Parked => self.collect(work).await,
            // Closed: nothing of it is ever due.
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
        // A process that was stalled for long must not send what a look-up may already have missed.
        let send_by = trigger.taken + self.settle / 2;
        let Some(answer) = self.account.place(&purchase, send_by).await else {
            tracing::warn!(placement.id = %work.placement_id, "abandoned an attempt that was recorded too long ago");
            self.pace.end(Duration::ZERO);
            return;
        };
        self.pace.end(trigger.taken.elapsed());
        match answer {
            Ok(PlaceAnswer::Bought(units)) => {
                // One recorded outcome for the purchase and the profiles that are there at once.
                let units = match self.account.collect(work.placement_id).await {
                    Ok(FindAnswer::Found(units)) => units,
                    Ok(FindAnswer::NotFound) | Err(_) => units,
                };
                // A job without an address was published after the answer.
                let published_later = trigger.message.is_some() && verdict_to.is_none();
                let known = published_later || self.is_answered(work);
                // What can't be published is due at once instead.
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
                tracing::info!(placement.id = %work.placement_id, order.id = %work.order_id, reason, "refused");
                let said = Said::Refused { status, message };
                if self.tell(work, verdict_to, said, false).await != Some(Reply::Refused) {
                    self.settle(work, Outcome::Rejected { reason }).await;
                }
            }
            Err(trouble) => self.not_placed(work, verdict_to, trouble).await,
        }
    }

    /// The provider said nothing about the purchase itself.
    async fn not_placed(&self, work: &Claimed, verdict_to: Option<&VerdictTo>, trouble: Trouble) {
        let wait = trouble.after(LONGEST_WAIT);
        let (class, reason) = (trouble.class(), trouble.reason().to_owned());
        tracing::warn!(placement.id = %work.placement_id, class, reason, "not bought for now");
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
            // However often: it stays queued until the provider takes it.
            Trouble::NotSent(_) | Trouble::Denied(_) | Trouble::Busy { .. } => Outcome::NotBought {
                retry_in: placement::next_attempt(work.attempt).max(wait),
                reason,
            },
        };
        let told = matches!(trouble, Trouble::NotSent(_));
        self.settle(work, outcome).await;
        if !told {
            self.tell(work, verdict_to, Said::UnderWay, false).await;
        }
    }

    /// Looks an attempt up whose outcome was never recorded. Buys nothing.
    async fn look_up(&self, work: &Claimed) {
        match self.account.find(work.placement_id).await {
            Ok(FindAnswer::Found(units)) => {
                tracing::info!(placement.id = %work.placement_id, attempt = work.attempt, "a look-up found the purchase");
                self.record_units(work, units).await;
            }
            Ok(FindAnswer::NotFound) => {
                let settled = work.attempt_age >= self.settle;
                let look_in = self
                    .settle
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
                    self.park(work, format!("nobody knows whether it was bought: {reason}"))
                } else {
                    let look_in = placement::next_look(work.attempt_age).max(trouble.after(LONGEST_WAIT));
                    Outcome::Unknown { look_in, reason }
                };
                self.settle(work, outcome).await;
            }
        }
    }

    /// Asks for the profiles that are missing.
    async fn collect(&self, work: &Claimed) {
        match self.account.collect(work.placement_id).await {
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
        let announced = self.is_answered(work) && self.nats.is_connected();
        let settled = self.settle_bought(work, work.age, units, announced).await;
        if announced {
            self.announce(work, settled.ready).await;
        }
    }

    /// Whether trouble with one placement has become the operator's. A busy provider is only busy, and
    /// while one fails altogether that says nothing about this placement.
    fn is_lasting(&self, work: &Claimed, trouble: &Trouble) -> bool {
        !matches!(trouble, Trouble::Busy { .. }) && work.unknowns + 1 >= LASTING && self.breaker.is_closed()
    }

    /// Tells the operator of a placement that is parked now.
    fn alarm(&self, work: &Claimed, reason: &str) {
        let (placement, order, partner) = (work.placement_id, work.order_id, work.partner_id);
        tracing::error!(placement.id = %placement, order.id = %order, partner.id = %partner, attempt = work.attempt,
            provider.name = self.provider_name, reason, "parked");
    }

    /// Nobody found out whether it was bought.
    fn park(&self, work: &Claimed, reason: String) -> Outcome {
        self.alarm(work, &reason);
        Outcome::Parked { reason }
    }

    /// Whether webhooks may go out: `answer_by` is over, or an ingress told this process so.
    fn is_answered(&self, work: &Claimed) -> bool {
        work.answered || self.answered.contains(work.order_id)
    }

    /// `since_order`: how long ago the order was accepted.
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
                        tracing::error!(topup.id = %topup_id, %error, "a profile cannot be stored");
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

    /// Records an outcome, however long the database is away. A process that ends before it succeeds
    /// has lost nothing: the attempt is recorded, and its purchase will be looked up.
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
                        format!("the provider's answer conflicts with what is stored ({constraint})")
                    }
                    None => "the provider's answer cannot be stored".to_owned(),
                };
                tracing::error!(placement.id = %work.placement_id, %error, "an outcome cannot be stored");
                self.alarm(work, &reason);
                settlement.outcome = Outcome::Disputed { reason };
                continue;
            }
            refusals += u32::from(!error.is_transient());
            if refusals >= MAX_REFUSALS {
                tracing::error!(placement.id = %work.placement_id, %error, "an outcome is not recorded; redrive looks the placement up when its lease ends");
                return Settled::default();
            }
            tracing::warn!(placement.id = %work.placement_id, %error, "an outcome was not recorded yet");
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
                "parked: bought although nobody waited for it any more");
        } else if !settled.moved {
            tracing::info!(placement.id = %placement, order.id = %order, attempt = work.attempt, "settled by somebody else meanwhile");
        }
    }

    /// Counts topups that have failed or are parked now.
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

    /// Tells a waiting ingress what the provider said; `placed`: whether it certainly has the purchase.
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

    /// Publishes that topups are ready. Only after their profiles are committed, and only when the
    /// partner has its answer.
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
