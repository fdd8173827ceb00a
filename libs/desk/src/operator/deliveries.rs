//! Deliveries and their attempts as operators see them, and resends.
//!
//! `esimctl` calls all of it. Self-service calls [`resendable`] and [`resend_one`] for one delivery
//! of a partner, and [`store::deliveries::resends`] makes many deliveries of a partner due with
//! the same statement.
//!
//! [`delivery_list`](super::delivery_list) lists them.

use domain::{DeliveryId, OrderId, Stored, TopupId, WebhookId, standing::DeliveryState};
use pg::{
    Result, Transaction, TransactionEnd,
    actions::{Action, ActionChange, Mode},
    seconds, transaction,
};
use serde_json::json;
use sqlx::PgConnection;
use store::deliveries::{
    View,
    endpoints::LONGEST_LEASE,
    resends::{DeliveryFilter, ResentCounts, resend},
    view,
};
use time::OffsetDateTime;
use uuid::Uuid;

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
    /// [`Purpose::Response`](vault::Purpose::Response).
    #[serde(skip)]
    pub response_start: Option<Vec<u8>>,
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

/// One delivery of any kind.
pub async fn read(connection: &mut PgConnection, id: DeliveryId) -> Result<Option<View>> {
    Ok(view::read(connection, &[id.uuid()]).await?.pop())
}

/// The maximum number of deliveries of a unit to further endpoints that are read.
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
        r#"SELECT attempt AS "attempt!", at AS "at!", duration_ms AS "duration_ms!", status, class AS "class!", detail, response_start
           FROM (
               SELECT attempt, at, duration_ms, status, class, detail, response_start FROM delivery_attempts WHERE delivery_id = $1
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
    /// Nothing is left to send again: the profile of the topup was erased, the endpoint was
    /// deleted, or the event is a test or the code of a channel, which are sent once, or has become
    /// pointless, as the claim of deliveries understands it (`store::deliveries::claim`).
    pub gone: bool,
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
                  n.endpoint_id IS NULL
                  OR CASE d.kind
                      WHEN 'topup.ready' THEN e.erased_at IS NOT NULL
                      WHEN 'webhook.test' THEN true
                      WHEN 'notice.verify' THEN true
                      ELSE is_pointless(d.kind, n.events, d.topup_id, l.order_id = o.order_id, o.refused_at, t.state, e.ready_at)
                  END AS "gone!",
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
           LEFT JOIN orders o ON o.order_id = d.order_id AND o.partner_id = d.partner_id
           LEFT JOIN topups t ON t.topup_id = d.topup_id
           LEFT JOIN placements l ON l.placement_id = t.placement_id
           LEFT JOIN esims e ON e.topup_id = d.topup_id
           WHERE d.delivery_id = $1"#,
        id.uuid(),
        seconds(LONGEST_LEASE),
    );
    Ok(read.fetch_optional(connection).await?)
}

/// Makes one delivery pending and due, with a new schedule of retries, if it matches the filter,
/// and stores that as a [resend](store::deliveries::resends) that has ended; see [`resend`]. If it
/// cannot be sent again, nothing is stored.
pub async fn resend_one(
    connection: &mut PgConnection,
    id: DeliveryId,
    filter: &DeliveryFilter,
    mode: Mode<'_>,
) -> Result<ResentCounts> {
    transaction!(connection, "deliveries::resend_one", |transaction| {
        let resent = resend(transaction, &[id.uuid()], filter).await?;
        if resent.resent == 0 {
            return Ok(TransactionEnd::Rollback(resent));
        }
        if let Mode::Apply(action) = &mode {
            store_one(transaction, id, action).await?;
        }
        let before = json!({
            "delivered": resent.delivered, "exhausted": resent.exhausted, "pending": resent.pending,
        });
        let changed = ActionChange::between(before, json!({ "pending": resent.resent }));
        mode.record(transaction, resent.resent, changed).await?;
        Ok(mode.end(resent))
    })
}

/// Makes the webhooks of all ready eSIMs of an order pending and due, to all endpoints, as far as
/// they can be sent again; see [`resend`]. Whoever asks for it has seen so many attempts of them in
/// all. If it is another number now, nothing is sent, so that one request sends them once.
pub async fn resend_order(
    connection: &mut PgConnection,
    id: OrderId,
    attempts: i64,
    mode: Mode<'_>,
) -> Result<ResentCounts> {
    transaction!(connection, "deliveries::resend_order", |transaction| {
        let query = sqlx::query!(
            "WITH units AS (
                 SELECT t.topup_id FROM placements p JOIN topups t ON t.placement_id = p.placement_id
                 WHERE p.order_id = $1
             ), ids (id) AS (
                 SELECT e.delivery_id FROM units JOIN esims e ON e.topup_id = units.topup_id
                 UNION
                 SELECT f.delivery_id FROM units JOIN further_deliveries f ON f.topup_id = units.topup_id
             )
             SELECT d.delivery_id, d.attempt FROM ids JOIN deliveries d ON d.delivery_id = ids.id
             WHERE d.kind = 'topup.ready'",
            id.uuid(),
        );
        let found = query.fetch_all(&mut **transaction).await?;
        let now: i64 = found.iter().map(|one| i64::from(one.attempt)).sum();
        if now != attempts {
            return Ok(TransactionEnd::Rollback(ResentCounts::default()));
        }
        let ids: Vec<Uuid> = found.into_iter().map(|one| one.delivery_id).collect();
        let resent = resend(transaction, &ids, &DeliveryFilter::default()).await?;
        if resent.resent == 0 {
            return Ok(TransactionEnd::Rollback(resent));
        }
        let before = json!({
            "delivered": resent.delivered, "exhausted": resent.exhausted, "pending": resent.pending,
        });
        let changed = ActionChange::between(before, json!({ "pending": resent.resent }));
        mode.record(transaction, resent.resent, changed).await?;
        Ok(mode.end(resent))
    })
}

/// Stores that one webhook was made due again, in the transaction of that. The row has ended.
async fn store_one(
    transaction: &mut Transaction<'_>,
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
    statement.execute(&mut **transaction).await?;
    Ok(())
}
