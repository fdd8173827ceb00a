//! Group commit: many items are stored with one statement, so that the number of items per second
//! is not bounded by the number of commits that the disk can do.
//!
//! Many tasks queue one item each and wait for its result: ingress queues orders, the provisioner
//! outcomes of purchases, and the notifier results of attempts and deliveries without an endpoint.
//! One task takes everything that queued during its last write, and its [`BatchWriter`] writes it
//! in one statement. It writes such a batch at once, even if it has a single item. Only a batch
//! whose items all [can wait](BatchWriter::can_wait) lingers for further items, for at most
//! [`LINGER`], so that at low load several of them share one write.
//!
//! Guarantee: each caller gets the result of its own item. If a batch fails because of one bad
//! item, the items are written one by one, so that the others do not fail with it. A caller whose
//! `given_up` ends before its batch is formed takes its item back, and then it is certainly not
//! written ([`GroupCommit::write_unless`]). Dropping the future of a write does not take a queued
//! item back: it is written, and nobody learns its result.

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use runtime::{Shutdown, lock};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{batcher::next_batch, trace};

/// The task that writes has panicked. Whether the item was written is unknown, and the process
/// stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterPanicked;

/// What a group commit writes, and how. The results match the items one to one. The implementations
/// are `InsertAndAnnounce` of ingress, `Settlements` of the provisioner, and `AttemptRecorder`
/// and `WithoutUrl` of the notifier.
pub trait BatchWriter: Send + Sync + 'static {
    /// The name of the writer's task.
    const NAME: &'static str;
    /// Operation and table of a write, for its span.
    const STATEMENT: (&'static str, &'static str);
    type Item: Send + Sync + 'static;
    type Output: Send + 'static;
    type Error: Clone + Send + 'static;

    /// Writes all items or none.
    fn write(
        &self,
        items: &[Self::Item],
    ) -> impl Future<Output = Result<Vec<Self::Output>, Self::Error>> + Send;

    /// Whether a delay of this item holds nothing up, so that it may wait for others to share a
    /// write.
    fn can_wait(_item: &Self::Item) -> bool {
        false
    }

    /// Whether one item may have caused the error, so that writing the others alone is worth a try.
    fn one_is_at_fault(error: &Self::Error) -> bool;
}

/// How long an item that can wait waits for others.
const LINGER: Duration = Duration::from_millis(25);
/// As many items as this are worth a write of their own.
const LINGER_ITEMS: usize = 32;
/// The first pause before a failed write is tried again ([`GroupCommit::write_while`]). Each
/// further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// An entry of the queue.
struct Entry<W: BatchWriter> {
    item: Queued<W::Item>,
    can_wait: bool,
    answer: oneshot::Sender<Written<W>>,
}

/// An item that is either taken by the writer, which writes it, or taken back by the caller, which
/// drops it. The lock decides which, so that it cannot be both.
type Queued<T> = Arc<Mutex<Option<T>>>;

fn take<T>(item: &Queued<T>) -> Option<T> {
    lock(item).take()
}

/// The result of an item, and the number of items written with it.
type Written<W> = (
    Result<<W as BatchWriter>::Output, <W as BatchWriter>::Error>,
    usize,
);

/// A handle to the writer. Clones share the writer.
pub struct GroupCommit<W: BatchWriter> {
    queue: mpsc::Sender<Entry<W>>,
}

impl<W: BatchWriter> Clone for GroupCommit<W> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
        }
    }
}

impl<W: BatchWriter> GroupCommit<W> {
    /// Starts the writer. It ends when the last clone of the handle is dropped. A batch has at most
    /// `max_batch` items, and four times as many wait in the queue; further callers wait for room.
    /// If the writer panics, the process stops with an error.
    pub fn start(writer: W, max_batch: usize, shutdown: &Shutdown) -> Self {
        let (queue, entries) = mpsc::channel(max_batch * 4);
        shutdown.supervise(W::NAME, run(writer, entries, max_batch));
        Self { queue }
    }

    /// Writes one item together with everything else in the queue.
    pub async fn write(
        &self,
        item: W::Item,
    ) -> Result<Result<W::Output, W::Error>, WriterPanicked> {
        self.write_unless(item, std::future::pending())
            .await?
            .ok_or(WriterPanicked)
    }

    /// Writes one item, and again for as long as `again` accepts the error, for example because the
    /// database is away. A stop ends the pause between two writes, so that there is one last one.
    pub async fn write_while(
        &self,
        item: &W::Item,
        stop: &CancellationToken,
        mut again: impl FnMut(&W::Error) -> bool,
    ) -> Result<Result<W::Output, W::Error>, WriterPanicked>
    where
        W::Item: Clone,
    {
        let mut pause = FIRST_PAUSE;
        loop {
            let written = self.write(item.clone()).await?;
            match written {
                Err(error) if !stop.is_cancelled() && again(&error) => {}
                written => return Ok(written),
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Like [`GroupCommit::write`], but takes the item out of the queue if `given_up` ends before
    /// its batch is formed. The result is then `None`, and the item is never written.
    pub async fn write_unless(
        &self,
        item: W::Item,
        given_up: impl Future<Output = ()>,
    ) -> Result<Option<Result<W::Output, W::Error>>, WriterPanicked> {
        let can_wait = W::can_wait(&item);
        let item = Arc::new(Mutex::new(Some(item)));
        let (answer, mut written) = oneshot::channel();
        let (operation, table) = W::STATEMENT;
        let span = trace::statement(operation, table);
        let writing = async {
            let mut given_up = pin!(given_up);
            tokio::select! {
                queued = self.queue.send(Entry {
                    item: Arc::clone(&item),
                    can_wait,
                    answer,
                }) => queued.map_err(|_| WriterPanicked)?,
                () = &mut given_up => return Ok(None),
            }
            tokio::select! {
                result = &mut written => return result.map(Some).map_err(|_| WriterPanicked),
                () = &mut given_up => {}
            }
            // Whoever takes the item decides what becomes of it. If the writer was first, the item
            // is part of a batch, so its result must be awaited although the caller has given up.
            match take(&item) {
                Some(_) => Ok(None),
                None => written.await.map(Some).map_err(|_| WriterPanicked),
            }
        };
        let Some((result, together)) = writing.instrument(span.clone()).await? else {
            return Ok(None);
        };
        trace::executed(&span, together, result.is_err());
        Ok(Some(result))
    }
}

/// The loop of the writer.
async fn run<W: BatchWriter>(writer: W, mut entries: mpsc::Receiver<Entry<W>>, max_batch: usize) {
    let mut batch = Vec::with_capacity(max_batch);
    while next_batch(&mut entries, &mut batch, max_batch).await {
        if batch.iter().all(|entry| entry.can_wait) {
            linger(&mut entries, &mut batch, max_batch).await;
        }
        let wanted = |entry: Entry<W>| Some((take(&entry.item)?, entry.answer));
        let (items, answers): (Vec<_>, Vec<_>) = batch.drain(..).filter_map(wanted).unzip();
        if items.is_empty() {
            continue;
        }
        let results = write_batch(&writer, &items).await;
        let together = items.len();
        for (answer, result) in answers.into_iter().zip(results) {
            // The caller may be gone by now. Its item is written all the same.
            let _ = answer.send((result, together));
        }
    }
}

/// Adds items to a batch until it is worth a write, an item comes that cannot wait, or [`LINGER`]
/// has passed.
async fn linger<W: BatchWriter>(
    entries: &mut mpsc::Receiver<Entry<W>>,
    batch: &mut Vec<Entry<W>>,
    max_batch: usize,
) {
    let end = Instant::now() + LINGER;
    while batch.len() < LINGER_ITEMS.min(max_batch) {
        let Ok(Some(entry)) = timeout_at(end, entries.recv()).await else {
            return;
        };
        let can_wait = entry.can_wait;
        batch.push(entry);
        if !can_wait {
            return;
        }
    }
}

/// Writes a batch, or its items one by one if one of them may have caused an error. Returns one
/// result for each item.
async fn write_batch<W: BatchWriter>(
    writer: &W,
    items: &[W::Item],
) -> Vec<Result<W::Output, W::Error>> {
    match write_together(writer, items).await {
        Ok(outputs) => outputs.into_iter().map(Ok).collect(),
        Err(error) if items.len() > 1 && W::one_is_at_fault(&error) => {
            let mut results = Vec::with_capacity(items.len());
            for item in items {
                let alone = write_together(writer, std::slice::from_ref(item)).await;
                match alone {
                    Ok(outputs) => results.extend(outputs.into_iter().map(Ok)),
                    Err(error) => results.push(Err(error)),
                }
            }
            results
        }
        Err(error) => items.iter().map(|_| Err(error.clone())).collect(),
    }
}

/// Writes items together. A writer that has not one result for each item is out of order: each
/// caller might get the result of another one. So it panics, which ends the process, and no caller
/// gets a result.
async fn write_together<W: BatchWriter>(
    writer: &W,
    items: &[W::Item],
) -> Result<Vec<W::Output>, W::Error> {
    let outputs = writer.write(items).await?;
    assert_eq!(outputs.len(), items.len(), "one result for each item");
    Ok(outputs)
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    /// Doubles numbers, refuses 13, forgets 777, and records the batches it saw.
    struct Doubler {
        gate: Arc<Semaphore>,
        batches: Arc<Mutex<Vec<usize>>>,
    }

    impl BatchWriter for Doubler {
        const NAME: &'static str = "commit-numbers";
        const STATEMENT: (&'static str, &'static str) = ("INSERT", "numbers");
        type Item = u32;
        type Output = u32;
        type Error = &'static str;

        async fn write(&self, items: &[u32]) -> Result<Vec<u32>, &'static str> {
            let _turn = self.gate.acquire().await.unwrap();
            self.batches.lock().unwrap().push(items.len());
            if items.contains(&13) {
                return Err("unlucky");
            }
            assert!(!items.contains(&666), "as asked");
            if items.contains(&0) {
                return Err("down");
            }
            let counted = items.iter().filter(|item| **item != 777);
            Ok(counted.map(|item| item * 2).collect())
        }

        fn can_wait(item: &u32) -> bool {
            *item >= 1_000
        }

        fn one_is_at_fault(error: &&'static str) -> bool {
            *error == "unlucky"
        }
    }

    /// A group commit whose writes wait at the gate.
    fn doubler(most: usize) -> (GroupCommit<Doubler>, Arc<Semaphore>, Arc<Mutex<Vec<usize>>>) {
        let gate = Arc::new(Semaphore::new(0));
        let batches = Arc::default();
        let doubler = Doubler {
            gate: Arc::clone(&gate),
            batches: Arc::clone(&batches),
        };
        (
            GroupCommit::start(doubler, most, &Shutdown::new()),
            gate,
            batches,
        )
    }

    async fn write_all(items: &[u32]) -> (Vec<Result<u32, &'static str>>, Vec<usize>) {
        let (commit, gate, batches) = doubler(100);
        let writes: Vec<_> = items
            .iter()
            .map(|item| {
                let commit = commit.clone();
                let item = *item;
                tokio::spawn(async move { commit.write(item).await.unwrap() })
            })
            .collect();
        tokio::task::yield_now().await;
        gate.add_permits(1);
        let mut results = Vec::new();
        for write in writes {
            results.push(write.await.unwrap());
        }
        (results, batches.lock().unwrap().clone())
    }

    #[tokio::test]
    async fn what_queues_is_written_together_and_one_bad_item_fails_alone() {
        for (items, expected, most) in [
            ([1, 2, 3], [Ok(2), Ok(4), Ok(6)], 2),
            ([0, 0, 0], [Err("down"); 3], 2),
            ([1, 13, 3], [Ok(2), Err("unlucky"), Ok(6)], 4),
        ] {
            let (results, batches) = write_all(&items).await;
            assert_eq!(results, expected);
            assert!(batches.len() <= most, "{batches:?}");
        }
    }

    #[tokio::test]
    async fn an_item_that_can_wait_is_written_with_the_next_one_that_cannot() {
        let (commit, gate, batches) = doubler(100);
        gate.add_permits(9);
        let write = |item| {
            let commit = commit.clone();
            tokio::spawn(async move { commit.write(item).await })
        };
        let patient = write(1_000);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(batches.lock().unwrap().is_empty(), "it lingers");
        assert_eq!(write(1).await.unwrap(), Ok(Ok(2)));
        assert_eq!(patient.await.unwrap(), Ok(Ok(2_000)));
        assert_eq!(*batches.lock().unwrap(), [2]);

        // Alone, it is written soon.
        assert_eq!(write(1_001).await.unwrap(), Ok(Ok(2_002)));
        assert_eq!(*batches.lock().unwrap(), [2, 1]);
    }

    #[tokio::test]
    async fn an_item_is_given_up_only_while_it_is_queued() {
        let (commit, gate, batches) = doubler(1);
        let (give_up_first, first) = oneshot::channel::<()>();
        let writing = tokio::spawn({
            let commit = commit.clone();
            async move { commit.write_unless(1, async { drop(first.await) }).await }
        });
        // One thread runs all tasks: now the writer holds the first item and waits at the gate.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(commit.write_unless(2, async {}).await, Ok(None));
        assert_eq!(
            commit.write_unless(3, tokio::task::yield_now()).await,
            Ok(None)
        );
        give_up_first.send(()).unwrap();
        tokio::task::yield_now().await;
        gate.add_permits(1);
        assert_eq!(writing.await.unwrap(), Ok(Some(Ok(2))));
        assert_eq!(commit.write(4).await, Ok(Ok(8)));
        assert_eq!(*batches.lock().unwrap(), [1, 1]);
    }

    #[tokio::test]
    async fn a_writer_with_too_few_results_answers_nobody_and_ends_the_process() {
        for items in [&[777][..], &[1, 777, 3], &[13, 777]] {
            let gate = Arc::new(Semaphore::new(9));
            let shutdown = Shutdown::new();
            let batches = Arc::default();
            let commit = GroupCommit::start(Doubler { gate, batches }, 100, &shutdown);
            let writes = items.iter().map(|item| commit.write(*item));
            let results = futures_util::future::join_all(writes).await;
            assert!(results.iter().all(Result::is_err), "{items:?}: {results:?}");
            assert!(shutdown.finished().await.is_err());
        }
    }

    #[tokio::test]
    async fn a_writer_that_panics_ends_the_process_with_an_error() {
        let gate = Arc::new(Semaphore::new(9));
        let batches = Arc::default();
        let shutdown = Shutdown::new();
        let commit = GroupCommit::start(Doubler { gate, batches }, 100, &shutdown);
        assert_eq!(commit.write(1).await, Ok(Ok(2)));
        assert_eq!(commit.write(666).await, Err(WriterPanicked));
        shutdown.soft().cancelled().await;
        assert_eq!(commit.write(1).await, Err(WriterPanicked));
        let failure = shutdown.finished().await.unwrap_err();
        assert!(
            failure.to_string().contains("commit-numbers panicked"),
            "{failure}"
        );
    }
}
