//! Record of actions: who changed what, why and from where.

use std::collections::HashMap;

use accounts::partners;
use askama::Template;
use axum::{extract::State, response::Response};
use domain::{Command, PartnerId, command::CountedRows};
use pg::{
    PgConnection,
    actions::{self, ActionFilter, RecordedAction},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use crate::{
    App,
    access::{FormFields, Viewer, Visit},
    format::number,
    pages::{
        acts::{self, partner_of},
        lists::{self, FilterChoice, Frame, OfPartner, Window},
    },
    problem::Problem,
    times::{TimeElement, Times},
    view::{Shell, page},
};

const PATH: &str = "/actions";
/// The actions of a page.
const PAGE: usize = 50;
/// The ways by which somebody acts, as they are recorded and as the filter calls them.
const WAYS: [(&str, &str); 3] = [
    ("console", "this console"),
    ("esimctl", "esimctl"),
    (API, "requests of partners"),
];
const API: &str = "api";
/// How many actions are looked through for those of a partner, a command or a way, which no index
/// finds.
const LOOKED_THROUGH: usize = 5_000;

#[derive(Template)]
#[template(path = "actions.html")]
struct Page {
    shell: Shell,
    list: Frame,
    /// The acts to choose from: the name of a command, and what it does in the words of people.
    acts: Vec<(&'static str, &'static str)>,
    ways: [(&'static str, &'static str); 3],
    rows: Vec<Row>,
    /// What the rows are, and how far the list has looked, if it has not looked through all
    /// actions.
    foot: String,
}

struct Row {
    at: TimeElement,
    who: String,
    from: String,
    /// What was done, in the words of people, and the command.
    done: String,
    what: String,
    target: String,
    /// The partner that the target names.
    partner: Option<Named>,
    /// The page of what the target names, if that is no partner, and what it is called there.
    page: Option<(String, String)>,
    /// How many webhooks it made due; empty if it was not about webhooks.
    webhooks: String,
    /// Whether it found nothing to change.
    nothing: bool,
    reason: String,
    /// What it was before and after, as JSON.
    change: String,
}

struct Named {
    id: PartnerId,
    name: String,
}

struct Found {
    chosen: FilterChoice,
    of: Option<OfPartner>,
    actions: Vec<RecordedAction>,
    names: HashMap<Uuid, String>,
    /// How far the list has looked, if it ended before it had a whole page.
    back_to: Option<OffsetDateTime>,
    /// The time before which older ones are.
    older: Option<OffsetDateTime>,
}

async fn read(
    connection: &mut PgConnection,
    query: &FormFields,
    times: &Times,
    limit: usize,
) -> Result<Found, pg::Error> {
    let chosen = FilterChoice::find(&mut *connection, query.get("partner")).await?;
    let window = Window::of(query, times);
    let before = query.get("before");
    let before = before.and_then(|before| OffsetDateTime::parse(before, &Rfc3339).ok());
    let via = query.get("via");
    let filter = ActionFilter {
        since: window.since,
        until: before.or(window.until),
        // What partners have changed by requests of their own is listed for them only.
        operator: query
            .get("by")
            .or((via == Some(API)).then_some(actions::PARTNER)),
    };
    let partner = chosen.id();
    let command = query.get("what").and_then(|name| name.parse().ok());
    let is_looked_through = partner.is_some() || command.is_some() || via.is_some();
    let looked = if is_looked_through {
        LOOKED_THROUGH
    } else {
        limit
    };
    let mut found = match chosen {
        FilterChoice::Nobody(_) => Vec::new(),
        FilterChoice::All | FilterChoice::One(_) => {
            let most = u32::try_from(looked).unwrap_or(u32::MAX);
            let mut listed = actions::list(&mut *connection, &filter, most).await?;
            // Of one partner its own changes belong to the story, for example a key that it made.
            if partner.is_some() && filter.operator.is_none() {
                let own = ActionFilter {
                    operator: Some(actions::PARTNER),
                    ..filter
                };
                listed.extend(actions::list(&mut *connection, &own, most).await?);
                listed.sort_by_key(|one| std::cmp::Reverse(one.at));
                listed.truncate(looked);
            }
            listed
        }
    };
    let is_full = found.len() == looked;
    let mut back_to = found
        .last()
        .filter(|_| is_full && is_looked_through)
        .map(|one| one.at);
    let mut older = found.last().filter(|_| is_full).map(|one| one.at);
    found.retain(|one| {
        let is_its = partner.is_none() || partner_of(&one.target) == partner;
        let is_by_way = via.is_none() || one.via.as_deref() == via;
        is_its && is_by_way && command.is_none_or(|command| acts::is_same(&one.command, command))
    });
    if found.len() > limit {
        found.truncate(limit);
        back_to = None;
        older = found.last().map(|one| one.at);
    }
    let named = found.iter().filter_map(|one| partner_of(&one.target));
    let named: Vec<Uuid> = named.map(PartnerId::uuid).collect();
    Ok(Found {
        names: partners::names(&mut *connection, &named).await?,
        of: chosen.shown(connection).await?,
        chosen,
        actions: found,
        back_to,
        older,
    })
}

async fn looked_up(app: &App, visit: &Visit<Viewer>, how: usize) -> Result<Found, Problem> {
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
    let found = looked_up(&app, &visit, PAGE).await?;
    let older = found.older.and_then(|at| at.format(&Rfc3339).ok());
    let list = Frame::new(
        PATH,
        query,
        times,
        found.chosen.nobody(),
        older,
        found.back_to,
    )
    .about(found.of);
    page(&Page {
        shell: Shell::new(&app, &visit.session, PATH, "Record of actions"),
        acts: acts::to_choose(),
        ways: WAYS,
        foot: list.foot(found.actions.len(), "", ("action", "actions")),
        rows: found
            .actions
            .into_iter()
            .map(|one| row(one, &found.names, times))
            .collect(),
        list,
    })
}

/// The newest actions of these filters as CSV, in UTC.
pub(crate) async fn csv(State(app): State<App>, visit: Visit<Viewer>) -> Result<Response, Problem> {
    let found = looked_up(&app, &visit, lists::CSV).await?;
    let head = [
        "at_utc", "who", "via", "from", "what", "target", "affected", "reason", "before", "after",
    ];
    let row = |one: RecordedAction| {
        [
            lists::instant(one.at),
            one.operator,
            one.via.unwrap_or(one.database_role),
            one.source.unwrap_or_default(),
            one.command.as_str().to_owned(),
            one.target,
            one.affected.to_string(),
            one.reason,
            one.before.unwrap_or_default(),
            one.after.unwrap_or_default(),
        ]
    };
    Ok(lists::csv(
        "actions",
        &head,
        found.actions.into_iter().map(row),
    ))
}

/// The page of what a target such as `topup 2026…` names, and what it is called there.
fn page_of(target: &str) -> Option<(String, String)> {
    let (kind, rest) = target.split_once(' ')?;
    let id = rest.split(' ').next()?;
    let (path, name) = match kind {
        "order" => (format!("/orders/{id}"), "an order"),
        "topup" => (format!("/esims/{id}"), "an eSIM"),
        "resend" => (format!("/resends/{id}"), "a resend"),
        "placement" => (format!("/find?q={id}"), "a purchase"),
        "delivery" => (format!("/find?q={id}"), "a webhook"),
        "provider" => (format!("/providers#{id}"), id),
        _ => return None,
    };
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "-_.".contains(one);
    id.chars().all(is_plain).then(|| (path, name.to_owned()))
}

fn row(action: RecordedAction, names: &HashMap<Uuid, String>, times: &Times) -> Row {
    let nothing = action.changed_nothing();
    let parts = [("before", &action.before), ("after", &action.after)];
    let named = partner_of(&action.target).and_then(|id| {
        let name = names.get(&id.uuid())?.clone();
        Some(Named { id, name })
    });
    let change = parts
        .into_iter()
        .filter_map(|(when, json)| Some(format!("{when}: {}", json.as_ref()?)));
    Row {
        at: times.clock(action.at),
        change: change.collect::<Vec<_>>().join("\n"),
        from: match (action.via, action.source) {
            (Some(via), Some(key)) if via == API => format!("{via} with {key}"),
            (Some(via), Some(source)) => format!("{via} at {source}"),
            (Some(via), None) => via,
            (None, _) => action.database_role,
        },
        who: action.operator,
        webhooks: match action.command.known().map(Command::counts) {
            Some(CountedRows::Webhooks) => number(action.affected),
            Some(CountedRows::Rows | CountedRows::Nothing) | None => String::new(),
        },
        done: acts::done(&action.command).to_owned(),
        what: action.command.to_string(),
        partner: named,
        page: page_of(&action.target),
        target: action.target,
        nothing,
        reason: action.reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_action_was_about_leads_to_its_page() {
        let id = "20240000000000000000000009";
        for (target, page) in [
            (
                format!("topup {id}"),
                Some((format!("/esims/{id}"), "an eSIM")),
            ),
            (
                "provider sandbox".to_owned(),
                Some(("/providers#sandbox".to_owned(), "sandbox")),
            ),
            (
                "delivery 1 of partner 2".to_owned(),
                Some(("/find?q=1".to_owned(), "a webhook")),
            ),
            ("operator ana".to_owned(), None),
            ("resend".to_owned(), None),
            ("provider \"><b>".to_owned(), None),
            ("order a/../b".to_owned(), None),
        ] {
            let page = page.map(|(path, name)| (path, name.to_owned()));
            assert_eq!(page_of(&target), page, "{target}");
        }
    }
}
