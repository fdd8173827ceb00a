//! What a server of a test has recorded, and the wait until it has recorded enough.

use anyhow::{Result, anyhow};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Record<T> {
    book: Mutex<T>,
    arrived: Notify,
}

impl<T> Record<T> {
    pub(crate) fn book(&self) -> MutexGuard<'_, T> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records something, and wakes everybody who waits.
    pub(crate) fn arrived(&self, record: impl FnOnce(&mut T)) {
        record(&mut self.book());
        self.arrived.notify_waiters();
    }

    /// Waits until `look` finds what it looks for. The error names `what`, and what has arrived so
    /// far.
    pub(crate) async fn wait_until<R>(
        &self,
        timeout: Duration,
        what: &str,
        look: impl Fn(&T) -> Option<R>,
        so_far: impl Fn(&T) -> String,
    ) -> Result<R> {
        let waiting = async {
            loop {
                let arrived = self.arrived.notified();
                tokio::pin!(arrived);
                // The wait is registered before the look. Otherwise an arrival between the two
                // would be missed.
                arrived.as_mut().enable();
                if let Some(found) = look(&self.book()) {
                    return found;
                }
                arrived.await;
            }
        };
        tokio::time::timeout(timeout, waiting).await.map_err(|_| {
            let so_far = so_far(&self.book());
            anyhow!("timed out after {timeout:?} waiting for {what}; {so_far} arrived")
        })
    }
}
