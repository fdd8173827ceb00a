//! The entries of an account of a partner, the newest first, page by page and as CSV. They are
//! numbered without gaps, so a page goes on behind the number where the one before ended.

use accounts::partners;
use askama::Template;
use axum::{extract::State, response::Response};
use desk::operator::balances::{self, EntryLine};
use domain::{Amount, PartnerId, money::EntryKind, product::Currency};
use pg::PgConnection;

use crate::{
    App,
    access::{ConsoleSession, Viewer, Visit},
    format::{address, counted},
    pages::{
        lists::{self, PAGE},
        partner::PartnerHead,
    },
    problem::Problem,
    times::TimeElement,
    view::{PathArgument, Shell, page},
};

#[derive(Template)]
#[template(path = "entries.html")]
struct Page {
    shell: Shell,
    head: PartnerHead,
    currency: String,
    csv: String,
    entries: Vec<MoneyEntry>,
    list: Pages,
    foot: String,
}

/// The pages beside this one, as the pager shows them.
struct Pages {
    newest: Option<String>,
    older: Option<String>,
    /// The list looks through nothing in vain.
    reached: Option<TimeElement>,
}

/// An entry as pages show it.
pub(crate) struct MoneyEntry {
    pub(crate) number: i64,
    pub(crate) at: TimeElement,
    pub(crate) what: &'static str,
    /// Its page, if it is about an eSIM.
    pub(crate) topup_id: Option<String>,
    pub(crate) told: String,
    pub(crate) amount: String,
    pub(crate) balance: String,
}

impl MoneyEntry {
    pub(crate) fn new(line: EntryLine, currency: Currency, session: &ConsoleSession) -> Self {
        let amount = |minor| Amount { minor, currency }.decimal();
        let what = match line.kind.parse() {
            Ok(EntryKind::Charge) => "eSIM ready",
            Ok(EntryKind::Release) => "eSIM failed, nothing to pay",
            Ok(EntryKind::LateCharge) => "eSIM ready after it had failed",
            Ok(EntryKind::Refund) => "eSIM given back",
            Ok(EntryKind::Deposit) => "payment",
            Ok(EntryKind::Adjustment) => "correction",
            Err(_) => "of a newer version",
        };
        let told = [line.reference, line.reason].into_iter().flatten();
        Self {
            number: line.number,
            at: session.times.both(line.at),
            what,
            topup_id: line.topup_id,
            told: told.collect::<Vec<_>>().join(" · "),
            amount: amount(line.amount),
            balance: amount(line.balance),
        }
    }
}

/// The partner of a path, and the currency of a query.
struct Asked {
    partner: partners::Partner,
    currency: Currency,
    lines: Vec<EntryLine>,
}

async fn asked(
    app: &App,
    given: &PathArgument,
    visit: &Visit<Viewer>,
    most: usize,
) -> Result<Asked, Problem> {
    let id: PartnerId = given.id("a partner")?;
    let code = visit.query.get("currency").unwrap_or_default();
    let currency = Currency::of_money(code)
        .map_err(|error| Problem::Invalid(format!("the currency {code:?}: {error}")))?;
    let before = visit.query.get("before");
    let before = before.and_then(|before| before.parse().ok());
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let read = async |connection: &mut PgConnection| {
        let partner = partners::show(&mut *connection, &id.to_string()).await?;
        let accounts = balances::accounts_of(&mut *connection, id).await?;
        let account = accounts.iter().find(|one| one.currency == currency);
        // Entries are numbered without gaps, so their count is the number of the last one.
        let newest = account.map_or(0, |account| account.entries);
        let last = before.map_or(newest, |before: i64| newest.min(before.saturating_sub(1)));
        let range = (last.saturating_sub(most), last);
        let mut lines = balances::entries(connection, (id, currency), range, most).await?;
        lines.reverse();
        Ok::<_, pg::Error>(partner.map(|partner| (partner, lines)))
    };
    let found = app.database().run(read).await?;
    let (partner, lines) = found.ok_or_else(|| given.missing("partner"))?;
    Ok(Asked {
        partner,
        currency,
        lines,
    })
}

pub(crate) async fn show(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let Asked {
        partner,
        currency,
        lines,
    } = asked(&app, &given, &visit, PAGE).await?;
    let id = partner.partner_id;
    let path = format!("/partners/{id}/entries");
    let code = currency.to_string();
    let last = lines.last().map_or(1, |line| line.number).to_string();
    let list = Pages {
        newest: (visit.query.get("before")).map(|_| address(&path, [("currency", code.as_str())])),
        // The first entry of an account has the number 1.
        older: (last != "1").then(|| {
            address(
                &path,
                [("currency", code.as_str()), ("before", last.as_str())],
            )
        }),
        reached: None,
    };
    let session = &visit.session;
    page(&Page {
        shell: Shell::new(&app, session, "/partners", &partner.name),
        head: PartnerHead::new(&partner, "access", session),
        csv: address(
            &format!("/partners/{id}/entries.csv"),
            [("currency", code.as_str())],
        ),
        foot: match lines.len() {
            0 => "No entry.".to_owned(),
            shown => format!("{}, newest first.", counted(shown, "entry", "entries")),
        },
        entries: lines
            .into_iter()
            .map(|line| MoneyEntry::new(line, currency, session))
            .collect(),
        currency: code,
        list,
    })
}

/// The newest entries as CSV, in UTC. `esimctl account export` has all.
pub(crate) async fn csv(
    State(app): State<App>,
    given: PathArgument,
    visit: Visit<Viewer>,
) -> Result<Response, Problem> {
    let Asked {
        currency, lines, ..
    } = asked(&app, &given, &visit, lists::CSV).await?;
    let head = [
        "number",
        "at_utc",
        "kind",
        "amount",
        "balance",
        "currency",
        "topup_id",
        "reference",
        "reason",
        "made_by",
    ];
    let decimal = |minor| Amount { minor, currency }.decimal();
    let rows = lines.into_iter().map(|line| {
        [
            line.number.to_string(),
            lists::instant(line.at),
            line.kind,
            decimal(line.amount),
            decimal(line.balance),
            currency.to_string(),
            line.topup_id.unwrap_or_default(),
            line.reference.unwrap_or_default(),
            line.reason.unwrap_or_default(),
            line.made_by,
        ]
    });
    Ok(lists::csv("entries", &head, rows))
}
