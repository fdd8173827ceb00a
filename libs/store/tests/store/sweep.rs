//! The sweep: every row without an outcome gets due work after its first lease, even if a slow
//! transaction committed it late.

use std::{collections::HashMap, str::FromStr, time::Duration};

use domain::PartnerId;
use sqlx::{
    ConnectOptions, Connection, PgConnection, Postgres, Transaction, postgres::PgConnectOptions,
};
use store::{
    SweepResult, deliveries, placements,
    work::{self, WorkKind},
};
use testkit::wait::until;

use crate::bench::{Bench, PROVIDER, bought, execute, ids, look, order, placement, ready, topups};

const LAG: Duration = Duration::from_secs(10);

impl Bench {
    async fn sweep(&self) -> SweepResult {
        placements::sweep(&mut *self.connection().await, LAG)
            .await
            .unwrap()
    }

    /// Sweeps until `expected` rows were late; returns the number of sweeps.
    async fn swept(&self, expected: u64) -> usize {
        let mut sweeps = 0;
        let mut late = 0;
        until(
            Duration::from_mins(1),
            "late rows to be found",
            async || {
                sweeps += 1;
                late += self.sweep().await.late;
                Ok((late >= expected).then_some(()))
            },
        )
        .await
        .unwrap();
        assert_eq!(late, expected);
        sweeps
    }

    /// Moves all stored rows and the sweep that far into the past.
    async fn age(&self, seconds: i32) {
        for statement in [
            "UPDATE placements SET created_at = created_at - make_interval(secs => $1)",
            "UPDATE deliveries SET created_at = created_at - make_interval(secs => $1)",
            "UPDATE walks SET up_to = up_to - make_interval(secs => $1), fence_at = fence_at - make_interval(secs => $1)
            WHERE name IN ('placements', 'deliveries')",
        ] {
            let aged = sqlx::query(statement)
                .bind(seconds)
                .execute(&self.pool)
                .await;
            aged.unwrap();
        }
    }
}

#[tokio::test]
async fn what_is_not_finished_in_time_becomes_due_and_what_is_does_not() {
    let bench = Bench::new().await;
    let placing = bench.placing(1).await;
    let done = bench.placing(1).await;
    let accepted = bench.stored(order(PartnerId::new(), 1)).await;
    bench
        .settle(&[bought(
            placement(&done),
            1,
            topups(&done).iter().map(ready).collect(),
            true,
        )])
        .await;
    assert_eq!(bench.sweep().await.late, 0, "too young");
    bench.age(12).await;
    assert_eq!(bench.sweep().await.late, 2);
    assert_eq!(
        bench.find_due(PROVIDER, 10).await,
        [placement(&accepted), placement(&placing)]
    );
    assert_eq!(bench.sweep().await.late, 0, "they have their due rows");

    let mut connection = bench.connection().await;
    assert_eq!(
        deliveries::sweep(&mut connection, LAG).await.unwrap().late,
        1
    );
    let due = work::due_deliveries(&mut connection, &look(10, 10))
        .await
        .unwrap()
        .due;
    let due: Vec<_> = due.into_iter().map(|one| one.id).collect();
    assert_eq!(due, ids(&topups(&done)));
}

/// A transaction that has stored an order and does not commit. The rows are older than their first
/// lease before anybody sees them.
async fn slow_order(connection: &mut PgConnection) -> Transaction<'_, Postgres> {
    let mut transaction = connection.begin().await.unwrap();
    let late = order(PartnerId::new(), 1);
    let stored = store::orders::insert(&mut transaction, &[late]).await;
    assert_eq!(stored.unwrap(), [true]);
    let older = "UPDATE placements SET created_at = created_at - interval '20 s'";
    execute(&mut transaction, older).await;
    transaction
}

#[tokio::test]
async fn a_commit_that_took_longer_than_the_lease_is_still_found() {
    let bench = Bench::new().await;
    let mut slow = bench.database.connect().await.unwrap();
    let transaction = slow_order(&mut slow).await;
    bench.age(30).await;
    for _ in 0..5 {
        assert_eq!(bench.sweep().await.late, 0);
    }
    transaction.commit().await.unwrap();
    assert!(bench.swept(1).await > 0);
}

/// A fence beyond the snapshot is that of another cluster, whose dump was loaded, or one that
/// another process has set meanwhile. Neither proves that a slow transaction has ended.
#[tokio::test]
async fn a_fence_that_proves_nothing_is_set_anew() {
    let bench = Bench::new().await;
    let mut slow = bench.database.connect().await.unwrap();
    let transaction = slow_order(&mut slow).await;
    bench
        .sql(
            "UPDATE walks SET up_to = now() - interval '30 s', fence_at = now() - interval '11 s',
                              fence_xid = '9000000000000000000'
             WHERE name = 'placements'",
        )
        .await;
    for _ in 0..5 {
        assert_eq!(bench.sweep().await.late, 0);
    }
    transaction.commit().await.unwrap();
    bench.swept(1).await;
}

/// A dump, a migration of something else or a neighbour on the same server may take hours.
#[tokio::test]
async fn a_transaction_that_writes_no_order_stops_no_sweep() {
    let bench = Bench::new().await;
    let mut here = bench.database.connect().await.unwrap();
    let mut here = here.begin().await.unwrap();
    execute(
        &mut here,
        "CREATE TABLE unrelated (); SELECT FROM placements FOR UPDATE",
    )
    .await;
    let options = PgConnectOptions::from_str(bench.database.url()).unwrap();
    let mut neighbour = options.database("postgres").connect().await.unwrap();
    let mut neighbour = neighbour.begin().await.unwrap();
    execute(&mut neighbour, "SELECT pg_current_xact_id()").await;
    bench.store(&[order(PartnerId::new(), 1)]).await;
    bench.age(120).await;
    bench.store(&[order(PartnerId::new(), 1)]).await;
    bench.age(12).await;
    bench.swept(2).await;
}

#[tokio::test]
async fn after_a_long_stop_the_sweep_catches_up_in_stretches() {
    let bench = Bench::new().await;
    bench.store(&[order(PartnerId::new(), 1)]).await;
    bench.age(120).await;
    bench.store(&[order(PartnerId::new(), 1)]).await;
    bench.age(12).await;
    let sweeps = bench.swept(2).await;
    assert!(sweeps > 10, "{sweeps}");
}

/// An idle system sweeps rarely, and so hardly writes. All of it is one transaction, in which the
/// time stands still.
#[tokio::test]
async fn a_sweep_is_left_out_only_while_it_would_find_nothing() {
    let bench = Bench::new().await;
    let mut connection = bench.connection().await;
    let mut transaction = connection.begin().await.unwrap();
    let order = order(PartnerId::new(), 1);
    store::orders::insert(&mut transaction, std::slice::from_ref(&order))
        .await
        .unwrap();
    for (swept, created, sweeps_placements, sweeps_deliveries) in [
        (11, 9, false, false),
        (11, 10, true, false),
        (11, 12, false, false),
        (16, 17, true, true),
    ] {
        let times = format!(
            "UPDATE walks SET up_to = now() - interval '{swept} s' WHERE name IN ('placements', 'deliveries');
             UPDATE placements SET created_at = now() - interval '{created} s'"
        );
        execute(&mut transaction, &times).await;
        let before = places(&mut transaction).await;
        placements::sweep(&mut transaction, LAG).await.unwrap();
        deliveries::sweep(&mut transaction, LAG).await.unwrap();
        let after = places(&mut transaction).await;
        // Whoever writes a row moves it to another place.
        let has_written = |name: &str| before[name] != after[name];
        let swept_now = (has_written("placements"), has_written("deliveries"));
        let expected = (sweeps_placements, sweeps_deliveries);
        assert_eq!(swept_now, expected, "{swept} {created}");
    }
}

/// Where the rows of the sweeps are in their table.
async fn places(connection: &mut PgConnection) -> HashMap<String, String> {
    let places = sqlx::query_as("SELECT name, ctid::text FROM walks");
    let places: Vec<(String, String)> = places.fetch_all(connection).await.unwrap();
    places.into_iter().collect()
}

#[tokio::test]
async fn the_lookout_hears_of_each_kind_that_is_due() {
    let bench = Bench::new().await;
    let order = bench.stored(order(PartnerId::new(), 1)).await;
    let mut connection = bench.connection().await;
    placements::defer(&mut connection, &[placement(&order)])
        .await
        .unwrap();
    let kinds = [
        WorkKind::BuyAgain,
        WorkKind::Buy,
        WorkKind::Buy,
        WorkKind::Deliver,
    ];
    let providers = [PROVIDER, PROVIDER, "another", ""].map(str::to_owned);
    let due = work::are_due(&mut connection, &kinds, &providers).await;
    assert_eq!(due.unwrap(), [false, true, false, false]);
    bench.due_in(&[placement(&order)], 60.0).await;
    let due = work::are_due(&mut connection, &kinds, &providers).await;
    assert_eq!(due.unwrap(), [false; 4]);
}
