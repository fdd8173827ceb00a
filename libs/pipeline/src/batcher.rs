//! Sends messages in batches. Many tasks queue one item each and go on without waiting. One other
//! task sends everything that queued while it sent the previous batch. There is no timer, so an
//! item that comes alone is sent at once. Unlike in a [group commit](crate::group_commit), no
//! caller waits for a result.
//!
//! [`crate::publish`] and [`crate::reports`] start one batcher for each kind of message. If the
//! queue is full or the process dies, items are dropped. That costs time but loses nothing, because
//! the rows that an item names are in PostgreSQL. Ingress also writes its refused requests with
//! one, of which some may be missing.

use std::{sync::Arc, time::Duration};

use runtime::{Shutdown, sampler::Sampler};
use tokio::sync::mpsc;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

/// The longest queue. Further items are dropped; their rows are in PostgreSQL, and a stage finds
/// them once they are due.
const WAITING: usize = 16 * 1024;
/// The interval between log lines about dropped items.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// A handle to the sending task. Clones share the task.
pub struct Batcher<T> {
    name: &'static str,
    queue: mpsc::Sender<(T, TaskTrackerToken)>,
    unsent: TaskTracker,
    /// Limits the log lines about dropped items.
    overflow: Arc<Sampler>,
}

impl<T> Clone for Batcher<T> {
    fn clone(&self) -> Self {
        Self {
            name: self.name,
            queue: self.queue.clone(),
            unsent: self.unsent.clone(),
            overflow: Arc::clone(&self.overflow),
        }
    }
}

impl<T: Send + 'static> Batcher<T> {
    /// Starts the task that sends batches of at most `most` items. It ends when the last clone is
    /// dropped. `unsent` has one token for each item that is not sent yet, so that a stop can wait
    /// for them. If `send` panics, the process stops with an error.
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
        shutdown.supervise(name, async move {
            let mut batch = Vec::new();
            while next_batch(&mut items, &mut batch, most).await {
                let (sent, tokens): (Vec<T>, Vec<TaskTrackerToken>) = batch.drain(..).unzip();
                send(sent).await;
                drop(tokens);
            }
        });
        Self {
            name,
            queue,
            unsent,
            overflow: Arc::new(Sampler::every(LOG_EVERY)),
        }
    }

    /// Queues one item. If the queue is full, the item comes back as the error.
    pub fn try_push(&self, item: T) -> Result<(), T> {
        let queued = self.queue.try_send((item, self.unsent.token()));
        queued.map_err(|full| full.into_inner().0)
    }

    /// Queues one item that names rows, or drops it if the queue is full.
    pub fn push(&self, item: T) {
        if self.try_push(item).is_err()
            && let Some(others) = self.overflow.pass()
        {
            tracing::warn!(
                queue = self.name,
                dropped = others + 1,
                "messages were dropped because the queue is full; the stages find their rows in \
                 PostgreSQL once they are due"
            );
        }
    }
}

/// Waits for the first item, and then takes everything else that is queued, at most `most` items in
/// all. Returns false once no more items can come.
pub(crate) async fn next_batch<T>(
    items: &mut mpsc::Receiver<T>,
    batch: &mut Vec<T>,
    most: usize,
) -> bool {
    let Some(first) = items.recv().await else {
        return false;
    };
    batch.push(first);
    // This task was woken by the first item. Often other tasks are ready to queue theirs, so they
    // run first, and their items join this batch.
    tokio::task::yield_now().await;
    while batch.len() < most
        && let Ok(item) = items.try_recv()
    {
        batch.push(item);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::sync::Semaphore;

    use super::*;

    type Sent = Arc<Mutex<Vec<Vec<usize>>>>;

    /// Sends into memory, each batch once the gate lets it.
    fn batcher(most: usize) -> (Batcher<usize>, TaskTracker, Arc<Semaphore>, Sent) {
        let gate = Arc::new(Semaphore::new(0));
        let sent = Arc::new(Mutex::new(Vec::new()));
        let unsent = TaskTracker::new();
        let passed = Arc::clone(&gate);
        let kept = Arc::clone(&sent);
        let batcher = Batcher::start(
            "test",
            most,
            unsent.clone(),
            &Shutdown::new(),
            move |batch| {
                let passed = Arc::clone(&passed);
                let kept = Arc::clone(&kept);
                async move {
                    passed.acquire().await.unwrap().forget();
                    kept.lock().unwrap().push(batch);
                }
            },
        );
        unsent.close();
        (batcher, unsent, gate, sent)
    }

    #[tokio::test]
    async fn what_queues_while_a_send_is_under_way_is_sent_together() {
        let (batcher, unsent, gate, sent) = batcher(4);
        batcher.push(0);
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        // The first send waits at the gate now.
        (1..7).for_each(|item| batcher.push(item));
        gate.add_permits(9);
        unsent.wait().await;
        assert_eq!(
            *sent.lock().unwrap(),
            [vec![0], vec![1, 2, 3, 4], vec![5, 6]]
        );
    }

    #[tokio::test]
    async fn a_send_that_hangs_holds_up_no_caller_and_a_full_queue_drops_items() {
        let (batcher, unsent, gate, sent) = batcher(WAITING * 2);
        batcher.push(0);
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        (0..WAITING + 5).for_each(|item| batcher.push(item));
        gate.add_permits(9);
        unsent.wait().await;
        let sent: Vec<usize> = sent.lock().unwrap().iter().map(Vec::len).collect();
        assert_eq!(sent, [1, WAITING]);
    }

    #[tokio::test]
    async fn a_send_that_panics_ends_the_process_with_an_error() {
        let shutdown = Shutdown::new();
        let batcher = Batcher::start(
            "test",
            4,
            TaskTracker::new(),
            &shutdown,
            async |_: Vec<u8>| panic!("broken"),
        );
        batcher.push(1);
        shutdown.soft().cancelled().await;
        let failure = shutdown.finished().await.unwrap_err();
        assert!(failure.to_string().contains("test panicked"), "{failure}");
    }
}
