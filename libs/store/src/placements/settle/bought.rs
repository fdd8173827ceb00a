//! The general statements for purchases, whatever their first attempt led to: some profiles may be
//! missing, some units may have failed, and the purchase may be unexpected. The parent module calls
//! them for the purchases of a batch that the lean statement (`complete`) has left.

use domain::{DeliveryId, HistoryKind, PlacementId, Reason, reason::ReasonCode};
use pg::{Result, Transaction, seconds, signed};
use sqlx::PgConnection;
use uuid::Uuid;

use super::outcome::{AttemptOutcome, Changes, PlacementSettlement, Progress, SettlementEffect};
use crate::history::{self, Note};

/// Adds to the changes that a placement has moved, and the delivery of one of its units that became
/// ready.
fn add_moved(changes: &mut Changes, placement: Uuid, ready: Option<Uuid>) {
    let settled = changes.entry(placement.into()).or_default();
    settled.moved = true;
    settled.ready.extend(ready.map(DeliveryId::from));
}

/// The purchases of a batch in the shape of the statement: one vector per column.
#[derive(Default)]
pub(super) struct Bought {
    placements: Vec<Uuid>,
    attempts: Vec<i32>,
    collect_in: Vec<Option<f64>>,
    park: Vec<Option<String>>,
    references: Vec<Option<String>>,
    /// Placements whose deliveries no readiness event will announce.
    unannounced: Vec<Uuid>,
    unit_placements: Vec<Uuid>,
    topups: Vec<String>,
    provider_units: Vec<String>,
    iccids: Vec<Option<String>>,
    profiles: Vec<Option<Vec<u8>>>,
    code_digests: Vec<Option<Vec<u8>>>,
    deliveries: Vec<Option<Uuid>>,
    failed_placements: Vec<Uuid>,
    failed_topups: Vec<String>,
    failed_reasons: Vec<String>,
}

impl Bought {
    pub(super) fn of<'a>(settlements: impl Iterator<Item = &'a PlacementSettlement>) -> Self {
        let mut columns = Self::default();
        for settlement in settlements {
            let AttemptOutcome::Bought {
                reference,
                units,
                listed: _,
                collect_in,
                park,
                announced,
            } = &settlement.outcome
            else {
                continue;
            };
            let placement = settlement.placement_id.uuid();
            columns.placements.push(placement);
            columns.attempts.push(signed(settlement.attempt));
            columns.collect_in.push(collect_in.map(seconds));
            columns.park.push(park.as_ref().map(Reason::to_string));
            columns.references.push(reference.clone());
            if !announced {
                columns.unannounced.push(placement);
            }
            for unit in units {
                columns.unit_placements.push(placement);
                columns.topups.push(unit.topup_id.to_string());
                columns.provider_units.push(unit.provider_unit_id.clone());
                let ready = match &unit.progress {
                    Progress::Ready(ready) => Some(ready),
                    Progress::Pending => None,
                    Progress::Failed(reason) => {
                        columns.failed_placements.push(placement);
                        columns.failed_topups.push(unit.topup_id.to_string());
                        let reason = Reason::with(ReasonCode::UnitFailed, reason);
                        columns.failed_reasons.push(reason.to_string());
                        None
                    }
                };
                columns
                    .iccids
                    .push(ready.map(|ready| ready.iccid.as_str().to_owned()));
                columns
                    .profiles
                    .push(ready.map(|ready| ready.profile.sealed.clone()));
                columns
                    .code_digests
                    .push(ready.and_then(|ready| ready.profile.code_digest.clone()));
                columns
                    .deliveries
                    .push(ready.map(|ready| ready.delivery_id.uuid()));
            }
        }
        columns
    }

    /// Records the purchases of a batch.
    pub(super) async fn record(
        &self,
        connection: &mut PgConnection,
        changes: &mut Changes,
    ) -> Result<()> {
        if self.placements.is_empty() {
            return Ok(());
        }
        self.record_units(connection, changes).await
    }

    /// Marks the failed units of those placements that have moved. The history tells of them and of
    /// what was parked.
    pub(super) async fn fail_units_and_write_history(
        &self,
        transaction: &mut Transaction<'_>,
        changes: &Changes,
    ) -> Result<()> {
        let has_moved = |placement: &Uuid| changes.contains_key(&PlacementId::from(*placement));
        let moved: Vec<bool> = self.failed_placements.iter().map(has_moved).collect();
        if moved.contains(&true) {
            self.fail_units(transaction, &moved).await?;
        }
        self.write_history_of_parked(transaction).await
    }

    /// Parks those purchases that have moved no placement, because nobody expected them.
    pub(super) async fn park_others(
        &self,
        connection: &mut PgConnection,
        changes: &mut Changes,
    ) -> Result<()> {
        let has_moved = |placement: &Uuid| changes.contains_key(&PlacementId::from(*placement));
        if self.placements.iter().all(has_moved) {
            return Ok(());
        }
        self.park_unexpected(connection, changes).await
    }

    /// Records purchases with their units, profiles and deliveries in one statement. It passes the
    /// ids of a CTE on as an array and never joins two CTEs: the planner expects one row from each
    /// and would pick a nested loop, whose cost is quadratic in the size of the batch.
    ///
    /// All steps after `moved` concern only placements that it has moved, which makes repetitions
    /// harmless.
    #[expect(
        clippy::too_many_lines,
        reason = "it is one statement, whose steps are explained where they stand"
    )]
    async fn record_units(
        &self,
        connection: &mut PgConnection,
        changes: &mut Changes,
    ) -> Result<()> {
        let query = sqlx::query!(
            r#"WITH unit AS MATERIALIZED (
                   -- All units of the batch, as a table.
                   SELECT * FROM unnest($6::uuid[], $7::text[], $8::text[], $9::text[], $10::bytea[], $11::uuid[],
                                        $13::bytea[])
                       AS unit (placement_id, topup_id, provider_unit_id, iccid, profile, delivery_id, code_digest)
               ), moved AS (
                   -- Moves each placement to `placed`, or parks it if its profiles are overdue. Only the attempt
                   -- that is recorded last can be settled, and only while it is open, or bought with profiles
                   -- missing.
                   UPDATE placements p
                   SET state = CASE WHEN new.park IS NULL THEN 'placed' ELSE 'parked' END,
                       reason = new.park,
                       placed_at = coalesce(p.placed_at, now()), unknowns = 0, alternatives = NULL, first_claim = NULL,
                       provider_reference = coalesce(new.reference, p.provider_reference)
                   FROM unnest($1::uuid[], $2::int[], $3::float8[], $4::text[], $12::text[])
                       AS new (placement_id, attempt, collect_in, park, reference)
                   WHERE p.placement_id = new.placement_id AND p.attempt = new.attempt
                     AND (p.state IN ('placing', 'placed') OR (p.state = 'parked' AND NOT p.disputed))
                   RETURNING p.placement_id, p.order_id, p.partner_id, p.provider, p.lane, new.collect_in, new.park
               ), stored AS (
                   -- Inserts the eSIMs, or adds the profile that has now arrived to a known one, if the provider
                   -- still names the same unit. A unit stays with its topup for ever; only its profile may come
                   -- later. A failed topup gets none.
                   INSERT INTO esims AS e (topup_id, provider, provider_unit_id, iccid, profile, ready_at, delivery_id, code_digest)
                   SELECT unit.topup_id, p.provider, unit.provider_unit_id, unit.iccid, unit.profile,
                          CASE WHEN unit.profile IS NOT NULL THEN now() END, unit.delivery_id, unit.code_digest
                   FROM unit
                   JOIN topups t ON t.topup_id = unit.topup_id AND t.placement_id = unit.placement_id
                                    AND t.state = 'pending'
                   JOIN placements p ON p.placement_id = unit.placement_id
                   WHERE unit.placement_id = ANY (ARRAY (SELECT placement_id FROM moved))
                   ON CONFLICT (topup_id) DO UPDATE
                   SET iccid = excluded.iccid, profile = excluded.profile, ready_at = excluded.ready_at,
                       delivery_id = excluded.delivery_id, code_digest = excluded.code_digest
                   WHERE e.ready_at IS NULL AND excluded.ready_at IS NOT NULL
                     AND e.provider_unit_id = excluded.provider_unit_id
                   RETURNING e.topup_id, e.delivery_id
               ), ready AS (
                   -- What the deliveries of the newly ready units need.
                   SELECT stored.topup_id, stored.delivery_id, p.placement_id, p.order_id, p.partner_id, o.answer_by,
                          t.option_id, t.terms, o.external_order_id, o.traceparent, o.created_at AS ordered_at
                   FROM stored
                   JOIN topups t ON t.topup_id = stored.topup_id
                   JOIN placements p ON p.placement_id = t.placement_id
                   JOIN orders o ON o.order_id = p.order_id
                   WHERE stored.delivery_id IS NOT NULL
               ), created AS (
                   INSERT INTO deliveries (delivery_id, partner_id, topup_id, order_id, option_id, terms,
                                           external_order_id, traceparent, ordered_at)
                   SELECT delivery_id, partner_id, topup_id, order_id, option_id, terms, external_order_id,
                          traceparent, ordered_at
                   FROM ready
               ), unannounced AS (
                   -- No readiness event will name these, so they are due as soon as the order is
                   -- certainly answered.
                   INSERT INTO work (id, kind, provider, lane, partner_id, at)
                   SELECT delivery_id, 'deliver', '', '', partner_id, greatest(answer_by, now())
                   FROM ready WHERE placement_id = ANY ($5)
               ), done AS (
                   -- A placement without missing profiles needs no work.
                   DELETE FROM work
                   WHERE id = ANY (ARRAY (SELECT placement_id FROM moved WHERE collect_in IS NULL))
               ), later AS (
                   -- The next collect of the others.
                   INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
                   SELECT placement_id, 'collect', provider, lane, partner_id,
                          now() + make_interval(secs => collect_in)
                   FROM moved WHERE collect_in IS NOT NULL
                   ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, at = excluded.at
               ), parked AS (
                   -- Makes parked placements visible to operators.
                   INSERT INTO held (id, state, provider, partner_id)
                   SELECT placement_id, 'parked', provider, partner_id FROM moved WHERE park IS NOT NULL
                   ON CONFLICT DO NOTHING
               ), unheld AS (
                   -- A late response may place a parked placement.
                   DELETE FROM held
                   WHERE id = ANY (ARRAY (SELECT placement_id FROM moved WHERE park IS NULL))
                   RETURNING id
               ), cleared AS (
                   -- The history remembers the end of the wait. A repeat finds nothing to end, so this is no
                   -- statement of its own.
                   INSERT INTO history (order_id, placement_id, provider, kind)
                   SELECT order_id, placement_id, provider, $14
                   FROM moved WHERE placement_id = ANY (ARRAY (SELECT id FROM unheld))
               )
               -- One row for each moved placement, and one more for each ready unit.
               SELECT placement_id AS "placement_id!", NULL::uuid AS "delivery_id?" FROM moved
               UNION ALL SELECT placement_id, delivery_id FROM ready
               -- And one for each unit that this very settlement has made ready before: its batch is repeated
               -- after an error, or because its response was lost, and nobody has announced these yet.
               UNION ALL
               SELECT unit.placement_id, unit.delivery_id
               FROM unit JOIN esims e ON e.topup_id = unit.topup_id AND e.delivery_id = unit.delivery_id
               WHERE unit.placement_id = ANY (ARRAY (SELECT placement_id FROM moved))"#,
            &self.placements,
            &self.attempts,
            &self.collect_in as &[Option<f64>],
            &self.park as &[Option<String>],
            &self.unannounced,
            &self.unit_placements,
            &self.topups,
            &self.provider_units,
            &self.iccids as &[Option<String>],
            &self.profiles as &[Option<Vec<u8>>],
            &self.deliveries as &[Option<Uuid>],
            &self.references as &[Option<String>],
            &self.code_digests as &[Option<Vec<u8>>],
            HistoryKind::Cleared.as_str(),
        );
        for row in query.fetch_all(connection).await? {
            add_moved(changes, row.placement_id, row.delivery_id);
        }
        Ok(())
    }

    /// Writes into the history which purchases this transaction has parked. Their `held.at` is the
    /// start of this transaction. One that was parked before stays so with each further collect.
    async fn write_history_of_parked(&self, transaction: &mut Transaction<'_>) -> Result<()> {
        if self.park.iter().all(Option::is_none) {
            return Ok(());
        }
        let query = sqlx::query_scalar!(
            "SELECT id FROM held WHERE id = ANY ($1) AND at = now()",
            &self.placements,
        );
        let parked = query.fetch_all(&mut **transaction).await?;
        let reasons = self.placements.iter().zip(&self.park);
        let notes: Vec<Note> = reasons
            .filter(|(placement, _)| parked.contains(placement))
            .map(|(placement, reason)| Note {
                reason: reason.clone(),
                ..Note::new(*placement, HistoryKind::Parked)
            })
            .collect();
        history::write(transaction, &notes).await
    }

    /// Marks the failed units of those placements that moved. A unit that has a profile stays
    /// ready, whatever the provider says later. The trigger `topup_failed` creates the events about
    /// these failures.
    async fn fail_units(&self, transaction: &mut Transaction<'_>, moved: &[bool]) -> Result<()> {
        let query = sqlx::query!(
            r#"UPDATE topups t SET state = 'failed', reason = new.reason
             FROM unnest($1::text[], $2::text[], $3::bool[]) AS new (topup_id, reason, moved)
             WHERE t.topup_id = new.topup_id AND new.moved AND t.state = 'pending'
               AND NOT EXISTS (SELECT FROM esims e WHERE e.topup_id = t.topup_id AND e.ready_at IS NOT NULL)
             RETURNING t.topup_id, t.placement_id, t.reason"#,
            &self.failed_topups,
            &self.failed_reasons,
            moved,
        );
        let failed = query.fetch_all(&mut **transaction).await?.into_iter();
        let notes: Vec<Note> = failed
            .map(|row| Note {
                topup_id: Some(row.topup_id),
                reason: row.reason,
                ..Note::new(row.placement_id, HistoryKind::UnitFailed)
            })
            .collect();
        history::write(transaction, &notes).await
    }

    /// Parks purchases that nobody expected: by another attempt than the current one, or of a
    /// placement that is open again or closed. A later attempt than the current one was recorded by
    /// a commit that the database has lost.
    ///
    /// One statement parks them and writes it into the history. If it is repeated, because its
    /// response was lost, it finds them parked for the same purchase and returns them once more, so
    /// that nobody misses the alarm.
    async fn park_unexpected(
        &self,
        connection: &mut PgConnection,
        changes: &mut Changes,
    ) -> Result<()> {
        let query = sqlx::query!(
            r#"WITH moved AS (
                   -- `disputed` leaves the placement to an operator: no outcome moves it any more.
                   UPDATE placements p
                   SET state = 'parked', disputed = true, placed_at = coalesce(p.placed_at, now()), alternatives = NULL,
                       -- The stored id belongs to the purchase at the placement's provider. A placement that has
                       -- been at other providers may have this purchase from one of them, so its id is only named.
                       provider_reference = CASE WHEN p.tried IS NULL THEN coalesce(p.provider_reference, new.reference)
                                                 ELSE p.provider_reference END,
                       reason = 'bought_unexpectedly: attempt ' || new.attempt || ' was bought although this placement was ' || p.state
                                || ' at attempt ' || p.attempt
                                || coalesce('; the provider of that attempt knows the purchase as ' || new.reference, '')
                   FROM unnest($1::uuid[], $2::int[], $3::text[]) AS new (placement_id, attempt, reference)
                   WHERE p.placement_id = new.placement_id
                     AND (p.state IN ('accepted', 'refused', 'failed')
                          OR (p.attempt <> new.attempt AND NOT p.disputed))
                   RETURNING p.placement_id, p.order_id, p.provider, p.partner_id, p.attempt, p.reason
               ), done AS (
                   -- Nothing is done for it until an operator resolves it.
                   DELETE FROM work WHERE id = ANY (ARRAY (SELECT placement_id FROM moved))
               ), parked AS (
                   -- Makes it visible to operators.
                   INSERT INTO held (id, state, provider, partner_id)
                   SELECT placement_id, 'parked', provider, partner_id FROM moved
                   ON CONFLICT DO NOTHING
               ), noted AS (
                   INSERT INTO history (order_id, placement_id, provider, kind, attempt, reason)
                   SELECT order_id, placement_id, provider, $4, attempt, reason FROM moved
               )
               SELECT placement_id AS "placement_id!", true AS "moved!" FROM moved
               UNION ALL
               SELECT p.placement_id, false
               FROM unnest($1::uuid[], $2::int[]) AS new (placement_id, attempt)
               JOIN placements p ON p.placement_id = new.placement_id
               WHERE p.placement_id = ANY ($1) AND p.disputed
                 AND starts_with(p.reason, 'bought_unexpectedly: attempt ' || new.attempt || ' was bought')"#,
            &self.placements,
            &self.attempts,
            &self.references as &[Option<String>],
            HistoryKind::Disputed.as_str(),
        );
        for row in query.fetch_all(connection).await? {
            changes.insert(
                row.placement_id.into(),
                SettlementEffect {
                    moved: row.moved,
                    unexpected: true,
                    ..SettlementEffect::default()
                },
            );
        }
        Ok(())
    }
}
