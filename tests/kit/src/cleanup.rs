//! Asynchronous work in `Drop`: the test's runtime may be single-threaded or shutting down, so it gets its own.

use anyhow::Result;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(15);

/// Runs `work` to its end, at most for 15 s; a failure is printed, since `Drop` cannot return it.
pub fn run(what: &str, work: impl Future<Output = Result<()>> + Send) {
    let result = std::thread::scope(|scope| {
        scope
            .spawn(|| -> Result<()> {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(async { tokio::time::timeout(TIMEOUT, work).await })?
            })
            .join()
    });
    match result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => eprintln!("cleaning up {what}: {error:#}"),
        Err(_) => eprintln!("cleaning up {what}: panicked"),
    }
}
