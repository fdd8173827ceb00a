//! How an order is cut into placements, which is each provider's say. A placement is bought in one
//! purchase, and some providers sell only one option in a purchase, or only so many units.
//!
//! Ingress reads the rules when it stores an order. The provisioner reads them in its tests, which
//! compare them with what each adapter can buy. The rules are here because both can read them.

use std::{collections::HashMap, num::NonZeroUsize};

/// What a provider takes in one purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// A purchase buys one option only, so each option of an order gets a placement of its own.
    pub one_option: bool,
    /// The most units of a purchase; `None` if the provider sets no limit.
    pub units: Option<NonZeroUsize>,
}

impl Cut {
    /// All units of an order in one purchase, whatever its options.
    const WHOLE: Self = Self {
        one_option: false,
        units: None,
    };
}

/// The providers that do not sell whole orders in one purchase. All others do.
const RULES: &[(&str, Cut)] = &[
    (
        "airalo",
        Cut {
            one_option: true,
            units: NonZeroUsize::new(50),
        },
    ),
    (
        "esim-access",
        Cut {
            one_option: false,
            units: NonZeroUsize::new(50),
        },
    ),
];

/// What this provider takes in one purchase.
pub fn cut(provider: &str) -> Cut {
    RULES
        .iter()
        .find(|(name, _)| *name == provider)
        .map_or(Cut::WHOLE, |(_, cut)| *cut)
}

/// Cuts the units of one order, in their order, into purchases. `units` names the provider and the
/// provider's option of each unit. Returns the number of the purchase of each unit. Purchases are
/// numbered in the order in which they are needed, from 0.
pub fn into_purchases<'a>(units: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<usize> {
    // The number of units of each purchase.
    let mut purchases: Vec<usize> = Vec::new();
    // The last purchase of each provider and, where the provider sells one option at a time, of
    // each option. Earlier ones of the same key are full.
    let mut last: HashMap<(&str, Option<&str>), usize> = HashMap::new();
    let mut numbers = Vec::new();
    for (provider, option) in units {
        let cut = cut(provider);
        let key = (provider, cut.one_option.then_some(option));
        let open = last
            .get(&key)
            .copied()
            .filter(|number| cut.units.is_none_or(|most| purchases[*number] < most.get()));
        let number = open.unwrap_or_else(|| {
            purchases.push(0);
            last.insert(key, purchases.len() - 1);
            purchases.len() - 1
        });
        purchases[number] += 1;
        numbers.push(number);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn purchases(units: &[(&'static str, &'static str)]) -> Vec<usize> {
        into_purchases(units.iter().copied())
    }

    #[test]
    fn an_order_is_cut_by_the_rule_of_each_provider() {
        let whole = [("usimsa", "a"), ("usimsa", "b"), ("usimsa", "a")];
        assert_eq!(purchases(&whole), [0, 0, 0]);
        let one_option = [("airalo", "a"), ("airalo", "b"), ("airalo", "a")];
        assert_eq!(purchases(&one_option), [0, 1, 0]);
        let mixed = [("usimsa", "a"), ("airalo", "a"), ("usimsa", "b")];
        assert_eq!(purchases(&mixed), [0, 1, 0]);
    }

    #[test]
    fn no_purchase_has_more_units_than_the_provider_takes() {
        let many = vec![("airalo", "a"); 120];
        let numbers = purchases(&many);
        let units = |number| numbers.iter().filter(|one| **one == number).count();
        assert_eq!([0, 1, 2, 3].map(units), [50, 50, 20, 0]);
    }
}
