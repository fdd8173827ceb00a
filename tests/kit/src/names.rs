//! A name server of a test's own, for tests of what the guard and the resolver do with names.

use anyhow::Result;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::UdpSocket;

/// Names and their IPv4 addresses. Queries for names that end with `silent.test` get no response.
/// Any other name does not exist.
pub type Zone = &'static [(&'static str, &'static [[u8; 4]])];

/// How a server fails all queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Failing {
    /// It responds that it has failed (SERVFAIL).
    Openly,
    Silently,
}

/// A server that serves a zone until the test ends.
pub struct NameServer {
    pub address: SocketAddr,
    zone: Arc<Mutex<Zone>>,
    failing: Arc<Mutex<Option<Failing>>>,
    unanswered: Arc<AtomicUsize>,
}

impl NameServer {
    /// Starts on a free port of loopback. It has to be called within a Tokio runtime.
    pub async fn start(zone: Zone) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let server = Self {
            address: socket.local_addr()?,
            zone: Arc::new(Mutex::new(zone)),
            failing: Arc::default(),
            unanswered: Arc::default(),
        };
        let failing = Arc::clone(&server.failing);
        let unanswered = Arc::clone(&server.unanswered);
        let zone = Arc::clone(&server.zone);
        tokio::spawn(async move {
            let mut query = [0; 1024];
            while let Ok((read, from)) = socket.recv_from(&mut query).await {
                let zone = *zone.lock().unwrap_or_else(PoisonError::into_inner);
                let failing = *failing.lock().unwrap_or_else(PoisonError::into_inner);
                let mut answer = answer(zone, &query[..read]);
                match (failing, &mut answer) {
                    (Some(Failing::Openly), Some(answer)) => answer[3] = SERVFAIL,
                    (Some(Failing::Silently), answer) => *answer = None,
                    _ => {}
                }
                if failing.is_some() || answer.is_none() {
                    unanswered.fetch_add(1, Ordering::Relaxed);
                }
                if let Some(answer) = answer {
                    let _ = socket.send_to(&answer, from).await;
                }
            }
        });
        Ok(server)
    }

    /// Serves another zone from now on.
    pub fn serve(&self, zone: Zone) {
        *self.zone.lock().unwrap_or_else(PoisonError::into_inner) = zone;
    }

    /// Fails all queries from now on, or with `None` answers them again.
    pub fn fail(&self, how: Option<Failing>) {
        *self.failing.lock().unwrap_or_else(PoisonError::into_inner) = how;
    }

    /// How many queries got no response, or one that says that it has failed.
    pub fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::Relaxed)
    }
}

/// The fourth byte of a response by a server that has failed.
const SERVFAIL: u8 = 0x82;

/// The response to a query, in the format of RFC 1035. `None` means that there is none.
fn answer(zone: Zone, query: &[u8]) -> Option<Vec<u8>> {
    let mut labels = Vec::new();
    let mut at = 12;
    while query[at] > 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..end]).to_ascii_lowercase());
        at = end;
    }
    let name = labels.join(".");
    let question = &query[12..at + 5];
    if name.ends_with("silent.test") {
        return None;
    }
    let known = zone.iter().find(|(known, _)| *known == name);
    let is_a = query[at + 1..at + 3] == [0, 1];
    let addresses = known
        .filter(|_| is_a)
        .map_or(&[][..], |(_, addresses)| addresses);
    let code = if known.is_some() { 0x80 } else { 0x83 };
    let count = u8::try_from(addresses.len()).ok()?;
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, code, 0, 1, 0, count, 0, 0, 0, 0]);
    answer.extend(question);
    for address in addresses {
        // A pointer to the name in the question, the type A, the class IN, a TTL of one second, and
        // the length of the address.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        answer.extend(address);
    }
    Some(answer)
}
