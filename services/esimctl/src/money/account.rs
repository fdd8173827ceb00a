//! `esimctl account`: what partners have. It shows balances, sets how much a partner may owe, books
//! payments and corrections, exports entries for accounting, and checks the accounts against what
//! they rest on.
//!
//! An entry is never changed or deleted: a mistake is corrected by an adjustment. Each payment and
//! correction has a reference, by which a repeat of the command books nothing.

use std::iter;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand, builder::NonEmptyStringValueParser};
use desk::operator::{
    balances::{self, AccountWithEntries, BookedEntry, Booking, CreditLimit, EntryLine},
    books::{self, CheckedNow},
    prices,
    words::counted,
};
use domain::{Amount, PartnerId, money::EntryKind, product::Currency};
use pg::{PgConnection, actions::Mode};
use runtime::{
    csv::{lines, table},
    terminal,
};
use serde_json::json;

use crate::{
    confirm::{self, Confirm},
    console::{self, Console},
    exit::AccountsDisagree,
    lookup::{PartnerArgs, find},
    margin::{self, AccountMarginArgs},
    output::{TableRow, cells, or_dash, printable, properties, utc},
    terms,
};

const SHOW_EXAMPLES: &str = "Examples:
  esimctl account show 'Acme Travel'
  esimctl account show ak_0123456789abcdef01234567 --json

It shows the price list of the partner, and of each account the balance, what is held for orders whose outcome is open, what
new orders may cost, the limit, and the last 20 entries. Amounts in JSON are whole numbers of the currency's least unit,
such as cents.";

const LIMIT_EXAMPLES: &str = "Examples:
  esimctl account limit 'Acme Travel' EUR --prepaid --reason 'contract 4711'
  esimctl account limit 'Acme Travel' EUR --credit 500.00 --reason 'contract 4711'
  esimctl account limit 'Acme Travel' EUR --postpaid --dry-run

It opens the account in this currency if there is none. An order that costs more than is available gets 422
`balance_insufficient` and buys nothing; available is the balance, less what is held, plus the credit. A lower limit touches
nothing that was ordered before.";

const DEPOSIT_EXAMPLES: &str = "Examples:
  esimctl account deposit 'Acme Travel' 100.00 EUR --reference INV-42 --reason 'bank statement of 30 November'
  esimctl account deposit 'Acme Travel' 100.00 EUR --reference INV-42 --dry-run

The reference is that of the payment, and is booked once in each account: the same command again changes nothing and names
the entry. The partner sees the reference in its statements, and not the reason.";

const ADJUST_EXAMPLES: &str = "Examples:
  esimctl account adjust 'Acme Travel' -5.00 EUR --reference COR-7 --reason 'deposit INV-41 was booked twice'
  esimctl account adjust 'Acme Travel' 2.50 EUR --reference COR-8 --reason 'goodwill, ticket 4711'

An adjustment may take the balance below the limit. It does not replace the refund of an eSIM that is given back, which is
booked by itself. The reference is booked once in each account, as that of a deposit.";

const EXPORT_EXAMPLES: &str = "Examples:
  esimctl account export 'Acme Travel' EUR > acme.csv
  esimctl account export 'Acme Travel' EUR --from 1201 --to 1350
  esimctl account export 'Acme Travel' EUR --from 1201 --json

It prints a line for each entry, oldest first. Entries are numbered from 1 on without gaps and never change, so an export
may go on where the last one has ended. The balance before the first line and the amounts add up to the balance of the last
line. `released` is what of the held sum ends with the entry.";

const CHECK_EXAMPLES: &str = "Examples:
  esimctl account check
  esimctl account check --json

It compares each account with its entries and with the units and extensions that have a price: entries have no gap, each
balance follows from the one before, the account says what its entries add up to, what is held is the price of what is open,
and what has ended has exactly its entries, at its price. It changes none of these, and orders may arrive meanwhile. What it
finds is kept, as that of the comparison that a notifier makes every night from 2 o'clock UTC on, and tells `attention`,
`status` and the console. Exit status: 0 everything agrees, 3 something disagrees, 1 it could not be compared. `esimctl doctor`
makes the same check.";

/// The number of entries that `account show` prints.
const SHOWN: i64 = 20;
/// The number of entries that an export reads at once.
const PAGE: i64 = 5_000;

#[derive(Subcommand, Clone, Debug)]
pub enum AccountCommand {
    /// Show the accounts of a partner and their last entries
    #[command(after_help = SHOW_EXAMPLES)]
    Show(PartnerArgs),
    /// Set how much a partner may owe, and open the account if there is none
    #[command(after_help = LIMIT_EXAMPLES)]
    Limit(AccountLimitArgs),
    /// Book a payment of a partner
    #[command(after_help = DEPOSIT_EXAMPLES)]
    Deposit(AccountBookingArgs),
    /// Correct a balance
    #[command(after_help = ADJUST_EXAMPLES)]
    Adjust(AccountBookingArgs),
    /// Print the entries of an account as CSV, for accounting
    #[command(after_help = EXPORT_EXAMPLES)]
    Export(AccountExportArgs),
    /// Add up what partners have paid, and what it cost
    #[command(after_help = margin::EXAMPLES)]
    Margin(AccountMarginArgs),
    /// Compare all accounts with their entries and with what was ordered
    #[command(after_help = CHECK_EXAMPLES)]
    Check,
}

#[derive(Args, Clone, Debug)]
pub struct AccountLimitArgs {
    #[command(flatten)]
    which: PartnerArgs,
    /// The currency of the account, a code of ISO 4217
    #[arg(value_name = "CURRENCY", value_parser = Currency::of_money)]
    currency: Currency,
    #[command(flatten)]
    limit: LimitArgs,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
struct LimitArgs {
    /// Orders may cost what the partner has paid, and no more
    #[arg(long)]
    prepaid: bool,
    /// Orders may take the balance below zero by this amount
    #[arg(long, value_name = "AMOUNT")]
    credit: Option<String>,
    /// Orders may cost any amount
    #[arg(long)]
    postpaid: bool,
}

impl LimitArgs {
    fn read(&self, currency: Currency) -> anyhow::Result<CreditLimit> {
        let Some(credit) = &self.credit else {
            return Ok(if self.postpaid && !self.prepaid {
                CreditLimit::Unlimited
            } else {
                CreditLimit::UpTo(0)
            });
        };
        let amount = Amount::parse(credit, currency);
        let amount = amount.with_context(|| format!("--credit {credit} in {currency}"))?;
        ensure!(
            amount.minor >= 0,
            "--credit {credit}: it is below 0; --prepaid is an account without credit"
        );
        Ok(CreditLimit::UpTo(amount.minor))
    }
}

#[derive(Args, Clone, Debug)]
pub struct AccountBookingArgs {
    #[command(flatten)]
    which: PartnerArgs,
    /// The amount, with at most as many decimals as its currency
    #[arg(value_name = "AMOUNT", allow_negative_numbers = true, value_parser = NonEmptyStringValueParser::new())]
    amount: String,
    /// The currency, a code of ISO 4217
    #[arg(value_name = "CURRENCY", value_parser = Currency::of_money)]
    currency: Currency,
    /// Your id of the payment or correction, such as the number of an invoice, which is booked once
    #[arg(long, value_name = "TEXT", value_parser = terms::name)]
    reference: String,
    #[command(flatten)]
    confirm: Confirm,
}

#[derive(Args, Clone, Debug)]
pub struct AccountExportArgs {
    #[command(flatten)]
    which: PartnerArgs,
    /// The currency of the account, a code of ISO 4217
    #[arg(value_name = "CURRENCY", value_parser = Currency::of_money)]
    currency: Currency,
    /// The number of the first entry
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i64).range(1..))]
    from: i64,
    /// The number of the last entry [default: the last one that there is]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    to: Option<i64>,
}

pub async fn run(command: &AccountCommand, console: &Console) -> anyhow::Result<()> {
    match command {
        AccountCommand::Show(which) => show(which, console).await,
        AccountCommand::Limit(asked) => limit(asked, console).await,
        AccountCommand::Deposit(asked) => book(asked, EntryKind::Deposit, console).await,
        AccountCommand::Adjust(asked) => book(asked, EntryKind::Adjustment, console).await,
        AccountCommand::Export(asked) => export(asked, console).await,
        AccountCommand::Margin(asked) => margin::run(asked, console).await,
        AccountCommand::Check => check(console).await,
    }
}

async fn show(which: &PartnerArgs, console: &Console) -> anyhow::Result<()> {
    let mut connection = console.connect().await?;
    let partner = find(&mut connection, &which.partner).await?;
    let id = PartnerId::from(partner.partner_id);
    let price_list = prices::list_of(&mut connection, id).await?;
    let accounts = balances::with_last_entries(&mut connection, id, SHOWN).await?;
    let shown = json!({
        "partner_id": id, "name": partner.name, "price_list": price_list, "accounts": accounts,
    });
    console.print(&shown, || {
        let head = properties(&[
            ("partner", format!("{} ({id})", partner.name)),
            ("price list", or_dash(price_list.as_ref())),
        ]);
        let mut parts = vec![head];
        parts.extend(accounts.iter().map(account_text));
        if accounts.is_empty() {
            parts.push("It has no account; `esimctl account limit` opens one.".to_owned());
        }
        parts.join("\n\n")
    })
}

fn account_text(shown: &AccountWithEntries) -> String {
    let account = &shown.account;
    let amount = |minor| in_currency(minor, account.currency);
    let available = account.available.map(amount);
    let head = properties(&[
        ("account", account.currency.to_string()),
        ("balance", amount(account.balance)),
        ("held", amount(account.held)),
        ("available", available.unwrap_or("any amount".to_owned())),
        ("limit", limit_text(account.credit_limit, account.currency)),
        (
            "told below",
            or_dash(account.warn_below.map(amount).as_ref()),
        ),
    ]);
    let none = "It has no entries.";
    let row = |entry: &EntryLine| entry_row(entry, account.currency);
    format!(
        "{head}\n\n{}",
        console::list(&shown.last_entries, none, row)
    )
}

fn in_currency(minor: i64, currency: Currency) -> String {
    Amount { minor, currency }.to_string()
}

fn limit_text(limit: CreditLimit, currency: Currency) -> String {
    match limit {
        CreditLimit::UpTo(0) => "prepaid".to_owned(),
        CreditLimit::UpTo(limit) => format!("a credit of {}", in_currency(limit, currency)),
        CreditLimit::Unlimited => "postpaid".to_owned(),
    }
}

fn entry_row(entry: &EntryLine, currency: Currency) -> TableRow<8> {
    let decimal = |minor| Amount { minor, currency }.decimal();
    let unit = entry.topup_id.as_ref();
    let about = unit.or(entry.reference.as_ref());
    cells!(entry:
        number, at = utc(entry.at), kind, amount = decimal(entry.amount), balance = decimal(entry.balance),
        about = or_dash(about), by = entry.made_by.clone(), "reason" = or_dash(entry.reason.as_ref()),
    )
}

async fn limit(asked: &AccountLimitArgs, console: &Console) -> anyhow::Result<()> {
    let currency = asked.currency;
    let limit = asked.limit.read(currency)?;
    let mut connection = console.connect().await?;
    let partner = find(&mut connection, &asked.which.partner).await?;
    let id = partner.partner_id;
    let run = async |mode: Mode<'_>| {
        let set = balances::set_limit(&mut connection, id.into(), currency, limit, mode).await;
        set.map_err(|error| anyhow::Error::new(error).context("nothing was changed"))
    };
    let told = |was: &Option<CreditLimit>, dry_run| {
        let name = printable(&partner.name);
        let of = format!("the account of {name} ({id}) in {currency}");
        let is = limit_text(limit, currency);
        let would = if dry_run { "would be" } else { "is now" };
        match was {
            None if dry_run => format!("{of} would be opened: {is}"),
            None => format!("{of} is opened: {is}"),
            Some(was) if *was == limit => format!("{of} is {is} already"),
            Some(was) => format!("{of} {would} {is}; it was {}", limit_text(*was, currency)),
        }
    };
    let print = |was: &Option<CreditLimit>, dry_run| {
        let shown = json!({
            "partner_id": id, "currency": currency, "opened": was.is_none(), "was": was,
            "credit_limit": limit, "changed": *was != Some(limit), "dry_run": dry_run,
        });
        console.print(&shown, || told(was, dry_run))
    };
    let target = format!("partner {id}");
    let change = confirm::ConfirmedChange {
        run,
        describe: |was: &Option<CreditLimit>| told(was, true),
        print,
    };
    let command = domain::Command::AccountLimit;
    asked.confirm.carry_out(command, &target, change).await
}

/// Books a payment or a correction.
async fn book(
    asked: &AccountBookingArgs,
    kind: EntryKind,
    console: &Console,
) -> anyhow::Result<()> {
    let amount = Amount::parse(&asked.amount, asked.currency)
        .with_context(|| format!("{} in {}", asked.amount, asked.currency))?;
    let (command, noun) = if kind == EntryKind::Deposit {
        ensure!(
            amount.minor > 0,
            "a deposit is more than 0; `esimctl account adjust` takes what was booked by mistake"
        );
        (domain::Command::AccountDeposit, "deposit")
    } else {
        ensure!(amount.minor != 0, "an adjustment of 0 changes nothing");
        (domain::Command::AccountAdjust, "adjustment")
    };
    let mut connection = console.connect().await?;
    let partner = find(&mut connection, &asked.which.partner).await?;
    let id = partner.partner_id;
    let target = format!("partner {id}");
    let action = asked.confirm.action(command, &target);
    let booking = Booking {
        partner_id: id.into(),
        kind,
        amount,
        reference: &asked.reference,
        reason: action.reason,
        operator: action.actor.name,
    };
    let run = async |mode: Mode<'_>| {
        let booked = balances::book(&mut connection, booking, mode).await;
        booked.map_err(|error| anyhow::Error::new(error).context("nothing was booked"))
    };
    let told = |entry: &BookedEntry, dry_run| {
        let is = if dry_run { "would be" } else { "is" };
        let in_currency = |minor| in_currency(minor, amount.currency);
        format!(
            "a{} {noun} of {amount} {is} booked for {} ({id}) with the reference {}, as entry {}: the balance goes from {} to {}",
            if kind == EntryKind::Deposit { "" } else { "n" },
            printable(&partner.name),
            printable(&asked.reference),
            entry.number,
            in_currency(entry.balance - amount.minor),
            in_currency(entry.balance),
        )
    };
    let print = |entry: &BookedEntry, dry_run| {
        let shown = json!({
            "partner_id": id, "kind": kind, "number": entry.number, "amount": amount.minor,
            "currency": amount.currency, "balance": entry.balance, "reference": asked.reference,
            "dry_run": dry_run,
        });
        console.print(&shown, || told(entry, dry_run))
    };
    let change = confirm::ConfirmedChange {
        run,
        describe: |entry: &BookedEntry| told(entry, true),
        print,
    };
    asked.confirm.carry_out(command, &target, change).await
}

async fn export(asked: &AccountExportArgs, console: &Console) -> anyhow::Result<()> {
    let currency = asked.currency;
    let mut connection = console.connect().await?;
    let partner = find(&mut connection, &asked.which.partner).await?;
    let id = PartnerId::from(partner.partner_id);
    let accounts = balances::accounts_of(&mut connection, id).await?;
    let account = accounts.iter().find(|one| one.currency == currency);
    let account = account.with_context(|| {
        let name = printable(&partner.name);
        format!("{name} ({id}) has no account in {currency}; see `esimctl account show {id}`")
    })?;
    // What is booked meanwhile is left to the next export.
    let last = asked.to.unwrap_or(account.entries).min(account.entries);
    let mut after = asked.from - 1;
    let mut all: Vec<EntryLine> = Vec::new();
    let mut text = table(&EXPORTED, iter::empty::<[String; 0]>());
    while let Some(page) = page(&mut connection, (id, currency), &mut after, last).await? {
        if console.is_json() {
            all.extend(page);
            continue;
        }
        text.push_str(&lines(page.iter().map(|entry| exported(entry, currency))));
        // Page by page, so that an account of any length is exported with little memory.
        terminal::print(text.trim_end_matches('\n'))?;
        text.clear();
    }
    if console.is_json() {
        return console.print(&all, String::new);
    }
    if !text.is_empty() {
        terminal::print(text.trim_end_matches('\n'))?;
    }
    Ok(())
}

/// The next entries up to `last`, and moves `after` behind them; `None` if there are no more.
async fn page(
    connection: &mut PgConnection,
    account: (PartnerId, Currency),
    after: &mut i64,
    last: i64,
) -> anyhow::Result<Option<Vec<EntryLine>>> {
    let entries = balances::entries(connection, account, (*after, last), PAGE).await?;
    let Some(newest) = entries.last() else {
        return Ok(None);
    };
    *after = newest.number;
    Ok(Some(entries))
}

/// The columns of an export.
const EXPORTED: [&str; 12] = [
    "number",
    "at",
    "kind",
    "amount",
    "balance",
    "currency",
    "released",
    "topup_id",
    "extension_id",
    "reference",
    "reason",
    "made_by",
];

fn exported(entry: &EntryLine, currency: Currency) -> [String; EXPORTED.len()] {
    let decimal = |minor| Amount { minor, currency }.decimal();
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let extension = entry.extension_id.map(|id| id.to_string());
    [
        entry.number.to_string(),
        pg::rfc3339(entry.at),
        entry.kind.clone(),
        decimal(entry.amount),
        decimal(entry.balance),
        currency.to_string(),
        decimal(entry.released),
        text(&entry.topup_id),
        text(&extension),
        text(&entry.reference),
        text(&entry.reason),
        entry.made_by.clone(),
    ]
}

async fn check(console: &Console) -> anyhow::Result<()> {
    let CheckedNow { checked, kept } = books::check_now(&mut console.connect().await?).await?;
    let agrees = checked.disagreements.is_empty();
    console.print(&checked, || {
        if agrees {
            return checked_text(&checked);
        }
        let lines = checked.disagreements.iter();
        let lines = lines.map(|one| format!("{} in {}: {}", one.partner, one.currency, one.what));
        lines
            .map(|line| printable(&line))
            .collect::<Vec<_>>()
            .join("\n")
    })?;
    kept.context("the result was not kept")?;
    if agrees {
        return Ok(());
    }
    let found = checked.disagreements.len();
    Err(AccountsDisagree(counted(found, "place", "places")).into())
}

/// What a check without a disagreement rests on.
pub fn checked_text(checked: &balances::CheckedAccounts) -> String {
    format!(
        "{} with {} and {} that have prices agree to the least unit",
        counted(checked.accounts, "account", "accounts"),
        counted(checked.entries, "entry", "entries"),
        counted(checked.units, "unit", "units"),
    )
}
