//! Settling placements: outcomes are recorded in batches.

use std::{collections::HashMap, time::Duration};

use domain::{DeliveryId, Iccid, PlacementId, TopupId};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{Result, retry_conflicts, seconds, signed};

/// The outcome of an attempt, or of a look-up or collect after it.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub placement_id: PlacementId,
    pub attempt: u32,
    pub outcome: Outcome,
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
    Ready { iccid: Iccid, profile: Vec<u8> },
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
    /// The new deliveries of the topups that it made ready.
    pub ready: Vec<DeliveryId>,
}

/// Records a batch of settlements, each along its transition, in one transaction.
pub async fn settle(connection: &mut PgConnection, settlements: &[Settlement]) -> Result<Vec<Settled>> {
    retry_conflicts!(settle_once(&mut *connection, settlements))
}

async fn settle_once(connection: &mut PgConnection, settlements: &[Settlement]) -> Result<Vec<Settled>> {
    let rounds = rounds(settlements);
    let mut settled = vec![Settled::default(); settlements.len()];
    // One statement is a transaction by itself; only a mixed batch needs a larger one.
    if rounds.len() <= 1 && settlements.iter().all(is_one_statement) {
        settle_rounds(connection, settlements, &rounds, &mut settled).await?;
    } else {
        let mut transaction = sqlx::Connection::begin(connection).await?;
        settle_rounds(&mut transaction, settlements, &rounds, &mut settled).await?;
        transaction.commit().await?;
    }
    Ok(settled)
}

fn is_one_statement(settlement: &Settlement) -> bool {
    let lasts = |unit: &Unit| !matches!(unit.progress, Progress::Failed(_));
    matches!(&settlement.outcome, Outcome::Bought { units, .. } if units.iter().all(lasts))
}

/// Splits a batch into statements. A statement sees each placement only once, so two settlements of one
/// placement go into different rounds. Usually there is one round.
fn rounds(settlements: &[Settlement]) -> Vec<Vec<usize>> {
    let mut rounds: Vec<Vec<usize>> = Vec::new();
    let mut next: HashMap<PlacementId, usize> = HashMap::with_capacity(settlements.len());
    for (index, settlement) in settlements.iter().enumerate() {
        let round = next.entry(settlement.placement_id).or_default();
        match rounds.get_mut(*round) {
            Some(round) => round.push(index),
            None => rounds.push(vec![index]),
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
                let (iccid, profile) = match &unit.progress {
                    Progress::Pending => (None, None),
                    Progress::Ready { iccid, profile } => (Some(iccid.as_str().to_owned()), Some(profile.clone())),
                    Progress::Failed(reason) => {
                        columns.failed_placements.push(placement);
                        columns.failed_topups.push(unit.topup_id.to_string());
                        columns.failed_reasons.push(reason.clone());
                        (None, None)
                    }
                };
                columns.unit_placements.push(placement);
                columns.topups.push(unit.topup_id.to_string());
                columns.provider_units.push(unit.provider_unit_id.clone());
                columns.iccids.push(iccid);
                columns.profiles.push(profile);
            }
        }
        columns
    }

    /// One statement stores the units, their profiles and their deliveries. It joins no two row sets without an index:
    /// PostgreSQL takes them for one row each, and compares every pair.
    async fn record(&self, connection: &mut PgConnection, changes: &mut Changes) -> Result<()> {
        if self.placements.is_empty() {
            return Ok(());
        }
        let query = sqlx::query!(
            r#"WITH unit AS MATERIALIZED (
                   SELECT * FROM unnest($6::uuid[], $7::text[], $8::text[], $9::text[], $10::bytea[])
                       AS unit (placement_id, topup_id, provider_unit_id, iccid, profile)
               ), moved AS (
                   UPDATE placements p
                   SET state = CASE WHEN new.park IS NULL THEN 'placed' ELSE 'parked' END,
                       reason = new.park,
                       placed_at = coalesce(p.placed_at, now()), unknowns = 0
                   FROM unnest($1::uuid[], $2::int[], $3::float8[], $4::text[])
                       AS new (placement_id, attempt, collect_in, park)
                   WHERE p.placement_id = new.placement_id AND p.attempt = new.attempt
                     AND (p.state IN ('placing', 'placed') OR (p.state = 'parked' AND NOT p.disputed))
                   RETURNING p.placement_id, p.order_id, p.provider, p.lane, new.collect_in, new.park
               ), stored AS (
                   INSERT INTO esims AS e (topup_id, provider, provider_unit_id, iccid, profile, ready_at)
                   SELECT unit.topup_id, p.provider, unit.provider_unit_id, unit.iccid, unit.profile,
                          CASE WHEN unit.profile IS NOT NULL THEN now() END
                   FROM unit
                   JOIN topups t ON t.topup_id = unit.topup_id AND t.placement_id = unit.placement_id
                                    AND t.state = 'pending'
                   JOIN placements p ON p.placement_id = unit.placement_id
                   WHERE unit.placement_id = ANY (ARRAY (SELECT placement_id FROM moved))
                   ON CONFLICT (topup_id) DO UPDATE
                   SET iccid = excluded.iccid, profile = excluded.profile, ready_at = excluded.ready_at
                   WHERE e.ready_at IS NULL AND excluded.ready_at IS NOT NULL
                     AND e.provider_unit_id = excluded.provider_unit_id
                   RETURNING e.topup_id, e.ready_at
               ), ready AS (
                   SELECT stored.topup_id, p.placement_id, p.order_id, o.partner_id, o.answer_by
                   FROM stored
                   JOIN topups t ON t.topup_id = stored.topup_id
                   JOIN placements p ON p.placement_id = t.placement_id
                   JOIN orders o ON o.order_id = p.order_id
                   WHERE stored.ready_at IS NOT NULL
               ), born AS (
                   INSERT INTO deliveries (topup_id, partner_id, order_id)
                   SELECT topup_id, partner_id, order_id FROM ready
               ), delivery_due AS (
                   INSERT INTO delivery_due (topup_id, partner_id, at)
                   SELECT topup_id, partner_id, greatest(answer_by, now()) FROM ready WHERE placement_id = ANY ($5)
               ), done AS (
                   DELETE FROM placement_due
                   WHERE placement_id = ANY (ARRAY (SELECT placement_id FROM moved WHERE collect_in IS NULL))
               ), later AS (
                   INSERT INTO placement_due AS d (placement_id, provider, lane, partner_id, buys, at)
                   SELECT moved.placement_id, moved.provider, coalesce(moved.lane, ''), o.partner_id, false,
                          now() + make_interval(secs => moved.collect_in)
                   FROM moved JOIN orders o ON o.order_id = moved.order_id
                   WHERE moved.collect_in IS NOT NULL
                   ON CONFLICT (placement_id) DO UPDATE SET buys = false, at = excluded.at
               ), parked AS (
                   INSERT INTO placement_parked (placement_id, provider)
                   SELECT placement_id, provider FROM moved WHERE park IS NOT NULL ON CONFLICT DO NOTHING
               ), settled AS (
                   DELETE FROM placement_parked
                   WHERE placement_id = ANY (ARRAY (SELECT placement_id FROM moved WHERE park IS NULL))
               )
               SELECT placement_id AS "placement_id!", NULL AS "topup_id?" FROM moved
               UNION ALL SELECT placement_id, topup_id FROM ready"#,
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
        );
        for row in query.fetch_all(&mut *connection).await? {
            let settled = changes.entry(row.placement_id.into()).or_default();
            settled.moved = true;
            settled.ready.extend(row.topup_id.map(|_| DeliveryId::new()));
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
                   RETURNING p.placement_id, p.provider
               ), done AS (
                   DELETE FROM placement_due WHERE placement_id = ANY (ARRAY (SELECT placement_id FROM moved))
               ), parked AS (
                   INSERT INTO placement_parked (placement_id, provider) SELECT placement_id, provider FROM moved
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
                    let reason = format!("the provider refused: {status} {message}");
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
                          OR (p.state IN ('placed', 'parked') AND new.kind = 'unknown'
                              AND (SELECT true FROM placement_due d WHERE d.placement_id = p.placement_id)))
                   RETURNING p.placement_id, p.order_id, p.provider, p.lane, p.state, p.reason, new.due_in
               ), failed AS (
                   UPDATE topups t SET state = 'failed', reason = moved.reason
                   FROM moved
                   WHERE t.placement_id = moved.placement_id AND moved.state = 'failed' AND t.state = 'pending'
               ), done AS (
                   DELETE FROM placement_due
                   WHERE placement_id = ANY (ARRAY (SELECT placement_id FROM moved WHERE due_in IS NULL))
               ), later AS (
                   INSERT INTO placement_due AS d (placement_id, provider, lane, partner_id, buys, at)
                   SELECT moved.placement_id, moved.provider, coalesce(moved.lane, ''), o.partner_id,
                          moved.state = 'accepted', now() + make_interval(secs => moved.due_in)
                   FROM moved JOIN orders o ON o.order_id = moved.order_id
                   WHERE moved.due_in IS NOT NULL
                   ON CONFLICT (placement_id) DO UPDATE SET buys = excluded.buys, at = excluded.at
               ), parked AS (
                   INSERT INTO placement_parked (placement_id, provider)
                   SELECT placement_id, provider FROM moved WHERE state = 'parked' ON CONFLICT DO NOTHING
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
