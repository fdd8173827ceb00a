//! Settling placements: outcomes are recorded in batches.
//!
//! Most outcomes of most batches are the same: the first attempt bought the placement and all its
//! profiles are there. A lean statement of three writes records those ([`complete`]). Whatever it does not
//! move, and every other outcome, goes through the general statements of this file, which also write
//! and delete due work and what waits for an operator.

mod complete;

use std::{collections::HashMap, time::Duration};

use domain::{DeliveryId, Iccid, OrderId, PartnerId, PlacementId, TopupId};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{Result, retry_conflicts, seconds, signed};

/// The outcome of an attempt, or of a look-up or collect after it.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub placement_id: PlacementId,
    pub attempt: u32,
    pub outcome: Outcome,
    /// `Some` if the placement was claimed fresh: the lean statement may then record its purchase without reading these
    /// columns, and its units have no eSIM yet. Such a placement usually has no row in `work`. One that is left over, for
    /// example after a late job, does no harm, because the claim that finds it deletes it.
    pub known_columns: Option<KnownColumns>,
}

/// The columns of a freshly claimed placement that its eSIMs and deliveries repeat.
#[derive(Clone, Debug)]
pub struct KnownColumns {
    pub order_id: OrderId,
    pub partner_id: PartnerId,
    pub provider: String,
}

/// The outcome of an attempt; see [`domain::placement::Event`].
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The provider has the purchase. Units with a profile become ready and get a delivery.
    Bought {
        units: Vec<Unit>,
        /// The delay until the next collect; `None` if no profile is missing.
        collect_in: Option<Duration>,
        /// Why the purchase parks: profiles have been missing for too long. `None` if it does not park.
        park: Option<String>,
        /// Whether a readiness event will announce the new deliveries. Otherwise they are due at `answer_by`.
        announced: bool,
    },
    /// Certainly nothing was bought; a retry may follow.
    NotBought { retry_in: Duration, reason: String },
    /// The provider rejected the purchase for good.
    Rejected { status: String, message: String },
    /// A look-up found no such purchase.
    NotFound {
        /// The settling delay has passed.
        settled: bool,
        look_in: Duration,
    },
    /// The outcome, or the state of the units, is unknown: only the count and the next look-up change.
    Unknown { look_in: Duration, reason: String },
    /// The outcome stayed unknown. An operator must resolve the placement.
    Parked { reason: String },
    /// The provider's data, or the row itself, cannot be stored or read. An operator must act.
    Disputed { reason: String },
}

/// The known state of one unit that the provider has.
#[derive(Clone, Debug)]
pub struct Unit {
    pub topup_id: TopupId,
    /// The provider's unit id that is assigned to it.
    pub provider_unit_id: String,
    pub progress: Progress,
}

#[derive(Clone, Debug)]
pub enum Progress {
    /// No profile yet.
    Pending,
    /// The profile has arrived.
    Ready {
        iccid: Iccid,
        profile: Vec<u8>,
        /// The delivery that is created together with the profile.
        delivery_id: DeliveryId,
    },
    /// It will never have a profile, for this reason.
    Failed(String),
}

/// The effect of a settlement.
#[derive(Clone, Debug, Default)]
pub struct Settled {
    /// Whether it changed the placement; a late or repeated one does not.
    pub moved: bool,
    /// The purchase was unexpected, so the placement is parked now.
    pub unexpected: bool,
    /// The deliveries of the units that it made ready.
    pub ready: Vec<DeliveryId>,
}

/// Records a batch of settlements, each along its transition.
///
/// The common outcomes are committed first and by themselves. A conflict repeats only the part that it
/// hit, because a repeat finds nothing new in what is already recorded: it would return no deliveries,
/// and the readiness events of those would be missing until the sweep finds them.
pub async fn settle(connection: &mut PgConnection, settlements: &[Settlement]) -> Result<Vec<Settled>> {
    let mut settled = vec![Settled::default(); settlements.len()];
    let remaining = retry_conflicts!(complete::settle(&mut *connection, settlements, &mut settled))?;
    if !remaining.is_empty() {
        retry_conflicts!(settle_others(&mut *connection, settlements, &remaining, &mut settled))?;
    }
    Ok(settled)
}

/// Records these members of a batch by the general statements, in one transaction where that is needed.
async fn settle_others(
    connection: &mut PgConnection,
    settlements: &[Settlement],
    members: &[usize],
    settled: &mut [Settled],
) -> Result<()> {
    let rounds = rounds(settlements, members);
    if members.iter().all(|member| needs_no_transaction(&settlements[*member])) {
        // Usually this is one statement, which is a transaction by itself.
        return settle_rounds(connection, settlements, &rounds, settled).await;
    }
    let mut transaction = sqlx::Connection::begin(connection).await?;
    settle_rounds(&mut transaction, settlements, &rounds, settled).await?;
    transaction.commit().await?;
    Ok(())
}

/// Whether each general statement may commit by itself. Failed units forbid that: a further statement marks them, and
/// if the process died before it, they would stay pending without any work. Outcomes that bought nothing are rare, so
/// the cost of the transaction does not matter there.
///
/// Other purchases may take further statements, too: one parks a purchase that nobody expected, and a second
/// settlement of the same placement has a round of its own. They need no larger transaction, because each statement
/// leaves every row in a state that the machine allows, and a repeat finds what the first one recorded. At worst the
/// events of recorded deliveries are missing, and the sweep finds these.
fn needs_no_transaction(settlement: &Settlement) -> bool {
    let lasts = |unit: &Unit| !matches!(unit.progress, Progress::Failed(_));
    matches!(&settlement.outcome, Outcome::Bought { units, .. } if units.iter().all(lasts))
}

/// Splits these members of a batch into statements. A statement sees each placement only once, so
/// two settlements of one placement go into different rounds. Usually there is one round.
fn rounds(settlements: &[Settlement], members: &[usize]) -> Vec<Vec<usize>> {
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    let mut next: HashMap<PlacementId, usize> = HashMap::with_capacity(members.len());
    for index in members {
        let round = next.entry(settlements[*index].placement_id).or_default();
        match rounds.get_mut(*round) {
            Some(round) => round.push(*index),
            None => rounds.push(vec![*index]),
        }
        *round += 1;
    }
    rounds
}

async fn settle_rounds(
    connection: &mut PgConnection,
    settlements: &[Settlement],
    rounds: &[Vec<usize>],
    settled: &mut [Settled],
) -> Result<()> {
    for round in rounds {
        let of_round = || round.iter().map(|index| &settlements[*index]);
        let mut changes = HashMap::new();
        Moves::of(of_round()).record(connection, &mut changes).await?;
        Bought::of(of_round()).record(connection, &mut changes).await?;
        for index in round {
            settled[*index] = changes.remove(&settlements[*index].placement_id).unwrap_or_default();
        }
    }
    Ok(())
}

type Changes = HashMap<PlacementId, Settled>;

/// The purchases of a batch, one vector per column.
#[derive(Default)]
struct Bought {
    placements: Vec<Uuid>,
    attempts: Vec<i32>,
    collect_in: Vec<Option<f64>>,
    park: Vec<Option<String>>,
    /// Placements whose readiness is not announced by a message.
    unannounced: Vec<Uuid>,
    unit_placements: Vec<Uuid>,
    topups: Vec<String>,
    provider_units: Vec<String>,
    iccids: Vec<Option<String>>,
    profiles: Vec<Option<Vec<u8>>>,
    deliveries: Vec<Option<Uuid>>,
    failed_placements: Vec<Uuid>,
    failed_topups: Vec<String>,
    failed_reasons: Vec<String>,
}

impl Bought {
    fn of<'a>(settlements: impl Iterator<Item = &'a Settlement>) -> Self {
        let mut columns = Self::default();
        for settlement in settlements {
            let Outcome::Bought { units, collect_in, park, announced } = &settlement.outcome else {
                continue;
            };
            let placement = settlement.placement_id.uuid();
            columns.placements.push(placement);
            columns.attempts.push(signed(settlement.attempt));
            columns.collect_in.push(collect_in.map(seconds));
            columns.park.push(park.clone());
            if !announced {
                columns.unannounced.push(placement);
            }
            for unit in units {
                columns.unit_placements.push(placement);
                columns.topups.push(unit.topup_id.to_string());
                columns.provider_units.push(unit.provider_unit_id.clone());
                let mut ready = None;
                match &unit.progress {
                    Progress::Pending => {}
                    Progress::Ready { iccid, profile, delivery_id } => {
                        ready = Some((iccid.as_str().to_owned(), profile.clone(), delivery_id.uuid()));
                    }
                    Progress::Failed(reason) => {
                        columns.failed_placements.push(placement);
                        columns.failed_topups.push(unit.topup_id.to_string());
                        columns.failed_reasons.push(reason.clone());
                    }
                }
                columns.iccids.push(ready.as_ref().map(|(iccid, ..)| iccid.clone()));
                columns.deliveries.push(ready.as_ref().map(|(.., delivery)| *delivery));
                columns.profiles.push(ready.map(|(_, profile, _)| profile));
            }
        }
        columns
    }

    /// One statement stores the units, their profiles and their deliveries. It never joins two CTEs
    /// directly: the planner expects one row from each and picks a nested loop, which is quadratic
    /// in the size of the batch.
    async fn record(&self, connection: &mut PgConnection, changes: &mut Changes) -> Result<()> {
        if self.placements.is_empty() {
            return Ok(());
        }
        let query = sqlx::query!(
            r#"WITH unit AS MATERIALIZED (
                   SELECT * FROM unnest($6::uuid[], $7::text[], $8::text[], $9::text[], $10::bytea[], $11::uuid[])
                       AS unit (placement_id, topup_id, provider_unit_id, iccid, profile, delivery_id)
               ), moved AS (
                   -- Only the attempt that is recorded last can be settled, and only while it is open, or
                   -- bought with profiles missing.
                   UPDATE placements p
                   SET state = CASE WHEN new.park IS NULL THEN 'placed' ELSE 'parked' END,
                       reason = new.park,
                       placed_at = coalesce(p.placed_at, now()), unknowns = 0
                   FROM unnest($1::uuid[], $2::int[], $3::float8[], $4::text[])
                       AS new (placement_id, attempt, collect_in, park)
                   WHERE p.placement_id = new.placement_id AND p.attempt = new.attempt
                     AND (p.state IN ('placing', 'placed') OR (p.state = 'parked' AND NOT p.disputed))
                   RETURNING p.placement_id, p.order_id, p.partner_id, p.provider, p.lane, new.collect_in, new.park
               ), stored AS (
                   -- A unit stays with its topup for ever; only its profile may come later.
                   INSERT INTO esims AS e (topup_id, provider, provider_unit_id, iccid, profile, ready_at, delivery_id)
                   SELECT unit.topup_id, p.provider, unit.provider_unit_id, unit.iccid, unit.profile,
                          CASE WHEN unit.profile IS NOT NULL THEN now() END, unit.delivery_id
                   FROM unit
                   JOIN topups t ON t.topup_id = unit.topup_id AND t.placement_id = unit.placement_id
                                    AND t.state = 'pending'
                   JOIN placements p ON p.placement_id = unit.placement_id
                   WHERE unit.placement_id = ANY (ARRAY (SELECT placement_id FROM moved))
                   ON CONFLICT (topup_id) DO UPDATE
                   SET iccid = excluded.iccid, profile = excluded.profile, ready_at = excluded.ready_at,
                       delivery_id = excluded.delivery_id
                   WHERE e.ready_at IS NULL AND excluded.ready_at IS NOT NULL
                     AND e.provider_unit_id = excluded.provider_unit_id
                   RETURNING e.topup_id, e.delivery_id
               ), ready AS (
                   SELECT stored.topup_id, stored.delivery_id, p.placement_id, p.order_id, p.partner_id, o.answer_by
                   FROM stored
                   JOIN topups t ON t.topup_id = stored.topup_id
                   JOIN placements p ON p.placement_id = t.placement_id
                   JOIN orders o ON o.order_id = p.order_id
                   WHERE stored.delivery_id IS NOT NULL
               ), created AS (
                   INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id)
                   SELECT delivery_id, partner_id, 'topup.ready', topup_id, order_id FROM ready
               ), unannounced AS (
                   -- No readiness event will name these, so they are due as soon as the order is
                   -- certainly answered.
                   INSERT INTO work (id, kind, provider, lane, partner_id, at)
                   SELECT delivery_id, 'deliver', '', '', partner_id, greatest(answer_by, now())
                   FROM ready WHERE placement_id = ANY ($5)
               ), done AS (
                   DELETE FROM work
                   WHERE id = ANY (ARRAY (SELECT placement_id FROM moved WHERE collect_in IS NULL))
               ), later AS (
                   INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
                   SELECT placement_id, 'collect', provider, lane, partner_id,
                          now() + make_interval(secs => collect_in)
                   FROM moved WHERE collect_in IS NOT NULL
                   ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, at = excluded.at
               ), parked AS (
                   INSERT INTO held (id, state, provider, partner_id)
                   SELECT placement_id, 'parked', provider, partner_id FROM moved WHERE park IS NOT NULL
                   ON CONFLICT DO NOTHING
               ), settled AS (
                   DELETE FROM held
                   WHERE id = ANY (ARRAY (SELECT placement_id FROM moved WHERE park IS NULL))
               )
               SELECT placement_id AS "placement_id!", NULL::uuid AS "delivery_id?" FROM moved
               UNION ALL SELECT placement_id, delivery_id FROM ready"#,
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
        );
        for row in query.fetch_all(&mut *connection).await? {
            let settled = changes.entry(row.placement_id.into()).or_default();
            settled.moved = true;
            settled.ready.extend(row.delivery_id.map(DeliveryId::from));
        }
        let has_moved = |placement: &Uuid| changes.contains_key(&PlacementId::from(*placement));
        let moved: Vec<bool> = self.failed_placements.iter().map(has_moved).collect();
        let all_moved = self.placements.iter().all(has_moved);
        if moved.contains(&true) {
            self.fail_units(connection, &moved).await?;
        }
        if all_moved {
            return Ok(());
        }
        self.park_unexpected(connection, changes).await
    }

    async fn fail_units(&self, connection: &mut PgConnection, moved: &[bool]) -> Result<()> {
        let statement = sqlx::query!(
            "UPDATE topups t SET state = 'failed', reason = new.reason
             FROM unnest($1::text[], $2::text[], $3::bool[]) AS new (topup_id, reason, moved)
             WHERE t.topup_id = new.topup_id AND new.moved AND t.state = 'pending'
               AND NOT EXISTS (SELECT FROM esims e WHERE e.topup_id = t.topup_id AND e.ready_at IS NOT NULL)",
            &self.failed_topups,
            &self.failed_reasons,
            moved,
        );
        statement.execute(connection).await?;
        Ok(())
    }

    /// Parks placements bought by an earlier attempt or after they were closed. Only an operator moves them.
    async fn park_unexpected(&self, connection: &mut PgConnection, changes: &mut Changes) -> Result<()> {
        let query = sqlx::query_scalar!(
            r#"WITH moved AS (
                   UPDATE placements p
                   SET state = 'parked', disputed = true, placed_at = coalesce(p.placed_at, now()),
                       reason = 'attempt ' || new.attempt || ' was bought although this placement was ' || p.state
                                || ' at attempt ' || p.attempt
                   FROM unnest($1::uuid[], $2::int[]) AS new (placement_id, attempt)
                   WHERE p.placement_id = new.placement_id AND new.attempt <= p.attempt
                     AND (p.state IN ('accepted', 'refused', 'failed')
                          OR (p.attempt <> new.attempt AND NOT p.disputed))
                   RETURNING p.placement_id, p.provider, p.partner_id
               ), done AS (
                   DELETE FROM work WHERE id = ANY (ARRAY (SELECT placement_id FROM moved))
               ), parked AS (
                   INSERT INTO held (id, state, provider, partner_id)
                   SELECT placement_id, 'parked', provider, partner_id FROM moved
                   ON CONFLICT DO NOTHING
               )
               SELECT placement_id AS "placement_id!" FROM moved"#,
            &self.placements,
            &self.attempts,
        );
        for placement in query.fetch_all(connection).await? {
            changes.insert(placement.into(), Settled { moved: true, unexpected: true, ready: Vec::new() });
        }
        Ok(())
    }
}

/// The settlements of a batch that bought nothing, one vector per column.
#[derive(Default)]
struct Moves {
    placements: Vec<Uuid>,
    attempts: Vec<i32>,
    kinds: Vec<&'static str>,
    due_in: Vec<Option<f64>>,
    reasons: Vec<Option<String>>,
    statuses: Vec<Option<String>>,
    messages: Vec<Option<String>>,
}

impl Moves {
    fn of<'a>(settlements: impl Iterator<Item = &'a Settlement>) -> Self {
        let mut columns = Self::default();
        for settlement in settlements {
            let mut refusal = (None, None);
            let (kind, due_in, reason) = match &settlement.outcome {
                Outcome::Bought { .. } => continue,
                Outcome::NotBought { retry_in, reason } => ("not_bought", Some(*retry_in), Some(reason.clone())),
                Outcome::Rejected { status, message } => {
                    refusal = (Some(status.clone()), Some(message.clone()));
                    let reason = format!("the provider rejected it: {status} {message}");
                    ("rejected", None, Some(reason))
                }
                Outcome::NotFound { settled: true, look_in } => ("settled_not_found", Some(*look_in), None),
                Outcome::NotFound { settled: false, look_in } => ("not_found", Some(*look_in), None),
                Outcome::Unknown { look_in, reason } => ("unknown", Some(*look_in), Some(reason.clone())),
                Outcome::Parked { reason } => ("parked", None, Some(reason.clone())),
                Outcome::Disputed { reason } => ("disputed", None, Some(reason.clone())),
            };
            columns.placements.push(settlement.placement_id.uuid());
            columns.attempts.push(signed(settlement.attempt));
            columns.kinds.push(kind);
            columns.due_in.push(due_in.map(seconds));
            columns.reasons.push(reason);
            columns.statuses.push(refusal.0);
            columns.messages.push(refusal.1);
        }
        columns
    }

    async fn record(&self, connection: &mut PgConnection, changes: &mut Changes) -> Result<()> {
        if self.placements.is_empty() {
            return Ok(());
        }
        let query = sqlx::query_scalar!(
            r#"WITH moved AS (
                   UPDATE placements p
                   SET state = CASE
                           WHEN new.kind = 'not_bought' THEN 'accepted'
                           WHEN new.kind = 'settled_not_found' AND p.not_found_at IS NOT NULL THEN 'accepted'
                           WHEN new.kind = 'rejected' THEN 'failed'
                           WHEN new.kind IN ('parked', 'disputed') THEN 'parked'
                           ELSE p.state
                       END,
                       disputed = new.kind = 'disputed' AND p.state = 'placed',
                       not_found_at = CASE
                           WHEN new.kind IN ('not_found', 'settled_not_found') THEN coalesce(p.not_found_at, now())
                           ELSE p.not_found_at
                       END,
                       unknowns = CASE WHEN new.kind = 'unknown' THEN p.unknowns + 1 ELSE 0 END,
                       reason = CASE WHEN p.state = 'parked' THEN p.reason ELSE coalesce(new.reason, p.reason) END,
                       refusal_status = new.status, refusal_message = new.message
                   FROM unnest($1::uuid[], $2::int[], $3::text[], $4::float8[], $5::text[], $6::text[], $7::text[])
                       AS new (placement_id, attempt, kind, due_in, reason, status, message)
                   WHERE p.placement_id = new.placement_id AND p.attempt = new.attempt
                     AND (p.state = 'placing' OR (p.state = 'placed' AND new.kind = 'disputed')
                          -- Without work it is finished or disputed, and a late result gives it no new work.
                          OR (p.state IN ('placed', 'parked') AND new.kind = 'unknown'
                              AND (SELECT true FROM work w WHERE w.id = p.placement_id)))
                   RETURNING p.placement_id, p.partner_id, p.provider, p.lane, p.state, p.reason, new.due_in
               ), failed AS (
                   UPDATE topups t SET state = 'failed', reason = moved.reason
                   FROM moved
                   WHERE t.placement_id = moved.placement_id AND moved.state = 'failed' AND t.state = 'pending'
               ), done AS (
                   DELETE FROM work
                   WHERE id = ANY (ARRAY (SELECT placement_id FROM moved WHERE due_in IS NULL))
               ), later AS (
                   INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
                   SELECT placement_id,
                          CASE state WHEN 'accepted' THEN 'buy_again' WHEN 'placing' THEN 'find' ELSE 'collect' END,
                          provider, lane, partner_id, now() + make_interval(secs => due_in)
                   FROM moved WHERE due_in IS NOT NULL
                   ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, at = excluded.at
               ), parked AS (
                   INSERT INTO held (id, state, provider, partner_id)
                   SELECT placement_id, 'parked', provider, partner_id FROM moved WHERE state = 'parked'
                   ON CONFLICT DO NOTHING
               )
               SELECT placement_id AS "placement_id!" FROM moved"#,
            &self.placements,
            &self.attempts,
            &self.kinds as &[&str],
            &self.due_in as &[Option<f64>],
            &self.reasons as &[Option<String>],
            &self.statuses as &[Option<String>],
            &self.messages as &[Option<String>],
        );
        for placement in query.fetch_all(connection).await? {
            changes.entry(placement.into()).or_default().moved = true;
        }
        Ok(())
    }
}
