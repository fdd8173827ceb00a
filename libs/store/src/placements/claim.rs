//! Provisioners find, lease and claim placements.

use std::{collections::HashMap, time::Duration};

use domain::{OrderId, PartnerId, PlacementId, PlacementState, TopupId};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Outcome, Settlement, settle};
use crate::{Error, Result, age, retry_conflicts, seconds, signed, unsigned};

/// A due placement, with the lane and the partner that share its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuePlacement {
    pub placement_id: PlacementId,
    pub partner_id: PartnerId,
    pub lane: String,
}

/// The start and the size of a look at due rows. Its work is bounded by `limit`, not by the number of stored rows.
#[derive(Clone, Debug, Default)]
pub struct Page<'a> {
    /// The most rows to return, and the most lanes to look at.
    pub limit: usize,
    /// The most rows of one partner in one lane.
    pub per_lane: usize,
    /// The look begins after this lane and partner.
    pub after: Option<(String, PartnerId)>,
    /// Lanes to leave out.
    pub skip: &'a [String],
}

/// The result of a look at due rows.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The oldest due rows of each lane, by turns. Nothing is claimed yet.
    pub due: Vec<DuePlacement>,
    /// The start of the next look; `None` after the last lane.
    pub after: Option<(String, PartnerId)>,
}

/// Looks for due placements of a provider: purchases, or else look-ups and collects. Changes nothing.
pub async fn due(connection: &mut PgConnection, provider: &str, buys: bool, page: &Page<'_>) -> Result<Found> {
    let (lane, partner) = match &page.after {
        Some((lane, partner)) => (lane.as_str(), partner.uuid()),
        None => ("", Uuid::nil()),
    };
    let limit = signed(page.limit);
    // Walks from lane to lane by index, so that a backlog in one lane costs the others nothing.
    let query = sqlx::query!(
        r#"WITH RECURSIVE lane (lane, partner_id, nth) AS (
               (SELECT lane, partner_id, 1 FROM placement_due
                WHERE provider = $1 AND buys = $2 AND (lane, partner_id) > ($3, $4)
                ORDER BY lane, partner_id LIMIT 1)
               UNION ALL SELECT next.lane, next.partner_id, lane.nth + 1
               FROM lane CROSS JOIN LATERAL (
                   SELECT d.lane, d.partner_id FROM placement_due d
                   WHERE d.provider = $1 AND d.buys = $2 AND (d.lane, d.partner_id) > (lane.lane, lane.partner_id)
                   ORDER BY d.lane, d.partner_id LIMIT 1
               ) next WHERE lane.nth < $5
           )
           SELECT lane.lane AS "lane!", lane.partner_id AS "partner_id!", lane.nth AS "nth!",
                  late.placement_id AS "placement_id?"
           FROM lane LEFT JOIN LATERAL (
               SELECT d.placement_id, row_number() OVER (ORDER BY d.at) AS turn
               FROM (SELECT placement_id, at FROM placement_due d
                     WHERE d.provider = $1 AND d.buys = $2 AND d.lane = lane.lane AND d.partner_id = lane.partner_id
                       AND d.at <= now() AND lane.lane <> ALL ($6)
                     ORDER BY d.at LIMIT $7) d
           ) late ON true
           ORDER BY late.turn, lane.nth"#,
        provider,
        buys,
        lane,
        partner,
        limit,
        page.skip,
        i64::try_from(page.per_lane).unwrap_or(i64::MAX),
    );
    let rows = query.fetch_all(connection).await?;
    let after = rows.iter().find(|row| row.nth >= limit).map(|row| (row.lane.clone(), row.partner_id.into()));
    let due = rows
        .into_iter()
        .filter_map(|row| {
            Some(DuePlacement {
                placement_id: row.placement_id?.into(),
                partner_id: row.partner_id.into(),
                lane: row.lane,
            })
        })
        .take(page.limit)
        .collect();
    Ok(Found { due, after })
}

/// Leases due placements: no other process claims them for `lease`. Returns those that this process leased.
pub async fn lease(
    connection: &mut PgConnection,
    placements: &[PlacementId],
    lease: Duration,
) -> Result<Vec<PlacementId>> {
    let ids: Vec<Uuid> = placements.iter().map(|placement| placement.uuid()).collect();
    let query = sqlx::query_scalar!(
        "WITH mine AS (
             SELECT placement_id FROM placement_due
             WHERE placement_id = ANY ($1) AND at <= now() FOR UPDATE SKIP LOCKED
         )
         UPDATE placement_due SET at = now() + make_interval(secs => $2)
         WHERE placement_id = ANY (ARRAY (SELECT placement_id FROM mine)) RETURNING placement_id",
        &ids,
        seconds(lease),
    );
    Ok(query.fetch_all(connection).await?.into_iter().map(PlacementId::from).collect())
}

/// Ends leases of this process: the placements are due now.
pub async fn give_back(connection: &mut PgConnection, placements: &[PlacementId]) -> Result<()> {
    let ids: Vec<Uuid> = placements.iter().map(|placement| placement.uuid()).collect();
    retry_conflicts!(async {
        sqlx::query!("UPDATE placement_due SET at = now() WHERE placement_id = ANY ($1) AND at > now()", &ids)
            .execute(&mut *connection)
            .await?;
        Ok::<_, Error>(())
    })
}

/// The placements that a provisioner claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Placements that jobs name and that are still `accepted`, if the provider's breaker is closed.
    Named,
    /// Placements in any state that this process has [leased](lease), if the provider's breaker is closed.
    Overdue,
    /// As `Overdue`, whatever the state of the breaker; see [`crate::providers::probe`].
    Probe,
}

/// A placement that this provisioner has claimed, until its lease ends.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub placement_id: PlacementId,
    pub order_id: OrderId,
    pub partner_id: PartnerId,
    pub lane: String,
    /// The state before the claim. From `accepted`, the claim recorded a new attempt, and only its holder may
    /// send it. In any other state nothing may be bought.
    pub was: PlacementState,
    /// The last recorded attempt; this claim may have recorded it.
    pub attempt: u32,
    /// The time since that attempt was recorded.
    pub attempt_age: Duration,
    /// The time since the order was stored.
    pub age: Duration,
    /// The time since the provider confirmed the purchase.
    pub placed_age: Option<Duration>,
    /// How many times in a row the outcome of this attempt stayed unknown.
    pub unknowns: u32,
    /// Whether no outcome of that attempt is recorded, not even an unknown one: its call may be in flight.
    pub open: bool,
    /// The ingress process that may still answer the order's request; `None` once `answer_by` has passed, and for an
    /// order whose answer did not depend on a verdict.
    pub answering: Option<Uuid>,
    /// W3C trace context of the POST.
    pub traceparent: Option<String>,
    /// The units, in the order of the response.
    pub topups: Vec<ClaimedTopup>,
}

#[derive(Clone, Debug)]
pub struct ClaimedTopup {
    pub topup_id: TopupId,
    pub provider_option_id: String,
    /// The provider's unit id, if one is assigned.
    pub provider_unit_id: Option<String>,
    /// It still waits for a profile.
    pub pending: bool,
}

/// One topup of a claimed placement, with all of the placement.
struct Row {
    placement_id: Uuid,
    order_id: Uuid,
    partner_id: Uuid,
    lane: String,
    was: String,
    attempt: i32,
    attempt_age: f64,
    age: f64,
    placed_age: Option<f64>,
    unknowns: i32,
    open: bool,
    answered: bool,
    traceparent: Option<String>,
    position: i32,
    topup_id: String,
    provider_option_id: String,
    provider_unit_id: Option<String>,
    state: String,
}

/// Claims placements of a provider in one statement. `accepted` ones move by
/// [`domain::placement::Event::Claim`], which records the attempt before anything is sent; others are claimed only for
/// a look-up or a collect. An attempt in flight elsewhere is put off, and a finished placement loses its due row;
/// neither is returned. An unreadable row is parked.
pub async fn claim(
    connection: &mut PgConnection,
    provider: &str,
    placements: &[PlacementId],
    which: Claim,
    lease: Duration,
) -> Result<Vec<Claimed>> {
    let ids: Vec<Uuid> = placements.iter().map(|placement| placement.uuid()).collect();
    let probe = which == Claim::Probe;
    let rows = match which {
        Claim::Named => retry_conflicts!(claim_named(&mut *connection, provider, &ids))?,
        Claim::Overdue | Claim::Probe => retry_conflicts!(claim_leased(&mut *connection, provider, &ids, probe))?,
    };
    let mut claimed = Vec::with_capacity(placements.len());
    for work in group(rows) {
        match work {
            Ok(work) => claimed.push(work),
            Err((placement_id, attempt, error)) => {
                tracing::error!(placement.id = %placement_id, %error, "parked: its row cannot be read");
                let reason = format!("its row cannot be read: {error}");
                let parked = Settlement { placement_id, attempt, outcome: Outcome::Disputed { reason } };
                settle(connection, &[parked]).await?;
            }
        }
    }
    if which != Claim::Named {
        // The claim has recorded the attempts, so this process must send them.
        if let Err(error) = put_off(connection, &mut claimed, lease).await {
            tracing::warn!(%error, "cannot put off placements that are in flight or finished");
        }
    }
    Ok(claimed)
}

async fn claim_named(connection: &mut PgConnection, provider: &str, placements: &[Uuid]) -> Result<Vec<Row>> {
    let rows = sqlx::query_as!(
        Row,
        r#"WITH taken AS (
               SELECT placement_id FROM placements
               WHERE placement_id = ANY ($1) AND provider = $2 AND state = 'accepted'
                 AND NOT EXISTS (SELECT FROM providers WHERE name = $2 AND open_until IS NOT NULL)
               FOR UPDATE SKIP LOCKED
           ), claimed AS (
               UPDATE placements p
               SET state = 'placing', attempt = p.attempt + 1, attempted_at = now(), not_found_at = NULL, unknowns = 0
               FROM taken WHERE p.placement_id = taken.placement_id
               RETURNING p.placement_id, p.order_id, p.lane, p.attempt, p.created_at
           )
           SELECT c.placement_id, c.order_id, o.partner_id, coalesce(c.lane, '') AS "lane!", 'accepted' AS "was!",
                  c.attempt, 0::float8 AS "attempt_age!", extract(epoch FROM now() - c.created_at)::float8 AS "age!",
                  NULL::float8 AS placed_age, 0 AS "unknowns!", true AS "open!", o.answer_by <= now() AS "answered!", o.traceparent,
                  t.position, t.topup_id, t.provider_option_id, NULL::text AS provider_unit_id, t.state
           FROM claimed c
           JOIN orders o ON o.order_id = c.order_id
           JOIN topups t ON t.placement_id = c.placement_id"#,
        placements,
        provider,
    );
    Ok(rows.fetch_all(connection).await?)
}

async fn claim_leased(
    connection: &mut PgConnection,
    provider: &str,
    placements: &[Uuid],
    probe: bool,
) -> Result<Vec<Row>> {
    let rows = sqlx::query_as!(
        Row,
        r#"WITH taken AS (
               SELECT placement_id, order_id, lane, state, attempt, attempted_at, created_at, placed_at, unknowns,
                      not_found_at
               FROM placements
               WHERE placement_id = ANY ($1) AND provider = $2
                 AND ($3 OR NOT EXISTS (SELECT FROM providers WHERE name = $2 AND open_until IS NOT NULL))
               FOR UPDATE SKIP LOCKED
           ), claimed AS (
               UPDATE placements p
               SET state = 'placing', attempt = p.attempt + 1, attempted_at = now(), not_found_at = NULL, unknowns = 0
               FROM taken WHERE p.placement_id = taken.placement_id AND taken.state = 'accepted'
               RETURNING p.placement_id, p.order_id, p.lane, taken.state, p.attempt, p.attempted_at, p.created_at,
                         p.placed_at, p.unknowns, true AS open
           ), work AS (
               SELECT * FROM claimed
               UNION ALL
               SELECT placement_id, order_id, lane, state, attempt, attempted_at, created_at, placed_at, unknowns,
                      unknowns = 0 AND not_found_at IS NULL
               FROM taken WHERE state <> 'accepted'
           )
           SELECT w.placement_id AS "placement_id!", w.order_id AS "order_id!", o.partner_id,
                  coalesce(w.lane, '') AS "lane!", w.state AS "was!", w.attempt AS "attempt!",
                  coalesce(extract(epoch FROM now() - w.attempted_at), 0)::float8 AS "attempt_age!",
                  extract(epoch FROM now() - w.created_at)::float8 AS "age!",
                  extract(epoch FROM now() - w.placed_at)::float8 AS placed_age,
                  w.unknowns AS "unknowns!", w.open AS "open!", o.answer_by <= now() AS "answered!", o.traceparent,
                  t.position, t.topup_id, t.provider_option_id, e.provider_unit_id AS "provider_unit_id?",
                  CASE WHEN e.ready_at IS NULL THEN t.state ELSE 'ready' END AS "state!"
           FROM work w
           JOIN orders o ON o.order_id = w.order_id
           JOIN topups t ON t.placement_id = w.placement_id
           LEFT JOIN esims e ON e.topup_id = t.topup_id"#,
        placements,
        provider,
        probe,
    );
    Ok(rows.fetch_all(connection).await?)
}

/// A row that cannot be read, with its placement and attempt.
type Unreadable = (PlacementId, u32, Error);
/// Units with their positions.
type Positions = Vec<(i32, ClaimedTopup)>;

/// Rows of topups as placements, in the order of their first rows.
fn group(rows: Vec<Row>) -> Vec<Result<Claimed, Unreadable>> {
    let mut places: HashMap<Uuid, usize> = HashMap::with_capacity(rows.len());
    let mut claimed: Vec<Result<(Claimed, Positions), Unreadable>> = Vec::with_capacity(rows.len());
    for row in rows {
        let (placement_id, attempt) = (PlacementId::from(row.placement_id), unsigned(row.attempt));
        let unreadable = |error: Error| (placement_id, attempt, error);
        let place = *places.entry(row.placement_id).or_insert_with(|| {
            claimed.push(placement(&row).map(|claimed| (claimed, Vec::with_capacity(1))).map_err(unreadable));
            claimed.len() - 1
        });
        let pending = row.state == "pending";
        if let Ok((_, topups)) = &mut claimed[place] {
            match row.topup_id.try_into() {
                Ok(topup_id) => {
                    let topup = ClaimedTopup {
                        topup_id,
                        provider_option_id: row.provider_option_id,
                        provider_unit_id: row.provider_unit_id,
                        pending,
                    };
                    topups.push((row.position, topup));
                }
                Err(error) => claimed[place] = Err(unreadable(Error::from(error))),
            }
        }
    }
    let sorted = |(mut claimed, mut topups): (Claimed, Positions)| {
        topups.sort_unstable_by_key(|(position, _)| *position);
        claimed.topups = topups.into_iter().map(|(_, topup)| topup).collect();
        claimed
    };
    claimed.into_iter().map(|one| one.map(sorted)).collect()
}

fn placement(row: &Row) -> Result<Claimed> {
    Ok(Claimed {
        placement_id: row.placement_id.into(),
        order_id: row.order_id.into(),
        partner_id: row.partner_id.into(),
        lane: row.lane.clone(),
        was: row.was.parse()?,
        attempt: unsigned(row.attempt),
        attempt_age: age(row.attempt_age),
        age: age(row.age),
        placed_age: row.placed_age.map(age),
        unknowns: unsigned(row.unknowns),
        open: row.open,
        answering: (!row.answered).then_some(Uuid::nil()),
        traceparent: row.traceparent.clone(),
        topups: Vec::new(),
    })
}

/// Removes leased placements that this process must not work on. An attempt in flight belongs to its holder until
/// that lease ends. A finished placement is no longer due.
async fn put_off(connection: &mut PgConnection, claimed: &mut Vec<Claimed>, lease: Duration) -> Result<()> {
    let mut in_flight = Vec::new();
    let mut finished = Vec::new();
    claimed.retain(|one| match one.was {
        PlacementState::Placing if one.open && one.attempt_age < lease => {
            in_flight.push(one.placement_id.uuid());
            false
        }
        PlacementState::Placed | PlacementState::Parked
            if one.placed_age.is_some() && one.topups.iter().all(|topup| !topup.pending) =>
        {
            finished.push(one.placement_id.uuid());
            false
        }
        PlacementState::Refused | PlacementState::Failed => {
            finished.push(one.placement_id.uuid());
            false
        }
        _ => true,
    });
    if in_flight.is_empty() && finished.is_empty() {
        return Ok(());
    }
    let statement = sqlx::query!(
        "WITH finished AS (
             DELETE FROM placement_due WHERE placement_id = ANY ($1)
         )
         UPDATE placement_due d SET buys = false, at = p.attempted_at + make_interval(secs => $3)
         FROM placements p
         WHERE d.placement_id = ANY ($2) AND p.placement_id = d.placement_id
           AND p.state = 'placing' AND p.unknowns = 0 AND p.not_found_at IS NULL",
        &finished,
        &in_flight,
        seconds(lease),
    );
    statement.execute(connection).await?;
    Ok(())
}
