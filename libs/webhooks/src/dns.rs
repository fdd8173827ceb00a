//! Resolves the host names of endpoints. Ingress does so when a partner sets a URL, and the
//! notifier when it connects.
//!
//! A partner's domain may have name servers that respond slowly or not at all. The resolver of the
//! operating system would occupy a thread for each such name. This one is asynchronous, so a
//! look-up takes no thread, and it ends as soon as its caller gives up.
//!
//! [`Dns::resolve`] returns only addresses that the guard allows. Whoever connects must use these
//! addresses and not resolve the name again, because a partner could change it in between.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hickory_resolver::{
    Hosts, Resolver, TokioResolver,
    config::{
        ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
        ResolverOpts,
    },
    net::runtime::TokioRuntimeProvider,
    proto::{
        op::Query,
        rr::{Name as DnsName, RecordType},
    },
    system_conf,
};

use crate::guard::{Forbidden, Guard};

/// The longest wait for one response of a name server. It is short enough that the query can be
/// sent again within the deadline of a connection if a packet was lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest time for which an address is cached, whatever its TTL. A partner that moves its
/// endpoint does not wait longer than that.
const CACHED: Duration = Duration::from_mins(5);
/// The longest time for which it is cached that a name does not exist. It is short, so that a name
/// that was created a moment ago is soon found.
const ABSENT: Duration = Duration::from_secs(5);
/// The maximum number of names in the cache.
const CACHE: u64 = 4_096;
/// The maximum number of requests in flight over one connection to a name server.
const IN_FLIGHT: usize = 1_024;
/// The maximum number of addresses of one name that are judged and used. Further ones are ignored.
const ADDRESSES: usize = 32;

/// Why a name cannot be used. It does not keep the resolver's message, because that may contain the
/// name, and names of endpoints are not logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name has no address, or no name server responded.
    #[error("name not resolved")]
    Unresolved,
    /// The guard refuses one of the addresses.
    #[error("{0}")]
    Forbidden(Forbidden),
}

/// The name servers of the setting `WEBHOOK_RESOLVERS`. If there are none, those of the system are
/// asked.
#[derive(Clone, Debug, Default)]
pub struct NameServers(Vec<SocketAddr>);

impl NameServers {
    /// Parses addresses such as `10.0.0.53` or `[fd00::53]:5353`, separated by commas.
    pub fn parse(text: &str) -> Result<Self, String> {
        let entries = text
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty());
        let servers = entries.map(|entry| {
            let address = entry
                .parse::<IpAddr>()
                .map(|address| SocketAddr::new(address, 53));
            address.or_else(|_| entry.parse()).map_err(|_| {
                format!(
                    "{entry:?} is not the address of a name server; \
                     write it like 10.0.0.53, 10.0.0.53:5353 or [fd00::53]:5353"
                )
            })
        });
        Ok(Self(servers.collect::<Result<_, _>>()?))
    }

    /// The configuration of the resolver. If there are name servers, they replace those in
    /// `/etc/resolv.conf`, whose options (such as `ndots`) still apply, but not its search domains.
    fn config(&self) -> io::Result<(ResolverConfig, ResolverOpts)> {
        let system = system_conf::read_system_conf();
        if self.0.is_empty() {
            return system.map_err(|error| {
                io::Error::other(format!(
                    "cannot use /etc/resolv.conf: {error}; correct it, or set WEBHOOK_RESOLVERS \
                     to the addresses of name servers"
                ))
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
        Ok((
            config,
            system.map(|(_, options)| options).unwrap_or_default(),
        ))
    }
}

/// Resolves names as the system does, first by `/etc/hosts` and then by name servers, and lets the
/// guard judge their addresses. Clones are cheap and share the cache.
#[derive(Clone)]
pub struct Dns {
    guard: Guard,
    hosts: Arc<Hosts>,
    resolver: TokioResolver,
}

impl Dns {
    /// Reads `/etc/hosts` and `/etc/resolv.conf`; later changes of these files have no effect. It
    /// has to be called within a Tokio runtime.
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
            // If the file is missing, there are no names in it.
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
            .filter_map(|kind| {
                self.hosts
                    .lookup_static_host(&Query::query(name.clone(), kind))
            })
            .flat_map(|lookup| {
                lookup
                    .answers()
                    .iter()
                    .filter_map(|record| record.data.ip_addr())
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    /// Returns the addresses of a name. There is at least one, and the guard allows all of them.
    /// Dropping the future ends the look-up.
    pub async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, NameError> {
        let mut addresses = self.in_hosts(name);
        if addresses.is_empty() {
            let found = self
                .resolver
                .lookup_ip(name)
                .await
                .map_err(|_| NameError::Unresolved)?;
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
        let guard = Guard::new(
            Networks::parse(allowed).unwrap(),
            Networks::default(),
            Ports::default(),
        );
        let dns = Dns::new(guard, &NameServers::parse("127.0.0.1:9").unwrap()).unwrap();
        Ok(dns.resolve(name).await?.len())
    }

    #[tokio::test]
    async fn a_name_of_our_own_network_is_not_resolved() {
        assert_eq!(
            resolve("localhost", "").await,
            Err(NameError::Forbidden(Forbidden::Address))
        );
        assert!(resolve("localhost", "127.0.0.0/8,::1").await.unwrap() > 0);
    }

    #[tokio::test]
    async fn a_name_without_address_is_not_resolved() {
        assert_eq!(
            resolve("name.invalid", "127.0.0.0/8").await,
            Err(NameError::Unresolved)
        );
    }

    #[test]
    fn name_servers_have_a_port_or_53() {
        let parse = |text| NameServers::parse(text).map(|servers| servers.0);
        assert_eq!(
            parse("10.0.0.53, [fd00::53]:5353,fd00::1").unwrap(),
            ["10.0.0.53:53", "[fd00::53]:5353", "[fd00::1]:53"].map(|text| text.parse().unwrap())
        );
        assert_eq!(parse(""), Ok(Vec::new()));
        assert!(
            parse("ns.example.com")
                .unwrap_err()
                .contains("ns.example.com")
        );
    }
}
