//! HTTP clients. All programs make theirs here, so that none follows a redirect to a host that
//! nobody has chosen, and none asks a proxy where that must not be.
//!
//! The services use no proxy at all ([`direct`]), because it could carry a purchase or its
//! signature to a place that the operator did not choose. `esim-partner` runs on the machines of
//! partners, whose way to the Internet may be a proxy. It uses the proxy of the environment
//! (`HTTPS_PROXY`, `NO_PROXY`) for every host but this machine ([`to`]), because a proxy would look
//! for a server on its own machine.

use std::{
    net::{IpAddr, ToSocketAddrs},
    time::Duration,
};

use reqwest::{ClientBuilder, Url, redirect};

/// A builder of a client that uses no proxy. `timeout` is for a whole exchange, its body included.
pub fn direct(timeout: Duration) -> ClientBuilder {
    base(timeout).no_proxy()
}

/// A builder of a client for requests to the host of `url`. It uses the proxy of the environment
/// unless that host is this machine.
pub fn to(url: &Url, timeout: Duration) -> ClientBuilder {
    if is_this_machine(url) {
        direct(timeout)
    } else {
        base(timeout)
    }
}

fn base(timeout: Duration) -> ClientBuilder {
    // This fails only if a cryptography provider is installed already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .redirect(redirect::Policy::none())
        .timeout(timeout)
}

/// Whether the host of a URL is this machine: `localhost`, an address of it, or a name for such an
/// address, as developers put it into `/etc/hosts`.
pub fn is_this_machine(url: &Url) -> bool {
    let Some(host) = url.host_str() else {
        return false;
    };
    let name = host.trim_end_matches('.');
    if name == "localhost" || name.ends_with(".localhost") {
        return true;
    }
    let of = |address: IpAddr| {
        let address = address.to_canonical();
        address.is_loopback() || address.is_unspecified()
    };
    if let Ok(address) = name.trim_matches(['[', ']']).parse() {
        return of(address);
    }
    let Ok(found) = (name, 0).to_socket_addrs() else {
        return false;
    };
    let mut found = found.peekable();
    found.peek().is_some() && found.all(|one| of(one.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_this_machine_is_known() {
        for (url, here) in [
            ("http://localhost:3000/hook", true),
            ("http://LOCALHOST./", true),
            ("http://shop.localhost/", true),
            ("http://127.0.0.1/", true),
            ("http://127.8.9.10:1/", true),
            ("http://0.0.0.0/", true),
            ("http://[::1]:8080/", true),
            ("http://[::ffff:127.0.0.1]/", true),
            ("http://10.1.2.3/", false),
            ("http://localhost.invalid/", false),
            ("http://[fd00::1]/", false),
        ] {
            assert_eq!(is_this_machine(&url.parse().unwrap()), here, "{url}");
        }
    }
}
