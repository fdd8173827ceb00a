//! Waits for a condition by polling. A test that sleeps for a fixed time instead is slow on a fast
//! machine and fails on a slow one.

use anyhow::{Result, bail};
use std::panic::Location;
use std::time::Duration;
use tokio::time::Instant;

/// The bounds of the time between two polls, which is a tenth of the time waited so far. Many polls
/// connect to a database, so there should not be too many of them.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);
/// How long [`soon`] waits. It is longer than any condition should take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// Polls until `condition` returns `Some`, for at most `timeout`. A poll that is running then is
/// dropped.
///
/// An error of the condition is returned at once. After `timeout` the error names `what`.
pub async fn until<T>(
    timeout: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let began = Instant::now();
    let polling = async {
        loop {
            if let Some(value) = condition().await? {
                return Ok(value);
            }
            tokio::time::sleep((began.elapsed() / 10).clamp(SHORTEST, LONGEST)).await;
        }
    };
    let polled = tokio::time::timeout(timeout, polling).await;
    polled.unwrap_or_else(|_| bail!("timed out after {timeout:?}: {what}"))
}

/// Does the same as [`until`] for at most 40 s, and panics on an error. The message names the place
/// of the caller.
#[track_caller]
pub fn soon<T>(
    what: &str,
    condition: impl AsyncFnMut() -> Result<Option<T>>,
) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let found = until(PATIENCE, what, condition).await;
        found.unwrap_or_else(|error| panic!("{caller}: {error:#}"))
    }
}
