//! A partner's orders and units, with their states as partners see them. They are fewer than the
//! states of placements and topups, because a partner need not know how a purchase works.

use accounts::prices::currency;
use domain::{
    Agreed, Amount, KnownIccid, MaybeStored, Metadata, OrderId, PartnerId, StoredAgreed, TopupId,
    standing::{self, DeliveryState, Rows, ShownState},
};
use pg::Result;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use store::Unflushed;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// The id of an order is made by ingress, shortly before PostgreSQL sets the time of its row by
/// another clock. The two times differ by less than this.
const SKEW: time::Duration = time::Duration::minutes(5);

/// The state of a topup: `processing` (it is being bought, or its eSIM is awaited), `on_hold` (it is not
/// certain what the provider sold, so we look into it), `ready`, `returned` (you have given the eSIM
/// back) or `failed` (there will be no eSIM).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = TopupState)]
pub enum PartnerUnitState {
    /// It is being bought, or its eSIM is awaited.
    Processing,
    /// It is not certain what the provider sold, or the provider does not give us the eSIM. We look
    /// into it; it becomes ready or failed.
    OnHold,
    /// The eSIM is ready.
    Ready,
    /// You have given the eSIM back, so it can no longer be installed.
    Returned,
    /// There will be no eSIM. In rare cases it becomes ready after all, because the provider turns
    /// out to have sold it.
    Failed,
}

impl From<ShownState> for PartnerUnitState {
    fn from(shown: ShownState) -> Self {
        match shown {
            ShownState::Processing => Self::Processing,
            ShownState::OnHold => Self::OnHold,
            ShownState::Ready => Self::Ready,
            ShownState::Returned => Self::Returned,
            ShownState::Failed => Self::Failed,
        }
    }
}

impl PartnerUnitState {
    /// What the rows of a unit are shown as, by the same function as the sentence and the pages of
    /// operators.
    pub(super) fn of(rows: Rows) -> Self {
        standing::UnitState::of(rows).shown().into()
    }
}

/// The state of an order: `processing` (at least one topup is `processing` or `on_hold`), `ready` (all
/// are ready, or were given back), `partly_failed` (some are ready, the others failed), `failed` (all
/// failed), `refused` (it was answered with 422) or `cancelled`. Of the last two nothing was bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OrderState {
    /// At least one topup is `processing` or `on_hold`.
    Processing,
    /// All topups are ready. Those that you have given back count as ready.
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
    /// The order was answered with 422 or cancelled.
    pub refused: bool,
    pub cancelled_at: Option<OffsetDateTime>,
    pub created_at: OffsetDateTime,
    /// What the partner keeps with it, as it is stored.
    pub metadata: Option<String>,
}

/// How many units an order has, and how many of them are ready, given back, failed or on hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Units {
    pub total: i64,
    pub ready: i64,
    pub returned: i64,
    pub failed: i64,
    pub on_hold: i64,
}

impl OrderHead {
    /// The state of the order, which follows from the numbers of its units. Units that are neither
    /// ready nor failed keep it `processing`. A unit that was given back has been ready, and the
    /// order stays what it was.
    pub fn state(&self, units: Units) -> OrderState {
        let ready = units.ready + units.returned;
        if self.cancelled_at.is_some() {
            OrderState::Cancelled
        } else if self.refused {
            OrderState::Refused
        } else if ready + units.failed < units.total {
            OrderState::Processing
        } else if units.failed == 0 {
            OrderState::Ready
        } else if ready == 0 {
            OrderState::Failed
        } else {
            OrderState::PartlyFailed
        }
    }
}

/// One unit with its delivery.
#[derive(Clone, Debug)]
pub struct PartnerUnit {
    pub topup_id: TopupId,
    pub external_order_id: String,
    pub agreed: Agreed,
    /// What the partner keeps with its item, and with its order.
    pub metadata: Option<Metadata>,
    pub order_metadata: Option<Metadata>,
    pub state: PartnerUnitState,
    /// The code and the message with which the provider rejected the purchase.
    pub refusal: Option<(String, String)>,
    pub iccid: Option<String>,
    pub profile: Option<Vec<u8>>,
    /// When its profile was stored.
    pub ready_at: Option<OffsetDateTime>,
    pub erased_at: Option<OffsetDateTime>,
    pub returned_at: Option<OffsetDateTime>,
    /// The state of its delivery; none before the unit is ready.
    pub delivery: MaybeStored<DeliveryState>,
    pub delivered_at: Option<OffsetDateTime>,
    /// The number of the page to install it from, if its partner wants the address in look-ups and
    /// has not ended it. A unit that is not ready has none.
    pub install_page: Option<i32>,
}

pub fn count(units: &[PartnerUnit]) -> Units {
    let of = |state| {
        i64::try_from(units.iter().filter(|unit| unit.state == state).count()).unwrap_or(i64::MAX)
    };
    Units {
        total: i64::try_from(units.len()).unwrap_or(i64::MAX),
        ready: of(PartnerUnitState::Ready),
        returned: of(PartnerUnitState::Returned),
        failed: of(PartnerUnitState::Failed),
        on_hold: of(PartnerUnitState::OnHold),
    }
}

/// What all of these units cost; `None` if they have no prices. An order has one currency.
pub fn price(units: &[PartnerUnit]) -> Option<Amount> {
    let prices = units.iter().filter_map(|unit| unit.agreed.price);
    prices.reduce(|sum, price| Amount {
        minor: sum.minor.saturating_add(price.minor),
        ..sum
    })
}

/// Reads the units that match a condition, which must name the partner.
macro_rules! units {
    ($connection:expr, $condition:literal $(, $argument:expr)*) => {
        sqlx::query!(
            r#"SELECT topup_id AS "topup_id!", external_order_id AS "external_order_id!", option_id AS "option_id!",
                      terms, metadata, order_metadata, has_failed AS "has_failed!", is_parked AS "is_parked!", refusal_status,
                      refusal_message, iccid, profile, ready_at, erased_at, returned_at, delivery, delivered_at,
                      (SELECT coalesce(e.install_page, 1) FROM esims e, partners s
                       WHERE e.topup_id = partner_units.topup_id AND s.partner_id = partner_units.partner_id
                         AND s.install_urls AND e.ready_at IS NOT NULL AND e.erased_at IS NULL) AS install_page
               FROM partner_units WHERE "# + $condition
            $(, $argument)*
        )
        .fetch_all($connection)
        .await?
        .into_iter()
        .map(|row| {
            let agreed = StoredAgreed {
                option_id: row.option_id.into(),
                terms: row.terms,
            };
            Ok(PartnerUnit {
                topup_id: row.topup_id.try_into()?,
                external_order_id: row.external_order_id,
                agreed: agreed.read()?,
                metadata: row.metadata.as_deref().map(Metadata::read).transpose()?,
                order_metadata: row.order_metadata.as_deref().map(Metadata::read).transpose()?,
                state: PartnerUnitState::of(Rows {
                    is_ready: row.ready_at.is_some(),
                    is_returned: row.returned_at.is_some(),
                    has_failed: row.has_failed,
                    is_parked: row.is_parked,
                }),
                refusal: row.refusal_status.zip(row.refusal_message),
                iccid: row.iccid,
                profile: row.profile,
                ready_at: row.ready_at,
                erased_at: row.erased_at,
                returned_at: row.returned_at,
                delivery: row.delivery.into(),
                delivered_at: row.delivered_at,
                install_page: row.install_page.filter(|number| *number > 0),
            })
        })
    };
}

/// The order of the partner with this external id: the one that stands, or else the newest refused
/// one. `only` names one of several that had the same id.
pub async fn order(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    external_order_id: &str,
    only: Option<OrderId>,
) -> Result<Unflushed<Option<OrderHead>>> {
    let found = sqlx::query_as!(
        OrderHead,
        r#"SELECT order_id, external_order_id, refused_at IS NOT NULL AS "refused!", cancelled_at, created_at, metadata
           FROM orders WHERE partner_id = $1 AND external_order_id = $2 AND ($3::uuid IS NULL OR order_id = $3)
           -- The order of the unique index, read backwards.
           ORDER BY refused_at DESC NULLS FIRST LIMIT 1"#,
        partner_id.uuid(),
        external_order_id,
        only.map(OrderId::uuid),
    );
    Ok(Unflushed::of(found.fetch_optional(connection).await?))
}

/// The units of one of the partner's orders, in the order of the response.
pub async fn units(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    order_id: OrderId,
) -> Result<Unflushed<Vec<PartnerUnit>>> {
    let units: Result<Vec<PartnerUnit>> = units!(
        connection,
        "order_id = $2 AND partner_id = $1 ORDER BY position",
        partner_id.uuid(),
        order_id.uuid()
    )
    .collect();
    Ok(Unflushed::of(units?))
}

/// One of the partner's units.
pub async fn unit(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_id: &TopupId,
) -> Result<Unflushed<Option<PartnerUnit>>> {
    let mut found = units!(
        connection,
        "topup_id = $2 AND partner_id = $1",
        partner_id.uuid(),
        topup_id.as_str()
    );
    let found: Option<Result<PartnerUnit>> = found.next();
    Ok(Unflushed::of(found.transpose()?))
}

/// The maximum number of topups that a look-up by the number of an eSIM returns.
pub const MOST_WITH_ICCID: i64 = 20;
/// The newest topups of a partner, among which the last six digits of a number are looked for,
/// because no index finds the end of a text.
pub const NEWEST_WITH_ICCID: i64 = 5_000;

/// The partner's units whose eSIMs have this number, the newest first.
pub async fn units_with_iccid(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    iccid: &KnownIccid,
) -> Result<Unflushed<Vec<PartnerUnit>>> {
    let topup_ids = match iccid {
        KnownIccid::Whole(forms) => with_whole_iccid(&mut *connection, partner_id, forms).await?,
        KnownIccid::End(end) => with_end_of_iccid(&mut *connection, partner_id, end).await?,
    };
    let units = units_of(connection, partner_id, &topup_ids).await?;
    Ok(Unflushed::of(units))
}

/// Those of the partner's units that have these ids, the newest first.
pub(super) async fn units_of(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    topup_ids: &[String],
) -> Result<Vec<PartnerUnit>> {
    units!(
        connection,
        "topup_id = ANY ($2) AND partner_id = $1 ORDER BY topup_id DESC",
        partner_id.uuid(),
        topup_ids
    )
    .collect()
}

async fn with_whole_iccid(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    forms: &[String],
) -> Result<Vec<String>> {
    let query = sqlx::query_scalar!(
        "SELECT e.topup_id FROM esims e
         JOIN topups t ON t.topup_id = e.topup_id
         JOIN placements p ON p.placement_id = t.placement_id
         WHERE e.iccid = ANY ($2) AND p.partner_id = $1 ORDER BY e.topup_id DESC LIMIT $3",
        partner_id.uuid(),
        forms,
        MOST_WITH_ICCID,
    );
    Ok(query.fetch_all(connection).await?)
}

async fn with_end_of_iccid(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    end: &str,
) -> Result<Vec<String>> {
    // Each eSIM is looked up by itself, because for many at once the planner would read the table.
    let query = sqlx::query_scalar!(
        "SELECT e.topup_id
         FROM (SELECT t.topup_id
               FROM (SELECT order_id FROM orders WHERE partner_id = $1 ORDER BY order_id DESC LIMIT $4) o
               CROSS JOIN LATERAL (SELECT placement_id FROM placements p WHERE p.order_id = o.order_id LIMIT $4) p
               CROSS JOIN LATERAL (SELECT topup_id FROM topups t WHERE t.placement_id = p.placement_id LIMIT $4) t
               LIMIT $4) newest
         CROSS JOIN LATERAL (SELECT topup_id FROM esims e
                             WHERE e.topup_id = newest.topup_id AND right(e.iccid, 6) = $2 LIMIT 1) e
         ORDER BY e.topup_id DESC LIMIT $3",
        partner_id.uuid(),
        end,
        MOST_WITH_ICCID,
        NEWEST_WITH_ICCID,
    );
    Ok(query.fetch_all(connection).await?)
}

/// A page of orders, the newest first.
#[derive(Clone, Copy, Debug, Default)]
pub struct OrderPage {
    /// The order after which the page begins; only older ones follow. `None` begins with the
    /// newest.
    pub before: Option<OrderId>,
    /// Only orders that were stored after this time.
    pub created_after: Option<OffsetDateTime>,
    pub limit: i64,
}

/// Lists a partner's orders with the numbers of their units and what these cost, newest first. The
/// id of an order begins with a time shortly before its creation. So one index, that of the partner
/// and the id, serves the order of the list, the cursor and the time.
pub async fn orders(
    connection: &mut PgConnection,
    partner_id: PartnerId,
    page: &OrderPage,
) -> Result<Unflushed<Vec<(OrderHead, Units, Option<Amount>)>>> {
    let query = sqlx::query!(
        r#"SELECT o.order_id, o.external_order_id, o.refused_at IS NOT NULL AS "refused!", o.cancelled_at, o.created_at, o.metadata,
                  units.total AS "total!", units.ready AS "ready!", units.returned AS "returned!", units.failed AS "failed!",
                  units.on_hold AS "on_hold!", units.price, units.currency
           FROM (SELECT * FROM orders
                 -- Pairs, so that only the partner's index fits, however narrow the range is.
                 WHERE partner_id = $1 AND (partner_id, order_id) < ($1, $2) AND (partner_id, order_id) >= ($1, $3)
                   AND created_at > coalesce($4, '-infinity'::timestamptz)
                 ORDER BY order_id DESC LIMIT $5) o
           CROSS JOIN LATERAL (
               SELECT count(*) AS total, count(e.ready_at) - count(e.returned_at) AS ready,
                      count(e.returned_at) AS returned,
                      count(*) FILTER (WHERE t.state = 'failed' AND e.ready_at IS NULL AND NOT may_be_refused(o.order_id))
                          AS failed,
                      count(*) FILTER (WHERE t.state = 'pending' AND p.state = 'parked' AND e.ready_at IS NULL)
                          AS on_hold,
                      sum((t.terms::jsonb->'price'->>'amount')::bigint)::bigint AS price,
                      min(t.terms::jsonb->'price'->>'currency') AS currency
               FROM placements p
               JOIN topups t ON t.placement_id = p.placement_id
               LEFT JOIN esims e ON e.topup_id = t.topup_id
               WHERE p.order_id = o.order_id
           ) units
           ORDER BY o.order_id DESC"#,
        partner_id.uuid(),
        page.before.map_or(Uuid::max(), OrderId::uuid),
        page.created_after
            .map_or(Uuid::nil(), |at| first_id(at - SKEW)),
        page.created_after,
        page.limit,
    );
    let read = query.fetch_all(connection).await?.into_iter().map(|row| {
        let currency = row.currency.as_deref().map(currency).transpose()?;
        let price = row.price.zip(currency);
        let head = OrderHead {
            order_id: row.order_id.into(),
            external_order_id: row.external_order_id,
            refused: row.refused,
            cancelled_at: row.cancelled_at,
            created_at: row.created_at,
            metadata: row.metadata,
        };
        Ok((
            head,
            Units {
                total: row.total,
                ready: row.ready,
                returned: row.returned,
                failed: row.failed,
                on_hold: row.on_hold,
            },
            price.map(|(minor, currency)| Amount { minor, currency }),
        ))
    });
    let read: Result<Vec<(OrderHead, Units, Option<Amount>)>> = read.collect();
    Ok(Unflushed::of(read?))
}

/// The smallest `UUIDv7` of a time.
pub fn first_id(at: OffsetDateTime) -> Uuid {
    let milliseconds = u128::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or_default();
    Uuid::from_u128(milliseconds.min((1 << 48) - 1) << 80)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_id_of_a_time_precedes_every_id_of_it() {
        let at = OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap();
        let id = |seconds| Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, seconds, 0));
        assert!(first_id(at) <= id(1_700_000_000) && first_id(at) > id(1_699_999_999));
        assert_eq!(
            first_id(OffsetDateTime::from_unix_timestamp(-1).unwrap()),
            Uuid::nil()
        );
    }

    #[test]
    fn the_state_of_an_order_follows_from_its_units() {
        let head = OrderHead {
            order_id: OrderId::new(),
            external_order_id: String::new(),
            refused: false,
            cancelled_at: None,
            metadata: None,
            created_at: OffsetDateTime::UNIX_EPOCH,
        };
        for (ready, returned, failed, state) in [
            (0, 0, 0, OrderState::Processing),
            (1, 0, 1, OrderState::Processing),
            (3, 0, 0, OrderState::Ready),
            (1, 2, 0, OrderState::Ready),
            (0, 3, 0, OrderState::Ready),
            (0, 0, 3, OrderState::Failed),
            (2, 0, 1, OrderState::PartlyFailed),
            (0, 2, 1, OrderState::PartlyFailed),
        ] {
            let units = Units {
                total: 3,
                ready,
                returned,
                failed,
                on_hold: 0,
            };
            assert_eq!(head.state(units), state);
        }
    }
}
