//! Give-backs on hold. An operator looks at the provider whether it has taken the eSIM back, and
//! says so here: for one give-back on the page of its eSIM or order, or in one act for all of them
//! at a provider. Each is recorded in a transaction of its own.

use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::give_backs::{self, GiveBackFinding, GiveBackNotResolved, ListedGiveBack};
use domain::{Command, TopupId};
use pg::{PgConnection, actions::Mode};

use crate::{
    App,
    access::{Act, ConsoleSession, FormFields, Operator, Visit},
    format::{address, counted},
    pages::{group::Group, order::nothing_seen},
    problem::Problem,
    times::{TimeElement, Times},
    view::{PathArgument, Shell, page},
};

/// The most give-backs of a page, the oldest ones.
const MOST: i64 = 200;

#[derive(Template)]
#[template(path = "give_backs.html")]
struct Page {
    shell: Shell,
    token: String,
    provider: String,
    rows: Vec<Row>,
}

struct Row {
    id: String,
    order: Option<String>,
    partner: String,
    /// Its number at the provider.
    number: String,
    since: TimeElement,
    answer: String,
    /// The attempt that the page shows, which the act compares.
    seen: i32,
}

/// The address of the page for the give-backs to a provider.
pub(crate) fn path(provider: &str) -> String {
    address("/give-backs/settle", [("provider", provider)])
}

/// What somebody has found at the provider, how that is recorded, and what it means.
fn decided(fields: &FormFields) -> Result<(GiveBackFinding, Command, &'static str), Problem> {
    match fields.get("found") {
        Some("returned") => Ok((
            GiveBackFinding::Returned,
            Command::GiveBackReturned,
            "The partner sees it as given back, and its fields are erased here.",
        )),
        Some("not-returned") => Ok((
            GiveBackFinding::NotReturned,
            Command::GiveBackNotReturned,
            "The eSIM stays with the partner, who may ask again.",
        )),
        _ => Err(Problem::Invalid(
            "say what you found at the provider".into(),
        )),
    }
}

async fn on_hold(app: &App, fields: &FormFields) -> Result<(String, Vec<ListedGiveBack>), Problem> {
    let provider = fields.get("provider").unwrap_or_default().to_owned();
    let read = async |connection: &mut PgConnection| {
        give_backs::list(connection, Some(&provider), MOST).await
    };
    let found = app.database().run(read).await?;
    Ok((provider, found))
}

fn row(one: ListedGiveBack, times: &Times) -> Row {
    Row {
        order: one.order_id.map(|id| format!("/orders/{id}")),
        partner: one.partner.unwrap_or_else(|| one.partner_id.to_string()),
        number: one
            .provider_unit_id
            .unwrap_or_else(|| "not known".to_owned()),
        since: times.both(one.parked_at),
        answer: one
            .message
            .unwrap_or_else(|| "no reason is recorded".to_owned()),
        seen: one.attempt,
        id: one.topup_id,
    }
}

/// The give-backs to a provider that are on hold, with one act for all of them.
pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Operator>,
) -> Result<Response, Problem> {
    let (provider, found) = on_hold(&app, &visit.query).await?;
    if found.is_empty() {
        return Err(Problem::NotFound(
            "No give-back to this provider is on hold any more. See Needs a person.".to_owned(),
        ));
    }
    let session: &ConsoleSession = &visit.session;
    let title = format!(
        "What became of {}?",
        counted(found.len(), "give-back", "give-backs")
    );
    page(&Page {
        shell: Shell::new(&app, session, "/needs", title),
        token: session.form_token(),
        rows: found
            .into_iter()
            .map(|one| row(one, &session.times))
            .collect(),
        provider,
    })
}

/// Records what was found of a give-back, unless it has changed since the page showed the attempt
/// `seen`.
async fn record(
    app: &App,
    act: &Act<Operator>,
    topup: &TopupId,
    seen: i32,
    (found, command): (GiveBackFinding, Command),
    reason: &str,
) -> Result<(), GiveBackNotResolved> {
    let target = format!("topup {topup}");
    let mode = Mode::Apply(act.action(command, &target, reason));
    let resolve = async |connection: &mut PgConnection| {
        give_backs::resolve(connection, topup, found, Some(seen), mode).await
    };
    app.database().run(resolve).await?;
    Ok(())
}

/// Records for each give-back that is ticked whether the provider has taken the eSIM back.
pub(crate) async fn settle(
    State(app): State<App>,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let reason = act.fields.reason()?;
    let (found, command, text) = decided(&act.fields)?;
    let (_, on_hold) = on_hold(&app, &act.fields).await?;
    // All are read before the first one is recorded, so that a form that makes no sense changes
    // nothing.
    let mut ticked: Vec<(TopupId, i32)> = Vec::new();
    for one in &on_hold {
        if let Some(seen) = act.fields.get(&one.topup_id) {
            let topup = one.topup_id.parse().map_err(|_| nothing_seen())?;
            ticked.push((topup, seen.parse().map_err(|_| nothing_seen())?));
        }
    }
    let mut group = Group::new(("give-back", "give-backs"), ticked.len());
    for (topup, seen) in &ticked {
        let settled = record(&app, &act, topup, *seen, (found, command), reason).await;
        group.note(&act, topup.as_str(), settled, |error| match error {
            GiveBackNotResolved::Store(error) => Some(error),
            GiveBackNotResolved::Unknown
            | GiveBackNotResolved::NotParked(_)
            | GiveBackNotResolved::Changed(_) => None,
        })?;
    }
    if group.done() == 0 {
        return Err(act.changed(
            "none was ticked, or each of the give-backs has changed since the page was shown",
        ));
    }
    let done = counted(
        group.done(),
        "give-back is settled",
        "give-backs are settled",
    );
    let left = group.not_changed();
    Ok(act.done(&app, &format!("{done}. Of each: {text}{left}")))
}

/// Records for one give-back whether the provider has taken the eSIM back.
pub(crate) async fn resolve(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let topup: TopupId = given.id("a topup")?;
    let reason = act.fields.reason()?;
    let (found, command, text) = decided(&act.fields)?;
    let seen = act.fields.get("seen").and_then(|seen| seen.parse().ok());
    let seen = seen.ok_or_else(nothing_seen)?;
    record(&app, &act, &topup, seen, (found, command), reason)
        .await
        .map_err(|error| match error {
            GiveBackNotResolved::Unknown => given.missing("eSIM that is to be given back"),
            GiveBackNotResolved::Store(error) => error.into(),
            GiveBackNotResolved::NotParked(state) => act.not_done(
                "The give-back no longer waits for you",
                format!(
                    "The give-back is {} now, so nothing was changed: somebody has said what became of it, or a late \
                     response of the provider has.",
                    state.as_str()
                ),
            ),
            GiveBackNotResolved::Changed(attempt) => act.changed(&format!(
                "the partner has asked anew since the page was shown, and try {attempt} is on hold now"
            )),
        })?;
    Ok(act.done(&app, text))
}
