//! The list of orders, newest first: who asks for "which orders" finds them by partner, state,
//! provider and time. It is [`desk::operator::order_list`], as in `esimctl order list`.
//!
//! There is no total and no last page, because nothing counts orders. What has no index is looked
//! through in bounded looks, and the page says how far it came.

use std::collections::HashMap;

use askama::Template;
use axum::{extract::State, response::Response};
use desk::{
    operator::{
        looking::ListPatience,
        options,
        order_list::{self, Contents, OrderFilter, OrderListEntry},
        orders::{self, UndeliveredCounts},
        story::{reason, why_failed},
    },
    self_service::OrderState,
};
use domain::OrderId;
use pg::PgConnection;
use store::providers;
use uuid::Uuid;

use crate::{
    App,
    access::{FormFields, Viewer, Visit},
    format::{number, products, took},
    pages::lists::{self, FilterChoice, Frame, OfPartner, Tab, Window},
    problem::Problem,
    times::{TimeElement, Times},
    view::{Shell, page},
};

const PATH: &str = "/orders";
/// The states of the tabs: how they stand in the address, and their names.
const STATES: [(&str, &str, Option<OrderState>); 7] = [
    // All that did not get through, in whichever state that is.
    (NOT_THROUGH, "Did not get through", None),
    ("processing", "Under way", Some(OrderState::Processing)),
    ("ready", "Ready", Some(OrderState::Ready)),
    (
        "partly_failed",
        "Partly failed",
        Some(OrderState::PartlyFailed),
    ),
    ("failed", "Failed", Some(OrderState::Failed)),
    ("refused", "Refused", Some(OrderState::Refused)),
    ("cancelled", "Cancelled", Some(OrderState::Cancelled)),
];
const NOT_THROUGH: &str = "not_through";

#[derive(Template)]
#[template(path = "orders.html")]
struct Page {
    shell: Shell,
    list: Frame,
    tabs: Vec<Tab>,
    providers: Vec<String>,
    /// The names of products to choose from.
    products: Vec<String>,
    rows: Vec<Row>,
    foot: String,
    /// The file of the eSIMs that failed.
    failed: String,
}

struct Row {
    id: String,
    external_order_id: String,
    state: &'static str,
    class: &'static str,
    partner_id: String,
    partner: String,
    products: String,
    /// How many of its eSIMs are ready, on hold or failed, if not all of them are the same.
    units: String,
    providers: String,
    at: TimeElement,
    /// How long after it the last eSIM was ready.
    ready: String,
}

/// The state of an order in words, and its colour.
pub(crate) fn state(
    state: OrderState,
    on_hold: bool,
    webhooks: UndeliveredCounts,
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

/// How many of its eSIMs are ready, on hold and failed, if not all of them are the same.
fn units(order: &OrderListEntry) -> String {
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
    parts.join(", ")
}

/// The products of an order, each with its number.
pub(crate) fn in_words(contents: &Contents) -> String {
    let all = contents.products.iter();
    products(all.map(|(name, units)| (name, *units)))
}

fn row(order: &OrderListEntry, found: &Found, times: &Times) -> Row {
    let webhooks = found.webhooks(order);
    let (state, class) = state(order.state, order.on_hold > 0, webhooks);
    let contents = found.contents(order);
    let after = contents.and_then(|one| one.ready_at);
    Row {
        id: order.order_id.to_string(),
        external_order_id: order.external_order_id.clone(),
        state,
        class,
        partner_id: order.partner_id.to_string(),
        partner: order.partner.clone().unwrap_or_else(|| "erased".to_owned()),
        products: contents.map(in_words).unwrap_or_default(),
        units: units(order),
        providers: order.providers.join(", "),
        at: times.both(order.created_at),
        ready: after.map_or_else(|| "–".to_owned(), |at| took(at - order.created_at)),
    }
}

struct Found {
    nobody: Option<String>,
    of: Option<OfPartner>,
    page: order_list::OrderListPage,
    undelivered: HashMap<Uuid, UndeliveredCounts>,
    contents: HashMap<Uuid, Contents>,
    providers: Vec<String>,
    products: Vec<String>,
}

impl Found {
    fn webhooks(&self, order: &OrderListEntry) -> UndeliveredCounts {
        let known = self.undelivered.get(&order.order_id.uuid());
        known.copied().unwrap_or_default()
    }

    fn contents(&self, order: &OrderListEntry) -> Option<&Contents> {
        self.contents.get(&order.order_id.uuid())
    }
}

async fn read(
    connection: &mut PgConnection,
    query: &FormFields,
    times: &Times,
    (limit, patience): (usize, ListPatience),
) -> Result<Found, pg::Error> {
    let named = FilterChoice::find(&mut *connection, query.get("partner")).await?;
    let product = FilterChoice::product(&mut *connection, query.get("product")).await?;
    let nobody = named.nobody().or(product.nobody()).map(str::to_owned);
    let known = providers::list(&mut *connection).await?;
    let window = Window::of(query, times);
    let wanted = query.get("state");
    let state = STATES.iter().find(|(key, ..)| Some(*key) == wanted);
    let filter = OrderFilter {
        partner_id: named.id(),
        state: state.and_then(|(.., state)| *state),
        not_through: wanted == Some(NOT_THROUGH),
        option_id: product.id(),
        provider: query.get("provider").filter(|name| !name.is_empty()),
        since: window.since,
        until: window.until,
    };
    let before: Option<OrderId> = query.get("before").and_then(|id| id.parse().ok());
    let page = if nobody.is_some() {
        order_list::OrderListPage {
            orders: Vec::new(),
            next_cursor: None,
            reached: None,
        }
    } else {
        let page = order_list::list(&mut *connection, &filter, before, limit, patience).await?;
        page.after_flush(&mut *connection).await?
    };
    let ids: Vec<Uuid> = page.orders.iter().map(|one| one.order_id.uuid()).collect();
    let undelivered = orders::undelivered(&mut *connection, &ids).await?;
    let contents = order_list::contents(&mut *connection, &ids).await?;
    Ok(Found {
        of: named.shown(connection).await?,
        nobody,
        page,
        undelivered,
        contents,
        products: options::names(connection, lists::CHOICES).await?,
        providers: known.into_iter().map(|one| one.name).collect(),
    })
}

async fn looked_up(
    app: &App,
    visit: &Visit<Viewer>,
    how: (usize, ListPatience),
) -> Result<Found, Problem> {
    let query = &visit.query;
    let times = &visit.session.times;
    let read = async |connection: &mut PgConnection| read(connection, query, times, how).await;
    Ok(app.database().run(read).await?)
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let query = &visit.query;
    let times = &visit.session.times;
    let mut found = looked_up(&app, &visit, (lists::PAGE, ListPatience::Page)).await?;
    let of = found.of.take();
    let orders = &found.page.orders;
    let span = match (orders.first(), orders.last()) {
        (Some(newest), Some(oldest)) => {
            let span = lists::span(times, newest.created_at, oldest.created_at);
            format!("received {span}")
        }
        _ => String::new(),
    };
    let list = Frame::new(
        PATH,
        query,
        times,
        found.nobody.as_deref(),
        found.page.next_cursor.as_ref(),
        found.page.reached,
    )
    .about(of);
    page(&Page {
        shell: Shell::new(&app, &visit.session, PATH, "Orders"),
        tabs: list.tabs(&STATES.map(|(key, name, _)| (key, name))),
        rows: orders
            .iter()
            .map(|order| row(order, &found, times))
            .collect(),
        foot: list.foot(orders.len(), &span, ("order", "orders")),
        providers: found.providers,
        products: found.products,
        failed: lists::with("/failed-esims.csv", query, &[("before", "")]),
        list,
    })
}

/// The newest orders of these filters as CSV, in UTC. It is sent to partners, so it has what they
/// may know: not where we buy, and of a reason our words and not the provider's.
pub(crate) async fn csv(State(app): State<App>, visit: Visit<Viewer>) -> Result<Response, Problem> {
    let found = looked_up(&app, &visit, (lists::CSV, ListPatience::Whole)).await?;
    let head = [
        "received_utc",
        "external_order_id",
        "order_id",
        "partner",
        "partner_id",
        "state",
        "products",
        "esims",
        "ready",
        "failed",
        "on_hold",
        "reason",
        "webhooks_waiting",
        "webhooks_given_up",
        "ready_utc",
    ];
    let row = |order: &OrderListEntry| {
        let webhooks = found.webhooks(order);
        let (state, _) = state(order.state, order.on_hold > 0, webhooks);
        let codes = found.contents(order).map(|one| one.codes.as_slice());
        [
            lists::instant(order.created_at),
            order.external_order_id.clone(),
            order.order_id.to_string(),
            order.partner.clone().unwrap_or_default(),
            order.partner_id.to_string(),
            state.to_owned(),
            found.contents(order).map(in_words).unwrap_or_default(),
            order.units.to_string(),
            order.ready.to_string(),
            order.failed.to_string(),
            order.on_hold.to_string(),
            reason(order, codes.unwrap_or_default()).to_owned(),
            webhooks.waiting.to_string(),
            webhooks.given_up.to_string(),
            found
                .contents(order)
                .and_then(|one| one.ready_at)
                .map(lists::instant)
                .unwrap_or_default(),
        ]
    };
    Ok(lists::csv(
        "orders",
        &head,
        found.page.orders.iter().map(row),
    ))
}

/// The failed eSIMs of the newest orders of these filters, one a line, as CSV for their partners.
pub(crate) async fn failed_csv(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let found = looked_up(&app, &visit, (lists::CSV, ListPatience::Whole)).await?;
    let orders = &found.page.orders;
    let orders: HashMap<Uuid, &OrderListEntry> = orders
        .iter()
        .map(|one| (one.order_id.uuid(), one))
        .collect();
    let failed = orders.values().filter(|one| one.failed > 0);
    let ids: Vec<Uuid> = failed.map(|one| one.order_id.uuid()).collect();
    let read =
        async |connection: &mut PgConnection| order_list::failed_units(connection, &ids).await;
    let units = app.database().run(read).await?;
    let head = [
        "failed_utc",
        "topup_id",
        "option",
        "reason",
        "external_order_id",
        "order_id",
        "received_utc",
        "partner",
        "partner_id",
    ];
    let rows = units.iter().filter_map(|unit| {
        let order = orders.get(&unit.order_id)?;
        // Of a refused order all have one reason, as in the list of orders and in its sentence.
        let why = if order.state == OrderState::Refused {
            let codes = found.contents(order).map(|one| one.codes.as_slice());
            reason(order, codes.unwrap_or_default())
        } else {
            why_failed(unit.code.into_iter())
        };
        Some([
            lists::instant(unit.failed_at.unwrap_or(order.created_at)),
            unit.topup_id.clone(),
            unit.option.clone(),
            why.to_owned(),
            order.external_order_id.clone(),
            order.order_id.to_string(),
            lists::instant(order.created_at),
            order.partner.clone().unwrap_or_default(),
            order.partner_id.to_string(),
        ])
    });
    Ok(lists::csv("failed-esims", &head, rows))
}
