//! What Airalo asks for a unit of each package now, so that a raised price is never paid silently.
//!
//! A purchase at Airalo has no field for the price that we expect, and its response does not say
//! whether its price is that of a unit or of the order. So the one rule is: the provider's own list
//! says what a unit costs, and an option that allows less is not bought. The list is read before
//! the first purchase that has a price to compare, and again once it is old. Nothing is stored, so
//! that a restart and a second replica compare in the same way, and a price that falls again sells
//! again.
//!
//! The list also says for how long an eSIM can be started ([`Prices::install_window`]).
//!
//! It is longer than a purchase may wait for it, so it is read by a task of its own, which
//! goes on when nobody waits any more. Otherwise a list that is read slowly would never be read.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use runtime::lock;

use super::packages::Listed;
use crate::providers::{
    price::{Price, unread},
    provider::Trouble,
};

/// How long a list serves before it is read again. Prices change by the day, and the provider
/// advises to read the list every hour (its pages on packages and prices, September 2026).
const FRESH: Duration = Duration::from_hours(1);
/// How long an old list serves while it cannot be read again.
const KEPT: Duration = Duration::from_hours(24);
/// The shortest time between two tries to read it.
const PAUSE: Duration = Duration::from_mins(1);

/// What is listed by package, and when it was read.
struct List {
    packages: HashMap<String, Listed>,
    read_at: Instant,
}

impl List {
    fn price(&self, package: &str) -> Option<Price> {
        self.packages.get(package).map(|listed| listed.price)
    }
}

#[derive(Default)]
struct State {
    list: Option<Arc<List>>,
    tried_at: Option<Instant>,
    /// A purchase was dearer than the list says, so the list is old.
    is_doubted: bool,
}

#[derive(Default)]
pub(super) struct Prices {
    state: Mutex<State>,
    /// Held by the one task that reads the list.
    reading: Arc<tokio::sync::Mutex<()>>,
}

impl Prices {
    /// The price of a package; `None` if Airalo does not list it. One caller reads an old list
    /// anew, and the others use the old one meanwhile. Without any list, all wait for it.
    pub(super) async fn of<F>(
        self: &Arc<Self>,
        package: &str,
        read_all: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Option<Price>, Trouble>
    where
        F: Future<Output = Result<HashMap<String, Listed>, Trouble>> + Send + 'static,
    {
        if let Some(list) = self.kept() {
            return Ok(list.price(package));
        }
        let lock = Arc::clone(&self.reading);
        let reading = match (Arc::clone(&lock).try_lock_owned(), self.last()) {
            (Ok(reading), _) => reading,
            (Err(_), Some(old)) => return Ok(old.price(package)),
            (Err(_), None) => lock.lock_owned().await,
        };
        // Another call may have read the list while this one waited.
        if let Some(list) = self.kept() {
            return Ok(list.price(package));
        }
        let prices = Arc::clone(self);
        let read = tokio::spawn(async move {
            let list = prices.read(read_all).await;
            drop(reading);
            list
        });
        let list = read.await.unwrap_or_else(|_| {
            Err(Trouble::NotSent(
                "the provider's prices were not read to their end".into(),
            ))
        })?;
        Ok(list.price(package))
    }

    /// For how many days after its purchase an eSIM of a package can be started, as the list says
    /// that was read last. It is not read for this.
    pub(super) fn install_window(&self, package: &str) -> Option<u16> {
        self.last()?.packages.get(package)?.install_window
    }

    /// Lets the list be read again before it is old, because a purchase was dearer.
    pub(super) fn doubt(&self) {
        lock(&self.state).is_doubted = true;
    }

    /// The list, if it need not be read again now.
    fn kept(&self) -> Option<Arc<List>> {
        let state = lock(&self.state);
        let list = state.list.as_ref()?;
        let is_fresh = list.read_at.elapsed() < FRESH && !state.is_doubted;
        let is_recent = state.tried_at.is_some_and(|at| at.elapsed() < PAUSE);
        (is_fresh || (is_recent && list.read_at.elapsed() < KEPT)).then(|| Arc::clone(list))
    }

    /// The last list, however old, if it still serves.
    fn last(&self) -> Option<Arc<List>> {
        let state = lock(&self.state);
        let list = state.list.as_ref();
        list.filter(|list| list.read_at.elapsed() < KEPT).cloned()
    }

    /// Reads the list. If that fails, the last one serves.
    async fn read<F: Future<Output = Result<HashMap<String, Listed>, Trouble>>>(
        &self,
        read_all: impl FnOnce() -> F,
    ) -> Result<Arc<List>, Trouble> {
        let tried_at = lock(&self.state).tried_at;
        let pause = tried_at.and_then(|at| PAUSE.checked_sub(at.elapsed()));
        if let Some(after) = pause {
            return Err(Trouble::Waiting {
                after,
                reason: "the provider's prices could not be read a moment ago".into(),
            });
        }
        lock(&self.state).tried_at = Some(Instant::now());
        match read_all().await {
            Ok(packages) => {
                let list = Arc::new(List {
                    packages,
                    read_at: Instant::now(),
                });
                let mut state = lock(&self.state);
                state.list = Some(Arc::clone(&list));
                state.is_doubted = false;
                Ok(list)
            }
            Err(trouble) => {
                tracing::warn!(
                    reason = trouble.reason(),
                    "the provider's prices cannot be read, so the last ones are compared; without \
                     any, options that name a price are not bought"
                );
                let old = self.last();
                old.ok_or_else(|| unread(trouble, PAUSE))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{Ready, ready},
        sync::atomic::{AtomicU32, Ordering},
    };

    use super::*;

    type ReadList = Result<HashMap<String, Listed>, Trouble>;

    /// The list is that of one package with this price.
    fn list(price: u64) -> HashMap<String, Listed> {
        let listed = Listed {
            price: Price(price),
            install_window: Some(30),
        };
        [("P".to_owned(), listed)].into()
    }

    /// The provider advises to read the list every hour (its page on packages, September 2026), and
    /// it allows 80 calls a minute, so a list that cannot be read is not asked for at once again.
    #[tokio::test]
    async fn a_list_serves_for_an_hour_and_a_failed_read_is_not_repeated_at_once() {
        let prices = Arc::new(Prices::default());
        let reads = Arc::new(AtomicU32::new(0));
        let read = |list: ReadList| {
            let reads = Arc::clone(&reads);
            move || -> Ready<ReadList> {
                reads.fetch_add(1, Ordering::Relaxed);
                ready(list)
            }
        };
        let failed = || Err(Trouble::no_response("timed out"));
        let ago = |time| Instant::now().checked_sub(time).unwrap();
        let minute_ago = || lock(&prices.state).tried_at = Some(ago(PAUSE));
        let list_of = |age| {
            let list = List {
                packages: list(1),
                read_at: ago(age),
            };
            lock(&prices.state).list = Some(Arc::new(list));
        };

        let first = prices.of("P", read(failed())).await;
        assert!(matches!(first, Err(Trouble::NotSent(_))), "{first:?}");
        let again = prices.of("P", read(Ok(list(1)))).await;
        assert!(matches!(again, Err(Trouble::Waiting { after, .. }) if after <= PAUSE));
        assert_eq!(reads.load(Ordering::Relaxed), 1);

        minute_ago();
        assert_eq!(prices.of("P", read(Ok(list(1)))).await, Ok(Some(Price(1))));
        minute_ago();
        // It serves every purchase, also of what is not listed.
        assert_eq!(prices.of("P", read(failed())).await, Ok(Some(Price(1))));
        assert_eq!(prices.of("Q", read(failed())).await, Ok(None));
        assert_eq!(prices.install_window("P"), Some(30));
        assert_eq!(reads.load(Ordering::Relaxed), 2);

        // One that is an hour old is read again; if that fails, it serves for a day.
        list_of(FRESH);
        assert_eq!(prices.of("P", read(Ok(list(2)))).await, Ok(Some(Price(2))));
        list_of(FRESH);
        minute_ago();
        assert_eq!(prices.of("P", read(failed())).await, Ok(Some(Price(1))));
        assert_eq!(reads.load(Ordering::Relaxed), 4);
        list_of(KEPT);
        minute_ago();
        assert!(prices.of("P", read(failed())).await.is_err());
        assert_eq!(prices.install_window("P"), None);

        // A purchase that was dearer lets it be read before its time.
        list_of(Duration::ZERO);
        minute_ago();
        prices.doubt();
        assert_eq!(prices.of("P", read(Ok(list(3)))).await, Ok(Some(Price(3))));
    }
}
