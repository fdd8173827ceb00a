//! The look at due deliveries, which the notifier makes regularly. It is separate from that of
//! [`crate::work`], because it must know which endpoints are blocked. Otherwise the two do the same
//! and have the same arguments and results, so change them together.

use domain::{DeliveryId, PartnerId};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    Result, signed,
    work::{DueWork, Found, Page},
};

/// Looks for due deliveries: the oldest one of each partner, then the second oldest one of each,
/// and so on. Changes nothing.
///
/// Deliveries of a blocked endpoint are left out, because their claim would find nothing. Tests,
/// which are due at `-infinity`, are found all the same. If the block of an endpoint has ended, a
/// single delivery is found, as its probe.
pub async fn due(connection: &mut PgConnection, page: &Page<'_>) -> Result<Found<DeliveryId>> {
    let limit = signed(page.limit);
    let query = sqlx::query!(
        r#"-- Walks from one partner to the next by the index `work_lane`, so that a long backlog of one
           -- partner costs the others nothing.
           WITH RECURSIVE partner (partner_id, nth) AS (
               (SELECT partner_id, 1 FROM work
                WHERE kind = 'deliver' AND provider = '' AND lane = '' AND partner_id > $1
                ORDER BY partner_id LIMIT 1)
               UNION ALL
               SELECT next_partner.partner_id, partner.nth + 1
               FROM partner
               CROSS JOIN LATERAL (
                   SELECT w.partner_id FROM work w
                   WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = ''
                     AND w.partner_id > partner.partner_id
                   ORDER BY w.partner_id LIMIT 1
               ) next_partner
               WHERE partner.nth < $2
           )
           -- Takes the first due deliveries of each partner, and numbers them, so that the result takes
           -- one delivery of each partner in turn. A partner without due deliveries stays in the
           -- result, because the last partner of the walk says where the next look begins. For the same
           -- reason the result has no LIMIT, which could cut that partner off.
           SELECT partner.partner_id AS "partner_id!", partner.nth AS "nth!", due.id AS "id?"
           FROM partner
           LEFT JOIN endpoints e ON e.partner_id = partner.partner_id
           LEFT JOIN LATERAL (
               SELECT due_of_partner.id, row_number() OVER (ORDER BY due_of_partner.at) AS turn
               FROM (
                   SELECT w.id, w.at FROM work w
                   WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = ''
                     AND w.partner_id = partner.partner_id
                     AND w.at <= CASE WHEN e.blocked_until > now() THEN '-infinity' ELSE now() END
                   ORDER BY w.at
                   LIMIT CASE WHEN e.blocked_until IS NULL THEN $3::bigint ELSE 1 END
               ) due_of_partner
           ) due ON true
           ORDER BY due.turn, partner.nth"#,
        page.after
            .as_ref()
            .map_or(Uuid::nil(), |(_, partner)| partner.uuid()),
        limit,
        i64::try_from(page.rows_per_queue).unwrap_or(i64::MAX),
    );
    let rows = query.fetch_all(connection).await?;
    // If the walk stopped at the last partner that `limit` allows, there may be further partners
    // after it, and the next look begins there.
    let last = rows.iter().find(|row| row.nth >= limit);
    let after = last.map(|row| (String::new(), PartnerId::from(row.partner_id)));
    let due = rows
        .into_iter()
        .filter_map(|row| {
            Some(DueWork {
                id: row.id?.into(),
                lane: String::new(),
                partner_id: row.partner_id.into(),
            })
        })
        .take(page.limit)
        .collect();
    Ok(Found { due, after })
}
