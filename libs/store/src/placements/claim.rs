//! Provisioners claim placements.

use std::time::Duration;

use domain::{OrderId, PartnerId, PlacementId, PlacementState, TopupId, TopupState};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Outcome, Settlement, settle};
use crate::{Error, age, seconds, unsigned};

/// The placements that a provisioner claims. Placements of a provider whose breaker is not closed are claimed
/// only by [`Claim::Probe`].
#[derive(Clone, Copy, Debug)]
pub enum Claim<'a> {
    /// Placements that jobs name and that are still `accepted`.
    Named(&'a [PlacementId]),
    /// Due placements of one provider, longest overdue first.
    Due {
        provider: &'a str,
        /// The most placements to claim.
        limit: usize,
    },
    /// The longest overdue placement of a provider, whatever the state of its breaker; see
    /// [`crate::providers::probe`].
    Probe { provider: &'a str },
}

/// A placement that this provisioner has claimed, until its lease ends.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub placement_id: PlacementId,
    pub order_id: OrderId,
    /// The partner that ordered.
    pub partner_id: PartnerId,
    /// The state before the claim. From `accepted`, the claim recorded a new attempt, and only its holder may
    /// send it. In any other state nothing may be bought.
    pub was: PlacementState,
    /// The last recorded attempt; it may be the one that this claim recorded.
    pub attempt: u32,
    /// The time since that attempt was recorded.
    pub attempt_age: Duration,
    /// The time since the order was stored.
    pub age: Duration,
    /// The time since the provider confirmed the purchase.
    pub placed_age: Option<Duration>,
    /// How many times in a row the outcome of this attempt stayed unknown.
    pub unknowns: u32,
    /// Whether the order is certainly answered, or will never be.
    pub answered: bool,
    /// W3C trace context of the POST.
    pub traceparent: Option<String>,
    /// The units, in the order of the response.
    pub topups: Vec<ClaimedTopup>,
}

/// A unit of a claimed placement.
#[derive(Clone, Debug)]
pub struct ClaimedTopup {
    pub topup_id: TopupId,
    /// The provider's id of the ordered option.
    pub provider_option_id: String,
    /// The provider's unit id, if one is assigned.
    pub provider_unit_id: Option<String>,
    /// Whether it still waits for a profile.
    pub pending: bool,
}

struct ClaimedRow {
    placement_id: Uuid,
    order_id: Uuid,
    partner_id: Uuid,
    was: String,
    attempt: i32,
    attempt_age: f64,
    age: f64,
    placed_age: Option<f64>,
    unknowns: i32,
    answered: bool,
    traceparent: Option<String>,
    topup_ids: Vec<String>,
    provider_option_ids: Vec<String>,
    provider_unit_ids: Vec<Option<String>>,
    states: Vec<String>,
}

impl TryFrom<ClaimedRow> for Claimed {
    type Error = Error;

    fn try_from(row: ClaimedRow) -> Result<Self, Error> {
        let units = row.topup_ids.into_iter().zip(row.provider_option_ids);
        let details = row.provider_unit_ids.into_iter().zip(row.states);
        let topups = units
            .zip(details)
            .map(|((topup_id, provider_option_id), (provider_unit_id, state))| {
                Ok(ClaimedTopup {
                    topup_id: topup_id.try_into()?,
                    provider_option_id,
                    provider_unit_id,
                    pending: state == TopupState::Pending.as_str(),
                })
            });
        Ok(Self {
            placement_id: row.placement_id.into(),
            order_id: row.order_id.into(),
            partner_id: row.partner_id.into(),
            was: row.was.parse()?,
            attempt: unsigned(row.attempt),
            attempt_age: age(row.attempt_age),
            age: age(row.age),
            placed_age: row.placed_age.map(age),
            unknowns: unsigned(row.unknowns),
            answered: row.answered,
            traceparent: row.traceparent,
            topups: topups.collect::<Result<_, Error>>()?,
        })
    }
}

/// Claims placements in one statement. `accepted` ones move by [`domain::placement::Event::Claim`], which
/// records the attempt before anything is sent; all others only get a lease of length `lease`. An unreadable
/// row is parked; the others are claimed.
pub async fn claim(
    connection: &mut PgConnection,
    which: Claim<'_>,
    lease: Duration,
) -> Result<Vec<Claimed>, Error> {
    let (named, provider, limit, probe) = match which {
        Claim::Named(placements) => (placements, "", 0, false),
        Claim::Due { provider, limit } => (&[][..], provider, limit, false),
        Claim::Probe { provider } => (&[][..], provider, 1, true),
    };
    let named: Vec<Uuid> = named.iter().map(|placement| placement.uuid()).collect();
    let rows = sqlx::query_as!(
        ClaimedRow,
        r#"WITH named AS (
               SELECT placement_id, state FROM placements p
               WHERE placement_id = ANY($1) AND state = 'accepted'
                 AND NOT EXISTS (SELECT FROM providers b WHERE b.name = p.provider AND b.open_until IS NOT NULL)
               FOR UPDATE OF p SKIP LOCKED
           ), due AS (
               SELECT placement_id, state FROM placements
               WHERE provider = $2 AND redrive_at <= now()
                 AND ($5 OR NOT EXISTS (SELECT FROM providers WHERE name = $2 AND open_until IS NOT NULL))
               ORDER BY redrive_at LIMIT $3
               FOR UPDATE SKIP LOCKED
           ), claimed AS (
               UPDATE placements p
               SET state = CASE WHEN p.state = 'accepted' THEN 'placing' ELSE p.state END,
                   attempt = p.attempt + (p.state = 'accepted')::int,
                   attempted_at = CASE WHEN p.state = 'accepted' THEN now() ELSE p.attempted_at END,
                   not_found_at = CASE WHEN p.state = 'accepted' THEN NULL ELSE p.not_found_at END,
                   unknowns = CASE WHEN p.state = 'accepted' THEN 0 ELSE p.unknowns END,
                   redrive_at = now() + make_interval(secs => $4)
               FROM (SELECT * FROM named UNION ALL SELECT * FROM due) AS taken
               WHERE p.placement_id = taken.placement_id
               RETURNING p.*, taken.state AS was
           )
           SELECT c.placement_id AS "placement_id!", c.order_id AS "order_id!", o.partner_id AS "partner_id!",
                  c.was AS "was!", c.attempt AS "attempt!",
                  extract(epoch FROM now() - c.attempted_at)::float8 AS "attempt_age!",
                  extract(epoch FROM now() - c.created_at)::float8 AS "age!",
                  extract(epoch FROM now() - c.placed_at)::float8 AS placed_age, c.unknowns AS "unknowns!",
                  o.answer_by <= now() AS "answered!", o.traceparent,
                  t.topup_ids AS "topup_ids!", t.provider_option_ids AS "provider_option_ids!",
                  t.provider_unit_ids AS "provider_unit_ids!: Vec<Option<String>>", t.states AS "states!"
           FROM claimed c
           JOIN orders o ON o.order_id = c.order_id
           CROSS JOIN LATERAL (
               SELECT array_agg(topup_id ORDER BY position) AS topup_ids,
                      array_agg(provider_option_id ORDER BY position) AS provider_option_ids,
                      array_agg(provider_unit_id ORDER BY position) AS provider_unit_ids,
                      array_agg(state ORDER BY position) AS states
               FROM topups WHERE topups.placement_id = c.placement_id
           ) t"#,
        &named,
        provider,
        i64::try_from(limit).unwrap_or(i64::MAX),
        seconds(lease),
        probe,
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut claimed = Vec::with_capacity(rows.len());
    for row in rows {
        let (placement_id, attempt) = (row.placement_id.into(), unsigned(row.attempt));
        match Claimed::try_from(row) {
            Ok(work) => claimed.push(work),
            Err(error) => {
                tracing::error!(placement.id = %placement_id, %error, "parked: its row cannot be read");
                let outcome = Outcome::Disputed {
                    reason: format!("its row cannot be read: {error}"),
                };
                let parked = Settlement {
                    placement_id,
                    attempt,
                    outcome,
                };
                settle(connection, &[parked]).await?;
            }
        }
    }
    Ok(claimed)
}
