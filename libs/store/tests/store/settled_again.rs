//! A settlement that is repeated, by the process that does not know what its first writing has
//! made, or by another process that has fetched the same profiles.

use domain::TopupId;
use store::placements::{Progress, SettledUnit};
use uuid::Uuid;

use crate::bench::{
    Bench, bought, fresh, not_bought, not_found, placement, ready, rejected, topups, unknown,
};

/// The profile of a topup as another process has fetched it, with a delivery id of its own.
pub fn ready_elsewhere(topup: &TopupId) -> SettledUnit {
    let mut unit = ready(topup);
    if let Progress::Ready(profile) = &mut unit.progress {
        profile.delivery_id = Uuid::now_v7().into();
    }
    unit
}

#[tokio::test]
async fn a_repeated_settlement_changes_nothing() {
    let bench = Bench::new().await;
    let order = bench.placing(2).await;
    let units: Vec<SettledUnit> = topups(&order).iter().map(ready).collect();
    let purchase = [bought(placement(&order), 1, units, true)];
    assert_eq!(bench.settle(&purchase).await[0].ready.len(), 2);
    let before = bench.everything(order.order_id).await;
    // The process that repeats a settlement does not know yet what the first writing of it has
    // made, so it is told once more.
    for repeated in [
        purchase.clone(),
        purchase.map(|purchase| fresh(&order, purchase)),
    ] {
        assert_eq!(bench.settle(&repeated).await[0].ready.len(), 2);
        assert_eq!(bench.everything(order.order_id).await, before);
    }
    let units = topups(&order).iter().map(ready_elsewhere).collect();
    let other = [bought(placement(&order), 1, units, true)];
    assert!(bench.settle(&other).await[0].ready.is_empty());
    assert_eq!(bench.everything(order.order_id).await, before);
    for late in [
        not_bought(placement(&order), 1),
        rejected(placement(&order), 1),
        unknown(placement(&order), 1),
        not_found(placement(&order), 1, true),
        not_found(placement(&order), 1, true),
    ] {
        assert!(!bench.settle(&[late]).await[0].moved);
        assert_eq!(bench.everything(order.order_id).await, before);
    }
}

#[tokio::test]
async fn two_processes_that_settle_one_purchase_make_one_delivery() {
    let bench = Bench::new().await;
    for _ in 0..40 {
        let order = bench.placing(2).await;
        let units = topups(&order).iter().map(ready).collect();
        let purchase = [bought(placement(&order), 1, units, true)];
        let units = topups(&order).iter().map(ready_elsewhere).collect();
        let seen_by_other = [bought(placement(&order), 1, units, true)];
        let (one, other) = tokio::join!(bench.settle(&purchase), bench.settle(&seen_by_other));
        assert_eq!(one[0].ready.len() + other[0].ready.len(), 2);
        for topup in topups(&order) {
            assert_eq!(
                bench.states(&topup).await,
                ("ready".into(), "pending".into())
            );
        }
    }
}
