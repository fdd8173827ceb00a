//! Batcher: nothing that was queued is lost or sent twice, each caller's items keep their order,
//! and a stop waits for all of them.

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use super::{Log, choose};
use crate::{Batcher, Shutdown};

const CALLERS: usize = 3;
const ITEMS: usize = 3;

pub fn a_stop_waits_until_each_item_is_sent_once_and_in_order() {
    super::run(async {
        let sent = Log::new();
        let (ends, ended) = oneshot::channel::<()>();
        let ends = std::sync::Arc::new(ends);
        let unsent = TaskTracker::new();
        let most = choose(4);
        let kept = sent.clone();
        let batcher = Batcher::start(
            "test",
            most,
            unsent.clone(),
            &Shutdown::new(),
            move |batch: Vec<(usize, usize)>| {
                assert!(batch.len() <= most, "a batch of {}", batch.len());
                let kept = kept.clone();
                let ends = std::sync::Arc::clone(&ends);
                async move {
                    tokio::task::yield_now().await;
                    for item in batch {
                        kept.add(item);
                    }
                    drop(ends);
                }
            },
        );
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let batcher = batcher.clone();
                tokio::spawn(async move {
                    for item in 0..ITEMS {
                        batcher.push((caller, item));
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        unsent.close();
        unsent.wait().await;
        let sent = sent.all();
        assert_eq!(sent.len(), CALLERS * ITEMS);
        for caller in 0..CALLERS {
            let own: Vec<usize> = sent
                .iter()
                .filter(|item| item.0 == caller)
                .map(|item| item.1)
                .collect();
            assert_eq!(own, (0..ITEMS).collect::<Vec<_>>());
        }
        drop(batcher);
        ended.await.unwrap_err();
    });
}
