//! Decides where webhooks may go. Partners choose their URLs, and the notifier runs inside the
//! operator's network, so without this guard a partner could make it send requests to internal
//! services and read the beginning of their responses.
//!
//! A port, and a host that is an address, are judged before every request. A host name is judged by
//! all addresses that it resolves to, both when a partner sets the URL and again at each
//! connection, because a name can get another address at any time.
//!
//! What is not known to be public is forbidden. If you extend the lists below, add the new network
//! to the tests, too.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
    sync::Arc,
};

use domain::Environment;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use url::{Host, Url};

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits)
}

const fn v6(a: u16, b: u16, bits: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), bits)
}

/// The IPv4 networks that webhooks must not reach.
const FORBIDDEN_V4: [Ipv4Net; 20] = [
    v4(0, 0, 0, 0, 8),       // this network
    v4(10, 0, 0, 0, 8),      // private
    v4(100, 64, 0, 0, 10),   // carrier-grade NAT
    v4(127, 0, 0, 0, 8),     // loopback
    v4(169, 254, 0, 0, 16),  // link-local, with the metadata services of most clouds
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
    // Public addresses that lead to a cloud's own services, but only from inside that cloud.
    v4(168, 63, 129, 16, 32), // Azure: metadata, DNS, health
    v4(199, 36, 153, 4, 30),  // Google: restricted APIs
    v4(199, 36, 153, 8, 30),  // Google: private APIs
    v4(161, 26, 0, 0, 16),    // IBM: infrastructure services
    v4(166, 8, 0, 0, 14),     // IBM: service endpoints
];

/// The part of IPv6 that is routed as global unicast. All other addresses are forbidden: `::/8`
/// (loopback, unspecified, IPv4 inside IPv6), NAT64, unique local, link-local, site-local and
/// multicast addresses.
const GLOBAL_V6: Ipv6Net = v6(0x2000, 0, 3);
/// The networks inside [`GLOBAL_V6`] that no public host has. Those that contain IPv4 addresses are
/// among them, because they could lead to a forbidden IPv4 address.
const FORBIDDEN_V6: [Ipv6Net; 4] = [
    v6(0x2001, 0, 23),     // protocol assignments: Teredo, ORCHID, benchmarks
    v6(0x2001, 0xdb8, 32), // documentation
    v6(0x2002, 0, 16),     // 6to4: IPv4 inside IPv6
    v6(0x3fff, 0, 20),     // documentation
];

/// The networks of a setting. Clones are cheap.
#[derive(Clone, Debug, Default)]
pub struct Networks(Arc<[IpNet]>);

impl Networks {
    /// Parses networks such as `10.1.0.0/16` or single addresses, separated by commas.
    pub fn parse(text: &str) -> Result<Self, String> {
        let entries = text
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty());
        let networks = entries.map(|entry| {
            let network = entry
                .parse::<IpNet>()
                .or_else(|_| entry.parse::<IpAddr>().map(IpNet::from));
            network.map_err(|_| {
                format!("{entry:?} is neither a network such as 10.1.0.0/16 nor an address")
            })
        });
        Ok(Self(networks.collect::<Result<_, _>>()?))
    }

    /// The networks as texts, each once and in order. A single address has no length.
    pub fn texts(&self) -> Vec<String> {
        let networks: BTreeSet<IpNet> = self.0.iter().map(IpNet::trunc).collect();
        let text = |network: IpNet| {
            if network.prefix_len() == network.max_prefix_len() {
                network.addr().to_string()
            } else {
                network.to_string()
            }
        };
        networks.into_iter().map(text).collect()
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// [`Ports::default`] in the form of the setting. A test compares the two.
pub const PORTS: &str = "80,443,1024-65535";

/// The ports of a setting. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Ports(Arc<[RangeInclusive<u16>]>);

impl Default for Ports {
    /// HTTP, HTTPS and the unprivileged ports.
    fn default() -> Self {
        Self([80..=80, 443..=443, 1024..=u16::MAX].into())
    }
}

impl Ports {
    /// Parses ports and ranges of ports such as `443,8000-8999`, separated by commas.
    pub fn parse(text: &str) -> Result<Self, String> {
        let range = |entry: &str| {
            let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
            let first = first.trim().parse().ok()?;
            let last = last.trim().parse().ok()?;
            (0 < first && first <= last).then_some(first..=last)
        };
        let ranges = text.split(',').map(|entry| {
            let entry = entry.trim();
            range(entry)
                .ok_or_else(|| format!("{entry:?} is neither a port nor a range such as 8000-8999"))
        });
        Ok(Self(ranges.collect::<Result<_, _>>()?))
    }
}

/// Why webhooks may not go to an endpoint. The notifier stores the text with the attempt, where
/// operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    #[error("forbidden address")]
    Address,
    #[error("forbidden port")]
    Port,
    /// The partner is live, and its webhooks would not be encrypted.
    #[error("http for a live partner")]
    Plain,
}

/// Decides where webhooks may go. Clones are cheap.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    allowed: Networks,
    denied: Networks,
    ports: Ports,
    http_live: bool,
}

impl Guard {
    /// Makes a guard that refuses the networks in `denied`, all addresses that are not public
    /// unless they are in `allowed`, and all ports that are not in `ports`. If an address is both
    /// denied and allowed, it is refused.
    pub fn new(allowed: Networks, denied: Networks, ports: Ports) -> Self {
        Self {
            allowed,
            denied,
            ports,
            http_live: false,
        }
    }

    /// Sets whether live partners may set `http` URLs. A new guard refuses them.
    #[must_use]
    pub fn http_live(mut self, allowed: bool) -> Self {
        self.http_live = allowed;
        self
    }

    /// Judges a URL that is about to be set for a partner of this environment. In addition to
    /// [`Guard::check_url`] it judges the scheme. URLs that are already stored are not judged by
    /// their scheme, so that a new rule does not stop the webhooks of a partner that has done
    /// nothing.
    pub fn check_new(&self, url: &Url, environment: Environment) -> Result<(), Forbidden> {
        check_scheme(url, environment, self.http_live)?;
        self.check_url(url)
    }

    /// Judges the port of a URL, and its host if that is an address or `localhost`. Any other name
    /// is judged when it is resolved.
    pub fn check_url(&self, url: &Url) -> Result<(), Forbidden> {
        match url.host() {
            Some(Host::Ipv4(address)) => self.check([address.into()])?,
            Some(Host::Ipv6(address)) => self.check([address.into()])?,
            Some(Host::Domain(name)) if is_localhost(name) => {
                self.check([Ipv4Addr::LOCALHOST.into()])?;
            }
            Some(Host::Domain(_)) => {}
            None => return Err(Forbidden::Address),
        }
        let port = url.port_or_known_default().ok_or(Forbidden::Port)?;
        if self.ports.0.iter().any(|range| range.contains(&port)) {
            Ok(())
        } else {
            Err(Forbidden::Port)
        }
    }

    /// Judges the addresses of one name. A single forbidden one is enough to refuse the name,
    /// because a connection may use any of them.
    pub fn check(&self, addresses: impl IntoIterator<Item = IpAddr>) -> Result<(), Forbidden> {
        let is_fine = |address: IpAddr| {
            !self.denied.contains(address) && (is_public(address) || self.allowed.contains(address))
        };
        if addresses.into_iter().all(is_fine) {
            Ok(())
        } else {
            Err(Forbidden::Address)
        }
    }
}

/// Refuses an `http` URL that is about to be set for a live partner, unless the operator allows it.
pub fn check_scheme(url: &Url, environment: Environment, http_live: bool) -> Result<(), Forbidden> {
    if environment == Environment::Live && url.scheme() != "https" && !http_live {
        Err(Forbidden::Plain)
    } else {
        Ok(())
    }
}

/// Whether a name means this machine by definition (RFC 6761), without asking a resolver. The URL
/// parser has already made it lower case.
fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    name == "localhost" || name.ends_with(".localhost")
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !FORBIDDEN_V4
            .iter()
            .any(|network| network.contains(&address)),
        IpAddr::V6(address) => {
            GLOBAL_V6.contains(&address)
                && !FORBIDDEN_V6
                    .iter()
                    .any(|network| network.contains(&address))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_shown_once_in_order_and_as_short_as_possible() {
        let networks =
            Networks::parse("2001:db8::1, 203.0.113.9,198.51.100.7/24,203.0.113.9/32").unwrap();
        assert_eq!(
            networks.texts(),
            ["198.51.100.0/24", "203.0.113.9", "2001:db8::1"]
        );
    }

    fn guard(allowed: &str, denied: &str) -> Guard {
        let networks = |text| Networks::parse(text).unwrap();
        Guard::new(
            networks(allowed),
            networks(denied),
            Ports::parse(PORTS).unwrap(),
        )
    }

    fn check(url: &str, allowed: &str) -> Result<(), Forbidden> {
        guard(allowed, "").check_url(&url.parse().unwrap())
    }

    /// Forbidden addresses in all the forms in which a URL can contain them.
    const FORBIDDEN: [&str; 4] = [
        // Addresses in every network that is not public, among them the first and last ones.
        "0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254 \
         169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255 192.0.0.8 192.0.0.192 192.0.2.1 \
         192.88.99.1 192.168.1.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 \
         239.255.255.255 240.0.0.1 255.255.255.255",
        // Public addresses of a cloud's own services.
        "168.63.129.16 199.36.153.4 199.36.153.11 161.26.0.10 166.8.0.1 166.11.255.255 100.100.100.200",
        // IPv6, also with an IPv4 address inside.
        "[::] [::1] [0:0:0:0:0:0:0:1] [0000:0000:0000:0000:0000:0000:0000:0001] [::ffff:8.8.8.8] \
         [::ffff:127.0.0.1] [::ffff:7f00:1] [::FFFF:0a00:0001] [::ffff:a83f:8110] [::ffff:0:127.0.0.1] \
         [::8.8.8.8] [::127.0.0.1] [64:ff9b::8.8.8.8] [64:ff9b::a9fe:a9fe] [64:ff9b:1::1] [100::1] \
         [2001::1] [2001:0:4136:e378:8000:63bf:3fff:fdd2] [2001:20::1] [2001:db8::1] [2002:808:808::1] \
         [2002:7f00:1::] [3fff::1] [5f00::1] [fc00::1] [fd00:ec2::254] [fd12:3456::1] [fe80::1] \
         [fe80::a9fe:a9fe] [fec0::1] [ff02::1]",
        // Other ways of writing an IPv4 address that the URL standard accepts.
        "2130706433 0x7f000001 0X7F000001 017700000001 0177.0.0.1 127.1 127.0.1 0x7f.1 0x7f.0x0.0x0.0x1 \
         2852039166 0xa9fea9fe 0xA83F8110 127.0.0.1. １２７.0.0.1 127。0。0。1 %31%32%37.0.0.1 ①②⑦.0.0.1",
    ];

    #[test]
    fn no_form_of_an_address_of_our_own_network_passes() {
        for host in FORBIDDEN.iter().flat_map(|hosts| hosts.split_whitespace()) {
            for url in [
                format!("https://{host}/hook"),
                format!("http://8.8.8.8@{host}:8080/hook"),
                format!("https:\\\\{host}\\@8.8.8.8/"),
            ] {
                assert_eq!(check(&url, ""), Err(Forbidden::Address), "{url}");
            }
        }
    }

    #[test]
    fn addresses_of_others_are_not() {
        let hosts = "1.1.1.1 8.8.8.8 134744072 9.255.255.255 11.0.0.1 100.63.255.255 100.128.0.1 \
             126.255.255.255 128.0.0.1 161.25.255.255 161.27.0.0 166.7.255.255 166.12.0.0 168.63.129.15 \
             168.63.129.17 172.15.255.255 172.32.0.1 192.167.255.255 198.17.255.255 198.20.0.1 199.36.153.3 \
             199.36.153.12 223.255.255.255 [2001:200::1] [2001:4860:4860::8888] [2606:4700:4700::1111] \
             [2a00:1450:4001::1]";
        for host in hosts.split_whitespace() {
            assert_eq!(
                check(&format!("http://{host}:8080/hook"), ""),
                Ok(()),
                "{host}"
            );
        }
    }

    #[test]
    fn localhost_is_this_machine_without_a_look_up() {
        for name in ["localhost", "LOCALHOST", "localhost.", "shop.localhost"] {
            let url = format!("http://{name}/hook");
            assert_eq!(check(&url, ""), Err(Forbidden::Address), "{name}");
            assert_eq!(check(&url, "127.0.0.0/8"), Ok(()), "{name}");
        }
        assert_eq!(check("https://localhost.example.com/", ""), Ok(()));
    }

    #[test]
    fn the_operator_may_allow_networks_and_addresses() {
        let allowed = "10.1.0.0/16, 127.0.0.1,fd00::/8,168.63.129.16,";
        for fine in [
            "10.1.2.3",
            "127.0.0.1",
            "[fd00::1]",
            "8.8.8.8",
            "168.63.129.16",
        ] {
            assert_eq!(
                check(&format!("https://{fine}/"), allowed),
                Ok(()),
                "{fine}"
            );
        }
        for host in ["10.2.0.1", "127.0.0.2", "[::ffff:127.0.0.1]", "[fc00::1]"] {
            assert_eq!(
                check(&format!("https://{host}/"), allowed),
                Err(Forbidden::Address),
                "{host}"
            );
        }
        assert!(
            Networks::parse("10.0.0.0/8,everything")
                .unwrap_err()
                .contains("everything")
        );
        assert!(Networks::parse("10.0.0.0/33").is_err());
    }

    #[test]
    fn the_operators_own_networks_are_refused_also_where_they_are_allowed() {
        let guard = guard("10.0.0.0/8", "10.1.0.0/16,93.184.0.0/16,2606:4700::/32");
        let check = |host: &str| guard.check_url(&format!("https://{host}/").parse().unwrap());
        for fine in ["10.2.0.1", "93.185.0.1", "[2606:4701::1]"] {
            assert_eq!(check(fine), Ok(()), "{fine}");
        }
        for denied in ["10.1.0.1", "93.184.215.14", "[2606:4700::1]"] {
            assert_eq!(check(denied), Err(Forbidden::Address), "{denied}");
        }
    }

    #[test]
    fn privileged_ports_are_refused_but_for_http_and_https() {
        for url in [
            "http://example.com/",
            "https://example.com/",
            "https://example.com:80/",
            "http://8.8.8.8:1024/",
            "http://8.8.8.8:65535/",
        ] {
            assert_eq!(check(url, ""), Ok(()), "{url}");
        }
        for port in [
            0, 1, 21, 22, 23, 25, 53, 79, 81, 110, 143, 442, 444, 465, 587, 1023,
        ] {
            for host in ["example.com", "8.8.8.8", "127.0.0.1"] {
                let url = format!("https://{host}:{port}/");
                assert_eq!(check(&url, "127.0.0.1"), Err(Forbidden::Port), "{url}");
            }
        }
        let ports = Ports::parse("443, 8000-8999").unwrap();
        let guard = Guard::new(Networks::default(), Networks::default(), ports);
        let check =
            |port: u16| guard.check_url(&format!("https://example.com:{port}/").parse().unwrap());
        for (port, expected) in [
            (443, Ok(())),
            (8_000, Ok(())),
            (8_999, Ok(())),
            (80, Err(Forbidden::Port)),
            (9_000, Err(Forbidden::Port)),
        ] {
            assert_eq!(check(port), expected, "{port}");
        }
        for bad in ["", "0", "http", "9-8", "1-", "65536", "1-2-3"] {
            assert!(Ports::parse(bad).is_err(), "{bad}");
        }
        let default = format!("{:?}", Ports::default());
        assert_eq!(format!("{:?}", Ports::parse(PORTS).unwrap()), default);
    }

    #[test]
    fn a_live_partner_sets_an_http_url_only_if_the_operator_allows_it() {
        use Environment::{Live, Sandbox};
        let check = |http_live: bool, url: &str, environment| {
            guard("", "")
                .http_live(http_live)
                .check_new(&url.parse().unwrap(), environment)
        };
        for url in [
            "http://example.com/",
            "HTTP://example.com:8080/",
            "http://8.8.8.8/",
        ] {
            assert_eq!(check(false, url, Live), Err(Forbidden::Plain), "{url}");
            assert_eq!(check(false, url, Sandbox), Ok(()), "{url}");
            assert_eq!(check(true, url, Live), Ok(()), "{url}");
        }
        assert_eq!(check(false, "https://example.com/", Live), Ok(()));
        assert_eq!(
            check(true, "https://10.0.0.1/", Live),
            Err(Forbidden::Address)
        );
        assert_eq!(
            check(true, "http://example.com:25/", Live),
            Err(Forbidden::Port)
        );
    }

    #[test]
    fn one_forbidden_address_forbids_the_name() {
        for (addresses, expected) in [
            (["8.8.8.8", "2606:4700::1"], Ok(())),
            (["8.8.8.8", "10.0.0.1"], Err(Forbidden::Address)),
            (["::1", "8.8.8.8"], Err(Forbidden::Address)),
        ] {
            let parsed = addresses.map(|address| address.parse().unwrap());
            assert_eq!(Guard::default().check(parsed), expected, "{addresses:?}");
        }
    }
}
