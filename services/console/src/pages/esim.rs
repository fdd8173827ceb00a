//! One eSIM: what it is at, its ids, its webhook, and what one may do about it.

use accounts::partners;
use askama::Template;
use axum::{extract::State, response::Response};
use desk::{
    operator::orders::{self, OrderView},
    self_service::esims::{self, EsimRequests},
};
use domain::{Command, EsimChangeState, PartnerId, TopupId, esim_change::GiveBackCause};
use pg::{
    PgConnection,
    actions::{self, Actor},
};
use store::{
    deliveries::endpoints,
    esim_requests::UsageFailure,
    providers::{self, AfterDelivery},
};
use strum::VariantArray as _;

use crate::{
    App,
    access::{Act, ConsoleSession, Operator, OperatorRole, Support, Viewer, Visit},
    format::{relative, utc},
    pages::{
        forms::{Choice, ReasonForm},
        order::{UnitRow, unit_row},
    },
    problem::Problem,
    times::TimeElement,
    view::{PathArgument, Shell, page},
};

#[derive(Template)]
#[template(path = "esim.html")]
struct Page {
    shell: Shell,
    token: String,
    /// The path of this page, to which its forms lead back.
    back: String,
    order: OrderView,
    partner: String,
    unit: UnitRow,
    provider: String,
    purchase: String,
    /// Empty before it has its profile.
    ready: TimeElement,
    /// What its provider has said about its use.
    usage: Vec<(&'static str, String)>,
    /// Whether an answer about its use is awaited, so that the page refreshes itself.
    live: bool,
    /// What this session may ask for: its data use, that its provider suspends or resumes it, and
    /// that it takes it back.
    ask: Option<ReasonForm>,
    suspend: Option<ReasonForm>,
    give_back: Option<ReasonForm>,
    /// What its provider does not do, if it is ready.
    not_offered: Option<&'static str>,
}

/// What a provider has said about the use of an eSIM.
fn usage(asked: &EsimRequests, session: &ConsoleSession) -> Vec<(&'static str, String)> {
    let now = session.times.now;
    let mut said = Vec::new();
    if let Some((reading, at, _)) = &asked.reading {
        let used = match (reading.data_used, reading.data_total) {
            (Some(used), Some(total)) => format!(
                "{} of {}; {} left",
                amount(used),
                amount(total),
                amount(total.saturating_sub(used))
            ),
            (Some(used), None) => amount(used),
            (None, _) => "its provider does not say it".to_owned(),
        };
        let counted = reading.as_of.map_or_else(String::new, |counted| {
            format!(", counted {}", relative(now, counted))
        });
        let read = relative(now, *at);
        said.push(("Data used", format!("{used}{counted}, read {read}")));
        said.extend(reading.installed.map(|installed| {
            let is = if installed { "yes" } else { "no" };
            ("Installed", is.to_owned())
        }));
        said.extend(
            reading
                .ends_at
                .map(|at| ("Ends", session.times.written(at))),
        );
    }
    if asked.usage_open {
        said.push(("Data use", "asked, the answer is awaited".to_owned()));
    } else if let Some((failure, _)) = asked.failure {
        let why = match failure {
            UsageFailure::NotAvailable => "its provider does not show it",
            UsageFailure::Failed => "its provider could not be asked; ask again",
        };
        said.push(("Data use", why.to_owned()));
    }
    said.extend(suspension(asked, session));
    said.extend(claim(asked, session));
    said
}

/// What the provider says of a claim that is not decided.
fn claim(asked: &EsimRequests, session: &ConsoleSession) -> Option<(&'static str, String)> {
    let view = asked.give_back.as_ref()?;
    let said = (view.state == EsimChangeState::Claimed).then_some(view.message.as_deref())?;
    let at = relative(session.times.now, view.asked_at);
    let said = said.unwrap_or("its provider has not said anything of it yet");
    Some(("Refund claimed", format!("{at}: {said}")))
}

/// What became of the last request to suspend or to resume the eSIM.
fn suspension(asked: &EsimRequests, session: &ConsoleSession) -> Option<(&'static str, String)> {
    let (suspend, view) = asked.suspension.as_ref()?;
    let wish = if *suspend { "suspend" } else { "resume" };
    let what = match view.state {
        EsimChangeState::Asked | EsimChangeState::Sending | EsimChangeState::Claimed => {
            format!("asked to {wish} it, the answer is awaited")
        }
        EsimChangeState::Done if *suspend => "yes".to_owned(),
        EsimChangeState::Done => "no, it was resumed".to_owned(),
        EsimChangeState::Refused => format!("the request to {wish} it was refused"),
        EsimChangeState::Parked => {
            format!("its provider did not say whether it could {wish} it; ask again")
        }
    };
    let said = view.message.as_deref().map(|said| format!(": {said}"));
    let at = relative(session.times.now, view.ended_at.unwrap_or(view.asked_at));
    Some((
        "Suspended",
        format!("{what}{}, {at}", said.unwrap_or_default()),
    ))
}

/// An amount of data in the units in which products are sold, of 1024: `1.5 GB`, `512 MB`.
fn amount(bytes: u64) -> String {
    const MB: u64 = 1 << 20;
    const GB: u64 = 1 << 30;
    let (unit, name) = if bytes < GB { (MB, "MB") } else { (GB, "GB") };
    let hundredths = bytes.saturating_mul(100) / unit;
    let number = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    format!(
        "{} {name}",
        number.trim_end_matches('0').trim_end_matches('.')
    )
}

/// What a provider does not do for delivered eSIMs, so that it is not offered.
fn not_offered(can: Option<AfterDelivery>) -> Option<&'static str> {
    match can {
        None => Some(
            "No provisioner has said yet whether its provider shows data use and takes eSIMs back.",
        ),
        Some(AfterDelivery { usage: false, .. }) => {
            Some("Its provider shows no data use, and takes no eSIM back.")
        }
        Some(AfterDelivery {
            give_back: false, ..
        }) => Some("Its provider takes no eSIM back."),
        Some(_) => None,
    }
}

/// What this session may ask for of an eSIM, and its provider does.
fn forms(
    id: &TopupId,
    (asked, mark): (&EsimRequests, &str),
    session: &ConsoleSession,
    can: AfterDelivery,
) -> (Option<ReasonForm>, Option<ReasonForm>) {
    let back = format!("/esims/{id}");
    let usage = (session.may(OperatorRole::Support) && can.usage && !asked.usage_open).then(|| {
        ReasonForm {
        consequence:
            "Its provider is asked how much data was used. The answer is here some seconds later."
                .to_owned(),
        back: back.clone(),
        seen: mark.to_owned(),
        ..ReasonForm::new(
            session,
            "Ask for its data use",
            format!("/esims/{id}/usage"),
        )
    }
    });
    let state = asked.give_back.as_ref().map(|one| one.state);
    let may_ask = matches!(state, None | Some(EsimChangeState::Refused));
    let give_back = (session.may(OperatorRole::Operator) && can.give_back && may_ask).then(|| ReasonForm {
        consequence: "Its provider is asked to take it back, which it does for an eSIM that was never installed, or, at some, if \
                      people there agree. If it does, nobody can use the eSIM any more, and its code is erased here. Ask the \
                      partner first."
            .to_owned(),
        back,
        seen: seen(asked),
        grave: true,
        choice: Some(Choice {
            name: "cause",
            asks: "What the provider is told",
            of: GiveBackCause::VARIANTS
                .iter()
                .map(|cause| (cause.as_str(), cause_words(*cause)))
                .collect(),
        }),
        ..ReasonForm::new(session, "Give it back", format!("/esims/{id}/give-back"))
    });
    (usage, give_back)
}

/// Whether the eSIM is suspended, as far as its provider has said: the last wish was that and was
/// carried out, or was to resume it and was not.
fn is_suspended(asked: &EsimRequests) -> bool {
    let last = asked.suspension.as_ref();
    last.is_some_and(|(suspend, view)| *suspend == (view.state == EsimChangeState::Done))
}

/// The form that suspends the eSIM, or resumes it. It cuts a traveller off, but not for good.
fn suspend_form(
    id: &TopupId,
    asked: &EsimRequests,
    session: &ConsoleSession,
    can: AfterDelivery,
) -> Option<ReasonForm> {
    let last = asked.suspension.as_ref();
    let is_open = last.is_some_and(|(_, view)| !view.state.is_over());
    if !session.may(OperatorRole::Support) || !can.suspend || is_open || asked.is_replacement {
        return None;
    }
    let (label, path, consequence) = if is_suspended(asked) {
        (
            "Resume it",
            format!("/esims/{id}/resume"),
            "Its provider is asked to resume it, so that it can be used again.",
        )
    } else {
        (
            "Suspend it",
            format!("/esims/{id}/suspend"),
            "Its provider is asked to suspend it: nobody can use it until it is resumed. Ask the partner first.",
        )
    };
    Some(ReasonForm {
        consequence: consequence.to_owned(),
        back: format!("/esims/{id}"),
        seen: seen_suspension(asked),
        ..ReasonForm::new(session, label, path)
    })
}

/// What a form has seen of the suspension: when it was asked for last.
fn seen_suspension(asked: &EsimRequests) -> String {
    let last = asked.suspension.as_ref();
    last.map_or_else(|| "never".to_owned(), |(_, one)| utc(one.asked_at))
}

/// Why an eSIM is given back, in the words of the form.
fn cause_words(cause: GiveBackCause) -> &'static str {
    match cause {
        GiveBackCause::Other => "No cause in particular",
        GiveBackCause::InstallationFailure => "It cannot be installed",
        GiveBackCause::NoCoverage => "It finds no network",
        GiveBackCause::ChangeOfPlan => "It is not needed any more",
        GiveBackCause::WrongPurchase => "Another one was meant",
    }
}

/// What a form has seen of the give-back: when it was asked for last.
fn seen(asked: &EsimRequests) -> String {
    asked
        .give_back
        .as_ref()
        .map_or_else(|| "never".to_owned(), |one| utc(one.asked_at))
}

pub(crate) async fn show(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let id: TopupId = given.id("an eSIM")?;
    let read = async |connection: &mut PgConnection| {
        let found = orders::find(&mut *connection, id.as_str()).await?;
        let found = found.after_flush(&mut *connection).await?;
        let is_its = |order: &OrderView| order.topups.iter().any(|one| one.topup_id == id.as_str());
        let Some(order) = found.into_iter().find(is_its) else {
            return Ok(None);
        };
        let partner = partners::show(&mut *connection, &order.partner_id.to_string()).await?;
        let of = order.partner_id.into();
        let endpoints = endpoints::list(&mut *connection, Some(of)).await?;
        // First, so that an act between the two makes the form one of before it.
        let mark = actions::mark(&mut *connection, id.as_str(), Command::AskUsage).await?;
        let asked = esims::requests(&mut *connection, of, &id).await?;
        let asked = asked.after_flush(&mut *connection).await?;
        let can = can_of(connection, &order, &id).await?;
        Ok::<_, pg::Error>(asked.map(|asked| (order, partner, endpoints, (asked, mark), can)))
    };
    let found = app.database().run(read).await?;
    let (order, partner, endpoints, (asked, mark), can) =
        found.ok_or_else(|| given.missing("eSIM"))?;
    let unit = order.topups.iter().find(|one| one.topup_id == id.as_str());
    let unit = unit.ok_or_else(|| given.missing("eSIM"))?;
    let session = &visit.session;
    let placement = order
        .placements
        .iter()
        .find(|one| one.placement_id == unit.placement_id);
    let is_ready = unit.ready_at.is_some() && unit.erased_at.is_none();
    let nothing = AfterDelivery {
        usage: false,
        give_back: false,
        suspend: false,
    };
    let offered = can.filter(|_| is_ready).unwrap_or(nothing);
    let (ask, give_back) = forms(&id, (&asked, &mark), session, offered);
    page(&Page {
        ask,
        suspend: suspend_form(&id, &asked, session, offered),
        give_back,
        not_offered: if is_ready { not_offered(can) } else { None },
        shell: Shell::new(&app, session, "/orders", "An eSIM"),
        token: session.form_token(),
        back: format!("/esims/{id}"),
        partner: partner.map_or_else(|| "erased".to_owned(), |partner| partner.name),
        provider: placement.map_or_else(String::new, |one| one.provider.clone()),
        purchase: unit.placement_id.to_string(),
        ready: unit
            .ready_at
            .map(|at| session.times.both(at))
            .unwrap_or_default(),
        usage: usage(&asked, session),
        live: asked.usage_open
            || asked
                .suspension
                .as_ref()
                .is_some_and(|(_, view)| !view.state.is_over()),
        unit: unit_row(&app, &order, unit, (&endpoints, session)),
        order,
    })
}

/// What the provider of an eSIM does for it, if that is known.
async fn can_of(
    connection: &mut PgConnection,
    order: &OrderView,
    id: &TopupId,
) -> Result<Option<AfterDelivery>, pg::Error> {
    let unit = order.topups.iter().find(|one| one.topup_id == id.as_str());
    let placement = unit.and_then(|unit| {
        let mut all = order.placements.iter();
        all.find(|one| one.placement_id == unit.placement_id)
    });
    match placement {
        Some(placement) => providers::after_delivery(connection, &placement.provider).await,
        None => Ok(None),
    }
}

/// The order of an eSIM, and what was asked about it.
async fn asked(
    connection: &mut PgConnection,
    id: &TopupId,
) -> Result<Option<(OrderView, EsimRequests)>, pg::Error> {
    let found = orders::find(&mut *connection, id.as_str()).await?;
    let found = found.after_flush(&mut *connection).await?;
    let Some(order) = found.into_iter().next() else {
        return Ok(None);
    };
    let partner: PartnerId = order.partner_id.into();
    let asked = esims::requests(&mut *connection, partner, id).await?;
    let asked = asked.after_flush(connection).await?;
    Ok(asked.map(|asked| (order, asked)))
}

/// Asks for the data use of an eSIM.
pub(crate) async fn ask_usage(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Support>,
) -> Result<Response, Problem> {
    let id: TopupId = given.id("an eSIM")?;
    let target = format!("topup {id}");
    let action = act.action(Command::AskUsage, &target, act.fields.reason()?);
    let seen = act.fields.get("seen").unwrap_or_default();
    let ask = async |connection: &mut PgConnection| {
        let Some((order, _)) = asked(connection, &id).await? else {
            return Ok(false);
        };
        let can = can_of(connection, &order, &id).await?;
        if can.is_none_or(|can| !can.usage) {
            return Ok(false);
        }
        let partner = order.partner_id.into();
        esims::ask_usage_as_seen(connection, partner, &id, seen, action).await
    };
    if !app.database().run(ask).await? {
        return Err(act.not_done(
            "Nothing was asked",
            "The eSIM is not ready or was erased, its provider shows no data use, or its data use was asked for since the page was shown, perhaps by this form.",
        ));
    }
    Ok(act.done(
        &app,
        "Its provider is asked; the answer is here some seconds later.",
    ))
}

/// Asks a provider to take an eSIM back.
pub(crate) async fn give_back(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let id: TopupId = given.id("an eSIM")?;
    let reason = act.fields.reason()?;
    let as_shown = act.fields.get("seen").unwrap_or_default();
    // A form without it is of a page of before.
    let cause = act
        .fields
        .get("cause")
        .unwrap_or(GiveBackCause::Other.as_str());
    let cause: GiveBackCause = cause.parse().map_err(|_| Problem::nothing_seen())?;
    let actor = Actor::console(act.session.name(), act.session.from());
    let ask = async |connection: &mut PgConnection| match asked(&mut *connection, &id).await? {
        Some((order, before)) if seen(&before) == as_shown => {
            let can = can_of(&mut *connection, &order, &id).await?;
            if can.is_none_or(|can| !can.give_back) {
                return Ok(Err(not_offered(can)));
            }
            let partner = order.partner_id.into();
            let asked =
                esims::give_back(connection, partner, (&id, cause), (actor, reason)).await?;
            Ok(Ok(asked))
        }
        _ => Ok::<_, pg::Error>(Ok(false)),
    };
    let asked = app.database().run(ask).await?;
    let is_asked =
        asked.map_err(|why| act.not_done("Nothing was asked", why.unwrap_or_default()))?;
    if !is_asked {
        return Err(act.changed(
            "the eSIM is not ready or was erased, or its give-back was asked for meanwhile",
        ));
    }
    Ok(act.done(
        &app,
        "Its provider is asked to take it back; what it says is here some seconds later.",
    ))
}

/// Asks a provider to suspend an eSIM, or to resume it.
pub(crate) async fn suspend(
    is_suspended: bool,
    State(app): State<App>,
    given: PathArgument,
    act: Act<Support>,
) -> Result<Response, Problem> {
    let id: TopupId = given.id("an eSIM")?;
    let reason = act.fields.reason()?;
    let as_shown = act.fields.get("seen").unwrap_or_default();
    let actor = Actor::console(act.session.name(), act.session.from());
    let ask = async |connection: &mut PgConnection| match asked(&mut *connection, &id).await? {
        Some((order, before)) if seen_suspension(&before) == as_shown => {
            let can = can_of(&mut *connection, &order, &id).await?;
            if can.is_none_or(|can| !can.suspend) {
                return Ok(None);
            }
            let partner = order.partner_id.into();
            let wish = (&id, is_suspended);
            let asked = esims::put_suspension(connection, partner, wish, (actor, reason)).await?;
            Ok(Some(asked))
        }
        _ => Ok::<_, pg::Error>(Some(false)),
    };
    let Some(is_asked) = app.database().run(ask).await? else {
        return Err(act.not_done("Nothing was asked", "Its provider suspends no eSIM."));
    };
    if !is_asked {
        return Err(act.changed(
            "the eSIM is not ready or was erased, or its suspension was asked for meanwhile",
        ));
    }
    Ok(act.done(
        &app,
        "Its provider is asked; what it says is here some seconds later.",
    ))
}
