//! Providers: which ones buy, which do not and until when, what waits for each, how their calls go;
//! and the act on each, which stops its purchases or lets them go on.

use std::{collections::BTreeMap, time::Duration};

use askama::Template;
use axum::{extract::State, response::Response};
use axum_htmx::HxRequest;
use desk::operator::{
    breakers::{self, BreakerNotChanged},
    health::{
        FindingKind,
        stages::Stage,
        waiting::{QueueBacklog, WaitingQueue},
    },
    words::noun,
};
use store::{
    figures::{Count, Measure},
    providers::{BreakerState, ProviderBreaker},
};
use url::form_urlencoded::byte_serialize;

use crate::{
    App,
    access::{Act, ConsoleSession, Operator, OperatorRole, Viewer, Visit},
    format::{brief, counted, relative},
    looks::{Bars, ByProvider, Range, SystemSnapshot},
    pages::{
        forms::ReasonForm,
        issues::{Issue, issue},
        overview::{
            NO_CALLS, SLOW, STOPPED, breaker_state, drains, failed, halves, provider_state,
            slow_at, times_of,
        },
    },
    pictures::{self, Chart},
    problem::Problem,
    times::{TimeElement, Times},
    view::{PathArgument, Shell, page, shortened},
};

/// The longest time for which the console opens a breaker.
const LONGEST: Duration = Duration::from_hours(24);

#[derive(Template)]
#[template(path = "providers.html")]
struct Page {
    shell: Shell,
    part: Part,
}

/// The part that is refreshed. It has no forms, so that none is replaced while somebody fills it
/// in.
#[derive(Template)]
#[template(path = "providers_part.html")]
struct Part {
    read: TimeElement,
    sentence: String,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    is_test: bool,
    state: &'static str,
    class: &'static str,
    /// Since when it has not bought.
    since: TimeElement,
    ago: TimeElement,
    reason: String,
    /// That it is slow, although it buys.
    slow: Option<Issue>,
    /// What happens next.
    next: TimeElement,
    waits: String,
    on_hold: Option<String>,
    /// What is left in our account, and since when that is known.
    balance: String,
    /// Whether it denies our account, which does not end by itself.
    denied: bool,
    /// Whether no provisioner works that could test it.
    untested: bool,
    failed: String,
    took: String,
    drain: String,
    /// Its failed calls, how long a call takes, and its purchases.
    charts: Vec<Chart>,
    form: Option<ReasonForm>,
}

/// One sentence with all of them.
fn sentence(rows: &[Row]) -> String {
    let [mut stopped, mut slow, mut quiet, mut other] = [const { Vec::new() }; 4];
    let mut buys = 0;
    for row in rows {
        let name = row.name.as_str();
        match (row.class, row.state) {
            ("good", _) => buys += 1,
            (_, STOPPED) => stopped.push(name),
            (_, SLOW) => slow.push(name),
            (_, NO_CALLS) => quiet.push(name),
            _ => other.push(name),
        }
    }
    if rows.is_empty() {
        return "No provisioner has served a provider yet.".to_owned();
    }
    if buys == rows.len() {
        return "All of them buy.".to_owned();
    }
    let mut parts = Vec::new();
    if !stopped.is_empty() {
        parts.push(format!("Buying has stopped at {}.", stopped.join(", ")));
    }
    if !slow.is_empty() {
        let is = noun(slow.len(), "is", "are");
        parts.push(format!("{} {is} slow.", slow.join(", ")));
    }
    if !other.is_empty() {
        parts.push(format!("{}: see below.", other.join(", ")));
    }
    if !quiet.is_empty() {
        let names = quiet.join(", ");
        parts.push(format!("{names}: no call was made in 10 minutes."));
    }
    if buys > 0 {
        parts.push("The others buy.".to_owned());
    }
    parts.join(" ")
}

/// What is left in our account at a provider, and when it told that.
fn balance(breaker: &ProviderBreaker, times: &Times) -> String {
    match (&breaker.balance, breaker.balance_at) {
        (Some(balance), Some(at)) => format!("{balance}, told {}", relative(times.now, at)),
        _ => "it has not told it".to_owned(),
    }
}

/// The last six hours of a provider. One that has made no call yet has empty charts.
fn charts(bars: Option<&Bars>, times: &Times) -> Vec<Chart> {
    let Some(all) = bars else {
        return Vec::new();
    };
    let of = |measure: Measure| -> Vec<Option<&Count>> {
        all.iter().map(|(_, counts)| counts.get(&measure)).collect()
    };
    let axis = times_of(all, Range::SixHours, times);
    vec![
        Chart::share("Failed calls", &of(Measure::Call), &axis),
        pictures::lines("A call takes", &of(Measure::Call), &axis),
        pictures::bars("Purchases", "5 min", &of(Measure::Bought), &axis),
    ]
}

fn part(
    (look, earlier): (&SystemSnapshot, Option<&SystemSnapshot>),
    bars: &ByProvider,
    session: &ConsoleSession,
) -> Part {
    let report = &look.report;
    let times = &session.times;
    let waiting = report.waiting.queues.iter();
    let waiting = waiting.filter_map(|(queue, backlog)| match queue {
        WaitingQueue::Provider { name } => Some((name.as_str(), *backlog)),
        WaitingQueue::Endpoint { .. } => None,
    });
    let mut all: BTreeMap<&str, QueueBacklog> = waiting.collect();
    for breaker in &report.breakers {
        all.entry(&breaker.name).or_default();
    }
    let mut stages = report.stages.iter();
    let untested = stages.any(|one| one.stage == Stage::Provisioner && one.is_dead());
    let row = |(name, backlog): (&str, QueueBacklog)| {
        let breaker = report.breakers.iter().find(|one| one.name == name);
        let (state, class) = provider_state(look, name);
        let calls = look.of_subject(Measure::Call, name);
        let parked = report.findings.iter().filter_map(|one| match &one.kind {
            FindingKind::Parked {
                provider,
                purchases,
                in_all,
                ..
            } if provider == name => Some((purchases.len(), *in_all)),
            _ => None,
        });
        // All of them are listed, or else their number was counted.
        let listed: usize = parked.clone().map(|(listed, _)| listed).sum();
        let listed = u64::try_from(listed).unwrap_or(u64::MAX);
        let held = parked.map(|(_, in_all)| in_all).fold(listed, u64::max);
        let since = breaker.and_then(|breaker| breaker.failing_since);
        let oldest = time::Duration::seconds_f64(backlog.oldest);
        Row {
            name: name.to_owned(),
            is_test: name == "sandbox",
            state,
            class,
            since: since.map(|at| times.clock(at)).unwrap_or_default(),
            ago: since.map(|at| times.ago(at)).unwrap_or_default(),
            reason: breaker
                .and_then(|breaker| breaker.reason.clone())
                .filter(|_| since.is_some())
                .unwrap_or_default(),
            slow: (state == SLOW)
                .then(|| slow_at(report, name).map(|one| issue(one, session)))
                .flatten(),
            next: breaker
                .filter(|breaker| !breaker.lost_commits())
                .and_then(|breaker| breaker.open_until)
                .map(|until| times.ago(until))
                .unwrap_or_default(),
            waits: if backlog.waiting() == 0 {
                "nothing".to_owned()
            } else {
                format!(
                    "{}, the oldest for {}",
                    counted(
                        backlog.waiting(),
                        "purchase or look-up",
                        "purchases and look-ups"
                    ),
                    brief(oldest)
                )
            },
            on_hold: (held > 0).then(|| {
                counted(
                    held,
                    "purchase that somebody has to settle",
                    "purchases that somebody has to settle",
                )
            }),
            balance: breaker.map_or_else(String::new, |breaker| balance(breaker, times)),
            denied: breaker.is_some_and(|breaker| breaker.denied),
            untested,
            failed: failed(calls),
            took: halves(look.newest_of(Measure::Call, name)),
            drain: drains(
                look,
                earlier,
                &WaitingQueue::Provider {
                    name: name.to_owned(),
                },
            ),
            charts: charts(bars.get(name), times),
            form: breaker.and_then(|breaker| breaker_form(breaker, session, "/providers")),
        }
    };
    let rows: Vec<Row> = all.into_iter().map(row).collect();
    Part {
        read: times.clock(report.at),
        sentence: sentence(&rows),
        rows,
    }
}

pub(crate) async fn show(
    State(app): State<App>,
    HxRequest(in_place): HxRequest,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let (look, earlier) = app.figures().look(app.database()).await?;
    let bars = app.figures().bars_of_providers(app.database()).await?;
    let part = part((&look, earlier.as_deref()), &bars, &visit.session);
    if in_place {
        return page(&part);
    }
    page(&Page {
        shell: Shell::new(&app, &visit.session, "/providers", "Providers"),
        part,
    })
}

/// The action that a breaker offers to this session.
pub(crate) fn breaker_form(
    breaker: &ProviderBreaker,
    session: &ConsoleSession,
    back: &str,
) -> Option<ReasonForm> {
    // After lost commits, `esimctl recover` comes first. It needs a shell, and so does closing
    // then.
    if !session.may(OperatorRole::Operator) || breaker.lost_commits() {
        return None;
    }
    let name: String = byte_serialize(breaker.name.as_bytes()).collect();
    let form = if breaker.state == BreakerState::Closed {
        ReasonForm {
            consequence: format!(
                "Nothing new is bought at {} for this long; what is under way ends as usual. Orders are still accepted: they wait, \
                 or go on to another provider that has the product.",
                breaker.name
            ),
            duration: true,
            grave: true,
            ..ReasonForm::new(
                session,
                "Stop buying there",
                format!("/providers/{name}/open"),
            )
        }
    } else {
        ReasonForm {
            consequence: format!(
                "A running provisioner buys at once what waits for {}. If calls fail, it stops buying again by itself.",
                breaker.name
            ),
            ..ReasonForm::new(session, "Buy again now", format!("/providers/{name}/close"))
        }
    };
    Some(ReasonForm {
        seen: breaker.version.to_string(),
        back: back.to_owned(),
        ..form
    })
}

pub(crate) async fn open(
    State(app): State<App>,
    PathArgument(name): PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let target = format!("provider {name}");
    let action = act.action(domain::Command::ProviderOpen, &target, act.fields.reason()?);
    let asked = act.fields.get("for").unwrap_or("1h");
    let duration = runtime::config::positive_duration(asked).map_err(Problem::Invalid)?;
    if duration > LONGEST {
        return Err(Problem::Invalid("buying may be stopped for at most a day here; `esimctl provider open` does it for longer".into()));
    }
    let seen = seen(&act);
    let opened = app
        .database()
        .run(async |connection| {
            breakers::set(connection, &name, seen, Some(duration), action).await
        })
        .await;
    let text = format!(
        "Nothing is bought at {} for {asked}. Then a running provisioner tests it with one purchase.",
        changed(opened, &name, &act)?.name
    );
    Ok(act.done(&app, &text))
}

pub(crate) async fn close(
    State(app): State<App>,
    PathArgument(name): PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let target = format!("provider {name}");
    let action = act.action(
        domain::Command::ProviderClose,
        &target,
        act.fields.reason()?,
    );
    let seen = seen(&act);
    let closed = app
        .database()
        .run(async |connection| breakers::set(connection, &name, seen, None, action).await)
        .await;
    let text = format!(
        "{} may buy again: a running provisioner goes on with what waits for it.",
        changed(closed, &name, &act)?.name
    );
    Ok(act.done(&app, &text))
}

/// The version of the breaker that the page has shown. A form without one has seen none that
/// exists.
fn seen(act: &Act<Operator>) -> Option<i64> {
    let seen = act.fields.get("seen").and_then(|seen| seen.parse().ok());
    seen.or(Some(-1))
}

/// The breaker after a change, or why there was none.
fn changed(
    changed: Result<ProviderBreaker, BreakerNotChanged>,
    name: &str,
    act: &Act<Operator>,
) -> Result<ProviderBreaker, Problem> {
    changed.map_err(|error| match error {
        BreakerNotChanged::Unknown => Problem::NotFound(format!(
            "No provider is named “{}”. Providers lists all of them.",
            shortened(name)
        )),
        BreakerNotChanged::Store(error) => error.into(),
        BreakerNotChanged::LostCommits => act.not_done(
            "This needs somebody with a shell",
            "It does not buy because the database has lost commits. Buying now could buy again what was forgotten, so \
             somebody with a shell compares with the provider first, by `esimctl recover`, and then closes the breaker.",
        ),
        BreakerNotChanged::Changed(state) => {
            let state = breaker_state(Some(state));
            act.changed(&format!(
                "what {name} does has changed since the page was shown; now it is: {state}"
            ))
        }
    })
}
