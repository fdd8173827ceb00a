//! Whether the system works, in its first words; then what is wrong, since when, who feels it and what
//! to do; then the pipeline from left to right: whether each stage lives, what waits for it, how old
//! that is, and how fast it drains. What is wrong is what [`store::operator::health`] finds, as in
//! `esimctl attention`.
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
    deliveries::endpoints::Endpoint,
    figures::{Count, Counts, Figures as Counted, Measure, Span},
    operator::health::{
        self, Finding, Kind, Report,
        finding::Severity,
        stages::{Life, Stage},
        waiting::{Backlog, Drain, Queue},
    },
    providers::BreakerState,
};
use time::OffsetDateTime;
use tokio::sync::Mutex;

use crate::{
    App,
    access::{Viewer, Visit},
    format::{number, relative, took, utc},
    pages::partner::{endpoint_class, endpoint_state},
    pictures::sparkline,
    problem::Problem,
    view::{Shell, page},
};

/// How long figures are shown before they are read again. A dead stage has to be named within 15 s, of
/// which its silence takes ten.
const FRESH: Duration = Duration::from_secs(2);
/// How old the look is, at most about, with which the newest one is compared to see what drains.
const COMPARED: Duration = Duration::from_mins(1);
/// The hours of the sparklines.
const HOURS: i32 = 24;
/// The minutes of the latencies and errors.
const MINUTES: i32 = 10;
/// The most endpoints of the page.
const ENDPOINTS: usize = 20;
/// The most parked purchases that are read to see what is wrong.
const PARKED: i64 = 100;

#[derive(Template)]
#[template(path = "overview.html")]
struct Page {
    shell: Shell,
    paused: bool,
    age: String,
    verdict: String,
    wrong: Vec<FindingView>,
    mending: Vec<FindingView>,
    stages: Vec<StageView>,
    providers: Vec<ProviderView>,
    endpoints: Vec<EndpointView>,
    most_endpoints: usize,
}

#[derive(Template)]
#[template(path = "figures.html")]
struct Figures {
    age: String,
    verdict: String,
    wrong: Vec<FindingView>,
    mending: Vec<FindingView>,
    stages: Vec<StageView>,
    providers: Vec<ProviderView>,
    endpoints: Vec<EndpointView>,
    most_endpoints: usize,
}

/// What is wrong, or what ends by itself.
struct FindingView {
    class: &'static str,
    word: &'static str,
    what: String,
    since: String,
    age: String,
    felt: String,
    remedy: String,
    /// The page that shows it, or on which it is ended.
    page: Option<String>,
    see: String,
}

pub(crate) struct StageView {
    name: &'static str,
    /// How many processes run, and whether that is good.
    life: String,
    class: &'static str,
    /// What waits now; `None` where nothing can wait.
    waiting: Option<String>,
    oldest: Option<String>,
    /// What happened in the last minutes, each with how long it took.
    now: Vec<NowView>,
    sparks: Vec<Spark>,
}

struct NowView {
    what: &'static str,
    figures: String,
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
    calls: String,
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
    requests: String,
    exhausted: String,
}

/// What one look at the database has read.
struct Look {
    at: Instant,
    report: Report,
    /// The last 24 hours.
    hours: Vec<(OffsetDateTime, Counts)>,
    /// The last minutes, of everybody and of each provider and endpoint.
    now: Counts,
    subjects: Vec<(Measure, String, Count)>,
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
    let report = health::examine(&mut *connection, PARKED).await?;
    let hours = Counted::read(&mut *connection, Span::Hour, HOURS, false).await?;
    let now = Counted::read(connection, Span::Minute, MINUTES, true).await?;
    Ok(Look {
        report,
        hours: hours.by_time(),
        now: now.sums(),
        subjects: now.by_subject(),
        at: Instant::now(),
    })
}

fn finding(one: &Finding, now: OffsetDateTime) -> FindingView {
    let told = one.told();
    let (class, word) = match (told.needs_person, told.severity) {
        (false, _) => ("note", "ends by itself"),
        (true, Severity::Warning) => ("note", "look at it"),
        (true, Severity::Fault) => ("bad", "fault"),
    };
    FindingView {
        class,
        word,
        what: told.what,
        since: told.since.map(utc).unwrap_or_default(),
        age: told.since.map_or_else(
            || "since when is not stored".to_owned(),
            |since| relative(now, since),
        ),
        felt: told.felt.into_owned(),
        remedy: told.remedy.into_owned(),
        page: page_of(&one.kind),
        see: told.see,
    }
}

/// The page of the console on which somebody sees more of it or ends it.
fn page_of(kind: &Kind) -> Option<String> {
    match kind {
        Kind::Parked { purchases, .. } => Some(match &purchases[..] {
            [one] => format!("/orders/{}", one.order_id),
            _ => "/needs".to_owned(),
        }),
        Kind::GiveBacksParked { .. } | Kind::BreakerOpen { .. } | Kind::CommitsLost { .. } => {
            Some("/needs".to_owned())
        }
        Kind::Exhausted { endpoint } | Kind::Paused { endpoint } | Kind::Blocked { endpoint } => {
            Some(format!("/partners/{}", endpoint.partner_id))
        }
        Kind::StageDead { .. }
        | Kind::DatabaseDown { .. }
        | Kind::OnStandby
        | Kind::NotDurable { .. }
        | Kind::StandbyMissing
        | Kind::ClockOff { .. }
        | Kind::Wraparound { .. }
        | Kind::ProcessesMissing { .. }
        | Kind::Unserved { .. }
        | Kind::PurchasesLate { .. }
        | Kind::WebhooksLate { .. }
        | Kind::LanesHeldBack { .. }
        | Kind::ConnectionsFew { .. }
        | Kind::StandbyLags { .. }
        | Kind::LongTransaction { .. }
        | Kind::NotArchived
        | Kind::ArchiveLags { .. }
        | Kind::RetentionBehind { .. }
        | Kind::NotSynchronous
        | Kind::NatsDown { .. }
        | Kind::StreamMissing { .. }
        | Kind::ReplicasMissing { .. }
        | Kind::ConsumerMissing { .. }
        | Kind::DeadMessages { .. }
        | Kind::BackupOld { .. }
        | Kind::DrillOld { .. }
        | Kind::DiskFilling { .. } => None,
    }
}

/// How many processes of a stage run.
fn life(life: &Life) -> (String, &'static str) {
    match (life.running, life.missing) {
        (0, _) => ("does not run".to_owned(), "bad"),
        (1, 0) => ("1 process runs".to_owned(), "good"),
        (running, 0) => (format!("{} processes run", number(running)), "good"),
        (running, missing) => (
            format!(
                "{} of {} processes run",
                number(running),
                number(running.saturating_add(missing))
            ),
            "note",
        ),
    }
}

/// How long the oldest row has waited.
fn oldest(seconds: f64) -> String {
    if seconds <= 0.0 {
        "nothing waits".into()
    } else {
        took(time::Duration::seconds_f64(seconds))
    }
}

/// The time until a queue is empty.
fn drains(newest: &Look, earlier: Option<&Look>, queue: &Queue) -> String {
    // Compared with itself, a backlog is empty or not known yet.
    let earlier = earlier.unwrap_or(newest);
    let drain = newest.report.waiting.drain(queue, &earlier.report.waiting);
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

/// The last 24 hours of something, with hours in which it did not happen.
fn spark(look: &Look, measure: Measure, what: &str) -> Spark {
    let this_hour = look.report.at.unix_timestamp() / 3_600;
    let of = |hour: i64| {
        let mut all = look.hours.iter();
        let found = all.find(|(at, _)| at.unix_timestamp() / 3_600 == hour);
        let count = found.and_then(|(_, counts)| counts.get(&measure));
        count.map_or(0, |count| i64::try_from(count.n).unwrap_or(i64::MAX))
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

/// A count of the last minutes: how many, within which time half and 95 % of them ended, and how many
/// failed.
fn latency(count: Option<&Count>) -> String {
    let Some(count) = count.filter(|count| count.n > 0) else {
        return format!("none in the last {MINUTES} min");
    };
    let time = |share| {
        let within = count.within(share).unwrap_or_default();
        took(time::Duration::seconds_f64(within))
    };
    let failed = match count.failed_share() {
        Some(share) if count.failed > 0 => format!(", {:.1} % failed", share * 100.0),
        _ => String::new(),
    };
    format!(
        "{} in the last {MINUTES} min, half within {}, 95 % within {}{failed}",
        number(count.n),
        time(0.5),
        time(0.95)
    )
}

fn figures(look: &Look, earlier: Option<&Look>) -> Figures {
    let report = &look.report;
    let stage = |stage: Stage,
                 name,
                 of_providers: Option<bool>,
                 now: &[(&'static str, Measure)],
                 sparks| {
        let mine = report.stages.iter().find(|one| one.stage == stage);
        let (life, class) = mine.map_or_else(|| (String::new(), "note"), life);
        let waiting = of_providers.map(|of_providers| report.waiting.sum(of_providers));
        StageView {
            name,
            life,
            class,
            waiting: waiting.map(|(waiting, _)| number(waiting)),
            oldest: waiting.map(|(_, seconds)| oldest(seconds)),
            now: now
                .iter()
                .map(|(what, measure)| NowView {
                    what,
                    figures: latency(look.now.get(measure)),
                })
                .collect(),
            sparks,
        }
    };
    let sparks = |of: &[(Measure, &str)]| -> Vec<Spark> {
        of.iter()
            .map(|(measure, what)| spark(look, *measure, what))
            .collect()
    };
    let ingress = sparks(&[
        (Measure::Answered, "answered orders"),
        (Measure::Refused, "refused by the provider"),
    ]);
    let provisioner = sparks(&[
        (Measure::Bought, "bought"),
        (Measure::Failed, "failed eSIMs"),
        (Measure::Parked, "parked eSIMs"),
    ]);
    let notifier = sparks(&[
        (Measure::Delivered, "delivered eSIMs"),
        (Measure::Exhausted, "webhooks given up"),
    ]);
    let mut endpoints: Vec<&Endpoint> = report.endpoints.iter().collect();
    endpoints.retain(|endpoint| endpoint.pending > 0);
    endpoints.sort_by_key(|endpoint| Reverse(endpoint.pending));
    endpoints.truncate(ENDPOINTS);
    Figures {
        age: took(look.at.elapsed().try_into().unwrap_or_default()),
        verdict: report.verdict(),
        wrong: report.needed().map(|one| finding(one, report.at)).collect(),
        mending: report
            .mending()
            .map(|one| finding(one, report.at))
            .collect(),
        stages: vec![
            stage(
                Stage::Ingress,
                "Ingress",
                None,
                &[("Order to answer", Measure::Answered)],
                ingress,
            ),
            stage(
                Stage::Provisioner,
                "Provisioner",
                Some(true),
                &[
                    ("Order to bought", Measure::Bought),
                    ("Calls to providers", Measure::Call),
                ],
                provisioner,
            ),
            stage(
                Stage::Notifier,
                "Notifier",
                Some(false),
                &[
                    ("Order to delivered", Measure::Delivered),
                    ("Webhook requests", Measure::Attempt),
                ],
                notifier,
            ),
        ],
        providers: providers_of(look, earlier),
        endpoints: endpoints
            .into_iter()
            .map(|one| endpoint(one, look, earlier))
            .collect(),
        most_endpoints: ENDPOINTS,
    }
}

/// The last minutes of a provider or an endpoint.
fn of_subject(look: &Look, measure: Measure, subject: &str) -> String {
    let mut all = look.subjects.iter();
    let found = all.find(|(of, name, _)| *of == measure && name == subject);
    latency(found.map(|(_, _, count)| count))
}

fn providers_of(look: &Look, earlier: Option<&Look>) -> Vec<ProviderView> {
    let rows = look
        .report
        .waiting
        .queues
        .iter()
        .filter_map(|(queue, backlog)| {
            let Queue::Provider { name } = queue else {
                return None;
            };
            let breaker = look.report.breakers.iter().find(|one| one.name == *name);
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
                due: number(backlog.waiting()),
                oldest: oldest(backlog.oldest),
                drain: drains(look, earlier, queue),
                calls: of_subject(look, Measure::Call, name),
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
            look.report
                .waiting
                .queues
                .get(&queue)
                .map_or(0, Backlog::waiting),
        ),
        waiting: number(endpoint.pending),
        drain: drains(look, earlier, &queue),
        requests: of_subject(look, Measure::Attempt, &endpoint.endpoint_id.to_string()),
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
            shell: Shell::new(&visit.session, "/", format!("{} Overview", figures.verdict)),
            paused: visit.query.get("paused").is_some(),
            age: figures.age,
            verdict: figures.verdict,
            wrong: figures.wrong,
            mending: figures.mending,
            stages: figures.stages,
            providers: figures.providers,
            endpoints: figures.endpoints,
            most_endpoints: figures.most_endpoints,
        })?
    };
    Ok(answer)
}
