//! A partner: what is to be known of it, its endpoints and its newest orders. Its refused requests
//! ([`super::refusals`]) and its keys and limits ([`super::keys`]) have pages of their own.

use std::{borrow::Cow, collections::HashMap};

use accounts::partners::{self, Partner};
use askama::Template;
use axum::{extract::State, response::Response};
use desk::{
    operator::{
        self, health, order_list,
        partner_day::{self, LastAnswers, PartnerDay, PartnerHour},
        partners_lately,
    },
    self_service::{self, NoticeChannel, OrderPage, OrderState, Units},
};
use domain::{PartnerId, standing::EndpointState};
use pg::PgConnection;
use store::{
    deliveries::endpoints::{self, ListedEndpoint},
    figures::{self, Count, Measure},
};
use time::{Duration, OffsetDateTime};
use uuid::Uuid;

use crate::{
    App,
    access::{ConsoleSession, OperatorRole, Viewer, Visit},
    format::{brief, counted, measured, number},
    pages::{
        endpoints::{
            endpoint_class, endpoint_form, endpoint_state, endpoint_words, further_forms,
            next_test, since,
        },
        forms::ReasonForm,
        issues::Issue,
        orders,
        overview::usually,
        partner_checks::{self, Check},
        partner_health::{self, PartnerFacts},
    },
    pictures::{Chart, taken_and_not},
    problem::Problem,
    times::{TimeElement, Times},
    view::{PathArgument, Shell, page},
};

/// How many orders the page shows. The list of orders has the others.
const RECENT: u32 = 10;
/// The hours of the figures.
const HOURS: i32 = 24;

#[derive(Template)]
#[template(path = "partner.html")]
struct Page {
    shell: Shell,
    head: PartnerHead,
    verdict: String,
    class: &'static str,
    /// What is to be known beside the verdict.
    sentence: String,
    issues: Vec<Issue>,
    /// The texts of all of them for the partner, as one.
    text: String,
    checks: [Check; 12],
    day: DayView,
    last: TimeElement,
    endpoints: Vec<EndpointRow>,
    /// The state of its channel for notices, how that is coloured, and where it is.
    channel: Option<(Cow<'static, str>, &'static str, String)>,
    /// How long the oldest of its webhooks or purchases has waited.
    oldest: String,
    orders: Vec<OrderRow>,
    recent: u32,
}

/// What all pages of a partner begin with.
pub(crate) struct PartnerHead {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) environment: String,
    pub(crate) state: Cow<'static, str>,
    pub(crate) class: &'static str,
    /// The page that it is.
    pub(crate) tab: &'static str,
    /// How many webhooks wait and requests were refused, on the page that knows it.
    pub(crate) counts: Option<(String, String)>,
    /// Whether the viewer may send its webhooks again, and end a key of it.
    pub(crate) may: bool,
    pub(crate) may_end: bool,
}

impl PartnerHead {
    pub(crate) fn new(partner: &Partner, tab: &'static str, session: &ConsoleSession) -> Self {
        let (state, class) = standing(partner);
        Self {
            id: partner.partner_id.to_string(),
            name: partner.name.clone(),
            environment: partner.environment.clone(),
            state: state.into(),
            class,
            tab,
            counts: None,
            may: session.may(OperatorRole::Operator),
            may_end: session.may(OperatorRole::Support)
                && partner.has_secret_key
                && !(partner.keys_ended && partner.old_access_key.is_none()),
        }
    }
}

/// What it did in the last day.
struct DayView {
    orders: String,
    /// How often it sends one.
    usual: String,
    half: String,
    most: String,
    refused: String,
    /// Its orders by the hour.
    chart: Chart,
}

struct EndpointRow {
    host: String,
    id: String,
    /// Since when it has not taken its webhooks.
    since: TimeElement,
    /// Which share of the tries of a day it has acknowledged, and how long it took.
    taken: String,
    took: String,
    /// When it took a webhook last, when it did not, and what that failure was.
    taken_at: TimeElement,
    failed_at: TimeElement,
    failure: String,
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
    products: String,
    external_order_id: String,
    accepted: TimeElement,
    state: &'static str,
    class: &'static str,
    units: String,
}

/// Whether a partner may order, and how that is coloured.
pub(crate) fn standing(partner: &Partner) -> (&'static str, &'static str) {
    if partner.disabled_at.is_some() {
        ("disabled", "bad")
    } else {
        ("enabled", "note")
    }
}

pub(crate) async fn show(
    State(app): State<App>,
    given: PathArgument,
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
    let report = &look.report;
    let known = &found.known;
    let issues = partner_health::issues(known, report, &visit.session);
    let texts: Vec<&str> = issues
        .iter()
        .filter_map(|one| one.text.as_deref())
        .collect();
    let (class, verdict, sentence) = partner_health::verdict(known, &issues, times);
    let waiting: i64 = known.endpoints.iter().map(|one| one.pending).sum();
    let mut head = PartnerHead {
        counts: Some((number(waiting), number(known.day.refused))),
        ..PartnerHead::new(&known.partner, "health", &visit.session)
    };
    if known.partner.disabled_at.is_none()
        && let Some(lately) = partner_health::lately(known, times)
    {
        (head.state, head.class) = (format!("{lately} taken").into(), class);
    }
    page(&Page {
        shell: Shell::new(&app, &visit.session, "/partners", &known.partner.name),
        head,
        verdict,
        class,
        sentence,
        text: texts.join(" "),
        checks: partner_checks::checks(known, report, times),
        issues,
        day: day(&known.day, times),
        endpoints: known
            .endpoints
            .iter()
            .map(|endpoint| {
                let count = known.attempts.get(&endpoint.endpoint_id.to_string());
                let last = found.answers.get(&endpoint.endpoint_id);
                endpoint_row((endpoint, count, last), &visit.session, &back, now)
            })
            .collect(),
        channel: found.channel.as_ref().map(channel),
        last: known.last.map(|at| times.ago(at)).unwrap_or_default(),
        oldest: known.oldest(report, times),
        orders: found.orders,
        recent: RECENT,
    })
}

/// The channel for notices. Of a URL only the host is shown, as of those for webhooks.
fn channel(channel: &NoticeChannel) -> (Cow<'static, str>, &'static str, String) {
    let place = match channel.target.strip_prefix("mailto:") {
        Some(address) => format!("e-mail to {address}"),
        None => match url::Url::parse(&channel.target) {
            Ok(url) => format!("webhooks to {}", url.host_str().unwrap_or("its host")),
            Err(_) => "webhooks".to_owned(),
        },
    };
    if channel.verified_at.is_none() {
        return ("not verified yet".into(), "warn", place);
    }
    let is_well = channel.state == EndpointState::Open && channel.failures == 0;
    if is_well {
        ("verified".into(), "good", place)
    } else {
        (channel.state.told(endpoint_words), "warn", place)
    }
}

struct Found {
    known: PartnerFacts,
    /// The last answers, by endpoint.
    answers: HashMap<Uuid, LastAnswers>,
    /// Where it gets notices about its endpoints.
    channel: Option<NoticeChannel>,
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
    let orders = orders.after_flush(&mut *connection).await?;
    let last = orders.first().map(|(head, ..)| head.created_at);
    let silent = last.map(|last| (last, id.uuid())).into_iter().collect();
    let quiet = partners_lately::quiet(&mut *connection, silent, times.now).await?;
    let ids: Vec<Uuid> = orders
        .iter()
        .map(|(head, ..)| head.order_id.uuid())
        .collect();
    let undelivered = operator::orders::undelivered(&mut *connection, &ids).await?;
    let contents = order_list::contents(&mut *connection, &ids).await?;
    let subjects: Vec<String> = endpoints
        .iter()
        .map(|one| one.endpoint_id.to_string())
        .collect();
    let attempts = figures::of_subjects(&mut *connection, Measure::Attempt, &subjects, HOURS);
    let attempts = attempts.await?;
    let day = partner_day::read(&mut *connection, id, times.now).await?;
    let answers = partner_day::last_answers(&mut *connection, id).await?;
    let channel = self_service::channel(&mut *connection, id).await?;
    let waiting = health::partner::waiting(&mut *connection, id, times.now).await?;
    let waiting = waiting.after_flush(&mut *connection).await?;
    let orders = orders.into_iter().map(|(head, units, _)| {
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
            products: contents
                .get(&head.order_id.uuid())
                .map(orders::in_words)
                .unwrap_or_default(),
            units: in_words(units, head.refused),
            external_order_id: head.external_order_id,
        }
    });
    Ok(Some(Found {
        known: PartnerFacts {
            partner,
            further: partners::keys::list(&mut *connection, id, None).await?,
            endpoints,
            attempts,
            day,
            last,
            waiting,
            usual: quiet.into_values().next(),
        },
        answers,
        channel,
        orders: orders.collect(),
    }))
}

/// How many of all tries were acknowledged.
fn taken(count: &Count) -> String {
    let taken = count.n.saturating_sub(count.failed);
    format!("{} of {}", number(taken), counted(count.n, "try", "tries"))
}

/// The figures of the last day, and its orders by the hour.
fn day(day: &PartnerDay, times: &Times) -> DayView {
    let seconds = |of: Option<f64>| {
        of.map_or_else(|| "–".to_owned(), |of| measured(Duration::seconds_f64(of)))
    };
    let now = times.now.unix_timestamp().div_euclid(3_600);
    let hours = (now - i64::from(HOURS) + 1..=now)
        .filter_map(|hour| OffsetDateTime::from_unix_timestamp(hour * 3_600).ok());
    let hours: Vec<(String, PartnerHour)> = hours
        .map(|at| {
            let hour = day.hours.get(&at).copied().unwrap_or_default();
            (times.axis(at, false), hour)
        })
        .collect();
    let counts = |of: fn(&PartnerHour) -> u64| hours.iter().map(|(_, hour)| of(hour)).collect();
    let counts: [Vec<u64>; 2] = [counts(|hour| hour.taken), counts(|hour| hour.failed)];
    let axis: Vec<String> = hours.iter().map(|(at, _)| at.clone()).collect();
    let plus = if day.is_part() { "+" } else { "" };
    let orders = day.orders();
    let between = i32::try_from(orders).ok().filter(|orders| *orders > 1);
    let between = between.map(|orders| Duration::hours(24) / orders);
    DayView {
        orders: format!("{}{plus}", number(orders)),
        usual: between
            .filter(|_| !day.is_part())
            .map(|between| format!("one in {} on average", brief(between)))
            .unwrap_or_default(),
        half: seconds(day.half),
        most: seconds(day.most),
        refused: number(day.refused),
        chart: taken_and_not("The last 24 hours", &counts, &axis),
    }
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
fn endpoint_row(
    (endpoint, count, last): (&ListedEndpoint, Option<&Count>, Option<&LastAnswers>),
    session: &ConsoleSession,
    back: &str,
    now: OffsetDateTime,
) -> EndpointRow {
    let is_open = endpoint.state == EndpointState::Open && endpoint.failures == 0;
    let takes = is_open && count.is_some_and(|count| count.n > count.failed);
    EndpointRow {
        host: endpoint.host(),
        id: endpoint.endpoint_id.to_string(),
        since: since(endpoint)
            .map(|since| session.times.both(since))
            .unwrap_or_default(),
        taken: count.map_or_else(|| "none was sent".to_owned(), taken),
        took: usually(count).unwrap_or_else(|| "–".to_owned()),
        taken_at: last
            .and_then(|last| last.taken_at)
            .map(|at| session.times.both(at))
            .unwrap_or_default(),
        failed_at: last
            .and_then(|last| last.failed_at)
            .map(|at| session.times.both(at))
            .unwrap_or_default(),
        failure: last
            .and_then(|last| last.failure.clone())
            .unwrap_or_default(),
        class: if takes {
            "good"
        } else {
            endpoint_class(endpoint)
        },
        state: if takes {
            "takes webhooks".into()
        } else {
            endpoint_state(endpoint)
        },
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
