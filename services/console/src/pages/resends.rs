//! Resends: a filter, a preview of everything that matches, a reason, and then a recorded
//! resend with its progress. The notifiers carry it out ([`desk::operator::resends`]), so it
//! does not end with the console.

use std::collections::HashMap;

use accounts::partners;
use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::{
    health::{HealthReport, stages::Stage},
    resends::{self, LeftOut, NotStarted, Resend, ResendCancellation, UnmatchedWebhooks},
    words::noun,
};
use domain::{
    PartnerId,
    standing::{DeliveryState, EndpointState},
};
use pg::PgConnection;
use store::deliveries::resends::{MatchCount, ResendSelection};
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use crate::{
    App,
    access::{Act, FormFields, Operator, OperatorRole, Viewer, Visit},
    format::{address, counted, number},
    pages::{
        endpoints::{endpoint_state, next_test},
        forms::ReasonForm,
        lists::{FilterChoice, OfPartner},
        webhooks::{self, is_dead},
    },
    problem::Problem,
    said,
    times::{TimeElement, Times},
    view::{PathArgument, Shell, page, shortened},
};

/// How far back a preview reaches at most, as durations of settings do.
const LONGEST: Duration = Duration::days(365);
/// The maximum number of resends of the list.
const MOST: i64 = 50;
/// The states that a filter may name. Without one it means all that were not delivered.
const STATES: [DeliveryState; 2] = [DeliveryState::Exhausted, DeliveryState::Delivered];

/// How long a preview counts before it is shown. Whoever needs the rest asks for it, and waits.
const AT_ONCE: std::time::Duration = std::time::Duration::from_millis(40);
/// The maximum number of endpoints that are named as the reason why a resend stands still.
const STILL: usize = 5;
/// So few partners are counted all the same.
const FEW: usize = 10;

#[derive(Template)]
#[template(path = "resends.html")]
struct List {
    shell: Shell,
    may: bool,
    partner: String,
    resends: Vec<View>,
    most: i64,
}

#[derive(Template)]
#[template(path = "resend.html")]
struct One {
    shell: Shell,
    resend: View,
    /// Why it stands still, if it does.
    still: Vec<String>,
    form: Option<ReasonForm>,
}

#[derive(Template)]
#[template(path = "preview.html")]
struct Preview {
    shell: Shell,
    token: String,
    matching: String,
    what: String,
    parts: Vec<Part>,
    /// Why nothing matches: for each endpoint what waits, and what the filter leaves out.
    instead: Vec<String>,
    /// How many partners could not be looked at in time, if any.
    unseen: Option<String>,
    /// The page that looks at those, too, if this one has not tried for long.
    further: Option<String>,
    /// What the resend will be called, so that the form starts one only.
    id: Uuid,
    partner: String,
    /// The name of the one partner that it is about.
    named: Option<String>,
    state: &'static str,
    from: String,
    until: String,
}

struct Part {
    id: String,
    /// The list of its webhooks that match.
    list: String,
    name: String,
    matching: String,
    skipped: bool,
}

struct View {
    id: String,
    /// The one partner that it is about.
    partner: Option<Uuid>,
    began: TimeElement,
    by: String,
    reason: String,
    filter: String,
    state: &'static str,
    class: &'static str,
    progress: String,
    done: u64,
    most: u64,
    ended: String,
    skipped: String,
}

/// The names of the partners of these resends.
async fn names(
    connection: &mut PgConnection,
    resends: &[Resend],
) -> Result<HashMap<Uuid, String>, pg::Error> {
    let ids: Vec<Uuid> = resends.iter().filter_map(|one| one.partner_id).collect();
    partners::names(connection, &ids).await
}

fn view(resend: Resend, names: &HashMap<Uuid, String>, times: &Times) -> View {
    let (state, class) = match (resend.cancelled_at, resend.ended_at) {
        (Some(_), _) => ("cancelled", "note"),
        (None, Some(_)) => ("ended", "note"),
        (None, None) => ("runs", "note"),
    };
    View {
        filter: in_words(&resend, names, times),
        partner: resend.partner_id,
        id: resend.resend_id.to_string(),
        began: times.both(resend.created_at),
        by: format!("{} ({})", resend.asked_by, resend.via),
        reason: resend.reason,
        state,
        class,
        progress: format!(
            "{} of {}",
            number(resend.resent),
            counted(resend.matching, "webhook", "webhooks")
        ),
        done: resend.resent,
        most: resend.matching,
        ended: format!(
            "{} of {}",
            number(resend.ended),
            counted(resend.parts, "partner", "partners")
        ),
        skipped: number(resend.skipped),
    }
}

/// Which webhooks a resend is about, in words.
fn in_words(resend: &Resend, names: &HashMap<Uuid, String>, times: &Times) -> String {
    let of = resend.partner_id.map_or_else(
        || "several partners".to_owned(),
        |id| {
            names
                .get(&id)
                .cloned()
                .unwrap_or_else(|| format!("partner {id}"))
        },
    );
    if resend.delivery_id.is_some() {
        return format!("one webhook of {of}");
    }
    format!(
        "webhooks of {of} that {}, last tried from {} to {}",
        were(resend.state.known()),
        times.written(resend.since),
        times.written(resend.until)
    )
}

/// The state of a filter, of the webhooks that are meant.
fn were(state: Option<DeliveryState>) -> &'static str {
    match state {
        Some(DeliveryState::Exhausted) => "were given up",
        Some(DeliveryState::Delivered) => "were delivered",
        _ => "were not delivered",
    }
}

pub(crate) async fn list(
    State(app): State<App>,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let asked = visit.query.get("partner");
    let read = async |connection: &mut PgConnection| {
        let found = resends::list(&mut *connection, MOST).await?;
        let names = names(&mut *connection, &found).await?;
        let named = FilterChoice::find(&mut *connection, asked).await?;
        Ok::<_, pg::Error>((found, names, named.shown(connection).await?))
    };
    let (found, names, named) = app.database().run(read).await?;
    let partner = named.map(OfPartner::into_field);
    page(&List {
        shell: Shell::new(&app, &visit.session, "/resends", "Send again"),
        may: visit.session.may(OperatorRole::Operator),
        partner: partner.unwrap_or_else(|| asked.unwrap_or_default().to_owned()),
        resends: found
            .into_iter()
            .map(|one| view(one, &names, &visit.session.times))
            .collect(),
        most: MOST,
    })
}

/// The partner of a filter; `None` means all.
fn partner(fields: &FormFields) -> Result<Option<PartnerId>, Problem> {
    let id = fields.get("partner").map(str::parse);
    id.transpose()
        .map_err(|_| Problem::Invalid("a partner is named by its id, which its page shows".into()))
}

/// The state of a filter.
fn state(fields: &FormFields) -> Result<Option<DeliveryState>, Problem> {
    let Some(name) = fields.get("state") else {
        return Ok(None);
    };
    let state = name.parse().ok().filter(|state| STATES.contains(state));
    let state =
        state.ok_or_else(|| Problem::Invalid("there is no such state of webhooks".into()))?;
    Ok(Some(state))
}

pub(crate) async fn preview(
    State(app): State<App>,
    visit: Visit<Operator>,
) -> Result<Response, Problem> {
    let query = &visit.query;
    let find = async |connection: &mut PgConnection| {
        let named = FilterChoice::find(&mut *connection, query.get("partner")).await?;
        let shown = named.shown(connection).await?;
        Ok::<_, pg::Error>((named, shown))
    };
    let (named, shown) = app.database().run(find).await?;
    let partner = match named {
        FilterChoice::Nobody(why) => return Err(Problem::Invalid(why)),
        FilterChoice::All | FilterChoice::One(_) => named.id(),
    };
    let state = state(query)?;
    let (since, until) = range(query, &visit.session.times)?;
    // The resend that follows has this end, so that webhooks of later are not among its own.
    let wanted = ResendSelection {
        state,
        since,
        until: Some(until),
    };
    let count = async |connection: &mut PgConnection| {
        if query.get("all").is_none() {
            let quick =
                resends::preview_within(&mut *connection, partner, &wanted, AT_ONCE).await?;
            if quick.unseen == 0 || quick.unseen > FEW {
                return Ok(quick);
            }
        }
        resends::preview(connection, partner, &wanted).await
    };
    let found = app.database().run(count).await?;
    let further = query.get("all").is_none().then(|| {
        let asked = ["partner", "state", "since", "from", "until"].into_iter();
        let asked = asked.filter_map(|name| Some((name, query.get(name)?)));
        address("/resends/preview", asked.chain([("all", "1")]))
    });
    let how_many = |matching: MatchCount| {
        let least = if matching.all { "" } else { "at least " };
        format!("{least}{}", number(matching.number))
    };
    let times = &visit.session.times;
    let list_state = state.map_or(webhooks::UNTAKEN, <&str>::from);
    // A field of a form has no fractions of a second.
    let first = times.field(since);
    let last = times.field(until + Duration::SECOND);
    let parts = found.parts.into_iter().map(|part| Part {
        id: part.partner_id.to_string(),
        list: address(
            webhooks::PATH,
            [
                ("partner", part.partner_id.to_string().as_str()),
                ("state", list_state),
                ("from", &first),
                ("until", &last),
            ],
        ),
        matching: how_many(part.matching),
        name: part.name,
        skipped: part.skipped,
    });
    let matching = format!(
        "{}{} {}",
        if found.unseen > 0 { "at least " } else { "" },
        how_many(found.matching),
        noun(found.matching.number, "webhook", "webhooks")
    );
    let title = match (found.matching.number, found.unseen) {
        (0, 0) => "Nothing would be sent again".to_owned(),
        _ => format!("{matching} would be sent again"),
    };
    let moment = |at: OffsetDateTime| at.format(&Rfc3339).unwrap_or_default();
    page(&Preview {
        shell: Shell::new(&app, &visit.session, "/resends", title),
        token: visit.session.form_token(),
        matching,
        what: format!(
            "which {}, last tried from {} to {}",
            were(state),
            times.written(since),
            times.written(until)
        ),
        parts: parts.collect(),
        instead: {
            let left_out = found.left_out.iter().map(LeftOut::told);
            left_out
                .chain(found.waiting.iter().map(UnmatchedWebhooks::told))
                .collect()
        },
        named: shown.map(|one| one.name),
        further,
        unseen: (found.unseen > 0).then(|| counted(found.unseen, "more partner", "more partners")),
        id: Uuid::now_v7(),
        partner: partner.map_or_else(String::new, |id| id.to_string()),
        state: state.map_or("", <&str>::from),
        from: moment(since),
        until: moment(until),
    })
}

/// The range of time of the form: from and until in the reader's zone, or else the last hours. It
/// reaches back as far as a resend may, and ends now at the latest.
fn range(query: &FormFields, times: &Times) -> Result<(OffsetDateTime, OffsetDateTime), Problem> {
    let now = runtime::clock::now();
    let given = |name: &str| match query.get(name).filter(|given| !given.is_empty()) {
        None => Ok(None),
        Some(given) => match times.parse(given) {
            Some(at) => Ok(Some(at)),
            None => Err(Problem::Invalid(format!(
                "“{}” is no time",
                shortened(given)
            ))),
        },
    };
    let until = given("until")?.map_or(now, |until| until.min(now));
    let since = if let Some(from) = given("from")? {
        from.max(now - LONGEST)
    } else {
        let age = runtime::config::positive_duration(query.get("since").unwrap_or("6h"));
        until - age.map_err(Problem::Invalid)?
    };
    if since < until {
        Ok((since, until))
    } else {
        Err(Problem::Invalid(
            "the range of time must begin before it ends".into(),
        ))
    }
}

/// Refuses a range of time that no preview shows. A preview reaches back at most as far as a
/// duration may be long, and its form may be sent up to a day later.
fn check_range(
    since: OffsetDateTime,
    until: OffsetDateTime,
    now: OffsetDateTime,
) -> Result<(), Problem> {
    // Another replica may have made the preview, and its clock may be ahead of ours.
    let is_in_reach = since >= now - LONGEST - Duration::DAY && until <= now + Duration::MINUTE;
    if since < until && is_in_reach {
        Ok(())
    } else {
        Err(Problem::Invalid(
            "the range of time must begin before it ends, at most 365 days ago, and end in the past: begin with a preview, \
             which names one"
                .into(),
        ))
    }
}

pub(crate) async fn start(State(app): State<App>, act: Act<Operator>) -> Result<Response, Problem> {
    let fields = &act.fields;
    let action = act.action(domain::Command::ResendStart, "resend", fields.reason()?);
    let partner = partner(fields)?;
    let no_preview =
        || Problem::Invalid("begin with a preview, which names the range of time".into());
    let id = fields.get("id").and_then(|id| id.parse().ok());
    let id: Uuid = id.ok_or_else(no_preview)?;
    let moment = |name: &str| {
        let at = OffsetDateTime::parse(fields.get(name).unwrap_or_default(), &Rfc3339);
        at.map_err(|_| no_preview())
    };
    let since = moment("from")?;
    let until = moment("until")?;
    check_range(since, until, runtime::clock::now())?;
    let wanted = ResendSelection {
        state: state(fields)?,
        since,
        until: Some(until),
    };
    let started = app
        .database()
        .run(async |connection| resends::start(connection, id, partner, &wanted, action).await)
        .await
        .map_err(|error| match error {
            NotStarted::Store(error) => error.into(),
            nothing @ NotStarted::Nothing => act.not_done(
                "Nothing is left to send",
                format!(
                    "No resend was started: {nothing}. If you have sent the form twice, the first one has started it."
                ),
            ),
            already @ NotStarted::Already => act.not_done(
                "It was started already",
                format!("No resend was started: {already}. Send again lists it."),
            ),
            many @ NotStarted::TooMany(_) => act.not_done(
                "The resend would be incomplete",
                format!("No resend was started: {many}."),
            ),
        })?;
    let path = format!("/resends/{}", started.resend_id);
    Ok(said::after(&app, &path, "The resend has begun."))
}

/// The id of a resend.
fn id(given: &PathArgument) -> Result<Uuid, Problem> {
    let id = given.0.parse();
    id.map_err(|_| no_resend(given))
}

fn no_resend(given: &PathArgument) -> Problem {
    let given = shortened(&given.0);
    Problem::NotFound(format!(
        "No resend has the id “{given}”. Send again lists the newest {MOST}."
    ))
}

pub(crate) async fn show(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let id = id(&given)?;
    let read = async |connection: &mut PgConnection| {
        let found = resends::find(&mut *connection, id).await?;
        let names = names(connection, found.as_slice()).await?;
        Ok::<_, pg::Error>((found, names))
    };
    let (found, names) = app.database().run(read).await?;
    let found = found.ok_or_else(|| no_resend(&given))?;
    let runs = found.ended_at.is_none() && found.cancelled_at.is_none();
    let form = (runs && visit.session.may(OperatorRole::Operator)).then(|| ReasonForm {
        consequence: "No further webhook is queued. Those that are queued already are still sent."
            .into(),
        back: format!("/resends/{id}"),
        grave: true,
        ..ReasonForm::new(&visit.session, "Cancel", format!("/resends/{id}/cancel"))
    });
    let (look, _) = app.figures().look(app.database()).await?;
    let to = match (found.partner_id, found.delivery_id) {
        (_, Some(_)) => "one webhook".to_owned(),
        (Some(id), None) => names
            .get(&id)
            .cloned()
            .unwrap_or_else(|| "one partner".to_owned()),
        (None, None) => "several partners".to_owned(),
    };
    let title = if runs {
        format!("Sending again to {to}")
    } else {
        format!("Sent again to {to}")
    };
    page(&One {
        shell: Shell::new(&app, &visit.session, "/resends", title),
        still: if runs {
            stands_still(&look.report, found.partner_id, visit.session.times.now)
        } else {
            Vec::new()
        },
        resend: view(found, &names, &visit.session.times),
        form,
    })
}

/// Why a resend that runs does not go on: no notifier works, or endpoints of its partner get
/// nothing now.
fn stands_still(report: &HealthReport, partner: Option<Uuid>, now: OffsetDateTime) -> Vec<String> {
    if is_dead(report, Stage::Notifier) {
        return vec![
            "No notifier works, so nothing is sent. It goes on where it was once one works: the overview says what to do."
                .to_owned(),
        ];
    }
    let its = report.endpoints.iter().filter(|one| {
        partner.is_none_or(|partner| one.partner_id == partner)
            && matches!(
                one.state.known(),
                Some(
                    EndpointState::Blocked
                        | EndpointState::Probing
                        | EndpointState::Paused
                        | EndpointState::PausedByPartner
                )
            )
    });
    let told = its.take(STILL).map(|one| {
        let next = next_test(one, now).map_or_else(String::new, |next| format!("; {next}"));
        format!(
            "{} of {} is {}, so its webhooks wait until that ends{next}.",
            one.host(),
            one.name,
            endpoint_state(one)
        )
    });
    told.collect()
}

pub(crate) async fn cancel(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let id = id(&given)?;
    let target = format!("resend {id}");
    let action = act.action(domain::Command::ResendCancel, &target, act.fields.reason()?);
    let ended = app
        .database()
        .run(async |connection| resends::cancel(connection, id, action).await)
        .await?;
    match ended {
        ResendCancellation::Now(_) => {
            let path = format!("/resends/{id}");
            Ok(said::after(&app, &path, "The resend is cancelled."))
        }
        ResendCancellation::EndedBefore(resend) if resend.cancelled_at.is_some() => Err(act.not_done(
            "The resend was cancelled already",
            "Nothing was done now. If you have sent the form twice, the first one was carried out, and the record of actions has it.",
        )),
        ResendCancellation::EndedBefore(_) => Err(act.not_done(
            "The resend has ended already",
            "It had queued all its webhooks before it could be cancelled.",
        )),
        ResendCancellation::Unknown => Err(no_resend(&given)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resend_begins_with_a_range_of_time_that_a_preview_shows() {
        let now = OffsetDateTime::UNIX_EPOCH + Duration::days(20_000);
        let ago = |days| now - Duration::days(days);
        for (since, until) in [(ago(365), now), (ago(2), ago(1))] {
            assert!(check_range(since, until, now).is_ok(), "{since} {until}");
        }
        for (since, until) in [
            (ago(367), now),
            (ago(1), ago(-1)),
            (ago(1), ago(1)),
            (ago(1), ago(2)),
            (ago(-1), ago(-2)),
        ] {
            assert!(check_range(since, until, now).is_err(), "{since} {until}");
        }
    }
}
