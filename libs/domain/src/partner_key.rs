//! What a key of a partner may do: its rights, from where it may be used, and how many units it may
//! order in a day.
//!
//! Guarantee: a key never gives another key more than it has itself ([`KeyTerms::may_give`]), so
//! who holds a key with the right `keys` cannot widen it by making another one.

use std::{fmt, net::IpAddr, str::FromStr};

pub use ipnet::IpNet as Network;
use ipnet::IpNet;
use strum::{EnumString, IntoStaticStr, VariantArray};

/// The maximum number of keys of a partner, with the first one. During a rotation of the first one
/// its two pairs count once.
pub const MOST_KEYS: usize = 10;
/// The maximum number of networks of a key.
pub const MOST_NETWORKS: usize = 50;
/// The maximum length of a key's name in characters.
pub const MOST_NAME: usize = 100;

/// A right that each signed request needs one of.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum Right {
    /// To order, and to cancel and give back what was ordered: whatever moves money.
    Order,
    /// To read orders, eSIMs with their activation codes, webhooks and the account.
    Read,
    /// To change where webhooks and notices go, and to have them sent again.
    Webhooks,
    /// To make, change and end keys.
    Keys,
}

impl Right {
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of rights.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Rights(u8);

impl Rights {
    /// All rights, as the first key of a partner has them.
    pub fn all() -> Self {
        Right::VARIANTS.iter().copied().collect()
    }

    pub fn contains(self, right: Right) -> bool {
        self.0 & right.bit() != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Right> {
        let all = Right::VARIANTS.iter().copied();
        all.filter(move |right| self.contains(*right))
    }

    /// Their names, in the order of [`Right`].
    pub fn names(self) -> Vec<&'static str> {
        self.iter().map(Right::as_str).collect()
    }
}

impl FromIterator<Right> for Rights {
    fn from_iter<T: IntoIterator<Item = Right>>(rights: T) -> Self {
        Self(rights.into_iter().fold(0, |bits, right| bits | right.bit()))
    }
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A text is neither a network nor an address.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is neither a network such as 10.1.0.0/16 nor an address")]
pub struct NotANetwork(String);

/// Reads a network such as `10.1.0.0/16`, or a single address. What its length does not cover is
/// cut off, so that a network has one form.
pub fn network(text: &str) -> Result<IpNet, NotANetwork> {
    let parsed = IpNet::from_str(text).or_else(|_| IpAddr::from_str(text).map(IpNet::from));
    let parsed = parsed.map_err(|_| NotANetwork(text.to_owned()))?;
    Ok(parsed.trunc())
}

/// The text of a network; a single address has no length.
pub fn network_text(network: &IpNet) -> String {
    if network.prefix_len() == network.max_prefix_len() {
        network.addr().to_string()
    } else {
        network.to_string()
    }
}

/// What a key may do, and from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTerms {
    pub rights: Rights,
    /// From where it may be used; empty: from everywhere.
    pub networks: Vec<IpNet>,
    /// How many units it may order in a day of UTC.
    pub units_per_day: Option<u32>,
}

/// Why a key may not give another one these terms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotGiven {
    #[error("the right {} is none of this key's own", .0.as_str())]
    Right(Right),
    #[error("this key has a limit of units, so it can give the right order to no other key")]
    Units,
    #[error("this key may be used from some networks only, so another one needs a part of these")]
    Networks,
}

impl KeyTerms {
    /// Those of the first key of a partner.
    pub fn of_first_key() -> Self {
        Self {
            rights: Rights::all(),
            networks: Vec::new(),
            units_per_day: None,
        }
    }

    /// Whether the key may be used from this address.
    pub fn allow_from(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.is_empty() || self.networks.iter().any(|one| one.contains(&address))
    }

    /// Whether a key with these terms may give others to a key. A key with a limit of units gives
    /// the right to order to none, because several keys would order several times the limit.
    pub fn may_give(&self, others: &Self) -> Result<(), NotGiven> {
        if let Some(right) = others
            .rights
            .iter()
            .find(|right| !self.rights.contains(*right))
        {
            return Err(NotGiven::Right(right));
        }
        if self.units_per_day.is_some() && others.rights.contains(Right::Order) {
            return Err(NotGiven::Units);
        }
        let is_part = |network: &IpNet| self.networks.iter().any(|own| own.contains(network));
        let are_parts = !others.networks.is_empty() && others.networks.iter().all(is_part);
        if !self.networks.is_empty() && !are_parts {
            return Err(NotGiven::Networks);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(rights: &[Right], networks: &[&str], units_per_day: Option<u32>) -> KeyTerms {
        KeyTerms {
            rights: rights.iter().copied().collect(),
            networks: networks.iter().map(|text| network(text).unwrap()).collect(),
            units_per_day,
        }
    }

    #[test]
    fn no_key_gives_more_than_it_has() {
        use Right::{Keys, Order, Read};
        let first = KeyTerms::of_first_key();
        let all = terms(Right::VARIANTS, &[], None);
        assert_eq!(first.may_give(&all), Ok(()));
        let reader = terms(&[Read, Keys], &[], None);
        assert_eq!(reader.may_give(&terms(&[Read], &[], Some(1))), Ok(()));
        assert_eq!(reader.may_give(&all), Err(NotGiven::Right(Order)));
        let limited = terms(&[Order, Read, Keys], &[], Some(5));
        let refused = limited.may_give(&terms(&[Order], &[], Some(1)));
        assert_eq!(refused, Err(NotGiven::Units));
        assert_eq!(limited.may_give(&terms(&[Read, Keys], &[], None)), Ok(()));
        let at_home = terms(&[Read, Keys], &["10.1.0.0/16", "2001:db8::/32"], None);
        for (networks, given) in [
            (&["10.1.2.0/24"][..], true),
            (&["10.1.2.3", "2001:db8::1"], true),
            (&["10.1.2.3", "10.2.0.0/16"], false),
            (&["10.0.0.0/8"], false),
            (&[], false),
        ] {
            let refused = at_home.may_give(&terms(&[Read], networks, None));
            assert_eq!(refused.is_ok(), given, "{networks:?}");
        }
    }

    #[test]
    fn an_address_is_allowed_by_its_network() {
        let anywhere = KeyTerms::of_first_key();
        let some = terms(&[], &["10.1.9.9/16", "192.0.2.7", "2001:db8::/32"], None);
        let texts: Vec<String> = some.networks.iter().map(network_text).collect();
        assert_eq!(texts, ["10.1.0.0/16", "192.0.2.7", "2001:db8::/32"]);
        for (address, is_allowed) in [
            ("10.1.255.1", true),
            ("::ffff:10.1.0.1", true),
            ("10.2.0.1", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("2001:db8::5", true),
            ("2001:db9::5", false),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(some.allow_from(address), is_allowed, "{address}");
            assert!(anywhere.allow_from(address));
        }
        assert!(network("10.1.0.0/33").is_err() && network("").is_err());
    }
}
