//! Needs a person: everything that the system cannot end by itself, each row with its one action; and
//! below it what ends by itself, so that nobody looks for it elsewhere. The rows are the findings of
//! [`store::operator::health`], as on the first page and in `esimctl attention`.

use std::time::Duration;

use askama::Template;
use axum::{extract::State, response::Response};
use store::{
    PgConnection,
    deliveries::endpoints::Endpoint,
    operator::{
        breakers::{self, NotChanged},
        give_backs,
        health::{self, Finding, Kind},
        placements,
    },
    providers::{BreakerState, ProviderBreaker},
};
use time::OffsetDateTime;
use url::form_urlencoded::byte_serialize;

use crate::{
    App,
    access::{Act, Operator, Role, Session, Viewer, Visit},
    format::{relative, utc},
    pages::{
        forms::ReasonForm,
        partner::{endpoint_form, next_test},
    },
    problem::Problem,
    view::{Given, Shell, page, shortened},
};

/// The longest time for which the console opens a breaker.
const LONGEST: Duration = Duration::from_hours(24);
/// The most parked placements, and the most parked give-backs, of the page.
const MOST: i64 = 200;

#[derive(Template)]
#[template(path = "needs.html")]
struct Page {
    shell: Shell,
    verdict: String,
    groups: Vec<Group>,
    most: i64,
    /// Providers that work, whose breakers an operator may open.
    working: Vec<Working>,
}

struct Working {
    name: String,
    form: ReasonForm,
}

struct Group {
    title: &'static str,
    hint: &'static str,
    rows: Vec<Row>,
}

#[derive(Default)]
struct Row {
    what: String,
    path: Option<String>,
    partner: String,
    since: String,
    age: String,
    why: String,
    form: Option<ReasonForm>,
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let session = &visit.session;
    let read = async |connection: &mut PgConnection| health::examine(connection, MOST).await;
    let report = app.database().run(read).await?;
    let working = report.breakers.iter().filter_map(|breaker| {
        let form = breaker_form(breaker, session, "/needs")?;
        (breaker.state == BreakerState::Closed).then(|| Working {
            name: breaker.name.clone(),
            form,
        })
    });
    let working = working.collect();
    let now = report.at;
    let mut groups: Vec<Group> = GROUPS
        .into_iter()
        .map(|(title, hint)| Group {
            title,
            hint,
            rows: Vec::new(),
        })
        .collect();
    for one in &report.findings {
        let (of, rows) = rows(one, session, now);
        groups[of as usize].rows.extend(rows);
    }
    groups.retain(|group| !group.rows.is_empty());
    page(&Page {
        shell: Shell::new(session, "/needs", "Needs a person"),
        verdict: report.verdict(),
        groups,
        most: MOST,
        working,
    })
}

/// The groups of the page, in its order.
#[derive(Clone, Copy)]
enum Of {
    System,
    Parked,
    GiveBacks,
    Exhausted,
    Paused,
    Mends,
}

/// The titles of the groups, and what they mean, in the order of [`Of`].
const GROUPS: [(&str, &str); 6] = [
    (
        "The system",
        "Something of ours does not work. The section of the runbook is named.",
    ),
    (
        "Parked purchases",
        "Something about the purchase is unknown or contradicts what is stored, so nothing more is bought for it. Look the \
         placement id up at the provider, then say on the order's page what became of it.",
    ),
    (
        "Parked give-backs",
        "The provider did not say whether it has the eSIM back. Look the unit up there, then say on the order's page what \
         became of it.",
    ),
    (
        "Exhausted webhooks",
        "All attempts failed, or the endpoint answered 410, which tells us to stop. When the endpoint works again, an operator sends all of them by a bulk operation. Support sends \
         single ones again on the pages of their orders, which the partner's page lists.",
    ),
    ("Paused endpoints", "A pause ends only by a person."),
    (
        "Ends by itself",
        "Nobody is needed. A breaker and a blocked endpoint test themselves, and end when the other side works. A pause that a \
         partner has set is the partner's.",
    ),
];

/// The group of a finding, and its rows.
fn rows(one: &Finding, session: &Session, now: OffsetDateTime) -> (Of, Vec<Row>) {
    let told = one.told();
    let since = told.since;
    let why = told.what.clone();
    let timed = |row: Row| Row {
        since: since.map(utc).unwrap_or_default(),
        age: since.map(|since| relative(now, since)).unwrap_or_default(),
        ..row
    };
    match &one.kind {
        Kind::Parked { purchases, .. } if !purchases.is_empty() => {
            let rows = purchases.iter().map(|one| parked(one, now));
            (Of::Parked, rows.collect())
        }
        Kind::GiveBacksParked { give_backs, .. } => {
            let rows = give_backs.iter().map(|one| give_back(one, now));
            (Of::GiveBacks, rows.collect())
        }
        Kind::BreakerOpen { breaker } => {
            let row = Row {
                what: breaker.name.clone(),
                partner: "all".into(),
                why: format!("{why}. What to do: {}", told.remedy),
                form: breaker_form(breaker, session, "/needs"),
                ..Row::default()
            };
            (Of::Mends, vec![timed(row)])
        }
        Kind::Paused { endpoint } | Kind::Blocked { endpoint } => {
            let mut row = Row {
                form: endpoint_form(endpoint, session, "/needs"),
                ..of_endpoint(endpoint, format!("{why}. What to do: {}", told.remedy))
            };
            row = timed(row);
            if let Some(test) = next_test(endpoint, now) {
                row.age = format!("{} {test}", row.age);
            }
            let of = if told.needs_person {
                Of::Paused
            } else {
                Of::Mends
            };
            (of, vec![row])
        }
        Kind::Exhausted { endpoint } => {
            let row = Row {
                // The preview of an operation begins with this partner. Only an operator may start it;
                // others find the single webhooks on the partner's page.
                path: Some(if session.may(Role::Operator) {
                    format!("/operations?partner={}", endpoint.partner_id)
                } else {
                    format!("/partners/{}#exhausted", endpoint.partner_id)
                }),
                ..of_endpoint(endpoint, why)
            };
            (Of::Exhausted, vec![timed(row)])
        }
        _ => {
            let row = Row {
                what: told.felt.into_owned(),
                why: format!("{why}. What to do: {}. See {}", told.remedy, told.see),
                ..Row::default()
            };
            let of = if told.needs_person {
                Of::System
            } else {
                Of::Mends
            };
            (of, vec![timed(row)])
        }
    }
}

fn parked(one: &placements::Listed, now: OffsetDateTime) -> Row {
    let since = one.parked_at.unwrap_or(one.created_at);
    let elsewhere = if one.elsewhere.is_empty() {
        String::new()
    } else {
        format!(" (look it up at {}, too)", one.elsewhere.join(", "))
    };
    let reason = one.reason.told();
    let reason = reason.as_deref().unwrap_or("no reason is recorded");
    Row {
        what: format!("order {}", one.external_order_id),
        path: Some(format!("/orders/{}", one.order_id)),
        partner: one.partner.clone().unwrap_or_default(),
        since: utc(since),
        age: relative(now, since),
        why: format!(
            "placement {} at {} is parked: {reason}{elsewhere}",
            one.placement_id, one.provider
        ),
        form: None,
    }
}

fn give_back(one: &give_backs::Listed, now: OffsetDateTime) -> Row {
    Row {
        what: format!("topup {}", one.topup_id),
        path: one.order_id.map(|id| format!("/orders/{id}")),
        partner: (one.partner.clone()).unwrap_or_else(|| one.partner_id.to_string()),
        since: utc(one.parked_at),
        age: relative(now, one.parked_at),
        why: format!(
            "the give-back to {} is parked. Look there for the unit {}; the last answer was: {}",
            one.provider,
            one.provider_unit_id.as_deref().unwrap_or("not known"),
            one.message.as_deref().unwrap_or("no reason is recorded")
        ),
        form: None,
    }
}

fn of_endpoint(endpoint: &Endpoint, why: String) -> Row {
    Row {
        what: endpoint.host(),
        path: Some(format!("/partners/{}", endpoint.partner_id)),
        partner: endpoint.name.clone(),
        why,
        ..Row::default()
    }
}

/// The action that a breaker offers to this session.
pub(crate) fn breaker_form(
    breaker: &ProviderBreaker,
    session: &Session,
    back: &str,
) -> Option<ReasonForm> {
    // After lost commits, `esimctl recover` comes first. It needs a shell, and so does closing then.
    if !session.may(Role::Operator) || breaker.lost_commits() {
        return None;
    }
    let name: String = byte_serialize(breaker.name.as_bytes()).collect();
    let form = if breaker.state == BreakerState::Closed {
        ReasonForm {
            consequence: format!(
                "Nothing new is sent to {} for this long. Orders are still accepted, and wait.",
                breaker.name
            ),
            duration: true,
            grave: true,
            ..ReasonForm::new(
                session,
                "Open its breaker",
                format!("/providers/{name}/open"),
            )
        }
    } else {
        ReasonForm {
            consequence: format!(
                "The waiting work of {} goes on at once. If calls fail, the breaker opens again by itself.",
                breaker.name
            ),
            ..ReasonForm::new(
                session,
                "Close its breaker",
                format!("/providers/{name}/close"),
            )
        }
    };
    Some(ReasonForm {
        seen: breaker.version.to_string(),
        back: back.to_owned(),
        ..form
    })
}

pub(crate) async fn open(
    State(app): State<App>,
    Given(name): Given,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let target = format!("provider {name}");
    let action = act.action("provider open", &target, act.fields.reason()?);
    let asked = act.fields.get("for").unwrap_or("1h");
    let duration = runtime::config::positive_duration(asked).map_err(Problem::Invalid)?;
    if duration > LONGEST {
        return Err(Problem::Invalid("a breaker may be opened for at most a day here; `esimctl provider open` opens it for longer".into()));
    }
    let seen = seen(&act);
    let opened = app
        .database()
        .run(async |connection| breakers::open(connection, &name, seen, duration, action).await)
        .await;
    let text = format!(
        "The breaker of {} is open for {asked}: nothing new is sent to it. A probe follows by itself.",
        changed(opened, &name, &act)?.name
    );
    Ok(act.done(&app, &text))
}

pub(crate) async fn close(
    State(app): State<App>,
    Given(name): Given,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let target = format!("provider {name}");
    let action = act.action("provider close", &target, act.fields.reason()?);
    let seen = seen(&act);
    let closed = app
        .database()
        .run(async |connection| breakers::close(connection, &name, seen, action).await)
        .await;
    let text = format!(
        "The breaker of {} is closed: its waiting work goes on.",
        changed(closed, &name, &act)?.name
    );
    Ok(act.done(&app, &text))
}

/// The version of the breaker that the page has shown. A form without one has seen none that exists.
fn seen(act: &Act<Operator>) -> Option<i64> {
    let seen = act.fields.get("seen").and_then(|seen| seen.parse().ok());
    seen.or(Some(-1))
}

/// The breaker after a change, or why there was none.
fn changed(
    changed: Result<ProviderBreaker, NotChanged>,
    name: &str,
    act: &Act<Operator>,
) -> Result<ProviderBreaker, Problem> {
    changed.map_err(|error| match error {
        NotChanged::Unknown => Problem::NotFound(format!(
            "No provider of this cell is named “{}”. Needs a person lists all of them.",
            shortened(name)
        )),
        NotChanged::Store(error) => error.into(),
        NotChanged::LostCommits => act.not_done(
            "This breaker needs somebody with a shell",
            "It is open because the database has lost commits. Buying now could buy again what was forgotten, so \
             somebody with a shell compares with the provider first, by `esimctl recover`, and then closes the breaker.",
        ),
        NotChanged::Changed(state) => {
            let state = state.as_str().replace('_', " ");
            act.changed(&format!(
                "the breaker of {name} has changed since the page was shown, and is {state} now"
            ))
        }
    })
}
