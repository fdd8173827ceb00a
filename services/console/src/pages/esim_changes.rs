//! Give-backs and extensions on hold. An operator looks at the provider whether it has carried the
//! change out, and says so here: for one on the page of its eSIM or order, or in one act for all of
//! a kind at a provider. Each is recorded in a transaction of its own.

use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::{
    esim_changes::{
        self, EsimChangeFinding, EsimChangeNotResolved, ListedEsimChange, SeenEsimChange,
    },
    orders::{OrderView, TopupView},
};
use domain::{Command, EsimChangeState, TopupId, esim_change::EsimChangeKind};
use pg::{PgConnection, actions::Mode};

use crate::{
    App,
    access::{Act, ConsoleSession, FormFields, Operator, Visit},
    format::{address, counted},
    pages::group::Group,
    problem::Problem,
    times::{TimeElement, Times},
    view::{PathArgument, Shell, page},
};

/// The most changes of a page, the oldest ones.
const MOST: i64 = 200;

/// What a kind of changes is called on the pages, and what may be found of one.
pub(super) struct KindWords {
    /// Where its pages are.
    folder: &'static str,
    /// The two answers: the value in the form, and what it says.
    pub(super) done: FindingWords,
    pub(super) not_done: FindingWords,
    /// What the provider did not say of several.
    unknown: &'static str,
}

pub(super) struct FindingWords {
    pub(super) value: &'static str,
    command: Command,
    /// What becomes of the eSIM, after the act.
    outcome: &'static str,
    /// The answer about one eSIM, and what it leads to here.
    pub(super) one: (&'static str, &'static str),
    /// The same about several, after the name of the provider.
    several: (&'static str, &'static str),
    hint: &'static str,
}

const GIVE_BACK: KindWords = KindWords {
    folder: "give-backs",
    done: FindingWords {
        value: "returned",
        command: Command::GiveBackReturned,
        outcome: "The partner sees it as given back, and its fields are erased here.",
        one: ("The provider has the eSIM back", "erase it here"),
        several: ("has them back", "erase them here"),
        hint: "Each partner sees its eSIM as given back. The codes are erased, which nobody can undo.",
    },
    not_done: FindingWords {
        value: "not-returned",
        command: Command::GiveBackNotReturned,
        outcome: "The eSIM stays with the partner, who may ask again.",
        one: (
            "The provider does not have it back",
            "it stays with the partner",
        ),
        several: ("does not have them back", "they stay with their partners"),
        hint: "A partner may ask again.",
    },
    unknown: "whether it has these eSIMs back",
};

const EXTENSION: KindWords = KindWords {
    folder: "extensions",
    done: FindingWords {
        value: "added",
        command: Command::ExtensionAdded,
        outcome: "The partner is told that it was added, and pays for it.",
        one: (
            "The provider has added the package",
            "the partner pays for it",
        ),
        several: ("has added them", "their partners pay for them"),
        hint: "Each partner is told that its extension was added.",
    },
    not_done: FindingWords {
        value: "not-added",
        command: Command::ExtensionNotAdded,
        outcome: "The partner is told that nothing was added, and may order another extension.",
        one: ("The provider has added nothing", "the extension is refused"),
        several: ("has added nothing", "they are refused"),
        hint: "A partner may order another extension.",
    },
    unknown: "whether it has extended these eSIMs",
};

pub(super) fn words(kind: EsimChangeKind) -> &'static KindWords {
    match kind {
        EsimChangeKind::GiveBack => &GIVE_BACK,
        EsimChangeKind::Extension => &EXTENSION,
    }
}

/// A change of an eSIM on hold, which its page and that of its order settle.
pub(super) struct HeldChange {
    pub(super) kind: EsimChangeKind,
    pub(super) path: String,
    pub(super) seen: String,
}

impl HeldChange {
    pub(super) fn words(&self) -> &'static KindWords {
        words(self.kind)
    }
}

/// The changes of a unit on hold.
pub(super) fn held(order: &OrderView, unit: &TopupView) -> Vec<HeldChange> {
    // Of a claim a person hears by mail.
    let open = [EsimChangeState::Parked, EsimChangeState::Claimed];
    let is_open = unit
        .give_back
        .known()
        .is_some_and(|state| open.contains(&state));
    let give_back = is_open.then(|| SeenEsimChange {
        extension_id: None,
        attempt: unit.give_back_attempt.unwrap_or_default(),
    });
    let extensions = order
        .extensions(unit)
        .filter(|one| one.state.known() == Some(EsimChangeState::Parked));
    let extensions = extensions.map(|one| SeenEsimChange {
        extension_id: Some(one.extension_id.into()),
        attempt: one.attempt,
    });
    let all = give_back.into_iter().chain(extensions);
    let held = all.map(|seen| {
        let kind = match seen.extension_id {
            Some(_) => EsimChangeKind::Extension,
            None => EsimChangeKind::GiveBack,
        };
        HeldChange {
            kind,
            path: format!("/{}/{}/resolve", words(kind).folder, unit.topup_id),
            seen: written(seen),
        }
    });
    held.collect()
}

/// What a form says that its page has shown.
fn written(seen: SeenEsimChange) -> String {
    match seen.extension_id {
        Some(id) => format!("{} {id}", seen.attempt),
        None => seen.attempt.to_string(),
    }
}

fn read_seen(text: &str) -> Result<SeenEsimChange, Problem> {
    let (attempt, id) = match text.split_once(' ') {
        Some((attempt, id)) => (attempt, Some(id)),
        None => (text, None),
    };
    let id = id
        .map(str::parse)
        .transpose()
        .map_err(|_| Problem::nothing_seen())?;
    Ok(SeenEsimChange {
        extension_id: id,
        attempt: attempt.parse().map_err(|_| Problem::nothing_seen())?,
    })
}

#[derive(Template)]
#[template(path = "esim_changes.html")]
struct Page {
    shell: Shell,
    token: String,
    kind: EsimChangeKind,
    words: &'static KindWords,
    provider: String,
    rows: Vec<Row>,
}

struct Row {
    id: String,
    order: Option<String>,
    partner: String,
    /// Its number at the provider.
    number: String,
    since: TimeElement,
    answer: String,
    /// What the page shows of it, which the act compares.
    seen: String,
}

/// The address of the page for the changes at a provider.
pub(crate) fn path(kind: EsimChangeKind, provider: &str) -> String {
    let page = format!("/{}/settle", words(kind).folder);
    address(&page, [("provider", provider)])
}

/// What somebody has found at the provider.
fn decided(kind: EsimChangeKind, fields: &FormFields) -> Result<Decided, Problem> {
    let KindWords { done, not_done, .. } = words(kind);
    match fields.get("found") {
        Some(found) if found == done.value => Ok((EsimChangeFinding::Done, done)),
        Some(found) if found == not_done.value => Ok((EsimChangeFinding::NotDone, not_done)),
        _ => Err(Problem::Invalid(
            "say what you found at the provider".into(),
        )),
    }
}

/// What somebody has found, how that is recorded, and what it means.
type Decided = (EsimChangeFinding, &'static FindingWords);

async fn on_hold(
    app: &App,
    kind: EsimChangeKind,
    fields: &FormFields,
) -> Result<(String, Vec<ListedEsimChange>), Problem> {
    let provider = fields.get("provider").unwrap_or_default().to_owned();
    let read = async |connection: &mut PgConnection| {
        esim_changes::list(connection, Some(kind), Some(&provider), MOST).await
    };
    let found = app.database().run(read).await?;
    Ok((provider, found))
}

fn row(one: ListedEsimChange, times: &Times) -> Row {
    Row {
        seen: written(one.seen()),
        order: one.order_id.map(|id| format!("/orders/{id}")),
        partner: one.partner.unwrap_or_else(|| one.partner_id.to_string()),
        number: one
            .provider_unit_id
            .unwrap_or_else(|| "not known".to_owned()),
        since: times.both(one.parked_at),
        answer: one
            .message
            .unwrap_or_else(|| "no reason is recorded".to_owned()),
        id: one.topup_id,
    }
}

/// The changes of a kind at a provider that are on hold, with one act for all of them.
pub(crate) async fn show(
    kind: EsimChangeKind,
    State(app): State<App>,
    visit: Visit<Operator>,
) -> Result<Response, Problem> {
    let (provider, found) = on_hold(&app, kind, &visit.query).await?;
    if found.is_empty() {
        return Err(Problem::NotFound(format!(
            "No {} at this provider is on hold any more. See Needs a person.",
            kind.word()
        )));
    }
    let session: &ConsoleSession = &visit.session;
    let title = format!(
        "What became of {}?",
        counted(found.len(), kind.word(), kind.words())
    );
    page(&Page {
        shell: Shell::new(&app, session, "/needs", title),
        token: session.form_token(),
        kind,
        words: words(kind),
        rows: found
            .into_iter()
            .map(|one| row(one, &session.times))
            .collect(),
        provider,
    })
}

/// Records what was found of a change, unless it is no longer the one that the page showed.
async fn record(
    app: &App,
    act: &Act<Operator>,
    (kind, topup): (EsimChangeKind, &TopupId),
    seen: SeenEsimChange,
    (found, words): Decided,
    reason: &str,
) -> Result<(), EsimChangeNotResolved> {
    let target = format!("topup {topup}");
    let mode = Mode::Apply(act.action(words.command, &target, reason));
    let resolve = async |connection: &mut PgConnection| {
        esim_changes::resolve(connection, (kind, topup), found, Some(seen), mode).await
    };
    app.database().run(resolve).await?;
    Ok(())
}

/// Records for each change that is ticked whether the provider has carried it out.
pub(crate) async fn settle(
    kind: EsimChangeKind,
    State(app): State<App>,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let reason = act.fields.reason()?;
    let decided = decided(kind, &act.fields)?;
    let (_, on_hold) = on_hold(&app, kind, &act.fields).await?;
    // All are read before the first one is recorded, so that a form that makes no sense changes
    // nothing.
    let mut ticked: Vec<(TopupId, SeenEsimChange)> = Vec::new();
    for one in &on_hold {
        if let Some(seen) = act.fields.get(&one.topup_id) {
            let topup = one.topup_id.parse().map_err(|_| Problem::nothing_seen())?;
            ticked.push((topup, read_seen(seen)?));
        }
    }
    let mut group = Group::new((kind.word(), kind.words()), ticked.len());
    for (topup, seen) in &ticked {
        let settled = record(&app, &act, (kind, topup), *seen, decided, reason).await;
        group.note(&act, topup.as_str(), settled, |error| match error {
            EsimChangeNotResolved::Store(error) => Some(error),
            EsimChangeNotResolved::Unknown(_)
            | EsimChangeNotResolved::NotParked { .. }
            | EsimChangeNotResolved::Changed(_) => None,
        })?;
    }
    if group.done() == 0 {
        return Err(act.changed(&format!(
            "none was ticked, or each of the {} has changed since the page was shown",
            kind.words()
        )));
    }
    let done = counted(group.done(), kind.word(), kind.words());
    let are = if group.done() == 1 { "is" } else { "are" };
    let text = decided.1.outcome;
    let left = group.not_changed();
    Ok(act.done(
        &app,
        &format!("{done} {are} settled. Of each: {text}{left}"),
    ))
}

/// Records for one change whether the provider has carried it out.
pub(crate) async fn resolve(
    kind: EsimChangeKind,
    State(app): State<App>,
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let topup: TopupId = given.id("a topup")?;
    let reason = act.fields.reason()?;
    let decided = decided(kind, &act.fields)?;
    let seen = act.fields.get("seen").ok_or_else(Problem::nothing_seen)?;
    let seen = read_seen(seen)?;
    record(&app, &act, (kind, &topup), seen, decided, reason)
        .await
        .map_err(|error| match error {
            EsimChangeNotResolved::Unknown(EsimChangeKind::GiveBack) => {
                given.missing("eSIM that is to be given back")
            }
            EsimChangeNotResolved::Unknown(EsimChangeKind::Extension) => {
                given.missing("eSIM that is to be extended")
            }
            EsimChangeNotResolved::Store(error) => error.into(),
            EsimChangeNotResolved::NotParked { state, .. } => act.not_done(
                format!("The {} no longer waits for you", kind.word()),
                format!(
                    "The {} is {state} now, so nothing was changed: somebody has said what became of it, or a late \
                     response of the provider has.",
                    kind.word()
                ),
            ),
            EsimChangeNotResolved::Changed(attempt) => act.changed(&format!(
                "the partner has asked anew since the page was shown, and try {attempt} is on hold now"
            )),
        })?;
    Ok(act.done(&app, decided.1.outcome))
}
