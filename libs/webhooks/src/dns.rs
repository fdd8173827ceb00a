//! Names of endpoints. Partners choose their name servers: a lookup takes no thread and ends with its caller.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hickory_resolver::{
    Hosts, Resolver, TokioResolver,
    config::{ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    net::runtime::TokioRuntimeProvider,
    proto::{
        op::Query,
        rr::{Name as DnsName, RecordType},
    },
    system_conf,
};

use crate::guard::{Forbidden, Guard};

/// The longest wait for one response of a name server. A lost packet is sent again within the deadline of a connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest time for which an address is cached, whatever its TTL.
const CACHED: Duration = Duration::from_mins(5);
/// The longest time for which "no such name" is cached: a new name is found soon.
const ABSENT: Duration = Duration::from_secs(5);
/// The most cached names.
const CACHE: u64 = 4_096;
/// Lookups in flight over one TCP connection to a name server.
const IN_FLIGHT: usize = 1_024;
/// The most addresses of one name that are judged and used.
const ADDRESSES: usize = 32;

/// Why a name cannot be used. Keeps no text of the resolver, which may hold the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name has no address, or no name server responds.
    #[error("name not resolved")]
    Unresolved,
    /// The guard refuses one of its addresses.
    #[error("{0}")]
    Forbidden(Forbidden),
}

/// The name servers of a setting, or else the system's.
#[derive(Clone, Debug, Default)]
pub struct NameServers(Vec<SocketAddr>);

impl NameServers {
    /// Parses addresses such as `10.0.0.53` or `[fd00::53]:5353`, separated by commas.
    pub fn parse(text: &str) -> Result<Self, String> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let servers = entries.map(|entry| {
            let address = entry.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53));
            address
                .or_else(|_| entry.parse())
                .map_err(|_| format!("{entry:?} is not an address such as 10.0.0.53 or 10.0.0.53:5353"))
        });
        Ok(Self(servers.collect::<Result<_, _>>()?))
    }

    /// The configuration: `/etc/resolv.conf`, with these servers instead of its own if there are any.
    fn config(&self) -> io::Result<(ResolverConfig, ResolverOpts)> {
        let system = system_conf::read_system_conf();
        if self.0.is_empty() {
            return system.map_err(|error| {
                io::Error::other(format!("cannot use /etc/resolv.conf: {error}; WEBHOOK_RESOLVERS names other servers"))
            });
        }
        let servers = self.0.iter().map(|server| {
            let at_port = |mut connection: ConnectionConfig| {
                connection.port = server.port();
                connection
            };
            let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
            NameServerConfig::new(server.ip(), true, connections.map(at_port).into())
        });
        let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
        Ok((config, system.map(|(_, options)| options).unwrap_or_default()))
    }
}

/// Resolves names as the system does (`/etc/hosts`, then name servers), and lets the guard judge their
/// addresses. Cheap to clone.
#[derive(Clone)]
pub struct Dns {
    guard: Guard,
    hosts: Arc<Hosts>,
    resolver: TokioResolver,
}

impl Dns {
    /// Reads `/etc/hosts` and `/etc/resolv.conf`. Needs a runtime.
    pub fn new(guard: Guard, servers: &NameServers) -> io::Result<Self> {
        let (config, mut options) = servers.config()?;
        options.timeout = options.timeout.min(ANSWER_TIMEOUT);
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        options.use_hosts_file = ResolveHosts::Never;
        options.cache_size = CACHE;
        options.positive_max_ttl = Some(CACHED);
        options.negative_max_ttl = Some(ABSENT);
        options.max_active_requests = IN_FLIGHT;
        let mut builder = Resolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        Ok(Self {
            guard,
            // A missing file holds no names.
            hosts: Arc::new(Hosts::from_system().unwrap_or_default()),
            resolver: builder.build().map_err(io::Error::other)?,
        })
    }

    /// The addresses that `/etc/hosts` gives to a name. If there are any, no name server is asked.
    fn in_hosts(&self, name: &str) -> Vec<IpAddr> {
        let Ok(name) = DnsName::from_utf8(name) else {
            return Vec::new();
        };
        [RecordType::A, RecordType::AAAA]
            .into_iter()
            .filter_map(|kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind)))
            .flat_map(|lookup| lookup.answers().iter().filter_map(|record| record.data.ip_addr()).collect::<Vec<_>>())
            .collect()
    }

    /// The addresses of a name, all of which the guard allows. Dropping the future ends the lookup.
    pub async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, NameError> {
        let mut addresses = self.in_hosts(name);
        if addresses.is_empty() {
            let found = self.resolver.lookup_ip(name).await.map_err(|_| NameError::Unresolved)?;
            addresses = found.iter().take(ADDRESSES).collect();
        }
        if addresses.is_empty() {
            return Err(NameError::Unresolved);
        }
        let judged = self.guard.check(addresses.iter().copied());
        judged.map_err(NameError::Forbidden)?;
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Networks, Ports};

    async fn resolve(name: &str, allowed: &str) -> Result<usize, NameError> {
        let guard = Guard::new(Networks::parse(allowed).unwrap(), Networks::default(), Ports::default());
        let dns = Dns::new(guard, &NameServers::parse("127.0.0.1:9").unwrap()).unwrap();
        Ok(dns.resolve(name).await?.len())
    }

    #[tokio::test]
    async fn a_name_of_our_own_network_is_not_resolved() {
        assert_eq!(resolve("localhost", "").await, Err(NameError::Forbidden(Forbidden::Address)));
        assert!(resolve("localhost", "127.0.0.0/8,::1").await.unwrap() > 0);
    }

    #[tokio::test]
    async fn a_name_without_address_is_not_resolved() {
        assert_eq!(resolve("name.invalid", "127.0.0.0/8").await, Err(NameError::Unresolved));
    }

    #[test]
    fn name_servers_have_a_port_or_53() {
        let parse = |text| NameServers::parse(text).map(|servers| servers.0);
        assert_eq!(
            parse("10.0.0.53, [fd00::53]:5353,fd00::1").unwrap(),
            ["10.0.0.53:53", "[fd00::53]:5353", "[fd00::1]:53"].map(|text| text.parse().unwrap())
        );
        assert_eq!(parse(""), Ok(Vec::new()));
        assert!(parse("ns.example.com").unwrap_err().contains("ns.example.com"));
    }
}
