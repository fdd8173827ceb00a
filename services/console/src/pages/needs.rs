//! Needs a person: everything that the system cannot end by itself, each row with its one action.

use std::time::Duration;

use askama::Template;
use axum::{extract::State, response::Response};
use store::{
    PgConnection,
    deliveries::endpoints::Endpoint,
    operator::{
        attention::{self, Item},
        breakers::{self, NotChanged},
    },
    providers::{self, BreakerState, ProviderBreaker},
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
    let read = async |connection: &mut PgConnection| {
        let items = attention::list(connection, MOST).await?;
        let providers = providers::list(connection).await?;
        Ok::<_, store::Error>((items, providers))
    };
    let (items, providers) = app.database().run(read).await?;
    let working = providers.iter().filter_map(|breaker| {
        let form = breaker_form(breaker, session, "/needs")?;
        (breaker.state == BreakerState::Closed).then(|| Working {
            name: breaker.name.clone(),
            form,
        })
    });
    let now = runtime::clock::now();
    let mut groups: Vec<Group> = GROUPS
        .into_iter()
        .map(|(title, hint)| Group {
            title,
            hint,
            rows: Vec::new(),
        })
        .collect();
    for (of, row) in items.iter().map(|one| item(one, session, now)) {
        groups[of].rows.push(row);
    }
    groups.retain(|group| !group.rows.is_empty());
    page(&Page {
        shell: Shell::new(session, "/needs", "Needs a person"),
        groups,
        most: MOST,
        working: working.collect(),
    })
}

/// The groups of the page: their titles and what they mean.
const GROUPS: [(&str, &str); 5] = [
    (
        "Open breakers",
        "Nothing new is bought from these providers. Orders are accepted, and wait.",
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
        "Blocked and paused endpoints",
        "A block tests itself and ends when the endpoint works. A pause ends only by a person.",
    ),
    (
        "Exhausted webhooks",
        "All attempts failed, or the endpoint answered 410, which tells us to stop. When the endpoint works again, an operator sends all of them by a bulk operation. Support sends \
         single ones again on the pages of their orders, which the partner's page lists.",
    ),
];

/// The group of an item, and its row.
fn item(item: &Item, session: &Session, now: OffsetDateTime) -> (usize, Row) {
    let why = item.sentence();
    match item {
        Item::Breaker(breaker) => {
            let row = Row {
                what: breaker.name.clone(),
                path: None,
                partner: "all".into(),
                since: utc(breaker.changed_at),
                age: relative(now, breaker.changed_at),
                why,
                form: breaker_form(breaker, session, "/needs"),
            };
            (0, row)
        }
        Item::Parked(placement) => {
            let since = placement.parked_at.unwrap_or(placement.created_at);
            let row = Row {
                what: format!("order {}", placement.external_order_id),
                path: Some(format!("/orders/{}", placement.order_id)),
                partner: placement.partner.clone().unwrap_or_default(),
                since: utc(since),
                age: relative(now, since),
                why,
                form: None,
            };
            (1, row)
        }
        Item::GiveBack(one) => {
            let row = Row {
                what: format!("topup {}", one.topup_id),
                path: one.order_id.map(|id| format!("/orders/{id}")),
                partner: (one.partner.clone()).unwrap_or_else(|| one.partner_id.to_string()),
                since: utc(one.parked_at),
                age: relative(now, one.parked_at),
                why,
                form: None,
            };
            (2, row)
        }
        Item::Stopped(endpoint) => {
            let mut row = Row {
                form: endpoint_form(endpoint, session, "/needs"),
                ..of_endpoint(endpoint, why)
            };
            if let Some(test) = next_test(endpoint, now) {
                row.since.clear();
                row.age = test;
            }
            (3, row)
        }
        Item::Exhausted(endpoint) => {
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
            (4, row)
        }
    }
}

fn of_endpoint(endpoint: &Endpoint, why: String) -> Row {
    Row {
        what: endpoint.host(),
        path: Some(format!("/partners/{}", endpoint.partner_id)),
        partner: endpoint.name.clone(),
        since: "-".into(),
        age: String::new(),
        why,
        form: None,
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
