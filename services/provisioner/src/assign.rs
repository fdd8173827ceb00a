//! Decides which of the provider's units belongs to which topup. A provider lists units only by
//! product, while the partner already knows the id of each topup. The assignment is final once it
//! is stored, in whatever order the provider lists the units later, because otherwise a topup could
//! get another eSIM than the one that was delivered. The functions are pure, without I/O.

use std::collections::{HashMap, HashSet};

use domain::TopupId;
use store::placements::ClaimedTopup;

use crate::providers::{ProviderId, ProviderUnit};

/// Each unit once, because a list may move while its pages are read, and a unit that was taken
/// twice would be given to two topups. Of one that is listed twice the first entry counts.
pub fn each_once(mut units: Vec<ProviderUnit>) -> Vec<ProviderUnit> {
    units.sort_by(|left, right| left.unit_id.as_str().cmp(right.unit_id.as_str()));
    units.dedup_by(|other, first| other.unit_id == first.unit_id);
    units
}

/// Assigns the provider's units, [each once](each_once), to pending topups. `product_of` is the
/// product that a provider's option stands for, as the units name it. A unit that is already
/// assigned stays with its topup; any other one goes to the next free topup of its product, and in
/// a purchase of one product every unit is of it. Units for which there is no topup are left over
/// and logged.
pub fn assign_units<'a>(
    topups: &'a [ClaimedTopup],
    units: Vec<ProviderUnit>,
    product_of: impl Fn(&'a str) -> &'a str,
) -> Vec<(TopupId, ProviderUnit)> {
    let topup_of: HashMap<&str, &ClaimedTopup> = topups
        .iter()
        .filter_map(|topup| Some((topup.provider_unit_id.as_deref()?, topup)))
        .collect();
    let mut free: HashMap<&str, Vec<&ClaimedTopup>> = HashMap::new();
    // The topups are pushed in reverse, so that `pop` takes them in their order.
    for topup in topups
        .iter()
        .rev()
        .filter(|topup| topup.pending && topup.provider_unit_id.is_none())
    {
        free.entry(product_of(&topup.provider_option_id))
            .or_default()
            .push(topup);
    }
    let products: HashSet<&str> = topups
        .iter()
        .map(|topup| product_of(&topup.provider_option_id))
        .collect();
    let only_product = products.iter().next().filter(|_| products.len() == 1);
    let mut assigned_units = Vec::with_capacity(units.len());
    let mut left_over = 0;
    let mut unnamed = 0;
    for unit in units {
        let topup = if let Some(topup) = topup_of.get(unit.unit_id.as_str()) {
            topup.pending.then_some(*topup)
        } else {
            let named = named(&unit, &products);
            // The whole purchase is of one product, so the unit is of it, whatever it is called.
            unnamed += usize::from(named.is_none() && only_product.is_some());
            let named = named.or(only_product.copied());
            let next = named.and_then(|id| free.get_mut(id)).and_then(Vec::pop);
            left_over += usize::from(next.is_none());
            next
        };
        if let Some(topup) = topup {
            assigned_units.push((topup.topup_id.clone(), unit));
        }
    }
    if unnamed > 0 {
        tracing::warn!(
            units = unnamed,
            "the provider does not name the option of units as it was ordered; it is the only one \
             of the purchase, so they are taken for it"
        );
    }
    if left_over > 0 {
        tracing::error!(
            units = left_over,
            "the provider lists more units than were ordered; the surplus is ignored, so ask the \
             provider whether it was billed"
        );
    }
    assigned_units
}

/// The product that a unit is of, as we have ordered it. Some providers change upper and lower
/// case, or answer with the code of a product that was ordered by another name.
fn named<'a>(unit: &ProviderUnit, products: &HashSet<&'a str>) -> Option<&'a str> {
    let names = [&unit.product_id, &unit.product_alias];
    let names = names.into_iter().flatten().map(ProviderId::as_str);
    let exactly = names.clone().find_map(|name| products.get(name).copied());
    exactly.or_else(|| {
        let is_alike = |product: &&&str| {
            let mut names = names.clone();
            names.any(|name| name.eq_ignore_ascii_case(product))
        };
        let mut alike = products.iter().filter(is_alike);
        // Two products that differ only by their case cannot be told apart by another one.
        alike.next().filter(|_| alike.next().is_none()).copied()
    })
}

/// The items of a purchase: each option once, with its number of units, in the order of the topups.
pub fn items(topups: &[ClaimedTopup]) -> Vec<(String, usize)> {
    let mut items: Vec<(String, usize)> = Vec::new();
    for topup in topups {
        match items
            .iter_mut()
            .find(|(option, _)| *option == topup.provider_option_id)
        {
            Some((_, count)) => *count += 1,
            None => items.push((topup.provider_option_id.clone(), 1)),
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use domain::{Agreed, OptionId, TopupIds};
    use proptest::prelude::*;

    use super::*;
    use crate::providers::ProviderUnitState;

    fn topups(options: &[&str]) -> Vec<ClaimedTopup> {
        let ids = TopupIds::new([1; 32]);
        options
            .iter()
            .map(|option| {
                let id = ids.next(runtime::clock::now());
                let agreed = Agreed::new(OptionId::new()).stored();
                ClaimedTopup::new(id, agreed, (*option).to_owned())
            })
            .collect()
    }

    fn unit(id: &str, option: &str) -> ProviderUnit {
        ProviderUnit {
            unit_id: ProviderId::parse(id.into()).unwrap(),
            product_id: ProviderId::parse(option.into()).ok(),
            product_alias: None,
            state: ProviderUnitState::Pending,
        }
    }

    fn pairs(topups: &[ClaimedTopup], units: Vec<ProviderUnit>) -> Vec<(usize, String)> {
        let place = |id: &TopupId| {
            topups
                .iter()
                .position(|topup| topup.topup_id == *id)
                .unwrap()
        };
        assign_units(topups, each_once(units), |option| option)
            .into_iter()
            .map(|(topup, unit)| (place(&topup), unit.unit_id.into()))
            .collect()
    }

    #[test]
    fn units_go_to_topups_of_their_option_in_order() {
        let topups = topups(&["a", "b", "a"]);
        let units = vec![
            unit("3", "a"),
            unit("2", "b"),
            unit("1", "a"),
            unit("4", "c"),
        ];
        assert_eq!(
            pairs(&topups, units),
            [(0, "1".into()), (1, "2".into()), (2, "3".into())]
        );
    }

    #[test]
    fn a_unit_that_is_listed_twice_goes_to_one_topup() {
        let topups = topups(&["a", "a"]);
        let units = vec![unit("1", "a"), unit("2", "b"), unit("1", "a")];
        assert_eq!(each_once(units.clone()).len(), 2);
        assert_eq!(pairs(&topups, units), [(0, "1".into()), (1, "2".into())]);
    }

    #[test]
    fn a_unit_is_found_by_another_spelling_and_by_another_name() {
        let topups = topups(&["JP-1", "kr-1"]);
        let mut by_slug = unit("1", "C7");
        by_slug.product_alias = ProviderId::parse("kr-1".into()).ok();
        let units = vec![unit("2", "jp-1"), by_slug, unit("3", "C8")];
        assert_eq!(pairs(&topups, units), [(1, "1".into()), (0, "2".into())]);
        // What differs only by its case cannot be told apart by another case.
        let topups = self::topups(&["aa", "AA"]);
        assert!(pairs(&topups, vec![unit("1", "Aa")]).is_empty());
        let exact = vec![unit("1", "AA"), unit("2", "aa")];
        assert_eq!(pairs(&topups, exact), [(1, "1".into()), (0, "2".into())]);
    }

    #[test]
    fn all_units_of_a_purchase_of_one_option_are_of_it() {
        let topups = topups(&["JP-1", "JP-1"]);
        let mut nameless = unit("2", "x");
        nameless.product_id = None;
        let units = vec![unit("1", "C7"), nameless, unit("3", "JP-1")];
        // No more than were ordered.
        assert_eq!(pairs(&topups, units), [(0, "1".into()), (1, "2".into())]);
    }

    #[test]
    fn an_assigned_unit_stays_and_a_finished_topup_is_left_alone() {
        let mut topups = topups(&["a", "a", "a"]);
        topups[2].provider_unit_id = Some("1".into());
        topups[0].provider_unit_id = Some("2".into());
        topups[0].pending = false;
        let units = vec![unit("1", "a"), unit("2", "a"), unit("3", "a")];
        assert_eq!(pairs(&topups, units), [(2, "1".into()), (1, "3".into())]);
    }

    #[test]
    fn what_is_bought_is_counted_by_option() {
        assert_eq!(
            items(&topups(&["a", "b", "a"])),
            [("a".into(), 2), ("b".into(), 1)]
        );
    }

    proptest! {
        #[test]
        fn no_topup_and_no_unit_is_paired_twice(options in proptest::collection::vec(0..3_u8, 0..20), seed: Vec<u8>) {
            let names: Vec<String> = options.iter().map(u8::to_string).collect();
            let topups = topups(&names.iter().map(String::as_str).collect::<Vec<_>>());
            let units = seed.iter().enumerate().map(|(at, option)| unit(&at.to_string(), &(option % 3).to_string())).collect();
            let pairs = pairs(&topups, units);
            let mut topups_seen: Vec<_> = pairs.iter().map(|(topup, _)| *topup).collect();
            topups_seen.sort_unstable();
            topups_seen.dedup();
            prop_assert_eq!(topups_seen.len(), pairs.len());
        }
    }
}
