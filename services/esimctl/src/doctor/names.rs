//! The name servers for webhooks: whether they know the hosts of the partners' endpoints.

use std::{collections::BTreeSet, time::Duration};

use desk::operator::words::counted;
use pg::PgConnection;
use store::deliveries::endpoints;
use tokio::time::timeout;
use url::{Host, Url};
use webhooks::{
    dns::{Dns, NameError, NameServers},
    guard::{Guard, Networks, Ports},
};

use crate::doctor::line::Lines;

const SEE: &str = "docs/operations.md#webhooksfail";
const PATIENCE: Duration = Duration::from_secs(5);
/// How many hosts are looked up, so that the doctor ends soon.
const ASKED: usize = 10;
/// The maximum number of hosts that a line names.
const NAMED: usize = 3;

pub async fn check(servers: &NameServers, connection: &mut PgConnection, lines: &mut Lines<'_>) {
    let hosts: BTreeSet<String> = match endpoints::list(connection, None).await {
        Ok(endpoints) => endpoints
            .iter()
            .filter_map(|one| Url::parse(one.webhook_url.as_ref()?).ok())
            .filter_map(|url| match url.host() {
                Some(Host::Domain(name)) => Some(name.to_owned()),
                _ => None,
            })
            .take(ASKED)
            .collect(),
        Err(_) => BTreeSet::new(),
    };
    let guard = Guard::new(Networks::default(), Networks::default(), Ports::default());
    let dns = match Dns::new(guard, servers) {
        Ok(dns) => dns,
        Err(error) => {
            lines.fault(
                "names",
                error.to_string(),
                "set WEBHOOK_RESOLVERS, or correct /etc/resolv.conf",
                SEE,
            );
            return;
        }
    };
    if hosts.is_empty() {
        lines.fine("names", "no endpoint has a host name yet");
        return;
    }
    let mut unknown = Vec::new();
    for host in &hosts {
        match timeout(PATIENCE, dns.resolve(host)).await {
            // Whether the address is allowed is for the notifier to judge, by its own settings.
            Ok(Ok(_) | Err(NameError::Forbidden(_))) => {}
            Ok(Err(NameError::Unresolved)) | Err(_) => unknown.push(host.as_str()),
        }
    }
    if unknown.is_empty() {
        lines.fine(
            "names",
            format!(
                "every host of an endpoint was found: {}",
                counted(hosts.len(), "host", "hosts")
            ),
        );
    } else {
        lines.bad(
            unknown.len() == hosts.len(),
            "names",
            format!(
                "{} of {} endpoints' hosts were not found: {}",
                unknown.len(),
                hosts.len(),
                unknown[..unknown.len().min(NAMED)].join(", ")
            ),
            "see whether the name servers answer; if only one host is unknown, tell its partner",
            SEE,
        );
    }
}
