//! Actions: who changed what, why and from where.

use askama::Template;
use axum::{extract::State, response::Response};
use store::operator::actions::{self, Filter, Recorded};

use crate::{
    App,
    access::{Viewer, Visit},
    format::{number, utc},
    problem::Problem,
    view::{Shell, page},
};

/// The most actions of the page.
const MOST: u32 = 200;
/// The windows that the page offers, and their names.
const WINDOWS: [(&str, &str); 3] = [
    ("1h", "last hour"),
    ("1day", "last day"),
    ("7days", "last 7 days"),
];

#[derive(Template)]
#[template(path = "actions.html")]
struct Page {
    shell: Shell,
    most: u32,
    since: Option<String>,
    windows: [(&'static str, &'static str); 3],
    actions: Vec<Row>,
}

struct Row {
    at: String,
    who: String,
    from: String,
    what: String,
    target: String,
    rows: String,
    /// Whether it found nothing to change.
    nothing: bool,
    reason: String,
    /// What it was before and after, as JSON.
    change: String,
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let window = visit.query.get("window");
    let window = window.filter(|asked| WINDOWS.iter().any(|(window, _)| window == asked));
    let window = window.and_then(|window| runtime::config::duration(window).ok());
    let since = window.map(|window| runtime::clock::now() - window);
    let by = visit.query.get("by").map(str::to_owned);
    let filter = Filter {
        since,
        operator: by.as_deref(),
        ..Filter::default()
    };
    let found = app
        .database()
        .run(async |connection| actions::list(connection, &filter, MOST).await)
        .await?;
    page(&Page {
        shell: Shell::new(&visit.session, "/actions", "Actions"),
        most: MOST,
        since: since.map(utc),
        windows: WINDOWS,
        actions: found.into_iter().map(row).collect(),
    })
}

fn row(action: Recorded) -> Row {
    let nothing = action.changed_nothing();
    let parts = [("before", &action.before), ("after", &action.after)];
    let change = parts
        .into_iter()
        .filter_map(|(when, json)| Some(format!("{when}: {}", json.as_ref()?)));
    Row {
        at: utc(action.at),
        change: change.collect::<Vec<_>>().join("\n"),
        from: match (action.via, action.source) {
            (Some(via), Some(source)) => format!("{via} at {source}"),
            (Some(via), None) => via,
            (None, _) => action.database_role,
        },
        who: action.operator,
        what: action.command,
        target: action.target,
        rows: number(action.affected),
        nothing,
        reason: action.reason,
    }
}
