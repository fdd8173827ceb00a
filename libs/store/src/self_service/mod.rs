//! A partner's view of its own account, orders and deliveries. Every statement names the partner, so another
//! partner's ids look like ids that do not exist.
//!
//! Types with a schema are answers of the API: partners read their comments.

mod changes;
mod deliveries;
mod webhooks;

use domain::{Environment, OptionId, OrderId, PartnerId, TopupId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sqlx::PgConnection;
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;
use uuid::Uuid;

pub use self::{
    changes::{rotate, set_webhook},
    deliveries::{Delivery, Redelivered, attempts, delivery, redeliver},
    webhooks::{Position, StoredWebhook, webhook_secrets, webhooks},
};
pub use crate::operator::deliveries::AttemptView as Attempt;
use crate::{Result, options};

/// An order's id is made before its row, by another clock; they differ by less than this.
const SKEW: time::Duration = time::Duration::minutes(5);
/// The name under which a partner's own changes are recorded.
pub(crate) const PARTNER: &str = "partner";
/// The recorded reason of a partner's own changes.
pub(crate) const REASON: &str = "requested by the partner";
/// The largest count; larger numbers show as this one.
const MOST_COUNTED: i64 = 10_000;

/// The state of a topup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema, strum::EnumString)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[schema(as = TopupState)]
pub enum UnitState {
    /// It is being bought, or its eSIM is awaited.
    Processing,
    /// The provider's answer is missing or contradicts itself. We look into it; it becomes ready or failed.
    OnHold,
    /// The eSIM is ready.
    Ready,
    /// There will be no eSIM.
    Failed,
}

/// The state of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OrderState {
    /// At least one topup is `processing` or `on_hold`.
    Processing,
    /// All topups are ready.
    Ready,
    /// Some topups are ready, the others have failed.
    PartlyFailed,
    /// All topups have failed.
    Failed,
    /// It was answered with 422: nothing was bought.
    Refused,
    /// You cancelled it: nothing was bought.
    Cancelled,
}

#[derive(Clone, Debug)]
pub struct OrderHead {
    pub order_id: OrderId,
    pub external_order_id: String,
    /// It was answered with 422, or cancelled.
    pub refused: bool,
    pub cancelled_at: Option<OffsetDateTime>,
    pub created_at: OffsetDateTime,
}

/// The numbers of units of an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Units {
    pub total: i64,
    pub ready: i64,
    pub failed: i64,
    pub on_hold: i64,
}

impl OrderHead {
    /// The state that follows from the units.
    pub fn state(&self, units: Units) -> OrderState {
        if self.cancelled_at.is_some() {
            OrderState::Cancelled
        } else if self.refused {
            OrderState::Refused
        } else if units.ready + units.failed < units.total {
            OrderState::Processing
        } else if units.failed == 0 {
            OrderState::Ready
        } else if units.ready == 0 {
            OrderState::Failed
        } else {
            OrderState::PartlyFailed
        }
    }
}

/// One unit with its delivery.
#[derive(Clone, Debug)]
pub struct Unit {
    pub topup_id: TopupId,
    pub external_order_id: String,
    pub option_id: OptionId,
    pub state: UnitState,
    /// What the provider said when it refused: its code and its message.
    pub refusal: Option<(String, String)>,
    pub iccid: Option<String>,
    pub profile: Option<Vec<u8>>,
    /// When its profile was stored.
    pub ready_at: Option<OffsetDateTime>,
    pub erased_at: Option<OffsetDateTime>,
    /// `pending`, `delivered`, `exhausted` or `no_endpoint`; none before the unit is ready.
    pub delivery: Option<String>,
    pub delivered_at: Option<OffsetDateTime>,
}

pub fn count(units: &[Unit]) -> Units {
    let of = |state| i64::try_from(units.iter().filter(|unit| unit.state == state).count()).unwrap_or(i64::MAX);
    Units {
        total: i64::try_from(units.len()).unwrap_or(i64::MAX),
        ready: of(UnitState::Ready),
        failed: of(UnitState::Failed),
        on_hold: of(UnitState::OnHold),
    }
}

/// Reads the units that match a condition.
macro_rules! units {
    ($connection:expr, $condition:literal $(, $argument:expr)*) => {
        sqlx::query!(
            r#"SELECT topup_id AS "topup_id!", external_order_id AS "external_order_id!", option_id AS "option_id!",
                      state AS "state!", refusal_status, refusal_message, iccid, profile, ready_at, erased_at, delivery,
                      delivered_at
               FROM partner_units WHERE "# + $condition
            $(, $argument)*
        )
        .fetch_all($connection)
        .await?
        .into_iter()
        .map(|row| {
            Ok(Unit {
                topup_id: row.topup_id.try_into()?,
                external_order_id: row.external_order_id,
                option_id: row.option_id.into(),
                state: row.state.parse().unwrap_or(UnitState::Processing),
                refusal: row.refusal_status.zip(row.refusal_message),
                iccid: row.iccid,
                profile: row.profile,
                ready_at: row.ready_at,
                erased_at: row.erased_at,
                delivery: row.delivery,
                delivered_at: row.delivered_at,
            })
        })
    };
}

/// The order with this external id: the one that stands, or else the newest refused one.
pub async fn order(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    external_order_id: &str,
) -> Result<Option<OrderHead>> {
    let found = sqlx::query_as!(
        OrderHead,
        r#"SELECT order_id, external_order_id, refused_at IS NOT NULL AS "refused!", cancelled_at, created_at
           FROM orders WHERE partner_id = $1 AND external_order_id = $2
           -- The order of the unique index, read backwards.
           ORDER BY refused_at DESC NULLS FIRST LIMIT 1"#,
        partner_id.uuid(),
        external_order_id,
    );
    Ok(found.fetch_optional(connection).await?)
}

/// The units of one of the partner's orders, in the order of the response.
pub async fn units(connection: &mut PgConnection, partner_id: PartnerId, order_id: OrderId) -> Result<Vec<Unit>> {
    units!(connection, "order_id = $2 AND partner_id = $1 ORDER BY position", partner_id.uuid(), order_id.uuid())
        .collect()
}

/// One of the partner's units.
pub async fn unit(connection: &mut PgConnection, partner_id: PartnerId, topup_id: &TopupId) -> Result<Option<Unit>> {
    let mut found = units!(connection, "topup_id = $2 AND partner_id = $1", partner_id.uuid(), topup_id.as_str());
    found.next().transpose()
}

/// A page of orders, the newest first.
#[derive(Clone, Copy, Debug, Default)]
pub struct OrderPage {
    /// Orders before this one; `None` begins with the newest.
    pub before: Option<OrderId>,
    /// Orders that were stored after this time.
    pub created_after: Option<OffsetDateTime>,
    pub limit: i64,
}

/// Lists a partner's orders with the numbers of their units. An order's id begins with a time shortly before its
/// creation, so one index serves the order, the cursor and the time.
pub async fn orders(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    page: &OrderPage,
) -> Result<Vec<(OrderHead, Units)>> {
    let query = sqlx::query!(
        r#"SELECT o.order_id, o.external_order_id, o.refused_at IS NOT NULL AS "refused!", o.cancelled_at, o.created_at,
                  units.total AS "total!", units.ready AS "ready!", units.failed AS "failed!",
                  units.on_hold AS "on_hold!"
           FROM (SELECT * FROM orders
                 -- Pairs, so that only the partner's index fits, however narrow the range is.
                 WHERE partner_id = $1 AND (partner_id, order_id) < ($1, $2) AND (partner_id, order_id) >= ($1, $3)
                   AND created_at > coalesce($4, '-infinity'::timestamptz)
                 ORDER BY order_id DESC LIMIT $5) o
           CROSS JOIN LATERAL (
               SELECT count(*) AS total, count(e.ready_at) AS ready,
                      count(*) FILTER (WHERE t.state = 'failed' AND e.ready_at IS NULL) AS failed,
                      count(*) FILTER (WHERE t.state = 'pending' AND p.state = 'parked' AND e.ready_at IS NULL)
                          AS on_hold
               FROM placements p
               JOIN topups t ON t.placement_id = p.placement_id
               LEFT JOIN esims e ON e.topup_id = t.topup_id
               WHERE p.order_id = o.order_id
           ) units
           ORDER BY o.order_id DESC"#,
        partner_id.uuid(),
        page.before.map_or(Uuid::max(), OrderId::uuid),
        page.created_after.map_or(Uuid::nil(), |at| first_id(at - SKEW)),
        page.created_after,
        page.limit,
    );
    let read = query.fetch_all(connection).await?.into_iter().map(|row| {
        let head = OrderHead {
            order_id: row.order_id.into(),
            external_order_id: row.external_order_id,
            refused: row.refused,
            cancelled_at: row.cancelled_at,
            created_at: row.created_at,
        };
        (head, Units { total: row.total, ready: row.ready, failed: row.failed, on_hold: row.on_hold })
    });
    Ok(read.collect())
}

/// The smallest `UUIDv7` of a time.
fn first_id(at: OffsetDateTime) -> Uuid {
    let milliseconds = u128::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or_default();
    Uuid::from_u128(milliseconds.min((1 << 48) - 1) << 80)
}

/// An option that a partner may order.
#[derive(Clone, Debug)]
pub struct OfferedOption {
    pub option_id: OptionId,
    pub name: String,
    /// The operator's description.
    pub details: Map<String, Value>,
}

/// The options that a partner of this environment may order, by id, after `after`. A live partner is offered the live
/// options of `providers`, a sandbox partner all of them.
pub async fn options(
    connection: &mut PgConnection,
    environment: Environment,
    providers: &[String],
    after: Option<OptionId>,
    limit: i64,
) -> Result<Vec<OfferedOption>> {
    let rows = sqlx::query!(
        r#"SELECT option_id, name, details::text AS "details!" FROM options
         WHERE enabled AND option_id > $1 AND ($2 OR (environment = 'live' AND provider = ANY ($3)))
         ORDER BY option_id LIMIT $4"#,
        after.map_or(Uuid::nil(), OptionId::uuid),
        environment == Environment::Sandbox,
        providers,
        limit,
    );
    let offered = rows.fetch_all(connection).await?.into_iter().map(|row| {
        Ok(OfferedOption { option_id: row.option_id.into(), name: row.name, details: options::details(&row.details)? })
    });
    offered.collect()
}

/// A partner's account, without secrets.
#[derive(Clone, Debug)]
pub struct Account {
    pub name: String,
    /// `sandbox` or `live`.
    pub environment: String,
    pub access_key: String,
    /// The access key before the last rotation, during the overlap.
    pub old_access_key: Option<String>,
    /// When the old keys end.
    pub old_keys_until: Option<OffsetDateTime>,
    pub created_at: OffsetDateTime,
}

pub async fn account(connection: &mut PgConnection, partner_id: PartnerId) -> Result<Option<Account>> {
    let account = sqlx::query_as!(
        Account,
        r#"SELECT name, environment, access_key, created_at,
                  CASE WHEN old_keys_until > now() THEN old_access_key END AS old_access_key,
                  CASE WHEN old_keys_until > now() THEN old_keys_until END AS old_keys_until
           FROM partners WHERE partner_id = $1"#,
        partner_id.uuid(),
    );
    Ok(account.fetch_optional(connection).await?)
}

/// The webhook endpoint.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Endpoint {
    pub url: Option<String>,
    /// The further events that are sent, such as `topup.failed`.
    pub events: Vec<String>,
    /// `open`, `blocked` (after failures), `probing` (one webhook tests it), `paused` (by us) or `no_url`.
    pub state: String,
    #[serde(with = "rfc3339::option")]
    pub blocked_until: Option<OffsetDateTime>,
    /// Consecutive failed attempts.
    pub failures: i32,
    /// Webhooks that wait for an attempt, counted up to 10,000.
    // Those within their first lease do not count.
    pub waiting: i64,
    /// Webhooks whose retries have ended, counted up to 10,000; redeliver them one by one.
    pub exhausted: i64,
    /// Until when the old secret signs, too.
    #[serde(with = "rfc3339::option")]
    pub old_secret_until: Option<OffsetDateTime>,
}

/// The URL of the endpoint, if there is one.
pub async fn webhook_url(connection: &mut PgConnection, partner_id: PartnerId) -> Result<Option<String>> {
    let url = sqlx::query_scalar!("SELECT webhook_url FROM partners WHERE partner_id = $1", partner_id.uuid());
    Ok(url.fetch_optional(connection).await?.flatten())
}

pub async fn endpoint(connection: &mut PgConnection, partner_id: PartnerId) -> Result<Option<Endpoint>> {
    let endpoint = sqlx::query_as!(
        Endpoint,
        r#"SELECT p.webhook_url AS url, p.webhook_events AS events,
                  CASE WHEN e.blocked_until = 'infinity' THEN 'paused'
                       WHEN p.webhook_url IS NULL THEN 'no_url'
                       WHEN e.probe IS NOT NULL OR e.blocked_until <= now() THEN 'probing'
                       WHEN e.blocked_until IS NOT NULL THEN 'blocked'
                       ELSE 'open' END AS "state!",
                  nullif(e.blocked_until, 'infinity') AS blocked_until,
                  coalesce(e.failures, 0) AS "failures!",
                  (SELECT count(*)
                   FROM (SELECT FROM work w
                         WHERE w.kind = 'deliver' AND w.provider = '' AND w.lane = '' AND w.partner_id = $1
                         LIMIT $2) waiting) AS "waiting!",
                  (SELECT count(*)
                   FROM (SELECT FROM held h WHERE h.partner_id = $1 AND h.state = 'exhausted'
                         LIMIT $2) exhausted) AS "exhausted!",
                  CASE WHEN p.old_webhook_secret_until > now() THEN p.old_webhook_secret_until END
                      AS old_secret_until
           FROM partners p LEFT JOIN endpoints e ON e.partner_id = p.partner_id
           WHERE p.partner_id = $1"#,
        partner_id.uuid(),
        MOST_COUNTED,
    );
    Ok(endpoint.fetch_optional(connection).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_id_of_a_time_precedes_every_id_of_it() {
        let at = OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap();
        let id = |seconds| Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, seconds, 0));
        assert!(first_id(at) <= id(1_700_000_000) && first_id(at) > id(1_699_999_999));
        assert_eq!(first_id(OffsetDateTime::from_unix_timestamp(-1).unwrap()), Uuid::nil());
    }

    #[test]
    fn the_state_of_an_order_follows_from_its_units() {
        let head = OrderHead {
            order_id: OrderId::new(),
            external_order_id: String::new(),
            refused: false,
            cancelled_at: None,
            created_at: OffsetDateTime::UNIX_EPOCH,
        };
        for (ready, failed, state) in [
            (0, 0, OrderState::Processing),
            (1, 1, OrderState::Processing),
            (3, 0, OrderState::Ready),
            (0, 3, OrderState::Failed),
            (2, 1, OrderState::PartlyFailed),
        ] {
            let units = Units { total: 3, ready, failed, on_hold: 0 };
            assert_eq!(head.state(units), state);
        }
    }
}
