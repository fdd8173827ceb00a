//! Record of actions: who changed what, why and from where.

use std::collections::HashMap;

use accounts::partners;
use askama::Template;
use axum::{extract::State, response::Response};
use domain::{Command, PartnerId, command::Counts};
use pg::{
    PgConnection,
    actions::{self, Filter, Recorded},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use crate::{
    App,
    access::{Fields, Viewer, Visit},
    format::{number, utc},
    pages::{
        acts::{self, partner_of},
        lists::{self, Named as Chosen, Window, with},
        orders::Tab,
    },
    problem::Problem,
    times::{Times, When},
    view::{Shell, page},
};

const PATH: &str = "/actions";
/// The actions of a page.
const PAGE: usize = 50;
/// How many actions are looked through for those of a partner, which no index finds.
const LOOKED_THROUGH: usize = 5_000;

#[derive(Template)]
#[template(path = "actions.html")]
struct Page {
    shell: Shell,
    by: String,
    partner: String,
    from: String,
    until: String,
    chips: Vec<Tab>,
    any: String,
    csv: String,
    nobody: Option<String>,
    rows: Vec<Row>,
    newest: Option<String>,
    older: Option<String>,
}

struct Row {
    at: When,
    who: String,
    from: String,
    /// What was done, in the words of people, and the command.
    done: String,
    what: String,
    target: String,
    /// The partner that the target names.
    partner: Option<Named>,
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
    chosen: Chosen,
    actions: Vec<Recorded>,
    names: HashMap<Uuid, String>,
    /// The time before which older ones are.
    older: Option<OffsetDateTime>,
}

async fn read(
    connection: &mut PgConnection,
    query: &Fields,
    times: &Times,
    limit: usize,
) -> Result<Found, pg::Error> {
    let chosen = Chosen::find(&mut *connection, query.get("partner")).await?;
    let window = Window::of(query, times);
    let before = query.get("before");
    let before = before.and_then(|before| OffsetDateTime::parse(before, &Rfc3339).ok());
    let filter = Filter {
        since: window.since,
        until: before.or(window.until),
        operator: query.get("by").filter(|who| !who.is_empty()),
    };
    let partner = chosen.id();
    let looked = if partner.is_some() {
        LOOKED_THROUGH
    } else {
        limit
    };
    let mut found = match chosen {
        Chosen::Nobody(_) => Vec::new(),
        Chosen::All | Chosen::One(_) => {
            let most = u32::try_from(looked).unwrap_or(u32::MAX);
            actions::list(&mut *connection, &filter, most).await?
        }
    };
    let is_full = found.len() == looked;
    let mut older = found.last().filter(|_| is_full).map(|one| one.at);
    if partner.is_some() {
        found.retain(|one| partner_of(&one.target) == partner);
    }
    if found.len() > limit {
        found.truncate(limit);
        older = found.last().map(|one| one.at);
    }
    let named = found.iter().filter_map(|one| partner_of(&one.target));
    let named: Vec<Uuid> = named.map(PartnerId::uuid).collect();
    Ok(Found {
        names: partners::names(connection, &named).await?,
        chosen,
        actions: found,
        older,
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
        .run(async |connection| read(connection, query, times, PAGE).await)
        .await?;
    let since = query.get("since").unwrap_or_default();
    let chips = lists::SINCE.iter().map(|(key, name)| Tab {
        name,
        path: with(
            PATH,
            query,
            &[("since", key), ("from", ""), ("until", ""), ("before", "")],
        ),
        current: *key == since,
    });
    let field = |name: &str| query.get(name).unwrap_or_default().to_owned();
    let older = found.older.and_then(|at| at.format(&Rfc3339).ok());
    page(&Page {
        shell: Shell::new(&app, &visit.session, PATH, "Record of actions"),
        by: field("by"),
        partner: field("partner"),
        from: field("from"),
        until: field("until"),
        chips: chips.collect(),
        any: with(
            PATH,
            query,
            &[("since", ""), ("from", ""), ("until", ""), ("before", "")],
        ),
        csv: with("/actions.csv", query, &[("before", "")]),
        nobody: match &found.chosen {
            Chosen::Nobody(why) => Some(why.clone()),
            Chosen::All | Chosen::One(_) => None,
        },
        rows: found
            .actions
            .into_iter()
            .map(|one| row(one, &found.names, times))
            .collect(),
        newest: query
            .get("before")
            .map(|_| with(PATH, query, &[("before", "")])),
        older: older.map(|at| with(PATH, query, &[("before", &at)])),
    })
}

/// The newest actions of these filters as CSV, in UTC.
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
            "at_utc", "who", "via", "from", "what", "target", "affected", "reason", "before",
            "after",
        ],
    );
    for one in &found.actions {
        lists::line(
            &mut text,
            &[
                &format!("{}Z", utc(one.at).replace(' ', "T")),
                &one.operator,
                one.via.as_deref().unwrap_or(&one.database_role),
                one.source.as_deref().unwrap_or_default(),
                one.command.as_str(),
                &one.target,
                &one.affected.to_string(),
                &one.reason,
                one.before.as_deref().unwrap_or_default(),
                one.after.as_deref().unwrap_or_default(),
            ],
        );
    }
    Ok(lists::csv("actions", text))
}

fn row(action: Recorded, names: &HashMap<Uuid, String>, times: &Times) -> Row {
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
            (Some(via), Some(source)) => format!("{via} at {source}"),
            (Some(via), None) => via,
            (None, _) => action.database_role,
        },
        who: action.operator,
        webhooks: match action.command.known().map(Command::counts) {
            Some(Counts::Webhooks) => number(action.affected),
            Some(Counts::Rows | Counts::Nothing) | None => String::new(),
        },
        done: acts::done(&action.command).to_owned(),
        what: action.command.to_string(),
        partner: named,
        target: action.target,
        nothing,
        reason: action.reason,
    }
}
