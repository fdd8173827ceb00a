//! Purchases on hold by cause: what became of all of them, in one act. The list of the provider comes
//! first. An operator pastes it (its portal exports it, and `esimctl provider reconcile` reads it), the page
//! says which of the purchases are in it, and only then offers what fits: one that is there was bought, and
//! one that is not may be given up or bought again. Each purchase is settled in a transaction of its own
//! with its record, as on the page of its order.

use std::collections::BTreeMap;

use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::placements::{self, Decision, Listed, NotResolved};
use domain::{Command, PlacementState, placement::Resolution};
use pg::{PgConnection, actions::Mode};
use time::OffsetDateTime;

use crate::{
    App,
    access::{Act, Fields, Operator, Visit},
    format::{counted, utc},
    problem::Problem,
    times::{Times, When},
    view::{Shell, page},
};

/// The most purchases of a page, the oldest ones.
const MOST: i64 = 200;

#[derive(Template)]
#[template(path = "settle.html")]
struct Page {
    shell: Shell,
    token: String,
    provider: String,
    cause: String,
    /// From when to when the purchases were ordered, which the list has to cover.
    from: String,
    until: String,
    /// Whether a list was compared, and how many of the purchases it has.
    compared: Option<String>,
    rows: Vec<Row>,
}

struct Row {
    id: String,
    order: String,
    path: String,
    partner: String,
    product: String,
    since: When,
    /// Whether the list has it.
    found: bool,
    seen: String,
}

/// The address of the page for the cause of a purchase.
pub(crate) fn path(one: &Listed) -> String {
    let query = url::form_urlencoded::Serializer::new(String::new())
        .append_pair("provider", &one.provider)
        .append_pair("cause", &cause_of(one))
        .finish();
    format!("/purchases/settle?{query}")
}

/// Why a purchase is on hold, in characters that a form carries unchanged.
fn cause_of(one: &Listed) -> String {
    let parking = placements::parking(0, &one.reason);
    let (_, cause) = parking.split_once(", ").unwrap_or_default();
    cause.trim().to_owned()
}

/// The purchases on hold for a cause. One that may be at several providers is settled on the page of its
/// order, because one list does not say what became of it.
async fn on_hold(app: &App, fields: &Fields) -> Result<(String, String, Vec<Listed>), Problem> {
    let provider = fields.get("provider").unwrap_or_default().to_owned();
    let cause = fields.get("cause").unwrap_or_default().to_owned();
    let read = async |connection: &mut PgConnection| {
        let parked = Some(PlacementState::Parked);
        placements::list(connection, parked, Some(&provider), MOST).await
    };
    let mut found = app.database().run(read).await?;
    found.retain(|one| one.elsewhere.is_empty() && cause_of(one) == cause);
    if found.is_empty() {
        return Err(Problem::NotFound(
            "No purchase is on hold there for this cause any more. See Needs a person.".to_owned(),
        ));
    }
    Ok((provider, cause, found))
}

/// Whether a list names a purchase, with or without the dashes of its id.
fn names(list: &str, one: &Listed) -> bool {
    let id = one.placement_id.to_string();
    list.contains(&id) || list.contains(&id.replace('-', ""))
}

fn row(one: &Listed, list: Option<&str>, times: &Times) -> Row {
    Row {
        id: one.placement_id.to_string(),
        order: one.external_order_id.clone(),
        path: format!("/orders/{}", one.order_id),
        partner: one.partner.clone().unwrap_or_default(),
        product: one.lane.clone(),
        since: times.both(one.parked_at.unwrap_or(one.created_at)),
        found: list.is_some_and(|list| names(list, one)),
        seen: placements::parking(one.attempt, &one.reason),
    }
}

fn shown(
    app: &App,
    (session, token): (&crate::access::Session, String),
    (provider, cause, found): (String, String, Vec<Listed>),
    list: Option<&str>,
) -> Result<Response, Problem> {
    let times = &session.times;
    let rows: Vec<Row> = found.iter().map(|one| row(one, list, times)).collect();
    let at = |of: Option<OffsetDateTime>| of.map(utc).unwrap_or_default();
    let title = format!(
        "What became of {}?",
        counted(rows.len(), "purchase", "purchases")
    );
    page(&Page {
        shell: Shell::new(app, session, "/needs", title),
        token,
        from: at(found.iter().map(|one| one.created_at).min()),
        until: at(found
            .iter()
            .map(|one| one.parked_at.unwrap_or(one.created_at))
            .max()),
        compared: list.map(|_| {
            let there = rows.iter().filter(|one| one.found).count();
            format!("{there} of the {} are in the list.", rows.len())
        }),
        provider,
        cause,
        rows,
    })
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Operator>,
) -> Result<Response, Problem> {
    let found = on_hold(&app, &visit.query).await?;
    let token = visit.session.form_token();
    shown(&app, (&visit.session, token), found, None)
}

/// Compares the purchases with the list that somebody has pasted. It changes nothing.
pub(crate) async fn compare(
    State(app): State<App>,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let list = act.fields.get("list").unwrap_or_default().to_lowercase();
    if list.is_empty() {
        return Err(Problem::Invalid("Paste the list of the provider.".into()));
    }
    let found = on_hold(&app, &act.fields).await?;
    let token = act.session.form_token();
    shown(&app, (&act.session, token), found, Some(&list))
}

/// Settles those of the purchases of which the form says what became of them.
pub(crate) async fn settle(
    State(app): State<App>,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let reason = act.fields.reason()?;
    let (_, _, found) = on_hold(&app, &act.fields).await?;
    let mut done: BTreeMap<&str, usize> = BTreeMap::new();
    let mut left = Vec::new();
    for one in &found {
        let id = one.placement_id.to_string();
        let (words, resolution, command) = match act.fields.get(&id) {
            None => continue,
            Some("bought") => ("bought", Resolution::Bought, Command::PlacementBought),
            Some("not-bought") => (
                "given up",
                Resolution::NotBought,
                Command::PlacementNotBought,
            ),
            Some("retry") => ("bought again", Resolution::Retry, Command::PlacementRetry),
            Some(_) => return Err(Problem::Invalid("say what became of each purchase".into())),
        };
        let target = format!("placement {id}");
        let mode = Mode::Apply(act.action(command, &target, reason));
        let decision = Decision {
            resolution,
            bought_at: None,
            reference: None,
            seen: Some(act.fields.get(&format!("seen-{id}")).unwrap_or_default()),
        };
        let settled = app
            .database()
            .run(async |connection| {
                placements::resolve(connection, one.placement_id, decision, mode).await
            })
            .await;
        match settled {
            Ok(_) => *done.entry(words).or_default() += 1,
            Err(NotResolved::Store(error)) => return Err(error.into()),
            Err(_) => left.push(one.external_order_id.as_str()),
        }
    }
    if done.is_empty() {
        return Err(act.changed(
            "nothing was chosen, or each of the purchases has changed since the page was shown",
        ));
    }
    let done: Vec<String> = done
        .into_iter()
        .map(|(words, number)| format!("{number} {words}"))
        .collect();
    let left = if left.is_empty() {
        String::new()
    } else {
        format!(" Not changed, look at their pages: {}.", left.join(", "))
    };
    Ok(act.done(&app, &format!("Settled: {}.{left}", done.join(", "))))
}
