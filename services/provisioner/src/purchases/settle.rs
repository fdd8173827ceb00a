//! Records outcomes: one settlement for each attempt, look-up or collect.
//!
//! Guarantee: a settlement is retried until the database has taken it, so that an outage of the
//! database does not lose what the provider said. Only a stop of the process, or an error that
//! retries cannot remove, ends the retries. The placement is then due again later, and a look-up
//! asks the provider once more. An outcome that cannot be stored because of its content parks the
//! placement for an operator.

use std::time::Duration;

use accounts::profile::{Profile, SealedProfile};
use domain::{
    DeliveryId, Iccid, PartnerId, PlacementState, Reason, TopupId, placement, reason::ReasonCode,
};
use pg::{Database, PgConnection};
use pipeline::{
    Effect, GroupCommit,
    group_commit::{BatchWriter, WriterPanicked},
    perform,
};
use runtime::{Shutdown, outage};
use store::placements::{
    self, AttemptOutcome, ClaimedPlacement, PlacementClaim, PlacementSettlement, Progress,
    ReadyProfile, SettledUnit, SettlementEffect,
};

use super::ProviderContext;
use crate::{
    assign,
    providers::{BoughtUnits, LookUp, ProviderProfile, ProviderUnitState, Trouble},
};

/// How long after its purchase a unit may have an unreadable profile before its placement is
/// parked. Until then the provider may still be writing it.
const UNREADABLE_AFTER: Duration = Duration::from_mins(1);
/// The maximum number of settlements in one commit, which bounds how long its transaction holds
/// locks. Larger ones cost as much for each item.
const BATCH: usize = 256;
/// How many outcomes in a row must have been unknown before a placement is parked. Its age alone
/// does not park it, because after an outage of the provider every placement is old.
const LASTING: u32 = 5;
/// How often recording an outcome is tried if the error concerns neither the data nor the
/// connection. After the last try the placement is due again when its lease ends. A fresh one has
/// no lease, so the sweep makes it due after its first lease.
const MAX_FAILED_WRITES: u32 = 8;

/// The group commit of outcomes: one statement records the outcomes of many placements.
pub struct Settlements(Database);

impl Settlements {
    pub fn start(database: Database, shutdown: &Shutdown) -> GroupCommit<Self> {
        GroupCommit::start(Self(database), BATCH, shutdown)
    }
}

impl BatchWriter for Settlements {
    const NAME: &'static str = "commit-outcomes";
    const STATEMENT: (&'static str, &'static str) = ("UPDATE", "placements");
    type Item = PlacementSettlement;
    type Output = SettlementEffect;
    type Error = pg::Error;

    async fn write(
        &self,
        settlements: &[PlacementSettlement],
    ) -> Result<Vec<SettlementEffect>, pg::Error> {
        let settle =
            async |connection: &mut PgConnection| placements::settle(connection, settlements).await;
        perform(Effect::CommitOutcomes, self.0.run(settle)).await
    }

    fn one_is_at_fault(error: &pg::Error) -> bool {
        error.may_concern_one_item()
    }
}

impl ProviderContext {
    /// Seals a profile that the provider has sent for a topup.
    pub(crate) fn seal(
        &self,
        new: ProviderProfile,
        partner_id: PartnerId,
        topup_id: &TopupId,
    ) -> Result<(Iccid, SealedProfile), pg::Error> {
        let profile = Profile {
            code: new.code,
            expired_date: new.expired_date,
        };
        let sealed = profile.seal(&self.vault, partner_id, topup_id)?;
        let sealed = if new.is_code_shared {
            sealed.with_shared_code()
        } else {
            sealed
        };
        Ok((new.iccid, sealed))
    }

    /// Whether this unknown outcome counts towards parking the placement: it has happened often
    /// enough, and other calls to the provider succeed. A provider that is busy or fails as a whole
    /// says nothing about a single placement.
    pub(crate) fn is_lasting(&self, claimed: &ClaimedPlacement, trouble: &Trouble) -> bool {
        !matches!(trouble, Trouble::Busy { .. } | Trouble::Waiting { .. })
            && claimed.unknowns + 1 >= LASTING
            && self.calls.breaker.is_healthy()
    }

    /// Logs that a placement is parked.
    fn alarm(&self, claimed: &ClaimedPlacement, reason: &Reason) {
        let reason = reason.told();
        let placement = claimed.placement_id;
        let order = claimed.order_id;
        let partner = claimed.partner_id;
        tracing::error!(
            placement.id = %placement,
            order.id = %order,
            partner.id = %partner,
            attempt = claimed.attempt,
            provider.name = self.calls.name,
            provider.option = claimed.lane,
            reason,
            "the placement is parked, so nothing more happens to it until an operator decides: `esimctl placement list --state \
             parked` shows it, and `esimctl placement resolve` ends the wait"
        );
    }

    /// Logs the alarm, and makes the outcome that parks the placement.
    pub(crate) fn park(&self, claimed: &ClaimedPlacement, reason: Reason) -> AttemptOutcome {
        self.alarm(claimed, &reason);
        AttemptOutcome::Parked { reason }
    }

    /// Settles a purchase with what the provider returned. Each ready unit gets its encrypted
    /// profile and a delivery in the same commit. If units are still missing, another collect
    /// follows, and if they are overdue, the placement is parked for the reason `late`. One whose
    /// profile has arrived and cannot be read is parked sooner, because an operator can enter it.
    /// `since_order` is the age of the order, and `announced` says whether readiness events will
    /// announce the deliveries.
    pub(crate) async fn settle_bought(
        &self,
        claimed: &ClaimedPlacement,
        since_order: Duration,
        bought: BoughtUnits,
        announced: bool,
        late: Reason,
    ) -> SettlementEffect {
        let waiting = claimed.topups.iter().filter(|topup| topup.pending).count();
        let units = assign::each_once(bought.units);
        let listed = units.len();
        let mut final_units = 0;
        let mut unreadable: Option<Reason> = None;
        let mut known = Vec::with_capacity(listed);
        let product_of = |option| self.calls.provider.product(option);
        for (topup_id, unit) in assign::assign_units(&claimed.topups, units, product_of) {
            let progress = match unit.state {
                ProviderUnitState::Pending => Progress::Pending,
                ProviderUnitState::Unreadable(fault) => {
                    unreadable = Some(fault.into());
                    Progress::Pending
                }
                ProviderUnitState::Failed(reason) => Progress::Failed(reason),
                ProviderUnitState::Ready(new) => {
                    match self.seal(new, claimed.partner_id, &topup_id) {
                        Ok((iccid, profile)) => Progress::Ready(ReadyProfile {
                            iccid,
                            profile,
                            delivery_id: DeliveryId::new(),
                        }),
                        Err(error) => {
                            tracing::error!(
                                topup.id = %topup_id,
                                %error,
                                "a profile cannot be encrypted, so its unit stays pending and is \
                                 collected again later"
                            );
                            Progress::Pending
                        }
                    }
                }
            };
            final_units += usize::from(!matches!(progress, Progress::Pending));
            known.push(SettledUnit {
                topup_id,
                provider_unit_id: unit.unit_id.into(),
                progress,
            });
        }
        let since_purchase = claimed.placed_age.unwrap_or_default();
        let complete = final_units >= waiting;
        let overdue = match &unreadable {
            Some(_) => UNREADABLE_AFTER.min(self.park_after),
            None => self.park_after,
        };
        let park = (!complete && since_purchase >= overdue).then(|| unreadable.unwrap_or(late));
        if let Some(late) = &park
            && claimed.was != PlacementState::Parked
        {
            self.alarm(claimed, late);
        }
        let outcome = AttemptOutcome::Bought {
            reference: bought.reference.map(String::from),
            units: known,
            listed,
            collect_in: (!complete)
                .then(|| placement::next_collect(since_purchase, self.park_after)),
            park,
            announced,
        };
        let settled = self.settle(claimed, outcome).await;
        if settled.moved && claimed.placed_age.is_none() {
            self.calls.metrics.bought(&self.calls.name, since_order);
        }
        self.calls
            .metrics
            .ready(&self.calls.name, settled.ready.len(), since_order);
        settled
    }

    /// Records an outcome, and retries until the database is back. If the process dies before that,
    /// the attempt is looked up by whichever process claims the placement next.
    pub(crate) async fn settle(
        &self,
        claimed: &ClaimedPlacement,
        outcome: AttemptOutcome,
    ) -> SettlementEffect {
        let provider = &self.calls;
        let is_proved = provider.provider.capabilities().look_up == LookUp::Exact;
        let is_fresh = claimed.claim == PlacementClaim::Fresh;
        let mut settlement = PlacementSettlement {
            placement_id: claimed.placement_id,
            attempt: claimed.attempt,
            outcome,
            is_priced: claimed.is_priced(),
            known: is_fresh.then(|| claimed.known_columns(&provider.name, is_proved)),
        };
        loop {
            let mut failed_writes = 0;
            let written = self
                .settlements
                .write_while(&settlement, &self.shutdown.soft(), |error| {
                    failed_writes += u32::from(!error.is_transient());
                    let again = !error.is_about_data() && failed_writes < MAX_FAILED_WRITES;
                    if again && let Some(others) = outage::DATABASE.line(error.is_transient()) {
                        tracing::error!(
                            placement.id = %claimed.placement_id,
                            %error,
                            others,
                            "outcome not recorded yet; it is kept in memory and tried again"
                        );
                    }
                    again
                })
                .await;
            let error = match written {
                Ok(Ok(settled)) => {
                    self.log_effect(claimed, &settlement.outcome, &settled);
                    self.count(claimed, &settlement.outcome, &settled);
                    return settled;
                }
                Ok(Err(error)) => error,
                Err(WriterPanicked) => return SettlementEffect::default(),
            };
            if !error.is_about_data()
                || matches!(settlement.outcome, AttemptOutcome::Unstorable { .. })
            {
                tracing::error!(
                    placement.id = %claimed.placement_id,
                    %error,
                    "outcome not recorded; the placement is looked up when its lease, or its first lease, \
                     ends"
                );
                return SettlementEffect::default();
            }
            // That it is bought is certain, and is recorded before the dispute about the rest.
            if let AttemptOutcome::Bought { reference, .. } = &settlement.outcome {
                let bought = PlacementSettlement {
                    outcome: AttemptOutcome::Bought {
                        reference: reference.clone(),
                        units: Vec::new(),
                        listed: 0,
                        // Whoever repairs what could not be recorded needs minutes, too.
                        collect_in: Some(Duration::from_mins(1)),
                        park: None,
                        announced: true,
                    },
                    known: None,
                    ..settlement.clone()
                };
                // If this fails, too, the dispute is recorded without it.
                let _ = self.settlements.write(bought).await;
            }
            let reason = dispute(error.constraint());
            tracing::error!(
                placement.id = %claimed.placement_id,
                %error,
                "an outcome cannot be stored, so the placement is parked for an operator"
            );
            self.alarm(claimed, &reason);
            settlement.outcome = AttemptOutcome::Unstorable { reason };
        }
    }

    /// Logs what is remarkable about the effect of a settlement.
    fn log_effect(
        &self,
        claimed: &ClaimedPlacement,
        outcome: &AttemptOutcome,
        settled: &SettlementEffect,
    ) {
        let placement = claimed.placement_id;
        let order = claimed.order_id;
        if settled.unexpected {
            tracing::error!(
                placement.id = %placement,
                order.id = %order,
                attempt = claimed.attempt,
                provider.name = self.calls.name,
                provider.option = claimed.lane,
                "parked: a purchase was found that contradicts what is stored, for example one of \
                 a refused order; an operator must resolve it"
            );
        } else if let Some(next) = &settled.rerouted {
            tracing::info!(
                placement.id = %placement,
                order.id = %order,
                attempt = claimed.attempt,
                provider.name = self.calls.name,
                provider.option = claimed.lane,
                next,
                "the rejected placement goes to the next provider of its option"
            );
        } else if !settled.moved && matches!(outcome, AttemptOutcome::Bought { .. }) {
            // A stored placement takes every purchase, unless an operator already has to resolve
            // it.
            tracing::warn!(
                placement.id = %placement,
                order.id = %order,
                attempt = claimed.attempt,
                provider.name = self.calls.name,
                provider.option = claimed.lane,
                "a purchase was made, and its placement already waits for an operator or is not stored any more. If commits \
                 were lost, the purchase is an orphan, which `esimctl recover --ledger` names"
            );
        } else if !settled.moved {
            tracing::info!(
                placement.id = %placement,
                order.id = %order,
                attempt = claimed.attempt,
                "another process has already settled this attempt, or left it in doubt, so that a look-up or a repeat \
                 decides; this outcome changes nothing"
            );
        }
    }

    /// Counts the topups that failed or are parked.
    fn count(
        &self,
        claimed: &ClaimedPlacement,
        outcome: &AttemptOutcome,
        settled: &SettlementEffect,
    ) {
        if let Some(next) = &settled.rerouted {
            self.calls.metrics.rerouted(&self.calls.name, next);
        }
        if settled.moved {
            let counted = Counted::of(claimed, outcome, settled);
            // While ingress may still answer 422, it counts these units as refused or failed
            // (`answer_by_verdicts` in its `orders/accept.rs`).
            let undecided =
                matches!(outcome, AttemptOutcome::Rejected { .. }) && claimed.report_to.is_some();
            self.calls
                .metrics
                .failed(&self.calls.name, counted.failed, !undecided);
            self.calls.metrics.parked(&self.calls.name, counted.parked);
        }
    }
}

/// How many topups an outcome has failed, and how many now wait for an operator.
#[derive(Debug, PartialEq, Eq)]
struct Counted {
    failed: usize,
    parked: usize,
}

impl Counted {
    fn of(
        claimed: &ClaimedPlacement,
        outcome: &AttemptOutcome,
        settled: &SettlementEffect,
    ) -> Self {
        let pending = claimed.topups.iter().filter(|topup| topup.pending).count();
        let (failed, parked) = match outcome {
            // Nothing of what the provider has said is stored then.
            AttemptOutcome::Bought { .. } if settled.unexpected => (0, pending),
            AttemptOutcome::Bought { units, park, .. } => {
                let failed = |unit: &&SettledUnit| matches!(unit.progress, Progress::Failed(_));
                let known = units
                    .iter()
                    .filter(|unit| !matches!(unit.progress, Progress::Pending));
                let parked = if park.is_some() && claimed.was != PlacementState::Parked {
                    pending.saturating_sub(known.count())
                } else {
                    0
                };
                (units.iter().filter(failed).count(), parked)
            }
            AttemptOutcome::Rejected { .. } if settled.rerouted.is_some() => (0, 0),
            AttemptOutcome::Rejected { .. } => (pending, 0),
            AttemptOutcome::Parked { .. } | AttemptOutcome::Unstorable { .. } => (0, pending),
            AttemptOutcome::NotBought { .. }
            | AttemptOutcome::NotFound { .. }
            | AttemptOutcome::Unknown { .. } => (0, 0),
        };
        Self { failed, parked }
    }
}

/// Why an outcome is disputed that the database has refused because of this constraint.
fn dispute(constraint: Option<&str>) -> Reason {
    match constraint {
        Some("esims_code_key") => Reason::with(ReasonCode::SoldTwice, "the activation code"),
        Some("esims_provider_unit_key") => {
            Reason::with(ReasonCode::SoldTwice, "the id of the unit")
        }
        Some(other) => Reason::with(ReasonCode::ResponseUnstorable, other),
        None => ReasonCode::ResponseUnstorable.into(),
    }
}

#[cfg(test)]
mod tests {
    use domain::{Agreed, OptionId, OrderId, PartnerId, PlacementId, TopupIds};
    use store::placements::ClaimedTopup;

    use super::*;

    fn claimed(pending: usize) -> ClaimedPlacement {
        let agreed = Agreed::new(OptionId::new()).stored();
        let topup = |_| {
            let id = TopupIds::new([7; 32]).next(runtime::clock::now());
            ClaimedTopup::new(id, agreed.clone(), "ready".to_owned())
        };
        ClaimedPlacement {
            was: PlacementState::Placing,
            claim: PlacementClaim::Probe,
            in_doubt: true,
            ..ClaimedPlacement::new(
                PlacementId::new(),
                OrderId::new(),
                PartnerId::new(),
                "order".to_owned(),
                runtime::clock::now(),
                (0..pending).map(topup).collect(),
            )
        }
    }

    #[test]
    fn each_unit_of_an_unexpected_purchase_waits_for_an_operator() {
        let claimed = claimed(2);
        let failed = |topup: &ClaimedTopup| SettledUnit {
            topup_id: topup.topup_id.clone(),
            provider_unit_id: "unit".to_owned(),
            progress: Progress::Failed("no stock".to_owned()),
        };
        let bought = AttemptOutcome::Bought {
            reference: None,
            units: claimed.topups.iter().map(failed).collect(),
            listed: 2,
            collect_in: None,
            park: None,
            announced: true,
        };
        for (unexpected, counted) in [
            (
                true,
                Counted {
                    failed: 0,
                    parked: 2,
                },
            ),
            (
                false,
                Counted {
                    failed: 2,
                    parked: 0,
                },
            ),
        ] {
            let settled = SettlementEffect {
                moved: true,
                unexpected,
                ..SettlementEffect::default()
            };
            assert_eq!(Counted::of(&claimed, &bought, &settled), counted);
        }
    }
}
