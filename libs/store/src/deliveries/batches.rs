//! What the notifier does in batches, without calling anybody: rows of `work` with the kinds
//! `moved` (deliveries that waited for a URL), `resend` and `notices` (events and notices about
//! keys that end soon).
//!
//! A row is leased while its batch is done. Afterwards the caller ends it with [`done`], or makes
//! it due again with [`again`]. Both leave the row alone if it has become due anew since the claim,
//! for example because the partner has changed its URL once more. Triggers insert the rows of the
//! first two kinds together with what they are about, and `notices` has one row for all partners.
//!
//! Guarantee: as long as a resend runs or an endpoint moves, it has such a row. The locks of the
//! batches themselves keep two processes from doing the same batch; the lease only saves effort.

use std::time::Duration;

use domain::PartnerId;
use pg::{Result, seconds};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::work::{self, DueWork, LookResult, WorkKind, WorkLook};

/// A row that the caller has leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedBatch {
    /// The endpoint of `moved`, the resend of `resend`.
    pub id: Uuid,
    pub kind: WorkKind,
    pub partner_id: PartnerId,
    /// The end of the lease, by which [`done`] and [`again`] recognise it.
    leased_until: OffsetDateTime,
}

/// Looks for due rows, without changing anything.
pub async fn due(
    connection: &mut PgConnection,
    look: &WorkLook,
) -> Result<LookResult<DueWork<Uuid>>> {
    work::due(connection, &WorkKind::BATCHES, "", look).await
}

/// Leases those of the rows that are due.
pub async fn claim(
    connection: &mut PgConnection,
    rows: &[Uuid],
    lease: Duration,
) -> Result<Vec<ClaimedBatch>> {
    let kinds = WorkKind::BATCHES.map(WorkKind::as_str);
    let query = sqlx::query!(
        r#"UPDATE work SET at = now() + make_interval(secs => $3)
           WHERE id = ANY (ARRAY (
               SELECT id FROM work WHERE id = ANY ($1) AND kind = ANY ($2) AND at <= now()
               ORDER BY id FOR UPDATE SKIP LOCKED))
           RETURNING id, kind, partner_id, at"#,
        rows,
        &kinds as &[&str],
        seconds(lease),
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    let claimed = rows.filter_map(|row| {
        Some(ClaimedBatch {
            id: row.id,
            kind: WorkKind::BATCHES
                .into_iter()
                .find(|kind| kind.as_str() == row.kind)?,
            partner_id: row.partner_id.into(),
            leased_until: row.at,
        })
    });
    Ok(claimed.collect())
}

/// Makes a row due again after `pause`.
pub async fn again(
    connection: &mut PgConnection,
    claimed: &ClaimedBatch,
    pause: Duration,
) -> Result<()> {
    let statement = sqlx::query!(
        "UPDATE work SET at = now() + make_interval(secs => $3) WHERE id = $1 AND at = $2",
        claimed.id,
        claimed.leased_until,
        seconds(pause),
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Ends a row.
pub async fn done(connection: &mut PgConnection, claimed: &ClaimedBatch) -> Result<()> {
    let statement = sqlx::query!(
        "DELETE FROM work WHERE id = $1 AND at = $2",
        claimed.id,
        claimed.leased_until,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// Makes the row of `notices` due now, and inserts it if it is missing. Notifiers do so when they
/// start.
pub async fn begin_notices(connection: &mut PgConnection) -> Result<()> {
    let statement = sqlx::query!(
        "INSERT INTO work (id, kind, provider, lane, partner_id, at)
         VALUES (md5('notices')::uuid, 'notices', '', 'notices', $1, now())
         ON CONFLICT (id) DO UPDATE SET at = least(work.at, excluded.at)",
        Uuid::nil(),
    );
    statement.execute(connection).await?;
    Ok(())
}
