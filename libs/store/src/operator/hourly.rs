//! Hourly figures for the last days: how many purchases and webhooks came in, and what had become of
//! them soon afterwards.
//!
//! Nothing counts orders when somebody looks, and the hot path pays nothing. The sweep of a stage
//! ([`crate::sweep`]) passes each range of time once, when no row of the range can appear any more,
//! and [`add`] counts the range in the same transaction. So each row is counted exactly once,
//! whatever crashes. The count reads the rows that the sweep has just read, by the same index.
//!
//! The sweep passes some seconds after the first lease, so `done` and `failed` say what had become of
//! the rows by then. What is missing from both took longer. The table keeps [`KEPT_DAYS`] days.

use serde::Serialize;
use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::Result;

/// How long hours are kept.
pub const KEPT_DAYS: i32 = 31;

/// An hour of a stage.
#[derive(Clone, Debug, Serialize)]
pub struct Hour {
    #[serde(with = "time::serde::rfc3339")]
    pub hour: OffsetDateTime,
    /// `placements` or `deliveries` (of ready eSIMs and of events).
    pub stage: String,
    pub created: i64,
    /// Bought, or delivered, within seconds.
    pub done: i64,
    /// Failed, refused, parked or exhausted within seconds.
    pub failed: i64,
}

/// Counts the rows of a stage that were created after `from` and until `until`.
pub(crate) async fn add(
    connection: &mut PgConnection,
    stage: &str,
    from: OffsetDateTime,
    until: OffsetDateTime,
) -> Result<(), sqlx::Error> {
    if from >= until {
        return Ok(());
    }
    let affected = if stage == "placements" {
        let statement = sqlx::query!(
            "INSERT INTO hourly AS h (hour, stage, created, done, failed)
             SELECT date_trunc('hour', created_at, 'UTC'), 'placements', count(*), count(*) FILTER (WHERE state = 'placed'),
                    count(*) FILTER (WHERE state IN ('failed', 'refused', 'parked'))
             FROM placements WHERE created_at > $1 AND created_at <= $2 GROUP BY 1
             ON CONFLICT (hour, stage) DO UPDATE
             SET created = h.created + excluded.created, done = h.done + excluded.done, failed = h.failed + excluded.failed",
            from,
            until,
        );
        statement.execute(&mut *connection).await?.rows_affected()
    } else {
        let statement = sqlx::query!(
            "INSERT INTO hourly AS h (hour, stage, created, done, failed)
             SELECT date_trunc('hour', created_at, 'UTC'), 'deliveries', count(*), count(*) FILTER (WHERE state = 'delivered'),
                    count(*) FILTER (WHERE state = 'exhausted')
             FROM deliveries WHERE created_at > $1 AND created_at <= $2 GROUP BY 1
             ON CONFLICT (hour, stage) DO UPDATE
             SET created = h.created + excluded.created, done = h.done + excluded.done, failed = h.failed + excluded.failed",
            from,
            until,
        );
        statement.execute(&mut *connection).await?.rows_affected()
    };
    if affected > 0 {
        let statement = sqlx::query!(
            "DELETE FROM hourly WHERE hour < now() - make_interval(days => $1)",
            KEPT_DAYS
        );
        statement.execute(connection).await?;
    }
    Ok(())
}

/// The hours of the last `hours` hours, oldest first. Hours in which nothing came have no row.
pub async fn list(connection: &mut PgConnection, hours: i32) -> Result<Vec<Hour>> {
    let query = sqlx::query_as!(
        Hour,
        "SELECT hour, stage, created, done, failed FROM hourly
         WHERE hour > date_trunc('hour', now(), 'UTC') - make_interval(hours => $1) ORDER BY hour, stage",
        hours.clamp(1, KEPT_DAYS * 24),
    );
    Ok(query.fetch_all(connection).await?)
}
