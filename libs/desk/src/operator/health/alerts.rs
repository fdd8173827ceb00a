//! Which events in the life of findings are still to be told to whoever has no Prometheus.
//!
//! Rows of the history decide it, so that of several consoles one tells each event. A try is a row
//! that is stored before anything is sent, and reserves the event for a while. Another row says
//! that it was told. If a process dies in between, the next try tells it again: at least once.

use pg::{Result, TransactionEnd, transaction};
use sqlx::PgConnection;

use super::{
    life::LOCK,
    record::{FindingEvent, StoredEvent},
};

/// The longest time between two tries of one event.
const LONGEST_PAUSE: &str = "5 min";

/// Reserves an event that is to be told now: a fault before what is no fault, and the oldest of
/// these. What never needed a person is not told. Of one finding the next event waits until the
/// one before was told, so that nobody reads *mended* before *fault*.
///
/// An event is tried for an hour: again after 20 s, 40 s and so on, at most 5 minutes. So a try
/// must end within 20 s.
pub async fn reserve(connection: &mut PgConnection) -> Result<Option<FindingEvent>> {
    transaction!(connection, "findings::alert", |transaction| {
        sqlx::query!("SELECT pg_advisory_xact_lock($1)", LOCK)
            .execute(&mut **transaction)
            .await?;
        let query = sqlx::query_as!(
            StoredEvent,
            r#"SELECT history_id AS "history_id!", at AS "at!", kind AS "kind!", key AS "key!", what AS "what!", span::text AS "span!"
               FROM (SELECT DISTINCT ON (reason) history_id, at, kind, reason AS key, coalesce(detail, '') AS what,
                            coalesce(after, before) AS span, number, last
                     FROM history AS event
                     LEFT JOIN (SELECT reason AS event_id, count(*) AS number, max(at) AS last, bool_or(kind = 'finding_alerted') AS told
                                FROM history
                                WHERE provider = '' AND order_id IS NULL AND at >= now() - interval '1 hour'
                                  AND kind IN ('finding_alert', 'finding_alerted')
                                GROUP BY reason) AS tries ON event_id = history_id::text
                     WHERE provider = '' AND order_id IS NULL AND at >= now() - interval '1 hour'
                       AND (kind = 'finding_changed'
                            OR kind IN ('finding_opened', 'finding_mended') AND coalesce(after, before) ->> 'severity' <> 'mends')
                       AND told IS NOT TRUE
                     ORDER BY reason, at, kind = 'finding_mended') AS next
               WHERE number IS NULL OR last < now() - least(interval '10 s' * 2 ^ number, $1::text::interval)
               ORDER BY span ->> 'severity' = 'fault' DESC, at LIMIT 1"#,
            LONGEST_PAUSE,
        );
        let Some(found) = query.fetch_optional(&mut **transaction).await? else {
            return Ok(TransactionEnd::Rollback(None));
        };
        sqlx::query!(
            "INSERT INTO history (provider, kind, reason) VALUES ('', 'finding_alert', $1)",
            found.history_id.to_string(),
        )
        .execute(&mut **transaction)
        .await?;
        // One that this version cannot read is left to a newer console until the next try.
        Ok(TransactionEnd::Commit(found.read()))
    })
}

/// Records that an event was told.
pub async fn told(connection: &mut PgConnection, event: &FindingEvent) -> Result<()> {
    sqlx::query!(
        "INSERT INTO history (provider, kind, reason) VALUES ('', 'finding_alerted', $1)",
        event.id.to_string(),
    )
    .execute(connection)
    .await?;
    Ok(())
}
