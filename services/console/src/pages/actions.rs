//! Actions: who changed what, why and from where.

use std::collections::HashMap;

use askama::Template;
use axum::{extract::State, response::Response};
use domain::PartnerId;
use store::{
    PgConnection,
    operator::actions::{self, Filter, Recorded},
    partners,
};
use uuid::Uuid;

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

/// The partner that a target such as `partner 0199…` or `endpoint 0199… of partner 0199…` names.
fn partner_of(target: &str) -> Option<PartnerId> {
    let (_, partner) = target.rsplit_once("partner ")?;
    partner.parse().ok()
}

/// Whether the number of rows of this command is that of webhooks that it made due.
fn is_of_webhooks(command: &str) -> bool {
    let sends = ["delivery replay", "endpoint resume", "operation start"];
    sends.contains(&command) || command.ends_with("redeliver")
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
    let read = async |connection: &mut PgConnection| {
        let found = actions::list(&mut *connection, &filter, MOST).await?;
        let named = found.iter().filter_map(|one| partner_of(&one.target));
        let named: Vec<Uuid> = named.map(PartnerId::uuid).collect();
        let names = partners::names(connection, &named).await?;
        Ok::<_, store::Error>((found, names))
    };
    let (found, names) = app.database().run(read).await?;
    page(&Page {
        shell: Shell::new(&visit.session, "/actions", "Actions"),
        most: MOST,
        since: since.map(utc),
        windows: WINDOWS,
        actions: found.into_iter().map(|one| row(one, &names)).collect(),
    })
}

fn row(action: Recorded, names: &HashMap<Uuid, String>) -> Row {
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
        at: utc(action.at),
        change: change.collect::<Vec<_>>().join("\n"),
        from: match (action.via, action.source) {
            (Some(via), Some(source)) => format!("{via} at {source}"),
            (Some(via), None) => via,
            (None, _) => action.database_role,
        },
        who: action.operator,
        webhooks: if is_of_webhooks(&action.command) {
            number(action.affected)
        } else {
            String::new()
        },
        what: action.command,
        partner: named,
        target: action.target,
        nothing,
        reason: action.reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_names_its_partner() {
        let id = PartnerId::new();
        for target in [
            format!("partner {id}"),
            format!("endpoint {id} of partner {id}"),
        ] {
            assert_eq!(partner_of(&target), Some(id), "{target}");
        }
        for target in ["operator ada", "partner", "purchase 1 at x, partner Acme"] {
            assert_eq!(partner_of(target), None, "{target}");
        }
    }

    #[test]
    fn only_what_makes_webhooks_due_is_counted_in_webhooks() {
        for command in ["endpoint resume", "delivery replay", "webhooks redeliver"] {
            assert!(is_of_webhooks(command), "{command}");
        }
        for command in [
            "topup show-code",
            "webhooks redeliver cancel",
            "partner disable",
        ] {
            assert!(!is_of_webhooks(command), "{command}");
        }
    }
}
