//! Looks an order up by any of its ids, with its placements, units and deliveries (`esimctl order
//! show`).

use std::collections::BTreeMap;

use domain::{
    GiveBackState, MaybeStored, PlacementState, Stored, Why,
    standing::{self, DeliveryState, EndpointState, Standing, UnitState, Webhook},
};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use super::search;
use crate::{Error, Result, deliveries::endpoints::with_state};

/// An order with its placements, units and deliveries. It holds no activation code.
#[derive(Clone, Debug, serde::Serialize)]
pub struct OrderView {
    pub order_id: Uuid,
    pub partner_id: Uuid,
    pub external_order_id: String,
    /// The order was answered with 422 or cancelled, so nothing of it was bought.
    pub refused: bool,
    /// The partner cancelled it.
    pub cancelled: bool,
    /// Whether webhooks to the partner's first endpoint are sent now: `open`, `blocked`, `probing`,
    /// `paused`, `paused_by_partner` or `no_url`.
    pub endpoint: Stored<EndpointState>,
    /// When a blocked endpoint is tested next.
    #[serde(with = "time::serde::rfc3339::option")]
    pub endpoint_until: Option<OffsetDateTime>,
    /// The W3C trace context of the create-order request.
    pub traceparent: Option<String>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When the order was erased. Only its ids, states and times are left.
    #[serde(with = "time::serde::rfc3339::option")]
    pub erased_at: Option<OffsetDateTime>,
    pub placements: Vec<PlacementView>,
    /// The order's units, in the order of the response.
    pub topups: Vec<TopupView>,
}

/// A placement, as operators see it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PlacementView {
    /// The id of the placement, which is the order id that the provider sees.
    pub placement_id: Uuid,
    pub provider: String,
    pub state: Stored<PlacementState>,
    /// The number of the last recorded attempt.
    pub attempt: i32,
    /// Why the placement left the normal path.
    pub reason: Why,
    /// When that attempt was recorded.
    #[serde(with = "time::serde::rfc3339::option")]
    pub attempted_at: Option<OffsetDateTime>,
    /// When the provider confirmed the purchase.
    #[serde(with = "time::serde::rfc3339::option")]
    pub placed_at: Option<OffsetDateTime>,
    /// Its lane: what fails together with it at the provider, usually its option.
    pub lane: String,
    /// The provider's own id of the purchase, if the provider has named one.
    pub provider_reference: Option<String>,
    /// The providers that have rejected it, in the order in which they were asked.
    pub tried: Vec<TriedPair>,
    /// The providers to which it may still go. If it is parked: at which it may be bought, too.
    pub alternatives: Vec<String>,
    /// When a provisioner looks at it next, if it has work.
    #[serde(with = "time::serde::rfc3339::option")]
    pub due_at: Option<OffsetDateTime>,
}

/// A provider that has rejected a placement, which then went to the next one.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct TriedPair {
    pub provider: String,
    pub lane: String,
    /// The last attempt there.
    pub attempt: i32,
    /// Why it was rejected.
    pub reason: String,
    /// Its names of the options by ours.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// When it was rejected, in RFC 3339.
    pub at: String,
}

/// One unit and its delivery, as operators see it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct TopupView {
    /// The id of the unit, 26 digits.
    pub topup_id: String,
    pub option_id: Uuid,
    /// The name of the option in the catalogue now; `None` if the catalogue no longer has it.
    pub option_name: Option<String>,
    /// The provider's name of the option, as the catalogue said when the order was accepted.
    pub provider_option_id: String,
    /// The placement that holds the unit.
    pub placement_id: Uuid,
    pub state: Stored<UnitState>,
    /// Why the unit failed or its placement is parked; nothing once it has its profile.
    pub reason: Why,
    pub iccid: Option<String>,
    /// When its profile was stored.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ready_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub erased_at: Option<OffsetDateTime>,
    /// The state of its delivery; none before the unit is ready.
    pub delivery: MaybeStored<DeliveryState>,
    /// The number of attempts of its delivery that have ended.
    pub delivery_attempts: Option<i32>,
    pub delivery_status: Option<i32>,
    /// Why the last of these attempts failed.
    pub delivery_error: Option<String>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub delivered_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub delivery_due_at: Option<OffsetDateTime>,
    /// The state of its give-back; none if its partner has not asked for it.
    pub give_back: MaybeStored<GiveBackState>,
    /// Its last attempt.
    pub give_back_attempt: Option<i32>,
    /// Why it was refused or parked: a code, and what the provider said.
    pub give_back_reason: Option<String>,
    pub give_back_message: Option<String>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub give_back_asked_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub give_back_ended_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub returned_at: Option<OffsetDateTime>,
    /// Whether the webhook was delivered before and is, or was, sent again.
    pub delivered_before: bool,
}

impl OrderView {
    /// How one of its units stands, as everybody is told.
    pub fn standing(&self, unit: &TopupView) -> Standing {
        let (Some(state), Some(endpoint)) = (unit.state.known(), self.endpoint.known()) else {
            return Standing::Unreadable;
        };
        if unit.delivery.is_unknown() || unit.give_back.is_unknown() {
            return Standing::Unreadable;
        }
        let webhook = unit.delivery.known().map(|state| Webhook {
            state,
            attempts: unit
                .delivery_attempts
                .and_then(|attempts| attempts.try_into().ok())
                .unwrap_or_default(),
            is_gone: unit.delivery_status == Some(410),
            was_delivered: unit.delivered_before,
        });
        standing::standing(&standing::Unit {
            state,
            reason: unit.reason.code(),
            give_back: unit.give_back.known(),
            webhook,
            endpoint,
        })
    }
}

/// The newest orders that match an id of any kind, at most [`search::MOST`]. See [`search::find`].
pub async fn find(connection: &mut PgConnection, id: &str) -> Result<Vec<OrderView>> {
    let hits = search::find(connection, id).await?;
    let ids: Vec<Uuid> = hits.orders.iter().map(|hit| hit.order_id).collect();
    read(connection, &ids).await
}

/// An order without its parts.
struct Head {
    order_id: Uuid,
    partner_id: Uuid,
    external_order_id: String,
    refused: bool,
    cancelled: bool,
    traceparent: Option<String>,
    created_at: OffsetDateTime,
    erased_at: Option<OffsetDateTime>,
    paused_by_partner: bool,
    endpoint: Stored<EndpointState>,
    endpoint_until: Option<OffsetDateTime>,
}

/// These orders, the newest first.
pub async fn read(connection: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<OrderView>> {
    let query = with_state!(
        Head,
        r#"SELECT o.order_id, o.partner_id, o.external_order_id, o.refused_at IS NOT NULL AS "refused!",
                  o.cancelled_at IS NOT NULL AS "cancelled!", o.traceparent, o.created_at, o.erased_at,
                  coalesce(e.paused_by_partner AND e.blocked_until = 'infinity', false) AS "paused_by_partner!",
                  "#,
        "p.webhook_url",
        r#" AS "endpoint!",
                  nullif(e.blocked_until, 'infinity') AS "endpoint_until?"
           FROM orders o
           LEFT JOIN partners p ON p.partner_id = o.partner_id
           LEFT JOIN endpoints e ON e.partner_id = o.partner_id
           WHERE o.order_id = ANY ($1)
           ORDER BY o.created_at DESC"#,
        ids,
    );
    let heads = query.fetch_all(&mut *connection).await?;
    let mut orders = Vec::with_capacity(heads.len());
    for head in heads {
        let query = sqlx::query!(
            r#"SELECT placement_id, p.provider, state, attempt, reason, attempted_at, placed_at, lane,
                      provider_reference, coalesce(tried, '[]')::text AS "tried!",
                      ARRAY (SELECT jsonb_path_query(alternatives, '$[*].provider') #>> '{}') AS "alternatives!: Vec<String>",
                      (SELECT at FROM work w WHERE w.id = p.placement_id) AS "due_at?"
               FROM placements p
               WHERE order_id = $1 ORDER BY placement_id"#,
            head.order_id,
        );
        let rows = query.fetch_all(&mut *connection).await?;
        let placements = rows.into_iter().map(|row| {
            Ok(PlacementView {
                placement_id: row.placement_id,
                provider: row.provider,
                state: row.state.into(),
                attempt: row.attempt,
                reason: row.reason.into(),
                attempted_at: row.attempted_at,
                placed_at: row.placed_at,
                lane: row.lane,
                provider_reference: row.provider_reference,
                tried: serde_json::from_str(&row.tried).map_err(|error| {
                    Error::Unreadable(format!("the providers that were tried: {error}"))
                })?,
                alternatives: row.alternatives,
                due_at: row.due_at,
            })
        });
        let placements = placements.collect::<Result<_>>()?;
        let query = sqlx::query_as!(
            TopupView,
            r#"SELECT t.topup_id, t.option_id, t.placement_id,
                      CASE WHEN e.returned_at IS NOT NULL THEN 'returned' WHEN e.ready_at IS NOT NULL THEN 'ready'
                           WHEN t.state = 'pending' AND p.state = 'parked' THEN 'parked' ELSE t.state END AS "state!",
                      coalesce(t.reason, p.reason) AS reason, e.iccid AS "iccid?", e.ready_at AS "ready_at?",
                      e.erased_at AS "erased_at?",
                      d.state AS "delivery?", d.attempt AS "delivery_attempts?", d.status AS "delivery_status?",
                      d.error AS "delivery_error?", d.delivered_at AS "delivered_at?", due.at AS "delivery_due_at?",
                      -- The attempt that delivered it was kept when it was sent again.
                      coalesce(d.state <> 'delivered'
                               AND (SELECT true FROM delivery_attempts a
                                    WHERE a.delivery_id = d.delivery_id AND a.class = 'delivered' LIMIT 1), false)
                          AS "delivered_before!",
                      t.provider_option_id, o.name AS "option_name?", e.returned_at AS "returned_at?",
                      r.give_back AS "give_back?", r.attempt AS "give_back_attempt?", r.reason AS "give_back_reason?", r.message AS "give_back_message?",
                      r.give_back_asked_at AS "give_back_asked_at?", r.ended_at AS "give_back_ended_at?"
               FROM placements p
               JOIN topups t ON t.placement_id = p.placement_id
               LEFT JOIN esims e ON e.topup_id = t.topup_id
               LEFT JOIN deliveries d ON d.delivery_id = e.delivery_id
               LEFT JOIN work due ON due.id = e.delivery_id
               LEFT JOIN esim_requests r ON r.topup_id = t.topup_id
               LEFT JOIN options o ON o.option_id = t.option_id
               WHERE p.order_id = $1 ORDER BY t.position"#,
            head.order_id,
        );
        let mut topups = query.fetch_all(&mut *connection).await?;
        forget_reasons(&mut topups);
        orders.push(OrderView {
            order_id: head.order_id,
            partner_id: head.partner_id,
            external_order_id: head.external_order_id,
            refused: head.refused,
            cancelled: head.cancelled,
            endpoint: if head.paused_by_partner {
                Stored::Known(EndpointState::PausedByPartner)
            } else {
                head.endpoint
            },
            endpoint_until: head.endpoint_until,
            traceparent: head.traceparent,
            created_at: head.created_at,
            erased_at: head.erased_at,
            placements,
            topups,
        });
    }
    Ok(orders)
}

/// The reason of a placement is about its units that are missing. One that has its profile left the
/// normal path for no reason.
fn forget_reasons(units: &mut [TopupView]) {
    for unit in units.iter_mut().filter(|unit| unit.ready_at.is_some()) {
        unit.reason = Why::default();
    }
}
