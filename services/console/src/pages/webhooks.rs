//! The list of webhooks, newest first, by partner, state and time: which ones do not arrive, and
//! what the endpoint has answered last. It is the list of `esimctl delivery list`.

use std::{borrow::Cow, collections::BTreeMap};

use accounts::partners;
use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::{
    delivery_list::{self, Cursor, DeliveryScope},
    health::{HealthReport, stages::Stage},
    looking::ListPatience,
    options,
};
use domain::{
    Stored,
    standing::{self, DeliveryState, EndpointState, Hold, SilentStages},
};
use pg::PgConnection;
use store::{
    deliveries::{View, resends::DeliveryFilter},
    providers,
};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::{
    App,
    access::{FormFields, Viewer, Visit},
    format::took,
    pages::{
        endpoints::{FailingEndpoints, failing},
        lists::{self, FilterChoice, Frame, OfPartner, Tab, Window, or_empty},
        track,
    },
    problem::Problem,
    times::{TimeElement, Times},
    view::{Shell, page},
};

pub(crate) const PATH: &str = "/webhooks";
/// All that did not get through, in whichever state that is, as it stands in the address.
pub(crate) const UNTAKEN: &str = "untaken";
/// The states of the tabs: how they stand in the address, and their names.
const STATES: [(&str, &str); 5] = [
    (UNTAKEN, "Not taken"),
    ("pending", "Under way"),
    ("exhausted", "Given up"),
    ("no_endpoint", "No address"),
    ("delivered", "Delivered"),
];

/// The most failing endpoints above the list.
const FAILING: usize = 5;

#[derive(Template)]
#[template(path = "webhooks.html")]
struct Page {
    shell: Shell,
    /// The endpoints that do not take their webhooks, on the first page of the list.
    failing: Option<FailingEndpoints>,
    /// Whether no notifier works, so that nothing is sent.
    stopped: bool,
    list: Frame,
    tabs: Vec<Tab>,
    providers: Vec<String>,
    /// The names of products to choose from.
    products: Vec<String>,
    rows: Vec<Row>,
    foot: String,
}

struct Row {
    id: String,
    topup: String,
    path: String,
    order: String,
    state: Cow<'static, str>,
    class: &'static str,
    partner_id: String,
    partner: String,
    tries: i32,
    answer: String,
    at: TimeElement,
    due: TimeElement,
}

/// The state of a webhook in words, and its colour.
pub(crate) fn state(state: &Stored<DeliveryState>) -> (Cow<'static, str>, &'static str) {
    let class = match state.known() {
        Some(DeliveryState::Delivered) => "good",
        Some(DeliveryState::Exhausted) => "bad",
        Some(DeliveryState::NoEndpoint) | None => "warn",
        Some(DeliveryState::Pending) => "",
    };
    (state.told(words), class)
}

/// The state of a webhook in words.
pub(crate) fn words(state: DeliveryState) -> &'static str {
    match state {
        DeliveryState::Pending => "under way",
        DeliveryState::Delivered => "delivered",
        DeliveryState::Exhausted => "given up",
        DeliveryState::NoEndpoint => "no address",
    }
}

/// What the endpoint has answered last.
fn answer(view: &View) -> String {
    let what = match (view.status, &view.class) {
        (Some(status), _) => status.to_string(),
        (None, Some(class)) => class.replace('_', " "),
        (None, None) => return "–".to_owned(),
    };
    view.duration_ms.map_or_else(
        || what.clone(),
        |ms| format!("{what} · {}", took(Duration::milliseconds(ms.into()))),
    )
}

/// Whether no process of a stage works.
pub(crate) fn is_dead(report: &HealthReport, stage: Stage) -> bool {
    let mut stages = report.stages.iter();
    stages.any(|one| one.stage == stage && one.is_dead())
}

struct Found {
    nobody: Option<String>,
    of: Option<OfPartner>,
    page: delivery_list::DeliveryListPage,
    providers: Vec<String>,
    products: Vec<String>,
    names: std::collections::HashMap<Uuid, String>,
    /// How many webhooks of all partners wait for somebody, by the state in the address.
    held: BTreeMap<&'static str, String>,
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
    let state = STATES.iter().find(|(key, _)| Some(*key) == wanted);
    let filter = DeliveryFilter {
        partner_id: named.id(),
        state: state.and_then(|(key, _)| key.parse().ok()),
        since: window.since,
        until: window.until,
        ..DeliveryFilter::default()
    };
    let of = DeliveryScope {
        option_id: product.id(),
        provider: query.get("provider"),
        endpoint_id: query.get("endpoint").and_then(|id| id.parse().ok()),
        untaken: wanted == Some(UNTAKEN),
    };
    let before: Option<Cursor> = query.get("before").and_then(|at| at.parse().ok());
    let page = if nobody.is_some() {
        delivery_list::DeliveryListPage {
            deliveries: Vec::new(),
            next_cursor: None,
            reached: None,
        }
    } else {
        delivery_list::list(&mut *connection, &filter, &of, before, limit, patience).await?
    };
    let views = page.deliveries.iter();
    let mut ids: Vec<Uuid> = views.map(|view| view.partner_id.uuid()).collect();
    ids.sort_unstable();
    ids.dedup();
    let names = partners::names(&mut *connection, &ids).await?;
    // With a filter the numbers would be those of something else.
    let is_filtered = [
        "partner", "product", "provider", "endpoint", "since", "from", "until",
    ]
    .iter()
    .any(|name| query.get(name).is_some());
    let mut held = BTreeMap::new();
    for state in [DeliveryState::Exhausted, DeliveryState::NoEndpoint] {
        if !is_filtered {
            let (number, is_all) = delivery_list::held_up(&mut *connection, state).await?;
            let more = if is_all { "" } else { "+" };
            held.insert(state.into(), format!("{number}{more}"));
        }
    }
    Ok(Found {
        of: named.shown(connection).await?,
        nobody,
        page,
        held,
        products: options::names(connection, lists::CHOICES).await?,
        providers: known.into_iter().map(|one| one.name).collect(),
        names,
    })
}

/// What holds a webhook up, and when its blocked endpoint is tested next.
fn held(view: &View, report: &HealthReport) -> (Option<Hold>, Option<OffsetDateTime>) {
    let mut noted = report.endpoints.iter();
    let its = noted.find(|one| one.endpoint_id == view.endpoint_id.uuid());
    // An endpoint of which nothing is to be known is open.
    let state = its.map_or(Some(EndpointState::Open), |one| one.state.known());
    let silent = SilentStages {
        provisioner: is_dead(report, Stage::Provisioner),
        notifier: is_dead(report, Stage::Notifier),
    };
    let hold = state.and_then(|state| standing::hold(state, silent));
    (hold, its.and_then(|one| one.blocked_until))
}

fn row(
    view: &View,
    found: &std::collections::HashMap<Uuid, String>,
    report: &HealthReport,
    times: &Times,
) -> Row {
    let (state, class) = state(&view.state);
    let topup = view.topup_id.clone().unwrap_or_default();
    Row {
        id: view.delivery_id.to_string(),
        path: view.order_id.map_or_else(
            || format!("/find?q={topup}"),
            |order| format!("/orders/{order}"),
        ),
        order: view
            .external_order_id
            .clone()
            .unwrap_or_else(|| "its order".to_owned()),
        state,
        class,
        partner: found
            .get(&view.partner_id.uuid())
            .cloned()
            .unwrap_or_else(|| "erased".to_owned()),
        partner_id: view.partner_id.to_string(),
        tries: view.attempts,
        answer: answer(view),
        at: view
            .attempted_at
            .map(|at| times.both(at))
            .unwrap_or_default(),
        due: if view.state == DeliveryState::Pending {
            let (hold, until) = held(view, report);
            track::next_try(hold, until, view.due_at, times)
        } else {
            TimeElement::default()
        },
        topup,
    }
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
    let found = looked_up(&app, &visit, (lists::PAGE, ListPatience::Page)).await?;
    let views = &found.page.deliveries;
    let list = Frame::new(
        PATH,
        query,
        times,
        found.nobody.as_deref(),
        found.page.next_cursor.as_ref(),
        found.page.reached,
    )
    .about(found.of);
    let (look, _) = app.figures().look(app.database()).await?;
    let failing = failing(&look.report, times, FAILING);
    let mut tabs = list.tabs(&STATES);
    for (tab, (key, _)) in tabs.iter_mut().skip(1).zip(&STATES) {
        tab.count = found.held.get(*key).cloned();
    }
    page(&Page {
        shell: Shell::new(&app, &visit.session, PATH, "Webhooks"),
        stopped: is_dead(&look.report, Stage::Notifier),
        failing: (!failing.rows.is_empty() && list.newest.is_none()).then_some(failing),
        tabs,
        foot: list.foot(
            views.len(),
            if list.field("state") == UNTAKEN {
                "first those given up, then those without an address, then those that failed so far, each"
            } else {
                "by the time when they were ready (the filter is about their last try)"
            },
            ("webhook", "webhooks"),
        ),
        rows: views
            .iter()
            .map(|view| row(view, &found.names, &look.report, times))
            .collect(),
        providers: found.providers,
        products: found.products,
        list,
    })
}

/// The newest webhooks of these filters as CSV, in UTC. Like that of orders it is sent to partners,
/// and names nobody where we buy.
pub(crate) async fn csv(State(app): State<App>, visit: Visit<Viewer>) -> Result<Response, Problem> {
    let found = looked_up(&app, &visit, (lists::CSV, ListPatience::Whole)).await?;
    let (look, _) = app.figures().look(app.database()).await?;
    let head = [
        "webhook",
        "esim",
        "external_order_id",
        "order_id",
        "partner",
        "partner_id",
        "endpoint_id",
        "state",
        "tries",
        "last_try_utc",
        "status",
        "class",
        "took_ms",
        "due_utc",
        "delivered_utc",
    ];
    let due = |view: &View| {
        let (hold, until) = held(view, &look.report);
        let waits = view.state == DeliveryState::Pending;
        track::next_at(hold, until, view.due_at).filter(|_| waits)
    };
    let row = |view: &View| {
        [
            view.kind.clone(),
            view.topup_id.clone().unwrap_or_default(),
            view.external_order_id.clone().unwrap_or_default(),
            or_empty(view.order_id),
            or_empty(found.names.get(&view.partner_id.uuid())),
            view.partner_id.to_string(),
            view.endpoint_id.to_string(),
            view.state.as_str().to_owned(),
            view.attempts.to_string(),
            lists::instant(view.attempted_at),
            or_empty(view.status),
            view.class.clone().unwrap_or_default(),
            or_empty(view.duration_ms),
            lists::instant(due(view)),
            lists::instant(view.delivered_at),
        ]
    };
    Ok(lists::csv(
        "webhooks",
        &head,
        found.page.deliveries.iter().map(row),
    ))
}
