//! `esimctl status` and `esimctl attention`: two views of one report ([`desk::operator::health`]),
//! which the console's first pages and `esimctl doctor` render, too. `attention` says what is
//! wrong, and its exit status says whether somebody is needed; `status` adds the stages, what
//! waits, and figures.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use desk::operator::health::{
    self, Finding, HealthReport,
    finding::{FindingOwner, Severity},
    life::{self, FindingChange, FindingEvent, FindingUpdate, FindingWatch, TakeFrom, Taken},
    stages::StageProcesses,
    told::lasted,
    waiting::{Drain, QueueBacklog, WaitingQueue, WaitingWork},
};
use domain::standing::EndpointState;
use pg::{PgConnection, rfc3339};
use runtime::terminal;
use serde_json::{Value, json};
use store::{
    deliveries::endpoints::{self, ListedEndpoint},
    figures::{Count, FigureSpan, Figures, Measure, MeasureCounts},
};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    confirm::ReasonArgs,
    console::{Console, list, stopped},
    exit::FOUND,
    output::{TableRow, or_dash, printable, table, utc, width},
};

pub const EXAMPLES: &str = "Examples:
  esimctl status
  esimctl status --over 30s --hours 24
  esimctl status --over 0s --json

First comes what is wrong, as `esimctl attention` shows it, then the stages and what waits for them: all of it, and how much
of it is due. The rest was stored a moment ago and belongs to the message that announced it. The command looks twice, and
estimates when a backlog is worked off from what became less in between. With `--over 0s` it looks once and estimates
nothing. Counts of due rows end at 100,000.

Then come the figures. Each event counts in the minute and the hour (of UTC) in which it happened. `half` and `95 %` say within
which time half and 95 % of them ended, which is true to a fifth up to a minute (`≤ 4.7 s` is more than 3.9 s): answers, calls
and webhook requests since they began, purchases and deliveries since their orders. The lines of subjects are of the last ten minutes; `--minutes 120` shows minutes instead of hours.
Of webhook URLs only the host is shown, because partners put secrets into them; `esimctl endpoint list` has the URLs.";

pub const ATTENTION_EXAMPLES: &str = "Examples:
  esimctl attention
  esimctl attention --json
  esimctl attention >/dev/null || page-somebody
  esimctl attention --follow | while read -r line; do echo \"$line\" | mail -s esim team@example.com; done
  esimctl attention take stage_dead:provisioner --for 2h --reason 'ana: I start it again'

First comes what needs somebody, the worst first, and then what ends by itself. Each has what is wrong, since when, who
is affected and what to do; `run` is a command for when the cause is gone or known, and `see` the section of the runbook.
Purchases that were parked for one reason at one provider are one matter; --json lists them, the oldest 200 of all.
`attention take` says who has a matter, and takes one that somebody else has with --take-over only.

With --follow it prints a line when something opens, becomes worse or better, or is mended, until Ctrl-C or SIGTERM ends it,
and notes it in the history as a console does, but for outages of PostgreSQL.
An end is told a minute late, because what comes back within a minute was never mended. It works with and without a console.

Exit status: 0 nobody is needed, 3 somebody is, 1 the database cannot be read.";

const TAKE_EXAMPLES: &str = "Examples:
  esimctl attention take stage_dead:provisioner
  esimctl attention take breaker_open:usimsa --for 4h --reason 'called them, ticket 7'
  esimctl attention take breaker_open:usimsa --for 0
  esimctl attention take breaker_open:usimsa --take-over --reason 'bob sleeps'

`attention`, `status` and the console show who has it, until when and why. Nothing else changes: it is as bad as before, and
it ends when it is mended. What somebody else has is taken with --take-over only, and then they do not have it any more.";

#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// The time between the two looks, such as `5s`
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = runtime::config::duration)]
    over: Duration,
    /// How many hours to show
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(i32).range(1..=2160))]
    hours: i32,
    /// Show this many minutes instead of hours
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..=2880), conflicts_with = "hours")]
    minutes: Option<i32>,
}

/// The minutes of which each provider and endpoint is shown.
const NOW: i32 = 10;

#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Attention {
    /// Print a line for each thing that opens, changes and is mended, until it is told to stop
    #[arg(long)]
    follow: bool,
    #[command(subcommand)]
    act: Option<AttentionAct>,
}

#[derive(Subcommand, Clone, Debug)]
enum AttentionAct {
    /// Say that you have a matter, so that nobody else begins
    #[command(after_help = TAKE_EXAMPLES)]
    Take(TakeArgs),
}

#[derive(Args, Clone, Debug)]
struct TakeArgs {
    /// The name of the matter, as `esimctl attention` shows it
    #[arg(value_name = "NAME")]
    key: String,
    /// For how long; `0` lets it go
    #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = runtime::config::duration)]
    time: Duration,
    /// Take it from whoever has it
    #[arg(long)]
    take_over: bool,
    #[command(flatten)]
    why: ReasonArgs,
}

/// Prints what is wrong, and returns the exit status.
pub async fn attention(asked: &Attention, console: &Console) -> anyhow::Result<u8> {
    if let Some(AttentionAct::Take(asked)) = &asked.act {
        return take(asked, console).await.map(|()| 0);
    }
    if asked.follow {
        tokio::select! {
            followed = follow(console) => followed?,
            stopped = stopped() => stopped.context("signals cannot be received")?,
        }
        return Ok(0);
    }
    let report = health::examine(&mut console.connect().await?).await?;
    console.print(&findings_json(&report), || findings(&report, width()))?;
    Ok(exit_status(&report))
}

async fn take(asked: &TakeArgs, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let key = &asked.key;
    let target = format!("finding {key}");
    let action = asked.why.action(domain::Command::FindingTake, &target);
    let from = if asked.take_over {
        TakeFrom::Anybody
    } else {
        TakeFrom::Nobody
    };
    let (until, before) = match life::take(&mut connection, key, asked.time, from, action).await? {
        Taken::Yours { until, before } => (until, before),
        Taken::Theirs(theirs) => bail!(
            "nothing was changed: {key} is with {}; ask them, or take it with --take-over",
            owner(&theirs)
        ),
        Taken::JustTaken => bail!(
            "nothing was changed: somebody has just taken {key}; `esimctl attention` shows who"
        ),
        Taken::Unknown => bail!(
            "nothing that is wrong now has the name {key}; `esimctl attention` shows the names"
        ),
    };
    let until = (!asked.time.is_zero()).then(|| utc(until));
    console.print(
        &json!({ "name": key, "taken_until": until, "taken_from": before }),
        || {
            let before = before
                .as_ref()
                .map(|before| format!("; {} had it", owner(before)));
            let before = before.unwrap_or_default();
            match &until {
                Some(until) => {
                    format!("{key} is yours until {until}, and everybody sees it{before}")
                }
                None => format!("nobody has {key} any more{before}"),
            }
        },
    )
}

/// Prints what is wrong now, and then what changes, as it is noted by this process or another one.
async fn follow(console: &Console) -> anyhow::Result<()> {
    let mut watch = FindingWatch::default();
    let mut connection = console.connect().await?;
    // What this notes now is told as what is open.
    let FindingUpdate { report, noted } = watch.update(&mut connection).await?;
    for one in &report.findings {
        let told = one.told();
        let key = one.kind.key();
        let since = told.since.unwrap_or(report.at);
        let json = json!({ "at": rfc3339(report.at), "change": "is_open", "key": key, "what": told.what,
                           "severity": told.severity, "since": rfc3339(since) });
        console.print(&json, || {
            line(
                report.at,
                "is open",
                told.severity,
                &told.what,
                &since_text(since, &key),
            )
        })?;
    }
    let mut printed: Vec<FindingEvent> = noted;
    let mut since = report.at;
    loop {
        match changes(&mut connection, &mut watch, since).await {
            Ok(events) => {
                for event in events {
                    if printed.iter().all(|one| one.id != event.id) {
                        console.print(&event, || event_line(&event))?;
                        printed.push(event);
                    }
                }
                // What commits late has an earlier time.
                since = printed
                    .last()
                    .map_or(since, |last| last.at - life::MENDED_AFTER)
                    .max(since);
                printed.retain(|one| one.at >= since);
            }
            Err(error) => {
                // The consoles note an outage of PostgreSQL. This machine may have lost its own
                // network only.
                let error =
                    format!("cannot read what is wrong, trying again in some seconds: {error}");
                terminal::say(error);
                if let Ok(again) = console.connect().await {
                    connection = again;
                }
            }
        }
        tokio::time::sleep(life::LOOK).await;
    }
}

async fn changes(
    connection: &mut PgConnection,
    watch: &mut FindingWatch,
    since: OffsetDateTime,
) -> pg::Result<Vec<FindingEvent>> {
    watch.update(&mut *connection).await?;
    life::events(connection, since).await
}

fn event_line(event: &FindingEvent) -> String {
    let change = match event.change {
        FindingChange::Opened => "opened",
        FindingChange::Changed => "changed",
        FindingChange::Mended => "mended",
    };
    let span = &event.span;
    let when = match span.until {
        None => since_text(span.since, &event.key),
        Some(until) => {
            let latest = if span.at_latest { " at the latest" } else { "" };
            format!(
                "from {} to {}{latest}; {}",
                utc(span.since),
                utc(until),
                event.key
            )
        }
    };
    line(event.at, change, span.severity, &event.what, &when)
}

fn since_text(since: OffsetDateTime, key: &str) -> String {
    format!("since {}; {key}", utc(since))
}

fn line(at: OffsetDateTime, change: &str, severity: Severity, what: &str, when: &str) -> String {
    let severity = word(severity);
    format!(
        "{}  {change:7}  {severity:7}  {} ({when})",
        utc(at),
        printable(what)
    )
}

fn exit_status(report: &HealthReport) -> u8 {
    if report.needed().next().is_some() {
        FOUND
    } else {
        0
    }
}

fn findings_json(report: &HealthReport) -> Value {
    let all = |findings: &mut dyn Iterator<Item = &Finding>| -> Vec<Value> {
        findings
            .map(|one| json!({ "key": one.kind.key(), "finding": one, "told": one.told() }))
            .collect()
    };
    json!({
        "verdict": report.verdict(),
        "orders": report.orders,
        "needs_person": all(&mut report.needed()),
        "ends_by_itself": all(&mut report.mending()),
    })
}

/// The verdict, and a block for each finding.
fn findings(report: &HealthReport, width: Option<usize>) -> String {
    let mut text = vec![report.verdict()];
    text.extend(report.needed().map(|one| block(one, report.at, width)));
    let mut mending = report.mending().peekable();
    if mending.peek().is_some() {
        text.push("These end by themselves:".to_owned());
    }
    text.extend(mending.map(|one| block(one, report.at, width)));
    text.join("\n\n")
}

/// One finding, each part of it on lines of its own that fit the terminal. Commands are not
/// wrapped, so that they can be copied.
fn block(one: &Finding, now: OffsetDateTime, width: Option<usize>) -> String {
    let told = one.told();
    let state = word(told.severity);
    let since = told.since.map(|since| {
        let ago = lasted((now - since).as_seconds_f64());
        format!("{} ({ago} ago)", utc(since))
    });
    let see = match told.alert {
        Some(alert) => format!("{} (alert {alert})", told.see),
        None => told.see.clone(),
    };
    let mut lines = vec![wrapped(state, &told.what, width)];
    lines.push(wrapped(
        "  since",
        &since.unwrap_or_else(|| "not stored".to_owned()),
        width,
    ));
    lines.push(wrapped("  felt", &told.felt, width));
    lines.push(wrapped("  do", &told.remedy, width));
    if let Some(taken) = &one.taken {
        lines.push(wrapped("  has it", &owner(taken), width));
    }
    if let Some(command) = &told.command {
        lines.push(wrapped("  run", command, None));
    }
    lines.push(wrapped("  see", &see, None));
    lines.push(wrapped("  name", &one.kind.key(), None));
    lines.join("\n")
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Mends => "mends",
        Severity::Warning => "warning",
        Severity::Fault => "FAULT",
    }
}

fn owner(taken: &FindingOwner) -> String {
    let until = format!("{} until {}", taken.by, utc(taken.until));
    match taken.note.as_str() {
        "" => until,
        note => format!("{until}: {note}"),
    }
}

/// The text after a label, broken between words where it would not fit. A word that is too long,
/// such as an id, stays whole.
fn wrapped(label: &str, text: &str, width: Option<usize>) -> String {
    const INDENT: usize = 9;
    let text = printable(text);
    let most = width.unwrap_or(usize::MAX).saturating_sub(INDENT).max(20);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().map_or(0, |line| line.chars().count());
        if line > 0 && line + 1 + word.chars().count() > most {
            lines.push(word.to_owned());
        } else if let Some(last) = lines.last_mut() {
            if line > 0 {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    let indent = format!("\n{:INDENT$}", "");
    format!("{label:INDENT$}{}", lines.join(&indent))
}

/// A queue with its estimate.
struct Shown<'a> {
    queue: &'a WaitingQueue,
    backlog: QueueBacklog,
    drain: Option<Drain>,
    /// The endpoint of a queue of webhooks. `None` if it was removed meanwhile.
    endpoint: Option<&'a ListedEndpoint>,
}

pub async fn run(asked: &StatusArgs, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let first = health::examine(&mut connection).await?;
    let (report, earlier) = if asked.over.is_zero() {
        (first, None)
    } else {
        tokio::time::sleep(asked.over).await;
        let second = health::examine(&mut connection).await?;
        (second, Some(first.waiting))
    };
    let (span, spans) = match asked.minutes {
        Some(minutes) => (FigureSpan::Minute, minutes),
        None => (FigureSpan::Hour, asked.hours),
    };
    let over_time = Figures::read(&mut connection, span, spans, false).await?;
    let now = Figures::read(&mut connection, FigureSpan::Minute, NOW, true).await?;
    let subjects = now.by_subject();
    let times = over_time.by_time();
    // The figures are of endpoints that are well, too.
    let endpoints = endpoints::list(&mut connection, None).await?;
    let queues = shown(&report.waiting, earlier.as_ref(), &endpoints);
    let mut json = findings_json(&report);
    json["stages"] = json!(report.stages);
    json["queues"] = queues.iter().map(as_json).collect();
    json["now"] = subjects.iter().map(subject_json).collect();
    json[match span {
        FigureSpan::Minute => "minutes",
        FigureSpan::Hour => "hours",
    }] = times.iter().map(time_json).collect();
    console.print(&json, || {
        let stages = table(report.stages.iter().map(|life| stage_row(life, report.at)));
        let queues = list(&queues, "No provider and no endpoint has work.", row);
        let now = list(
            &subjects,
            "Nothing has happened in the last ten minutes.",
            |one| subject_row(one, &endpoints),
        );
        let times = list(&times, "Nothing has figures yet.", time_row);
        let findings = findings(&report, width());
        format!("{findings}\n\n{stages}\n\n{queues}\n\n{now}\n\n{times}")
    })
}

fn shown<'a>(
    now: &'a WaitingWork,
    earlier: Option<&WaitingWork>,
    endpoints: &'a [ListedEndpoint],
) -> Vec<Shown<'a>> {
    let endpoint = |queue: &WaitingQueue| match queue {
        WaitingQueue::Provider { .. } => None,
        WaitingQueue::Endpoint { endpoint_id, .. } => endpoints
            .iter()
            .find(|endpoint| endpoint.endpoint_id == *endpoint_id),
    };
    let queues = now.queues.iter().map(|(queue, backlog)| Shown {
        queue,
        backlog: *backlog,
        drain: earlier.map(|earlier| now.drain(queue, earlier)),
        endpoint: endpoint(queue),
    });
    queues.collect()
}

fn as_json(shown: &Shown<'_>) -> Value {
    let mut json = json!({ "queue": shown.queue, "backlog": shown.backlog, "drain": shown.drain });
    if let Some(endpoint) = shown.endpoint {
        json["partner"] = json!(endpoint.name);
        json["host"] = json!(endpoint.host());
        json["state"] = json!(endpoint.state);
    }
    json
}

fn stage_row(life: &StageProcesses, now: OffsetDateTime) -> TableRow<3> {
    let running = match life.missing {
        0 => life.running.to_string(),
        missing => format!(
            "{} of {}",
            life.running,
            life.running.saturating_add(missing)
        ),
    };
    let last = life.last.map(|last| match (now - last).as_seconds_f64() {
        ago @ ..10.0 => format!("{} ago", lasted(ago)),
        ago => format!("{} ago, {}", lasted(ago), utc(last)),
    });
    [
        ("stage", life.stage.as_str().to_owned()),
        ("processes", running),
        (
            "last commit",
            last.unwrap_or_else(|| "none is known".to_owned()),
        ),
    ]
}

fn row(shown: &Shown<'_>) -> TableRow<6> {
    let queue = match shown.queue {
        WaitingQueue::Provider { name } => format!("provider {name}"),
        WaitingQueue::Endpoint { endpoint_id, .. } => format!("endpoint {endpoint_id}"),
    };
    // An endpoint that is blocked or paused explains why its webhooks wait.
    let of = shown.endpoint.map(|one| {
        let state = if one.state == EndpointState::Open {
            String::new()
        } else {
            format!(" ({})", one.state.as_str().replace('_', " "))
        };
        format!("{} at {}{state}", one.name, one.host())
    });
    let drain = match shown.drain {
        None | Some(Drain::Unknown) => "unknown".to_owned(),
        Some(Drain::Empty) => "-".to_owned(),
        Some(Drain::Never) => "does not become less".to_owned(),
        Some(Drain::Seconds { seconds }) => format!("about {seconds} s"),
    };
    [
        ("queue", queue),
        ("of", or_dash(of)),
        ("waiting", shown.backlog.waiting().to_string()),
        ("of it due", shown.backlog.due.to_string()),
        ("oldest", lasted(shown.backlog.oldest)),
        ("worked off in", drain),
    ]
}

/// Within which time a share of all ended.
fn within(count: &Count, share: f64) -> String {
    or_dash(count.within(share)).replace('\u{a0}', " ")
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0))
}

fn count_json(count: &Count) -> Value {
    let limit = |share| count.within(share)?.most;
    json!({
        "n": count.n, "failed": count.failed, "half_within_s": limit(0.5),
        "most_within_s": limit(0.95),
    })
}

fn subject_json((measure, subject, count): &(Measure, String, Count)) -> Value {
    let mut json = count_json(count);
    json["measure"] = json!(measure);
    json["subject"] = json!(subject);
    json
}

fn subject_row(
    (measure, subject, count): &(Measure, String, Count),
    endpoints: &[ListedEndpoint],
) -> TableRow<6> {
    let endpoint = endpoints
        .iter()
        .find(|one| one.endpoint_id.to_string() == *subject);
    let of = match endpoint {
        // The first endpoint of a partner has its id.
        Some(one) if measure.is_outcome() => one.name.clone(),
        Some(one) => format!("{} at {} ({subject})", one.name, one.host()),
        None => subject.clone(),
    };
    [
        ("last 10 min", measure.as_str().to_owned()),
        ("of", if of.is_empty() { "-".to_owned() } else { of }),
        ("n", count.n.to_string()),
        ("failed", percent(count.failed_share())),
        ("half", within(count, 0.5)),
        ("95 %", within(count, 0.95)),
    ]
}

fn time_json((at, counts): &(OffsetDateTime, MeasureCounts)) -> Value {
    let at = at.format(&Rfc3339).unwrap_or_default();
    let mut json = json!({ "at": at });
    for (measure, count) in counts {
        json[measure.as_str()] = count_json(count);
    }
    json
}

fn time_row((at, counts): &(OffsetDateTime, MeasureCounts)) -> TableRow<12> {
    let none = Count::default();
    let of = |measure: Measure| counts.get(&measure).unwrap_or(&none);
    let n = |measure: Measure| of(measure).n.to_string();
    let most = |measure: Measure| within(of(measure), 0.95);
    // Whatever the accepted orders leave out, but for those that failed.
    let refused = [Measure::Refused, Measure::Invalid, Measure::Limited];
    let refused: u64 = refused.into_iter().map(|measure| of(measure).n).sum();
    [
        ("since", utc(*at)),
        ("answered", n(Measure::Answered)),
        ("5xx", of(Measure::Answered).failed.to_string()),
        ("95 %", most(Measure::Answered)),
        ("refused", refused.to_string()),
        ("bought", n(Measure::Bought)),
        ("95 %", most(Measure::Bought)),
        ("failed", n(Measure::Failed)),
        ("parked", n(Measure::Parked)),
        ("delivered", n(Measure::Delivered)),
        ("95 %", most(Measure::Delivered)),
        ("exhausted", n(Measure::Exhausted)),
    ]
}

#[cfg(test)]
mod tests {
    use desk::operator::health::samples::{report, samples};
    use time::macros::datetime;

    use super::*;
    use crate::doctor::line::{self, Line, Lines};

    /// `attention` and `status`, their exit status, the doctor's line and its exit status follow
    /// one severity, whatever is found. The console has the same test.
    #[test]
    fn every_finding_is_as_bad_in_every_view() {
        let at = datetime!(2026-11-28 12:00 UTC);
        for found in samples(at) {
            let severity = found.severity();
            let (word, code, list) = match severity {
                Severity::Mends => ("mends", 0, "ends_by_itself"),
                Severity::Warning => ("warning", 1, "needs_person"),
                Severity::Fault => ("FAULT", 2, "needs_person"),
            };
            let mut lines: Vec<Line> = Vec::new();
            let area = line::place(&found.kind).0;
            Lines::of(area, &mut lines).finding(found.clone());
            assert_eq!(line::exit_status(&lines), code, "{found:?}");
            let said = lines[0].text();
            assert!(said.contains(word), "{said}");

            let report = report(at, vec![found]);
            assert_eq!(exit_status(&report) == 0, code == 0, "{report:?}");
            let json = findings_json(&report);
            let listed = json[list].as_array().unwrap();
            assert_eq!(listed.len(), 1, "{json}");
            assert_eq!(listed[0]["told"]["severity"], json!(severity), "{json}");
            let text = findings(&report, None);
            let block = format!("\n\n{word:8} ");
            assert!(text.contains(&block), "{text}");
        }
    }

    #[test]
    fn a_block_fits_the_terminal_and_keeps_ids_whole() {
        let text = "the endpoint 0199c0de-0000-7000-8000-000000000000 of Acme is blocked";
        assert_eq!(
            wrapped("  do", text, None),
            format!("  do     {text}"),
            "what is no terminal is not wrapped"
        );
        let narrow = wrapped("  do", text, Some(40));
        assert!(
            narrow.contains(" 0199c0de-0000-7000-8000-000000000000\n"),
            "{narrow}"
        );
        for line in narrow.lines() {
            assert!(line.trim().len() <= 36, "{narrow}");
        }
        let joined: Vec<&str> = narrow.split_whitespace().skip(1).collect();
        assert_eq!(joined.join(" "), text);
        assert_eq!(
            wrapped("x", "a\u{1b}[31m", Some(3)),
            "x        a\\u{1b}[31m"
        );
    }
}
