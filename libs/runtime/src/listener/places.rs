//! The places of a listener's connections, and who has to give one up.
//!
//! Guarantees: there are never more connections than the listener allows, besides those that are
//! being closed, and whoever holds most of them makes room for the others, with keys or without. A
//! connection is counted for a *holder*: for whoever authenticated on it last, and until then for
//! the source that it comes from (a *stranger*). When all places are taken, an idle connection
//! gives its place to the new one, the oldest of
//!
//! 1. the known holder with the most places, if it has more than an equal share of all of them and
//!    more than any source of strangers. So nobody can keep the others out with one key or one
//!    session;
//! 2. otherwise the source with the most strangers. So a client without keys loses its own
//!    connections before those of others.
//!
//! A connection whose request is being answered keeps its place.
//!
//! [`BoundedServer`](crate::server::BoundedServer) takes a place for each connection, says when a
//! request begins and ends, and closes the connection when [`ConnectionPlace::must_leave`] returns.
//! The service says who has authenticated, and when a request waits for its client.

use std::{
    collections::{BTreeMap, HashMap, hash_map::RandomState},
    future::pending,
    hash::{BuildHasher, Hash},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::lock;

/// How long a client may take to read a response before its connection counts as idle. Otherwise it
/// could hold all places by never reading.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// The open connections of a listener.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    open: Mutex<Open>,
    /// Makes numbers of holders. Its keys are random, so that nobody can choose a number.
    numbers: RandomState,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    next: u64,
    /// The places of each holder by number, so that the oldest is first.
    held: HashMap<Holder, BTreeMap<u64, Arc<ConnectionPlace>>>,
    /// How many of the holders are known.
    known: usize,
}

/// Whom a connection is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Holder {
    /// Nobody has authenticated on it yet, so it is counted for its [`source`].
    Stranger(IpAddr),
    /// Somebody has authenticated on it.
    Known(u64),
}

/// The place of one open connection.
#[derive(Debug)]
pub struct ConnectionPlace {
    places: Arc<Places>,
    number: u64,
    state: Mutex<State>,
    told_to_leave: Notify,
}

#[derive(Debug)]
struct State {
    holder: Holder,
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
    Leaving(DisplacedState),
}

/// How far a connection was when it lost its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisplacedState {
    /// No response is under way, so it can be told why it is closed.
    Idle,
    /// Its client has not read the last response for [`READ_WITHIN`].
    Stuck,
}

/// Frees a place when the connection has ended.
#[derive(Debug)]
pub(super) struct HeldPlace(pub(super) Arc<ConnectionPlace>);

/// A place, and whether another connection lost its own for it.
#[derive(Debug)]
pub(super) struct AdmittedConnection {
    pub(super) held: HeldPlace,
    pub(super) displaced_another: bool,
}

impl Places {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            open: Mutex::default(),
            numbers: RandomState::new(),
        })
    }

    /// The number of open connections.
    pub(super) fn open(&self) -> usize {
        lock(&self.open).all
    }

    /// Takes a place for a connection. `None` if all are taken and nobody has to give one up.
    pub(super) fn admit(self: &Arc<Self>, peer: IpAddr) -> Option<AdmittedConnection> {
        let holder = Holder::Stranger(source(peer));
        let mut open = lock(&self.open);
        let is_full = open.all >= self.most;
        if is_full && !open.displace(self.most) {
            return None;
        }
        open.all += 1;
        open.next += 1;
        let place = Arc::new(ConnectionPlace {
            places: Arc::clone(self),
            number: open.next,
            state: Mutex::new(State {
                holder,
                activity: Activity::Idle,
            }),
            told_to_leave: Notify::new(),
        });
        open.count(holder, &place);
        Some(AdmittedConnection {
            held: HeldPlace(place),
            displaced_another: is_full,
        })
    }
}

impl Open {
    /// Takes the place of the oldest idle connection of whoever has to make room. Returns false if
    /// there is none.
    fn displace(&mut self, most: usize) -> bool {
        let share = (most / (self.known + 1)).max(1);
        let largest = |known: bool| {
            let crowds = self.held.iter();
            let crowds = crowds.filter(move |(holder, _)| holder.is_known() == known);
            crowds.max_by_key(|(_, crowd)| crowd.len())
        };
        let crowd = largest(false);
        let too_many = share.max(crowd.map_or(0, |(_, crowd)| crowd.len()));
        let hoarders = self
            .held
            .iter()
            .filter(|(holder, crowd)| holder.is_known() && crowd.len() > too_many);
        let strangers = self.held.iter().filter(|(holder, _)| !holder.is_known());
        let most_held = largest(true).filter(|(_, crowd)| crowd.len() > too_many);
        let idle = most_held
            .into_iter()
            .chain(hoarders)
            .chain(crowd)
            .chain(strangers)
            .find_map(|(holder, crowd)| {
                let idle = crowd.values().find(|place| place.leave_if_idle())?;
                Some((*holder, Arc::clone(idle)))
            });
        let Some((holder, place)) = idle else {
            return false;
        };
        self.all -= 1;
        self.forget(holder, &place);
        place.told_to_leave.notify_one();
        true
    }

    fn count(&mut self, holder: Holder, place: &Arc<ConnectionPlace>) {
        let crowd = self.held.entry(holder).or_default();
        if crowd.is_empty() && holder.is_known() {
            self.known += 1;
        }
        crowd.insert(place.number, Arc::clone(place));
    }

    fn forget(&mut self, holder: Holder, place: &ConnectionPlace) {
        let Some(crowd) = self.held.get_mut(&holder) else {
            return;
        };
        crowd.remove(&place.number);
        if crowd.is_empty() {
            self.held.remove(&holder);
            self.known -= usize::from(holder.is_known());
        }
    }
}

impl Holder {
    fn is_known(self) -> bool {
        matches!(self, Self::Known(_))
    }
}

impl ConnectionPlace {
    /// Notes that a request begins, or goes on after its client has sent more of it. Returns false
    /// if the connection has lost its place, so that the request must no longer be handled.
    #[must_use]
    pub fn resume(&self) -> bool {
        let mut state = lock(&self.state);
        let stays = !matches!(state.activity, Activity::Leaving(_));
        if stays {
            state.activity = Activity::Handling;
        }
        stays
    }

    /// Begins to handle a request, or goes on with it. If the connection has lost its place, it is
    /// about to be closed, so this never returns.
    pub async fn go_on(&self) {
        if !self.resume() {
            pending::<()>().await;
        }
    }

    /// Notes that the request goes on only when its client has sent more of it. Until the next
    /// [`ConnectionPlace::go_on`] the connection counts as idle, so that who sends a body
    /// very slowly, or never, keeps nobody out.
    pub fn wait_for_client(&self) {
        let mut state = lock(&self.state);
        if matches!(state.activity, Activity::Handling) {
            state.activity = Activity::Idle;
        }
    }

    /// Notes that a request was handled. Its response may not be sent yet.
    pub(crate) fn end_request(&self) {
        let mut state = lock(&self.state);
        // It is idle if the rest of the request did not come in time, and now gets its answer.
        if matches!(state.activity, Activity::Handling | Activity::Idle) {
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

    /// Notes who has authenticated on this connection, which is counted for `holder` from now on.
    /// One connection can carry requests of several, for example behind a proxy: the last one
    /// counts.
    pub fn authenticated(self: &Arc<Self>, holder: &(impl Hash + ?Sized)) {
        let holder = Holder::Known(self.places.numbers.hash_one(holder));
        if lock(&self.state).holder == holder {
            return;
        }
        let mut open = lock(&self.places.open);
        let mut state = lock(&self.state);
        let before = std::mem::replace(&mut state.holder, holder);
        // A place that was given to another connection is counted for nobody.
        if !matches!(state.activity, Activity::Leaving(_)) {
            open.forget(before, self);
            open.count(holder, self);
        }
    }

    /// Returns when the connection has to close, because its place was given to another one.
    pub(crate) async fn must_leave(&self) -> DisplacedState {
        self.told_to_leave.notified().await;
        match lock(&self.state).activity {
            Activity::Leaving(leave) => leave,
            // Nobody is told to leave in another state.
            Activity::Idle | Activity::Handling | Activity::Sending(_) => DisplacedState::Stuck,
        }
    }

    fn leave_if_idle(&self) -> bool {
        let mut state = lock(&self.state);
        let leave = match state.activity {
            Activity::Idle => DisplacedState::Idle,
            Activity::Sending(since) if since.elapsed() >= READ_WITHIN => DisplacedState::Stuck,
            Activity::Handling | Activity::Sending(_) | Activity::Leaving(_) => return false,
        };
        state.activity = Activity::Leaving(leave);
        true
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        let mut open = lock(&self.0.places.open);
        let state = lock(&self.0.state);
        // A place that was given to another connection is freed already.
        if !matches!(state.activity, Activity::Leaving(_)) {
            open.all -= 1;
            open.forget(state.holder, &self.0);
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

    fn admit(places: &Arc<Places>, peer: &str) -> Option<HeldPlace> {
        let admitted = places.admit(peer.parse().unwrap())?;
        Some(admitted.held)
    }

    fn has_left(held: &HeldPlace) -> bool {
        !held.0.resume()
    }

    #[test]
    fn connections_are_bounded() {
        let places = Places::new(2);
        let busy = |peer| {
            let held = admit(&places, peer)?;
            assert!(held.0.resume());
            Some(held)
        };
        let first = busy("192.0.2.1").unwrap();
        let second = busy("2001:db8::1").unwrap();
        assert!(busy("192.0.2.2").is_none());
        drop(first);
        let third = busy("192.0.2.2").unwrap();
        assert_eq!(places.open(), 2);
        drop((second, third));
        assert!(places.open() == 0 && lock(&places.open).held.is_empty());
    }

    #[test]
    fn the_oldest_idle_stranger_gives_its_place_up() {
        let places = Places::new(3);
        let partner = admit(&places, "192.0.2.1").unwrap();
        partner.0.authenticated("partner");
        let busy = admit(&places, "192.0.2.1").unwrap();
        assert!(busy.0.resume());
        let idle = admit(&places, "192.0.2.1").unwrap();
        let newcomer = admit(&places, "192.0.2.1").unwrap();
        assert!(has_left(&idle) && !has_left(&partner) && !has_left(&busy));
        newcomer.0.authenticated("another");
        assert!(admit(&places, "192.0.2.1").is_none());
        // Its request is handled and its response sent, so it is idle again.
        busy.0.end_request();
        assert!(admit(&places, "192.0.2.1").is_none());
        busy.0.sent();
        let last = admit(&places, "192.0.2.1").unwrap();
        assert!(has_left(&busy));
        drop((partner, busy, idle, newcomer, last));
        assert!(places.open() == 0 && lock(&places.open).held.is_empty());
    }

    #[test]
    fn who_holds_most_with_keys_makes_room() {
        let places = Places::new(8);
        let of = |name: &str| {
            let held = admit(&places, "192.0.2.1").unwrap();
            held.0.authenticated(name);
            held
        };
        let single = of("single");
        let hoard: Vec<HeldPlace> = (0..7).map(|_| of("hoarder")).collect();
        assert!(hoard[0].0.resume(), "its oldest one is busy");
        // Each newcomer gets a place, and none of them loses it to the next one.
        let newcomers = ["192.0.2.2", "192.0.2.2", "192.0.2.3"];
        let newcomers = newcomers.map(|peer| admit(&places, peer).unwrap());
        let left: Vec<bool> = hoard.iter().map(has_left).collect();
        assert_eq!(left, [false, true, true, true, false, false, false]);
        assert!(!has_left(&single) && newcomers.iter().all(|held| !has_left(held)));
        assert_eq!(places.open(), 8);
        drop((single, hoard, newcomers));
        assert!(places.open() == 0 && lock(&places.open).held.is_empty());
        assert_eq!(lock(&places.open).known, 0);
    }

    #[test]
    fn who_holds_no_more_than_a_share_keeps_it_from_strangers() {
        let places = Places::new(4);
        let of = |name: &str| {
            let held = admit(&places, "192.0.2.1").unwrap();
            held.0.authenticated(name);
            held
        };
        let partners = ["a", "b", "c"].map(of);
        // Strangers may take the rest, and lose it to each other.
        for _ in 0..10 {
            admit(&places, "192.0.2.2").unwrap();
        }
        let stranger = admit(&places, "192.0.2.2").unwrap();
        let another = admit(&places, "192.0.2.3").unwrap();
        assert!(has_left(&stranger) && partners.iter().all(|held| !has_left(held)));
        another.0.authenticated("d");
        for held in &partners {
            held.0.end_request();
        }
        for held in &partners {
            held.0.sent();
        }
        assert!(admit(&places, "192.0.2.4").is_none(), "each has one place");
    }

    /// Behind a proxy one connection carries the requests of many.
    #[test]
    fn a_connection_is_counted_for_who_used_it_last() {
        let places = Places::new(4);
        let held = ["192.0.2.1"; 4].map(|peer| admit(&places, peer).unwrap());
        for holder in ["one", "other", "one"] {
            for place in &held {
                place.0.authenticated(holder);
            }
            assert_eq!(lock(&places.open).held.len(), 1);
            assert_eq!(lock(&places.open).known, 1);
        }
        held[0].0.authenticated("other");
        let newcomer = admit(&places, "192.0.2.1").unwrap();
        assert!(has_left(&held[1]) && !has_left(&held[0]));
        held[1].0.authenticated("other");
        drop((held, newcomer));
        assert!(places.open() == 0 && lock(&places.open).held.is_empty());
    }

    #[test]
    fn who_does_not_read_its_response_gives_its_place_up() {
        let places = Places::new(1);
        let stuck = admit(&places, "192.0.2.1").unwrap();
        assert!(stuck.0.resume());
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
        assert!(slow.0.resume());
        assert!(admit(&places, "192.0.2.1").is_none());
        slow.0.wait_for_client();
        let newcomer = admit(&places, "192.0.2.1").unwrap();
        assert!(has_left(&slow) && !has_left(&newcomer));
        assert!(!slow.0.resume(), "its request must not go on");
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
            assert!(crowd[1..].iter().all(|held| held.0.resume()));
            newcomer.0.authenticated("newcomer");
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
        partner.0.authenticated("partner");
        let _newcomer = admit(&places, "192.0.2.2").unwrap();
        let leave = tokio::select! {
            leave = stranger.0.must_leave() => leave,
            _ = partner.0.must_leave() => panic!("a partner had to leave"),
        };
        assert_eq!(leave, DisplacedState::Idle);
    }
}
