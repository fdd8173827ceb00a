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
    perform, trace,
    worker::{Kind, Stage, Trigger},
};
use runtime::Shutdown;
use store::{
    PgPool,
    placements::{self, Claim, Claimed, Outcome, Progress, Settled, Settlement, Unit},
    profile::Profile,
    vault::Vault,
};
use tracing::{Instrument, info_span};

use crate::{
    assign,
    pace::Pace,
    providers::{FindAnswer, PlaceAnswer, Provider, ProviderUnit, Purchase, UnitState},
};

/// The most settlements of one commit.
const BATCH: usize = 256;
/// Profiles that haven't come after this time, and purchases that can't be settled, are parked.
const OVERDUE: Duration = Duration::from_mins(30);
/// How soon a purchase with an unknown outcome is looked up for the first time.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// The most attempts to buy a placement.
const MAX_ATTEMPTS: u32 = 50;
/// How long it is remembered that an order was answered: longer than any `answer_by` is away.
const REMEMBERED: Duration = Duration::from_mins(1);

/// Everything one provider's placements need.
pub struct Placing {
    /// The provider's name.
    pub provider_name: String,
    /// The provider.
    pub provider: Box<dyn Provider>,
    /// The database.
    pub pool: PgPool,
    /// For profiles.
    pub vault: Vault,
    /// For readiness events and verdicts.
    pub nats: Nats,
    /// The group commit of outcomes, which all providers share.
    pub settlements: GroupCommit<Settlements>,
    /// How long after its attempt was recorded a purchase may still arrive at the provider.
    pub settle: Duration,
    /// How long a claimed placement is left to this process.
    pub lease: Duration,
    /// What is promised to ingress.
    pub pace: Arc<Pace>,
    /// Orders whose partners have their answer, see [`Placing::is_answered`].
    pub answered: Answered,
    /// Ends retries when the process stops.
    pub shutdown: Shutdown,
}

/// The group commit of outcomes: one statement for a batch of purchases.
pub struct Settlements(PgPool);

impl Settlements {
    /// Starts the writer.
    pub fn start(pool: PgPool) -> GroupCommit<Self> {
        GroupCommit::start(Self(pool), BATCH)
    }
}

impl Writer for Settlements {
    const EFFECT: Effect = Effect::CommitOutcomes;
    type Item = Settlement;
    type Output = Settled;
    type Error = store::Error;

    async fn write(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, store::Error> {
        let mut connection = self.0.acquire().await?;
        placements::settle(&mut connection, settlements).await
    }

    fn one_is_at_fault(error: &store::Error) -> bool {
        error.is_about_data()
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
        let mut connection = self.pool.acquire().await?;
        Ok(placements::claim(&mut connection, Claim::Named(&ids), self.lease).await?)
    }

    async fn claim_due(&self, limit: usize) -> anyhow::Result<Vec<Claimed>> {
        let due = Claim::Due {
            provider: &self.provider_name,
            limit,
        };
        let mut connection = self.pool.acquire().await?;
        Ok(placements::claim(&mut connection, due, self.lease).await?)
    }

    async fn run(&self, work: Claimed, trigger: Trigger<TopupJob>) {
        let span = info_span!(
            "process topup.job",
            otel.kind = "consumer",
            messaging.system = "nats",
            messaging.operation.name = "process",
            messaging.destination.name = "TOPUP_JOBS",
            messaging.message.id = %work.placement_id,
            order.id = %work.order_id,
            provider.name = self.provider_name,
        );
        let parent = trigger.traceparent.as_deref().or(work.traceparent.as_deref());
        trace::set_parent(&span, parent);
        self.process(&work, trigger).instrument(span).await;
    }
}

impl Placing {
    async fn process(&self, work: &Claimed, trigger: Trigger<TopupJob>) {
        match work.was {
            PlacementState::Accepted => {
                self.pace.begin(work.age);
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
        if trigger.taken.elapsed() > self.settle / 2 {
            tracing::warn!(placement.id = %work.placement_id, "abandoned an attempt that was recorded too long ago");
            self.pace.end(Duration::ZERO);
            return;
        }
        let answer = perform(Effect::Place, self.provider.place(&purchase)).await;
        self.pace.end(trigger.taken.elapsed());
        match answer {
            PlaceAnswer::Bought(units) => {
                // One recorded outcome for the purchase and the profiles that are there at once.
                let units = match perform(Effect::Collect, self.provider.collect(work.placement_id)).await {
                    FindAnswer::Found(units) => units,
                    FindAnswer::NotFound | FindAnswer::Unknown(_) => units,
                };
                // A job without an address was published after the answer.
                let published_later = trigger.message.is_some() && verdict_to.is_none();
                let known = published_later || self.is_answered(work);
                let announced = known || verdict_to.is_some();
                let settled = self.settle_bought(work, units, announced).await;
                let reply = self.tell(work, verdict_to, Said::UnderWay).await;
                if known || reply == Some(Reply::Answered) {
                    self.announce(work, settled.ready).await;
                }
            }
            PlaceAnswer::Rejected { status, message } => {
                let reason = format!("the provider refused: {status} {message}");
                tracing::info!(placement.id = %work.placement_id, order.id = %work.order_id, reason, "refused");
                let said = Said::Refused { status, message };
                if self.tell(work, verdict_to, said).await != Some(Reply::Refused) {
                    self.settle(work, Outcome::Rejected { reason }).await;
                }
            }
            PlaceAnswer::NotSent(reason) => {
                tracing::warn!(placement.id = %work.placement_id, reason, "the provider was not reached");
                if self.tell(work, verdict_to, Said::NotSent).await != Some(Reply::Refused) {
                    self.try_again(work, None, reason).await;
                }
            }
            PlaceAnswer::TryLater { after, reason } => {
                tracing::warn!(placement.id = %work.placement_id, reason, "the provider asked to try later");
                self.try_again(work, after, reason).await;
                self.tell(work, verdict_to, Said::UnderWay).await;
            }
            PlaceAnswer::Unknown(reason) => {
                tracing::warn!(placement.id = %work.placement_id, reason, "the outcome of a purchase is unknown");
                self.settle(
                    work,
                    Outcome::Unknown {
                        look_in: FIRST_LOOK,
                        reason,
                    },
                )
                .await;
                self.tell(work, verdict_to, Said::UnderWay).await;
            }
        }
    }

    async fn try_again(&self, work: &Claimed, after: Option<Duration>, reason: String) {
        let outcome = if work.attempt >= MAX_ATTEMPTS {
            Outcome::Parked {
                reason: format!("gave up after {} attempts: {reason}", work.attempt),
            }
        } else {
            let retry_in = placement::next_attempt(work.attempt).max(after.unwrap_or_default());
            Outcome::NotBought { retry_in, reason }
        };
        self.settle(work, outcome).await;
    }

    /// Looks an attempt up whose outcome was never recorded. Buys nothing.
    async fn look_up(&self, work: &Claimed) {
        match perform(Effect::Find, self.provider.find(work.placement_id)).await {
            FindAnswer::Found(units) => {
                tracing::info!(placement.id = %work.placement_id, attempt = work.attempt, "a look-up found the purchase");
                let announced = self.is_answered(work);
                let settled = self.settle_bought(work, units, announced).await;
                if announced {
                    self.announce(work, settled.ready).await;
                }
            }
            FindAnswer::NotFound => {
                let settled = work.attempt_age >= self.settle;
                let look_in = self
                    .settle
                    .saturating_sub(work.attempt_age)
                    .max(Duration::from_secs(1));
                let outcome = if settled && work.attempt >= MAX_ATTEMPTS {
                    Outcome::Parked {
                        reason: format!("not bought after {} attempts", work.attempt),
                    }
                } else {
                    Outcome::NotFound { settled, look_in }
                };
                self.settle(work, outcome).await;
            }
            FindAnswer::Unknown(reason) => {
                let outcome = if work.attempt_age >= OVERDUE {
                    tracing::error!(placement.id = %work.placement_id, order.id = %work.order_id, reason, "parked: nobody knows whether it was bought");
                    Outcome::Parked {
                        reason: format!("nobody knows whether it was bought: {reason}"),
                    }
                } else {
                    let look_in = (work.attempt_age / 2).clamp(FIRST_LOOK, Duration::from_mins(1));
                    Outcome::Unknown { look_in, reason }
                };
                self.settle(work, outcome).await;
            }
        }
    }

    /// Asks for the profiles that are missing.
    async fn collect(&self, work: &Claimed) {
        let units = match perform(Effect::Collect, self.provider.collect(work.placement_id)).await {
            FindAnswer::Found(units) => units,
            FindAnswer::NotFound => {
                tracing::error!(placement.id = %work.placement_id, "the provider does not know what it had");
                Vec::new()
            }
            FindAnswer::Unknown(reason) => {
                tracing::warn!(placement.id = %work.placement_id, reason, "profiles were not collected");
                Vec::new()
            }
        };
        let announced = self.is_answered(work);
        let settled = self.settle_bought(work, units, announced).await;
        if announced {
            self.announce(work, settled.ready).await;
        }
    }

    /// Whether webhooks may go out: `answer_by` is over, or an ingress told this process so.
    fn is_answered(&self, work: &Claimed) -> bool {
        work.answered || self.answered.contains(work.order_id)
    }

    async fn settle_bought(&self, work: &Claimed, units: Vec<ProviderUnit>, announced: bool) -> Settled {
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
                provider_unit_id: unit.unit_id,
                progress,
            });
        }
        let age = work.placed_age.unwrap_or_default();
        let complete = final_units >= waiting;
        let outcome = Outcome::Bought {
            units: known,
            collect_in: (!complete).then(|| placement::next_collect(age, OVERDUE)),
            overdue: !complete && age >= OVERDUE,
            announced,
        };
        self.settle(work, outcome).await
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
        loop {
            let error = match self.settlements.write(settlement.clone()).await {
                Ok(Ok(settled)) => {
                    self.report(work, &settled);
                    return settled;
                }
                Ok(Err(error)) => error,
                Err(pipeline::group_commit::Closed) => return Settled::default(),
            };
            if error.is_about_data() && !matches!(settlement.outcome, Outcome::Parked { .. }) {
                let reason = match error.constraint() {
                    Some(constraint) => {
                        format!("the provider's answer conflicts with what is stored ({constraint})")
                    }
                    None => "the provider's answer cannot be stored".to_owned(),
                };
                tracing::error!(placement.id = %work.placement_id, order.id = %work.order_id, %error, "parked");
                settlement.outcome = Outcome::Parked { reason };
                continue;
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

    /// Tells a waiting ingress what the provider said.
    async fn tell(&self, work: &Claimed, to: Option<&VerdictTo>, said: Said) -> Option<Reply> {
        let verdict = Verdict::V1 {
            order_id: work.order_id,
            placement_id: work.placement_id,
            attempt: work.attempt,
            said,
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
            let span = info_span!(
                "publish topup.ready",
                otel.kind = "producer",
                messaging.system = "nats",
                messaging.operation.name = "publish",
                messaging.destination.name = "TOPUP_READY",
                messaging.message.id = %topup_id,
            );
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
