//! Waiting for a condition by polling.

use anyhow::{Result, bail};
use std::time::Duration;

/// Time between two polls.
const INTERVAL: Duration = Duration::from_millis(20);

/// Polls until `condition` returns `Some`, at most for `timeout`, which includes a running poll.
///
/// Errors: the condition's own error at once; after `timeout`, an error that names `what`.
pub async fn until<T>(
    timeout: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let polling = async {
        loop {
            if let Some(value) = condition().await? {
                return Ok(value);
            }
            tokio::time::sleep(INTERVAL).await;
        }
    };
    match tokio::time::timeout(timeout, polling).await {
        Ok(result) => result,
        Err(_) => bail!("timed out after {timeout:?}: {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_what_the_condition_found() {
        let mut looks = 0;
        let found = until(Duration::from_secs(5), "third look", async || {
            looks += 1;
            Ok((looks == 3).then_some("found"))
        });
        assert_eq!(found.await.unwrap(), "found");
        assert_eq!(looks, 3);
    }

    #[tokio::test]
    async fn names_what_was_awaited() {
        let never = until(Duration::from_millis(30), "the sun to rise", async || {
            Ok(None::<()>)
        });
        assert!(never.await.unwrap_err().to_string().contains("the sun to rise"));
    }

    #[tokio::test]
    async fn stops_at_the_conditions_error() {
        let broken = until(Duration::from_mins(1), "nothing", async || bail!("it broke"));
        let result: Result<()> = broken.await;
        assert_eq!(result.unwrap_err().to_string(), "it broke");
    }
}
