//! The keys, the account, the limits and the balance of a partner, and the acts on them
//! ([`super::partner_acts`], [`super::rotation`] and [`super::account`]).

use accounts::partners::keys::{self as stored, FurtherKey, PastKey};
use askama::Template;
use axum::{extract::State, response::Response};
use desk::{operator::balances, self_service::install_pages};
use domain::{Amount, Command, Environment, PartnerId};
use pg::{PgConnection, Transaction, actions::ActionChange};
use time::OffsetDateTime;

use crate::{
    App,
    access::{Act, ConsoleSession, OperatorRole, Support, Viewer, Visit},
    format::number,
    pages::{
        account,
        booking::limit_words,
        entries::MoneyEntry,
        forms::ReasonForm,
        partner::PartnerHead,
        partner_acts::{changed, lately, limits_of, read},
    },
    problem::Problem,
    times::{TimeElement, Times},
    view::{PathArgument, Shell, page},
};

/// How many entries of an account are shown.
const ENTRIES: i64 = 5;
/// What changes further keys: an operator's commands, the partner's own, and the end of all keys.
const OF_FURTHER: &[Command] = &[
    Command::KeyCreate,
    Command::KeySet,
    Command::KeyEnd,
    Command::PartnerLeaked,
];

#[derive(Template)]
#[template(path = "access.html")]
struct Page {
    shell: Shell,
    head: PartnerHead,
    access_key: String,
    made: TimeElement,
    old_keys: String,
    old_secret: String,
    /// What its signatures have to cover.
    signed: &'static str,
    /// How its pages to install from look.
    travellers: String,
    kind: &'static str,
    limits: Vec<(&'static str, String)>,
    events: String,
    may: bool,
    /// Whether the viewer may book payments.
    may_book: bool,
    account: Option<ReasonForm>,
    first_used: String,
    further: Vec<Further>,
    ended: Vec<Ended>,
    /// What it has, by currency. Empty without accounts.
    money: Vec<Money>,
}

/// What a partner has in one currency.
struct Money {
    currency: String,
    balance: String,
    held: String,
    available: String,
    credit: String,
    /// Its last entries, the newest first.
    entries: Vec<MoneyEntry>,
}

/// What the partner has, with the last entries of each account.
async fn money(
    app: &App,
    partner: PartnerId,
    session: &ConsoleSession,
) -> Result<Vec<Money>, Problem> {
    let reading = async |connection: &mut PgConnection| {
        balances::with_last_entries(connection, partner, ENTRIES).await
    };
    let all = app.database().run(reading).await?.into_iter();
    let shown = all.map(|one| {
        let account = one.account;
        let currency = account.currency;
        let amount = |minor| Amount { minor, currency }.to_string();
        let lines = one.last_entries.into_iter();
        Money {
            currency: currency.to_string(),
            balance: amount(account.balance),
            held: amount(account.held),
            available: account
                .available
                .map_or_else(|| "no limit".to_owned(), amount),
            credit: limit_words(account.credit_limit, currency),
            entries: lines
                .map(|line| MoneyEntry::new(line, currency, session))
                .collect(),
        }
    });
    Ok(shown.collect())
}

/// A key that has ended.
struct Ended {
    name: String,
    access_key: String,
    at: TimeElement,
    /// Since when, and when last, requests named it after its end.
    used: Option<(TimeElement, TimeElement)>,
}

impl Ended {
    fn new(key: PastKey, times: &Times) -> Self {
        let used = key.used_since.zip(key.used_at);
        Self {
            name: key.name.unwrap_or_else(|| "First key".to_owned()),
            access_key: key.access_key,
            at: times.both(key.ended_at),
            used: used.map(|(since, last)| (times.both(since), times.ago(last))),
        }
    }
}

/// A further key of the partner, for a person or a program.
struct Further {
    name: String,
    access_key: String,
    rights: String,
    from: String,
    units: String,
    made: TimeElement,
    used: String,
    end: Option<ReasonForm>,
}

impl Further {
    fn new(key: FurtherKey, id: PartnerId, seen: &str, session: &ConsoleSession) -> Self {
        let path = format!("/partners/{id}/end-key");
        let end = session.may(OperatorRole::Support).then(|| ReasonForm {
            seen: seen.to_owned(),
            back: format!("/partners/{id}/access"),
            consequence: "Within a second, requests with it get 401. The other keys go on, and what is ordered is bought and sent.".to_owned(),
            grave: true,
            hidden: vec![("key", key.key_id.to_string())],
            ..ReasonForm::new(session, "End this key", path)
        });
        Self {
            rights: key.rights.join(", "),
            from: if key.networks.is_empty() {
                "anywhere".to_owned()
            } else {
                key.networks.join(", ")
            },
            units: key.units_per_day.map_or_else(
                || "as many as it likes".to_owned(),
                |most| format!("{} of {most} ordered", number(key.units_today)),
            ),
            made: session.times.both(key.created_at),
            used: used(key.last_used_at, session),
            name: key.name,
            access_key: key.access_key,
            end,
        }
    }
}

fn used(at: Option<OffsetDateTime>, session: &ConsoleSession) -> String {
    at.map_or_else(
        || "never noted".to_owned(),
        |at| session.times.both(at).to_string(),
    )
}

/// Ends a further key. Support may do it, as it may end keys that are in wrong hands.
pub(crate) async fn end(
    State(app): State<App>,
    given: PathArgument,
    act: Act<Support>,
) -> Result<Response, Problem> {
    let id: PartnerId = given.id("a partner")?;
    let key = act.fields.get("key").filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| Problem::Invalid("say which key".into()))?;
    let end = async |transaction: &mut Transaction<'_>| {
        let before = stored::list(transaction, id, Some(key)).await?.pop();
        stored::end(transaction, id, Some(key)).await?;
        Ok(before.map(|before| {
            let changed = ActionChange::removed(before.shown());
            (before.name, changed)
        }))
    };
    let ended = changed(&app, &act, id, (Command::KeyEnd, OF_FURTHER), end).await?;
    let name = ended.ok_or_else(|| {
        act.changed("the key, or another one of the partner, was changed since the page was shown")
    })?;
    Ok(act.done(
        &app,
        &format!("The key “{name}” has ended: its requests get 401 within a second."),
    ))
}

/// The keys and limits of a partner, and the acts on them.
pub(crate) async fn show(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let read = read(&app, &given).await?;
    let partner = &read.partner;
    let times = &visit.session.times;
    let ends = |until: Option<OffsetDateTime>| match until {
        Some(until) if until > times.now => format!("valid until {}", times.both(until)),
        Some(until) => format!("ended {}", times.both(until)),
        None => "none".to_owned(),
    };
    let id: PartnerId = partner.partner_id.into();
    let day = lately(&app, id).await?;
    let reading = async |connection: &mut PgConnection| {
        let first_used = stored::first_used_at(&mut *connection, id).await?;
        let further = stored::list(&mut *connection, id, None).await?;
        let ended = stored::ended_of(connection, id).await?;
        Ok::<_, pg::Error>((first_used, further, ended))
    };
    let (first_used, further, ended) = app.database().run(reading).await?;
    let further = further.into_iter();
    let ended = ended.into_iter();
    let money = money(&app, id, &visit.session).await?;
    let pages = async |connection: &mut PgConnection| install_pages(connection, id).await;
    let pages = app.database().run(pages).await?;
    page(&Page {
        shell: Shell::new(&app, &visit.session, "/partners", &partner.name),
        head: PartnerHead::new(partner, "access", &visit.session),
        access_key: if partner.keys_ended {
            "none: the last one was ended".to_owned()
        } else {
            partner.access_key.clone()
        },
        made: times.both(partner.created_at),
        signed: if partner.signed_body_required {
            "path, query, time and body"
        } else {
            "path and time; query and body if the partner signs them, too"
        },
        travellers: pages.map_or_else(
            || "no pages to install from".to_owned(),
            |pages| pages.shop.to_string(),
        ),
        kind: if partner.environment == Environment::Live.as_str() {
            "live: orders cost money"
        } else {
            "sandbox: nothing is bought"
        },
        old_keys: ends(partner.old_keys_until),
        old_secret: ends(partner.old_webhook_secret_until),
        limits: limits_of(partner)
            .map(|(_, label, set)| (label, set.map_or_else(|| "as for all".to_owned(), number)))
            .into(),
        events: if partner.webhook_events.is_empty() {
            "none".to_owned()
        } else {
            partner.webhook_events.join(", ")
        },
        may: visit.session.may(OperatorRole::Operator) && partner.has_secret_key,
        may_book: visit.session.may(OperatorRole::Operator),
        account: account::form(partner, (&read.seen, &day), &visit.session),
        first_used: used(first_used, &visit.session),
        further: further
            .map(|key| Further::new(key, id, &read.seen, &visit.session))
            .collect(),
        ended: ended.map(|key| Ended::new(key, times)).collect(),
        money,
    })
}
