//! One webhook: what it is about, how it stands, and what the endpoint has answered to each try.

use std::borrow::Cow;

use accounts::partners;
use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::deliveries::{self, AttemptView};
use domain::{DeliveryId, standing::DeliveryState};
use pg::PgConnection;
use store::deliveries::{View, endpoints};
use time::Duration;

use crate::{
    App,
    access::{Viewer, Visit},
    format::took,
    pages::webhooks,
    problem::Problem,
    times::{Times, When},
    view::{Given, Shell, page},
};

/// The most tries that are shown, the newest ones.
const MOST: i64 = 50;

#[derive(Template)]
#[template(path = "webhook.html")]
struct Page {
    shell: Shell,
    id: String,
    kind: String,
    webhook_id: String,
    state: Cow<'static, str>,
    class: &'static str,
    /// Whether it goes on, so that the page refreshes itself.
    live: bool,
    partner_id: String,
    partner: String,
    /// The host of its endpoint.
    host: String,
    order: Option<(String, String)>,
    topup: Option<String>,
    due: When,
    delivered: When,
    tries: Vec<Try>,
}

/// A try that has ended.
struct Try {
    at: When,
    number: i32,
    answer: String,
    took: String,
    class: &'static str,
}

fn tried(one: AttemptView, times: &Times) -> Try {
    let is_well = one.class == "delivered";
    let answer = match one.status {
        Some(status) => format!("status {status}"),
        None => one.class.replace('_', " "),
    };
    let detail = one
        .detail
        .map_or_else(String::new, |detail| format!(": {detail}"));
    Try {
        at: times.clock(one.at),
        number: one.attempt,
        answer: format!("{answer}{detail}"),
        took: took(Duration::milliseconds(one.duration_ms.into())),
        class: if is_well { "good" } else { "bad" },
    }
}

pub(crate) async fn show(
    State(app): State<App>,
    given: Given,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let id: DeliveryId = given.id("a webhook")?;
    let read = async |connection: &mut PgConnection| {
        let Some(view) = deliveries::read(&mut *connection, id).await? else {
            return Ok(None);
        };
        let tries = deliveries::attempts(&mut *connection, id, MOST).await?;
        let of = Some(view.partner_id);
        let endpoints = endpoints::list(&mut *connection, of).await?;
        let partner = partners::show(connection, &view.partner_id.to_string()).await?;
        Ok::<_, pg::Error>(Some((view, tries, endpoints, partner)))
    };
    let found = app.database().run(read).await?;
    let (view, tries, endpoints, partner) = found.ok_or_else(|| given.missing("webhook"))?;
    let times = &visit.session.times;
    let (state, class) = webhooks::state(&view.state);
    let its = endpoints
        .iter()
        .find(|one| one.endpoint_id == view.endpoint_id.uuid());
    page(&Page {
        shell: Shell::new(
            &app,
            &visit.session,
            "/webhooks",
            format!("Webhook {}", view.kind),
        ),
        id: id.to_string(),
        webhook_id: view.webhook_id(),
        state,
        class,
        live: view.state == DeliveryState::Pending,
        partner_id: view.partner_id.to_string(),
        partner: partner.map_or_else(|| "erased".to_owned(), |partner| partner.name),
        host: its.map_or_else(
            || "an endpoint that was removed".to_owned(),
            endpoints::Endpoint::host,
        ),
        order: order_of(&view),
        topup: view.topup_id,
        due: view.due_at.map(|at| times.ago(at)).unwrap_or_default(),
        delivered: view
            .delivered_at
            .map(|at| times.clock(at))
            .unwrap_or_default(),
        tries: tries.into_iter().map(|one| tried(one, times)).collect(),
        kind: view.kind,
    })
}

/// The path and the name of its order.
fn order_of(view: &View) -> Option<(String, String)> {
    let id = view.order_id?;
    let name = view.external_order_id.clone();
    Some((
        format!("/orders/{id}"),
        name.unwrap_or_else(|| id.to_string()),
    ))
}
