//! Settling placements: outcomes are recorded in batches.

use std::{collections::HashMap, time::Duration};

use domain::{Iccid, PlacementId, TopupId, TopupState};
use sqlx::PgConnection;
use uuid::Uuid;

use super::ANNOUNCED;
use crate::{Error, seconds, signed};

/// The outcome of an attempt, or of a look-up after it.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub placement_id: PlacementId,
    /// The number of the attempt.
    pub attempt: u32,
    pub outcome: Outcome,
}

/// The outcome of an attempt; see [`domain::placement::Event`].
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The provider has the purchase. Units with a profile become ready and get a delivery.
    Bought {
        /// The known units.
        units: Vec<Unit>,
        /// The delay until the next collect; `None` if no profile is missing.
        collect_in: Option<Duration>,
        /// Profiles have been missing for so long that an operator must look at it.
        overdue: bool,
        /// Whether a readiness event will announce the new deliveries. Otherwise they are due at `answer_by`.
        announced: bool,
    },
    /// Certainly nothing was bought; a retry may follow.
    NotBought {
        /// The delay until the retry.
        retry_in: Duration,
        /// The cause.
        reason: String,
    },
    /// The provider rejected the purchase for good.
    Rejected {
        /// The provider's text.
        reason: String,
    },
    /// A look-up found no such purchase.
    NotFound {
        /// Whether the settling delay has passed.
        settled: bool,
        /// The delay until the next look-up.
        look_in: Duration,
    },
    /// The outcome is unknown, or the state of the units is. Only the count of unknown outcomes and the time
    /// of the next look-up change.
    Unknown {
        /// The delay until the next look-up.
        look_in: Duration,
        /// The cause.
        reason: String,
    },
    /// The outcome stayed unknown. An operator must resolve the placement.
    Parked {
        /// The cause.
        reason: String,
    },
    /// The provider's data, or the row itself, cannot be stored or read. An operator must look at it.
    Disputed {
        /// The cause.
        reason: String,
    },
}

/// The known state of one unit that the provider has.
#[derive(Clone, Debug)]
pub struct Unit {
    /// The topup of this system.
    pub topup_id: TopupId,
    /// The provider's unit id that is assigned to it.
    pub provider_unit_id: String,
    pub progress: Progress,
}

/// The progress of a unit.
#[derive(Clone, Debug)]
pub enum Progress {
    /// No profile yet.
    Pending,
    /// The profile has arrived.
    Ready {
        /// The ICCID of the eSIM.
        iccid: Iccid,
        /// The sealed profile.
        profile: Vec<u8>,
    },
    /// It will never have a profile, for this reason.
    Failed(String),
}

/// The effect of a settlement.
#[derive(Clone, Debug, Default)]
pub struct Settled {
    /// Whether it applied; a late or repeated one does not.
    pub moved: bool,
    /// The purchase was unexpected, so the placement is parked now.
    pub unexpected: bool,
    /// Topups that it made ready, each with a new delivery.
    pub ready: Vec<TopupId>,
}

/// Records a batch of settlements, each along its transition, in one transaction.
pub async fn settle(
    connection: &mut PgConnection,
    settlements: &[Settlement],
) -> Result<Vec<Settled>, Error> {
    let rounds = rounds(settlements);
    let mut settled = vec![Settled::default(); settlements.len()];
    let bought_only = |one: &Settlement| matches!(one.outcome, Outcome::Bought { .. });
    // One statement is a transaction by itself; only a mixed batch needs a larger one.
    if rounds.len() <= 1 && settlements.iter().all(bought_only) {
        settle_rounds(connection, settlements, &rounds, &mut settled).await?;
    } else {
        let mut transaction = sqlx::Connection::begin(connection).await?;
        settle_rounds(&mut transaction, settlements, &rounds, &mut settled).await?;
        transaction.commit().await?;
    }
    Ok(settled)
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
) -> Result<(), Error> {
    for round in rounds {
        let of_round = || round.iter().map(|index| &settlements[*index]);
        let mut changes = HashMap::new();
        Moves::of(of_round()).record(connection, &mut changes).await?;
        Bought::of(of_round()).record(connection, &mut changes).await?;
        for index in round {
            settled[*index] = changes
                .remove(&settlements[*index].placement_id)
                .unwrap_or_default();
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
    overdue: Vec<bool>,
    lease: Vec<f64>,
    unit_placements: Vec<Uuid>,
    topups: Vec<String>,
    provider_units: Vec<String>,
    states: Vec<&'static str>,
    iccids: Vec<Option<String>>,
    profiles: Vec<Option<Vec<u8>>>,
    reasons: Vec<Option<String>>,
}

impl Bought {
    fn of<'a>(settlements: impl Iterator<Item = &'a Settlement>) -> Self {
        let mut columns = Self::default();
        for settlement in settlements {
            let Outcome::Bought {
                units,
                collect_in,
                overdue,
                announced,
            } = &settlement.outcome
            else {
                continue;
            };
            columns.placements.push(settlement.placement_id.uuid());
            columns.attempts.push(signed(settlement.attempt));
            columns.collect_in.push(collect_in.map(seconds));
            columns.overdue.push(*overdue);
            columns
                .lease
                .push(seconds(if *announced { ANNOUNCED } else { Duration::ZERO }));
            for unit in units {
                let (state, iccid, profile, reason) = match &unit.progress {
                    Progress::Pending => (TopupState::Pending, None, None, None),
                    Progress::Ready { iccid, profile } => (
                        TopupState::Ready,
                        Some(iccid.as_str().to_owned()),
                        Some(profile.clone()),
                        None,
                    ),
                    Progress::Failed(reason) => (TopupState::Failed, None, None, Some(reason.clone())),
                };
                columns.unit_placements.push(settlement.placement_id.uuid());
                columns.topups.push(unit.topup_id.to_string());
                columns.provider_units.push(unit.provider_unit_id.clone());
                columns.states.push(state.as_str());
                columns.iccids.push(iccid);
                columns.profiles.push(profile);
                columns.reasons.push(reason);
            }
        }
        columns
    }

    /// One statement stores a profile, makes its topup ready and creates its delivery.
    async fn record(&self, connection: &mut PgConnection, changes: &mut Changes) -> Result<(), Error> {
        if self.placements.is_empty() {
            return Ok(());
        }
        let rows = sqlx::query!(
            r#"WITH moved AS (
                   UPDATE placements p
                   SET state = CASE WHEN new.overdue THEN 'parked' ELSE 'placed' END,
                       reason = CASE WHEN new.overdue THEN 'bought, but its profiles do not come' END,
                       placed_at = coalesce(p.placed_at, now()), unknowns = 0,
                       redrive_at = now() + make_interval(secs => new.collect_in)
                   FROM unnest($1::uuid[], $2::int[], $3::float8[], $4::bool[], $12::float8[])
                        AS new(placement_id, attempt, collect_in, overdue, lease)
                   WHERE p.placement_id = new.placement_id AND p.attempt = new.attempt
                     AND (p.state IN ('placing', 'placed')
                          OR (p.state = 'parked' AND (p.placed_at IS NULL OR p.redrive_at IS NOT NULL)))
                   RETURNING p.placement_id, p.order_id, new.lease
               ), unit AS (
                   UPDATE topups t
                   SET state = new.state, provider_unit_id = new.provider_unit_id, iccid = new.iccid,
                       profile = new.profile, reason = new.reason,
                       ready_at = CASE WHEN new.state = 'ready' THEN now() END
                   FROM unnest($5::uuid[], $6::text[], $7::text[], $8::text[], $9::text[], $10::bytea[], $11::text[])
                        AS new(placement_id, topup_id, provider_unit_id, state, iccid, profile, reason)
                   JOIN moved ON moved.placement_id = new.placement_id
                   WHERE t.topup_id = new.topup_id AND t.placement_id = new.placement_id AND t.state = 'pending'
                     AND (t.provider_unit_id IS NULL OR t.provider_unit_id = new.provider_unit_id)
                     AND (new.state <> 'pending' OR t.provider_unit_id IS NULL)
                   RETURNING t.topup_id, t.placement_id, t.state
               ), born AS (
                   INSERT INTO deliveries (topup_id, partner_id, redrive_at)
                   SELECT unit.topup_id, o.partner_id, greatest(o.answer_by, now() + make_interval(secs => moved.lease))
                   FROM unit
                   JOIN moved ON moved.placement_id = unit.placement_id
                   JOIN orders o ON o.order_id = moved.order_id
                   WHERE unit.state = 'ready'
               )
               SELECT moved.placement_id AS "placement_id!", unit.topup_id AS "topup_id?"
               FROM moved LEFT JOIN unit ON unit.placement_id = moved.placement_id AND unit.state = 'ready'"#,
            &self.placements,
            &self.attempts,
            &self.collect_in as &[Option<f64>],
            &self.overdue,
            &self.unit_placements,
            &self.topups,
            &self.provider_units,
            &self.states as &[&str],
            &self.iccids as &[Option<String>],
            &self.profiles as &[Option<Vec<u8>>],
            &self.reasons as &[Option<String>],
            &self.lease,
        )
        .fetch_all(&mut *connection)
        .await?;
        for row in rows {
            let settled = changes.entry(row.placement_id.into()).or_default();
            settled.moved = true;
            settled
                .ready
                .extend(row.topup_id.map(TopupId::try_from).transpose()?);
        }
        if self
            .placements
            .iter()
            .all(|placement| changes.contains_key(&PlacementId::from(*placement)))
        {
            return Ok(());
        }
        self.park_unexpected(connection, changes).await
    }

    /// Parks placements that were bought by an earlier attempt or after they were closed. Only an operator
    /// moves them again, so nothing is due.
    async fn park_unexpected(
        &self,
        connection: &mut PgConnection,
        changes: &mut Changes,
    ) -> Result<(), Error> {
        let rows = sqlx::query_scalar!(
            "UPDATE placements p
             SET state = 'parked', placed_at = coalesce(p.placed_at, now()), redrive_at = NULL,
                 reason = 'attempt ' || new.attempt || ' was bought although this placement was ' || p.state
                          || ' at attempt ' || p.attempt
             FROM unnest($1::uuid[], $2::int[]) AS new(placement_id, attempt)
             WHERE p.placement_id = new.placement_id AND new.attempt <= p.attempt
               AND (p.state IN ('accepted', 'refused', 'failed')
                    OR (p.attempt <> new.attempt
                        AND (p.state <> 'parked' OR p.placed_at IS NULL OR p.redrive_at IS NOT NULL)))
             RETURNING p.placement_id",
            &self.placements,
            &self.attempts,
        )
        .fetch_all(connection)
        .await?;
        for placement in rows {
            let settled = Settled {
                moved: true,
                unexpected: true,
                ready: Vec::new(),
            };
            changes.insert(placement.into(), settled);
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
    redrive_in: Vec<Option<f64>>,
    reasons: Vec<Option<String>>,
}

impl Moves {
    fn of<'a>(settlements: impl Iterator<Item = &'a Settlement>) -> Self {
        let mut columns = Self::default();
        for settlement in settlements {
            let (kind, redrive_in, reason) = match &settlement.outcome {
                Outcome::Bought { .. } => continue,
                Outcome::NotBought { retry_in, reason } => {
                    ("not_bought", Some(*retry_in), Some(reason.clone()))
                }
                Outcome::Rejected { reason } => ("rejected", None, Some(reason.clone())),
                Outcome::NotFound {
                    settled: true,
                    look_in,
                } => ("settled_not_found", Some(*look_in), None),
                Outcome::NotFound {
                    settled: false,
                    look_in,
                } => ("not_found", Some(*look_in), None),
                Outcome::Unknown { look_in, reason } => ("unknown", Some(*look_in), Some(reason.clone())),
                Outcome::Parked { reason } => ("parked", None, Some(reason.clone())),
                Outcome::Disputed { reason } => ("disputed", None, Some(reason.clone())),
            };
            columns.placements.push(settlement.placement_id.uuid());
            columns.attempts.push(signed(settlement.attempt));
            columns.kinds.push(kind);
            columns.redrive_in.push(redrive_in.map(seconds));
            columns.reasons.push(reason);
        }
        columns
    }

    async fn record(&self, connection: &mut PgConnection, changes: &mut Changes) -> Result<(), Error> {
        if self.placements.is_empty() {
            return Ok(());
        }
        let rows = sqlx::query_scalar!(
            r#"WITH moved AS (
                   UPDATE placements p
                   SET state = CASE
                           WHEN new.kind = 'not_bought' THEN 'accepted'
                           WHEN new.kind = 'settled_not_found' AND p.not_found_at IS NOT NULL THEN 'accepted'
                           WHEN new.kind = 'rejected' THEN 'failed'
                           WHEN new.kind IN ('parked', 'disputed') THEN 'parked'
                           ELSE p.state
                       END,
                       not_found_at = CASE
                           WHEN new.kind IN ('not_found', 'settled_not_found') THEN coalesce(p.not_found_at, now())
                           ELSE p.not_found_at
                       END,
                       unknowns = CASE WHEN new.kind = 'unknown' THEN p.unknowns + 1 ELSE 0 END,
                       reason = CASE WHEN p.state = 'parked' THEN p.reason ELSE coalesce(new.reason, p.reason) END,
                       redrive_at = now() + make_interval(secs => new.redrive_in)
                   FROM unnest($1::uuid[], $2::int[], $3::text[], $4::float8[], $5::text[])
                        AS new(placement_id, attempt, kind, redrive_in, reason)
                   WHERE p.placement_id = new.placement_id AND p.attempt = new.attempt
                     AND (p.state = 'placing' OR (p.state = 'placed' AND new.kind = 'disputed')
                          OR (p.state IN ('placed', 'parked') AND p.redrive_at IS NOT NULL AND new.kind = 'unknown'))
                   RETURNING p.placement_id, p.state, p.reason
               ), failed AS (
                   UPDATE topups t SET state = 'failed', reason = moved.reason
                   FROM moved
                   WHERE t.placement_id = moved.placement_id AND moved.state = 'failed' AND t.state = 'pending'
               )
               SELECT placement_id AS "placement_id!" FROM moved"#,
            &self.placements,
            &self.attempts,
            &self.kinds as &[&str],
            &self.redrive_in as &[Option<f64>],
            &self.reasons as &[Option<String>],
        )
        .fetch_all(connection)
        .await?;
        for placement in rows {
            changes.entry(placement.into()).or_default().moved = true;
        }
        Ok(())
    }
}
