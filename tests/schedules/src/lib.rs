//! The concurrent code of the services under [shuttle], which runs each scenario in thousands of
//! schedules of its own making: at every lock, channel, notification, sleep and `await` it chooses
//! the task that goes on. A real scheduler almost never makes the choices that break something, and
//! cannot repeat them.
//!
//! Nothing here is a copy. The files of this crate that are symbolic links are those of `pipeline`,
//! `runtime` and ingress, compiled once more:
//!
//! - What they call `tokio` is `shuttle-tokio` here, with a [`time::sleep`] that gives way.
//! - Every lock of production goes through `runtime::lock`, and [`lock`] of this crate is a choice
//!   of the scheduler.
//! - What talks to a server is replaced: [`streams`] is NATS in memory, `worker::messages` pulls
//!   from a channel, and metrics and spans are left out.
//!
//! Two components cannot be run so, because they are PostgreSQL's connections and little else: the
//! pulse (`pipeline::pulse`), and the pool, which is sqlx's. Their order of events is tested with
//! real servers in `libs/pipeline/tests` and `libs/store/tests`. `Instant` is the real clock, so a
//! timeout ends when a scenario says so, and never by itself.
//!
//! [shuttle]: https://github.com/awslabs/shuttle
#![allow(
    dead_code,
    clippy::drop_non_drop,
    clippy::missing_panics_doc,
    clippy::new_without_default,
    clippy::unused_self,
    reason = "the scenarios use a part of production code, and what is public here is private there"
)]

// Production code names these crates; each item of theirs that it needs is a module of this one.
extern crate self as pipeline;
extern crate self as runtime;
extern crate self as store;
extern crate self as tokio;

pub mod batcher;
pub mod clock;
pub mod effect;
pub mod group_commit;
pub mod lifecycle;
pub mod metrics;
pub mod orders;
pub mod outage;
pub mod owner;
mod pace;
pub mod payload;
pub mod permits;
mod queues;
mod room;
pub mod sampler;
pub mod scenarios;
pub mod streams;
pub mod trace;
pub mod work;
pub mod worker;
pub mod http {
    pub(crate) mod left;
}
pub mod time {
    pub use shuttle_tokio::time::*;

    /// Ends at a moment that the scheduler chooses. That of `shuttle-tokio` is over when it is
    /// first polled, so whatever waits beside it in one task would never be polled again.
    pub async fn sleep(_duration: std::time::Duration) {
        shuttle_tokio::task::yield_now().await;
    }
}
pub mod publish {
    /// As in `pipeline::publish`.
    pub struct AnnouncedRow<T> {
        pub row: T,
        pub traceparent: Option<String>,
    }
}

use std::{
    ops::{Deref, DerefMut},
    sync::{Mutex, MutexGuard, TryLockError},
};

pub use batcher::Batcher;
pub use lifecycle::Shutdown;
pub use room::make_room;
pub use shuttle_tokio::{join, select, signal, spawn, sync, task, try_join};
pub use streams::Nats;

/// `runtime::lock`: the scheduler may let any other task run first. All tasks run on one thread, so
/// a lock that is held belongs to a task that was interrupted while it held it.
pub fn lock<T>(mutex: &Mutex<T>) -> Guard<'_, T> {
    loop {
        if !std::thread::panicking() {
            shuttle::thread::yield_now();
        }
        match mutex.try_lock() {
            Ok(guard) => return Guard(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Guard(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
    }
}

/// A lock that is held.
pub struct Guard<'a, T>(MutexGuard<'a, T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
