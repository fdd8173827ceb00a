//! How an order is cut into placements, which is each provider's say. A placement is bought in one
//! purchase, and some providers sell only one option in a purchase, or only so many units.
//!
//! Ingress reads the rules when it stores an order. The provisioner reads them in its tests, which
//! compare them with what each adapter can buy. The rules are here because both can read them.

use std::{collections::HashMap, num::NonZeroUsize};

use serde::{Deserialize, Serialize};

/// Where an option can be bought: the provider, and the provider's name of the option.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptionAtProvider {
    pub provider: String,
    pub provider_option_id: String,
}

/// A unit of an order that is to be cut.
#[derive(Clone, Copy, Debug)]
pub struct CutUnit<'a> {
    /// The provider that is asked first, and its name of the option.
    pub provider: &'a str,
    pub provider_option_id: &'a str,
    /// Where else it is bought if that provider refuses the purchase, in order of preference.
    pub alternatives: &'a [OptionAtProvider],
}

/// What a provider takes in one purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// A purchase buys one option only, so each option of an order gets a placement of its own.
    pub one_option: bool,
    /// The maximum number of units of a purchase; `None` if the provider sets no limit.
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
    // "quantity: maximum 50", one package an order (its documents and both of its SDKs, 2025).
    (
        "airalo",
        Cut {
            one_option: true,
            units: NonZeroUsize::new(50),
        },
    ),
    // "Up to 30 eSIMs in a batch" (reference of April 2026). It does not say whether this is per
    // package or per order; read per order, it holds in both cases.
    (
        "esim-access",
        Cut {
            one_option: false,
            units: NonZeroUsize::new(30),
        },
    ),
    // A purchase takes one `offerId` and no number of units (its SDKs, September 2025, March 2026).
    (
        "zendit",
        Cut {
            one_option: true,
            units: NonZeroUsize::new(1),
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

/// What may be bought in one purchase wherever the unit is bought: the strictest rule of all of its
/// providers, because a purchase that one provider has refused goes to the next one as it is.
fn cut_of(unit: CutUnit<'_>) -> Cut {
    let mut strictest = cut(unit.provider);
    for alternative in unit.alternatives {
        let next = cut(&alternative.provider);
        strictest.one_option |= next.one_option;
        strictest.units = match (strictest.units, next.units) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
    }
    strictest
}

/// Units with equal keys may share a purchase.
#[derive(PartialEq, Eq, Hash)]
struct Key<'a> {
    provider: &'a str,
    /// The providers that follow. A purchase is moved as a whole, so all of its options must name
    /// the same providers in the same order.
    following: Vec<&'a str>,
    /// The option, with its names at all providers, where one of them sells one option at a time.
    option: Option<(&'a str, &'a [OptionAtProvider])>,
}

/// Cuts the units of one order, in their order, into purchases. Returns the number of the purchase
/// of each unit. Purchases are numbered in the order in which they are needed, from 0.
pub fn into_purchases<'a>(units: impl IntoIterator<Item = CutUnit<'a>>) -> Vec<usize> {
    // The number of units of each purchase.
    let mut purchases: Vec<usize> = Vec::new();
    // The last purchase of each key. Earlier ones of the same key are full.
    let mut last: HashMap<Key<'_>, usize> = HashMap::new();
    let mut numbers = Vec::new();
    for unit in units {
        let cut = cut_of(unit);
        let key = Key {
            provider: unit.provider,
            following: unit
                .alternatives
                .iter()
                .map(|alternative| &*alternative.provider)
                .collect(),
            option: cut
                .one_option
                .then_some((unit.provider_option_id, unit.alternatives)),
        };
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
        into_purchases(units.iter().map(|(provider, provider_option_id)| CutUnit {
            provider,
            provider_option_id,
            alternatives: &[],
        }))
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<OptionAtProvider> {
        let pair = |(provider, option): &(&str, &str)| OptionAtProvider {
            provider: (*provider).to_owned(),
            provider_option_id: (*option).to_owned(),
        };
        pairs.iter().map(pair).collect()
    }

    /// The purchases of units of `usimsa` with these alternatives.
    fn routed(units: &[(&'static str, Vec<OptionAtProvider>)]) -> Vec<usize> {
        into_purchases(
            units
                .iter()
                .map(|(provider_option_id, alternatives)| CutUnit {
                    provider: "usimsa",
                    provider_option_id,
                    alternatives,
                }),
        )
    }

    #[test]
    fn a_purchase_can_be_moved_to_each_of_its_providers() {
        let access = |option| pairs(&[("esim-access", option)]);
        let airalo = |option| pairs(&[("airalo", option)]);
        assert_eq!(routed(&[("a", access("x")), ("b", access("y"))]), [0, 0]);
        // The options name different providers, or none.
        assert_eq!(routed(&[("a", access("x")), ("b", airalo("y"))]), [0, 1]);
        assert_eq!(routed(&[("a", access("x")), ("b", vec![])]), [0, 1]);
        // One of the providers sells one option at a time.
        assert_eq!(routed(&[("a", airalo("x")), ("b", airalo("y"))]), [0, 1]);
        assert_eq!(routed(&[("a", airalo("x")), ("a", airalo("x"))]), [0, 0]);
        assert_eq!(routed(&[("a", airalo("x")), ("a", airalo("y"))]), [0, 1]);
        // One of them takes fewer units.
        let many = vec![("a", access("x")); 31];
        assert_eq!(routed(&many)[29..], [0, 1]);
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
        // eSIM Access takes "up to 30 eSIMs in a batch".
        assert_eq!(
            purchases(&[("esim-access", "a"); 31])[29..],
            [0, 1],
            "31 units are two purchases"
        );
    }
}
