//! The parked give-backs and extensions, and their resolution (`esimctl give-back` and
//! `esimctl extension`).
//!
//! A change of a delivered eSIM is parked when the provider did not say for too long whether it has
//! carried it out. [`resolve`] records what the operator has found out there, by the transitions of
//! [`domain::esim_change`].

use domain::{
    EsimChangeState, ExtensionId, PartnerId, TopupId,
    esim_change::{EsimChange, EsimChangeEvent, EsimChangeKind},
};
use pg::{
    Error, Result, Transaction,
    actions::{ActionChange, Mode},
    transaction, unsigned,
};
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;
use store::extensions;
use time::OffsetDateTime;
use uuid::Uuid;

/// A row of [`list`].
#[derive(Clone, Debug, Serialize)]
pub struct ListedEsimChange {
    pub topup_id: String,
    /// What is added; none if it is a give-back.
    #[serde(flatten)]
    pub extension: Option<ParkedExtension>,
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

/// What only an extension has.
#[derive(Clone, Debug, Serialize)]
pub struct ParkedExtension {
    /// Our id of it, by which some providers find it.
    pub extension_id: ExtensionId,
    /// The partner's id of it.
    pub external_id: String,
    pub provider_option_id: String,
}

impl ListedEsimChange {
    pub fn kind(&self) -> EsimChangeKind {
        match self.extension {
            Some(_) => EsimChangeKind::Extension,
            None => EsimChangeKind::GiveBack,
        }
    }

    /// What somebody sees who looks at this row.
    pub fn seen(&self) -> SeenEsimChange {
        let extension = self.extension.as_ref();
        SeenEsimChange {
            extension_id: extension.map(|extension| extension.extension_id),
            attempt: self.attempt,
        }
    }
}

/// Lists at most `limit` parked changes, of one kind or all, the oldest first.
pub async fn list(
    connection: &mut PgConnection,
    kind: Option<EsimChangeKind>,
    provider: Option<&str>,
    limit: i64,
) -> Result<Vec<ListedEsimChange>> {
    let rows = sqlx::query!(
        r#"SELECT c.extension_id AS "extension_id?", c.external_id AS "external_id?",
                  c.provider_option_id AS "provider_option_id?", c.topup_id AS "topup_id!", c.partner_id AS "partner_id!",
                  c.provider AS "provider!", e.provider_unit_id AS "provider_unit_id?", c.attempt AS "attempt!", c.message,
                  c.asked_at AS "asked_at!", c.ended_at AS "parked_at!",
                  (SELECT name FROM partners a WHERE a.partner_id = c.partner_id) AS partner,
                  (SELECT p.order_id FROM topups t JOIN placements p ON p.placement_id = t.placement_id
                   WHERE t.topup_id = c.topup_id) AS "order_id?"
           FROM (
               (SELECT NULL::uuid AS extension_id, NULL AS external_id, NULL AS provider_option_id, r.topup_id, r.partner_id,
                       r.provider, r.attempt, r.message, r.give_back_asked_at AS asked_at, r.ended_at
                FROM esim_requests r
                WHERE r.give_back = 'parked' AND ($1::text IS NULL OR r.provider = $1) AND $3
                ORDER BY r.ended_at LIMIT $2)
               UNION ALL
               (SELECT x.extension_id, x.external_id, x.provider_option_id, x.topup_id, x.partner_id,
                       x.provider, x.attempt, x.message, x.asked_at, x.ended_at
                FROM extensions x
                WHERE x.state = 'parked' AND ($1::text IS NULL OR x.provider = $1) AND $4
                ORDER BY x.ended_at LIMIT $2)
           ) c LEFT JOIN esims e ON e.topup_id = c.topup_id
           ORDER BY c.ended_at LIMIT $2"#,
        provider,
        limit,
        kind != Some(EsimChangeKind::Extension),
        kind != Some(EsimChangeKind::GiveBack),
    );
    let rows = rows.fetch_all(connection).await?.into_iter();
    let listed = rows.map(|row| ListedEsimChange {
        extension: row.extension_id.map(|id| ParkedExtension {
            extension_id: id.into(),
            external_id: row.external_id.unwrap_or_default(),
            provider_option_id: row.provider_option_id.unwrap_or_default(),
        }),
        topup_id: row.topup_id,
        order_id: row.order_id,
        partner_id: row.partner_id.into(),
        partner: row.partner,
        provider: row.provider,
        provider_unit_id: row.provider_unit_id,
        attempt: row.attempt,
        message: row.message,
        asked_at: row.asked_at,
        parked_at: row.parked_at,
    });
    Ok(listed.collect())
}

/// A claim that people at the provider decide.
#[derive(Clone, Debug, Serialize)]
pub struct ListedClaim {
    pub topup_id: String,
    pub partner_id: PartnerId,
    /// The partner's name.
    pub partner: Option<String>,
    pub provider: String,
    /// The provider's id of the unit.
    pub provider_unit_id: Option<String>,
    /// The provider's id of the claim, if it has one.
    pub claim: Option<String>,
    /// Why the eSIM is given back.
    pub cause: Option<String>,
    /// What the provider said last.
    pub message: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub asked_at: OffsetDateTime,
}

/// Lists at most `limit` claims that are not decided, the oldest first.
pub async fn claims(
    connection: &mut PgConnection,
    provider: Option<&str>,
    limit: i64,
) -> Result<Vec<ListedClaim>> {
    let query = sqlx::query_as!(
        ListedClaim,
        r#"SELECT r.topup_id, r.partner_id, p.name AS "partner?", r.provider,
                  e.provider_unit_id AS "provider_unit_id?", r.claim, r.give_back_cause AS cause, r.message,
                  r.give_back_asked_at AS "asked_at!"
           FROM esim_requests r
           LEFT JOIN esims e ON e.topup_id = r.topup_id
           LEFT JOIN partners p ON p.partner_id = r.partner_id
           -- The polls look at each claim, and have an index.
           WHERE r.give_back = 'claimed' AND r.poll_at IS NOT NULL
             AND r.provider = ANY (ARRAY (SELECT name FROM providers WHERE $1::text IS NULL OR name = $1))
           ORDER BY r.give_back_asked_at LIMIT $2"#,
        provider,
        limit,
    );
    Ok(query.fetch_all(connection).await?)
}

/// What an operator has found at the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EsimChangeFinding {
    /// The provider has the eSIM back, or has added to it.
    Done,
    /// The eSIM is as it was, and stays with the partner.
    NotDone,
}

/// What an operator has looked into: if the partner has asked anew since then, nothing is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenEsimChange {
    /// The extension; none if it is a give-back, of which an eSIM has one.
    pub extension_id: Option<ExtensionId>,
    pub attempt: i32,
}

/// A change after [`resolve`].
#[derive(Clone, Debug, Serialize)]
pub struct ResolvedEsimChange {
    pub topup_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extension_id: Option<ExtensionId>,
    /// The name of the state.
    pub state: &'static str,
}

/// Why a change was not resolved.
#[derive(Debug, thiserror::Error)]
pub enum EsimChangeNotResolved {
    #[error("nobody has asked for {} of this topup", .0.with_article())]
    Unknown(EsimChangeKind),
    #[error("it is {state}; only a {} that is parked or claimed can be resolved", .kind.word())]
    NotParked {
        kind: EsimChangeKind,
        state: &'static str,
    },
    #[error("it has changed since it was shown; it waits for attempt {0} now")]
    Changed(i32),
    #[error(transparent)]
    Store(#[from] Error),
}

pg::store_error!(EsimChangeNotResolved);

/// Resolves the parked change of this kind of a topup, which has at most one, or its claim, of
/// whose verdict the provider has told people.
pub async fn resolve(
    connection: &mut PgConnection,
    (kind, topup_id): (EsimChangeKind, &TopupId),
    found: EsimChangeFinding,
    seen: Option<SeenEsimChange>,
    mode: Mode<'_>,
) -> Result<ResolvedEsimChange, EsimChangeNotResolved> {
    transaction!(connection, "esim_changes::resolve", |transaction| {
        let last = match kind {
            EsimChangeKind::GiveBack => give_back(transaction, topup_id).await?,
            EsimChangeKind::Extension => extension(transaction, topup_id).await?,
        };
        let (shown, parked) = last.ok_or(EsimChangeNotResolved::Unknown(kind))?;
        let name = |state| match kind {
            EsimChangeKind::GiveBack => EsimChangeState::as_str(state),
            EsimChangeKind::Extension => extensions::state_name(state),
        };
        let not_parked = || EsimChangeNotResolved::NotParked {
            kind,
            state: name(parked.state),
        };
        let open = [EsimChangeState::Parked, EsimChangeState::Claimed];
        if !open.contains(&parked.state) {
            return Err(not_parked());
        }
        if seen.is_some_and(|seen| seen != shown) {
            return Err(EsimChangeNotResolved::Changed(shown.attempt));
        }
        let event = match found {
            EsimChangeFinding::Done => EsimChangeEvent::Done,
            EsimChangeFinding::NotDone => EsimChangeEvent::FoundNotDone,
        };
        let resolved = parked.after(event).map_err(|_| not_parked())?;
        if !write(transaction, topup_id, shown, resolved).await? {
            return Err(EsimChangeNotResolved::Changed(shown.attempt));
        }
        let state = name(resolved.state);
        let changed = match shown.extension_id {
            None => ActionChange::between(
                json!({ "give_back": name(parked.state), "attempt": shown.attempt }),
                json!({ "give_back": state }),
            ),
            Some(id) => ActionChange::between(
                json!({ "extension": name(parked.state), "extension_id": id, "attempt": shown.attempt }),
                json!({ "extension": state }),
            ),
        };
        mode.record(transaction, 1, changed).await?;
        Ok(mode.end(ResolvedEsimChange {
            topup_id: topup_id.as_str().to_owned(),
            extension_id: shown.extension_id,
            state,
        }))
    })
}

/// A change as it is read from its row.
fn read(state: EsimChangeState, attempt: i32) -> EsimChange {
    EsimChange {
        state,
        attempt: unsigned(attempt),
        not_done: false,
    }
}

/// The give-back of a topup.
async fn give_back(
    transaction: &mut Transaction<'_>,
    topup_id: &TopupId,
) -> Result<Option<(SeenEsimChange, EsimChange)>> {
    let query = sqlx::query!(
        r#"SELECT give_back AS "give_back!", attempt FROM esim_requests
           WHERE topup_id = $1 AND give_back IS NOT NULL"#,
        topup_id.as_str(),
    );
    let Some(row) = query.fetch_optional(&mut **transaction).await? else {
        return Ok(None);
    };
    let shown = SeenEsimChange {
        extension_id: None,
        attempt: row.attempt,
    };
    Ok(Some((shown, read(row.give_back.parse()?, row.attempt))))
}

/// The open extension of a topup, or its last one.
async fn extension(
    transaction: &mut Transaction<'_>,
    topup_id: &TopupId,
) -> Result<Option<(SeenEsimChange, EsimChange)>> {
    let query = sqlx::query!(
        "SELECT extension_id, state, attempt FROM extensions WHERE topup_id = $1
         ORDER BY state = 'parked' DESC, asked_at DESC, extension_id DESC LIMIT 1",
        topup_id.as_str(),
    );
    let Some(row) = query.fetch_optional(&mut **transaction).await? else {
        return Ok(None);
    };
    let shown = SeenEsimChange {
        extension_id: Some(row.extension_id.into()),
        attempt: row.attempt,
    };
    let state = extensions::state_named(&row.state)?;
    Ok(Some((shown, read(state, row.attempt))))
}

/// Writes the state of a change that was parked. The functions have the owner's rights and check
/// the state again under the lock of the row, so that the role of the console needs no right to
/// change give-backs, extensions or profiles. Returns false if it is not parked any more.
async fn write(
    transaction: &mut Transaction<'_>,
    topup_id: &TopupId,
    shown: SeenEsimChange,
    resolved: EsimChange,
) -> Result<bool> {
    let is_done = resolved.state == EsimChangeState::Done;
    let query = match shown.extension_id {
        None => {
            sqlx::query_scalar!(
                r#"SELECT resolve_give_back($1, $2, $3) AS "resolved!""#,
                topup_id.as_str(),
                shown.attempt,
                is_done,
            )
            .fetch_one(&mut **transaction)
            .await
        }
        Some(id) => {
            sqlx::query_scalar!(
                r#"SELECT resolve_extension($1, $2, $3) AS "resolved!""#,
                id.uuid(),
                shown.attempt,
                is_done,
            )
            .fetch_one(&mut **transaction)
            .await
        }
    };
    Ok(query?)
}
