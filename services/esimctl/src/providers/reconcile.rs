//! `esimctl provider reconcile`: compares the provider's own list of purchases with ours.
//!
//! The comparison is that of `recover --ledger` ([`crate::ledger`]); only the list comes from the
//! provider itself. Such a list is complete for the time that was asked for, so what it lacks is a
//! finding, too.

use std::collections::{HashMap, HashSet};

use clap::Args;
use provisioner::providers::{PurchasePeriod, SoldPurchase};
use runtime::past::past;
use serde_json::json;
use time::{Duration, OffsetDateTime};
use tools::ledger::{CompletePeriod, ListedPurchase, Loader};

use crate::{console::Console, ledger as findings, provider_lists::ProviderListArgs};

pub const EXAMPLES: &str = "Examples:
  esimctl provider reconcile airalo --since 24h
  esimctl provider reconcile esim-access --since 2026-11-01T00:00:00Z --json

It reads the account from the settings of the provisioner, as `esimctl provider check` does, and changes nothing. It lists
purchases of the provider that we do not know (orphan), purchases of ours that the provider does not list (missing), those
that were made twice (bought_twice), or at another price than the option says (price_differs), each with what to do.
docs/reference.md, section \"Reconcile with a provider\", has more.

Purchases of the last 15 minutes may be missing in a list of the provider, so they are not looked for. The exit status is
3 if something was found that does not agree. A provider without such a list is compared with a file that its portal
exports: esimctl recover --ledger FILE --provider NAME --dry-run";

/// Purchases of this time may not be in the provider's list yet: it shows an eSIM when it is made.
const LATE: Duration = Duration::minutes(15);
/// The clock of the provider may be so much behind ours.
const SKEW: Duration = Duration::minutes(10);
/// What to do about a provider without a list.
const REMEDY: &str = "export the list from its portal as CSV, and run `esimctl recover --ledger FILE --provider NAME --dry-run`";

#[derive(Args, Clone, Debug)]
pub struct Reconcile {
    #[command(flatten)]
    source: ProviderListArgs,
    /// Compare purchases of orders since this time
    ///
    /// It is a time such as `2025-01-29T12:00:00Z`, or an age such as `2h`, of at most 365 days.
    /// Archived orders are not in the database any more, so take a time after which no order was
    /// archived.
    #[arg(long, value_name = "TIME", value_parser = past)]
    since: OffsetDateTime,
}

pub async fn run(asked: &Reconcile, console: &Console) -> anyhow::Result<()> {
    let source = &asked.source;
    let reader = source.connect(|can| can.purchases, "our purchases", REMEDY)?;
    let mut connection = console.connect().await?;
    let now = runtime::clock::now();
    let span = PurchasePeriod {
        since: asked.since - SKEW,
        until: now + SKEW,
    };
    let mut purchases = Purchases::default();
    reader
        .read(
            &mut connection,
            "entries",
            async |provider, page| provider.purchases(span, page).await,
            |sold| purchases.add(sold),
        )
        .await?;
    let mut loader = Loader::begin(&mut connection).await?;
    for purchase in purchases.list {
        loader.add(&purchase).await?;
    }
    loader.finish().await?;
    let complete = CompletePeriod {
        since: asked.since,
        until: now - LATE,
    };
    let found = findings::of_loaded(&mut connection, &source.name, Some(complete)).await?;
    console.print(&json!({ "ledger": findings::shown(&found) }), || {
        findings::described(&found)
    })?;
    Ok(findings::check(&found)?)
}

/// Puts the entries of a list together to purchases.
#[derive(Default)]
struct Purchases {
    list: Vec<ListedPurchase>,
    /// The place of each purchase in the list, by the provider's own id.
    places: HashMap<String, usize>,
    units: HashSet<String>,
}

impl Purchases {
    fn add(&mut self, sold: SoldPurchase) {
        // A list may move while its pages are read, and then an entry comes twice.
        let unit = sold.unit.map(String::from);
        if unit.is_some_and(|unit| !self.units.insert(unit)) {
            return;
        }
        let reference = String::from(sold.reference);
        let units = i32::try_from(sold.units).unwrap_or(i32::MAX);
        let place = self.places.get(&reference).copied();
        if let Some(known) = place.and_then(|place| self.list.get_mut(place)) {
            // A whole purchase that comes twice adds nothing.
            if self.units.is_empty() {
                return;
            }
            known.units = known.units.map(|sum| sum.saturating_add(units));
            return;
        }
        self.places.insert(reference.clone(), self.list.len());
        let line = i64::try_from(self.list.len() + 1).unwrap_or(i64::MAX);
        self.list.push(ListedPurchase {
            line,
            order_id: sold.order_id,
            provider_order_id: Some(reference),
            at: sold.at,
            units: Some(units),
            option: sold.option.map(String::from),
            iccids: None,
            partner: None,
            paid: sold.price,
        });
    }
}

#[cfg(test)]
mod tests {
    use provisioner::providers::ProviderId;

    use super::*;

    fn sold(reference: &str, unit: Option<&str>, units: u32) -> SoldPurchase {
        let id = |text: &str| ProviderId::parse(text.to_owned()).unwrap();
        SoldPurchase {
            order_id: format!("ours-{reference}"),
            reference: id(reference),
            unit: unit.map(id),
            at: None,
            units,
            option: None,
            price: None,
        }
    }

    fn put_together(entries: &[(&str, Option<&str>, u32)]) -> Vec<(String, i32)> {
        let mut purchases = Purchases::default();
        for (reference, unit, units) in entries {
            purchases.add(sold(reference, *unit, *units));
        }
        let list = purchases.list.into_iter();
        list.map(|one| (one.order_id, one.units.unwrap())).collect()
    }

    #[test]
    fn entries_are_put_together_and_repeated_ones_count_once() {
        let units = [
            ("1", Some("a"), 1),
            ("2", Some("b"), 1),
            ("1", Some("c"), 1),
            ("1", Some("a"), 1),
        ];
        let expected = [("ours-1".to_owned(), 2), ("ours-2".to_owned(), 1)];
        assert_eq!(put_together(&units), expected);
        let whole = [("1", None, 5), ("2", None, 1), ("1", None, 5)];
        let expected = [("ours-1".to_owned(), 5), ("ours-2".to_owned(), 1)];
        assert_eq!(put_together(&whole), expected);
    }
}
