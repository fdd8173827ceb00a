//! The list of orders as operators filter it: by partner, state, option, provider and time.
//!
//! Neither the state of an order nor its options and providers have an index, which would cost each
//! order a write. So orders are read in the order of their ids, newest first, in looks of a bounded
//! number of rows, and filtered here. A list that ends before its limit names the order at which it
//! goes on, so that nobody takes a part for the whole.

use std::collections::HashMap;

use domain::{OptionId, OrderId, PartnerId, Reason, reason::ReasonCode};
use pg::Result;
use serde::Serialize;
use sqlx::PgConnection;
use store::Unflushed;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{
    looking::{ListLook, ListPatience},
    orders::{self, UndeliveredCounts},
};
use crate::self_service::{OrderHead, OrderState, Units, first_id};

/// The id of an order is made shortly before PostgreSQL sets its time by another clock, which may
/// be behind. So ids only say where to look, and the time that is shown decides what fits.
const SKEW: time::Duration = time::Duration::minutes(5);

/// Which orders to list; `None` matches all.
#[derive(Clone, Copy, Debug, Default)]
pub struct OrderFilter<'a> {
    pub partner_id: Option<PartnerId>,
    pub state: Option<OrderState>,
    /// Only orders that did not get through: they failed in part or as a whole, were refused, have
    /// a purchase on hold, or a webhook that was given up.
    pub not_through: bool,
    /// Only orders with a unit of this option.
    pub option_id: Option<OptionId>,
    /// Only orders with a placement at this provider.
    pub provider: Option<&'a str>,
    /// The start of the range of the time of acceptance, inclusive.
    pub since: Option<OffsetDateTime>,
    /// The end of that range, exclusive.
    pub until: Option<OffsetDateTime>,
}

/// An order of the list.
#[derive(Clone, Debug, Serialize)]
pub struct OrderListEntry {
    pub order_id: OrderId,
    pub external_order_id: String,
    pub partner_id: PartnerId,
    /// The partner's name; `None` if the partner is erased.
    pub partner: Option<String>,
    pub state: OrderState,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    pub units: i64,
    pub ready: i64,
    pub failed: i64,
    pub on_hold: i64,
    pub providers: Vec<String>,
    pub options: Vec<OptionId>,
}

/// A part of the list.
#[derive(Clone, Debug, Serialize)]
pub struct OrderListPage {
    pub orders: Vec<OrderListEntry>,
    /// The order before which the list goes on; `None` at its end.
    pub next_cursor: Option<OrderId>,
    /// When the last order was accepted that was looked at, if the list ended there although fewer
    /// orders fit than were asked for and there are more.
    #[serde(skip)]
    pub reached: Option<OffsetDateTime>,
}

/// One look: the orders of a range of ids, newest first. The condition says which index is used.
macro_rules! look {
    ($connection:expr, $condition:literal, $($argument:expr),+) => {
        sqlx::query!(
            r#"SELECT o.order_id, o.external_order_id, o.partner_id, a.name AS "partner?",
                      o.refused_at IS NOT NULL AS "refused!", o.cancelled_at, o.created_at,
                      units.total AS "total!", units.ready AS "ready!", units.returned AS "returned!",
                      units.failed AS "failed!", units.on_hold AS "on_hold!", units.providers AS "providers?",
                      units.options AS "options?"
               -- A look has a thousand rows at most. That the planner knows this keeps it from sorting all orders of a
               -- partner, because it takes an unknown limit for a tenth of the rows.
               FROM (SELECT * FROM (SELECT * FROM orders WHERE "# + $condition + r#" ORDER BY order_id DESC LIMIT 1000) some_of_them
                     LIMIT $3) o
               LEFT JOIN partners a ON a.partner_id = o.partner_id
               CROSS JOIN LATERAL (
                   SELECT count(*) AS total, count(e.ready_at) - count(e.returned_at) AS ready,
                          count(e.returned_at) AS returned,
                          count(*) FILTER (WHERE t.state = 'failed' AND e.ready_at IS NULL
                                             AND NOT may_be_refused(o.order_id)) AS failed,
                          count(*) FILTER (WHERE t.state = 'pending' AND p.state = 'parked' AND e.ready_at IS NULL)
                              AS on_hold,
                          array_agg(DISTINCT p.provider) AS providers, array_agg(DISTINCT t.option_id) AS options
                   FROM placements p
                   JOIN topups t ON t.placement_id = p.placement_id
                   LEFT JOIN esims e ON e.topup_id = t.topup_id
                   WHERE p.order_id = o.order_id
               ) units
               ORDER BY o.order_id DESC"#,
            $($argument),+
        )
        .fetch_all($connection)
        .await?
        .into_iter()
        .map(|row| {
            let head = OrderHead {
                order_id: row.order_id.into(),
                external_order_id: row.external_order_id,
                refused: row.refused,
                cancelled_at: row.cancelled_at,
                created_at: row.created_at,
                // Nobody reads it here.
                metadata: None,
            };
            let units = Units {
                total: row.total,
                ready: row.ready,
                returned: row.returned,
                failed: row.failed,
                on_hold: row.on_hold,
            };
            OrderListEntry {
                order_id: head.order_id,
                partner_id: row.partner_id.into(),
                partner: row.partner,
                state: head.state(units),
                created_at: head.created_at,
                units: units.total,
                ready: units.ready + units.returned,
                failed: units.failed,
                on_hold: units.on_hold,
                providers: row.providers.unwrap_or_default(),
                options: row.options.unwrap_or_default().into_iter().map(OptionId::from).collect(),
                external_order_id: head.external_order_id,
            }
        })
        .collect::<Vec<_>>()
    };
}

impl OrderFilter<'_> {
    fn matches(&self, order: &OrderListEntry, given_up: bool) -> bool {
        let is_through = match order.state {
            OrderState::Failed | OrderState::PartlyFailed | OrderState::Refused => false,
            OrderState::Processing | OrderState::Ready | OrderState::Cancelled => {
                order.on_hold == 0 && !given_up
            }
        };
        self.state.is_none_or(|state| state == order.state)
            && !(self.not_through && is_through)
            && self
                .option_id
                .is_none_or(|option| order.options.contains(&option))
            && self
                .provider
                .is_none_or(|provider| order.providers.iter().any(|one| one == provider))
            && self.since.is_none_or(|since| order.created_at >= since)
            && self.until.is_none_or(|until| order.created_at < until)
    }
}

/// Lists at most `limit` orders that match, newest first, beginning behind the order `before`.
pub async fn list(
    connection: &mut PgConnection,
    filter: &OrderFilter<'_>,
    before: Option<OrderId>,
    limit: usize,
    patience: ListPatience,
) -> Result<Unflushed<OrderListPage>> {
    let page = matching(connection, filter, before, limit, patience).await?;
    Ok(Unflushed::of(page))
}

async fn matching(
    connection: &mut PgConnection,
    filter: &OrderFilter<'_>,
    before: Option<OrderId>,
    limit: usize,
    patience: ListPatience,
) -> Result<OrderListPage> {
    let oldest = filter
        .since
        .map_or(Uuid::nil(), |since| first_id(since - SKEW));
    let newest = filter
        .until
        .map_or(Uuid::max(), |until| first_id(until + SKEW));
    let mut before = before.map_or(newest, |before| before.uuid().min(newest));
    let mut found = Vec::new();
    let mut reached = None;
    let mut looking = ListLook::new(patience, limit);
    while let Some(size) = looking.next() {
        let at_most = i64::try_from(size).unwrap_or(i64::MAX);
        let read = match filter.partner_id {
            Some(partner_id) => look!(
                &mut *connection,
                "partner_id = $4 AND (partner_id, order_id) < ($4, $1) AND (partner_id, order_id) >= ($4, $2)",
                before,
                oldest,
                at_most,
                partner_id.uuid()
            ),
            None => look!(
                &mut *connection,
                "order_id < $1 AND order_id >= $2",
                before,
                oldest,
                at_most
            ),
        };
        let mut undelivered = HashMap::new();
        if filter.not_through {
            let ids: Vec<Uuid> = read.iter().map(|one| one.order_id.uuid()).collect();
            undelivered = orders::undelivered(&mut *connection, &ids).await?;
        }
        let given_up = |order: &OrderListEntry| {
            let webhooks = undelivered.get(&order.order_id.uuid());
            webhooks.is_some_and(|webhooks: &UndeliveredCounts| webhooks.given_up > 0)
        };
        let is_last = read.len() < size;
        let mut left = read.len();
        for order in read {
            left -= 1;
            before = order.order_id.uuid();
            reached = Some(order.created_at);
            if filter.matches(&order, given_up(&order)) {
                found.push(order);
            }
            if found.len() == limit {
                let has_more = left > 0 || !is_last;
                return Ok(OrderListPage {
                    orders: found,
                    next_cursor: has_more.then(|| before.into()),
                    reached: None,
                });
            }
        }
        if is_last {
            return Ok(OrderListPage {
                orders: found,
                next_cursor: None,
                reached: None,
            });
        }
    }
    Ok(OrderListPage {
        orders: found,
        next_cursor: Some(before.into()),
        reached,
    })
}

/// These orders, the newest first. One that does not exist is left out.
pub async fn by_ids(
    connection: &mut PgConnection,
    ids: &[Uuid],
) -> Result<Unflushed<Vec<OrderListEntry>>> {
    let at_most = i64::try_from(ids.len()).unwrap_or(i64::MAX);
    let found = look!(
        connection,
        "order_id = ANY ($1) AND order_id >= $2",
        ids,
        Uuid::nil(),
        at_most
    );
    Ok(Unflushed::of(found))
}

/// What an order is for, and since when all of it is ready.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// The names of its products, each with its number of units.
    pub products: Vec<(String, i64)>,
    /// `None` while a unit is not ready.
    pub ready_at: Option<OffsetDateTime>,
    /// Why units that are not ready left the normal path.
    pub codes: Vec<ReasonCode>,
}

/// What these orders are for, by order.
pub async fn contents(
    connection: &mut PgConnection,
    orders: &[Uuid],
) -> Result<HashMap<Uuid, Contents>> {
    let query = sqlx::query!(
        r#"SELECT p.order_id, coalesce(o.name, t.provider_option_id) AS "name!", count(*) AS "units!",
                  bool_and(e.ready_at IS NOT NULL) AS "ready!", max(e.ready_at) AS ready_at,
                  array_agg(DISTINCT coalesce(t.reason, p.reason))
                      FILTER (WHERE e.ready_at IS NULL AND coalesce(t.reason, p.reason) IS NOT NULL) AS reasons
           FROM placements p
           JOIN topups t ON t.placement_id = p.placement_id
           LEFT JOIN esims e ON e.topup_id = t.topup_id
           LEFT JOIN options o ON o.option_id = t.option_id
           WHERE p.order_id = ANY ($1)
           GROUP BY 1, 2 ORDER BY 1, 2"#,
        orders,
    );
    let mut found: HashMap<Uuid, (bool, Contents)> = HashMap::new();
    for row in query.fetch_all(connection).await? {
        let (ready, contents) = found
            .entry(row.order_id)
            .or_insert((true, Contents::default()));
        *ready &= row.ready;
        contents.ready_at = contents.ready_at.max(row.ready_at);
        contents.products.push((row.name, row.units));
        let reasons = row.reasons.into_iter().flatten();
        let codes = reasons.map(|reason| Reason::read(&reason).code);
        contents.codes.extend(codes);
    }
    let found = found.into_iter().map(|(order, (ready, contents))| {
        let ready_at = contents.ready_at.filter(|_| ready);
        (
            order,
            Contents {
                ready_at,
                ..contents
            },
        )
    });
    Ok(found.collect())
}

/// An eSIM that failed for good.
#[derive(Clone, Debug)]
pub struct FailedUnit {
    pub order_id: Uuid,
    pub topup_id: String,
    /// The name of its option.
    pub option: String,
    pub code: Option<ReasonCode>,
    /// When it failed; the time of the last attempt of its purchase if no other one is stored.
    pub failed_at: Option<OffsetDateTime>,
}

/// The failed eSIMs of these orders, those of the newest order first.
pub async fn failed_units(
    connection: &mut PgConnection,
    orders: &[Uuid],
) -> Result<Vec<FailedUnit>> {
    let query = sqlx::query!(
        r#"SELECT p.order_id, t.topup_id,
                  coalesce((SELECT name FROM options o WHERE o.option_id = t.option_id), t.provider_option_id) AS "option!",
                  coalesce(t.reason, p.reason) AS reason,
                  coalesce((SELECT max(h.at) FROM history h
                            WHERE h.order_id = p.order_id AND h.placement_id = p.placement_id
                              AND h.kind IN ('unit_failed', 'rejected')),
                           p.attempted_at) AS failed_at
           FROM placements p
           JOIN topups t ON t.placement_id = p.placement_id
           LEFT JOIN esims e ON e.topup_id = t.topup_id
           WHERE p.order_id = ANY ($1) AND t.state = 'failed' AND e.ready_at IS NULL AND NOT may_be_refused(p.order_id)
           ORDER BY p.order_id DESC, t.topup_id"#,
        orders,
    );
    let rows = query.fetch_all(connection).await?.into_iter();
    let units = rows.map(|row| FailedUnit {
        order_id: row.order_id,
        topup_id: row.topup_id,
        option: row.option,
        code: row.reason.map(|reason| Reason::read(&reason).code),
        failed_at: row.failed_at,
    });
    Ok(units.collect())
}
