//! Needs a person: one matter for each cause, with since when, who is affected and what to do, its
//! rows and its act; and below it what goes on by itself, so that nobody looks for it elsewhere.
//! The matters are the findings of [`desk::operator::health`], as on the first page and in
//! `esimctl attention`.

use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::{
    endpoints::seen_at,
    esim_changes::ListedEsimChange,
    health::{
        self, Finding, FindingKind,
        life::{self, TakeFrom, Taken},
    },
    placements,
};
use domain::Command;
use pg::PgConnection;
use time::OffsetDateTime;
use url::form_urlencoded::byte_serialize;

use crate::{
    App,
    access::{Act, ConsoleSession, OperatorRole, Support, Viewer, Visit},
    pages::{
        endpoints::{endpoint_form, next_test},
        esim_changes,
        forms::ReasonForm,
        issues::{
            TakenView, anchor, class_of, groups, remedy, section, shell_command, taken, together,
        },
        partner_acts::told_form,
        providers::breaker_form,
        settle,
    },
    problem::Problem,
    times::{TimeElement, Times},
    view::{PathArgument, Shell, page},
};

#[derive(Template)]
#[template(path = "needs.html")]
struct Page {
    shell: Shell,
    verdict: String,
    read: TimeElement,
    matters: Vec<MatterGroup>,
    mending: Vec<Matter>,
    most: i64,
}

/// Matters of one kind, under one name if there are several.
struct MatterGroup {
    class: &'static str,
    name: Option<String>,
    matters: Vec<Matter>,
}

/// One cause.
struct Matter {
    /// Its place on the page, to which other pages lead.
    anchor: String,
    class: &'static str,
    what: String,
    /// Empty if it is not stored.
    since: TimeElement,
    felt: String,
    remedy: String,
    command: Option<String>,
    see: String,
    /// What is known beside that, such as the next test.
    note: Option<String>,
    /// What the rows begin with, and what they name beside their partner.
    first: &'static str,
    column: &'static str,
    rows: Vec<Row>,
    /// The page of its act, and what that is.
    link: Option<(String, String)>,
    /// Whether that is the next thing to do, and no page to read.
    leads: bool,
    /// Where its single rows are.
    see_them: Option<String>,
    form: Option<ReasonForm>,
    taken: Option<TakenView>,
    /// The form of "I have it".
    take: Option<ReasonForm>,
}

struct Row {
    what: String,
    path: Option<String>,
    partner: String,
    since: TimeElement,
    /// The id to look up at the provider.
    id: String,
    why: String,
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let session = &visit.session;
    let look = app.figures().look_now(app.database()).await?;
    let report = &look.report;
    page(&Page {
        shell: Shell::new(&app, session, "/needs", "Needs a person"),
        verdict: report.verdict(),
        read: session.times.clock(report.at),
        matters: groups(report.needed())
            .into_iter()
            .map(|group| grouped(&group, session, report.at))
            .collect(),
        mending: report
            .mending()
            .map(|one| matter(one, session, report.at))
            .collect(),
        most: health::PARKED,
    })
}

fn grouped(group: &[&Finding], session: &ConsoleSession, read_at: OffsetDateTime) -> MatterGroup {
    let first = group.first();
    MatterGroup {
        class: first.map_or("", |one| class_of(one.severity())),
        name: first
            .filter(|_| group.len() > 1)
            .and_then(|one| together(&one.kind, group.len())),
        matters: group
            .iter()
            .map(|one| matter(one, session, read_at))
            .collect(),
    }
}

/// A finding with its rows and its act.
fn matter(one: &Finding, session: &ConsoleSession, read_at: OffsetDateTime) -> Matter {
    let told = one.told();
    let times = &session.times;
    let mut matter = Matter {
        anchor: anchor(&one.kind),
        class: class_of(told.severity),
        what: told.what,
        since: told
            .since
            .map(|since| times.both(since))
            .unwrap_or_default(),
        felt: told.felt.into_owned(),
        remedy: remedy(one, &told.remedy, session.role),
        command: shell_command(told.command, session),
        see: section(&told.see),
        note: None,
        first: "Order",
        column: "Purchase id",
        rows: Vec::new(),
        link: None,
        leads: false,
        see_them: None,
        form: None,
        taken: taken(one, times),
        take: take_form(&one.kind.key(), session, read_at),
    };
    match &one.kind {
        FindingKind::Parked { purchases, .. } => {
            matter.rows = purchases.iter().map(|one| parked(one, times)).collect();
            let first = purchases
                .first()
                .filter(|_| session.may(OperatorRole::Operator));
            matter.link = first.map(|one| (settle::path(one, None), "Settle them …".to_owned()));
            matter.leads = true;
        }
        FindingKind::GiveBacksParked { provider, changes }
        | FindingKind::ExtensionsParked { provider, changes } => {
            changes_parked(&mut matter, provider, changes, session);
        }
        FindingKind::OrdersFail {
            partner: Some(id), ..
        } => {
            matter.link = Some((
                format!("/partners/{id}/refused"),
                "Its refused requests".to_owned(),
            ));
        }
        FindingKind::NoAddress {
            partner_id, name, ..
        } => {
            matter.see_them = Some(format!("/webhooks?partner={partner_id}&state=no_endpoint"));
            matter.link = Some((format!("/partners/{partner_id}"), name.clone()));
        }
        FindingKind::BalanceRunsOut(balance) => {
            matter.form = told_form(balance.partner_id, session, pg::rfc3339(read_at));
            let partner = format!("/partners/{}/access", balance.partner_id);
            matter.link = Some((partner, "Its account".to_owned()));
        }
        FindingKind::BreakerOpen { breaker } => {
            matter.form = breaker_form(breaker, session, "/needs");
            let provider = format!("Provider {}", breaker.name);
            matter.link = Some((format!("/providers#{}", breaker.name), provider));
        }
        FindingKind::Blocked { endpoint } if told.needs_person => {
            matter.form = told_form(endpoint.partner_id.into(), session, seen_at(endpoint));
            let partner = format!("/partners/{}", endpoint.partner_id);
            matter.link = Some((partner, endpoint.name.clone()));
        }
        FindingKind::Paused { endpoint } | FindingKind::Blocked { endpoint } => {
            matter.form = endpoint_form(endpoint, session, "/needs");
            // Without its stage nothing is tested.
            matter.note = next_test(endpoint, times.now).filter(|_| one.after.is_none());
            let partner = format!("/partners/{}", endpoint.partner_id);
            matter.link = Some((partner, endpoint.name.clone()));
        }
        FindingKind::Exhausted { endpoint } => {
            // The preview of a resend begins with this partner. Only an operator may start it;
            // others send single ones again on the pages of their orders, to which the list leads.
            let partner = endpoint.partner_id;
            matter.link = session.may(OperatorRole::Operator).then(|| {
                (
                    format!("/resends?partner={partner}"),
                    "Send them again …".to_owned(),
                )
            });
            matter.leads = true;
            matter.see_them = Some(format!("/webhooks?partner={partner}&state=exhausted"));
            let at = seen_at(endpoint);
            matter.form = told_form(partner.into(), session, at);
            matter.note = one
                .told_at
                .map(|at| format!("the partner was told at {}", times.written(at)));
        }
        _ => {}
    }
    if matter.link.is_some() || matter.form.is_some() {
        matter.command = None;
    }
    matter
}

/// The changes of eSIMs of which nobody knows what became of them, and the page that settles them.
fn changes_parked(
    matter: &mut Matter,
    provider: &str,
    changes: &[ListedEsimChange],
    session: &ConsoleSession,
) {
    matter.first = "eSIM";
    matter.column = "Number there";
    let rows = changes.iter().map(|one| change(one, &session.times));
    matter.rows = rows.collect();
    let kind = changes.first().map(ListedEsimChange::kind);
    let kind = kind.filter(|_| session.may(OperatorRole::Operator));
    matter.link = kind.map(|kind| {
        let path = esim_changes::path(kind, provider);
        (path, "Settle them …".to_owned())
    });
    matter.leads = true;
}

/// The act that tells everybody who has a matter.
fn take_form(key: &str, session: &ConsoleSession, read_at: OffsetDateTime) -> Option<ReasonForm> {
    let key: String = byte_serialize(key.as_bytes()).collect();
    session.may(OperatorRole::Support).then(|| ReasonForm {
        consequence: "Everybody sees that you have it, until when and why. Nothing else changes."
            .to_owned(),
        duration: true,
        seen: pg::rfc3339(read_at),
        back: "/needs".to_owned(),
        ..ReasonForm::new(session, "I have it", format!("/needs/{key}/take"))
    })
}

pub(crate) async fn take(
    State(app): State<App>,
    PathArgument(key): PathArgument,
    act: Act<Support>,
) -> Result<Response, Problem> {
    let target = format!("finding {key}");
    let action = act.action(Command::FindingTake, &target, act.fields.reason()?);
    let asked = act.fields.get("for").unwrap_or("1h");
    let time = runtime::config::positive_duration(asked).map_err(Problem::Invalid)?;
    // Whoever acts was shown who has it.
    let from = act
        .fields
        .get("seen")
        .map_or(TakeFrom::Nobody, TakeFrom::AsSeen);
    let take = async |connection: &mut PgConnection| {
        life::take(connection, &key, time, from, action).await
    };
    match app.database().run(take).await? {
        Taken::Yours { .. } => {}
        Taken::Theirs(owner) => return Err(act.changed(&format!("{} has it", owner.by))),
        Taken::JustTaken => return Err(act.changed("somebody has just taken it")),
        Taken::Unknown => return Err(act.changed("it is mended")),
    }
    Ok(act.done(
        &app,
        &format!("Everybody sees for {asked} that you have it."),
    ))
}

fn parked(one: &placements::ListedPlacement, times: &Times) -> Row {
    let elsewhere = if one.elsewhere.is_empty() {
        String::new()
    } else {
        format!(" (look it up at {}, too)", one.elsewhere.join(", "))
    };
    let reason = one.reason.told();
    let reason = reason.as_deref().unwrap_or("no reason is recorded");
    Row {
        what: one.external_order_id.clone(),
        path: Some(format!("/orders/{}", one.order_id)),
        partner: one.partner.clone().unwrap_or_default(),
        since: times.both(one.since()),
        id: one.placement_id.to_string(),
        why: format!("{reason}{elsewhere}"),
    }
}

fn change(one: &ListedEsimChange, times: &Times) -> Row {
    Row {
        what: one.topup_id.clone(),
        path: one.order_id.map(|_| format!("/esims/{}", one.topup_id)),
        partner: (one.partner.clone()).unwrap_or_else(|| one.partner_id.to_string()),
        since: times.both(one.parked_at),
        id: one
            .provider_unit_id
            .clone()
            .unwrap_or_else(|| "not known".to_owned()),
        why: format!(
            "the last answer was: {}",
            one.message.as_deref().unwrap_or("no reason is recorded")
        ),
    }
}

#[cfg(test)]
mod tests {
    use desk::operator::health::{finding::Severity, samples::samples};
    use time::macros::datetime;

    use super::*;
    use crate::pages::issues::{issue, worst};

    const AT: OffsetDateTime = datetime!(2026-11-28 12:00 UTC);

    fn session(role: OperatorRole) -> ConsoleSession {
        ConsoleSession {
            operator: "ana".to_owned(),
            role,
            secret: "secret".into(),
            from: String::new(),
            said: None,
            times: Times::default(),
        }
    }

    /// Who has no shell reads of no command, who has one reads it where the console neither does it
    /// nor leads there, and the files of the repository are no pages of the console.
    #[test]
    fn what_to_do_is_said_in_words_of_the_console() {
        for found in samples(AT) {
            for role in [OperatorRole::Support, OperatorRole::Operator] {
                let session = session(role);
                let matter = matter(&found, &session, AT);
                let line = issue(&found, &session);
                let leads = matter.link.is_some() || matter.form.is_some();
                let has_shell = role == OperatorRole::Operator;
                assert!(matter.command.is_none() || has_shell && !leads, "{found:?}");
                assert!(line.command.is_none() || has_shell && line.page.is_none());
                for text in [&matter.remedy, &matter.felt, &matter.see, &line.see] {
                    assert!(!text.contains("esimctl") && !text.contains(".md"), "{text}");
                }
            }
        }
    }

    /// The first page, that of a partner and Needs a person show one severity, whatever is found.
    /// `esimctl` has the same test.
    #[test]
    fn every_finding_is_as_bad_on_every_page() {
        let session = session(OperatorRole::Operator);
        for found in samples(AT) {
            let (class, verdict) = match found.severity() {
                Severity::Mends => ("", None),
                Severity::Warning => ("warn", Some("warn")),
                Severity::Fault => ("bad", Some("bad")),
            };
            assert_eq!(issue(&found, &session).class, class, "{found:?}");
            assert_eq!(matter(&found, &session, AT).class, class, "{found:?}");
            assert_eq!(worst([&found].into_iter()), verdict, "{found:?}");
            assert_eq!(found.needs_person(), verdict.is_some(), "{found:?}");
        }
    }
}
