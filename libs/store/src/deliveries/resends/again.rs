//! The statement that makes deliveries due again, for one webhook as for each step of a resend.

use domain::{PartnerId, standing::DeliveryState};
use pg::{Result, seconds};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::super::endpoints::LONGEST_LEASE;

/// Which deliveries to list or resend; `None` matches all.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeliveryFilter {
    pub partner_id: Option<PartnerId>,
    pub state: Option<DeliveryState>,
    /// The number of attempts that have ended, which `desk::operator::deliveries::resend_one`
    /// compares: whoever has looked at a delivery means it as it was then, and it is in the same
    /// state again after a resend.
    pub attempt: Option<i32>,
    /// The start of the range of time, inclusive. The time of a delivery is that of its last
    /// attempt; before the first one it is the time of readiness.
    pub since: Option<OffsetDateTime>,
    /// The end of that range, exclusive.
    pub until: Option<OffsetDateTime>,
}

/// The numbers of deliveries that a resend makes due, by the states that they were in.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct ResentCounts {
    /// All of them. Each sends one webhook, or more if it fails.
    pub resent: i64,
    pub delivered: i64,
    pub exhausted: i64,
    /// Those that waited for a retry.
    pub pending: i64,
    /// The earliest time among them. The time of a delivery is as in [`DeliveryFilter::since`].
    #[serde(with = "time::serde::rfc3339::option")]
    pub oldest: Option<OffsetDateTime>,
    /// The latest time among them.
    #[serde(with = "time::serde::rfc3339::option")]
    pub newest: Option<OffsetDateTime>,
}

/// Makes deliveries pending and due, with a new schedule of retries, as far as they match a filter.
/// Their recorded attempts stay. A pending delivery matches if it waits for a retry, but not if it
/// waits for a URL. Deliveries whose profile was erased do not match, and neither do tests.
///
/// The steps of the statement: `chosen` locks the rows and applies the filter again. `kept` copies
/// the attempt that delivered a topup from its row to the table of attempts, because the next
/// attempt overwrites it. `due` gives each delivery work for now, `released` takes it out of
/// `held`, and `pending` changes its state and begins the schedule. The result counts what was
/// chosen.
pub async fn resend(
    connection: &mut PgConnection,
    ids: &[Uuid],
    filter: &DeliveryFilter,
) -> Result<ResentCounts> {
    let query = sqlx::query_as!(
        ResentCounts,
        r#"WITH chosen AS MATERIALIZED (
             -- The filter again, because a row may have changed since it was chosen.
             SELECT delivery_id, partner_id, endpoint_id, kind, attempt, state, attempted_at, duration_ms, status,
                    created_at
             FROM deliveries d
             WHERE delivery_id = ANY ($1) AND kind <> 'webhook.test' AND kind <> 'notice.verify'
               AND ($2::text IS NULL OR state = $2)
               AND ($7::int IS NULL OR attempt = $7)
               AND ($4::uuid IS NULL OR partner_id = $4)
               AND ($5::timestamptz IS NULL OR greatest(attempted_at, created_at) >= $5)
               AND ($6::timestamptz IS NULL OR greatest(attempted_at, created_at) < $6)
               -- A pending delivery that is due within the longest lease may be in flight, or is due
               -- soon enough.
               AND (state IN ('delivered', 'exhausted')
                    OR (state = 'pending' AND attempt > 0
                        AND (SELECT at FROM work w WHERE w.id = d.delivery_id)
                            > now() + make_interval(secs => $3)))
               AND NOT EXISTS (SELECT FROM esims e WHERE e.topup_id = d.topup_id AND e.erased_at IS NOT NULL)
               AND (endpoint_id IS NULL
                    OR EXISTS (SELECT FROM partner_endpoints f WHERE f.endpoint_id = d.endpoint_id))
             ORDER BY delivery_id
             FOR UPDATE
         ), kept AS (
             -- The attempt that delivered a topup is on its row, which the resend overwrites.
             INSERT INTO delivery_attempts (delivery_id, attempt, at, duration_ms, status, class)
             SELECT delivery_id, attempt - 1, attempted_at, coalesce(duration_ms, 0), status, 'delivered'
             FROM chosen WHERE kind = 'topup.ready' AND state = 'delivered' AND attempted_at IS NOT NULL
             ON CONFLICT DO NOTHING
         ), due AS (
             INSERT INTO work AS w (id, kind, provider, lane, partner_id, at)
             SELECT delivery_id, 'deliver', '', coalesce(endpoint_id::text, ''), partner_id, now() FROM chosen
             ON CONFLICT (id) DO UPDATE SET at = excluded.at
         ), released AS (
             DELETE FROM held WHERE id = ANY (ARRAY (SELECT delivery_id FROM chosen))
         ), pending AS (
             UPDATE deliveries d SET state = 'pending', schedule_start = d.attempt, delivered_at = NULL
             FROM chosen WHERE d.delivery_id = chosen.delivery_id
         )
         SELECT count(*) AS "resent!",
                count(*) FILTER (WHERE state = 'delivered') AS "delivered!",
                count(*) FILTER (WHERE state = 'exhausted') AS "exhausted!",
                count(*) FILTER (WHERE state = 'pending') AS "pending!",
                min(greatest(attempted_at, created_at)) AS oldest, max(greatest(attempted_at, created_at)) AS newest
         FROM chosen"#,
        ids,
        filter.state.map(<&str>::from),
        seconds(LONGEST_LEASE),
        filter.partner_id.map(PartnerId::uuid),
        filter.since,
        filter.until,
        filter.attempt,
    );
    Ok(query.fetch_one(connection).await?)
}
