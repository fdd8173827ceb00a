//! The walk over all crash points: a process dies right before and right after each of its effects and starts
//! again; nothing is bought twice or lost.
//!
//! It needs binaries with fail points; `tests/run crash` builds them into a separate folder.
//!
//! One system walks through all points while orders continue; rows left behind are found as due work during later points.
//! At the end three ledgers are compared: partners' responses, the sandbox's purchases, the receiver's webhooks.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod ledgers;
mod walk;

use crate::walk::Walk;
use pipeline::effect::Point;
use std::time::Instant;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs binaries with fail points: tests/run crash"]
async fn whatever_dies_anywhere_nothing_is_bought_twice_and_nothing_lost() {
    let mut walk = Walk::begin().await.unwrap();
    let mut wrong = Vec::new();
    for point in Point::all() {
        let began = Instant::now();
        match walk.die_at(point).await {
            Ok(waves) => println!("{point:<28} {waves} waves, {:?}", began.elapsed()),
            Err(error) => {
                println!("{point:<28} {error:#}");
                wrong.push(format!("{point}: {error:#}"));
            }
        }
    }
    walk.settle_unanswered().await.unwrap();
    walk.give_urls().await.unwrap();
    wrong.extend(ledgers::compare(&walk).await.unwrap());
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
