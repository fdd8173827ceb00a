//! Lanes whose purchases provisioners hold back, and why, for operators.
//!
//! Each provisioner writes its own rows with [`report`], at most once a second and only while it
//! holds a lane back. `esimctl` reads them with [`list`]. Nothing reads them to decide what to buy,
//! so a wrong row can do no harm. A row that has not been written for a minute is left over from a
//! process that has gone; it is not shown, and the next report deletes it.

use std::time::Duration;

use pg::{Result, seconds};
use serde::Serialize;
use sqlx::PgConnection;
use time::OffsetDateTime;

/// The maximum number of attempts of a lane that may be sent and have an unknown outcome, in all
/// replicas together. Each of them may be money spent, so no further purchase of the lane begins
/// beyond that.
pub const MOST_UNSETTLED: usize = 64;

/// A lane that one provisioner holds back.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldBackLane {
    pub lane: String,
    /// How many purchases of the lane may be in flight in that process.
    pub max_in_flight: i32,
    /// Attempts with an unknown outcome, in all processes.
    pub unsettled: i32,
    /// The last failure.
    pub reason: String,
    pub held_for: Duration,
}

/// A lane that at least one provisioner holds back, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitingLane {
    pub provider: String,
    pub lane: String,
    /// The name of the product that is bought in it, if the catalogue has one.
    pub product: Option<String>,
    /// How many purchases may be in flight, in all processes that hold it back.
    pub max_in_flight: i64,
    /// Attempts with an unknown outcome, in all processes.
    pub unsettled: i32,
    /// The last failure.
    pub reason: String,
    /// Since when it has been held back.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
}

/// Replaces the rows of a process by the lanes that it holds back now (none if `lanes` is empty),
/// and deletes the rows of processes that have gone.
///
/// `recovered` deletes the rows of lanes that this process no longer holds back, and old rows of
/// other processes. The last step inserts or updates the others.
pub async fn report(
    connection: &mut PgConnection,
    provider: &str,
    instance: &str,
    lanes: &[HeldBackLane],
) -> Result<()> {
    let names: Vec<&str> = lanes.iter().map(|lane| lane.lane.as_str()).collect();
    let max_in_flight: Vec<i32> = lanes.iter().map(|lane| lane.max_in_flight).collect();
    let unsettled: Vec<i32> = lanes.iter().map(|lane| lane.unsettled).collect();
    let reasons: Vec<&str> = lanes.iter().map(|lane| lane.reason.as_str()).collect();
    let held_for: Vec<f64> = lanes.iter().map(|lane| seconds(lane.held_for)).collect();
    let statement = sqlx::query!(
        "WITH recovered AS (
             DELETE FROM provider_lanes
             WHERE provider = $1
               AND CASE WHEN instance = $2 THEN lane <> ALL ($3::text[]) ELSE updated_at < now() - interval '1 minute' END
         )
         INSERT INTO provider_lanes (provider, instance, lane, max_in_flight, unsettled, reason, since)
         SELECT $1, $2, lane, max_in_flight, unsettled, reason, now() - make_interval(secs => held_for)
         FROM unnest($3::text[], $4::int[], $5::int[], $6::text[], $7::float8[])
              AS held_back (lane, max_in_flight, unsettled, reason, held_for)
         ON CONFLICT (provider, lane, instance) DO UPDATE
         -- `since` stays: the process derives it from its own clock each time.
         SET max_in_flight = excluded.max_in_flight, unsettled = excluded.unsettled, reason = excluded.reason,
             updated_at = now()",
        provider,
        instance,
        &names as &[&str],
        &max_in_flight,
        &unsettled,
        &reasons as &[&str],
        &held_for,
    );
    statement.execute(connection).await?;
    Ok(())
}

/// The lanes that are held back now, by provider and lane. The rows of several processes become
/// one: their limits are added up, and the newest reason is shown.
pub async fn list(connection: &mut PgConnection) -> Result<Vec<WaitingLane>> {
    let query = sqlx::query_as!(
        WaitingLane,
        r#"SELECT provider, lane, sum(max_in_flight) AS "max_in_flight!", max(unsettled) AS "unsettled!",
                  (array_agg(reason ORDER BY updated_at DESC))[1] AS "reason!", min(since) AS "since!",
                  (SELECT min(o.name) FROM options o
                   WHERE (o.provider = l.provider AND o.provider_option_id = l.lane)
                      OR o.alternatives @> jsonb_build_array(
                             jsonb_build_object('provider', l.provider, 'provider_option_id', l.lane))) AS product
           FROM provider_lanes l
           WHERE updated_at > now() - interval '1 minute'
           GROUP BY provider, lane
           ORDER BY provider, lane"#,
    );
    Ok(query.fetch_all(connection).await?)
}
