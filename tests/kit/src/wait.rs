//! Waiting for a condition by polling.

use anyhow::{Result, bail};
use std::panic::Location;
use std::time::Duration;
use tokio::time::Instant;

/// Time between two polls: a tenth of the time waited so far, within these bounds. Many polls connect to a database.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);
/// Longer than any awaited condition takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// Polls until `condition` returns `Some`, at most for `timeout`, which includes a running poll.
///
/// Errors: the condition's own error at once; after `timeout`, an error that names `what`.
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

/// [`until`], at most for 40 s. Panics on an error, at the caller's place.
#[track_caller]
pub fn soon<T>(what: &str, condition: impl AsyncFnMut() -> Result<Option<T>>) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let found = until(PATIENCE, what, condition).await;
        found.unwrap_or_else(|error| panic!("{caller}: {error:#}"))
    }
}
