//! The list of orders, newest first: who asks for "which orders" finds them by partner, state, provider
//! and time. It is [`desk::operator::order_list`], as in `esimctl order list`.
//!
//! There is no total and no last page, because nothing counts orders. What has no index is looked
//! through in bounded looks, and the page says how far it came.

use std::collections::HashMap;

use askama::Template;
use axum::{extract::State, response::Response};
use desk::{
    operator::{
        order_list::{self, Filter, Listed},
        orders::{self, Undelivered},
    },
    self_service::OrderState,
};
use domain::OrderId;
use pg::PgConnection;
use store::providers;
use uuid::Uuid;

use crate::{
    App,
    access::{Fields, Viewer, Visit},
    format::{counted, number},
    pages::lists::{self, Frame, Named, Tab, Window},
    problem::Problem,
    times::{Times, When},
    view::{Shell, page},
};

const PATH: &str = "/orders";
/// The states of the tabs: how they stand in the address, and their names.
const STATES: [(&str, &str, OrderState); 6] = [
    ("processing", "Under way", OrderState::Processing),
    ("ready", "Ready", OrderState::Ready),
    ("partly_failed", "Partly failed", OrderState::PartlyFailed),
    ("failed", "Failed", OrderState::Failed),
    ("refused", "Refused", OrderState::Refused),
    ("cancelled", "Cancelled", OrderState::Cancelled),
];

#[derive(Template)]
#[template(path = "orders.html")]
struct Page {
    shell: Shell,
    list: Frame,
    tabs: Vec<Tab>,
    providers: Vec<String>,
    rows: Vec<Row>,
    foot: String,
}

struct Row {
    id: String,
    external_order_id: String,
    state: &'static str,
    class: &'static str,
    partner_id: String,
    partner: String,
    units: String,
    providers: String,
    at: When,
}

/// The state of an order in words, and its colour.
pub(crate) fn state(
    state: OrderState,
    on_hold: bool,
    webhooks: Undelivered,
) -> (&'static str, &'static str) {
    match state {
        OrderState::Processing if on_hold => ("on hold", "bad"),
        OrderState::Processing => ("under way", ""),
        // Ready is good news only for a partner that knows of it.
        OrderState::Ready if webhooks.given_up > 0 => ("ready, not delivered", "bad"),
        OrderState::Ready if webhooks.waiting > 0 => ("ready, not delivered yet", ""),
        OrderState::Ready => ("delivered", "good"),
        OrderState::PartlyFailed => ("partly failed", "bad"),
        OrderState::Failed => ("failed", "bad"),
        OrderState::Refused => ("refused", "none"),
        OrderState::Cancelled => ("cancelled", "none"),
    }
}

/// How many eSIMs an order has, and what is not ready of them.
fn units(order: &Listed) -> String {
    let all = counted(order.units, "eSIM", "eSIMs");
    let parts = [
        (order.ready, "ready"),
        (order.on_hold, "on hold"),
        (order.failed, "failed"),
    ];
    let parts = parts
        .into_iter()
        .filter(|(of, _)| *of > 0 && *of < order.units)
        .map(|(of, what)| format!("{} {what}", number(of)));
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() {
        all
    } else {
        format!("{all}: {}", parts.join(", "))
    }
}

fn row(order: &Listed, found: &Found, times: &Times) -> Row {
    let webhooks = found.webhooks(order);
    let (state, class) = state(order.state, order.on_hold > 0, webhooks);
    Row {
        id: order.order_id.to_string(),
        external_order_id: order.external_order_id.clone(),
        state,
        class,
        partner_id: order.partner_id.to_string(),
        partner: order.partner.clone().unwrap_or_else(|| "erased".to_owned()),
        units: units(order),
        providers: order.providers.join(", "),
        at: times.both(order.created_at),
    }
}

struct Found {
    nobody: Option<String>,
    page: order_list::Page,
    undelivered: HashMap<Uuid, Undelivered>,
    providers: Vec<String>,
}

impl Found {
    fn webhooks(&self, order: &Listed) -> Undelivered {
        let known = self.undelivered.get(&order.order_id.uuid());
        known.copied().unwrap_or_default()
    }
}

async fn read(
    connection: &mut PgConnection,
    query: &Fields,
    times: &Times,
    limit: usize,
) -> Result<Found, pg::Error> {
    let named = Named::find(&mut *connection, query.get("partner")).await?;
    let product = Named::product(&mut *connection, query.get("product")).await?;
    let nobody = named.nobody().or(product.nobody()).map(str::to_owned);
    let known = providers::list(&mut *connection).await?;
    let window = Window::of(query, times);
    let wanted = query.get("state");
    let state = STATES.iter().find(|(key, ..)| Some(*key) == wanted);
    let filter = Filter {
        partner_id: named.id(),
        state: state.map(|(.., state)| *state),
        option_id: product.id(),
        provider: query.get("provider").filter(|name| !name.is_empty()),
        since: window.since,
        until: window.until,
    };
    let before: Option<OrderId> = query.get("before").and_then(|id| id.parse().ok());
    let page = if nobody.is_some() {
        order_list::Page {
            orders: Vec::new(),
            next_cursor: None,
        }
    } else {
        order_list::list(&mut *connection, &filter, before, limit).await?
    };
    let ids: Vec<Uuid> = page.orders.iter().map(|one| one.order_id.uuid()).collect();
    let undelivered = orders::undelivered(connection, &ids).await?;
    Ok(Found {
        nobody,
        page,
        undelivered,
        providers: known.into_iter().map(|one| one.name).collect(),
    })
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let query = &visit.query;
    let times = &visit.session.times;
    let found = app
        .database()
        .run(async |connection| read(connection, query, times, lists::PAGE).await)
        .await?;
    let orders = &found.page.orders;
    let span = match (orders.first(), orders.last()) {
        (Some(newest), Some(oldest)) => {
            let span = lists::span(times, newest.created_at, oldest.created_at);
            format!("received {span}")
        }
        _ => String::new(),
    };
    let next = found.page.next_cursor.map(|before| before.to_string());
    let list = Frame::new(PATH, query, found.nobody.as_deref(), next.as_deref());
    page(&Page {
        shell: Shell::new(&app, &visit.session, PATH, "Orders"),
        tabs: list.tabs(&STATES.map(|(key, name, _)| (key, name))),
        rows: orders
            .iter()
            .map(|order| row(order, &found, times))
            .collect(),
        foot: list.foot(orders.len(), &span, ("order", "orders")),
        providers: found.providers,
        list,
    })
}

/// The newest orders of these filters as CSV, in UTC.
pub(crate) async fn csv(State(app): State<App>, visit: Visit<Viewer>) -> Result<Response, Problem> {
    let query = &visit.query;
    let times = &visit.session.times;
    let found = app
        .database()
        .run(async |connection| read(connection, query, times, lists::CSV).await)
        .await?;
    let head = [
        "received_utc",
        "external_order_id",
        "order_id",
        "partner",
        "partner_id",
        "state",
        "esims",
        "ready",
        "failed",
        "on_hold",
        "providers",
    ];
    let row = |order: &Listed| {
        let (state, _) = state(order.state, order.on_hold > 0, found.webhooks(order));
        [
            lists::instant(order.created_at),
            order.external_order_id.clone(),
            order.order_id.to_string(),
            order.partner.clone().unwrap_or_default(),
            order.partner_id.to_string(),
            state.to_owned(),
            order.units.to_string(),
            order.ready.to_string(),
            order.failed.to_string(),
            order.on_hold.to_string(),
            order.providers.join(" "),
        ]
    };
    Ok(lists::csv(
        "orders",
        &head,
        found.page.orders.iter().map(row),
    ))
}
