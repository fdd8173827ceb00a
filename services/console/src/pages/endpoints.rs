//! The endpoints of partners: their states in words, and the acts on them. They stand on the page
//! of their partner, and those that need somebody on Needs a person, too.
//!
//! Of webhook URLs only the host is shown, because partners put secrets into the rest.

use std::{borrow::Cow, cmp::Reverse, time::Duration};

use axum::{extract::State, response::Response};
use desk::operator::{self, endpoints::EndpointNotChanged, health::HealthReport};
use domain::{Command, EndpointId, EndpointKey, standing::EndpointState};
use pg::{
    PgConnection, Transaction, TransactionEnd,
    actions::{self, ActionChange},
    transaction,
};
use store::deliveries::{
    endpoints::{self, ListedEndpoint},
    events::{self, EndpointTestResult},
};
use time::OffsetDateTime;

use crate::{
    App,
    access::{Act, ConsoleSession, Operator, OperatorRole, Support},
    format::{number, relative},
    pages::forms::ReasonForm,
    problem::Problem,
    said,
    times::{TimeElement, Times},
    view::{NamedValue, PathArgument, Shell, ShownOnce, local_path, page},
};

/// The shortest time between two tests of an endpoint, as partners have it.
const BETWEEN_TESTS: Duration = Duration::from_secs(10);

/// The endpoints that do not take their webhooks, or have some that were given up, as the overview
/// and the list of webhooks show them.
pub(crate) struct FailingEndpoints {
    pub(crate) rows: Vec<FailingRow>,
    /// How many are not listed.
    pub(crate) more: usize,
    /// The list of webhooks; empty on that list.
    pub(crate) more_at: &'static str,
}

pub(crate) struct FailingRow {
    pub(crate) partner_id: String,
    pub(crate) partner: String,
    pub(crate) host: String,
    pub(crate) state: Cow<'static, str>,
    pub(crate) class: &'static str,
    pub(crate) waiting: String,
    pub(crate) exhausted: String,
    pub(crate) since: TimeElement,
}

/// At most `most` of those of the newest look, the ones with the most waiting webhooks first.
pub(crate) fn failing(report: &HealthReport, times: &Times, most: usize) -> FailingEndpoints {
    let all = report.endpoints.iter();
    let mut found: Vec<&ListedEndpoint> = all
        .filter(|one| one.state != EndpointState::Open || one.failures > 0 || one.exhausted > 0)
        .filter(|one| one.pending > 0 || one.exhausted > 0 || one.state != EndpointState::NoUrl)
        .collect();
    found.sort_by_key(|one| Reverse(one.pending));
    let more = found.len().saturating_sub(most);
    let rows = found.into_iter().take(most);
    let rows = rows.map(|one| FailingRow {
        partner_id: one.partner_id.to_string(),
        partner: one.name.clone(),
        host: one.host(),
        class: endpoint_class(one),
        state: endpoint_state(one),
        waiting: number(one.pending),
        exhausted: number(one.exhausted),
        since: since(one).map(|at| times.both(at)).unwrap_or_default(),
    });
    FailingEndpoints {
        rows: rows.collect(),
        more,
        more_at: "",
    }
}

/// Since when an endpoint has not taken its webhooks.
pub(crate) fn since(endpoint: &ListedEndpoint) -> Option<OffsetDateTime> {
    endpoint.failing_since.or(endpoint.exhausted_since)
}

/// How the state of an endpoint is coloured.
pub(crate) fn endpoint_class(endpoint: &ListedEndpoint) -> &'static str {
    match endpoint.state.known() {
        Some(EndpointState::Open) if endpoint.failures > 0 => "warn",
        Some(EndpointState::Open) => "note",
        Some(EndpointState::Blocked | EndpointState::Probing) | None => "bad",
        Some(
            EndpointState::NoUrl
            | EndpointState::Paused
            | EndpointState::PausedByPartner
            | EndpointState::Unverified,
        ) => "warn",
    }
}

/// The state of an endpoint in words. One that is probed is still blocked until its test is
/// acknowledged; [`next_test`] says when the test is.
pub(crate) fn endpoint_state(endpoint: &ListedEndpoint) -> Cow<'static, str> {
    if endpoint.state == EndpointState::Open {
        let is_well = endpoint.failures == 0;
        let word = if is_well {
            "has no failure"
        } else {
            "fails, is tried again"
        };
        return word.into();
    }
    endpoint.state.told(endpoint_words)
}

pub(crate) fn endpoint_words(state: EndpointState) -> &'static str {
    match state {
        EndpointState::Open => "open",
        EndpointState::NoUrl => "no address",
        EndpointState::Blocked | EndpointState::Probing => "blocked",
        EndpointState::Paused => "paused",
        EndpointState::PausedByPartner => "paused by the partner",
        EndpointState::Unverified => "not verified yet",
    }
}

/// When a blocked endpoint is tested next. A time that has passed means that the test is due.
pub(crate) fn next_test(endpoint: &ListedEndpoint, now: OffsetDateTime) -> Option<String> {
    let until = endpoint.blocked_until?;
    Some(if until > now {
        format!("next test {}", relative(now, until))
    } else {
        "a test is due now or under way".to_owned()
    })
}

/// The action that an endpoint offers to this session.
pub(crate) fn endpoint_form(
    endpoint: &ListedEndpoint,
    session: &ConsoleSession,
    back: &str,
) -> Option<ReasonForm> {
    if !session.may(OperatorRole::Support) || endpoint.state == EndpointState::NoUrl {
        return None;
    }
    let id = endpoint.endpoint_id;
    let form = if endpoint.state == EndpointState::Open {
        ReasonForm {
            consequence:
                "Nothing is sent to this endpoint until it is resumed. No webhook is lost.".into(),
            grave: true,
            ..ReasonForm::new(session, "Pause", format!("/endpoints/{id}/pause"))
        }
    } else {
        ReasonForm {
            consequence: resuming(endpoint),
            ..ReasonForm::new(session, "Resume", format!("/endpoints/{id}/resume"))
        }
    };
    Some(ReasonForm {
        seen: operator::endpoints::seen(endpoint),
        back: back.to_owned(),
        ..form
    })
}

/// The acts on an endpoint beside its pause: a test, and a look at its whole URL.
pub(crate) fn further_forms(
    endpoint: &ListedEndpoint,
    session: &ConsoleSession,
    back: &str,
) -> Vec<ReasonForm> {
    if endpoint.webhook_url.is_none() {
        return Vec::new();
    }
    let id = endpoint.endpoint_id;
    let is_paused = matches!(
        endpoint.state.known(),
        Some(EndpointState::Paused | EndpointState::PausedByPartner)
    );
    let test = (session.may(OperatorRole::Support) && !is_paused).then(|| ReasonForm {
        consequence: "A webhook of the kind webhook.test is sent at once, even if the endpoint is blocked. If it is \
                      acknowledged, the block ends."
            .to_owned(),
        ..ReasonForm::new(session, "Send a test", format!("/endpoints/{id}/test"))
    });
    let url = session.may(OperatorRole::Operator).then(|| ReasonForm {
        consequence: "The URL may hold a secret of the partner. That you saw it is recorded."
            .to_owned(),
        ..ReasonForm::new(
            session,
            "Show its whole URL",
            format!("/endpoints/{id}/show-url"),
        )
    });
    let forms = test.into_iter().chain(url);
    forms
        .map(|form| ReasonForm {
            back: back.to_owned(),
            ..form
        })
        .collect()
}

/// What resuming an endpoint does, and what to know before.
fn resuming(endpoint: &ListedEndpoint) -> String {
    let first = match endpoint.state.known() {
        Some(EndpointState::PausedByPartner) => {
            "The partner has paused this endpoint itself, so ask the partner first. The pause ends"
        }
        Some(EndpointState::Blocked | EndpointState::Probing) => {
            "The block ends now; if the endpoint still fails, it begins again"
        }
        Some(EndpointState::Paused) => "The pause, which an operator has set, ends",
        Some(EndpointState::Open | EndpointState::NoUrl | EndpointState::Unverified) | None => {
            "Whatever keeps webhooks from it ends"
        }
    };
    format!(
        "{first}. Webhooks that wait ({}) are sent at once; those that were given up are not among them.",
        number(endpoint.pending)
    )
}

pub(crate) async fn pause(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Support>,
) -> Result<Response, Problem> {
    let done = "The endpoint is paused: its webhooks wait until it is resumed.";
    set_paused(&app, &given, &act, (true, done)).await
}

pub(crate) async fn resume(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Support>,
) -> Result<Response, Problem> {
    let done = "Webhooks are sent to the endpoint again, and those that wait within seconds.";
    set_paused(&app, &given, &act, (false, done)).await
}

async fn set_paused(
    app: &App,
    given: &PathArgument,
    act: &Act<Support>,
    (paused, done): (bool, &str),
) -> Result<Response, Problem> {
    let (endpoint, target) = endpoint(app, given).await?;
    let command = if paused {
        Command::EndpointPause
    } else {
        Command::EndpointResume
    };
    let action = act.action(command, &target, act.fields.reason()?);
    let seen = act.fields.get("seen").or(Some(""));
    app.database()
        .run(async |connection| {
            operator::endpoints::set_paused(connection, endpoint, seen, paused, action).await
        })
        .await
        .map_err(|error| not_changed(error, given, act))?;
    Ok(act.done(app, done))
}

/// Sends a test webhook, and leads to its page.
pub(crate) async fn test(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Support>,
) -> Result<Response, Problem> {
    let (endpoint, target) = endpoint(&app, &given).await?;
    let action = act.action(Command::EndpointTest, &target, act.fields.reason()?);
    let mut refused = None;
    let sent = app
        .database()
        .run(async |connection| {
            let send = async |transaction: &mut Transaction<'_>| {
                Ok(
                    match events::test(transaction, endpoint, BETWEEN_TESTS).await? {
                        EndpointTestResult::Due(id) => Some((id, ActionChange::nothing())),
                        other => {
                            refused = Some(other);
                            None
                        }
                    },
                )
            };
            actions::recorded(connection, action, send).await
        })
        .await?;
    let id = sent.ok_or_else(|| {
        let why = match refused {
            Some(EndpointTestResult::TooSoon(_)) => {
                "It was tested within the last seconds. If you have sent the form twice, the first one was carried out."
            }
            Some(EndpointTestResult::Paused) => "It is paused, so nothing is sent to it. Resume it first.",
            Some(EndpointTestResult::NoEndpoint | EndpointTestResult::Due(_)) | None => "It has no URL.",
        };
        act.not_done("No test was sent", why)
    })?;
    let path = format!("/webhooks/{id}");
    Ok(said::after(&app, &path, "The test is sent now."))
}

/// Shows the whole URL of an endpoint, and records that.
pub(crate) async fn show_url(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let (endpoint, target) = endpoint(&app, &given).await?;
    let action = act.action(Command::ShowUrl, &target, act.fields.reason()?);
    let read = async |connection: &mut PgConnection| {
        transaction!(connection, "console::show_url", |transaction| -> Result<
            Option<String>,
            pg::Error,
        > {
            let all = endpoints::list(transaction, Some(endpoint.partner_id)).await?;
            let id = endpoint.id.uuid();
            let url = all.into_iter().find(|one| one.endpoint_id == id);
            let url = url.and_then(|one| one.webhook_url);
            if url.is_some() {
                actions::record(transaction, action, 0, ActionChange::nothing()).await?;
            }
            Ok(TransactionEnd::Commit(url))
        })
    };
    let url = app.database().run(read).await?;
    let url = url.ok_or_else(|| act.not_done("It has no URL", "There is nothing to show."))?;
    page(&ShownOnce {
        shell: Shell::new(&app, &act.session, "/partners", "Webhook URL"),
        text: "It may hold a secret of the partner: show it to nobody else.".to_owned(),
        secrets: vec![NamedValue {
            name: "URL",
            value: url,
        }],
        back: local_path(act.fields.get("back")),
    })
}

fn not_changed(error: EndpointNotChanged, given: &PathArgument, act: &Act<Support>) -> Problem {
    match error {
        EndpointNotChanged::Unknown => given.missing("endpoint"),
        EndpointNotChanged::Store(error) => error.into(),
        EndpointNotChanged::Changed { now, .. } => act.changed(&format!(
            "the endpoint has changed since the page was shown, and is {} now",
            now.told(endpoint_words)
        )),
    }
}

/// The endpoint that a form is about, and how the record names it.
async fn endpoint(app: &App, given: &PathArgument) -> Result<(EndpointKey, String), Problem> {
    let id: EndpointId = given.id("an endpoint")?;
    let key = app
        .database()
        .run(async |connection| endpoints::key(connection, id).await);
    let key = key.await?.ok_or_else(|| given.missing("endpoint"))?;
    let target = format!("endpoint {} of partner {}", key.id, key.partner_id);
    Ok((key, target))
}
