//! Whether the system works, in its first words; then what is wrong, since when, who is affected
//! and what to do; then the way of an order in four steps: whether each one lives, what waits for
//! it, how old that is and how long it takes; then what was wrong in the last day, the last hours,
//! providers, endpoints, and what people have done. What is wrong is what
//! [`desk::operator::health`] finds, as in `esimctl attention`.
//!
//! htmx asks for the figures alone and puts them in place; without JavaScript the whole page asks
//! for itself again.

use askama::Template;
use axum::{extract::State, response::Response};
use axum_htmx::HxRequest;
use desk::operator::health::{
    Finding, FindingKind, HealthReport,
    finding::Clock,
    life::FindingEvent,
    stages::{Stage, StageProcesses},
    waiting::{Drain, QueueBacklog, WaitingQueue},
};
use store::{
    figures::{Count, Measure},
    providers::BreakerState,
};
use time::Duration;

use crate::{
    App,
    access::{ConsoleSession, Viewer, Visit},
    format::{brief, number},
    looks::{Bars, MINUTES, Range, SystemSnapshot},
    pages::{
        acts::{self, partner_of},
        endpoints::{FailingEndpoints, failing},
        issues::{self, Issue, class_of, worst},
    },
    pictures::{self, Chart, bars, lines},
    problem::Problem,
    times::{TimeElement, Times},
    view::{Shell, page},
};

/// The maximum number of endpoints with failures of the page.
const ENDPOINTS: usize = 8;
/// The maximum number of lines of findings of the page, the worst ones. The page of what needs a
/// person has all: the way of an order has to be in sight below them.
const FINDINGS: usize = 10;
/// The maximum number of things of the page that were wrong, the newest ones.
const MENDED: usize = 20;
/// The time of the picture of what was wrong.
const DAY: Duration = Duration::DAY;

#[derive(Template)]
#[template(path = "overview.html")]
struct Page {
    shell: Shell,
    figures: Figures,
}

/// The part that is refreshed. It is the whole answer to htmx.
#[derive(Template)]
#[template(path = "figures.html")]
struct Figures {
    place: Option<String>,
    paused: bool,
    read: TimeElement,
    range: Range,
    verdict: String,
    class: &'static str,
    /// What the verdict means, in one sentence.
    sentence: String,
    issues: Vec<Issue>,
    /// How many lines are not shown.
    more_issues: usize,
    /// What needs nobody, and what that is, in a few words.
    mending: Vec<Issue>,
    mending_is: String,
    steps: Vec<StepView>,
    /// When something was wrong in the last day, as a picture; empty if nothing was.
    was: String,
    was_axis: Vec<String>,
    /// What was wrong in the last day, and is over.
    mended: Vec<MendedView>,
    /// How many of it are not shown.
    more_mended: usize,
    charts: Vec<Chart>,
    providers: Vec<ProviderView>,
    failing: FailingEndpoints,
    done: Vec<DoneView>,
}

struct StepView {
    name: &'static str,
    class: &'static str,
    badge: &'static str,
    state: &'static str,
    big: String,
    of: &'static str,
    facts: Vec<(&'static str, String)>,
    life: String,
    last: TimeElement,
}

struct MendedView {
    class: &'static str,
    what: String,
    since: TimeElement,
    until: TimeElement,
    /// Whether it may have ended earlier.
    at_latest: bool,
    lasted: String,
}

struct ProviderView {
    name: String,
    is_test: bool,
    state: &'static str,
    class: &'static str,
    waits: String,
    oldest: String,
    failed: String,
    took: String,
    drain: String,
    balance: String,
}

struct DoneView {
    who: String,
    what: String,
    reason: String,
    partner: Option<(String, String)>,
    ago: TimeElement,
}

fn seconds(seconds: f64) -> Duration {
    Duration::seconds_f64(seconds)
}

/// How long the oldest row has waited.
fn oldest(of: f64) -> String {
    if of <= 0.0 {
        "–".into()
    } else {
        brief(seconds(of))
    }
}

/// The time until a queue is empty.
pub(crate) fn drains(
    newest: &SystemSnapshot,
    earlier: Option<&SystemSnapshot>,
    queue: &WaitingQueue,
) -> String {
    // Compared with itself, a backlog is empty or not known yet.
    let earlier = earlier.unwrap_or(newest);
    match newest.report.waiting.drain(queue, &earlier.report.waiting) {
        Drain::Empty => "–".into(),
        Drain::Seconds { seconds } => {
            let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
            format!("in about {}", brief(Duration::seconds(seconds)))
        }
        Drain::Never => "does not become less".into(),
        Drain::Unknown => "not known yet".into(),
    }
}

/// Within which time half of the newest and 95 % of them ended.
pub(crate) fn halves(count: Option<&Count>) -> String {
    usually(count).unwrap_or_else(|| format!("none in {MINUTES} min"))
}

/// How long it usually took, which is what half of them took at most, and what it took at worst,
/// which is true of 19 of 20. Both are told to a fifth. `None` if nothing has a duration.
pub(crate) fn usually(count: Option<&Count>) -> Option<String> {
    let count = count?;
    let half = count.within(0.5)?;
    let most = count.within(0.95)?;
    Some(format!("usually {}, at worst {}", half.told(), most.told()))
}

/// How many of them failed.
pub(crate) fn failed(count: Option<&Count>) -> String {
    let share = count.and_then(Count::failed_share);
    share.map_or_else(
        || "–".to_owned(),
        |share| format!("{:.1}\u{a0}% in {MINUTES}\u{a0}min", share * 100.0),
    )
}

/// Where the way of an order has a step. Two of them are the work of the provisioner.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Take,
    Buy,
    Get,
    Send,
}

impl Step {
    fn stage(self) -> Stage {
        match self {
            Self::Take => Stage::Ingress,
            Self::Buy | Self::Get => Stage::Provisioner,
            Self::Send => Stage::Notifier,
        }
    }
}

fn step(step: Step, look: &SystemSnapshot, times: &Times) -> StepView {
    let report = &look.report;
    let count = |measure| look.now.get(&measure);
    let took = |measure| halves(look.newest.get(&measure));
    let n = |measure| number(count(measure).map_or(0, |count| count.n));
    let name = match step {
        Step::Take => "Take orders",
        Step::Buy => "Buy",
        Step::Get => "Get the eSIM",
        Step::Send => "Send webhooks",
    };
    let (waiting, age) = report.waiting.sum(step != Step::Send);
    let (big, of, facts) = match step {
        Step::Take => (
            n(Measure::Answered),
            "orders answered in 10 min",
            vec![
                ("Answered in", took(Measure::Answered)),
                ("Refused (4xx)", number(refused(look))),
                ("Failed (5xx)", failed(count(Measure::Answered))),
                ("Denied (401)", n(Measure::Denied)),
            ],
        ),
        Step::Buy => (
            number(waiting),
            "wait",
            vec![
                ("Oldest waits", oldest(age)),
                ("Order to purchase", took(Measure::Bought)),
                ("Failed calls", failed(count(Measure::Call))),
            ],
        ),
        Step::Get => (
            n(Measure::Ready),
            "eSIMs in 10 min",
            vec![
                ("Order to eSIM", took(Measure::Ready)),
                ("Put on hold", n(Measure::Parked)),
                ("Failed for good", n(Measure::Failed)),
            ],
        ),
        Step::Send => (
            number(waiting),
            "wait",
            vec![
                ("Oldest waits", oldest(age)),
                ("Held back (endpoints)", number(held_back(report))),
                ("Order to webhook", took(Measure::Delivered)),
                ("Not taken at once", failed(count(Measure::Attempt))),
            ],
        ),
    };
    let mut stages = report.stages.iter();
    let life = stages.find(|one| one.stage == step.stage());
    let (class, badge, state) = state(step, look);
    StepView {
        name,
        class,
        badge,
        state,
        big,
        of,
        facts,
        life: life.map(processes).unwrap_or_default(),
        last: life
            .and_then(|life| life.last)
            .map(|last| times.ago(last.min(times.now)))
            .unwrap_or_default(),
    }
}

/// How many orders were answered with a 422, a 429 or another 4xx: whatever the count of accepted
/// orders leaves out, but for those that failed.
fn refused(look: &SystemSnapshot) -> u64 {
    let all = [Measure::Refused, Measure::Invalid, Measure::Limited];
    let all = all.iter().filter_map(|measure| look.now.get(measure));
    all.map(|count| count.n).sum()
}

/// What the finding is called at a step that it concerns.
fn at_step(kind: &FindingKind, step: Step) -> Option<&'static str> {
    match kind {
        FindingKind::StageDead { stage, .. } => (step.stage() == *stage).then_some("stopped"),
        FindingKind::DatabaseDown { .. }
        | FindingKind::OnStandby
        | FindingKind::StandbyMissing
        | FindingKind::NotSynchronous => Some("fails"),
        // Orders that fail at once never come to the steps behind the first one.
        FindingKind::OrdersFail { partner: None, .. } => (step == Step::Take).then_some("fails"),
        FindingKind::CommitsLost { .. } => (step == Step::Buy).then_some("stopped"),
        FindingKind::PurchasesLate { .. } => (step == Step::Buy).then_some("late"),
        FindingKind::WebhooksLate { .. } => (step == Step::Send).then_some("late"),
        FindingKind::ProcessesMissing { stage, .. }
        | FindingKind::NatsRefuses { stage, .. }
        | FindingKind::ClockOff {
            of: Clock::Stage(stage),
            ..
        } => (step.stage() == *stage).then_some("works in part"),
        FindingKind::BreakerOpen { .. }
        | FindingKind::LanesHeldBack { .. }
        | FindingKind::Unserved { .. } => (step == Step::Buy).then_some("works in part"),
        FindingKind::Slow { measure, .. } => {
            let slow = match measure {
                Measure::Answered => Step::Take,
                Measure::Bought | Measure::Call => Step::Buy,
                Measure::Ready => Step::Get,
                Measure::Attempt | Measure::Delivered => Step::Send,
                _ => return None,
            };
            (slow == step).then_some("slow")
        }
        _ => None,
    }
}

/// How a step does: its colour, that of its badge, and in words. The findings begin with the worst
/// one. That there is none is not enough to say that it works.
fn state(step: Step, look: &SystemSnapshot) -> (&'static str, &'static str, &'static str) {
    let findings = look.report.findings.iter();
    let mut found = findings.filter_map(|one| Some((one, at_step(&one.kind, step)?)));
    if let Some((worst, word)) = found.next() {
        let class = class_of(worst.severity());
        return (class, class, word);
    }
    let done = look.now.get(&match step {
        Step::Take => Measure::Answered,
        Step::Buy => Measure::Call,
        Step::Get => Measure::Ready,
        Step::Send => Measure::Attempt,
    });
    match Evidence::of(done) {
        Evidence::None => ("", "note", "idle"),
        Evidence::MostFail => ("", "warn", "most fail"),
        Evidence::Works => ("", "good", "works"),
    }
}

/// What the last minutes show of something that is done over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    /// It was not done.
    None,
    /// Half of it failed, or more.
    MostFail,
    Works,
}

impl Evidence {
    fn of(count: Option<&Count>) -> Self {
        match count {
            Some(count) if count.n > 0 && count.failed.saturating_mul(2) >= count.n => {
                Self::MostFail
            }
            Some(count) if count.n > 0 => Self::Works,
            _ => Self::None,
        }
    }
}

/// How many webhooks wait for an endpoint that is blocked or paused. They are no backlog of the
/// notifier.
fn held_back(report: &HealthReport) -> u64 {
    let waiting = report.findings.iter().filter_map(|one| match &one.kind {
        FindingKind::Blocked { endpoint } | FindingKind::Paused { endpoint } => {
            u64::try_from(endpoint.pending).ok()
        }
        _ => None,
    });
    waiting.sum()
}

/// How many processes of a stage run.
fn processes(life: &StageProcesses) -> String {
    let name = life.stage.as_str();
    let all = life.running.saturating_add(life.missing);
    match (life.running, life.missing) {
        (1, 0) => format!("{name} · 1 process"),
        (running, 0) => format!("{name} · {} processes", number(running)),
        (running, _) => format!("{name} · {} of {} processes", number(running), number(all)),
    }
}

/// What the verdict means for orders.
fn sentence(look: &SystemSnapshot) -> String {
    let report = &look.report;
    let takes = report
        .stages
        .iter()
        .any(|one| one.stage == Stage::Ingress && !one.is_dead());
    let (purchases, _) = report.waiting.sum(true);
    let (webhooks, _) = report.waiting.sum(false);
    let taken = if takes {
        let told = report.orders.told();
        let (first, rest) = told.split_at(1);
        format!("{}{rest}", first.to_uppercase())
    } else {
        "No order is taken".to_owned()
    };
    let are = |count: u64, one: &str, several: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{} {several}", number(count))),
    };
    let waits: Vec<String> = [
        are(purchases, "purchase", "purchases"),
        are(webhooks, "webhook", "webhooks"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if waits.is_empty() && held_back(report) > 0 {
        format!("{taken}. Only webhooks wait whose endpoints fail or are paused.")
    } else if waits.is_empty() {
        format!("{taken}, and nothing waits.")
    } else {
        let wait = if purchases + webhooks == 1 {
            "waits"
        } else {
            "wait"
        };
        format!("{taken}. {} {wait}.", waits.join(" and "))
    }
}

/// What was wrong, from when until when.
fn mended(one: &FindingEvent, times: &Times) -> MendedView {
    let until = one.span.until.unwrap_or(one.at);
    MendedView {
        class: class_of(one.span.severity),
        what: one.what.clone(),
        since: times.clock(one.span.since),
        until: times.clock(until),
        at_latest: one.span.at_latest,
        lasted: brief(until - one.span.since),
    }
}

/// When something was wrong in the last day, the gravest in the first row; what goes on ends now.
fn was(look: &SystemSnapshot, times: &Times) -> String {
    let now = times.now;
    let open = look.report.findings.iter().filter_map(|one| {
        let class = class_of(one.severity());
        Some((one.since?, now, class))
    });
    let over = look.mended.iter().map(|one| {
        let until = one.span.until.unwrap_or(one.at);
        (one.span.since, until, class_of(one.span.severity))
    });
    let mut all: Vec<_> = open.chain(over).collect();
    all.sort_by_key(|(since, _, class)| (issues::weight(class), *since));
    pictures::strip(&all, now - DAY, now)
}

fn charts(all: &Bars, range: Range, times: &Times) -> Vec<Chart> {
    let of = |measure: Measure| -> Vec<Option<&Count>> {
        all.iter().map(|(_, counts)| counts.get(&measure)).collect()
    };
    let axis = times_of(all, range, times);
    let per = match range {
        Range::Hour => "a minute",
        Range::SixHours => "5 min",
        Range::Day | Range::Week => "an hour",
    };
    vec![
        bars("Orders", per, &of(Measure::Answered), &axis),
        lines("Order to eSIM", &of(Measure::Ready), &axis),
        Chart::share("Failed calls to providers", &of(Measure::Call), &axis),
        Chart::share("Webhooks not taken at once", &of(Measure::Attempt), &axis),
    ]
}

/// The beginnings of the bars, as the axis and the bars name them.
pub(crate) fn times_of(all: &Bars, range: Range, times: &Times) -> Vec<String> {
    let with_day = range == Range::Week;
    all.iter()
        .map(|(at, _)| times.axis(*at, with_day))
        .collect()
}

fn figures(
    app: &App,
    (look, earlier): (&SystemSnapshot, Option<&SystemSnapshot>),
    (all, range): (&Bars, Range),
    session: &ConsoleSession,
    paused: bool,
) -> Figures {
    let report = &look.report;
    let times = &session.times;
    // The texts for partners stand on their pages.
    let lines = |findings: Vec<&Finding>| -> Vec<Issue> {
        let lines = issues::lines(findings.into_iter(), session).into_iter();
        let lines = lines.map(|one| Issue { text: None, ..one });
        lines.collect()
    };
    let issues = lines(report.needed().collect());
    let mending = lines(report.mending().collect());
    let class = worst(report.findings.iter()).unwrap_or(if report.orders.answered == 0 {
        "quiet"
    } else {
        "good"
    });
    Figures {
        place: app.product().place.clone(),
        paused,
        read: times.clock(report.at),
        range,
        verdict: report.verdict().trim_end_matches('.').to_owned(),
        class,
        sentence: sentence(look),
        more_issues: issues.len().saturating_sub(FINDINGS),
        issues: issues.into_iter().take(FINDINGS).collect(),
        mending_is: needs_nobody(report.mending().count(), &mending),
        mending: mending.into_iter().take(FINDINGS).collect(),
        steps: [Step::Take, Step::Buy, Step::Get, Step::Send]
            .into_iter()
            .map(|one| step(one, look, times))
            .collect(),
        was: was(look, times),
        was_axis: (0..4)
            .map(|quarter| times.axis(times.now - DAY + DAY * quarter / 4, quarter == 0))
            .collect(),
        mended: look
            .mended
            .iter()
            .take(MENDED)
            .map(|one| mended(one, times))
            .collect(),
        more_mended: look.mended.len().saturating_sub(MENDED),
        charts: charts(all, range, times),
        providers: providers_of(look, earlier),
        failing: FailingEndpoints {
            more_at: "/webhooks",
            ..failing(report, times, ENDPOINTS)
        },
        done: look
            .actions
            .iter()
            .map(|one| {
                let partner = partner_of(&one.target);
                DoneView {
                    who: one.operator.clone(),
                    what: acts::done(&one.command).to_owned(),
                    reason: one.reason.clone(),
                    partner: partner.and_then(|id| {
                        let name = look.names.get(&id.uuid())?;
                        Some((id.to_string(), name.clone()))
                    }),
                    ago: times.ago(one.at.min(times.now)),
                }
            })
            .collect(),
    }
}

/// How much needs nobody, and the first of it.
fn needs_nobody(findings: usize, lines: &[Issue]) -> String {
    let whats: Vec<&str> = lines.iter().map(|one| one.what.as_str()).collect();
    match whats[..] {
        [] => String::new(),
        [one] => one.to_owned(),
        [one, ..] => format!("{one}, and {} more", number(findings.saturating_sub(1))),
    }
}

/// The state of a breaker in words.
pub(crate) fn breaker_state(state: Option<BreakerState>) -> &'static str {
    match state {
        Some(BreakerState::Closed) => "may buy",
        Some(BreakerState::Open) => STOPPED,
        Some(BreakerState::HalfOpen) => "stopped, test due",
        None => "no provisioner serves it",
    }
}

/// The state of a provider whose breaker is open.
pub(crate) const STOPPED: &str = "stopped buying";

/// That the calls of a provider are slow. Purchases whose orders have waited for us say nothing of
/// the provider.
pub(crate) fn slow_at<'a>(report: &'a HealthReport, provider: &str) -> Option<&'a Finding> {
    report.findings.iter().find(|one| match &one.kind {
        FindingKind::Slow {
            measure, subject, ..
        } => *measure == Measure::Call && subject == provider,
        _ => false,
    })
}

/// That purchases at a provider are late since their orders, although its calls are not slow.
pub(crate) fn late_at(report: &HealthReport, provider: &str) -> bool {
    report.findings.iter().any(|one| match &one.kind {
        FindingKind::Slow {
            measure: Measure::Bought,
            subject,
            part_is_slow,
            ..
        } => !part_is_slow && subject == provider,
        _ => false,
    })
}

/// The state of a provider in words, and its colour. That its breaker is closed is not enough to
/// say that it buys.
pub(crate) fn provider_state(
    look: &SystemSnapshot,
    provider: &str,
) -> (&'static str, &'static str) {
    let report = &look.report;
    let mut breakers = report.breakers.iter();
    let breaker = breakers.find(|one| one.name == provider);
    let state = breaker.map(|breaker| breaker.state);
    let stopped = (state != Some(BreakerState::Closed)).then(|| breaker_state(state));
    let at_provider = |kind: &FindingKind| match kind {
        FindingKind::BreakerOpen { breaker } => stopped.filter(|_| breaker.name == provider),
        FindingKind::CommitsLost { providers, .. } => {
            stopped.filter(|_| providers.iter().any(|one| one == provider))
        }
        FindingKind::StageDead { stage, .. } => {
            (*stage == Stage::Provisioner).then_some("no provisioner works")
        }
        FindingKind::DatabaseDown { .. } => Some("nothing can be stored"),
        FindingKind::PurchasesLate { provider: of, .. } => (of == provider).then_some("late"),
        FindingKind::LanesHeldBack { provider: of, .. } => {
            (of == provider).then_some("buys in part")
        }
        _ => None,
    };
    let findings = report.findings.iter();
    let mut found = findings.filter_map(|one| Some((one, at_provider(&one.kind)?)));
    if let Some((worst, word)) = found.next() {
        // How bad it is follows from the worst finding; that it is stopped says more than why.
        return (stopped.unwrap_or(word), class_of(worst.severity()));
    }
    if let Some(stopped) = stopped {
        return (stopped, "warn");
    }
    if slow_at(report, provider).is_some() {
        return (SLOW, "warn");
    }
    if late_at(report, provider) {
        return (WAITED, "warn");
    }
    match Evidence::of(look.of_subject(Measure::Call, provider)) {
        Evidence::None => (NO_CALLS, "note"),
        Evidence::MostFail => ("most calls fail", "warn"),
        Evidence::Works => ("buys", "good"),
    }
}

/// The state of a provider that nothing keeps from buying, and at which nothing was bought.
pub(crate) const NO_CALLS: &str = "no calls in 10 min";
/// The state of a provider that buys, but whose calls are slow.
pub(crate) const SLOW: &str = "slow";
/// The state of a provider whose calls are not slow, and whose orders waited here.
pub(crate) const WAITED: &str = "orders wait here";

fn providers_of(look: &SystemSnapshot, earlier: Option<&SystemSnapshot>) -> Vec<ProviderView> {
    let report = &look.report;
    let waiting = report.waiting.queues.iter();
    let waiting = waiting.filter_map(|(queue, backlog)| match queue {
        WaitingQueue::Provider { name } => Some((name.as_str(), *backlog)),
        WaitingQueue::Endpoint { .. } => None,
    });
    let mut rows: std::collections::BTreeMap<&str, QueueBacklog> = waiting.collect();
    for breaker in &report.breakers {
        rows.entry(&breaker.name).or_default();
    }
    let rows = rows.into_iter().map(|(name, backlog)| {
        let breaker = report.breakers.iter().find(|one| one.name == name);
        let (state, class) = provider_state(look, name);
        let calls = look.of_subject(Measure::Call, name);
        let queue = WaitingQueue::Provider {
            name: name.to_owned(),
        };
        ProviderView {
            name: name.to_owned(),
            is_test: name == "sandbox",
            state,
            class,
            waits: number(backlog.waiting()),
            oldest: oldest(backlog.oldest),
            failed: failed(calls),
            took: halves(look.newest_of(Measure::Call, name)),
            drain: drains(look, earlier, &queue),
            balance: breaker
                .and_then(|breaker| breaker.balance.clone())
                .unwrap_or_else(|| "–".to_owned()),
        }
    });
    rows.collect()
}

pub(crate) async fn show(
    State(app): State<App>,
    HxRequest(in_place): HxRequest,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let range = Range::parse(visit.query.get("range"));
    let paused = visit.query.get("paused").is_some();
    let (look, earlier) = app.figures().look(app.database()).await?;
    let all = app.figures().bars(app.database(), range).await?;
    let figures = figures(
        &app,
        (&look, earlier.as_deref()),
        (&all, range),
        &visit.session,
        paused,
    );
    if in_place {
        return page(&figures);
    }
    page(&Page {
        shell: Shell::new(&app, &visit.session, "/", figures.verdict.clone()),
        figures,
    })
}

#[cfg(test)]
mod tests {
    use desk::operator::health::samples::samples;

    use super::*;

    const STEPS: [Step; 4] = [Step::Take, Step::Buy, Step::Get, Step::Send];

    fn counted(n: u64, failed: u64) -> Count {
        let mut count = Count::default();
        for nth in 0..n {
            count.note(Some(std::time::Duration::from_millis(50)), nth < failed);
        }
        count
    }

    /// The badges of the steps and of the provider that say that it works.
    fn green(look: &SystemSnapshot) -> usize {
        let badges = STEPS.map(|one| state(one, look).1);
        let (_, provider) = provider_state(look, "sandbox");
        let mut all: Vec<&str> = badges.into();
        all.push(provider);
        all.into_iter().filter(|one| *one == "good").count()
    }

    #[test]
    fn what_was_not_done_and_what_fails_is_not_green() {
        let green_of = |count: &Count| green(&SystemSnapshot::with(Vec::new(), count));
        assert_eq!(green_of(&counted(3, 1)), 5);
        assert_eq!(green_of(&Count::default()), 0, "nothing was done");
        assert_eq!(green_of(&counted(4, 2)), 0, "half of it fails");
        let idle = SystemSnapshot::with(Vec::new(), &Count::default());
        assert_eq!(provider_state(&idle, "sandbox"), (NO_CALLS, "note"));
        assert_eq!(provider_state(&idle, "nobody").1, "warn");
    }

    /// As in the count of accepted orders beside it.
    #[test]
    fn every_4xx_counts_as_refused() {
        let look = SystemSnapshot::with(Vec::new(), &counted(9, 0));
        assert_eq!(refused(&look), 27, "422, 429 and other 4xx");
    }

    /// After a provisioner was away, the orders that waited for it are late. That says nothing of
    /// the provider.
    #[test]
    fn a_provider_is_slow_only_if_its_calls_are() {
        let state_with = |measure: Measure, part_is_slow: bool| {
            let kind = FindingKind::Slow {
                measure,
                subject: "sandbox".to_owned(),
                half: 5.0,
                before: Some(0.1),
                newest: 20,
                hours: 5,
                part_is_slow,
            };
            let found = vec![Finding::new(kind, None)];
            provider_state(&SystemSnapshot::with(found, &counted(9, 0)), "sandbox")
        };
        assert_eq!(state_with(Measure::Call, false), (SLOW, "warn"));
        assert_eq!(state_with(Measure::Bought, false), (WAITED, "warn"));
        assert_eq!(state_with(Measure::Delivered, false), ("buys", "good"));
    }

    /// What keeps orders back takes the green from the steps that it concerns, however much else
    /// was counted.
    #[test]
    fn no_step_is_green_that_a_finding_concerns() {
        let count = counted(9, 0);
        for found in samples(time::OffsetDateTime::UNIX_EPOCH) {
            let concerned = STEPS
                .iter()
                .filter(|one| at_step(&found.kind, **one).is_some());
            let concerned = concerned.count();
            let class = class_of(found.severity());
            let look = SystemSnapshot::with(vec![found], &count);
            let found = &look.report.findings;
            let states = STEPS.map(|one| state(one, &look).1);
            let left = states.iter().filter(|one| **one == "good").count();
            assert_eq!(left, 4 - concerned, "{found:?}");
            assert!(
                states.iter().all(|one| *one == "good" || *one == class),
                "{found:?}"
            );
        }
    }
}
