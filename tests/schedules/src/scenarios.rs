//! What the scheduler runs: one module per component, each with a scenario that the tests run in
//! thousands of schedules. A scenario makes the choices that no scheduler has, such as the size of
//! a batch, with shuttle's random numbers, so a schedule repeats them, too. A wake-up that is lost
//! needs no check, because shuttle fails when all tasks wait.

pub mod answers;
pub mod batches;
pub mod commit;
pub mod stage;
pub mod tickets;

use std::{
    future::Future,
    sync::{Arc, Mutex},
};

use shuttle::rand::Rng;

/// Runs a scenario to its end.
fn run(scenario: impl Future<Output = ()> + 'static) {
    tokio::time::clear_triggers();
    shuttle::future::block_on(scenario);
}

/// A number of the schedule, from 1 to `most`.
fn choose(most: usize) -> usize {
    shuttle::rand::thread_rng().gen_range(1..=most)
}

/// Lets all timeouts end, now or at a moment that the scheduler chooses.
fn timeouts_end() -> tokio::task::JoinHandle<()> {
    tokio::spawn(async {
        tokio::task::yield_now().await;
        tokio::time::trigger_timeouts(|_| true);
    })
}

/// What happened, in order. Its own lock is no choice of the scheduler.
struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Log<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Clone + PartialEq> Log<T> {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn add(&self, what: T) {
        self.0.lock().unwrap().push(what);
    }

    fn all(&self) -> Vec<T> {
        self.0.lock().unwrap().clone()
    }

    fn count(&self, what: &T) -> usize {
        self.all().iter().filter(|one| *one == what).count()
    }
}
