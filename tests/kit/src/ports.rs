//! Free ports on loopback.

use anyhow::{Context, Result};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the range of ephemeral ports, so that a chosen port stays free; above the services' default ports.
const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;

/// Chooses a port without a listener. Each call in a process returns another one; processes start at
/// different offsets.
pub fn free() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(131);
    (0..COUNT)
        .map(|_| FIRST + start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .context("no free port on 127.0.0.1 between 20000 and 31999")
}
