//! Recovery after an old dump is restored: whatever may have been bought after the dump is looked
//! up before it can be bought again.

use std::time::Duration;

use domain::placement::{Placement, PlacementEvent};
use domain::{PartnerId, PlacementState};
use pg::actions::Mode;
use sqlx::{ConnectOptions, postgres::PgConnectOptions};
use store::orders::NewOrder;
use store::placements::{self, Activity, PlacementClaim};
use tools::recover::{self, NotRecovered, RecoveryCounts};

use crate::bench::{
    Bench, PROVIDER, applied, bought_pending, not_found, order, parked, placement, rejected,
    unknown,
};

impl Bench {
    async fn recover(
        &self,
        park_unanswered: bool,
        dry_run: bool,
    ) -> Result<RecoveryCounts, NotRecovered> {
        let mode = if dry_run { Mode::Preview } else { applied() };
        recover::recover(&mut *self.connection().await, park_unanswered, mode).await
    }

    async fn accepted(&self, answer_within: Duration) -> NewOrder {
        self.stored(NewOrder {
            answer_within,
            ..order(PartnerId::new(), 1)
        })
        .await
    }
}

fn moved(recovered: &RecoveryCounts) -> (i64, i64, i64) {
    (recovered.accepted, recovered.placing, recovered.parked)
}

#[tokio::test]
async fn what_may_have_been_bought_is_looked_up_and_nothing_else_is_touched() {
    let bench = Bench::new().await;
    let accepted = bench.accepted(Duration::ZERO).await;
    let placing = bench.placing(1).await;
    // Halfway back to `accepted`: the first "no such purchase" must no longer count.
    bench
        .settle(&[not_found(placement(&placing), 1, true)])
        .await;
    let sql = "UPDATE placements SET attempted_at = now() - interval '1 day' WHERE placement_id::text = $1";
    bench.set(sql, placement(&placing)).await;
    let mut others = Vec::new();
    for outcome in [bought_pending, rejected, parked] {
        let other = bench.placing(1).await;
        bench.settle(&[outcome(placement(&other), 1)]).await;
        others.push((other.order_id, bench.everything(other.order_id).await));
    }

    let before = bench.everything(accepted.order_id).await;
    assert_eq!(moved(&bench.recover(false, true).await.unwrap()), (1, 1, 0));
    assert_eq!(
        bench.everything(accepted.order_id).await,
        before,
        "a dry run"
    );

    let recovered = bench.recover(false, false).await.unwrap();
    let (was, is) = bench.changed().await;
    assert_eq!(
        (&was["accepted"], &was["placing"], &is["placing"]),
        (&1.into(), &1.into(), &2.into())
    );
    assert_eq!((moved(&recovered), recovered.parked_before), ((1, 1, 0), 1));
    // As if a provisioner had recorded an attempt and died.
    for order in [&accepted, &placing] {
        let claimed = Placement::NEW.after(PlacementEvent::Claim);
        assert_eq!(Ok(bench.read(placement(order)).await), claimed);
    }
    for (order, everything) in others {
        assert_eq!(bench.everything(order).await, everything);
    }

    assert_eq!(
        moved(&bench.recover(false, false).await.unwrap()),
        (0, 2, 0),
        "nothing moves further"
    );
    let due = bench.find_due(PROVIDER, 100).await;
    let mut connection = bench.connection().await;
    let looked_up = PlacementClaim::Due(Activity::LookUps);
    let lease = Duration::from_millis(1);
    let claimed = placements::claim(&mut connection, PROVIDER, &due, looked_up, lease).await;
    let mut claimed = claimed.unwrap();
    claimed.retain(|one| one.was == PlacementState::Placing);
    assert_eq!(claimed.len(), 2);
    for one in &claimed {
        assert_eq!((one.attempt, one.unknowns), (1, 0));
        assert!(
            one.attempt_age < Duration::from_mins(1),
            "{:?}",
            one.attempt_age
        );
    }
    // A late job claims nothing.
    assert!(bench.claim(&[placement(&accepted)]).await.is_empty());

    // Only two look-ups lead to another attempt.
    let id = placement(&accepted);
    bench
        .settle(&[not_found(id, 1, true), unknown(id, 1)])
        .await;
    assert_eq!(bench.state(id).await, "placing");
    bench.settle(&[not_found(id, 1, true)]).await;
    assert_eq!(bench.state(id).await, "accepted");
}

#[tokio::test]
async fn a_lock_that_is_not_free_is_explained_by_its_holder() {
    let bench = Bench::new().await;
    let mut holder = bench.connection().await;
    let begin = "SET idle_in_transaction_session_timeout = 0; SET application_name = 'psql of Ann';
         BEGIN; LOCK TABLE placements IN ROW EXCLUSIVE MODE";
    crate::bench::execute(&mut holder, begin).await;
    // The connections of the stages have a shorter limit for statements; those of esimctl have
    // none.
    let mut connection = bench.connection().await;
    crate::bench::execute(&mut connection, "SET statement_timeout = 0").await;
    let error = recover::recover(&mut connection, false, Mode::Preview)
        .await
        .unwrap_err();
    assert!(matches!(error, NotRecovered::Locked(Some(_))), "{error}");
    let text = error.to_string();
    for part in [
        "locked by psql of Ann (pid ",
        "idle in transaction",
        "since ",
        "pg_terminate_backend(",
        "run the command again",
    ] {
        assert!(text.contains(part), "{text}");
    }
    crate::bench::execute(&mut holder, "ROLLBACK").await;
    bench.recover(false, true).await.unwrap();
}

#[tokio::test]
async fn orders_that_may_have_been_refused_are_named_and_can_be_parked() {
    let bench = Bench::new().await;
    bench.accepted(Duration::ZERO).await;
    let waiting = bench.accepted(Duration::from_secs(10)).await;
    bench.accepted(Duration::ZERO).await;

    let named = |recovered: RecoveryCounts| -> Vec<_> {
        recovered
            .unanswered
            .into_iter()
            .map(|one| one.order_id)
            .collect()
    };
    assert_eq!(
        named(bench.recover(false, true).await.unwrap()),
        [waiting.order_id]
    );

    let recovered = bench.recover(true, false).await.unwrap();
    assert_eq!(moved(&recovered), (3, 0, 1));
    assert_eq!(named(recovered), [waiting.order_id]);
    assert_eq!(bench.state(placement(&waiting)).await, "parked");
    assert_eq!(
        bench.find_due(PROVIDER, 100).await.len(),
        2,
        "what is parked is left to the operator"
    );

    // It was bought after all: its own late outcome still counts.
    bench
        .settle(&[bought_pending(placement(&waiting), 1)])
        .await;
    assert_eq!(bench.state(placement(&waiting)).await, "placed");
}

#[tokio::test]
async fn nothing_is_moved_while_a_provisioner_is_connected() {
    let bench = Bench::new().await;
    let order = bench.accepted(Duration::ZERO).await;
    let options: PgConnectOptions = bench.database.url().parse().unwrap();
    let provisioner = options
        .application_name("provisioner")
        .connect()
        .await
        .unwrap();
    for dry_run in [true, false] {
        let refused = bench.recover(false, dry_run).await.unwrap_err();
        assert!(
            matches!(refused, NotRecovered::Provisioners(1)),
            "{refused}"
        );
    }
    assert_eq!(bench.state(placement(&order)).await, "accepted");
    drop(provisioner);
}

#[tokio::test]
async fn a_dump_without_orders_is_fine() {
    let recovered = Bench::new().await.recover(true, false).await.unwrap();
    assert_eq!(moved(&recovered), (0, 0, 0));
    assert_eq!(recovered.newest_order_at, None);
}
