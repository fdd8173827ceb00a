//! The ledger: every purchase and extension that was made, and every unit that was cancelled.
//!
//! The file ([`crate::journal`]) is the truth, and an index in memory ([`Accounts`]) answers the
//! requests. [`Ledger::buy`] returns only after the purchase is in the file, so a purchase that was
//! answered is never lost. One lock covers the file and the index, so that both have the same
//! order. Requests hold it on their own threads, because the work under it is one short write into
//! the page cache, which costs less than handing it to another thread.
//!
//! The first line of the file is `opened`, with the seed from which all activation codes derive;
//! then follows one line per purchase, extension or cancellation:
//!
//! ```text
//! {"opened":{"version":1,"first_unit":512345678901234,"seed":"…"}}
//! {"bought":{"at_ms":1795176000123,"order_id":"o-1","first_unit":512345678901234,"products":[…]}}
//! {"canceled":{"at_ms":1795176060456,"unit":512345678901234}}
//! ```

use std::{
    collections::{BTreeSet, HashMap},
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

use anyhow::{Context, anyhow, bail, ensure};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::{
    journal::Journal,
    profile::{self, FIRST_UNITS, Seed, UnitNumber},
    protocol::{Product, ProfileAnswer},
    purchase::{LedgerExtension, LedgerPurchase},
    summary::{ExtensionSummary, LedgerSummary},
};

/// The format of the file. A file of another version is refused.
const VERSION: u32 = 1;

/// A line of the file. `P` is a [`LedgerPurchase`], which is owned when it is read and borrowed
/// when it is written.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Record<P> {
    /// The first line.
    Opened(Opened),
    Bought(P),
    Extended(LedgerExtension),
    Canceled {
        at_ms: i64,
        unit: UnitNumber,
    },
    /// A unit was suspended, or resumed with `false`.
    Suspended {
        unit: UnitNumber,
        suspended: bool,
    },
}

#[derive(Deserialize, Serialize)]
struct Opened {
    version: u32,
    first_unit: UnitNumber,
    /// The [`Seed`] as 64 hex digits.
    seed: String,
}

impl Opened {
    fn new(first_unit: UnitNumber, seed: Seed) -> Self {
        Self {
            version: VERSION,
            first_unit,
            seed: hex::encode(seed),
        }
    }

    fn check(&self) -> anyhow::Result<Seed> {
        let version = self.version;
        let first_unit = self.first_unit;
        ensure!(
            version == VERSION,
            "the file has version {version}, and this sandbox reads version {VERSION} only"
        );
        ensure!(
            FIRST_UNITS.contains(&first_unit),
            "units can't start at {first_unit}: the first unit of a ledger is from {} to {}",
            FIRST_UNITS.start,
            FIRST_UNITS.end - 1
        );
        let mut seed = Seed::default();
        // The error of `hex` would quote characters of the seed, which is secret.
        hex::decode_to_slice(&self.seed, &mut seed)
            .map_err(|_| anyhow!("the seed is not 64 hex digits"))?;
        Ok(seed)
    }
}

/// What happens to a second order with the same order id: a provider may refuse it, or buy again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeats {
    Refused,
    Bought,
}

/// The purchases of one order id, or all of them.
#[derive(Default)]
pub struct OrderPurchases {
    /// One order id has more than one purchase only if duplicates are not detected.
    pub purchases: Vec<Arc<LedgerPurchase>>,
    pub canceled: BTreeSet<UnitNumber>,
}

/// The file with its index. All methods may be called at once from several threads.
pub struct Ledger {
    seed: Seed,
    books: Mutex<Books>,
}

struct Books {
    journal: Journal,
    accounts: Accounts,
}

/// The index of the file, in memory.
#[derive(Default)]
struct Accounts {
    first_unit: UnitNumber,
    next_unit: UnitNumber,
    /// Oldest first.
    purchases: Vec<Arc<LedgerPurchase>>,
    /// The positions in `purchases` of each order id's purchases.
    by_order_id: HashMap<String, Vec<usize>>,
    /// In the order of their sale.
    extensions: Vec<LedgerExtension>,
    canceled: BTreeSet<UnitNumber>,
    suspended: BTreeSet<UnitNumber>,
}

impl Ledger {
    /// Opens or creates the ledger in the file `path`. Errors name the file, and the line if one is
    /// corrupt.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let mut seed: Option<Seed> = None;
        let mut accounts = Accounts::default();
        let mut journal = Journal::open(path, |record: Record<LedgerPurchase>| {
            match (record, seed) {
                (Record::Opened(opened), None) => {
                    seed = Some(opened.check()?);
                    accounts.start(opened.first_unit);
                }
                (Record::Opened(_), Some(_)) => {
                    bail!("there is a second `opened` record: two ledgers are in one file")
                }
                (_, None) => {
                    bail!("the first record is not `opened`: this is no ledger of a sandbox")
                }
                (Record::Bought(purchase), _) => {
                    let expected = accounts.next_unit;
                    ensure!(
                        purchase.first_unit == expected,
                        "the next unit is {expected}, not {}: a record is missing",
                        purchase.first_unit
                    );
                    accounts.enter(purchase);
                }
                (Record::Extended(extension), _) => {
                    let unit = extension.unit;
                    ensure!(accounts.sold(unit), "unit {unit} was never bought");
                    accounts.extensions.push(extension);
                }
                (Record::Canceled { unit, .. }, _) => {
                    ensure!(accounts.sold(unit), "unit {unit} was never bought");
                    accounts.canceled.insert(unit);
                }
                (Record::Suspended { unit, suspended }, _) => {
                    ensure!(accounts.sold(unit), "unit {unit} was never bought");
                    accounts.suspend(unit, suspended);
                }
            }
            Ok(())
        })?;
        let seed = if let Some(seed) = seed {
            seed
        } else {
            let first_unit = rand::rng().random_range(FIRST_UNITS);
            let seed: Seed = rand::rng().random();
            journal
                .append(&Record::<()>::Opened(Opened::new(first_unit, seed)))
                .with_context(|| format!("cannot write the ledger {}", path.display()))?;
            accounts.start(first_unit);
            seed
        };
        Ok(Self {
            seed,
            books: Mutex::new(Books { journal, accounts }),
        })
    }

    /// Buys `products` under `order_id`, and returns the purchase, which is in the file by then.
    /// `None` means that the id has bought before and that `repeats` refuses a repetition. After an
    /// error nothing is bought.
    pub fn buy(
        &self,
        order_id: String,
        products: Vec<Product>,
        now: OffsetDateTime,
        repeats: Repeats,
    ) -> io::Result<Option<Arc<LedgerPurchase>>> {
        let mut books = self.lock();
        let Books { journal, accounts } = &mut *books;
        if repeats == Repeats::Refused && accounts.by_order_id.contains_key(&order_id) {
            return Ok(None);
        }
        let at = now.truncate_to_millisecond();
        let purchase = LedgerPurchase {
            at,
            order_id,
            first_unit: accounts.next_unit,
            products,
        };
        journal.append(&Record::Bought(&purchase))?;
        Ok(Some(accounts.enter(purchase)))
    }

    /// Enters an extension, which is in the file then. `false` means that its id was used before
    /// and that `repeats` refuses a repetition. An empty id is none.
    pub fn extend(&self, extension: LedgerExtension, repeats: Repeats) -> io::Result<bool> {
        let mut books = self.lock();
        let Books { journal, accounts } = &mut *books;
        let is_same = |one: &LedgerExtension| one.extension_id == extension.extension_id;
        if repeats == Repeats::Refused
            && !extension.extension_id.is_empty()
            && accounts.extensions.iter().any(is_same)
        {
            return Ok(false);
        }
        let at = extension.at.truncate_to_millisecond();
        let extension = LedgerExtension { at, ..extension };
        journal.append(&Record::<()>::Extended(extension.clone()))?;
        accounts.extensions.push(extension);
        Ok(true)
    }

    /// The extensions that are wanted, in the order of their sale.
    pub fn extensions(&self, is_wanted: impl Fn(&LedgerExtension) -> bool) -> Vec<LedgerExtension> {
        let books = self.lock();
        let extensions = books.accounts.extensions.iter();
        extensions.filter(|one| is_wanted(one)).cloned().collect()
    }

    /// Whether the order id has bought before.
    pub fn has(&self, order_id: &str) -> bool {
        self.lock().accounts.by_order_id.contains_key(order_id)
    }

    /// The purchases of an order id, with their cancelled units; `None` if it has bought nothing.
    pub fn order(&self, order_id: &str) -> Option<OrderPurchases> {
        let books = self.lock();
        let accounts = &books.accounts;
        let places = accounts.by_order_id.get(order_id)?;
        let purchases = places
            .iter()
            .map(|place| Arc::clone(&accounts.purchases[*place]));
        let purchases: Vec<_> = purchases.collect();
        let canceled = purchases
            .iter()
            .flat_map(|purchase| accounts.canceled.range(purchase.unit_numbers()))
            .copied()
            .collect();
        Some(OrderPurchases {
            purchases,
            canceled,
        })
    }

    /// Cancels a unit. `false` means that it was never bought. A second cancellation changes
    /// nothing.
    pub fn cancel(&self, unit: UnitNumber, now: OffsetDateTime) -> io::Result<bool> {
        let mut books = self.lock();
        let Books { journal, accounts } = &mut *books;
        if !accounts.sold(unit) {
            return Ok(false);
        }
        if !accounts.canceled.contains(&unit) {
            let at_ms = now.unix_timestamp() * 1000 + i64::from(now.millisecond());
            journal.append(&Record::<()>::Canceled { at_ms, unit })?;
            accounts.canceled.insert(unit);
        }
        Ok(true)
    }

    /// Suspends a unit that was bought, or resumes it. What is so already changes nothing.
    pub fn suspend(&self, unit: UnitNumber, suspended: bool) -> io::Result<()> {
        let mut books = self.lock();
        let Books { journal, accounts } = &mut *books;
        if accounts.suspended.contains(&unit) != suspended {
            journal.append(&Record::<()>::Suspended { unit, suspended })?;
            accounts.suspend(unit, suspended);
        }
        Ok(())
    }

    pub fn is_suspended(&self, unit: UnitNumber) -> bool {
        self.lock().accounts.suspended.contains(&unit)
    }

    pub fn profile(&self, unit: UnitNumber, bought_at: OffsetDateTime) -> ProfileAnswer {
        profile::profile(self.seed, unit, bought_at)
    }

    /// The units of a purchase that are cancelled.
    pub fn canceled(&self, purchase: &LedgerPurchase) -> BTreeSet<UnitNumber> {
        let books = self.lock();
        let canceled = books.accounts.canceled.range(purchase.unit_numbers());
        canceled.copied().collect()
    }

    pub fn is_canceled(&self, unit: UnitNumber) -> bool {
        self.lock().accounts.canceled.contains(&unit)
    }

    /// Summarises all purchases, or in detail the purchases of one order id.
    pub fn summary(&self, order_id: Option<&str>) -> LedgerSummary {
        let OrderPurchases {
            purchases,
            canceled,
        } = if let Some(order_id) = order_id {
            self.order(order_id).unwrap_or_default()
        } else {
            let accounts = &self.lock().accounts;
            OrderPurchases {
                purchases: accounts.purchases.clone(),
                canceled: accounts.canceled.clone(),
            }
        };
        let extensions = self.extensions(|one| order_id.is_none_or(|id| id == one.extension_id));
        // Counted after the lock is released, because counting may take long and purchases must not
        // wait for it.
        let suspended = self.lock().accounts.suspended.clone();
        let suspended = purchases
            .iter()
            .flat_map(|one| suspended.range(one.unit_numbers()))
            .map(ToString::to_string);
        let summary = LedgerSummary::of(&purchases, &canceled, order_id.is_some());
        LedgerSummary {
            suspended: suspended.collect(),
            extensions: extensions.into_iter().map(ExtensionSummary::of).collect(),
            ..summary
        }
    }

    /// The purchase that begins with this unit.
    pub fn beginning_with(&self, unit: UnitNumber) -> Option<Arc<LedgerPurchase>> {
        let books = self.lock();
        let purchases = &books.accounts.purchases;
        let place = purchases.binary_search_by_key(&unit, |purchase| purchase.first_unit);
        place.ok().map(|place| Arc::clone(&purchases[place]))
    }

    /// The purchase that has bought this unit.
    pub fn containing(&self, unit: UnitNumber) -> Option<Arc<LedgerPurchase>> {
        let books = self.lock();
        let purchases = &books.accounts.purchases;
        let after = purchases.partition_point(|purchase| purchase.first_unit <= unit);
        let purchase = purchases.get(after.checked_sub(1)?)?;
        let is_in = purchase.unit_numbers().contains(&unit);
        is_in.then(|| Arc::clone(purchase))
    }

    /// The purchases that are wanted, oldest first.
    pub fn purchases(
        &self,
        is_wanted: impl Fn(&LedgerPurchase) -> bool,
    ) -> Vec<Arc<LedgerPurchase>> {
        let books = self.lock();
        let purchases = books.accounts.purchases.iter();
        purchases.filter(|one| is_wanted(one)).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        // A panic of an earlier holder is ignored, because no code under the lock panics in the
        // middle of a change.
        runtime::lock(&self.books)
    }
}

impl Accounts {
    fn suspend(&mut self, unit: UnitNumber, suspended: bool) {
        if suspended {
            self.suspended.insert(unit);
        } else {
            self.suspended.remove(&unit);
        }
    }

    fn start(&mut self, first_unit: UnitNumber) {
        self.first_unit = first_unit;
        self.next_unit = first_unit;
    }

    fn enter(&mut self, purchase: LedgerPurchase) -> Arc<LedgerPurchase> {
        let purchase = Arc::new(purchase);
        self.next_unit += purchase.size();
        self.by_order_id
            .entry(purchase.order_id.clone())
            .or_default()
            .push(self.purchases.len());
        self.purchases.push(Arc::clone(&purchase));
        purchase
    }

    fn sold(&self, unit: UnitNumber) -> bool {
        (self.first_unit..self.next_unit).contains(&unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use time::macros::datetime;

    const NOW: OffsetDateTime = datetime!(2026-11-20 12:00:00.123_456 UTC);

    fn buy(
        ledger: &Ledger,
        order_id: &str,
        products: &[(&str, u32)],
    ) -> Option<Arc<LedgerPurchase>> {
        let products = products.iter().map(|(option, qty)| Product {
            option_id: (*option).into(),
            qty: *qty,
        });
        ledger
            .buy(order_id.into(), products.collect(), NOW, Repeats::Refused)
            .unwrap()
    }

    fn summary(ledger: &Ledger) -> serde_json::Value {
        serde_json::to_value(ledger.summary(None)).unwrap()
    }

    #[test]
    fn a_reopened_ledger_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let ledger = Ledger::open(&path).unwrap();
        let one = buy(&ledger, "one", &[("a", 2), ("b", 1)]).unwrap();
        let two = buy(&ledger, "two", &[("a", 1)]).unwrap();
        assert_eq!(buy(&ledger, "one", &[("a", 1)]), None);
        let options: Vec<_> = one.units().map(|(_, option)| option).collect();
        assert_eq!(options, ["a", "a", "b"]);
        assert_eq!(two.first_unit, one.first_unit + 3);
        assert!(ledger.cancel(two.first_unit, NOW).unwrap());
        assert!(ledger.cancel(two.first_unit, NOW).unwrap());
        assert!(!ledger.cancel(two.first_unit + 1, NOW).unwrap());
        assert!(!ledger.cancel(one.first_unit - 1, NOW).unwrap());
        let code = ledger.profile(one.first_unit, one.at).activate_code;
        let before = summary(&ledger);
        drop(ledger);
        assert_eq!(
            fs::read_to_string(&path).unwrap().lines().count(),
            4,
            "a repeated cancel wrote a line"
        );

        let again = Ledger::open(&path).unwrap();
        assert_eq!(summary(&again), before);
        assert_eq!(
            again.order("one").unwrap().purchases,
            std::slice::from_ref(&one)
        );
        assert_eq!(
            again.order("two").unwrap().canceled,
            [two.first_unit].into()
        );
        assert!(again.order("three").is_none());
        assert_eq!(again.profile(one.first_unit, one.at).activate_code, code);
        assert_eq!(
            buy(&again, "three", &[("a", 1)]).unwrap().first_unit,
            two.first_unit + 1
        );
    }

    #[test]
    fn a_reopened_ledger_has_its_extensions_and_refuses_a_repeated_id() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let ledger = Ledger::open(&path).unwrap();
        let one = buy(&ledger, "one", &[("a", 1)]).unwrap();
        let extension = |id: &str| LedgerExtension {
            at: NOW,
            extension_id: id.to_owned(),
            unit: one.first_unit,
            option_id: "a".to_owned(),
            instead: None,
        };
        for (id, repeats, is_sold) in [
            ("e", Repeats::Refused, true),
            ("e", Repeats::Refused, false),
            ("e", Repeats::Bought, true),
            ("", Repeats::Refused, true),
            ("", Repeats::Refused, true),
        ] {
            assert_eq!(ledger.extend(extension(id), repeats).unwrap(), is_sold);
        }
        let all = ledger.extensions(|_| true);
        assert_eq!(all.len(), 4);
        drop(ledger);
        let again = Ledger::open(&path).unwrap();
        assert_eq!(again.extensions(|_| true), all);
        assert_eq!(again.extensions(|one| one.extension_id == "e").len(), 2);
    }

    #[test]
    fn a_file_that_is_no_ledger_stops_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let seed = "00".repeat(32);
        let opened =
            format!(r#"{{"opened":{{"version":1,"first_unit":100000000000000,"seed":"{seed}"}}}}"#)
                + "\n";
        let bought = concat!(
            r#"{"bought":{"at_ms":0,"order_id":"o","first_unit":100000000000000,"#,
            r#""products":[{"optionId":"a","qty":1}]}}"#,
            "\n"
        );
        let canceled = "{\"canceled\":{\"at_ms\":0,\"unit\":100000000000000}}\n";
        for (text, line, reason) in testkit::rows! {
            bought.to_owned(), 1 => "the first record is not `opened`";
            opened.replace(":1,", ":2,"), 1 => "version 2";
            opened.replace(&seed, "zz"), 1 => "not 64 hex digits";
            opened.replace("0000,", ","), 1 => "units can't start at 10000000000";
            opened.repeat(2), 2 => "a second `opened` record";
            format!("{opened}{bought}{bought}"), 3 => "the next unit is 100000000000001";
            format!("{opened}{canceled}"), 2 => "never bought";
            format!("{opened}{{}}\n{bought}"), 2 => "expected value";
        } {
            fs::write(&path, text).unwrap();
            let Err(error) = Ledger::open(&path) else {
                panic!("opened, expected: {reason}")
            };
            let error = format!("{error:#}");
            assert!(
                error.contains(&format!("line {line}: ")) && error.contains(reason),
                "{error}"
            );
        }
    }

    /// Only the header was torn: nothing had been bought.
    #[test]
    fn a_torn_header_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        fs::write(&path, "{\"record\":\"ope").unwrap();
        drop(Ledger::open(&path).unwrap());
        Ledger::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
    }
}
