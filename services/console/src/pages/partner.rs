//! A partner: what is to be known of it, its endpoints and its newest orders. Its refused requests
//! ([`super::refusals`]) and its keys and limits ([`super::partner_acts`]) have pages of their own.
//!
//! Of webhook URLs only the host is shown, because partners put secrets into the rest.

use std::{borrow::Cow, time::Duration};

use accounts::partners::{self, Partner};
use askama::Template;
use axum::{extract::State, response::Response};
use desk::{
    operator::{
        self,
        endpoints::NotChanged,
        health::{Finding, Kind},
    },
    self_service::{self, OrderPage, OrderState, Units},
};
use domain::{EndpointId, EndpointKey, PartnerId, standing::EndpointState};
use pg::{
    PgConnection,
    actions::{self, Changed},
};
use store::deliveries::{
    endpoints::{self, Endpoint},
    events::{self, Tested},
};
use time::OffsetDateTime;

use crate::{
    App,
    access::{Act, Operator, Role, Session, Support, Viewer, Visit},
    format::{counted, number, relative},
    pages::{
        forms::ReasonForm,
        issues::{Issue, issue},
    },
    problem::Problem,
    said,
    times::{Times, When},
    view::{Given, Named, Once, Shell, local_path, page},
};

/// How many orders the page shows.
const RECENT: u32 = 25;
/// The shortest time between two tests of an endpoint, as partners have it.
const BETWEEN_TESTS: Duration = Duration::from_secs(10);

#[derive(Template)]
#[template(path = "partner.html")]
struct Page {
    shell: Shell,
    head: Head,
    verdict: String,
    class: &'static str,
    issues: Vec<Issue>,
    /// Whether the viewer may send webhooks again.
    may: bool,
    endpoints: Vec<EndpointRow>,
    orders: Vec<OrderRow>,
    recent: u32,
}

/// What all pages of a partner begin with.
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) environment: String,
    pub(crate) state: &'static str,
    pub(crate) class: &'static str,
    /// The page that it is.
    pub(crate) tab: &'static str,
}

impl Head {
    pub(crate) fn new(partner: &Partner, tab: &'static str) -> Self {
        let (state, class) = standing(partner);
        Self {
            id: partner.partner_id.to_string(),
            name: partner.name.clone(),
            environment: partner.environment.clone(),
            state,
            class,
            tab,
        }
    }
}

struct EndpointRow {
    host: String,
    state: Cow<'static, str>,
    class: &'static str,
    until: String,
    failures: String,
    waiting: String,
    exhausted: String,
    /// What this session may do with it.
    forms: Vec<ReasonForm>,
    /// Its webhooks.
    webhooks: String,
}

struct OrderRow {
    id: String,
    external_order_id: String,
    accepted: When,
    state: &'static str,
    class: &'static str,
    units: String,
}

/// Whether a partner may order, and how that is coloured.
pub(crate) fn standing(partner: &Partner) -> (&'static str, &'static str) {
    if partner.disabled_at.is_some() {
        ("disabled", "bad")
    } else if partner.moved_to.is_some() {
        ("moved to another cell", "note")
    } else {
        ("enabled", "good")
    }
}

pub(crate) async fn show(
    State(app): State<App>,
    given: Given,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let id: PartnerId = given.id("a partner")?;
    let times = &visit.session.times;
    let read = async |connection: &mut PgConnection| read(connection, id, times).await;
    let Some(found) = app.database().run(read).await? else {
        return Err(given.missing("partner"));
    };
    let now = runtime::clock::now();
    let back = format!("/partners/{id}");
    let (look, _) = app.figures().look(app.database()).await?;
    let findings = look.report.findings.iter();
    let issues: Vec<Issue> = findings
        .filter(|one| is_of(one, id))
        .map(|one| issue(one, times))
        .collect();
    page(&Page {
        shell: Shell::new(&app, &visit.session, "/partners", &found.partner.name),
        head: Head::new(&found.partner, "health"),
        verdict: match issues.len() {
            0 => "Nothing keeps its orders back".to_owned(),
            1 => "1 thing is to be known of it".to_owned(),
            several => format!("{several} things are to be known of it"),
        },
        class: if issues.iter().any(|one| one.class == "bad") {
            "bad"
        } else if issues.is_empty() {
            "good"
        } else {
            "warn"
        },
        issues,
        may: visit.session.may(Role::Operator),
        endpoints: found
            .endpoints
            .iter()
            .map(|endpoint| endpoint_row(endpoint, &visit.session, &back, now))
            .collect(),
        orders: found.orders,
        recent: RECENT,
    })
}

/// Whether a finding is about this partner.
fn is_of(one: &Finding, id: PartnerId) -> bool {
    match &one.kind {
        Kind::Exhausted { endpoint } | Kind::Paused { endpoint } | Kind::Blocked { endpoint } => {
            endpoint.partner_id == id.uuid()
        }
        Kind::Parked { purchases, .. } => purchases.iter().any(|one| one.partner_id == id),
        Kind::GiveBacksParked { give_backs, .. } => {
            give_backs.iter().any(|one| one.partner_id == id)
        }
        _ => false,
    }
}

struct Found {
    partner: Partner,
    endpoints: Vec<Endpoint>,
    orders: Vec<OrderRow>,
}

async fn read(
    connection: &mut PgConnection,
    id: PartnerId,
    times: &Times,
) -> Result<Option<Found>, pg::Error> {
    let Some(partner) = partners::show(&mut *connection, &id.to_string()).await? else {
        return Ok(None);
    };
    let endpoints = endpoints::list(&mut *connection, Some(id)).await?;
    let newest = OrderPage {
        limit: RECENT.into(),
        ..OrderPage::default()
    };
    let orders = self_service::orders(&mut *connection, id, &newest).await?;
    store::orders::flush_seen(&mut *connection).await?;
    let ids: Vec<uuid::Uuid> = orders
        .iter()
        .map(|(head, _)| head.order_id.uuid())
        .collect();
    let undelivered = operator::orders::undelivered(&mut *connection, &ids).await?;
    let orders = orders.into_iter().map(|(head, units)| {
        let webhooks = undelivered.get(&head.order_id.uuid()).copied();
        let webhooks = webhooks.unwrap_or_default();
        let (state, class) = match head.state(units) {
            OrderState::Processing if units.on_hold > 0 => ("on hold", "bad"),
            OrderState::Processing => ("under way", "note"),
            OrderState::Ready if units.returned == units.total => ("given back", "note"),
            // Ready is good news only for a partner that knows of it.
            OrderState::Ready if webhooks.given_up > 0 => ("ready, not delivered", "bad"),
            OrderState::Ready if webhooks.waiting > 0 => ("ready, not delivered yet", "note"),
            OrderState::Ready => ("delivered", "good"),
            OrderState::PartlyFailed => ("partly failed", "bad"),
            OrderState::Failed => ("failed", "bad"),
            OrderState::Refused => ("refused", "note"),
            OrderState::Cancelled => ("cancelled", "note"),
        };
        OrderRow {
            id: head.order_id.to_string(),
            accepted: times.both(head.created_at),
            state,
            class,
            units: in_words(units, head.refused),
            external_order_id: head.external_order_id,
        }
    });
    Ok(Some(Found {
        partner,
        endpoints,
        orders: orders.collect(),
    }))
}

/// How many units an order has, and what they are at. Nothing becomes of those of a refused order.
fn in_words(units: Units, is_refused: bool) -> String {
    let total = counted(units.total, "eSIM", "eSIMs");
    if is_refused {
        return total;
    }
    let known = units.ready + units.returned + units.failed + units.on_hold;
    let parts = [
        (units.ready, "ready"),
        (units.returned, "given back"),
        (units.total - known, "under way"),
        (units.on_hold, "on hold"),
        (units.failed, "failed"),
    ];
    let parts = parts.into_iter().filter(|(of, _)| *of > 0);
    let parts: Vec<String> = parts
        .map(|(of, what)| format!("{} {what}", number(of)))
        .collect();
    format!("{total}: {}", parts.join(", "))
}

/// How the state of an endpoint is coloured.
pub(crate) fn endpoint_class(endpoint: &Endpoint) -> &'static str {
    match endpoint.state.known() {
        Some(EndpointState::Open) if endpoint.failures > 0 => "warn",
        Some(EndpointState::Open) => "good",
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
pub(crate) fn endpoint_state(endpoint: &Endpoint) -> Cow<'static, str> {
    if endpoint.state == EndpointState::Open {
        let is_well = endpoint.failures == 0;
        let word = if is_well {
            "takes webhooks"
        } else {
            "fails, is tried again"
        };
        return word.into();
    }
    endpoint.state.told(endpoint_words)
}

pub(super) fn endpoint_words(state: EndpointState) -> &'static str {
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
pub(crate) fn next_test(endpoint: &Endpoint, now: OffsetDateTime) -> Option<String> {
    let until = endpoint.blocked_until?;
    Some(if until > now {
        format!("next test {}", relative(now, until))
    } else {
        "a test is due now or under way".to_owned()
    })
}

/// The action that an endpoint offers to this session.
pub(crate) fn endpoint_form(
    endpoint: &Endpoint,
    session: &Session,
    back: &str,
) -> Option<ReasonForm> {
    if !session.may(Role::Support) || endpoint.state == EndpointState::NoUrl {
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
fn further_forms(endpoint: &Endpoint, session: &Session, back: &str) -> Vec<ReasonForm> {
    if endpoint.webhook_url.is_none() {
        return Vec::new();
    }
    let id = endpoint.endpoint_id;
    let is_paused = matches!(
        endpoint.state.known(),
        Some(EndpointState::Paused | EndpointState::PausedByPartner)
    );
    let test = (session.may(Role::Support) && !is_paused).then(|| ReasonForm {
        consequence: "A webhook of the kind webhook.test is sent at once, even if the endpoint is blocked. If it is \
                      acknowledged, the block ends."
            .to_owned(),
        ..ReasonForm::new(session, "Send a test", format!("/endpoints/{id}/test"))
    });
    let url = session.may(Role::Operator).then(|| ReasonForm {
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
fn resuming(endpoint: &Endpoint) -> String {
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
        "{first}. Webhooks that wait ({}) are sent at once; exhausted ones are not among them.",
        number(endpoint.pending)
    )
}

fn endpoint_row(
    endpoint: &Endpoint,
    session: &Session,
    back: &str,
    now: OffsetDateTime,
) -> EndpointRow {
    EndpointRow {
        host: endpoint.host(),
        class: endpoint_class(endpoint),
        state: endpoint_state(endpoint),
        until: next_test(endpoint, now).unwrap_or_default(),
        failures: number(endpoint.failures),
        waiting: number(endpoint.pending),
        exhausted: number(endpoint.exhausted),
        forms: endpoint_form(endpoint, session, back)
            .into_iter()
            .chain(further_forms(endpoint, session, back))
            .collect(),
        webhooks: format!(
            "/webhooks?partner={}&endpoint={}",
            endpoint.partner_id, endpoint.endpoint_id
        ),
    }
}

pub(crate) async fn pause(
    State(app): State<App>,
    given: Given,
    act: Act<Support>,
) -> Result<Response, Problem> {
    let endpoint = endpoint(&app, &given).await?;
    let target = format!("endpoint {}", endpoint.id);
    let action = act.action(
        domain::Command::EndpointPause,
        &target,
        act.fields.reason()?,
    );
    let seen = act.fields.get("seen").or(Some(""));
    app.database()
        .run(async |connection| {
            operator::endpoints::pause(connection, endpoint, seen, action).await
        })
        .await
        .map_err(|error| not_changed(error, &given, &act))?;
    Ok(act.done(
        &app,
        "The endpoint is paused: its webhooks wait until it is resumed.",
    ))
}

pub(crate) async fn resume(
    State(app): State<App>,
    given: Given,
    act: Act<Support>,
) -> Result<Response, Problem> {
    let endpoint = endpoint(&app, &given).await?;
    let target = format!("endpoint {}", endpoint.id);
    let action = act.action(
        domain::Command::EndpointResume,
        &target,
        act.fields.reason()?,
    );
    let seen = act.fields.get("seen").or(Some(""));
    let due = app
        .database()
        .run(async |connection| {
            operator::endpoints::resume(connection, endpoint, seen, action).await
        })
        .await
        .map_err(|error| not_changed(error, &given, &act))?;
    let text = format!(
        "Webhooks are sent to the endpoint again; due now: {}.",
        number(due)
    );
    Ok(act.done(&app, &text))
}

/// Sends a test webhook, and leads to its page.
pub(crate) async fn test(
    State(app): State<App>,
    given: Given,
    act: Act<Support>,
) -> Result<Response, Problem> {
    let endpoint = endpoint(&app, &given).await?;
    let target = format!("endpoint {}", endpoint.id);
    let action = act.action(domain::Command::EndpointTest, &target, act.fields.reason()?);
    let mut refused = None;
    let sent = app
        .database()
        .run(async |connection| {
            let send = async |transaction: &mut PgConnection| {
                Ok(
                    match events::test(transaction, endpoint, BETWEEN_TESTS).await? {
                        Tested::Due(id) => Some((id, Changed::default())),
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
            Some(Tested::TooSoon(_)) => {
                "It was tested within the last seconds. If you have sent the form twice, the first one was carried out."
            }
            Some(Tested::Paused) => "It is paused, so nothing is sent to it. Resume it first.",
            Some(Tested::NoEndpoint | Tested::Due(_)) | None => "It has no URL.",
        };
        act.not_done("No test was sent", why)
    })?;
    let path = format!("/webhooks/{id}");
    Ok(said::after(&app, &path, "The test is sent now."))
}

/// Shows the whole URL of an endpoint, and records that.
pub(crate) async fn show_url(
    State(app): State<App>,
    given: Given,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let endpoint = endpoint(&app, &given).await?;
    let target = format!("endpoint {}", endpoint.id);
    let action = act.action(domain::Command::ShowUrl, &target, act.fields.reason()?);
    let read = async |connection: &mut PgConnection| {
        let all = endpoints::list(&mut *connection, Some(endpoint.partner_id)).await?;
        let id = endpoint.id.uuid();
        let url = all.into_iter().find(|one| one.endpoint_id == id);
        let url = url.and_then(|one| one.webhook_url);
        if url.is_some() {
            actions::record(connection, action, 0).await?;
        }
        Ok::<_, pg::Error>(url)
    };
    let url = app.database().run(read).await?;
    let url = url.ok_or_else(|| act.not_done("It has no URL", "There is nothing to show."))?;
    page(&Once {
        shell: Shell::new(&app, &act.session, "/partners", "Webhook URL"),
        text: "It may hold a secret of the partner: show it to nobody else.".to_owned(),
        secrets: vec![Named {
            name: "URL",
            value: url,
        }],
        back: local_path(act.fields.get("back")),
    })
}

fn not_changed(error: NotChanged, given: &Given, act: &Act<Support>) -> Problem {
    match error {
        NotChanged::Unknown => given.missing("endpoint"),
        NotChanged::Store(error) => error.into(),
        NotChanged::Changed { now, .. } => act.changed(&format!(
            "the endpoint has changed since the page was shown, and is {} now",
            now.told(endpoint_words)
        )),
    }
}

/// The endpoint that a form is about.
async fn endpoint(app: &App, given: &Given) -> Result<EndpointKey, Problem> {
    let id: EndpointId = given.id("an endpoint")?;
    let key = app
        .database()
        .run(async |connection| endpoints::key(connection, id).await);
    key.await?.ok_or_else(|| given.missing("endpoint"))
}
