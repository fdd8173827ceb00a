//! The walk over all crash points. Each effect of a process, such as a commit, a publish or a call,
//! has two points: right before it and right after it. At each point the process dies while orders
//! arrive, and is started again. Whatever happens, nothing may be bought twice and nothing lost.
//!
//! The walk needs binaries with fail points. `tests/run crash` builds them into a folder of their
//! own, so that they are never mixed up with the others.
//!
//! One system walks through all points. What a crash leaves behind is found as due work while the
//! later points are visited. At the end three ledgers are compared with the database: the answers
//! that partners got, the sandbox's purchases and give-backs, and the webhooks that the receiver
//! got.
//!
//! Unlike the fault run (`tests/faults`), which kills processes at random moments, this test
//! reaches every point, but only one at a time.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod ledgers;
mod walk;

use crate::walk::Walk;
use pipeline::effect::Point;
use std::time::Instant;

/// The whole walk, with the protocol of the sandbox or of `CRASH_PROVIDER`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs binaries with fail points: tests/run crash"]
async fn whatever_dies_anywhere_nothing_is_bought_twice_and_nothing_lost() {
    let provider = std::env::var("CRASH_PROVIDER").unwrap_or_else(|_| "sandbox".into());
    walk(&provider, Point::all()).await;
}

/// The points around the calls to the provider, with the other protocols. The other points do not
/// know which protocol is spoken. A refund of Zendit is carried out later and settled by looks, so
/// only the whole walk waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs binaries with fail points: tests/run crash"]
async fn whatever_dies_around_a_call_to_another_provider_nothing_is_bought_twice_and_nothing_lost()
{
    let of_purchases = |point: &Point| Walk::concerns_provider(point) && !Walk::changes_esim(point);
    tokio::join!(
        walk("esim-access", Point::all().filter(Walk::concerns_provider)),
        walk("airalo", Point::all().filter(Walk::concerns_provider)),
        walk("zendit", Point::all().filter(of_purchases)),
    );
}

async fn walk(provider: &str, points: impl Iterator<Item = Point>) {
    let mut walk = Walk::begin(provider).await.unwrap();
    let mut wrong = Vec::new();
    for point in points {
        if walk.never_reaches(point) {
            continue;
        }
        let began = Instant::now();
        match walk.die_at(point).await {
            Ok(waves) => println!(
                "{provider}: {point:<28} {waves} waves, {:?}",
                began.elapsed()
            ),
            Err(error) => {
                println!("{provider}: {point:<28} {error:#}");
                wrong.push(format!("{point}: {error:#}"));
            }
        }
    }
    walk.settle_unanswered().await.unwrap();
    walk.give_urls().await.unwrap();
    wrong.extend(ledgers::compare(&walk).await.unwrap());
    wrong.extend(ledgers::given_back(&walk).await.unwrap());
    wrong.extend(ledgers::extended(&walk).await.unwrap());
    wrong.extend(ledgers::suspended(&walk).await.unwrap());
    assert!(
        wrong.is_empty(),
        "{provider}: {} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
