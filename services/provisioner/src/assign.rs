//! Decides which of the provider's units belongs to which topup. A provider lists units only by
//! product, while the partner already knows the id of each topup. The assignment is final once it
//! is stored, in whatever order the provider lists the units later, because otherwise a topup could
//! get another eSIM than the one that was delivered. The functions are pure, without I/O.

use std::collections::HashMap;

use domain::TopupId;
use store::placements::ClaimedTopup;

use crate::providers::{ProviderId, ProviderUnit};

/// Assigns the provider's units to pending topups. `product_of` is the product that a provider's
/// option stands for, as the units name it. A unit that is already assigned stays with its topup;
/// any other one goes to the next free topup of its product. Units for which there is no topup are
/// left over and logged.
pub fn assign_units<'a>(
    topups: &'a [ClaimedTopup],
    mut units: Vec<ProviderUnit>,
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
    units.sort_unstable_by(|left, right| left.unit_id.as_str().cmp(right.unit_id.as_str()));
    let mut assigned_units = Vec::with_capacity(units.len());
    let mut left_over = 0;
    for unit in units {
        let topup = if let Some(topup) = topup_of.get(unit.unit_id.as_str()) {
            topup.pending.then_some(*topup)
        } else {
            let product_id = unit.product_id.as_ref().map(ProviderId::as_str);
            let next = product_id
                .and_then(|id| free.get_mut(id))
                .and_then(Vec::pop);
            left_over += usize::from(next.is_none());
            next
        };
        if let Some(topup) = topup {
            assigned_units.push((topup.topup_id.clone(), unit));
        }
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
    use domain::{OptionId, TopupIds};
    use proptest::prelude::*;

    use super::*;
    use crate::providers::ProviderUnitState;

    fn topups(options: &[&str]) -> Vec<ClaimedTopup> {
        let ids = TopupIds::new([1; 32]);
        options
            .iter()
            .map(|option| ClaimedTopup {
                topup_id: ids.next(runtime::clock::now()),
                option_id: OptionId::new(),
                provider_option_id: (*option).to_owned(),
                provider_unit_id: None,
                pending: true,
            })
            .collect()
    }

    fn unit(id: &str, option: &str) -> ProviderUnit {
        ProviderUnit {
            unit_id: ProviderId::parse(id.into()).unwrap(),
            product_id: ProviderId::parse(option.into()).ok(),
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
        assign_units(topups, units, |option| option)
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
