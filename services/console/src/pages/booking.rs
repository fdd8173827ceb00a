//! Payments, corrections and limits of a partner's account: the acts of `esimctl account`. A first
//! form asks what is to be booked; the page that answers says what that changes, because it has
//! tried it without keeping it, and asks for the reason.
//!
//! A payment or a correction has a reference that is booked once, so a form that is sent twice acts
//! once. A limit is set only if it is the one that the page has shown.

use axum::{extract::State, response::Response};
use desk::operator::{
    balances::{self, BookedEntry, Booking, CreditLimit, NotBooked},
    prices,
};
use domain::{Amount, Command, PartnerId, money::EntryKind, product::Currency};
use pg::{PgConnection, actions::Mode};

use crate::{
    App,
    access::{Act, ConsoleSession, FormFields, Operator, Visit},
    pages::{
        act::{ActPage, Field, Pick},
        partner_acts::{PartnerReading, act_page, read},
    },
    problem::Problem,
    view::PathArgument,
};

/// The longest reference.
const LONGEST: usize = 200;
/// The fields of both forms.
const CURRENCY: &str = "currency";
const AMOUNT: &str = "amount";
const REFERENCE: &str = "reference";
const LIMIT: &str = "limit";
/// What the limit was when the page was shown.
const WAS: &str = "was";

/// What is booked by hand.
#[derive(Clone, Copy)]
enum Booked {
    Payment,
    Correction,
}

impl Booked {
    fn kind(self) -> EntryKind {
        match self {
            Self::Payment => EntryKind::Deposit,
            Self::Correction => EntryKind::Adjustment,
        }
    }

    fn command(self) -> Command {
        match self {
            Self::Payment => Command::AccountDeposit,
            Self::Correction => Command::AccountAdjust,
        }
    }

    fn page(self, app: &App, session: &ConsoleSession, partner: &PartnerReading) -> ActPage {
        match self {
            Self::Payment => act_page(app, session, partner, "Book a payment", "deposit"),
            Self::Correction => act_page(app, session, partner, "Correct the balance", "adjust"),
        }
    }

    fn says(self) -> &'static str {
        match self {
            Self::Payment => {
                "A payment raises the balance. Its reference is that of the payment, such as the number of the invoice: it is \
                 booked once, and the partner sees it."
            }
            Self::Correction => {
                "A correction raises the balance, or lowers it if it begins with a minus. An entry is never changed, so a payment \
                 that was booked by mistake is corrected by a second entry. The partner sees the reference."
            }
        }
    }
}

/// What a form has sent, field by field, with what is wrong.
struct Typed {
    amount: Result<Amount, (&'static str, String)>,
    reference: String,
}

impl Typed {
    fn read(fields: &FormFields, what: Booked) -> Self {
        let reference = fields.get(REFERENCE).unwrap_or_default().trim().to_owned();
        let amount = currency_of(fields).and_then(|currency| {
            let text = fields.get(AMOUNT).unwrap_or_default();
            let wrong = |why: &str| (AMOUNT, format!("The amount cannot be booked: {why}."));
            let amount =
                Amount::parse(text, currency).map_err(|error| wrong(&error.to_string()))?;
            match (what, amount.minor) {
                (_, 0) => Err(wrong("it is 0")),
                (Booked::Payment, ..0) => Err(wrong("a payment is more than 0")),
                (Booked::Payment | Booked::Correction, _) => Ok(amount),
            }
        });
        let amount = amount.and_then(|amount| match reference.chars().count() {
            0 => Err((REFERENCE, "The entry needs a reference.".to_owned())),
            1..=LONGEST => Ok(amount),
            _ => Err((
                REFERENCE,
                format!("A reference has at most {LONGEST} characters."),
            )),
        });
        Self { amount, reference }
    }
}

fn currency_of(fields: &FormFields) -> Result<Currency, (&'static str, String)> {
    let code = fields.get(CURRENCY).unwrap_or_default().trim();
    let currency = Currency::of_money(&code.to_uppercase());
    currency.map_err(|error| (CURRENCY, format!("The currency cannot be used: {error}.")))
}

fn field(
    (label, name): (&'static str, &'static str),
    sent: &FormFields,
    hint: &str,
    wrong: Option<&(&'static str, String)>,
) -> Field {
    Field::Text {
        label,
        name,
        kind: "text",
        value: sent.get(name).unwrap_or_default().to_owned(),
        hint: hint.to_owned(),
        wrong: wrong
            .filter(|(of, _)| *of == name)
            .map(|(_, wrong)| wrong.clone()),
    }
}

fn currency_field(sent: &FormFields, wrong: Option<&(&'static str, String)>) -> Field {
    let of = ("Currency", CURRENCY);
    field(of, sent, "A code of ISO 4217, such as EUR.", wrong)
}

/// The page that asks what is to be booked, with what is wrong with what was sent.
fn question(
    what: Booked,
    base: ActPage,
    sent: &FormFields,
    wrong: Option<&(&'static str, String)>,
) -> ActPage {
    ActPage {
        says: vec![what.says().to_owned()],
        fields: vec![
            field(("Amount", AMOUNT), sent, "Such as 100.00.", wrong),
            currency_field(sent, wrong),
            field(("Reference", REFERENCE), sent, "", wrong),
        ],
        asks: true,
        button: "See what that changes",
        ..base
    }
}

async fn shown(
    what: Booked,
    app: App,
    given: PathArgument,
    visit: Visit<Operator>,
) -> Result<Response, Problem> {
    let partner = read(&app, &given).await?;
    let base = what.page(&app, &visit.session, &partner);
    let sent = &visit.query;
    if sent.get(AMOUNT).is_none() && sent.get(REFERENCE).is_none() {
        return question(what, base, sent, None).show();
    }
    let typed = Typed::read(sent, what);
    let amount = match typed.amount {
        Ok(amount) => amount,
        Err(wrong) => return question(what, base, sent, Some(&wrong)).show(),
    };
    let id: PartnerId = partner.partner.partner_id.into();
    let booking = Booking {
        partner_id: id,
        kind: what.kind(),
        amount,
        reference: &typed.reference,
        reason: "",
        operator: visit.session.name(),
    };
    let tried = async |connection: &mut PgConnection| {
        balances::book(connection, booking, Mode::Preview).await
    };
    let entry = match app.database().run(tried).await {
        Ok(entry) => entry,
        Err(NotBooked::Store(error)) => return Err(error.into()),
        Err(error) => {
            let wrong = (wrong_field(&error), refusal(&error));
            return question(what, base, sent, Some(&wrong)).show();
        }
    };
    ActPage {
        says: vec![effect(amount, &typed.reference, &entry)],
        hidden: vec![
            (AMOUNT, amount.decimal()),
            (CURRENCY, amount.currency.to_string()),
            (REFERENCE, typed.reference),
        ],
        button: "Book it",
        ..base
    }
    .show()
}

/// What an entry changes.
fn effect(amount: Amount, reference: &str, entry: &BookedEntry) -> String {
    let of = |minor| Amount {
        minor,
        currency: amount.currency,
    };
    format!(
        "{amount} with the reference “{reference}” becomes entry {}: the balance goes from {} to {}.",
        entry.number,
        of(entry.balance - amount.minor),
        of(entry.balance)
    )
}

fn wrong_field(error: &NotBooked) -> &'static str {
    match error {
        NotBooked::BookedBefore { .. } => REFERENCE,
        NotBooked::NoSuchPartner | NotBooked::NoAccount(_) | NotBooked::Store(_) => CURRENCY,
    }
}

/// Why nothing is booked, in words of the console.
fn refusal(error: &NotBooked) -> String {
    match error {
        NotBooked::BookedBefore { number, amount, .. } => {
            format!("This reference was booked before, as entry {number} of {amount}.")
        }
        NotBooked::NoAccount(currency) => {
            format!(
                "The partner has no account in {currency}. Set first what it may owe, which opens one."
            )
        }
        NotBooked::NoSuchPartner | NotBooked::Store(_) => "There is no such partner.".to_owned(),
    }
}

async fn carried_out(
    what: Booked,
    app: App,
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let id: PartnerId = given.id("a partner")?;
    let typed = Typed::read(&act.fields, what);
    let amount = typed.amount.map_err(|(_, wrong)| Problem::Invalid(wrong))?;
    let target = format!("partner {id}");
    let reason = act.fields.reason()?;
    let action = act.action(what.command(), &target, reason);
    let booking = Booking {
        partner_id: id,
        kind: what.kind(),
        amount,
        reference: &typed.reference,
        reason,
        operator: act.session.name(),
    };
    let booked = async |connection: &mut PgConnection| {
        balances::book(connection, booking, Mode::Apply(action)).await
    };
    match app.database().run(booked).await {
        Ok(entry) => {
            let balance = Amount {
                minor: entry.balance,
                ..amount
            };
            let number = entry.number;
            Ok(act.done(
                &app,
                &format!("It is booked as entry {number}. The balance is {balance}."),
            ))
        }
        Err(NotBooked::Store(error)) => Err(error.into()),
        Err(error) => Err(act.changed(refusal(&error).trim_end_matches('.'))),
    }
}

pub(crate) async fn deposit(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Operator>,
) -> Result<Response, Problem> {
    shown(Booked::Payment, app, given, visit).await
}

pub(crate) async fn book_deposit(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    carried_out(Booked::Payment, app, given, act).await
}

pub(crate) async fn adjust(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Operator>,
) -> Result<Response, Problem> {
    shown(Booked::Correction, app, given, visit).await
}

pub(crate) async fn book_adjustment(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    carried_out(Booked::Correction, app, given, act).await
}

/// The limit of an account as people say it.
pub(crate) fn limit_words(limit: CreditLimit, currency: Currency) -> String {
    match limit {
        CreditLimit::Unlimited => "any amount".to_owned(),
        CreditLimit::UpTo(0) => "nothing: it pays before".to_owned(),
        CreditLimit::UpTo(minor) => Amount { minor, currency }.to_string(),
    }
}

/// The limit that a form has sent, or what is wrong with it.
fn limit_sent(fields: &FormFields) -> Result<(CreditLimit, Currency), (&'static str, String)> {
    let currency = currency_of(fields)?;
    let limit = match fields.get(LIMIT) {
        Some("prepaid") => CreditLimit::UpTo(0),
        Some("postpaid") => CreditLimit::Unlimited,
        _ => {
            let wrong = |why: &str| (AMOUNT, format!("The credit cannot be set: {why}."));
            let text = fields.get(AMOUNT).unwrap_or_default();
            let amount =
                Amount::parse(text, currency).map_err(|error| wrong(&error.to_string()))?;
            if amount.minor < 0 {
                return Err(wrong("it is below 0"));
            }
            CreditLimit::UpTo(amount.minor)
        }
    };
    Ok((limit, currency))
}

fn limit_question(
    base: ActPage,
    sent: &FormFields,
    wrong: Option<&(&'static str, String)>,
) -> ActPage {
    let pick = |value: &str, label: &str, hint: &str| Pick {
        checked: sent.get(LIMIT) == Some(value),
        value: value.to_owned(),
        label: label.to_owned(),
        hint: hint.to_owned(),
        grave: false,
    };
    ActPage {
        says: vec![
            "An order that costs more than is available is refused and buys nothing. A lower limit touches nothing that was \
             ordered before. An account that the partner does not have is opened."
                .to_owned(),
        ],
        fields: vec![
            currency_field(sent, wrong),
            Field::Picks {
                legend: "Orders may cost",
                name: LIMIT,
                picks: vec![
                    pick("prepaid", "What it has paid", "It cannot owe anything."),
                    pick("credit", "What it has paid, and a credit", "The amount below."),
                    pick("postpaid", "Any amount", "It pays afterwards."),
                ],
            },
            field(("Credit", AMOUNT), sent, "Only for a credit, such as 500.00.", wrong),
        ],
        asks: true,
        button: "See what that changes",
        ..base
    }
}

fn limit_page(app: &App, session: &ConsoleSession, partner: &PartnerReading) -> ActPage {
    act_page(app, session, partner, "Set what it may owe", "credit")
}

/// What the limit was, as the page of it carries it along; empty if there was no account.
fn was_text(was: Option<CreditLimit>, currency: Currency) -> String {
    was.map_or_else(String::new, |was| limit_words(was, currency))
}

pub(crate) async fn credit(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Operator>,
) -> Result<Response, Problem> {
    let partner = read(&app, &given).await?;
    let base = limit_page(&app, &visit.session, &partner);
    let sent = &visit.query;
    if sent.get(LIMIT).is_none() {
        return limit_question(base, sent, None).show();
    }
    let (limit, currency) = match limit_sent(sent) {
        Ok(sent) => sent,
        Err(wrong) => return limit_question(base, sent, Some(&wrong)).show(),
    };
    let id: PartnerId = partner.partner.partner_id.into();
    let was = tried(&app, id, (limit, currency)).await?;
    let is = limit_words(limit, currency);
    let price_list = async |connection: &mut PgConnection| prices::list_of(connection, id).await;
    let price_list = app.database().run(price_list).await?;
    let says = match was {
        None => format!("An account in {currency} is opened. It may owe: {is}."),
        Some(was) if was == limit => format!("It may owe {is} already, so nothing changes."),
        Some(was) => format!(
            "It may owe: {is}. Until now: {}.",
            limit_words(was, currency)
        ),
    };
    let mut says = vec![says];
    if price_list.is_none() {
        says.push("The partner has no price list, so its orders cost nothing yet.".to_owned());
    }
    let hidden = [CURRENCY, LIMIT, AMOUNT].into_iter();
    let hidden = hidden.map(|name| (name, sent.get(name).unwrap_or_default().to_owned()));
    ActPage {
        says,
        hidden: hidden.chain([(WAS, was_text(was, currency))]).collect(),
        button: "Set it",
        grave: limit == CreditLimit::Unlimited,
        ..base
    }
    .show()
}

/// What the limit was before one that is tried and not kept; `None` if there is no account.
async fn tried(
    app: &App,
    id: PartnerId,
    (limit, currency): (CreditLimit, Currency),
) -> Result<Option<CreditLimit>, Problem> {
    let tried = async |connection: &mut PgConnection| {
        balances::set_limit(connection, id, currency, limit, Mode::Preview).await
    };
    app.database().run(tried).await.map_err(not_set)
}

fn not_set(error: NotBooked) -> Problem {
    match error {
        NotBooked::Store(error) => error.into(),
        error => Problem::Invalid(refusal(&error)),
    }
}

pub(crate) async fn set_credit(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Operator>,
) -> Result<Response, Problem> {
    let id: PartnerId = given.id("a partner")?;
    let (limit, currency) =
        limit_sent(&act.fields).map_err(|(_, wrong)| Problem::Invalid(wrong))?;
    let was = tried(&app, id, (limit, currency)).await?;
    let seen = act.fields.get(WAS).unwrap_or_default();
    if was_text(was, currency) != seen {
        return Err(act.changed("what the partner may owe was set meanwhile"));
    }
    let target = format!("partner {id}");
    let action = act.action(Command::AccountLimit, &target, act.fields.reason()?);
    let set = async |connection: &mut PgConnection| {
        balances::set_limit(connection, id, currency, limit, Mode::Apply(action)).await
    };
    app.database().run(set).await.map_err(not_set)?;
    let is = limit_words(limit, currency);
    Ok(act.done(&app, &format!("In {currency} it may owe: {is}.")))
}
