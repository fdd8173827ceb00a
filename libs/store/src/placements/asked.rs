//! What a provider says about purchases on hold when an operator asks.
//!
//! Only provisioners hold the credentials of providers, so [`ask`] makes work of the question, and
//! a provisioner looks the purchase up. One that is found goes on by the ordinary settlement,
//! because a parked placement takes a late response. What else it says is [noted](note) in the
//! history, where [`answers`] finds it, and the purchase stays on hold: only a person decides to
//! give it up or to buy it again.

use std::collections::HashMap;

use domain::{HistoryKind, PlacementId, Reason, StoredReason};
use pg::{Result, TransactionEnd, transaction, uuids};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::history::{self, Note};

/// Makes the question about these purchases due, those that are on hold and may be asked about.
/// Returns them. One that is bought, and whose profiles are missing, is asked for these now.
///
/// A disputed one is left out, because no answer moves it, and so is one that may be at several
/// providers, because the answer of one of them says too little.
pub async fn ask(
    connection: &mut PgConnection,
    placements: &[PlacementId],
) -> Result<Vec<PlacementId>> {
    let ids = uuids(placements);
    let asked = sqlx::query_scalar!(
        r#"WITH asked AS MATERIALIZED (
               SELECT placement_id, provider, lane, partner_id, placed_at FROM placements
               WHERE placement_id = ANY ($1) AND state = 'parked' AND NOT disputed AND alternatives IS NULL
               ORDER BY placement_id FOR UPDATE
           )
           INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
           SELECT placement_id, CASE WHEN placed_at IS NULL THEN 'look_again' ELSE 'collect' END, provider, lane,
                  partner_id, now()
           FROM asked
           ON CONFLICT (id) DO UPDATE SET at = least(w.at, excluded.at)
           RETURNING w.id"#,
        &ids,
    );
    let asked = asked.fetch_all(connection).await?;
    Ok(asked.into_iter().map(PlacementId::from).collect())
}

/// Notes what the provider has said of a purchase that stays on hold, and ends the question. A
/// purchase that has changed since it was claimed is left as it is.
pub async fn note(
    connection: &mut PgConnection,
    placement_id: PlacementId,
    attempt: u32,
    kind: HistoryKind,
    reason: Option<&Reason>,
) -> Result<()> {
    transaction!(connection, "asked::note", |transaction| {
        let statement = sqlx::query!(
            "WITH held AS MATERIALIZED (
             SELECT placement_id FROM placements
             WHERE placement_id = $1 AND attempt = $2 AND state = 'parked' AND placed_at IS NULL
             FOR UPDATE
         )
         -- IS TRUE keeps the planner from the index of kinds, in which all questions stand.
         DELETE FROM work WHERE id = $1 AND (kind = 'look_again') IS TRUE AND (SELECT true FROM held)",
            placement_id.uuid(),
            pg::signed(attempt),
        );
        let ended = statement.execute(&mut **transaction).await?.rows_affected();
        if ended > 0 {
            let note = Note {
                attempt: Some(pg::signed(attempt)),
                reason: reason.map(Reason::to_string),
                ..Note::new(placement_id.uuid(), kind)
            };
            history::write(transaction, &[note]).await?;
        }
        Ok(TransactionEnd::Commit(()))
    })
}

/// What a provider has said about a purchase since it is on hold.
#[derive(Clone, Debug)]
pub struct ProviderAnswer {
    pub at: OffsetDateTime,
    /// Whether it says that it has no such purchase. Otherwise it gave no usable response.
    pub is_missing: bool,
    /// Why there was no response, or what the absence is worth.
    pub reason: StoredReason,
}

impl ProviderAnswer {
    /// Whether the purchase was certainly not made.
    pub fn proves_absence(&self) -> bool {
        self.is_missing && self.reason.0.is_none()
    }
}

/// The last answers about these purchases since they are on hold.
pub async fn answers(
    connection: &mut PgConnection,
    placements: &[Uuid],
) -> Result<HashMap<Uuid, ProviderAnswer>> {
    let query = sqlx::query!(
        r#"SELECT DISTINCT ON (h.placement_id) h.placement_id AS "placement_id!", h.kind, h.at, h.reason
           FROM placements p
           JOIN held ON held.id = p.placement_id
           JOIN history h ON h.order_id = p.order_id AND h.placement_id = p.placement_id AND h.at > held.at
           WHERE p.placement_id = ANY ($1) AND held.id = ANY ($1) AND h.kind IN ('not_found', 'unknown')
           ORDER BY h.placement_id, h.at DESC"#,
        placements,
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    let answers = rows.map(|row| {
        let answer = ProviderAnswer {
            at: row.at,
            is_missing: row.kind == HistoryKind::NotFound.as_str(),
            reason: row.reason.into(),
        };
        (row.placement_id, answer)
    });
    Ok(answers.collect())
}
