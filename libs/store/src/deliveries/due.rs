//! The look at due deliveries.

use domain::{DeliveryId, PartnerId};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    Result, signed,
    work::{DueWork, Found, Page},
};

/// Looks for due deliveries: the oldest ones of each partner, by turns. Changes nothing.
///
/// The deliveries of a blocked endpoint are left out, because their claim would find nothing; its
/// tests, which are due at `-infinity`, are found. Of an endpoint whose block has ended one delivery
/// is found, as its probe.
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
               SELECT next.partner_id, partner.nth + 1
               FROM partner
               CROSS JOIN LATERAL (
                   SELECT w.partner_id FROM work w
                   WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = ''
                     AND w.partner_id > partner.partner_id
                   ORDER BY w.partner_id LIMIT 1
               ) next
               WHERE partner.nth < $2
           )
           -- Takes the first due deliveries of each partner, and numbers them, so that the result takes
           -- one delivery of each partner in turn.
           SELECT partner.partner_id AS "partner_id!", partner.nth AS "nth!", late.id AS "id?"
           FROM partner
           LEFT JOIN endpoints e ON e.partner_id = partner.partner_id
           LEFT JOIN LATERAL (
               SELECT first.id, row_number() OVER (ORDER BY first.at) AS turn
               FROM (
                   SELECT w.id, w.at FROM work w
                   WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = ''
                     AND w.partner_id = partner.partner_id
                     AND w.at <= CASE WHEN e.blocked_until > now() THEN '-infinity' ELSE now() END
                   ORDER BY w.at
                   LIMIT CASE WHEN e.blocked_until IS NULL THEN $3::bigint ELSE 1 END
               ) first
           ) late ON true
           ORDER BY late.turn, partner.nth"#,
        page.after.as_ref().map_or(Uuid::nil(), |(_, partner)| partner.uuid()),
        limit,
        i64::try_from(page.per_lane).unwrap_or(i64::MAX),
    );
    let rows = query.fetch_all(connection).await?;
    let last = rows.iter().find(|row| row.nth >= limit);
    let after = last.map(|row| (String::new(), PartnerId::from(row.partner_id)));
    let due = rows
        .into_iter()
        .filter_map(|row| Some(DueWork { id: row.id?.into(), lane: String::new(), partner_id: row.partner_id.into() }))
        .take(page.limit)
        .collect();
    Ok(Found { due, after })
}
