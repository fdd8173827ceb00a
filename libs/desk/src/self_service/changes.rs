//! The topups of a partner in the order in which they changed: they became ready, failed, were
//! extended, or were given back. A partner that keeps books walks them once a day.
//!
//! Guarantee: whoever walks on from where the last walk was complete gets each change once. A
//! change is found by the begin of its transaction, and transactions do not commit in the order in
//! which they begin, and a commit may hang for as long as a standby is away. So the walk ends where
//! a sweep has come to, because that waits for each transaction that may still write a change
//! (`libs/store/src/sweep.rs`), and at least [`COMMIT_LAG`] before now; and it says where. While
//! neither a provisioner nor a notifier sweeps, it comes no further.
//!
//! A ready topup is found by its webhook to the first endpoint, which is stored with its profile,
//! and the others by `topup_changes`, which triggers fill.

use domain::{PartnerId, TopupId};
use pg::Result;
use serde::Serialize;
use sqlx::PgConnection;
use store::Unflushed;
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::orders::{PartnerUnit, units_of};

/// How long after its begin a change is found at the earliest, in seconds. It is far longer than a
/// statement of any stage may take, so a transaction that has written nothing yet is younger.
const COMMIT_LAG: f64 = 60.0;

/// What has happened to a topup: `ready`, `failed`, `extended` or `returned`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema, strum::EnumString)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum TopupChange {
    /// Its eSIM became ready.
    Ready,
    /// It became certain that it has no eSIM.
    Failed,
    /// Its eSIM was extended.
    Extended,
    /// Its eSIM was given back.
    Returned,
}

/// The position of a change among all changes of its partner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangePosition {
    pub at: OffsetDateTime,
    pub topup_id: String,
    pub change: String,
}

impl ChangePosition {
    /// Behind all changes of this time.
    pub fn after(at: OffsetDateTime) -> Self {
        Self {
            at,
            // Topup ids have digits only, which come before it.
            topup_id: "~".to_owned(),
            change: String::new(),
        }
    }
}

/// A page of changes, the oldest first.
#[derive(Clone, Debug)]
pub struct ChangePage {
    pub after: ChangePosition,
    /// Only changes until this time.
    pub until: Option<OffsetDateTime>,
    pub limit: u16,
}

/// A change with its topup as it is now.
#[derive(Clone, Debug)]
pub struct ChangedUnit {
    pub at: OffsetDateTime,
    pub change: TopupChange,
    pub unit: PartnerUnit,
}

#[derive(Clone, Debug)]
pub struct TopupChanges {
    pub changes: Vec<ChangedUnit>,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<ChangePosition>,
    /// No change until this time is missing in the pages.
    pub complete_until: OffsetDateTime,
}

/// Lists the changes of a partner's topups. A page may hold fewer changes than `limit`, or none,
/// although it is not the last one, because orders that were answered with 422 are left out.
pub async fn changes(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    page: &ChangePage,
) -> Result<Unflushed<TopupChanges>> {
    let until = sqlx::query_scalar!(
        r#"SELECT least(now() - make_interval(secs => $1), $2,
                       (SELECT max(up_to) FROM walks
                        WHERE name IN ('placements', 'deliveries') AND isfinite(up_to))) AS "until!""#,
        COMMIT_LAG,
        page.until,
    );
    let complete_until = until.fetch_one(&mut *connection).await?;
    let query = sqlx::query!(
        r#"SELECT c.at AS "at!", c.topup_id AS "topup_id!", c.change AS "change!",
                  EXISTS (SELECT FROM topups t JOIN placements p ON p.placement_id = t.placement_id
                          JOIN orders o ON o.order_id = p.order_id
                          WHERE t.topup_id = c.topup_id AND o.partner_id = $1
                            AND (o.refused_at IS NULL OR o.cancelled_at IS NOT NULL)) AS "counts!"
           FROM ((SELECT d.created_at AS at, d.topup_id, 'ready' COLLATE "C" AS change FROM deliveries d
                  WHERE d.partner_id = $1 AND d.kind = 'topup.ready' AND d.endpoint_id IS NULL
                    AND d.created_at >= $2 AND d.created_at <= $5
                    AND (d.created_at, d.topup_id, 'ready' COLLATE "C") > ($2, $3, $4)
                  ORDER BY d.created_at, d.topup_id LIMIT $6)
                 UNION ALL
                 (SELECT n.at, n.topup_id, n.change FROM topup_changes n
                  WHERE n.partner_id = $1 AND n.at >= $2 AND n.at <= $5 AND (n.at, n.topup_id, n.change) > ($2, $3, $4)
                  ORDER BY n.at, n.topup_id, n.change LIMIT $6)) c
           ORDER BY c.at, c.topup_id, c.change LIMIT $6"#,
        partner_id.uuid(),
        page.after.at,
        page.after.topup_id,
        page.after.change,
        complete_until,
        // One more tells whether this page is the last one.
        i64::from(page.limit) + 1,
    );
    let mut rows = query.fetch_all(&mut *connection).await?;
    let has_more = rows.len() > usize::from(page.limit);
    rows.truncate(page.limit.into());
    let last = rows.last().filter(|_| has_more);
    let next = last.map(|row| ChangePosition {
        at: row.at,
        topup_id: row.topup_id.clone(),
        change: row.change.clone(),
    });
    let counting = rows.iter().filter(|row| row.counts);
    let ids: Vec<String> = counting.map(|row| row.topup_id.clone()).collect();
    let units = units_of(connection, partner_id, &ids).await?;
    let changed = rows.iter().filter(|row| row.counts).filter_map(|row| {
        let topup_id: TopupId = row.topup_id.parse().ok()?;
        let unit = units.iter().find(|unit| unit.topup_id == topup_id)?;
        Some(ChangedUnit {
            at: row.at,
            change: row.change.parse().ok()?,
            unit: unit.clone(),
        })
    });
    Ok(Unflushed::of(TopupChanges {
        changes: changed.collect(),
        next,
        complete_until,
    }))
}
