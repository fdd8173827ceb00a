//! The partners' webhook endpoints. Each misbehaves in a way of its own until it is healed at the
//! end of the run.

use crate::orders::{Behaviour, PARTNERS};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use testkit::receiver::{Answer, Receiver};

const SLOW: Duration = Duration::from_secs(2);
/// How long a hanging endpoint does not respond. It is longer than `WEBHOOK_TIMEOUT`.
const HANGING: Duration = Duration::from_mins(1);

pub fn path(partner: usize) -> String {
    format!("/{partner}")
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
