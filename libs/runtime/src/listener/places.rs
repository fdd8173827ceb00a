//! The places of a listener's connections, and who has to give one up.
//!
//! Guarantees: there are never more connections than the listener allows, besides those that are
//! being closed. A connection on which nobody has authenticated yet (a *stranger*) keeps its place
//! only while there is room or a request of it is being answered. When all places are taken, the
//! oldest idle stranger of the source with the most strangers gives its place to the new connection.
//! So a client without keys can fill the listener, but it cannot keep anybody out, and it loses its
//! own connections before those of others.
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

/// How long a stranger may take to read a response before its connection counts as idle. Otherwise a
/// client without keys could hold all places by never reading.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// The open connections of a listener.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    next: u64,
    /// The strangers of each source by number, so that the oldest is first.
    strangers: HashMap<IpAddr, BTreeMap<u64, Arc<Place>>>,
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
    /// No request is being answered.
    Idle,
    /// A request is being handled.
    Handling,
    /// A request was handled at this moment, and its response is not sent yet.
    Sending(Instant),
    /// The connection has lost its place and has to close.
    Leaving(Leave),
}

/// How far a connection was when it lost its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// No response is under way, so it can be told why it is closed.
    Idle,
    /// Its client has not read the last response for [`READ_WITHIN`].
    Stuck,
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
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            open: Mutex::default(),
        })
    }

    /// The number of open connections.
    pub(super) fn open(&self) -> usize {
        lock(&self.open).all
    }

    /// Takes a place for a connection. `None` if all are taken and nobody has to give one up.
    pub(super) fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<Admitted> {
        let source = source(peer);
        let mut open = lock(&self.open);
        let is_full = open.all >= self.most;
        if is_full && !open.displace() {
            return None;
        }
        open.all += 1;
        open.next += 1;
        let place = Arc::new(Place {
            places: Arc::clone(self),
            number: open.next,
            source,
            state: Mutex::new(State {
                is_stranger: true,
                activity: Activity::Idle,
            }),
            told_to_leave: Notify::new(),
        });
        let strangers = open.strangers.entry(source).or_default();
        strangers.insert(place.number, Arc::clone(&place));
        Some(Admitted {
            held: Held(place),
            displaced_another: is_full,
        })
    }
}

impl Open {
    /// Takes the place of the oldest idle stranger of the source with the most strangers, or of any
    /// other stranger if all of these are busy. Returns false if no stranger is idle.
    fn displace(&mut self) -> bool {
        let crowd = self.strangers.values().max_by_key(|crowd| crowd.len());
        let idle = crowd
            .into_iter()
            .chain(self.strangers.values())
            .flat_map(BTreeMap::values)
            .find(|place| place.leave_if_idle())
            .cloned();
        let Some(place) = idle else {
            return false;
        };
        self.all -= 1;
        self.forget(&place);
        place.told_to_leave.notify_one();
        true
    }

    /// Removes a place from the strangers, if it is among them.
    fn forget(&mut self, place: &Place) {
        if let Some(strangers) = self.strangers.get_mut(&place.source) {
            strangers.remove(&place.number);
            if strangers.is_empty() {
                self.strangers.remove(&place.source);
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
        let stays = !matches!(state.activity, Activity::Leaving(_));
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
            state.activity = Activity::Idle;
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
            state.activity = Activity::Idle;
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
        lock(&self.places.open).forget(self);
    }

    /// Returns when the connection has to close, because its place was given to another one.
    pub async fn must_leave(&self) -> Leave {
        self.told_to_leave.notified().await;
        match lock(&self.state).activity {
            Activity::Leaving(leave) => leave,
            // Nobody is told to leave in another state.
            Activity::Idle | Activity::Handling | Activity::Sending(_) => Leave::Stuck,
        }
    }

    fn leave_if_idle(&self) -> bool {
        let mut state = lock(&self.state);
        let leave = match state.activity {
            Activity::Idle => Leave::Idle,
            Activity::Sending(since) if since.elapsed() >= READ_WITHIN => Leave::Stuck,
            Activity::Handling | Activity::Sending(_) | Activity::Leaving(_) => return false,
        };
        if !state.is_stranger {
            return false;
        }
        state.activity = Activity::Leaving(leave);
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut open = lock(&self.0.places.open);
        // A place that was given to another connection is freed already.
        if !matches!(lock(&self.0.state).activity, Activity::Leaving(_)) {
            open.all -= 1;
            open.forget(&self.0);
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

    fn admit(places: &Arc<Places>, peer: &str) -> Option<Held> {
        let admitted = places.admit(peer.parse().unwrap())?;
        Some(admitted.held)
    }

    fn has_left(held: &Held) -> bool {
        !held.0.begin_request()
    }

    #[test]
    fn connections_are_bounded() {
        let places = Places::new(2);
        let busy = |peer| {
            let held = admit(&places, peer)?;
            assert!(held.0.begin_request());
            Some(held)
        };
        let first = busy("192.0.2.1").unwrap();
        let second = busy("2001:db8::1").unwrap();
        assert!(busy("192.0.2.2").is_none());
        drop(first);
        let third = busy("192.0.2.2").unwrap();
        assert_eq!(places.open(), 2);
        drop((second, third));
        assert!(places.open() == 0 && lock(&places.open).strangers.is_empty());
    }

    #[test]
    fn the_oldest_idle_stranger_gives_its_place_up() {
        let places = Places::new(3);
        let partner = admit(&places, "192.0.2.1").unwrap();
        partner.0.authenticated();
        let busy = admit(&places, "192.0.2.1").unwrap();
        assert!(busy.0.begin_request());
        let idle = admit(&places, "192.0.2.1").unwrap();
        let newcomer = admit(&places, "192.0.2.1").unwrap();
        assert!(has_left(&idle) && !has_left(&partner) && !has_left(&busy));
        newcomer.0.authenticated();
        assert!(admit(&places, "192.0.2.1").is_none());
        // Its request is handled and its response sent, so it is idle again.
        busy.0.end_request();
        assert!(admit(&places, "192.0.2.1").is_none());
        busy.0.sent();
        let last = admit(&places, "192.0.2.1").unwrap();
        assert!(has_left(&busy));
        drop((partner, busy, idle, newcomer, last));
        assert!(places.open() == 0 && lock(&places.open).strangers.is_empty());
    }

    #[test]
    fn a_stranger_that_does_not_read_its_response_gives_its_place_up() {
        let places = Places::new(1);
        let stuck = admit(&places, "192.0.2.1").unwrap();
        assert!(stuck.0.begin_request());
        stuck.0.end_request();
        assert!(admit(&places, "192.0.2.2").is_none(), "it may be reading");
        let long_ago = Instant::now().checked_sub(READ_WITHIN).unwrap();
        lock(&stuck.0.state).activity = Activity::Sending(long_ago);
        let newcomer = admit(&places, "192.0.2.2").unwrap();
        assert!(has_left(&stuck) && !has_left(&newcomer));
    }

    #[test]
    fn a_stranger_whose_request_waits_for_more_of_it_gives_its_place_up() {
        let places = Places::new(1);
        let slow = admit(&places, "192.0.2.1").unwrap();
        assert!(slow.0.begin_request());
        assert!(admit(&places, "192.0.2.1").is_none());
        slow.0.wait_for_client();
        let newcomer = admit(&places, "192.0.2.1").unwrap();
        assert!(has_left(&slow) && !has_left(&newcomer));
        assert!(!slow.0.begin_request(), "its request must not go on");
        drop((slow, newcomer));
        assert_eq!(places.open(), 0);
    }

    /// One network of 64 bits is one source, and an IPv4 address is the same in both of its forms.
    #[test]
    fn a_full_listener_displaces_a_stranger_of_the_source_with_the_most() {
        for crowd in [
            ["192.0.2.2", "::ffff:192.0.2.2", "192.0.2.2"],
            ["2001:db8::1", "2001:db8::ffff:1", "2001:db8::2"],
        ] {
            let places = Places::new(4);
            let single = admit(&places, "192.0.2.1").unwrap();
            let crowd = crowd.map(|peer| admit(&places, peer).unwrap());
            let newcomer = admit(&places, "192.0.2.3").unwrap();
            assert!(has_left(&crowd[0]) && !has_left(&single) && !has_left(&newcomer));
            assert_eq!(places.open(), 4);
            // If nobody of the crowd is idle, another stranger has to go.
            assert!(crowd[1..].iter().all(|held| held.0.begin_request()));
            newcomer.0.authenticated();
            single.0.wait_for_client();
            let another = admit(&places, "192.0.2.4").unwrap();
            assert!(has_left(&single) && !has_left(&another));
        }
    }

    #[tokio::test]
    async fn only_who_lost_its_place_has_to_leave() {
        let places = Places::new(2);
        let stranger = admit(&places, "192.0.2.1").unwrap();
        let partner = admit(&places, "192.0.2.1").unwrap();
        partner.0.authenticated();
        let _newcomer = admit(&places, "192.0.2.2").unwrap();
        let leave = tokio::select! {
            leave = stranger.0.must_leave() => leave,
            _ = partner.0.must_leave() => panic!("a partner had to leave"),
        };
        assert_eq!(leave, Leave::Idle);
    }
}
