//! Records outcomes: one settlement per attempt, look-up or collect, until the database takes it.

use std::time::Duration;

use domain::{DeliveryId, PlacementState, placement};
use pipeline::{Effect, GroupCommit, group_commit::Writer, perform};
use runtime::Shutdown;
use store::{
    Database, PgConnection,
    placements::{self, Claimed, KnownColumns, Outcome, Progress, Settled, Settlement, Unit},
    profile::Profile,
};

use super::ProviderWork;
use crate::{
    assign,
    providers::{ProviderUnit, Trouble, UnitState},
};

/// The most settlements in one commit.
const BATCH: usize = 256;
/// Consecutive unknown outcomes before a placement is parked. Its age alone does not park it, because after an outage
/// every placement is old.
const LASTING: u32 = 5;
/// The most tries to record an outcome after errors that concern neither the data nor the connection. After the last
/// try the placement is due again when its lease ends; a fresh one has no lease, and the sweep makes it due after its
/// first lease.
const MAX_FAILED_WRITES: u32 = 8;

/// The group commit of outcomes: one statement for a batch of purchases.
pub struct Settlements(Database);

impl Settlements {
    pub fn start(database: Database, shutdown: &Shutdown) -> GroupCommit<Self> {
        GroupCommit::start(Self(database), BATCH, shutdown)
    }
}

impl Writer for Settlements {
    const NAME: &'static str = "commit-outcomes";
    const STATEMENT: (&'static str, &'static str) = ("UPDATE", "placements");
    type Item = Settlement;
    type Output = Settled;
    type Error = store::Error;

    async fn write(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, store::Error> {
        let settle = async |connection: &mut PgConnection| placements::settle(connection, settlements).await;
        perform(Effect::CommitOutcomes, self.0.run(settle)).await
    }

    fn one_is_at_fault(error: &store::Error) -> bool {
        error.is_about_data() || !error.is_transient()
    }
}

impl ProviderWork {
    /// Whether an operator must resolve it. A provider that is busy or fails as a whole says nothing about it.
    pub(crate) fn is_lasting(&self, claimed: &Claimed, trouble: &Trouble) -> bool {
        !matches!(trouble, Trouble::Busy { .. }) && claimed.unknowns + 1 >= LASTING && self.calls.breaker.is_healthy()
    }

    fn alarm(&self, claimed: &Claimed, reason: &str) {
        let placement = claimed.placement_id;
        let order = claimed.order_id;
        let partner = claimed.partner_id;
        tracing::error!(placement.id = %placement, order.id = %order, partner.id = %partner, attempt = claimed.attempt,
            provider.name = self.calls.name, reason, "parked");
    }

    /// The outcome that parks the placement.
    pub(crate) fn park(&self, claimed: &Claimed, reason: String) -> Outcome {
        self.alarm(claimed, &reason);
        Outcome::Parked { reason }
    }

    /// Settles a purchase with its units. `since_order` is the age of the order; `late` is the reason to park it if
    /// units are overdue.
    pub(crate) async fn settle_bought(
        &self,
        claimed: &Claimed,
        since_order: Duration,
        units: Vec<ProviderUnit>,
        announced: bool,
        late: &str,
    ) -> Settled {
        let waiting = claimed.topups.iter().filter(|topup| topup.pending).count();
        let mut final_units = 0;
        let mut known = Vec::with_capacity(units.len());
        for (topup_id, unit) in assign::pair(&claimed.topups, units) {
            let progress = match unit.state {
                UnitState::Pending => Progress::Pending,
                UnitState::Failed(reason) => Progress::Failed(reason),
                UnitState::Ready { iccid, code, expired_date } => {
                    match (Profile { code, expired_date }).seal(&self.vault, &topup_id) {
                        Ok(profile) => Progress::Ready { iccid, profile, delivery_id: DeliveryId::new() },
                        Err(error) => {
                            tracing::error!(topup.id = %topup_id, %error, "a profile cannot be encrypted");
                            Progress::Pending
                        }
                    }
                }
            };
            final_units += usize::from(!matches!(progress, Progress::Pending));
            known.push(Unit { topup_id, provider_unit_id: unit.unit_id.into(), progress });
        }
        let since_purchase = claimed.placed_age.unwrap_or_default();
        let complete = final_units >= waiting;
        let park = (!complete && since_purchase >= self.park_after).then(|| late.to_owned());
        if park.is_some() && claimed.was != PlacementState::Parked {
            self.alarm(claimed, late);
        }
        let outcome = Outcome::Bought {
            units: known,
            collect_in: (!complete).then(|| placement::next_collect(since_purchase, self.park_after)),
            park,
            announced,
        };
        let settled = self.settle(claimed, outcome).await;
        self.calls.metrics.ready(&self.calls.name, settled.ready.len(), since_order);
        settled
    }

    /// Records an outcome, and retries until the database is back. After a crash, the attempt is looked up.
    pub(crate) async fn settle(&self, claimed: &Claimed, outcome: Outcome) -> Settled {
        let known_columns = claimed.fresh.then(|| KnownColumns {
            order_id: claimed.order_id,
            partner_id: claimed.partner_id,
            provider: self.calls.name.clone(),
        });
        let mut settlement =
            Settlement { placement_id: claimed.placement_id, attempt: claimed.attempt, outcome, known_columns };
        let mut wait = Duration::from_millis(100);
        let mut failed_writes = 0;
        loop {
            let error = match self.settlements.write(settlement.clone()).await {
                Ok(Ok(settled)) => {
                    self.report(claimed, &settled);
                    self.count(claimed, &settlement.outcome, &settled);
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
                tracing::error!(placement.id = %claimed.placement_id, %error, "an outcome cannot be stored");
                self.alarm(claimed, &reason);
                settlement.outcome = Outcome::Disputed { reason };
                continue;
            }
            failed_writes += u32::from(!error.is_transient());
            if failed_writes >= MAX_FAILED_WRITES {
                tracing::error!(placement.id = %claimed.placement_id, %error, "outcome not recorded; the placement is due again when its lease, or its first lease, ends");
                return Settled::default();
            }
            tracing::warn!(placement.id = %claimed.placement_id, %error, "outcome not recorded yet; retrying");
            if self.shutdown.is_stopping() {
                return Settled::default();
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(2));
        }
    }

    fn report(&self, claimed: &Claimed, settled: &Settled) {
        let placement = claimed.placement_id;
        let order = claimed.order_id;
        if settled.unexpected {
            tracing::error!(placement.id = %placement, order.id = %order, attempt = claimed.attempt, provider.name = self.calls.name,
                "parked: an unexpected purchase was found");
        } else if !settled.moved {
            tracing::info!(placement.id = %placement, order.id = %order, attempt = claimed.attempt, "already settled");
        }
    }

    /// Counts the topups that failed or are parked.
    fn count(&self, claimed: &Claimed, outcome: &Outcome, settled: &Settled) {
        let pending = claimed.topups.iter().filter(|topup| topup.pending).count();
        let (failed, parked) = match outcome {
            Outcome::Bought { units, park, .. } => {
                let failed = |unit: &&Unit| matches!(unit.progress, Progress::Failed(_));
                let parks = (park.is_some() && claimed.was != PlacementState::Parked) || settled.unexpected;
                let known = units.iter().filter(|unit| !matches!(unit.progress, Progress::Pending));
                let parked = if parks { pending.saturating_sub(known.count()) } else { 0 };
                (units.iter().filter(failed).count(), parked)
            }
            Outcome::Rejected { .. } => (pending, 0),
            Outcome::Parked { .. } | Outcome::Disputed { .. } => (0, pending),
            Outcome::NotBought { .. } | Outcome::NotFound { .. } | Outcome::Unknown { .. } => (0, 0),
        };
        if settled.moved {
            self.calls.metrics.topups(&self.calls.name, "failed", failed);
            self.calls.metrics.topups(&self.calls.name, "parked", parked);
        }
    }
}
