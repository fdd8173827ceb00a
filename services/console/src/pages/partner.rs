//! A partner: what is to be known of it, its endpoints, its newest orders, its refused requests, its limits
//! and keys.
//!
//! The hosts of webhook URLs are shown, not the URLs, because partners put secrets into them.

use std::borrow::Cow;

use accounts::{
    partners::{self, Partner},
    refused::{self, Refused},
};
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
use pg::PgConnection;
use store::deliveries::endpoints::{self, Endpoint};
use time::OffsetDateTime;

use crate::{
    App,
    access::{Act, Role, Session, Support, Viewer, Visit},
    format::{counted, number, relative, utc},
    pages::{
        account,
        forms::ReasonForm,
        issues::{Issue, issue},
    },
    problem::Problem,
    times::{Times, When},
    view::{Given, Shell, page},
};

/// How many orders the page shows.
const RECENT: u32 = 25;
/// How many refused requests of each kind the page shows.
const REFUSED: u32 = 15;

#[derive(Template)]
#[template(path = "partner.html")]
struct Page {
    shell: Shell,
    partner: PartnerView,
    verdict: String,
    class: &'static str,
    issues: Vec<Issue>,
    /// Whether the viewer may send webhooks again.
    may: bool,
    endpoints: Vec<EndpointRow>,
    /// The act on its account.
    account: Option<ReasonForm>,
    orders: Vec<OrderRow>,
    refused: Vec<RefusedRow>,
    recent: u32,
    most_refused: u32,
}

/// A refused request.
pub(crate) struct RefusedRow {
    pub(crate) partner_id: String,
    /// The name of the partner.
    pub(crate) partner: String,
    pub(crate) at: When,
    pub(crate) status: i32,
    pub(crate) errors: String,
    pub(crate) external_order_id: String,
    pub(crate) request: String,
    pub(crate) request_id: String,
    /// What is known of its sender, and how many like it are missing.
    pub(crate) note: String,
}

struct PartnerView {
    id: String,
    name: String,
    environment: String,
    state: &'static str,
    class: &'static str,
    access_key: String,
    old_keys: String,
    old_secret: String,
    limits: String,
    events: String,
}

struct EndpointRow {
    host: String,
    state: Cow<'static, str>,
    class: &'static str,
    until: String,
    failures: String,
    waiting: String,
    exhausted: String,
    form: Option<ReasonForm>,
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
    let partner = describe(&found.partner, now);
    page(&Page {
        shell: Shell::new(&app, &visit.session, "/partners", &partner.name),
        partner,
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
        account: account::form(&found.partner, &visit.session),
        orders: found.orders,
        refused: found.refused,
        recent: RECENT,
        most_refused: REFUSED,
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
    refused: Vec<RefusedRow>,
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
    let orders = orders.collect();
    let refused = refused::list(&mut *connection, id, REFUSED).await?;
    Ok(Some(Found {
        partner,
        endpoints,
        orders,
        refused: refused
            .into_iter()
            .map(|one| refused_row(one, times))
            .collect(),
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

pub(crate) fn refused_row(one: Refused, times: &Times) -> RefusedRow {
    let unproven =
        (one.kind == refused::Kind::Unsigned.as_str()).then(|| unproven(&one.reason).to_owned());
    let limit = (!one.errors.starts_with(&one.reason)).then(|| format!("limit: {}", one.reason));
    let unrecorded = (one.unrecorded > 0).then(|| {
        let number = number(one.unrecorded);
        format!("{number} more of this kind right before it were not kept")
    });
    let notes: Vec<String> = [unproven, limit, unrecorded]
        .into_iter()
        .flatten()
        .collect();
    RefusedRow {
        partner: (one.partner.clone()).unwrap_or_else(|| one.partner_id.to_string()),
        partner_id: one.partner_id.to_string(),
        at: times.both(one.at),
        status: one.status,
        request: format!("{} {}", one.method, one.path),
        request_id: one.request(),
        note: notes.join("; "),
        errors: one.errors,
        external_order_id: one.external_order_id.unwrap_or_else(|| "-".into()),
    }
}

/// What is known of a request that does not prove its sender, from the first error that it had. The
/// signature is looked at last, so most of them say nothing about it.
fn unproven(reason: &str) -> &'static str {
    match reason {
        "signature_invalid" => "the signature was not valid, so anybody may have sent it",
        // The key is one that we know, because other requests are not kept.
        "access_key_unknown" => {
            "the account was disabled, so the signature was not looked at, and anybody may have sent it"
        }
        _ => "refused before the signature was looked at, so anybody may have sent it",
    }
}

fn describe(partner: &Partner, now: OffsetDateTime) -> PartnerView {
    let (state, class) = standing(partner);
    let ends = |until: Option<OffsetDateTime>| match until {
        None => "none".to_owned(),
        Some(until) if until > now => {
            format!("valid until {} UTC, {}", utc(until), relative(now, until))
        }
        Some(until) => format!("ended {} UTC", utc(until)),
    };
    let limits = [
        ("orders in flight", partner.max_in_flight),
        ("requests per second", partner.requests_per_second),
        ("orders per second", partner.orders_per_second),
        ("units per second", partner.units_per_second),
    ];
    let limits = limits
        .into_iter()
        .filter_map(|(name, own)| Some(format!("{name} {}", number(own?))));
    let limits: Vec<String> = limits.collect();
    PartnerView {
        id: partner.partner_id.to_string(),
        name: partner.name.clone(),
        environment: partner.environment.clone(),
        state,
        class,
        access_key: partner.access_key.clone(),
        old_keys: ends(partner.old_keys_until),
        old_secret: ends(partner.old_webhook_secret_until),
        limits: if limits.is_empty() {
            "all as set for all partners".into()
        } else {
            format!(
                "of its own, for each ingress process: {}; all others as set for all partners",
                limits.join(", ")
            )
        },
        events: if partner.webhook_events.is_empty() {
            "none".into()
        } else {
            partner.webhook_events.join(", ")
        },
    }
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
    if endpoint.paused_by_partner {
        return "paused by the partner".into();
    }
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

/// What resuming an endpoint does, and what to know before.
fn resuming(endpoint: &Endpoint) -> String {
    let first = if endpoint.paused_by_partner {
        "The partner has paused this endpoint itself, so ask the partner first. The pause ends"
    } else if matches!(
        endpoint.state.known(),
        Some(EndpointState::Blocked | EndpointState::Probing)
    ) {
        "The block ends now; if the endpoint still fails, it begins again"
    } else {
        "The pause, which an operator has set, ends"
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
        form: endpoint_form(endpoint, session, back),
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
