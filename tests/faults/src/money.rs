//! Money in a run: every second partner has prices and an account, and afterwards the entries are
//! compared with what was stored, answered and bought, to the minor unit.

use crate::stored::{StoredEntry, StoredUnit};
use crate::verdict::{Broken, Evidence, Verdict};
use anyhow::Result;
use sqlx::PgConnection;
use std::collections::{BTreeMap, HashMap, HashSet};
use testkit::esimctl::Partner;

/// What the partners with prices pay for each option.
const PRICE: i64 = 1250;

/// Gives every second partner a price list that has all options, and an account: in turns one that
/// is paid before and one that is paid later.
pub async fn agree(connection: &mut PgConnection, partners: &[Partner]) -> Result<()> {
    sqlx::raw_sql("INSERT INTO price_lists (price_list, currency) VALUES ('faults', 'JOD')")
        .execute(&mut *connection)
        .await?;
    sqlx::query("INSERT INTO prices (price_list, option_id, amount) SELECT 'faults', option_id, $1 FROM options")
        .bind(PRICE)
        .execute(&mut *connection)
        .await?;
    for (index, partner) in partners.iter().enumerate().step_by(2) {
        let paid_before = index.is_multiple_of(4);
        sqlx::query("INSERT INTO accounts (partner_id, currency, credit_limit) VALUES ($1::uuid, 'JOD', $2)")
            .bind(&partner.partner_id)
            .bind(paid_before.then_some(0_i64))
            .execute(&mut *connection)
            .await?;
        if paid_before {
            sqlx::query("SELECT book_entry($1::uuid, 'JOD', 'deposit', $2, 'first', 'paid before', 'faults')")
                .bind(&partner.partner_id)
                .bind(PRICE * 1_000_000)
                .execute(&mut *connection)
                .await?;
        }
        sqlx::query("UPDATE partners SET price_list = 'faults' WHERE partner_id = $1::uuid")
            .bind(&partner.partner_id)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// What the entries of each unit and of each extension are.
type ById<'a> = HashMap<&'a str, Vec<&'a StoredEntry>>;

/// What should be held, by partner.
type Open<'a> = BTreeMap<&'a str, i64>;

/// Compares the books with the units, the extensions and the purchases.
pub fn judge(evidence: &Evidence, verdict: &mut Verdict) {
    let books = &evidence.books;
    verdict.counts.entries = books.entries.len();
    let mut of_units = ById::new();
    let mut of_extensions = ById::new();
    for entry in &books.entries {
        match (&entry.topup_id, &entry.extension_id) {
            (_, Some(extension)) => of_extensions.entry(extension).or_default().push(entry),
            (Some(topup), None) => of_units.entry(topup).or_default().push(entry),
            (None, None) => {}
        }
    }
    let mut open = Open::new();
    units(evidence, &mut of_units, &mut open, verdict);
    if evidence.losses.is_empty() {
        for topup in of_units.keys() {
            let text = format!("topup {topup} is booked and not stored");
            verdict.add(Broken::BookedWrongly, text);
        }
    }
    extensions(evidence, &of_extensions, &mut open, verdict);
    accounts(evidence, &open, verdict);
}

/// What was booked of each unit, which is taken out of `of_units`.
fn units<'a>(
    evidence: &'a Evidence,
    of_units: &mut ById<'a>,
    open: &mut Open<'a>,
    verdict: &mut Verdict,
) {
    let sold = evidence.ledger.iter().map(|order| order.order_id.as_str());
    let bought: HashSet<&str> = sold.collect();
    let orders = evidence.stored.orders.iter();
    let partners: HashMap<&str, &str> = orders
        .map(|order| (order.order_id.as_str(), order.partner_id.as_str()))
        .collect();
    for unit in &evidence.stored.units {
        let entries = of_units.remove(unit.topup_id.as_str()).unwrap_or_default();
        let mut kinds: Vec<&str> = entries.iter().map(|entry| entry.kind.as_str()).collect();
        kinds.sort_unstable();
        let told = format!(
            "topup {} is {} and booked as {kinds:?}",
            unit.topup_id, unit.state
        );
        if !may_be_booked_as(unit, &kinds) {
            verdict.add(Broken::BookedWrongly, told.clone());
        }
        let Some(price) = unit.price else {
            continue;
        };
        if kinds.is_empty()
            && let Some(partner) = partners.get(unit.order_id.as_str())
        {
            *open.entry(partner).or_default() += price;
        }
        let is_charged = kinds.iter().any(|kind| kind.contains("charge"));
        if is_charged && !bought.contains(unit.placement_id.as_str()) {
            verdict.add(Broken::ChargedForNothing, told.clone());
        }
        let is_right = |entry: &&StoredEntry| {
            let expected = match entry.kind.as_str() {
                "charge" => (-price, price),
                "release" => (0, price),
                "late_charge" => (-price, 0),
                _ => (price, 0),
            };
            (entry.amount, entry.released) == expected
        };
        if !entries.iter().all(is_right) {
            verdict.add(
                Broken::BookedWrongly,
                format!("{told} of {price}: {entries:?}"),
            );
        }
    }
}

/// Whether these are the entries of a unit in its state.
fn may_be_booked_as(unit: &StoredUnit, kinds: &[&str]) -> bool {
    let expected: &[&[&str]] = match (unit.price, unit.state.as_str(), unit.returned) {
        (None, _, _) => &[&[]],
        (Some(_), "ready", false) => &[&["charge"], &["late_charge", "release"]],
        (Some(_), "ready", true) => &[&["charge", "refund"], &["late_charge", "refund", "release"]],
        (Some(_), "failed", _) => &[&["release"]],
        // One that has failed may be tried again; its price is not held any more then.
        (Some(_), _, _) => &[&[], &["release"]],
    };
    expected.contains(&kinds)
}

fn extensions<'a>(
    evidence: &'a Evidence,
    of_extensions: &ById<'a>,
    open: &mut Open<'a>,
    verdict: &mut Verdict,
) {
    for one in &evidence.extensions {
        let entries = of_extensions.get(one.extension_id.as_str());
        let kinds: Vec<&str> = entries
            .into_iter()
            .flatten()
            .map(|entry| entry.kind.as_str())
            .collect();
        let expected: &[&[&str]] = match (one.price, one.state.as_str()) {
            (None, _) => &[&[]],
            // It may have been taken for refused before.
            (Some(_), "added") => &[&["charge"], &["release", "late_charge"]],
            (Some(_), "refused") => &[&["release"]],
            (Some(price), _) => {
                *open.entry(&one.partner_id).or_default() += price;
                &[&[]]
            }
        };
        if !expected.contains(&&*kinds) {
            let text = format!(
                "extension {} is {} and booked as {kinds:?}",
                one.extension_id, one.state
            );
            verdict.add(Broken::BookedWrongly, text);
        }
    }
}

/// Whether the entries of each account follow from each other, and it says what they add up to.
fn accounts(evidence: &Evidence, open: &Open<'_>, verdict: &mut Verdict) {
    for account in &evidence.books.accounts {
        let own = |entry: &&StoredEntry| entry.partner_id == account.partner_id;
        let mut balance = 0;
        let mut last = 0;
        for entry in evidence.books.entries.iter().filter(own) {
            balance += entry.amount;
            last += 1;
            if entry.number != last || entry.balance != balance {
                let text = format!("entry {last} does not follow: {entry:?}");
                verdict.add(Broken::BookedWrongly, text);
            }
        }
        let held = open.get(account.partner_id.as_str());
        let held = held.copied().unwrap_or_default();
        if (account.posted, account.held, account.last_entry) != (balance, held, last) {
            let text = format!("{account:?}: the entries say {balance}, the open units {held}");
            verdict.add(Broken::BookedWrongly, text);
        }
    }
}
