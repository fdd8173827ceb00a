//! Where webhooks may go: partners choose their URLs, and must not reach our own network by them.
//! Names are judged by the addresses they resolve to at connect time, all of them; literal addresses
//! before every send, because no resolver is asked for those.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits)
}

const fn v6(a: u16, b: u16, bits: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), bits)
}

const FORBIDDEN_V4: [Ipv4Net; 15] = [
    v4(0, 0, 0, 0, 8),       // this network
    v4(10, 0, 0, 0, 8),      // private
    v4(100, 64, 0, 0, 10),   // carrier-grade NAT
    v4(127, 0, 0, 0, 8),     // loopback
    v4(169, 254, 0, 0, 16),  // link-local, and the clouds' metadata
    v4(172, 16, 0, 0, 12),   // private
    v4(192, 0, 0, 0, 24),    // protocol assignments
    v4(192, 0, 2, 0, 24),    // documentation
    v4(192, 88, 99, 0, 24),  // 6to4 relays
    v4(192, 168, 0, 0, 16),  // private
    v4(198, 18, 0, 0, 15),   // benchmarks
    v4(198, 51, 100, 0, 24), // documentation
    v4(203, 0, 113, 0, 24),  // documentation
    v4(224, 0, 0, 0, 4),     // multicast
    v4(240, 0, 0, 0, 4),     // reserved, and broadcast
];

/// All of IPv6 that is routed as global unicast. Outside of it are `::/8` (loopback, unspecified,
/// IPv4 inside IPv6), NAT64, unique local, link-local, site-local and multicast addresses.
const GLOBAL_V6: Ipv6Net = v6(0x2000, 0, 3);
/// What is no one's host inside of it.
const FORBIDDEN_V6: [Ipv6Net; 4] = [
    v6(0x2001, 0, 23),     // protocol assignments: Teredo, ORCHID, benchmarks
    v6(0x2001, 0xdb8, 32), // documentation
    v6(0x2002, 0, 16),     // 6to4: IPv4 inside IPv6
    v6(0x3fff, 0, 20),     // documentation
];

/// Networks that webhooks may go to although nobody outside can: the operator's allow-list.
#[derive(Clone, Debug, Default)]
pub struct Allowed(Arc<[IpNet]>);

impl Allowed {
    /// Parses networks such as `10.1.0.0/16` or single addresses, separated by commas.
    pub fn parse(text: &str) -> Result<Self, String> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let networks = entries.map(|entry| {
            let network = entry
                .parse::<IpNet>()
                .or_else(|_| entry.parse::<IpAddr>().map(IpNet::from));
            network.map_err(|_| format!("{entry:?} is not a network such as 10.1.0.0/16"))
        });
        Ok(Self(networks.collect::<Result<_, _>>()?))
    }
}

/// The address is not one that partners' endpoints may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("forbidden address")]
pub struct Forbidden;

/// The name has no address. Doesn't keep the resolver's words: they may name the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("name not resolved")]
pub struct Unresolved;

/// Decides where webhooks may go, and resolves names for the client. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    allowed: Allowed,
}

impl Guard {
    /// Refuses everything inside of our own network but `allowed`.
    pub fn new(allowed: Allowed) -> Self {
        Self { allowed }
    }

    /// Judges a URL whose host is an address; a name is judged when it is resolved.
    pub fn check_url(&self, url: &Url) -> Result<(), Forbidden> {
        match url.host() {
            Some(Host::Ipv4(address)) => self.check([address.into()]),
            Some(Host::Ipv6(address)) => self.check([address.into()]),
            Some(Host::Domain(_)) => Ok(()),
            None => Err(Forbidden),
        }
    }

    /// Refuses if any of the addresses is forbidden: which of them a connection takes is chance.
    fn check(&self, addresses: impl IntoIterator<Item = IpAddr>) -> Result<(), Forbidden> {
        let fine = |address: IpAddr| {
            is_public(address) || self.allowed.0.iter().any(|network| network.contains(&address))
        };
        if addresses.into_iter().all(fine) {
            Ok(())
        } else {
            Err(Forbidden)
        }
    }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !FORBIDDEN_V4.iter().any(|network| network.contains(&address)),
        IpAddr::V6(address) => {
            GLOBAL_V6.contains(&address) && !FORBIDDEN_V6.iter().any(|network| network.contains(&address))
        }
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let guard = self.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0))
                .await
                .map_err(|_| Unresolved)?;
            let addresses: Vec<SocketAddr> = found.collect();
            guard.check(addresses.iter().map(SocketAddr::ip))?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, allowed: &str) -> Result<(), Forbidden> {
        Guard::new(Allowed::parse(allowed).unwrap()).check_url(&url.parse().unwrap())
    }

    #[test]
    fn addresses_of_our_own_network_are_forbidden() {
        for host in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "[::]",
            "[::1]",
            "[::ffff:8.8.8.8]",
            "[::ffff:127.0.0.1]",
            "[::8.8.8.8]",
            "[64:ff9b::8.8.8.8]",
            "[64:ff9b:1::1]",
            "[100::1]",
            "[2001::1]",
            "[2001:20::1]",
            "[2001:db8::1]",
            "[2002:808:808::1]",
            "[3fff::1]",
            "[5f00::1]",
            "[fc00::1]",
            "[fd12:3456::1]",
            "[fe80::1]",
            "[fec0::1]",
            "[ff02::1]",
        ] {
            assert_eq!(
                check(&format!("https://{host}/hook"), ""),
                Err(Forbidden),
                "{host}"
            );
        }
    }

    #[test]
    fn addresses_of_others_are_not() {
        for host in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "126.255.255.255",
            "128.0.0.1",
            "172.15.255.255",
            "172.32.0.1",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.1",
            "223.255.255.255",
            "[2001:200::1]",
            "[2001:4860:4860::8888]",
            "[2606:4700:4700::1111]",
            "[2a00:1450:4001::1]",
        ] {
            assert_eq!(check(&format!("http://{host}:8080/hook"), ""), Ok(()), "{host}");
        }
    }

    #[test]
    fn an_address_is_seen_through_its_odd_forms() {
        for host in [
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.1",
            "0x7f.1",
            "１２７.0.0.1",
            "127.0.0.1.",
        ] {
            assert_eq!(check(&format!("https://{host}/"), ""), Err(Forbidden), "{host}");
        }
        assert_eq!(check("https://134744072/", ""), Ok(()));
    }

    #[test]
    fn the_operator_may_allow_networks_and_addresses() {
        let allowed = "10.1.0.0/16, 127.0.0.1,fd00::/8,";
        for fine in ["10.1.2.3", "127.0.0.1", "[fd00::1]", "8.8.8.8"] {
            assert_eq!(check(&format!("https://{fine}/"), allowed), Ok(()), "{fine}");
        }
        for forbidden in ["10.2.0.1", "127.0.0.2", "[::ffff:127.0.0.1]", "[fc00::1]"] {
            assert_eq!(
                check(&format!("https://{forbidden}/"), allowed),
                Err(Forbidden),
                "{forbidden}"
            );
        }
        assert!(
            Allowed::parse("10.0.0.0/8,everything")
                .unwrap_err()
                .contains("everything")
        );
        assert!(Allowed::parse("10.0.0.0/33").is_err());
    }

    #[test]
    fn one_forbidden_address_forbids_the_name() {
        let addresses = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| text.parse().unwrap())
                .collect::<Vec<IpAddr>>()
        };
        let guard = Guard::default();
        assert_eq!(guard.check(addresses(&["8.8.8.8", "2606:4700::1"])), Ok(()));
        assert_eq!(guard.check(addresses(&["8.8.8.8", "10.0.0.1"])), Err(Forbidden));
        assert_eq!(guard.check(addresses(&["8.8.8.8", "::1"])), Err(Forbidden));
    }

    #[tokio::test]
    async fn a_name_of_our_own_network_is_not_resolved() {
        let resolve = |allowed: &str| {
            let guard = Guard::new(Allowed::parse(allowed).unwrap());
            async move {
                guard
                    .resolve("localhost".parse().unwrap())
                    .await
                    .map(Iterator::count)
            }
        };
        assert!(resolve("").await.unwrap_err().is::<Forbidden>());
        assert!(resolve("127.0.0.0/8,::1").await.unwrap() > 0);
    }
}
