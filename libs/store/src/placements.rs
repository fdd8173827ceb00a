//! Placements: what provisioners buy.
//!
//! The provisioner calls these functions in this order: [`due`] finds placements with due work,
//! unless a job has named them. [`claim()`] records the attempt, which is the only permission to
//! send a purchase. [`settle()`] records the outcome of the call. [`defer`] and [`sweep`] give due
//! work to placements that would otherwise be forgotten.
//!
//! Guarantee: a placement that is not finished is within its first lease, or has a row in `work`,
//! or is parked. Every statement moves a placement along a transition of [`domain::placement`], and
//! has a condition on its state and attempt, so repeating a statement changes nothing.

pub mod asked;
mod claim;
mod copied;
mod settle;

use std::time::Duration;

pub use claim::{ClaimedPlacement, ClaimedTopup, PlacementClaim, PlacementTask, claim};
pub(crate) use copied::CopiedOrder;
use domain::{OrderId, PlacementId};
use pg::{Error, Result, TransactionEnd, retry_conflicts, transaction, uuids};
pub use settle::{
    AttemptOutcome, KnownColumns, PlacementSettlement, Progress, ReadyProfile, SettledUnit,
    SettlementEffect, settle,
};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    sweep::{SweepResult, SweptRange, may_sweep},
    work::{self, DueWork, LookResult, WorkKind, WorkLook},
};

/// The two kinds of calls to a provider, between which its due work is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Purchases.
    Purchases,
    /// Look-ups and collects, which buy nothing.
    LookUps,
}

impl Activity {
    /// The kinds of work that belong to it, in the order in which they are done.
    pub fn kinds(self) -> &'static [WorkKind] {
        match self {
            Self::Purchases => &WorkKind::PURCHASES,
            Self::LookUps => &WorkKind::LOOKUPS,
        }
    }
}

/// Looks for the due work of a provider that belongs to `activity`. Changes nothing.
pub async fn due(
    connection: &mut PgConnection,
    provider: &str,
    activity: Activity,
    look: &WorkLook,
) -> Result<LookResult<DueWork<PlacementId>>> {
    work::due(connection, activity.kinds(), provider, look).await
}

/// A placement that was deferred, and the ingress process that need not wait for its verdict any
/// longer, see [`ClaimedPlacement::report_to`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeferredPlacement {
    pub placement_id: PlacementId,
    pub order_id: OrderId,
    pub report_to: Option<Uuid>,
}

/// Gives due work to placements of a job that cannot wait for a permit in this process, for example
/// because their queue is full. Placements that a process has claimed, or that have work already,
/// stay as they are. Returns the placements that this call deferred.
pub async fn defer(
    connection: &mut PgConnection,
    placements: &[PlacementId],
) -> Result<Vec<DeferredPlacement>> {
    let ids = uuids(placements);
    retry_conflicts!(async {
        // `deferred` inserts the work. The ids are sorted, so that two processes that defer the
        // same placements wait for each other instead of deadlocking. The rest reads who may wait
        // for a verdict.
        let query = sqlx::query!(
            r#"WITH deferred AS (
                   INSERT INTO work (id, kind, provider, lane, partner_id, at)
                   SELECT placement_id, kind_of_work(state, attempt), provider, lane, partner_id, now()
                   FROM placements
                   WHERE placement_id = ANY ($1) AND state = 'accepted'
                   ORDER BY placement_id
                   ON CONFLICT DO NOTHING
                   RETURNING id
               )
               SELECT p.placement_id, p.order_id,
                      o.answering, extract(epoch FROM o.answer_by - now())::float8 AS "answer_for!"
               FROM placements p
               JOIN orders o ON o.order_id = p.order_id
               WHERE p.placement_id = ANY (ARRAY (SELECT id FROM deferred))"#,
            &ids,
        );
        let rows = query.fetch_all(&mut *connection).await?;
        let deferred = rows.into_iter().map(|row| DeferredPlacement {
            placement_id: row.placement_id.into(),
            order_id: row.order_id.into(),
            report_to: copied::report_to(row.answering, row.answer_for),
        });
        Ok::<_, Error>(deferred.collect())
    })
}

/// Gives due work to each placement that has no outcome at the end of its first lease of `lag`. A
/// placement whose attempt was recorded is looked up, because its outcome is unknown; any other one
/// is bought.
pub async fn sweep(connection: &mut PgConnection, lag: Duration) -> Result<SweepResult> {
    if !may_sweep!(&mut *connection, lag, "placements") {
        return Ok(SweepResult::default());
    }
    transaction!(connection, "placements::sweep", |transaction| {
        let Some(range) = SweptRange::take(transaction, "placements", lag).await? else {
            return Ok(TransactionEnd::Rollback(SweepResult::default()));
        };
        let statement = sqlx::query!(
            "INSERT INTO work (id, kind, provider, lane, partner_id, at)
         SELECT placement_id, kind_of_work(state, attempt), provider, lane, partner_id, now()
         FROM placements
         WHERE created_at > $1 AND created_at <= $2 AND state IN ('accepted', 'placing')
         ON CONFLICT DO NOTHING",
            range.from,
            range.until,
        );
        let late = statement.execute(&mut **transaction).await?.rows_affected();
        Ok(TransactionEnd::Commit(range.done(transaction, late).await?))
    })
}
