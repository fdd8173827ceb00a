//! The look at due deliveries, which the notifier makes regularly. It is separate from that of
//! [`crate::work`], because it must know which endpoints are blocked. Otherwise the two do the same
//! and have the same arguments and results, so change them together.

use domain::{DeliveryId, PartnerId};
use pg::{Result, signed};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::work::{DueWork, Found, Page};

/// Looks for due deliveries: the oldest one of each endpoint, then the second oldest one of each,
/// and so on. Changes nothing. Each result's lane and partner name its endpoint, see
/// [`EndpointKey::of_work`](super::endpoints::EndpointKey::of_work).
///
/// Deliveries of a blocked endpoint are left out, because their claim would find nothing. Tests,
/// which are due at `-infinity`, are found all the same. If the block of an endpoint has ended, a
/// single delivery is found, as its probe.
pub async fn due(connection: &mut PgConnection, page: &Page<'_>) -> Result<Found<DeliveryId>> {
    let (lane, partner) = match &page.after {
        Some((lane, partner)) => (lane.as_str(), partner.uuid()),
        None => ("", Uuid::nil()),
    };
    let limit = signed(page.limit);
    let query = sqlx::query!(
        r#"-- Walks from one endpoint to the next by the index `work_lane`, so that a long backlog of one
           -- endpoint costs the others nothing.
           WITH RECURSIVE endpoint (lane, partner_id, nth) AS (
               (SELECT lane, partner_id, 1 FROM work
                WHERE kind = 'deliver' AND provider = '' AND (lane, partner_id) > ($1, $2)
                ORDER BY lane, partner_id LIMIT 1)
               UNION ALL
               SELECT next_endpoint.lane, next_endpoint.partner_id, endpoint.nth + 1
               FROM endpoint
               CROSS JOIN LATERAL (
                   SELECT w.lane, w.partner_id FROM work w
                   WHERE w.kind = 'deliver' AND w.provider = ''
                     AND (w.lane, w.partner_id) > (endpoint.lane, endpoint.partner_id)
                   ORDER BY w.lane, w.partner_id LIMIT 1
               ) next_endpoint
               WHERE endpoint.nth < $3
           )
           -- Takes the first due deliveries of each endpoint, and numbers them, so that the result takes
           -- one delivery of each endpoint in turn. An endpoint without due deliveries stays in the
           -- result, because the last endpoint of the walk says where the next look begins. For the same
           -- reason the result has no LIMIT, which could cut that endpoint off.
           SELECT endpoint.lane AS "lane!", endpoint.partner_id AS "partner_id!", endpoint.nth AS "nth!",
                  due.id AS "id?"
           FROM endpoint
           LEFT JOIN partner_endpoints e
             ON e.endpoint_id = coalesce(nullif(endpoint.lane, '')::uuid, endpoint.partner_id)
           LEFT JOIN LATERAL (
               SELECT due_of_endpoint.id, row_number() OVER (ORDER BY due_of_endpoint.at) AS turn
               FROM (
                   SELECT w.id, w.at FROM work w
                   WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = endpoint.lane
                     AND w.partner_id = endpoint.partner_id
                     AND w.at <= CASE WHEN e.blocked_until > now() THEN '-infinity' ELSE now() END
                   ORDER BY w.at
                   LIMIT CASE WHEN e.blocked_until IS NULL THEN $4::bigint ELSE 1 END
               ) due_of_endpoint
           ) due ON true
           ORDER BY due.turn, endpoint.nth"#,
        lane,
        partner,
        limit,
        i64::try_from(page.rows_per_queue).unwrap_or(i64::MAX),
    );
    let rows = query.fetch_all(connection).await?;
    // If the walk stopped at the last endpoint that `limit` allows, there may be further endpoints
    // after it, and the next look begins there.
    let last = rows.iter().find(|row| row.nth >= limit);
    let after = last.map(|row| (row.lane.clone(), PartnerId::from(row.partner_id)));
    let due = rows
        .into_iter()
        .filter_map(|row| {
            Some(DueWork {
                id: row.id?.into(),
                lane: row.lane,
                partner_id: row.partner_id.into(),
            })
        })
        .take(page.limit)
        .collect();
    Ok(Found { due, after })
}
