//! Runs asynchronous work in `Drop`. The runtime of the test cannot be used for it, because it may
//! be single-threaded or shutting down, so the work gets a thread and a runtime of its own.

use anyhow::Result;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(15);

/// Runs `work` to its end, for at most 15 s. A failure is printed, because `Drop` cannot return it.
pub fn run(what: &str, work: impl Future<Output = Result<()>> + Send) {
    let result = std::thread::scope(|scope| {
        scope
            .spawn(|| -> Result<()> {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
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
