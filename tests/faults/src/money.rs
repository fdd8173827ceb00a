//! Money in a run: every second partner has prices and an account, and afterwards the entries are
//! compared with what was stored, answered and bought, to the minor unit.

use crate::stored::StoredEntry;
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

/// Compares the books with the units, the extensions and the purchases.
pub fn judge(evidence: &Evidence, verdict: &mut Verdict) {
    let books = &evidence.books;
    let sold = evidence.ledger.iter().map(|order| order.order_id.as_str());
    let bought: HashSet<&str> = sold.collect();
    verdict.counts.entries = books.entries.len();
    let mut of_unit: HashMap<&str, Vec<&StoredEntry>> = HashMap::new();
    let mut of_extension: HashMap<&str, Vec<&StoredEntry>> = HashMap::new();
    for entry in &books.entries {
        match (&entry.topup_id, &entry.extension_id) {
            (_, Some(extension)) => of_extension.entry(extension).or_default().push(entry),
            (Some(topup), None) => of_unit.entry(topup).or_default().push(entry),
            (None, None) => {}
        }
    }
    let partners: HashMap<&str, &str> = evidence
        .stored
        .orders
        .iter()
        .map(|order| (order.order_id.as_str(), order.partner_id.as_str()))
        .collect();
    // What should be held, by partner.
    let mut open: BTreeMap<&str, i64> = BTreeMap::new();
    for unit in &evidence.stored.units {
        let entries = of_unit.remove(unit.topup_id.as_str()).unwrap_or_default();
        let Some(price) = unit.price else {
            if !entries.is_empty() {
                let text = format!("topup {} has no price and is booked", unit.topup_id);
                verdict.add(Broken::BookedWrongly, text);
            }
            continue;
        };
        let mut kinds: Vec<&str> = entries.iter().map(|entry| entry.kind.as_str()).collect();
        kinds.sort_unstable();
        let returned = if unit.returned { &["refund"][..] } else { &[] };
        let expected: Vec<Vec<&str>> = match unit.state.as_str() {
            "ready" => vec![
                [&["charge"][..], returned].concat(),
                [&["late_charge"][..], returned, &["release"]].concat(),
            ],
            "failed" => vec![vec!["release"]],
            // One that has failed may be tried again; its price is not held any more then.
            _ => vec![vec![], vec!["release"]],
        };
        if !expected.contains(&kinds) {
            let text = format!(
                "topup {} is {} and booked as {kinds:?}",
                unit.topup_id, unit.state
            );
            verdict.add(Broken::BookedWrongly, text);
        }
        if kinds.is_empty()
            && let Some(partner) = partners.get(unit.order_id.as_str())
        {
            *open.entry(partner).or_default() += price;
        }
        let charged = kinds.iter().any(|kind| kind.contains("charge"));
        if charged && !bought.contains(unit.placement_id.as_str()) {
            let text = format!("topup {} was never bought", unit.topup_id);
            verdict.add(Broken::ChargedForNothing, text);
        }
        let wrong = entries.iter().filter(|entry| {
            let should_be = match entry.kind.as_str() {
                "charge" => (-price, price),
                "release" => (0, price),
                "late_charge" => (-price, 0),
                _ => (price, 0),
            };
            (entry.amount, entry.released) != should_be
        });
        for entry in wrong {
            let text = format!("topup {} costs {price}: {entry:?}", unit.topup_id);
            verdict.add(Broken::BookedWrongly, text);
        }
    }
    if evidence.losses.is_empty() {
        for (topup, _) in of_unit {
            let text = format!("topup {topup} is booked and not stored");
            verdict.add(Broken::BookedWrongly, text);
        }
    }
    for one in &evidence.extensions {
        let entries = of_extension.remove(one.extension_id.as_str());
        let kinds: Vec<&str> = entries
            .iter()
            .flatten()
            .map(|entry| entry.kind.as_str())
            .collect();
        let expected: &[&str] = match (one.price, one.state.as_str()) {
            (None, _) => &[],
            (Some(_), "added") => &["charge"],
            (Some(_), "refused") => &["release"],
            (Some(price), _) => {
                *open.entry(&one.partner_id).or_default() += price;
                &[]
            }
        };
        if kinds != expected {
            let text = format!(
                "extension {} is {} and booked as {kinds:?}",
                one.extension_id, one.state
            );
            verdict.add(Broken::BookedWrongly, text);
        }
    }
    for account in &books.accounts {
        let own = |entry: &&StoredEntry| entry.partner_id == account.partner_id;
        let mut balance = 0;
        let mut last = 0;
        for entry in books.entries.iter().filter(own) {
            balance += entry.amount;
            last += 1;
            if entry.number != last || entry.balance != balance {
                let text = format!("entry {} does not follow: {entry:?}", last);
                verdict.add(Broken::BookedWrongly, text);
            }
        }
        let held = open
            .get(account.partner_id.as_str())
            .copied()
            .unwrap_or_default();
        if (account.posted, account.held, account.last_entry) != (balance, held, last) {
            let text = format!("{account:?}: the entries say {balance}, the open units {held}");
            verdict.add(Broken::BookedWrongly, text);
        }
    }
}
