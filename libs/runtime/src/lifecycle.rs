//! The lifecycle of a service: a soft stop takes no new work and finishes the work in flight, a hard stop follows
//! at a deadline. A task that ends unexpectedly stops the process with a failure.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{anyhow, bail};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Interval, MissedTickBehavior},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::lock;

/// The stop signal and the tasks of a service. Clones share their state.
#[derive(Clone, Default)]
pub struct Shutdown {
    soft: CancellationToken,
    tracker: TaskTracker,
    failure: Arc<Mutex<Option<anyhow::Error>>>,
}

impl Shutdown {
    /// A running lifecycle without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancelled when the soft stop begins.
    pub fn soft(&self) -> CancellationToken {
        self.soft.clone()
    }

    pub fn stop(&self) {
        self.soft.cancel();
    }

    pub fn is_stopping(&self) -> bool {
        self.soft.is_cancelled()
    }

    /// Tracks short tasks, such as one order or one delivery. The soft stop waits for them.
    pub fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    /// Runs a task that lives as long as the service. Its failure, panic or early end fails the service.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        let running = tokio::spawn(task);
        let shutdown = self.clone();
        self.tracker.spawn(async move {
            match running.await {
                Ok(Ok(())) if shutdown.is_stopping() => {}
                Ok(Ok(())) => shutdown.fail(anyhow!("{name} ended by itself")),
                Ok(Err(error)) => shutdown.fail(error.context(format!("{name} failed"))),
                Err(panic) => shutdown.fail(anyhow!("{name} panicked: {panic}")),
            }
        });
    }

    /// Runs a task that serves other tasks until the last of them has ended; the soft stop does not wait for it. If
    /// it panics, the service stops with that failure.
    pub fn supervise(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let running = tokio::spawn(task);
        let shutdown = self.clone();
        tokio::spawn(async move {
            if let Err(panic) = running.await {
                shutdown.fail(anyhow!("{name} panicked: {panic}"));
            }
        });
    }

    /// Stops the service with this failure; the first one counts.
    fn fail(&self, failure: anyhow::Error) {
        lock(&self.failure).get_or_insert(failure);
        self.stop();
    }

    /// Ticks at once and then once per period, until the soft stop.
    pub fn ticks(&self, period: Duration) -> Ticks {
        let mut interval = tokio::time::interval(period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ticks { interval, soft: self.soft() }
    }

    /// Waits for the end of all tracked tasks and returns the first failure.
    pub async fn finished(&self) -> anyhow::Result<()> {
        self.tracker.close();
        self.tracker.wait().await;
        lock(&self.failure).take().map_or(Ok(()), Err)
    }
}

/// The ticks of [`Shutdown::ticks`].
#[derive(Debug)]
pub struct Ticks {
    interval: Interval,
    soft: CancellationToken,
}

impl Ticks {
    /// Waits for the next tick. `false`: the soft stop has begun.
    pub async fn next(&mut self) -> bool {
        tokio::select! {
            biased;
            () = self.soft.cancelled() => false,
            _ = self.interval.tick() => true,
        }
    }
}

/// Runs `service` until it ends. SIGTERM or SIGINT begin the soft stop. `timeout` later the hard stop drops the
/// work in flight and returns a failure.
pub(crate) async fn supervise(
    shutdown: &Shutdown,
    timeout: Duration,
    service: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let whole = async {
        let result = service.await;
        shutdown.stop();
        // A task's failure comes first: it is often the cause of the service's.
        shutdown.finished().await.and(result)
    };
    let deadline = async {
        shutdown.soft().cancelled().await;
        tokio::time::sleep(timeout).await;
    };
    let mut whole = std::pin::pin!(whole);
    let mut deadline = std::pin::pin!(deadline);
    for _ in 0..3 {
        tokio::select! {
            result = &mut whole => return result,
            () = &mut deadline => bail!("the stop took longer than SHUTDOWN_TIMEOUT ({timeout:?}); the work in flight was dropped"),
            _ = terminate.recv() => tracing::info!("SIGTERM: finishing the work in flight"),
            _ = interrupt.recv() => tracing::info!("SIGINT: finishing the work in flight"),
        }
        if shutdown.is_stopping() {
            tracing::info!("already stopping; a third signal ends the process at once");
        }
        shutdown.stop();
    }
    bail!("stopped at once by repeated signals")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_by_itself_or_panics_stops_the_service_with_a_failure() {
        for (panics, expected) in [(false, "loop ended by itself"), (true, "loop panicked")] {
            let shutdown = Shutdown::new();
            shutdown.spawn("loop", async move {
                assert!(!panics, "broken");
                Ok(())
            });
            shutdown.soft().cancelled().await;
            let failure = shutdown.finished().await.unwrap_err();
            assert!(failure.to_string().contains(expected), "{failure}");
        }
    }

    #[tokio::test]
    async fn a_stop_waits_for_what_is_in_flight() {
        let shutdown = Shutdown::new();
        let (finish, wait) = tokio::sync::oneshot::channel::<()>();
        let soft = shutdown.soft();
        shutdown.tracker().spawn(async move {
            soft.cancelled().await;
            let _ = wait.await;
        });
        shutdown.stop();
        let stopping = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { shutdown.finished().await }
        });
        tokio::task::yield_now().await;
        assert!(!stopping.is_finished());
        finish.send(()).unwrap();
        stopping.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_service_that_does_not_stop_in_time_is_abandoned() {
        let shutdown = Shutdown::new();
        shutdown.stop();
        let result = supervise(&shutdown, Duration::from_millis(20), std::future::pending()).await;
        assert!(result.unwrap_err().to_string().contains("SHUTDOWN_TIMEOUT"));
    }
}
