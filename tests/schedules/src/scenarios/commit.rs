//! Group commit: each caller gets the result of its own item, an item is written once, and one that
//! was given up is written never. A bad item fails alone, and a caller that goes away takes nobody
//! with it.

use tokio::sync::oneshot;

use super::{Log, choose, timeouts_end};
use crate::{
    Shutdown,
    group_commit::{BatchWriter, GroupCommit},
};

const BAD: usize = 13;

/// Doubles numbers, and refuses a batch with [`BAD`].
struct Doubler {
    most: usize,
    written: Log<usize>,
    _ends: oneshot::Sender<()>,
}

impl BatchWriter for Doubler {
    const NAME: &'static str = "commit-numbers";
    const STATEMENT: (&'static str, &'static str) = ("INSERT", "numbers");
    type Item = usize;
    type Output = usize;
    type Error = &'static str;

    async fn write(&self, items: &[usize]) -> Result<Vec<usize>, &'static str> {
        assert!(items.len() <= self.most, "a batch of {}", items.len());
        tokio::task::yield_now().await;
        if items.contains(&BAD) {
            return Err("unlucky");
        }
        for item in items {
            self.written.add(*item);
        }
        Ok(items.iter().map(|item| item * 2).collect())
    }

    fn can_wait(item: &usize) -> bool {
        *item >= 1_000
    }

    fn one_is_at_fault(_: &&'static str) -> bool {
        true
    }
}

pub fn each_item_is_written_once_or_given_up() {
    super::run(async {
        let written = Log::new();
        let (ends, ended) = oneshot::channel();
        let most = choose(3);
        let doubler = Doubler {
            most,
            written: written.clone(),
            _ends: ends,
        };
        let commit = GroupCommit::start(doubler, most, &Shutdown::new());
        let write = |item| {
            let commit = commit.clone();
            tokio::spawn(async move { commit.write(item).await })
        };
        let good = [1, 2, 3, 1_000, 1_001].map(|item| (item, write(item)));
        let bad = write(BAD);
        let (give_up, given_up) = oneshot::channel::<()>();
        let unsure = tokio::spawn({
            let commit = commit.clone();
            async move { commit.write_unless(5, async { drop(given_up.await) }).await }
        });
        let giving_up = tokio::spawn(async move { drop(give_up) });
        let gone = write(6);
        let leaving = tokio::spawn(async move { gone.abort() });
        let late = timeouts_end();
        drop(commit);

        for (item, written) in good {
            assert_eq!(written.await.unwrap(), Ok(Ok(item * 2)));
        }
        assert_eq!(bad.await.unwrap(), Ok(Err("unlucky")));
        let unsure = unsure.await.unwrap();
        for task in [giving_up, leaving, late] {
            task.await.unwrap();
        }
        // The writer has ended, so nothing is written any more.
        ended.await.unwrap_err();
        for item in [1, 2, 3, 1_000, 1_001] {
            assert_eq!(written.count(&item), 1, "{item}");
        }
        match unsure {
            Ok(Some(result)) => assert_eq!((result, written.count(&5)), (Ok(10), 1)),
            Ok(None) => assert_eq!(written.count(&5), 0, "it was given up"),
            Err(closed) => panic!("{closed:?}"),
        }
        assert!(written.count(&6) <= 1);
        assert_eq!(written.count(&BAD), 0);
    });
}
