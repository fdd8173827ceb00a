//! A delivery of any kind with its last attempt, as lists show it to operators and to its partner.

use domain::{DeliveryId, EndpointId, PartnerId, Stored, WebhookId, standing::DeliveryState};
use pg::Result;
use sqlx::PgConnection;
use time::{OffsetDateTime, serde::rfc3339};
use uuid::Uuid;

/// A delivery with its last attempt.
#[derive(Clone, Debug, serde::Serialize)]
pub struct View {
    pub delivery_id: DeliveryId,
    pub partner_id: PartnerId,
    /// The endpoint that it goes to. That of the first one is the partner's id.
    pub endpoint_id: EndpointId,
    /// `topup.ready`, or the name of the kind of an event or a notice.
    pub kind: String,
    /// The name under which partners know an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<WebhookId>,
    /// The topup that is ready, or has failed.
    pub topup_id: Option<String>,
    pub order_id: Option<Uuid>,
    pub external_order_id: Option<String>,
    pub state: Stored<DeliveryState>,
    /// The number of ended attempts.
    pub attempts: i32,
    /// When the last attempt began.
    #[serde(with = "rfc3339::option")]
    pub attempted_at: Option<OffsetDateTime>,
    pub duration_ms: Option<i32>,
    /// The HTTP status of the response to the last attempt, if one arrived.
    pub status: Option<i32>,
    /// The class of the last attempt: `delivered`, `status_5xx`, `timeout`, … It is `None` before
    /// the first attempt, and after the record of the attempts was erased.
    pub class: Option<String>,
    /// What was wrong with the last attempt, if no readable response arrived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// The start of the response to the last attempt, sealed for
    /// [`Purpose::Response`](vault::Purpose::Response).
    #[serde(skip)]
    pub response_start: Option<Vec<u8>>,
    #[serde(with = "rfc3339::option")]
    pub due_at: Option<OffsetDateTime>,
    #[serde(with = "rfc3339::option")]
    pub delivered_at: Option<OffsetDateTime>,
    #[serde(with = "rfc3339")]
    pub created_at: OffsetDateTime,
    /// It is an event about an order that was or may still be answered with 422. Then it is not
    /// sent, so its partner is not shown it.
    #[serde(skip)]
    pub is_unconfirmed: bool,
    /// When the profile of the topup was erased. The webhook cannot be sent again then.
    #[serde(with = "rfc3339::option")]
    pub erased_at: Option<OffsetDateTime>,
}

impl View {
    /// The `webhook-id` that the partner sees: the id of an event, or else the topup.
    pub fn webhook_id(&self) -> String {
        match &self.event_id {
            Some(event) => event.to_string(),
            None => self.topup_id.clone().unwrap_or_default(),
        }
    }
}

/// Reads deliveries of any partner, in the order of `ids`. The caller must have found the ids among
/// those that the reader may see.
pub async fn read(connection: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<View>> {
    // A test is due at `-infinity`, which is shown as no time. The last attempt of a delivered
    // topup is on its own row.
    let rows = sqlx::query!(
        r#"SELECT d.delivery_id, d.partner_id, coalesce(d.endpoint_id, d.partner_id) AS "endpoint_id!", d.kind, d.topup_id, d.order_id,
                  o.external_order_id AS "external_order_id?", d.state, d.attempt, d.attempted_at, d.duration_ms, d.status,
                  d.error, (SELECT nullif(w.at, '-infinity') FROM work w WHERE w.id = d.delivery_id) AS due_at,
                  d.delivered_at, d.created_at, e.erased_at AS "erased_at?",
                  is_unconfirmed(d.kind, o.refused_at, o.answer_by) AS "is_unconfirmed!",
                  CASE WHEN d.state = 'delivered' THEN 'delivered' ELSE last.class END AS class,
                  CASE WHEN d.state <> 'delivered' THEN last.detail END AS detail,
                  CASE WHEN d.state <> 'delivered' OR d.kind <> 'topup.ready' THEN last.response_start END AS response_start
           FROM deliveries d
           LEFT JOIN orders o ON o.order_id = d.order_id
           LEFT JOIN esims e ON e.topup_id = d.topup_id
           LEFT JOIN LATERAL (
               SELECT a.class, a.detail, a.response_start FROM delivery_attempts a WHERE a.delivery_id = d.delivery_id
               ORDER BY a.attempt DESC, a.at DESC LIMIT 1
           ) last ON true
           WHERE d.delivery_id = ANY ($1)
           ORDER BY array_position($1, d.delivery_id)"#,
        ids,
    );
    let views = rows.fetch_all(connection).await?.into_iter().map(|row| {
        let delivery_id = DeliveryId::from(row.delivery_id);
        let is_event = row.kind != "topup.ready";
        View {
            delivery_id,
            partner_id: row.partner_id.into(),
            endpoint_id: row.endpoint_id.into(),
            kind: row.kind,
            event_id: is_event.then_some(WebhookId::Event(delivery_id)),
            topup_id: row.topup_id,
            order_id: row.order_id,
            external_order_id: row.external_order_id,
            state: row.state.into(),
            attempts: row.attempt,
            attempted_at: row.attempted_at,
            duration_ms: row.duration_ms,
            status: row.status,
            class: row.class,
            detail: row.detail,
            error: row.error,
            response_start: row.response_start,
            due_at: row.due_at,
            delivered_at: row.delivered_at,
            created_at: row.created_at,
            is_unconfirmed: row.is_unconfirmed,
            erased_at: row.erased_at,
        }
    });
    Ok(views.collect())
}
