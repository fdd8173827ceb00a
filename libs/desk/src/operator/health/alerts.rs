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

/// Reserves the oldest event that is to be told now. What never needed a person is not told. An
/// event is tried for an hour: again after 20 s, 40 s and so on. So a try must end within 20 s.
pub async fn reserve(connection: &mut PgConnection) -> Result<Option<FindingEvent>> {
    transaction!(connection, "findings::alert", |transaction| {
        sqlx::query!("SELECT pg_advisory_xact_lock($1)", LOCK)
            .execute(&mut **transaction)
            .await?;
        let query = sqlx::query_as!(
            StoredEvent,
            r#"SELECT history_id AS "history_id!", at AS "at!", kind AS "kind!", reason AS "key!",
                      coalesce(detail, '') AS "what!", coalesce(after, before)::text AS "span!"
               FROM history AS event
               LEFT JOIN (SELECT reason AS event_id, count(*) AS number, max(at) AS last, bool_or(kind = 'finding_alerted') AS told
                          FROM history
                          WHERE provider = '' AND order_id IS NULL AND at >= now() - interval '1 hour'
                            AND kind IN ('finding_alert', 'finding_alerted')
                          GROUP BY reason) AS tries ON event_id = history_id::text
               WHERE provider = '' AND order_id IS NULL AND at >= now() - interval '1 hour'
                 AND (kind = 'finding_changed'
                      OR kind IN ('finding_opened', 'finding_mended') AND coalesce(after, before) ->> 'severity' <> 'mends')
                 AND (number IS NULL OR NOT told AND last < now() - interval '10 s' * 2 ^ number)
               ORDER BY at, kind = 'finding_mended' LIMIT 1"#,
        );
        let found = query.fetch_optional(&mut **transaction).await?;
        let event = found.and_then(StoredEvent::read);
        if let Some(event) = &event {
            sqlx::query!(
                "INSERT INTO history (provider, kind, reason) VALUES ('', 'finding_alert', $1)",
                event.id.to_string(),
            )
            .execute(&mut **transaction)
            .await?;
        }
        Ok(TransactionEnd::Commit(event))
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
