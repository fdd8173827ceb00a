//! The group commit's counterpart for messages: many tasks queue one item each and go on. One task sends, as
//! one batch, everything that queued during its last send. There is no timer, and no caller waits.

use std::{sync::Arc, time::Duration};

use runtime::{Shutdown, sampler::Sampler};
use tokio::sync::mpsc;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

/// The longest queue. Further items are dropped: their rows are in PostgreSQL, and a stage finds them once they are due.
const WAITING: usize = 16 * 1024;
/// The interval between log lines about dropped items.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// A handle to the sender. Clones share the sender.
pub struct Batcher<T> {
    name: &'static str,
    queue: mpsc::Sender<(T, TaskTrackerToken)>,
    unsent: TaskTracker,
    /// Log lines about dropped items.
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
    /// Starts the task that sends batches of at most `most` items. It ends when the last clone is dropped.
    /// `unsent` counts the unsent items. If `send` panics, the process stops with an error.
    pub fn start<F, Sending>(name: &'static str, most: usize, unsent: TaskTracker, shutdown: &Shutdown, send: F) -> Self
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
        Self { name, queue, unsent, overflow: Arc::new(Sampler::every(LOG_EVERY)) }
    }

    /// Queues one item, or drops it if the queue is full.
    pub fn push(&self, item: T) {
        if self.queue.try_send((item, self.unsent.token())).is_err()
            && let Some(others) = self.overflow.pass()
        {
            tracing::warn!(
                queue = self.name,
                dropped = others + 1,
                "messages were dropped: the queue is full; their rows start once they are due"
            );
        }
    }
}

/// Waits for the first item, then takes everything else that is queued, at most `most` items in all. Returns false once
/// no more items can come.
pub(crate) async fn next_batch<T>(items: &mut mpsc::Receiver<T>, batch: &mut Vec<T>, most: usize) -> bool {
    if items.recv_many(batch, most).await == 0 {
        return false;
    }
    // The task that queued the item woke this one. Often other tasks are ready to queue theirs.
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
        let (gate, sent) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (unsent, passed, kept) = (TaskTracker::new(), Arc::clone(&gate), Arc::clone(&sent));
        let batcher = Batcher::start("test", most, unsent.clone(), &Shutdown::new(), move |batch| {
            let (passed, kept) = (Arc::clone(&passed), Arc::clone(&kept));
            async move {
                passed.acquire().await.unwrap().forget();
                kept.lock().unwrap().push(batch);
            }
        });
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
        assert_eq!(*sent.lock().unwrap(), [vec![0], vec![1, 2, 3, 4], vec![5, 6]]);
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
        let batcher = Batcher::start("test", 4, TaskTracker::new(), &shutdown, async |_: Vec<u8>| panic!("broken"));
        batcher.push(1);
        shutdown.soft().cancelled().await;
        let failure = shutdown.finished().await.unwrap_err();
        assert!(failure.to_string().contains("test panicked"), "{failure}");
    }
}
