//! Claims of placements: a placement is claimed by one process only, its attempt is recorded before
//! anything is sent, and a lease keeps other processes away until it ends.

use std::{collections::HashSet, time::Duration};

use domain::{PartnerId, PlacementId, PlacementState};
use sqlx::Connection;
use store::orders::NewOrder;
use store::placements::{
    self, Activity, ClaimedPlacement, ClaimedTopup, DeferredPlacement, PlacementClaim, Progress,
};
use store::work::WorkLook;
use testkit::wait;

use crate::bench::{
    Bench, LEASE, PROVIDER, bought, bought_pending, disputed, execute, not_bought, not_found,
    order, order_of, parked, part, placement, ready, rejected, unit, unknown,
};

const PATIENCE: Duration = Duration::from_secs(20);

impl Bench {
    /// Stored placements that have been due for 1, 2, 3, … minutes.
    async fn due(&self, count: usize) -> Vec<PlacementId> {
        let orders: Vec<NewOrder> = (0..count).map(|_| order(PartnerId::new(), 1)).collect();
        self.store(&orders).await;
        let placements: Vec<PlacementId> = orders.iter().map(placement).collect();
        for (placement, seconds) in placements
            .iter()
            .zip([-60.0, -120.0, -180.0, -240.0, -300.0])
        {
            self.due_in(&[*placement], seconds).await;
        }
        self.due_in(placements.get(5..).unwrap_or_default(), -60.0)
            .await;
        placements
    }
}

fn ids(claimed: &[ClaimedPlacement]) -> HashSet<PlacementId> {
    claimed.iter().map(|one| one.placement_id).collect()
}

#[tokio::test]
async fn what_is_due_is_claimed_once_by_its_provider() {
    let bench = Bench::new().await;
    let placements = bench.due(5).await;
    let elsewhere = order_of(vec![part("elsewhere", &[0])]);
    // One that is not due yet, and one of another provider.
    let later = order(PartnerId::new(), 1);
    bench.store(&[later.clone(), elsewhere.clone()]).await;
    bench.due_in(&[placement(&later)], 60.0).await;
    bench.due_in(&[placement(&elsewhere)], 0.0).await;
    assert!(bench.claim_due(PROVIDER, 0).await.is_empty());
    assert_eq!(
        ids(&bench.claim_due(PROVIDER, 10).await),
        placements.into_iter().collect()
    );
    assert!(bench.claim_due(PROVIDER, 10).await.is_empty(), "leased");
    assert_eq!(
        ids(&bench.claim_due("elsewhere", 10).await),
        HashSet::from([placement(&elsewhere)])
    );
}

#[tokio::test]
async fn a_claim_that_fails_after_its_leases_gives_them_back() {
    let bench = Bench::new().await;
    let due = bench.due(2).await;
    let claim = PlacementClaim::Due(Activity::Purchases);
    // The leases can be taken, and no attempt can be recorded.
    bench
        .sql("ALTER TABLE placements RENAME unknowns TO hidden")
        .await;
    let mut connection = bench.connection().await;
    let claimed = placements::claim(&mut connection, PROVIDER, &due, claim, LEASE).await;
    assert!(claimed.is_err());
    bench
        .sql("ALTER TABLE placements RENAME hidden TO unknowns")
        .await;
    assert_eq!(
        bench.claim_due(PROVIDER, 9).await.len(),
        2,
        "nobody uses the leases"
    );
}

#[tokio::test]
async fn no_placement_is_taken_up_twice() {
    const CLAIMERS: usize = 8;
    let bench = Bench::new().await;
    let all: HashSet<PlacementId> = bench.due(500).await.into_iter().collect();
    let claimers = (0..CLAIMERS).map(|_| async {
        let mut mine = Vec::new();
        let mut after = None;
        let mut connection = bench.connection().await;
        let due = PlacementClaim::Due(Activity::Purchases);
        loop {
            let look = WorkLook {
                limit: 7,
                rows_per_queue: 7,
                after: after.take(),
                ..WorkLook::default()
            };
            let found = placements::due(&mut connection, PROVIDER, Activity::Purchases, &look)
                .await
                .unwrap();
            after = found.after;
            let found: Vec<_> = found.due.into_iter().map(|one| one.id).collect();
            if found.is_empty() && after.is_none() {
                return mine;
            }
            let claimed = placements::claim(&mut connection, PROVIDER, &found, due, LEASE).await;
            let claimed = claimed.unwrap();
            assert!(claimed.len() <= 7);
            mine.extend(claimed.iter().map(|one| {
                assert_eq!((one.was, one.attempt), (PlacementState::Accepted, 1));
                one.placement_id
            }));
        }
    });
    let taken = futures_util::future::join_all(claimers).await.concat();
    assert_eq!(taken.len(), 500);
    assert_eq!(taken.into_iter().collect::<HashSet<_>>(), all);
}

#[tokio::test]
async fn repeated_messages_buy_nothing_twice() {
    let bench = Bench::new().await;
    for round in 1..=20 {
        let named = bench.due(20).await;
        let backwards: Vec<_> = named.iter().rev().copied().collect();
        // Two replicas have the same messages while a third claims due rows.
        let (one, other, third) = tokio::join!(
            bench.claim(&named),
            bench.claim(&backwards),
            bench.claim_due(PROVIDER, 20),
        );
        // A row that the third has leased but that others have claimed is in flight elsewhere.
        let one = ids(&one);
        let other = ids(&other);
        let third = ids(&third);
        assert_eq!(one.len() + other.len() + third.len(), 20);
        assert_eq!(&(&one | &other) | &third, named.iter().copied().collect());
        // A message that comes once more, after all of them.
        assert!(bench.claim(&named).await.is_empty());
        let begun = "SELECT count(*) FROM placements WHERE state = 'placing' AND attempt = 1";
        let begun: i64 = sqlx::query_scalar(begun)
            .fetch_one(&mut *bench.connection().await)
            .await
            .unwrap();
        assert_eq!(begun, 20 * round);
    }
}

#[tokio::test]
async fn what_another_has_locked_is_left_to_it() {
    let bench = Bench::new().await;
    let placements = bench.due(3).await;
    let mut other = bench.database.connect().await.unwrap();
    let mut held = other.begin().await.unwrap();
    let lock = format!(
        "SELECT FROM placements WHERE placement_id = '{}' FOR UPDATE",
        placements[2]
    );
    execute(&mut held, &lock).await;
    let rest = tokio::time::timeout(PATIENCE, async {
        let mut rest = ids(&bench.claim(&placements[..1]).await);
        rest.extend(ids(&bench.claim_due(PROVIDER, 3).await));
        rest
    });
    assert_eq!(
        rest.await.unwrap(),
        placements[..2].iter().copied().collect()
    );
    held.rollback().await.unwrap();
    bench.due_in(&placements[2..], 0.0).await;
    assert_eq!(
        ids(&bench.claim_due(PROVIDER, 3).await),
        HashSet::from([placements[2]])
    );
}

/// A look-up waits for its permit while another process makes it and finds no purchase. The same
/// row is due to buy again then, for which there has to be a permit of purchases.
#[tokio::test]
async fn who_waited_to_look_up_buys_nothing() {
    let bench = Bench::new().await;
    let named = [placement(&bench.placing(1).await)];
    bench.settle(&[unknown(named[0], 1)]).await;
    bench.due_in(&named, 0.0).await;
    let waiting = bench.find_due(PROVIDER, 1).await;
    assert_eq!(waiting, named);

    for after_delay in [false, true] {
        bench.settle(&[not_found(named[0], 1, after_delay)]).await;
    }
    bench.due_in(&named, 0.0).await;
    let look_up = bench.claim_as(PROVIDER, &waiting, PlacementClaim::Due(Activity::LookUps));
    assert_eq!(ids(&look_up.await), HashSet::new());
    let purchase = bench.claim_as(PROVIDER, &named, PlacementClaim::Due(Activity::Purchases));
    let purchase = purchase.await;
    assert_eq!(purchase.len(), 1, "the look-up has taken no lease");
    assert_eq!(
        (purchase[0].was, purchase[0].attempt),
        (PlacementState::Accepted, 2)
    );
}

#[tokio::test]
async fn a_message_takes_up_only_what_is_accepted() {
    let bench = Bench::new().await;
    let orders: Vec<NewOrder> = (0..6).map(|_| order(PartnerId::new(), 1)).collect();
    bench.store(&orders).await;
    let mut named: Vec<PlacementId> = orders.iter().map(placement).collect();
    bench.claim(&named[..5]).await;
    bench
        .settle(&[
            bought_pending(named[1], 1),
            rejected(named[2], 1),
            parked(named[3], 1),
            rejected(named[4], 1),
        ])
        .await;
    assert!(bench.refuse(&orders[4]).await.is_some());
    named.extend([PlacementId::new(), named[5]]);
    let claimed = bench.claim(&named).await;
    assert_eq!(claimed.len(), 1, "{claimed:?}");
    assert_eq!(claimed[0].placement_id, named[5]);
}

#[tokio::test]
async fn a_lease_ends_and_then_nothing_is_bought_again() {
    let bench = Bench::new().await;
    let named = bench.due(1).await;
    let mut connection = bench.connection().await;
    let first = bench.claim(&named).await;
    assert_eq!(
        (first[0].was, first[0].attempt),
        (PlacementState::Accepted, 1)
    );
    // In flight until the lease of its attempt ends: put off, not looked at.
    assert!(bench.claim_due(PROVIDER, 1).await.is_empty());
    let sql = "SELECT extract(epoch FROM at - now())::float8 FROM work WHERE id::text = $1";
    let left: f64 = bench.value(sql, named[0]).await;
    assert!((590.0..=600.0).contains(&left), "{left}");
    for _ in 0..2 {
        bench.due_in(&named, 0.0).await;
        let found = bench.find_due(PROVIDER, 1).await;
        let due = PlacementClaim::Due(Activity::LookUps);
        let lease = Duration::from_millis(1);
        let again = placements::claim(&mut connection, PROVIDER, &found, due, lease).await;
        let again = again.unwrap();
        assert_eq!(
            (again[0].was, again[0].attempt),
            (PlacementState::Placing, 1)
        );
    }
    bench.due_in(&named, 0.0).await;
    bench
        .set(
            "UPDATE placements SET unknowns = 1 WHERE placement_id::text = $1",
            named[0],
        )
        .await;
    for claimed in [1, 0] {
        let claim = bench.claim_as(PROVIDER, &named, PlacementClaim::Due(Activity::LookUps));
        assert_eq!(claim.await.len(), claimed, "the claim takes the lease");
    }
}

#[tokio::test]
async fn further_attempts_come_before_first_ones() {
    let bench = Bench::new().await;
    let partner = PartnerId::new();
    let mut orders = Vec::new();
    for _ in 0..3 {
        orders.push(bench.stored(order(partner, 1)).await);
    }
    let [first, second, again] = [0, 1, 2].map(|index| placement(&orders[index]));
    bench.due_in(&[first, second], -60.0).await;
    bench.claim(&[again]).await;
    bench.settle(&[not_bought(again, 1)]).await;
    bench.due_in(&[again], -1.0).await;
    assert_eq!(bench.find_due(PROVIDER, 1).await, [again]);
    assert_eq!(bench.find_due(PROVIDER, 3).await[0], again);
}

#[tokio::test]
async fn a_deferred_placement_names_the_ingress_that_answers_it() {
    let bench = Bench::new().await;
    let waiting = bench.stored(order(PartnerId::new(), 1)).await;
    let answered = bench
        .stored(NewOrder {
            answer_within: Duration::ZERO,
            ..order(PartnerId::new(), 1)
        })
        .await;
    let claimed = bench.placing(1).await;
    let all: Vec<_> = [&waiting, &answered, &claimed]
        .into_iter()
        .map(placement)
        .collect();
    let mut connection = bench.connection().await;
    let mut deferred = placements::defer(&mut connection, &all).await.unwrap();
    deferred.sort_by_key(|one| one.placement_id != all[0]);
    let expected = |order: &NewOrder, report_to| DeferredPlacement {
        placement_id: placement(order),
        order_id: order.order_id,
        report_to,
    };
    assert_eq!(
        deferred,
        [
            expected(&waiting, waiting.answering),
            expected(&answered, None)
        ]
    );
    assert_eq!(
        placements::defer(&mut connection, &all).await.unwrap(),
        [],
        "they are due already"
    );
    assert_eq!(bench.find_due(PROVIDER, 3).await.len(), 2);
}

#[tokio::test]
async fn a_claim_returns_what_a_provisioner_needs() {
    let bench = Bench::new().await;
    let new = NewOrder {
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        ..order_of(vec![part(PROVIDER, &[2, 0, 1])])
    };
    let new = bench.stored(new).await;
    let fresh = bench.claim(&[placement(&new)]).await.remove(0);
    assert_eq!(
        (fresh.order_id, fresh.partner_id),
        (new.order_id, new.partner_id)
    );
    assert_eq!(fresh.traceparent, new.traceparent);
    assert_eq!(
        (fresh.placed_age, fresh.report_to, fresh.claim),
        (None, new.answering, PlacementClaim::Fresh)
    );
    assert!(fresh.attempt_age < Duration::from_secs(5) && fresh.age < Duration::from_secs(5));
    let options: Vec<_> = fresh
        .topups
        .iter()
        .map(|one| &one.provider_option_id)
        .collect();
    assert_eq!(options, ["option-0", "option-1", "option-2"]);
    let unnamed = |one: &ClaimedTopup| one.pending && one.provider_unit_id.is_none();
    assert!(fresh.topups.iter().all(unnamed));

    let units = &new.placements[0].topups;
    let known = vec![
        ready(&units[1].topup_id),
        unit(&units[2].topup_id, Progress::Pending),
    ];
    bench
        .settle(&[bought(placement(&new), 1, known, false)])
        .await;
    let sql = "UPDATE placements SET created_at = now() - interval '300 s', attempted_at = now() - interval '200 s',
                 placed_at = now() - interval '100 s'
             WHERE placement_id::text = $1";
    bench.set(sql, placement(&new)).await;
    bench
        .set(
            "UPDATE orders SET answer_by = now() WHERE order_id::text = $1",
            new.order_id,
        )
        .await;
    bench.due_in(&[placement(&new)], -1.0).await;
    let later = bench.claim_due(PROVIDER, 1).await.remove(0);
    assert_eq!((later.was, later.attempt), (PlacementState::Placed, 1));
    let ages = [later.age, later.attempt_age, later.placed_age.unwrap()];
    for (age, seconds) in ages.into_iter().zip([300, 200, 100]) {
        assert!(
            (seconds..seconds + 10).contains(&age.as_secs()),
            "{later:?}"
        );
    }
    assert_eq!(
        (later.report_to, later.claim),
        (None, PlacementClaim::Due(Activity::LookUps)),
        "the order is certainly answered"
    );
    let unit = |one: &ClaimedTopup| (one.pending, one.provider_unit_id.is_some());
    let units: Vec<_> = later.topups.iter().map(unit).collect();
    assert_eq!(units, [(false, true), (true, true), (true, false)]);
}

/// A finished placement has work that was left behind. A provisioner finds that work at the moment
/// when an operator resolves the placement as bought, which makes its failed unit pending again.
#[tokio::test]
async fn the_work_of_a_placement_that_is_just_being_resolved_is_not_deleted() {
    let bench = Bench::new().await;
    let order = bench.placing(1).await;
    let named = placement(&order);
    let topup = &order.placements[0].topups[0].topup_id;
    let failed = unit(topup, Progress::Failed("no stock".into()));
    bench.settle(&[bought(named, 1, vec![failed], false)]).await;
    bench.settle(&[disputed(named, 1)]).await;
    bench
        .set("DELETE FROM esims WHERE topup_id = $1", topup)
        .await;
    assert_eq!(bench.state(named).await, "parked");
    bench.due_in(&[named], -1.0).await;

    // The claim takes the lease and then waits, because it cannot read the eSIMs.
    let mut holder = bench.pool.begin().await.unwrap();
    execute(&mut holder, "LOCK TABLE esims IN ACCESS EXCLUSIVE MODE").await;
    let due = [named];
    let claim = bench.claim_as(PROVIDER, &due, PlacementClaim::Due(Activity::LookUps));
    let resolving = async {
        let is_leased = "SELECT at > now() FROM work WHERE id::text = $1";
        wait::soon("the lease", async || {
            Ok(bench.value::<bool>(is_leased, named).await.then_some(()))
        })
        .await;
        // What `esimctl placement resolve --bought` writes to these tables. It cannot run itself,
        // because it reads the eSIMs, too.
        let mut operator = bench.pool.begin().await.unwrap();
        execute(
            &mut operator,
            &format!("UPDATE placements SET state = 'placed' WHERE placement_id = '{named}'"),
        )
        .await;
        execute(
            &mut operator,
            &format!("UPDATE topups SET state = 'pending' WHERE placement_id = '{named}'"),
        )
        .await;
        execute(
            &mut operator,
            &format!("UPDATE work SET at = now() WHERE id = '{named}'"),
        )
        .await;
        holder.rollback().await.unwrap();
        // Now the claim has read a finished placement, and wants to delete its work.
        let waiting = "SELECT exists(SELECT FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%DELETE%' AND $1 <> '')";
        wait::soon("the deletion", async || {
            Ok(bench.value::<bool>(waiting, named).await.then_some(()))
        })
        .await;
        operator.commit().await.unwrap();
    };
    let (claimed, ()) = tokio::join!(claim, resolving);
    assert!(claimed.is_empty());
    assert_eq!(
        bench.find_due(PROVIDER, 1).await,
        [named],
        "its profile is still to be collected"
    );
}

/// Nulls what the first claim finds on the row of the placement, as it is on placements of many
/// units.
const NOT_ON_THE_ROW: &str =
    "UPDATE placements SET first_claim = NULL WHERE placement_id::text = $1";

#[tokio::test]
async fn the_first_claim_reads_the_same_from_the_row_as_from_the_tables() {
    let bench = Bench::new().await;
    for (units, answered) in [(1, false), (3, false), (2, true)] {
        let mut order = order(PartnerId::new(), units);
        order.traceparent =
            (units == 3).then(|| "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into());
        order.placements[0].topups.reverse();
        if answered {
            order.answer_within = Duration::ZERO;
        }
        let order = bench.stored(order).await;
        let id = placement(&order);
        let row = bench.claim(&[id]).await.remove(0);
        assert_eq!(row.report_to, order.answering.filter(|_| !answered));
        assert_eq!(row.external_order_id, order.external_order_id);
        assert_eq!(row.topups.len(), units);
        // The same placement again, as if it had not been claimed.
        let again = "UPDATE placements SET state = 'accepted', attempt = 0, attempted_at = NULL WHERE placement_id::text = $1";
        bench.set(again, id).await;
        bench.set(NOT_ON_THE_ROW, id).await;
        let mut tables = bench.claim(&[id]).await.remove(0);
        // They are read a moment later.
        assert!(tables.age >= row.age && tables.attempt_age >= row.attempt_age);
        tables.age = row.age;
        tables.attempt_age = row.attempt_age;
        assert_eq!(format!("{tables:?}"), format!("{row:?}"));
    }
}

#[tokio::test]
async fn a_claim_of_orders_of_two_versions_takes_each_of_them_once() {
    let bench = Bench::new().await;
    let orders: Vec<NewOrder> = (0..4).map(|_| order(PartnerId::new(), 2)).collect();
    bench.store(&orders).await;
    let all: Vec<PlacementId> = orders.iter().map(placement).collect();
    for (id, damage) in [
        (all[0], NOT_ON_THE_ROW),
        (
            all[1],
            "UPDATE placements SET first_claim = '{\"of\": \"a newer version\"}' WHERE placement_id::text = $1",
        ),
    ] {
        bench.set(damage, id).await;
    }
    let claimed = bench.claim(&all).await;
    assert_eq!(ids(&claimed), all.into_iter().collect());
    assert!(
        claimed
            .iter()
            .all(|one| one.topups.len() == 2 && one.attempt == 1)
    );
}

#[tokio::test]
async fn a_later_attempt_reads_what_a_new_provider_is_asked_for() {
    let bench = Bench::new().await;
    let order = bench.placing(1).await;
    let id = placement(&order);
    bench.settle(&[not_bought(id, 1)]).await;
    let renamed = "UPDATE topups SET provider_option_id = 'renamed' WHERE placement_id::text = $1";
    bench.set(renamed, id).await;
    // The settlement has erased what the order wrote for its first claim. What is left, for
    // whatever reason, is not believed either.
    bench.stored(order_of(vec![part(PROVIDER, &[0])])).await;
    let left = "UPDATE placements SET first_claim = (SELECT first_claim FROM placements WHERE state = 'accepted'
                                                     AND first_claim IS NOT NULL)
                WHERE placement_id::text = $1";
    bench.set(left, id).await;
    let claimed = bench.claim(&[id]).await.remove(0);
    assert_eq!(
        (
            claimed.attempt,
            claimed.topups[0].provider_option_id.as_str()
        ),
        (2, "renamed")
    );
}

/// What an order writes for its first claim goes with whatever ends that claim's chance to be used.
#[tokio::test]
async fn nothing_is_kept_for_a_first_claim_that_can_no_longer_come() {
    let bench = Bench::new().await;
    let kept = async |id: PlacementId| -> bool {
        let kept = "SELECT first_claim IS NOT NULL FROM placements WHERE placement_id::text = $1";
        bench.value(kept, id).await
    };
    let parts = vec![part(PROVIDER, &[0]), part("another", &[1])];
    let refused = bench.stored(order_of(parts)).await;
    let untried = refused.placements[1].placement_id;
    bench.claim(&[placement(&refused)]).await;
    bench.settle(&[rejected(placement(&refused), 1)]).await;
    assert!(kept(untried).await);
    assert!(bench.refuse(&refused).await.is_some());
    assert!(!kept(untried).await);
    for outcome in [not_bought, unknown, rejected] {
        let order = bench.placing(1).await;
        let id = placement(&order);
        assert!(kept(id).await);
        bench.settle(&[outcome(id, 1)]).await;
        assert!(!kept(id).await);
    }
}
