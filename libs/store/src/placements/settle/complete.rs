//! The lean settlement of the most common outcome: an attempt, whatever its number, bought the
//! placement right after its claim, and all of its profiles are there.
//!
//! It exists because nearly every order ends like this, so its cost decides how many orders one
//! database can carry. It writes `placements`, `esims` and `deliveries`, and reads no other table,
//! because the claim has already read everything that the new rows repeat. `topups` stays as it is:
//! a unit is ready once its eSIM has `ready_at`, and `topups.state` only says `pending` or
//! `failed`.
//!
//! If all of these purchases come again by a look-up, the commit returns before the disk has it,
//! unless commits wait for a standby. A crash of the server may then lose the settlements. The
//! claims before them are flushed, so each placement is `placing` with its attempt, and the look-up
//! brings the same eSIMs. A webhook that was sent meanwhile is repeated with the same id and the
//! same body.
//!
//! `settle` of the parent module calls it first. A placement that it does not move, for example
//! because another process has settled it in the meantime, is left to the general statements.

use std::collections::{HashMap, HashSet};

use domain::{DeliveryId, PlacementId};
use pg::{Result, signed};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::outcome::{
    AttemptOutcome, KnownColumns, PlacementSettlement, Progress, SettlementEffect,
};

/// Records the common outcomes of a batch and puts their effects into `settled`. Returns the
/// indices of the settlements that are left for the general statements.
pub(super) async fn record(
    connection: &mut PgConnection,
    settlements: &[PlacementSettlement],
    settled: &mut [SettlementEffect],
) -> Result<Vec<usize>> {
    let complete = CompletePurchases::of(settlements);
    let mut changes = HashMap::new();
    if !complete.placements.is_empty() {
        changes = complete.record(connection).await?;
    }
    let mut remaining = Vec::new();
    for (index, settlement) in settlements.iter().enumerate() {
        // Another settlement of the same placement in this batch must not take its deliveries, so
        // the placement's id alone does not decide.
        let change = if is_complete_and_fresh(settlement) {
            changes.remove(&settlement.placement_id)
        } else {
            None
        };
        match change {
            Some(deliveries) => {
                settled[index] = SettlementEffect {
                    moved: true,
                    ready: deliveries,
                    ..SettlementEffect::default()
                }
            }
            None => remaining.push(index),
        }
    }
    Ok(remaining)
}

/// Whether the outcome is the common one: a freshly claimed placement, whatever the number of its
/// attempt, was bought with all of its profiles. So it leaves no work, and readiness events
/// announce its deliveries. A provider that names its purchases by an id of its own takes the
/// general statements, so that the lean one does not pay for a column that most purchases lack.
fn is_complete_and_fresh(settlement: &PlacementSettlement) -> bool {
    let AttemptOutcome::Bought {
        reference: None,
        units,
        listed: _,
        collect_in: None,
        park: None,
        announced: true,
    } = &settlement.outcome
    else {
        return false;
    };
    settlement.known.is_some()
        && units
            .iter()
            .all(|unit| matches!(unit.progress, Progress::Ready(_)))
}

/// The [common outcomes](is_complete_and_fresh) of a batch, one vector per column.
#[derive(Default)]
struct CompletePurchases {
    placements: Vec<Uuid>,
    attempts: Vec<i32>,
    unit_placements: Vec<Uuid>,
    orders: Vec<Uuid>,
    partners: Vec<Uuid>,
    providers: Vec<String>,
    topups: Vec<String>,
    provider_units: Vec<String>,
    iccids: Vec<String>,
    profiles: Vec<Vec<u8>>,
    code_digests: Vec<Option<Vec<u8>>>,
    deliveries: Vec<Uuid>,
    options: Vec<Option<Uuid>>,
    terms: Vec<Option<String>>,
    external_orders: Vec<String>,
    traceparents: Vec<Option<String>>,
    ordered_at: Vec<OffsetDateTime>,
    come_again: Vec<bool>,
}

/// Whether a look-up would bring the same settlement again, so that it may be lost. It must prove
/// the purchase, and bring the same eSIM for each unit. It may not, if the provider lists more
/// units than were ordered: the units are assigned in the order of their ids, and another one could
/// come first the next time.
fn comes_again(known: &KnownColumns, listed: usize) -> bool {
    let ordered = known.agreed.len();
    known.is_proved_by_look_up && listed == ordered
}

impl CompletePurchases {
    /// Collects the common outcomes of a batch. If a placement occurs twice, its second settlement
    /// is left to the general statements, because a statement must not name a row twice.
    fn of(settlements: &[PlacementSettlement]) -> Self {
        let mut columns = Self::default();
        let mut seen = HashSet::with_capacity(settlements.len());
        for settlement in settlements
            .iter()
            .filter(|settlement| is_complete_and_fresh(settlement))
        {
            let (AttemptOutcome::Bought { units, listed, .. }, Some(known)) =
                (&settlement.outcome, &settlement.known)
            else {
                continue;
            };
            let placement = settlement.placement_id.uuid();
            if !seen.insert(placement) {
                continue;
            }
            columns.placements.push(placement);
            columns.attempts.push(signed(settlement.attempt));
            columns.come_again.push(comes_again(known, *listed));
            for unit in units {
                let Progress::Ready(ready) = &unit.progress else {
                    continue;
                };
                columns.unit_placements.push(placement);
                columns.orders.push(known.order_id.uuid());
                columns.partners.push(known.partner_id.uuid());
                columns.providers.push(known.provider.clone());
                columns.topups.push(unit.topup_id.to_string());
                columns.provider_units.push(unit.provider_unit_id.clone());
                columns.iccids.push(ready.iccid.as_str().to_owned());
                columns.profiles.push(ready.profile.sealed.clone());
                columns.code_digests.push(ready.profile.code_digest.clone());
                columns.deliveries.push(ready.delivery_id.uuid());
                let agreed = known.agreed.get(&unit.topup_id);
                let option = agreed.map(|agreed| agreed.option_id.uuid());
                columns.options.push(option);
                let terms = agreed.and_then(|agreed| agreed.terms.clone());
                columns.terms.push(terms);
                columns
                    .external_orders
                    .push(known.external_order_id.clone());
                columns.traceparents.push(known.traceparent.clone());
                columns.ordered_at.push(known.ordered_at);
            }
        }
        columns
    }

    /// Records the purchases with their profiles and deliveries. Returns the deliveries of each
    /// placement that moved.
    ///
    /// `moved` moves the placements whose attempt is the current one and still open. `unit` selects
    /// the units of these, `stored` inserts their eSIMs and `created` their deliveries. The units
    /// need no check of their own: only a claim leads to `placing`, and the topups of a placement
    /// can neither fail nor get an eSIM before that attempt is settled. `commit_without_flush` sets
    /// `synchronous_commit` for the transaction, if all of it comes again by a look-up.
    async fn record(
        &self,
        connection: &mut PgConnection,
    ) -> Result<HashMap<PlacementId, Vec<DeliveryId>>> {
        let query = sqlx::query!(
            r#"WITH moved AS (
                   UPDATE placements p
                   SET state = 'placed', placed_at = now(), unknowns = 0, reason = NULL, alternatives = NULL,
                       first_claim = NULL
                   FROM unnest($1::uuid[], $2::int[]) AS new (placement_id, attempt)
                   CROSS JOIN commit_without_flush($17 AND current_setting('synchronous_standby_names') = '')
                   WHERE p.placement_id = new.placement_id AND p.attempt = new.attempt AND p.state = 'placing'
                   RETURNING p.placement_id
               ), unit AS MATERIALIZED (
                   SELECT *
                   FROM unnest($3::uuid[], $4::uuid[], $5::uuid[], $6::text[], $7::text[], $8::text[], $9::text[],
                               $10::bytea[], $11::uuid[], $12::bytea[], $13::uuid[], $14::text[], $15::text[],
                               $16::timestamptz[], $18::text[])
                       AS unit (placement_id, order_id, partner_id, provider, topup_id, provider_unit_id, iccid,
                                profile, delivery_id, code_digest, option_id, external_order_id, traceparent,
                                ordered_at, terms)
                   WHERE placement_id = ANY (ARRAY (SELECT placement_id FROM moved))
               ), stored AS (
                   INSERT INTO esims (topup_id, provider, provider_unit_id, iccid, profile, ready_at, delivery_id, code_digest)
                   SELECT topup_id, provider, provider_unit_id, iccid, profile, now(), delivery_id, code_digest FROM unit
               ), created AS (
                   INSERT INTO deliveries (delivery_id, partner_id, topup_id, order_id, option_id, terms,
                                           external_order_id, traceparent, ordered_at)
                   SELECT delivery_id, partner_id, topup_id, order_id, option_id, terms, external_order_id,
                          traceparent, ordered_at
                   FROM unit
               )
               SELECT placement_id AS "placement_id!", delivery_id AS "delivery_id!" FROM unit"#,
            &self.placements,
            &self.attempts,
            &self.unit_placements,
            &self.orders,
            &self.partners,
            &self.providers,
            &self.topups,
            &self.provider_units,
            &self.iccids,
            &self.profiles,
            &self.deliveries,
            &self.code_digests as &[Option<Vec<u8>>],
            &self.options as &[Option<Uuid>],
            &self.external_orders,
            &self.traceparents as &[Option<String>],
            &self.ordered_at,
            self.come_again.iter().all(|again| *again),
            &self.terms as &[Option<String>],
        );
        let mut moved: HashMap<PlacementId, Vec<DeliveryId>> =
            HashMap::with_capacity(self.placements.len());
        for row in query.fetch_all(connection).await? {
            moved
                .entry(row.placement_id.into())
                .or_default()
                .push(row.delivery_id.into());
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use domain::{Agreed, OptionId, OrderId, PartnerId, TopupIds};

    use super::*;

    #[test]
    fn only_what_an_exact_look_up_lists_whole_comes_again() {
        let at = OffsetDateTime::UNIX_EPOCH;
        let topups = TopupIds::new([0; 32]);
        let agreed = Agreed::new(OptionId::new()).stored();
        let known = |is_proved_by_look_up| KnownColumns {
            order_id: OrderId::new(),
            partner_id: PartnerId::new(),
            provider: String::new(),
            external_order_id: String::new(),
            ordered_at: at,
            traceparent: None,
            agreed: [(); 2].map(|()| (topups.next(at), agreed.clone())).into(),
            is_proved_by_look_up,
        };
        assert!(comes_again(&known(true), 2));
        assert!(!comes_again(&known(false), 2));
        assert!(!comes_again(&known(true), 3));
    }
}
