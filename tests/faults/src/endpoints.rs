//! The partners' webhook endpoints. Each misbehaves in a way of its own until it is healed at the
//! end of the run.

use crate::orders::{Behaviour, PARTNERS};
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use testkit::names::Zone;
use testkit::receiver::{Answer, Receiver};
use url::Url;

const SLOW: Duration = Duration::from_secs(2);
/// How long a hanging endpoint does not respond. It is longer than `WEBHOOK_TIMEOUT`.
const HANGING: Duration = Duration::from_mins(1);

pub fn path(partner: usize) -> String {
    format!("/{partner}")
}

/// The name of the endpoints, which the name server of the run knows.
pub const HOST: &str = "endpoints.test";
pub const ZONE: Zone = &[(HOST, &[[127, 0, 0, 1]])];

/// The partner whose endpoint takes webhooks over TLS only.
const SECURE: Behaviour = Behaviour::Slow;

/// The webhook URL of a partner. `port` is that of TLS.
pub fn url(receiver: &Receiver, partner: usize, port: u16) -> Result<String> {
    if PARTNERS[partner].0 == SECURE {
        return Ok(format!("https://{HOST}:{port}{}", path(partner)));
    }
    let mut url: Url = receiver.url(&path(partner)).parse()?;
    url.set_host(Some(HOST))?;
    Ok(url.into())
}

/// Where the receiver listens.
pub fn address(receiver: &Receiver) -> Result<SocketAddr> {
    let url: Url = receiver.url("/").parse()?;
    let addresses = url.socket_addrs(|| None)?;
    addresses.first().copied().context("no address")
}

pub fn misbehave(receiver: &Receiver) {
    for (partner, (behaviour, _)) in PARTNERS.into_iter().enumerate() {
        let requests = AtomicU64::new(0);
        receiver.answer(&path(partner), move |_| {
            answer(behaviour, requests.fetch_add(1, Ordering::Relaxed))
        });
    }
}

/// Lets every endpoint respond 200 at once from now on.
pub fn heal(receiver: &Receiver) {
    for partner in 0..PARTNERS.len() {
        receiver.answer(&path(partner), |_| Answer::status(200));
    }
}

/// The response to the request with this number, counted from 0.
fn answer(behaviour: Behaviour, number: u64) -> Answer {
    let (status, delay) = match behaviour {
        Behaviour::Slow => (200, SLOW),
        Behaviour::Failing if number % 5 < 2 => (500, Duration::ZERO),
        Behaviour::Hanging => (503, HANGING),
        Behaviour::Closing if number % 3 < 2 => (0, Duration::ZERO),
        Behaviour::Fast | Behaviour::Failing | Behaviour::Closing | Behaviour::Absent => {
            (200, Duration::ZERO)
        }
    };
    Answer { status, delay }
}
