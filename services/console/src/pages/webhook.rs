//! One webhook: what it is about, how it stands, and what the endpoint has answered to each try.

use std::borrow::Cow;

use accounts::partners;
use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::{
    deliveries::{self, AttemptView},
    health::stages::Stage,
    story,
};
use domain::{
    DeliveryId,
    standing::{self, DeliveryState, SilentStages},
};
use pg::PgConnection;
use store::deliveries::{View, endpoints};
use time::{Duration, OffsetDateTime};

use crate::{
    App,
    access::{Viewer, Visit},
    format::{counted, took, utc},
    pages::{track, webhooks},
    problem::Problem,
    times::{TimeElement, Times},
    view::{PathArgument, Shell, page},
};

/// The maximum number of tries that are shown, the newest ones.
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
    /// The text for the partner.
    sentence: String,
    order: Option<(String, String)>,
    topup: Option<String>,
    due: TimeElement,
    delivered: TimeElement,
    tries: Vec<Try>,
}

/// A try that has ended. An attempt is stored with how many had ended before it.
struct Try {
    at: TimeElement,
    /// The time since the first one.
    age: String,
    number: i32,
    answer: String,
    took: String,
    class: &'static str,
}

/// What the endpoint answered, or why it did not.
fn answer(one: &AttemptView) -> String {
    match one.status {
        Some(status) => format!("status {status}"),
        None => one.class.replace('_', " "),
    }
}

/// What can be told to the partner: how often the webhook was tried, what its endpoint said last,
/// and what comes next.
fn sentence(view: &View, host: &str, tries: &[AttemptView], held: Option<String>) -> String {
    let esim = view.topup_id.as_deref();
    let esim = esim.map_or_else(String::new, |id| format!(" for eSIM {id}"));
    let order = view.external_order_id.as_deref();
    let order = order.map_or_else(String::new, |id| format!(" (order {id})"));
    let what = format!("Our webhook {}{esim}{order}", view.kind);
    let said = match (tries.first(), tries.last()) {
        (Some(first), Some(last)) => format!(
            "{what} was sent to {host} {}, first at {} UTC; the last answer, at {} UTC after {}, was: {}.",
            counted(last.attempt + 1, "time", "times"),
            utc(first.at),
            utc(last.at),
            took(Duration::milliseconds(last.duration_ms.into())),
            answer(last),
        ),
        _ => format!("{what} to {host} was not sent yet."),
    };
    let next = match (view.state.known(), view.due_at, held) {
        (Some(DeliveryState::Delivered), _, _) => "Your endpoint has taken it.".to_owned(),
        (Some(DeliveryState::Exhausted), _, _) => {
            "We have given it up. Once your endpoint works, it can be sent again.".to_owned()
        }
        (Some(DeliveryState::NoEndpoint), _, _) => {
            "You have set no address for it; a new one gets it at once.".to_owned()
        }
        (_, _, Some(held)) => format!("It waits: {held}."),
        (_, Some(due), None) => format!("It is sent again at {} UTC or soon after.", utc(due)),
        (_, None, None) => "It is sent soon.".to_owned(),
    };
    format!("{said} {next}")
}

fn tried(one: AttemptView, first: OffsetDateTime, times: &Times) -> Try {
    let is_well = one.class == "delivered";
    let answer = answer(&one);
    let detail = one
        .detail
        .map_or_else(String::new, |detail| format!(": {detail}"));
    Try {
        at: times.clock(one.at),
        age: format!("+{}", took(one.at - first)),
        number: one.attempt + 1,
        answer: format!("{answer}{detail}"),
        took: took(Duration::milliseconds(one.duration_ms.into())),
        class: if is_well { "good" } else { "bad" },
    }
}

pub(crate) async fn show(
    State(app): State<App>,
    given: PathArgument,
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
    let host = its.map_or_else(
        || "an endpoint that was removed".to_owned(),
        endpoints::ListedEndpoint::host,
    );
    let (look, _) = app.figures().look(app.database()).await?;
    let silent = SilentStages {
        provisioner: false,
        notifier: webhooks::is_dead(&look.report, Stage::Notifier),
    };
    let hold = its.and_then(|one| one.state.known());
    let hold = hold.and_then(|state| standing::hold(state, silent));
    let until = its.and_then(|one| one.blocked_until);
    let mut stages = look.report.stages.iter();
    let notifier = stages.find(|one| one.stage == Stage::Notifier);
    let silent_since = notifier.and_then(|one| one.last);
    let held = hold.map(|hold| story::why_held(hold, until, silent_since, times.now));
    let sentence = sentence(&view, &host, &tries, held);
    let first = tries.first().map_or(view.created_at, |one| one.at);
    let rows = tries.into_iter().map(|one| tried(one, first, times));
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
        host,
        sentence,
        order: order_of(&view),
        topup: view.topup_id,
        due: if view.state == DeliveryState::Pending {
            track::next_try(hold, until, view.due_at, times)
        } else {
            TimeElement::default()
        },
        delivered: view
            .delivered_at
            .map(|at| times.clock(at))
            .unwrap_or_default(),
        tries: rows.collect(),
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
