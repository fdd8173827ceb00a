//! Deliveries and their attempts as operators see them, and resends.
//!
//! `esimctl` calls all of it. Self-service calls [`resendable`] and [`resend_one`] for one delivery
//! of a partner, and [`crate::deliveries::resends`] makes many deliveries of a partner due with
//! the same statement.
//!
//! [`delivery_list`](super::delivery_list) lists them.

use domain::{DeliveryId, PartnerId, Stored, TopupId, WebhookId, standing::DeliveryState};
use sqlx::{Connection, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use super::actions::{self, Action, Mode};
use crate::{
    Result,
    deliveries::{View, endpoints::LONGEST_LEASE, view},
    seconds,
};

#[derive(Clone, Debug, serde::Serialize)]
pub struct AttemptView {
    /// The number of attempts that had ended before this one.
    pub attempt: i32,
    /// When the attempt began.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    pub duration_ms: i32,
    /// The HTTP status of the response, if one arrived.
    pub status: Option<i32>,
    /// The class of the result: `delivered`, `status_5xx`, `timeout`, …
    pub class: String,
    /// What was wrong, if no readable response arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The start of the response body, sealed for
    /// [`Purpose::Response`](crate::vault::Purpose::Response).
    #[serde(skip)]
    pub answer: Option<Vec<u8>>,
}

/// The delivery that a partner knows by this name. `None` if there is none, or not yet.
pub async fn find(connection: &mut PgConnection, id: &WebhookId) -> Result<Option<DeliveryId>> {
    let found = match id {
        WebhookId::Topup(topup_id) => {
            let query = sqlx::query_scalar!(
                "SELECT delivery_id FROM esims WHERE topup_id = $1",
                topup_id.as_str()
            );
            query.fetch_optional(connection).await?.flatten()
        }
        WebhookId::Event(id) => {
            let query = sqlx::query_scalar!(
                "SELECT delivery_id FROM deliveries WHERE delivery_id = $1 AND kind <> 'topup.ready'",
                id.uuid(),
            );
            query.fetch_optional(connection).await?
        }
    };
    Ok(found.map(DeliveryId::from))
}

/// Which deliveries to list or resend; `None` matches all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter<'a> {
    pub partner_id: Option<PartnerId>,
    pub state: Option<&'a str>,
    /// The number of attempts that have ended, which [`resend_one`] compares: whoever has looked at a
    /// delivery means it as it was then, and it is in the same state again after a resend.
    pub attempt: Option<i32>,
    /// The start of the range of time, inclusive. The time of a delivery is that of its last
    /// attempt; before the first one it is the time of readiness.
    pub since: Option<OffsetDateTime>,
    /// The end of that range, exclusive.
    pub until: Option<OffsetDateTime>,
}

/// One delivery of any kind.
pub async fn read(connection: &mut PgConnection, id: DeliveryId) -> Result<Option<View>> {
    Ok(view::read(connection, &[id.uuid()]).await?.pop())
}

/// The most deliveries of a unit to further endpoints that are read.
const MOST_FURTHER: i64 = 30;

/// The deliveries of a ready unit to further endpoints, the oldest first.
pub async fn further(connection: &mut PgConnection, topup_id: &TopupId) -> Result<Vec<View>> {
    let query = sqlx::query_scalar!(
        "SELECT d.delivery_id FROM further_deliveries f JOIN deliveries d ON d.delivery_id = f.delivery_id
         WHERE f.topup_id = $1 AND d.kind = 'topup.ready'
         ORDER BY d.created_at, d.delivery_id LIMIT $2",
        topup_id.as_str(),
        MOST_FURTHER,
    );
    let ids = query.fetch_all(&mut *connection).await?;
    view::read(connection, &ids).await
}

/// The newest attempts of a delivery, at most `most` of them, in the order of time.
pub async fn attempts(
    connection: &mut PgConnection,
    id: DeliveryId,
    most: i64,
) -> Result<Vec<AttemptView>> {
    let attempts = sqlx::query_as!(
        AttemptView,
        r#"SELECT attempt AS "attempt!", at AS "at!", duration_ms AS "duration_ms!", status, class AS "class!", detail, answer
           FROM (
               SELECT attempt, at, duration_ms, status, class, detail, answer FROM delivery_attempts WHERE delivery_id = $1
               UNION ALL
               -- The last attempt of a delivered topup is on the delivery's own row.
               SELECT attempt - 1, attempted_at, coalesce(duration_ms, 0), status, 'delivered', NULL, NULL
               FROM deliveries
               WHERE delivery_id = $1 AND kind = 'topup.ready' AND state = 'delivered' AND attempted_at IS NOT NULL
           ) attempts
           ORDER BY 1 DESC, 2 DESC LIMIT $2"#,
        id.uuid(),
        most,
    );
    let mut attempts = attempts.fetch_all(connection).await?;
    attempts.reverse();
    Ok(attempts)
}

/// What decides whether a delivery can be sent again.
#[derive(Clone, Debug)]
pub struct Resendable {
    pub state: Stored<DeliveryState>,
    /// Whether the endpoint has a URL now.
    pub(crate) has_url: bool,
    /// It makes no sense to send it again: the profile of the topup was erased, the endpoint was
    /// deleted, or the event is a test, is no longer wanted, or reports a failed topup that got
    /// ready or whose order was refused or cancelled.
    pub pointless: bool,
    /// It is due soon anyway, or an attempt is in flight.
    pub(crate) due: bool,
    /// The seconds since the last attempt; before the first one, since the delivery was stored.
    pub(crate) age: f64,
    /// The time of the database at that moment.
    pub(crate) now: OffsetDateTime,
}

/// Reads [`Resendable`]; `None` if there is no such delivery.
pub async fn resendable(
    connection: &mut PgConnection,
    id: DeliveryId,
) -> Result<Option<Resendable>> {
    let read = sqlx::query_as!(
        Resendable,
        r#"SELECT d.state, n.url IS NOT NULL AS "has_url!",
                  -- For events, the same conditions as in the claim (`deliveries::claim`).
                  n.endpoint_id IS NULL
                  OR CASE d.kind
                      WHEN 'topup.ready' THEN e.erased_at IS NOT NULL
                      WHEN 'webhook.test' THEN true
                      WHEN 'notice.verify' THEN true
                      ELSE d.kind NOT LIKE 'notice.%' AND d.kind <> ALL (n.events)
                           OR (d.kind = 'topup.failed'
                               AND (t.state = 'failed' AND o.refused_at IS NULL AND e.ready_at IS NULL) IS NOT TRUE)
                  END AS "pointless!",
                  -- Without work, or with work that is due within the longest lease, an attempt may be
                  -- in flight.
                  d.state = 'pending'
                  AND (d.attempt = 0
                       OR coalesce(w.at <= clock_timestamp() + make_interval(secs => $2), true)) AS "due!",
                  extract(epoch FROM clock_timestamp() - greatest(d.attempted_at, d.created_at))::float8 AS "age!",
                  clock_timestamp() AS "now!"
           FROM deliveries d
           LEFT JOIN partner_endpoints n ON n.endpoint_id = coalesce(d.endpoint_id, d.partner_id)
           LEFT JOIN work w ON w.id = d.delivery_id
           LEFT JOIN orders o ON o.order_id = d.order_id
           LEFT JOIN topups t ON t.topup_id = d.topup_id
           LEFT JOIN esims e ON e.topup_id = d.topup_id
           WHERE d.delivery_id = $1"#,
        id.uuid(),
        seconds(LONGEST_LEASE),
    );
    Ok(read.fetch_optional(connection).await?)
}

/// The numbers of deliveries that a resend makes due, by the states that they were in.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Resent {
    /// All of them. Each sends one webhook, or more if it fails.
    pub resent: i64,
    pub delivered: i64,
    pub exhausted: i64,
    /// Those that waited for a retry.
    pub pending: i64,
    /// The earliest time among them. The time of a delivery is as in [`Filter::since`].
    #[serde(with = "time::serde::rfc3339::option")]
    pub oldest: Option<OffsetDateTime>,
    /// The latest time among them.
    #[serde(with = "time::serde::rfc3339::option")]
    pub newest: Option<OffsetDateTime>,
}

/// Makes one delivery pending and due, with a new schedule of retries, if it matches the filter, and
/// stores that as a [resend](crate::deliveries::resends) that has ended; see [`resend`]. If it cannot be sent again,
/// nothing is stored.
pub async fn resend_one(
    connection: &mut PgConnection,
    id: DeliveryId,
    filter: &Filter<'_>,
    mode: Mode<'_>,
) -> Result<Resent> {
    let mut transaction = connection.begin().await?;
    let resent = resend(&mut transaction, &[id.uuid()], filter).await?;
    if resent.resent == 0 {
        transaction.rollback().await?;
        return Ok(resent);
    }
    if let Mode::Apply(action) = &mode {
        store_one(&mut transaction, id, action).await?;
    }
    actions::finish(transaction, mode, resent.resent).await?;
    Ok(resent)
}

/// Stores that one webhook was made due again, in the transaction of that. The row has ended.
async fn store_one(
    connection: &mut PgConnection,
    delivery: DeliveryId,
    action: &Action<'_>,
) -> Result<()> {
    let via: &'static str = action.actor.via.into();
    let statement = sqlx::query!(
        "INSERT INTO resends (resend_id, partner_id, delivery_id, since, until, matching, phase, resent, ended_at, asked_by,
                              via, reason)
         SELECT $2, partner_id, delivery_id, now(), now(), 1, 'sending', 1, now(), $3, $4, $5
         FROM deliveries WHERE delivery_id = $1",
        delivery.uuid(),
        Uuid::now_v7(),
        action.actor.name,
        via,
        action.reason,
    );
    statement.execute(connection).await?;
    Ok(())
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
pub(crate) async fn resend(
    connection: &mut PgConnection,
    ids: &[Uuid],
    filter: &Filter<'_>,
) -> Result<Resent> {
    let query = sqlx::query_as!(
        Resent,
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
        filter.state,
        seconds(LONGEST_LEASE),
        filter.partner_id.map(PartnerId::uuid),
        filter.since,
        filter.until,
        filter.attempt,
    );
    Ok(query.fetch_one(connection).await?)
}
