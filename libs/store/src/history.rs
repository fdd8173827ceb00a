//! The history: what did not go straight, for whoever asks later.
//!
//! The rows of placements, units and breakers say how things are now. What they overwrite is
//! remembered here: attempts before the last one, look-ups that found nothing, what a placement was
//! before an operator resolved it. Whoever changes such a row [notes](write) it in the same
//! transaction. What goes straight is never noted, so an order without trouble costs nothing.

use domain::{HistoryKind, OrderId, PlacementId, PlacementState, StoredReason};
use pg::{Result, Transaction, signed};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// How often an unknown outcome of one attempt is noted. Calls about a placement that waits for its
/// provider may fail for days.
pub(crate) const MOST_UNKNOWNS: i32 = 10;
/// The most rows of an order that are shown; the newest ones.
const MOST: i64 = 500;

/// What happened to a placement or to a unit of it.
#[derive(Clone, Debug)]
pub struct Note {
    pub placement_id: Uuid,
    pub topup_id: Option<String>,
    /// The provider that was asked, if the placement has gone to another one since.
    pub provider: Option<String>,
    pub kind: HistoryKind,
    pub attempt: Option<i32>,
    /// Why, as it is stored: see [`domain::reason`].
    pub reason: Option<String>,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

impl Note {
    pub fn new(placement_id: Uuid, kind: HistoryKind) -> Self {
        Self {
            placement_id,
            topup_id: None,
            provider: None,
            kind,
            attempt: None,
            reason: None,
            before: None,
            after: None,
        }
    }
}

/// Notes what happened to placements, in the transaction that has changed them. The statements of
/// [breakers](crate::providers) note their changes themselves.
pub async fn write(transaction: &mut Transaction<'_>, notes: &[Note]) -> Result<()> {
    if notes.is_empty() {
        return Ok(());
    }
    let column = |of: fn(&Note) -> Option<String>| notes.iter().map(of).collect::<Vec<_>>();
    let placements: Vec<Uuid> = notes.iter().map(|note| note.placement_id).collect();
    let attempts: Vec<Option<i32>> = notes.iter().map(|note| note.attempt).collect();
    let kinds: Vec<&str> = notes.iter().map(|note| note.kind.as_str()).collect();
    let topups = column(|note| note.topup_id.clone());
    let providers = column(|note| note.provider.clone());
    let reasons = column(|note| note.reason.clone());
    let before = column(|note| note.before.as_ref().map(Value::to_string));
    let after = column(|note| note.after.as_ref().map(Value::to_string));
    let statement = sqlx::query!(
        "INSERT INTO history (order_id, placement_id, topup_id, provider, kind, attempt, reason, before, after)
         SELECT p.order_id, p.placement_id, new.topup_id, coalesce(new.provider, p.provider), new.kind, new.attempt,
                new.reason, new.before::jsonb, new.after::jsonb
         FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::int[], $6::text[], $7::text[], $8::text[])
             AS new (placement_id, topup_id, provider, kind, attempt, reason, before, after)
         JOIN placements p ON p.placement_id = new.placement_id
         WHERE p.placement_id = ANY ($1)",
        &placements,
        &topups as &[Option<String>],
        &providers as &[Option<String>],
        &kinds as &[&str],
        &attempts as &[Option<i32>],
        &reasons as &[Option<String>],
        &before as &[Option<String>],
        &after as &[Option<String>],
    );
    statement.execute(&mut **transaction).await?;
    Ok(())
}

/// How many attempts of a placement before this one were looked up and not found.
pub async fn attempts_not_found(
    connection: &mut PgConnection,
    order_id: OrderId,
    placement_id: PlacementId,
    before: u32,
) -> Result<u32> {
    let query = sqlx::query_scalar!(
        r#"SELECT count(DISTINCT attempt) AS "count!" FROM history
         WHERE order_id = $1 AND placement_id = $2 AND kind = $3 AND attempt < $4"#,
        order_id.uuid(),
        placement_id.uuid(),
        HistoryKind::NotFound.as_str(),
        signed(before),
    );
    Ok(u32::try_from(query.fetch_one(connection).await?).unwrap_or(u32::MAX))
}

/// What a placement was before an operator resolved it, or is after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementSnapshot {
    pub state: PlacementState,
    pub provider: String,
    /// As it is stored: see [`domain::reason`].
    pub reason: Option<String>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub placed_at: Option<OffsetDateTime>,
}

impl PlacementSnapshot {
    pub fn new(
        state: PlacementState,
        provider: &str,
        reason: Option<String>,
        placed_at: Option<OffsetDateTime>,
    ) -> Self {
        Self {
            state,
            provider: provider.to_owned(),
            reason,
            placed_at,
        }
    }

    /// What it is since an operator has resolved it, perhaps as bought at another provider.
    #[must_use]
    pub fn resolved(&self, state: PlacementState, provider: Option<&str>) -> Self {
        Self::new(state, provider.unwrap_or(&self.provider), None, None)
    }

    pub fn json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// A row of the history of an order.
#[derive(Clone, Debug, Serialize)]
pub struct HistoryRow {
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    pub placement_id: Option<Uuid>,
    pub topup_id: Option<String>,
    pub endpoint_id: Option<Uuid>,
    pub provider: Option<String>,
    pub kind: String,
    pub attempt: Option<i32>,
    pub reason: StoredReason,
    /// What a provider or an operator said.
    pub detail: Option<String>,
    /// As JSON.
    pub before: Option<String>,
    pub after: Option<String>,
}

/// The history of an order, oldest first; at most the newest 500 rows.
pub async fn of_order(connection: &mut PgConnection, order_id: Uuid) -> Result<Vec<HistoryRow>> {
    let query = sqlx::query_as!(
        HistoryRow,
        "SELECT at, placement_id, topup_id, endpoint_id, provider, kind, attempt, reason, detail,
                before::text AS before, after::text AS after
         FROM history WHERE order_id = $1 ORDER BY at DESC LIMIT $2",
        order_id,
        MOST,
    );
    let mut noted = query.fetch_all(connection).await?;
    noted.reverse();
    Ok(noted)
}

/// What befell these providers and endpoints since a time, until another or now, oldest first; of
/// each at most the newest 50 rows.
pub async fn around(
    connection: &mut PgConnection,
    providers: &[String],
    endpoints: &[Uuid],
    since: OffsetDateTime,
    until: Option<OffsetDateTime>,
) -> Result<Vec<HistoryRow>> {
    let query = sqlx::query_as!(
        HistoryRow,
        r#"SELECT h.at AS "at!", h.placement_id, h.topup_id, h.endpoint_id, h.provider, h.kind AS "kind!", h.attempt, h.reason,
                  h.detail, h.before::text AS before, h.after::text AS after
           FROM unnest($1::text[]) AS asked (name)
           CROSS JOIN LATERAL (SELECT * FROM history WHERE provider = asked.name AND order_id IS NULL
                               AND at BETWEEN $3 AND coalesce($4, now()) ORDER BY at DESC LIMIT 50) h
           UNION ALL
           SELECT h.at, h.placement_id, h.topup_id, h.endpoint_id, h.provider, h.kind, h.attempt, h.reason,
                  h.detail, h.before::text, h.after::text
           FROM unnest($2::uuid[]) AS asked (id)
           CROSS JOIN LATERAL (SELECT * FROM history WHERE endpoint_id = asked.id
                               AND at BETWEEN $3 AND coalesce($4, now()) ORDER BY at DESC LIMIT 50) h
           ORDER BY 1"#,
        providers,
        endpoints,
        since,
        until,
    );
    Ok(query.fetch_all(connection).await?)
}

/// Deletes at most `limit` rows about providers and endpoints that are older than the term of
/// attempts, and rows about the system, whose provider is empty, that are older than that of the
/// record of operators. Rows about an order end with the order. Returns their number.
pub async fn forget(connection: &mut PgConnection, limit: u32) -> Result<u64> {
    let statement = sqlx::query!(
        "DELETE FROM history WHERE history_id = ANY (ARRAY (
             SELECT history_id FROM history
             WHERE order_id IS NULL
               AND at < now() - make_interval(days => (SELECT days FROM walks WHERE name = 'attempts'))
               AND (provider IS DISTINCT FROM ''
                    OR at < now() - make_interval(days => (SELECT days FROM walks WHERE name = 'audit')))
             ORDER BY at LIMIT $1))",
        i64::from(limit),
    );
    Ok(statement.execute(connection).await?.rows_affected())
}
