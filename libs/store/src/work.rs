//! Unfinished work: the rows of the table `work`, which the provisioner and the notifier share.
//!
//! A placement or a delivery that is finished within its first lease usually has no row here. It
//! has one if, for example, it was deferred, or no message could announce it. After the first lease
//! the sweep inserts the row that is missing, so every older one that is not finished has exactly
//! one row, which says when its stage must look at it again. Only those in `held` may have none,
//! because they wait for a person. The modules [`placements`](crate::placements) and
//! [`deliveries`](crate::deliveries) insert, move and delete these rows in the statements that
//! change the placement or the delivery, so the two cannot disagree.
//!
//! This module only looks: [`placements::due`](crate::placements::due) finds the due rows of a
//! provider with it, for the provisioner to queue as tickets. The notifier has a look of its own,
//! [`deliveries::due`](crate::deliveries::due()), which must know which endpoints are blocked. Both
//! take a [`Page`] and return [`Found`] with the same meaning, so change the two together. A look
//! claims nothing. Two processes may find the same row, and the one that claims it later gets
//! nothing.

use domain::PartnerId;
use pg::Result;
use sqlx::PgConnection;
use uuid::Uuid;

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
    /// Ask again for a purchase that waits for an operator, because an operator wants to know.
    LookAgain,
    /// Ask how much of its data an eSIM has used. The `lane` is the topup, as for the next kind.
    Usage,
    /// Give an eSIM back, or look at what became of an attempt to.
    GiveBack,
    /// Send a webhook.
    Deliver,
    /// Look again whether the profile of a topup, which is the `lane`, may be erased. Retention does
    /// so in batches.
    Erase,
    /// Make the deliveries due that wait for an endpoint whose URL is new. The id is the endpoint's.
    Moved,
    /// Do the next batch of a resend, whose id the row has.
    Resend,
    /// Make the events and notices about keys that end soon, and delete old ones. One row does so
    /// for all partners.
    Notices,
}

impl Kind {
    /// The kinds of purchases. Further attempts come first, because an order that has waited for
    /// one attempt would otherwise wait behind every order that came after it.
    pub const PURCHASES: [Self; 2] = [Self::BuyAgain, Self::Buy];
    /// The kinds of calls that buy nothing. Look-ups come before collects, because each unknown
    /// outcome may be money spent.
    pub const LOOKUPS: [Self; 3] = [Self::Find, Self::Collect, Self::LookAgain];

    /// The kinds of requests about delivered eSIMs. A call about a give-back answers the question
    /// about the use, too, so it comes first.
    pub const REQUESTS: [Self; 2] = [Self::GiveBack, Self::Usage];

    /// The kinds that the notifier does in batches. The `lane` of each is its name.
    pub const BATCHES: [Self; 3] = [Self::Moved, Self::Resend, Self::Notices];

    /// The name of the kind in the database.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Where a look at due work begins, and how much it returns. However many rows wait, a look reads
/// at most `limit` pairs of lane and partner and, for each kind, `rows_per_queue` rows of each of
/// them. Of these rows it returns at most `limit`.
#[derive(Clone, Debug, Default)]
pub struct Page<'a> {
    /// The maximum number of rows to return, and of pairs of lane and partner to look at.
    pub limit: usize,
    /// The maximum number of rows of one queue, which is one partner in one lane.
    pub rows_per_queue: usize,
    /// The lane and partner after which the look begins; `None` begins with the first. See
    /// [`Found::after`].
    pub after: Option<(String, PartnerId)>,
    /// Lanes whose rows are left out, for example because the provisioner holds them back after
    /// failures.
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
    /// The due rows: the first one of each lane and partner, then the second one of each, and so
    /// on, so that no backlog hides another one.
    pub due: Vec<DueWork<Id>>,
    /// Where the next look begins; `None` after the last lane, so that the next look begins with
    /// the first one.
    pub after: Option<(String, PartnerId)>,
}

/// Looks for the due work of a provider. Within a lane and partner, the rows of the first of
/// `kinds` come first, and the oldest within a kind.
pub async fn due<Id: From<Uuid>>(
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
    let limit = pg::signed(page.limit);
    let query = sqlx::query!(
        r#"-- Walks from one pair of lane and partner to the next by the index, so that a long backlog
           -- of one pair costs the others nothing.
           WITH RECURSIVE pair (lane, partner_id, nth) AS (
               (SELECT next_of_kind.lane, next_of_kind.partner_id, 1
                FROM unnest($1::text[]) AS wanted (kind)
                CROSS JOIN LATERAL (
                    SELECT w.lane, w.partner_id FROM work w
                    WHERE w.kind = wanted.kind AND w.provider = $2 AND (w.lane, w.partner_id) > ($3, $4)
                    ORDER BY w.lane, w.partner_id LIMIT 1
                ) next_of_kind
                ORDER BY next_of_kind.lane, next_of_kind.partner_id LIMIT 1)
               UNION ALL
               SELECT next_pair.lane, next_pair.partner_id, pair.nth + 1
               FROM pair
               CROSS JOIN LATERAL (
                   SELECT next_of_kind.lane, next_of_kind.partner_id
                   FROM unnest($1::text[]) AS wanted (kind)
                   CROSS JOIN LATERAL (
                       SELECT w.lane, w.partner_id FROM work w
                       WHERE w.kind = wanted.kind AND w.provider = $2
                         AND (w.lane, w.partner_id) > (pair.lane, pair.partner_id)
                       ORDER BY w.lane, w.partner_id LIMIT 1
                   ) next_of_kind
                   ORDER BY next_of_kind.lane, next_of_kind.partner_id LIMIT 1
               ) next_pair
               WHERE pair.nth < $5
           )
           -- Takes the first due rows of each pair, and numbers them, so that the result takes one
           -- row of each pair in turn. A pair without due rows stays in the result, because the last
           -- pair of the walk says where the next look begins. For the same reason the result has no
           -- LIMIT, which could cut that pair off.
           SELECT pair.lane AS "lane!", pair.partner_id AS "partner_id!", pair.nth AS "nth!", due.id AS "id?"
           FROM pair
           LEFT JOIN LATERAL (
               SELECT due_of_pair.id,
                      row_number() OVER (ORDER BY due_of_pair.rank, due_of_pair.at) AS turn
               FROM (
                   SELECT due_of_kind.id, due_of_kind.at, wanted.rank
                   FROM unnest($1::text[]) WITH ORDINALITY AS wanted (kind, rank)
                   CROSS JOIN LATERAL (
                       SELECT w.id, w.at FROM work w
                       WHERE w.kind = wanted.kind AND w.provider = $2 AND w.lane = pair.lane
                         AND w.partner_id = pair.partner_id AND w.at <= now() AND pair.lane <> ALL ($6)
                       ORDER BY w.at LIMIT $7
                   ) due_of_kind
                   ORDER BY wanted.rank, due_of_kind.at LIMIT $7
               ) due_of_pair
           ) due ON true
           ORDER BY due.turn, pair.nth"#,
        &kinds as &[&str],
        provider,
        lane,
        partner,
        limit,
        page.skip,
        i64::try_from(page.rows_per_queue).unwrap_or(i64::MAX),
    );
    let rows = query.fetch_all(connection).await?;
    // If the walk stopped at the last pair that `limit` allows, there may be further pairs after it,
    // and the next look begins there.
    let last = rows.iter().find(|row| row.nth >= limit);
    let after = last.map(|row| (row.lane.clone(), row.partner_id.into()));
    let due = rows
        .into_iter()
        .filter_map(|row| {
            Some(DueWork {
                id: row.id?.into(),
                partner_id: row.partner_id.into(),
                lane: row.lane,
            })
        })
        .take(page.limit)
        .collect();
    Ok(Found { due, after })
}
