//! The pipeline from left to right: what waits in each stage, how old it is, and how fast it drains.
//!
//! The figures are read once for all viewers and kept for some seconds, so that many open pages cost
//! the database no more than one. The page says how old they are. htmx asks for the figures alone
//! and puts them in place; without JavaScript the whole page is asked for.

use std::{
    cmp::Reverse,
    sync::Arc,
    time::{Duration, Instant},
};

use askama::Template;
use axum::{extract::State, response::Response};
use axum_htmx::HxRequest;
use store::{
    PgConnection,
    deliveries::endpoints::{self, Endpoint},
    operator::{
        self,
        figures::{Drain, Queue},
        hourly::{self, Hour},
    },
    providers::{self, BreakerState, ProviderBreaker},
};
use time::OffsetDateTime;
use tokio::sync::Mutex;

use crate::{
    App,
    access::{Viewer, Visit},
    format::{number, took},
    pages::partner::{endpoint_class, endpoint_state},
    pictures::sparkline,
    problem::Problem,
    view::{Shell, page},
};

/// How long figures are shown before they are read again.
const FRESH: Duration = Duration::from_secs(4);
/// How old the look is, at most about, with which the newest one is compared to see what drains.
const COMPARED: Duration = Duration::from_mins(1);
/// The hours of the sparklines.
const HOURS: i32 = 24;
/// The most endpoints of the page.
const ENDPOINTS: usize = 20;

#[derive(Template)]
#[template(path = "overview.html")]
struct Page {
    shell: Shell,
    paused: bool,
    age: String,
    stages: Vec<StageView>,
    providers: Vec<ProviderView>,
    endpoints: Vec<EndpointView>,
    most_endpoints: usize,
}

#[derive(Template)]
#[template(path = "figures.html")]
struct Figures {
    age: String,
    stages: Vec<StageView>,
    providers: Vec<ProviderView>,
    endpoints: Vec<EndpointView>,
    most_endpoints: usize,
}

pub(crate) struct StageView {
    name: &'static str,
    /// What waits now; `None` where nothing can wait.
    waiting: Option<String>,
    oldest: Option<String>,
    rate: String,
    sparks: Vec<Spark>,
}

struct Spark {
    picture: String,
    caption: String,
}

struct ProviderView {
    name: String,
    breaker: &'static str,
    class: &'static str,
    reason: String,
    due: String,
    oldest: String,
    drain: String,
}

struct EndpointView {
    partner_id: String,
    partner: String,
    host: String,
    state: String,
    class: &'static str,
    due: String,
    waiting: String,
    drain: String,
    exhausted: String,
}

/// What one look at the database has read.
struct Look {
    at: Instant,
    /// The time of the database.
    now: OffsetDateTime,
    backlogs: operator::figures::Figures,
    breakers: Vec<ProviderBreaker>,
    endpoints: Vec<Endpoint>,
    hours: Vec<Hour>,
}

/// The newest look, and an older one to compare it with.
#[derive(Default)]
struct Looks {
    newest: Option<Arc<Look>>,
    earlier: Option<Arc<Look>>,
}

/// The looks that all viewers share.
#[derive(Default)]
pub(crate) struct Shared(Mutex<Looks>);

impl Shared {
    /// The figures of the newest look. It is taken again if it is not fresh any more; viewers that
    /// ask meanwhile wait for the same one.
    async fn figures(&self, app: &App) -> Result<Figures, Problem> {
        let mut looks = self.0.lock().await;
        let fresh = looks
            .newest
            .as_ref()
            .filter(|look| look.at.elapsed() < FRESH);
        let newest = if let Some(fresh) = fresh {
            Arc::clone(fresh)
        } else {
            let look = Arc::new(app.database().run(look).await?);
            let before = looks.newest.replace(Arc::clone(&look));
            let is_old = |look: &Arc<Look>| look.at.elapsed() > COMPARED;
            if looks.earlier.as_ref().is_none_or(is_old) {
                looks.earlier = before;
            }
            look
        };
        Ok(figures(&newest, looks.earlier.as_deref()))
    }
}

async fn look(connection: &mut PgConnection) -> Result<Look, store::Error> {
    let backlogs = operator::figures::read(&mut *connection).await?;
    let mut endpoints = endpoints::list(&mut *connection, None).await?;
    endpoints.retain(|endpoint| endpoint.pending > 0);
    endpoints.sort_by_key(|endpoint| Reverse(endpoint.pending));
    endpoints.truncate(ENDPOINTS);
    Ok(Look {
        now: backlogs.at,
        backlogs,
        endpoints,
        breakers: providers::list(&mut *connection).await?,
        hours: hourly::list(connection, HOURS).await?,
        at: Instant::now(),
    })
}

/// How long the oldest row has been overdue.
fn overdue(seconds: f64) -> String {
    if seconds <= 0.0 {
        "nothing is overdue".into()
    } else {
        took(time::Duration::seconds_f64(seconds))
    }
}

/// The time until a queue is empty.
fn drains(newest: &Look, earlier: Option<&Look>, queue: &Queue) -> String {
    // Compared with itself, a backlog is empty or not known yet.
    let earlier = earlier.unwrap_or(newest);
    let drain = newest.backlogs.drain(queue, &earlier.backlogs);
    match drain {
        Drain::Empty => "empty".into(),
        Drain::Seconds { seconds } => {
            let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
            format!("about {}", took(time::Duration::seconds(seconds)))
        }
        Drain::Never => "does not become less".into(),
        Drain::Unknown => "not known yet".into(),
    }
}

/// What of a stage's rows is counted.
type Counted = fn(&Hour) -> i64;

/// The last 24 hours of a stage, with hours in which nothing came.
fn spark(look: &Look, stage: &str, what: &str, counted: Counted) -> Spark {
    let this_hour = look.now.unix_timestamp() / 3_600;
    let of = |hour: i64| {
        let mut all = look.hours.iter();
        let found = all.find(|one| one.stage == stage && one.hour.unix_timestamp() / 3_600 == hour);
        found.map_or(0, counted)
    };
    let hours: Vec<i64> = (this_hour - i64::from(HOURS) + 1..=this_hour)
        .map(of)
        .collect();
    let sum: i64 = hours.iter().sum();
    let most = hours.iter().copied().max().unwrap_or_default();
    let caption = if sum == 0 {
        format!("{what}: none in the last {HOURS} hours")
    } else {
        format!(
            "{what}: {} in the last {HOURS} hours, at most {} in one hour",
            number(sum),
            number(most)
        )
    };
    Spark {
        picture: sparkline(&caption, &hours),
        caption,
    }
}

/// How many rows of a stage came within the hour that is not over yet, as a rate.
fn rate(look: &Look, stage: &str) -> String {
    let what = if stage == "placements" {
        "purchases"
    } else {
        "webhooks"
    };
    let hour = look.now.unix_timestamp() / 3_600;
    let seconds = look.now.unix_timestamp() % 3_600;
    let created = look
        .hours
        .iter()
        .find(|one| one.stage == stage && one.hour.unix_timestamp() / 3_600 == hour);
    let created = created.map_or(0, |one| one.created);
    format!(
        "{what} in this hour: {} (it began {} ago)",
        number(created),
        took(time::Duration::seconds(seconds))
    )
}

fn figures(look: &Look, earlier: Option<&Look>) -> Figures {
    let stage = |name, is_mine: fn(&Queue) -> bool, stage: &'static str, sparks| {
        let mine = look
            .backlogs
            .queues
            .iter()
            .filter(|(queue, _)| is_mine(queue));
        let due = mine.clone().map(|(_, backlog)| backlog.due).sum::<u64>();
        let oldest = mine.map(|(_, backlog)| backlog.oldest_overdue);
        StageView {
            name,
            waiting: Some(number(due)),
            oldest: Some(overdue(oldest.fold(0.0, f64::max))),
            rate: rate(look, stage),
            sparks,
        }
    };
    let provisioner = vec![
        spark(look, "placements", "bought within seconds", |hour| {
            hour.done
        }),
        spark(look, "placements", "failed or parked", |hour| hour.failed),
    ];
    let notifier = vec![
        spark(look, "deliveries", "delivered within seconds", |hour| {
            hour.done
        }),
        spark(look, "deliveries", "exhausted", |hour| hour.failed),
    ];
    Figures {
        age: took(look.at.elapsed().try_into().unwrap_or_default()),
        stages: vec![
            StageView {
                name: "Ingress",
                waiting: None,
                oldest: None,
                rate: rate(look, "placements"),
                sparks: vec![spark(look, "placements", "accepted purchases", |hour| {
                    hour.created
                })],
            },
            stage(
                "Provisioner",
                |queue| matches!(queue, Queue::Provider { .. }),
                "placements",
                provisioner,
            ),
            stage(
                "Notifier",
                |queue| matches!(queue, Queue::Endpoint { .. }),
                "deliveries",
                notifier,
            ),
        ],
        providers: providers_of(look, earlier),
        endpoints: look
            .endpoints
            .iter()
            .map(|one| endpoint(one, look, earlier))
            .collect(),
        most_endpoints: ENDPOINTS,
    }
}

fn providers_of(look: &Look, earlier: Option<&Look>) -> Vec<ProviderView> {
    let rows = look.backlogs.queues.iter().filter_map(|(queue, backlog)| {
        let Queue::Provider { name } = queue else {
            return None;
        };
        let breaker = look.breakers.iter().find(|one| one.name == *name);
        let state = breaker.map(|breaker| breaker.state);
        Some(ProviderView {
            name: name.clone(),
            breaker: state.map_or("no provisioner has served it yet", BreakerState::as_str),
            class: match state {
                Some(BreakerState::Closed) => "good",
                Some(BreakerState::Open) => "bad",
                Some(BreakerState::HalfOpen) | None => "note",
            },
            reason: breaker
                .and_then(|breaker| breaker.reason.clone())
                .unwrap_or_default(),
            due: number(backlog.due),
            oldest: overdue(backlog.oldest_overdue),
            drain: drains(look, earlier, queue),
        })
    });
    rows.collect()
}

fn endpoint(endpoint: &Endpoint, look: &Look, earlier: Option<&Look>) -> EndpointView {
    let queue = Queue::Endpoint {
        endpoint_id: endpoint.endpoint_id,
        partner_id: endpoint.partner_id,
    };
    EndpointView {
        partner_id: endpoint.partner_id.to_string(),
        partner: endpoint.name.clone(),
        host: endpoint.host(),
        class: endpoint_class(&endpoint.state),
        state: endpoint_state(endpoint),
        due: number(
            look.backlogs
                .queues
                .get(&queue)
                .map_or(0, |backlog| backlog.due),
        ),
        waiting: number(endpoint.pending),
        drain: drains(look, earlier, &queue),
        exhausted: number(endpoint.exhausted),
    }
}

pub(crate) async fn show(
    State(app): State<App>,
    HxRequest(in_place): HxRequest,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let figures = app.figures().figures(&app).await?;
    let answer = if in_place {
        page(&figures)?
    } else {
        page(&Page {
            shell: Shell::new(&visit.session, "/", "Overview"),
            paused: visit.query.get("paused").is_some(),
            age: figures.age,
            stages: figures.stages,
            providers: figures.providers,
            endpoints: figures.endpoints,
            most_endpoints: figures.most_endpoints,
        })?
    };
    Ok(answer)
}
