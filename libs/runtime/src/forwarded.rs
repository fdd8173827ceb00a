//! The address of a client behind a proxy.
//!
//! The console records it with what operators do, and ingress compares it with the networks from
//! which a key may be used. Guarantee: without the setting that a proxy appends the address, and so
//! wherever a client could write the header itself, nothing is read from it.

use std::net::{IpAddr, SocketAddr};

use axum::http::HeaderMap;

/// The address of the client: the last entry of `X-Forwarded-For` if a proxy appends it there, and
/// otherwise that of the connection. An address of IPv4 within IPv6 is the same as the one of IPv4.
pub fn client(peer: IpAddr, headers: &HeaderMap, is_forwarded: bool) -> IpAddr {
    let mut lines = headers.get_all("x-forwarded-for").into_iter();
    lines
        .next_back()
        .filter(|_| is_forwarded)
        .and_then(|line| line.to_str().ok())
        .and_then(|line| line.rsplit(',').next())
        .and_then(address)
        .unwrap_or(peer)
        .to_canonical()
}

/// The address in an entry. Some proxies write the port, too.
fn address(entry: &str) -> Option<IpAddr> {
    let entry = entry.trim();
    let bracketed = entry.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let alone = bracketed.unwrap_or(entry).parse().ok();
    alone.or_else(|| entry.parse().ok().map(|it: SocketAddr| it.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_entry_of_a_proxy_is_believed() {
        let peer = IpAddr::from([192, 0, 2, 1]);
        for (line, is_forwarded, found) in [
            ("198.51.100.7", false, "192.0.2.1"),
            ("198.51.100.7", true, "198.51.100.7"),
            ("10.0.0.1, 198.51.100.7:4711", true, "198.51.100.7"),
            ("10.0.0.1,[2001:db8::1]:4711", true, "2001:db8::1"),
            ("::ffff:198.51.100.7", true, "198.51.100.7"),
            ("10.0.0.1, somebody", true, "192.0.2.1"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("x-forwarded-for", line.parse().unwrap());
            let client = client(peer, &headers, is_forwarded);
            assert_eq!(client.to_string(), found, "{line}");
        }
    }
}
