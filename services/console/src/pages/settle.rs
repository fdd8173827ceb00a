//! Purchases on hold by cause: what became of all of them, in one act. The provider is asked first.
//! A provisioner looks each purchase up, because it holds the credentials; one that is found goes
//! on by itself, and the page says of each other one what the provider answered. Where no answer
//! proves an absence, an operator pastes the list that the provider's portal exports. Only then the
//! page offers what fits: one that is in the list was bought, and one that is certainly not there
//! may be given up or bought again. Each purchase is settled in a transaction of its own with its
//! record, as on the page of its order.

use std::collections::{BTreeMap, HashMap, HashSet};

use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::{
    breakers,
    health::stages::{Stage, StageProcesses},
    placements::{self, Decision, ListedPlacement, PlacementNotResolved},
    words::noun,
};
use domain::{Command, PlacementId, PlacementState, placement::Resolution};
use pg::{
    PgConnection,
    actions::{self, Mode},
};
use store::placements::asked::{self, ProviderAnswer};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    App,
    access::{Act, ConsoleSession, FormFields, Operator, Visit},
    format::{address, counted, number, relative, utc},
    pages::group::Group,
    problem::Problem,
    said,
    times::{TimeElement, Times},
    view::{Shell, page},
};

/// The maximum number of purchases of a page, the oldest ones.
const MOST: i64 = 200;

#[derive(Template)]
#[template(path = "settle.html")]
struct Page {
    shell: Shell,
    token: String,
    provider: String,
    cause: String,
    /// The address of this page.
    here: String,
    /// When the provider was asked last, as the form that asks it carries along.
    seen: String,
    /// From when to when the purchases were ordered, which the list has to cover.
    from: String,
    until: String,
    /// What is known by now: how many the provider was asked for, or how many its list has.
    known: Option<String>,
    /// Whether answers are awaited, so that the page refreshes itself.
    live: bool,
    /// Why the provider is not asked now, if it is not.
    not_asked: Option<String>,
    /// Whether a list was compared.
    compared: bool,
    /// Whether something can be settled now.
    may_settle: bool,
    rows: Vec<Row>,
}

struct Row {
    id: String,
    order: String,
    path: String,
    partner: String,
    product: String,
    since: TimeElement,
    /// What is known of it, and how that is coloured.
    found: Found,
    class: &'static str,
    says: String,
    /// Since when, or why.
    detail: String,
    /// Whether its provider has confirmed it once. Then it is not offered to be bought again here,
    /// where a line of many is looked at for a moment; the page of its order offers what fits.
    bought: bool,
    seen: String,
}

/// What is known of a purchase.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Nobody has asked, or the answer says nothing for certain.
    Unknown,
    /// The answer of its provider is awaited.
    Asking,
    /// The list has it.
    There,
    /// It was certainly not made.
    Missing,
}

/// The address of the page for the cause of a purchase, after its provider was asked for so many.
pub(crate) fn path(one: &ListedPlacement, asked: Option<usize>) -> String {
    let cause = placements::cause(&one.reason);
    let asked = asked.map(|asked| asked.to_string()).unwrap_or_default();
    let fields = [
        ("provider", one.provider.as_str()),
        ("cause", &cause),
        ("asked", &asked),
    ];
    address("/purchases/settle", fields)
}

/// The purchases on hold for a cause.
struct OnHold {
    provider: String,
    cause: String,
    /// When the provider was asked last ([`actions::mark`]). It is read before everything else that
    /// the page shows, so that a question in between makes the page one of before it.
    seen: String,
    found: Vec<ListedPlacement>,
}

/// Reads the purchases on hold for a cause. One that may be at several providers is settled on the
/// page of its order, because one list does not say what became of it.
async fn on_hold(app: &App, fields: &FormFields) -> Result<OnHold, Problem> {
    let provider = fields.get("provider").unwrap_or_default().to_owned();
    let cause = fields.get("cause").unwrap_or_default().to_owned();
    let read = async |connection: &mut PgConnection| {
        let command = Command::ProviderReconcile;
        let seen = actions::mark(&mut *connection, &provider, command).await?;
        let parked = Some(PlacementState::Parked);
        let found = placements::list(&mut *connection, parked, Some(&provider), MOST).await?;
        let found = found.after_flush(connection).await?;
        Ok::<_, pg::Error>((seen, found))
    };
    let (seen, mut found) = app.database().run(read).await?;
    found.retain(|one| one.elsewhere.is_empty() && placements::cause(&one.reason) == cause);
    if found.is_empty() {
        return Err(Problem::NotFound(
            "No purchase is on hold there for this cause any more. If the provider was asked for them, it has them, \
             and their orders go on by themselves. See Needs a person."
                .to_owned(),
        ));
    }
    Ok(OnHold {
        provider,
        cause,
        seen,
        found,
    })
}

/// The ids in a list, with or without their dashes. The list is read once, however many purchases
/// are then compared with it.
fn ids(list: &str) -> HashSet<Uuid> {
    let mut ids = HashSet::new();
    // The last 32 digits in a row, and how many there are. What does not fit is shifted out.
    let mut value: u128 = 0;
    let mut digits = 0;
    for character in list.chars() {
        if let Some(digit) = character.to_digit(16) {
            value = value << 4 | u128::from(digit);
            digits += 1;
            if digits >= 32 {
                ids.insert(Uuid::from_u128(value));
            }
        } else if character != '-' {
            digits = 0;
        }
    }
    ids
}

/// What is known of a purchase, as the page says it.
fn found(
    one: &ListedPlacement,
    list: Option<&HashSet<Uuid>>,
    answer: Option<&ProviderAnswer>,
    times: &Times,
) -> (Found, &'static str, String, String) {
    if let Some(list) = list {
        return if list.contains(&one.placement_id.uuid()) {
            (Found::There, "good", "in the list".into(), String::new())
        } else {
            (Found::Missing, "warn", "not in it".into(), String::new())
        };
    }
    if one.due_at.is_some() && !one.bought {
        return (Found::Asking, "", "being asked".into(), String::new());
    }
    let Some(answer) = answer else {
        return (
            Found::Unknown,
            "none",
            "not asked yet".into(),
            String::new(),
        );
    };
    let at = format!("asked {}", relative(times.now, answer.at));
    let why = answer.reason.told().unwrap_or_default();
    if answer.proves_absence() {
        (Found::Missing, "warn", "not there".into(), at)
    } else if answer.is_missing {
        let says = "a search found nothing, which proves nothing".to_owned();
        (Found::Unknown, "warn", says, at)
    } else {
        (
            Found::Unknown,
            "bad",
            "no answer".into(),
            format!("{at}: {why}"),
        )
    }
}

fn row(
    one: &ListedPlacement,
    list: Option<&HashSet<Uuid>>,
    answer: Option<&ProviderAnswer>,
    times: &Times,
) -> Row {
    let (found, class, says, detail) = found(one, list, answer, times);
    Row {
        id: one.placement_id.to_string(),
        order: one.external_order_id.clone(),
        path: format!("/orders/{}", one.order_id),
        partner: one.partner.clone().unwrap_or_default(),
        product: one.lane.clone(),
        since: times.both(one.since()),
        found,
        class,
        says,
        detail,
        bought: one.bought,
        seen: placements::parking(one.attempt, &one.reason),
    }
}

/// Why a question to this provider would not be answered now, by the look that all pages share.
async fn not_asked(app: &App, provider: &str) -> Result<Option<String>, Problem> {
    let (look, _) = app.figures().look(app.database()).await?;
    let report = &look.report;
    let breaker = report.breakers.iter().find(|one| one.name == provider);
    let is_dead = |one: &StageProcesses| one.stage == Stage::Provisioner && one.is_dead();
    let runs = !report.stages.iter().any(is_dead);
    Ok(breakers::not_asked(provider, breaker, runs))
}

/// What somebody says became of a purchase on hold, and how that is recorded. The forms of one
/// purchase and of many send the same words.
pub(crate) fn decided(found: &str) -> Option<(Resolution, Command)> {
    match found {
        "bought" => Some((Resolution::Bought, Command::PlacementBought)),
        "not-bought" => Some((Resolution::NotBought, Command::PlacementNotBought)),
        "retry" => Some((Resolution::Retry, Command::PlacementRetry)),
        _ => None,
    }
}

async fn shown(
    app: &App,
    session: &ConsoleSession,
    on_hold: OnHold,
    (answers, list): (&HashMap<Uuid, ProviderAnswer>, Option<&HashSet<Uuid>>),
    asked: Option<usize>,
) -> Result<Response, Problem> {
    let OnHold {
        provider,
        cause,
        seen,
        found,
    } = on_hold;
    let times = &session.times;
    let rows: Vec<Row> = found
        .iter()
        .map(|one| row(one, list, answers.get(&one.placement_id.uuid()), times))
        .collect();
    let are = |state: Found| rows.iter().filter(|one| one.found == state).count();
    let known = match (list, asked) {
        (Some(_), _) => Some(format!(
            "{} of the {} are in the list.",
            are(Found::There),
            rows.len()
        )),
        (None, Some(asked)) => Some(format!(
            "{provider} was asked for {}. On hold now {} {}: {} certainly not there, {} being asked, {} not known.",
            counted(asked, "purchase", "purchases"),
            noun(rows.len(), "is", "are"),
            number(rows.len()),
            number(are(Found::Missing)),
            number(are(Found::Asking)),
            number(are(Found::Unknown)),
        )),
        (None, None) => None,
    };
    let at = |of: Option<OffsetDateTime>| of.map(utc).unwrap_or_default();
    let title = format!(
        "What became of {}?",
        counted(rows.len(), "purchase", "purchases")
    );
    page(&Page {
        shell: Shell::new(app, session, "/needs", title),
        token: session.form_token(),
        not_asked: not_asked(app, &provider).await?,
        seen,
        from: at(found.iter().map(|one| one.created_at).min()),
        until: at(found.iter().map(ListedPlacement::since).max()),
        known,
        live: are(Found::Asking) > 0,
        compared: list.is_some(),
        may_settle: are(Found::Asking) == 0 && are(Found::There) + are(Found::Missing) > 0,
        here: (found.first()).map_or_else(String::new, |one| path(one, asked)),
        provider,
        cause,
        rows,
    })
}

pub(crate) async fn show(
    State(app): State<App>,
    visit: Visit<Operator>,
) -> Result<Response, Problem> {
    let on_hold = on_hold(&app, &visit.query).await?;
    let found = on_hold.found.iter();
    let ids: Vec<Uuid> = found.map(|one| one.placement_id.uuid()).collect();
    let answers = app
        .database()
        .run(async |connection| asked::answers(connection, &ids).await)
        .await?;
    let asked = visit
        .query
        .get("asked")
        .and_then(|asked| asked.parse().ok());
    shown(&app, &visit.session, on_hold, (&answers, None), asked).await
}

/// Asks the provider which of the purchases it has, and leads back to the page, which shows the
/// answers.
pub(crate) async fn ask(State(app): State<App>, act: Act<Operator>) -> Result<Response, Problem> {
    let reason = act.fields.reason()?;
    let OnHold {
        provider, found, ..
    } = on_hold(&app, &act.fields).await?;
    let ids: Vec<PlacementId> = found.iter().map(|one| one.placement_id).collect();
    let target = format!("provider {provider}");
    let action = act.action(Command::ProviderReconcile, &target, reason);
    let seen = act.fields.get("seen").unwrap_or_default();
    let asked = app
        .database()
        .run(async |connection| placements::ask(connection, &ids, (&provider, seen), action).await)
        .await?;
    let asked = asked.ok_or_else(|| {
        act.not_done(
            "Nothing was asked",
            format!(
                "{provider} was asked since the page was shown, perhaps by this form, and the page has its answers; or none of \
                 these purchases can be looked up now, and the pages of their orders say why."
            ),
        )
    })?;
    let text = not_asked(&app, &provider).await?.unwrap_or_else(|| {
        format!("{provider} is asked now. What it has is taken as bought and goes on by itself.")
    });
    let path = (found.first()).map_or_else(String::new, |one| path(one, Some(asked)));
    Ok(said::after(&app, &path, &text))
}

/// Compares the purchases with the list that somebody has pasted. It changes nothing.
pub(crate) async fn compare(
    State(app): State<App>,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let Some(list) = act.fields.get("list") else {
        return Err(Problem::Invalid("Paste the list of the provider.".into()));
    };
    let on_hold = on_hold(&app, &act.fields).await?;
    let answers = HashMap::new();
    shown(
        &app,
        &act.session,
        on_hold,
        (&answers, Some(&ids(list))),
        None,
    )
    .await
}

/// Settles those of the purchases of which the form says what became of them.
pub(crate) async fn settle(
    State(app): State<App>,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let reason = act.fields.reason()?;
    let found = on_hold(&app, &act.fields).await?.found;
    // All are read before the first one is recorded, so that a form that makes no sense changes
    // nothing.
    let mut chosen = Vec::new();
    for one in &found {
        let id = one.placement_id.to_string();
        if let Some(found) = act.fields.get(&id) {
            let decided = decided(found)
                .ok_or_else(|| Problem::Invalid("say what became of each purchase".into()))?;
            chosen.push((one, id, decided));
        }
    }
    let mut group = Group::new(("purchase", "purchases"), chosen.len());
    let mut done: BTreeMap<&str, usize> = BTreeMap::new();
    for (one, id, (resolution, command)) in chosen {
        let words = match resolution {
            Resolution::Bought => "bought",
            Resolution::NotBought => "given up",
            Resolution::Retry => "bought again",
        };
        let target = format!("placement {id}");
        let mode = Mode::Apply(act.action(command, &target, reason));
        let decision = Decision {
            resolution,
            bought_at: None,
            reference: None,
            seen: Some(act.fields.get(&format!("seen-{id}")).unwrap_or_default()),
        };
        let settled = app
            .database()
            .run(async |connection| {
                placements::resolve(connection, one.placement_id, decision, mode).await
            })
            .await;
        let name = one.external_order_id.as_str();
        let is_done = group.note(&act, name, settled.map(|_| ()), |error| match error {
            PlacementNotResolved::Store(error) => Some(error),
            _ => None,
        })?;
        if is_done {
            *done.entry(words).or_default() += 1;
        }
    }
    if done.is_empty() {
        return Err(act.changed(
            "nothing was chosen, or each of the purchases has changed since the page was shown",
        ));
    }
    let done: Vec<String> = done
        .into_iter()
        .map(|(words, number)| format!("{number} {words}"))
        .collect();
    let left = group.not_changed();
    Ok(act.done(&app, &format!("Settled: {}.{left}", done.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_ids_with_and_without_dashes() {
        let id = PlacementId::new().uuid();
        let other = PlacementId::new().uuid();
        for list in [
            id.to_string(),
            id.simple().to_string(),
            format!("order;id\n7;{}\n", id.to_string().to_uppercase()),
            format!("bought-{id}, {other}"),
            format!("12{}", id.simple()),
        ] {
            let read = ids(&list);
            assert!(read.contains(&id), "{list}");
            assert_eq!(read.contains(&other), list.contains(','), "{list}");
        }
        for list in [
            "",
            "a-b",
            &id.to_string()[1..],
            &format!("{id} ").replacen('-', " ", 1),
        ] {
            assert!(ids(list).is_empty(), "{list}");
        }
    }
}
