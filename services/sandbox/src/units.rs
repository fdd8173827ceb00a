//! When the units of a purchase become ready or fail.
//!
//! Nothing about it is stored: the fate of a unit follows from its purchase and from the scripts
//! alone, so `GET`, the callbacks and a restarted sandbox always agree on it.

use std::{mem, time::Duration};

use time::OffsetDateTime;

use crate::{
    profile::UnitNumber,
    protocol::UnitStatus,
    purchase::LedgerPurchase,
    script::{self, AtGet},
    state::Sandbox,
};

/// The interval between two delayed units of one purchase.
const STEP: Duration = Duration::from_millis(200);
/// How long after the first delayed unit the last one is ready at the latest, so that a large order
/// is not delayed for minutes.
const LAST: Duration = Duration::from_secs(3);

/// The final state of a unit, and when it is reached, counted from the purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Ready(Duration),
    Failed(Duration),
    Pending,
}

impl Fate {
    /// The state `age` after the purchase.
    pub fn status(self, age: time::Duration) -> UnitStatus {
        match self {
            Self::Ready(after) if age >= after => UnitStatus::Ready,
            Self::Failed(after) if age >= after => UnitStatus::Failed,
            _ => UnitStatus::Pending,
        }
    }
}

/// Each unit with its option id and its fate, in the order of the purchase.
pub fn fates(purchase: &LedgerPurchase) -> impl Iterator<Item = (UnitNumber, &str, Fate)> {
    let mut waiting = 0;
    let mut one_failed = false;
    let mut one_by_one = move |first: Duration| {
        let later = (STEP * waiting).min(LAST);
        waiting += 1;
        Fate::Ready(first + later)
    };
    // The script of an option is looked for once, and not for each of what may be thousands of
    // units.
    let scripted = purchase.products.iter().flat_map(|product| {
        let at_get = script::of(&product.option_id).at_get;
        (0..product.qty).map(move |_| (product.option_id.as_str(), at_get))
    });
    (purchase.first_unit..)
        .zip(scripted)
        .map(move |(unit, (option_id, at_get))| {
            let fate = match at_get {
                AtGet::Ready => Fate::Ready(Duration::ZERO),
                AtGet::FirstFails(after) if !mem::replace(&mut one_failed, true) => {
                    Fate::Failed(after)
                }
                AtGet::ReadyAfter(after) | AtGet::FirstFails(after) => one_by_one(after),
                AtGet::Never => Fate::Pending,
            };
            (unit, option_id, fate)
        })
}

/// A unit as its provider shows it at a moment.
pub struct UnitView<'a> {
    pub unit: UnitNumber,
    pub option_id: &'a str,
    pub status: UnitStatus,
}

/// The units of a purchase as they are now.
pub fn shown<'a>(
    sandbox: &Sandbox,
    purchase: &'a LedgerPurchase,
    now: OffsetDateTime,
) -> Vec<UnitView<'a>> {
    let canceled = sandbox.ledger.canceled(purchase);
    let status = |unit, fate: Fate| {
        if canceled.contains(&unit) {
            UnitStatus::Canceled
        } else {
            fate.status(now - purchase.at)
        }
    };
    fates(purchase)
        .map(|(unit, option_id, fate)| UnitView {
            unit,
            option_id,
            status: status(unit, fate),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{protocol::Product, script::option_id};
    use time::macros::datetime;

    fn fates_of(products: &[(&str, u32)]) -> Vec<Fate> {
        let products = products
            .iter()
            .map(|(name, qty)| Product {
                option_id: option_id(name).to_string(),
                qty: *qty,
            })
            .collect();
        let purchase = LedgerPurchase {
            at: datetime!(2026-11-20 12:00 UTC),
            order_id: "o".into(),
            first_unit: 1,
            products,
        };
        fates(&purchase).map(|(_, _, fate)| fate).collect()
    }

    fn ready(milliseconds: u64) -> Fate {
        Fate::Ready(Duration::from_millis(milliseconds))
    }

    #[test]
    fn units_that_take_time_come_one_by_one_and_not_for_ever() {
        assert_eq!(
            fates_of(&[("delayed", 2), ("ready", 2), ("delayed", 1)]),
            [ready(2000), ready(2200), ready(0), ready(0), ready(2400)]
        );
        assert_eq!(fates_of(&[("delayed", 10_000)]).last(), Some(&ready(5000)));
    }

    #[test]
    fn of_partly_the_first_unit_fails_and_no_other() {
        let failed = Fate::Failed(Duration::from_secs(1));
        assert_eq!(fates_of(&[("partly", 1)]), [failed]);
        assert_eq!(
            fates_of(&[
                ("ready", 1),
                ("partly", 2),
                ("never-ready", 1),
                ("partly", 1)
            ]),
            [ready(0), failed, ready(1000), Fate::Pending, ready(1200)]
        );
    }
}
