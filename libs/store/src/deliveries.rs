//! Deliveries: found when they are due, claimed by notifiers, and recorded in batches.
//!
//! A delivery is the obligation to send one webhook: the specified one of a ready topup
//! (`topup.ready`), or an [event](events). All kinds share these statements, the attempts, the due
//! work and the blocks of [endpoints].
//!
//! Guarantee: a pending delivery is within its first lease, after which the sweep finds it, or it
//! has a row in `work`. So it is attempted again until it is delivered or exhausted, or waits for a
//! webhook URL.
//!
//! The notifier calls these functions: [`work::due_deliveries`](crate::work::due_deliveries) looks,
//! [`claim()`] takes the leases of due work and reads what a webhook needs ([`claim_known()`] reads
//! less, if the endpoint is known), [`record()`] stores the result of the attempt. [`defer`],
//! [`put_back`], [`put_off`] and [`sweep`] keep the guarantee for deliveries that are not attempted
//! at once. [`resends`] makes many deliveries of a partner due again, in [`batches`].
//!
//! It relies on the statements that create deliveries. The one that makes a unit ready inserts the
//! delivery to the partner's first endpoint in the same transaction, and events are inserted
//! together with their work. [`fan_out()`] creates the deliveries to further endpoints.

pub mod batches;
mod claim;
pub mod endpoints;
pub mod events;
mod fan_out;
mod known;
pub mod notices;
pub mod offers;
mod record;
pub mod resends;
pub mod view;
pub mod walk;

use std::time::Duration;

use domain::DeliveryId;
use pg::{Error, Result, TransactionEnd, retry_conflicts, transaction, uuids};
use sqlx::PgConnection;

pub use self::{
    claim::{
        ClaimResult, ClaimedDelivery, DeliveryClaim, DeliveryContent, DeliveryTarget, EsimContent,
        Validity, claim,
    },
    fan_out::fan_out,
    known::claim_known,
    record::{AttemptResult, EndedAttempt, record},
    view::View,
    walk::WalkPosition,
};
use crate::sweep::{SweepResult, SweptRange, may_sweep};

/// Gives due work to pending deliveries that cannot wait for a permit in this process. A delivery
/// that already has a row in `work` keeps it. The ids are sorted, so that two processes that defer
/// the same deliveries wait for each other instead of deadlocking.
///
/// Returns those that the caller passes to [`fan_out()`], because their first endpoint is slow, and
/// the further endpoints of the partner should not wait for it.
pub async fn defer(connection: &mut PgConnection, ids: &[DeliveryId]) -> Result<Vec<DeliveryId>> {
    let ids = uuids(ids);
    retry_conflicts!(async {
        let query = sqlx::query_scalar!(
            "WITH deferred AS (
                 INSERT INTO work (id, kind, provider, lane, partner_id, at)
                 SELECT delivery_id, 'deliver', '', coalesce(endpoint_id::text, ''), partner_id, now()
                 FROM deliveries
                 WHERE delivery_id = ANY ($1) AND state = 'pending'
                 ORDER BY delivery_id
                 ON CONFLICT DO NOTHING
             )
             SELECT d.delivery_id FROM deliveries d
             JOIN partners p ON p.partner_id = d.partner_id
             WHERE d.delivery_id = ANY ($1) AND d.kind = 'topup.ready' AND d.endpoint_id IS NULL
               AND d.attempt = 0 AND p.has_further_endpoints",
            &ids,
        );
        let to_fan_out = query.fetch_all(&mut *connection).await?;
        Ok::<_, Error>(to_fan_out.into_iter().map(DeliveryId::from).collect())
    })
}

/// Ends leases that this process holds, because it cannot attempt the deliveries now, for example
/// because too many requests to their host are in flight. They are due again at once.
pub async fn put_back(connection: &mut PgConnection, ids: &[DeliveryId]) -> Result<()> {
    let ids = uuids(ids);
    retry_conflicts!(async {
        let statement = sqlx::query!(
            "UPDATE work w
             -- A test is due before everything else: see `events::test`.
             SET at = CASE WHEN d.kind = 'webhook.test' THEN '-infinity'::timestamptz ELSE now() END
             FROM deliveries d
             WHERE w.id = ANY ($1) AND w.at > now() AND d.delivery_id = w.id",
            &ids,
        );
        statement.execute(&mut *connection).await?;
        Ok::<_, Error>(())
    })
}

/// Puts a delivery off whose outcome cannot be recorded: it is due again after half of its age,
/// between a minute and a day. So it is attempted less and less often, although nothing counts its
/// attempts. This changes only its work, because its own row may be what refuses changes. If it has
/// become due meanwhile, for example because somebody has it sent again, it stays so.
pub async fn put_off(connection: &mut PgConnection, id: DeliveryId) -> Result<()> {
    retry_conflicts!(async {
        let statement = sqlx::query!(
            "INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
             SELECT delivery_id, 'deliver', '', coalesce(endpoint_id::text, ''), partner_id,
                    now() + least(greatest((now() - created_at) / 2, interval '1 minute'), interval '1 day')
             FROM deliveries
             WHERE delivery_id = $1 AND state = 'pending'
             ON CONFLICT (id) DO UPDATE SET at = excluded.at WHERE w.at > now()",
            id.uuid(),
        );
        statement.execute(&mut *connection).await?;
        Ok::<_, Error>(())
    })
}

/// Gives due work to each delivery that has no outcome at the end of its first lease of `lag`. It
/// also fans out those that no claim has fanned out, whatever their state. This is what guarantees
/// that a further endpoint gets each topup that it wants, even if the process that claimed the
/// delivery died.
pub async fn sweep(connection: &mut PgConnection, lag: Duration) -> Result<SweepResult> {
    if !may_sweep!(&mut *connection, lag, "deliveries") {
        return Ok(SweepResult::default());
    }
    transaction!(connection, "deliveries::sweep", |transaction| {
        let Some(range) = SweptRange::take(transaction, "deliveries", lag).await? else {
            return Ok(TransactionEnd::Rollback(SweepResult::default()));
        };
        let statement = sqlx::query!(
            "INSERT INTO work (id, kind, provider, lane, partner_id, at)
         SELECT delivery_id, 'deliver', '', coalesce(endpoint_id::text, ''), partner_id, now()
         FROM deliveries
         WHERE created_at > $1 AND created_at <= $2 AND state = 'pending'
         ON CONFLICT DO NOTHING",
            range.from,
            range.until,
        );
        let late = statement.execute(&mut **transaction).await?.rows_affected();
        fan_out::sweep(transaction, range.from, range.until).await?;
        Ok(TransactionEnd::Commit(range.done(transaction, late).await?))
    })
}

/// Moves pending deliveries to endpoints without a URL to the state `no_endpoint`, in which
/// they wait for a URL. Returns the number of moved deliveries.
///
/// The statement locks the rows of the endpoints (`without`) and reads the URL under the lock, so
/// that it and [`accounts::partners::endpoints::change`] cannot miss each other: either this
/// statement sees the new URL, or the change of the URL sees the held deliveries. Then `moved`
/// changes the deliveries to these endpoints, `done` deletes their work, and the last step inserts
/// them into `held`.
pub async fn set_no_endpoint(connection: &mut PgConnection, ids: &[DeliveryId]) -> Result<u64> {
    let statement = sqlx::query!(
        "WITH without AS MATERIALIZED (
             SELECT endpoint_id, lane FROM partner_endpoints
             WHERE url IS NULL
               AND endpoint_id = ANY (ARRAY (
                   SELECT coalesce(endpoint_id, partner_id) FROM deliveries WHERE delivery_id = ANY ($1)))
             ORDER BY endpoint_id
             FOR SHARE
         ), moved AS (
             UPDATE deliveries d SET state = 'no_endpoint' FROM without
             WHERE d.delivery_id = ANY ($1) AND d.state = 'pending'
               AND without.endpoint_id = coalesce(d.endpoint_id, d.partner_id)
             RETURNING d.delivery_id, d.partner_id, without.lane
         ), done AS (
             DELETE FROM work WHERE id = ANY (ARRAY (SELECT delivery_id FROM moved))
         )
         INSERT INTO held (id, state, provider, lane, partner_id)
         SELECT delivery_id, 'no_endpoint', '', lane, partner_id FROM moved
         ON CONFLICT (id) DO UPDATE SET state = excluded.state, at = excluded.at",
        &uuids(ids),
    );
    Ok(statement.execute(connection).await?.rows_affected())
}
