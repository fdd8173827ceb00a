//! A webhook that is sent again while it is pending, whose retries begin anew.

use desk::self_service::SentAgain;
use store::deliveries::AttemptResult;

use crate::bench::{Bench, delivery_id};
use crate::deliveries::{attempted, failure};
use crate::self_service::LONG_AGO;

/// A retry is due, but it is the last one of its schedule. The partner asks for a redelivery, which
/// begins the schedule anew without another attempt, and says so in the record.
#[tokio::test]
async fn a_redelivery_begins_the_retries_anew_although_one_is_due() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://example.com/hook")).await;
    let topup = bench.deliveries(partner, 1, false).await.remove(0);
    let failed = "UPDATE deliveries SET attempt = 7, schedule_start = 0 WHERE topup_id = $1";
    bench.set(failed, &topup).await;
    let start = "SELECT schedule_start::bigint FROM deliveries WHERE topup_id = $1";
    let recorded = "SELECT count(*) FROM operator_actions WHERE target = 'topup ' || $1";
    // Within the interval a partner would otherwise keep its webhook at the short first waits.
    assert_eq!(bench.redeliver(partner, &topup).await, SentAgain::Due);
    assert_eq!(bench.value::<i64>(start, &topup).await, 0);
    bench.set(LONG_AGO, &topup).await;
    assert_eq!(bench.redeliver(partner, &topup).await, SentAgain::Again);
    assert_eq!(bench.value::<i64>(start, &topup).await, 7);
    assert_eq!(bench.redeliver(partner, &topup).await, SentAgain::Due);
    assert_eq!(bench.value::<i64>(recorded, &topup).await, 1);
}

/// The attempt that is in flight while the schedule begins anew may be the last one of the old
/// schedule. If it fails, it is the first one of the new schedule, so the partner gets what it has
/// asked for: the webhook is tried again.
#[tokio::test]
async fn the_last_attempt_that_fails_after_a_redelivery_is_the_first_of_new_retries() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://example.com/hook")).await;
    let topup = bench.deliveries(partner, 1, false).await.remove(0);
    let last = "UPDATE deliveries SET attempt = 7, schedule_start = 0 WHERE topup_id = $1";
    bench.set(last, &topup).await;
    bench.set(LONG_AGO, &topup).await;
    assert_eq!(bench.redeliver(partner, &topup).await, SentAgain::Again);
    let id = delivery_id(&topup);
    bench.record(&[attempted(id, 7, failure(None))]).await;
    let state = "SELECT state FROM deliveries WHERE topup_id = $1";
    assert_eq!(bench.value::<String>(state, &topup).await, "pending");
    let due = "SELECT extract(epoch FROM w.at - now())::bigint FROM work w
               JOIN deliveries d ON d.delivery_id = w.id WHERE d.topup_id = $1";
    assert!((3500..=3600).contains(&bench.value::<i64>(due, &topup).await));
    // The attempts of the new schedule know it, and the last of them ends it.
    let mut end = attempted(id, 8, failure(None));
    end.schedule_start = 7;
    bench.record(&[end]).await;
    assert_eq!(bench.value::<String>(state, &topup).await, "exhausted");
}

/// A result that is recorded twice, because the answer of the database was lost, ends no redelivery
/// that somebody has asked for in between.
#[tokio::test]
async fn an_acknowledgement_that_is_recorded_again_ends_no_redelivery() {
    let bench = Bench::new().await;
    let partner = bench.partner(Some("https://example.com/hook")).await;
    let topup = bench.deliveries(partner, 1, false).await.remove(0);
    let acknowledged = [attempted(delivery_id(&topup), 0, AttemptResult::Delivered)];
    bench.record(&acknowledged).await;
    bench.set(LONG_AGO, &topup).await;
    assert_eq!(bench.redeliver(partner, &topup).await, SentAgain::Again);
    bench.record(&acknowledged).await;
    let state = "SELECT state FROM deliveries WHERE topup_id = $1";
    assert_eq!(bench.value::<String>(state, &topup).await, "pending");
    let due = "SELECT count(*) FROM work w JOIN deliveries d ON d.delivery_id = w.id WHERE d.topup_id = $1";
    assert_eq!(bench.value::<i64>(due, &topup).await, 1);
}
