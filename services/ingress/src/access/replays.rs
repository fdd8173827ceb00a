//! Refuses an exact replay of a request that signs its body. Signatures are remembered while their timestamp is valid,
//! by this process only. Another replica accepts the replay; it refuses a repeated order only while the order stands.
//!
//! A request that does not sign its body is not covered: two orders of one second have the same signature.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::http::{HeaderValue, Method};
use domain::PartnerId;
use opentelemetry::global;
use runtime::lock;

use crate::access::{authentication::WINDOW, limits::size};

/// The use of a signature: the timestamp and the 64 digits of a valid one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Use {
    at: i64,
    signature: [u8; 64],
}

impl Use {
    /// The use of a valid signature, if the request changes something.
    pub(crate) fn of(method: &Method, at: i64, signature: &HeaderValue) -> Option<Self> {
        let signature = signature.as_bytes().try_into().ok()?;
        (!method.is_safe()).then_some(Self { at, signature })
    }
}

/// The remembered signatures of one process.
pub(crate) struct Replays {
    capacity: usize,
    /// How long a signature is remembered after its timestamp, in seconds: while the timestamp is valid, and while the
    /// body may still arrive.
    lasts: i64,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    all: usize,
    by_partner: HashMap<PartnerId, BTreeSet<Use>>,
}

impl Replays {
    /// Remembers at most `capacity` signatures; `None` if that is 0. A body arrives within `body_timeout`.
    pub(crate) fn new(capacity: u32, body_timeout: Duration) -> Option<Self> {
        let seen = Arc::<Mutex<Seen>>::default();
        let observed = Arc::clone(&seen);
        global::meter("ingress")
            .u64_observable_gauge("esim.signatures.remembered")
            .with_description("Signatures that are remembered to refuse replays")
            .with_callback(move |gauge| gauge.observe(lock(&observed).all as u64, &[]))
            .build();
        let capacity = size(capacity);
        let lasts = i64::try_from(WINDOW + body_timeout.as_secs() + 1).unwrap_or(i64::MAX);
        (capacity > 0).then_some(Self { capacity, lasts, seen })
    }

    /// Whether a signature of this partner is used for the first time. It is remembered.
    pub(crate) fn is_first(&self, partner: PartnerId, used: &Use) -> bool {
        self.is_first_at(partner, used, runtime::clock::unix_seconds() - self.lasts)
    }

    /// Like [`Self::is_first`]; forgets uses before `oldest`.
    fn is_first_at(&self, partner: PartnerId, used: &Use, oldest: i64) -> bool {
        let seen = &mut *lock(&self.seen);
        let mine = seen.by_partner.entry(partner).or_default();
        seen.all -= drop_ended(mine, oldest);
        if !mine.insert(used.clone()) {
            return false;
        }
        seen.all += 1;
        if seen.all > self.capacity {
            seen.forget(oldest);
        }
        true
    }
}

impl Seen {
    /// Forgets all uses before `oldest`. If there are none, forgets the oldest use of the partner with the most, so a
    /// flood evicts only its own signatures.
    fn forget(&mut self, oldest: i64) {
        let before = self.all;
        self.by_partner.retain(|_, seen| {
            self.all -= drop_ended(seen, oldest);
            !seen.is_empty()
        });
        if self.all < before {
            return;
        }
        let most = self.by_partner.iter_mut().max_by_key(|(_, seen)| seen.len());
        let Some((&partner, seen)) = most else { return };
        if seen.pop_first().is_some() {
            self.all -= 1;
        }
        if seen.is_empty() {
            self.by_partner.remove(&partner);
        }
    }
}

/// Forgets the uses before `oldest`; returns their number.
fn drop_ended(uses: &mut BTreeSet<Use>, oldest: i64) -> usize {
    let before = uses.len();
    while uses.first().is_some_and(|first| first.at < oldest) {
        uses.pop_first();
    }
    before - uses.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(at: i64, signature: u32) -> Use {
        Use::of(&Method::POST, at, &HeaderValue::try_from(format!("{signature:064x}")).unwrap()).unwrap()
    }

    #[test]
    fn a_signature_is_used_once_by_each_partner() {
        let replays = Replays::new(10, Duration::from_secs(15)).unwrap();
        let [one, other] = [PartnerId::new(), PartnerId::new()];
        assert!(replays.is_first_at(one, &used(100, 1), 0));
        assert!(!replays.is_first_at(one, &used(100, 1), 100));
        assert!(replays.is_first_at(one, &used(100, 2), 0));
        assert!(replays.is_first_at(other, &used(100, 1), 0));
        assert!(Replays::new(0, Duration::from_secs(15)).is_none());
        let text = HeaderValue::from_static("short");
        assert_eq!(Use::of(&Method::POST, 1, &text), None);
        let text = HeaderValue::try_from("0".repeat(64)).unwrap();
        assert_eq!(Use::of(&Method::GET, 1, &text), None);
    }

    #[test]
    fn a_signature_is_forgotten_when_its_timestamp_ends() {
        let replays = Replays::new(10, Duration::from_secs(15)).unwrap();
        let partner = PartnerId::new();
        for at in 100..105 {
            assert!(replays.is_first_at(partner, &used(at, 1), 0));
        }
        // The body arrives late, just before the timestamp expires.
        assert!(!replays.is_first_at(partner, &used(104, 1), 103));
        assert_eq!(lock(&replays.seen).all, 2);
    }

    #[test]
    fn a_flood_forgets_its_own_signatures_only() {
        let replays = Replays::new(100, Duration::from_secs(15)).unwrap();
        let [flooding, quiet] = [PartnerId::new(), PartnerId::new()];
        for number in 0..10 {
            assert!(replays.is_first_at(quiet, &used(100, number), 0));
        }
        for number in 0..1000 {
            assert!(replays.is_first_at(flooding, &used(200, number), 0));
        }
        assert_eq!(lock(&replays.seen).all, 100);
        for number in 0..10 {
            assert!(!replays.is_first_at(quiet, &used(100, number), 0), "{number}");
        }
        assert!(!replays.is_first_at(flooding, &used(200, 999), 0));
        assert!(replays.is_first_at(flooding, &used(200, 0), 0));
    }
}
