//! An order from its acceptance to the partner's 200: its sentence, its timeline, its purchases and
//! units, and the actions on them.

use std::borrow::Cow;

use accounts::partners;
use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::{
    deliveries,
    orders::{self, OrderView, PlacementView, TopupView},
    placements::{self, Decision, PlacementNotResolved, ResolvedPlacement},
    route, story,
    words::noun,
};
use domain::{
    Agreed, OrderId, PlacementId, PlacementState, WebhookId,
    placement::Resolution,
    standing::{self, DeliveryState, Standing},
};
use pg::{PgConnection, actions::Mode};
use store::deliveries::{
    endpoints::{self, ListedEndpoint},
    resends::DeliveryFilter,
};

use crate::{
    App,
    access::{Act, ConsoleSession, Operator, OperatorRole, Support, Viewer, Visit},
    format::{counted, number, took},
    pages::{
        esim_changes::{self, HeldChange},
        forms::ReasonForm,
        settle,
        steps::step,
        track::{self, Mark, held},
    },
    pictures::OrderStep,
    problem::Problem,
    times::{TimeElement, Times},
    view::{PathArgument, Shell, page},
};

/// How many units the page shows. An order may have a thousand; the raw detail has all of them.
const UNITS: usize = 50;
/// How many steps the list shows.
const STEPS: usize = 200;

#[derive(Template)]
#[template(path = "order.html")]
struct Page {
    shell: Shell,
    token: String,
    order: OrderView,
    partner: String,
    sentence: String,
    accepted: TimeElement,
    age: TimeElement,
    /// The path of this page, to which its forms lead back.
    back: String,
    trace: Option<Trace>,
    products: String,
    /// The state of its eSIMs in a word, and its colour.
    state: (String, &'static str),
    track: Vec<Mark>,
    /// Whether it goes on, so that the page refreshes itself.
    live: bool,
    steps: Vec<StepRow>,
    /// How many steps are not listed, if any.
    more_steps: Option<String>,
    placements: Vec<PlacementRow>,
    may_resolve: bool,
    units: Vec<UnitRow>,
    /// The act on the webhooks of all its eSIMs, if there are several.
    resend_all: Option<ReasonForm>,
    all_units: String,
    raw: String,
}

struct Trace {
    id: String,
    link: Option<String>,
}

struct StepRow {
    class: &'static str,
    at: TimeElement,
    /// The time since the order was received, as in the bar of its way.
    age: String,
    text: String,
    took: String,
    /// Whether it is an action that found nothing to change.
    changed_nothing: bool,
}

struct PlacementRow {
    id: String,
    provider: String,
    lane: String,
    state: Cow<'static, str>,
    class: &'static str,
    attempt: i32,
    reference: String,
    reason: String,
    /// The providers that have rejected it, and those that may follow or may have it.
    route: Option<String>,
    parked: bool,
    /// When a provisioner looks at it next; empty if nothing of it is to come.
    next: TimeElement,
    /// What its form offers. Nothing is delivered for an order that was answered with 422, and what
    /// has an eSIM already would be bought twice.
    may_be_bought: bool,
    may_be_retried: bool,
    /// The further providers that a person may find to have it.
    others: Vec<String>,
    /// The state and attempt that the page shows, which the action compares.
    seen: String,
}

/// An eSIM of the order.
pub(super) struct UnitRow {
    pub(super) id: String,
    pub(super) option: String,
    pub(super) state: &'static str,
    pub(super) class: &'static str,
    pub(super) facts: Vec<UnitFact>,
    /// One for each endpoint.
    pub(super) webhooks: Vec<SentRow>,
    /// Its changes on hold of which this session may say what became.
    pub(super) changes: Vec<HeldChange>,
    pub(super) delivery: String,
    /// The state and the attempts of the delivery that the page shows, which the action compares:
    /// after it was sent again it is in the same state.
    pub(super) seen: String,
    /// Whether this session may send its webhook again.
    pub(super) resend: bool,
    /// Why it cannot be sent again now, although it is not delivered.
    pub(super) held: Option<String>,
    /// Whether this session may see its activation code.
    pub(super) code: bool,
}

/// Something that is said of an eSIM beside its state and its webhooks.
pub(super) struct UnitFact {
    pub(super) name: &'static str,
    pub(super) told: String,
    /// Whether it is an id, which people copy.
    pub(super) is_id: bool,
}

/// What both pages that show an eSIM say of it.
fn facts(order: &OrderView, unit: &TopupView) -> Vec<UnitFact> {
    // Every field is named, so that a new one cannot be forgotten. The option has its own link.
    let Agreed {
        option_id: _,
        price,
    } = &unit.agreed;
    let iccid = or_none(unit.iccid.as_ref());
    let why = unit.reason.told().or_else(|| unit.delivery_error.clone());
    let facts = [
        ("ICCID", Some(iccid), true),
        ("Why", why, false),
        ("Price", price.map(|price| price.to_string()), false),
        ("Installation", route::trouble(unit), false),
        ("Given back", route::give_back(unit), false),
    ];
    let extensions = order
        .extensions(unit)
        .map(|one| ("Extended", Some(route::extension(one)), false));
    let facts = facts.into_iter().chain(extensions);
    let known = facts.filter_map(|(name, told, is_id)| {
        let told = told?;
        Some(UnitFact { name, told, is_id })
    });
    known.collect()
}

/// The webhook of an eSIM to one endpoint.
pub(super) struct SentRow {
    /// Its page, which has the answer to each try.
    pub(super) path: Option<String>,
    pub(super) host: String,
    pub(super) state: &'static str,
    pub(super) class: &'static str,
    pub(super) tries: String,
    /// What the last try led to.
    pub(super) answer: String,
    /// Empty if it is not delivered.
    pub(super) delivered: TimeElement,
    /// When it is tried next, or what has to happen before; empty if it is not tried any more.
    pub(super) due: TimeElement,
}

/// The webhooks of a unit, that to the first endpoint first.
fn sent(
    order: &OrderView,
    unit: &TopupView,
    endpoints: &[ListedEndpoint],
    session: &ConsoleSession,
) -> Vec<SentRow> {
    let times = &session.times;
    let rows = order.sent(unit).into_iter().map(|one| {
        let id = one.endpoint_id.unwrap_or(order.partner_id);
        let its = endpoints.iter().find(|endpoint| endpoint.endpoint_id == id);
        let status = one.status.map(|status| format!("status {status}"));
        let answer = one.error.map(str::to_owned).or(status);
        let waits = matches!(
            one.standing,
            Standing::SentAgain | Standing::Sending | Standing::Held(_) | Standing::Failing
        );
        let state = its.and_then(|endpoint| endpoint.state.known());
        let hold = state.and_then(|state| standing::hold(state, order.silent()));
        SentRow {
            path: one.delivery_id.map(|id| format!("/webhooks/{id}")),
            host: its.map_or_else(|| "a removed endpoint".to_owned(), ListedEndpoint::host),
            state: one.standing.label(),
            class: track::class(one.standing),
            tries: number(one.attempts),
            answer: answer.unwrap_or_else(|| "–".to_owned()),
            delivered: one
                .delivered_at
                .map(|at| times.clock(at))
                .unwrap_or_default(),
            due: if waits {
                track::next_try(hold, one.endpoint_until, one.due_at, times)
            } else {
                TimeElement::default()
            },
        }
    });
    rows.collect()
}

pub(super) fn or_none<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

pub(crate) async fn show(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    // Only our own id names the page; the box finds orders by every other one.
    let id: OrderId = given.id("an order")?;
    let read = async |connection: &mut PgConnection| read(connection, id).await;
    let Some(found) = app.database().run(read).await? else {
        return Err(given.missing("order"));
    };
    let times = &visit.session.times;
    let order = found.order;
    let accepted = order.created_at;
    let steps = found.steps;
    let rows = steps.iter().take(STEPS).map(|step| StepRow {
        class: step.went.class(),
        at: times.clock(step.at),
        age: format!("+{}", took(step.at - accepted)),
        text: step.text.clone(),
        took: step.took.map_or_else(String::new, took),
        changed_nothing: step.changed_nothing,
    });
    let session = &visit.session;
    let shell = Shell::new(&app, session, "", order.external_order_id.clone());
    page(&Page {
        token: session.form_token(),
        partner: found.partner,
        sentence: found.sentence,
        accepted: times.clock(accepted),
        age: times.ago(accepted),
        back: format!("/orders/{id}"),
        trace: trace(&app, &order),
        products: track::products(&order),
        live: track::state(&order).1.is_empty(),
        state: track::state(&order),
        track: track::track(&order),
        steps: rows.collect(),
        more_steps: (steps.len() > STEPS).then(|| {
            let more = steps.len() - STEPS;
            let are = noun(more, "is", "are");
            format!(
                "{} {are} not listed",
                counted(more, "more step", "more steps")
            )
        }),
        placements: order
            .placements
            .iter()
            .map(|one| placement_row(&order, one, times))
            .collect(),
        may_resolve: session.may(OperatorRole::Operator),
        units: order
            .topups
            .iter()
            .take(UNITS)
            .map(|unit| unit_row(&app, &order, unit, (&found.endpoints, session)))
            .collect(),
        resend_all: resend_all_form(&order, session),
        all_units: number(order.topups.len()),
        raw: serde_json::to_string_pretty(&order).map_err(|error| Problem::Broken(error.into()))?,
        order,
        shell,
    })
}

/// The sentence for the partner alone, for who writes it into a ticket.
pub(crate) async fn sentence(
    State(app): State<App>,
    given: PathArgument,
    _visit: Visit<Viewer>,
) -> Result<String, Problem> {
    let id: OrderId = given.id("an order")?;
    let read = async |connection: &mut PgConnection| read(connection, id).await;
    let found = app.database().run(read).await?;
    let found = found.ok_or_else(|| given.missing("order"))?;
    Ok(format!("{}\n", found.sentence))
}

/// The trace of the create-order request, with its link if one is configured.
fn trace(app: &App, order: &OrderView) -> Option<Trace> {
    let id = order.traceparent.as_ref()?.split('-').nth(1)?.to_owned();
    // Only our own id becomes part of a link.
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let url = app.settings().trace_url.as_ref().filter(|_| is_id);
    Some(Trace {
        link: url.map(|url| url.replace("{trace_id}", &id)),
        id,
    })
}

fn placement_row(order: &OrderView, placement: &PlacementView, times: &Times) -> PlacementRow {
    let mut units = order.topups.iter();
    let has_units = units.any(|unit| unit.placement_id == placement.placement_id && unit.has_unit);
    PlacementRow {
        may_be_bought: !order.refused,
        may_be_retried: !order.refused && !has_units,
        id: placement.placement_id.to_string(),
        provider: placement.provider.clone(),
        lane: placement.lane.clone(),
        class: match placement.state.known() {
            Some(PlacementState::Placed) => "good",
            Some(PlacementState::Parked | PlacementState::Failed) | None => "bad",
            Some(PlacementState::Accepted | PlacementState::Placing | PlacementState::Refused) => {
                "note"
            }
        },
        state: placement.state.told(purchase_words),
        attempt: placement.attempt,
        reference: or_none(placement.provider_reference.as_ref()),
        reason: or_none(placement.reason.told()),
        route: route::route(placement),
        others: others(placement),
        parked: placement.state == PlacementState::Parked,
        next: next_step(order, placement, times),
        seen: placements::parking(placement.attempt, &placement.reason),
    }
}

/// When a purchase goes on: its next try, a look whether it was bought, or getting its eSIMs.
fn next_step(order: &OrderView, placement: &PlacementView, times: &Times) -> TimeElement {
    let due = placement.due_at.filter(|_| story::awaits(order, placement));
    match due {
        None => TimeElement::default(),
        Some(_) if order.silent().provisioner => TimeElement::words("once a provisioner works"),
        Some(due) if due > times.now => times.ago(due),
        Some(_) => TimeElement::words("due now"),
    }
}

/// The state of a purchase in words.
fn purchase_words(state: PlacementState) -> &'static str {
    match state {
        PlacementState::Accepted => "waits to be bought",
        PlacementState::Placing => "being bought",
        PlacementState::Placed => "bought",
        PlacementState::Parked => "on hold",
        PlacementState::Failed => "failed",
        PlacementState::Refused => "refused",
    }
}

/// The further providers of a placement, each once.
fn others(placement: &PlacementView) -> Vec<String> {
    let tried = placement.tried.iter().map(|tried| &tried.provider);
    let mut others: Vec<String> = placement
        .alternatives
        .iter()
        .chain(tried)
        .cloned()
        .collect();
    others.retain(|name| *name != placement.provider);
    others
}

/// Whether the webhook of a unit may be sent again now.
fn may_resend(order: &OrderView, unit: &TopupView, session: &ConsoleSession) -> bool {
    unit.ready_at.is_some()
        && unit.erased_at.is_none()
        && held(order, unit, session.times.now).is_none()
        && session.may(OperatorRole::Support)
        && unit
            .delivery
            .known()
            .is_some_and(DeliveryState::may_be_sent_again)
}

fn resend_all_form(order: &OrderView, session: &ConsoleSession) -> Option<ReasonForm> {
    let units = order.topups.iter();
    let may = units.clone().any(|unit| may_resend(order, unit, session));
    let sent: Vec<i64> = units
        .flat_map(|unit| order.sent(unit))
        .map(|one| i64::from(one.attempts))
        .collect();
    (may && sent.len() > 1).then(|| ReasonForm {
        consequence:
            "What is ready of this order is sent again to all endpoints, with the same webhook-ids."
                .to_owned(),
        seen: sent.iter().sum::<i64>().to_string(),
        back: format!("/orders/{}", order.order_id),
        ..ReasonForm::new(
            session,
            "Send all its webhooks again",
            format!("/orders/{}/resend", order.order_id),
        )
    })
}

pub(super) fn unit_row(
    app: &App,
    order: &OrderView,
    unit: &TopupView,
    (endpoints, session): (&[ListedEndpoint], &ConsoleSession),
) -> UnitRow {
    let now = session.times.now;
    let held = held(order, unit, now);
    let is_ready = unit.ready_at.is_some() && unit.erased_at.is_none();
    let standing = order.standing(unit);
    let class = track::class(standing);
    let state = standing.label();
    UnitRow {
        id: unit.topup_id.clone(),
        option: unit
            .option_name
            .clone()
            .unwrap_or_else(|| unit.provider_option_id.clone()),
        class,
        state,
        facts: facts(order, unit),
        webhooks: sent(order, unit, endpoints, session),
        changes: if session.may(OperatorRole::Operator) {
            esim_changes::held(order, unit)
        } else {
            Vec::new()
        },
        delivery: unit.topup_id.clone(),
        seen: format!(
            "{} {}",
            unit.delivery.as_str().unwrap_or_default(),
            unit.delivery_attempts.unwrap_or_default()
        ),
        resend: may_resend(order, unit, session),
        held: held.filter(|_| is_ready),
        code: is_ready && session.may(OperatorRole::Support) && app.vault().is_some(),
    }
}

pub(crate) async fn resolve(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let id: PlacementId = given.id("a placement")?;
    let reason = act.fields.reason()?;
    let found = act.fields.get("found").and_then(settle::decided);
    let (resolution, command) =
        found.ok_or_else(|| Problem::Invalid("say what you found at the provider".into()))?;
    // The list always names one. It counts only if the purchase was found.
    let provider = act.fields.get("provider");
    let bought_at = provider.filter(|_| resolution == Resolution::Bought);
    let reference = act.fields.get("reference").map(str::trim);
    let reference = reference.filter(|text| !text.is_empty() && resolution == Resolution::Bought);
    let target = match bought_at {
        Some(provider) => format!("placement {id} at {provider}"),
        None => format!("placement {id}"),
    };
    let mode = Mode::Apply(act.action(command, &target, reason));
    let decision = Decision {
        resolution,
        bought_at,
        reference,
        seen: Some(act.fields.get("seen").unwrap_or_default()),
    };
    let resolved = app
        .database()
        .run(async |connection| placements::resolve(connection, id, decision, mode).await)
        .await
        .map_err(|error| not_resolved(error, &given, &act))?;
    Ok(act.done(&app, &describe(&resolved)))
}

/// Why a purchase was not resolved, in the words of the form on its order's page.
fn not_resolved(error: PlacementNotResolved, given: &PathArgument, act: &Act<Operator>) -> Problem {
    match error {
        PlacementNotResolved::Unknown => given.missing("placement"),
        PlacementNotResolved::Store(error) => error.into(),
        PlacementNotResolved::NotParked(state) => act.not_done(
            "The purchase no longer waits for you",
            format!(
                "The purchase is {} now, so nothing was changed: somebody has said what became of it, or a late response \
                 of the provider has. The timeline of its order shows which.",
                purchase_words(state)
            ),
        ),
        PlacementNotResolved::Changed(now) => act.changed(&format!(
            "the purchase was put on hold anew since the page was shown, and is at {now}"
        )),
        PlacementNotResolved::Refused => act.not_done(
            "Nothing may be delivered for this order",
            "The partner was told that nothing of this order is bought, by a 422 or because it cancelled the order. So \
             cancel the purchase at the provider first. Then say here that the provider does not have it or refunded it.",
        ),
        PlacementNotResolved::HasUnits => act.not_done(
            "The provider has sold it already",
            "The provider has named units of this purchase, so buying it again would be paid twice. Say instead that the \
             provider has the purchase: then the profiles that are missing are collected and delivered.",
        ),
        PlacementNotResolved::NotItsProvider(known) => act.not_done(
            "That provider cannot have it",
            format!(
                "The purchase was never sent to that provider and could not go there. Those that may have it: {known}."
            ),
        ),
        PlacementNotResolved::BoughtHere(provider) => act.not_done(
            "It is bought at two providers",
            format!(
                "{provider} has named units of this purchase, so it is bought there, too, and the partner needs it once. \
                 Cancel the purchase at the other provider. Then say here that {provider} has it."
            ),
        ),
        bad @ PlacementNotResolved::BadReference => Problem::Invalid(bad.to_string()),
    }
}

fn describe(resolved: &ResolvedPlacement) -> String {
    let what = match resolved.state {
        PlacementState::Placed => "It is bought; its eSIMs are collected now.".to_owned(),
        PlacementState::Accepted => {
            format!("It will be bought by try {}.", resolved.attempt + 1)
        }
        _ => "It is given up as not bought.".to_owned(),
    };
    format!(
        "{what} eSIMs of this purchase now: {} under way, {} failed, {} ready.",
        number(resolved.pending),
        number(resolved.failed),
        number(resolved.ready)
    )
}

struct Found {
    order: OrderView,
    partner: String,
    sentence: String,
    steps: Vec<OrderStep>,
    endpoints: Vec<ListedEndpoint>,
}

async fn read(connection: &mut PgConnection, id: OrderId) -> Result<Option<Found>, pg::Error> {
    let found = orders::find(&mut *connection, &id.to_string()).await?;
    let found = found.after_flush(&mut *connection).await?;
    let Some(order) = found.into_iter().find(|order| order.order_id == id.uuid()) else {
        return Ok(None);
    };
    let timeline = story::timeline(&mut *connection, &order).await?;
    let of = Some(order.partner_id.into());
    let endpoints = endpoints::list(&mut *connection, of).await?;
    let partner = partners::show(connection, &order.partner_id.to_string()).await?;
    Ok(Some(Found {
        partner: partner.map_or_else(|| order.partner_id.to_string(), |partner| partner.name),
        sentence: story::sentence(&order, runtime::clock::now()),
        steps: timeline
            .into_iter()
            .filter_map(|moment| step(moment, &order))
            .collect(),
        endpoints,
        order,
    }))
}

/// Starts the retries of a webhook again, if it is still as the page showed it.
pub(crate) async fn resend(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Support>,
) -> Result<Response, Problem> {
    let webhook: WebhookId = given.id("a webhook")?;
    let reason = act.fields.reason()?;
    let seen = act.fields.get("seen").and_then(|seen| seen.split_once(' '));
    let seen = seen.and_then(|(state, attempt)| Some((state.parse().ok()?, attempt.parse().ok()?)));
    let (state, attempt) = seen.ok_or_else(Problem::nothing_seen)?;
    let target = format!("delivery {webhook}");
    let mode = Mode::Apply(act.action(domain::Command::ResendStart, &target, reason));
    let sent = async |connection: &mut PgConnection| {
        let Some(id) = deliveries::find(&mut *connection, &webhook).await? else {
            return Ok(None);
        };
        let filter = DeliveryFilter {
            state: Some(state),
            attempt: Some(attempt),
            ..DeliveryFilter::default()
        };
        let resent = deliveries::resend_one(connection, id, &filter, mode).await?;
        Ok::<_, pg::Error>(Some(resent.resent))
    };
    let sent = app.database().run(sent).await?;
    if sent.ok_or_else(|| given.missing("webhook"))? == 0 {
        return Err(act.not_done(
            "It cannot be sent again now",
            "Since the page was shown the webhook has changed, an attempt is due or under way, or its eSIM was erased. \
             Its order's page shows which. If you have sent the form twice, the first one was carried out.",
        ));
    }
    let text = "It is due now, with the same webhook-id, and its retries begin anew. If its endpoint is blocked or paused, it \
                waits until that ends. Its order's page shows what becomes of it.";
    Ok(act.done(&app, text))
}

/// Sends the webhooks of all ready eSIMs of an order again.
pub(crate) async fn resend_all(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Support>,
) -> Result<Response, Problem> {
    let id: OrderId = given.id("an order")?;
    let target = format!("order {id}");
    let action = act.action(domain::Command::ResendStart, &target, act.fields.reason()?);
    let seen = act.fields.get("seen").and_then(|seen| seen.parse().ok());
    let seen: i64 = seen.ok_or_else(Problem::nothing_seen)?;
    let resent = app
        .database()
        .run(async |connection| {
            deliveries::resend_order(connection, id, seen, Mode::Apply(action)).await
        })
        .await?;
    if resent.resent == 0 {
        return Err(act.not_done(
            "They cannot be sent again now",
            "Since the page was shown one of them was tried, or each is due or under way, or was erased. The page of the \
             order shows which. If you have sent the form twice, the first one was carried out.",
        ));
    }
    let webhooks = counted(resent.resent, "webhook is", "webhooks are");
    let text = format!(
        "{webhooks} due now, with the same webhook-ids. One whose endpoint is blocked or paused waits until that ends."
    );
    Ok(act.done(&app, &text))
}
