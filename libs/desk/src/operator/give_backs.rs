//! The parked give-backs, and their resolution (`esimctl give-back`).
//!
//! A give-back is parked when the provider did not say for too long whether it has the eSIM back.
//! [`resolve`] records what the operator has found out there, by the transitions of
//! [`domain::esim_change`].

use domain::{
    EsimChangeState, PartnerId, TopupId,
    esim_change::{EsimChange, EsimChangeEvent},
};
use pg::{
    Error, Result,
    actions::{ActionChange, Mode},
    transaction, unsigned,
};
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

/// A row of [`list`].
#[derive(Clone, Debug, Serialize)]
pub struct ListedGiveBack {
    pub topup_id: String,
    /// `None` if the order is gone, for example deleted by hand.
    pub order_id: Option<Uuid>,
    pub partner_id: PartnerId,
    /// The partner's name.
    pub partner: Option<String>,
    pub provider: String,
    /// The provider's id of the unit, by which the portal finds it.
    pub provider_unit_id: Option<String>,
    pub attempt: i32,
    /// What the provider said last.
    pub message: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub asked_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub parked_at: OffsetDateTime,
}

/// Lists at most `limit` parked give-backs, the oldest first.
pub async fn list(
    connection: &mut PgConnection,
    provider: Option<&str>,
    limit: i64,
) -> Result<Vec<ListedGiveBack>> {
    let rows = sqlx::query_as!(
        ListedGiveBack,
        r#"SELECT r.topup_id, r.partner_id, r.provider, e.provider_unit_id AS "provider_unit_id?", r.attempt, r.message,
                  r.give_back_asked_at AS "asked_at!", r.ended_at AS "parked_at!",
                  (SELECT name FROM partners a WHERE a.partner_id = r.partner_id) AS partner,
                  (SELECT p.order_id FROM topups t JOIN placements p ON p.placement_id = t.placement_id
                   WHERE t.topup_id = r.topup_id) AS "order_id?"
           FROM esim_requests r LEFT JOIN esims e ON e.topup_id = r.topup_id
           WHERE r.give_back = 'parked' AND ($1::text IS NULL OR r.provider = $1)
           ORDER BY r.ended_at LIMIT $2"#,
        provider,
        limit,
    );
    Ok(rows.fetch_all(connection).await?)
}

/// What an operator has found at the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveBackFinding {
    /// The provider has the eSIM back.
    Returned,
    /// The provider does not have it back, so it stays with the partner.
    NotReturned,
}

/// A give-back after [`resolve`].
#[derive(Clone, Debug, Serialize)]
pub struct ResolvedGiveBack {
    pub topup_id: String,
    pub state: EsimChangeState,
}

/// Why a give-back was not resolved.
#[derive(Debug, thiserror::Error)]
pub enum GiveBackNotResolved {
    #[error("nobody has asked to give this topup back")]
    Unknown,
    #[error("it is {}; only a parked give-back can be resolved", .0.as_str())]
    NotParked(EsimChangeState),
    #[error("it has changed since it was shown; it waits for attempt {0} now")]
    Changed(i32),
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(GiveBackNotResolved);

/// Resolves a parked give-back. `seen` is the attempt that the operator has looked into: if the
/// partner has asked anew since then, nothing is changed.
pub async fn resolve(
    connection: &mut PgConnection,
    topup_id: &TopupId,
    found: GiveBackFinding,
    seen: Option<i32>,
    mode: Mode<'_>,
) -> Result<ResolvedGiveBack, GiveBackNotResolved> {
    transaction!(connection, "give_backs::resolve", |transaction| {
        let query = sqlx::query!(
            r#"SELECT give_back AS "give_back!", attempt FROM esim_requests
           WHERE topup_id = $1 AND give_back IS NOT NULL"#,
            topup_id.as_str(),
        );
        let row = query
            .fetch_optional(&mut **transaction)
            .await?
            .ok_or(GiveBackNotResolved::Unknown)?;
        let parked = EsimChange {
            state: row.give_back.parse().map_err(Error::from)?,
            attempt: unsigned(row.attempt),
            not_done: false,
        };
        if parked.state != EsimChangeState::Parked {
            return Err(GiveBackNotResolved::NotParked(parked.state));
        }
        if seen.is_some_and(|seen| seen != row.attempt) {
            return Err(GiveBackNotResolved::Changed(row.attempt));
        }
        let event = match found {
            GiveBackFinding::Returned => EsimChangeEvent::Done,
            GiveBackFinding::NotReturned => EsimChangeEvent::FoundNotDone,
        };
        let resolved = parked
            .after(event)
            .map_err(|_| GiveBackNotResolved::NotParked(parked.state))?;
        // The function has the owner's rights and checks the state again under the lock of the row,
        // so that the role of the console needs no right to change give-backs or profiles.
        let query = sqlx::query_scalar!(
            r#"SELECT resolve_give_back($1, $2, $3) AS "resolved!""#,
            topup_id.as_str(),
            row.attempt,
            resolved.state == EsimChangeState::Done,
        );
        if !query.fetch_one(&mut **transaction).await? {
            return Err(GiveBackNotResolved::Changed(row.attempt));
        }
        let changed = ActionChange::between(
            json!({ "give_back": parked.state.as_str(), "attempt": row.attempt }),
            json!({ "give_back": resolved.state.as_str() }),
        );
        mode.record(transaction, 1, changed).await?;
        Ok(mode.end(ResolvedGiveBack {
            topup_id: topup_id.as_str().to_owned(),
            state: resolved.state,
        }))
    })
}
