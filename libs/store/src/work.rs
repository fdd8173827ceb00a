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
//! This module only looks: a stage queues what [`due`] and [`due_deliveries`] find as tickets. The
//! two are one statement. That of deliveries also knows which endpoints are blocked, which the role
//! of the provisioner may not read. A look claims nothing. Two processes may find the same row, and
//! the one that claims it later gets nothing.

mod look;

use domain::{DeliveryId, EndpointKey};
use pg::Result;
use sqlx::PgConnection;
use uuid::Uuid;

pub use self::look::{DueWork, LookResult, WorkLook};

/// What a stage must do for a row of `work`. Its columns `id` and `lane` mean, by kind:
///
/// | kind | `id` | `lane` |
/// |---|---|---|
/// | `buy`, `buy_again`, `look_up`, `collect`, `look_again` | the placement | what fails together at the provider ([`domain::lane`]) |
/// | `usage`, `give_back`, `extend`, `suspend` | derived from the kind and the topup id | the topup id |
/// | `deliver` | the delivery | the id of a further endpoint; empty for the first one |
/// | `erase` | derived from the topup id | the topup id |
/// | `moved`, `resend`, `notices` | the endpoint, the resend, one id for all partners | the name of the kind |
///
/// Which of `buy`, `buy_again`, `look_up` and `collect` is next for a placement follows from its
/// state and its attempts, by the function `kind_of_work` of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum WorkKind {
    /// Buy a placement that was never tried.
    Buy,
    /// Buy a placement again after an attempt that certainly bought nothing.
    BuyAgain,
    /// Look up an attempt whose outcome is unknown.
    LookUp,
    /// Ask for the profiles of a purchase.
    Collect,
    /// Ask again for a purchase that waits for an operator, because an operator wants to know.
    LookAgain,
    /// Ask how much of its data an eSIM has used. The `lane` is the topup, as for the next kind.
    Usage,
    /// Give an eSIM back, or look whether an attempt to has done so.
    GiveBack,
    /// Add data to an eSIM, or look whether an attempt to has done so.
    Extend,
    /// Suspend or resume an eSIM, or look whether an attempt to has done so.
    Suspend,
    /// Send a webhook.
    Deliver,
    /// Look again whether the profile of a topup, which is the `lane`, may be erased. Retention
    /// does so in batches.
    Erase,
    /// Make the deliveries due that wait for an endpoint whose URL is new. The id is the
    /// endpoint's.
    Moved,
    /// Do the next batch of a resend, whose id the row has.
    Resend,
    /// Make the events and notices about keys that end soon, and delete old ones. One row does so
    /// for all partners.
    Notices,
}

impl WorkKind {
    /// The kinds of purchases. Further attempts come first, because an order that has waited for
    /// one attempt would otherwise wait behind every order that came after it.
    pub const PURCHASES: [Self; 2] = [Self::BuyAgain, Self::Buy];
    /// The kinds of calls that buy nothing. Look-ups come before collects, because each unknown
    /// outcome may be money spent.
    pub const LOOKUPS: [Self; 3] = [Self::LookUp, Self::Collect, Self::LookAgain];

    /// The kinds of requests about delivered eSIMs. Extensions come first, because a traveller
    /// waits for them. A call about one of the next two answers the question about the use, too,
    /// so they come before that.
    pub const REQUESTS: [Self; 4] = [Self::Extend, Self::Suspend, Self::GiveBack, Self::Usage];

    /// What is next for a placement that nobody has put on hold.
    pub const PLACEMENTS: [Self; 4] = [Self::BuyAgain, Self::Buy, Self::LookUp, Self::Collect];

    /// The kinds of webhooks.
    pub const WEBHOOKS: [Self; 1] = [Self::Deliver];
    /// The kinds that the notifier does in batches. The `lane` of each is its name.
    pub const BATCHES: [Self; 3] = [Self::Moved, Self::Resend, Self::Notices];

    /// The name of the kind in the database.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The names of all kinds of several lists. Statements bind them, so that a kind that gets
    /// another name is not silently left out of one.
    pub fn names(lists: &[&[Self]]) -> Vec<&'static str> {
        lists
            .iter()
            .copied()
            .flatten()
            .map(|kind| kind.as_str())
            .collect()
    }
}

/// Whether any row of each of these kinds is due, each for the provider at the same place.
pub async fn are_due(
    connection: &mut PgConnection,
    kinds: &[WorkKind],
    providers: &[String],
) -> Result<Vec<bool>> {
    let kinds = WorkKind::names(&[kinds]);
    let query = sqlx::query_scalar!(
        // No EXISTS, because PostgreSQL could execute it by reading all of `work` into a hash.
        r#"SELECT (SELECT true FROM work w
                   WHERE w.kind = watched.kind AND w.provider = watched.provider AND w.at <= now()
                   LIMIT 1) IS NOT NULL AS "due!"
           FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS watched (kind, provider, nth)
           ORDER BY watched.nth"#,
        &kinds as &[&str],
        providers,
    );
    Ok(query.fetch_all(connection).await?)
}

/// The statement of a look and what it returns. `gate` joins what decides about a pair, `until` is
/// the time up to which its rows are due, and `most` how many of them are taken.
macro_rules! look {
    ($connection:expr, $kinds:expr, $provider:expr, $look:expr, $gate:literal, $until:literal, $most:literal) => {{
        let look: &WorkLook = $look;
        let kinds = WorkKind::names(&[&$kinds[..]]);
        let (lane, partner) = match &look.after {
            Some((lane, partner)) => (lane.as_str(), partner.uuid()),
            None => ("", Uuid::nil()),
        };
        let limit = pg::signed(look.limit);
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
               "# + $gate + r#"
               LEFT JOIN LATERAL (
                   SELECT due_of_pair.id,
                          row_number() OVER (ORDER BY due_of_pair.rank, due_of_pair.at) AS turn
                   FROM (
                       SELECT due_of_kind.id, due_of_kind.at, wanted.rank
                       FROM unnest($1::text[]) WITH ORDINALITY AS wanted (kind, rank)
                       CROSS JOIN LATERAL (
                           SELECT w.id, w.at FROM work w
                           WHERE w.kind = wanted.kind AND w.provider = $2 AND w.lane = pair.lane
                             AND w.partner_id = pair.partner_id AND w.at <= "# + $until + r#" AND pair.lane <> ALL ($6)
                           ORDER BY w.at LIMIT "# + $most + r#"
                       ) due_of_kind
                       ORDER BY wanted.rank, due_of_kind.at LIMIT "# + $most + r#"
                   ) due_of_pair
               ) due ON true
               ORDER BY due.turn, pair.nth"#,
            &kinds as &[&str],
            $provider,
            lane,
            partner,
            limit,
            &look.skip,
            i64::try_from(look.rows_per_queue).unwrap_or(i64::MAX),
        );
        let rows = query.fetch_all($connection).await?;
        // If the walk stopped at the last pair that `limit` allows, there may be further pairs
        // after it, and the next look begins there.
        let last = rows.iter().find(|row| row.nth >= limit);
        let after = last.map(|row| (row.lane.clone(), row.partner_id.into()));
        let due = rows.into_iter().filter_map(|row| {
            Some(DueWork {
                id: row.id?.into(),
                partner_id: row.partner_id.into(),
                lane: row.lane,
            })
        });
        Ok(LookResult {
            due: due.take(look.limit).collect(),
            after,
        })
    }};
}

/// Looks for the due work of a provider. Within a lane and partner, the rows of the first of
/// `kinds` come first, and the oldest within a kind.
pub async fn due<Id: From<Uuid>>(
    connection: &mut PgConnection,
    kinds: &[WorkKind],
    provider: &str,
    look: &WorkLook,
) -> Result<LookResult<DueWork<Id>>> {
    look!(connection, kinds, provider, look, "", "now()", "$7")
}

/// A delivery that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueDelivery {
    pub id: DeliveryId,
    pub endpoint: EndpointKey,
}

/// Looks for due deliveries: the oldest one of each endpoint, then the second oldest one of each,
/// and so on.
///
/// Deliveries of a blocked endpoint are left out, because their claim would find nothing. Tests,
/// which are due at `-infinity`, are found all the same. If the block of an endpoint has ended, a
/// single delivery is found, as its probe.
pub async fn due_deliveries(
    connection: &mut PgConnection,
    look: &WorkLook,
) -> Result<LookResult<DueDelivery>> {
    let found: Result<LookResult<DueWork<DeliveryId>>> = look!(
        connection,
        WorkKind::WEBHOOKS,
        "",
        look,
        "LEFT JOIN partner_endpoints e
             ON e.endpoint_id = coalesce(nullif(pair.lane, '')::uuid, pair.partner_id)",
        "CASE WHEN e.blocked_until > now() THEN '-infinity' ELSE now() END",
        "CASE WHEN e.blocked_until IS NULL THEN $7::bigint ELSE 1 END"
    );
    Ok(found?.map(|due| DueDelivery {
        id: due.id,
        endpoint: EndpointKey::of_work(due.partner_id, &due.lane),
    }))
}
