//! Locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex and ignores that an earlier holder panicked. A task that panics stops the whole
/// service, and the other tasks still need the value while they finish their work. Use it only for
/// values that are consistent after each statement.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
