//! The turns of strangers: whoever asks for what costs something and needs no key waits for one.
//!
//! Guarantees: only so much is done at once and per second. A request beyond that waits instead of
//! being refused at once, which slows a flood down, because each of its connections must wait for
//! its answer, and a waiting connection costs almost nothing. Only a few requests of each source
//! stand in the queue that all sources share, so that one source makes the others wait for no more
//! than these.
//!
//! The [QR codes](super::qr) and the [pages to install from](super::install) have limits of their
//! own.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    num::NonZeroU32,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::Extension;
use runtime::{listener, lock, rate_limit::RateLimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::{connection::Connection, error::ApiError};

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnLimits {
    /// The reason of the 503 of a request whose turn does not come.
    pub(crate) name: &'static str,
    /// Maximum number of requests that have their turn at once. Further ones wait for up to `wait`.
    pub(crate) at_once: usize,
    /// Maximum number of requests of one source that wait for their turn next. A source is an IPv4
    /// address or an IPv6 /64. Its further requests wait until these are served, so a flood from
    /// one source makes the others wait for only so many of its own. Behind a proxy, which is then
    /// the only source, the requests are served in the order in which they came.
    pub(crate) per_source: usize,
    /// Maximum number of turns per second. Further requests wait for up to `wait`.
    pub(crate) per_second: NonZeroU32,
    /// Maximum time that a request waits for its turn. After this time it gets a 503 with
    /// Retry-After.
    pub(crate) wait: Duration,
}

/// Gives turns within the limits.
pub(crate) struct Turns {
    limits: TurnLimits,
    permits: Arc<Semaphore>,
    rate: RateLimit,
    /// The sources with requests, with the places in the queue that each has.
    sources: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
}

/// A request of a source, which counts as long as it is there.
struct Place {
    turns: Arc<Turns>,
    source: IpAddr,
    queue: Option<Arc<Semaphore>>,
    taken: Option<OwnedSemaphorePermit>,
}

impl Place {
    fn of(turns: &Arc<Turns>, source: IpAddr) -> Self {
        let mut sources = lock(&turns.sources);
        let places = sources
            .entry(source)
            .or_insert_with(|| Arc::new(Semaphore::new(turns.limits.per_source)));
        Self {
            turns: Arc::clone(turns),
            source,
            queue: Some(Arc::clone(places)),
            taken: None,
        }
    }

    /// Waits for one of the places that the source has in the queue.
    async fn wait(&mut self) {
        if let Some(queue) = self.queue.clone() {
            self.taken = queue.acquire_owned().await.ok();
        }
    }
}

impl Drop for Place {
    /// Frees the place, and forgets a source without requests, so that the map does not grow with
    /// every source that ever asked for something.
    fn drop(&mut self) {
        let mut sources = lock(&self.turns.sources);
        self.taken = None;
        self.queue = None;
        if sources
            .get(&self.source)
            .is_some_and(|places| Arc::strong_count(places) == 1)
        {
            sources.remove(&self.source);
        }
    }
}

/// The turn of a request, which lasts until it is dropped.
pub(crate) struct Turn {
    _place: Place,
    _permit: OwnedSemaphorePermit,
}

impl Turns {
    pub(crate) fn new(limits: TurnLimits) -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(limits.at_once)),
            rate: RateLimit::per_second(limits.per_second),
            sources: Mutex::default(),
            limits,
        })
    }

    /// Waits for the turn of a request of this source, or returns a 503.
    pub(crate) async fn turn(self: &Arc<Self>, source: IpAddr) -> Result<Turn, ApiError> {
        let admission = async {
            let mut place = Place::of(self, source);
            place.wait().await;
            let permit = Arc::clone(&self.permits).acquire_owned().await;
            self.rate.one().await;
            permit.map(|permit| Turn {
                _place: place,
                _permit: permit,
            })
        };
        let Ok(Ok(turn)) = tokio::time::timeout(self.limits.wait, admission).await else {
            return Err(ApiError::overloaded(self.limits.name));
        };
        Ok(turn)
    }

    /// Whether no source has a request.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.sources).is_empty()
    }
}

/// The source of a request. Only the fuzz targets have no connection.
pub(crate) fn source(connection: Option<Extension<Arc<Connection>>>) -> IpAddr {
    let peer = connection.map_or(
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        |Extension(connection)| connection.peer.ip(),
    );
    listener::source(peer)
}
