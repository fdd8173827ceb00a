//! Chooses free ports on loopback for the services of a test, so that tests that run at the same
//! time never get the same port.

use anyhow::{Context, Result};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// The first port. The range is above the services' default ports, and below the range of ephemeral
/// ports, so that the kernel does not give a chosen port to an outgoing connection.
const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;

/// A lock for each claimed port: a UDP socket with the same number. The kernel gives it to one
/// process only, and takes it back when the process ends, even if it is killed.
static CLAIMS: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());

/// Chooses a TCP port without a listener, and claims it until this process ends. No other test gets
/// it, not even while the test's own service restarts and nobody listens. Test processes begin
/// their search at different offsets, so that they seldom try the same ports.
pub fn free() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(131);
    (0..COUNT)
        .map(|_| FIRST + start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| claim(*port))
        .context("no free port on 127.0.0.1 between 20000 and 31999")
}

fn claim(port: u16) -> bool {
    let Ok(socket) = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)) else {
        return false;
    };
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    if free {
        CLAIMS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(socket);
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claimed_port_is_not_chosen_again() {
        let port = free().unwrap();
        assert!(
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok(),
            "a service can listen on it"
        );
        assert!(!claim(port));
    }

    #[test]
    fn a_port_with_a_listener_is_not_chosen() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(!claim(listener.local_addr().unwrap().port()));
    }
}
