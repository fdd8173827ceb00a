//! Orders: they are looked up, listed and cancelled.
//!
//! Looking an order up is how a partner finds out the outcome of a request without an answer, and
//! how it gets an eSIM whose webhook was lost. Called as handlers by [`super::router`]; what a
//! state means is decided in `domain::standing`.

use std::{str::FromStr, time::Duration};

use accounts::profile::Profile;
use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use desk::{
    archived::is_archived,
    self_service::{self, OrderHead, OrderPage, OrderState, PartnerUnit, Units},
};
use domain::{Amount, OrderId, product::Currency};
use serde::Serialize;
use serde_json::value::RawValue;
use store::{Unflushed, orders::OrderCancellation};
use time::{OffsetDateTime, serde::rfc3339};
use utoipa::ToSchema;

use super::{
    query::{Query, cursor},
    session::{PathId, Search, SelfService, Session, json, or_archived},
    topups::{self, Topup},
};
use crate::http::{
    codes::ErrorCode,
    error::{ApiError, RequestFault},
    faults::MAX_EXTERNAL_ID,
};

/// The number of orders that are read for one page with a filter. The state of an order is computed
/// from its topups and so cannot be filtered by an index; this bounds the work of a request that
/// finds few orders.
const LOOKED_AT: i64 = 200;

/// The number of topups of an order in each state.
#[derive(Serialize, ToSchema)]
struct Counts {
    total: i64,
    processing: i64,
    on_hold: i64,
    ready: i64,
    returned: i64,
    failed: i64,
}

impl From<Units> for Counts {
    fn from(units: Units) -> Self {
        let Units {
            total,
            on_hold,
            ready,
            returned,
            failed,
        } = units;
        Self {
            total,
            processing: total - ready - returned - failed - on_hold,
            on_hold,
            ready,
            returned,
            failed,
        }
    }
}

/// An order without its topups.
#[derive(Serialize, ToSchema)]
#[schema(as = Summary)]
struct OrderWithoutTopups<'a> {
    #[schema(example = "A-1042")]
    external_order_id: &'a str,
    /// Our id of the order. It is the one in the message `API connection error (Order ID: …)`.
    #[schema(value_type = Uuid)]
    order_id: OrderId,
    state: OrderState,
    #[serde(with = "rfc3339")]
    created_at: OffsetDateTime,
    #[serde(with = "rfc3339::option")]
    cancelled_at: Option<OffsetDateTime>,
    topup_counts: Counts,
    /// What its topups cost together, in minor units of `currency`, whatever became of them. Left
    /// out if we had agreed no prices with you.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 2500)]
    price: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "USD")]
    currency: Option<Currency>,
    /// What you keep with it; left out if that is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<HashMap<String, String>>)]
    metadata: Option<Box<RawValue>>,
}

impl<'a> OrderWithoutTopups<'a> {
    fn new(head: &'a OrderHead, units: Units, price: Option<Amount>) -> Self {
        Self {
            external_order_id: &head.external_order_id,
            order_id: head.order_id,
            state: head.state(units),
            created_at: head.created_at,
            cancelled_at: head.cancelled_at,
            topup_counts: units.into(),
            price: price.map(|price| price.minor),
            currency: price.map(|price| price.currency),
            metadata: head
                .metadata
                .clone()
                .and_then(|text| RawValue::from_string(text).ok()),
        }
    }
}

/// An order with its topups, in the order of the answer of create-order.
#[derive(Serialize, ToSchema)]
#[schema(as = Order)]
struct OrderResponse<'a> {
    #[serde(flatten)]
    summary: OrderWithoutTopups<'a>,
    topups: Vec<Topup<'a>>,
}

/// An order of a list.
#[derive(Serialize, ToSchema)]
struct ListedOrder<'a> {
    #[serde(flatten)]
    summary: OrderWithoutTopups<'a>,
    /// Its topups, only if the request names an `external_order_id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    topups: Option<Vec<Topup<'a>>>,
}

/// A page of orders, the newest first.
#[derive(Serialize, ToSchema)]
#[schema(as = Orders)]
struct OrdersResponse<'a> {
    orders: Vec<ListedOrder<'a>>,
    /// The cursor of the next page; null after the last one.
    next_cursor: Option<String>,
}

/// An `external_order_id` that an order can have. Any other text gets a 404 without a query.
pub(super) struct ExternalId(String);

impl FromStr for ExternalId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let fits = !text.contains('\0') && text.chars().count() <= MAX_EXTERNAL_ID;
        fits.then(|| Self(text.to_owned())).ok_or(())
    }
}

/// An order with its units.
struct Whole {
    head: OrderHead,
    units: Vec<PartnerUnit>,
}

/// Looks an order up with its units, on one snapshot. `only` names one of several orders that had
/// the same external id.
async fn find(
    session: &Session,
    external_order_id: &str,
    only: Option<OrderId>,
) -> Result<Whole, ApiError> {
    let reading = session.read(async |connection, partner| {
        let head = self_service::order(connection, partner, external_order_id, only).await?;
        let whole = async |head: Option<OrderHead>| {
            let Some(head) = head else {
                return Ok(Unflushed::of(None));
            };
            let units = self_service::units(connection, partner, head.order_id).await?;
            Ok(units.map(|units| Some(Whole { head, units })))
        };
        let found = head.then(whole).await?;
        or_archived(found, is_archived(connection, partner, external_order_id)).await
    });
    Ok(reading.await??)
}

impl Whole {
    /// The decrypted profiles of the units, as [`Self::topups`] takes them.
    fn profiles(&self, session: &Session) -> Result<Vec<Option<Profile>>, ApiError> {
        let profiles = self.units.iter().map(|unit| topups::profile(session, unit));
        profiles.collect()
    }

    fn topups<'a>(
        &'a self,
        profiles: &'a [Option<Profile>],
        service: &SelfService,
    ) -> Result<Vec<Topup<'a>>, ApiError> {
        let both = self.units.iter().zip(profiles);
        both.map(|(unit, profile)| Topup::new(unit, profile.as_ref(), service))
            .collect()
    }

    fn summary(&self) -> OrderWithoutTopups<'_> {
        let price = self_service::price(&self.units);
        OrderWithoutTopups::new(&self.head, self_service::count(&self.units), price)
    }

    fn shown(&self, session: &Session) -> Result<Response, ApiError> {
        let profiles = self.profiles(session)?;
        let order = OrderResponse {
            summary: self.summary(),
            topups: self.topups(&profiles, session.service())?,
        };
        Ok(json(StatusCode::OK, &order))
    }
}

/// Look up an order
///
/// Shows the state of the order and of each topup, with the eSIM once it is ready. Use it when
/// create-order got no answer, to see whether the order is stored, and when a webhook is missing,
/// to get the eSIM. If several orders had this id, the one that stands is shown, or else the newest
/// one that was refused or cancelled. An order that we have archived is a 410 for a year, unless we
/// agreed on another time, and then a 404.
#[utoipa::path(get, path = "/orders/{external_order_id}", operation_id = "show_order", tag = "Orders",
    params(("external_order_id" = String, Path, description = "Your own id of the order")),
    responses((status = 200, description = "The order", body = OrderResponse), (status = 404, response = crate::http::described::NotFound), (status = 410, response = crate::http::described::Archived)))]
pub(super) async fn show(
    session: Session,
    PathId(id): PathId<ExternalId>,
) -> Result<Response, ApiError> {
    let order = find(&session, &id.0, None).await?;
    order.shown(&session)
}

/// Cancel an order
///
/// Cancels an order that still waits and of which certainly nothing was bought, for example because
/// the provider is down. Its `external_order_id` is then free again. Repeating the request returns
/// the cancelled order, unless you have ordered with the same id again: then it cancels the new
/// order.
#[utoipa::path(delete, path = "/orders/{external_order_id}", operation_id = "cancel_order", tag = "Orders",
    params(("external_order_id" = String, Path, description = "Your own id of the order")),
    responses(
        (status = 200, description = "The cancelled order. Nothing of it is bought, now or later", body = OrderResponse),
        (status = 404, response = crate::http::described::NotFound),
        (status = 410, response = crate::http::described::Archived),
        (status = 409, description = "The order cannot be cancelled: it is bought or may be (`order_not_waiting`), its create-order request may still be unanswered (`order_not_answered`; `Retry-After` says when that is over), or it was refused (`order_refused`)", body = crate::http::described::Message)))]
pub(super) async fn cancel(
    session: Session,
    PathId(id): PathId<ExternalId>,
) -> Result<Response, ApiError> {
    let cancel = async |answered: Option<OrderId>| {
        session
            .change(async |connection, partner| {
                store::orders::cancel(connection, partner, &id.0, answered).await
            })
            .await
    };
    let mut cancelled = cancel(None).await?;
    // PostgreSQL does not know yet whether the order is answered, but a process may.
    if let OrderCancellation::Undecided { order_id, .. } = cancelled
        && session.service().left_answers.has_left(order_id).await
    {
        cancelled = cancel(Some(order_id)).await?;
    }
    match cancelled {
        // The id is free now, so another order may have it by the time the order is shown.
        OrderCancellation::Done(order_id) | OrderCancellation::Before(order_id) => {
            let order = find(&session, &id.0, Some(order_id)).await?;
            order.shown(&session)
        }
        OrderCancellation::Undecided { rest, .. } => {
            Ok(retry_after(ErrorCode::OrderNotAnswered, rest))
        }
        OrderCancellation::TooLate => Err(ErrorCode::OrderNotWaiting.into()),
        OrderCancellation::Refused => Err(ErrorCode::OrderRefused.into()),
        OrderCancellation::Archived => Err(ErrorCode::OrderArchived.into()),
        OrderCancellation::Unknown => Err(ErrorCode::NotFound.into()),
    }
}

/// An error with the seconds after which to send the request again, rounded up.
pub(super) fn retry_after(code: ErrorCode, rest: Duration) -> Response {
    let seconds = (rest.as_secs() + u64::from(rest.subsec_nanos() > 0)).max(1);
    let mut answer = ApiError::from(code).into_response();
    answer
        .headers_mut()
        .insert(header::RETRY_AFTER, seconds.into());
    answer
}

/// List orders
///
/// The newest come first. With `state`, a page may hold fewer orders than `limit`, or none at all,
/// although it is not the last one. So continue until `next_cursor` is null. Orders that we have
/// archived are not in the list.
///
/// With `external_order_id` the list has at most one order: the one that the look-up of this id
/// shows, with its topups. Unlike the path of the look-up, a query can name every id, also `.` and
/// `..`, which clients and proxies remove from a path, and ids with `/`.
#[utoipa::path(get, path = "/orders", operation_id = "list_orders", tag = "Orders",
    params(
        ("created_after" = Option<String>, Query, format = DateTime, description = "Only orders that were stored after this RFC 3339 time"),
        ("external_order_id" = Option<String>, Query, description = "Only the order with this id of yours, with its topups. An archived order gets a 410"),
        ("state" = Option<OrderState>, Query, description = "Only orders that are in this state"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page; leave it out for the first page"),
        ("limit" = Option<u16>, Query, minimum = 1, maximum = 100, description = "Maximum number of orders of the page, from 1 to 100; the default is 20")),
    responses(
        (status = 200, description = "A page of orders", body = OrdersResponse),
        (status = 410, response = crate::http::described::Archived),
        (status = 422, response = crate::http::described::Unprocessable)))]
pub(super) async fn list(Search(session, uri): Search) -> Result<Response, ApiError> {
    let mut query = Query::of(&uri);
    let limit = query.limit();
    let before = query.cursor();
    let created_after = query.created_after();
    let state = query.read(
        "state",
        RequestFault::new(ErrorCode::StateInvalid),
        |text| serde_json::from_value::<OrderState>(text.into()).ok(),
    );
    let external_order_id = query.external_order_id();
    query.check()?;
    if let Some(id) = external_order_id {
        let filter = Filter {
            before: before.map(OrderId::from),
            created_after,
            state,
        };
        return list_one(&session, &id, &filter).await;
    }
    let looked_at = if state.is_some() {
        LOOKED_AT
    } else {
        limit.into()
    };
    let page = OrderPage {
        before: before.map(OrderId::from),
        created_after,
        limit: looked_at,
    };
    let listing = session
        .look(async |connection, partner| self_service::orders(connection, partner, &page).await);
    let found = listing.await?;
    let mut orders = Vec::new();
    let mut last = None;
    let mut rest = found.iter();
    for (head, units, price) in rest.by_ref() {
        last = Some(head.order_id.uuid());
        let summary = OrderWithoutTopups::new(head, *units, *price);
        if state.is_none_or(|state| state == summary.state) {
            orders.push(ListedOrder {
                summary,
                topups: None,
            });
        }
        if orders.len() == usize::from(limit) {
            break;
        }
    }
    let more = rest.next().is_some() || i64::try_from(found.len()) == Ok(looked_at);
    let page = OrdersResponse {
        orders,
        next_cursor: last.filter(|_| more).map(cursor),
    };
    Ok(json(StatusCode::OK, &page))
}

/// The conditions of a list, beside the id of an order.
struct Filter {
    before: Option<OrderId>,
    created_after: Option<OffsetDateTime>,
    state: Option<OrderState>,
}

impl Filter {
    fn takes(&self, order: &OrderWithoutTopups<'_>) -> bool {
        let is_before = self.before.is_none_or(|last| order.order_id < last);
        let is_after = self.created_after.is_none_or(|at| order.created_at > at);
        is_before && is_after && self.state.is_none_or(|state| order.state == state)
    }
}

/// The list of the one order with this id, with its topups.
async fn list_one(session: &Session, id: &str, filter: &Filter) -> Result<Response, ApiError> {
    let found = match find(session, id, None).await {
        Ok(whole) => Some(whole),
        Err(ApiError::Plain {
            code: ErrorCode::NotFound,
            ..
        }) => None,
        Err(error) => return Err(error),
    };
    let found = found.filter(|whole| filter.takes(&whole.summary()));
    let profiles = found.as_ref().map(|whole| whole.profiles(session));
    let profiles = profiles.transpose()?.unwrap_or_default();
    let listed = found.iter().map(|whole| {
        Ok(ListedOrder {
            summary: whole.summary(),
            topups: Some(whole.topups(&profiles, session.service())?),
        })
    });
    let page = OrdersResponse {
        orders: listed.collect::<Result<_, ApiError>>()?,
        next_cursor: None,
    };
    Ok(json(StatusCode::OK, &page))
}
