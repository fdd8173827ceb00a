//! The fan-out: a topup that is ready goes to each endpoint of its partner that wants it.
//!
//! The provisioner creates one delivery for each ready unit, to the first endpoint, because it
//! should not spend time on what only few partners have. The notifier creates the deliveries to
//! further endpoints from it, when it first claims it.
//!
//! Guarantee: each further endpoint that existed when a unit became ready, and that wants ready
//! topups, gets exactly one delivery of it, whatever crashes. The id of this delivery is derived
//! from the topup and the endpoint, so a repeated fan-out changes nothing, and [`sweep`] repeats
//! it for every delivery whose first lease ends. The state of the first delivery does not matter: a
//! blocked first endpoint, or none, stops no other endpoint.

use domain::DeliveryId;
use pg::{Result, retry_conflicts};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::uuids;

/// Creates the deliveries to further endpoints that belong to these deliveries to first endpoints,
/// and makes them due. Returns the number of new deliveries.
pub async fn fan_out(connection: &mut PgConnection, ids: &[DeliveryId]) -> Result<u64> {
    let ids = uuids(ids);
    retry_conflicts!(create(&mut *connection, &ids))
}

/// Fans out the deliveries that were created within this range of time. If no partner has further
/// endpoints, the deliveries are not read.
pub(super) async fn sweep(
    connection: &mut PgConnection,
    from: OffsetDateTime,
    until: OffsetDateTime,
) -> Result<u64> {
    let query = sqlx::query_scalar!(
        "SELECT delivery_id FROM deliveries
         WHERE EXISTS (SELECT FROM partner_endpoints WHERE nth > 0)
           AND created_at > $1 AND created_at <= $2 AND kind = 'topup.ready' AND endpoint_id IS NULL
           AND partner_id = ANY (ARRAY (SELECT partner_id FROM partner_endpoints WHERE nth > 0))",
        from,
        until,
    );
    let ids = query.fetch_all(&mut *connection).await?;
    if ids.is_empty() {
        return Ok(0);
    }
    create(connection, &ids).await
}

/// - `wanted` finds the further endpoints that want the topups. An endpoint that was created later
///   than the topup became ready does not get it.
/// - `created` inserts their deliveries, in the order of their ids, so that two processes wait for
///   each other instead of deadlocking. `linked` notes their topups.
/// - The last step makes the new deliveries due. They never are without work, because no message
///   announces them.
async fn create(connection: &mut PgConnection, ids: &[Uuid]) -> Result<u64> {
    let statement = sqlx::query!(
        "WITH wanted AS MATERIALIZED (
             SELECT derived_id(d.kind, d.topup_id || ' ' || f.endpoint_id::text) AS delivery_id,
                    d.partner_id, d.kind, d.topup_id, d.order_id, f.endpoint_id
             FROM deliveries d
             JOIN partner_endpoints f ON f.partner_id = d.partner_id AND f.nth > 0
             WHERE d.delivery_id = ANY ($1) AND d.kind = 'topup.ready' AND d.endpoint_id IS NULL
               AND d.kind = ANY (f.events) AND f.created_at <= d.created_at
         ), created AS (
             INSERT INTO deliveries (delivery_id, partner_id, kind, topup_id, order_id, endpoint_id)
             SELECT delivery_id, partner_id, kind, topup_id, order_id, endpoint_id FROM wanted
             ORDER BY delivery_id
             ON CONFLICT DO NOTHING
             RETURNING delivery_id, partner_id, topup_id, endpoint_id
         ), linked AS (
             INSERT INTO further_deliveries (topup_id, delivery_id)
             SELECT topup_id, delivery_id FROM created
             ON CONFLICT DO NOTHING
         )
         INSERT INTO work (id, kind, provider, lane, partner_id, at)
         SELECT delivery_id, 'deliver', '', endpoint_id::text, partner_id, now() FROM created
         ON CONFLICT DO NOTHING",
        ids,
    );
    Ok(statement.execute(connection).await?.rows_affected())
}
