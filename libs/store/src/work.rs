//! Unfinished work: the rows of table `work`, which both stages share.
//!
//! A placement or a delivery that is finished within its first lease usually has no row here. It has one if, for
//! example, it was deferred, or no message could announce it. After the first lease the sweep inserts the row that is
//! missing, so every older one that is not finished has exactly one row, which says when its stage must look at it
//! again. Only those in `held` may have none, because they wait for a person. The modules
//! [`placements`](crate::placements) and [`deliveries`](crate::deliveries) insert, move and delete these rows in the
//! statements that change the placement or the delivery, so the two can't disagree.
//!
//! The functions here only look. A look claims nothing: two processes may find the same row, and the
//! one that claims it later gets nothing.

use domain::PartnerId;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::Result;

/// What a stage must do for a row of `work`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Kind {
    /// Buy a placement that was never tried.
    Buy,
    /// Buy a placement again after an attempt that certainly bought nothing.
    BuyAgain,
    /// Look up an attempt whose outcome is unknown.
    Find,
    /// Ask for the profiles of a purchase.
    Collect,
    /// Send a webhook.
    Deliver,
}

impl Kind {
    /// Purchases. Further attempts come first, because an order that has waited for one attempt
    /// would otherwise wait behind every order that came after it.
    pub const PURCHASES: [Self; 2] = [Self::BuyAgain, Self::Buy];
    /// Calls that buy nothing. Unknown outcomes come first, because each may be money spent.
    pub const LOOKUPS: [Self; 2] = [Self::Find, Self::Collect];

    /// The name in the database.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The start and the size of a look at due work. The cost of a look is bounded by `limit`, however
/// many rows wait.
#[derive(Clone, Debug, Default)]
pub struct Page<'a> {
    /// The most rows to return, and the most pairs of lane and partner to look at.
    pub limit: usize,
    /// The most rows of one partner in one lane.
    pub per_lane: usize,
    /// The lane and partner after which the look begins.
    pub after: Option<(String, PartnerId)>,
    /// Lanes to leave out.
    pub skip: &'a [String],
}

/// A row that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueWork<Id> {
    pub id: Id,
    pub lane: String,
    pub partner_id: PartnerId,
}

/// The result of a look.
#[derive(Clone, Debug)]
pub struct Found<Id> {
    /// The rows of each lane and partner in turn, so that no backlog hides another one.
    pub due: Vec<DueWork<Id>>,
    /// Where the next look begins; `None` after the last lane.
    pub after: Option<(String, PartnerId)>,
}

/// Looks for the due work of a provider. Within a lane and partner, the rows of the first of `kinds`
/// come first, and the oldest within a kind.
pub(crate) async fn due<Id: From<Uuid>>(
    connection: &mut PgConnection,
    kinds: &[Kind],
    provider: &str,
    page: &Page<'_>,
) -> Result<Found<Id>> {
    let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
    let (lane, partner) = match &page.after {
        Some((lane, partner)) => (lane.as_str(), partner.uuid()),
        None => ("", Uuid::nil()),
    };
    let limit = crate::signed(page.limit);
    let query = sqlx::query!(
        r#"-- Walks from one pair of lane and partner to the next by the index, so that a long backlog
           -- of one pair costs the others nothing.
           WITH RECURSIVE pair (lane, partner_id, nth) AS (
               (SELECT next.lane, next.partner_id, 1
                FROM unnest($1::text[]) AS wanted (kind)
                CROSS JOIN LATERAL (
                    SELECT w.lane, w.partner_id FROM work w
                    WHERE w.kind = wanted.kind AND w.provider = $2 AND (w.lane, w.partner_id) > ($3, $4)
                    ORDER BY w.lane, w.partner_id LIMIT 1
                ) next
                ORDER BY next.lane, next.partner_id LIMIT 1)
               UNION ALL
               SELECT following.lane, following.partner_id, pair.nth + 1
               FROM pair
               CROSS JOIN LATERAL (
                   SELECT next.lane, next.partner_id
                   FROM unnest($1::text[]) AS wanted (kind)
                   CROSS JOIN LATERAL (
                       SELECT w.lane, w.partner_id FROM work w
                       WHERE w.kind = wanted.kind AND w.provider = $2
                         AND (w.lane, w.partner_id) > (pair.lane, pair.partner_id)
                       ORDER BY w.lane, w.partner_id LIMIT 1
                   ) next
                   ORDER BY next.lane, next.partner_id LIMIT 1
               ) following
               WHERE pair.nth < $5
           )
           -- Takes the first due rows of each pair, and numbers them, so that the result takes one
           -- row of each pair in turn.
           SELECT pair.lane AS "lane!", pair.partner_id AS "partner_id!", pair.nth AS "nth!", late.id AS "id?"
           FROM pair
           LEFT JOIN LATERAL (
               SELECT first.id, row_number() OVER (ORDER BY first.rank, first.at) AS turn
               FROM (
                   SELECT rows.id, rows.at, wanted.rank
                   FROM unnest($1::text[]) WITH ORDINALITY AS wanted (kind, rank)
                   CROSS JOIN LATERAL (
                       SELECT w.id, w.at FROM work w
                       WHERE w.kind = wanted.kind AND w.provider = $2 AND w.lane = pair.lane
                         AND w.partner_id = pair.partner_id AND w.at <= now() AND pair.lane <> ALL ($6)
                       ORDER BY w.at LIMIT $7
                   ) rows
                   ORDER BY wanted.rank, rows.at LIMIT $7
               ) first
           ) late ON true
           ORDER BY late.turn, pair.nth"#,
        &kinds as &[&str],
        provider,
        lane,
        partner,
        limit,
        page.skip,
        i64::try_from(page.per_lane).unwrap_or(i64::MAX),
    );
    let rows = query.fetch_all(connection).await?;
    let last = rows.iter().find(|row| row.nth >= limit);
    let after = last.map(|row| (row.lane.clone(), row.partner_id.into()));
    let due = rows
        .into_iter()
        .filter_map(|row| Some(DueWork { id: row.id?.into(), partner_id: row.partner_id.into(), lane: row.lane }))
        .take(page.limit)
        .collect();
    Ok(Found { due, after })
}
