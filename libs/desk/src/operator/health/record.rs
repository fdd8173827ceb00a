//! The rows of the history that say when a finding opened, changed or was mended. Their provider is
//! empty, because they are about the whole system; that also tells them from rows about a provider.

use pg::{Result, Transaction};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::finding::Severity;

/// The most events that are read at once, the newest ones.
const MOST: i64 = 500;

/// What is known of a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingSpan {
    pub severity: Severity,
    /// What was wrong, for when it is over.
    pub was: String,
    /// Since when. Where that is not stored it is the look that found it.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// The first look that did not find it any more.
    #[serde(with = "time::serde::rfc3339::option")]
    pub until: Option<OffsetDateTime>,
    /// Whether nobody looked shortly before, so that it may have ended earlier.
    pub at_latest: bool,
}

/// How a finding changed. The row of the history that says so has it as its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::EnumString, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
pub enum FindingChange {
    #[strum(serialize = "finding_opened")]
    Opened,
    /// It is worse or less bad than it was.
    #[strum(serialize = "finding_changed")]
    Changed,
    #[strum(serialize = "finding_mended")]
    Mended,
}

impl FindingChange {
    /// Its name in the database.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// An event in the life of a finding, as it is noted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FindingEvent {
    #[serde(skip)]
    pub id: Uuid,
    /// When it was noted.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    pub change: FindingChange,
    pub key: String,
    /// What is wrong, or what was.
    pub what: String,
    #[serde(flatten)]
    pub span: FindingSpan,
}

/// An event that is not noted yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewEvent {
    pub(super) change: FindingChange,
    pub(super) key: String,
    pub(super) what: String,
    pub(super) span: FindingSpan,
}

/// Notes an event.
pub(super) async fn note(
    transaction: &mut Transaction<'_>,
    event: NewEvent,
) -> Result<FindingEvent, sqlx::Error> {
    let span = serde_json::to_value(&event.span)
        .unwrap_or_default()
        .to_string();
    let is_mended = event.change == FindingChange::Mended;
    let (before, after) = if is_mended {
        (Some(span), None)
    } else {
        (None, Some(span))
    };
    let statement = sqlx::query!(
        "INSERT INTO history (provider, kind, reason, detail, before, after)
         VALUES ('', $1, $2, $3, $4::text::jsonb, $5::text::jsonb) RETURNING history_id, at",
        event.change.as_str(),
        event.key,
        event.what,
        before,
        after,
    );
    let row = statement.fetch_one(&mut **transaction).await?;
    Ok(FindingEvent {
        id: row.history_id,
        at: row.at,
        change: event.change,
        key: event.key,
        what: event.what,
        span: event.span,
    })
}

/// A row of the history as it is read.
pub(super) struct StoredEvent {
    pub(super) history_id: Uuid,
    pub(super) at: OffsetDateTime,
    pub(super) kind: String,
    pub(super) key: String,
    pub(super) what: String,
    pub(super) span: String,
}

impl StoredEvent {
    /// `None` if another version has written what this one does not know.
    pub(super) fn read(self) -> Option<FindingEvent> {
        Some(FindingEvent {
            id: self.history_id,
            at: self.at,
            change: self.kind.parse().ok()?,
            key: self.key,
            what: self.what,
            span: serde_json::from_str(&self.span).ok()?,
        })
    }
}

/// What has opened, changed and been mended since a time, oldest first; the newest [`MOST`].
pub async fn events(
    connection: &mut PgConnection,
    since: OffsetDateTime,
) -> Result<Vec<FindingEvent>> {
    let query = sqlx::query_as!(
        StoredEvent,
        r#"SELECT history_id, at, kind, reason AS "key!", coalesce(detail, '') AS "what!",
                  coalesce(after, before)::text AS "span!"
           FROM history
           WHERE provider = '' AND order_id IS NULL AND at >= $1
             AND kind IN ('finding_opened', 'finding_changed', 'finding_mended')
           ORDER BY at DESC, kind = 'finding_mended' DESC LIMIT $2"#,
        since,
        MOST,
    );
    let rows = query.fetch_all(connection).await?.into_iter().rev();
    Ok(rows.filter_map(StoredEvent::read).collect())
}

/// What was mended since a time, newest first. Of more than [`MOST`] what ended by itself is left
/// out first, so that many endpoints of one night do not hide what stopped orders.
pub async fn mended(
    connection: &mut PgConnection,
    since: OffsetDateTime,
) -> Result<Vec<FindingEvent>> {
    let query = sqlx::query_as!(
        StoredEvent,
        r#"SELECT history_id AS "history_id!", at AS "at!", kind AS "kind!", reason AS "key!",
                  coalesce(detail, '') AS "what!", before::text AS "span!"
           FROM (SELECT * FROM history
                 WHERE provider = '' AND order_id IS NULL AND at >= $1 AND kind = $2
                 ORDER BY before ->> 'severity' = 'mends', at DESC LIMIT $3) AS mended
           ORDER BY at DESC"#,
        since,
        FindingChange::Mended.as_str(),
        MOST,
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    Ok(rows.filter_map(StoredEvent::read).collect())
}
