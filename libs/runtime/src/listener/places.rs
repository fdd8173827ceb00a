//! The places of a listener's connections, in all and for each source, and who has to give one up.
//!
//! Guarantees: there are never more connections than the bounds allow, besides those that are being
//! closed. A connection on which nobody has authenticated yet (a *stranger*) keeps its place only
//! while there is room or a request of it is being answered. When a bound is reached, the oldest
//! idle stranger gives its place to the new connection: one of the same source if that source has
//! reached its bound, otherwise one of the source with the most strangers. So a client without keys
//! can fill the listener, but it cannot keep anybody out.
//!
//! [`super::accept_bounded`] takes a place for each connection. The service says when a request
//! begins and ends and when somebody has authenticated, and it closes the connection when
//! [`Place::must_leave`] returns.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::lock;

/// The maximum numbers of open connections of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// From all sources.
    pub all: usize,
    /// From one source, which is an IPv4 address or an IPv6 network of 64 bits.
    pub per_source: usize,
}

/// The open connections of a listener.
#[derive(Debug)]
pub(super) struct Places {
    bounds: Bounds,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    next: u64,
    by_source: HashMap<IpAddr, OfSource>,
}

/// The connections of one source.
#[derive(Debug, Default)]
struct OfSource {
    all: usize,
    /// The strangers among them by number, so that the oldest is first.
    strangers: BTreeMap<u64, Arc<Place>>,
}

/// The place of one open connection.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
    source: IpAddr,
    state: Mutex<State>,
    told_to_leave: Notify,
}

#[derive(Debug)]
struct State {
    is_stranger: bool,
    activity: Activity,
}

#[derive(Clone, Copy, Debug)]
enum Activity {
    /// No request is being answered since this moment.
    Idle(Instant),
    /// A request is being handled.
    Handling,
    /// A request was handled at this moment, and its response is not sent yet.
    Sending(Instant),
    /// The connection has lost its place and has to close.
    Leaving,
}

/// Why a connection has to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Its place was given to a new connection.
    Displaced,
    /// It is a stranger and has been silent for too long.
    Silent,
}

/// Frees a place when the connection has ended.
#[derive(Debug)]
pub(super) struct Held(pub(super) Arc<Place>);

/// A place, and whether another connection lost its own for it.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) held: Held,
    pub(super) displaced_another: bool,
}

impl Places {
    pub(super) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            open: Mutex::default(),
        })
    }

    /// The number of open connections.
    pub(super) fn open(&self) -> usize {
        lock(&self.open).all
    }

    /// Takes a place for a connection. The error names the limit that is reached, as in the label
    /// `reason` of the metric.
    pub(super) fn admit(self: &Arc<Self>, peer: IpAddr) -> Result<Admitted, &'static str> {
        let source = source(peer);
        let mut open = lock(&self.open);
        let of_source = open.by_source.get(&source).map_or(0, |one| one.all);
        let mut displaced_another = false;
        if of_source >= self.bounds.per_source {
            if !open.displace(source) {
                return Err("source");
            }
            displaced_another = true;
        } else if open.all >= self.bounds.all {
            let crowd = open
                .by_source
                .iter()
                .max_by_key(|(_, one)| one.strangers.len());
            let crowd = crowd.map(|(source, _)| *source);
            if !crowd.is_some_and(|crowd| open.displace(crowd)) {
                return Err("all");
            }
            displaced_another = true;
        }
        open.all += 1;
        open.next += 1;
        let place = Arc::new(Place {
            places: Arc::clone(self),
            number: open.next,
            source,
            state: Mutex::new(State {
                is_stranger: true,
                activity: Activity::Idle(Instant::now()),
            }),
            told_to_leave: Notify::new(),
        });
        let of_source = open.by_source.entry(source).or_default();
        of_source.all += 1;
        of_source.strangers.insert(place.number, Arc::clone(&place));
        Ok(Admitted {
            held: Held(place),
            displaced_another,
        })
    }
}

impl Open {
    /// Takes the place of the oldest idle stranger of a source. Returns false if it has none.
    fn displace(&mut self, source: IpAddr) -> bool {
        let strangers = self.by_source.get(&source).into_iter();
        let idle = strangers
            .flat_map(|of_source| of_source.strangers.values())
            .find(|place| place.leave_if_idle())
            .cloned();
        let Some(place) = idle else {
            return false;
        };
        self.remove(&place);
        place.told_to_leave.notify_one();
        true
    }

    fn remove(&mut self, place: &Place) {
        self.all -= 1;
        if let Some(of_source) = self.by_source.get_mut(&place.source) {
            of_source.all -= 1;
            of_source.strangers.remove(&place.number);
            if of_source.all == 0 {
                self.by_source.remove(&place.source);
            }
        }
    }
}

impl Place {
    /// Marks the connection as idle no longer. Returns false if it has lost its place, so that the
    /// request must not be handled any more.
    #[must_use]
    pub fn begin_request(&self) -> bool {
        let mut state = lock(&self.state);
        let stays = !matches!(state.activity, Activity::Leaving);
        if stays {
            state.activity = Activity::Handling;
        }
        stays
    }

    /// Notes that the request goes on only when its client has sent more of it. Until the next
    /// [`Place::begin_request`] the connection counts as idle, so that a stranger who sends a body very
    /// slowly, or never, keeps nobody out.
    pub fn wait_for_client(&self) {
        let mut state = lock(&self.state);
        if matches!(state.activity, Activity::Handling) {
            state.activity = Activity::Idle(Instant::now());
        }
    }

    /// Notes that a request was handled. Its response may not be sent yet.
    pub fn end_request(&self) {
        let mut state = lock(&self.state);
        if matches!(state.activity, Activity::Handling) {
            state.activity = Activity::Sending(Instant::now());
        }
    }

    /// Notes that everything was sent. The connection is idle, unless a request is being handled.
    pub fn sent(&self) {
        let mut state = lock(&self.state);
        if matches!(state.activity, Activity::Sending(_)) {
            state.activity = Activity::Idle(Instant::now());
        }
    }

    /// Notes that somebody has authenticated on this connection, so that it is no stranger any more
    /// and keeps its place until it ends.
    pub fn authenticated(&self) {
        let mut state = lock(&self.state);
        if !std::mem::take(&mut state.is_stranger) {
            return;
        }
        // A new connection takes the two locks in the other order.
        drop(state);
        if let Some(of_source) = lock(&self.places.open).by_source.get_mut(&self.source) {
            of_source.strangers.remove(&self.number);
        }
    }

    /// Returns when the connection has to close: its place was given to another one, or it is a
    /// stranger that nothing was handled for since `silence`.
    pub async fn must_leave(&self, silence: Duration) -> Leave {
        let silent = async {
            loop {
                let state = lock(&self.state).silent_since();
                let Some(since) = state else {
                    return std::future::pending().await;
                };
                let until = since + silence;
                if until <= Instant::now() {
                    return Leave::Silent;
                }
                tokio::time::sleep_until(until.into()).await;
            }
        };
        tokio::select! {
            () = self.told_to_leave.notified() => Leave::Displaced,
            leave = silent => leave,
        }
    }

    fn leave_if_idle(&self) -> bool {
        let mut state = lock(&self.state);
        let is_idle = state.is_stranger && matches!(state.activity, Activity::Idle(_));
        if is_idle {
            state.activity = Activity::Leaving;
        }
        is_idle
    }
}

impl State {
    /// Since when a stranger has been silent. A stranger whose request is being handled counts as
    /// silent from now on. `None` if it is no stranger any more.
    fn silent_since(&self) -> Option<Instant> {
        self.is_stranger.then(|| match self.activity {
            Activity::Idle(since) | Activity::Sending(since) => since,
            Activity::Handling | Activity::Leaving => Instant::now(),
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut open = lock(&self.0.places.open);
        // A place that was given to another connection is freed already.
        if !matches!(lock(&self.0.state).activity, Activity::Leaving) {
            open.remove(&self.0);
        }
    }
}

/// The source that a connection is counted for. It is a whole network of 64 bits for IPv6, because
/// a client usually owns at least that many addresses and could use a new one for each connection.
/// An IPv4 address that is mapped into IPv6 counts as the IPv4 address.
#[must_use]
pub fn source(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(all: usize, per_source: usize) -> Arc<Places> {
        Places::new(Bounds { all, per_source })
    }

    fn admit(places: &Arc<Places>, peer: &str) -> Result<Held, &'static str> {
        places
            .admit(peer.parse().unwrap())
            .map(|admitted| admitted.held)
    }

    fn has_left(held: &Held) -> bool {
        !held.0.begin_request()
    }

    #[test]
    fn connections_are_bounded_in_all_and_per_source() {
        let places = places(3, 2);
        let busy = |peer| {
            let held = admit(&places, peer)?;
            assert!(held.0.begin_request());
            Ok::<_, &str>(held)
        };
        let first = busy("192.0.2.1").unwrap();
        let _second = busy("::ffff:192.0.2.1").unwrap();
        assert_eq!(busy("192.0.2.1").unwrap_err(), "source");
        let _third = busy("2001:db8::1").unwrap();
        assert_eq!(busy("192.0.2.2").unwrap_err(), "all");
        drop(first);
        let _fourth = busy("2001:db8::ffff:1").unwrap();
        assert_eq!(
            lock(&places.open).by_source.len(),
            2,
            "one network of 64 bits is one source"
        );
    }

    #[test]
    fn the_oldest_idle_stranger_of_the_source_gives_its_place_up() {
        let places = places(100, 3);
        let partner = admit(&places, "192.0.2.1").unwrap();
        partner.0.authenticated();
        let busy = admit(&places, "192.0.2.1").unwrap();
        assert!(busy.0.begin_request());
        let idle = admit(&places, "192.0.2.1").unwrap();
        let newcomer = admit(&places, "192.0.2.1").unwrap();
        assert!(has_left(&idle) && !has_left(&partner) && !has_left(&busy));
        newcomer.0.authenticated();
        assert_eq!(admit(&places, "192.0.2.1").unwrap_err(), "source");
        // Its request is handled and its response sent, so it is idle again.
        busy.0.end_request();
        assert_eq!(admit(&places, "192.0.2.1").unwrap_err(), "source");
        busy.0.sent();
        let last = admit(&places, "192.0.2.1").unwrap();
        assert!(has_left(&busy));
        drop((partner, busy, idle, newcomer, last));
        assert!(places.open() == 0 && lock(&places.open).by_source.is_empty());
    }

    #[test]
    fn a_stranger_whose_request_waits_for_more_of_it_gives_its_place_up() {
        let places = places(1, 1);
        let slow = admit(&places, "192.0.2.1").unwrap();
        assert!(slow.0.begin_request());
        assert_eq!(admit(&places, "192.0.2.1").unwrap_err(), "source");
        slow.0.wait_for_client();
        let newcomer = admit(&places, "192.0.2.1").unwrap();
        assert!(has_left(&slow) && !has_left(&newcomer));
        assert!(!slow.0.begin_request(), "its request must not go on");
        drop((slow, newcomer));
        assert_eq!(places.open(), 0);
    }

    #[test]
    fn a_full_listener_displaces_a_stranger_of_the_source_with_the_most() {
        let places = places(4, 3);
        let single = admit(&places, "192.0.2.1").unwrap();
        let crowd = [(); 3].map(|()| admit(&places, "192.0.2.2").unwrap());
        let newcomer = admit(&places, "192.0.2.3").unwrap();
        assert!(has_left(&crowd[0]) && !has_left(&single) && !has_left(&newcomer));
        assert_eq!(places.open(), 4);
    }

    #[tokio::test]
    async fn a_silent_stranger_has_to_leave_and_a_partner_does_not() {
        let places = places(4, 4);
        let silence = Duration::from_millis(20);
        let stranger = admit(&places, "192.0.2.1").unwrap();
        let partner = admit(&places, "192.0.2.1").unwrap();
        partner.0.authenticated();
        let left = tokio::select! {
            left = stranger.0.must_leave(silence) => left,
            _ = partner.0.must_leave(silence) => panic!("a partner had to leave"),
        };
        assert_eq!(left, Leave::Silent);
    }
}
