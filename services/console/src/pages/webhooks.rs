//! The list of webhooks, newest first, by partner, state and time: which ones do not arrive, and what the
//! endpoint has answered last. It is the list of `esimctl delivery list`.

use std::borrow::Cow;

use accounts::partners;
use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::delivery_list::{self, Of};
use domain::{Stored, standing::DeliveryState};
use pg::PgConnection;
use store::deliveries::{View, resends::Filter};
use time::Duration;
use uuid::Uuid;

use crate::{
    App,
    access::{Fields, Viewer, Visit},
    format::{took, utc},
    pages::{
        lists::{self, Named, Window, with},
        orders::Tab,
    },
    problem::Problem,
    times::{Times, When},
    view::{Shell, page},
};

const PATH: &str = "/webhooks";
/// The states of the tabs: how they stand in the address, and their names.
const STATES: [(&str, &str); 4] = [
    ("pending", "Under way"),
    ("exhausted", "Given up"),
    ("no_endpoint", "No address"),
    ("delivered", "Delivered"),
];

#[derive(Template)]
#[template(path = "webhooks.html")]
struct Page {
    shell: Shell,
    tabs: Vec<Tab>,
    partner: String,
    state: String,
    from: String,
    until: String,
    chips: Vec<Tab>,
    any: String,
    csv: String,
    nobody: Option<String>,
    rows: Vec<Row>,
    most: usize,
}

struct Row {
    topup: String,
    path: String,
    order: String,
    state: Cow<'static, str>,
    class: &'static str,
    partner_id: String,
    partner: String,
    tries: i32,
    answer: String,
    at: When,
    due: When,
}

/// The state of a webhook in words, and its colour.
pub(crate) fn state(state: &Stored<DeliveryState>) -> (Cow<'static, str>, &'static str) {
    let class = match state.known() {
        Some(DeliveryState::Delivered) => "good",
        Some(DeliveryState::Exhausted) => "bad",
        Some(DeliveryState::NoEndpoint) | None => "warn",
        Some(DeliveryState::Pending | DeliveryState::Cancelled) => "",
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
        DeliveryState::Cancelled => "cancelled",
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

struct Found {
    named: Named,
    views: Vec<View>,
    names: std::collections::HashMap<Uuid, String>,
}

async fn read(
    connection: &mut PgConnection,
    query: &Fields,
    times: &Times,
    limit: usize,
) -> Result<Found, pg::Error> {
    let named = Named::find(&mut *connection, query.get("partner")).await?;
    let window = Window::of(query, times);
    let wanted = query.get("state");
    let state = STATES.iter().find(|(key, _)| Some(*key) == wanted);
    let filter = Filter {
        partner_id: named.id(),
        state: state.map(|(key, _)| *key),
        since: window.since,
        until: window.until,
        ..Filter::default()
    };
    let views = if matches!(named, Named::Nobody(_)) {
        Vec::new()
    } else {
        let of = Of::default();
        let page = delivery_list::list(&mut *connection, &filter, &of, None, limit).await?;
        page.deliveries
    };
    let mut ids: Vec<Uuid> = views.iter().map(|view| view.partner_id.uuid()).collect();
    ids.sort_unstable();
    ids.dedup();
    let names = partners::names(connection, &ids).await?;
    Ok(Found {
        named,
        views,
        names,
    })
}

fn row(view: &View, found: &std::collections::HashMap<Uuid, String>, times: &Times) -> Row {
    let (state, class) = state(&view.state);
    let topup = view.topup_id.clone().unwrap_or_default();
    Row {
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
        due: view
            .due_at
            .filter(|_| view.state == DeliveryState::Pending)
            .map(|at| times.ago(at))
            .unwrap_or_default(),
        topup,
    }
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let query = &visit.query;
    let times = &visit.session.times;
    let found = app
        .database()
        .run(async |connection| read(connection, query, times, lists::PAGE * 4).await)
        .await?;
    let now = query.get("state").unwrap_or_default();
    let tab = |name, key: &str| Tab {
        name,
        path: with(PATH, query, &[("state", key)]),
        current: key == now,
    };
    let states = STATES.iter().map(|(key, name)| tab(*name, key));
    let tabs = std::iter::once(tab("All", "")).chain(states).collect();
    let since = query.get("since").unwrap_or_default();
    let chips = lists::SINCE.iter().map(|(key, name)| Tab {
        name,
        path: with(PATH, query, &[("since", key), ("from", ""), ("until", "")]),
        current: *key == since,
    });
    let field = |name: &str| query.get(name).unwrap_or_default().to_owned();
    page(&Page {
        shell: Shell::new(&app, &visit.session, PATH, "Webhooks"),
        tabs,
        partner: field("partner"),
        state: field("state"),
        from: field("from"),
        until: field("until"),
        chips: chips.collect(),
        any: with(PATH, query, &[("since", ""), ("from", ""), ("until", "")]),
        csv: with("/webhooks.csv", query, &[]),
        nobody: match found.named {
            Named::Nobody(why) => Some(why),
            Named::All | Named::One(_) => None,
        },
        rows: found
            .views
            .iter()
            .map(|view| row(view, &found.names, times))
            .collect(),
        most: lists::PAGE * 4,
    })
}

/// The newest webhooks of these filters as CSV, in UTC.
pub(crate) async fn csv(State(app): State<App>, visit: Visit<Viewer>) -> Result<Response, Problem> {
    let query = &visit.query;
    let times = &visit.session.times;
    let found = app
        .database()
        .run(async |connection| read(connection, query, times, lists::CSV).await)
        .await?;
    let mut text = String::new();
    lists::line(
        &mut text,
        &[
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
        ],
    );
    let at = |at: Option<time::OffsetDateTime>| {
        at.map(|at| format!("{}Z", utc(at).replace(' ', "T")))
            .unwrap_or_default()
    };
    let number = |of: Option<i32>| of.map(|of| of.to_string()).unwrap_or_default();
    for view in &found.views {
        let partner = found.names.get(&view.partner_id.uuid());
        lists::line(
            &mut text,
            &[
                &view.kind,
                view.topup_id.as_deref().unwrap_or_default(),
                view.external_order_id.as_deref().unwrap_or_default(),
                &view.order_id.map(|id| id.to_string()).unwrap_or_default(),
                partner.map_or("", String::as_str),
                &view.partner_id.to_string(),
                &view.endpoint_id.to_string(),
                view.state.as_str(),
                &view.attempts.to_string(),
                &at(view.attempted_at),
                &number(view.status),
                view.class.as_deref().unwrap_or_default(),
                &number(view.duration_ms),
                &at(view.due_at),
                &at(view.delivered_at),
            ],
        );
    }
    Ok(lists::csv("webhooks", text))
}
