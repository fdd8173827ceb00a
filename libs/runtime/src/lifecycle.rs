//! The lifecycle of a service, from its start to its end.
//!
//! A stop begins softly: the service takes no new work and finishes the work in flight. If that
//! takes longer than `SHUTDOWN_TIMEOUT`, the hard stop follows: the work in flight is dropped. That
//! is safe, because every stage may die at any time, but it costs a look-up or a second webhook
//! later.
//!
//! A service registers its tasks with [`Shutdown`]. A task that lives as long as the service is
//! started by [`Shutdown::spawn`], and if it ends before the soft stop, the service stops with a
//! failure. A short task, such as one delivery, is spawned on [`Shutdown::tracker`], and the soft
//! stop waits for it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{anyhow, bail};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::lock;

/// The stop signal and the tasks of one service. Clones share their state.
#[derive(Clone, Default)]
pub struct Shutdown {
    soft: CancellationToken,
    tracker: TaskTracker,
    failure: Arc<Mutex<Option<anyhow::Error>>>,
}

impl Shutdown {
    /// Makes the lifecycle of a service that runs and has no tasks yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a token that is cancelled when the soft stop begins.
    pub fn soft(&self) -> CancellationToken {
        self.soft.clone()
    }

    /// Begins the soft stop. Further calls have no effect.
    pub fn stop(&self) {
        self.soft.cancel();
    }

    pub fn is_stopping(&self) -> bool {
        self.soft.is_cancelled()
    }

    /// The tracker of short tasks, such as one order or one delivery. The soft stop waits for them.
    /// Unlike those of [`Shutdown::spawn`], they may end at any time, and their panics do not stop
    /// the service.
    pub fn tracker(&self) -> &TaskTracker {
        &self.tracker
    }

    /// Runs a task that lives as long as the service. If it fails, panics, or returns before the
    /// soft stop, the service stops with a failure that contains `name`.
    pub fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let running = tokio::spawn(task);
        let shutdown = self.clone();
        tokio::spawn(self.tracker.track_future(async move {
            match running.await {
                Ok(Ok(())) if shutdown.is_stopping() => {}
                Ok(Ok(())) => shutdown.fail(anyhow!("{name} ended by itself")),
                Ok(Err(error)) => shutdown.fail(error.context(format!("{name} failed"))),
                Err(panic) => shutdown.fail(anyhow!("{name} panicked: {panic}")),
            }
        }));
    }

    /// Runs a task that serves other tasks until the last of them has ended, such as the writer of
    /// a group commit. The soft stop does not wait for it, because it ends by itself once nobody
    /// uses it any more. If it panics, the service stops with a failure.
    pub fn supervise(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let running = tokio::spawn(task);
        let shutdown = self.clone();
        tokio::spawn(async move {
            if let Err(panic) = running.await {
                shutdown.fail(anyhow!("{name} panicked: {panic}"));
            }
        });
    }

    /// Stops the service with this failure. Only the first failure is reported, because later ones
    /// are usually its consequences.
    fn fail(&self, failure: anyhow::Error) {
        lock(&self.failure).get_or_insert(failure);
        self.stop();
    }

    /// Makes a clock that ticks at once and then once per period, until the soft stop. If the
    /// caller is late, the next tick comes a whole period after the late one, so that missed ticks
    /// are not made up for in a burst.
    pub fn ticks(&self, period: Duration) -> Ticks {
        let mut interval = tokio::time::interval(period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ticks {
            interval,
            soft: self.soft(),
        }
    }

    /// Waits until all tasks of [`Shutdown::spawn`] and of the tracker have ended, and returns the
    /// first failure.
    pub async fn finished(&self) -> anyhow::Result<()> {
        self.tracker.close();
        self.tracker.wait().await;
        lock(&self.failure).take().map_or(Ok(()), Err)
    }
}

/// The clock that [`Shutdown::ticks`] makes.
#[derive(Debug)]
pub struct Ticks {
    interval: Interval,
    soft: CancellationToken,
}

impl Ticks {
    /// Waits for the next tick and returns `true`. Returns `false` as soon as the soft stop has
    /// begun.
    pub async fn next(&mut self) -> bool {
        tokio::select! {
            biased;
            () = self.soft.cancelled() => false,
            _ = self.interval.tick() => true,
        }
    }
}

/// What asks the process to stop. Before it is made, a signal ends the process at once.
#[cfg(unix)]
pub(crate) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The name of the next signal.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// No service is deployed on such a system; this lets the command line of partners be built there.
#[cfg(windows)]
pub(crate) struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        tokio::signal::windows::ctrl_c().map(Self)
    }

    async fn next(&mut self) -> &'static str {
        self.0.recv().await;
        "Ctrl-C"
    }
}

/// Runs `service` until it ends. SIGTERM and SIGINT, also earlier ones, begin the soft stop. If the
/// service has not ended `timeout` later, or if a third signal arrives, the work in flight is
/// dropped and a failure is returned.
pub(crate) async fn supervise(
    shutdown: &Shutdown,
    timeout: Duration,
    mut signals: Signals,
    service: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let whole = async {
        let result = service.await;
        shutdown.stop();
        // If both failed, the failure of the task is reported, because it is often the cause of the
        // service's.
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
            () = &mut deadline => bail!(
                "the stop took longer than SHUTDOWN_TIMEOUT ({timeout:?}), so the work in flight was dropped"
            ),
            name = signals.next() => tracing::info!(
                "{name} received: taking no new work, and finishing the work in flight"
            ),
        }
        if shutdown.is_stopping() {
            tracing::info!(
                "the service is stopping already; a third signal drops the work in flight and ends it at once"
            );
        }
        shutdown.stop();
    }
    bail!("a third signal stopped the service at once, so the work in flight was dropped")
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
        let signals = Signals::listen().unwrap();
        let timeout = Duration::from_millis(20);
        let result = supervise(&shutdown, timeout, signals, std::future::pending()).await;
        assert!(result.unwrap_err().to_string().contains("SHUTDOWN_TIMEOUT"));
    }
}
