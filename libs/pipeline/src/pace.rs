//! How quick the attempts of each owner are, so that [`crate::permits`] can give a smaller share
//! to owners whose attempts take long.
//!
//! An endpoint that responds after 14 s holds each of its permits for 14 s. A few of those can hold
//! all permits of a host, or of the stage, although none of them holds more than its share. So a
//! owner has its whole share only once its attempts have turned out to be quick. What is
//! remembered is a hint: a process that starts knows nothing, and at worst an owner gets a smaller
//! share for its first attempts.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::{Duration, Instant},
};

use runtime::make_room;

use crate::owner::Owner;

/// After this time without an attempt, the pace of an owner is no longer known.
const REMEMBERED: Duration = Duration::from_mins(10);

/// What the attempts of an owner are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// No attempt has ended yet, and none takes long.
    Unknown,
    /// The last attempt that ended was quick, and it ended a moment ago if others are in flight.
    Quick,
    /// The last attempt that ended was slow, or attempts are in flight and none has ended for long.
    Slow,
}

#[derive(Default)]
pub(crate) struct Paces {
    owners: HashMap<Owner, KnownPace>,
}

struct KnownPace {
    /// Whether the last attempt was slow; `None` if none has ended yet.
    last_was_slow: Option<bool>,
    /// When the last attempt ended, or the first one of several began.
    progress: Instant,
    /// Whether attempts may be in flight.
    in_flight: bool,
}

impl Paces {
    /// Notes that an owner without permits got one.
    pub(crate) fn begin(&mut self, owner: Owner, now: Instant) {
        make_room(&mut self.owners, |_, known| !known.is_old(now));
        let known = self.owners.entry(owner).or_insert(KnownPace {
            last_was_slow: None,
            progress: now,
            in_flight: true,
        });
        if known.is_old(now) {
            known.last_was_slow = None;
        }
        known.progress = now;
        known.in_flight = true;
    }

    /// Notes that an attempt has ended.
    pub(crate) fn attempted(&mut self, owner: Owner, was_slow: bool, now: Instant) {
        if let Some(known) = self.owners.get_mut(&owner) {
            known.last_was_slow = Some(was_slow);
            known.progress = now;
        }
    }

    /// Notes that an owner has no permits left. One without an attempt is forgotten, so that
    /// tickets of rows that do not exist leave nothing behind.
    pub(crate) fn end(&mut self, owner: Owner) {
        if let Entry::Occupied(mut entry) = self.owners.entry(owner) {
            entry.get_mut().in_flight = false;
            if entry.get().last_was_slow.is_none() {
                entry.remove();
            }
        }
    }

    /// The pace of an owner, if attempts are slow that take at least `slow`.
    pub(crate) fn of(&self, owner: Owner, slow: Duration, now: Instant) -> Pace {
        let Some(known) = self.owners.get(&owner) else {
            return Pace::Unknown;
        };
        if known.in_flight && now.saturating_duration_since(known.progress) >= slow {
            return Pace::Slow;
        }
        match known.last_was_slow {
            Some(true) => Pace::Slow,
            Some(false) => Pace::Quick,
            None => Pace::Unknown,
        }
    }
}

impl KnownPace {
    fn is_old(&self, now: Instant) -> bool {
        !self.in_flight && now.saturating_duration_since(self.progress) >= REMEMBERED
    }
}

#[cfg(test)]
mod tests {
    use domain::PartnerId;

    use super::*;

    #[test]
    fn a_partner_is_slow_after_a_slow_attempt_and_while_none_ends() {
        let mut paces = Paces::default();
        let partner = PartnerId::new().into();
        let slow = Duration::from_secs(3);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(paces.of(partner, slow, start), Pace::Unknown);
        paces.begin(partner, start);
        assert_eq!(paces.of(partner, slow, at(2)), Pace::Unknown);
        assert_eq!(paces.of(partner, slow, at(3)), Pace::Slow);
        paces.attempted(partner, true, at(4));
        assert_eq!(paces.of(partner, slow, at(5)), Pace::Slow);
        paces.attempted(partner, false, at(5));
        assert_eq!(paces.of(partner, slow, at(6)), Pace::Quick);
        assert_eq!(paces.of(partner, slow, at(8)), Pace::Slow, "others hang");
        paces.end(partner);
        assert_eq!(paces.of(partner, slow, at(60)), Pace::Quick);
        paces.begin(partner, at(1_000));
        assert_eq!(paces.of(partner, slow, at(1_001)), Pace::Unknown);
    }

    #[test]
    fn a_partner_without_an_attempt_is_forgotten() {
        let mut paces = Paces::default();
        let now = Instant::now();
        for _ in 0..3 {
            let invented = PartnerId::new().into();
            paces.begin(invented, now);
            paces.end(invented);
        }
        assert!(paces.owners.is_empty());
    }
}
