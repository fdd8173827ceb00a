//! Which URLs may carry secrets.

use url::{Host, Url};

/// Whether nobody on the way can read what is sent to this URL: by TLS, or on this machine only.
pub(crate) fn is_private_transport(url: &Url) -> bool {
    let loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() == "https" || (url.scheme() == "http" && loopback)
}
