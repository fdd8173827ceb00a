//! Looks an order up by any of its ids, with its placements, units and deliveries (`esimctl order
//! show`).

use std::collections::{BTreeMap, HashMap};

use domain::{
    Agreed, EsimChangeState, MaybeStored, Metadata, PlacementState, Stored, StoredAgreed,
    StoredReason,
    standing::{
        self, DeliveryState, EndpointState, Rows, SilentStages, Standing, Stop, UnitState,
        WebhookFacts, of_webhook,
    },
};
use pg::{Error, Result};
use sqlx::{Decode, PgConnection, Postgres, error::BoxDynError, postgres::PgValueRef};
use store::{Unflushed, with_state};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    health::stages::{self, Stage, StageProcesses},
    order_extensions::{self, ExtensionView},
    search,
};

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
    /// What the partner keeps with it; nobody interprets it.
    pub metadata: Option<Metadata>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When the order was erased. Only its ids, states and times are left.
    #[serde(with = "time::serde::rfc3339::option")]
    pub erased_at: Option<OffsetDateTime>,
    pub placements: Vec<PlacementView>,
    /// The order's units, in the order of the response.
    pub topups: Vec<TopupView>,
    /// The webhooks of its units to further endpoints, those of a unit together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<FurtherWebhook>,
    /// The extensions of its units, the oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<ExtensionView>,
    /// Whether each stage lived when the order was read.
    #[serde(skip)]
    pub stages: Vec<StageProcesses>,
}

/// The webhook of a unit to a further endpoint that is still there.
#[derive(Clone, Debug, serde::Serialize)]
pub struct FurtherWebhook {
    pub topup_id: String,
    #[serde(skip)]
    pub delivery_id: Uuid,
    pub endpoint_id: Uuid,
    /// The host of its URL.
    pub host: Option<String>,
    /// Whether webhooks to it are sent now.
    pub endpoint: Stored<EndpointState>,
    /// When a blocked endpoint is tested next.
    #[serde(with = "time::serde::rfc3339::option")]
    pub endpoint_until: Option<OffsetDateTime>,
    pub state: Stored<DeliveryState>,
    /// The number of attempts that have ended.
    pub attempts: i32,
    pub status: Option<i32>,
    /// Why the last attempt failed.
    pub error: Option<String>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub delivered_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub due_at: Option<OffsetDateTime>,
    /// Whether it was delivered before and is, or was, sent again.
    pub delivered_before: bool,
}

/// A webhook of a unit, as it is told: to which endpoint it goes, and how it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitWebhook<'a> {
    pub delivery_id: Option<Uuid>,
    /// None is the first endpoint.
    pub endpoint_id: Option<Uuid>,
    pub standing: Standing,
    pub attempts: i32,
    pub status: Option<i32>,
    pub error: Option<&'a str>,
    pub delivered_at: Option<OffsetDateTime>,
    pub due_at: Option<OffsetDateTime>,
    /// When its endpoint is tested next, if that is blocked.
    pub endpoint_until: Option<OffsetDateTime>,
}

fn attempts(ended: i32) -> u32 {
    ended.try_into().unwrap_or_default()
}

impl FurtherWebhook {
    fn webhook(&self) -> Option<WebhookFacts> {
        Some(WebhookFacts {
            endpoint: self.endpoint.known()?,
            state: self.state.known()?,
            attempts: attempts(self.attempts),
            is_gone: self.status == Some(410),
            was_delivered: self.delivered_before,
        })
    }
}

/// A [`StoredAgreed`] as JSON.
struct AgreedColumn(Agreed);

impl Decode<'_, Postgres> for AgreedColumn {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        let text = <&str as Decode<Postgres>>::decode(value)?;
        let stored: StoredAgreed = serde_json::from_str(text)?;
        Ok(Self(stored.read()?))
    }
}

impl From<AgreedColumn> for Agreed {
    fn from(column: AgreedColumn) -> Self {
        column.0
    }
}

/// [`Metadata`] as it is stored; no pairs are none.
struct MetadataColumn(Option<Metadata>);

impl Decode<'_, Postgres> for MetadataColumn {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        let text = <&str as Decode<Postgres>>::decode(value)?;
        let is_none = text == "{}";
        let metadata = (!is_none).then(|| Metadata::read(text)).transpose()?;
        Ok(Self(metadata))
    }
}

impl From<MetadataColumn> for Option<Metadata> {
    fn from(column: MetadataColumn) -> Self {
        column.0
    }
}

impl TopupView {
    /// A unit that waits to be bought. Set further fields with `..TopupView::new(…)`.
    pub fn new(
        topup_id: String,
        placement_id: Uuid,
        agreed: Agreed,
        provider_option_id: String,
    ) -> Self {
        Self {
            topup_id,
            agreed,
            metadata: None,
            option_name: None,
            provider_option_id,
            placement_id,
            state: Stored::Known(UnitState::Pending),
            is_parked: false,
            reason: StoredReason::default(),
            has_unit: false,
            iccid: None,
            ready_at: None,
            erased_at: None,
            delivery_id: None,
            delivery: MaybeStored(None),
            delivery_attempts: None,
            delivery_status: None,
            delivery_error: None,
            delivered_at: None,
            delivery_due_at: None,
            give_back: MaybeStored(None),
            give_back_attempt: None,
            give_back_reason: None,
            give_back_message: None,
            give_back_asked_at: None,
            give_back_ended_at: None,
            returned_at: None,
            in_trouble_since: None,
            delivered_before: false,
        }
    }

    /// Its webhook to the first endpoint.
    fn webhook(&self, endpoint: EndpointState) -> Option<WebhookFacts> {
        Some(WebhookFacts {
            endpoint,
            state: self.delivery.known()?,
            attempts: attempts(self.delivery_attempts.unwrap_or_default()),
            is_gone: self.delivery_status == Some(410),
            was_delivered: self.delivered_before,
        })
    }
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
    pub reason: StoredReason,
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
    /// Why nothing is bought at its provider now.
    #[serde(skip)]
    pub stop: Option<Stop>,
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
    #[serde(flatten)]
    pub agreed: Agreed,
    /// What the partner keeps with its item; nobody interprets it.
    pub metadata: Option<Metadata>,
    /// The name of the option in the catalogue now; `None` if the catalogue no longer has it.
    pub option_name: Option<String>,
    /// The provider's name of the option, as the catalogue said when the order was accepted.
    pub provider_option_id: String,
    /// The placement that holds the unit.
    pub placement_id: Uuid,
    pub state: Stored<UnitState>,
    /// Its placement waits for an operator.
    #[serde(skip)]
    pub is_parked: bool,
    /// Why the unit failed or its placement is parked; nothing once it has its profile.
    pub reason: StoredReason,
    /// Its provider has named a unit for it, so a row in `esims` holds it.
    #[serde(skip)]
    pub has_unit: bool,
    pub iccid: Option<String>,
    /// When its profile was stored.
    #[serde(with = "time::serde::rfc3339::option")]
    pub ready_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339::option")]
    pub erased_at: Option<OffsetDateTime>,
    /// The id of its delivery to the first endpoint.
    #[serde(skip)]
    pub delivery_id: Option<Uuid>,
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
    pub give_back: MaybeStored<EsimChangeState>,
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
    /// Since when its provider says that it was downloaded and not installed, so that its customer
    /// needs help.
    #[serde(with = "time::serde::rfc3339::option")]
    pub in_trouble_since: Option<OffsetDateTime>,
    /// Whether the webhook was delivered before and is, or was, sent again.
    pub delivered_before: bool,
}

impl OrderView {
    /// Which stages are silent.
    pub fn silent(&self) -> SilentStages {
        let is_dead = |stage| {
            let mut all = self.stages.iter();
            all.any(|one| one.stage == stage && one.is_dead())
        };
        SilentStages {
            provisioner: is_dead(Stage::Provisioner),
            notifier: is_dead(Stage::Notifier),
        }
    }

    /// Since when a stage has been silent, if that is known.
    pub fn silent_since(&self, stage: Stage) -> Option<OffsetDateTime> {
        self.stages.iter().find(|one| one.stage == stage)?.last
    }

    /// The extensions of one of its units.
    pub fn extensions<'a>(
        &'a self,
        unit: &'a TopupView,
    ) -> impl Iterator<Item = &'a ExtensionView> + 'a {
        self.extensions
            .iter()
            .filter(|one| one.topup_id == unit.topup_id)
    }

    /// The webhooks of one of its units to further endpoints.
    fn further(&self, unit: &TopupView) -> impl Iterator<Item = &FurtherWebhook> {
        self.further
            .iter()
            .filter(|one| one.topup_id == unit.topup_id)
    }

    /// Why nothing is bought at the provider of a unit whose purchase waits for that.
    fn stop(&self, unit: &TopupView) -> Option<Stop> {
        let mut placements = self.placements.iter();
        let placement = placements.find(|one| one.placement_id == unit.placement_id)?;
        let waits = placement.state.known() == Some(PlacementState::Accepted);
        placement.stop.filter(|_| waits)
    }

    /// How one of its units stands, as everybody is told.
    pub fn standing(&self, unit: &TopupView) -> Standing {
        let (Some(state), Some(endpoint)) = (unit.state.known(), self.endpoint.known()) else {
            return Standing::Unreadable;
        };
        if unit.delivery.is_unknown() || unit.give_back.is_unknown() {
            return Standing::Unreadable;
        }
        let mut webhooks: Vec<WebhookFacts> = unit.webhook(endpoint).into_iter().collect();
        for one in self.further(unit) {
            let Some(webhook) = one.webhook() else {
                return Standing::Unreadable;
            };
            webhooks.push(webhook);
        }
        standing::standing(&standing::UnitFacts {
            state,
            reason: unit.reason.code(),
            give_back: unit.give_back.known(),
            webhooks: &webhooks,
            stop: self.stop(unit),
            silent: self.silent(),
        })
    }

    /// The webhooks of one of its units, that to the first endpoint first.
    pub fn sent<'a>(&'a self, unit: &'a TopupView) -> Vec<UnitWebhook<'a>> {
        let silent = self.silent();
        let stands = |webhook: Option<WebhookFacts>| {
            webhook.map_or(Standing::Unreadable, |one| of_webhook(&one, silent))
        };
        let mut sent = Vec::new();
        if unit.delivery.0.is_some() {
            let webhook = self.endpoint.known().and_then(|state| unit.webhook(state));
            sent.push(UnitWebhook {
                delivery_id: unit.delivery_id,
                endpoint_id: None,
                standing: stands(webhook),
                attempts: unit.delivery_attempts.unwrap_or_default(),
                status: unit.delivery_status,
                error: unit.delivery_error.as_deref(),
                delivered_at: unit.delivered_at,
                due_at: unit.delivery_due_at,
                endpoint_until: self.endpoint_until,
            });
        }
        sent.extend(self.further(unit).map(|one| UnitWebhook {
            delivery_id: Some(one.delivery_id),
            endpoint_id: Some(one.endpoint_id),
            standing: stands(one.webhook()),
            attempts: one.attempts,
            status: one.status,
            error: one.error.as_deref(),
            delivered_at: one.delivered_at,
            due_at: one.due_at,
            endpoint_until: one.endpoint_until,
        }));
        sent
    }
}

/// The maximum number of webhooks to further endpoints that are read of an order.
const MOST_FURTHER: i64 = 10_000;

/// The webhooks of the units of an order to further endpoints. One whose endpoint was deleted is
/// not sent any more, and holds nothing up.
async fn further(connection: &mut PgConnection, order_id: Uuid) -> Result<Vec<FurtherWebhook>> {
    let query = with_state!(
        FurtherWebhook,
        r#"SELECT t.topup_id, d.delivery_id, d.endpoint_id AS "endpoint_id!", d.state, d.attempt AS attempts, d.status, d.error,
                  d.delivered_at, (SELECT nullif(w.at, '-infinity') FROM work w WHERE w.id = d.delivery_id) AS "due_at?",
                  -- The attempt that delivered it was kept when it was sent again.
                  coalesce(d.state <> 'delivered'
                           AND (SELECT true FROM delivery_attempts a
                                WHERE a.delivery_id = d.delivery_id AND a.class = 'delivered' LIMIT 1), false)
                      AS "delivered_before!",
                  nullif(e.blocked_until, 'infinity') AS "endpoint_until?", e.host,
                  "#,
        r#" AS "endpoint!"
           FROM placements p
           JOIN topups t ON t.placement_id = p.placement_id
           JOIN further_deliveries x ON x.topup_id = t.topup_id
           JOIN deliveries d ON d.delivery_id = x.delivery_id
           JOIN partner_endpoints e ON e.endpoint_id = d.endpoint_id
           WHERE p.order_id = $1 AND d.kind = 'topup.ready'
           ORDER BY t.position, d.created_at, d.delivery_id LIMIT $2"#,
        order_id,
        MOST_FURTHER,
    );
    Ok(query.fetch_all(connection).await?)
}

/// The newest orders with an id of any kind, at most [`search::MOST`]; no parts of ids. See
/// [`search::find`].
pub async fn find(connection: &mut PgConnection, id: &str) -> Result<Unflushed<Vec<OrderView>>> {
    let hits = search::whole(connection, id).await?;
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
    metadata: Option<String>,
    created_at: OffsetDateTime,
    erased_at: Option<OffsetDateTime>,
    endpoint: Stored<EndpointState>,
    endpoint_until: Option<OffsetDateTime>,
}

/// The placements of an order.
async fn placements(connection: &mut PgConnection, order_id: Uuid) -> Result<Vec<PlacementView>> {
    let query = sqlx::query!(
        r#"SELECT placement_id, p.provider, state, attempt, reason, attempted_at, placed_at, lane,
                  provider_reference, coalesce(tried, '[]')::text AS "tried!",
                  ARRAY (SELECT jsonb_path_query(alternatives, '$[*].provider') #>> '{}') AS "alternatives!: Vec<String>",
                  (SELECT at FROM work w WHERE w.id = p.placement_id) AS "due_at?",
                  (SELECT b.denied OR b.open_until = '9999-12-31 00:00:00+00' FROM providers b
                   WHERE b.name = p.provider AND b.open_until IS NOT NULL) AS "stopped_until_operator?"
           FROM placements p
           WHERE order_id = $1 ORDER BY placement_id"#,
        order_id,
    );
    let rows = query.fetch_all(connection).await?;
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
            stop: row.stopped_until_operator.map(Stop::of),
        })
    });
    placements.collect()
}

/// These orders, the newest first.
pub async fn read(
    connection: &mut PgConnection,
    ids: &[Uuid],
) -> Result<Unflushed<Vec<OrderView>>> {
    let query = with_state!(
        Head,
        r#"SELECT o.order_id, o.partner_id, o.external_order_id, o.refused_at IS NOT NULL AS "refused!",
                  o.cancelled_at IS NOT NULL AS "cancelled!", o.traceparent, o.metadata, o.created_at, o.erased_at,
                  "#,
        r#" AS "endpoint!",
                  nullif(e.blocked_until, 'infinity') AS "endpoint_until?"
           FROM orders o
           -- The first endpoint, whose id is that of the partner.
           LEFT JOIN partner_endpoints e ON e.endpoint_id = o.partner_id
           WHERE o.order_id = ANY ($1)
           ORDER BY o.created_at DESC"#,
        ids,
    );
    let heads = query.fetch_all(&mut *connection).await?;
    let stages = stages::read(&mut *connection).await?;
    let mut orders = Vec::with_capacity(heads.len());
    for head in heads {
        let placements = placements(&mut *connection, head.order_id).await?;
        let query = sqlx::query_as!(
            TopupView,
            r#"SELECT t.topup_id, t.placement_id,
                      json_build_object('option_id', t.option_id, 'terms', t.terms)::text AS "agreed!: AgreedColumn",
                      coalesce(t.metadata, '{}') AS "metadata!: MetadataColumn",
                      -- A unit whose order may still be refused has not failed yet, as in `partner_units`.
                      CASE WHEN t.state = 'failed' AND may_be_refused(p.order_id) THEN 'pending' ELSE t.state END AS "state!",
                      p.state = 'parked' AS "is_parked!",
                      coalesce(t.reason, p.reason) AS reason, e.topup_id IS NOT NULL AS "has_unit!",
                      e.iccid AS "iccid?", e.ready_at AS "ready_at?",
                      e.erased_at AS "erased_at?",
                      d.state AS "delivery?", d.attempt AS "delivery_attempts?", d.status AS "delivery_status?",
                      d.error AS "delivery_error?", d.delivered_at AS "delivered_at?", due.at AS "delivery_due_at?",
                      -- The attempt that delivered it was kept when it was sent again.
                      coalesce(d.state <> 'delivered'
                               AND (SELECT true FROM delivery_attempts a
                                    WHERE a.delivery_id = d.delivery_id AND a.class = 'delivered' LIMIT 1), false)
                          AS "delivered_before!",
                      t.provider_option_id, o.name AS "option_name?", e.returned_at AS "returned_at?",
                      in_trouble_since(r.downloaded_at, r.read_at) AS "in_trouble_since?",
                      r.give_back AS "give_back?", r.attempt AS "give_back_attempt?", r.reason AS "give_back_reason?", r.message AS "give_back_message?",
                      r.give_back_asked_at AS "give_back_asked_at?", r.ended_at AS "give_back_ended_at?",
                      e.delivery_id AS "delivery_id?"
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
        judge(&mut topups);
        let further = further(&mut *connection, head.order_id).await?;
        let extensions = order_extensions::of_order(&mut *connection, head.order_id).await?;
        orders.push(OrderView {
            endpoint: head.endpoint,
            order_id: head.order_id,
            partner_id: head.partner_id,
            external_order_id: head.external_order_id,
            refused: head.refused,
            cancelled: head.cancelled,
            endpoint_until: head.endpoint_until,
            traceparent: head.traceparent,
            metadata: head.metadata.as_deref().map(Metadata::read).transpose()?,
            created_at: head.created_at,
            erased_at: head.erased_at,
            placements,
            topups,
            further,
            extensions,
            stages: stages.clone(),
        });
    }
    Ok(Unflushed::of(orders))
}

/// The webhooks of ready units that have not arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UndeliveredCounts {
    /// Those that are sent by themselves, or as soon as their endpoint takes them.
    pub waiting: i64,
    /// Those that are no longer sent by themselves.
    pub given_up: i64,
}

/// The webhooks of these orders that have not arrived, to all endpoints, by order. An order of
/// which all have arrived is left out.
pub async fn undelivered(
    connection: &mut PgConnection,
    orders: &[Uuid],
) -> Result<HashMap<Uuid, UndeliveredCounts>> {
    let query = sqlx::query!(
        r#"WITH sent AS (
               SELECT p.order_id, e.delivery_id
               FROM placements p JOIN topups t ON t.placement_id = p.placement_id JOIN esims e ON e.topup_id = t.topup_id
               WHERE p.order_id = ANY ($1) AND e.returned_at IS NULL
               UNION ALL
               SELECT p.order_id, f.delivery_id
               FROM placements p JOIN topups t ON t.placement_id = p.placement_id
               JOIN further_deliveries f ON f.topup_id = t.topup_id
               WHERE p.order_id = ANY ($1)
           )
           SELECT sent.order_id AS "order_id!", count(*) FILTER (WHERE d.state = 'pending') AS "waiting!",
                  count(*) FILTER (WHERE d.state <> 'pending') AS "given_up!"
           FROM sent JOIN deliveries d ON d.delivery_id = sent.delivery_id
           WHERE d.kind = 'topup.ready' AND d.state <> 'delivered'
           GROUP BY sent.order_id"#,
        orders,
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    let undelivered = rows.map(|row| {
        let undelivered = UndeliveredCounts {
            waiting: row.waiting,
            given_up: row.given_up,
        };
        (row.order_id, undelivered)
    });
    Ok(undelivered.collect())
}

/// The state of each unit follows from its rows, as for its partner. A state that only a newer
/// version knows is shown as it is. The reason of a placement is about its units that are missing:
/// one that has its profile left the normal path for no reason.
fn judge(units: &mut [TopupView]) {
    for unit in units {
        if let Some(stored) = unit.state.known() {
            unit.state = Stored::Known(UnitState::of(Rows {
                is_ready: unit.ready_at.is_some(),
                is_returned: unit.returned_at.is_some(),
                has_failed: stored == UnitState::Failed,
                is_parked: unit.is_parked,
            }));
        }
        if unit.ready_at.is_some() {
            unit.reason = StoredReason::default();
        }
    }
}
