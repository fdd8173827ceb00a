//! The twin of the group commit for messages: many tasks hand in one item each and go on; one task sends
//! whatever has queued while its last send was under way. No timer, and no caller ever waits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use runtime::Shutdown;
use tokio::sync::mpsc;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

/// The most items that wait. More are dropped: their rows are in PostgreSQL, and redrive finds them.
const WAITING: usize = 16 * 1024;
/// How often dropped items are logged.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The way to the sender. Clones lead to the same one.
pub struct Batcher<T> {
    queue: mpsc::Sender<(T, TaskTrackerToken)>,
    unsent: TaskTracker,
    dropped: Arc<AtomicU64>,
}

impl<T> Clone for Batcher<T> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            unsent: self.unsent.clone(),
            dropped: Arc::clone(&self.dropped),
        }
    }
}

impl<T: Send + 'static> Batcher<T> {
    /// Starts the task that sends batches of at most `most` items; it ends with the last clone.
    /// `unsent` counts the items that wait. If `send` panics, the process stops with an error.
    pub fn start<F, Sending>(
        name: &'static str,
        most: usize,
        unsent: TaskTracker,
        shutdown: &Shutdown,
        send: F,
    ) -> Self
    where
        F: Fn(Vec<T>) -> Sending + Send + 'static,
        Sending: Future<Output = ()> + Send,
    {
        let (queue, mut items) = mpsc::channel::<(T, TaskTrackerToken)>(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let overflow = Arc::clone(&dropped);
        shutdown.supervise(name, async move {
            let mut queued = Vec::new();
            let mut logged: Option<Instant> = None;
            while items.recv_many(&mut queued, most).await > 0 {
                if queued.len() < most {
                    // Whoever woke this task is often followed by others that are ready to run.
                    tokio::task::yield_now().await;
                    while queued.len() < most
                        && let Ok(item) = items.try_recv()
                    {
                        queued.push(item);
                    }
                }
                let (batch, tokens): (Vec<T>, Vec<TaskTrackerToken>) = queued.drain(..).unzip();
                send(batch).await;
                drop(tokens);
                if logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
                    let dropped = overflow.swap(0, Ordering::Relaxed);
                    if dropped > 0 {
                        logged = Some(Instant::now());
                        tracing::warn!(
                            queue = name,
                            dropped,
                            "messages were dropped: the queue is full; redrive finds their rows"
                        );
                    }
                }
            }
        });
        Self {
            queue,
            unsent,
            dropped,
        }
    }

    /// Queues one item, or drops it where too many wait.
    pub fn hand_in(&self, item: T) {
        if self.queue.try_send((item, self.unsent.token())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
